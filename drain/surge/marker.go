package surge

import (
	"encoding/json"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Anyone who may edit a Deployment or a HorizontalPodAutoscaler can set the label that selects the watched objects, and can copy the
// record of another object. So the cache keeps only the identities of the watched objects. It keeps the label only if the record names
// the UID of the object, as each record of this manager does, or if the label has the number of replicas to which the Deployment is scaled
// back.

// TrimDeployment drops from the metadata of a watched Deployment all but its identity, and the label unless it records a surge.
func TrimDeployment(m *metav1.PartialObjectMetadata) {
	b, err := baselineOf(m)
	marking, _ := markingOf(m)
	trim(m, b != nil && err == nil || marking.surged > 0, "")
}

// TrimAutoscaler drops from the metadata of a watched HorizontalPodAutoscaler all but its identity and its note, and the label unless
// the note is its own.
func TrimAutoscaler(m *metav1.PartialObjectMetadata) {
	n := noteOf(m)
	if n == nil || len(n.Name) > maxNameLength {
		trim(m, false, "")
		return
	}
	trim(m, true, toJSON(n))
}

// maxNameLength is the maximum length of the names of objects in Kubernetes.
const maxNameLength = 253

func trim(m *metav1.PartialObjectMetadata, recorded bool, record string) {
	m.ObjectMeta = metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}
	if recorded {
		m.Labels = map[string]string{v1alpha1.SurgingLabel: ""}
	}
	if record != "" {
		m.Annotations = map[string]string{v1alpha1.SurgeAnnotation: record}
	}
}

// Recorded reports whether a trimmed object records a surge.
func Recorded(trimmed *metav1.PartialObjectMetadata) bool {
	_, recorded := trimmed.Labels[v1alpha1.SurgingLabel]
	return recorded
}

// TargetOf returns the name of the Deployment that a trimmed HorizontalPodAutoscaler was raised for, or "".
func TargetOf(trimmed *metav1.PartialObjectMetadata) string {
	if n := noteOf(trimmed); n != nil {
		return n.Name
	}
	return ""
}

// RaisedFor reports whether a HorizontalPodAutoscaler carries the note that it was raised for the Deployment of that name.
func RaisedFor(h *autoscalingv2.HorizontalPodAutoscaler, deployment string) bool {
	n := noteOf(h)
	return n != nil && n.Name == deployment
}

func toJSON(content any) string {
	value, err := json.Marshal(content)
	if err != nil {
		panic(err) // structs of strings and numbers
	}
	return string(value)
}

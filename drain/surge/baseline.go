package surge

import (
	"encoding/json"
	"hash/fnv"
	"maps"
	"strconv"

	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// maxPods is how many Pods move at a time at most: the baseline that names them is an annotation, and those of an object are
// limited to 256 KiB.
const maxPods = 100

// PodRef names one Pod of the Deployment.
type PodRef struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}

// Baseline is what a Deployment was like before it was surged, and how far that has come.
type Baseline struct {
	// Deployment is the UID of the one that is meant: an annotation is copied easily.
	Deployment types.UID `json:"deployment"`
	// Replicas that it declared, and Surged, those that it has while room is made.
	Replicas int32 `json:"replicas"`
	Surged   int32 `json:"surged"`
	// Raised says that it was scaled up. Where an autoscaler does that, its note says so.
	Raised bool `json:"raised,omitempty"`
	// Template is a hash of its Pod template.
	Template string `json:"template"`
	// Pods that leave.
	Pods []PodRef `json:"pods"`
	// Autoscaler that scales the Deployment, if there is one.
	Autoscaler *AutoscalerBaseline `json:"autoscaler,omitempty"`
	// Returning is since when the autoscaler is to scale back.
	Returning *metav1.Time `json:"returning,omitempty"`
}

// AutoscalerBaseline is what a HorizontalPodAutoscaler was like before.
type AutoscalerBaseline struct {
	Name        string    `json:"name"`
	UID         types.UID `json:"uid"`
	MinReplicas *int32    `json:"minReplicas,omitempty"`
}

// note is what an autoscaler whose minReplicas is raised remembers by itself, so that it is restored where the Deployment is gone.
type note struct {
	Autoscaler types.UID `json:"autoscaler"`
	Deployment types.UID `json:"deployment"`
	// Name of the Deployment.
	Name   string `json:"name"`
	Before *int32 `json:"before,omitempty"`
	Raised int32  `json:"raised"`
}

// BaselineOf reads the baseline of a Deployment. Nil: it isn't surged. An error: there is something that isn't its baseline.
func BaselineOf(d *appsv1.Deployment) (*Baseline, error) { return baselineOf(d) }

func baselineOf(d metav1.Object) (*Baseline, error) {
	value, found := d.GetAnnotations()[v1alpha1.SurgeAnnotation]
	if !found {
		return nil, nil //nolint:nilnil // none is as good an answer as any
	}
	b := &Baseline{}
	if err := json.Unmarshal([]byte(value), b); err != nil {
		return nil, errors.Wrap(err, "reading the baseline")
	}
	switch {
	case b.Deployment != d.GetUID():
		return nil, errors.New("the baseline is that of another Deployment")
	case b.Replicas < 1 || b.Surged <= b.Replicas || len(b.Pods) > maxPods || int(b.Surged-b.Replicas) > len(b.Pods):
		return nil, errors.New("the baseline is none that was recorded here")
	}
	return b, nil
}

// SetBaseline stores the baseline on the Deployment; nil takes it away.
func SetBaseline(d *appsv1.Deployment, b *Baseline) {
	if b == nil {
		unmarkObject(d)
		return
	}
	markObject(d, b)
}

func noteOf(h metav1.Object) *note {
	n := &note{}
	value, found := h.GetAnnotations()[v1alpha1.SurgeAnnotation]
	if !found || json.Unmarshal([]byte(value), n) != nil || n.Autoscaler != h.GetUID() {
		return nil
	}
	return n
}

func markObject(object metav1.Object, content any) {
	annotations, labels := maps.Clone(object.GetAnnotations()), maps.Clone(object.GetLabels())
	if annotations == nil {
		annotations = map[string]string{}
	}
	if labels == nil {
		labels = map[string]string{}
	}
	annotations[v1alpha1.SurgeAnnotation], labels[v1alpha1.SurgingLabel] = toJSON(content), ""
	object.SetAnnotations(annotations)
	object.SetLabels(labels)
}

func unmarkObject(object metav1.Object) {
	annotations, labels := maps.Clone(object.GetAnnotations()), maps.Clone(object.GetLabels())
	delete(annotations, v1alpha1.SurgeAnnotation)
	delete(labels, v1alpha1.SurgingLabel)
	object.SetAnnotations(annotations)
	object.SetLabels(labels)
}

// templateHash tells whether a template has been edited. Where a newer version of this program knows fields that the older one
// didn't, it may differ by mistake: then the surge is called off, no more.
func templateHash(template corev1.PodTemplateSpec) string {
	hash := fnv.New64a()
	if err := json.NewEncoder(hash).Encode(template); err != nil {
		panic(err) // it has come as JSON
	}
	return strconv.FormatUint(hash.Sum64(), 36)
}

func replicas(d *appsv1.Deployment) int32 { return ptr.Deref(d.Spec.Replicas, 1) }

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

// maxPods is how many Pods a surge replaces at a time at most: the baseline that names them is an annotation, and the annotations of
// an object are limited to 256 KiB.
const maxPods = 100

// PodRef names one Pod of the Deployment.
type PodRef struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}

// Baseline is the state of a Deployment before its surge, and the progress of the surge.
type Baseline struct {
	// Deployment is the UID of the Deployment: it identifies annotations that were copied to another one.
	Deployment types.UID `json:"deployment"`
	// Replicas is the declared number of replicas, Surged that during the surge.
	Replicas int32 `json:"replicas"`
	Surged   int32 `json:"surged"`
	// Raised means that the Deployment was scaled up. It is false if an autoscaler scales: then its note means the same.
	Raised bool `json:"raised,omitempty"`
	// Template is a hash of the Pod template.
	Template string `json:"template"`
	// Pods to be removed.
	Pods []PodRef `json:"pods"`
	// Autoscaler that scales the Deployment, or nil.
	Autoscaler *AutoscalerBaseline `json:"autoscaler,omitempty"`
	// Returning is the time since which the autoscaler is expected to scale back.
	Returning *metav1.Time `json:"returning,omitempty"`
}

// AutoscalerBaseline is the state of a HorizontalPodAutoscaler before the surge.
type AutoscalerBaseline struct {
	Name        string    `json:"name"`
	UID         types.UID `json:"uid"`
	MinReplicas *int32    `json:"minReplicas,omitempty"`
}

// note is stored on an autoscaler whose minReplicas is raised, so that it can be restored when the Deployment does not exist any more.
type note struct {
	Autoscaler types.UID `json:"autoscaler"`
	Deployment types.UID `json:"deployment"`
	// Name of the Deployment.
	Name   string `json:"name"`
	Before *int32 `json:"before,omitempty"`
	Raised int32  `json:"raised"`
}

// BaselineOf returns the baseline of a Deployment, nil if it is not surged, and an error if the annotation is not a valid baseline of it.
func BaselineOf(d *appsv1.Deployment) (*Baseline, error) { return baselineOf(d) }

func baselineOf(d metav1.Object) (*Baseline, error) {
	value, found := d.GetAnnotations()[v1alpha1.SurgeAnnotation]
	if !found {
		return nil, nil //nolint:nilnil // a Deployment without a baseline is no error
	}
	b := &Baseline{}
	if err := json.Unmarshal([]byte(value), b); err != nil {
		return nil, errors.Wrap(err, "reading the baseline")
	}
	switch {
	case b.Deployment != d.GetUID():
		return nil, errors.New("the baseline belongs to another Deployment")
	case b.Replicas < 1 || b.Surged <= b.Replicas || len(b.Pods) > maxPods || int(b.Surged-b.Replicas) > len(b.Pods):
		return nil, errors.New("the baseline has invalid replicas or Pods")
	}
	return b, nil
}

// SetBaseline stores the baseline in the annotation of the Deployment; nil removes it.
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

// templateHash returns a hash that changes when a template is edited. It may also change when a newer version of the manager knows
// fields that the older one did not. The only effect is that the surge is ended, and the Pods are evicted.
func templateHash(template corev1.PodTemplateSpec) string {
	hash := fnv.New64a()
	if err := json.NewEncoder(hash).Encode(template); err != nil {
		panic(err) // it was decoded from JSON
	}
	return strconv.FormatUint(hash.Sum64(), 36)
}

func replicas(d *appsv1.Deployment) int32 { return ptr.Deref(d.Spec.Replicas, 1) }

package surge

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

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

// Baseline is the state of a Deployment before its surge, and the progress of the surge. The Deployment controller copies the annotations
// of a Deployment to its ReplicaSets, and `kubectl rollout undo` replaces those of the Deployment by such a copy. Labels are not copied. So
// a baseline counts only while the label of the Deployment agrees with it, see marking.
type Baseline struct {
	// ID identifies the surge. It is empty in a baseline of an earlier version.
	ID string `json:"id,omitempty"`
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
	// Replicas is that of the baseline. It is 0 in a note of an earlier version.
	Replicas int32 `json:"replicas,omitempty"`
	Raised   int32 `json:"raised"`
}

// marking is the value of the label of a surging Deployment. After the Deployment was scaled up, it is enough to scale it back.
type marking struct {
	id string
	// replicas and surged are those of the baseline, 0 before the Deployment was scaled up and if an autoscaler scales.
	replicas, surged int32
}

func (m marking) String() string {
	if m.surged == 0 {
		return m.id
	}
	return fmt.Sprintf("%s.%d.%d", m.id, m.replicas, m.surged)
}

// markingOf returns the marking of a Deployment, the zero value for a label that is invalid or was copied from another Deployment, and
// false if the Deployment has no label.
func markingOf(d metav1.Object) (m marking, labelled bool) {
	value, labelled := d.GetLabels()[v1alpha1.SurgingLabel]
	parts := strings.Split(value, ".")
	if len(parts) == 1 {
		return marking{id: value}, labelled
	}
	if len(parts) != 3 {
		return marking{}, labelled
	}
	before, beforeErr := strconv.ParseInt(parts[1], 10, 32)
	surged, surgedErr := strconv.ParseInt(parts[2], 10, 32)
	if beforeErr != nil || surgedErr != nil || before < 1 || surged <= before || surged-before > maxPods || !strings.HasPrefix(parts[0], idPrefix(d.GetUID())) {
		return marking{}, labelled
	}
	return marking{id: parts[0], replicas: int32(before), surged: int32(surged)}, labelled
}

// newID returns the ID of a surge that begins now. It starts with a hash of the UID, so that a copy of the Deployment with its labels is
// recognized.
func newID(deployment types.UID, now time.Time) string {
	return idPrefix(deployment) + strconv.FormatInt(now.UnixNano(), 36)
}

func idPrefix(deployment types.UID) string {
	hash := fnv.New64a()
	hash.Write([]byte(deployment))
	return strconv.FormatUint(hash.Sum64(), 36) + "-"
}

func (b *Baseline) marking() marking {
	m := marking{id: b.ID}
	if b.Raised && b.ID != "" {
		m.replicas, m.surged = b.Replicas, b.Surged
	}
	return m
}

// BaselineOf returns the baseline of a Deployment, nil if it is not surged, and an error if the label of a surge has no valid baseline. An
// annotation without the label is a copy, which is ignored.
func BaselineOf(d *appsv1.Deployment) (*Baseline, error) { return baselineOf(d) }

func baselineOf(d metav1.Object) (*Baseline, error) {
	m, labelled := markingOf(d)
	if !labelled {
		return nil, nil //nolint:nilnil // a Deployment without a baseline is no error
	}
	value, found := d.GetAnnotations()[v1alpha1.SurgeAnnotation]
	if !found {
		return nil, errors.New("the baseline is missing")
	}
	b, err := recordIn(value, d)
	if err == nil && b.marking() != m {
		return nil, errors.New("the baseline belongs to another surge, or is not its latest one")
	}
	return b, err
}

// recordIn returns the baseline of a Deployment that an annotation contains, of the Deployment itself or a copy.
func recordIn(value string, d metav1.Object) (*Baseline, error) {
	b := &Baseline{}
	if err := json.Unmarshal([]byte(value), b); err != nil {
		return nil, errors.Wrap(err, "reading the baseline")
	}
	switch {
	case b.Deployment != d.GetUID():
		return nil, errors.New("the baseline belongs to another Deployment")
	case b.Replicas < 1 || b.Surged <= b.Replicas || len(b.Pods) > maxPods || b.Returning == nil && int(b.Surged-b.Replicas) > len(b.Pods):
		return nil, errors.New("the baseline has invalid replicas or Pods")
	case slices.ContainsFunc(b.Pods, func(pod PodRef) bool { return pod.Name == "" }), b.Autoscaler != nil && b.Autoscaler.Name == "":
		return nil, errors.New("the baseline has a Pod or a HorizontalPodAutoscaler without a name")
	}
	return b, nil
}

// SetBaseline stores the baseline in the annotation of the Deployment; nil removes it.
func SetBaseline(d *appsv1.Deployment, b *Baseline) {
	if b == nil {
		unmarkObject(d)
		return
	}
	markObject(d, b, b.marking().String())
}

func noteOf(h metav1.Object) *note {
	n := &note{}
	value, found := h.GetAnnotations()[v1alpha1.SurgeAnnotation]
	if !found || json.Unmarshal([]byte(value), n) != nil || n.Autoscaler != h.GetUID() {
		return nil
	}
	return n
}

func markObject(object metav1.Object, content any, label string) {
	annotations, labels := maps.Clone(object.GetAnnotations()), maps.Clone(object.GetLabels())
	if annotations == nil {
		annotations = map[string]string{}
	}
	if labels == nil {
		labels = map[string]string{}
	}
	annotations[v1alpha1.SurgeAnnotation], labels[v1alpha1.SurgingLabel] = toJSON(content), label
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

package surge_test

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// autoscale simulates the controller of the HorizontalPodAutoscaler. wants is the number of replicas by its metrics, 0 without metrics.
func (w *world) autoscale(wants int32) {
	if w.autoscaler == nil {
		return
	}
	lowest, now := ptr.Deref(w.autoscaler.Spec.MinReplicas, 1), *w.deployment.Spec.Replicas
	target := now
	switch {
	case now < lowest:
		target = lowest
	case wants > 0:
		target = min(max(wants, lowest), w.autoscaler.Spec.MaxReplicas)
	}
	if target != now {
		w.scale(target)
	}
}

// undo simulates `kubectl rollout undo`: another template, with the annotations that the Deployment controller has copied to its
// ReplicaSet.
func (w *world) undo(annotations map[string]string) {
	w.deployment = w.deployment.DeepCopy()
	w.deployment.Annotations = annotations
	w.deployment.Spec.Template.Spec.NodeName += "x"
	w.deployment.Generation++
}

// replace simulates a tool that replaces the whole Deployment by its manifest, as `kubectl replace` does.
func (w *world) replace(replicas int32) {
	w.scale(replicas)
	w.deployment.Labels, w.deployment.Annotations = nil, nil
}

func (w *world) scale(n int32) {
	w.deployment = w.deployment.DeepCopy()
	w.deployment.Spec.Replicas = &n
	w.deployment.Generation++
}

// scaleAs scales the Deployment as a field manager.
func (w *world) scaleAs(manager string, n int32) {
	w.scale(n)
	w.deployment.ManagedFields = append(w.deployment.ManagedFields, owning(manager, w.now, `{"f:spec":{"f:replicas":{}}}`))
}

func owning(manager string, at time.Time, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{Manager: manager, Time: ptr.To(metav1.NewTime(at)), FieldsV1: metav1.NewFieldsV1(fields)}
}

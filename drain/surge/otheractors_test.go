package surge_test

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// autoscale simulates the controller of the HorizontalPodAutoscaler. wants is the number of replicas by its metrics, 0 without metrics.
func (f *fixture) autoscale(wants int32) {
	if f.autoscaler == nil {
		return
	}
	lowest, now := ptr.Deref(f.autoscaler.Spec.MinReplicas, 1), *f.deployment.Spec.Replicas
	target := now
	switch {
	case now < lowest:
		target = lowest
	case wants > 0:
		target = min(max(wants, lowest), f.autoscaler.Spec.MaxReplicas)
	}
	if target != now {
		f.scale(target)
	}
}

// undo simulates `kubectl rollout undo`: another template, with the annotations that the Deployment controller has copied to its
// ReplicaSet.
func (f *fixture) undo(annotations map[string]string) {
	f.deployment = f.deployment.DeepCopy()
	f.deployment.Annotations = annotations
	f.deployment.Spec.Template.Spec.NodeName += "x"
	f.deployment.Generation++
}

// replace simulates a tool that replaces the whole Deployment by its manifest, as `kubectl replace` does.
func (f *fixture) replace(replicas int32) {
	f.scale(replicas)
	f.deployment.Labels, f.deployment.Annotations = nil, nil
}

func (f *fixture) scale(n int32) {
	f.deployment = f.deployment.DeepCopy()
	f.deployment.Spec.Replicas = &n
	f.deployment.Generation++
}

// scaleAs scales the Deployment as a field manager.
func (f *fixture) scaleAs(manager string, n int32) {
	f.scale(n)
	f.deployment.ManagedFields = append(f.deployment.ManagedFields, owning(manager, f.now, `{"f:spec":{"f:replicas":{}}}`))
}

func owning(manager string, at time.Time, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{Manager: manager, Time: ptr.To(metav1.NewTime(at)), FieldsV1: metav1.NewFieldsV1(fields)}
}

package surge

import (
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Scales reports whether an autoscaler scales the Deployment of that name in its namespace.
func Scales(h *autoscalingv2.HorizontalPodAutoscaler, deployment string) bool {
	target := h.Spec.ScaleTargetRef
	group, err := schema.ParseGroupVersion(target.APIVersion)
	return err == nil && group.Group == appsv1.GroupName && target.Kind == "Deployment" && target.Name == deployment
}

func minReplicas(h *autoscalingv2.HorizontalPodAutoscaler) int32 {
	return ptr.Deref(h.Spec.MinReplicas, 1)
}

// restored returns an autoscaler without our note. Its minReplicas is restored, unless another actor has edited it.
func restored(h *autoscalingv2.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscaler {
	h = h.DeepCopy()
	if n := noteOf(h); n != nil && minReplicas(h) == n.Raised {
		h.Spec.MinReplicas = n.Before
	}
	unmarkObject(h)
	return h
}

// scaleBackAfterUndo records the end of a surge by an autoscaler whose baseline an undo has removed: without metrics, the autoscaler does
// not scale back.
func scaleBackAfterUndo(o Observation) (Decision, bool) {
	for _, h := range o.Autoscalers {
		n := noteOf(h)
		if n == nil || n.Deployment != o.Deployment.UID || n.Raised != replicas(o.Deployment) ||
			n.Replicas < 1 || n.Raised <= n.Replicas || n.Raised-n.Replicas > maxPods {
			continue
		}
		d := Decision{Deployment: o.Deployment.DeepCopy()}
		SetBaseline(d.Deployment, &Baseline{
			ID: newID(o.Deployment.UID, o.Now), Deployment: o.Deployment.UID, Replicas: n.Replicas, Surged: n.Raised, Template: templateHash(o.Deployment.Spec.Template),
			Autoscaler: &AutoscalerBaseline{Name: h.Name, UID: h.UID, MinReplicas: n.Before}, Returning: new(metav1.NewTime(o.Now.UTC())),
		})
		return d, true
	}
	return Decision{}, false
}

// restoreOrphans restores the first autoscaler that has a note, but no baseline of a Deployment: the Deployment was deleted.
func restoreOrphans(o Observation) (Decision, bool) {
	for _, h := range o.Autoscalers {
		if _, noted := h.Annotations[v1alpha1.SurgeAnnotation]; noted {
			return Decision{Autoscaler: restored(h)}, true
		}
	}
	return Decision{}, false
}

// autoscalerRefusal returns the autoscaler of the Deployment, or nil, and why its minReplicas cannot be raised.
func autoscalerRefusal(o Observation) (*autoscalingv2.HorizontalPodAutoscaler, Refusal, string) {
	if len(o.Autoscalers) == 0 {
		return nil, "", ""
	}
	h := o.Autoscalers[0]
	if len(o.Autoscalers) > 1 {
		return h, SeveralAutoscalers, "More than one HorizontalPodAutoscaler scales Deployment " + nameOf(o.Deployment)
	}
	if owner := metav1.GetControllerOfNoCopy(h); owner != nil {
		return h, ForeignAutoscaler, "HorizontalPodAutoscaler " + h.Name + " is controlled by " + owner.Kind + " " + owner.Name +
			", which would revert a change of minReplicas"
	}
	if replicas(o.Deployment) >= h.Spec.MaxReplicas {
		return h, AutoscalerAtMaximum, "HorizontalPodAutoscaler " + h.Name + " is at its maximum of " + text.Count(h.Spec.MaxReplicas, "replica")
	}
	return h, "", ""
}

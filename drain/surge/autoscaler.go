package surge

import (
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Scales says whether an autoscaler scales the Deployment of that name in its namespace.
func Scales(h *autoscalingv2.HorizontalPodAutoscaler, deployment string) bool {
	target := h.Spec.ScaleTargetRef
	group, err := schema.ParseGroupVersion(target.APIVersion)
	return err == nil && group.Group == appsv1.GroupName && target.Kind == "Deployment" && target.Name == deployment
}

func minReplicas(h *autoscalingv2.HorizontalPodAutoscaler) int32 {
	return ptr.Deref(h.Spec.MinReplicas, 1)
}

// restored is an autoscaler without our note. Its minReplicas is as it was, unless somebody else has edited it.
func restored(h *autoscalingv2.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscaler {
	h = h.DeepCopy()
	if n := noteOf(h); n != nil && minReplicas(h) == n.Raised {
		h.Spec.MinReplicas = n.Before
	}
	unmarkObject(h)
	return h
}

// restoreOrphans restores the first autoscaler whose note no baseline goes with: that of a Deployment that is gone.
func restoreOrphans(o Observation) (Decision, bool) {
	for _, h := range o.Autoscalers {
		if _, noted := h.Annotations[v1alpha1.SurgeAnnotation]; noted {
			return Decision{Autoscaler: restored(h)}, true
		}
	}
	return Decision{}, false
}

// autoscalerRefusal says why an autoscaler can't be asked for more. Nil: there is none.
func autoscalerRefusal(o Observation) (*autoscalingv2.HorizontalPodAutoscaler, Refusal, string) {
	if len(o.Autoscalers) == 0 {
		return nil, "", ""
	}
	h := o.Autoscalers[0]
	if len(o.Autoscalers) > 1 {
		return h, SeveralAutoscalers, "More than one HorizontalPodAutoscaler scales the Deployment"
	}
	if owner := metav1.GetControllerOfNoCopy(h); owner != nil {
		return h, ForeignAutoscaler, "The HorizontalPodAutoscaler belongs to " + owner.Kind + " " + owner.Name + ", which would undo what is done to it"
	}
	if replicas(o.Deployment) >= h.Spec.MaxReplicas {
		return h, AutoscalerAtMaximum, "The HorizontalPodAutoscaler is at its maximum of " + count(h.Spec.MaxReplicas)
	}
	return h, "", ""
}

package deployment

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/evacuators/turns"
	"github.com/capnm/cluster-api-node-maintenance/controllers/remote"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// Surging selects what is watched of Deployments and HorizontalPodAutoscalers: those that have been surged. The cache of a
// connection has to be told, since else it would hold all of them.
func Surging() map[client.Object]ctrlcache.ByObject {
	labelled, err := labels.NewRequirement(v1alpha1.SurgingLabel, selection.Exists, nil)
	if err != nil {
		panic(err) // a constant
	}
	selected := ctrlcache.ByObject{Label: labels.NewSelector().Add(*labelled)}
	return map[client.Object]ctrlcache.ByObject{&appsv1.Deployment{}: selected, &autoscalingv2.HorizontalPodAutoscaler{}: selected}
}

// SetupWithManager adds the reconciler to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, options controller.TypedOptions[remote.Request]) error {
	var err error
	r.controller, err = r.Clusters.NewController(mgr, "deployment", r, options, r.enqueue)
	return err
}

// Watches are those of what is surged in a workload cluster, and of its Evacuations. The first list of a connection finds
// what an earlier manager has left.
func (r *Reconciler) Watches(cluster types.NamespacedName) []clustercache.Watcher {
	return []clustercache.Watcher{
		remote.Watch("deployment-Deployments", r.controller, &appsv1.Deployment{}, remote.EnqueueObjects(cluster, remote.Itself[*appsv1.Deployment])),
		remote.Watch("deployment-HorizontalPodAutoscalers", r.controller, &autoscalingv2.HorizontalPodAutoscaler{}, remote.EnqueueObjects(cluster, targetOf)),
		remote.Watch("deployment-Evacuations", r.controller, &v1alpha1.Evacuation{}, remote.EnqueueObjects(cluster, func(ctx context.Context, e *v1alpha1.Evacuation) []types.NamespacedName {
			return r.deploymentsOf(ctx, cluster, e)
		})),
	}
}

// targetOf returns what a HorizontalPodAutoscaler scales, which is a Deployment if the autoscaler surges.
func targetOf(_ context.Context, h *autoscalingv2.HorizontalPodAutoscaler) []types.NamespacedName {
	return []types.NamespacedName{{Namespace: h.Namespace, Name: h.Spec.ScaleTargetRef.Name}}
}

// deploymentsOf returns the Deployment of an Evacuation that has, or has had, its turn with us. Where its Pod is not known, or gone,
// it may be any of those of its namespace that surge.
func (r *Reconciler) deploymentsOf(ctx context.Context, cluster types.NamespacedName, e *v1alpha1.Evacuation) []types.NamespacedName {
	if class := e.Status.ActiveEvacuatorClass; class == nil || *class != v1alpha1.EvacuatorClassDeployment {
		return nil
	}
	if pod, _ := turns.PodOf(r.Clusters.Observed(cluster), e); pod != nil {
		return []types.NamespacedName{{Namespace: pod.Namespace, Name: surge.DeploymentOf(pod)}}
	}
	watched, err := r.Clusters.Client(ctx, cluster)
	if err != nil {
		return nil // the next connection lists all anew
	}
	deployments := &appsv1.DeploymentList{}
	if err := watched.List(ctx, deployments, client.InNamespace(e.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil // likewise
	}
	keys := make([]types.NamespacedName, 0, len(deployments.Items))
	for i := range deployments.Items {
		keys = append(keys, client.ObjectKeyFromObject(&deployments.Items[i]))
	}
	return keys
}

// enqueue maps what a drain watch sees to Deployments: a Pod that shows its mark, and what was not known before.
func (r *Reconciler) enqueue(ctx context.Context, queue remote.Queue, change remote.Change) {
	switch {
	case change.Pod != nil:
		if name := surge.DeploymentOf(change.Pod); name != "" && surge.Marked(change.Pod) {
			queue.Add(remote.Request{Cluster: change.Cluster, Object: types.NamespacedName{Namespace: change.Pod.Namespace, Name: name}})
		}
	case change.Node != nil:
		turns.OnNode(ctx, r.Clusters, change.Cluster, *change.Node, func(e *v1alpha1.Evacuation) {
			for _, key := range r.deploymentsOf(ctx, change.Cluster, e) {
				queue.Add(remote.Request{Cluster: change.Cluster, Object: key})
			}
		})
	}
}

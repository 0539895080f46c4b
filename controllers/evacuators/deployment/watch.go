package deployment

import (
	"context"
	"slices"
	"time"

	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/evacuators/assignment"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expiring"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// Surging selects what is cached of Deployments and HorizontalPodAutoscalers: the identities of those that have the label of a surge.
// Without this selection, the cache of a connection would contain all Deployments and HorizontalPodAutoscalers.
func Surging() map[client.Object]ctrlcache.ByObject {
	labelled, err := labels.NewRequirement(v1alpha1.SurgingLabel, selection.Exists, nil)
	if err != nil {
		panic(err) // a constant
	}
	trimmed := func(trim func(*metav1.PartialObjectMetadata)) ctrlcache.ByObject {
		return ctrlcache.ByObject{Label: labels.NewSelector().Add(*labelled), Transform: func(object any) (any, error) {
			if m, ok := object.(*metav1.PartialObjectMetadata); ok {
				trim(m)
			}
			return object, nil
		}}
	}
	return map[client.Object]ctrlcache.ByObject{
		&appsv1.Deployment{}:                     trimmed(surge.TrimDeployment),
		&autoscalingv2.HorizontalPodAutoscaler{}: trimmed(surge.TrimAutoscaler),
	}
}

// metadataOf returns an object with which only the metadata of a kind is watched, which can be much smaller than the objects.
func metadataOf(group schema.GroupVersion, kind string) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(group.WithKind(kind))
	return m
}

// listMetadata lists those of the watched objects of a kind in a Namespace that record a surge, to be read only.
func listMetadata(ctx context.Context, watched client.Reader, group schema.GroupVersion, kind, namespace string) ([]metav1.PartialObjectMetadata, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(group.WithKind(kind + "List"))
	if err := watched.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, errors.Wrapf(err, "listing the metadata of surging %ss in Namespace %s", kind, namespace)
	}
	return slices.DeleteFunc(list.Items, func(m metav1.PartialObjectMetadata) bool { return !surge.Recorded(&m) }), nil
}

// recorded reports whether an object records a surge, or did so before.
func recorded(before, after *metav1.PartialObjectMetadata) bool {
	return before != nil && surge.Recorded(before) || after != nil && surge.Recorded(after)
}

// SetupWithManager adds the reconciler to the manager.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.TypedOptions[workload.Request]) error {
	r.readings, r.refused = expiring.NewMap[types.UID, reading](ctx), expiring.NewMap[types.UID, time.Time](ctx)
	var err error
	r.controller, err = r.Clusters.NewController(mgr, "deployment", r, options, r.enqueue)
	return err
}

// Watches returns the watches of a workload cluster's surging Deployments, raised HorizontalPodAutoscalers, and Evacuations. The initial
// lists enqueue the surges that an earlier manager has left behind.
func (r *Reconciler) Watches(cluster types.NamespacedName) []clustercache.Watcher {
	return []clustercache.Watcher{
		workload.Watch("deployment-Deployments", r.controller, metadataOf(appsv1.SchemeGroupVersion, "Deployment"),
			workload.EnqueueObjects(cluster, workload.OwnKey[*metav1.PartialObjectMetadata]), workload.Changed(recorded)),
		workload.Watch("deployment-HorizontalPodAutoscalers", r.controller, metadataOf(autoscalingv2.SchemeGroupVersion, "HorizontalPodAutoscaler"),
			workload.EnqueueObjects(cluster, targetOf), workload.Changed(recorded)),
		workload.Watch("deployment-Evacuations", r.controller, &v1alpha1.Evacuation{}, workload.EnqueueObjects(cluster, r.deploymentsOf(cluster))),
	}
}

// targetOf returns the Deployment that a HorizontalPodAutoscaler was raised for.
func targetOf(_ context.Context, h *metav1.PartialObjectMetadata) []types.NamespacedName {
	if target := surge.TargetOf(h); target != "" {
		return []types.NamespacedName{{Namespace: h.Namespace, Name: target}}
	}
	return nil
}

// deploymentsOf maps an Evacuation whose active evacuator is this one, also if it has completed, to its Deployment. If the Pod is not
// observed or does not exist, it returns all surging Deployments of the Namespace: each of them may be the Pod's.
func (r *Reconciler) deploymentsOf(cluster types.NamespacedName) func(context.Context, *v1alpha1.Evacuation) []types.NamespacedName {
	return func(ctx context.Context, e *v1alpha1.Evacuation) []types.NamespacedName {
		if e.ActiveEvacuator() != v1alpha1.EvacuatorClassDeployment {
			return nil
		}
		if pod, _ := assignment.PodOf(r.Clusters.CurrentObservation(cluster), e); pod != nil {
			if rules.DeploymentOf(pod) == "" {
				return nil
			}
			return []types.NamespacedName{{Namespace: pod.Namespace, Name: rules.DeploymentOf(pod)}}
		}
		watched, err := r.Clusters.Client(ctx, cluster)
		if err != nil {
			return nil // the initial list of the next connection enqueues all
		}
		deployments, err := listMetadata(ctx, watched, appsv1.SchemeGroupVersion, "Deployment", e.Namespace)
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Failed to find the Deployments to reconcile", "Cluster", klog.KRef(cluster.Namespace, cluster.Name))
			return nil
		}
		keys := make([]types.NamespacedName, 0, len(deployments))
		for i := range deployments {
			keys = append(keys, client.ObjectKeyFromObject(&deployments[i]))
		}
		return keys
	}
}

// enqueue maps a Change to Deployments: a marked Pod has changed, or the Pods of a Node have become known.
func (r *Reconciler) enqueue(ctx context.Context, queue workload.Queue, change workload.Change) {
	switch change.Type {
	case workload.PodChanged, workload.PodDeleted:
		if name := rules.DeploymentOf(change.Pod); name != "" && surge.Marked(change.Pod) {
			queue.Add(workload.Request{Cluster: change.Cluster, Object: types.NamespacedName{Namespace: change.Pod.Namespace, Name: name}})
		}
	case workload.PodsListed, workload.DrainContinued:
		r.Clusters.EnqueueEvacuations(ctx, queue, change.Cluster, r.deploymentsOf(change.Cluster), workload.OnNode(change.Node))
	default: // affects no Deployment
	}
}

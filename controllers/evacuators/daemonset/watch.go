package daemonset

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/daemonset"
)

// SetupWithManager adds the reconciler to the manager.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.TypedOptions[workload.Request]) error {
	r.written = expectations.New[*corev1.Pod](ctx, workload.TrimPod)
	var err error
	r.controller, err = r.Clusters.NewController(mgr, "daemonset", r, options, r.enqueue)
	return err
}

// Watches returns the watches of a workload cluster's Nodes, NodeMaintenances and Evacuations. The initial list of Nodes enqueues those
// with the taint, so that orphaned taints are removed.
func (r *Reconciler) Watches(cluster types.NamespacedName) []clustercache.Watcher {
	return []clustercache.Watcher{
		workload.Watch(
			"daemonset-Nodes", r.controller, &corev1.Node{}, workload.EnqueueObjects(cluster, workload.OwnKey[*corev1.Node]), workload.MarkChanged(daemonset.Tainted),
		),
		workload.Watch("daemonset-NodeMaintenances", r.controller, &v1alpha1.NodeMaintenance{}, workload.EnqueueAffected(cluster, daemonset.Affected)),
		workload.Watch("daemonset-Evacuations", r.controller, &v1alpha1.Evacuation{}, workload.EnqueueObjects(cluster, nodeOf), changesMoreThanMessage()),
	}
}

// changesMoreThanMessage drops updates of Evacuations that change only the message. This evacuator writes the error of a deletion that the
// API server refuses into it, which may differ each time: each write would be followed by another deletion, without the backoff.
func changesMoreThanMessage() predicate.TypedPredicate[*v1alpha1.Evacuation] {
	return predicate.TypedFuncs[*v1alpha1.Evacuation]{UpdateFunc: func(e event.TypedUpdateEvent[*v1alpha1.Evacuation]) bool {
		if e.ObjectOld.Status.Message == e.ObjectNew.Status.Message {
			return true
		}
		old := e.ObjectOld.DeepCopy()
		old.ResourceVersion, old.Status.Message = e.ObjectNew.ResourceVersion, e.ObjectNew.Status.Message
		return !apiequality.Semantic.DeepEqual(old, e.ObjectNew)
	}}
}

// nodeOf returns the Node of an Evacuation whose active evacuator is this one.
func nodeOf(_ context.Context, e *v1alpha1.Evacuation) []types.NamespacedName {
	node := e.Annotations[v1alpha1.EvacuationNodeAnnotation]
	if node == "" || e.ActiveEvacuator() != v1alpha1.EvacuatorClassDaemonSet {
		return nil
	}
	return []types.NamespacedName{{Name: node}}
}

// enqueue maps a Change to Nodes: it may contain what the decision about an Evacuation was missing.
func (r *Reconciler) enqueue(ctx context.Context, queue workload.Queue, change workload.Change) {
	switch change.Type {
	case workload.PodChanged:
		owner := metav1.GetControllerOfNoCopy(change.Pod)
		if owner != nil && owner.Kind == "DaemonSet" && change.Pod.DeletionTimestamp == nil {
			queue.Add(workload.Request{Cluster: change.Cluster, Object: types.NamespacedName{Name: change.Node}})
		}
	case workload.PodDeleted:
		r.written.ObserveDeleted(change.Cluster, change.Pod)
	case workload.PodsListed, workload.DrainContinued:
		queue.Add(workload.Request{Cluster: change.Cluster, Object: types.NamespacedName{Name: change.Node}})
	case workload.AllPodsAffected:
		r.Clusters.EnqueueEvacuations(ctx, queue, change.Cluster, nodeOf)
	default: // affects no Pod of a DaemonSet
	}
}

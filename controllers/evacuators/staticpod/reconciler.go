// Package staticpod reports the progress of drains to the agents on Nodes: it annotates each Node with the drain targets that
// NodeMaintenances have published for its static Pods. The agents (exp/nodeagent) terminate these Pods.
package staticpod

import (
	"context"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/staticpod"
)

// Reconciler keeps the annotation of each Node up to date.
type Reconciler struct {
	Clusters *workload.Clusters

	controller controller.TypedController[workload.Request]
}

// SetupWithManager adds the reconciler to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, options controller.TypedOptions[workload.Request]) error {
	options.Reconciler = workload.RetryConflicts[workload.Request](r)
	var err error
	r.controller, err = controller.NewTyped("staticpod", mgr, options)
	return errors.Wrap(err, "setting up the controller of static Pods")
}

// Watches returns the watches of a workload cluster's Nodes and NodeMaintenances. The initial list of Nodes enqueues those with the
// annotation, so that orphaned ones are removed.
func (r *Reconciler) Watches(cluster types.NamespacedName) []clustercache.Watcher {
	return []clustercache.Watcher{
		workload.Watch(
			"staticpod-Nodes", r.controller, &corev1.Node{}, workload.EnqueueObjects(cluster, workload.OwnKey[*corev1.Node]), workload.MarkChanged(annotated),
		),
		workload.Watch("staticpod-NodeMaintenances", r.controller, &v1alpha1.NodeMaintenance{}, workload.EnqueueAffected(cluster, staticpod.Affected)),
	}
}

func annotated(node *corev1.Node) string {
	return node.Annotations[v1alpha1.StaticPodTargetsAnnotation] + node.Annotations[v1alpha1.StaticPodCauseAnnotation]
}

// Reconcile annotates one Node with the drain targets of its static Pods.
func (r *Reconciler) Reconcile(ctx context.Context, request workload.Request) (reconcile.Result, error) {
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx, "Cluster", klog.KRef(request.Cluster.Namespace, request.Cluster.Name),
		"Node", klog.KRef("", request.Object.Name)))
	c, err := r.Clusters.Client(ctx, request.Cluster)
	if err != nil {
		return workload.Result(err)
	}
	node := &corev1.Node{}
	if err := c.Get(ctx, request.Object, node); err != nil {
		return workload.Result(errors.Wrapf(answers.IgnoreDoesNotExist(err), "getting Node %s", request.Object.Name))
	}
	maintenances, err := workload.MaintenancesOf(ctx, c, request.Object.Name)
	if err != nil {
		return workload.Result(err)
	}
	targets, cause, err := staticpod.Targets(node, maintenances)
	if err != nil || targets+cause == annotated(node) {
		return workload.Result(err)
	}
	if aside := r.Clusters.SetAside(request.Cluster, "NodeMaintenance"); targets == "" && len(aside) > 0 { // it may drain the Node
		return reconcile.Result{}, aside[0]
	}
	changed := node.DeepCopy()
	for annotation, wanted := range map[string]string{v1alpha1.StaticPodTargetsAnnotation: targets, v1alpha1.StaticPodCauseAnnotation: cause} {
		if wanted == "" {
			delete(changed.Annotations, annotation)
		} else {
			metav1.SetMetaDataAnnotation(&changed.ObjectMeta, annotation, wanted)
		}
	}
	err = c.Patch(ctx, changed, client.MergeFrom(node))
	return workload.Result(errors.Wrapf(answers.IgnoreDoesNotExist(err), "writing the drain targets of static Pods on Node %s", node.Name))
}

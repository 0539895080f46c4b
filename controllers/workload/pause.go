package workload

import (
	"context"
	"maps"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// errPaused means that the Cluster is paused: the manager changes nothing in the management cluster or the workload cluster. This also
// prevents the managers of two management clusters from reconciling the same Cluster during `clusterctl move`.
var errPaused = errors.New("the Cluster is paused")

// IsPaused reports whether err means that the Cluster is paused. The work continues when it is resumed.
func IsPaused(err error) bool {
	return errors.Is(err, errPaused)
}

// refuse returns errPaused if the Cluster is paused, and clustercache.ErrClusterNotConnected if the watch filter does not select it or if
// it does not exist, whether or not its connection has already been closed.
func (c *Clusters) refuse(ctx context.Context, key types.NamespacedName) error {
	cluster := &clusterv1.Cluster{}
	if err := c.management.Get(ctx, key, cluster, client.UnsafeDisableDeepCopy); err != nil {
		if apierrors.IsNotFound(err) {
			return errors.Wrapf(clustercache.ErrClusterNotConnected, "reaching workload Cluster %s, which does not exist", key)
		}
		return errors.Wrapf(err, "getting Cluster %s", key)
	}
	if !c.Filter.Selects(cluster) {
		return errors.Wrapf(clustercache.ErrClusterNotConnected, "reaching workload Cluster %s, which the watch filter does not select", key)
	}
	if machinedrain.IsClusterPaused(cluster) {
		return errors.Wrapf(errPaused, "reaching workload Cluster %s", key)
	}
	return nil
}

// Resume triggers the reconciliation of all objects in a workload cluster, as a new connection does: events during a pause of the Cluster
// or a Machine, or while its drain was held, were not processed. It returns at once, and merges calls: many Machines may be resumed
// together. The reconciliations change nothing in a workload cluster whose Cluster no longer exists, for example because clusterctl has
// moved it: see refuse.
func (c *Clusters) Resume(cluster types.NamespacedName) { c.resumed.add(cluster) }

// ContinueDrain triggers the reconciliation of all that belongs to the drain of a Node, after the machine controller has ended the
// suspension of its NodeMaintenance. It returns at once.
func (c *Clusters) ContinueDrain(cluster types.NamespacedName, node string) {
	go c.notify(Change{Cluster: cluster, Type: DrainContinued, Node: node}) // a subscriber may wait for the first list of a kind
}

func (c *Clusters) resume(cluster types.NamespacedName) {
	c.mu.Lock()
	c.stopWatch(cluster)
	c.mu.Unlock()
	c.notify(Change{Cluster: cluster, Type: AllPodsAffected}) // owners call Observe again
	c.informers.resend(cluster)
	c.notify(Change{Cluster: cluster, Type: Resumed})
	if d := c.informers.onDemandOf(cluster); d != nil && d.nodes.running.Load() == nil {
		d.searchAgain.Store(true)
		c.RequestCheck(cluster) // FindLeftovers follows
	}
}

// ResumeAfterPause handles the events of Clusters and Machines: it calls Resume when one is no longer paused, or when a drain that was held
// continues, also because other labels make a policy select the Machine that ignores the hooks. The NodeMaintenance of a Machine that no
// longer exists is not suspended. When one is paused, subscribers are notified: what they have reported does not hold any more.
func (c *Clusters) ResumeAfterPause() handler.EventHandler {
	machineChanged := func(before, after *clusterv1.Machine) {
		cluster := types.NamespacedName{Namespace: before.Namespace, Name: before.Spec.ClusterName}
		switch {
		case machinedrain.DrainContinues(before, after):
			c.Resume(cluster)
		case after != nil && machinedrain.HasPauseAnnotation(after) && !machinedrain.HasPauseAnnotation(before) && machinedrain.MayDrain(after):
			c.notify(Change{Cluster: cluster, Type: AllPodsAffected})
		}
	}
	return handler.Funcs{
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			switch before := e.ObjectOld.(type) {
			case *clusterv1.Cluster:
				if after, ok := e.ObjectNew.(*clusterv1.Cluster); ok {
					c.clusterChanged(ctx, before, after)
				}
			case *clusterv1.Machine:
				if after, ok := e.ObjectNew.(*clusterv1.Machine); ok {
					machineChanged(before, after)
				}
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			if machine, ok := e.Object.(*clusterv1.Machine); ok {
				machineChanged(machine, nil)
			}
		},
	}
}

func (c *Clusters) clusterChanged(ctx context.Context, before, after *clusterv1.Cluster) {
	switch wasPaused, isPaused := machinedrain.IsClusterPaused(before), machinedrain.IsClusterPaused(after); {
	case wasPaused && !isPaused:
		c.Resume(client.ObjectKeyFromObject(after))
	case isPaused && !wasPaused:
		c.notify(Change{Cluster: client.ObjectKeyFromObject(after), Type: AllPodsAffected})
	case !maps.Equal(before.Labels, after.Labels):
		c.resumeHeldWithoutRecord(ctx, client.InNamespace(after.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: after.Name})
	}
}

// ResumeAfterPolicyChange handles the events of MachineDrainPolicies: it calls Resume where the change may end a hold that its Machine has
// not recorded, because the policy ignores the hooks now. A recorded hold ends with an event of the Machine.
func (c *Clusters) ResumeAfterPolicyChange() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, policy client.Object) []reconcile.Request {
		c.resumeHeldWithoutRecord(ctx, client.InNamespace(policy.GetNamespace()))
		return nil
	})
}

// resumeHeldWithoutRecord calls Resume for the Clusters of the listed Machines that may be held without a record.
func (c *Clusters) resumeHeldWithoutRecord(ctx context.Context, options ...client.ListOption) {
	machines := &clusterv1.MachineList{}
	if err := c.management.List(ctx, machines, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the Machines whose drains may continue")
		return
	}
	for i := range machines.Items {
		if m := &machines.Items[i]; machinedrain.MayBeHeldWithoutRecord(m) {
			c.Resume(types.NamespacedName{Namespace: m.Namespace, Name: m.Spec.ClusterName})
		}
	}
}

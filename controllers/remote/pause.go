package remote

import (
	"context"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// errPaused: nothing of a paused Cluster is touched, in its workload cluster neither. That is also how `clusterctl move` keeps the
// managers of two management clusters from serving it at the same time.
var errPaused = errors.New("the Cluster is paused")

// IsPaused says whether err means that the Cluster is paused. What it has kept from being done is done once it is resumed.
func IsPaused(err error) bool {
	return errors.Is(err, errPaused)
}

// refusePaused returns errPaused for a Cluster that is paused at present. One that is gone is not.
func (c *Clusters) refusePaused(ctx context.Context, key types.NamespacedName) error {
	cluster := &clusterv1.Cluster{}
	if err := c.management.Get(ctx, key, cluster, client.UnsafeDisableDeepCopy); err != nil {
		return errors.Wrapf(client.IgnoreNotFound(err), "getting Cluster %s", key)
	}
	if annotations.IsPaused(cluster, cluster) {
		return errors.Wrapf(errPaused, "reaching workload Cluster %s", key)
	}
	return nil
}

// Resume has all work in a workload cluster looked at again, as with a new connection: while it rested, or the Machine that some of it
// serves, what happened was not followed.
func (c *Clusters) Resume(cluster types.NamespacedName) {
	c.mu.Lock()
	c.end(cluster)
	c.mu.Unlock()
	c.notify(Change{Cluster: cluster, Surroundings: true}) // those who need Nodes say so again
	c.cache.tellAgain(cluster)
}

// resumed calls Resume for Clusters and Machines that aren't paused any more.
func (c *Clusters) resumed() handler.EventHandler {
	return handler.Funcs{UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		switch before := e.ObjectOld.(type) {
		case *clusterv1.Cluster:
			if after, ok := e.ObjectNew.(*clusterv1.Cluster); ok && annotations.IsPaused(before, before) && !annotations.IsPaused(after, after) {
				c.Resume(client.ObjectKeyFromObject(after))
			}
		case *clusterv1.Machine:
			if annotations.HasPaused(before) && !annotations.HasPaused(e.ObjectNew) {
				c.Resume(types.NamespacedName{Namespace: before.Namespace, Name: before.Spec.ClusterName})
			}
		}
	}}
}

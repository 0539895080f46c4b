package workload

import (
	"context"

	"github.com/pkg/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// NewController adds a controller of objects in workload clusters to the manager. enqueue maps the changes of drain watches to requests; it
// must not block. Watches of objects are added for each connection, see Watch.
func (c *Clusters) NewController(mgr ctrl.Manager, name string, reconciler reconcile.TypedReconciler[Request], options controller.TypedOptions[Request],
	enqueue func(context.Context, Queue, Change),
) (controller.TypedController[Request], error) {
	options.Reconciler = reconciler
	added, err := controller.NewTyped(name, mgr, options)
	if err != nil {
		return nil, errors.Wrapf(err, "setting up controller %s", name)
	}
	err = added.Watch(source.TypedFunc[Request](func(ctx context.Context, queue Queue) error {
		c.Subscribe(func(change Change) { enqueue(ctx, queue, change) })
		return nil
	}))
	return added, errors.Wrapf(err, "setting up controller %s", name)
}

package main

import (
	"context"
	"sync"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
)

// observer updates the world from watches.
type observer struct {
	mu    sync.Mutex
	world *world
	// changed has a message when the world has changed since the last message was received.
	changed chan struct{}
}

func newObserver() *observer {
	return &observer{world: newWorld(), changed: make(chan struct{}, 1)}
}

// watchMachines observes the management cluster until the context is done.
func (o *observer) watchMachines(ctx context.Context, management *rest.Config) error {
	watches, err := startCache(ctx, management)
	if err != nil {
		return err
	}
	return follow(ctx, o, watches, &clusterv1.Machine{}, (*world).sawMachine)
}

// watchWorkload observes the workload cluster, in which our CRDs must be served already.
func (o *observer) watchWorkload(ctx context.Context, workload *rest.Config) error {
	watches, err := startCache(ctx, workload)
	if err != nil {
		return err
	}
	if err := follow(ctx, o, watches, &corev1.Pod{}, (*world).sawPod); err != nil {
		return err
	}
	return follow(ctx, o, watches, &v1alpha1.NodeMaintenance{}, (*world).sawMaintenance)
}

func startCache(ctx context.Context, config *rest.Config) (ctrlcache.Cache, error) {
	watches, err := ctrlcache.New(config, ctrlcache.Options{Scheme: clusterapi.Scheme()})
	if err != nil {
		return nil, errors.Wrap(err, "preparing to watch")
	}
	go func() { _ = watches.Start(ctx) }()
	return watches, nil
}

// follow applies each event of one kind to the world, in the order of the watch.
func follow[T client.Object](ctx context.Context, o *observer, watches ctrlcache.Cache, kind T, saw func(*world, T, bool, time.Time)) error {
	informer, err := watches.GetInformer(ctx, kind)
	if err != nil {
		return errors.Wrapf(err, "watching %T", kind)
	}
	notice := func(object any, deleted bool) {
		if tombstone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
			object = tombstone.Obj
		}
		if typed, ok := object.(T); ok {
			o.change(func(w *world) { saw(w, typed, deleted, time.Now()) })
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { notice(object, false) },
		UpdateFunc: func(_, object any) { notice(object, false) },
		DeleteFunc: func(object any) { notice(object, true) },
	})
	return errors.Wrapf(err, "watching %T", kind)
}

func (o *observer) change(apply func(*world)) {
	o.mu.Lock()
	apply(o.world)
	o.mu.Unlock()
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// look reads the world. read must not retain its argument.
func (o *observer) look(read func(*world)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	read(o.world)
}

// The world is read at most once in drawInterval, which is fast enough for readers, and at least once in lookInterval, so that clocks on
// the screen advance.
const (
	drawInterval = 100 * time.Millisecond
	lookInterval = 500 * time.Millisecond
)

// await reads the world whenever it has changed, until done returns true. The error contains seen.
func (o *observer) await(ctx context.Context, what string, done func(*world) (ok bool, seen string)) error {
	for {
		var ok bool
		var seen string
		o.look(func(w *world) { ok, seen = done(w) })
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Wrapf(context.Cause(ctx), "waiting until %s; last observed: %s", what, seen)
		case <-time.After(drawInterval):
		}
		select {
		case <-ctx.Done():
		case <-o.changed:
		case <-time.After(lookInterval - drawInterval):
		}
	}
}

// Package expectations keeps what this manager has written to workload clusters until the watches deliver it. With hundreds of drains, a
// watch may lag by minutes. A reconciliation from the stale cache would repeat the write, and get a conflict. Nothing else depends on it:
// after a restart of the manager, some writes are repeated.
package expectations

import (
	"context"
	"encoding/json"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/capnm/cluster-api-node-maintenance/controllers/expiring"
)

const (
	// TTL is how long a written object is kept that the watch does not deliver. It is longer than the expected watch lag.
	TTL = 10 * time.Minute

	// deliveredTTL is how long it is kept after that: a reconciliation may still have an older version that it has read before.
	deliveredTTL = 10 * time.Second

	// maxSize is the maximum size of a kept object as JSON. Tenants write larger ones, of which some writes are repeated.
	maxSize = 64 << 10
)

// Objects keeps the last written version of objects of one type. All objects in it are read-only.
type Objects[T client.Object] struct {
	entries *expiring.Map[types.UID, entry[T]]
	trim    toolscache.TransformFunc
}

// entry is what is known about an object. All versions are resourceVersions.
type entry[T client.Object] struct {
	written string // version of the last write, or the last known one before a deletion; empty: no write is kept
	deleted bool   // the last write has deleted the object
	object  T      // as written, unless it was deleted

	delivered string // latest version that the watch has delivered
	gone      bool   // the watch has delivered the deletion
}

// New returns an empty set of objects. trim drops the fields that the cache of the watch does not keep either.
func New[T client.Object](ctx context.Context, trim toolscache.TransformFunc) *Objects[T] {
	return &Objects[T]{entries: expiring.NewMap[types.UID, entry[T]](ctx), trim: trim}
}

// RecordWritten records an object as the API server returned it, unless a later version is recorded. It does not change the object.
func (o *Objects[T]) RecordWritten(cluster types.NamespacedName, object T) {
	trimmed, fits := o.trimmed(object)
	o.update(cluster, object, func(e *entry[T]) {
		if e.hasDeleted(object) || IsOlder(object.GetResourceVersion(), e.written) {
			return
		}
		e.deleted, e.object, e.written = false, trimmed, object.GetResourceVersion()
		if !fits {
			e.written = ""
		}
	})
}

// RecordDeleted records that the last write has deleted an object or removed its last finalizer. object is the last known version before,
// or the result of the write.
func (o *Objects[T]) RecordDeleted(cluster types.NamespacedName, object T) {
	o.update(cluster, object, func(e *entry[T]) {
		var none T
		e.deleted, e.object, e.written = true, none, object.GetResourceVersion()
	})
}

// Observe records that the watch has delivered a version of an object.
func (o *Objects[T]) Observe(cluster types.NamespacedName, object T) {
	o.update(cluster, object, func(e *entry[T]) {
		if e.delivered == "" || IsOlder(e.delivered, object.GetResourceVersion()) {
			e.delivered = object.GetResourceVersion()
		}
	})
}

// ObserveDeleted records that the watch has delivered the deletion of an object.
func (o *Objects[T]) ObserveDeleted(cluster types.NamespacedName, object T) {
	o.update(cluster, object, func(e *entry[T]) { e.gone = true })
}

// forget drops what is known about an object.
func (o *Objects[T]) forget(cluster types.NamespacedName, object T) {
	o.entries.Set(cluster, object.GetUID(), entry[T]{}, deliveredTTL)
}

// update changes the entry of an object. The event of a write may come before the response to it, so what the watch has delivered is kept
// for a while, too.
func (o *Objects[T]) update(cluster types.NamespacedName, object T, change func(*entry[T])) {
	o.entries.Update(cluster, object.GetUID(), func(e entry[T], _ bool) (entry[T], time.Duration) {
		change(&e)
		if e.awaited() {
			return e, TTL
		}
		return e, deliveredTTL
	})
}

// awaited reports whether the watch has not delivered the last write.
func (e entry[T]) awaited() bool {
	switch {
	case e.written == "" || e.gone:
		return false
	case e.delivered == "":
		return true
	case e.deleted:
		return !IsOlder(e.written, e.delivered) // a later version exists only if the object was not deleted
	default:
		return IsOlder(e.delivered, e.written)
	}
}

// hasDeleted reports whether the last write has deleted an object. It has not if another actor added a finalizer before.
func (e entry[T]) hasDeleted(object T) bool {
	survived := IsOlder(e.written, object.GetResourceVersion()) && len(object.GetFinalizers()) > 0
	return e.deleted && !survived
}

// trimmed returns an object as it is kept, and whether it fits.
func (o *Objects[T]) trimmed(object T) (trimmed T, fits bool) {
	kept, err := o.trim(object.DeepCopyObject())
	if err != nil {
		return trimmed, false
	}
	content, err := json.Marshal(kept)
	if err != nil || len(content) > maxSize {
		return trimmed, false
	}
	trimmed, fits = kept.(T)
	return trimmed, fits
}

// Latest returns the later version of an object: the observed one or the written one. deleted means that the last write has deleted it.
func (o *Objects[T]) Latest(cluster types.NamespacedName, observed T) (latest T, deleted bool) {
	e, known := o.entries.Get(cluster, observed.GetUID())
	switch {
	case !known || e.written == "":
		return observed, false
	case e.deleted:
		return observed, e.hasDeleted(observed)
	case IsOlder(observed.GetResourceVersion(), e.written):
		return e.object, false
	default:
		return observed, false
	}
}

// IsOlder reports whether a resourceVersion is older than another one. It returns false if they cannot be compared.
func IsOlder(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// Observing returns a handler that has Objects observe the events of a workload cluster, before it passes them on to another handler.
// Predicates must not drop the events that contain a write.
func Observing[T client.Object, R comparable](
	o *Objects[T], cluster types.NamespacedName, next handler.TypedEventHandler[T, R],
) handler.TypedEventHandler[T, R] {
	return handler.TypedFuncs[T, R]{
		CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[T], queue workqueue.TypedRateLimitingInterface[R]) {
			o.Observe(cluster, e.Object)
			next.Create(ctx, e, queue)
		},
		UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[T], queue workqueue.TypedRateLimitingInterface[R]) {
			if IsOlder(e.ObjectNew.GetResourceVersion(), e.ObjectOld.GetResourceVersion()) { // the API server was restored from a backup
				o.forget(cluster, e.ObjectNew)
			}
			o.Observe(cluster, e.ObjectNew)
			next.Update(ctx, e, queue)
		},
		DeleteFunc: func(ctx context.Context, e event.TypedDeleteEvent[T], queue workqueue.TypedRateLimitingInterface[R]) {
			o.ObserveDeleted(cluster, e.Object)
			next.Delete(ctx, e, queue)
		},
		GenericFunc: next.Generic,
	}
}

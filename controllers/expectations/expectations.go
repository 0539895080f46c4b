// Package expectations keeps what this manager has written to workload clusters until the watches deliver it. With hundreds of drains, a
// watch may lag by minutes. A reconciliation from the stale cache would repeat the write, and get a conflict. Nothing else depends on it:
// after a restart of the manager, some writes are repeated.
package expectations

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/cluster-api/util/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ttl is how long a written object is kept. It is longer than the expected watch lag.
const ttl = 10 * time.Minute

// Objects keeps the last written version of objects of one type. All objects in it are read-only.
type Objects[T client.Object] struct {
	written cache.Cache[entry[T]]
	trim    toolscache.TransformFunc
}

type entry[T client.Object] struct {
	cluster types.NamespacedName
	object  T
	deleted bool
}

// Key implements cache.Entry.
func (e entry[T]) Key() string { return e.cluster.String() + "/" + string(e.object.GetUID()) }

// New returns an empty set of objects. trim drops the fields that the cache of the watch does not keep either: without it, what tenants write to
// their objects would stay in memory for ttl.
func New[T client.Object](ctx context.Context, trim toolscache.TransformFunc) *Objects[T] {
	return &Objects[T]{written: cache.New[entry[T]](ctx, ttl), trim: trim}
}

// RecordWritten records an object as the API server returned it, unless a later version is recorded. It does not change the object.
func (o *Objects[T]) RecordWritten(cluster types.NamespacedName, object T) {
	wrote := entry[T]{cluster: cluster, object: o.trimmed(object)}
	if known, isKnown := o.written.Has(wrote.Key()); !isKnown || !known.hasDeleted(object) && !isOlder(object, known.object) {
		o.written.Add(wrote)
	}
}

// hasDeleted reports whether the last write has deleted an object. It has not if another actor added a finalizer before.
func (e entry[T]) hasDeleted(object T) bool {
	survived := isOlder(e.object, object) && len(object.GetFinalizers()) > 0
	return e.deleted && !survived
}

// RecordDeleted records that the last write has deleted an object or removed its last finalizer. object is the last known version before, or the
// result of the write.
func (o *Objects[T]) RecordDeleted(cluster types.NamespacedName, object T) {
	o.written.Add(entry[T]{cluster: cluster, object: o.trimmed(object), deleted: true})
}

func (o *Objects[T]) trimmed(object T) T {
	trimmed, err := o.trim(object.DeepCopyObject())
	if kept, is := trimmed.(T); is && err == nil {
		return kept
	}
	return object // trim supports each T
}

// Latest returns the later version of an object: the observed one or the written one. deleted means that the last write has deleted it.
func (o *Objects[T]) Latest(cluster types.NamespacedName, observed T) (latest T, deleted bool) {
	wrote, known := o.written.Has(entry[T]{cluster: cluster, object: observed}.Key())
	switch {
	case known && wrote.hasDeleted(observed):
		return wrote.object, true
	case known && isOlder(observed, wrote.object):
		return wrote.object, false
	default:
		return observed, false
	}
}

func isOlder[T client.Object](a, b T) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order < 0
}

package workload

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// sharedHandlers is a ClusterCache whose watches of the same kind share one event handler of the informer. Each handler of an informer has
// two goroutines and a buffer for a thousand events. In hundreds of idle workload clusters, these would be most of the memory.
// docs/benchmarks.md has the figures.
type sharedHandlers struct {
	clustercache.ClusterCache

	mu        sync.Mutex
	byCluster map[types.NamespacedName]*connectionHandlers
	restarts  map[types.NamespacedName]int // how often the informers of installedKinds were restarted
}

// connectionHandlers are the handlers of one connection.
type connectionHandlers struct {
	cache  ctrlcache.Cache
	mu     sync.Mutex
	shared map[ctrlcache.Informer]*sharedInformer
}

func shareHandlers(cache clustercache.ClusterCache) *sharedHandlers {
	return &sharedHandlers{ClusterCache: cache, byCluster: map[types.NamespacedName]*connectionHandlers{}, restarts: map[types.NamespacedName]int{}}
}

// Watch implements clustercache.ClusterCache.
func (s *sharedHandlers) Watch(ctx context.Context, cluster client.ObjectKey, watcher clustercache.Watcher) error {
	name := watcher.Name()
	s.mu.Lock()
	if restarts := s.restarts[cluster]; restarts > 0 && isInstalledKind(watcher.Object()) {
		name = fmt.Sprintf("%s-%d", name, restarts) // the ClusterCache adds a name only once to a connection
	}
	s.mu.Unlock()
	return s.ClusterCache.Watch(ctx, cluster, sharingWatcher{watcher, name, s, cluster}) //nolint:wrapcheck // it is the ClusterCache to its callers
}

// installedKinds are the kinds whose CRDs the manager installs in workload clusters.
var installedKinds = []client.Object{&v1alpha1.NodeMaintenance{}, &v1alpha1.Evacuation{}}

func isInstalledKind(object client.Object) bool {
	return slices.ContainsFunc(installedKinds, func(kind client.Object) bool { return reflect.TypeOf(kind) == reflect.TypeOf(object) })
}

// RestartInformers replaces the informers of the installed kinds in a connection after their CRDs were recreated: an informer whose kind was
// not served retries with a backoff of up to a minute. The handlers receive a deletion of each object of the
// former informers, so that each is reconciled.
func (c *Clusters) RestartInformers(ctx context.Context, cluster types.NamespacedName, all []Watches) error {
	former := c.cache.removeInstalled(ctx, cluster)
	if len(former) == 0 {
		return nil
	}
	if err := c.AddWatches(ctx, cluster, all); err != nil {
		return err
	}
	for _, informer := range former {
		if present, listable := informer.store(); listable {
			for _, object := range present.List() {
				informer.OnDelete(object)
			}
		}
	}
	return nil
}

// removeInstalled removes the informers of the installed kinds from a connection, and returns them.
func (s *sharedHandlers) removeInstalled(ctx context.Context, cluster types.NamespacedName) []*sharedInformer {
	s.mu.Lock()
	defer s.mu.Unlock()
	handlers := s.byCluster[cluster]
	if handlers == nil {
		return nil
	}
	s.restarts[cluster]++
	handlers.mu.Lock()
	defer handlers.mu.Unlock()
	var removed []*sharedInformer
	for _, kind := range installedKinds {
		informer, err := handlers.cache.GetInformer(ctx, kind, ctrlcache.BlockUntilSynced(false))
		if err != nil || handlers.shared[informer] == nil || handlers.cache.RemoveInformer(ctx, kind) != nil {
			continue
		}
		removed = append(removed, handlers.shared[informer])
		delete(handlers.shared, informer)
	}
	return removed
}

// remove deletes the handlers of a connection that has ended.
func (s *sharedHandlers) remove(cluster types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byCluster, cluster)
	delete(s.restarts, cluster)
}

// resend calls the handlers of a connection for all present objects, as after the first lists.
func (s *sharedHandlers) resend(cluster types.NamespacedName) {
	s.mu.Lock()
	handlers := s.byCluster[cluster]
	s.mu.Unlock()
	if handlers == nil {
		return
	}
	handlers.mu.Lock()
	informers := slices.Collect(maps.Values(handlers.shared))
	handlers.mu.Unlock()
	for _, informer := range informers {
		if present, listable := informer.store(); listable {
			for _, object := range present.List() {
				informer.OnAdd(object, true)
			}
		}
	}
}

// of returns the handlers of the connection that the cache belongs to.
func (s *sharedHandlers) of(cluster types.NamespacedName, cache ctrlcache.Cache) *connectionHandlers {
	s.mu.Lock()
	defer s.mu.Unlock()
	if present := s.byCluster[cluster]; present != nil && present.cache == cache {
		return present
	}
	handlers := &connectionHandlers{cache: cache, shared: map[ctrlcache.Informer]*sharedInformer{}}
	s.byCluster[cluster] = handlers
	return handlers
}

// sharingWatcher passes a cache with shared informers to a watcher.
type sharingWatcher struct {
	clustercache.Watcher
	name     string
	handlers *sharedHandlers
	cluster  types.NamespacedName
}

// Name implements clustercache.Watcher.
func (w sharingWatcher) Name() string { return w.name }

// Watch implements clustercache.Watcher.
func (w sharingWatcher) Watch(cache ctrlcache.Cache) error {
	return w.Watcher.Watch(sharingCache{cache, w.handlers.of(w.cluster, cache)})
}

// sharingCache is a cache with shared informers.
type sharingCache struct {
	ctrlcache.Cache
	handlers *connectionHandlers
}

// GetInformer implements ctrlcache.Informers.
func (c sharingCache) GetInformer(ctx context.Context, object client.Object, options ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	informer, err := c.Cache.GetInformer(ctx, object, options...)
	if err != nil {
		return nil, errors.Wrapf(err, "getting the informer of %T", object)
	}
	c.handlers.mu.Lock()
	defer c.handlers.mu.Unlock()
	if c.handlers.shared[informer] == nil {
		c.handlers.shared[informer] = &sharedInformer{Informer: informer}
	}
	return c.handlers.shared[informer], nil
}

// sharedInformer is an informer that calls all its handlers from one.
type sharedInformer struct {
	ctrlcache.Informer

	mu           sync.RWMutex
	registration toolscache.ResourceEventHandlerRegistration
	handlers     []toolscache.ResourceEventHandler
}

// AddEventHandlerWithOptions implements ctrlcache.Informer. It first calls a later handler for all present objects, as the informer would.
// The handler may get older events of them afterwards; handlers use events only to enqueue requests.
func (i *sharedInformer) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler, options toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	present, listable := i.store()
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.registration == nil:
		registration, err := i.Informer.AddEventHandlerWithOptions(i, options)
		if err != nil {
			return nil, errors.Wrap(err, "adding the handler that all share")
		}
		i.registration = registration
	case !listable:
		return i.Informer.AddEventHandlerWithOptions(handler, options) //nolint:wrapcheck // it is the informer to its callers
	default:
		for _, object := range present.List() {
			handler.OnAdd(object, true)
		}
	}
	i.handlers = append(i.handlers, handler)
	return i.registration, nil
}

// store returns the store of the informer. listable is false if the informer has none, unlike the informers of present caches.
func (i *sharedInformer) store() (store toolscache.Store, listable bool) {
	informer, listable := i.Informer.(interface{ GetStore() toolscache.Store })
	if !listable {
		return nil, false
	}
	return informer.GetStore(), true
}

// OnAdd implements toolscache.ResourceEventHandler.
func (i *sharedInformer) OnAdd(object any, isInInitialList bool) {
	for _, handler := range i.all() {
		handler.OnAdd(object, isInInitialList)
	}
}

// OnUpdate implements toolscache.ResourceEventHandler.
func (i *sharedInformer) OnUpdate(before, after any) {
	for _, handler := range i.all() {
		handler.OnUpdate(before, after)
	}
}

// OnDelete implements toolscache.ResourceEventHandler.
func (i *sharedInformer) OnDelete(object any) {
	for _, handler := range i.all() {
		handler.OnDelete(object)
	}
}

func (i *sharedInformer) all() []toolscache.ResourceEventHandler {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return slices.Clone(i.handlers)
}

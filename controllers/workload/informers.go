package workload

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/setaside"
)

// sharedInformers shares one event handler of each informer among all controllers that watch its kind. Each handler of an informer has two
// goroutines and a buffer for a thousand events. In hundreds of idle workload clusters, these would be most of the memory.
// docs/benchmarks.md has the figures.
type sharedInformers struct {
	mu       sync.RWMutex
	caches   map[types.NamespacedName]*sharingCache // of the connections, by Cluster
	restarts map[types.NamespacedName]int           // how often the informers of installedKinds were restarted
	opened   int                                    // how many caches were opened by Clusters.connection
}

func newSharedInformers() *sharedInformers {
	return &sharedInformers{caches: map[types.NamespacedName]*sharingCache{}, restarts: map[types.NamespacedName]int{}}
}

// share returns a watcher that does what w does, with the shared informers of the connection: those of Clusters.connection, or without one
// those of the cache that the ClusterCache passes.
func (s *sharedInformers) share(cluster types.NamespacedName, own *sharingCache, w clustercache.Watcher) clustercache.Watcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := w.Name()
	if own != nil { // another cache of the same connection gets all watches
		name = fmt.Sprintf("%s-%d", name, own.number)
	}
	if restarts := s.restarts[cluster]; restarts > 0 && isInstalledKind(w.Object()) {
		name = fmt.Sprintf("%s-%d", name, restarts) // the ClusterCache adds a name only once to a connection
	}
	return watcher{name, w.Object(), func(cache ctrlcache.Cache) error {
		if own != nil {
			return w.Watch(own)
		}
		return w.Watch(s.cacheOf(cluster, cache))
	}}
}

// cacheOf returns the shared informers of the connection that the cache belongs to.
func (s *sharedInformers) cacheOf(cluster types.NamespacedName, cache ctrlcache.Cache) *sharingCache {
	s.mu.Lock()
	defer s.mu.Unlock()
	if present := s.caches[cluster]; present != nil && present.Cache == cache {
		return present
	}
	s.end(cluster)
	ctx, end := context.WithCancel(context.Background())
	s.caches[cluster] = &sharingCache{Cache: cache, ctx: ctx, end: end, shared: map[ctrlcache.Informer]*sharedInformer{}}
	return s.caches[cluster]
}

// remove deletes the shared informers of a connection that has ended.
func (s *sharedInformers) remove(cluster types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(cluster)
	delete(s.restarts, cluster)
}

func (s *sharedInformers) end(cluster types.NamespacedName) {
	if cache := s.caches[cluster]; cache != nil {
		cache.end()
		if cache.aside != nil {
			cache.aside.Close()
		}
		delete(s.caches, cluster)
	}
}

// resend calls the handlers of a connection for all present objects, as after the first lists.
func (s *sharedInformers) resend(cluster types.NamespacedName) {
	s.mu.RLock()
	cache := s.caches[cluster]
	s.mu.RUnlock()
	if cache == nil {
		return
	}
	for _, informer := range cache.all() {
		informer.resend()
	}
}

// installedKinds are the kinds whose CRDs the manager installs in workload clusters.
var installedKinds = []client.Object{&v1alpha1.NodeMaintenance{}, &v1alpha1.Evacuation{}}

func isInstalledKind(object client.Object) bool {
	return slices.ContainsFunc(installedKinds, func(kind client.Object) bool { return isSameKind(kind, object) })
}

// RestartInformers replaces the informers of the installed kinds in a connection after their CRDs were recreated: an informer whose kind
// was not served retries with a backoff of up to a minute. The handlers receive a deletion of each object of the former informers, so that
// each is reconciled.
func (c *Clusters) RestartInformers(ctx context.Context, cluster types.NamespacedName, all []Watches) error {
	former := c.informers.removeInstalled(ctx, cluster)
	if len(former) == 0 {
		return nil
	}
	if err := c.AddWatches(ctx, cluster, all); err != nil {
		return err
	}
	for _, informer := range former {
		for _, object := range informer.GetStore().List() {
			informer.OnDelete(object)
		}
	}
	return nil
}

// removeInstalled removes the informers of the installed kinds from a connection, and returns them.
func (s *sharedInformers) removeInstalled(ctx context.Context, cluster types.NamespacedName) []*sharedInformer {
	s.mu.Lock()
	defer s.mu.Unlock()
	cache := s.caches[cluster]
	if cache == nil {
		return nil
	}
	s.restarts[cluster]++
	var removed []*sharedInformer
	for _, kind := range installedKinds {
		if informer := cache.removeInformer(ctx, kind); informer != nil {
			removed = append(removed, informer)
		}
	}
	return removed
}

// sharingCache is the cache of a connection, whose informers call all their handlers from one.
type sharingCache struct {
	ctrlcache.Cache

	ctx      context.Context //nolint:containedctx // of the connection
	end      context.CancelFunc
	onDemand *onDemand // guarded by sharedInformers.mu

	// The following fields are set with UseCaches.
	config   *rest.Config  // of the connection
	number   int           // unique in this process
	client   client.Client // reads from the cache
	scheme   *runtime.Scheme
	aside    *setaside.Objects
	failures Failures[string] // of lists and watches, by what they list

	mu     sync.Mutex
	shared map[ctrlcache.Informer]*sharedInformer // by the informer of the cache
}

// GetInformer implements ctrlcache.Informers.
func (c *sharingCache) GetInformer(ctx context.Context, object client.Object, options ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	informer, err := c.Cache.GetInformer(ctx, object, options...)
	if err != nil {
		return nil, errors.Wrapf(err, "getting the informer of %T", object)
	}
	listable, ok := informer.(listableInformer)
	if !ok { // all informers of present caches are
		return informer, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shared[informer] == nil {
		c.shared[informer] = &sharedInformer{listableInformer: listable, kind: object, delivered: c.delivered(object)}
	}
	return c.shared[informer], nil
}

// delivered returns a function that records that an object is not set aside any more.
func (c *sharingCache) delivered(kind client.Object) func(any) {
	if c.aside == nil || !isInstalledKind(kind) {
		return nil
	}
	name := kindOf(kind, c.scheme)
	return func(object any) {
		if object, is := object.(client.Object); is {
			c.aside.Delivered(name, object)
		}
	}
}

func (c *sharingCache) all() []*sharedInformer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.shared))
}

// sharedInformer is an informer that calls all its handlers from one.
type sharedInformer struct {
	listableInformer

	kind client.Object
	// delivered is called for each object that the informer adds or updates. It may be nil.
	delivered func(any)

	mu           sync.RWMutex
	registration toolscache.ResourceEventHandlerRegistration
	handlers     []toolscache.ResourceEventHandler
}

type listableInformer interface {
	ctrlcache.Informer
	GetStore() toolscache.Store
}

// AddEventHandlerWithOptions implements ctrlcache.Informer. It calls a later handler for all present objects, as the informer would. The
// handler may get older events of them afterwards; handlers use events only to enqueue requests. Meanwhile the other handlers get events: a
// handler may wait for another informer.
func (i *sharedInformer) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler,
	options toolscache.HandlerOptions,
) (toolscache.ResourceEventHandlerRegistration, error) {
	isFirst, err := i.register(handler, options)
	if err != nil {
		return nil, err
	}
	if !isFirst {
		for _, object := range i.GetStore().List() {
			handler.OnAdd(object, true)
		}
	}
	return i.registration, nil
}

// register adds a handler. It returns whether it is the first one, to which the informer delivers all objects.
func (i *sharedInformer) register(handler toolscache.ResourceEventHandler, options toolscache.HandlerOptions) (isFirst bool, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if isFirst = i.registration == nil; isFirst {
		if i.registration, err = i.listableInformer.AddEventHandlerWithOptions(i, options); err != nil {
			return false, errors.Wrap(err, "adding the handler that all share")
		}
	}
	i.handlers = append(i.handlers, handler)
	return isFirst, nil
}

// resend calls the handlers for all present objects, as after the first list.
func (i *sharedInformer) resend() {
	for _, object := range i.GetStore().List() {
		i.OnAdd(object, true)
	}
}

// OnAdd implements toolscache.ResourceEventHandler.
func (i *sharedInformer) OnAdd(object any, isInInitialList bool) {
	if i.delivered != nil {
		i.delivered(object)
	}
	for _, handler := range i.all() {
		handler.OnAdd(object, isInInitialList)
	}
}

// OnUpdate implements toolscache.ResourceEventHandler.
func (i *sharedInformer) OnUpdate(before, after any) {
	if i.delivered != nil {
		i.delivered(after)
	}
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

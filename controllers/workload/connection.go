package workload

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/capnm/cluster-api-node-maintenance/controllers/setaside"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
)

// CacheOptions are the options of the caches of workload clusters.
type CacheOptions struct {
	Transform toolscache.TransformFunc
	ByObject  map[client.Object]ctrlcache.ByObject
	// Uncached are kinds that are read from the API server.
	Uncached []client.Object
}

const (
	// informerTimeout limits the lists of informers. It is the one of the ClusterCache.
	informerTimeout = 11 * time.Minute
	// lostInterval is how often it is checked whether the connection of a cache or of a drain watch has ended.
	lostInterval = 10 * time.Second
)

// UseCaches makes Clusters create the cache of each connection, instead of using the one of the ClusterCache, which does not say which of
// its lists fail, and of which one object that cannot be decoded stops the informer. It must be called before the manager starts.
func (c *Clusters) UseCaches(options CacheOptions) { c.caches = &options }

// connection returns the cache of the present connection to a workload cluster. It returns nil without UseCaches.
func (c *Clusters) connection(ctx context.Context, cluster types.NamespacedName) (*sharingCache, error) {
	if c.caches == nil {
		return nil, nil //nolint:nilnil // unit tests use the cache of a fake ClusterCache
	}
	for {
		present := c.informers.present(cluster) // read first, see set
		config, err := c.cache.GetRESTConfig(ctx, cluster)
		if err != nil {
			return nil, errors.Wrapf(err, "reaching workload Cluster %s", cluster)
		}
		if present != nil && present.config == config {
			return present, nil
		}
		live, err := c.cache.GetUncachedClient(ctx, cluster)
		if err != nil {
			return nil, errors.Wrapf(err, "reaching workload Cluster %s", cluster)
		}
		opened, err := c.open(cluster, config, live.RESTMapper())
		if err != nil {
			return nil, errors.Wrapf(err, "creating the cache of workload Cluster %s", cluster)
		}
		if c.informers.set(cluster, present, opened, func() bool { return c.isLost(opened.ctx, cluster, opened.config) }) {
			return opened, nil
		}
	}
}

// isLost reports whether the connection with this configuration has ended. It may end just before its cache or its drain watch is created,
// and no reconciliation follows if the Cluster no longer exists.
func (c *Clusters) isLost(ctx context.Context, cluster types.NamespacedName, config *rest.Config) bool {
	present, err := c.cache.GetRESTConfig(ctx, cluster)
	return err != nil || present != config
}

// open creates the cache of a connection.
func (c *Clusters) open(cluster types.NamespacedName, config *rest.Config, mapper meta.RESTMapper) (*sharingCache, error) {
	opened := &sharingCache{
		config: config, shared: map[ctrlcache.Informer]*sharedInformer{}, aside: setaside.New(cluster, c.reportSetAside(cluster)), scheme: c.scheme,
	}
	opened.ctx, opened.end = context.WithCancel(context.Background())
	long := rest.CopyConfig(config)
	long.Timeout = informerTimeout
	httpClient, err := rest.HTTPClientFor(long)
	if err != nil {
		return nil, errors.Wrap(err, "creating an HTTP client for informers")
	}
	source := setaside.Source{Config: long, HTTPClient: httpClient, Scheme: c.scheme, Kinds: installedKinds}
	opened.Cache, err = ctrlcache.New(long, ctrlcache.Options{
		HTTPClient: httpClient, Scheme: c.scheme, Mapper: mapper, DefaultTransform: c.caches.Transform, ByObject: c.caches.ByObject,
		NewInformer: func(lw toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
			return toolscache.NewSharedIndexInformer(c.recordLists(cluster, opened, source, lw, object), object, resync, indexers)
		},
	})
	if err != nil {
		return nil, errors.Wrap(err, "creating a cache")
	}
	short, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, errors.Wrap(err, "creating an HTTP client")
	}
	cached, err := client.New(config, client.Options{HTTPClient: short, Scheme: c.scheme, Mapper: mapper, Cache: &client.CacheOptions{
		Reader: limitedReader{opened.Cache, config.Timeout}, DisableFor: c.caches.Uncached, Unstructured: true,
	}})
	if err != nil {
		return nil, errors.Wrap(err, "creating a client")
	}
	opened.client = opened.aside.Client(cached)
	return opened, nil
}

// recordLists returns the ListerWatcher of an informer. It sets aside objects that cannot be decoded, and records failing requests.
func (c *Clusters) recordLists(cluster types.NamespacedName, opened *sharingCache, source setaside.Source, lw toolscache.ListerWatcher,
	object runtime.Object,
) toolscache.ListerWatcher {
	kind := kindOf(object, c.scheme)
	lenient, err := opened.aside.ListerWatcher(source, object, lw)
	if err != nil {
		ctrl.Log.WithName("workload").Error(err, "Failed to set aside objects that cannot be decoded", "Cluster", klog.KRef(cluster.Namespace, cluster.Name),
			"kind", kind)
		lenient = lw
	}
	what := kind + "s"
	return &recordingListerWatcher{
		ListerWatcherWithContext: toolscache.ToListerWatcherWithContext(lenient), what: what, failures: &opened.failures, clock: c.clock,
		ignores: answers.NotServed, // Unserved reports the CRDs
		failed: func() {
			ctrl.Log.WithName("workload").Info("A list or watch of a workload cluster fails", "Cluster", klog.KRef(cluster.Namespace, cluster.Name), "what", what)
			clock.RealClock{}.AfterFunc(persistAfter, func() {
				if opened.ctx.Err() == nil {
					c.notify(Change{Cluster: cluster, Type: WatchesAdded})
				}
			})
		},
	}
}

func kindOf(object runtime.Object, scheme *runtime.Scheme) string {
	if metadata, is := object.(*metav1.PartialObjectMetadata); is {
		return metadata.Kind
	}
	gvk, err := apiutil.GVKForObject(object, scheme)
	if err != nil {
		return "object" // the informer has found its kind, so this doesn't happen
	}
	return gvk.Kind
}

// reportSetAside returns a function that reports an object of a workload cluster that cannot be decoded.
func (c *Clusters) reportSetAside(cluster types.NamespacedName) func(*metav1.PartialObjectMetadata, *setaside.Error) {
	return func(object *metav1.PartialObjectMetadata, err *setaside.Error) {
		ctrl.Log.WithName("workload").Error(err, "Set aside an object that cannot be decoded", "Cluster", klog.KRef(cluster.Namespace, cluster.Name),
			"kind", err.Kind, "object", klog.KObj(object))
		c.Event(cluster, object, corev1.EventTypeWarning, setaside.EventReason, "The manager ignores the object: "+err.Error())
	}
}

// IsOpen reports whether there is a cache of a connection to a workload cluster.
func (c *Clusters) IsOpen(cluster types.NamespacedName) bool {
	return c.informers.present(cluster) != nil
}

// SetAside returns the objects of a kind in a workload cluster that cannot be decoded.
func (c *Clusters) SetAside(cluster types.NamespacedName, kind string) []*setaside.Error {
	if connection := c.informers.present(cluster); connection != nil && connection.aside != nil {
		return connection.aside.List(kind, "")
	}
	return nil
}

// listFailure returns the longest failure of a list or watch of a connection, its Err is nil if none fails.
func (c *Clusters) listFailure(cluster types.NamespacedName) (longest Failure) {
	connection := c.informers.present(cluster)
	if connection == nil {
		return Failure{}
	}
	all := connection.failures.all()
	for _, doing := range slices.Sorted(maps.Keys(all)) {
		if failure := all[doing]; longest.Err == nil || failure.Since.Before(longest.Since) {
			longest = Failure{Since: failure.Since, Err: errors.Wrap(failure.Err, doing)}
		}
	}
	return longest
}

// FirstListFailure returns the failure of a first list of NodeMaintenances or Evacuations, without which nothing is known about the drains
// of a workload cluster. A read of the cache would wait for it.
func (c *Clusters) FirstListFailure(cluster types.NamespacedName) Failure {
	connection := c.informers.present(cluster)
	if connection == nil {
		return Failure{}
	}
	for _, kind := range installedKinds {
		failure := connection.failures.Get(listing + kindOf(kind, c.scheme) + "s")
		if informer := connection.informerOf(kind); failure.Err != nil && informer != nil && !informer.HasSynced() {
			failure.Err = errors.Wrap(failure.Err, listing+kindOf(kind, c.scheme)+"s")
			return failure
		}
	}
	return Failure{}
}

// forgetFailures ends the failures of an informer that has been removed.
func (c *sharingCache) forgetFailures(kind client.Object) {
	if c.config == nil {
		return
	}
	what := kindOf(kind, c.scheme) + "s"
	c.failures.Remove(func(doing string) bool { return doing == listing+what || doing == watching+what })
}

// confirm checks that the connection is still the present one. The ClusterCache adds each watch to a connection once; after a new
// connection in the meantime, they must be added again.
func (c *Clusters) confirm(ctx context.Context, cluster types.NamespacedName, used *sharingCache) error {
	if used == nil {
		return nil
	}
	config, err := c.cache.GetRESTConfig(ctx, cluster)
	if err != nil {
		return errors.Wrapf(err, "reaching workload Cluster %s", cluster)
	}
	if config == used.config {
		return nil
	}
	return errors.Wrapf(clustercache.ErrClusterNotConnected, "workload Cluster %s was connected again while watches were added", cluster)
}

// present returns the cache of the connection to a workload cluster, or nil.
func (s *sharedInformers) present(cluster types.NamespacedName) *sharingCache {
	if s == nil {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.caches[cluster]
}

// set makes a cache the one of the connection and starts it, and reports that. It does not if the present one is not the former one any
// more: another goroutine has created one since then, maybe for a later connection. The cache ends when its connection is lost.
func (s *sharedInformers) set(cluster types.NamespacedName, former, opened *sharingCache, isLost func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.caches[cluster] != former {
		opened.end()
		return false
	}
	s.end(cluster)
	s.opened++
	opened.number = s.opened
	s.caches[cluster] = opened
	go func() {
		if err := opened.Start(opened.ctx); err != nil {
			ctrl.Log.WithName("workload").Error(err, "Failed to run the cache of a workload cluster", "Cluster", klog.KRef(cluster.Namespace, cluster.Name))
		}
	}()
	opened.WaitForCacheSync(opened.ctx) // until it is started; it has no informers yet
	go s.endWhen(cluster, opened, isLost)
	return true
}

// endWhen ends a cache when its connection is lost. It returns when the cache has ended.
func (s *sharedInformers) endWhen(cluster types.NamespacedName, opened *sharingCache, isLost func() bool) {
	_ = wait.PollUntilContextCancel(opened.ctx, lostInterval, false, func(context.Context) (ended bool, _ error) {
		return s.endIf(cluster, opened, isLost), nil
	})
}

// endIf ends a cache if its connection is lost, and reports that.
func (s *sharedInformers) endIf(cluster types.NamespacedName, opened *sharingCache, isLost func() bool) bool {
	if !isLost() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.caches[cluster] == opened {
		s.end(cluster)
	}
	return true
}

// limitedReader limits the time for which a read waits for the first list of an informer.
type limitedReader struct {
	client.Reader
	timeout time.Duration
}

// Get implements client.Reader.
func (r limitedReader) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	ctx, cancel := r.limit(ctx)
	defer cancel()
	return r.Reader.Get(ctx, key, object, options...) //nolint:wrapcheck // it is this reader to its callers
}

// List implements client.Reader.
func (r limitedReader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	ctx, cancel := r.limit(ctx)
	defer cancel()
	return r.Reader.List(ctx, list, options...) //nolint:wrapcheck // same
}

func (r limitedReader) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, r.timeout, errFirstList)
}

// errFirstList is one error for all reads: a new one would record the stack of each.
var errFirstList = errors.New("the first list of the kind has not arrived")

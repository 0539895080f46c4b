package workload

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuators"
)

// demandInterval is how often it is checked whether watches that run on demand are still needed. They stop when two consecutive checks find
// that they are not, so the Machines of a rollout share them.
const demandInterval = 15 * time.Second

// onDemand runs the watches of a connection that an idle workload cluster does not need: those of Nodes while there is a NodeMaintenance or
// an Evacuation, and those of surges while there is a surge. Its methods start them; they stop automatically.
type onDemand struct {
	cluster types.NamespacedName
	cache   *sharingCache

	nodes, surges demandedWatches

	search      search // of FindLeftovers
	searchAgain atomic.Bool
}

// demandedWatches are watches that start and stop together.
type demandedWatches struct {
	name     string
	watchers []clustercache.Watcher
	// isNeeded must not block.
	isNeeded func() bool
	// synced is called when the first lists have arrived and all handlers were added: each later change causes an event.
	synced func()

	mu        sync.Mutex                        // held while they start or stop
	running   atomic.Pointer[[]*sharedInformer] // the informer of each watcher; nil: they do not run
	everBegan atomic.Bool
}

func newOnDemand(cluster types.NamespacedName, cache *sharingCache, watchers []clustercache.Watcher, observes func() bool) *onDemand {
	d := &onDemand{cluster: cluster, cache: cache}
	d.nodes.name, d.surges.name = "nodes", "surges"
	for _, w := range watchers {
		if _, is := w.Object().(*corev1.Node); is {
			d.nodes.watchers = append(d.nodes.watchers, w)
		} else {
			d.surges.watchers = append(d.surges.watchers, w)
		}
	}
	d.nodes.isNeeded = func() bool { return observes() || slices.ContainsFunc(installedKinds, cache.hasAny) }
	d.surges.isNeeded = func() bool {
		return slices.ContainsFunc(d.surges.watchers, func(w clustercache.Watcher) bool { return cache.hasAny(w.Object()) }) ||
			slices.ContainsFunc(cache.objects(&v1alpha1.Evacuation{}), isSurging)
	}
	// A Node that changed between its first read and the adding of the handlers caused no event.
	d.nodes.synced = func() { cache.resend(&v1alpha1.NodeMaintenance{}) }
	d.surges.synced = func() {}
	return d
}

// isSurging reports whether the active evacuator of an Evacuation watches on demand, as that of Deployments does for surges.
func isSurging(object any) bool {
	e, is := object.(*v1alpha1.Evacuation)
	return is && evacuators.Of(e.ActiveEvacuator()).WatchesOnDemand
}

// OnAdd implements toolscache.ResourceEventHandler for NodeMaintenances and Evacuations.
func (d *onDemand) OnAdd(object any, _ bool) {
	d.startInBackground(&d.nodes)
	if isSurging(object) {
		d.startInBackground(&d.surges)
	}
}

// OnUpdate implements toolscache.ResourceEventHandler.
func (d *onDemand) OnUpdate(_, object any) { d.OnAdd(object, false) }

// OnDelete implements toolscache.ResourceEventHandler. Watches that are no longer needed stop at the next check.
func (d *onDemand) OnDelete(any) {}

// startInBackground starts watches in a goroutine: start blocks while a controller starts, which waits until the handlers of its initial
// events have returned, and these may call List.
func (d *onDemand) startInBackground(w *demandedWatches) {
	if w.running.Load() == nil {
		go d.start(w)
	}
}

// start starts watches unless they run already.
func (d *onDemand) start(w *demandedWatches) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running.Load() != nil || d.cache.ctx.Err() != nil {
		return
	}
	log := ctrl.Log.WithName("workload").WithValues("Cluster", klog.KRef(d.cluster.Namespace, d.cluster.Name), "watches", w.name)
	informers, err := d.startWatchers(w)
	if err != nil {
		log.Error(err, "Failed to start watches")
		return
	}
	log.V(2).Info("Started watches, because the workload cluster is not idle")
	w.everBegan.Store(true)
	w.running.Store(&informers)
	go func() {
		gauge := watchingClusters.WithLabelValues(w.name)
		gauge.Inc()
		defer gauge.Dec()
		if !awaitHandlers(d.cache.ctx, informers) {
			return
		}
		w.synced()
		d.stopWhenIdle(w)
		log.V(2).Info("Stopped watches, because the workload cluster is idle or disconnected")
	}()
}

func (d *onDemand) startWatchers(w *demandedWatches) ([]*sharedInformer, error) {
	var informers []*sharedInformer
	for _, watcher := range w.watchers {
		informer, err := d.cache.GetInformer(d.cache.ctx, watcher.Object(), ctrlcache.BlockUntilSynced(false))
		if err != nil {
			return nil, err
		}
		if shared, is := informer.(*sharedInformer); is {
			informers = append(informers, shared)
		}
		if err := watcher.Watch(d.cache); err != nil {
			return nil, errors.Wrapf(err, "adding %s to workload Cluster %s", watcher.Name(), d.cluster)
		}
	}
	return informers, nil
}

// handlersInterval is how often awaitHandlers checks.
const handlersInterval = 10 * time.Millisecond

// awaitHandlers waits until the first lists have arrived and each watcher has added its handler to its informer, and reports whether ctx
// has not ended before. Controllers add handlers in the background, some 100 ms after the first list. Deletions and changes that happen
// before cause no event, so an actor that read the objects before must read them again.
func awaitHandlers(ctx context.Context, informers []*sharedInformer) bool {
	var checkers []toolscache.DoneChecker
	expected := map[*sharedInformer]int{}
	for _, informer := range informers {
		checkers = append(checkers, informer.HasSyncedChecker())
		expected[informer]++
	}
	return toolscache.WaitFor(ctx, "", checkers...) && wait.PollUntilContextCancel(ctx, handlersInterval, true, func(context.Context) (bool, error) {
		for informer, handlers := range expected {
			if len(informer.all()) < handlers {
				return false, nil
			}
		}
		return true, nil
	}) == nil
}

// stopWhenIdle stops watches when they are no longer needed. It returns then, and when the connection ends.
func (d *onDemand) stopWhenIdle(w *demandedWatches) {
	idle := 0
	_ = wait.PollUntilContextCancel(d.cache.ctx, demandInterval, false, func(context.Context) (stopped bool, _ error) {
		if idle++; w.isNeeded() {
			idle = 0
		}
		return idle >= 2 && d.stop(w), nil
	})
}

// stop stops watches, unless they are needed again. An object that is created meanwhile is cached before its handler is called. So either
// isNeeded observes the object, or its handler observes that the watches do not run, and starts them afterwards.
func (d *onDemand) stop(w *demandedWatches) (stopped bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	running := w.running.Swap(nil)
	if w.isNeeded() {
		w.running.Store(running)
		return false
	}
	for _, watcher := range w.watchers {
		d.cache.removeInformer(d.cache.ctx, watcher.Object())
	}
	return true
}

// haveSynced reports whether the watches run and their first lists have arrived.
func (w *demandedWatches) haveSynced() bool {
	running := w.running.Load()
	return running != nil && !slices.ContainsFunc(*running, func(informer *sharedInformer) bool { return !informer.HasSynced() })
}

// onDemandOf returns the watches on demand of the current connection to a workload cluster, or nil before they were added.
func (s *sharedInformers) onDemandOf(cluster types.NamespacedName) *onDemand {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if cache := s.caches[cluster]; cache != nil {
		return cache.onDemand
	}
	return nil
}

// addOnDemand returns a watcher that adds watches to a connection which run on demand. installed are the other watches of the connection:
// when all their handlers were added, subscribers get a Change.
func (c *Clusters) addOnDemand(cluster types.NamespacedName, installed, demanded []clustercache.Watcher) clustercache.Watcher {
	return watcher{"workloadcluster-OnDemand", installedKinds[0], func(cache ctrlcache.Cache) error {
		shared, is := cache.(*sharingCache)
		if !is {
			return errors.Errorf("the connection has a cache of type %T", cache)
		}
		d := c.informers.setOnDemand(shared, func() *onDemand {
			return newOnDemand(cluster, shared, demanded, func() bool { return c.CurrentObservation(cluster) != nil })
		})
		var informers []*sharedInformer // of d and of each installed watch
		for _, kind := range installedKinds {
			informer, err := shared.GetInformer(shared.ctx, kind, ctrlcache.BlockUntilSynced(false))
			if err != nil {
				return err
			}
			informers = append(informers, shared.informerOf(kind))
			// In the background: a handler that is being added may wait for a client, and the ClusterCache locks the connection.
			go func() {
				if _, err := informer.AddEventHandlerWithOptions(d, toolscache.HandlerOptions{}); err != nil {
					ctrl.Log.WithName("workload").Error(err, "Failed to add the handler that starts watches", "Cluster", klog.KRef(cluster.Namespace, cluster.Name))
				}
			}()
		}
		for _, w := range installed {
			informers = append(informers, shared.informerOf(w.Object()))
		}
		go func() {
			if awaitHandlers(shared.ctx, informers) {
				shared.resend(&v1alpha1.NodeMaintenance{})
				c.notify(Change{Cluster: cluster, Type: WatchesAdded})
			}
		}()
		return nil
	}}
}

// setOnDemand sets the watches on demand of a connection unless it has them already, and returns them.
func (s *sharedInformers) setOnDemand(cache *sharingCache, create func() *onDemand) *onDemand {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cache.onDemand == nil {
		cache.onDemand = create()
	}
	return cache.onDemand
}

// onDemandClient reads Nodes from the cache only while they are watched, and else from the API server: a read from the cache would start a
// watch that nothing stops, and wait for the list of all Nodes.
type onDemandClient struct {
	client.Client

	live     client.Reader
	onDemand *onDemand // nil until the watches of a connection were added
}

// Get implements client.Reader.
func (c *onDemandClient) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if _, is := object.(*corev1.Node); is && (c.onDemand == nil || !c.onDemand.nodes.haveSynced()) {
		return c.live.Get(ctx, key, object, options...) //nolint:wrapcheck // it is this client to its callers
	}
	return c.Client.Get(ctx, key, object, options...) //nolint:wrapcheck // same
}

// ObservesNodes returns whether a client of Clusters reads Nodes from a cache that has all of them. Otherwise a read takes the time of a
// request. Once the Nodes are observed, all NodeMaintenances have an event.
func ObservesNodes(c client.Client) bool {
	demanding, is := c.(*onDemandClient)
	return !is || demanding.onDemand != nil && demanding.onDemand.nodes.haveSynced()
}

// List implements client.Reader. It starts the watch of what is listed, unless a limit says that few are needed.
func (c *onDemandClient) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	var watches *demandedWatches
	if c.onDemand != nil {
		switch list.(type) {
		case *corev1.NodeList:
			watches = &c.onDemand.nodes
		case *metav1.PartialObjectMetadataList:
			watches = &c.onDemand.surges
		}
	}
	_, nodes := list.(*corev1.NodeList)
	limited := client.ListOptions{}
	limited.ApplyOptions(options)
	switch {
	case nodes && (watches == nil || limited.Limit > 0 && !watches.haveSynced()):
		return c.live.List(ctx, list, options...) //nolint:wrapcheck // same
	case watches != nil:
		c.onDemand.startInBackground(watches) // the cache waits for the same informer
	}
	return c.Client.List(ctx, list, options...) //nolint:wrapcheck // same
}

// hasAny reports whether an informer of a kind is there and has objects.
func (c *sharingCache) hasAny(kind client.Object) bool { return len(c.objects(kind)) > 0 }

// objects returns the cached objects of a kind, without starting its informer.
func (c *sharingCache) objects(kind client.Object) []any {
	if informer := c.informerOf(kind); informer != nil {
		return informer.GetStore().List()
	}
	return nil
}

// informerOf returns the informer of a kind, or nil.
func (c *sharingCache) informerOf(kind client.Object) *sharedInformer {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, informer := range c.shared {
		if isSameKind(informer.kind, kind) {
			return informer
		}
	}
	return nil
}

// isSameKind reports whether two objects have the same type and, where only their metadata is known, the same kind.
func isSameKind(a, b client.Object) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && a.GetObjectKind().GroupVersionKind() == b.GetObjectKind().GroupVersionKind()
}

// resend calls the handlers of a kind for all present objects, as after the first list.
func (c *sharingCache) resend(kind client.Object) {
	if informer := c.informerOf(kind); informer != nil {
		informer.resend()
	}
}

// removeInformer stops the informer of a kind, and returns it. It returns nil if the kind has no informer.
func (c *sharingCache) removeInformer(ctx context.Context, kind client.Object) *sharedInformer {
	informer := c.informerOf(kind)
	if informer == nil || c.RemoveInformer(ctx, kind) != nil {
		return nil
	}
	c.forgetFailures(kind)
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, each := range c.shared {
		if each == informer {
			delete(c.shared, key)
		}
	}
	return informer
}

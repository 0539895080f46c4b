package workload

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capnm/cluster-api-node-maintenance/drain/lookup"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// Clusters provides clients and watches of workload clusters.
type Clusters struct {
	management client.Reader
	cache      clustercache.ClusterCache
	informers  *sharedInformers
	scheme     *runtime.Scheme
	evictions  Limits
	clock      clock.PassiveClock

	affected, resumed *bursts // of AllPodsAffected, and of Resume

	// Filter selects the Clusters that the manager works in. It is set before the manager starts.
	Filter machinedrain.WatchFilter

	// Failures are the failures of the reconciliation of NodeMaintenances, for the conditions of the Machines that they serve.
	Failures Failures[Request]

	confirmed confirmations // see ConfirmDrained

	progresses progresses // see ObserveProgress

	mu          sync.RWMutex // reconciliations of all workload clusters read what it protects, and rarely change it
	watches     map[types.NamespacedName]*connectedWatch
	budgets     map[types.NamespacedName]*observedBudgets // of watches that were stopped, see keepBudgets
	recorders   map[types.NamespacedName]*eventRecorder
	subscribers []func(Change)
	unserved    map[types.NamespacedName]string // see SetUnserved
	check       func(types.NamespacedName)      // see OnCheckRequested
	caches      *CacheOptions                   // see UseCaches
}

// connectedWatch is a drain watch and the connection that it belongs to.
type connectedWatch struct {
	*drainWatch
	config    *rest.Config
	evictions rest.Interface
	lost      bool // see ContactLost
}

// NewClusters returns a Clusters that uses the connections of the ClusterCache; management reads Cluster objects. evictions limits the
// evictions in each workload cluster. The limits of the ClusterCache apply to all other requests.
func NewClusters(management client.Reader, cache clustercache.ClusterCache, scheme *runtime.Scheme, evictions Limits, now clock.PassiveClock) *Clusters {
	c := &Clusters{
		management: management, cache: cache, informers: newSharedInformers(), scheme: scheme, evictions: evictions, clock: now,
		watches:   map[types.NamespacedName]*connectedWatch{},
		budgets:   map[types.NamespacedName]*observedBudgets{},
		recorders: map[types.NamespacedName]*eventRecorder{},
		unserved:  map[types.NamespacedName]string{},
		check:     func(types.NamespacedName) {},
	}
	c.affected, c.resumed = newBursts(firstAffectedInterval, c.affectAllPods), newBursts(firstResumedInterval, c.resume)
	return c
}

// IsNotConnected reports whether err means that there is no connection to the workload cluster.
func IsNotConnected(err error) bool {
	return errors.Is(err, clustercache.ErrClusterNotConnected)
}

// Source triggers a controller when a Cluster is connected or disconnected. The source runs until the process ends: a worker of the
// ClusterCache blocks until each of its sources receives an event. If a stopped controller no longer received events, the worker would
// block forever and the manager could not stop (Cluster API v1.14.2, sendEventsToClusterSources).
func (c *Clusters) Source(controller string, requests handler.MapFunc, options ...clustercache.GetClusterSourceOption) source.Source {
	changes := c.cache.GetClusterSource(controller, requests, options...)
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		return changes.Start(context.WithoutCancel(ctx), queue) //nolint:wrapcheck // it is that source to its controller
	})
}

// Client returns a client that reads NodeMaintenances and Evacuations from a cache, and Nodes, too, while they are watched. It fails
// without a connection (IsNotConnected), for a Cluster that Filter does not select (IsNotConnected), and while the Cluster is paused
// (IsPaused).
func (c *Clusters) Client(ctx context.Context, cluster types.NamespacedName) (client.Client, error) {
	cached, err := c.clientFrom(ctx, cluster, c.cachedClient)
	if err != nil {
		return nil, err
	}
	live, err := c.liveClient(ctx, cluster)
	if err != nil {
		return nil, errors.Wrapf(err, "reaching workload Cluster %s", cluster)
	}
	return &onDemandClient{Client: cached, live: live, onDemand: c.informers.onDemandOf(cluster)}, nil
}

// cachedClient returns the client that reads from the cache of the connection.
func (c *Clusters) cachedClient(ctx context.Context, cluster types.NamespacedName) (client.Client, error) {
	connection, err := c.connection(ctx, cluster)
	if err != nil {
		return nil, err
	}
	if connection == nil {
		return c.cache.GetClient(ctx, cluster) //nolint:wrapcheck // clientFrom does
	}
	return connection.client, nil
}

// UncachedClient returns a client without a cache. It fails as Client does.
func (c *Clusters) UncachedClient(ctx context.Context, cluster types.NamespacedName) (client.Client, error) {
	return c.clientFrom(ctx, cluster, c.liveClient)
}

func (c *Clusters) liveClient(ctx context.Context, cluster types.NamespacedName) (client.Client, error) {
	live, err := c.cache.GetUncachedClient(ctx, cluster)
	if err != nil {
		return nil, err //nolint:wrapcheck // the callers do
	}
	return liveClient{live}, nil
}

// liveClient reads from the API server. A name that no object can have results in NotFound; see lookup.CanExist.
type liveClient struct{ client.Client }

// Get implements client.Reader.
func (c liveClient) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if !lookup.CanExist(key.Name) {
		return apierrors.NewNotFound(schema.GroupResource{Resource: fmt.Sprintf("%T", object)}, key.Name)
	}
	return c.Client.Get(ctx, key, object, options...) //nolint:wrapcheck // it is this client to its callers
}

func (c *Clusters) clientFrom(ctx context.Context, cluster types.NamespacedName,
	get func(context.Context, client.ObjectKey) (client.Client, error),
) (client.Client, error) {
	if err := c.refuse(ctx, cluster); err != nil {
		return nil, err
	}
	remote, err := get(ctx, cluster)
	return remote, errors.Wrapf(err, "reaching workload Cluster %s", cluster)
}

// HealthState returns the result of the health probes of a workload cluster: when the last one succeeded, zero if none has, and how many
// have failed since.
func (c *Clusters) HealthState(ctx context.Context, cluster types.NamespacedName) clustercache.HealthCheckingState {
	return c.cache.GetHealthCheckingState(ctx, cluster)
}

// Subscribe registers a function that is called for each later Change of a workload cluster, before it starts to reconcile. notify must not
// block.
func (c *Clusters) Subscribe(notify func(Change)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribers = append(c.subscribers, notify)
}

// Observe watches the Pods of one or more Nodes for owner, instead of those of its previous call, until Release. It returns at once; a
// Change reports when data becomes known.
func (c *Clusters) Observe(ctx context.Context, cluster types.NamespacedName, owner string, nodes ...string) (Observation, error) {
	for {
		former := c.CurrentObservation(cluster) // read first, see observe
		config, err := c.cache.GetRESTConfig(ctx, cluster)
		if err != nil {
			return nil, errors.Wrapf(err, "reaching workload Cluster %s", cluster)
		}
		if present := c.observed(cluster, config, owner, nodes); present != nil {
			return present, nil
		}
		if present, err := c.observe(cluster, former, config, owner, nodes); present != nil || err != nil {
			return present, err
		}
	}
}

// observe changes what the watch of a connection observes for owner. It starts the watch if there is none, or that of a former connection.
// It returns nil if the watch of another connection is not the former one: another goroutine has started it since then, maybe for a later
// connection.
func (c *Clusters) observe(cluster types.NamespacedName, former Observation, config *rest.Config, owner string, nodes []string) (_ Observation, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	watch := c.watches[cluster]
	if watch == nil || watch.config != config { // the first owner, or a new connection
		if watch != nil && former != Observation(watch.drainWatch) {
			return nil, nil
		}
		c.stopWatch(cluster)
		if watch, err = c.startWatch(cluster, config); err != nil {
			return nil, err
		}
	}
	return watch.drainWatch, watch.observe(owner, nodes)
}

// observed returns the observation of a connection if it already has the Nodes that owner needs, or nil. Unlike a change, this does not
// wait for the reconciliations of other workload clusters.
func (c *Clusters) observed(cluster types.NamespacedName, config *rest.Config, owner string, nodes []string) Observation {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if watch := c.watches[cluster]; watch != nil && watch.config == config && watch.isObservedFor(owner, nodes) {
		return watch.drainWatch
	}
	return nil
}

// Release ends what Observe and ObserveVolumes have begun for owner. The drain watch of a workload cluster stops with its last owner.
func (c *Clusters) Release(cluster types.NamespacedName, owner string) {
	if !c.needsRelease(cluster, owner) {
		return
	}
	if c.release(cluster, owner) {
		c.notify(Change{Cluster: cluster, Type: WatchEnded})
	}
}

// release is Release without its notification. It reports whether the drain watch has stopped.
func (c *Clusters) release(cluster types.NamespacedName, owner string) (stopped bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	watch := c.watches[cluster]
	if watch == nil || !watch.release(owner) {
		return false
	}
	c.stopWatch(cluster)
	return true
}

// needsRelease reports whether Release has something to do.
func (c *Clusters) needsRelease(cluster types.NamespacedName, owner string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	watch := c.watches[cluster]
	return watch != nil && watch.needsRelease(owner)
}

// ReleaseAll calls Release in every workload cluster, for an owner whose Cluster is no longer known.
func (c *Clusters) ReleaseAll(owner string) {
	c.mu.RLock()
	clusters := slices.Collect(maps.Keys(c.watches))
	c.mu.RUnlock()
	for _, cluster := range clusters {
		c.Release(cluster, owner)
	}
}

// CurrentObservation returns the current observation of a workload cluster, or nil.
func (c *Clusters) CurrentObservation(cluster types.NamespacedName) Observation {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if watch := c.watches[cluster]; watch != nil {
		return watch.drainWatch
	}
	return nil
}

// Observes reports whether the Pods of a Node of a workload cluster are watched.
func (c *Clusters) Observes(cluster types.NamespacedName, node string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	watch := c.watches[cluster]
	return watch != nil && watch.watches(node)
}

func (c *Clusters) startWatch(cluster types.NamespacedName, config *rest.Config) (*connectedWatch, error) {
	evictions, err := newEvictionClient(config, c.evictions)
	if err != nil {
		return nil, err
	}
	drain, err := newDrainWatch(cluster, config, c.notify, c.clock, c.budgets[cluster])
	if err != nil {
		return nil, err
	}
	delete(c.budgets, cluster)
	watch := &connectedWatch{drainWatch: drain, config: config, evictions: evictions}
	c.watches[cluster] = watch
	go c.followConnection(cluster, watch)
	c.check(cluster)
	return watch, nil
}

// followConnection ends a drain watch when its connection is lost, and records that contact is lost or restored: where no Machine drains,
// nothing else does. It returns when the watch has ended.
func (c *Clusters) followConnection(cluster types.NamespacedName, watch *connectedWatch) {
	_ = wait.PollUntilContextCancel(watch.ctx, lostInterval, false, func(ctx context.Context) (ended bool, _ error) {
		if !c.isLost(ctx, cluster, watch.config) {
			switch state := c.cache.GetHealthCheckingState(ctx, cluster); {
			case state.ConsecutiveFailures == 0:
				c.ContactRestored(cluster)
			case IsContactLost(state, c.clock.Now()):
				c.ContactLost(cluster)
			}
			return false, nil
		}
		c.mu.Lock()
		isPresent := c.watches[cluster] == watch
		if isPresent {
			c.stopWatch(cluster)
		}
		c.mu.Unlock()
		if isPresent {
			c.notify(Change{Cluster: cluster, Type: WatchEnded})
		}
		return true, nil
	})
}

// OnCheckRequested sets the function that checks what is installed in a workload cluster. check must not block.
func (c *Clusters) OnCheckRequested(check func(cluster types.NamespacedName)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.check = check
}

// RequestCheck requests a check of what is installed in a workload cluster.
func (c *Clusters) RequestCheck(cluster types.NamespacedName) {
	c.mu.RLock()
	check := c.check
	c.mu.RUnlock()
	check(cluster)
}

// SetUnserved records which of the installed CRDs a workload cluster does not serve, and why. It is empty if all are served.
func (c *Clusters) SetUnserved(cluster types.NamespacedName, unserved string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unserved[cluster] = unserved; unserved == "" {
		delete(c.unserved, cluster)
	}
}

// Unserved returns what SetUnserved has recorded.
func (c *Clusters) Unserved(cluster types.NamespacedName) string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.unserved[cluster]
}

// Connected creates the objects that live as long as the connection.
func (c *Clusters) Connected(ctx context.Context, cluster types.NamespacedName) error {
	config, err := c.cache.GetRESTConfig(ctx, cluster)
	if err != nil {
		return errors.Wrapf(err, "reaching workload Cluster %s", cluster)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.recorders[cluster]
	if before != nil && before.config == config {
		return nil
	}
	recorder := newEventRecorder(config, c.scheme)
	if before != nil {
		before.stop()
	}
	c.recorders[cluster] = recorder
	connectedClusters.Set(float64(len(c.recorders)))
	return nil
}

// Disconnect stops the watches of a workload cluster that is no longer connected, and deletes what Clusters knows about it.
func (c *Clusters) Disconnect(cluster types.NamespacedName) {
	c.informers.remove(cluster)
	c.SetUnserved(cluster, "")
	c.Failures.Remove(func(request Request) bool { return request.Cluster == cluster })
	if c.removeWatch(cluster) {
		c.notify(Change{Cluster: cluster, Type: WatchEnded})
	}
}

// Forget disconnects a workload cluster whose Cluster no longer exists, and has the controllers delete all state about it.
func (c *Clusters) Forget(cluster types.NamespacedName) {
	c.Disconnect(cluster)
	c.dropBudgets(cluster)
	c.notify(Change{Cluster: cluster, Type: ClusterDeleted})
}

func (c *Clusters) removeWatch(cluster types.NamespacedName) (observed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	observed = c.watches[cluster] != nil
	c.stopWatch(cluster)
	if recorder := c.recorders[cluster]; recorder != nil {
		recorder.stop()
		delete(c.recorders, cluster)
	}
	connectedClusters.Set(float64(len(c.recorders)))
	return observed
}

// budgetsKept is how long the budgets of a watch that was stopped are kept for the next one.
const budgetsKept = time.Minute

// keepBudgets keeps the budgets of a watch that was stopped, for the watch that continues it after the end of a drain or connection: its
// first list shows which of them were deleted meanwhile.
func (c *Clusters) keepBudgets(cluster types.NamespacedName, kept *observedBudgets) {
	c.budgets[cluster] = kept
	clock.RealClock{}.AfterFunc(budgetsKept, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.budgets[cluster] == kept {
			delete(c.budgets, cluster)
		}
	})
}

func (c *Clusters) dropBudgets(cluster types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.budgets, cluster)
}

func (c *Clusters) stopWatch(cluster types.NamespacedName) {
	ofCluster := func(request Request) bool { return request.Cluster == cluster }
	c.confirmed.remove(ofCluster)
	c.progresses.remove(ofCluster)
	if watch := c.watches[cluster]; watch != nil {
		watch.stop()
		watch.stopNodes() // evictions of one budget are sent one after the other, and may outlast the watch and the connection
		delete(c.watches, cluster)
		c.keepBudgets(cluster, watch.observedBudgets)
	}
}

// notify passes a Change to all subscribers. It merges those of type AllPodsAffected. The caller must not hold the lock.
func (c *Clusters) notify(change Change) {
	if change.Type == AllPodsAffected {
		c.affected.add(change.Cluster)
		return
	}
	c.send(change)
}

func (c *Clusters) send(change Change) {
	c.mu.RLock()
	subscribers := c.subscribers // only appended to
	c.mu.RUnlock()
	for _, notify := range subscribers {
		notify(change)
	}
}

// affectAllPods notifies subscribers that all decisions in a workload cluster may have changed, also those about volumes.
func (c *Clusters) affectAllPods(cluster types.NamespacedName) {
	c.send(Change{Cluster: cluster, Type: AllPodsAffected})
	c.mu.RLock()
	watch := c.watches[cluster]
	c.mu.RUnlock()
	if watch != nil {
		watch.volumesChanged("")
	}
}

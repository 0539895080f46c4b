package remote

import (
	"context"
	"sync"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Clusters reaches workload clusters.
type Clusters struct {
	management client.Reader
	cache      *sharedHandlers
	scheme     *runtime.Scheme
	evictions  Limits
	clock      clock.PassiveClock

	// Failures of NodeMaintenances, for the Machines that they serve.
	Failures Failures[Request]

	mu          sync.Mutex
	watches     map[types.NamespacedName]*connectedWatch
	recorders   map[types.NamespacedName]*eventRecorder
	subscribers []func(Change)
}

// connectedWatch is a drain watch and the connection that it was made for.
type connectedWatch struct {
	*drainWatch
	config    *rest.Config
	evictions rest.Interface
	began     time.Time
}

// NewClusters returns Clusters that reaches workload clusters through the cache; management reads their Cluster objects. evictions
// bounds the evictions in each of them; the ClusterCache's own limits bound the rest.
func NewClusters(management client.Reader, cache clustercache.ClusterCache, scheme *runtime.Scheme, evictions Limits, now clock.PassiveClock) *Clusters {
	return &Clusters{
		management: management, cache: shareHandlers(cache), scheme: scheme, evictions: evictions, clock: now,
		watches:   map[types.NamespacedName]*connectedWatch{},
		recorders: map[types.NamespacedName]*eventRecorder{},
	}
}

// IsNotConnected says whether err means that there is no connection to the workload cluster at present.
func IsNotConnected(err error) bool {
	return errors.Is(err, clustercache.ErrClusterNotConnected)
}

// Source tells a controller of Clusters that are connected or disconnected, until the process ends: a worker of the ClusterCache
// waits for whoever is to hear of a connection, for ever where that controller has stopped, and the manager can't end (Cluster API
// v1.14.2, sendEventsToClusterSources).
func (c *Clusters) Source(controller string, requests handler.MapFunc, options ...clustercache.GetClusterSourceOption) source.Source {
	changes := c.cache.GetClusterSource(controller, requests, options...)
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		return changes.Start(context.WithoutCancel(ctx), queue) //nolint:wrapcheck // it is that source to its controller
	})
}

// Client reads NodeMaintenances, Evacuations and Nodes from watches, and writes. It fails where there is no connection
// (IsNotConnected), and where the Cluster is paused (IsPaused).
func (c *Clusters) Client(ctx context.Context, cluster types.NamespacedName) (client.Client, error) {
	if err := c.refusePaused(ctx, cluster); err != nil {
		return nil, err
	}
	remote, err := c.cache.GetClient(ctx, cluster)
	return remote, errors.Wrapf(err, "reaching workload Cluster %s", cluster)
}

// Live reads and writes without a cache. It fails as Client does.
func (c *Clusters) Live(ctx context.Context, cluster types.NamespacedName) (client.Client, error) {
	if err := c.refusePaused(ctx, cluster); err != nil {
		return nil, err
	}
	remote, err := c.cache.GetUncachedClient(ctx, cluster)
	return remote, errors.Wrapf(err, "reaching workload Cluster %s", cluster)
}

// LastContact says when the workload cluster was last reached. Zero if never.
func (c *Clusters) LastContact(ctx context.Context, cluster types.NamespacedName) clustercache.HealthCheckingState {
	return c.cache.GetHealthCheckingState(ctx, cluster)
}

// Subscribe calls notify for each change that a drain watch sees. It must be called before the manager starts; notify must
// not block.
func (c *Clusters) Subscribe(notify func(Change)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribers = append(c.subscribers, notify)
}

// Observe has the Pods of nodes watched for owner from now on, instead of those that it needed before. It returns at once;
// what isn't known yet becomes known with a Change. Without nodes owner needs nothing any more; the drain watch ends when
// nobody needs it, and Observe returns nil if there is none.
func (c *Clusters) Observe(ctx context.Context, cluster types.NamespacedName, owner string, nodes ...string) (Observation, error) {
	config, err := c.cache.GetRESTConfig(ctx, cluster)
	if err != nil {
		return nil, errors.Wrapf(err, "reaching workload Cluster %s", cluster)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	watch := c.watches[cluster]
	if watch != nil && watch.config != config { // a new connection
		c.end(cluster)
		watch = nil
	}
	if watch == nil {
		if len(nodes) == 0 {
			return nil, nil
		}
		if watch, err = c.begin(cluster, config); err != nil {
			return nil, err
		}
	}
	idle, err := watch.need(owner, nodes)
	if err != nil {
		return nil, err
	}
	if idle {
		c.end(cluster)
		return nil, nil
	}
	return watch.drainWatch, nil
}

// Unobserve is Observe without Nodes in every workload cluster, for who doesn't know any more where it needed something.
func (c *Clusters) Unobserve(owner string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for cluster, watch := range c.watches {
		if idle, err := watch.need(owner, nil); err == nil && idle { // nothing is started, so nothing fails
			c.end(cluster)
		}
	}
}

// Observed returns the present observation of a workload cluster, nil if nothing is observed there.
func (c *Clusters) Observed(cluster types.NamespacedName) Observation {
	c.mu.Lock()
	defer c.mu.Unlock()
	if watch := c.watches[cluster]; watch != nil {
		return watch.drainWatch
	}
	return nil
}

// Observes reports whether the Pods of a Node of a workload cluster are watched.
func (c *Clusters) Observes(cluster types.NamespacedName, node string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	watch := c.watches[cluster]
	return watch != nil && watch.watches(node)
}

func (c *Clusters) begin(cluster types.NamespacedName, config *rest.Config) (*connectedWatch, error) {
	evictions, err := newEvictionClient(config, c.evictions)
	if err != nil {
		return nil, err
	}
	drain, err := newDrainWatch(cluster, config, c.notify)
	if err != nil {
		return nil, err
	}
	watch := &connectedWatch{drainWatch: drain, config: config, evictions: evictions, began: c.clock.Now()}
	c.watches[cluster] = watch
	return watch, nil
}

// Renew begins the drain watch of a workload cluster anew, after contact was lost and is back. Watches come back by themselves,
// but their backoff after half a minute's outage is up to a minute. A watch that has begun within the last while is left alone.
func (c *Clusters) Renew(cluster types.NamespacedName) {
	c.mu.Lock()
	watch := c.watches[cluster]
	renew := watch != nil && c.clock.Since(watch.began) > renewAfter
	if renew {
		c.end(cluster)
	}
	c.mu.Unlock()
	if renew {
		c.notify(Change{Cluster: cluster, Surroundings: true}) // those who need Nodes say so again
	}
}

// renewAfter keeps many drains that find contact back at the same time from beginning the same watch again and again.
const renewAfter = 15 * time.Second

// connected makes what lasts as long as the connection.
func (c *Clusters) connected(ctx context.Context, cluster types.NamespacedName) error {
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

// Forget ends what belongs to a workload cluster that is not connected any more.
func (c *Clusters) Forget(cluster types.NamespacedName) {
	c.cache.forget(cluster)
	c.Failures.Forget(func(request Request) bool { return request.Cluster == cluster })
	if c.drop(cluster) {
		c.notify(Change{Cluster: cluster}) // nothing is observed there any more
	}
}

func (c *Clusters) drop(cluster types.NamespacedName) (observed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	observed = c.watches[cluster] != nil
	c.end(cluster)
	if recorder := c.recorders[cluster]; recorder != nil {
		recorder.stop()
		delete(c.recorders, cluster)
	}
	connectedClusters.Set(float64(len(c.recorders)))
	return observed
}

func (c *Clusters) end(cluster types.NamespacedName) {
	if watch := c.watches[cluster]; watch != nil {
		watch.stop()
		delete(c.watches, cluster)
	}
}

func (c *Clusters) notify(change Change) {
	for _, notify := range c.subscribers {
		notify(change)
	}
}

package workload

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

// connections is a ClusterCache with one connection, nil: not connected.
type connections struct {
	clustercache.ClusterCache
	config  *rest.Config
	client  client.Client
	watches sets.Set[string] // of the connection
	pauses  func()           // before a client is returned
	ends    func()           // before a configuration is returned

	lost     atomic.Bool
	failures atomic.Int32 // of health probes
}

// unanswered returns the configuration of a connection whose requests get no answer.
func unanswered() *rest.Config {
	config := &rest.Config{Host: "https://c.example.com"}
	config.Wrap(func(http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
	})
	return config
}

func (c *connections) GetHealthCheckingState(context.Context, client.ObjectKey) clustercache.HealthCheckingState {
	return clustercache.HealthCheckingState{ConsecutiveFailures: int(c.failures.Load())}
}

func (c *connections) GetRESTConfig(context.Context, client.ObjectKey) (*rest.Config, error) {
	if c.config == nil || c.lost.Load() {
		return nil, clustercache.ErrClusterNotConnected
	}
	config := c.config
	if end := c.ends; end != nil {
		c.ends = nil
		end()
	}
	return config, nil
}

func (c *connections) GetUncachedClient(context.Context, client.ObjectKey) (client.Client, error) {
	if pause := c.pauses; pause != nil {
		c.pauses = nil
		pause()
	}
	return c.client, nil
}

func (c *connections) Watch(_ context.Context, _ client.ObjectKey, w clustercache.Watcher) error {
	if c.watches.Has(w.Name()) {
		return nil
	}
	c.watches.Insert(w.Name())
	return w.Watch(nil)
}

func TestConnection(t *testing.T) {
	api := httptest.NewServer(nil)
	t.Cleanup(api.Close)
	scheme := fakes.Scheme()
	cluster := types.NamespacedName{Namespace: "default", Name: "c1"}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{v1alpha1.GroupVersion})
	mapper.Add(v1alpha1.GroupVersion.WithKind("NodeMaintenance"), meta.RESTScopeRoot)
	mapper.Add(v1alpha1.GroupVersion.WithKind("Evacuation"), meta.RESTScopeNamespace)
	connect := func(t *testing.T) (*Clusters, *connections, *sharingCache) {
		t.Helper()
		g := NewWithT(t)
		remote := &connections{config: &rest.Config{Host: api.URL}, client: fakes.Builder().WithRESTMapper(mapper).Build(), watches: sets.New[string]()}
		clusters := NewClusters(nil, remote, scheme, Limits{}, clock.RealClock{})
		clusters.UseCaches(CacheOptions{})
		opened, err := clusters.connection(t.Context(), cluster)
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { clusters.informers.remove(cluster) })
		return clusters, remote, opened
	}

	t.Run("M99: the cache of a connection is created once, and ends when the connection is lost, also if no reconciliation notices that", func(t *testing.T) {
		g := NewWithT(t)
		clusters, remote, opened := connect(t)
		again, err := clusters.connection(t.Context(), cluster)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(again).To(BeIdenticalTo(opened))
		isLost := func() bool { return clusters.isLost(t.Context(), cluster, opened.config) }
		g.Expect(clusters.informers.endIf(cluster, opened, isLost)).To(BeFalse())
		remote.config = nil
		g.Expect(clusters.informers.endIf(cluster, opened, isLost)).To(BeTrue())
		g.Expect(opened.ctx.Err()).To(HaveOccurred())
		g.Expect(clusters.IsOpen(cluster)).To(BeFalse())
	})
	t.Run("M99: the cache of a lost connection does not end that of the next one", func(t *testing.T) {
		g := NewWithT(t)
		clusters, remote, opened := connect(t)
		remote.config = &rest.Config{Host: api.URL}
		next, err := clusters.connection(t.Context(), cluster)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(next).NotTo(BeIdenticalTo(opened))
		g.Expect(opened.ctx.Err()).To(HaveOccurred())
		g.Expect(clusters.informers.endIf(cluster, opened, func() bool { return clusters.isLost(t.Context(), cluster, opened.config) })).To(BeTrue())
		g.Expect(next.ctx.Err()).NotTo(HaveOccurred())
		g.Expect(clusters.IsOpen(cluster)).To(BeTrue())
	})
	t.Run("M99: another cache of the same connection gets all watches", func(t *testing.T) {
		g := NewWithT(t)
		clusters, remote, opened := connect(t)
		g.Expect(clusters.AddWatches(t.Context(), cluster, nil)).To(Succeed())
		g.Expect(opened.shared).NotTo(BeEmpty())
		g.Expect(clusters.AddWatches(t.Context(), cluster, nil)).To(Succeed())
		g.Expect(remote.watches).To(HaveLen(len(indexes) + 1))
		clusters.Disconnect(cluster)
		g.Expect(clusters.AddWatches(t.Context(), cluster, nil)).To(Succeed())
		present := clusters.informers.present(cluster)
		g.Expect(present).NotTo(BeIdenticalTo(opened))
		for _, kind := range installedKinds {
			g.Expect(present.informerOf(kind)).NotTo(BeNil())
		}
		g.Expect(present.onDemand).NotTo(BeNil())
	})
	t.Run("M99: watches that were added while the connection changed are added again", func(t *testing.T) {
		g := NewWithT(t)
		clusters, remote, opened := connect(t)
		remote.config = &rest.Config{Host: api.URL}
		g.Expect(clusters.confirm(t.Context(), cluster, opened)).To(MatchError(clustercache.ErrClusterNotConnected))
		g.Expect(clusters.AddWatches(t.Context(), cluster, nil)).To(Succeed())
		g.Expect(clusters.informers.present(cluster).config).To(BeIdenticalTo(remote.config))
	})
	t.Run("M99: a reconciliation that began before the workload cluster was connected again does not end the cache with the watches", func(t *testing.T) {
		g := NewWithT(t)
		clusters, remote, _ := connect(t)
		remote.config = &rest.Config{Host: api.URL}
		var watched *sharingCache
		remote.pauses = func() { // the goroutine gets no CPU
			remote.config = &rest.Config{Host: api.URL}
			g.Expect(clusters.AddWatches(t.Context(), cluster, nil)).To(Succeed())
			watched = clusters.informers.present(cluster)
		}
		used, err := clusters.connection(t.Context(), cluster)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(watched.ctx.Err()).NotTo(HaveOccurred(), "no event is delivered until the bundle is checked again, up to ten minutes later")
		g.Expect(used).To(BeIdenticalTo(watched))
		g.Expect(clusters.informers.present(cluster)).To(BeIdenticalTo(watched))
	})
	t.Run("M99: nor does it replace the watch of Pods", func(t *testing.T) {
		g := NewWithT(t)
		clusters, remote, _ := connect(t)
		_, err := clusters.Observe(t.Context(), cluster, "other", "one")
		g.Expect(err).NotTo(HaveOccurred())
		var watched Observation
		remote.ends = func() {
			remote.config = &rest.Config{Host: api.URL}
			watched, err = clusters.Observe(t.Context(), cluster, "other", "one")
			g.Expect(err).NotTo(HaveOccurred())
		}
		used, err := clusters.Observe(t.Context(), cluster, "late", "two")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(used).To(BeIdenticalTo(watched))
		g.Expect(clusters.Observes(cluster, "one")).To(BeTrue(), "the drain of the Node continues with the next event that is not one of its Pods")
	})
	t.Run("M99: the cache of a connection can be read at once, and what waits for its lists ends with it", func(t *testing.T) {
		g := NewWithT(t)
		clusters, _, opened := connect(t)
		err := opened.client.Get(t.Context(), types.NamespacedName{Name: "any"}, &v1alpha1.NodeMaintenance{})
		g.Expect(err).To(MatchError(ContainSubstring("failed waiting for")))
		waiting := make(chan context.Context, 1)
		opened.Cache = awaited{opened.Cache, waiting}
		g.Expect(Watch("watch", running(t.Context), &v1alpha1.NodeMaintenance{}, &handler.TypedEnqueueRequestForObject[*v1alpha1.NodeMaintenance]{}).Watch(opened)).
			To(Succeed())
		source := <-waiting
		g.Expect(source.Err()).NotTo(HaveOccurred())
		clusters.Disconnect(cluster)
		g.Eventually(source.Done()).WithTimeout(time.Minute).Should(BeClosed())
	})
}

// awaited is a cache that sends the context of each request for an informer.
type awaited struct {
	ctrlcache.Cache
	waiting chan context.Context
}

func (a awaited) GetInformer(ctx context.Context, object client.Object, options ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	a.waiting <- ctx
	return a.Cache.GetInformer(ctx, object, options...)
}

// running is a controller that runs until its context ends.
type running func() context.Context

func (r running) Watch(source source.TypedSource[reconcile.Request]) error {
	return source.Start(r(), nil)
}

func TestWatchOfALostConnection(t *testing.T) {
	t.Run("E37: a watch of Pods that a reconciliation starts after its Cluster was deleted ends, and one of a connection that lasts does not", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			remote := &connections{config: unanswered()}
			clusters := NewClusters(fakes.Client(), remote, fakes.Scheme(), Limits{}, clock.RealClock{})
			clusters.Forget(clusterA)
			_, err := clusters.Observe(t.Context(), clusterA, "late", "one") // the ClusterCache has not closed the connection yet
			g.Expect(err).NotTo(HaveOccurred())
			time.Sleep(time.Minute)
			synctest.Wait()
			g.Expect(clusters.CurrentObservation(clusterA)).NotTo(BeNil())
			var ended []Change
			clusters.Subscribe(func(change Change) { ended = append(ended, change) })
			remote.lost.Store(true)
			time.Sleep(time.Minute)
			synctest.Wait()
			g.Expect(clusters.CurrentObservation(clusterA)).To(BeNil(), "nothing else stops it")
			g.Expect(ended).To(ContainElement(Change{Cluster: clusterA, Type: WatchEnded}))
			time.Sleep(2 * budgetsKept)
		})
	})
}

func TestLastOwnerOfAWatch(t *testing.T) {
	t.Run("E37: subscribers are notified when a watch ends with its last owner, so that they drop what they keep for its Pods", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			clusters := NewClusters(fakes.Client(), &connections{config: unanswered()}, fakes.Scheme(), Limits{}, clock.RealClock{})
			for _, owner := range []string{"first", "last"} {
				_, err := clusters.Observe(t.Context(), clusterA, owner, "one")
				g.Expect(err).NotTo(HaveOccurred())
			}
			var ended []Change
			clusters.Subscribe(func(change Change) {
				g.Expect(clusters.CurrentObservation(clusterA)).To(BeNil())
				ended = append(ended, change)
			})
			clusters.Release(clusterA, "first")
			clusters.Release(clusterA, "another")
			g.Expect(ended).To(BeEmpty())
			clusters.Release(clusterA, "last")
			clusters.Release(clusterA, "last")
			g.Expect(ended).To(Equal([]Change{{Cluster: clusterA, Type: WatchEnded}}))
			time.Sleep(2 * budgetsKept)
		})
	})
}

package workload

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuators"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestWatchesRestartForAnObjectThatAppearsWhileTheyStop(t *testing.T) {
	g := NewWithT(t)
	d := &onDemand{cache: &sharingCache{ctx: t.Context()}}
	w := &demandedWatches{name: "nodes", synced: func() {}}
	w.isNeeded = func() bool {
		d.startInBackground(w) // as the handler of an object that appears now
		return false
	}
	d.start(w)
	g.Expect(w.running.Load()).NotTo(BeNil())
	g.Expect(d.stop(w)).To(BeTrue())
	g.Eventually(w.running.Load).WithTimeout(time.Minute).ShouldNot(BeNil(), "the handler of the object has started them again")
	w.isNeeded = func() bool { return true }
	g.Expect(d.stop(w)).To(BeFalse())
	g.Expect(w.running.Load()).NotTo(BeNil())
}

func TestEvacuationsThatStartWatches(t *testing.T) {
	for _, d := range evacuators.Table {
		e := &v1alpha1.Evacuation{Status: v1alpha1.EvacuationStatus{ActiveEvacuatorClass: ptr.To(d.Class)}}
		NewWithT(t).Expect(isSurging(e)).To(Equal(d.Class == v1alpha1.EvacuatorClassDeployment), d.Class)
	}
	NewWithT(t).Expect(isSurging(&v1alpha1.Evacuation{})).To(BeFalse())
}

func TestSearchForSurgesThatAProxyAnswers(t *testing.T) {
	t.Run("M109: a search for surges that a proxy answers with 404 fails, so that it is repeated", func(t *testing.T) {
		deployments := schema.GroupResource{Group: "apps", Resource: "deployments"}
		proxy := apierrors.NewGenericServerResponse(http.StatusNotFound, "list", deployments, "", "404 page not found", 0, true)
		live := fakes.Builder().WithInterceptorFuncs(interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return proxy
		}}).Build()
		deployment := &appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}}
		d := &onDemand{surges: demandedWatches{watchers: []clustercache.Watcher{watcher{object: deployment}}}}
		NewWithT(t).Expect(d.findUrgent(t.Context(), live)).To(MatchError(ContainSubstring("listing surging objects of kind Deployment")))
	})
}

// emptyCache is a cache of empty lists.
type emptyCache struct {
	ctrlcache.Cache
	informers map[string]ctrlcache.Informer
}

func newEmptyCache(ctx context.Context, kinds ...client.Object) *emptyCache {
	c := &emptyCache{informers: map[string]ctrlcache.Informer{}}
	for _, kind := range kinds {
		informer := toolscache.NewSharedIndexInformer(fcache.NewFakeControllerSource(), kind, 0, toolscache.Indexers{})
		go informer.RunWithContext(ctx)
		c.informers[fmt.Sprintf("%T", kind)] = informer
	}
	return c
}

func (c *emptyCache) GetInformer(_ context.Context, kind client.Object, _ ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	return c.informers[fmt.Sprintf("%T", kind)], nil
}

// slowly returns a watcher that adds its handler in the background, as a controller does, but not before the channel is closed.
func slowly(ctx context.Context, kind client.Object, add <-chan struct{}) clustercache.Watcher {
	return watcher{"slow", kind, func(cache ctrlcache.Cache) error {
		go func() {
			<-add
			if informer, err := cache.GetInformer(ctx, kind); err == nil {
				_, _ = informer.AddEventHandlerWithOptions(toolscache.ResourceEventHandlerFuncs{}, toolscache.HandlerOptions{})
			}
		}()
		return nil
	}}
}

// A change before a controller has added its handler causes no event. So only afterwards may everything be reconciled.
func TestWatchesHaveSyncedWhenAllHandlersWereAdded(t *testing.T) {
	g := NewWithT(t)
	cache := &sharingCache{Cache: newEmptyCache(t.Context(), &corev1.Node{}), ctx: t.Context(), shared: map[ctrlcache.Informer]*sharedInformer{}}
	d := &onDemand{cache: cache}
	synced, first, second := make(chan struct{}), make(chan struct{}), make(chan struct{})
	w := &demandedWatches{name: "nodes", synced: func() { close(synced) }, isNeeded: func() bool { return true }, watchers: []clustercache.Watcher{
		slowly(t.Context(), &corev1.Node{}, first), slowly(t.Context(), &corev1.Node{}, second),
	}}
	d.start(w)
	close(first)
	g.Eventually(func() bool { return w.haveSynced() && len(cache.informerOf(&corev1.Node{}).all()) == 1 }).WithTimeout(time.Minute).Should(BeTrue())
	g.Consistently(synced).WithTimeout(10 * handlersInterval).ShouldNot(BeClosed())
	close(second)
	g.Eventually(synced).WithTimeout(time.Minute).Should(BeClosed())
}

func TestObservesNodes(t *testing.T) {
	t.Run("R80: a read of Nodes takes the time of a request until all of them are observed", func(t *testing.T) {
		g := NewWithT(t)
		cache := &sharingCache{Cache: newEmptyCache(t.Context(), &corev1.Node{}), ctx: t.Context(), shared: map[ctrlcache.Informer]*sharedInformer{}}
		d, add := &onDemand{cache: cache}, make(chan struct{})
		d.nodes = demandedWatches{
			name: "nodes", synced: func() {}, isNeeded: func() bool { return true }, watchers: []clustercache.Watcher{slowly(t.Context(), &corev1.Node{}, add)},
		}
		observes := func() bool { return ObservesNodes(&onDemandClient{onDemand: d}) }
		g.Expect(ObservesNodes(&onDemandClient{})).To(BeFalse(), "without a connection")
		g.Expect(observes()).To(BeFalse())
		d.start(&d.nodes)
		close(add)
		g.Eventually(observes).WithTimeout(time.Minute).Should(BeTrue())
	})
}

func TestSubscribersLearnWhenAllHandlersOfAConnectionWereAdded(t *testing.T) {
	g := NewWithT(t)
	clusters := NewClusters(nil, nil, nil, Limits{}, clock.RealClock{})
	changes := make(chan Change, 10)
	clusters.Subscribe(func(change Change) { changes <- change })
	cluster := types.NamespacedName{Namespace: "default", Name: "c1"}
	cache := clusters.informers.cacheOf(cluster, newEmptyCache(t.Context(), installedKinds...))
	add := make(chan struct{})
	installed := []clustercache.Watcher{slowly(t.Context(), installedKinds[0], add), slowly(t.Context(), installedKinds[1], add)}
	for _, w := range append(installed, clusters.addOnDemand(cluster, installed, nil)) {
		g.Expect(w.Watch(cache)).To(Succeed())
	}
	g.Eventually(func() int { return len(cache.informerOf(installedKinds[1]).all()) }).WithTimeout(time.Minute).Should(Equal(1), "that starts watches on demand")
	g.Consistently(changes).WithTimeout(10 * handlersInterval).ShouldNot(Receive())
	close(add)
	g.Eventually(changes).WithTimeout(time.Minute).Should(Receive(Equal(Change{Cluster: cluster, Type: WatchesAdded})))
}

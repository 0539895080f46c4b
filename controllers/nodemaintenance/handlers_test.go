package nodemaintenance

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/orphan"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestHandlersReadNoNodesThatAreNotObserved(t *testing.T) {
	key := types.NamespacedName{Namespace: "fleet", Name: "c"}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(v1alpha1.GroupVersion.WithKind("NodeMaintenance"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	labels := map[string]string{"pool": "a"}
	m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	m.Spec.NodeSelector = v1alpha1.NodeSelector{NodeSelectorTerms: []v1alpha1.NodeSelectorTerm{{MatchExpressions: []v1alpha1.NodeSelectorRequirement{
		{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}},
	}}}}
	for name, handle := range map[string]func(context.Context, *workload.Clusters){
		"R80: an event of a NodeMaintenance": func(ctx context.Context, c *workload.Clusters) {
			(&Reconciler{Clusters: c}).itselfAndNeighbors(key)(ctx, m)
		},
		"R80: the deletion of a NodeMaintenance that selects Nodes by label": func(ctx context.Context, c *workload.Clusters) {
			(&Sweeper{Clusters: c, Maintenances: &machinemaintenance.Requester{}}).nodesOf(ctx, key, m)
		},
		"R80: an event of an Evacuation": func(ctx context.Context, c *workload.Clusters) {
			(&Reconciler{Clusters: c}).maintenancesOfNamed(ctx, key, "n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var reads atomic.Int32
			remote := fakes.Builder(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: labels}}).WithRESTMapper(mapper).
				WithIndex(&v1alpha1.NodeMaintenance{}, "byNode", func(client.Object) []string { return nil }).
				WithInterceptorFuncs(interceptor.Funcs{
					Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
						if _, is := object.(*corev1.Node); is {
							reads.Add(1)
						}
						return c.Get(ctx, key, object, options...)
					},
					List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
						if _, is := list.(*corev1.NodeList); is {
							reads.Add(1)
						}
						return c.List(ctx, list, options...)
					},
				}).Build()
			clusters := clustersWith(clustercache.NewFakeClusterCache(remote, key), key)
			c, err := clusters.Client(t.Context(), key)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(workload.ObservesNodes(c)).To(BeFalse())
			handle(t.Context(), clusters)
			g.Expect(reads.Load()).To(BeZero(), "requests to the workload cluster in a handler that all controllers share")
		})
	}
}

// starting is a controller that starts its sources at once, and waits until their handlers are added.
type starting struct {
	controller.TypedController[workload.Request]
	t     *testing.T
	queue workload.Queue
}

func (s starting) Watch(from source.TypedSource[workload.Request]) error {
	if err := from.Start(s.t.Context(), s.queue); err != nil {
		return err
	}
	return from.(source.TypedSyncingSource[workload.Request]).WaitForSync(s.t.Context())
}

// While the watch is interrupted, a user removes the finalizer of a NodeMaintenance, and creates another one of the same name for another
// Node. The informer delivers that as an update of one object.
func TestMaintenanceReplacedWhileTheWatchWasInterrupted(t *testing.T) {
	t.Run("R64: the Node of a NodeMaintenance that was replaced by one of the same name is cleaned up", func(t *testing.T) {
		g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
		of := func(uid types.UID, node string) *v1alpha1.NodeMaintenance {
			m := maintenanceOf("m", node)
			m.UID, m.Spec.Stage = uid, v1alpha1.StageCordon
			return m
		}
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[workload.Request]())
		r := &Sweeper{
			Clusters: clustersWith(nil, cluster), Maintenances: &machinemaintenance.Requester{}, controller: starting{t: t, queue: queue},
		}
		informers := &informertest.FakeInformers{Scheme: fakes.Scheme()}
		for _, watcher := range r.Watches(cluster) {
			if watcher.Name() == "sweeper-NodeMaintenances" {
				g.Expect(watcher.Watch(informers)).To(Succeed())
			}
		}
		informer, err := informers.FakeInformerFor(t.Context(), &v1alpha1.NodeMaintenance{})
		g.Expect(err).NotTo(HaveOccurred())
		cordoned := workload.Request{Cluster: cluster, Object: types.NamespacedName{Name: "former"}}
		next := func() any {
			if queue.Len() == 0 {
				return nil
			}
			request, _ := queue.Get()
			queue.Done(request)
			return request
		}
		informer.Update(of("1", "former"), of("2", "present"))
		g.Eventually(next).WithTimeout(time.Minute).Should(Equal(cordoned), "it stays cordoned until the next connection")
	})
}

// clusterctl move loses the nodeRef of a Machine, and Cluster API does not set that of a deleted one.
func TestNodeOfAMachineWithoutNodeRef(t *testing.T) {
	for name, tc := range map[string]struct {
		ofMachine, ofNode string
		awaited           bool
	}{
		"M55, M128: the Node of a deleted Machine without nodeRef stays cordoned when its NodeMaintenance vanishes": {"cloud://m", "cloud://m", true},
		"M55, M128: also if only the infrastructure machine has the provider ID":                                    {"", "cloud://m", true},
		"R64: that of no Machine is restored":                                                                       {"cloud://m", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
			machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
				Namespace: "fleet", Name: "m", Labels: map[string]string{clusterv1.ClusterNameLabel: "c"}, DeletionTimestamp: new(metav1.Now()),
				Finalizers: []string{"machine"}, Annotations: map[string]string{v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner},
			}}
			machine.Spec.ClusterName, machine.Spec.ProviderID = "c", tc.ofMachine
			management := fakes.Client(machine, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}})
			r := &Sweeper{Machines: management, Maintenances: &machinemaintenance.Requester{Client: management}, Clock: clock.RealClock{}}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", Annotations: map[string]string{v1alpha1.NodeOriginAnnotation: "schedulable"}}}
			node.Spec.ProviderID = tc.ofNode
			observed := orphan.Observation{Name: "one", Node: node}
			g.Expect(r.observeMachine(t.Context(), workload.Request{Cluster: cluster, Object: types.NamespacedName{Name: "one"}}, &observed)).To(Succeed())
			g.Expect(observed.IsAwaited()).To(Equal(tc.awaited))
			g.Expect(orphan.Find(observed).Record).NotTo(Equal(tc.awaited))
		})
	}
}

// The API server accepts an empty name in a nodeSelector, for example of a template whose variable is not set.
func TestEmptyNameOfANode(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "1"}}
	unnamed := maintenanceOf("unnamed", "one", "")
	reader := withMaintenances(node, unnamed)
	t.Run("R8, E76: no Node has the empty name, and the others are selected", func(t *testing.T) {
		g := NewWithT(t)
		nodes, err := selectedNodes(t.Context(), reader, unnamed)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(nodeNames(nodes)).To(ConsistOf("one"))
	})
	t.Run("R8, E76: a NodeMaintenance that names an empty Node ends no reconciliation of another one that shares a Node with it", func(t *testing.T) {
		g := NewWithT(t)
		machines := maintenanceOf("of-a-machine", "one")
		s := &scope{client: reader, maintenance: machines, before: machines.DeepCopy(), nodes: []*corev1.Node{node}, now: time.Now()}
		g.Expect(findNeighbors(t.Context(), s)).To(Succeed())
	})
}

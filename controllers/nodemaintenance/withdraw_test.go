package nodemaintenance

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/orphan"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestWithdrawalFromCreatedEvacuations(t *testing.T) {
	for name, tc := range map[string]struct{ delivered, wanted bool }{
		"E57: a NodeMaintenance that ends withdraws from an Evacuation that it has created": {delivered: true},
		"E57: not from that of a Pod which another NodeMaintenance targets":                 {delivered: true, wanted: true},
		"E57: it also withdraws from one that the watch has not delivered":                  {},
		"E57: not from such a one whose Pod another NodeMaintenance targets":                {wanted: true},
	} {
		t.Run(name, func(t *testing.T) {
			g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
			e := evacuation.New(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "pod"}}, nil, 0)
			e.UID, e.Annotations = "evacuation", map[string]string{v1alpha1.EvacuationNodeAnnotation: "one"}
			stored := fakes.Builder(e).WithIndex(e, "node", func(client.Object) []string { return []string{"one"} }).Build()
			lagging := interceptor.NewClient(stored, interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					if !tc.delivered {
						return nil
					}
					return c.List(ctx, list, options...)
				},
			})
			r := &Reconciler{Clusters: clustersWith(clustercache.NewFakeClusterCache(stored, cluster), cluster), Clock: clock.RealClock{}}
			s := &scope{request: workload.Request{Cluster: cluster, Object: types.NamespacedName{Name: "m"}}, client: lagging, now: time.Now()}
			r.created.recordCreated(s.request, e, s.now)
			others := sets.New[types.UID]()
			if tc.wanted {
				others.Insert("pod")
			}
			g.Expect(r.withdrawAll(t.Context(), s, []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "one"}}}, others)).To(Succeed())
			g.Expect(stored.Get(t.Context(), client.ObjectKeyFromObject(e), e)).To(Succeed())
			g.Expect(evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer)).To(Equal(tc.wanted))
			g.Expect(r.created.unobserved(s.request, "one")).To(BeEmpty())
		})
	}
}

// TestWithdrawalsWithoutAnswer: a webhook hangs for the Evacuations of the Namespace hangs.
func TestWithdrawalsWithoutAnswer(t *testing.T) {
	setup := func(failure error) (evacuations []*v1alpha1.Evacuation, stored client.WithWatch, requests *int) {
		var objects []client.Object
		for _, namespace := range []string{"hangs", "web"} {
			for _, name := range []string{"a", "b"} {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)}}
				e := evacuation.New(pod, nil, 0)
				e.UID, e.Annotations = types.UID("evacuation-"+namespace+name), map[string]string{v1alpha1.EvacuationNodeAnnotation: "one"}
				evacuations, objects = append(evacuations, e), append(objects, e)
			}
		}
		requests = new(int)
		return evacuations, fakes.Builder(objects...).WithIndex(&v1alpha1.Evacuation{}, "node", func(object client.Object) []string {
			return []string{object.GetAnnotations()[v1alpha1.EvacuationNodeAnnotation]}
		}).WithInterceptorFuncs(beforePatch(func(object client.Object) error {
			if object.GetNamespace() == "hangs" {
				*requests++
				return failure
			}
			return nil
		})).Build(), requests
	}
	unanswered, node := &url.Error{Op: "Patch", URL: "https://workload", Err: context.DeadlineExceeded}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
	requested := func(t *testing.T, stored client.Client) (namespaces []string) {
		t.Helper()
		left := &v1alpha1.EvacuationList{}
		NewWithT(t).Expect(stored.List(t.Context(), left)).To(Succeed())
		for i := range left.Items {
			if evacuation.HasInstigator(&left.Items[i], v1alpha1.NodeMaintenanceInstigatorFinalizer) {
				namespaces = append(namespaces, left.Items[i].Namespace)
			}
		}
		return namespaces
	}
	cluster := types.NamespacedName{Namespace: "fleet", Name: "c"}
	reconcilerAndScope := func(stored client.WithWatch) (*Reconciler, *scope) {
		return &Reconciler{Clusters: clustersWith(clustercache.NewFakeClusterCache(stored, cluster), cluster), Clock: clock.RealClock{}},
			&scope{request: workload.Request{Cluster: cluster, Object: types.NamespacedName{Name: "m"}}, client: stored, now: time.Now()}
	}
	t.Run("R94: a withdrawal that gets no answer delays only those in its Namespace, where no other request is sent", func(t *testing.T) {
		g := NewWithT(t)
		_, stored, requests := setup(unanswered)
		r, s := reconcilerAndScope(stored)
		for range 2 { // a Node that is selected, and one that is no longer selected, with the same Evacuations
			g.Expect(r.withdrawAll(t.Context(), s, []*corev1.Node{node}, nil)).To(Succeed())
		}
		g.Expect(*requests).To(Equal(1))
		g.Expect(requested(t, stored)).To(Equal([]string{"hangs", "hangs"}))
		g.Expect(s.refusals.message()).To(HavePrefix("Cannot withdraw from Evacuation hangs/"), "the NodeMaintenance keeps its finalizer")
	})
	failedCall, forbidden := apierrors.NewInternalError(errors.New("failed calling webhook")), apierrors.NewForbidden(corev1.Resource("any"), "a", nil)
	for name, tc := range map[string]struct {
		failure  error
		took     time.Duration
		requests int
	}{
		"R94: the same holds if the API server has waited for the timeout of the webhook": {failedCall, 5 * time.Second, 1},
		"R94: not if a webhook fails at once":                                             {failedCall, time.Second, 2},
		"R94: nor if one takes long to refuse a request":                                  {forbidden, 5 * time.Second, 2},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			evacuations, stored, requests := setup(tc.failure)
			r, s := reconcilerAndScope(stored)
			now := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
			r.Clock = now
			slow := interceptor.NewClient(stored, beforePatch(func(object client.Object) error {
				if object.GetNamespace() == "hangs" {
					now.SetTime(now.Now().Add(tc.took))
				}
				return nil
			}))
			s.client = slow
			g.Expect(r.withdrawAll(t.Context(), s, []*corev1.Node{node}, nil)).To(Succeed())
			g.Expect(*requests).To(Equal(tc.requests))
			g.Expect(requested(t, stored)).To(Equal([]string{"hangs", "hangs"}))
			g.Expect(s.refusals.message()).To(HavePrefix("Cannot withdraw from Evacuation hangs/"))
			g.Expect((&Sweeper{Clock: now}).sweep(t.Context(), slow, node, orphan.Orphans{Evacuations: evacuations})).NotTo(Succeed())
			g.Expect(*requests).To(Equal(2 * tc.requests))
		})
	}
	t.Run("R94: Namespaces that hang do not delay each other", func(t *testing.T) {
		g := NewWithT(t)
		_, stored, _ := setup(nil)
		r, s := reconcilerAndScope(stored)
		begun, both := atomic.Int32{}, make(chan struct{})
		s.client = interceptor.NewClient(stored, interceptor.Funcs{
			Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
				if begun.Add(1) == 2 {
					close(both)
				}
				select {
				case <-both:
				case <-time.After(30 * time.Second):
				}
				return unanswered
			},
		})
		g.Expect(r.withdrawAll(t.Context(), s, []*corev1.Node{node}, nil)).To(Succeed())
		g.Expect(both).To(BeClosed(), "the second request has begun before the first one has ended")
		g.Expect(begun.Load()).To(BeEquivalentTo(2))
		g.Expect(sets.List(s.hanging)).To(Equal([]string{"hangs", "web"}))
	})
	t.Run("R94: each attempt reports the same Evacuation, although caches list Evacuations and Nodes in any order", func(t *testing.T) {
		g := NewWithT(t)
		evacuations, stored, _ := setup(unanswered)
		for _, name := range []string{"c", "d"} {
			e := evacuations[0].DeepCopy()
			e.Name, e.UID, e.ResourceVersion = evacuations[0].Name+name, types.UID(name), ""
			e.Annotations[v1alpha1.EvacuationNodeAnnotation] = "two"
			g.Expect(stored.Create(t.Context(), e)).To(Succeed())
		}
		var says []string
		for _, reversed := range []bool{false, true} {
			r, s := reconcilerAndScope(stored)
			s.maintenance, s.nodes = maintenanceOf("m", "one", "two"), []*corev1.Node{node, {ObjectMeta: metav1.ObjectMeta{Name: "two"}}}
			s.client = interceptor.NewClient(stored, interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					err := c.List(ctx, list, options...)
					if reversed {
						slices.Reverse(list.(*v1alpha1.EvacuationList).Items)
					}
					return err
				},
			})
			if reversed {
				slices.Reverse(s.nodes)
			}
			_, err := r.withdraw(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			says = append(says, s.refusals.message())
		}
		g.Expect(says[1]).To(And(HavePrefix("Cannot withdraw from"), Equal(says[0])), "another one would be written at once, and cause another attempt")
	})
	t.Run("R94: without a connection, nothing is reported", func(t *testing.T) {
		g := NewWithT(t)
		_, stored, _ := setup(clustercache.ErrClusterNotConnected)
		r, s := reconcilerAndScope(stored)
		g.Expect(r.withdrawAll(t.Context(), s, []*corev1.Node{node}, nil)).To(MatchError(clustercache.ErrClusterNotConnected))
		g.Expect(s.refusals.message()).To(BeEmpty())
	})
	t.Run("M16: nor if the Cluster was paused meanwhile", func(t *testing.T) {
		g := NewWithT(t)
		_, stored, _ := setup(apierrors.NewConflict(corev1.Resource("evacuations"), "a", nil))
		r, s := reconcilerAndScope(stored)
		paused := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}}
		paused.Spec.Paused = new(true)
		remote := clustercache.NewFakeClusterCache(stored, cluster)
		r.Clusters = workload.NewClusters(fakes.Client(paused), remote, fakes.Scheme(), workload.Limits{}, clock.RealClock{})
		g.Expect(workload.IsPaused(r.withdrawAll(t.Context(), s, []*corev1.Node{node}, nil))).To(BeTrue())
		g.Expect(s.refusals.message()).To(BeEmpty())
	})
	for name, tc := range map[string]struct {
		failure  error
		requests int // of each attempt
	}{
		"R94: a withdrawal that gets no answer from an Evacuation that the watch has not delivered is repeated": {unanswered, 1},
		"R71: a refused withdrawal from an Evacuation that the watch has not delivered is repeated":             {forbidden, 2},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			evacuations, stored, requests := setup(tc.failure)
			r, s := reconcilerAndScope(stored)
			s.client = interceptor.NewClient(stored, interceptor.Funcs{
				List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return nil },
			})
			for _, e := range evacuations {
				r.created.recordCreated(s.request, e, s.now)
			}
			for attempt := 1; attempt <= 20; attempt++ { // the records have no order
				s.refusals, s.hanging = refusals{}, nil
				g.Expect(r.withdrawAll(t.Context(), s, []*corev1.Node{node}, nil)).To(Succeed())
				g.Expect(*requests).To(Equal(attempt * tc.requests))
				g.Expect(s.refusals.byWhat).To(HaveLen(tc.requests), "without a refusal, the NodeMaintenance would end")
				g.Expect(s.refusals.message()).To(HavePrefix("Cannot withdraw from Evacuation hangs/"+evacuations[0].Name+": "), "each attempt reports the same one")
				g.Expect(r.created.unobserved(s.request, "one")).To(HaveLen(2), "those in the other Namespace are done")
				g.Expect(requested(t, stored)).To(Equal([]string{"hangs", "hangs"}))
			}
		})
	}
	t.Run("R94: the same holds for what a NodeMaintenance that vanished has left behind, whose Node is restored before", func(t *testing.T) {
		g := NewWithT(t)
		evacuations, stored, requests := setup(unanswered)
		left := node.DeepCopy()
		left.UID, left.Annotations, left.Spec.Unschedulable = "1", map[string]string{v1alpha1.NodeOriginAnnotation: cordon.Schedulable}, true
		g.Expect(stored.Create(t.Context(), left)).To(Succeed())
		var patched []string
		recording := interceptor.NewClient(stored, beforePatch(func(object client.Object) error {
			patched = append(patched, object.GetName())
			return nil
		}))
		sweeper := &Sweeper{Clock: clock.RealClock{}}
		g.Expect(sweeper.sweep(t.Context(), recording, left, orphan.Orphans{Evacuations: evacuations, Record: true})).To(MatchError(unanswered))
		g.Expect(*requests).To(Equal(1))
		g.Expect(requested(t, stored)).To(Equal([]string{"hangs", "hangs"}))
		g.Expect(patched[0]).To(Equal("one"), "another NodeMaintenance may cordon the Node while a withdrawal hangs")
		g.Expect(stored.Get(t.Context(), client.ObjectKeyFromObject(left), left)).To(Succeed())
		g.Expect(left.Spec.Unschedulable).To(BeFalse())
	})
}

// TestChangesDuringAWithdrawal: during a withdrawal that takes long, or another request, the Node becomes that of another maintenance, or
// its Machine or Cluster changes.
func TestChangesDuringAWithdrawal(t *testing.T) {
	deleted := func(machine *clusterv1.Machine) {
		machine.DeletionTimestamp, machine.Finalizers = new(metav1.Now()), []string{clusterv1.MachineFinalizer}
	}
	for name, tc := range map[string]struct {
		created string                           // the name of another NodeMaintenance
		change  func(machine *clusterv1.Machine) // of the NodeMaintenance
		paused  bool                             // the Cluster
		waits   bool                             // the Machine was being deleted before, and waits for a turn
		fails   bool
		kept    bool
	}{
		"R94: a Node is restored after a withdrawal that took long":                                                    {},
		"R16, R94: not one that another NodeMaintenance cordons since the withdrawal began":                            {created: "another", kept: true},
		"R16, R94: nor one of a NodeMaintenance that was recreated since then":                                         {created: "m", kept: true},
		"M54, R94: not that of a Machine which is being deleted since the withdrawal began":                            {fails: true, kept: true, change: deleted},
		"M132, R94: but that of a deleted Machine which waits for a turn, and whose Node stays schedulable until then": {waits: true, change: deleted},
		"M16, R94: not that of a Machine which is paused since the withdrawal began": {fails: true, kept: true, change: func(machine *clusterv1.Machine) {
			machine.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
		}},
		"M16, R94: nor in a Cluster which is paused since then": {fails: true, kept: true, paused: true},
	} {
		t.Run(name, func(t *testing.T) {
			g, key := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "1", Annotations: map[string]string{v1alpha1.NodeOriginAnnotation: "schedulable"}}}
			node.Spec.Unschedulable = true
			cached := maintenanceOf("m", "one") // before it was completed
			cached.UID = "m"
			machine, cluster := &clusterv1.Machine{}, &clusterv1.Cluster{}
			machine.Namespace, machine.Name, cluster.Namespace, cluster.Name = "fleet", "m", key.Namespace, key.Name
			if tc.change != nil {
				tc.change(machine)
			}
			cluster.Spec.Paused = new(tc.paused)
			objects := []client.Object{node}
			if tc.created != "" {
				objects = append(objects, maintenanceOf(tc.created, "one"))
			}
			if tc.created != "m" {
				objects = append(objects, cached)
			}
			remote, management := withMaintenancesBuilder(objects...).Build(), fakes.Client(machine, cluster)
			r := &Reconciler{
				written:  expectations.New[*corev1.Node](t.Context(), workload.TrimNode),
				Machines: management, Clock: clock.RealClock{},
				Clusters: workload.NewClusters(management, clustercache.NewFakeClusterCache(remote, key), fakes.Scheme(), workload.Limits{}, clock.RealClock{}),
			}
			ended := withMaintenances() // the cache of a connection that was replaced
			s := &scope{
				request: workload.Request{Cluster: key, Object: types.NamespacedName{Name: "m"}}, maintenance: cached,
				client: interceptor.NewClient(remote, interceptor.Funcs{
					List: func(ctx context.Context, _ client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
						return ended.List(ctx, list, options...)
					},
				}),
				owner: &ownerMachine{key: client.ObjectKeyFromObject(machine), keepsCordon: tc.waits}, now: time.Now(),
			}
			err := r.uncordonNode(t.Context(), s, node, cordon.Restore)
			g.Expect(err != nil).To(Equal(tc.fails), "the next reconciliation leaves the Node as it is")
			g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(node), node)).To(Succeed())
			g.Expect(node.Spec.Unschedulable).To(Equal(tc.kept))
		})
	}
}

// A user deletes a NodeMaintenance whose Node is also that of a paused Machine. The withdrawal waits for the first list of the Pods there.
// If the watches restart before it has arrived, because the API server did not answer for a while, no event follows.
func TestWithdrawalBeforePodsAreObserved(t *testing.T) {
	t.Run("R12: a NodeMaintenance that ends waits for the list of Pods no longer than the watch that would deliver it runs", func(t *testing.T) {
		g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		t.Cleanup(server.Close)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "1"}}
		paused, ending := maintenanceOf("paused", "one"), maintenanceOf("ending", "one")
		ending.Spec.Stage, ending.DeletionTimestamp = v1alpha1.StageComplete, new(metav1.Now())
		ending.Finalizers = []string{v1alpha1.MaintenanceCompletionFinalizer}
		remote := withMaintenances(node, paused, ending)
		config := &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON}}
		r := &Reconciler{Clusters: clustersWith(connectedTo{clustercache.NewFakeClusterCache(remote, cluster), config}, cluster)}
		t.Cleanup(func() { r.Clusters.Disconnect(cluster) })
		request := workload.Request{Cluster: cluster, Object: client.ObjectKeyFromObject(ending)}
		s := &scope{
			request: request, client: remote, before: ending.DeepCopy(), maintenance: ending, now: time.Now(), nodes: []*corev1.Node{node},
			others: []v1alpha1.NodeMaintenance{*paused}, drainedBy: map[string][]*corev1.Node{"paused": {node}}, suspends: sets.New("paused"),
		}
		done, err := r.withdraw(t.Context(), s)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(done).To(BeFalse(), "it waits for the Pods of the Node")
		g.Expect(s.requeueAt).To(Equal(s.now.Add(unknownInterval)), "it would keep its finalizer, and its Node would stay cordoned")
	})
}

package nodemaintenance

import (
	"context"
	"net/url"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/draintimeout"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

// The client reads the Node as it was before all writes, as with a lagging watch.
func TestNodeIsCordonedOnceWhileTheWatchLags(t *testing.T) {
	g := NewWithT(t)
	server := fake.NewClientBuilder().WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "uid"}}).Build()
	before, writes := &corev1.Node{}, 0
	g.Expect(server.Get(t.Context(), types.NamespacedName{Name: "one"}, before)).To(Succeed())
	lagging := interceptor.NewClient(server, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
			before.DeepCopyInto(object.(*corev1.Node))
			return nil
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			writes++
			return c.Patch(ctx, object, patch, options...)
		},
	})
	r := &Reconciler{written: expectations.New[*corev1.Node](t.Context(), workload.TrimNode)}
	for range 3 {
		s := &scope{client: lagging, maintenance: &v1alpha1.NodeMaintenance{}, now: time.Now()}
		node, err := r.cordonNode(t.Context(), s, before.DeepCopy())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(node.Spec.Unschedulable).To(BeTrue())
	}
	g.Expect(writes).To(Equal(1))
}

func TestNodeOfWhichAProxySaysThatItDoesNotExist(t *testing.T) {
	for name, reads := range map[string]bool{
		"M109: is not cordoned by a write that a proxy has answered with 404": false,
		"M109: nor if a proxy has answered the read before it":                true,
	} {
		t.Run(name, func(t *testing.T) {
			g, node := NewWithT(t), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "uid"}}
			proxied := interceptor.NewClient(fake.NewClientBuilder().WithObjects(node).Build(), interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
					if reads {
						return notFoundByProxy(key.Name)
					}
					return c.Get(ctx, key, object, options...)
				},
				Patch: func(_ context.Context, _ client.WithWatch, object client.Object, _ client.Patch, _ ...client.PatchOption) error {
					return notFoundByProxy(object.GetName())
				},
			})
			r := &Reconciler{written: expectations.New[*corev1.Node](t.Context(), workload.TrimNode)}
			s := &scope{client: proxied, maintenance: &v1alpha1.NodeMaintenance{}, nodes: []*corev1.Node{node}, now: time.Now()}
			_, err := r.cordon(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(s.cordonErrors).To(HaveKey("one"), "Pods are evicted from a schedulable Node, which counts as cordoned")
		})
	}
}

func TestNodeWhoseCordonFails(t *testing.T) {
	for name, refusal := range map[string]error{
		"R97: a request to cordon a Node that gets no answer delays no other Node, and the status names the Node": &url.Error{
			Op: "Patch", URL: "https://workload", Err: context.DeadlineExceeded,
		},
		"R97: also if the API server was overloaded":                          apierrors.NewTooManyRequests("busy", 1),
		"R97: or timed out":                                                   apierrors.NewTimeoutError("busy", 1),
		"R97: or had a timeout elsewhere":                                     apierrors.NewServerTimeout(corev1.Resource("nodes"), "patch", 1),
		"R72, E64: the same holds if a webhook denies it as if it conflicted": fakes.DeniedWithConflict(),
	} {
		for _, stage := range []v1alpha1.NodeMaintenanceStage{v1alpha1.StageCordon, v1alpha1.StageDrain} {
			t.Run(name+" in stage "+string(stage), func(t *testing.T) {
				g, cluster, m, writes, fails := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}, maintenanceOf("m", "a", "b"), 0, true
				m.Spec.Stage = stage
				schedulable := func(name string) *corev1.Node {
					return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
				}
				server := withMaintenancesBuilder(m, schedulable("a"), schedulable("b")).WithStatusSubresource(m).
					WithInterceptorFuncs(beforePatch(func(object client.Object) error {
						if object.GetName() == "a" {
							if writes++; fails {
								return refusal
							}
						}
						return nil
					})).Build()
				r := reconcilerOf(t, server, cluster)
				cordoned := func() *metav1.Condition {
					g.Expect(r.reconcileOnce(t, server, cluster, m.Name)).To(Succeed(), "the steps after it follow")
					node := &corev1.Node{}
					g.Expect(server.Get(t.Context(), types.NamespacedName{Name: "b"}, node)).To(Succeed())
					g.Expect(node.Spec.Unschedulable).To(BeTrue())
					g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
					return meta.FindStatusCondition(m.Status.Conditions, v1alpha1.NodeMaintenanceCordoned)
				}
				failed := cordoned()
				g.Expect(failed).To(And(HaveField("Reason", v1alpha1.ReasonCordonFailed), HaveField("Message", HavePrefix("Node a cannot be cordoned: "))))
				g.Expect(writes).To(Equal(1), "the request is not repeated at once: the next one may take as long")
				fails = false
				g.Expect(cordoned().Status).To(Equal(metav1.ConditionTrue))
			})
		}
	}
}

// TestNodeThatCannotBeCordoned: another actor may have uncordoned it after the first Evacuations of its Pods were created.
func TestNodeThatCannotBeCordoned(t *testing.T) {
	const none, created, kept, withdrawn = "no Evacuation", "a new Evacuation", "an Evacuation", "a withdrawn Evacuation"
	for name, tc := range map[string]struct {
		cordoned, exists, skipped, atTimeout bool
		want                                 string
	}{
		"R72: no Evacuation is created for a Pod of a Node that cannot be cordoned":  {want: none},
		"R72: nor for its final eviction attempt":                                    {atTimeout: true, want: none},
		"R72: one is created when the Node is cordoned":                              {cordoned: true, want: created},
		"R72: an Evacuation that exists continues":                                   {exists: true, want: kept},
		"R72: it is withdrawn for the same reasons as that of a Pod on another Node": {exists: true, skipped: true, want: withdrawn},
	} {
		t.Run(name, func(t *testing.T) {
			g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "web", UID: "pod"}, Spec: corev1.PodSpec{NodeName: "one"}}
			e := evacuation.New(pod, nil, 0)
			e.UID = "evacuation"
			stored := fakes.Client()
			drained := drainedPod{Pod: planinput.Pod{Type: v1alpha1.PodTypeDefault}, object: pod}
			if tc.exists {
				g.Expect(stored.Create(t.Context(), e)).To(Succeed())
				drained.evacuation = e.DeepCopy()
			}
			r := &Reconciler{Clusters: clustersWith(clustercache.NewFakeClusterCache(stored, cluster), cluster), Clock: clock.RealClock{}}
			m, now := maintenanceOf("m", "one"), time.Now()
			s := &scope{
				request: workload.Request{Cluster: cluster, Object: types.NamespacedName{Name: "m"}}, client: stored, maintenance: m, before: m.DeepCopy(), now: now,
				nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "one"}}}, cordonErrors: map[string]error{},
			}
			if !tc.cordoned {
				s.cordonErrors["one"] = errors.New("change freeze")
			}
			s.drain = &drainState{pods: map[string][]drainedPod{"one": {drained}}, budgets: func() *budgets.Index { return budgets.NewIndex(nil, nil) }}
			if tc.atTimeout {
				s.drain.finalAttempts = map[types.UID]time.Time{pod.UID: now}
			}
			targets := sets.New(pod.UID)
			if tc.skipped {
				targets = nil
			}
			g.Expect(r.applyTargets(t.Context(), s, targets, nil)).To(Succeed())
			got, err := none, stored.Get(t.Context(), client.ObjectKeyFromObject(e), e)
			switch {
			case err != nil:
				g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
			case !evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer):
				got = withdrawn
			case tc.exists:
				got = kept
			default:
				got = created
			}
			g.Expect(got).To(Equal(tc.want))
		})
	}
	t.Run("R72: onTimeout Delete deletes no Pod of a Node that cannot be cordoned", func(t *testing.T) {
		g, cluster, now := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}, time.Now().Truncate(time.Second)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "web", UID: "pod"}, Spec: corev1.PodSpec{NodeName: "one"}}
		m := maintenanceOf("m", "one")
		m.Annotations = map[string]string{v1alpha1.OwnerMachineAnnotation: "fleet/m"}
		m.Spec.Evacuation.DrainTimeoutSeconds, m.Spec.Evacuation.OnTimeout = new(int32(60)), v1alpha1.OnTimeoutDelete
		m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(now.Add(-time.Hour))}}
		m.Status.DrainTimeout = draintimeout.Observe(m, now.Add(-time.Minute))
		stored := withMaintenances(pod, m)
		r := &Reconciler{
			Clusters: clustersWith(clustercache.NewFakeClusterCache(stored, cluster), cluster), Clock: clock.RealClock{},
			Maintenances: &machinemaintenance.Requester{},
		}
		for _, cordonError := range []error{errors.New("change freeze"), nil} {
			s := &scope{
				request: workload.Request{Cluster: cluster, Object: types.NamespacedName{Name: "m"}}, client: stored, maintenance: m, before: m.DeepCopy(), now: now,
				observation: &observedPods{},
				nodes:       []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "one"}}}, cordonErrors: map[string]error{"one": cordonError},
			}
			drained := drainedPod{Pod: planinput.Pod{Type: v1alpha1.PodTypeDefault}, object: pod, verdict: rules.Verdict{Behavior: v1alpha1.DrainBehaviorDrain}}
			s.drain = &drainState{pods: map[string][]drainedPod{"one": {drained}}, deleteErrors: map[types.UID]error{}}
			_, err := r.deleteRemainingPods(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			deleted := apierrors.IsNotFound(stored.Get(t.Context(), client.ObjectKeyFromObject(pod), &corev1.Pod{}))
			g.Expect(deleted).To(Equal(cordonError == nil))
		}
	})
}

func TestDrainThatEndsWhileACordonHangs(t *testing.T) {
	t.Run("R97: no Evacuation is requested for a NodeMaintenance that was completed while the request hung", func(t *testing.T) {
		g, cluster, m := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}, maintenanceOf("m", "a")
		server := withMaintenancesBuilder(m, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a"}}).WithStatusSubresource(m).
			WithInterceptorFuncs(interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
					if object.GetName() != "a" {
						return c.Patch(ctx, object, patch, options...)
					}
					g.Expect(c.Get(ctx, client.ObjectKeyFromObject(m), m)).To(Succeed())
					m.Spec.Stage = v1alpha1.StageComplete
					g.Expect(c.Update(ctx, m)).To(Succeed())
					return &url.Error{Op: "Patch", URL: "https://workload", Err: context.DeadlineExceeded}
				},
			}).Build()
		r := reconcilerOf(t, server, cluster)
		s := &scope{request: workload.Request{Cluster: cluster, Object: client.ObjectKeyFromObject(m)}, client: server, maintenance: m.DeepCopy(), now: time.Now()}
		var err error
		s.nodes, err = selectedNodes(t.Context(), server, m)
		g.Expect(err).NotTo(HaveOccurred())
		done, err := r.cordon(t.Context(), s)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(done).To(BeFalse(), "the next reconciliation decides")
		g.Expect(s.requeueAt).NotTo(BeZero())
	})
}

func TestActorThatMakesANodeSchedulable(t *testing.T) {
	t.Run("R14, M109: the 404 of a proxy does not mean that the managedFields of a Node name no actor", func(t *testing.T) {
		g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
		proxied := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
				return notFoundByProxy(key.Name)
			},
		})
		r := &Reconciler{Clusters: clustersWith(clustercache.NewFakeClusterCache(proxied, cluster), cluster)}
		_, err := r.uncordonedBy(t.Context(), &scope{request: workload.Request{Cluster: cluster}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
		g.Expect(err).To(HaveOccurred())
	})
}

func TestDeletedBeforeItsStageIsReported(t *testing.T) {
	test := func(t *testing.T, fails bool) {
		t.Helper()
		g, cluster, m := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}, maintenanceOf("m", "a", "b")
		m.Spec.Stage, m.Finalizers, m.DeletionTimestamp = v1alpha1.StageCordon, []string{v1alpha1.MaintenanceCompletionFinalizer}, new(metav1.Now())
		m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageIdle, StartTimestamp: metav1.NewTime(time.Unix(0, 0))}}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a"}, Spec: corev1.NodeSpec{Unschedulable: true}}
		cordoned := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b", UID: "b"}, Spec: corev1.NodeSpec{Unschedulable: true}}
		cordoned.Annotations = map[string]string{v1alpha1.NodeOriginAnnotation: cordon.Schedulable}
		server := withMaintenancesBuilder(m, node, cordoned).WithStatusSubresource(m).
			WithInterceptorFuncs(beforePatch(func(object client.Object) error {
				if object.GetName() == "b" && fails {
					return errors.New("connection refused")
				}
				return nil
			})).Build()
		r := reconcilerOf(t, server, cluster)
		if fails {
			g.Expect(r.reconcileOnce(t, server, cluster, m.Name)).NotTo(Succeed())
			fails = false
		}
		g.Expect(r.reconcileOnce(t, server, cluster, m.Name)).To(Succeed())
		g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(m), m)).NotTo(Succeed(), "it has ended")
		for _, of := range []*corev1.Node{node, cordoned} {
			g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(of), of)).To(Succeed())
		}
		g.Expect(node.Spec.Unschedulable).To(BeTrue())
		g.Expect(cordoned.Spec.Unschedulable).To(BeFalse())
	}
	t.Run("R93: a NodeMaintenance that is deleted just after it has left stage Idle does not uncordon a Node that a user has cordoned", func(t *testing.T) {
		test(t, false)
	})
	t.Run("R93: nor does it when the first attempt to restore the other Nodes fails", func(t *testing.T) { test(t, true) })
}

func TestDeletedInStageIdle(t *testing.T) {
	t.Run("R12: a NodeMaintenance in stage Idle that is the copy of another one, with its finalizer, is deleted, and its Node stays as it is",
		func(t *testing.T) {
			g, cluster, m := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}, maintenanceOf("m", "a")
			m.Spec.Stage, m.Finalizers, m.DeletionTimestamp = v1alpha1.StageIdle, []string{v1alpha1.MaintenanceCompletionFinalizer}, new(metav1.Now())
			m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageIdle, StartTimestamp: metav1.NewTime(time.Unix(0, 0))}}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a"}, Spec: corev1.NodeSpec{Unschedulable: true}} // by a user
			server := withMaintenancesBuilder(m, node).WithStatusSubresource(m).Build()
			g.Expect(reconcilerOf(t, server, cluster).reconcileOnce(t, server, cluster, m.Name)).To(Succeed())
			g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(m), m)).NotTo(Succeed())
			g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(node), node)).To(Succeed())
			g.Expect(node.Spec.Unschedulable).To(BeTrue())
		})
}

package nodemaintenance

import (
	"cmp"
	"context"
	"net/http"
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
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/orphan"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestRefusedEnd(t *testing.T) {
	node := func(name string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(name), Annotations: map[string]string{v1alpha1.NodeOriginAnnotation: "schedulable"},
		}}
		n.Spec.Unschedulable = true
		n.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.NodeMaintenanceInProgress, Status: corev1.ConditionTrue, Reason: v1alpha1.ReasonNodeMaintenance}}
		return n
	}
	e := evacuation.New(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "pod"}}, nil, 0)
	e.UID, e.Annotations = "evacuation", map[string]string{v1alpha1.EvacuationNodeAnnotation: "b"}
	forbids := func(name, subresource string) func(client.Object, string) bool {
		return func(object client.Object, of string) bool { return object.GetName() == name && of == subresource }
	}
	deletedMachine := &ownerMachine{keepsCordon: true} // with its Cluster
	for name, tc := range map[string]struct {
		stage       v1alpha1.NodeMaintenanceStage // Complete by default
		deleted     bool
		nodeDeleted bool
		owner       *ownerMachine
		refuses     func(object client.Object, subresource string) bool
		conflicts   bool // the API server answers with a conflict instead
		denied      bool // a webhook answers with the code of a conflict instead
		proxied     bool // a proxy before the API server answers with 404 instead
		hangs       bool // a webhook hangs for longer than the timeout of the client instead
		says        string
	}{
		"R71: names a Node that the API server refuses to restore, and restores the others": {
			deleted: true, refuses: forbids("b", ""), says: "Cannot restore Node b: ",
		},
		"R71, E64: names a Node that a webhook refuses to restore with the code of a conflict": {
			deleted: true, denied: true, refuses: forbids("b", ""), says: "Cannot restore Node b: ",
		},
		"R71: also in stage Complete": {refuses: forbids("b", ""), says: "Cannot restore Node b: "},
		"R71: names an Evacuation from which it cannot withdraw": {
			deleted: true, refuses: forbids(e.Name, ""), says: "Cannot withdraw from Evacuation ns/" + e.Name + ": ",
		},
		"R71: also if another actor changes its finalizers without pause": {
			conflicts: true, refuses: forbids(e.Name, ""), says: "Cannot withdraw from Evacuation ns/" + e.Name + ": ",
		},
		"R71: a Node does not count as deleted because a proxy answers with 404": {
			deleted: true, proxied: true, refuses: forbids("b", ""), says: "Cannot restore Node b: ",
		},
		"R71: nor does an Evacuation": {
			deleted: true, proxied: true, refuses: forbids(e.Name, ""), says: "Cannot withdraw from Evacuation ns/" + e.Name + ": ",
		},
		"R71: names a Node whose conditions cannot be changed": {refuses: forbids("b", "status"), says: "Cannot change the conditions of Node b: "},
		"R71: also when it is deleted": {
			deleted: true, refuses: forbids("b", "status"), says: "Cannot change the conditions of Node b: ",
		},
		"R71: also while it only cordons": {
			stage: v1alpha1.StageCordon, refuses: forbids("b", "status"), says: "Cannot change the conditions of Node b: ",
		},
		"R71: names a Node of which a proxy says that there is nothing": {proxied: true, refuses: forbids("b", ""), says: "Cannot restore Node b: "},
		"R71: also when it is deleted, and about the conditions": {
			deleted: true, proxied: true, refuses: forbids("b", "status"), says: "Cannot change the conditions of Node b: ",
		},
		"R71: names what is refused first, and how much more": {
			refuses: func(object client.Object, _ string) bool { return object.GetName() == "b" }, says: "Cannot change the conditions of Node b: ",
		},
		"R71: names an Evacuation on a Node that no longer exists": {
			nodeDeleted: true, refuses: forbids(e.Name, ""), says: "Cannot withdraw from Evacuation ns/" + e.Name + ": ",
		},
		"R71: names an Evacuation on a Node that is left to Cluster API": {
			owner: deletedMachine, refuses: forbids(e.Name, ""), says: "Cannot withdraw from Evacuation ns/" + e.Name + ": ",
		},
		"R71: also when the NodeMaintenance of such a Node is deleted": {
			owner: deletedMachine, deleted: true, refuses: forbids(e.Name, ""), says: "Cannot withdraw from Evacuation ns/" + e.Name + ": ",
		},
		"R71: names the conditions of a Node that is left to Cluster API": {
			owner: deletedMachine, deleted: true, refuses: forbids("b", "status"), says: "Cannot change the conditions of Node b: ",
		},
		"R71: names a Node whose restoration gets no answer, and restores the others": {
			deleted: true, hangs: true, refuses: forbids("b", ""), says: "Cannot restore Node b: ",
		},
		"R71: names a Node of which a change of the conditions gets no answer": {
			hangs: true, refuses: forbids("b", "status"), says: "Cannot change the conditions of Node b: ",
		},
		"R94: restores the Nodes although a withdrawal gets no answer, and names the Evacuation": {
			hangs: true, refuses: forbids(e.Name, ""), says: "Cannot withdraw from Evacuation ns/" + e.Name + ": ",
		},
		"R94: also when it is deleted": {
			deleted: true, hangs: true, refuses: forbids(e.Name, ""), says: "Cannot withdraw from Evacuation ns/" + e.Name + ": ",
		},
		"R94: also on a Node that no longer exists": {
			nodeDeleted: true, hangs: true, refuses: forbids(e.Name, ""), says: "Cannot withdraw from Evacuation ns/" + e.Name + ": ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
			m := &v1alpha1.NodeMaintenance{
				ObjectMeta: metav1.ObjectMeta{Name: "m", Finalizers: []string{v1alpha1.MaintenanceCompletionFinalizer}},
				Spec:       v1alpha1.NodeMaintenanceSpec{Stage: cmp.Or(tc.stage, v1alpha1.StageComplete), NodeSelector: v1alpha1.SelectNodes("a", "b")},
			}
			if tc.deleted {
				m.DeletionTimestamp = new(metav1.Now())
			}
			if tc.nodeDeleted {
				m.Annotations = map[string]string{v1alpha1.OwnerMachineAnnotation: "fleet/m", v1alpha1.OwnerClusterAnnotation: "fleet/c", v1alpha1.NodeUIDAnnotation: "b"}
			}
			refusing, reports, answers := true, 0, 0
			check := func(object client.Object, subresource string) error {
				if object.GetName() == m.Name && subresource != "" {
					reports++
				}
				if refusing && tc.refuses(object, subresource) {
					answers++ // as a webhook whose connection is reset, each time from another port
					switch {
					case tc.denied:
						return fakes.DeniedWithConflict()
					case tc.conflicts:
						return apierrors.NewConflict(corev1.Resource("any"), object.GetName(), errors.Errorf("request %d", answers))
					case tc.proxied:
						return apierrors.NewGenericServerResponse(http.StatusNotFound, "patch", corev1.Resource("any"), object.GetName(), "404 page not found", 0, true)
					case tc.hangs:
						return &url.Error{Op: "Patch", URL: "https://workload", Err: context.DeadlineExceeded}
					}
					return apierrors.NewForbidden(corev1.Resource("any"), object.GetName(), errors.Errorf("request %d", answers))
				}
				return nil
			}
			builder := fakes.Builder(m, e.DeepCopy()).WithStatusSubresource(m, node("a")).
				WithIndex(&v1alpha1.Evacuation{}, "node", func(object client.Object) []string {
					return []string{object.GetAnnotations()[v1alpha1.EvacuationNodeAnnotation]}
				}).
				WithIndex(m, "node", func(object client.Object) []string { return nodeselection.Keys(object.(*v1alpha1.NodeMaintenance)) }).
				WithInterceptorFuncs(interceptor.Funcs{
					Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
						if err := check(object, ""); err != nil {
							return err
						}
						return c.Patch(ctx, object, patch, options...)
					},
					SubResourcePatch: func(ctx context.Context, c client.Client, of string, object client.Object, patch client.Patch,
						options ...client.SubResourcePatchOption,
					) error {
						if err := check(object, of); err != nil {
							return err
						}
						return c.SubResource(of).Patch(ctx, object, patch, options...)
					},
				})
			if !tc.nodeDeleted {
				builder = builder.WithObjects(node("a"), node("b"))
			}
			server := builder.Build()
			r := &Reconciler{
				written:  expectations.New[*corev1.Node](t.Context(), workload.TrimNode),
				Clusters: clustersWith(clustercache.NewFakeClusterCache(server, cluster), cluster),
				Recorder: tracing.NewRecorder(t.Context(), nil),
				Clock:    clock.RealClock{},
			}
			reconcile := func() (ends bool) {
				s := &scope{
					request: workload.Request{Cluster: cluster, Object: client.ObjectKeyFromObject(m)}, client: server, before: &v1alpha1.NodeMaintenance{}, now: time.Now(),
					owner: tc.owner,
				}
				if err := server.Get(t.Context(), client.ObjectKeyFromObject(m), s.before); apierrors.IsNotFound(err) {
					return true
				}
				s.maintenance = s.before.DeepCopy()
				for _, name := range []string{"a", "b"} {
					found := &corev1.Node{}
					if !tc.nodeDeleted {
						g.Expect(server.Get(t.Context(), types.NamespacedName{Name: name}, found)).To(Succeed())
						s.nodes = append(s.nodes, found)
					}
				}
				for _, step := range r.steps(s) {
					done, err := step(t.Context(), s)
					g.Expect(err).NotTo(HaveOccurred())
					if !done {
						return false
					}
				}
				return true
			}
			stored := &v1alpha1.NodeMaintenance{}
			refused := func() *metav1.Condition {
				g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed(), "it keeps its finalizer")
				return meta.FindStatusCondition(stored.Status.Conditions, "RestoreFailed")
			}
			reconcile()
			g.Expect(refused()).NotTo(BeNil())
			g.Expect(refused().Message).To(HavePrefix(tc.says))
			if !tc.nodeDeleted && tc.owner == nil && tc.stage == "" {
				restored := &corev1.Node{}
				g.Expect(server.Get(t.Context(), types.NamespacedName{Name: "a"}, restored)).To(Succeed())
				g.Expect(restored.Spec.Unschedulable).To(BeFalse())
				g.Expect(restored.Status.Conditions).To(BeEmpty())
				g.Expect(stored.StageStart(v1alpha1.StageComplete)).NotTo(BeNil())
			}
			reports = 0
			g.Expect(reconcile()).To(BeFalse())
			g.Expect(refused().Message).To(HavePrefix(tc.says))
			g.Expect(reports).To(BeZero(), "there is one event")
			refusing = false
			for range 2 { // the first one may delete the NodeMaintenance
				reconcile()
			}
			err := server.Get(t.Context(), client.ObjectKeyFromObject(m), stored)
			isGone := tc.deleted || tc.nodeDeleted
			g.Expect(apierrors.IsNotFound(err)).To(Equal(isGone))
			if !isGone {
				g.Expect(refused()).To(BeNil())
			}
		})
	}
}

func TestErrorsThatAreNoRefusals(t *testing.T) {
	for name, err := range map[string]error{
		"R71: a conflict with a stale cache is not reported: the Node is read again": apierrors.NewConflict(corev1.Resource("nodes"), "one", nil),
		"R71: nor is a connection that is lost":                                      clustercache.ErrClusterNotConnected,
		"R71: nor that another step is needed":                                       errChangedMeanwhile,
	} {
		t.Run(name, func(t *testing.T) {
			g, s := NewWithT(t), &scope{}
			g.Expect(s.collect(t.Context(), "restore Node one", err)).To(MatchError(err))
			g.Expect(s.refusals.message()).To(BeEmpty())
		})
	}
}

func TestRefusalThatIsNotOver(t *testing.T) {
	t.Run("R92: RestoreFailed stays while a NodeMaintenance cannot be decoded: other Nodes are not uncordoned again", func(t *testing.T) {
		g, m := NewWithT(t), &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageComplete}}
		m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceRestoreFailed, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonRequestRefused}}
		s := &scope{client: fakes.Builder(m).WithStatusSubresource(m).Build(), before: m.DeepCopy(), uncordonsAgain: true}
		g.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(m), s.before)).To(Succeed())
		s.maintenance = s.before.DeepCopy()
		_, err := (&Reconciler{}).reportRefused(t.Context(), s)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
		g.Expect(meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.NodeMaintenanceRestoreFailed)).To(BeTrue())
	})
}

func TestRefusalThatIsOver(t *testing.T) {
	t.Run("R71: RestoreFailed is removed in stage Complete, also while the Node stays cordoned because its Machine is being deleted", func(t *testing.T) {
		g, m := NewWithT(t), &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageComplete}}
		m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceRestoreFailed, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonRequestRefused}}
		machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner}}}
		s := &scope{client: fakes.Builder(m).WithStatusSubresource(m).Build(), before: m, owner: &ownerMachine{machine: machine, keepsCordon: true}}
		g.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(m), s.before)).To(Succeed())
		s.maintenance = s.before.DeepCopy()
		management := fakes.Client()
		r := &Reconciler{}
		r.Clusters = workload.NewClusters(management, clustercache.NewFakeEmptyClusterCache(), management.Scheme(), workload.Limits{}, clock.RealClock{})
		for _, step := range r.steps(s) {
			_, err := step(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
		}
		g.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
		g.Expect(m.Status.Conditions).To(BeEmpty())
	})
}

func TestRefusedBackoff(t *testing.T) {
	g, since := NewWithT(t), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := &scope{before: &v1alpha1.NodeMaintenance{}, now: since}
	g.Expect(refusedBackoff(s)).To(Equal(5*time.Second), "R71")
	s.before.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.NodeMaintenanceRestoreFailed, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(since),
	}}
	for after, want := range map[time.Duration]time.Duration{
		-time.Hour: 5 * time.Second, time.Second: 5 * time.Second, 20 * time.Second: 20 * time.Second, time.Hour: time.Minute,
	} {
		s.now = since.Add(after)
		g.Expect(refusedBackoff(s)).To(Equal(want), "R71")
	}
}

// TestRefusedInstigator checks that the drain steps continue if an Evacuation that another instigator has created cannot be changed.
func TestRefusedInstigator(t *testing.T) {
	frozen := apierrors.NewForbidden(corev1.Resource("any"), "any", errors.New("change freeze"))
	for _, tc := range []struct {
		name     string
		targeted bool
		refusal  error
	}{
		{"M39: the request for an existing Evacuation is refused", true, frozen},
		{"M39, E64: a webhook denies it as if the Evacuation had changed", true, fakes.DeniedWithConflict()},
		{"R71: the withdrawal is refused", false, frozen},
		{"R71: the withdrawal gets no answer", false, &url.Error{Op: "Patch", URL: "https://workload", Err: context.DeadlineExceeded}},
		{"M39: another actor changes the Evacuation without pause", true, nil},
		{"R71: also at the withdrawal", false, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "web", UID: "pod"}, Spec: corev1.PodSpec{NodeName: "one"}}
			e := evacuation.New(pod, nil, 0)
			e.UID = "evacuation"
			if tc.targeted {
				e.Finalizers = []string{v1alpha1.InstigatorFinalizerPrefix + "example.com"}
			} else {
				evacuation.RequestByAnnotation(e)
			}
			stored := fakes.Client(e)
			observed := &v1alpha1.Evacuation{}
			g.Expect(stored.Get(t.Context(), client.ObjectKeyFromObject(e), observed)).To(Succeed())
			writes := 0
			server := interceptor.NewClient(stored, interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
					if tc.refusal != nil {
						writes++
						return tc.refusal
					}
					g.Expect(stored.Get(ctx, client.ObjectKeyFromObject(e), e)).To(Succeed())
					e.Status.Message += "progress" // between the event that the cache has and the patch
					g.Expect(stored.Update(ctx, e)).To(Succeed())
					return c.Patch(ctx, object, patch, options...)
				},
			})
			r := &Reconciler{
				Clusters: clustersWith(clustercache.NewFakeClusterCache(server, cluster), cluster),
				Clock:    clock.RealClock{},
			}
			m := &v1alpha1.NodeMaintenance{
				ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain, NodeSelector: v1alpha1.SelectNodes("one")},
			}
			targets := sets.New[types.UID]()
			if tc.targeted {
				targets.Insert("pod")
			}
			for range 2 { // the second one retries the request after its backoff
				s := &scope{
					request: workload.Request{Cluster: cluster, Object: types.NamespacedName{Name: "m"}}, client: server,
					maintenance: m, before: m.DeepCopy(), now: time.Now(), nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "one"}}},
				}
				s.drain = &drainState{
					pods:    map[string][]drainedPod{"one": {{Pod: planinput.Pod{Type: v1alpha1.PodTypeDefault}, object: pod, evacuation: observed}}},
					budgets: func() *budgets.Index { return nil },
				}
				g.Expect(r.applyTargets(t.Context(), s, targets, nil)).To(Succeed(), "the steps after it run")
				switch {
				case tc.refusal == nil:
					g.Expect(stored.Get(t.Context(), client.ObjectKeyFromObject(e), e)).To(Succeed())
					g.Expect(evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer)).To(Equal(tc.targeted))
					return
				case tc.targeted:
					g.Expect(s.drain.createErrors).To(HaveKey(pod.UID))
					g.Expect(s.requeueAt).NotTo(BeZero())
					g.Expect(writes).To(Equal(1))
				default:
					g.Expect(s.refusals.message()).To(HavePrefix("Cannot withdraw from Evacuation tenant/"))
				}
			}
		})
	}
}

func TestRefusedSweep(t *testing.T) {
	g := NewWithT(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "one", Annotations: map[string]string{v1alpha1.NodeOriginAnnotation: "schedulable"}}}
	node.Spec.Unschedulable = true
	e := evacuation.New(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "web", UID: "pod"}}, nil, 0)
	stored := fakes.Client(node)
	refusing := interceptor.NewClient(stored, beforePatch(func(object client.Object) error {
		if object.GetName() == e.Name {
			return apierrors.NewForbidden(corev1.Resource("any"), e.Name, errors.New("change freeze"))
		}
		return nil
	}))
	left := orphan.Orphans{Record: true, Evacuations: []*v1alpha1.Evacuation{e}}
	sweeper := &Sweeper{Clock: clock.RealClock{}}
	g.Expect(sweeper.sweep(t.Context(), refusing, node, left)).To(MatchError(ContainSubstring("change freeze")), "R64: it is repeated")
	g.Expect(stored.Get(t.Context(), client.ObjectKeyFromObject(node), node)).To(Succeed())
	g.Expect(node.Spec.Unschedulable).To(BeFalse(), "R43, R64: the Node is restored")
}

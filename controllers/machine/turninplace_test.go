package machine

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestBlindTurnBehindWithdrawnDrainInPlace(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) string { return now.Add(-d).Format(time.RFC3339) }
	for name, stage := range map[string]bool{
		"M93: grants a turn behind a Machine whose drain in place no policy selects any more":                   true,
		"M93: grants a turn behind a Machine whose policy requires no drain before an update in place any more": false,
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			x := &clusterv1.Machine{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "fleet", Name: "x", UID: "x", Labels: map[string]string{clusterv1.ClusterNameLabel: "c", "pool": "x"}, Annotations: map[string]string{
						v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner, v1alpha1.DrainRequestedAnnotation: ago(5*time.Hour) + "/x",
						v1alpha1.WaitingForTurnAnnotation: ago(5 * time.Hour),
					},
				},
				Spec: clusterv1.MachineSpec{ClusterName: "c", Deletion: clusterv1.MachineDeletionSpec{NodeDrainTimeoutSeconds: ptr.To[int32](60)}},
				Status: clusterv1.MachineStatus{
					NodeRef:    clusterv1.MachineNodeReference{Name: "nx"},
					Conditions: []metav1.Condition{{Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonWaitingForTurn}},
				},
			}
			if stage {
				x.Annotations[v1alpha1.MachineStageAnnotation] = "Drain"
			} else {
				x.Annotations[clusterv1.UpdateInProgressAnnotation] = ""
			}
			y := deletedWorkers(now, "y")[0]
			y.Labels["pool"] = "y"
			y.DeletionTimestamp = ptr.To(metav1.NewTime(now.Add(-4 * time.Hour)))
			y.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](60)
			y.Annotations[v1alpha1.WaitingForTurnAnnotation] = ago(4 * time.Hour)
			y.Annotations[v1alpha1.DrainBlockedAnnotation] = ago(3 * time.Hour) // the outage began 3 h ago
			policy := policyWithLimit(intstr.FromInt32(1))
			policy.Name, policy.Spec.MachineSelector = "y", &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"pool": "y"}}
			other := policy.DeepCopy() // that of x
			other.Name, other.Spec.MachineSelector.MatchLabels["pool"] = "x", "x"
			builder := managementCluster(x, y).WithObjects(policy)
			if !stage {
				builder.WithObjects(other)
			}
			management := builder.Build()
			r := newReconciler(t, management, disconnected{clustercache.NewFakeEmptyClusterCache(), clustercache.HealthCheckingState{
				LastProbeTime: now.Add(-time.Second), LastProbeSuccessTime: now.Add(-3 * time.Hour), ConsecutiveFailures: 300,
			}}, clocktesting.NewFakePassiveClock(now))
			infrastructureExists(r, x, y)
			for _, m := range []*clusterv1.Machine{x, y} {
				r.blocked.Store(client.ObjectKeyFromObject(m), block{since: now.Add(-3 * time.Hour)})
			}
			r.references.Set(clusterKey, "c/kubeconfig", referenced{}, time.Hour)
			for range 3 {
				for _, m := range []*clusterv1.Machine{x, y} {
					g.Expect(reconcileAt(t, r, m, now)).To(Succeed())
					g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
				}
			}
			g.Expect(y.Annotations).To(HaveKey(v1alpha1.DrainStartedAnnotation), "the turns cannot be observed for 180 drain timeouts")
		})
	}
}

func TestCopiedRequestGetsTurn(t *testing.T) {
	t.Run("M107: a Machine whose request for a drain in place another actor replaces each time gets a turn, and counts for others", func(t *testing.T) {
		g, start := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"}}
		machine := &clusterv1.Machine{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "fleet", Name: "m", UID: "m", Labels: map[string]string{clusterv1.ClusterNameLabel: "c"}, Annotations: map[string]string{
					v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner, v1alpha1.MachineStageAnnotation: "Drain",
					v1alpha1.DrainRequestedAnnotation: "2020-01-01T00:00:00Z/other", // from the template of its MachineSet
				},
			},
			Spec:   clusterv1.MachineSpec{ClusterName: "c"},
			Status: clusterv1.MachineStatus{NodeRef: clusterv1.MachineNodeReference{Name: "node"}},
		}
		policy := policyWithLimit(intstr.FromInt32(1))
		management := managementCluster(machine).WithObjects(policy).Build()
		r := &Reconciler{Clusters: &workload.Clusters{}, Client: management, Maintenances: &machinemaintenance.Requester{Client: management}}
		for _, each := range []struct {
			after time.Duration
			now   bool
		}{{0, false}, {2 * time.Second, true}} {
			s := &scope{machine: machine.DeepCopy(), cluster: provisionedCluster(), policy: policy, node: node, now: start.Add(each.after)}
			s.client = fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(node).Build()
			r.requestDrain(s)(s.machine)
			turn, err := r.turn(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(turn.Now()).To(Equal(each.now), "%+v", turn)
			machines, err := r.machinesIn(t.Context(), r.Client, s.nameOfCluster())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(machinedrain.RequestedDrains(machines)).To(HaveLen(1))
			g.Expect(r.nextInLine(t.Context(), machine)).To(HaveLen(1), "M80: it is reconciled when another drain ends")
		}
	})
}

func TestTurnOfWithdrawnDrain(t *testing.T) {
	t.Run("M145: the end of a drain in place wakes the next Machine, which no longer counts it", func(t *testing.T) {
		g, now := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
		x := deletedWorkers(now, "x")[0]
		x.DeletionTimestamp, x.Finalizers = nil, nil
		machinedrain.RequestDrain(now)(x)
		var management client.Client
		var r *Reconciler
		woken := false
		management = managementCluster(x).WithObjects(policyWithLimit(intstr.FromInt32(1))).WithInterceptorFuncs(interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
				before, after := &clusterv1.Machine{}, &clusterv1.Machine{}
				g.Expect(c.Get(ctx, client.ObjectKeyFromObject(x), before)).To(Succeed())
				g.Expect(c.Patch(ctx, object, patch, options...)).To(Succeed())
				g.Expect(c.Get(ctx, client.ObjectKeyFromObject(x), after)).To(Succeed())
				if (drainEnded{}).Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}) {
					woken = true
					machines, err := r.machinesIn(ctx, c, clusterKey)
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(machinedrain.RequestedDrains(machines)).To(BeEmpty())
				}
				return nil
			},
		}).Build()
		drain := machinedrain.Maintenance(machinedrain.Request{
			ManagementCluster: "here", Cluster: clusterKey, Machine: x, Node: nodeOf(x), For: v1alpha1.RequestedForStage,
		})
		r = newReconciler(t, management, connectedTo(workloadCluster(x).WithObjects(drain).Build(), now), clocktesting.NewFakePassiveClock(now))
		r.requestDrain(&scope{machine: x, now: now})
		g.Expect(reconcileAt(t, r, x, now)).To(Succeed())
		g.Expect(woken).To(BeTrue())
	})
}

func TestTurnOfCordonedNode(t *testing.T) {
	t.Run("M147: a Node that stays cordoned after its drain in place needs no turn, also while most Nodes are not ready", func(t *testing.T) {
		g, now := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
		x := deletedWorkers(now, "x")[0]
		x.DeletionTimestamp, x.Annotations[v1alpha1.MachineStageAnnotation] = nil, "Drain"
		machinedrain.RequestDrain(now)(x)
		x.Status.Conditions = []metav1.Condition{{Type: v1alpha1.MachineNodeMaintenance, Reason: v1alpha1.ReasonMachineDrained}}
		node := nodeOf(x)
		node.Spec.Unschedulable = true
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
		s := &scope{machine: x, policy: policyWithLimit(intstr.FromInt32(1)), client: workloadCluster().WithObjects(node).Build(), node: node, now: now}
		s.policySettles = now // a Machine that needs a turn waits for that
		turn, err := (&Reconciler{}).turn(t.Context(), s)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(turn).To(Equal(machinedrain.Turn{}))
		node.CreationTimestamp = metav1.NewTime(now.Add(time.Second))
		turn, err = (&Reconciler{}).turn(t.Context(), s)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(turn.Now()).To(BeFalse(), "it is another Node, which was not drained")
	})
}

// TestDrainAfterNodeWasReplaced replaces the Node of a Machine by another one with the same name after the drain in place of the Machine.
func TestDrainAfterNodeWasReplaced(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) string { return now.Add(-d).Format(time.RFC3339) }
	started := map[string]string{v1alpha1.DrainStartedAnnotation: ago(time.Hour)}
	detaches := map[string]string{v1alpha1.DrainStartedAnnotation: ago(time.Hour), v1alpha1.VolumeWaitStartedAnnotation: ago(50 * time.Minute)}
	ended := map[string]string{v1alpha1.DrainStartedAnnotation: ago(time.Hour), v1alpha1.DrainEndedAnnotation: ago(50 * time.Minute)}
	for _, tc := range []struct {
		reason  string // of the condition
		records map[string]string
	}{
		{v1alpha1.ReasonTimedOut, started},
		{v1alpha1.ReasonTimedOut, detaches},
		{v1alpha1.ReasonMachineDrained, ended},
		{v1alpha1.ReasonMachineCordoning, detaches}, // the Machine was reconciled while it had no Node
	} {
		for limit, drains := range []int{0: 2, 1: 1, 2: 2} { // 0: no limit
			for _, deleted := range []bool{false, true} {
				t.Run(fmt.Sprintf("M147: a Machine is drained again in a turn, reason %s, limit %d, deleted: %t", tc.reason, limit, deleted), func(t *testing.T) {
					g, machines, policy := NewWithT(t), deletedWorkers(now, "x", "drains"), policyWithLimit(intstr.FromInt(limit))
					if limit == 0 {
						policy.Spec.MaxParallelDrains = nil
					}
					x, node := machines[0], nodeOf(machines[0])
					machinedrain.RequestDrain(now.Add(-2 * time.Hour))(x)
					x.Annotations[v1alpha1.MachineStageAnnotation] = "Drain"
					x.Annotations[clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation] = ""
					maps.Copy(x.Annotations, tc.records)
					x.Status.Conditions = []metav1.Condition{{Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: tc.reason}}
					x.Spec.Deletion.NodeDrainTimeoutSeconds, x.DeletionTimestamp = ptr.To[int32](60), ptr.To(metav1.NewTime(now.Add(-10*time.Second)))
					if !deleted {
						x.DeletionTimestamp, x.Finalizers = nil, nil
					}
					node.CreationTimestamp = metav1.NewTime(now.Add(-time.Minute))
					management := managementCluster(machines...).WithObjects(policy).Build()
					remote := workloadCluster().WithObjects(node, nodeOf(machines[1]), drainOf(machines[1], now.Add(-time.Second))).Build()
					r := newReconciler(t, management, connectedTo(remote, now), clocktesting.NewFakePassiveClock(now))
					infrastructureExists(r, machines...)
					for range 3 {
						g.Expect(reconcileAt(t, r, x, now)).To(Succeed())
					}
					g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(x), x)).To(Succeed())
					g.Expect(machinedrain.HasHook(x)).To(BeTrue(), "the Node is not drained")
					g.Expect(conditions.GetReason(x, v1alpha1.MachineNodeMaintenance)).To(BeElementOf(v1alpha1.ReasonWaitingForTurn, v1alpha1.ReasonMachineDraining))
					draining, _ := drainingIn(t, remote)
					g.Expect(draining).To(HaveLen(drains))
				})
			}
		}
	}
}

func TestTurnAfterStageChange(t *testing.T) {
	for stage, want := range map[string]bool{"Cordon": true, "Drain": false} {
		t.Run("M127: the next Machine is woken when an older one no longer waits for a turn in place: stage "+stage, func(t *testing.T) {
			now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
			before := deletedWorkers(now, "x")[0]
			before.DeletionTimestamp, before.Annotations[v1alpha1.MachineStageAnnotation] = nil, "Drain"
			machinedrain.RequestDrain(now)(before)
			after := before.DeepCopy()
			after.Annotations[v1alpha1.MachineStageAnnotation] = stage
			NewWithT(t).Expect(drainEnded{}.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after})).To(Equal(want))
		})
	}
}

func TestRequestThatIsRefused(t *testing.T) {
	refused := apierrors.NewForbidden(clusterv1.GroupVersion.WithResource("machines").GroupResource(), "x", errors.New("a policy forbids it"))
	conflict := apierrors.NewConflict(clusterv1.GroupVersion.WithResource("machines").GroupResource(), "x", errors.New("it has changed"))
	for name, tc := range map[string]struct {
		answer error
		waits  int
	}{
		"M37: no Machine waits for a drain in place whose request is refused":             {refused, 0},
		"M107: a conflict does not cost a drain in place its place among those that wait": {conflict, 1},
	} {
		t.Run(name, func(t *testing.T) {
			g, now := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
			x := deletedWorkers(now, "x")[0]
			x.DeletionTimestamp, x.Finalizers = nil, nil
			x.Annotations[v1alpha1.MachineStageAnnotation] = "Drain"
			policy := policyForAll()
			management := managementCluster(x).WithObjects(policy).WithInterceptorFuncs(interceptor.Funcs{
				Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
					return tc.answer
				},
			}).Build()
			r := notConnected(t, management, clocktesting.NewFakePassiveClock(now))
			g.Expect(reconcileAt(t, r, x, now)).To(MatchError(tc.answer))
			machines, err := r.machinesIn(t.Context(), r.Client, clusterKey)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(machinedrain.RequestedDrains(machines)).To(HaveLen(tc.waits))
		})
	}
}

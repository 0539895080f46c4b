package machine

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expiring"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// TestResume resumes a drain that had begun an hour ago, whose hold has just ended. Each reconciliation has a stale cache of the workload
// cluster first.
func TestResume(t *testing.T) {
	g, now, key := NewWithT(t), time.Now().Truncate(time.Second), types.NamespacedName{Namespace: "fleet", Name: "c"}
	machine, node := deletedMachine(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"}}
	machine.DeletionTimestamp = new(metav1.NewTime(now.Add(-2 * time.Hour)))
	machine.Spec.Deletion.NodeDrainTimeoutSeconds = new(int32(60))
	machine.Annotations[v1alpha1.DrainHeldAnnotation] = now.Add(-30 * time.Minute).Format(time.RFC3339)
	began := machinedrain.Maintenance(machinedrain.Request{ManagementCluster: "here", Cluster: key, Machine: machine, Node: node})
	began.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(now.Add(-time.Hour))}}
	management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(machine, provisionedCluster()).Build()
	remote := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(node, began).Build()
	r := newReconciler(t, management, clustercache.NewFakeClusterCache(remote, key), clock.RealClock{})
	resume := func(turn machinedrain.Turn, cached client.Client) (*clusterv1.Machine, outcome, error) {
		stored := &clusterv1.Machine{}
		g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), stored)).To(Succeed())
		s := &scope{machine: stored, cluster: provisionedCluster(), client: cached, now: now}
		g.Expect(r.find(t.Context(), s)).To(Succeed())
		g.Expect(s.found.Maintenance).NotTo(BeNil(), "M115: the API server is asked whether a drain that was held had begun")
		s.observe(s.found.Maintenance)
		s.Turn, s.client = &turn, remote
		result, err := r.resume(t.Context(), s)
		g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), stored)).To(Succeed())
		return stored, result, err
	}
	maintenance := func() *v1alpha1.NodeMaintenance {
		stored := &v1alpha1.NodeMaintenance{}
		g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(began), stored)).To(Succeed())
		return stored
	}
	empty := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(node).Build()
	stale := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(node, began).Build()

	held, result, err := resume(machinedrain.Turn{Limit: 1, Draining: 1}, empty)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.reason).To(Equal(v1alpha1.ReasonWaitingForTurn), "M117")
	g.Expect(held.Annotations).To(And(HaveKey(v1alpha1.DrainHeldAnnotation), HaveKey(v1alpha1.WaitingForTurnAnnotation)))
	g.Expect(*maintenance().DrainStart()).To(BeTemporally("==", now.Add(-time.Hour)))

	for attempt := range 2 {
		held, _, err = resume(machinedrain.Turn{}, stale)
		g.Expect(apierrors.IsConflict(errors.Cause(err))).To(Equal(attempt > 0)) // the same write again
		g.Expect(*maintenance().DrainStart()).To(BeTemporally("==", now), "M115: the NodeMaintenance counts from now")
		g.Expect(machinedrain.IsSuspended(began, held, nil, "here")).To(BeTrue(), "M115: with the old start it is suspended")
		g.Expect(held.Annotations).To(HaveKeyWithValue(v1alpha1.DrainStartedAnnotation, now.UTC().Format(time.RFC3339)))
	}

	held, result, err = resume(machinedrain.Turn{}, remote)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.action).To(Equal(wait))
	g.Expect(machinedrain.IsSuspended(maintenance(), held, nil, "here")).To(BeFalse(), "M115: it continues when the cache has the new start")

	_, result, err = resume(machinedrain.Turn{}, remote)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.action).To(Equal(proceed))
}

// heldFleet returns a Reconciler of a Machine without a connection to its workload cluster. The Machine was deleted an hour ago and has a
// hook of another owner; its policy ignores the hook "ignored". writes counts how often its condition was written.
func heldFleet(t *testing.T, hook string) (r *Reconciler, management client.WithWatch, machine *clusterv1.Machine, writes *int) {
	t.Helper()
	now := time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC)
	machine = deletedMachine()
	machine.Labels = map[string]string{clusterv1.ClusterNameLabel: "c"}
	machine.DeletionTimestamp = new(metav1.NewTime(now.Add(-time.Hour)))
	machine.Spec.Deletion.NodeDrainTimeoutSeconds = new(int32(60))
	machine.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "TestMachine", Name: "m"}
	machine.Annotations[clusterv1.PreDrainDeleteHookAnnotationPrefix+"/"+hook] = "sre"
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c", UID: "c"}}
	policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "policy"}}
	policy.Spec.IgnoredPreDrainHooks = []string{"ignored"}
	writes = new(int)
	management = fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(cluster, policy, machine, controlPlaneMachine()).
		WithStatusSubresource(machine).WithInterceptorFuncs(interceptor.Funcs{
		SubResourceApply: func(ctx context.Context, c client.Client, subResource string, applied runtime.ApplyConfiguration,
			options ...client.SubResourceApplyOption,
		) error {
			*writes++
			return c.SubResource(subResource).Apply(ctx, applied, options...)
		},
	}).Build()
	clk := clocktesting.NewFakePassiveClock(now)
	r = newReconciler(t, management, disconnected{clustercache.NewFakeEmptyClusterCache(), clustercache.HealthCheckingState{}}, clk)
	infrastructureExists(r, machine)
	return r, management, machine, writes
}

func TestRecordOfHold(t *testing.T) {
	t.Run("M113: a hold is recorded before the infrastructure machine is read, which may take long or fail", func(t *testing.T) {
		g := NewWithT(t)
		r, management, machine, _ := heldFleet(t, "approval")
		r.references = expiring.NewMap[types.UID, referenced](t.Context())
		reads := 0
		r.APIReader = interceptor.NewClient(management, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
				reads++
				stored := &clusterv1.Machine{}
				g.Expect(c.Get(ctx, client.ObjectKeyFromObject(machine), stored)).To(Succeed())
				g.Expect(machinedrain.IsHeldByHooks(stored)).To(BeTrue())
				return context.DeadlineExceeded
			},
		})
		_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(machine)})
		g.Expect(err).To(HaveOccurred())
		g.Expect(reads).To(BeNumerically(">", 0))
	})
	t.Run("M114: the condition is written at most every five seconds, however often the owner writes the value of its hook", func(t *testing.T) {
		g := NewWithT(t)
		r, management, machine, writes := heldFleet(t, "approval")
		clk, key := r.Clock.(*clocktesting.FakePassiveClock), client.ObjectKeyFromObject(machine)
		for second := range 60 {
			g.Expect(management.Get(t.Context(), key, machine)).To(Succeed())
			machine.Annotations[clusterv1.PreDrainDeleteHookAnnotationPrefix+"/approval"] = fmt.Sprintf("sre, seen at %d", second)
			g.Expect(management.Update(t.Context(), machine)).To(Succeed())
			_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
			g.Expect(err).NotTo(HaveOccurred())
			clk.SetTime(clk.Now().Add(time.Second))
		}
		g.Expect(*writes).To(And(BeNumerically(">=", 2), BeNumerically("<=", 13)))
	})
	t.Run("M98, M114: while its policy cannot be decoded, the condition of a Machine names both the hook and the policy, and does not "+
		"say that no policy selects it", func(t *testing.T) {
		g := NewWithT(t)
		r, _, machine, _ := heldFleet(t, "ignored")
		r.Maintenances.Unread = unreadPolicy(t, "a-first")
		reconcileOnce(t, r, machine)
		message := conditions.GetMessage(machine, v1alpha1.MachineNodeMaintenance)
		g.Expect(conditions.GetReason(machine, v1alpha1.MachineNodeMaintenance)).To(Equal(v1alpha1.ReasonWaitingForPreDrainHook))
		g.Expect(message).To(And(ContainSubstring("ignored (owner sre)"), ContainSubstring("MachineDrainPolicy fleet/a-first"),
			Not(ContainSubstring(machinedrain.WithoutPolicy))))
	})
}

package machine

import (
	"cmp"
	"context"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
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
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

func TestReplacedRule(t *testing.T) {
	t.Run("M108: a MachineDrainRule that is deleted and created again within three seconds protects its Pods meanwhile", func(t *testing.T) {
		g, begin := NewWithT(t), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		protects := clusterv1.MachineDrainRule{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "protects"}}
		protects.Spec.Drain.Behavior = clusterv1.MachineDrainRuleDrainBehaviorSkip
		invalid := clusterv1.MachineDrainRule{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "invalid"}}
		invalid.Spec.Pods = []clusterv1.MachineDrainRulePodSelector{{Selector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: "Is"}},
		}}}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"}}
		compiled := func(all ...clusterv1.MachineDrainRule) []v1alpha1.DrainRule {
			return machinedrain.CompileRules(provisionedCluster(), deletedMachine(), v1alpha1.DaemonSetPodsSkip, all).Rules
		}
		protected, unprotected := compiled(protects), compiled()
		g.Expect(protected).NotTo(Equal(unprotected))
		var retries []time.Duration
		r := newReconciler(t, nil, clustercache.NewFakeEmptyClusterCache(), clocktesting.NewFakePassiveClock(begin))
		r.retryAfter = func(_ types.NamespacedName, after time.Duration) { retries = append(retries, after) }
		at := func(after time.Duration, existing ...client.Object) (drainRules []v1alpha1.DrainRule, isInvalid bool) {
			r.Clock.(*clocktesting.FakePassiveClock).SetTime(begin.Add(after))
			r.Maintenances.Client = fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(existing...).Build()
			r.APIReader = answering{fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(append(existing, provisionedCluster())...).Build()}
			s := &scope{machine: deletedMachine(), cluster: provisionedCluster(), policy: &v1alpha1.MachineDrainPolicy{}, node: node, now: begin.Add(after)}
			s.Turn = &machinedrain.Turn{}
			s.observe(&v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain, DrainRules: protected}})
			desired, problem, err := r.desired(t.Context(), s, v1alpha1.DaemonSetPodsSkip)
			g.Expect(err).NotTo(HaveOccurred())
			return desired.Spec.DrainRules, problem != nil
		}
		g.Expect(at(0)).To(Equal(protected))
		g.Expect(at(2 * time.Second)).To(Equal(protected))
		g.Expect(retries).To(Equal([]time.Duration{rules.GoneCounts, rules.GoneCounts - 2*time.Second}))
		g.Expect(at(2500*time.Millisecond, &protects)).To(Equal(protected))
		g.Expect(at(10*time.Second)).To(Equal(protected), "the rule was deleted again a moment ago")
		_, isInvalid := at(11*time.Second, &invalid)
		g.Expect(isInvalid).To(BeTrue())
		g.Expect(at(20*time.Second)).To(Equal(protected), "the time in which another rule was invalid does not count")
		g.Expect(at(23 * time.Second)).To(Equal(unprotected))
	})
}

func TestPolicyThatIsGone(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	policy := func() *v1alpha1.MachineDrainPolicy {
		all := policyForAll()
		all.Spec.Surge = v1alpha1.SurgeAlways
		return all
	}
	t.Run("M108: a drain follows a MachineDrainPolicy that is deleted and created again within three seconds", func(t *testing.T) {
		g, m := NewWithT(t), deletedWorkers(start, "a")[0]
		management, remote := managementCluster(m).WithObjects(policy()).Build(), workloadCluster(m).Build()
		r := newReconciler(t, management, connectedTo(remote, start), clocktesting.NewFakePassiveClock(start))
		infrastructureExists(r, m)
		t.Cleanup(func() { r.forget(client.ObjectKeyFromObject(m)) })
		at := func(after time.Duration) v1alpha1.SurgePolicy {
			g.Expect(reconcileAt(t, r, m, start.Add(after))).To(Succeed())
			drains, _ := drainingIn(t, remote)
			g.Expect(drains).To(HaveLen(1))
			return drains[0].Spec.Evacuation.Surge
		}
		g.Expect(at(0)).To(Equal(v1alpha1.SurgeAlways))
		g.Expect(management.Delete(t.Context(), policy())).To(Succeed())
		r.blocked.Store(client.ObjectKeyFromObject(m), block{since: start})
		g.Expect(at(time.Second)).To(Equal(v1alpha1.SurgeAlways))
		g.Expect(r.blockOf(m).since).To(Equal(start), "what blocks the drain may last")
		g.Expect(at(3 * time.Second)).To(Equal(v1alpha1.SurgeAlways))
		g.Expect(management.Create(t.Context(), policy())).To(Succeed())
		g.Expect(at(10 * time.Second)).To(Equal(v1alpha1.SurgeAlways))
		g.Expect(management.Delete(t.Context(), policy())).To(Succeed())
		g.Expect(at(11*time.Second)).To(Equal(v1alpha1.SurgeAlways), "the policy was deleted again a moment ago")
		g.Expect(at(14 * time.Second)).NotTo(Equal(v1alpha1.SurgeAlways))
	})
	t.Run("M108: the hooks that a policy ignores hold no drain for three seconds after it was deleted", func(t *testing.T) {
		g, m := NewWithT(t), deletedWorkers(start, "a")[0]
		m.Annotations[clusterv1.PreDrainDeleteHookAnnotationPrefix+"/other"] = "owner"
		ignoring := policy()
		ignoring.Spec.IgnoredPreDrainHooks = []string{"other"}
		management := managementCluster(m).WithObjects(ignoring).Build()
		r := newReconciler(t, management, connectedTo(workloadCluster(m).Build(), start), clocktesting.NewFakePassiveClock(start))
		infrastructureExists(r, m)
		t.Cleanup(func() { r.forget(client.ObjectKeyFromObject(m)) })
		stored := &clusterv1.Machine{}
		isHeld := func(after time.Duration) bool {
			g.Expect(reconcileAt(t, r, m, start.Add(after))).To(Succeed())
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
			g.Expect(machinedrain.HasHook(stored)).To(BeTrue())
			return machinedrain.WasHeldByHooks(stored)
		}
		held := []bool{isHeld(0)}
		g.Expect(management.Delete(t.Context(), ignoring)).To(Succeed())
		held = append(held, isHeld(time.Second), isHeld(3*time.Second), isHeld(4*time.Second), isHeld(5*time.Second), isHeld(time.Minute))
		g.Expect(held).To(Equal([]bool{false, false, false, true, true, true}))
		stored.Annotations[clusterv1.PreDrainDeleteHookAnnotationPrefix+"/later"] = "owner"
		g.Expect(management.Update(t.Context(), stored)).To(Succeed())
		g.Expect(isHeld(2 * time.Minute)).To(BeTrue())
		g.Expect(conditions.GetMessage(stored, v1alpha1.MachineNodeMaintenance)).To(ContainSubstring("later"), "the three seconds do not begin again")
	})
	t.Run("M126: a Machine that waits for a turn follows a policy without a limit after three seconds, also if no policy selected it before", func(t *testing.T) {
		g, machines, limited := NewWithT(t), deletedWorkers(start, "a", "b"), policyWithLimit(intstr.FromInt32(1))
		management, remote := managementCluster(machines...).WithObjects(limited).Build(), workloadCluster(machines...).Build()
		r := newReconciler(t, management, connectedTo(remote, start), clocktesting.NewFakePassiveClock(start))
		infrastructureExists(r, machines...)
		drainsAt := func(after time.Duration) int {
			for _, m := range machines {
				t.Cleanup(func() { r.forget(client.ObjectKeyFromObject(m)) })
				g.Expect(reconcileAt(t, r, m, start.Add(after))).To(Succeed())
			}
			drains, _ := drainingIn(t, remote)
			return len(drains)
		}
		drains := []int{drainsAt(0), drainsAt(time.Second)}
		g.Expect(management.Delete(t.Context(), limited)).To(Succeed())
		drains = append(drains, drainsAt(2*time.Second), drainsAt(10*time.Second))
		broad := policy()
		broad.Name = "broad"
		g.Expect(management.Create(t.Context(), broad)).To(Succeed())
		drains = append(drains, drainsAt(11*time.Second), drainsAt(13*time.Second), drainsAt(14*time.Second))
		g.Expect(drains).To(Equal([]int{1, 1, 1, 1, 1, 1, 2}), "the policy with the limit may be created a moment later")
	})
	t.Run("M17: a Machine keeps its hook for three seconds after its MachineDrainPolicy was deleted", func(t *testing.T) {
		g, m := NewWithT(t), deletedWorkers(start, "a")[0]
		m.DeletionTimestamp, m.Finalizers = nil, nil
		others := policy() // it selects other Machines of the Cluster
		others.Spec.MachineSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"pool": "other"}}
		management := managementCluster(m).WithObjects(others).Build()
		r := newReconciler(t, management, connectedTo(workloadCluster(m).Build(), start), clocktesting.NewFakePassiveClock(start))
		hasHook := func(after time.Duration) bool {
			g.Expect(reconcileAt(t, r, m, start.Add(after))).To(Succeed())
			stored := &clusterv1.Machine{}
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
			return machinedrain.HasHook(stored)
		}
		var retries []time.Duration
		r.retryAfter = func(_ types.NamespacedName, after time.Duration) { retries = append(retries, after) }
		g.Expect([]bool{hasHook(0), hasHook(time.Second), hasHook(3 * time.Second)}).To(Equal([]bool{true, true, false}))
		g.Expect(retries).To(Equal([]time.Duration{3 * time.Second, 2 * time.Second}))
	})
}

// databaseFixture has a Machine of policy p on whose Node the Pod db runs, and a NodeMaintenance whose status says that the Node is
// drained.
type databaseFixture struct {
	*Reconciler
	management, remote client.Client
	machine            *clusterv1.Machine
	maintenance        *v1alpha1.NodeMaintenance
	g                  *WithT
	t                  *testing.T
}

func newDatabaseFixture(t *testing.T, machine *clusterv1.Machine, policy v1alpha1.MachineDrainPolicySpec, request machinedrain.Request,
	onPatch interceptor.Funcs, rest ...client.Object,
) *databaseFixture {
	t.Helper()
	now, key := time.Now().Truncate(time.Second), types.NamespacedName{Namespace: "fleet", Name: "c"}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"}, Spec: corev1.NodeSpec{Unschedulable: true}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "db", UID: "db", Labels: map[string]string{"node": "node"}}, Spec: corev1.PodSpec{NodeName: "node"},
	}
	request.Cluster, request.Machine, request.Node, request.Policy = key, machine, node, &v1alpha1.MachineDrainPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "p"}, Spec: policy,
	}
	m := machinedrain.Maintenance(request)
	m.UID = "m"
	m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(now.Add(-30 * time.Second))}}
	m.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.NodeMaintenanceDrained, Status: metav1.ConditionTrue, Reason: "x", LastTransitionTime: metav1.NewTime(now.Add(-time.Second)),
	}}
	rest = append(rest, machine, request.Policy,
		&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "c"}},
		controlPlaneMachine())
	management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(rest...).WithStatusSubresource(machine).
		WithIndex(machine, "metadata.name", func(object client.Object) []string { return []string{object.GetName()} }).Build()
	remote := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(node, m, pod).WithStatusSubresource(m).WithInterceptorFuncs(onPatch).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(object client.Object) []string { return []string{object.GetLabels()["node"]} }).Build()
	r := newReconciler(t, management, connectedTo(remote, now), clock.RealClock{})
	infrastructureExists(r, machine)
	t.Cleanup(func() { r.forget(client.ObjectKeyFromObject(machine)) })
	return &databaseFixture{r, management, remote, machine, m, NewWithT(t), t}
}

// confirm makes this process find the Node to be drained, with the Pods that it has observed.
func (f *databaseFixture) confirm(observed ...types.UID) {
	present := &v1alpha1.NodeMaintenance{}
	f.g.Expect(f.remote.Get(f.t.Context(), client.ObjectKeyFromObject(f.maintenance), present)).To(Succeed())
	request := workload.Request{Cluster: types.NamespacedName{Namespace: "fleet", Name: "c"}, Object: client.ObjectKeyFromObject(present)}
	f.Clusters.ConfirmDrained(request, present, "node", false, sets.New(observed...))
}

// pass reconciles the Machine and returns it.
func (f *databaseFixture) pass() (*clusterv1.Machine, error) {
	key := client.ObjectKeyFromObject(f.machine)
	_, failure := f.Reconcile(f.t.Context(), reconcile.Request{NamespacedName: key})
	stored := &clusterv1.Machine{}
	f.g.Expect(f.management.Get(f.t.Context(), key, stored)).To(Succeed())
	return stored, failure
}

// deletedWithoutVolumes returns a deleted Machine that does not wait for volumes.
func deletedWithoutVolumes() *clusterv1.Machine {
	machine := deletedMachine()
	machine.DeletionTimestamp = new(metav1.NewTime(time.Now().Add(-time.Minute).Truncate(time.Second)))
	machine.Annotations[clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation] = ""
	return machine
}

// skipping returns the rules of a NodeMaintenance with one that skips all Pods.
func skipping(name string) []v1alpha1.DrainRule {
	all := []v1alpha1.DrainRulePodSelector{{Selector: &metav1.LabelSelector{}}}
	return append(rules.Compile(rules.Input{}).Rules, v1alpha1.DrainRule{Name: name, Behavior: v1alpha1.DrainBehaviorSkip, Pods: all})
}

// TestRuleThatNobodyHas reconciles a deleted Machine whose NodeMaintenance is drained because of a rule that no MachineDrainRule of this
// management cluster has. A user of the workload cluster has added it, a restored backup has, or the manager of the management cluster from
// which the Cluster was moved.
func TestRuleThatNobodyHas(t *testing.T) {
	for name, tc := range map[string]struct{ from, rule string }{
		"another name":                   {"here", "skip-all"},
		"a user of the workload cluster": {"here", rules.MachineDrainRulePrefix + "skip-all"},
		"clusterctl move":                {"there", rules.MachineDrainRulePrefix + "skip-all"},
	} {
		t.Run("M108: releases no Machine: "+name, func(t *testing.T) {
			request := machinedrain.Request{ManagementCluster: tc.from, Rules: skipping(tc.rule)}
			f := newDatabaseFixture(t, deletedWithoutVolumes(), v1alpha1.MachineDrainPolicySpec{}, request, interceptor.Funcs{})
			_, err := f.pass()
			f.g.Expect(err).NotTo(HaveOccurred())
			present := &v1alpha1.NodeMaintenance{}
			f.g.Expect(f.remote.Get(t.Context(), client.ObjectKeyFromObject(f.maintenance), present)).To(Succeed())
			if slices.ContainsFunc(present.Spec.DrainRules, func(rule v1alpha1.DrainRule) bool { return rule.Name == tc.rule }) {
				f.confirm("db")
			}
			stored, err := f.pass()
			f.g.Expect(err).NotTo(HaveOccurred())
			f.g.Expect(machinedrain.HasHook(stored)).To(BeTrue(), "no MachineDrainRule exists, the database runs, and the Machine is released as drained")
		})
	}
}

// TestWriteWithoutEffect edits a rule that has skipped a Pod. The NodeMaintenance does not have the edit, because the write has no effect.
func TestWriteWithoutEffect(t *testing.T) {
	for name, patch := range map[string]func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error{
		"the NodeMaintenance no longer exists": func(_ context.Context, _ client.WithWatch, object client.Object, _ client.Patch, _ ...client.PatchOption) error {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "nodemaintenances"}, object.GetName())
		},
		"a mutating webhook restores the rules": func(ctx context.Context, c client.WithWatch, object client.Object, _ client.Patch, _ ...client.PatchOption) error {
			return c.Get(ctx, client.ObjectKeyFromObject(object), object)
		},
	} {
		t.Run("M95: releases no Machine: "+name, func(t *testing.T) {
			rule := &clusterv1.MachineDrainRule{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "db"}}
			rule.Spec.Drain.Behavior = clusterv1.MachineDrainRuleDrainBehaviorDrain
			request := machinedrain.Request{ManagementCluster: "here", Rules: skipping(rules.MachineDrainRulePrefix + rule.Name)}
			f := newDatabaseFixture(t, deletedWithoutVolumes(), v1alpha1.MachineDrainPolicySpec{}, request, interceptor.Funcs{Patch: patch}, rule)
			f.confirm("db")
			stored, _ := f.pass()
			f.g.Expect(machinedrain.HasHook(stored)).To(BeTrue(), "the database must be drained, and the Machine is released as drained")
		})
	}
}

func TestAnnouncedPlan(t *testing.T) {
	t.Run("M125: a Machine whose maintenance was announced is drained with the drain plan that its policy has now", func(t *testing.T) {
		g, key, now, node := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}, time.Now(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"},
		}
		machine := deletedMachine()
		announced := machinedrain.Maintenance(machinedrain.Request{
			ManagementCluster: "here", Cluster: key, Machine: machine, Node: node, Stage: v1alpha1.StageIdle, For: v1alpha1.RequestedForRollout,
		})
		announced.Finalizers = nil
		policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "p"}}
		policy.Spec.DrainPlanDefaults = v1alpha1.DrainPlanDefaultsPriorityTiers
		management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(machine, provisionedCluster()).Build()
		remote := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(node, announced).Build()
		reachable := disconnected{clustercache.NewFakeClusterCache(remote, key), clustercache.HealthCheckingState{LastProbeTime: now, LastProbeSuccessTime: now}}
		r := newReconciler(t, management, reachable, clock.RealClock{})
		request := func() outcome {
			s := &scope{machine: machine, policy: policy, cluster: provisionedCluster(), now: now}
			result, err := r.requestMaintenance(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			return result
		}
		g.Expect(request().action).To(Equal(wait))
		g.Expect(request().action).To(Equal(proceed))
		stored := &v1alpha1.NodeMaintenance{}
		g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(announced), stored)).To(Succeed())
		g.Expect(stored.Spec.Stage).To(Equal(v1alpha1.StageDrain))
		g.Expect(stored.Spec.DrainPlanDefaults).To(Equal(v1alpha1.DrainPlanDefaultsPriorityTiers))
	})
}

// TestInvalidRule reconciles Machines whose drain has begun, while a MachineDrainRule that selects all Machines is invalid.
func TestInvalidRule(t *testing.T) {
	key, now := types.NamespacedName{Namespace: "fleet", Name: "c"}, time.Now().Truncate(time.Second)
	for _, tc := range []struct {
		name      string
		stage     v1alpha1.NodeMaintenanceStage // Drain by default
		drained   bool                          // according to the NodeMaintenance
		confirmed bool                          // by this process
		ended     bool                          // the Machine has recorded the end of the drain
		skips     bool                          // a MachineDrainRule
		gone      bool                          // this MachineDrainRule was deleted after the rules had become invalid
		invalid   string                        // the name of the invalid rule, "invalid" by default
		lifted    bool                          // the Pods of DaemonSets are drained
		inherited bool                          // the NodeMaintenance is of another management cluster and was not reconciled
		waits     bool
		edited    bool // the edits of the Machine have reached the NodeMaintenance
		complete  bool // the drain counts as complete
	}{
		{name: "M6: a Machine whose drain has not ended waits, and its other settings follow edits", waits: true, edited: true},
		{name: "M6: holds no Machine whose drain has ended", drained: true, confirmed: true, edited: true, complete: true},
		{
			name: "M6: waits if an invalid rule precedes one that skips Pods: it may require their drain", drained: true, confirmed: true, skips: true, invalid: "a",
			waits: true, edited: true,
		},
		{name: "M6: also if the end is recorded", drained: true, confirmed: true, ended: true, skips: true, invalid: "a", waits: true, edited: true},
		{name: "M6: does not wait for an invalid rule that cannot change what is skipped", drained: true, confirmed: true, skips: true, edited: true, complete: true},
		{name: "M6: waits if a rule that skips Pods was deleted", drained: true, confirmed: true, skips: true, gone: true, waits: true, edited: true},
		{name: "M6, M94: also if the end is recorded", drained: true, confirmed: true, ended: true, skips: true, gone: true, waits: true, edited: true},
		{
			name: "M6: does not wait after the Pods of DaemonSets were drained", drained: true, confirmed: true, skips: true, lifted: true, edited: true, complete: true,
		},
		{name: "M6, M94: the end of the drain is recorded", drained: true, confirmed: true, ended: true, edited: true, complete: true},
		{name: "M6, M95: a drain that this process has not confirmed is not complete", drained: true, edited: true},
		{name: "M89: a NodeMaintenance of another management cluster is not continued", inherited: true, waits: true},
		{name: "M6: a drain that has not begun waits", stage: v1alpha1.StageCordon, drained: true, confirmed: true, waits: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g, machine, node := NewWithT(t), deletedMachine(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"}}
			machine.DeletionTimestamp = new(metav1.NewTime(now.Add(-time.Hour)))
			if tc.ended {
				machine.Spec.Deletion.NodeDrainTimeoutSeconds = new(int32(7200))
				machine.Annotations[v1alpha1.DrainEndedAnnotation] = now.Add(-time.Minute).Format(time.RFC3339)
			}
			valid := &clusterv1.MachineDrainRule{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "db"}}
			valid.Spec.Drain.Behavior = clusterv1.MachineDrainRuleDrainBehaviorDrain
			if tc.skips {
				valid.Spec.Drain.Behavior = clusterv1.MachineDrainRuleDrainBehaviorSkip
			}
			kept := rules.Compile(rules.Input{DaemonSetPods: v1alpha1.DaemonSetPodsSkip}).Rules
			kept = append(kept, v1alpha1.DrainRule{Name: rules.MachineDrainRulePrefix + "db", Behavior: v1alpha1.DrainBehavior(valid.Spec.Drain.Behavior)})
			lifted := slices.DeleteFunc(slices.Clone(kept), func(rule v1alpha1.DrainRule) bool { return rule.Name == rules.RuleDaemonSetPods })
			if tc.lifted {
				kept = lifted
			}
			m := machinedrain.Maintenance(machinedrain.Request{ManagementCluster: "here", Cluster: key, Machine: machine, Node: node, Rules: kept, Stage: tc.stage})
			m.UID = "m"
			m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(now.Add(-time.Hour))}}
			if tc.inherited {
				m.Annotations[v1alpha1.OwnerManagementClusterAnnotation], m.Status.StageStatuses = "elsewhere", nil
			}
			if tc.drained {
				m.Status.Conditions = []metav1.Condition{{
					Type: v1alpha1.NodeMaintenanceDrained, Status: metav1.ConditionTrue, Reason: "x", LastTransitionTime: metav1.NewTime(now),
				}}
			}
			machine.Spec.Deletion.NodeVolumeDetachTimeoutSeconds = new(int32(300))
			policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "p"}}
			policy.Spec.UnhealthyBudget = v1alpha1.UnhealthyBudgetOverride // the edit
			invalid := &clusterv1.MachineDrainRule{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: cmp.Or(tc.invalid, "invalid")}}
			invalid.Spec.Pods = []clusterv1.MachineDrainRulePodSelector{{Selector: &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: "Is"}},
			}}}
			management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(machine, invalid).Build()
			if !tc.gone {
				g.Expect(management.Create(t.Context(), valid)).To(Succeed())
			}
			remote := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(node, m).WithStatusSubresource(m).Build()
			r := newReconciler(t, management, clustercache.NewFakeClusterCache(remote, key), clock.RealClock{})
			r.Maintenances.Continue(machine, now)
			s := &scope{
				machine: machine, policy: policy, cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}, client: remote,
				now: now,
			}
			s.Turn, s.node, s.found = &machinedrain.Turn{}, node, machinedrain.Found{Name: m.Name}
			stored := &v1alpha1.NodeMaintenance{}
			g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
			s.found.Maintenance = stored
			s.observe(stored)
			request := func() (result outcome) {
				desired, problem, err := r.desired(t.Context(), s, v1alpha1.DaemonSetPodsSkip)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(problem).NotTo(BeNil())
				result, err = r.keepRules(t.Context(), s, desired, problem)
				g.Expect(err).NotTo(HaveOccurred())
				return result
			}
			request() // the edit may change the NodeMaintenance
			if tc.confirmed {
				r.Clusters.ConfirmDrained(s.maintenanceRequest(), s.maintenance, node.Name, false, nil)
			}
			result := request()
			waits := result.action == wait
			g.Expect(waits).To(Equal(tc.waits))
			if tc.waits {
				g.Expect(result.reason).To(Equal(v1alpha1.ReasonInvalidDrainRule))
				if tc.ended {
					g.Expect(s.clock().DrainDeadline(machine)).To(HaveValue(Equal(now.Add(time.Hour+time.Minute))), "the minute since the drain has ended does not count")
				}
			} else {
				result, err := r.awaitDrained(t.Context(), s)
				g.Expect(err).NotTo(HaveOccurred())
				complete := result.action == proceed
				g.Expect(complete).To(Equal(tc.complete))
				g.Expect(s.drainOver).To(Equal(tc.complete))
			}
			g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
			edited := stored.Spec.Evacuation.UnhealthyBudget == v1alpha1.UnhealthyBudgetOverride
			g.Expect(edited).To(Equal(tc.edited))
			g.Expect(stored.Spec.DrainRules).To(Equal(kept))
			if !tc.complete || tc.lifted {
				return
			}
			policy.Spec.DaemonSetPods = v1alpha1.DaemonSetPodsDrain
			result, err := r.awaitDaemonSets(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.message).To(HavePrefix("Draining the Pods of DaemonSets"))
			g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
			g.Expect(stored.Spec.DrainRules).To(Equal(lifted))
		})
	}
}

package machine

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// TestDrainWhileItsPolicyIsReplaced: a tool deletes the policy of a Machine and creates it again, and another policy, which comes later by
// name, selects the Machine meanwhile.
func TestDrainWhileItsPolicyIsReplaced(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	named := func(name string) *v1alpha1.MachineDrainPolicy {
		return &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name}}
	}
	// begin returns a Reconciler of a Machine, and functions that reconcile it some time after the start, and delete or create its policy.
	begin := func(t *testing.T, m *clusterv1.Machine, own, other *v1alpha1.MachineDrainPolicy) (
		r *Reconciler, remote client.Client, at func(time.Duration) *clusterv1.Machine, remove, restore func(),
	) {
		t.Helper()
		g := NewWithT(t)
		management := managementCluster(m).WithObjects(own.DeepCopy(), other).Build()
		remote = workloadCluster(m).Build()
		r = newReconciler(t, management, connectedTo(remote, start), clocktesting.NewFakePassiveClock(start))
		infrastructureExists(r, m)
		t.Cleanup(func() { r.forget(client.ObjectKeyFromObject(m)) })
		at = func(after time.Duration) *clusterv1.Machine {
			g.Expect(reconcileAt(t, r, m, start.Add(after))).To(Succeed())
			stored := &clusterv1.Machine{}
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
			return stored
		}
		remove = func() { g.Expect(management.Delete(t.Context(), own.DeepCopy())).To(Succeed()) }
		restore = func() { g.Expect(management.Create(t.Context(), own.DeepCopy())).To(Succeed()) }
		return r, remote, at, remove, restore
	}
	onTimeout := func(t *testing.T, remote client.Client) v1alpha1.OnTimeoutPolicy {
		t.Helper()
		drains, _ := drainingIn(t, remote)
		NewWithT(t).Expect(drains).To(HaveLen(1))
		return drains[0].Spec.Evacuation.OnTimeout
	}
	deletes := named("zz-default")
	deletes.Spec.OnTimeout = v1alpha1.OnTimeoutDelete

	t.Run("M156: a drain in progress keeps its settings for three seconds, in which its policy may be replaced", func(t *testing.T) {
		g := NewWithT(t)
		_, remote, at, remove, restore := begin(t, deletedWorkers(start, "a")[0], named("own"), deletes.DeepCopy())
		at(0)
		g.Expect(onTimeout(t, remote)).To(Equal(v1alpha1.OnTimeoutRelease))
		for _, replaced := range []time.Duration{time.Minute, time.Hour} {
			remove()
			for _, after := range []time.Duration{0, time.Second, 2900 * time.Millisecond} {
				at(replaced + after)
				g.Expect(onTimeout(t, remote)).To(Equal(v1alpha1.OnTimeoutRelease), "%s after the deletion", after)
			}
			restore()
			at(replaced + 3*time.Second)
			g.Expect(onTimeout(t, remote)).To(Equal(v1alpha1.OnTimeoutRelease))
		}
		remove()
		at(2 * time.Hour)
		g.Expect(onTimeout(t, remote)).To(Equal(v1alpha1.OnTimeoutRelease))
		at(2*time.Hour + 3*time.Second)
		g.Expect(onTimeout(t, remote)).To(Equal(v1alpha1.OnTimeoutDelete), "the Machine follows the other policy then")
		restore()
		at(3 * time.Hour)
		g.Expect(onTimeout(t, remote)).To(Equal(v1alpha1.OnTimeoutDelete), "each other policy must stay for three seconds")
	})
	t.Run("M156: it keeps them until the API server confirms that its policy is gone, and the condition says why", func(t *testing.T) {
		g := NewWithT(t)
		r, remote, at, remove, _ := begin(t, deletedWorkers(start, "a")[0], named("own"), deletes.DeepCopy())
		at(0)
		live := r.APIReader
		remove()
		r.APIReader = apiServerOf(nil, provisionedCluster(), named("own")) // it was created again, and the watch lags
		var waits *clusterv1.Machine
		for _, after := range []time.Duration{time.Minute, 63 * time.Second, 80 * time.Second} {
			waits = at(after)
			g.Expect(onTimeout(t, remote)).To(Equal(v1alpha1.OnTimeoutRelease))
		}
		g.Expect(conditions.GetMessage(waits, v1alpha1.MachineNodeMaintenance)).To(ContainSubstring("have not delivered the latest changes"))
		r.APIReader = live
		at(90 * time.Second)
		g.Expect(onTimeout(t, remote)).To(Equal(v1alpha1.OnTimeoutDelete))
		r.APIReader = apiServerOf(func(string) error { return errors.New("it is not asked again") }, provisionedCluster(), nil)
		at(2 * time.Minute)
		g.Expect(onTimeout(t, remote)).To(Equal(v1alpha1.OnTimeoutDelete))
	})
	t.Run("M156: no drain begins under another policy than the Machine had a moment ago", func(t *testing.T) {
		g, m := NewWithT(t), deletedWorkers(start, "a")[0]
		running := m.DeepCopy()
		running.DeletionTimestamp = nil
		r, remote, at, remove, restore := begin(t, running, named("own"), deletes.DeepCopy())
		at(0)
		remove()
		g.Expect(r.Client.Delete(t.Context(), running.DeepCopy())).To(Succeed())
		at(time.Second)
		drains, _ := drainingIn(t, remote)
		g.Expect(drains).To(BeEmpty())
		restore()
		at(2 * time.Second)
		g.Expect(onTimeout(t, remote)).To(Equal(v1alpha1.OnTimeoutRelease))
	})
	t.Run("M156: no hold is recorded because of hooks that the policy ignores and the other one does not", func(t *testing.T) {
		g, m, ignores := NewWithT(t), deletedWorkers(start, "a")[0], named("own")
		ignores.Spec.IgnoredPreDrainHooks = []string{"theirs"}
		m.Annotations[clusterv1.PreDrainDeleteHookAnnotationPrefix+"/theirs"] = "other"
		_, remote, at, remove, restore := begin(t, m, ignores, named("zz-default"))
		at(0)
		remove()
		g.Expect(machinedrain.WasHeldByHooks(at(time.Minute))).To(BeFalse())
		restore()
		g.Expect(machinedrain.WasHeldByHooks(at(61 * time.Second))).To(BeFalse())
		remove()
		at(time.Hour)
		g.Expect(machinedrain.WasHeldByHooks(at(time.Hour+3*time.Second))).To(BeTrue(), "the other policy decides then")
		drains, _ := drainingIn(t, remote)
		g.Expect(drains).To(HaveLen(1))
	})
	t.Run("M156: no update in place that waits for its drain is allowed because another policy requires only a cordon for a moment", func(t *testing.T) {
		g, machines, own, cordons := NewWithT(t), deletedWorkers(start, "drains", "a"), policyWithLimit(intstr.FromInt32(1)), named("zz-default")
		own.Spec.InPlaceUpdates, cordons.Spec.InPlaceUpdates = v1alpha1.InPlaceUpdatesDrain, v1alpha1.InPlaceUpdatesCordon
		m := machines[1]
		m.DeletionTimestamp, m.Finalizers, m.Annotations[clusterv1.UpdateInProgressAnnotation] = nil, nil, ""
		r, remote, at, remove, restore := begin(t, m, own, cordons)
		drains := machines[0].DeepCopy()
		drains.DeletionTimestamp = nil
		g.Expect(r.Client.Create(t.Context(), drains)).To(Succeed())
		g.Expect(r.Client.Delete(t.Context(), drains)).To(Succeed())
		for _, object := range []client.Object{nodeOf(machines[0]), drainOf(machines[0], start)} {
			g.Expect(remote.Create(t.Context(), object)).To(Succeed())
		}
		g.Expect(conditions.GetReason(at(0), v1alpha1.MachineNodeMaintenance)).To(Equal(v1alpha1.ReasonWaitingForTurn))
		cordoned := drainOf(m, start)
		g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(cordoned), cordoned)).To(Succeed())
		cordoned.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceCordoned, Status: metav1.ConditionTrue}}
		g.Expect(remote.Update(t.Context(), cordoned)).To(Succeed())
		remove()
		g.Expect(machinedrain.UpdateAllowed(at(time.Minute))).To(BeFalse())
		g.Expect(machinedrain.UpdateAllowed(at(62 * time.Second))).To(BeFalse())
		restore()
		g.Expect(machinedrain.UpdateAllowed(at(62500 * time.Millisecond))).To(BeFalse())
		remove()
		at(2 * time.Minute)
		g.Expect(machinedrain.UpdateAllowed(at(2*time.Minute+3*time.Second))).To(BeTrue(), "the other policy decides then")
	})
}

// TestRunningMachineThatIsNotConfirmed: the API server cannot be asked whether the policy of a running Machine, or the label of its
// Cluster, is gone.
func TestRunningMachineThatIsNotConfirmed(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	failing := apiServerOf(func(string) error { return errors.New("etcdserver: request timed out") }, provisionedCluster(), nil)
	running := func() *clusterv1.Machine {
		m := deletedWorkers(start, "a")[0]
		m.DeletionTimestamp, m.Finalizers = nil, nil
		m.Labels[clusterv1.WatchLabel] = "ours"
		return m
	}
	for name, tc := range map[string]struct {
		stage, reported string
		present         *metav1.Condition
		unlabeled       bool // the Cluster has lost its label, instead of the Machine its policy
	}{
		"M157: the condition says why the drain of a running Machine stays as it is":                    {stage: "Drain", reported: v1alpha1.ReasonReconcileFailed},
		"M157: the condition says why the cordon of a running Machine stays as it is":                   {stage: "Cordon", reported: v1alpha1.ReasonReconcileFailed},
		"M157: the condition says why a Machine keeps its hook although its Cluster has lost the label": {unlabeled: true, reported: v1alpha1.ReasonReconcileFailed},
		"M157: a Machine without a maintenance gets no condition":                                       {},
		"M157: the condition of a maintenance that has reached its stage stays": {
			stage: "Drain", reported: v1alpha1.ReasonMachineDrained, present: &metav1.Condition{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonMachineDrained},
		},
		"M157: the condition of a drain that has timed out stays": {
			stage: "Drain", reported: v1alpha1.ReasonTimedOut, present: &metav1.Condition{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonTimedOut},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, m := NewWithT(t), running()
			if tc.stage != "" {
				m.Annotations[v1alpha1.MachineStageAnnotation] = tc.stage
			}
			if tc.present != nil {
				tc.present.Type = v1alpha1.MachineNodeMaintenance
				m.Status.Conditions = []metav1.Condition{*tc.present}
			}
			management := managementCluster(m).Build()
			r := newReconciler(t, management, connectedTo(workloadCluster(m).Build(), start), clocktesting.NewFakePassiveClock(start))
			t.Cleanup(func() { r.forget(client.ObjectKeyFromObject(m)) })
			if tc.unlabeled {
				r.Filter = "ours"
			}
			live := r.APIReader
			r.APIReader = failing
			at := func(after time.Duration) (stored *clusterv1.Machine, again time.Duration) {
				r.Clock.(*clocktesting.FakePassiveClock).SetTime(start.Add(after))
				result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)})
				g.Expect(err).NotTo(HaveOccurred())
				stored = &clusterv1.Machine{}
				g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
				return stored, result.RequeueAfter
			}
			at(0)
			_, soon := at(4 * time.Second)
			at(10 * time.Second)
			stored, later := at(15 * time.Second)
			g.Expect(machinedrain.HasHook(stored)).To(BeTrue())
			g.Expect(conditions.GetReason(stored, v1alpha1.MachineNodeMaintenance)).To(Equal(tc.reported))
			if tc.reported == v1alpha1.ReasonReconcileFailed {
				g.Expect(conditions.GetMessage(stored, v1alpha1.MachineNodeMaintenance)).To(ContainSubstring("etcdserver"))
				g.Expect([]time.Duration{soon, later}).To(Equal([]time.Duration{observeRetry, contactRetry}))
			}
			r.APIReader = live
			at(20 * time.Second)
			stored, _ = at(25 * time.Second)
			g.Expect(machinedrain.HasHook(stored)).To(BeFalse())
			g.Expect(conditions.GetReason(stored, v1alpha1.MachineNodeMaintenance)).NotTo(Equal(v1alpha1.ReasonReconcileFailed))
		})
	}
}

package machine

import (
	"cmp"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// TestTurnAfterReplacement releases the Machine a, and reconciles b, which waits for a turn.
func TestTurnAfterReplacement(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	const timeout = 10 * time.Minute
	record := func(pods v1alpha1.EvictedPods) *v1alpha1.RecentDrain {
		return &v1alpha1.RecentDrain{MachineUID: "a", Machine: "a", Cluster: "c", DrainOutcome: v1alpha1.DrainOutcome{
			EndTime: metav1.NewTime(now), ReadTime: ptr.To(metav1.NewTime(now)), Pods: pods,
			Applications: []v1alpha1.EvictedApplication{{Controller: "Deployment shop/web", Pods: pods}},
		}}
	}
	for _, test := range []struct {
		name          string
		next          v1alpha1.NextDrainPolicy
		removed       bool // Machine a is gone
		restarted     bool
		reason        string // of the release, Drained by default
		recent        *v1alpha1.RecentDrain
		waits, begins time.Duration // after the release
	}{
		{
			name: "M155: the next Machine waits before the status of the policy has the drain", next: v1alpha1.NextDrainWhenReplaced,
			waits: timeout - time.Second, begins: timeout,
		},
		{name: "M155: also if the drained one is gone", next: v1alpha1.NextDrainWhenReplaced, removed: true, waits: timeout - time.Second, begins: timeout},
		{name: "M155: also after a restart, while it is there", next: v1alpha1.NextDrainWhenReplaced, restarted: true, waits: timeout - time.Second, begins: timeout},
		{
			name: "M155: also if the drain has timed out", next: v1alpha1.NextDrainWhenReplaced, restarted: true, reason: v1alpha1.ReasonTimedOut,
			waits: timeout - time.Second, begins: timeout,
		},
		{
			name: "M155: after a restart, the status of the policy decides", next: v1alpha1.NextDrainWhenReplaced, restarted: true, removed: true,
			recent: record(v1alpha1.EvictedPods{Evicted: 1, Pending: 1}), waits: timeout - time.Second, begins: timeout,
		},
		{
			name: "M155: the next Machine begins when the Pods are replaced", next: v1alpha1.NextDrainWhenReplaced,
			recent: record(v1alpha1.EvictedPods{Evicted: 1, Ready: 1}), begins: 5 * time.Second,
		},
		{name: "M155: it begins at once with nextDrain Immediately", next: v1alpha1.NextDrainImmediately, begins: 5 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			g, machines, policy := NewWithT(t), deletedWorkers(now, "a", "b"), policyWithLimit(intstr.FromInt32(1))
			policy.Spec.NextDrain, policy.Spec.ReplacementTimeoutSeconds = test.next, ptr.To(int32(timeout.Seconds()))
			if test.recent != nil {
				policy.Status.RecentDrains = []v1alpha1.RecentDrain{*test.recent}
			}
			a, b := machines[0], machines[1]
			a.Finalizers = []string{clusterv1.MachineFinalizer}
			remote, management := workloadCluster(machines...).Build(), managementCluster(machines...).WithObjects(policy).Build()
			start := func() *Reconciler {
				r := newReconciler(t, management, connectedTo(remote, now), clocktesting.NewFakePassiveClock(now))
				infrastructureExists(r, machines...)
				return r
			}
			r := start()
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(a), a)).To(Succeed())
			conditions.Set(a, metav1.Condition{
				Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonMachineDraining,
				LastTransitionTime: metav1.NewTime(now.Add(-5 * time.Hour)),
			})
			g.Expect(management.Status().Update(t.Context(), a)).To(Succeed())
			reason := cmp.Or(test.reason, v1alpha1.ReasonMachineDrained)
			_, err := r.release(t.Context(), &scope{machine: a, policy: policy, node: nodeOf(a), now: now}, outcome{reason: reason})
			g.Expect(err).NotTo(HaveOccurred())
			if test.removed {
				g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(a), a)).To(Succeed())
				a.Finalizers = nil
				g.Expect(management.Update(t.Context(), a)).To(Succeed())
			}
			if test.restarted {
				r = start()
			}
			if test.waits > 0 {
				for _, at := range []time.Duration{0, test.waits} {
					g.Expect(reconcileAt(t, r, b, now.Add(at))).To(Succeed())
					draining, _ := drainingIn(t, remote)
					g.Expect(draining).To(BeEmpty(), "%s after the release", at)
				}
			}
			g.Expect(reconcileAt(t, r, b, now.Add(test.begins))).To(Succeed())
			draining, _ := drainingIn(t, remote)
			g.Expect(draining).To(HaveLen(1))
		})
	}
}

package integration

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// TestDeletedMachines tests what the drain of a deleted Machine waits for, and what ends the wait. The last scene deletes the Cluster.
func TestDeletedMachines(t *testing.T) {
	parallel(t, 320*time.Second)
	all := newScene(t, fleet.Options{PodReadyDelay: 200 * time.Millisecond, PodDeletionDelay: 500 * time.Millisecond})
	all.withMachines("m1", "m2", "m3", "m4", "m5", "late", "few", "returns", "spare", "holds", "waits")

	t.Run("M27: reports a PodDisruptionBudget that allows no disruption on Machine, NodeMaintenance and Evacuation; M7: applies a new rule to a drain in progress",
		func(t *testing.T) {
			s := all.sub(t)
			defer s.removeWorkloads()
			s.runOn("m1", "web", 3, deployment("web", 3), budget("web", 0))
			s.deleteMachine("m1")
			const why = "Waiting for PodDisruptionBudget default/web"
			s.Eventually(func(g Gomega) {
				g.Expect(s.condition("m1").Reason).To(Equal(v1alpha1.ReasonMachineDraining))
				g.Expect(s.condition("m1").Message).To(ContainSubstring(why))
				m := s.maintenanceOf("m1")
				g.Expect(m).NotTo(BeNil())
				g.Expect(m.Status.Summary.Blocking).To(ContainSubstring(why))
				g.Expect(m.Status.NodeStatuses).To(HaveLen(1))
				g.Expect(m.Status.NodeStatuses[0].DrainMessage).To(Equal("Evacuating"))
				g.Expect(m.Status.NodeStatuses[0].PodsEvacuating).To(BeEquivalentTo(3))
				g.Expect(s.node("m1").Spec.Unschedulable).To(BeTrue())
			}, soon, pace).Should(Succeed())
			s.Expect(s.evictions()).To(BeEmpty())
			staying := s.podsOf("web")
			s.create(s.fleet.Client, drainRule("skip-web", "web", clusterv1.MachineDrainRuleDrainBehaviorSkip, nil))
			s.expectGone("m1")
			s.expectInvariants(staying...)
			s.Expect(s.evictions()).To(BeEmpty())
		})

	t.Run("M13: releases the Machine at the drain timeout, also if the timeout is set during the drain", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		s.runOn("m2", "web", 2, deployment("web", 2), budget("web", 0))
		s.deleteMachine("m2")
		s.Eventually(func() string { return s.condition("m2").Message }, soon, pace).Should(ContainSubstring("Waiting for PodDisruptionBudget"))
		s.change("m2", func(machine *clusterv1.Machine) { machine.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](1) })
		s.expectGoneWithPods("m2")
		s.Expect(s.evictions()).To(BeEmpty())
		s.expectInvariants()
	})

	t.Run("M8: does not wait for finished Pods", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		s.create(s.workload.Client, bare("finished", "m3", func(pod *corev1.Pod) {
			pod.Spec.RestartPolicy = corev1.RestartPolicyNever
			pod.Annotations[controlplane.PodCompleteAfterAnnotation] = "10ms"
		}))
		s.Eventually(func() corev1.PodPhase { return s.pod("finished").Status.Phase }, soon, pace).Should(Equal(corev1.PodSucceeded))
		s.deleteMachine("m3")
		s.expectGone("m3")
		s.Expect(s.evictions()).To(BeEmpty())
	})

	t.Run("M17: recreates a NodeMaintenance that a user deletes during the drain, also while a finalizer keeps it, and does not uncordon the Node",
		func(t *testing.T) {
			s := all.sub(t)
			defer s.removeWorkloads()
			s.runOn("m4", "web", 2, deployment("web", 2), budget("web", 0))
			s.deleteMachine("m4")
			s.Eventually(func() string { return s.condition("m4").Message }, soon, pace).Should(ContainSubstring("Waiting for PodDisruptionBudget"))
			before := s.maintenanceOf("m4")
			kept := before.DeepCopy()
			kept.Finalizers = append(kept.Finalizers, "example.com/audit")
			s.Expect(s.workload.Client.Patch(s.Context(), kept, client.MergeFrom(before))).To(Succeed())
			s.Expect(s.workload.Client.Delete(s.Context(), before)).To(Succeed())
			s.Eventually(func(g Gomega) {
				now := s.maintenanceOf("m4")
				g.Expect(now).NotTo(BeNil())
				g.Expect(now.UID).NotTo(Equal(before.UID))
			}, soon, pace).Should(Succeed())
			s.Expect(s.workload.Client.Patch(s.Context(), kept, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
			s.Expect(s.workload.Client.DeleteAllOf(s.Context(), budget("web", 0), client.InNamespace(namespace))).To(Succeed())
			s.expectGone("m4")
			s.expectInvariants()
			s.Expect(s.audited().Writes().Resource("nodes").Named("", "m4").Where(setsSchedulable)).To(BeEmpty())
		})

	t.Run("M35: evicts a critical Pod while Pods with lower priority wait for their PodDisruptionBudget", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		s.runOn("m5", "web", 1, deployment("web", 1), budget("web", 0))
		s.run(bare("critical", "m5", func(pod *corev1.Pod) { pod.Spec.PriorityClassName = "system-node-critical" }))
		s.deleteMachine("m5")
		s.Eventually(func() []string { return s.evictions().Succeeded().Names() }, soon, pace).Should(ConsistOf("critical"))
		s.Eventually(func() string { return s.condition("m5").Message }, soon, pace).Should(ContainSubstring("Waiting for PodDisruptionBudget"))
		s.Expect(s.workload.Client.DeleteAllOf(s.Context(), budget("web", 0), client.InNamespace(namespace))).To(Succeed())
		s.expectGone("m5")
		s.expectInvariants()
	})

	t.Run("E80: surges for a Pod that waits for its eviction when the policy is edited", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		s.runOn("late", "web", 1, deployment("web", 1), budgetRequiring("web", 1))
		waiting := s.podsOf("web")[0]
		s.deleteMachine("late")
		s.Eventually(func() string { return s.condition("late").Message }, soon, pace).Should(ContainSubstring("Waiting for PodDisruptionBudget"))
		s.Eventually(func() bool { return s.existing(&waiting).Status.ActiveEvacuatorCompleted }, soon, pace).Should(BeTrue(), "its eviction waits")
		s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.Surge = v1alpha1.SurgeIfSingleReplica })
		defer s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.Surge = v1alpha1.SurgeNever })
		s.expectReplicas("web", 2)
		s.expectGone("late")
		s.expectScaledBack("web", 1)
		s.Expect(s.evictions()).To(BeEmpty())
	})

	t.Run("E67: ends a surge at once when a quota allows no other Pod", func(t *testing.T) { all.sub(t).quotaEndsSurge("few") })

	t.Run("E90: names the Machine whose drain has used the disruptions of a PodDisruptionBudget", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		s.runOn("holds", "web", 2, deployment("web", 2, onlyOn("holds"))) // their replacements cannot be scheduled
		s.runOn("waits", "api", 1, deployment("api", 1))
		shared := budget("shared", 1)
		shared.Spec.Selector.MatchLabels = nil
		s.create(s.workload.Client, shared)
		s.expectHealthy("shared", 3)
		s.deleteMachine("holds")
		s.Eventually(func() string { return s.condition("holds").Message }, soon, pace).
			Should(HaveSuffix(": Waiting for PodDisruptionBudget default/shared: 2 healthy Pods required"))
		s.deleteMachine("waits")
		s.Eventually(func() string { return s.condition("waits").Message }, soon, pace).
			Should(HaveSuffix("2 healthy Pods required; the drain of Node holds (Machine holds) has used its disruptions"))
		waiting := s.podsOf("api")[0]
		s.Expect(s.reportsOf(&waiting)).To(HaveLen(1))
		s.Expect(s.workload.Client.Delete(s.Context(), shared)).To(Succeed())
		s.expectGone("holds")
		s.expectGone("waits")
		s.expectInvariants()
	})

	t.Run("R44: evicts replacements that return to a cordoned Node with a backoff, and names their controllers", func(t *testing.T) {
		all.sub(t).replacementsReturn("returns")
	})

	t.Run("M131, M143: a Machine that a MachineHealthCheck remediates does not wait for a drain that never ends, and others only until its Node is not ready",
		func(t *testing.T) { all.sub(t).passesUnending() })

	all.testHeldMachines()

	t.Run("M10: does not delay the deletion of a Cluster", func(t *testing.T) {
		s := all.sub(t)
		s.runOn("spare", "web", 2, deployment("web", 2), budget("web", 0))
		cluster := read(s, s.fleet.Client, s.cluster.Key(), &clusterv1.Cluster{})
		s.Expect(s.fleet.Client.Delete(s.Context(), cluster)).To(Succeed())
		s.Eventually(func() error { return s.fleet.Client.Get(s.Context(), s.cluster.Key(), cluster) }, eventually, pace).ShouldNot(Succeed())
		s.Expect(s.evictions()).To(BeEmpty())
	})
}

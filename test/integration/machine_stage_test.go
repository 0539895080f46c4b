package integration

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/storage"
)

// maintainMachines maintains Nodes with the stage annotation of their Machines. It creates the MachineDeployment white.
func maintainMachines(t *testing.T, all *scene) {
	t.Helper()
	all.withMachineDeployment("white", 2)
	all.create(all.fleet.Client, healthCheck("white"))
	maintained, other := all.machinesOf("white")[0], all.machinesOf("white")[1]
	all.run(bare("on-maintained", maintained))

	t.Run("M30: reports an invalid stage annotation and changes nothing", func(t *testing.T) {
		s := all.sub(t)
		s.requestStage(maintained, "Reboot")
		s.expectCondition(maintained, metav1.ConditionFalse, v1alpha1.ReasonInvalidStage)
		s.expectEventIn(s.fleet.Client, maintained, "InvalidStage", `"Reboot" is not a stage`)
		s.Expect(s.maintenanceOf(maintained)).To(BeNil())
		s.Expect(s.machine(maintained).Annotations).NotTo(HaveKey(clusterv1.MachineSkipRemediationAnnotation))
	})

	t.Run("R48: keeps a Node cordoned that a user cordoned in stage Idle, when the annotation is removed", func(t *testing.T) {
		s := all.sub(t)
		s.requestStage(maintained, "Idle")
		s.expectCondition(maintained, metav1.ConditionTrue, v1alpha1.ReasonMachineAnnounced)
		s.expectNodeConditions(maintained, v1alpha1.NodeMaintenancePlanned)
		s.setUnschedulable(maintained, true)
		s.requestStage(maintained, "")
		s.Eventually(func() *v1alpha1.NodeMaintenance { return s.maintenanceOf(maintained) }, soon, pace).Should(BeNil())
		s.expectNodeConditions(maintained)
		s.Expect(s.node(maintained).Spec.Unschedulable).To(BeTrue())
		s.Expect(s.nodeWrites(maintained)).To(BeEmpty())
		s.setUnschedulable(maintained, false)
	})

	t.Run("M30: applies the requested stage and never an earlier one", func(t *testing.T) {
		s := all.sub(t)
		s.requestStage(maintained, "Idle")
		s.expectCondition(maintained, metav1.ConditionTrue, v1alpha1.ReasonMachineAnnounced)
		s.Expect(s.machine(maintained).Annotations).NotTo(HaveKey(clusterv1.MachineSkipRemediationAnnotation), "the Node is only announced")
		s.requestStage(maintained, "Cordon")
		s.expectCondition(maintained, metav1.ConditionTrue, v1alpha1.ReasonMachineCordoned)
		s.expectCordoned(maintained)
		s.requestStage(maintained, "Drain")
		s.expectCondition(maintained, metav1.ConditionTrue, v1alpha1.ReasonMachineDrained)
		s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("on-maintained"))
		s.requestStage(maintained, "Cordon")
		s.expectCondition(maintained, metav1.ConditionFalse, v1alpha1.ReasonInvalidStage)
		s.Expect(s.maintenanceOf(maintained).Spec.Stage).To(Equal(v1alpha1.StageDrain))
		s.requestStage(maintained, "Drain")
		s.expectCondition(maintained, metav1.ConditionTrue, v1alpha1.ReasonMachineDrained)
	})

	t.Run("M30: protects the Machine from MachineHealthChecks until the end of the maintenance", func(t *testing.T) {
		s := all.sub(t)
		s.Expect(s.machine(maintained).Annotations).To(HaveKeyWithValue(clusterv1.MachineSkipRemediationAnnotation, v1alpha1.HookOwner))
		s.setUnhealthy(maintained, corev1.ConditionTrue)
		s.setUnhealthy(other, corev1.ConditionTrue)
		s.expectGone(other) // the MachineHealthCheck has observed the conditions
		s.expectRolled("white", 2)
		s.Expect(s.machinesOf("white")).To(ContainElement(maintained))

		s.setUnhealthy(maintained, corev1.ConditionFalse)
		s.requestStage(maintained, "")
		s.expectReleased(maintained)
		s.Eventually(func(g Gomega) {
			g.Expect(s.machine(maintained).Annotations).NotTo(HaveKey(clusterv1.MachineSkipRemediationAnnotation))
			g.Expect(s.condition(maintained)).To(BeZero())
			g.Expect(s.maintenanceOf(maintained)).To(BeNil())
		}, soon, pace).Should(Succeed())
		s.expectInvariants()
	})

	t.Run("M80: applies the drain timeout of the Machine, and is drained when the rest of its Pods is", func(t *testing.T) {
		s := all.sub(t)
		s.create(s.workload.Client, budget("stuck", 0), bare("stuck", maintained, withApp("stuck")))
		s.Eventually(func() corev1.PodPhase { return s.pod("stuck").Status.Phase }, eventually, pace).Should(Equal(corev1.PodRunning))
		s.change(maintained, func(m *clusterv1.Machine) { m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](3) })
		s.requestStage(maintained, "Drain")
		s.expectCondition(maintained, metav1.ConditionFalse, v1alpha1.ReasonTimedOut)
		s.Expect(s.condition(maintained).Message).To(And(ContainSubstring("nodeDrainTimeoutSeconds"), ContainSubstring("Pod default/stuck: ")))
		s.Expect(s.machine(maintained).Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation))
		s.Expect(s.workload.Client.Delete(s.Context(), budget("stuck", 0))).To(Succeed())
		s.expectCondition(maintained, metav1.ConditionTrue, v1alpha1.ReasonMachineDrained)
		s.change(maintained, func(m *clusterv1.Machine) { m.Spec.Deletion.NodeDrainTimeoutSeconds = nil })
		s.requestStage(maintained, "")
		s.expectReleased(maintained)
		s.Eventually(func() map[string]string { return s.machine(maintained).Annotations }, soon, pace).ShouldNot(HaveKey(v1alpha1.DrainStartedAnnotation))
		s.expectInvariants()
	})

	t.Run("M80: applies maxParallelDrains to drains in place and to deletions together", func(t *testing.T) {
		s := all.sub(t)
		unlimited := s.limitDrains()
		defer unlimited()
		next := without(s.machinesOf("white"), []string{maintained})[0]
		s.create(s.workload.Client, budget("turn", 0), bare("turn-1", maintained, withApp("turn")), bare("turn-2", next, withApp("turn")))
		s.Eventually(func() []string { return s.nodesOf("turn") }, eventually, pace).Should(HaveLen(2))
		s.requestStage(maintained, "Drain")
		s.expectCondition(maintained, metav1.ConditionFalse, v1alpha1.ReasonMachineDraining)
		s.requestStage(next, "Drain")
		s.expectCondition(next, metav1.ConditionFalse, v1alpha1.ReasonWaitingForTurn)
		s.expectCordoned(next)
		s.Expect(s.maintenanceOf(next).Spec.Stage).To(Equal(v1alpha1.StageCordon))
		s.Expect(s.workload.Client.Delete(s.Context(), budget("turn", 0))).To(Succeed())
		for _, name := range []string{maintained, next} {
			s.expectCondition(name, metav1.ConditionTrue, v1alpha1.ReasonMachineDrained)
			s.Expect(s.node(name).Spec.Unschedulable).To(BeTrue())
		}
		for _, name := range []string{maintained, next} {
			s.requestStage(name, "")
			s.expectReleased(name)
		}
		s.expectInvariants()
	})

	t.Run("R58, R63: ends the maintenance, evicts no further Pod and restores the Node when its NodeMaintenance is deleted after the policy", func(t *testing.T) {
		s := all.sub(t)
		pods := []*corev1.Pod{bare("unruled-1", maintained, withApp("unruled")), bare("unruled-2", maintained, withApp("unruled"))}
		s.create(s.workload.Client, budget("unruled", 0))
		s.run(pods...)
		s.requestStage(maintained, "Drain")
		s.expectTargets(2, pods...)
		policy := s.deletePolicy()
		s.expectCondition(maintained, metav1.ConditionFalse, v1alpha1.ReasonNotManaged)
		s.deleteMaintenances(s.maintenanceOf(maintained).Name)
		s.Expect(s.workload.Client.Delete(s.Context(), budget("unruled", 0))).To(Succeed())
		s.expectReleased(maintained)
		s.Eventually(func() []string { return s.targets(pods...) }, soon, pace).Should(BeEmpty())
		s.Consistently(func() []string { return s.evictions().Names() }, settled, pace).ShouldNot(ContainElement(HavePrefix("unruled")))
		s.deletePods("unruled-1", "unruled-2")

		s.requestStage(maintained, "")
		s.create(s.fleet.Client, policy)
		s.Eventually(func() map[string]string { return s.machine(maintained).Annotations }, soon, pace).Should(HaveKey(v1alpha1.PreDrainHookAnnotation))
	})

	t.Run("M30, M168: continues the maintenance as a drain when the Machine is deleted, and counts the Pods of both", func(t *testing.T) {
		s := all.sub(t)
		s.create(s.workload.Client, budget("held", 0), bare("held", maintained, withApp("held")), bare("first", maintained))
		s.Eventually(func() corev1.PodPhase { return s.pod("held").Status.Phase }, eventually, pace).Should(Equal(corev1.PodRunning))
		s.requestStage(maintained, "Drain")
		s.expectCondition(maintained, metav1.ConditionFalse, v1alpha1.ReasonMachineDraining)
		s.expectEvicted("first", 1)
		before, uid := s.maintenanceOf(maintained), string(s.machine(maintained).UID)
		s.deleteMachine(maintained)
		s.Eventually(func(g Gomega) {
			now := s.maintenanceOf(maintained)
			g.Expect(now).NotTo(BeNil())
			g.Expect(now.UID).To(Equal(before.UID))
			g.Expect(now.Spec.Stage).To(Equal(v1alpha1.StageDrain))
			g.Expect(now.Spec.Reason).To(Equal("Machine default/" + maintained + " is being deleted"))
		}, soon, pace).Should(Succeed())
		s.Expect(s.workload.Client.Delete(s.Context(), budget("held", 0))).To(Succeed())
		s.expectGone(maintained)
		s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("first", "held"))
		s.Eventually(func(g Gomega) {
			drain := s.recentDrain(g, uid)
			g.Expect(drain.Applications).To(ConsistOf(HaveField("Controller", "Pod default/first"), HaveField("Controller", "Pod default/held")))
			g.Expect(drain.Pods).To(Equal(v1alpha1.EvictedPods{Evicted: 2, NotReplaced: 2}))
		}, soon, pace).Should(Succeed())
		s.expectInvariants()
	})
}

// serviced drains the Node of a Machine that is not deleted: the Pods, then the volumes, then the Pods of DaemonSets. Removing the
// annotation restores the Node.
func (s *scene) serviced(a *storage.Attacher) {
	s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.DaemonSetPods = v1alpha1.DaemonSetPodsDrain })
	defer s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.DaemonSetPods = v1alpha1.DaemonSetPodsSkip })
	plugin, pod := s.volumeBesidePlugin(a, "serviced", "serviced")

	s.requestStage("serviced", "Drain")
	s.expectWaitsForVolumes("serviced", "default/serviced")
	s.Expect(s.pod(pod.Name).DeletionTimestamp).To(BeNil())
	s.detach(a, "serviced")
	s.expectCondition("serviced", metav1.ConditionTrue, v1alpha1.ReasonMachineDrained)
	s.Expect(s.podsOf(plugin.Name)).To(BeEmpty())
	s.expectDetachedBefore(s.first(s.ours().Verb("delete").Resource("pods").Named(namespace, pod.Name)))
	s.Expect(s.machine("serviced").Annotations).To(HaveKey(v1alpha1.DrainRequestedAnnotation))

	s.requestStage("serviced", "")
	s.expectReleased("serviced")
	s.Eventually(func(g Gomega) {
		g.Expect(s.machine("serviced").Annotations).NotTo(Or(HaveKey(v1alpha1.DrainRequestedAnnotation), HaveKey(clusterv1.MachineSkipRemediationAnnotation)))
		g.Expect(s.condition("serviced")).To(BeZero())
		g.Expect(s.podsOf(plugin.Name)).To(HaveLen(1), "the taint is removed")
	}, soon, pace).Should(Succeed())
	s.expectInvariants()
	s.Expect(s.workload.Client.Delete(s.Context(), plugin)).To(Succeed())
}

// drainedBefore drains the Node of a Machine in place, and lets both timeouts of the Machine pass. While no manager runs, a Pod starts on
// the Node. Then the Machine is deleted.
func (s *scene) drainedBefore(machine string) {
	const timeout = 10
	s.change(machine, func(m *clusterv1.Machine) {
		m.Spec.Deletion.NodeDrainTimeoutSeconds, m.Spec.Deletion.NodeVolumeDetachTimeoutSeconds = ptr.To[int32](timeout), ptr.To[int32](timeout)
	})
	s.requestStage(machine, "Drain")
	s.expectCondition(machine, metav1.ConditionTrue, v1alpha1.ReasonMachineDrained)
	s.Eventually(func() map[string]string { return s.machine(machine).Annotations }, soon, pace).Should(HaveKey(v1alpha1.DrainEndedAnnotation))
	drained := s.condition(machine).LastTransitionTime.Time
	s.Eventually(func() bool { return time.Since(drained) > (timeout+1)*time.Second }, soon, pace).Should(BeTrue())

	s.fleet.KillManager()
	s.setUnschedulable(machine, false)
	s.run(bare("meanwhile", machine))
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	s.Eventually(func() []string { return s.evictions().Succeeded().Names() }, soon, pace).Should(ConsistOf("meanwhile"))
	s.expectCondition(machine, metav1.ConditionTrue, v1alpha1.ReasonMachineDrained)

	s.deleteMachine(machine)
	s.expectGone(machine)
	s.Expect(excludes(s.released(machine))).To(Equal([]string{"drain", "volumes"}))
	said := s.said(machine)
	s.Expect(said).NotTo(ContainElement("False TimedOut"))
	s.Expect(said[len(said)-1]).To(Equal("True Drained"))
	s.expectInvariants()
}

// deletePolicy deletes the policy that the Machines follow, and returns one like it.
func (s *scene) deletePolicy() (same *v1alpha1.MachineDrainPolicy) {
	s.Helper()
	policy := read(s, s.fleet.Client, keyOf("all"), &v1alpha1.MachineDrainPolicy{})
	s.Expect(s.fleet.Client.Delete(s.Context(), policy)).To(Succeed())
	return &v1alpha1.MachineDrainPolicy{ObjectMeta: metaNamed(policy.Name, ""), Spec: policy.Spec}
}

// healthCheck returns a MachineHealthCheck that deletes Machines of a MachineDeployment whose Nodes have the condition unhealthy.
func healthCheck(deployment string) *clusterv1.MachineHealthCheck {
	return &clusterv1.MachineHealthCheck{
		ObjectMeta: metaNamed(deployment, ""),
		Spec: clusterv1.MachineHealthCheckSpec{
			ClusterName: "c1",
			Selector:    metav1.LabelSelector{MatchLabels: map[string]string{clusterv1.MachineDeploymentNameLabel: deployment}},
			Checks: clusterv1.MachineHealthCheckChecks{UnhealthyNodeConditions: []clusterv1.UnhealthyNodeCondition{
				{Type: unhealthy, Status: corev1.ConditionTrue, TimeoutSeconds: ptr.To[int32](0)},
			}},
		},
	}
}

const unhealthy corev1.NodeConditionType = "example.com/Unhealthy"

func (s *scene) setUnhealthy(node string, status corev1.ConditionStatus) {
	s.Helper()
	patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":%q,"status":%q,"reason":"Test","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, unhealthy, status)
	s.Expect(s.workload.Client.Status().Patch(s.Context(), s.node(node), client.RawPatch(types.StrategicMergePatchType, patch))).To(Succeed())
}

// requestStage sets the stage annotation of a Machine, or removes it.
func (s *scene) requestStage(machine, stage string) {
	s.Helper()
	value := "null"
	if stage != "" {
		value = fmt.Sprintf("%q", stage)
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, v1alpha1.MachineStageAnnotation, value)
	s.Expect(s.fleet.Client.Patch(s.Context(), s.machine(machine), client.RawPatch(types.MergePatchType, patch))).To(Succeed())
}

func (s *scene) expectCondition(machine string, status metav1.ConditionStatus, reason string) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		condition := s.condition(machine)
		g.Expect(condition.Reason).To(Equal(reason), condition.Message)
		g.Expect(condition.Status).To(Equal(status), condition.Message)
	}, eventually, pace).Should(Succeed())
}

package integration

import (
	"fmt"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// failsOver drains three Machines one after the other. A primary is on the first one, and replicas are on the others. The test is the
// operator: it makes a replica on a schedulable Node the primary, which a PodDisruptionBudget protects.
func (s *scene) failsOver() {
	first, second, third := "amber-1", "amber-2", "amber-3"
	s.withMachines(first, second, third)
	before := ptr.To(intstr.FromInt32(2))
	s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.MaxParallelDrains = ptr.To(intstr.FromInt32(1)) })
	defer s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.MaxParallelDrains = before })
	s.run(bare("db-0", first, withRole("primary")), bare("db-1", second, withRole("replica")), bare("db-2", third, withRole("replica")))
	s.create(s.workload.Client, budgetOf("primary"))
	s.expectHealthy("primary", 1)

	for _, name := range []string{first, second, third} {
		s.deleteMachine(name)
	}
	s.Eventually(func() []string { return s.staged(v1alpha1.StageDrain) }, soon, pace).Should(ConsistOf(first))
	s.expectCordoned(first, second, third)
	s.Eventually(func() bool { return s.node(second).Spec.Unschedulable }, eventually, pace).Should(BeFalse()) // after a minute
	s.expectReleased(second, third)
	s.Expect(s.staged(v1alpha1.StageDrain)).To(ConsistOf(first))
	s.Eventually(func() string { return s.condition(second).Message }, soon, pace).Should(ContainSubstring("The Node is schedulable"))
	s.failOver("db-0", "db-1")
	s.expectGone(first)
	s.Expect(s.workload.Client.Delete(s.Context(), budgetOf("primary"))).To(Succeed())
	s.expectGone(second)
	s.expectGone(third)
	s.expectAtMostDraining(1)
	s.expectInvariants()
}

// passesUnending drains a Machine in the only turn whose Pod never terminates, while another Machine waits and a third one is remediated.
func (s *scene) passesUnending() {
	unending, queued := "unending", "queued"
	s.withMachines(unending, queued)
	s.withMachineDeployment("jade", 1)
	ill := s.machineOf("jade")
	s.create(s.fleet.Client, healthCheck("jade"))
	defer s.limitDrains()()
	s.run(bare("on-unending", unending), bare("on-queued", queued), bare("on-ill", ill))
	s.neverTerminates("on-unending")

	s.deleteMachine(unending)
	s.Eventually(func() []string { return s.evictions().Succeeded().Names() }, soon, pace).Should(ConsistOf("on-unending"))
	s.deleteMachine(queued)
	s.expectCondition(queued, metav1.ConditionFalse, v1alpha1.ReasonWaitingForTurn)
	s.setUnhealthy(ill, corev1.ConditionTrue)
	s.expectGone(ill)
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("on-unending", "on-ill"))
	s.expectCondition(queued, metav1.ConditionFalse, v1alpha1.ReasonWaitingForTurn)
	s.Expect(s.staged(v1alpha1.StageDrain)).To(ConsistOf(unending))

	s.stopKubelet(unending, corev1.ConditionFalse)
	s.expectGone(queued) // begins when the drain before has made no progress for a minute
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("on-unending", "on-ill", "on-queued"))
	s.Expect(s.machine(unending).Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation))
	s.terminate("on-unending")
	s.expectGone(unending)
	s.Expect(s.fleet.Client.Delete(s.Context(), healthCheck("jade"))).To(Succeed())
	s.scale("jade", 0)
	s.Eventually(func() []string { return s.staged("") }, eventually, pace).Should(BeEmpty())
	s.expectInvariants()
}

// neverTerminates lets a Pod ignore its deletion until terminate.
func (s *scene) neverTerminates(pod string) {
	s.annotate(s.pod(pod), controlplane.PodDeletionDelayAnnotation, "1h")
}

func (s *scene) terminate(pod string) {
	s.Helper()
	s.Expect(s.workload.Client.Delete(s.Context(), bare(pod, ""), client.GracePeriodSeconds(0))).To(Succeed())
}

func withRole(role string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Labels["role"] = role }
}

// budgetOf returns a PodDisruptionBudget that requires an available Pod with a role.
func budgetOf(role string) *policyv1.PodDisruptionBudget {
	return budgetRequiring(role, 1, func(pdb *policyv1.PodDisruptionBudget) { pdb.Spec.Selector = labelSelector("role", role) })
}

// failOver makes a Pod the primary in place of another one.
func (s *scene) failOver(from, to string) {
	s.Helper()
	s.Expect(s.node(s.pod(to).Spec.NodeName).Spec.Unschedulable).To(BeFalse())
	for _, change := range []struct{ pod, role string }{{from, "replica"}, {to, "primary"}} {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"role":%q}}}`, change.role)
		s.Expect(s.workload.Client.Patch(s.Context(), s.pod(change.pod), client.RawPatch(types.MergePatchType, patch))).To(Succeed())
	}
}

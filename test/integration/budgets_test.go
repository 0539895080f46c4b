package integration

import (
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

func budgetIsEdited(s *scene) {
	s.withNodes("e20-a")
	first, second := bare("e20-1", "e20-a", withApp("e20")), bare("e20-2", "e20-a", withApp("e20"))
	s.run(first, second)
	s.create(s.workload.Client, budgetRequiring("e20", 2))
	s.expectHealthy("e20", 2)
	s.maintain(nm("e20-a", draining, ofNodes("e20-a")))
	s.expectWaits(first, string(budgets.BudgetExhausted), "Waiting for PodDisruptionBudget default/e20: 2 healthy Pods required; it never allows a disruption "+
		"(minAvailable: 2)")
	s.expectWaits(second, string(budgets.BudgetExhausted), "2 healthy Pods required")
	s.Expect(s.evictions()).To(BeEmpty())

	s.editBudget("e20", func(pdb *policyv1.PodDisruptionBudget) { pdb.Spec.MinAvailable = ptr.To(intstr.FromInt(1)) })
	s.Eventually(func() int { return len(s.podsOf("e20")) }, soon, pace).Should(Equal(1))
	left := s.podsOf("e20")[0]
	s.expectWaits(&left, string(budgets.BudgetExhausted), "1 healthy Pod required")
	s.Expect(s.evictions()).To(HaveLen(1))

	s.editBudget("e20", func(pdb *policyv1.PodDisruptionBudget) { pdb.Spec.Selector = labelSelector("app", "others") })
	s.expectDeleted(first, second)
	s.deleteMaintenances("e20-a")
}

// budgetIsReplaced deletes a budget and creates another one, as operators do, and then changes the labels of a Pod.
func budgetIsReplaced(s *scene) {
	s.withNodes("e55")
	var pods []*corev1.Pod
	for i := range 6 {
		pods = append(pods, bare(fmt.Sprintf("e55-%d", i), "e55", withApp("e55")))
	}
	s.run(pods...)
	s.create(s.workload.Client, budgetRequiring("e55", 6))
	s.expectHealthy("e55", 6)
	s.maintain(nm("e55", draining, ofNodes("e55")))
	for _, pod := range pods {
		s.expectWaits(pod, string(budgets.BudgetExhausted), "6 healthy Pods required")
	}
	s.Expect(s.workload.Client.Delete(s.Context(), budgetRequiring("e55", 6))).To(Succeed())
	s.expectWaits(pods[0], string(budgets.BudgetRemoved), "Waiting 3 s since PodDisruptionBudget default/e55, which selected the Pod, was deleted; another one "+
		"may replace it")
	s.create(s.workload.Client, budgetRequiring("e55", 4))
	s.Eventually(func() []corev1.Pod { return s.podsOf("e55") }, eventually, pace).Should(HaveLen(4))
	left := s.podsOf("e55")
	for i := range left {
		s.expectWaits(&left[i], string(budgets.BudgetExhausted), "4 healthy Pods required")
	}
	s.Expect(s.evictions()).To(HaveLen(2), "none is refused")

	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"app":"e55-other"}}}`))
	s.Expect(s.workload.Client.Patch(s.Context(), left[0].DeepCopy(), patch)).To(Succeed())
	s.expectDeleted(&left[0])
	s.Expect(s.reportsOf(&left[0])).To(ContainElement(And(ContainSubstring(string(budgets.BudgetRemoved)), ContainSubstring(
		"Waiting 3 s since PodDisruptionBudget default/e55 does not select the Pod any more; another one may replace it"))))
	relabelled := s.first(s.audited().By(controlplane.AdminUser).Verb("patch").Resource("pods").Named(namespace, left[0].Name))
	s.Expect(s.evictions()).To(HaveLen(3))
	s.Expect(s.evictions()[2].Requested).To(BeTemporally(">=", relabelled.Requested.Add(budgets.LossCounts)))
	s.Expect(s.workload.Client.Delete(s.Context(), budgetRequiring("e55", 4))).To(Succeed())
	s.expectDeleted(pods...)
	s.deleteMaintenances("e55")
}

// gapsBetweenBudgets replaces the budgets of six Pods each, after gaps in which a drain that acts on events would evict all of them. Then
// it deletes the budgets for good, as Longhorn deletes that of an instance manager when no volume of the Node needs it any more.
func gapsBetweenBudgets(s *scene) {
	s.withNodes("e55-gaps")
	var pods []*corev1.Pod
	gaps := map[string]time.Duration{"e55-short": 20 * time.Millisecond, "e55-long": 300 * time.Millisecond}
	for app := range gaps {
		for i := range 6 {
			pods = append(pods, bare(fmt.Sprintf("%s-%d", app, i), "e55-gaps", withApp(app)))
		}
		s.create(s.workload.Client, budgetRequiring(app, 6))
	}
	s.run(pods...)
	s.expectHealthy("e55-short", 6)
	s.expectHealthy("e55-long", 6)
	s.maintain(nm("e55-gaps", draining, ofNodes("e55-gaps")))
	for _, pod := range pods {
		s.expectWaits(pod, string(budgets.BudgetExhausted), "6 healthy Pods required")
	}
	for app, gap := range gaps {
		s.Expect(s.workload.Client.Delete(s.Context(), budgetRequiring(app, 6))).To(Succeed())
		s.Consistently(func() []corev1.Pod { return s.podsOf(app) }, gap, gap/4).Should(HaveLen(6))
		s.create(s.workload.Client, budgetRequiring(app, 6))
		s.expectHealthy(app, 6)
	}
	s.Expect(s.evictions()).To(BeEmpty())

	for app := range gaps {
		s.Expect(s.workload.Client.Delete(s.Context(), budgetRequiring(app, 6))).To(Succeed())
	}
	s.expectDeleted(pods...)
	s.Expect(s.evictions()).To(HaveLen(len(pods)), "none is refused")
	s.deleteMaintenances("e55-gaps")
}

func twoBudgets(s *scene) {
	s.withNodes("e18-two")
	pod := bare("e18-two", "e18-two")
	s.run(pod)
	all := budgetRequiring("e18-two-all", 0)
	all.Spec.Selector = &metav1.LabelSelector{} // the whole namespace
	s.create(s.workload.Client, budgetRequiring("e18-two", 0), all)
	s.expectHealthy("e18-two", 1)
	s.maintain(nm("e18-two", draining, ofNodes("e18-two")))
	s.expectWaits(pod, string(budgets.MultipleBudgets), "More than one PodDisruptionBudget selects this Pod, so Kubernetes cannot evict it: default/e18-two, "+
		"default/e18-two-all")
	s.Expect(s.evictions()).To(BeEmpty())
	s.Expect(s.workload.Client.Delete(s.Context(), all)).To(Succeed())
	s.expectDeleted(pod)
	s.deleteMaintenances("e18-two")
}

func budgetOfBarePods(s *scene) {
	s.withNodes("e20-bare")
	pod := bare("e20-bare", "e20-bare")
	s.run(pod)
	s.create(s.workload.Client, budget("e20-bare", 1))
	s.expectHealthy("e20-bare", 1)
	s.maintain(nm("e20-bare", draining, ofNodes("e20-bare")))
	s.expectWaits(pod, string(budgets.BudgetExhausted), "PodDisruptionBudget default/e20-bare selects only Pods without a controller, for which Kubernetes "+
		"supports only an integer minAvailable; it never allows a disruption")
	s.Expect(s.evictions()).To(BeEmpty())
	s.editBudget("e20-bare", func(pdb *policyv1.PodDisruptionBudget) {
		pdb.Spec.MaxUnavailable, pdb.Spec.MinAvailable = nil, ptr.To(intstr.FromInt(0))
	})
	s.expectDeleted(pod)
	s.deleteMaintenances("e20-bare")
}

// crossedBudgets drains two Nodes together. Each of six budgets selects a Pod of both Nodes and allows one disruption in total: if each
// Node used some of them, none would be drained.
func crossedBudgets(s *scene) {
	s.drainCrossed("e56", 1, func([]*corev1.Pod) {})
}

// crossedBudgetsThatOpen drains them while the budgets allow no disruption. Then they allow one after the other, as in a rolling update.
func crossedBudgetsThatOpen(s *scene) {
	s.drainCrossed("e56-open", 2, func(pods []*corev1.Pod) {
		for _, pod := range pods {
			s.expectWaits(pod, string(budgets.BudgetExhausted), "2 healthy Pods required")
		}
		for i := range crossed {
			s.editBudget(fmt.Sprintf("e56-open-%d", i), func(pdb *policyv1.PodDisruptionBudget) { pdb.Spec.MinAvailable = ptr.To(intstr.FromInt(1)) })
		}
	})
}

const crossed = 6 // budgets

// drainCrossed drains two Nodes that share budgets, and expects that the older drain gets all disruptions.
func (s *scene) drainCrossed(name string, required int, open func([]*corev1.Pod)) {
	s.Helper()
	nodes := []string{name + "-a", name + "-b"}
	s.withNodes(nodes...)
	var pods []*corev1.Pod
	for i := range crossed {
		app := fmt.Sprintf("%s-%d", name, i)
		pods = append(pods, bare(app+"-a", nodes[0], withApp(app)), bare(app+"-b", nodes[1], withApp(app)))
		s.create(s.workload.Client, budgetRequiring(app, required))
	}
	s.run(pods...)
	for i := range crossed {
		s.expectHealthy(fmt.Sprintf("%s-%d", name, i), 2)
	}
	s.create(s.workload.Client, nm(nodes[0], draining, ofNodes(nodes[0])), nm(nodes[1], draining, ofNodes(nodes[1])))
	open(pods)
	s.Eventually(func() int { return len(s.evictions().Succeeded()) }, eventually, pace).Should(Equal(crossed))
	older, younger := nodes[0], nodes[1]
	if strings.HasSuffix(s.evictions().Succeeded()[0].Name, "-b") { // the drains may begin in the same second
		older, younger = younger, older
	}
	s.Expect(s.drainStart(older)).NotTo(BeTemporally(">", s.drainStart(younger)))
	s.expectDrained(older)
	for _, pod := range pods {
		if pod.Spec.NodeName != older {
			s.expectWaits(pod, string(budgets.BudgetExhausted), "1 healthy Pod required")
			s.Expect(s.workload.Client.Delete(s.Context(), budgetRequiring(pod.Labels["app"], 1))).To(Succeed())
		}
	}
	s.expectDeleted(pods...)
	s.deleteMaintenances(nodes...)
}

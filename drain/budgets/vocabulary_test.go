package budgets_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

type (
	pdb    = policyv1.PodDisruptionBudget
	labels = map[string]string
)

// budget returns a budget that selects the Pods "app: web" in the namespace default. It is up to date, with 3 of 3 Pods healthy and 2
// required.
func budget(name string, with ...func(*pdb)) *pdb {
	one := intstr.FromInt32(1)
	b := &pdb{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 1},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels{"app": "web"}}, MaxUnavailable: &one},
		Status:     policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: 1, CurrentHealthy: 3, DesiredHealthy: 2, ExpectedPods: 3},
	}
	for _, change := range with {
		change(b)
	}
	return b
}

func allows(n int32) func(*pdb) { return func(b *pdb) { b.Status.DisruptionsAllowed = n } }

func healthy(current, expected, desired int32) func(*pdb) {
	return func(b *pdb) {
		b.Status.CurrentHealthy, b.Status.ExpectedPods, b.Status.DesiredHealthy = current, expected, desired
		b.Status.DisruptionsAllowed = max(0, current-desired)
	}
}

func covers(s *metav1.LabelSelector) func(*pdb) { return func(b *pdb) { b.Spec.Selector = s } }

func invalid(b *pdb) {
	b.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Resembles"}}}
}

func inNamespace(ns string) func(*pdb) { return func(b *pdb) { b.Namespace = ns } }

func behind(b *pdb) { b.Generation = b.Status.ObservedGeneration + 1 }

func unready(policy policyv1.UnhealthyPodEvictionPolicyType) func(*pdb) {
	return func(b *pdb) { b.Spec.UnhealthyPodEvictionPolicy = &policy }
}

func wants(minAvailable, maxUnavailable string) func(*pdb) {
	parse := func(s string) *intstr.IntOrString {
		if s == "" {
			return nil
		}
		v := intstr.Parse(s)
		return &v
	}
	return func(b *pdb) { b.Spec.MinAvailable, b.Spec.MaxUnavailable = parse(minAvailable), parse(maxUnavailable) }
}

func condition(reason, message string) func(*pdb) {
	return func(b *pdb) {
		b.Status.Conditions = []metav1.Condition{{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: reason, Message: message}}
	}
}

func disrupted(n int) func(*pdb) {
	return func(b *pdb) {
		b.Status.DisruptedPods = map[string]metav1.Time{}
		for i := range n {
			b.Status.DisruptedPods[fmt.Sprint(i)] = metav1.Time{}
		}
	}
}

// pod returns a Pod "app: web" in the namespace default that is ready and has a controller.
func pod(name string, with ...func(*budgets.Pod)) budgets.Candidate {
	p := budgets.Pod{
		UID: types.UID(name), Namespace: "default", Name: name, Node: "one", Labels: labels{"app": "web"}, Ready: true, Controlled: true, Phase: corev1.PodRunning,
	}
	for _, change := range with {
		change(&p)
	}
	return budgets.Candidate{Pod: p}
}

func notReady(p *budgets.Pod) { p.Ready = false }

func bare(p *budgets.Pod) { p.Controlled = false }

func terminating(p *budgets.Pod) { p.Terminating = true }

func inPhase(phase corev1.PodPhase) func(*budgets.Pod) {
	return func(p *budgets.Pod) { p.Phase, p.Ready = phase, false }
}

func onNode(node string) func(*budgets.Pod) { return func(p *budgets.Pod) { p.Node = node } }

func labelled(l labels) func(*budgets.Pod) { return func(p *budgets.Pod) { p.Labels = l } }

func always(is bool) func(*pdb) bool { return func(*pdb) bool { return is } }

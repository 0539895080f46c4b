package rules_test

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// The words in which the tests of this package are written.

type labels = map[string]string

const namespace = "fleet" // of the Machine and its rules

func matching(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: labels{key: value}}
}

func all() *metav1.LabelSelector { return &metav1.LabelSelector{} }

// brokenSelector can't be parsed.
func brokenSelector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Resembles"}}}
}

// mdr is a MachineDrainRule for all Machines and all pods.
func mdr(name string, behavior clusterv1.MachineDrainRuleDrainBehavior, with ...func(*clusterv1.MachineDrainRule)) clusterv1.MachineDrainRule {
	rule := clusterv1.MachineDrainRule{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       clusterv1.MachineDrainRuleSpec{Drain: clusterv1.MachineDrainRuleDrainConfig{Behavior: behavior}},
	}
	for _, change := range with {
		change(&rule)
	}
	return rule
}

const (
	drain         = clusterv1.MachineDrainRuleDrainBehaviorDrain
	skip          = clusterv1.MachineDrainRuleDrainBehaviorSkip
	waitCompleted = clusterv1.MachineDrainRuleDrainBehaviorWaitCompleted
)

func order(o int32) func(*clusterv1.MachineDrainRule) {
	return func(r *clusterv1.MachineDrainRule) { r.Spec.Drain.Order = &o }
}

func inNamespace(ns string) func(*clusterv1.MachineDrainRule) {
	return func(r *clusterv1.MachineDrainRule) { r.Namespace = ns }
}

func machines(selector, cluster *metav1.LabelSelector) func(*clusterv1.MachineDrainRule) {
	return func(r *clusterv1.MachineDrainRule) {
		r.Spec.Machines = append(r.Spec.Machines, clusterv1.MachineDrainRuleMachineSelector{Selector: selector, ClusterSelector: cluster})
	}
}

func pods(selector, namespaces *metav1.LabelSelector) func(*clusterv1.MachineDrainRule) {
	return func(r *clusterv1.MachineDrainRule) {
		r.Spec.Pods = append(r.Spec.Pods, clusterv1.MachineDrainRulePodSelector{Selector: selector, NamespaceSelector: namespaces})
	}
}

// input is a linux Machine in a production Cluster, with these rules.
func input(mdrs ...clusterv1.MachineDrainRule) rules.Input {
	return rules.Input{
		Cluster:           rules.ClusterFacts{Labels: labels{"stage": "production"}},
		Machine:           rules.MachineFacts{Namespace: namespace, Labels: labels{"os": "linux"}},
		MachineDrainRules: mdrs,
	}
}

// pod is an ordinary pod of which everything is known.
func pod(podLabels labels, with ...func(*rules.Pod)) rules.Pod {
	p := rules.Pod{
		Namespace: "default", Name: "web-0", Labels: podLabels,
		NamespaceLabels: labels{"kubernetes.io/metadata.name": "default"}, NamespaceKnown: true,
		Type: v1alpha1.PodTypeDefault, TypeKnown: true,
	}
	for _, change := range with {
		change(&p)
	}
	return p
}

func ofType(t v1alpha1.PodType) func(*rules.Pod) { return func(p *rules.Pod) { p.Type = t } }

func typeUnknown(p *rules.Pod) { p.Type, p.TypeKnown = v1alpha1.PodTypeDaemonSet, false }

func namespaceUnknown(p *rules.Pod) { p.NamespaceLabels, p.NamespaceKnown = nil, false }

func finished(p *rules.Pod) { p.Finished = true }

func inNamespaceLabelled(l labels) func(*rules.Pod) {
	return func(p *rules.Pod) { p.NamespaceLabels = l }
}

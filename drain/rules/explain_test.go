package rules_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

func TestExplain(t *testing.T) {
	app := func(value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": value}}
	}
	compiled := rules.Compile(rules.Input{MachineDrainRules: []clusterv1.MachineDrainRule{{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: clusterv1.MachineDrainRuleSpec{
			Drain: clusterv1.MachineDrainRuleDrainConfig{Behavior: clusterv1.MachineDrainRuleDrainBehaviorSkip},
			Pods:  []clusterv1.MachineDrainRulePodSelector{{Selector: app("web"), NamespaceSelector: app("shop")}},
		},
	}}})
	matcher := rules.NewMatcher(append(compiled.Rules, v1alpha1.DrainRule{Name: "rest", Behavior: v1alpha1.DrainBehaviorSkip}))
	type result struct {
		rule, why                 string
		matches, unknown, decides bool
	}
	for name, test := range map[string]struct {
		pod  rules.Pod
		want []result
	}{
		"names the part of each rule that decides": {
			pod: rules.Pod{
				Labels: map[string]string{"app": "web"}, NamespaceKnown: true, NamespaceLabels: map[string]string{"app": "x"}, Type: v1alpha1.PodTypeDefault,
				TypeKnown: true,
			},
			want: []result{
				{rule: "static-pods", why: "podType is Static; the Pod is Default"},
				{rule: "daemonset-pods", why: "podType is DaemonSet; the Pod is Default"},
				{rule: "node-agent", why: "selector requires app.kubernetes.io/name=capnm-node-agent; there is no such label"},
				{rule: "drain-label-skip", why: "requires label cluster.x-k8s.io/drain: skip"},
				{rule: "drain-label-wait-completed", why: "requires label cluster.x-k8s.io/drain: wait-completed"},
				{rule: "machine-drain-rule/web", why: `namespaceSelector requires app=shop; the label is "x"`},
				{rule: "rest", why: "selects all Pods", matches: true, decides: true},
			},
		},
		"names what is missing": {
			pod: rules.Pod{Namespace: "shop", Labels: map[string]string{"app": "web"}, Type: v1alpha1.PodTypeDefault, TypeKnown: true},
			want: []result{
				{rule: "static-pods", why: "podType is Static; the Pod is Default"},
				{rule: "daemonset-pods", why: "podType is DaemonSet; the Pod is Default"},
				{rule: "node-agent", why: "selector requires app.kubernetes.io/name=capnm-node-agent; there is no such label"},
				{rule: "drain-label-skip", why: "requires label cluster.x-k8s.io/drain: skip"},
				{rule: "drain-label-wait-completed", why: "requires label cluster.x-k8s.io/drain: wait-completed"},
				{rule: "machine-drain-rule/web", why: `the labels of Namespace "shop" are not known yet`, unknown: true},
				{rule: "rest", why: "selects all Pods", matches: true, decides: true},
			},
		},
	} {
		t.Run("K5: "+name, func(t *testing.T) {
			var got []result
			for _, match := range matcher.Explain(test.pod) {
				got = append(got, result{match.Rule, match.Why, match.Matches, match.Unknown, match.Decides})
			}
			NewWithT(t).Expect(got).To(Equal(test.want))
		})
	}
}

package rules_test

import (
	"slices"
	"testing"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

func TestInEffect(t *testing.T) {
	first := v1alpha1.DrainRule{Name: "first", Behavior: "Drain"}
	skipDaemonSets := v1alpha1.DrainRule{Name: "ds", Behavior: "Skip", Pods: []v1alpha1.DrainRulePodSelector{{PodType: "DaemonSet"}}}
	names := func(list []v1alpha1.DrainRule) []string {
		var all []string
		for _, rule := range list {
			all = append(all, rule.Name)
		}
		return all
	}
	compiled := rules.Compile(input(mdr("a", drain))).Rules
	for _, test := range []struct {
		name   string
		policy v1alpha1.DrainLabelPolicy
		rules  []v1alpha1.DrainRule
		want   []string
	}{
		{"R45: labels are honored without any rule", v1alpha1.DrainLabelPolicyHonor, nil, []string{"drain-label-skip", "drain-label-wait-completed"}},
		{
			"R45: labels are honored in a NodeMaintenance of an older version",
			"", []v1alpha1.DrainRule{first}, []string{"drain-label-skip", "drain-label-wait-completed", "first"},
		},
		{"R45: Ignore leaves labels to the rules", v1alpha1.DrainLabelPolicyIgnore, []v1alpha1.DrainRule{first}, []string{"first"}},
		{
			"R45: a rule of that name replaces the built-in one", v1alpha1.DrainLabelPolicyHonor,
			[]v1alpha1.DrainRule{first, {Name: "drain-label-skip", Behavior: "Drain"}}, []string{"drain-label-wait-completed", "first", "drain-label-skip"},
		},
		{"R45: compiled rules have each rule once", v1alpha1.DrainLabelPolicyHonor, compiled, names(compiled)},
	} {
		t.Run(test.name, func(t *testing.T) {
			spec := &v1alpha1.NodeMaintenanceSpec{DrainRules: slices.Clip(test.rules), DrainLabelPolicy: test.policy}
			if got := names(rules.InEffect(spec)); !slices.Equal(got, test.want) {
				t.Errorf("got  %v\nwant %v", got, test.want)
			}
		})
	}
	matcher := rules.NewMatcher(rules.InEffect(&v1alpha1.NodeMaintenanceSpec{DrainRules: []v1alpha1.DrainRule{skipDaemonSets, first}}))
	for name, test := range map[string]struct {
		pod  rules.Pod
		want v1alpha1.DrainBehavior
	}{
		"R45: a label takes precedence over the rules": {pod(labels{clusterv1.PodDrainLabel: "skip"}), "Skip"},
		"R45: wait-completed":                          {pod(labels{clusterv1.PodDrainLabel: "Wait-Completed"}), "WaitCompleted"},
		"R45: does not wait for a Pod of a DaemonSet with the label wait-completed": {
			pod(labels{clusterv1.PodDrainLabel: "wait-completed"}, ofType("DaemonSet")), "Skip",
		},
		"R45: does not wait for a static Pod with the label wait-completed": {pod(labels{clusterv1.PodDrainLabel: "wait-completed"}, ofType("Static")), "Drain"},
		"R45: no label": {pod(nil), "Drain"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := matcher.Decide(test.pod); got.Behavior != test.want {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestUnknownDrainLabel(t *testing.T) {
	m := &v1alpha1.NodeMaintenance{}
	m.Name = "kernel"
	const want = `Label cluster.x-k8s.io/drain has the unknown value "skipp", so it does not protect the Pod from NodeMaintenance kernel. ` +
		`Valid values are skip and wait-completed.`
	if got := rules.UnknownDrainLabel(m, labels{clusterv1.PodDrainLabel: "skipp"}); got != want {
		t.Errorf("M2: got %s", got)
	}
	for name, known := range map[string]labels{"M2: no label": nil, "M2: skip": {clusterv1.PodDrainLabel: "skip"}} {
		if got := rules.UnknownDrainLabel(m, known); got != "" {
			t.Errorf("%s: got %s", name, got)
		}
	}
	m.Spec.DrainLabelPolicy = v1alpha1.DrainLabelPolicyIgnore
	if got := rules.UnknownDrainLabel(m, labels{clusterv1.PodDrainLabel: "skipp"}); got != "" {
		t.Errorf("M2: a label that is ignored has no invalid value: %s", got)
	}
}

func TestSkippedTypes(t *testing.T) {
	rule := func(behavior v1alpha1.DrainBehavior, entries ...v1alpha1.DrainRulePodSelector) v1alpha1.DrainRule {
		return v1alpha1.DrainRule{Name: "r", Behavior: behavior, Pods: entries}
	}
	type entry = v1alpha1.DrainRulePodSelector
	daemonSets, everything := entry{PodType: "DaemonSet"}, entry{Selector: all()}
	for _, test := range []struct {
		name  string
		rules []v1alpha1.DrainRule
		want  []v1alpha1.PodType
	}{
		{"R47: no rule skips no type", nil, nil},
		{"R47: a rule for all Pods of a type", []v1alpha1.DrainRule{rule("Skip", entry{PodType: "Static"}, daemonSets)}, []v1alpha1.PodType{"DaemonSet", "Static"}},
		{"R47: a rule for some Pods of a type", []v1alpha1.DrainRule{
			rule("Skip", entry{PodType: "DaemonSet", Selector: matching("app", "x")}, entry{PodType: "DaemonSet", DrainLabel: "Skip"}, entry{
				NamespaceSelector: matching("a", "b"),
			}),
		}, nil},
		{
			"R47: a rule for some Pods before the one for all",
			[]v1alpha1.DrainRule{rule("Drain", entry{PodType: "DaemonSet", Selector: matching("app", "x")}), rule("Skip", daemonSets)}, []v1alpha1.PodType{"DaemonSet"},
		},
		{
			"R47: the first rule for all Pods of a type counts",
			[]v1alpha1.DrainRule{rule("Drain", daemonSets), rule("Skip", everything)}, []v1alpha1.PodType{"Default", "Static"},
		},
		{"R47: a rule without entries", []v1alpha1.DrainRule{rule("Skip")}, []v1alpha1.PodType{"Default", "DaemonSet", "Static"}},
		{"R47: a rule that can't be parsed", []v1alpha1.DrainRule{rule("Shove"), rule("Skip", entry{Selector: brokenSelector()}, entry{PodType: "Odd"})}, nil},
		{"R47: compiled rules skip DaemonSets and static Pods", rules.Compile(input()).Rules, []v1alpha1.PodType{"DaemonSet", "Static"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := rules.NewMatcher(test.rules).SkippedTypes(); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

package rules_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

var builtIn = []string{"static-pods", "daemonset-pods", "node-agent", "drain-label-skip", "drain-label-wait-completed"}

func names(compiled rules.Compiled) []string {
	var result []string
	for _, r := range compiled.Rules {
		result = append(result, r.Name)
	}
	return result
}

func problems(compiled rules.Compiled) []string {
	var result []string
	for _, p := range compiled.Problems {
		result = append(result, p.Rule)
	}
	return result
}

func TestCompileOrderAndSelection(t *testing.T) {
	windows, linux := matching("os", "windows"), matching("os", "linux")
	production, staging := matching("stage", "production"), matching("stage", "staging")
	for _, test := range []struct {
		name string
		in   rules.Input
		want []string // after the built-in rules
	}{
		{"M1: built-in rules come first, in the design's order", input(), nil},
		{"M3: rules follow by name", input(mdr("b", drain), mdr("a", skip), mdr("Z", skip)), []string{"Z", "a", "b"}},
		{"M3: only those of the Machine's namespace", input(mdr("a", skip, inNamespace("other")), mdr("b", skip)), []string{"b"}},
		{"M3: a matching selector selects", input(mdr("a", skip, machines(linux, nil))), []string{"a"}},
		{"M3: a selector that doesn't match leaves the rule out", input(mdr("a", skip, machines(windows, nil))), nil},
		{"M3: entries are alternatives", input(mdr("a", skip, machines(windows, nil), machines(nil, production))), []string{"a"}},
		{"M3: both selectors of an entry must match", input(mdr("a", skip, machines(linux, staging), machines(windows, production))), nil},
		{"M3: nil selects all", input(mdr("a", skip, machines(nil, nil))), []string{"a"}},
		{"M3: empty selects all", input(mdr("a", skip, machines(all(), all()))), []string{"a"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			compiled := rules.Compile(test.in)
			want := append([]string{}, builtIn...)
			for _, name := range test.want {
				want = append(want, "machine-drain-rule/"+name)
			}
			if got := names(compiled); !reflect.DeepEqual(got, want) {
				t.Errorf("rules are %v, want %v", got, want)
			}
			if len(compiled.Problems) > 0 {
				t.Errorf("unexpected problems: %v", compiled.Problems)
			}
		})
	}
}

func TestCompileDaemonSetPods(t *testing.T) {
	for policy, wantRule := range map[v1alpha1.DaemonSetPodsPolicy]bool{"": true, "Skip": true, "nonsense": true, "Drain": false} {
		t.Run(fmt.Sprintf("M1: daemonset-pods is left out where the policy drains them: %q", policy), func(t *testing.T) {
			compiled := rules.Compile(rules.Input{DaemonSetPods: policy})
			if got := strings.Contains(strings.Join(names(compiled), " "), rules.RuleDaemonSetPods); got != wantRule {
				t.Errorf("rule is there: %v, want %v", got, wantRule)
			}
		})
	}
}

func TestCompileContents(t *testing.T) {
	compileOne := func(t *testing.T, r clusterv1.MachineDrainRule) v1alpha1.DrainRule {
		t.Helper()
		compiled := rules.Compile(input(r))
		if len(compiled.Problems) > 0 {
			t.Fatalf("unexpected problems: %v", compiled.Problems)
		}
		return compiled.Rules[len(compiled.Rules)-1]
	}
	t.Run("M3: behavior, order and selectors are taken over", func(t *testing.T) {
		got := compileOne(t, mdr("a", drain, order(-7), pods(matching("app", "db"), matching("team", "x")), pods(nil, all())))
		seven := int32(-7)
		want := v1alpha1.DrainRule{Name: "machine-drain-rule/a", Behavior: "Drain", Order: &seven, Pods: []v1alpha1.DrainRulePodSelector{
			{Selector: matching("app", "db"), NamespaceSelector: matching("team", "x")}, {NamespaceSelector: all()},
		}}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
	t.Run("M3: an entry without selectors selects all, and fits our schema", func(t *testing.T) {
		got := compileOne(t, mdr("a", skip, pods(nil, nil)))
		if want := []v1alpha1.DrainRulePodSelector{{Selector: all()}}; !reflect.DeepEqual(got.Pods, want) {
			t.Errorf("got %+v, want %+v", got.Pods, want)
		}
	})
	t.Run("M5: WaitCompleted has order 0", func(t *testing.T) {
		if got := compileOne(t, mdr("a", waitCompleted, order(3))); got.Order != nil {
			t.Errorf("order is %d", *got.Order)
		}
	})
	t.Run("the result shares no memory with the input", func(t *testing.T) {
		in := mdr("a", skip, pods(matching("app", "db"), nil))
		got := compileOne(t, in)
		got.Pods[0].Selector.MatchLabels["app"] = "changed"
		if in.Spec.Pods[0].Selector.MatchLabels["app"] != "db" {
			t.Error("the cached MachineDrainRule was changed")
		}
	})
}

func TestCompileProblems(t *testing.T) {
	windows, linux := matching("os", "windows"), matching("os", "linux")
	many := func(n int) (result []clusterv1.MachineDrainRule) {
		for i := range n {
			result = append(result, mdr(fmt.Sprintf("r%04d", i), skip))
		}
		return result
	}
	manyPods := func(r *clusterv1.MachineDrainRule) {
		for range 33 {
			pods(matching("a", "b"), nil)(r)
		}
	}
	for _, test := range []struct {
		name    string
		in      rules.Input
		want    []string
		message string // part of the first one
	}{
		{"M6: an invalid Pod selector of a rule that selects the Machine",
			input(mdr("a", skip), mdr("b", skip, pods(brokenSelector(), nil))), []string{"machine-drain-rule/b"}, `pods[0].selector is invalid: "Resembles"`},
		{
			"M6: an invalid Namespace selector", input(mdr("b", skip, pods(nil, all()), pods(nil, brokenSelector()))), []string{"machine-drain-rule/b"},
			"pods[1].namespaceSelector",
		},
		{"M6: an invalid rule for other Machines", input(mdr("b", skip, machines(windows, nil), pods(brokenSelector(), nil))), nil, ""},
		{"M6: an invalid rule of another Namespace", input(mdr("b", "?", inNamespace("other"))), nil, ""},
		{"M6: a machine selector that can't be read may select", input(mdr("b", skip, machines(brokenSelector(), nil))), []string{"machine-drain-rule/b"},
			"it may select this Machine: spec.machines[0].selector"},
		{
			"M6: a cluster selector that can't be read may select",
			input(mdr("b", skip, machines(linux, brokenSelector()))), []string{"machine-drain-rule/b"}, "spec.machines[0].clusterSelector",
		},
		{"M6: a machine selector that can't be read, in an entry for other Machines", input(mdr("b", skip, machines(windows, brokenSelector()))), nil, ""},
		{"M6: a machine selector that can't be read, beside one that selects", input(mdr("b", skip, machines(brokenSelector(), nil), machines(linux, nil))), nil, ""},
		{"M6: an unknown behavior", input(mdr("b", "Shove")), []string{"machine-drain-rule/b"}, `behavior "Shove" is unknown`},
		{"M6: more entries than a rule holds", input(mdr("b", skip, manyPods)), []string{"machine-drain-rule/b"}, "33 entries"},
		{"M6: a name that doesn't fit", input(mdr(strings.Repeat("x", 400), skip)), []string{"machine-drain-rule/" + strings.Repeat("x", 400)}, "longer"},
		{"M6: as many rules as a NodeMaintenance holds", input(many(251)...), nil, ""},
		{
			"M6: more rules than a NodeMaintenance holds",
			input(many(252)...), []string{"too-many-rules"}, "257 drain rules apply to this Machine, 5 of them built in; a NodeMaintenance can contain 256",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			compiled := rules.Compile(test.in)
			if got := problems(compiled); !reflect.DeepEqual(got, test.want) {
				t.Fatalf("problems are %v, want %v", compiled.Problems, test.want)
			}
			if len(test.want) > 0 && !strings.Contains(compiled.Problems[0].Message, test.message) {
				t.Errorf("message is %q, want %q in it", compiled.Problems[0].Message, test.message)
			}
			if len(compiled.Rules) > rules.MaxRules {
				t.Errorf("%d rules do not fit", len(compiled.Rules))
			}
		})
	}
}

func TestCompileLimitsBytes(t *testing.T) { // M6
	huge := brokenSelector()
	huge.MatchExpressions[0].Operator = "In"
	for i := range 5000 {
		huge.MatchExpressions[0].Values = append(huge.MatchExpressions[0].Values, fmt.Sprintf("a-value-that-takes-its-room-%030d", i))
	}
	compiled := rules.Compile(input(mdr("a", skip), mdr("b", skip, pods(huge, nil))))
	if !reflect.DeepEqual(problems(compiled), []string{rules.RuleTooLarge}) || len(compiled.Rules) != len(builtIn)+1 {
		t.Errorf("got %v and %d rules", compiled.Problems, len(compiled.Rules))
	}
}

func TestCompileIsIndependentOfTheOrderOfItsInput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mdrs := rapid.SliceOfNDistinct(drawMDR(), 0, 8, func(r clusterv1.MachineDrainRule) string { return r.Namespace + "/" + r.Name }).Draw(t, "rules")
		shuffled := rapid.Permutation(mdrs).Draw(t, "shuffled")
		if a, b := rules.Compile(input(mdrs...)), rules.Compile(input(shuffled...)); !reflect.DeepEqual(a, b) {
			t.Fatalf("%+v\nis not\n%+v", a, b)
		}
	})
}

// TestCompiledRulesParse: what Compile lets through, a Matcher can read.
func TestCompiledRulesParse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		compiled := rules.Compile(input(rapid.SliceOfN(drawMDR(), 0, 8).Draw(t, "rules")...))
		if problems := rules.NewMatcher(compiled.Rules).Problems(); len(problems) > 0 {
			t.Fatalf("compiled rules have problems: %v", problems)
		}
	})
}

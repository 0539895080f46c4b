package rules_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// TestFirstMatchWins compares with the plainest possible reading, where everything is known and every rule can be parsed.
func TestFirstMatchWins(t *testing.T) { // M1, M3
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(drawRule().Filter(readable), 0, 6).Draw(t, "rules")
		p := drawPod().Draw(t, "pod")
		p.NamespaceKnown, p.TypeKnown = true, true

		want := rules.Verdict{Behavior: v1alpha1.DrainBehaviorDrain}
		for _, rule := range list {
			if plainlyMatches(rule, p) {
				want = rules.Verdict{Behavior: rule.Behavior, Rule: rule.Name}
				if rule.Behavior == v1alpha1.DrainBehaviorDrain && rule.Order != nil {
					want.Order = *rule.Order
				}
				break
			}
		}
		got := rules.NewMatcher(list).Decide(p)
		got.Reason = ""
		if got != want {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

func readable(rule v1alpha1.DrainRule) bool {
	return len(rules.NewMatcher([]v1alpha1.DrainRule{rule}).Problems()) == 0
}

func plainlyMatches(rule v1alpha1.DrainRule, p rules.Pod) bool {
	selects := func(s *metav1.LabelSelector, set labels) bool {
		if s == nil {
			return true
		}
		parsed, err := metav1.LabelSelectorAsSelector(s)
		return err == nil && parsed.Matches(k8slabels.Set(set))
	}
	for _, e := range rule.Pods {
		label, _ := rules.DrainLabel(p.Labels)
		if (e.PodType == "" || e.PodType == p.Type) && (e.DrainLabel == "" || e.DrainLabel == label) &&
			selects(e.Selector, p.Labels) && selects(e.NamespaceSelector, p.NamespaceLabels) {
			return true
		}
	}
	return len(rule.Pods) == 0
}

// TestUndecidedIsSound: a verdict that was reached without knowing all is the one that is reached when it is known, whatever
// it turns out to be.
func TestUndecidedIsSound(t *testing.T) { // M6
	rapid.Check(t, func(t *rapid.T) {
		matcher := rules.NewMatcher(rapid.SliceOfN(drawRule(), 0, 6).Draw(t, "rules"))
		p := drawPod().Draw(t, "pod")
		p.Finished = false
		early := matcher.Decide(p)
		if early.Unread && (early.Undecided == "" || p.NamespaceKnown && p.TypeKnown) { // E62
			t.Fatalf("unread, but not undecided, or all is read: %+v", early)
		}
		if early.Undecided != "" {
			return
		}
		if !p.NamespaceKnown {
			p.NamespaceKnown, p.NamespaceLabels = true, drawLabels().Draw(t, "namespace labels, at last")
		}
		if !p.TypeKnown {
			p.TypeKnown, p.Type = true, rapid.SampledFrom([]v1alpha1.PodType{"Default", "DaemonSet"}).Draw(t, "type, at last")
		}
		if late := matcher.Decide(p); late.Behavior != early.Behavior || late.Order != early.Order {
			t.Fatalf("decided %+v, and then %+v", early, late)
		}
	})
}

// TestSkipLabelBeatsAnyRule: M1, and M6 for an invalid rule.
func TestSkipLabelBeatsAnyRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		compiled := rules.Compile(input(rapid.SliceOfN(drawMDR(), 0, 6).Draw(t, "rules")...))
		list := slices.Concat(compiled.Rules, rapid.SliceOfN(drawRule(), 0, 3).Draw(t, "more rules"))
		p := drawPod().Draw(t, "pod")
		p.TypeKnown, p.NamespaceKnown = true, true
		if p.Labels == nil {
			p.Labels = labels{}
		}
		p.Labels[clusterv1.PodDrainLabel] = rapid.SampledFrom([]string{"skip", "SKIP", "Skip"}).Draw(t, "label")
		if got := rules.NewMatcher(list).Decide(p); got.Behavior != v1alpha1.DrainBehaviorSkip {
			t.Fatalf("got %+v", got)
		}
	})
}

func FuzzMatcherDecide(f *testing.F) {
	f.Add([]byte(`[{"name":"a","behavior":"Skip","pods":[{"selector":{"matchLabels":{"app":"db"}}}]}]`), []byte(`{"app":"db"}`), []byte(`{}`), true)
	f.Add([]byte(`[{"name":"a","behavior":"Drain","order":-1,"pods":[{"podType":"DaemonSet",`+
		`"namespaceSelector":{"matchExpressions":[{"key":"x","operator":"In"}]}}]}]`), []byte(`{}`), []byte(`{"x":"y"}`), false)
	f.Add([]byte(`[{"name":"a","behavior":"","order":7,"pods":[{"drainLabel":"Skip"},{}]},{"behavior":"WaitCompleted","order":7}]`),
		[]byte(`{"cluster.x-k8s.io/drain":"sKip"}`), []byte(`null`), true)
	f.Add([]byte(`[{"name":"\u00ff","behavior":"\u00ffDrain","pods":[{"selector":{"matchExpressions":[{"key":"//","operator":"Gt","values":["1e9"]}]}}]}]`),
		[]byte(`{"//":"-"}`), []byte(`{}`), false)
	f.Fuzz(func(t *testing.T, rulesJSON, labelsJSON, namespaceJSON []byte, known bool) {
		var list []v1alpha1.DrainRule
		var podLabels, namespaceLabels labels
		if json.Unmarshal(rulesJSON, &list) != nil || json.Unmarshal(labelsJSON, &podLabels) != nil || json.Unmarshal(namespaceJSON, &namespaceLabels) != nil {
			return
		}
		matcher := rules.NewMatcher(list)
		p := rules.Pod{
			Namespace: "n", Name: "p", Labels: podLabels, NamespaceLabels: namespaceLabels, NamespaceKnown: known, Type: v1alpha1.PodTypeDefault, TypeKnown: known,
		}
		got := matcher.Decide(p)
		if (got.Behavior == "") != (got.Undecided != "") {
			t.Errorf("behavior %q and undecided %q don't go together", got.Behavior, got.Undecided)
		}
		if got.Behavior != v1alpha1.DrainBehaviorDrain && got.Order != 0 {
			t.Errorf("%s has order %d", got.Behavior, got.Order)
		}
		for _, text := range []string{got.Reason, got.Undecided} {
			if utf8.RuneCountInString(text) > 512 {
				t.Errorf("a text of %d characters does not fit into a status", utf8.RuneCountInString(text))
			}
		}
		if again := matcher.Decide(p); !reflect.DeepEqual(got, again) {
			t.Errorf("first %+v, then %+v", got, again)
		}
		for _, problem := range matcher.Problems() {
			if utf8.RuneCountInString(problem.Message) > 512 {
				t.Errorf("a problem of %d bytes", len(problem.Message))
			}
		}
	})
}

func FuzzDrainLabel(f *testing.F) {
	for _, value := range []string{"", "skip", "SKIP", "wait-completed", "waitcompleted", "Wait-Completed", "wait--completed", "s-kip", "-waitcompleted", "\xff"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		behavior, unknownValue := rules.DrainLabel(labels{clusterv1.PodDrainLabel: value})
		if (behavior == "") != (unknownValue != "") {
			t.Fatalf("%q: behavior %q, unknown value %q", value, behavior, unknownValue)
		}
		if !utf8.ValidString(value) {
			return
		}
		// What Cluster API does, see core/reconcilers/machine/drain/filters.go, drainLabelFilter.
		var want v1alpha1.DrainBehavior
		switch {
		case strings.EqualFold(value, string(clusterv1.MachineDrainRuleDrainBehaviorSkip)):
			want = v1alpha1.DrainBehaviorSkip
		case strings.EqualFold(strings.Replace(value, "-", "", 1), string(clusterv1.MachineDrainRuleDrainBehaviorWaitCompleted)):
			want = v1alpha1.DrainBehaviorWaitCompleted
		}
		if behavior != want {
			t.Errorf("%q: got %q, want %q", value, behavior, want)
		}
	})
}

package rules_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// says is what a test expects of a verdict.
type says struct {
	behavior v1alpha1.DrainBehavior
	order    int32
	rule     string
	reason   string
}

func TestDecide(t *testing.T) {
	db, teamX := matching("app", "db"), matching("team", "x")
	skipLabel := labels{clusterv1.PodDrainLabel: "skip"}
	asDB := labels{"app": "db"}
	ruled := func(behavior v1alpha1.DrainBehavior, order int32, name string) says {
		return says{behavior, order, "machine-drain-rule/" + name, "rule machine-drain-rule/" + name}
	}
	undisturbed := says{"Drain", 0, "", "no rule matches"}
	for _, test := range []struct {
		name string
		mdrs []clusterv1.MachineDrainRule
		pod  rules.Pod
		want says
	}{
		{"M1: no rule matches: Drain, order 0", nil, pod(nil), undisturbed},
		{
			"M1: static beats label and rule", []clusterv1.MachineDrainRule{mdr("a", drain)}, pod(skipLabel, ofType("Static")),
			says{"Skip", 0, "static-pods", "rule static-pods"},
		},
		{
			"M1: DaemonSet beats label and rule", []clusterv1.MachineDrainRule{mdr("a", drain)},
			pod(labels{clusterv1.PodDrainLabel: "wait-completed"}, ofType("DaemonSet")),
			says{"Skip", 0, "daemonset-pods", "rule daemonset-pods"},
		},
		{"M1: the node agent is skipped", []clusterv1.MachineDrainRule{mdr("a", drain)},
			pod(labels{"app.kubernetes.io/name": "capnm-node-agent"}, inNamespaceLabelled(labels{"kubernetes.io/metadata.name": "capnm-node-agent"})),
			says{"Skip", 0, "node-agent", "rule node-agent"}},
		{"M1: a pod that pretends to be the node agent is not", nil, pod(labels{"app.kubernetes.io/name": "capnm-node-agent"}), undisturbed},
		{"M1: the label beats rules", []clusterv1.MachineDrainRule{mdr("a", drain, order(1))}, pod(skipLabel),
			says{"Skip", 0, "drain-label-skip", "label cluster.x-k8s.io/drain: skip"}},
		{"M2: wait-completed in any spelling", nil, pod(labels{clusterv1.PodDrainLabel: "WaitCompleted"}),
			says{"WaitCompleted", 0, "drain-label-wait-completed", "label cluster.x-k8s.io/drain: wait-completed"}},
		{
			"M2: an unknown value counts as no label",
			[]clusterv1.MachineDrainRule{mdr("a", drain, order(5))}, pod(labels{clusterv1.PodDrainLabel: "please-not"}), ruled("Drain", 5, "a"),
		},
		{"M3: the first match by name decides", []clusterv1.MachineDrainRule{mdr("b", skip), mdr("a", drain, order(2))}, pod(nil), ruled("Drain", 2, "a")},
		{
			"M3: skips a rule that does not match", []clusterv1.MachineDrainRule{mdr("a", drain, order(2), pods(db, nil)), mdr("b", skip)}, pod(nil),
			ruled("Skip", 0, "b"),
		},
		{
			"M3: entries are alternatives", []clusterv1.MachineDrainRule{mdr("a", skip, pods(matching("app", "web"), nil), pods(db, nil))}, pod(asDB),
			ruled("Skip", 0, "a"),
		},
		{"M3: both selectors must match", []clusterv1.MachineDrainRule{mdr("a", skip, pods(db, teamX))}, pod(asDB), undisturbed},
		{
			"M3: namespaces are selected by their labels",
			[]clusterv1.MachineDrainRule{mdr("a", skip, pods(db, teamX))}, pod(asDB, inNamespaceLabelled(labels{"team": "x"})), ruled("Skip", 0, "a"),
		},
		{"M3: empty selectors select all", []clusterv1.MachineDrainRule{mdr("a", skip, pods(all(), all()))}, pod(nil), ruled("Skip", 0, "a")},
		{"M3: the lowest order", []clusterv1.MachineDrainRule{mdr("a", drain, order(-2147483648))}, pod(nil), ruled("Drain", -2147483648, "a")},
		{"M3: no order is 0", []clusterv1.MachineDrainRule{mdr("a", drain)}, pod(nil), ruled("Drain", 0, "a")},
		{
			"M5: WaitCompleted has order 0, whatever is written",
			[]clusterv1.MachineDrainRule{mdr("a", waitCompleted, order(9))}, pod(nil), ruled("WaitCompleted", 0, "a"),
		},
		{
			"M6: decides without the labels of a Namespace if no rule selects by them",
			[]clusterv1.MachineDrainRule{mdr("a", skip, pods(db, all()))}, pod(asDB, namespaceUnknown), ruled("Skip", 0, "a"),
		},
		{
			"M6: decides without the labels of the Namespace if the podSelector does not match",
			[]clusterv1.MachineDrainRule{mdr("a", skip, pods(db, teamX))}, pod(nil, namespaceUnknown), undisturbed,
		},
		{
			"M6: decides without the labels of the Namespace if an earlier rule matches",
			[]clusterv1.MachineDrainRule{mdr("a", skip, pods(db, nil)), mdr("b", skip, pods(nil, teamX))}, pod(asDB, namespaceUnknown), ruled("Skip", 0, "a"),
		},
		{
			"M6: decides without the labels of the Namespace if another entry of the rule matches",
			[]clusterv1.MachineDrainRule{mdr("a", skip, pods(nil, teamX), pods(db, nil))}, pod(asDB, namespaceUnknown), ruled("Skip", 0, "a"),
		},
		{"M8: a finished pod has the verdict of its rule", []clusterv1.MachineDrainRule{mdr("a", waitCompleted)}, pod(nil, finished), ruled("WaitCompleted", 0, "a")},
		{
			"M8: decides for a finished Pod without knowing its DaemonSet",
			nil, pod(nil, typeUnknown, finished), says{"Skip", 0, "daemonset-pods", "the Pod has finished"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			compiled := rules.Compile(input(test.mdrs...))
			if len(compiled.Problems) > 0 {
				t.Fatalf("unexpected problems: %v", compiled.Problems)
			}
			got := rules.NewMatcher(compiled.Rules).Decide(test.pod)
			want := rules.Verdict{Behavior: test.want.behavior, Order: test.want.order, Rule: test.want.rule, Reason: test.want.reason}
			if got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestUndecided(t *testing.T) {
	rule := func(name string, behavior v1alpha1.DrainBehavior, entries ...v1alpha1.DrainRulePodSelector) v1alpha1.DrainRule {
		return v1alpha1.DrainRule{Name: name, Behavior: behavior, Pods: entries}
	}
	type entry = v1alpha1.DrainRulePodSelector
	for _, test := range []struct {
		name  string
		rules []v1alpha1.DrainRule
		pod   rules.Pod
		want  string // empty: decided
	}{
		{
			"M6: does not decide without the labels of the Namespace",
			[]v1alpha1.DrainRule{rule("r", "Skip", entry{NamespaceSelector: matching("team", "x")})}, pod(nil, namespaceUnknown),
			`cannot evaluate rule r: the labels of Namespace "default" are not known yet`,
		},
		{
			"M6: does not decide a rule for Pods of DaemonSets while the DaemonSet is not known",
			[]v1alpha1.DrainRule{rule("r", "Skip", entry{PodType: "DaemonSet"})}, pod(nil, typeUnknown),
			"cannot evaluate rule r: whether the DaemonSet of the Pod exists is not known yet",
		},
		{
			"M6: does not decide a rule for ordinary Pods while the DaemonSet is not known",
			[]v1alpha1.DrainRule{rule("r", "Skip", entry{PodType: "Default"})}, pod(nil, typeUnknown),
			"cannot evaluate rule r: whether the DaemonSet of the Pod exists is not known yet",
		},
		{"R22: a Pod whose DaemonSet is not known is not static", []v1alpha1.DrainRule{rule("r", "Skip", entry{PodType: "Static"})}, pod(nil, typeUnknown), ""},
		{"M6: an invalid selector", []v1alpha1.DrainRule{rule("r", "Skip", entry{Selector: brokenSelector()})}, pod(nil),
			`cannot evaluate rule r: the selector is invalid: "Resembles" is not a valid label selector operator`},
		{
			"M6: an invalid key of matchLabels, which the API server accepts",
			[]v1alpha1.DrainRule{rule("r", "Skip", entry{Selector: matching("not a key", "x")})}, pod(nil),
			`cannot evaluate rule r: the selector is invalid: key: Invalid value: "not a key": name part must consist of ` +
				`alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. ` +
				`'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`,
		},
		{
			"M6: an invalid selector does not affect Pods that an earlier rule matches",
			[]v1alpha1.DrainRule{rule("q", "Drain"), rule("r", "Skip", entry{Selector: brokenSelector()})}, pod(nil), "",
		},
		{
			"M6: an invalid selector does not affect Pods that another part of the entry excludes",
			[]v1alpha1.DrainRule{rule("r", "Skip", entry{PodType: "Static", Selector: brokenSelector()})}, pod(nil), "",
		},
		{
			"M6: decides without a rule if the next matching rule has the same behavior and order",
			[]v1alpha1.DrainRule{rule("r", "Skip", entry{NamespaceSelector: matching("team", "x")}), rule("s", "Skip")}, pod(nil, namespaceUnknown), "",
		},
		{
			"M6: decides without a rule that has the default behavior",
			[]v1alpha1.DrainRule{rule("r", "Drain", entry{NamespaceSelector: matching("team", "x")})}, pod(nil, namespaceUnknown), "",
		},
		{
			"E62: an invalid selector beside unknown labels of the Namespace",
			[]v1alpha1.DrainRule{rule("r", "Skip", entry{Selector: brokenSelector(), NamespaceSelector: matching("team", "x")})}, pod(nil, namespaceUnknown),
			`cannot evaluate rule r: the selector is invalid: "Resembles" is not a valid label selector operator`,
		},
		{"M6: an unknown behavior", []v1alpha1.DrainRule{rule("r", "Shove")}, pod(nil), `cannot evaluate rule r: behavior "Shove" is unknown`},
		{
			"M6: an unknown behavior does not affect Pods that the rule does not match",
			[]v1alpha1.DrainRule{rule("r", "Shove", entry{Selector: matching("a", "x")})}, pod(nil), "",
		},
		{"M6: an unknown podType", []v1alpha1.DrainRule{rule("r", "Skip", entry{PodType: "Odd"})}, pod(nil), `cannot evaluate rule r: podType "Odd" is unknown`},
		{
			"M6: an unknown drainLabel", []v1alpha1.DrainRule{rule("r", "Skip", entry{DrainLabel: "Drain"})}, pod(nil),
			`cannot evaluate rule r: drainLabel "Drain" is unknown`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := rules.NewMatcher(test.rules).Decide(test.pod)
			if got.Undecided != test.want {
				t.Errorf("got  %q\nwant %q", got.Undecided, test.want)
			}
			if unread := strings.HasSuffix(test.want, "not known yet"); got.Unread != unread {
				t.Errorf("E62: unread is %t, want %t", got.Unread, unread)
			}
			if (got.Behavior == "") != (got.Undecided != "") {
				t.Errorf("behavior %q and undecided %q don't go together", got.Behavior, got.Undecided)
			}
		})
	}
}

func TestMatcherProblems(t *testing.T) {
	matcher := rules.NewMatcher([]v1alpha1.DrainRule{
		{Name: "fine", Behavior: "Skip"},
		{Name: "invalid", Behavior: "Skip", Pods: []v1alpha1.DrainRulePodSelector{{}, {NamespaceSelector: brokenSelector()}}},
		{Name: "odd", Behavior: "Shove"},
	})
	got := matcher.Problems()
	if len(got) != 2 || got[0].Rule != "invalid" || got[1].Rule != "odd" || !strings.HasPrefix(got[0].Message, "pods[1].namespaceSelector is invalid: ") {
		t.Errorf("got %v", got)
	}
	if none := rules.NewMatcher(nil); len(none.Problems()) != 0 || none.Decide(pod(nil)).Behavior != v1alpha1.DrainBehaviorDrain {
		t.Error("without rules everything drains")
	}
}

func TestSkips(t *testing.T) {
	protects := v1alpha1.DrainRule{Name: "protects", Behavior: v1alpha1.DrainBehaviorSkip, Pods: []v1alpha1.DrainRulePodSelector{
		{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"system": "true"}}},
	}}
	for name, test := range map[string]struct {
		pod  rules.Pod
		want bool
	}{
		"a Pod that a rule skips": {rules.Pod{NamespaceKnown: true, NamespaceLabels: map[string]string{"system": "true"}}, true},
		"a finished Pod that a rule skips": {
			rules.Pod{NamespaceKnown: true, NamespaceLabels: map[string]string{"system": "true"}, Finished: true}, true,
		},
		"not a Pod that no rule skips":                          {rules.Pod{NamespaceKnown: true}, false},
		"not a Pod for which the rules cannot be evaluated":     {rules.Pod{}, false},
		"not a finished Pod for which they cannot be evaluated": {rules.Pod{Finished: true}, false},
	} {
		t.Run("M20: "+name, func(t *testing.T) {
			test.pod.Type, test.pod.TypeKnown = v1alpha1.PodTypeDefault, true
			if got := rules.NewMatcher([]v1alpha1.DrainRule{protects}).Skips(test.pod); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}

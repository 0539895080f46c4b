package signals_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/drain/signals"
)

type (
	rule    = admissionregistrationv1.RuleWithOperations
	webhook = admissionregistrationv1.ValidatingWebhook
)

func creating(groups string, resources ...string) rule {
	return rule{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{groups}, APIVersions: []string{"v1"}, Resources: resources},
	}
}

type named struct{ webhook }

func (r named) with(change func(*webhook)) named {
	change(&r.webhook)
	return r
}

func receiving(rules ...rule) named {
	return named{webhook{Name: "moves.example.com", Rules: rules, NamespaceSelector: &metav1.LabelSelector{}}}
}

func selecting(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func TestReceivers(t *testing.T) {
	ofPods := creating("", "pods/eviction")
	for _, test := range []struct {
		name    string
		webhook named
		want    bool
	}{
		{"E73: KubeVirt and Strimzi's drain cleaner name pods/eviction", receiving(ofPods), true},
		{"E73: a webhook may name two other resources", receiving(ofPods, creating("", "pods", "nodes")), true},
		{"E73: a webhook may be called for all operations, groups and versions of pods/eviction", receiving(rule{
			Operations: []admissionregistrationv1.OperationType{"*"},
			Rule: admissionregistrationv1.Rule{
				APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"pods/eviction"}, Scope: ptr.To(admissionregistrationv1.AllScopes),
			},
		}), true},
		{"E73: Gatekeeper names all resources and pods/eviction", receiving(creating("*", "*", "pods/ephemeralcontainers", "pods/exec", "pods/eviction")), false},
		{"E73: Kyverno names the resources of its policies", receiving(ofPods, creating("", "pods", "services"), creating("apps", "deployments")), false},
		{"E73: a webhook for all subresources of Pods", receiving(creating("", "pods/*")), false},
		{"E73: a webhook for everything in another rule", receiving(ofPods, creating("*", "*/*")), false},
		{"E73: a webhook for Pods", receiving(creating("", "pods")), false},
		{"E73: a webhook for evictions of another API group", receiving(creating("example.com", "pods/eviction")), false},
		{
			"E73: a webhook for another version",
			receiving(rule{
				Operations: ofPods.Operations,
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v2"}, Resources: []string{"pods/eviction"}},
			}), false,
		},
		{
			"E73: a webhook for updates", receiving(rule{Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update}, Rule: ofPods.Rule}), false,
		},
		{"E73: a webhook for cluster-scoped resources", receiving(rule{Operations: ofPods.Operations, Rule: admissionregistrationv1.Rule{
			APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}, Scope: ptr.To(admissionregistrationv1.ClusterScope),
		}}), false},
		{"E73: a webhook without rules", receiving(), false},
		{"E73: a webhook for the Namespace", receiving(ofPods).with(func(w *webhook) { w.NamespaceSelector = selecting("name", "shop") }), true},
		{"E73: a webhook for other Namespaces", receiving(ofPods).with(func(w *webhook) { w.NamespaceSelector = selecting("name", "other") }), false},
		{"E73: a webhook without a namespaceSelector", receiving(ofPods).with(func(w *webhook) { w.NamespaceSelector = nil }), true},
		{"E73: a webhook with an invalid namespaceSelector", receiving(ofPods).with(func(w *webhook) { w.NamespaceSelector = selecting("-", "/") }), false},
		{"E73: an Eviction has no labels", receiving(ofPods).with(func(w *webhook) { w.ObjectSelector = selecting("app", "db") }), false},
		{"E73: matchConditions do not count", receiving(ofPods).with(func(w *webhook) {
			w.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "some", Expression: "false"}}
		}), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			validating := admissionregistrationv1.ValidatingWebhookConfiguration{Webhooks: []webhook{test.webhook.webhook}}
			mutating := admissionregistrationv1.MutatingWebhookConfiguration{Webhooks: []admissionregistrationv1.MutatingWebhook{{
				Name: "moves.example.com", Rules: test.webhook.Rules, NamespaceSelector: test.webhook.NamespaceSelector, ObjectSelector: test.webhook.ObjectSelector,
			}}}
			var want []string
			if test.want {
				want = []string{"moves.example.com"}
			}
			for name, receivers := range map[string]signals.Receivers{
				"validating": signals.ReceiversOf([]admissionregistrationv1.ValidatingWebhookConfiguration{validating}, nil),
				"mutating":   signals.ReceiversOf(nil, []admissionregistrationv1.MutatingWebhookConfiguration{mutating}),
				"both": signals.ReceiversOf([]admissionregistrationv1.ValidatingWebhookConfiguration{validating},
					[]admissionregistrationv1.MutatingWebhookConfiguration{mutating}),
			} {
				if got := receivers.Of(map[string]string{"name": "shop"}, nil); !slices.Equal(got, want) {
					t.Errorf("%s: got %v", name, got)
				}
			}
		})
	}
}

func TestNamedReceivers(t *testing.T) {
	const name = "moves.example.com"
	for _, test := range []struct {
		name    string
		webhook named
		named   string
		want    bool
	}{
		{"E73: Gatekeeper, if it is named", receiving(creating("*", "*", "pods/exec", "pods/eviction")), name, true},
		{"E73: a webhook for everything, if it is named", receiving(creating("*", "*/*")), name, true},
		{"E73: a webhook for all subresources of Pods, if it is named", receiving(creating("", "pods/*")), name, true},
		{"E73: a webhook for all evictions, if it is named", receiving(creating("", "*/eviction")), name, true},
		{"E73: not if another one is named", receiving(creating("*", "*/*")), "other.example.com", false},
		{"E73: the wildcard for all resources includes no subresources", receiving(creating("*", "*")), name, false},
		{
			"E73: not if it is named and for other Namespaces",
			receiving(creating("*", "*/*")).with(func(w *webhook) { w.NamespaceSelector = selecting("name", "other") }), name, false,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			receivers := signals.ReceiversOf([]admissionregistrationv1.ValidatingWebhookConfiguration{{Webhooks: []webhook{test.webhook.webhook}}}, nil)
			if got := receivers.Of(map[string]string{"name": "shop"}, []string{test.named}); (len(got) > 0) != test.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestMessage(t *testing.T) {
	const waits = "Waiting for PodDisruptionBudget shop/db: 1 healthy Pod required"
	for _, test := range []struct {
		name      string
		receivers []string
		want      string
	}{
		{
			"E75: names the webhook", []string{"moves.example.com"},
			waits + "; webhook moves.example.com receives the eviction requests of this Pod; its owner may move the Pod",
		},
		{"E75: names the webhooks", []string{"a", "b"}, waits + "; webhooks a, b receive the eviction requests of this Pod; their owners may move the Pod"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := signals.Message(waits, test.receivers); got != test.want {
				t.Errorf("got %q", got)
			}
		})
	}
	t.Run("E75: is not longer than a message may be", func(t *testing.T) {
		long := strings.Repeat("ä", 600)
		got := signals.Message(long, []string{long, long, long, long})
		if n := utf8.RuneCountInString(got); n > 512 || !strings.HasSuffix(got, "their owners may move the Pod") {
			t.Errorf("%d characters: %q", n, got)
		}
	})
}

func TestNext(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration, budget string) signals.Sent {
		return signals.Sent{At: now.Add(-d), Budget: budget}
	}
	one, two, three := signals.Pod{UID: "1", Budget: "n/a"}, signals.Pod{UID: "2", Budget: "n/b"}, signals.Pod{UID: "3", Budget: "n/a"}
	other := signals.Pod{UID: "4", Budget: "other/a"}
	younger := signals.Pod{UID: "5", Budget: "n/a", DrainStart: now}
	never := younger
	never.NeverAllows = true
	unanswered := signals.Sent{At: now.Add(-time.Minute), Budget: "n/a", InFlight: true}
	unansweredToo := signals.Sent{At: now.Add(-time.Minute), Budget: "n/c", InFlight: true}
	lately := ago(500*time.Millisecond, "n/c")
	for _, test := range []struct {
		name    string
		waiting []signals.Pod
		sent    map[types.UID]signals.Sent
		due     []signals.Pod
		at      time.Duration
	}{
		{name: "E74: decides nothing if no Pod waits"},
		{"E74: signals once at first", []signals.Pod{one}, nil, []signals.Pod{one}, signals.Interval},
		{"E74: signals again after 20 s", []signals.Pod{one}, map[types.UID]signals.Sent{"1": ago(20*time.Second, "n/a")}, []signals.Pod{one}, signals.Interval},
		{"E74: does not signal earlier", []signals.Pod{one}, map[types.UID]signals.Sent{"1": ago(19*time.Second, "n/a")}, nil, time.Second},
		{"E74: signals one Pod of a budget at a time", []signals.Pod{one, two, three}, nil, []signals.Pod{one, two}, time.Second},
		{
			"E74: the Pod that waits longest is next",
			[]signals.Pod{one, three}, map[types.UID]signals.Sent{"1": ago(30*time.Second, "n/a"), "3": ago(40*time.Second, "n/a")}, []signals.Pod{three}, time.Second,
		},
		{"E74: waits for the response about a Pod", []signals.Pod{one}, map[types.UID]signals.Sent{"1": unanswered}, nil, 0},
		{
			"E74: waits for the response about another Pod of the budget",
			[]signals.Pod{two, three}, map[types.UID]signals.Sent{"1": unanswered}, []signals.Pod{two}, time.Second,
		},
		{
			"E71: a Namespace that has got no signal lately is first",
			[]signals.Pod{one, two, other}, map[types.UID]signals.Sent{"6": lately, "7": lately, "8": lately, "9": lately}, []signals.Pod{other}, time.Second,
		},
		{
			"E71: a webhook that hangs for a Namespace does not use up the signals of others",
			[]signals.Pod{two, other}, map[types.UID]signals.Sent{"1": unanswered, "6": unansweredToo}, []signals.Pod{other}, time.Second,
		},
		{
			"E72: signals no Pod of a younger drain, since its budget may allow a disruption",
			[]signals.Pod{younger, one}, map[types.UID]signals.Sent{"1": ago(19*time.Second, "n/a")}, nil, time.Second,
		},
		{
			"E72: but if the budget never allows one",
			[]signals.Pod{never, one}, map[types.UID]signals.Sent{"1": ago(19*time.Second, "n/a")}, []signals.Pod{never}, time.Second,
		},
		{
			"E74: a webhook that hangs does not use up the evictions", []signals.Pod{one},
			map[types.UID]signals.Sent{"2": {InFlight: true}, "3": {InFlight: true}, "4": {InFlight: true}, "5": {InFlight: true}}, nil, time.Second,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			due, at := signals.Next(test.waiting, test.sent, now)
			if !slices.Equal(due, test.due) {
				t.Errorf("due: %v", due)
			}
			if want := now.Add(test.at); test.at != 0 && !at.Equal(want) || test.at == 0 && !at.IsZero() {
				t.Errorf("at: %s", at)
			}
		})
	}
}

// TestNextOverTime tests the limits, and that no Pod is left out, in a workload cluster whose webhooks respond after some time.
func TestNextOverTime(t *testing.T) { // E74
	rapid.Check(t, func(t *rapid.T) {
		start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		pods := make([]signals.Pod, rapid.IntRange(1, 60).Draw(t, "pods"))
		count, namespaces := rapid.IntRange(1, 40).Draw(t, "budgets"), rapid.IntRange(1, 3).Draw(t, "namespaces")
		for i := range pods {
			pods[i] = signals.Pod{UID: types.UID(fmt.Sprint(i)), Budget: fmt.Sprintf("%d/%d", i%namespaces, i%count)}
		}
		responds := time.Duration(rapid.IntRange(0, 3000).Draw(t, "responds after")) * time.Millisecond
		sent, history := map[types.UID]signals.Sent{}, map[types.UID][]time.Time{}
		var all []time.Time
		byBudget := map[string][]time.Time{}
		for now := start; now.Before(start.Add(2 * time.Minute)); {
			for uid, last := range sent {
				if last.InFlight && now.Sub(last.At) >= responds {
					last.InFlight = false
					sent[uid] = last
				}
			}
			due, at := signals.Next(pods, maps.Clone(sent), now)
			for _, pod := range due {
				sent[pod.UID] = signals.Sent{At: now, Budget: pod.Budget, InFlight: true}
				history[pod.UID], byBudget[pod.Budget], all = append(history[pod.UID], now), append(byBudget[pod.Budget], now), append(all, now)
			}
			if n := inFlight(sent); n > 4 {
				t.Fatalf("%d are in flight", n)
			}
			next := now.Add(time.Duration(rapid.IntRange(1, 2000).Draw(t, "event")) * time.Millisecond)
			if !at.IsZero() && !now.Before(at) {
				t.Fatalf("again at %s, which is not after %s", at, now)
			}
			now = next
		}
		for i, at := range all {
			if i >= 5 && at.Sub(all[i-5]) < time.Second {
				t.Fatalf("more than five in a second: %v", all[i-5:i+1])
			}
		}
		for _, times := range byBudget {
			expectApart(t, times, time.Second)
		}
		rounds := 0
		for _, pod := range pods {
			expectApart(t, history[pod.UID], signals.Interval)
			rounds = max(rounds, len(history[pod.UID]))
		}
		// One Pod of each budget gets a turn, whatever happens to others; all Pods of a budget have had about as many.
		for _, pod := range pods {
			most := 0
			for _, other := range pods {
				if other.Budget == pod.Budget {
					most = max(most, len(history[other.UID]))
				}
			}
			if n := len(history[pod.UID]); n == 0 && rounds > 1 || n < most-2 {
				t.Fatalf("Pod %s got %d signals, another of its budget %d, one %d", pod.UID, n, most, rounds)
			}
		}
	})
}

// TestNextWithOtherTenant: Pods that are created again and again get signals, but so does the Pod of another Namespace.
func TestNextWithOtherTenant(t *testing.T) { // E71
	rapid.Check(t, func(t *rapid.T) {
		start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		perSecond, sent := rapid.IntRange(1, 30).Draw(t, "new Pods a second"), map[types.UID]signals.Sent{}
		var times []time.Time
		for second := range 120 {
			now, waiting := start.Add(time.Duration(second)*time.Second), []signals.Pod{}
			for i := range perSecond {
				name := fmt.Sprintf("%d-%d", second, i)
				waiting = append(waiting, signals.Pod{UID: types.UID(name), Budget: "a/" + name, NeverAllows: true})
			}
			waiting = append(waiting, signals.Pod{UID: "b", Budget: "b/b", NeverAllows: true})
			due, _ := signals.Next(waiting, maps.Clone(sent), now)
			if len(due) < min(perSecond, 2) {
				t.Fatalf("%d are sent", len(due))
			}
			for _, pod := range due {
				sent[pod.UID] = signals.Sent{At: now, Budget: pod.Budget}
				if pod.UID == "b" {
					times = append(times, now)
				}
			}
		}
		if want := 6; len(times) < want {
			t.Fatalf("%d signals in two minutes: %v", len(times), times)
		}
	})
}

func inFlight(sent map[types.UID]signals.Sent) (n int) {
	for _, last := range sent {
		if last.InFlight {
			n++
		}
	}
	return n
}

func expectApart(t *rapid.T, times []time.Time, least time.Duration) {
	for i := 1; i < len(times); i++ {
		if times[i].Sub(times[i-1]) < least {
			t.Fatalf("%s after %s", times[i], times[i-1])
		}
	}
}

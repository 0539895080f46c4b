package budgets_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

func drawBudget() *rapid.Generator[*pdb] {
	selectors := []*metav1.LabelSelector{nil, {}, {MatchLabels: labels{"app": "web"}}, {MatchLabels: labels{"app": "db"}}}
	return rapid.Custom(func(t *rapid.T) *pdb {
		small := rapid.Int32Range(0, 4)
		b := budget(rapid.StringMatching("[a-z]{4}").Draw(t, "name"),
			inNamespace(rapid.SampledFrom([]string{"default", "other", "third"}).Draw(t, "namespace")),
			covers(rapid.SampledFrom(selectors).Draw(t, "selector")),
			healthy(small.Draw(t, "current"), small.Draw(t, "expected"), small.Draw(t, "desired")),
			room(rapid.Int32Range(-1, 4).Draw(t, "room")),
			wants(rapid.SampledFrom([]string{"", "0", "2", "100%"}).Draw(t, "min"), rapid.SampledFrom([]string{"", "0", "1", "50%"}).Draw(t, "max")))
		changes := []func(*pdb){nil, nil, behind, unready(policyv1.AlwaysAllow), condition(policyv1.SyncFailedReason, "no"), disrupted(1999), disrupted(2001)}
		if change := changes[rapid.IntRange(0, len(changes)-1).Draw(t, "change")]; change != nil {
			change(b)
		}
		return b
	})
}

func drawCandidate() *rapid.Generator[budgets.Candidate] {
	return rapid.Custom(func(t *rapid.T) budgets.Candidate {
		return budgets.Candidate{Pod: budgets.Pod{
			UID:         types.UID(rapid.StringMatching("[a-f]{1,2}").Draw(t, "uid")),
			Namespace:   rapid.SampledFrom([]string{"default", "other", "third"}).Draw(t, "namespace"),
			Node:        rapid.SampledFrom([]string{"one", "two", "three"}).Draw(t, "node"),
			Labels:      rapid.SampledFrom([]labels{nil, {"app": "web"}, {"app": "db"}}).Draw(t, "labels"),
			Ready:       rapid.Bool().Draw(t, "ready"),
			Phase:       rapid.SampledFrom([]corev1.PodPhase{"Running", "Running", "Running", "Pending", "Succeeded", "Failed"}).Draw(t, "phase"),
			Terminating: rapid.IntRange(0, 9).Draw(t, "terminating") == 0,
		}}
	})
}

// server is the eviction subresource: it looks at one pod at a time, and takes note of each disruption.
type server []*pdb

// evict is written after pkg/registry/core/pod/storage/eviction.go of Kubernetes 1.36, in its order.
func (s server) evict(p budgets.Pod) (accepted, decremented bool) {
	if p.Phase == corev1.PodSucceeded || p.Phase == corev1.PodFailed || p.Phase == corev1.PodPending || p.Terminating {
		return true, false
	}
	var covering []*pdb
	for _, b := range s {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if b.Namespace == p.Namespace && err == nil && selector.Matches(k8slabels.Set(p.Labels)) {
			covering = append(covering, b)
		}
	}
	if len(covering) != 1 {
		return len(covering) == 0, false
	}
	b := covering[0]
	if !p.Ready {
		if policy := b.Spec.UnhealthyPodEvictionPolicy; policy != nil && *policy == policyv1.AlwaysAllow {
			return true, false
		}
		if b.Status.CurrentHealthy >= b.Status.DesiredHealthy && b.Status.DesiredHealthy > 0 {
			return true, false
		}
	}
	if b.Status.ObservedGeneration < b.Generation || b.Status.DisruptionsAllowed <= 0 || len(b.Status.DisruptedPods) > 2000 {
		return false, false
	}
	b.Status.DisruptionsAllowed--
	if b.Status.DisruptedPods == nil {
		b.Status.DisruptedPods = map[string]metav1.Time{}
	}
	b.Status.DisruptedPods["evicted-"+string(p.UID)] = metav1.Time{}
	return true, true
}

// TestAdmitIsWhatTheServerWouldSay: no eviction that would be refused is tried, and none that would be accepted is held back.
func TestAdmitIsWhatTheServerWouldSay(t *testing.T) { // E18, E20, E21
	rapid.Check(t, func(t *rapid.T) {
		pdbs := rapid.SliceOfN(drawBudget(), 0, 5).Draw(t, "budgets")
		candidates := rapid.SliceOfNDistinct(drawCandidate(), 0, 12, func(c budgets.Candidate) string { return c.Pod.Namespace + string(c.Pod.UID) }).Draw(t, "candidates")
		admitted, waiting := budgets.NewIndex(pdbs, nil).Admit(candidates)

		var actual server
		for _, b := range pdbs {
			actual = append(actual, b.DeepCopy())
		}
		for _, c := range candidates {
			accepted, decremented := actual.evict(c.Pod)
			switch {
			case accepted && (len(admitted) == 0 || !reflect.DeepEqual(admitted[0].Candidate, c)):
				t.Fatalf("%+v would be accepted, but waits", c)
			case !accepted && (len(waiting) == 0 || !reflect.DeepEqual(waiting[0].Candidate, c)):
				t.Fatalf("%+v would be refused, but goes", c)
			case accepted:
				if admitted[0].ConsumesRoom != decremented {
					t.Fatalf("%+v: the server decremented: %v", admitted[0], decremented)
				}
				admitted = admitted[1:]
			default:
				waiting = waiting[1:]
			}
		}
		if len(admitted)+len(waiting) > 0 {
			t.Fatalf("more answers than candidates: %v, %v", admitted, waiting)
		}
	})
}

// TestNeverMoreThanRoom: also when candidates are listed twice, budgets are stale, and selectors are broken.
func TestNeverMoreThanRoom(t *testing.T) { // E18
	rapid.Check(t, func(t *rapid.T) {
		pdbs := rapid.SliceOfN(drawBudget(), 0, 5).Draw(t, "budgets")
		isStale, isBroken := map[*pdb]bool{}, map[*pdb]bool{}
		for _, b := range pdbs {
			isStale[b] = rapid.IntRange(0, 3).Draw(t, "stale") == 0
			if isBroken[b] = rapid.IntRange(0, 3).Draw(t, "broken") == 0; isBroken[b] {
				broken(b)
			}
		}
		candidates := rapid.SliceOfN(drawCandidate(), 0, 12).Draw(t, "candidates")
		admitted, waiting := budgets.NewIndex(pdbs, func(b *pdb) bool { return isStale[b] }).Admit(candidates)

		type key struct {
			namespace string
			uid       types.UID
		}
		goes, used := map[key]bool{}, map[*pdb]int32{}
		for _, a := range admitted {
			goes[key{a.Pod.Namespace, a.Pod.UID}] = true
			if a.ConsumesRoom {
				used[a.Budget.PodDisruptionBudget()]++
			}
		}
		for _, w := range waiting {
			if goes[key{w.Pod.Namespace, w.Pod.UID}] {
				t.Fatalf("%+v waits, and goes", w)
			}
			if w.Reason == "" || w.Message == "" || w.Detail == "" || w.Budget == "" {
				t.Fatalf("a pod waits without a reason: %+v", w)
			}
		}
		for b, n := range used {
			if n > b.Status.DisruptionsAllowed || isStale[b] || isBroken[b] {
				t.Fatalf("%d pods go by budget %+v", n, b)
			}
		}
	})
}

// TestNoneIsRefusedBesideOthers: evictions that are under way may reach the server before those that are admitted beside them, or
// after; nobody is refused for lack of room.
func TestNoneIsRefusedBesideOthers(t *testing.T) { // E18
	rapid.Check(t, func(t *rapid.T) {
		pdbs := rapid.SliceOfN(drawBudget(), 0, 5).Draw(t, "budgets")
		candidates := rapid.SliceOfNDistinct(drawCandidate(), 0, 12, func(c budgets.Candidate) string { return c.Pod.Namespace + string(c.Pod.UID) }).Draw(t, "candidates")
		index := budgets.NewIndex(pdbs, nil)
		begun, _ := index.Admit(candidates)
		begun = begun[:rapid.IntRange(0, len(begun)).Draw(t, "under way")]
		for i := range candidates {
			candidates[i].UnderWay = slices.ContainsFunc(begun, func(a budgets.Admitted) bool {
				return a.Pod.UID == candidates[i].Pod.UID && a.Pod.Namespace == candidates[i].Pod.Namespace && !a.Delete
			})
		}
		admitted, _ := index.Admit(candidates)
		var actual server
		for _, b := range pdbs {
			actual = append(actual, b.DeepCopy())
		}
		var all []budgets.Pod
		for _, a := range append(begun, admitted...) {
			if !a.Delete {
				all = append(all, a.Pod)
			}
		}
		for _, p := range rapid.Permutation(all).Draw(t, "order") {
			if accepted, _ := actual.evict(p); !accepted {
				t.Fatalf("%+v is refused", p)
			}
		}
	})
}

func TestFairOrderIsFair(t *testing.T) { // E23
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.SliceOfN(drawCandidate(), 0, 20).Draw(t, "candidates")
		out := budgets.FairOrder(in)
		byNode := func(list []budgets.Candidate) map[string][]budgets.Candidate {
			nodes := map[string][]budgets.Candidate{}
			for _, c := range list {
				nodes[c.Pod.Node] = append(nodes[c.Pod.Node], c)
			}
			return nodes
		}
		before := byNode(in)
		if !reflect.DeepEqual(before, byNode(out)) {
			t.Fatal("within a node the order has changed")
		}
		served := map[string]int{}
		for _, c := range out {
			for node, all := range before {
				if served[node] < served[c.Pod.Node] && served[node] < len(all) {
					t.Fatalf("node %s is served before %s had its turn", c.Pod.Node, node)
				}
			}
			served[c.Pod.Node]++
		}
	})
}

func FuzzBudgetAdmit(f *testing.F) {
	f.Add([]byte(`[{"metadata":{"namespace":"n","name":"web"},"spec":{"selector":{"matchLabels":{"app":"web"}},"minAvailable":"100%"},"status":{"disruptionsAllowed":1}}]`), []byte(`{"app":"web"}`), true)
	f.Add([]byte(`[{"metadata":{"namespace":"n","generation":2},"spec":{"selector":{},"maxUnavailable":"-1%"},"status":{"disruptionsAllowed":-1,"expectedPods":-5}}]`), []byte(`{}`), false)
	f.Add([]byte(`[{"metadata":{"namespace":"n"},"spec":{"selector":{"matchExpressions":[{"key":"/","operator":"In"}]}}},{"metadata":{"namespace":"n"}}]`), []byte(`null`), true)
	f.Add([]byte(`[{"metadata":{"namespace":"n"},"spec":{"selector":{},"minAvailable":"99999999999999999%"},"status":{"expectedPods":2147483647,"conditions":[{"type":"DisruptionAllowed","status":"False","reason":"SyncFailed","message":"\u00ff"}]}}]`), []byte(`{}`), true)
	f.Fuzz(func(t *testing.T, pdbsJSON, labelsJSON []byte, ready bool) {
		var pdbs []*pdb
		var podLabels labels
		if json.Unmarshal(pdbsJSON, &pdbs) != nil || json.Unmarshal(labelsJSON, &podLabels) != nil {
			return
		}
		p := budgets.Pod{UID: "u", Namespace: "n", Name: "p", Labels: podLabels, Ready: ready, Phase: corev1.PodRunning}
		admitted, waiting := budgets.NewIndex(pdbs, nil).Admit([]budgets.Candidate{{Pod: p}})
		if len(admitted)+len(waiting) != 1 {
			t.Fatalf("%d admitted, %d waiting", len(admitted), len(waiting))
		}
		for _, w := range waiting {
			for _, text := range []string{w.Message, w.Detail} {
				if n := utf8.RuneCountInString(text); n > 512 || n == 0 {
					t.Errorf("a text of %d characters", n)
				}
			}
		}
	})
}

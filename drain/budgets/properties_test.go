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
			allows(rapid.Int32Range(-1, 4).Draw(t, "allowed")),
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

// server is the eviction subresource: it decides about one Pod at a time, and counts each disruption.
type server []*pdb

// evict follows pkg/registry/core/pod/storage/eviction.go of Kubernetes 1.36, in its order.
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

// needsDisruption reports whether the API server decrements the disruptions of the budget, by its rules for Pods that are not ready.
func needsDisruption(a budgets.Admitted) bool {
	b := a.Budget.PodDisruptionBudget().DeepCopy()
	b.Status.DisruptionsAllowed, b.Status.DisruptedPods, b.Spec.Selector = 1, nil, &metav1.LabelSelector{}
	_, decremented := server{b}.evict(a.Pod)
	return decremented
}

// TestAdmitDecidesAsTheServer tests that no eviction is sent that the API server would refuse, and that none waits that it would accept.
func TestAdmitDecidesAsTheServer(t *testing.T) { // E18, E20, E21
	rapid.Check(t, func(t *rapid.T) {
		pdbs := rapid.SliceOfN(drawBudget(), 0, 5).Draw(t, "budgets")
		candidates := rapid.SliceOfNDistinct(drawCandidate(), 0, 12, func(c budgets.Candidate) string { return c.Pod.Namespace + string(c.Pod.UID) }).
			Draw(t, "candidates")
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
				t.Fatalf("%+v would be refused, but is admitted", c)
			case accepted:
				if decremented && admitted[0].Budget == nil {
					t.Fatalf("%+v: the server decremented", admitted[0])
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

// TestNeverMoreThanAllowed tests candidates that are listed twice, stale budgets, and invalid selectors.
func TestNeverMoreThanAllowed(t *testing.T) { // E18
	rapid.Check(t, func(t *rapid.T) {
		pdbs := rapid.SliceOfN(drawBudget(), 0, 5).Draw(t, "budgets")
		isStale, isInvalid := map[*pdb]bool{}, map[*pdb]bool{}
		for _, b := range pdbs {
			isStale[b] = rapid.IntRange(0, 3).Draw(t, "stale") == 0
			if isInvalid[b] = rapid.IntRange(0, 3).Draw(t, "invalid") == 0; isInvalid[b] {
				invalid(b)
			}
		}
		candidates := rapid.SliceOfN(drawCandidate(), 0, 12).Draw(t, "candidates")
		admitted, waiting := budgets.NewIndex(pdbs, func(b *pdb) bool { return isStale[b] }).Admit(candidates)

		type key struct {
			namespace string
			uid       types.UID
		}
		isAdmitted, used := map[key]bool{}, map[*pdb]int32{}
		for _, a := range admitted {
			isAdmitted[key{a.Pod.Namespace, a.Pod.UID}] = true
			if a.Budget != nil && needsDisruption(a) {
				used[a.Budget.PodDisruptionBudget()]++
			}
		}
		for _, w := range waiting {
			if isAdmitted[key{w.Pod.Namespace, w.Pod.UID}] {
				t.Fatalf("%+v waits, and is admitted", w)
			}
			if w.Reason == "" || w.Message == "" || w.Budget == "" {
				t.Fatalf("a Pod waits without a reason: %+v", w)
			}
		}
		for b, n := range used {
			if n > b.Status.DisruptionsAllowed || isStale[b] || isInvalid[b] {
				t.Fatalf("%d Pods are evicted under budget %+v", n, b)
			}
		}
	})
}

// TestNoConcurrentEvictionIsRefused tests that in-flight evictions may reach the server before or after those that are admitted meanwhile.
func TestNoConcurrentEvictionIsRefused(t *testing.T) { // E18
	rapid.Check(t, func(t *rapid.T) {
		pdbs := rapid.SliceOfN(drawBudget(), 0, 5).Draw(t, "budgets")
		candidates := rapid.SliceOfNDistinct(drawCandidate(), 0, 12, func(c budgets.Candidate) string { return c.Pod.Namespace + string(c.Pod.UID) }).
			Draw(t, "candidates")
		index := budgets.NewIndex(pdbs, nil)
		begun, _ := index.Admit(candidates)
		begun = begun[:rapid.IntRange(0, len(begun)).Draw(t, "in flight")]
		for i := range candidates {
			candidates[i].InFlight = slices.ContainsFunc(begun, func(a budgets.Admitted) bool {
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

func FuzzBudgetAdmit(f *testing.F) {
	f.Add([]byte(`[{"metadata":{"namespace":"n","name":"web"},"spec":{"selector":{"matchLabels":{"app":"web"}},"minAvailable":"100%"},`+
		`"status":{"disruptionsAllowed":1}}]`), []byte(`{"app":"web"}`), true)
	f.Add([]byte(`[{"metadata":{"namespace":"n","generation":2},"spec":{"selector":{},"maxUnavailable":"-1%"},`+
		`"status":{"disruptionsAllowed":-1,"expectedPods":-5}}]`), []byte(`{}`), false)
	f.Add([]byte(`[{"metadata":{"namespace":"n"},"spec":{"selector":{"matchExpressions":[{"key":"/","operator":"In"}]}}},{"metadata":{"namespace":"n"}}]`),
		[]byte(`null`), true)
	f.Add([]byte(`[{"metadata":{"namespace":"n"},"spec":{"selector":{},"minAvailable":"99999999999999999%"},"status":{"expectedPods":2147483647,`+
		`"conditions":[{"type":"DisruptionAllowed","status":"False","reason":"SyncFailed","message":"\u00ff"}]}}]`), []byte(`{}`), true)
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
			if n := utf8.RuneCountInString(w.Message); n > 512 || n == 0 {
				t.Errorf("a message of %d characters", n)
			}
		}
	})
}

package differential

import (
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	m.Run()
}

// TestSameAsClusterAPI covers M1 to M6, and M8. rapid prints the seed of a failing case and shrinks it.
func TestSameAsClusterAPI(t *testing.T) {
	t.Run("M1: decides about random Pods as Cluster API's drain does, and evicts them in the same order", compareRandomFixtures)
}

func compareRandomFixtures(t *testing.T) {
	total, met := 0, map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		names, err := compare(drawFixture(t))
		if err != nil {
			t.Fatal(err)
		}
		total++
		for name := range names {
			met[name]++
		}
	})
	t.Logf("%d cases; intended differences and their share of the cases:", total)
	for _, d := range intended() {
		t.Logf("%6.2f%%  %s", 100*float64(met[d.name])/float64(max(total, 1)), d.name)
	}
}

// TestIntended checks the example of each intended difference, which has no other difference.
func TestIntended(t *testing.T) {
	for _, d := range intended() {
		t.Run(d.name, func(t *testing.T) {
			t.Log(d.why)
			met, err := compare(d.example.complete())
			if err != nil {
				t.Fatal(err)
			}
			if len(met) != 1 || !met[d.name] {
				t.Fatalf("the example has the differences %v", met)
			}
		})
	}
}

func TestPriorities(t *testing.T) {
	f := oneWith(pod("dns", prioritized(2000000000)), pod("web", prioritized(0))).complete()
	t.Run("M35: Pods of one order are evicted together, whatever their priority, as Cluster API does", func(t *testing.T) {
		their, our := evictedIn(trace(theirs{}, f)), evictedIn(trace(ours{}, f))
		if len(our) != 1 || !slices.EqualFunc(their, our, slices.Equal) {
			t.Fatalf("Cluster API evicts %v, we evict %v", their, our)
		}
	})
	t.Run("M35: a policy with PriorityTiers evicts Pods of one order by priority", func(t *testing.T) {
		if our := evictedIn(trace(tiered(), f)); len(our) != 2 || our[0][0] != "default/web" {
			t.Fatalf("we evict %v", our)
		}
	})
}

// tiered is our side with a policy for KEP-4212's priority tiers.
func tiered() ours {
	policy := &v1alpha1.MachineDrainPolicy{}
	policy.Spec.DrainPlanDefaults = v1alpha1.DrainPlanDefaultsPriorityTiers
	return ours{policy: policy}
}

func prioritized(value int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Priority = &value }
}

// compare compares both sides, and returns the names of intended differences, or an error with an unintended one.
func compare(f fixture) (map[string]bool, error) {
	met := map[string]bool{}
	f, err := compareStops(f, met)
	if err != nil || len(f.pods) == 0 {
		return met, err
	}
	f, err = compareVerdicts(f, met)
	if err != nil {
		return met, err
	}
	return met, compareOrder(f)
}

// compareStops removes what stops only one side from the fixture, as far as that is intended. A fixture that stops both sides becomes
// empty.
func compareStops(f fixture, met map[string]bool) (fixture, error) {
	for {
		_, theirsStopped := theirs{}.ask(f)
		_, oursStopped := ours{}.ask(f)
		switch {
		case theirsStopped == nil && oursStopped == nil:
			return f, nil
		case theirsStopped != nil && oursStopped != nil:
			return fixture{}, nil
		}
		fixed, name := withoutCause(f, theirsStopped)
		if name == "" {
			return f, errors.Errorf("only one side stops: theirs %v, ours %v", theirsStopped, oursStopped)
		}
		met[name], f = true, fixed
	}
}

func withoutCause(f fixture, theirsStopped error) (fixture, string) {
	for _, d := range ofTheWhole() {
		oursStops := strings.HasPrefix(d.name, "M6: more rules")
		if oursStops != (theirsStopped == nil) {
			continue
		}
		if fixed, ok := d.fix(f); ok {
			return fixed, d.name
		}
	}
	return f, ""
}

// compareVerdicts compares the answers about each Pod, and returns the fixture without the Pods that have different answers.
func compareVerdicts(f fixture, met map[string]bool) (fixture, error) {
	their, err := theirs{}.ask(f)
	if err != nil {
		return f, err
	}
	our, err := ours{}.ask(f)
	if err != nil {
		return f, err
	}
	differs := map[string]bool{}
	for _, pod := range f.pods {
		if their[key(pod)] == our[key(pod)] {
			continue
		}
		name := explain(f, pod, their[key(pod)], our[key(pod)])
		if name == "" {
			return f, errors.Errorf("Pod %s: Cluster API %s, we: %s", key(pod), their[key(pod)], our[key(pod)])
		}
		met[name], differs[key(pod)] = true, true
	}
	return f.without(func(pod *corev1.Pod) bool { return differs[key(pod)] }), nil
}

func explain(f fixture, pod *corev1.Pod, their, our answer) string {
	for _, d := range intended() {
		if d.about != nil && d.about(f, pod, their, our) {
			return d.name
		}
	}
	return ""
}

// compareOrder compares the rounds: ours are Cluster API's, whatever the priorities of the Pods. With priority tiers, each of
// Cluster API's rounds is one or more of ours.
func compareOrder(f fixture) error {
	their, our := trace(theirs{}, f), trace(ours{}, f)
	if !slices.EqualFunc(their, our, sameEvent) {
		return errors.Errorf("the order differs.\nCluster API\n%s\nwe\n%s", describe(their), describe(our))
	}
	if finer := trace(tiered(), f); !isFiner(evictedIn(finer), evictedIn(their)) {
		return errors.Errorf("priority tiers do more than split rounds.\nCluster API\n%s\nwe\n%s", describe(their), describe(finer))
	}
	return nil
}

func sameEvent(a, b event) bool { return a.what == b.what && slices.Equal(a.pods, b.pods) }

func evictedIn(events []event) [][]string {
	var rounds [][]string
	for _, e := range events {
		if e.what == "evicts" {
			rounds = append(rounds, e.pods)
		}
	}
	return rounds
}

// isFiner returns whether fine is coarse with some rounds split.
func isFiner(fine, coarse [][]string) bool {
	for _, round := range coarse {
		var together []string
		for len(fine) > 0 && len(together) < len(round) {
			together, fine = append(together, fine[0]...), fine[1:]
		}
		slices.Sort(together)
		if !slices.Equal(together, round) {
			return false
		}
	}
	return len(fine) == 0
}

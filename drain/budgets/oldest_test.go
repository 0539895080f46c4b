package budgets_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

func started(c budgets.Candidate, at time.Time) budgets.Candidate {
	c.DrainStart = at
	return c
}

func TestOldestFirst(t *testing.T) {
	in := []budgets.Candidate{
		started(pod("c1", onNode("c")), at(2)), started(pod("b1", onNode("b")), at(1)), started(pod("a1", onNode("a")), at(3)),
		started(pod("d1", onNode("d")), at(1)), started(pod("b2", onNode("b")), at(1)), started(pod("c2", onNode("c")), at(2)),
	}
	before := slices.Clone(in)
	var got []string
	for _, c := range budgets.OldestFirst(in) {
		got = append(got, c.Pod.Name)
	}
	if want := []string{"b1", "b2", "d1", "c1", "c2", "a1"}; !reflect.DeepEqual(got, want) {
		t.Errorf("E56: got %v, want %v", got, want)
	}
	if !reflect.DeepEqual(in, before) {
		t.Error("the input was changed")
	}
}

func TestAdmitTheOldestDrain(t *testing.T) {
	x, y := budget("x", coversApp("x")), budget("y", coversApp("y"))
	of := func(name, node, app string, start float64, change ...func(*budgets.Candidate)) budgets.Candidate {
		c := started(pod(name, onNode(node), labelled(labels{"app": app})), at(start))
		for _, each := range change {
			each(&c)
		}
		return c
	}
	expected := func(c *budgets.Candidate) { c.Expected = true }
	for _, test := range []struct {
		name       string
		candidates []budgets.Candidate
		full       string
		want       []string
	}{
		{"the oldest drain gets the disruptions of both crossed budgets",
			[]budgets.Candidate{of("b2", "b", "y", 2), of("a1", "a", "x", 1), of("b1", "b", "x", 2), of("a2", "a", "y", 1)}, "", []string{"a1", "a2"}},
		{"a younger drain gets what the oldest one cannot use", []budgets.Candidate{of("b2", "b", "y", 2), of("a1", "a", "x", 1)}, "", []string{"a1", "b2"}},
		{"a Pod whose Evacuation is about to be observed keeps its disruption",
			[]budgets.Candidate{of("b2", "b", "y", 2), of("a1", "a", "x", 1), of("a2", "a", "y", 1, expected)}, "", []string{"a1"}},
		{"an expected Pod of a younger drain keeps none", []budgets.Candidate{of("b2", "b", "y", 2, expected), of("a2", "a", "y", 1)}, "", []string{"a2"}},
		{"an expected Pod that its budget blocks is not reported", []budgets.Candidate{of("a1", "a", "x", 1), of("a2", "a", "x", 1, expected)}, "", []string{"a1"}},
		{"a Node whose evictions hang leaves the disruption to others", []budgets.Candidate{of("a1", "a", "x", 1), of("b1", "b", "x", 2)}, "a", []string{"b1"}},
	} {
		t.Run("E56: "+test.name, func(t *testing.T) {
			free := func(pod budgets.Pod) int {
				if pod.Node == test.full {
					return 0
				}
				return 16
			}
			admitted, waiting := budgets.NewIndex([]*pdb{x, y}, nil).AdmitWithin(budgets.OldestFirst(test.candidates), free)
			if got := namesOf(admitted); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
			for _, f := range waiting {
				if f.Expected {
					t.Errorf("%s waits", f.Pod.Name)
				}
			}
		})
	}
}

func TestAdmitBesidesEvictionsThatHang(t *testing.T) {
	hangs := started(pod("hangs", onNode("a")), at(1))
	web, db := started(pod("web", onNode("a")), at(1)), started(pod("db", onNode("a")), at(1))
	web.Pod.Namespace, db.Pod.Namespace = "other", "third"
	free := func(pod budgets.Pod) int { return map[string]int{"other": 1, "third": 2}[pod.Namespace] }
	admitted, waiting := budgets.NewIndex(nil, nil).AdmitWithin([]budgets.Candidate{hangs, web, db}, free)
	if got, want := namesOf(admitted), []string{"web", "db"}; !slices.Equal(got, want) || len(waiting) > 0 {
		t.Errorf("E82: got %v, want %v; %d wait", got, want, len(waiting))
	}
}

func TestExpectsMore(t *testing.T) {
	for _, test := range []struct {
		start, requested, now float64
		want                  bool
	}{
		{10, 0, 12, true}, {10, 0, 13, false}, {10, 20, 22, true}, {10, 20, 23, false}, {12, 0, 10, true}, {3600, 0, 10, false}, {10, 38, 39, true},
		{10, 40, 41, false},
	} {
		if until, expects := budgets.ExpectsMore(at(test.start), at(test.requested), at(test.now)); expects != test.want || expects && !until.After(at(test.now)) {
			t.Errorf("E56: %+v: got %v until %s", test, expects, until)
		}
	}
}

// fixture is a workload cluster whose Nodes are drained over time, under budgets that each select the Pods of one application on several
// Nodes.
type fixture struct {
	now     time.Time
	started map[string]time.Time // drains, by Node
	pods    []*fixturePod
	apps    map[string]*fixtureApp
	slow    bool // a replacement becomes ready when a drain has finished, and not after a time
	evicted []string
}

type fixtureApp struct {
	replicas, unavailable int
	pending               []time.Time // replacements, and when they become ready
	status                *pdb        // as the evictor observes it
	stale                 bool        // the evictor knows that the status does not include its evictions
}

type fixturePod struct {
	name, node, app string
	from            time.Time // when its eviction is due: drain order, evacuators
}

func (f *fixture) allows(app *fixtureApp) int { return max(0, app.unavailable-len(app.pending)) }

// observe delivers the present status of a budget.
func (f *fixture) observe(name string) {
	app := f.apps[name]
	ready, desired := app.replicas-len(app.pending), app.replicas-app.unavailable
	counts := healthy(int32(ready), int32(app.replicas), int32(desired))
	app.status = budget(name, coversApp(name), wants("", fmt.Sprint(app.unavailable)), counts)
	app.stale = false
}

func (f *fixture) drains() []string {
	return slices.SortedFunc(maps.Keys(f.started), func(a, b string) int {
		if c := f.started[a].Compare(f.started[b]); c != 0 {
			return c
		}
		return slices.Compare([]string{a}, []string{b})
	})
}

func (f *fixture) left(node string) (pods []*fixturePod) {
	for _, p := range f.pods {
		if p.node == node {
			pods = append(pods, p)
		}
	}
	return pods
}

// pass evicts what the decision admits, unless the API server refuses it. It checks that no younger drain gets what an older one can use.
func (f *fixture) pass(t *rapid.T) {
	var candidates []budgets.Candidate
	for _, p := range f.pods {
		if start, drained := f.started[p.node]; drained && !f.now.Before(start) && !f.now.Before(p.from) {
			candidates = append(candidates, started(pod(p.name, onNode(p.node), labelled(labels{"app": p.app})), start))
		}
	}
	var statuses []*pdb
	for _, name := range slices.Sorted(maps.Keys(f.apps)) {
		statuses = append(statuses, f.apps[name].status)
	}
	stale := func(b *policyv1.PodDisruptionBudget) bool { return f.apps[b.Name].stale }
	admitted, waiting := budgets.NewIndex(statuses, stale).Admit(budgets.OldestFirst(rapid.Permutation(candidates).Draw(t, "candidates")))
	for _, a := range admitted {
		for _, other := range waiting {
			isOlder := other.DrainStart.Before(a.DrainStart) || other.DrainStart.Equal(a.DrainStart) && other.Pod.Node < a.Pod.Node
			if isOlder && other.Pod.Labels["app"] == a.Pod.Labels["app"] {
				t.Fatalf("E56: Pod %s of Node %s is evicted, and Pod %s of Node %s, whose drain is older, waits", a.Pod.Name, a.Pod.Node, other.Pod.Name, other.Pod.Node)
			}
		}
		app := f.apps[a.Pod.Labels["app"]]
		if app.stale = true; f.allows(app) == 0 { // refused: the status was old, and the evictor was restarted
			continue
		}
		app.pending = append(app.pending, f.now.Add(time.Duration(rapid.IntRange(1, 20).Draw(t, "replaced after"))*time.Second))
		f.pods = slices.DeleteFunc(f.pods, func(p *fixturePod) bool { return p.name == a.Pod.Name })
		f.evicted = append(f.evicted, a.Pod.Node)
	}
}

// proceed lets a second pass.
func (f *fixture) proceed(t *rapid.T) (finished []string) {
	f.now = f.now.Add(time.Second)
	for _, node := range f.drains() {
		if len(f.left(node)) == 0 {
			finished = append(finished, node)
			delete(f.started, node)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.apps)) {
		app := f.apps[name]
		app.pending = slices.DeleteFunc(app.pending, func(ready time.Time) bool {
			if f.slow {
				return len(finished) > 0
			}
			return !f.now.Before(ready)
		})
		if rapid.Bool().Draw(t, "observes "+name) {
			f.observe(name)
		}
	}
	if rapid.IntRange(0, 9).Draw(t, "restarts") == 0 { // the memory is lost, and all statuses are listed
		for _, name := range slices.Sorted(maps.Keys(f.apps)) {
			f.observe(name)
		}
	}
	return finished
}

// drawWorld draws Nodes with Pods of applications. Budgets of blocked applications never allow a disruption.
func drawFixture(t *rapid.T, slow bool) *fixture {
	f := &fixture{now: began, started: map[string]time.Time{}, apps: map[string]*fixtureApp{}, slow: slow}
	apps := rapid.IntRange(1, 4).Draw(t, "applications")
	for i := range apps {
		least := 0
		if slow {
			least = 1
		}
		f.apps[fmt.Sprint("app", i)] = &fixtureApp{unavailable: rapid.IntRange(least, 2).Draw(t, "unavailable")}
	}
	for i := range rapid.IntRange(2, 4).Draw(t, "Nodes") {
		node := fmt.Sprint("n", i)
		f.started[node] = at(float64(rapid.IntRange(0, 3).Draw(t, "started")))
		for j := range rapid.IntRange(1, 5).Draw(t, "Pods") {
			app := fmt.Sprint("app", rapid.IntRange(0, apps-1).Draw(t, "application"))
			p := &fixturePod{name: fmt.Sprint(node, "-", j), node: node, app: app}
			if !slow { // a Pod that is due later may leave its disruption to another drain, which must get it back
				p.from = at(float64(rapid.IntRange(0, 30).Draw(t, "due")))
			}
			f.pods = append(f.pods, p)
			f.apps[app].replicas++
		}
	}
	for name := range f.apps {
		f.apps[name].replicas += 2 // on other Nodes
		f.observe(name)
	}
	return f
}

// TestDrainsFinish drains Nodes under shared budgets until nothing is left that a budget allows.
func TestDrainsFinish(t *testing.T) {
	t.Run("E56: every Node is drained, except those with Pods whose budget never allows a disruption", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			f := drawFixture(t, false)
			evictable := func(p *fixturePod) bool { return f.apps[p.app].unavailable > 0 }
			for seconds := 0; slices.ContainsFunc(f.pods, evictable); seconds++ {
				if seconds > 1000 {
					t.Fatalf("%d Pods are not evicted", len(f.pods))
				}
				f.pass(t)
				f.proceed(t)
			}
		})
	})
	t.Run("E56: a Node is drained although replacements need the capacity that a drained Node frees", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			f := drawFixture(t, true)
			for node := range f.started { // the budgets would otherwise never allow what one Node needs
				f.started[node] = began
				for name, app := range f.apps {
					on := 0
					for _, p := range f.left(node) {
						if p.app == name {
							on++
						}
					}
					app.unavailable = max(app.unavailable, on)
				}
			}
			for name := range f.apps {
				f.observe(name)
			}
			quiet := 0
			for len(f.started) > 0 {
				f.pass(t)
				if finished := f.proceed(t); len(finished) > 0 {
					quiet = 0
				}
				if quiet++; quiet > 200 {
					t.Fatalf("no Node is drained any more: %v", f.drains())
				}
			}
		})
	})
	t.Run("E56: of two drains under one budget, the older one gets every disruption that it can use", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			f := &fixture{now: at(60), started: map[string]time.Time{"a": at(0), "b": at(3)}, apps: map[string]*fixtureApp{"web": {replicas: 8, unavailable: 1}}}
			for i := range 5 {
				f.pods = append(f.pods, &fixturePod{name: fmt.Sprint("a", i), node: "a", app: "web"})
			}
			f.pods = append(f.pods, &fixturePod{name: "b0", node: "b", app: "web"})
			f.observe("web")
			for len(f.pods) > 0 {
				f.pass(t)
				f.proceed(t)
			}
			if want := []string{"a", "a", "a", "a", "a", "b"}; !slices.Equal(f.evicted, want) {
				t.Fatalf("got %v, want %v", f.evicted, want)
			}
		})
	})
}

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
			for _, w := range waiting {
				if w.Expected {
					t.Errorf("%s waits", w.Pod.Name)
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

// world is a workload cluster whose Nodes are drained over time, under budgets that each select the Pods of one application on several
// Nodes.
type world struct {
	now     time.Time
	started map[string]time.Time // drains, by Node
	pods    []*worldPod
	apps    map[string]*worldApp
	slow    bool // a replacement becomes ready when a drain has finished, and not after a time
	evicted []string
}

type worldApp struct {
	replicas, unavailable int
	pending               []time.Time // replacements, and when they become ready
	status                *pdb        // as the evictor observes it
	stale                 bool        // the evictor knows that the status does not include its evictions
}

type worldPod struct {
	name, node, app string
	from            time.Time // when its eviction is due: drain order, evacuators
}

func (w *world) allows(app *worldApp) int { return max(0, app.unavailable-len(app.pending)) }

// observe delivers the present status of a budget.
func (w *world) observe(name string) {
	app := w.apps[name]
	ready, desired := app.replicas-len(app.pending), app.replicas-app.unavailable
	counts := healthy(int32(ready), int32(app.replicas), int32(desired))
	app.status = budget(name, coversApp(name), wants("", fmt.Sprint(app.unavailable)), counts)
	app.stale = false
}

func (w *world) drains() []string {
	return slices.SortedFunc(maps.Keys(w.started), func(a, b string) int {
		if c := w.started[a].Compare(w.started[b]); c != 0 {
			return c
		}
		return slices.Compare([]string{a}, []string{b})
	})
}

func (w *world) left(node string) (pods []*worldPod) {
	for _, p := range w.pods {
		if p.node == node {
			pods = append(pods, p)
		}
	}
	return pods
}

// pass evicts what the decision admits, unless the API server refuses it. It checks that no younger drain gets what an older one can use.
func (w *world) pass(t *rapid.T) {
	var candidates []budgets.Candidate
	for _, p := range w.pods {
		if start, drained := w.started[p.node]; drained && !w.now.Before(start) && !w.now.Before(p.from) {
			candidates = append(candidates, started(pod(p.name, onNode(p.node), labelled(labels{"app": p.app})), start))
		}
	}
	var statuses []*pdb
	for _, name := range slices.Sorted(maps.Keys(w.apps)) {
		statuses = append(statuses, w.apps[name].status)
	}
	stale := func(b *policyv1.PodDisruptionBudget) bool { return w.apps[b.Name].stale }
	admitted, waiting := budgets.NewIndex(statuses, stale).Admit(budgets.OldestFirst(rapid.Permutation(candidates).Draw(t, "candidates")))
	for _, a := range admitted {
		for _, other := range waiting {
			isOlder := other.DrainStart.Before(a.DrainStart) || other.DrainStart.Equal(a.DrainStart) && other.Pod.Node < a.Pod.Node
			if isOlder && other.Pod.Labels["app"] == a.Pod.Labels["app"] {
				t.Fatalf("E56: Pod %s of Node %s is evicted, and Pod %s of Node %s, whose drain is older, waits", a.Pod.Name, a.Pod.Node, other.Pod.Name, other.Pod.Node)
			}
		}
		app := w.apps[a.Pod.Labels["app"]]
		if app.stale = true; w.allows(app) == 0 { // refused: the status was old, and the evictor was restarted
			continue
		}
		app.pending = append(app.pending, w.now.Add(time.Duration(rapid.IntRange(1, 20).Draw(t, "replaced after"))*time.Second))
		w.pods = slices.DeleteFunc(w.pods, func(p *worldPod) bool { return p.name == a.Pod.Name })
		w.evicted = append(w.evicted, a.Pod.Node)
	}
}

// proceed lets a second pass.
func (w *world) proceed(t *rapid.T) (finished []string) {
	w.now = w.now.Add(time.Second)
	for _, node := range w.drains() {
		if len(w.left(node)) == 0 {
			finished = append(finished, node)
			delete(w.started, node)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.apps)) {
		app := w.apps[name]
		app.pending = slices.DeleteFunc(app.pending, func(ready time.Time) bool {
			if w.slow {
				return len(finished) > 0
			}
			return !w.now.Before(ready)
		})
		if rapid.Bool().Draw(t, "observes "+name) {
			w.observe(name)
		}
	}
	if rapid.IntRange(0, 9).Draw(t, "restarts") == 0 { // the memory is lost, and all statuses are listed
		for _, name := range slices.Sorted(maps.Keys(w.apps)) {
			w.observe(name)
		}
	}
	return finished
}

// drawWorld draws Nodes with Pods of applications. Budgets of blocked applications never allow a disruption.
func drawWorld(t *rapid.T, slow bool) *world {
	w := &world{now: began, started: map[string]time.Time{}, apps: map[string]*worldApp{}, slow: slow}
	apps := rapid.IntRange(1, 4).Draw(t, "applications")
	for i := range apps {
		least := 0
		if slow {
			least = 1
		}
		w.apps[fmt.Sprint("app", i)] = &worldApp{unavailable: rapid.IntRange(least, 2).Draw(t, "unavailable")}
	}
	for i := range rapid.IntRange(2, 4).Draw(t, "Nodes") {
		node := fmt.Sprint("n", i)
		w.started[node] = at(float64(rapid.IntRange(0, 3).Draw(t, "started")))
		for j := range rapid.IntRange(1, 5).Draw(t, "Pods") {
			app := fmt.Sprint("app", rapid.IntRange(0, apps-1).Draw(t, "application"))
			p := &worldPod{name: fmt.Sprint(node, "-", j), node: node, app: app}
			if !slow { // a Pod that is due later may leave its disruption to another drain, which must get it back
				p.from = at(float64(rapid.IntRange(0, 30).Draw(t, "due")))
			}
			w.pods = append(w.pods, p)
			w.apps[app].replicas++
		}
	}
	for name := range w.apps {
		w.apps[name].replicas += 2 // on other Nodes
		w.observe(name)
	}
	return w
}

// TestDrainsFinish drains Nodes under shared budgets until nothing is left that a budget allows.
func TestDrainsFinish(t *testing.T) {
	t.Run("E56: every Node is drained, except those with Pods whose budget never allows a disruption", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			w := drawWorld(t, false)
			evictable := func(p *worldPod) bool { return w.apps[p.app].unavailable > 0 }
			for seconds := 0; slices.ContainsFunc(w.pods, evictable); seconds++ {
				if seconds > 1000 {
					t.Fatalf("%d Pods are not evicted", len(w.pods))
				}
				w.pass(t)
				w.proceed(t)
			}
		})
	})
	t.Run("E56: a Node is drained although replacements need the capacity that a drained Node frees", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			w := drawWorld(t, true)
			for node := range w.started { // the budgets would otherwise never allow what one Node needs
				w.started[node] = began
				for name, app := range w.apps {
					on := 0
					for _, p := range w.left(node) {
						if p.app == name {
							on++
						}
					}
					app.unavailable = max(app.unavailable, on)
				}
			}
			for name := range w.apps {
				w.observe(name)
			}
			quiet := 0
			for len(w.started) > 0 {
				w.pass(t)
				if finished := w.proceed(t); len(finished) > 0 {
					quiet = 0
				}
				if quiet++; quiet > 200 {
					t.Fatalf("no Node is drained any more: %v", w.drains())
				}
			}
		})
	})
	t.Run("E56: of two drains under one budget, the older one gets every disruption that it can use", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			w := &world{now: at(60), started: map[string]time.Time{"a": at(0), "b": at(3)}, apps: map[string]*worldApp{"web": {replicas: 8, unavailable: 1}}}
			for i := range 5 {
				w.pods = append(w.pods, &worldPod{name: fmt.Sprint("a", i), node: "a", app: "web"})
			}
			w.pods = append(w.pods, &worldPod{name: "b0", node: "b", app: "web"})
			w.observe("web")
			for len(w.pods) > 0 {
				w.pass(t)
				w.proceed(t)
			}
			if want := []string{"a", "a", "a", "a", "a", "b"}; !slices.Equal(w.evicted, want) {
				t.Fatalf("got %v, want %v", w.evicted, want)
			}
		})
	})
}

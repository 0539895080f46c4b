package plan_test

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

// TestDecideHoldsItsPromises lets everything happen in any order and asks the oracle after each event.
func TestDecideHoldsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster()
		actions := c.actions()
		actions[""] = func(t *rapid.T) { checkDecision(t, c.observe()) }
		t.Repeat(actions)
	})
}

func checkDecision(t *rapid.T, o plan.Observation) {
	d := plan.Decide(o)
	or := newOracle(o)
	checkDeterministic(t, o, d)
	checkTargets(t, or, d)
	checkRows(t, or, d)
	checkProgress(t, or, d)
	for _, m := range o.Maintenances {
		checkStatus(t, or, d, m)
		for node, nodeDecision := range d.Maintenances[m.Name].Nodes {
			checkMessage(t, or, d, m, node, nodeDecision.Message)
		}
	}
	for i := range o.Maintenances { // R25: removing one never leaves another stuck
		rest := plan.Observation{Maintenances: slices.Delete(slices.Clone(o.Maintenances), i, i+1), Pods: o.Pods}
		checkProgress(t, newOracle(rest), plan.Decide(rest))
	}
}

func checkDeterministic(t *rapid.T, o plan.Observation, d plan.Decision) {
	shuffled := plan.Observation{Maintenances: slices.Clone(o.Maintenances), Pods: slices.Clone(o.Pods)}
	slices.Reverse(shuffled.Maintenances)
	slices.Reverse(shuffled.Pods)
	if again := plan.Decide(shuffled); !reflect.DeepEqual(d, again) {
		t.Fatalf("the decision depends on the order of what is observed:\n%v\n%v", d, again)
	}
	for _, m := range o.Maintenances { // the component of a maintenance is all that matters to it
		alone := plan.Decide(plan.Observation{Maintenances: plan.Component(m.Name, o.Maintenances), Pods: o.Pods})
		if !reflect.DeepEqual(d.Maintenances[m.Name], alone.Maintenances[m.Name]) {
			t.Fatalf("%s: what doesn't touch it matters:\n%v\n%v", m.Name, d.Maintenances[m.Name], alone.Maintenances[m.Name])
		}
	}
}

// checkTargets: exactly the Pods are targeted that the definitions say.
func checkTargets(t *rapid.T, or *oracle, d plan.Decision) {
	for _, p := range or.o.Pods {
		targeted := d.Targets.Has(p.UID)
		switch {
		case targeted && (!or.wanted(p) || or.forbidden(p)):
			t.Fatalf("%s is targeted, though it is to be skipped, to complete, or undecided", p.Name)
		case p.Finished:
			if targeted != (p.Evacuating && or.wanted(p) && !or.forbidden(p)) {
				t.Fatalf("%s has finished; targeted: %v", p.Name, targeted)
			}
		case targeted && !or.mayGo(p) && !or.broughtForward(p):
			t.Fatalf("%s is targeted, though neither all maintenances allow it, nor the floor, nor the deadlock rule", p.Name)
		case !targeted && (or.mayGo(p) || or.broughtForward(p)):
			t.Fatalf("%s is not targeted, though it may go now", p.Name)
		case !targeted && p.Evacuating && or.wanted(p) && !or.forbidden(p):
			t.Fatalf("%s holds an Evacuation, and is not targeted any more", p.Name) // R24
		}
	}
}

// checkRows checks that published rows never move backward, and that all maintenances of a Node publish the same rows except for selectors.
func checkRows(t *rapid.T, or *oracle, d plan.Decision) {
	for _, m := range or.o.Maintenances {
		for node, nodeDecision := range d.Maintenances[m.Name].Nodes {
			for _, before := range m.Published[node] {
				if !slices.ContainsFunc(nodeDecision.Targets, func(now v1alpha1.DrainTarget) bool { return atLeast(now, before) }) {
					t.Fatalf("rows of %s on %s backtrack: %s, now %s", m.Name, node, show(m.Published[node]), show(nodeDecision.Targets))
				}
			}
			for _, other := range or.on(node) {
				for _, row := range d.Maintenances[other.Name].Nodes[node].Targets {
					p := plan.Pod{Type: row.PodType, Priority: row.PodPriority}
					if row.PodSelector != nil && len(row.PodSelector.MatchLabels) > 0 {
						p.Labels = row.PodSelector.MatchLabels
					}
					if row.PodSelector != nil && len(row.PodSelector.MatchExpressions) > 0 {
						p.Labels = map[string]string{"app": "any"}
					}
					if !plan.CoversPod(nodeDecision.Targets, p, order(row)) {
						t.Fatalf("node %s: rows of %s are %s, those of %s are %s", node, m.Name, show(nodeDecision.Targets),
							other.Name, show(d.Maintenances[other.Name].Nodes[node].Targets))
					}
				}
			}
		}
	}
}

func order(row v1alpha1.DrainTarget) int32 {
	if row.Order == nil {
		return 0
	}
	return *row.Order
}

func atLeast(now, before v1alpha1.DrainTarget) bool {
	return now.PodType == before.PodType && reflect.DeepEqual(now.PodSelector, before.PodSelector) &&
		(order(now) > order(before) || order(now) == order(before) && now.PodPriority >= before.PodPriority)
}

// checkProgress: something happens that each maintenance waits for, whatever contradicts whatever.
func checkProgress(t *rapid.T, or *oracle, d plan.Decision) {
	for _, m := range or.o.Maintenances {
		if !or.canGoOn(m, d) {
			t.Fatalf("%s is stuck: %v", m.Name, d.Maintenances[m.Name])
		}
	}
}

func checkStatus(t *rapid.T, or *oracle, d plan.Decision, m plan.Maintenance) {
	drained := true
	for _, node := range m.Nodes {
		var expected plan.NodeDecision
		expected.Drained = true
		for _, p := range or.o.Pods {
			switch {
			case p.Node != node || p.Finished:
				continue
			case or.skips(m, p):
				expected.Skipped++
				continue
			case p.Verdicts[m.Name].Behavior == v1alpha1.DrainBehaviorWaitCompleted:
			case p.Evacuating:
				expected.Evacuating++
			default:
				expected.Pending++
			}
			expected.Drained, drained = false, false
		}
		got := d.Maintenances[m.Name].Nodes[node]
		if got.Pending != expected.Pending || got.Evacuating != expected.Evacuating || got.Skipped != expected.Skipped ||
			got.Drained != expected.Drained {
			t.Fatalf("status of %s on %s: %v, expected %v", m.Name, node, got, expected)
		}
	}
	got := d.Maintenances[m.Name]
	if got.Drained != drained || (got.Blocking == "") != drained || len(got.Nodes) != len(m.Nodes) {
		t.Fatalf("status of %s: %v", m.Name, got)
	}
}

var (
	limited   = regexp.MustCompile(`^Evacuating \(limited by (.+)\)$`)
	forwarded = regexp.MustCompile(`^Evacuating \(fast-forwarded by older (.+)\)$`)
	waitsNode = regexp.MustCompile(`^Waiting for node (\S+?)(?: \((\S+)\))?\.$`)
	waitsPod  = regexp.MustCompile(`^Waiting for Pod ns/(\S+?)(?: to complete|: the drain rules cannot be evaluated)(?: \((\S+)\))?\.$`)
)

// checkMessage checks that the message is true, and names real blockers.
func checkMessage(t *rapid.T, or *oracle, d plan.Decision, m plan.Maintenance, node, message string) {
	isTrue := func(claim bool) {
		t.Helper()
		if !claim {
			t.Fatalf("%s reports a wrong message about %s: %s", m.Name, node, message)
		}
	}
	some := func(on string, is func(plan.Pod) bool) bool {
		return slices.ContainsFunc(or.o.Pods, func(p plan.Pod) bool { return !p.Finished && p.Node == on && is(p) })
	}
	left := some(node, func(p plan.Pod) bool { return or.holds(m, p) })
	going := some(node, func(p plan.Pod) bool { return or.wants(m, p) && d.Targets.Has(p.UID) })
	isTrue((message == "Drained") == !left)
	isTrue(strings.HasPrefix(message, "Evacuating") == going)

	if match := limited.FindStringSubmatch(message); match != nil {
		for name := range strings.SplitSeq(match[1], ", ") {
			by := or.byName(name)
			isTrue(some(node, func(p plan.Pod) bool {
				return name != m.Name && or.wants(m, p) && or.allows(m, p) && !d.Targets.Has(p.UID) && !or.allows(by, p)
			}))
		}
	}
	if match := forwarded.FindStringSubmatch(message); match != nil {
		for name := range strings.SplitSeq(match[1], ", ") {
			by := or.byName(name)
			isTrue(olderThan(by, m) && some(node, func(p plan.Pod) bool {
				return or.wants(m, p) && !or.allows(m, p) && d.Targets.Has(p.UID) && or.wants(by, p) && or.allows(by, p)
			}))
		}
	}
	if match := waitsNode.FindStringSubmatch(message); match != nil {
		by := m
		if match[2] != "" {
			by = or.byName(match[2])
		}
		isTrue(some(match[1], func(p plan.Pod) bool {
			return or.isCurrent(by, p) && d.Targets.Has(p.UID) || or.forbids(by, p)
		}))
	}
	if match := waitsPod.FindStringSubmatch(message); match != nil {
		by := m
		if match[2] != "" {
			by = or.byName(match[2])
		}
		isTrue(some(node, func(p plan.Pod) bool { return p.Name == match[1] && or.forbids(by, p) && or.holds(m, p) }))
	}
	known := message == "Drained" || message == "Evacuating" || limited.MatchString(message) ||
		forwarded.MatchString(message) || waitsNode.MatchString(message) || waitsPod.MatchString(message)
	isTrue(known)
}

// TestDrainsAlwaysEnd drains a cluster in which nothing new happens: every decision has Pods go, until none is left, and
// none goes that wasn't allowed to, though its rows are published all the while.
func TestDrainsAlwaysEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster()
		for range rapid.IntRange(1, 4).Draw(t, "maintenances") {
			c.addMaintenance(t)
		}
		for range rapid.IntRange(0, 20).Draw(t, "pods") {
			c.addPod(t, false)
		}
		for {
			o := c.observe()
			d := plan.Decide(o)
			or := newOracle(o)
			for _, p := range o.Pods {
				if d.Targets.Has(p.UID) && !p.Evacuating && len(or.disallowing(p)) > 0 && !or.broughtForward(p) {
					t.Fatalf("%s goes out of turn", p.Name)
				}
			}
			if d.Targets.Len() == 0 {
				for _, m := range o.Maintenances {
					if !d.Maintenances[m.Name].Drained {
						t.Fatalf("%s never ends: %v", m.Name, d.Maintenances[m.Name])
					}
				}
				return
			}
			c.act(always)
			c.evacuate(t)
		}
	})
}

// TestOneMaintenanceWalksItsPlan: alone, a maintenance has Pods go step by step, and never two steps at once.
func TestOneMaintenanceWalksItsPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster()
		c.addMaintenance(t)
		for range rapid.IntRange(1, 20).Draw(t, "pods") {
			c.addPod(t, false)
		}
		at := place{-1}
		for {
			o := c.observe()
			d := plan.Decide(o)
			if d.Targets.Len() == 0 {
				return
			}
			or, now := newOracle(o), place{-1}
			for _, p := range o.Pods {
				if !d.Targets.Has(p.UID) {
					continue
				}
				if here := or.place(o.Maintenances[0], p); now == (place{-1}) {
					now = here
				} else if now != here {
					t.Fatalf("steps %v and %v go at once", now, here)
				}
			}
			if now.compare(at) < 0 {
				t.Fatalf("step %v goes after step %v", now, at)
			}
			at = now
			c.act(always)
			c.evacuate(t)
		}
	})
}

// TestSuspendedMaintenancesOnlyHold suspends some maintenances in every state that TestDecideHoldsItsPromises reaches.
func TestSuspendedMaintenancesOnlyHold(t *testing.T) { // E58
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster()
		actions := c.actions()
		actions[""] = func(t *rapid.T) {
			o := c.observe()
			for i := range o.Maintenances {
				o.Maintenances[i].Suspended = rapid.Bool().Draw(t, "suspended")
			}
			checkSuspended(t, o)
		}
		t.Repeat(actions)
	})
}

func checkSuspended(t *rapid.T, o plan.Observation) {
	d, or := plan.Decide(o), newOracle(o)
	checkDeterministic(t, o, d)
	for _, p := range o.Pods {
		on := or.on(p.Node)
		active := slices.ContainsFunc(on, func(m plan.Maintenance) bool { return !m.Suspended && or.wants(m, p) })
		if d.Targets.Has(p.UID) && (!active || or.forbidden(p)) {
			t.Errorf("Pod %s is targeted for a suspended maintenance", p.Name)
		}
		if kept := p.Evacuating && !active && or.wanted(p) && !or.forbidden(p); d.Kept.Has(p.UID) != kept {
			t.Errorf("Pod %s: kept is %t", p.Name, !kept)
		}
	}
}

package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

// A story is a small cluster. Its tests read
//
//	given(t, maintenance("a").draining("one").plan(upTo(5000)), pods("web", 3).on("one").priority(4000)).
//		expect(node("one").of("a").targets(upTo(5000)).says("Evacuating")).
//		gone("web").
//		expect(...)
//
// Each expect first does what the controller does: decide, publish the rows, evacuate the targets, decide again. Pods drain
// unless the test says otherwise.
type story struct {
	t            *testing.T
	maintenances []*maintenanceBuilder
	pods         []*podBuilder
	decision     plan.Decision
}

// thing is what a story is made of.
type thing interface{ join(s *story) }

func given(t *testing.T, things ...thing) *story {
	t.Helper()
	return (&story{t: t}).and(things...)
}

// and adds to the story: a maintenance that is created, a Pod that appears.
func (s *story) and(things ...thing) *story {
	for _, thing := range things {
		thing.join(s)
	}
	return s
}

// without removes a maintenance.
func (s *story) without(maintenance string) *story {
	s.maintenances = slices.DeleteFunc(s.maintenances, func(m *maintenanceBuilder) bool { return m.Name == maintenance })
	return s
}

// gone removes the Pods of these groups.
func (s *story) gone(groups ...string) *story {
	for _, group := range groups {
		s.goneBut(group, 0)
	}
	return s
}

// goneBut removes the Pods of a group, except for some that are left.
func (s *story) goneBut(group string, left int) *story {
	s.t.Helper()
	before := len(s.pods)
	s.pods = slices.DeleteFunc(s.pods, func(p *podBuilder) bool {
		if p.group == group && left > 0 {
			left--
			return false
		}
		return p.group == group
	})
	if before == len(s.pods) {
		s.t.Fatalf("no pod of %q is there to go", group)
	}
	return s
}

// change changes the Pods of a group.
func (s *story) change(group string, change func(*podBuilder)) *story {
	for _, p := range s.pods {
		if p.group == group {
			change(p)
		}
	}
	return s
}

// observation is what the story looks like now.
func (s *story) observation() plan.Observation {
	var o plan.Observation
	for _, m := range s.maintenances {
		o.Maintenances = append(o.Maintenances, m.Maintenance)
	}
	for _, p := range s.pods {
		pod := p.Pod
		pod.Verdicts = map[string]plan.Verdict{}
		for _, m := range s.maintenances {
			pod.Verdicts[m.Name] = plan.Verdict{Behavior: v1alpha1.DrainBehaviorDrain}
			if verdict, ok := p.Verdicts[m.Name]; ok {
				pod.Verdicts[m.Name] = verdict
			}
		}
		o.Pods = append(o.Pods, pod)
	}
	return o
}

// decide decides without acting.
func (s *story) decide() *story {
	s.decision = plan.Decide(s.observation())
	return s
}

// act does what the controller does with a decision.
func (s *story) act() *story {
	s.decide()
	for _, m := range s.maintenances {
		m.Published = map[string][]v1alpha1.DrainTarget{}
		for node, d := range s.decision.Maintenances[m.Name].Nodes {
			m.Published[node] = d.Targets
		}
	}
	for _, p := range s.pods {
		p.Evacuating = s.decision.Targets.Has(p.UID)
	}
	return s
}

func (s *story) expect(expectations ...*expectation) *story {
	s.t.Helper()
	s.act().decide()
	for _, e := range expectations {
		e.check(s)
	}
	return s
}

// expectTargeted expects exactly these groups to be targeted, each one with all its Pods.
func (s *story) expectTargeted(groups ...string) *story {
	s.t.Helper()
	s.act().decide()
	var targeted []string
	for _, p := range s.pods {
		if s.decision.Targets.Has(p.UID) {
			targeted = append(targeted, p.group)
		} else if slices.Contains(groups, p.group) {
			s.t.Errorf("%s is not targeted", p.Name)
		}
	}
	slices.Sort(targeted)
	slices.Sort(groups)
	if targeted = slices.Compact(targeted); !slices.Equal(targeted, groups) {
		s.t.Errorf("targeted: %v, expected: %v", targeted, groups)
	}
	return s
}

func (s *story) expectDrained(maintenance string, drained bool) *story {
	s.t.Helper()
	s.act().decide()
	if d := s.decision.Maintenances[maintenance]; d.Drained != drained {
		s.t.Errorf("%s: drained: %v, expected: %v (%s)", maintenance, d.Drained, drained, d.Blocking)
	}
	return s
}

func (s *story) expectBlocking(maintenance, text string) *story {
	s.t.Helper()
	s.act().decide()
	if d := s.decision.Maintenances[maintenance]; d.Blocking != text {
		s.t.Errorf("%s blocked by %q, expected %q", maintenance, d.Blocking, text)
	}
	return s
}

// Maintenances

type maintenanceBuilder struct {
	plan.Maintenance
	aged bool
}

func maintenance(name string) *maintenanceBuilder {
	return &maintenanceBuilder{Maintenance: plan.Maintenance{Name: name}}
}

// specOf returns the selector of a plan's entry that equals the one of a published row.
func specOf(published *metav1.LabelSelector) *v1alpha1.LabelSelector {
	if published == nil {
		return nil
	}
	spec := &v1alpha1.LabelSelector{}
	for key, value := range published.MatchLabels {
		spec.MatchLabels = map[string]v1alpha1.LabelValue{key: v1alpha1.LabelValue(value)}
	}
	for _, r := range published.MatchExpressions {
		spec.MatchExpressions = append(spec.MatchExpressions, v1alpha1.LabelSelectorRequirement{Key: r.Key, Operator: r.Operator})
	}
	return spec
}

func (b *maintenanceBuilder) draining(nodes ...string) *maintenanceBuilder {
	b.Nodes = nodes
	return b
}

func (b *maintenanceBuilder) plan(entries ...entry) *maintenanceBuilder {
	for _, e := range entries {
		b.Plan = append(b.Plan, v1alpha1.DrainPlanEntry{PodType: e.PodType, PodPriority: e.PodPriority, PodSelector: specOf(e.PodSelector)})
	}
	return b
}

// since sets the start of the Drain stage. Otherwise maintenances start one after the other as they join the story.
func (b *maintenanceBuilder) since(minute int) *maintenanceBuilder {
	b.DrainStart, b.aged = time.Unix(int64(minute)*60, 0), true
	return b
}

func (b *maintenanceBuilder) suspended() *maintenanceBuilder {
	b.Suspended = true
	return b
}

func (b *maintenanceBuilder) created(minute int) *maintenanceBuilder {
	b.Created = time.Unix(int64(minute)*60, 0)
	return b
}

func (b *maintenanceBuilder) skippingTypes(types ...v1alpha1.PodType) *maintenanceBuilder {
	b.SkippedTypes = types
	return b
}

func (b *maintenanceBuilder) servingMachine() *maintenanceBuilder {
	b.ServesMachine = true
	return b
}

func (b *maintenanceBuilder) servingDeletion() *maintenanceBuilder {
	b.ServesDeletion = true
	return b.servingMachine()
}

func (b *maintenanceBuilder) published(node string, rows ...entry) *maintenanceBuilder {
	if b.Published == nil {
		b.Published = map[string][]v1alpha1.DrainTarget{}
	}
	b.Published[node] = targets(rows)
	return b
}

func (b *maintenanceBuilder) join(s *story) {
	if !b.aged {
		b.DrainStart = time.Unix(int64(1000+len(s.maintenances))*60, 0)
	}
	s.maintenances = append(s.maintenances, b)
}

// entry is an entry of a plan, or a row of drain targets.
type entry struct{ v1alpha1.DrainTarget }

func upTo(priority int32) entry {
	return entry{v1alpha1.DrainTarget{PodType: v1alpha1.PodTypeDefault, PodPriority: priority}}
}

func (e entry) daemonSets() entry { e.PodType = v1alpha1.PodTypeDaemonSet; return e }
func (e entry) statics() entry    { e.PodType = v1alpha1.PodTypeStatic; return e }
func (e entry) order(o int32) entry {
	e.Order = &o
	return e
}

func (e entry) app(name string) entry {
	e.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	return e
}

func targets(rows []entry) []v1alpha1.DrainTarget {
	result := make([]v1alpha1.DrainTarget, 0, len(rows))
	for _, row := range rows {
		result = append(result, row.DrainTarget)
	}
	return result
}

// Pods

type podBuilder struct {
	plan.Pod
	group string
	count int
}

// pods is a group of equal Pods, in the namespace default and of priority 0.
func pods(group string, count int) *podBuilder {
	return &podBuilder{
		group: group, count: count,
		Pod: plan.Pod{Namespace: "default", HasEvacuator: true, Verdicts: map[string]plan.Verdict{}},
	}
}

func pod(name string) *podBuilder { return pods(name, 1) }

func (b *podBuilder) on(node string) *podBuilder          { b.Node = node; return b }
func (b *podBuilder) priority(p int32) *podBuilder        { b.Priority = p; return b }
func (b *podBuilder) daemonSet() *podBuilder              { b.Type = v1alpha1.PodTypeDaemonSet; return b }
func (b *podBuilder) static() *podBuilder                 { b.Type = v1alpha1.PodTypeStatic; return b }
func (b *podBuilder) staticWithoutEvacuator() *podBuilder { b.HasEvacuator = false; return b.static() }
func (b *podBuilder) comingBack() *podBuilder             { b.IsRecreated = true; return b.daemonSet() }
func (b *podBuilder) finished() *podBuilder               { b.Finished = true; return b }
func (b *podBuilder) evacuating() *podBuilder             { b.Evacuating = true; return b }
func (b *podBuilder) app(name string) *podBuilder {
	b.Labels = map[string]string{"app": name}
	return b
}

func (b *podBuilder) verdict(v plan.Verdict, maintenances []string) *podBuilder {
	for _, m := range maintenances {
		b.Verdicts[m] = v
	}
	return b
}

func (b *podBuilder) skippedBy(maintenances ...string) *podBuilder {
	return b.verdict(plan.Verdict{Behavior: v1alpha1.DrainBehaviorSkip}, maintenances)
}

func (b *podBuilder) completesFor(maintenances ...string) *podBuilder {
	return b.verdict(plan.Verdict{Behavior: v1alpha1.DrainBehaviorWaitCompleted}, maintenances)
}

func (b *podBuilder) undecidedFor(maintenances ...string) *podBuilder {
	return b.verdict(plan.Verdict{Undecided: true}, maintenances)
}

// unreadFor makes the Pod undecided because an object has not been read yet.
func (b *podBuilder) unreadFor(maintenances ...string) *podBuilder {
	return b.verdict(plan.Verdict{Undecided: true, Unread: true}, maintenances)
}

func (b *podBuilder) drainsFor(maintenances ...string) *podBuilder {
	return b.ordered(0, maintenances...)
}

func (b *podBuilder) ordered(order int32, maintenances ...string) *podBuilder {
	return b.verdict(plan.Verdict{Behavior: v1alpha1.DrainBehaviorDrain, Order: order}, maintenances)
}

func (b *podBuilder) join(s *story) {
	for i := range b.count {
		one := *b
		one.Name = b.group
		if b.count > 1 {
			one.Name = fmt.Sprintf("%s-%d", b.group, i)
		}
		one.UID = types.UID(fmt.Sprintf("%s/%d", one.Name, len(s.pods)))
		s.pods = append(s.pods, &one)
	}
}

// Expectations

type expectation struct {
	node, maintenance string
	rows              []v1alpha1.DrainTarget
	checkRows         bool
	message           string
	counts            []int32
	fastForwardedBy   []string
	checkForwarded    bool
}

func node(name string) *expectation { return &expectation{node: name} }

func (e *expectation) of(maintenance string) *expectation {
	e.maintenance = maintenance
	return e
}

func (e *expectation) targets(rows ...entry) *expectation {
	e.rows, e.checkRows = targets(rows), true
	return e
}

func (e *expectation) says(message string) *expectation {
	e.message = message
	return e
}

func (e *expectation) pods(pending, evacuating, skipped int32) *expectation {
	e.counts = []int32{pending, evacuating, skipped}
	return e
}

func (e *expectation) fastForwarded(by ...string) *expectation {
	e.fastForwardedBy, e.checkForwarded = by, true
	return e
}

func (e *expectation) check(s *story) {
	s.t.Helper()
	d, ok := s.decision.Maintenances[e.maintenance].Nodes[e.node]
	if !ok {
		s.t.Errorf("nothing is decided about node %s of %s", e.node, e.maintenance)
		return
	}
	complain := func(what string, got, expected any) {
		s.t.Helper()
		s.t.Errorf("node %s of %s:\n     got %s: %v\nexpected %s: %v", e.node, e.maintenance, what, got, what, expected)
	}
	if e.checkRows && show(d.Targets) != show(e.rows) {
		complain("targets", show(d.Targets), show(e.rows))
	}
	if e.message != "" && d.Message != e.message {
		complain("message", d.Message, e.message)
	}
	if counts := []int32{d.Pending, d.Evacuating, d.Skipped}; e.counts != nil && !slices.Equal(counts, e.counts) {
		complain("pending, evacuating, skipped", counts, e.counts)
	}
	if e.checkForwarded && !slices.Equal(d.FastForwardedBy, e.fastForwardedBy) {
		complain("fast-forwarded by", d.FastForwardedBy, e.fastForwardedBy)
	}
}

// show writes rows for people: "Default 1000 app=postgres".
func show(rows []v1alpha1.DrainTarget) string {
	var result []string
	for _, row := range rows {
		text := fmt.Sprintf("%s %d", row.PodType, row.PodPriority)
		if row.Order != nil {
			text += fmt.Sprintf(" order %d", *row.Order)
		}
		if row.PodSelector != nil {
			text += " " + metav1.FormatLabelSelector(row.PodSelector)
		}
		result = append(result, text)
	}
	return "[" + strings.Join(result, ", ") + "]"
}

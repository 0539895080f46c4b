package evacuation

import (
	"cmp"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Terms are the combined settings of the maintenances that drain a Node, for the evacuation of one of its Pods.
type Terms struct {
	// DrainEnds is when the first of its drains times out. Nil: never.
	DrainEnds *time.Time
	// Timeouts are the drain timeouts that are observed, of each drain.
	Timeouts []Timeout
	// DrainStart is when the first of its drains started, also if its NodeMaintenance has been recreated since. Nil: no drain has started.
	DrainStart *time.Time
	// StageStart is DrainStart, but later if the NodeMaintenance was recreated: it requests Evacuations from then on.
	StageStart *time.Time
	// Ordered is true if one of its drains evicts the Pods of StatefulSets in order.
	Ordered bool
	// BuiltInOnly is true if one of its drains allows built-in evacuators only. ProgressDeadline is the shortest of those drains.
	BuiltInOnly      bool
	ProgressDeadline time.Duration
	// DeletesUnready is true if all of its drains allow the deletion of Pods that aren't ready and whose budget can never allow a
	// disruption (E21).
	DeletesUnready bool
	// EvictionWebhooks are the names of admission webhooks that one of its drains declares to wait for eviction requests.
	EvictionWebhooks []string
	// Maintenances are those of its drains, whose surge policies apply to its Pods.
	Maintenances []*v1alpha1.NodeMaintenance
	// Suspended is true if no NodeMaintenance drains the Pod, or one forbids that, see NodeTerms.For.
	Suspended bool
}

// Timeout is the drain timeout of a drain.
type Timeout struct {
	// It counts from Start. The NodeMaintenance itself began to drain the Node at Began, which is later if it was recreated.
	Start, Began, Ends time.Time
	// Observed is when the manager observed the timeout.
	Observed time.Time
	// Deletes means that the drain deletes the remaining Pods before Ends.
	Deletes bool
}

// TimeoutOf returns the drain timeout of a NodeMaintenance that ends at a time, see DrainEnds. observed is when the manager observed it.
func TimeoutOf(m *v1alpha1.NodeMaintenance, ends, observed time.Time) Timeout {
	t := Timeout{Start: *m.DrainStart(), Ends: ends, Observed: observed, Deletes: m.Spec.Evacuation.OnTimeout == v1alpha1.OnTimeoutDelete}
	if t.Began = *m.OwnDrainStart(); t.Began.Before(t.Start) { // it was held
		t.Began = t.Start
	}
	return t
}

// JoinedAt returns the timeout of a Node whose drain began at a time, see Joined: it counts from then, if that is later.
func (t Timeout) JoinedAt(at time.Time) Timeout {
	if later := at.Sub(t.Start); later > 0 {
		t.Start, t.Ends = t.Start.Add(later), t.Ends.Add(later)
	}
	if t.Began.Before(t.Start) {
		t.Began = t.Start
	}
	return t
}

// DefersEvacuation reports whether the Evacuation of a Pod is deferred: only NodeMaintenances are its instigators, and none of them drains
// the Pod. Instigators other than NodeMaintenances are never suspended.
func (t Terms) DefersEvacuation(e *v1alpha1.Evacuation) bool {
	instigators := Instigators(e)
	return t.Suspended && len(instigators) == 1 && instigators[0] == v1alpha1.NodeMaintenanceInstigatorFinalizer
}

// Drainers are the NodeMaintenances of a workload cluster that drain Nodes: they are in stage Drain and not being deleted.
type Drainers struct {
	byName   map[string][]*drainer // those that select Nodes by name, by the name of the Node
	byLabels []*drainer
	known    sets.Set[string]
}

// drainer is a NodeMaintenance that drains Nodes.
type drainer struct {
	maintenance *v1alpha1.NodeMaintenance

	terms      Terms      // of the Nodes whose drain began with the stage
	countsFrom *time.Time // the time from which their drain timeout counts, not nil if they have one
	suspended  bool
	selects    func(*corev1.Node) bool
	joined     func(*corev1.Node) (at *metav1.Time, recorded bool) // see Joined
	matcher    func() *rules.Matcher
}

// DrainersOf returns those of the NodeMaintenances that drain Nodes. suspended reports whether nothing is done for a NodeMaintenance, see
// machinedrain.IsSuspended; nil: none is suspended.
func DrainersOf(maintenances []v1alpha1.NodeMaintenance, suspended func(*v1alpha1.NodeMaintenance) bool) *Drainers {
	d := &Drainers{byName: map[string][]*drainer{}, known: sets.New[string]()}
	for i := range maintenances {
		m := &maintenances[i]
		terms, drains := termsOf(m)
		if !drains {
			continue
		}
		each := &drainer{
			maintenance: m, terms: terms, countsFrom: m.DrainStart(), suspended: suspended != nil && suspended(m), selects: nodeselection.Of(m), joined: joinedOf(m),
			matcher: sync.OnceValue(func() *rules.Matcher { return rules.NewMatcher(rules.InEffect(&m.Spec)) }),
		}
		d.known.Insert(nodeselection.KnownNodes(m)...)
		names, byName := nodeselection.Names(m)
		if !byName {
			d.byLabels = append(d.byLabels, each)
		}
		for _, name := range names {
			d.byName[name] = append(d.byName[name], each)
		}
	}
	return d
}

// KnownNodes returns the names of the Nodes that one of the NodeMaintenances selects by name or that its status lists.
func (d *Drainers) KnownNodes() []string { return sets.List(d.known) }

// On returns the terms of a Node. node is nil if the Node does not exist; nothing drains it then. The selection decides and not the status
// of a NodeMaintenance: a Node that a NodeMaintenance no longer selects is not drained, although its status lists the Node until it is
// released.
func (d *Drainers) On(node *corev1.Node) NodeTerms {
	var terms NodeTerms
	if node == nil {
		return terms
	}
	for _, each := range slices.Concat(d.byName[node.Name], d.byLabels) {
		if each.selects(node) {
			terms = append(terms, each.on(node))
		}
	}
	return terms
}

// NodeTerms are the terms of the NodeMaintenances that drain a Node.
type NodeTerms []*drainer

// For returns the terms for the evacuation of a Pod of the Node. This is the decision whether a Pod may be evacuated for NodeMaintenances:
// at least one that drains the Node, is not suspended, and has the verdict Drain for the Pod must exist, and none may veto the evacuation,
// suspended ones included. Otherwise the terms are suspended, whatever instigator the Evacuation has: its NodeMaintenance was completed,
// deleted or has vanished, no longer selects the Node, has skipped the Pod meanwhile, or never existed.
func (n NodeTerms) For(pod rules.Pod) Terms {
	terms := n.Combined()
	terms.Suspended = len(n.Draining(pod)) == 0 || slices.ContainsFunc(n, func(d *drainer) bool { return d.vetoes(pod) })
	return terms
}

// Draining returns the NodeMaintenances for which a Pod of the Node may be evacuated.
func (n NodeTerms) Draining(pod rules.Pod) []*v1alpha1.NodeMaintenance {
	var draining []*v1alpha1.NodeMaintenance
	for _, d := range n {
		if d.drains(pod) {
			draining = append(draining, d.maintenance)
		}
	}
	return draining
}

// drains reports whether a Pod of the Node may be evacuated for the NodeMaintenance.
func (d *drainer) drains(pod rules.Pod) bool {
	return !d.suspended && d.matcher().Decide(pod).Behavior == v1alpha1.DrainBehaviorDrain
}

// vetoes reports whether the NodeMaintenance forbids others to evacuate a Pod of the Node. A Pod about which it is undecided only because
// an object has not been read keeps its Evacuation, as drain/plan decides: the caches are filled again after a restart.
func (d *drainer) vetoes(pod rules.Pod) bool {
	verdict := d.matcher().Decide(pod)
	return verdict.Vetoes() && !verdict.Unread
}

// IsSuspended reports whether all NodeMaintenances that drain the Node are suspended.
func (n NodeTerms) IsSuspended() bool {
	return !slices.ContainsFunc(n, func(d *drainer) bool { return !d.suspended })
}

// Combined returns the terms for all Pods of the Node. If several NodeMaintenances drain it, the earliest drain timeout applies, and
// budgets are overridden only if all of them override budgets: as with the order of Pods, the most restrictive one wins. Evacuators that
// are not built in are excluded if one of them excludes them, so that they cannot block its drain. Suspended NodeMaintenances have no
// effect on the evacuations of others.
func (n NodeTerms) Combined() Terms {
	var all *Terms
	var maintenances []*v1alpha1.NodeMaintenance
	for _, d := range n {
		if d.suspended {
			continue
		}
		maintenances = append(maintenances, d.maintenance)
		terms := d.terms
		if all != nil {
			terms = all.and(terms)
		}
		all = &terms
	}
	combined := ptr.Deref(all, Terms{})
	combined.Maintenances = maintenances
	return combined
}

// TermsChanged reports whether the terms of a maintenance, or the Pods that they apply to, have changed. before is nil for a new
// maintenance, after for a deleted one.
func TermsChanged(before, after *v1alpha1.NodeMaintenance) bool {
	beforeTerms, drained := termsOf(before)
	afterTerms, drains := termsOf(after)
	if !drained || !drains {
		return drained != drains
	}
	const manager = v1alpha1.OwnerManagementClusterAnnotation // a drain may be suspended until it changes
	return !reflect.DeepEqual(beforeTerms, afterTerms) || before.UID != after.UID || before.Generation != after.Generation ||
		before.Annotations[manager] != after.Annotations[manager] ||
		before.Annotations[v1alpha1.NodeUIDAnnotation] != after.Annotations[v1alpha1.NodeUIDAnnotation] ||
		!slices.EqualFunc(before.Status.NodeStatuses, after.Status.NodeStatuses, sameNode)
}

func termsOf(m *v1alpha1.NodeMaintenance) (terms Terms, drains bool) {
	if m == nil || !m.Drains() {
		return Terms{}, false
	}
	terms = Terms{
		DrainEnds:      DrainEnds(m),
		DrainStart:     earlier(m.StageStart(v1alpha1.StageDrain), m.RecordedDrainStart()),
		StageStart:     m.StageStart(v1alpha1.StageDrain),
		Ordered:        m.Spec.Evacuation.StatefulSetPods == v1alpha1.StatefulSetPodsOrdered,
		BuiltInOnly:    m.Spec.Evacuation.Evacuators == v1alpha1.EvacuatorsBuiltIn,
		DeletesUnready: m.Spec.Evacuation.UnhealthyBudget == v1alpha1.UnhealthyBudgetOverride,

		EvictionWebhooks: m.Spec.Evacuation.EvictionWebhooks,
	}
	if observed := m.Status.DrainTimeout; terms.DrainEnds != nil && observed != nil && observed.Deadline.Time.Equal(*terms.DrainEnds) {
		terms.Timeouts = []Timeout{TimeoutOf(m, *terms.DrainEnds, observed.ObservedTime.Time)}
	}
	if terms.BuiltInOnly {
		terms.ProgressDeadline = time.Duration(m.Spec.Evacuation.ProgressDeadlineSeconds) * time.Second
	}
	return terms, true
}

func sameNode(a, b v1alpha1.NodeMaintenanceNodeStatus) bool {
	return a.NodeRef == b.NodeRef && a.DrainStartTime.Equal(b.DrainStartTime)
}

// Joined returns when the drain of a Node by a maintenance began, nil if it began with stage Drain. It begins later if the Node has joined
// since, or was registered again under the same name; recorded is false until the status of the maintenance says so. listed is the entry of
// the Node in this status, nil if it has none. The Node of a Machine never joins later: it has the timeout of the Machine.
func Joined(m *v1alpha1.NodeMaintenance, listed *v1alpha1.NodeMaintenanceNodeStatus, node *corev1.Node) (at *metav1.Time, recorded bool) {
	start := m.StageStart(v1alpha1.StageDrain)
	_, servesMachine := m.Annotations[v1alpha1.OwnerMachineAnnotation]
	if m.Spec.Stage != v1alpha1.StageDrain || start == nil || servesMachine {
		return nil, true
	}
	if listed == nil {
		return nil, false
	}
	if listed.DrainStartTime != nil {
		start = &listed.DrainStartTime.Time
	}
	return listed.DrainStartTime, !node.CreationTimestamp.After(*start)
}

// joinedOf returns Joined for the Nodes of a maintenance.
func joinedOf(m *v1alpha1.NodeMaintenance) func(*corev1.Node) (at *metav1.Time, recorded bool) {
	listed := sync.OnceValue(func() map[string]*v1alpha1.NodeMaintenanceNodeStatus { return nodeselection.NodeStatuses(m) })
	return func(node *corev1.Node) (*metav1.Time, bool) { return Joined(m, listed()[node.Name], node) }
}

// on returns the drain of one Node, which may have begun later than the stage, see Joined: its timeout counts from then. Until that is
// recorded, it does not time out.
func (d drainer) on(node *corev1.Node) *drainer {
	at, recorded := d.joined(node)
	if !recorded {
		d.terms.DrainEnds, d.terms.Timeouts = nil, nil
	}
	if at == nil || !recorded {
		return &d
	}
	if d.terms.DrainStart != nil && at.After(*d.terms.DrainStart) {
		d.terms.DrainStart, d.terms.StageStart = &at.Time, &at.Time
	}
	if d.terms.DrainEnds == nil {
		return &d
	}
	d.terms.DrainEnds = ptr.To(Timeout{Start: *d.countsFrom, Ends: *d.terms.DrainEnds}.JoinedAt(at.Time).Ends)
	d.terms.Timeouts = slices.Clone(d.terms.Timeouts)
	for i, timeout := range d.terms.Timeouts {
		d.terms.Timeouts[i] = timeout.JoinedAt(at.Time)
	}
	return &d
}

func (t Terms) and(more Terms) Terms {
	both := Terms{
		DrainEnds:      earlier(t.DrainEnds, more.DrainEnds),
		Timeouts:       slices.Concat(t.Timeouts, more.Timeouts),
		DrainStart:     earlier(t.DrainStart, more.DrainStart),
		StageStart:     earlier(t.StageStart, more.StageStart),
		Ordered:        t.Ordered || more.Ordered,
		BuiltInOnly:    t.BuiltInOnly || more.BuiltInOnly,
		DeletesUnready: t.DeletesUnready && more.DeletesUnready,

		EvictionWebhooks: slices.Concat(t.EvictionWebhooks, more.EvictionWebhooks),
	}
	both.ProgressDeadline = min(cmp.Or(t.ProgressDeadline, more.ProgressDeadline), cmp.Or(more.ProgressDeadline, t.ProgressDeadline))
	return both
}

func earlier(a, b *time.Time) *time.Time {
	if a == nil || b != nil && b.Before(*a) {
		return b
	}
	return a
}

// DrainEnds returns when the drain of a maintenance times out, counted from its start, see NodeMaintenance.DrainStart. Nil: never, or the
// stage has not started, or the drain has ended. If Pods must be drained again, it counts from then.
func DrainEnds(m *v1alpha1.NodeMaintenance) *time.Time {
	timeout := m.Spec.Evacuation.DrainTimeoutSeconds
	if timeout == nil || *timeout <= 0 {
		return nil
	}
	start := m.DrainStart()
	if start == nil || meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.NodeMaintenanceDrained) {
		return nil
	}
	ends := start.Add(time.Duration(*timeout) * time.Second)
	return &ends
}

// FirstDrain returns when the first of the drains in progress started. Nil: no drain is in progress.
func FirstDrain(maintenances []v1alpha1.NodeMaintenance) *time.Time {
	var first *time.Time
	for i := range maintenances {
		if terms, drains := termsOf(&maintenances[i]); drains {
			first = earlier(first, terms.DrainStart)
		}
	}
	return first
}

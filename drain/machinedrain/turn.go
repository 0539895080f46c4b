package machinedrain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/lookup"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
)

// NeedsTurn reports whether the drain of a Machine may have to wait for a turn, because its policy limits drains, see LimitOf and
// StandingOf. Its Node exists. present is its NodeMaintenance, nil if it has none. A Machine whose drain in place has ended needs no turn
// if another actor has deleted its NodeMaintenance and the Node is still cordoned: a user may still be working on the Node. One that was
// created after the request is another Node, which may have registered as unschedulable.
func NeedsTurn(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy, node *corev1.Node, present *v1alpha1.NodeMaintenance, now time.Time) bool {
	isLimited := LimitOf(m, policy).IsSet() || FollowsAnother(m, policy)
	staysDrained := hasEndedInPlace(m) && present == nil && node != nil && node.Spec.Unschedulable && !node.CreationTimestamp.After(*drainRequested(m))
	return isLimited && !staysDrained && StandingOf(m, ObservedDrain{Node: node, Maintenance: present}, now).waits()
}

// turnBegan returns since when a Machine has the turn that it has recorded, nil if it has none. The record keeps the turn while the Machine
// has no NodeMaintenance in stage Drain: because it is overdue, must be recreated, or continues after a hold. An overdue Machine whose
// drain timeout was removed has no turn any more: nothing would end it if the drain cannot begin. Neither has a running Machine whose drain
// in place has ended: others have had turns since.
func turnBegan(m *clusterv1.Machine) *time.Time {
	if hasEndedInPlace(m) || DrainTimeout(m) <= 0 && !WasHeldByHooks(m) {
		return nil
	}
	return recorded(m, v1alpha1.DrainStartedAnnotation)
}

// NeedsTurnAgain reports whether the drain of a Machine that was held may have to wait for a turn, see NeedsTurn, while neither its Node
// nor its NodeMaintenance can be read. The hold has removed the record that it waited.
func NeedsTurnAgain(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy) bool {
	return WasHeldByHooks(m) && NeedsTurn(m, policy, &corev1.Node{}, nil, time.Time{})
}

// latest returns when the drain of a Machine starts regardless of the limit: its drain timeout after its request, after the end of a hold,
// and after the start of the last drain of the Cluster. So the limit holds while drains end and start; if none does, the Machine waits no
// longer than its drain timeout. The zero time means that the Machine has no timeout.
func (c Contender) latest(lastBegan time.Time) time.Time {
	if c.Timeout <= 0 {
		return time.Time{}
	}
	since := c.Requested
	for _, t := range []time.Time{c.Resumed, lastBegan} {
		if t.After(since) {
			since = t
		}
	}
	return since.Add(c.Timeout)
}

// settling is the minimum time between the request for a drain, or the end of a hold, and the start of the drain. The time of a request has
// whole seconds: after that second, and another one for watch lag, all Machines are known whose drains were requested in the same second
// and that precede it by name. In the same way, all Machines whose hooks are removed together have recorded that they wait for a turn
// before one of them gets it.
const settling = 2 * time.Second

// Turn says whether the limits of the policy permit the drain of a Machine. The zero value does.
type Turn struct {
	// Draining is the number of other Machines under the same limit that drain, and Before the number of those that have waited longer. The
	// drain may start while their sum is less than Limit, and Domains permits it. Limit is maxParallelDrains, 0 if it is not set.
	Draining, Before, Limit int
	Domains                 Domains
	// Excused is how many of the drains in progress do not count, because they have made no progress for the patience of the policy: none or
	// one.
	Excused int
	// Settles is when all Machines whose drains were requested, or whose holds ended, in the same second are known, zero if they are.
	Settles time.Time
	// Latest is when the drain starts regardless of the limit unless another drain starts before, zero if the Machine has no drain timeout.
	Latest time.Time
	// Overdue means that Latest has passed for this Machine and for none that has waited longer, see takesOverdueTurn, and that the drains in
	// progress that count use the limit, or that something keeps a Machine which has waited longer from beginning. When a drain ends, or does
	// not count any more, the next one begins: until then no other Machine is overdue.
	Overdue bool
	// Former is the policy that may be replaced until Settles, see AwaitPolicy.
	Former string
	// Stalled means that none of the drains in progress has made progress for StallPeriod, and StallsAt is from when on that is so if none
	// does until then, zero if it is not known or no drain is in progress. MayStall means that it is not known whether that is so now.
	Stalled, MayStall bool
	StallsAt          time.Time
	// Blocked is the Machine that has waited for the longest time among those that delay this one and cannot begin, and Longest the one that
	// has been draining for the longest time. They are empty if there is none.
	Blocked, Longest string
	// Replacing is the Machine whose drain has ended for the longest time among those that still count, see the function Replacing, and
	// ReplacedBy is until when one of them counts at most.
	Replacing  string
	ReplacedBy time.Time
	// Problem is why the API server cannot be asked whether the Machine gets the turn, see TurnProblem. It is empty unless that persists.
	Problem string
}

// Now reports whether the drain may start now.
func (t Turn) Now() bool { return !t.IsLimited() || t.isFirst() && t.Settles.IsZero() || t.Overdue }

// IsLimited reports whether there is a limit.
func (t Turn) IsLimited() bool { return t.Limit > 0 || t.Domains.Limit.Key != "" }

// isFirst reports whether the drain may start as far as the known Machines are concerned.
func (t Turn) isFirst() bool { return t.permitsOneMore() && t.Domains.permits() }

// permitsOneMore reports whether maxParallelDrains permits the drain.
func (t Turn) permitsOneMore() bool { return t.Limit == 0 || t.Draining-t.Excused+t.Before < t.Limit }

// Message says what a Machine of a Cluster waits for.
func (t Turn) Message(cluster string) string {
	if t.Problem != "" {
		return t.Problem
	}
	if t.Former != "" {
		return "MachineDrainPolicy " + t.Former + ", whose maxParallelDrains limited the drain, no longer selects the Machine: waiting in case it is replaced"
	}
	if t.isFirst() {
		return fmt.Sprintf("Waiting for Machines of Cluster %s whose drains were requested, or no longer held by hooks, in the same second and that precede this "+
			"one (maxParallelDrains)", cluster)
	}
	if t.permitsOneMore() {
		t.Longest = t.Domains.Longest
		return t.Domains.message(cluster) + t.holder()
	}
	excused := ""
	if t.Excused > 0 {
		excused = "; one does not count, because it makes no progress"
	}
	return fmt.Sprintf("Waiting for other Machines of Cluster %s to be drained: %d draining (maxParallelDrains allows %d%s), %s waiting longer",
		cluster, t.Draining, t.Limit, excused, rounded(t.Before)) + t.holder()
}

// holder says which Machine holds the turn. The name of one that drains changes whenever a drain ends, so only the next Machines have it,
// see rounded.
func (t Turn) holder() string {
	switch {
	case t.Blocked != "":
		return ". Machine " + t.Blocked + " has waited longer, and its drain cannot begin: see its condition"
	case t.Before >= exactly:
		return ""
	}
	text := ""
	if t.Longest != "" {
		text += ". Machine " + t.Longest + " has been draining for the longest time: see its condition"
	}
	if t.Replacing != "" {
		text += ". The drain of Machine " + t.Replacing + " has ended, and counts until its Pods are replaced by ready ones, until " +
			t.ReplacedBy.UTC().Format(time.RFC3339) + " at the latest (nextDrain)"
	}
	return text
}

// exactly is from which number on rounded rounds.
const exactly = 10

// rounded rounds numbers from exactly on down to the first digit, so that the conditions of all waiting Machines do not change with each
// drain that ends: each change is a write.
func rounded(n int) string {
	if n < exactly {
		return strconv.Itoa(n)
	}
	unit := 1
	for n/unit >= 10 {
		unit *= 10
	}
	return fmt.Sprintf("at least %d", n/unit*unit)
}

// SettlesWithoutNodeRef returns until when a Machine without a nodeRef, whose Node was found by its provider ID, gets no turn, zero if it
// may get one. If only its infrastructure machine has the provider ID, the Machine counts for the turns of others only by its
// NodeMaintenance, present. The same holds for the Machines that were deleted with it: after clusterctl move, none has a nodeRef.
func SettlesWithoutNodeRef(m *clusterv1.Machine, present *v1alpha1.NodeMaintenance, now time.Time) time.Time {
	since := now
	if waits := recorded(m, v1alpha1.WaitingForTurnAnnotation); waits != nil { // its NodeMaintenance may be gone, or cannot be read
		since = *waits
	}
	if present != nil {
		since = present.CreationTimestamp.Time
	}
	until := since.Add(settling)
	if !now.Before(until) || until.Sub(now) > 2*settling { // the clock of the workload cluster is ahead
		return time.Time{}
	}
	return until
}

// TurnOf decides when a Machine drains, among the contenders of its Cluster that count under the same limit: the oldest request is first.
// The order is the same for all of them, so their decisions agree even if some have not observed yet that another drain has started, but
// for what blocks them, which the manager keeps in memory. limit is maxParallelDrains, 0 if it is not set. So no Machine in a domain whose
// Nodes are drained passes one in another domain that has waited longer. Of several overdue Machines only the oldest request starts.
func TurnOf(self Contender, all []Contender, limit int, now time.Time) Turn {
	if limit == 0 && self.Topology.Key == "" || self.Standing == HasTurn {
		return Turn{}
	}
	excused := excusedFor(self, all, now)
	others := underLimitOf(self, all)
	draining, lastBegan := drainsOf(others), time.Time{}
	turn := Turn{Limit: limit, Excused: excused, Settles: self.settles(now), Draining: len(draining)}
	if turn.Draining > 0 {
		lastBegan = draining[len(draining)-1].Began
	}
	turn.name(draining)
	turn.Latest, turn.Overdue = self.latest(lastBegan), self.isOverdue(lastBegan, now)
	ahead, isBlocked := aheadOf(self, others), false
	var delaying []Contender
	for _, other := range ahead {
		turn.Overdue = turn.Overdue && !other.takesOverdueTurn(self, lastBegan, now)
		if !other.delays(self) {
			continue
		}
		turn.Before++
		delaying = append(delaying, other)
		isBlocked = isBlocked || other.isPassedBy(self)
		if other.Standing != Waits && turn.Blocked == "" {
			turn.Blocked = other.Name
		}
	}
	turn.Domains = domainsFor(self, draining, delaying, self.excuses(excused, now))
	turn.Overdue = turn.Overdue && (isBlocked || !mayBegin(nextOf(self, ahead), all, draining, turn, now))
	turn.StallsAt, turn.Stalled, turn.MayStall = stallsAt(draining, now)
	return turn
}

// name names the Machines with turns that have had them for the longest time.
func (t *Turn) name(draining []Contender) {
	for _, c := range draining {
		switch {
		case c.countsUntil.IsZero():
			t.Longest = cmp.Or(t.Longest, c.Name)
		case t.Replacing == "":
			t.Replacing, t.ReplacedBy = c.Name, c.countsUntil
		}
	}
}

// mayBegin reports whether the limits of a turn permit that the drain of the next Machine begins beside those in progress.
func mayBegin(next Contender, all, draining []Contender, turn Turn, now time.Time) bool {
	next.Topology = turn.Domains.Limit
	excused := excusedFor(next, all, now)
	beside := Turn{Limit: turn.Limit, Draining: turn.Draining, Excused: excused, Domains: domainsFor(next, draining, nil, next.excuses(excused, now))}
	return beside.isFirst()
}

// underLimitOf returns the other contenders that count under the limit of one of them.
func underLimitOf(self Contender, all []Contender) []Contender {
	return slices.DeleteFunc(slices.Clone(all), func(c Contender) bool { return c.Name == self.Name || c.Policy != "" && c.Policy != self.Policy })
}

// aheadOf returns the contenders without a turn that have waited longer than one of them, the oldest request first.
func aheadOf(self Contender, others []Contender) []Contender {
	ahead := slices.DeleteFunc(slices.Clone(others), func(c Contender) bool { return c.Standing == HasTurn || compareContenders(c, self) > 0 })
	slices.SortFunc(ahead, compareContenders)
	return ahead
}

// nextOf returns the contender that begins next: the first of those ahead of a Machine that nothing blocks, or else the Machine itself.
func nextOf(self Contender, ahead []Contender) Contender {
	if i := slices.IndexFunc(ahead, func(c Contender) bool { return c.Standing == Waits }); i >= 0 {
		return ahead[i]
	}
	return self
}

// drainsOf returns the contenders that have turns, those that have had them for the longest time first.
func drainsOf(all []Contender) []Contender {
	draining := slices.DeleteFunc(slices.Clone(all), func(c Contender) bool { return c.Standing != HasTurn })
	slices.SortStableFunc(draining, func(a, b Contender) int { return a.Began.Compare(b.Began) })
	return draining
}

// settles returns until when the Machine waits for those whose drains were requested, or whose holds ended, in the same second, zero if it
// does not.
func (c Contender) settles(now time.Time) time.Time {
	since := c.Requested
	if c.joins {
		since = now
	} else if c.Resumed.After(since) {
		since = c.Resumed
	}
	settles := since.Add(settling)
	if !now.Before(settles) || settles.Sub(now) > 2*settling { // the clock of this manager is behind
		return time.Time{}
	}
	return settles
}

// takesOverdueTurn reports whether a Machine that has waited longer is overdue, so that another one is not. What keeps it from beginning
// may keep it from recording the turn, too, for example an API server that refuses each change of it: then the other one passes it after
// BlockedAloneAfter. One that was blocked itself a moment ago does not, see isPassedBy.
func (c Contender) takesOverdueTurn(other Contender, lastBegan, now time.Time) bool {
	isPassed := c.Standing != Waits && other.Standing != Blocked && c.isOverdue(lastBegan, now.Add(-BlockedAloneAfter))
	return c.isOverdue(lastBegan, now) && !isPassed
}

// isOverdue reports whether the drain should have started regardless of the limit.
func (c Contender) isOverdue(lastBegan, now time.Time) bool {
	latest := c.latest(lastBegan)
	return !latest.IsZero() && !now.Before(latest)
}

// TurnSpacing is the shortest time between two turns of a Cluster that do not follow from the order of the requests alone, because a
// Machine is overdue or something blocks its drain. It is measured from the API server's response to the patch that recorded the first one.
// Reconciliations of several Machines do not know the same about what blocks them, and each may decide in the same moment that its Machine
// is the next one. After this time, what the API server has listed contains the first turn.
const TurnSpacing = 5 * time.Second

// GrantedTurns are the last turns out of order, see TurnSpacing, that a process has granted, by the Cluster.
type GrantedTurns map[types.NamespacedName]grantedTurn

type grantedTurn struct {
	machine  string    // the name: a Machine has one reconciliation at a time
	reserved bool      // by a reconciliation that has neither recorded it nor ended
	recorded time.Time // when it was last recorded, zero if it was not
}

// Reserve reserves a turn for a Machine until it is recorded or released. It returns false if another Machine of the Cluster has reserved
// one, or has recorded one less than TurnSpacing ago.
func (g GrantedTurns) Reserve(cluster types.NamespacedName, machine string, now time.Time) bool {
	maps.DeleteFunc(g, func(_ types.NamespacedName, t grantedTurn) bool {
		return !t.reserved && now.Sub(t.recorded).Abs() >= TurnSpacing
	})
	last, found := g[cluster]
	if found && last.machine != machine {
		return false
	}
	g[cluster] = grantedTurn{machine: machine, reserved: true, recorded: last.recorded}
	return true
}

// Recorded ends the reservation of a Machine, if it has one, because the API server has recorded the turn.
func (g GrantedTurns) Recorded(cluster types.NamespacedName, machine string, now time.Time) {
	if last := g[cluster]; last.machine == machine && last.reserved {
		g[cluster] = grantedTurn{machine: machine, recorded: now}
	}
}

// Release ends the reservation of a Machine, if it has one. An earlier record stays.
func (g GrantedTurns) Release(cluster types.NamespacedName, machine string) {
	last := g[cluster]
	switch {
	case last.machine != machine || !last.reserved:
	case last.recorded.IsZero():
		delete(g, cluster)
	default:
		last.reserved = false
		g[cluster] = last
	}
}

// BlindTurn decides whether a Machine that waits for a turn gets it while its NodeMaintenance cannot be read, from the records of the
// Machines of its Cluster. clock is that of the Machine. Otherwise, at is when the Machine gets a turn, unless another one does before; the
// zero time means that it has no timeout. Turns are one drain timeout apart: the Machine must not have been able to observe the turn for
// that time, and no drain of the Cluster must have begun in that time. Of several such Machines, only the oldest request gets a turn. One
// that has not recorded yet since when it cannot observe the turn counts as if that was when the Machine could not. So an outage does not
// start all drains at once, and none of these Machines is released before another drain timeout has passed. isHeld is that of
// ObservedDrain: a Machine that is Held never gets a turn. One that is remediated waits for no other, and none waits for it. BlindTurn
// returns its first error.
func BlindTurn(
	self *clusterv1.Machine, clock Clock, all []clusterv1.Machine, isHeld func(*clusterv1.Machine) (bool, error), now time.Time,
) (at time.Time, granted bool, _ error) {
	takesTurns := func(m *clusterv1.Machine) bool {
		return StandingOf(m, ObservedDrain{Node: &corev1.Node{}}, now) != TakesNoTurn
	}
	requested := slices.DeleteFunc(RequestedDrains(all), func(m *clusterv1.Machine) bool { return !takesTurns(m) || !takesTurns(self) })
	clocks, lastBegan := recordedClocks(self, clock, requested, now)
	if at = clock.EarliestBlindTurn(self, lastBegan); at.IsZero() || now.Before(at) {
		return at, false, nil
	}
	for _, m := range requested {
		other := clocks[m.Name].EarliestBlindTurn(m, lastBegan)
		if m.Name == self.Name || OldestRequestFirst(m, self) > 0 || other.IsZero() || now.Before(other) {
			continue
		}
		held, err := isHeld(m)
		if err != nil || StandingOf(m, ObservedDrain{Node: &corev1.Node{}, IsHeld: held}, now) != Held {
			return at, false, err
		}
	}
	return at, true, nil
}

// recordedClocks returns the clocks of the requested drains as the Machines have recorded them, and when the last of another Machine began.
func recordedClocks(self *clusterv1.Machine, clock Clock, requested []*clusterv1.Machine, now time.Time) (clocks map[string]Clock, lastBegan time.Time) {
	clocks = make(map[string]Clock, len(requested))
	for _, m := range requested {
		c := ClockOf(m, lookup.Result[v1alpha1.NodeMaintenance]{}, now)
		if c.Waiting != nil { // it may not have recorded yet that turns cannot be observed
			c.Blocked = cmp.Or(c.Blocked, clock.Blocked)
		}
		if clocks[m.Name] = c; m.Name != self.Name && c.Drain != nil && c.Drain.After(lastBegan) {
			lastBegan = *c.Drain
		}
	}
	return clocks, lastBegan
}

// EarliestBlindTurn returns when BlindTurn may grant a turn to a Machine, if the last drain of the Cluster began at lastBegan. It is zero
// if the Machine does not wait for that, or has no drain timeout.
func (c Clock) EarliestBlindTurn(m *clusterv1.Machine, lastBegan time.Time) time.Time {
	if c.Waiting == nil || c.Blocked == nil || DrainTimeout(m) <= 0 {
		return time.Time{}
	}
	since := lastBegan
	for _, t := range []time.Time{*c.Waiting, *c.Blocked} {
		if t.After(since) {
			since = t
		}
	}
	// Whole seconds, as recorded: Machines that lose the connection together get turns together, or the manager observes the turn of one
	// before.
	return since.Truncate(time.Second).Add(DrainTimeout(m))
}

// ParallelDrains returns how many workers of a Cluster may drain concurrently: a number, or a percentage, rounded down, but at least one.
// It returns 0, which means no limit, if the value is nil or invalid.
func ParallelDrains(maxParallelDrains *intstr.IntOrString, workers int) int {
	return nodeselection.Limit(maxParallelDrains, workers)
}

package machinedrain

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/lookup"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Contender is a worker Machine of a Cluster whose Node exists and is not lost, and is drained or waits for that, see IsDraining. Control plane Machines
// are not contenders: their rollouts never wait for workers. Neither are Machines that are remediated, see isRemediated.
type Contender struct {
	Name string
	// Policy is the name of the policy whose maxParallelDrains counts the Machine, see Limit. If it is empty, that of each policy does.
	Policy string
	// Limit is the number of drains that the policy allows, 0 if that is not known, and Patience is after how long without progress one of them no longer
	// counts, 0 for never.
	Limit    int
	Patience time.Duration
	// Requested is when the drain was requested, see RequestedAt. The zero time means that it was not.
	Requested time.Time
	// Resumed is when hooks of other owners no longer held the drain, and the Machine began to wait for a turn; zero if they never held it.
	Resumed time.Time
	// Draining means that its NodeMaintenance has reached stage Drain. The drain then never pauses, unless it is held.
	Draining bool
	// Began is the start of the drain, and Progress is how it makes progress, if Draining is true.
	Began    time.Time
	Progress Progress
	// Timeout is the drain timeout of the Machine, 0 if it has none.
	Timeout time.Duration
	// Obstacle is what keeps the drain from beginning if maxParallelDrains permits it.
	Obstacle Obstacle

	joins bool // a hold has just ended: other Machines do not know yet that this one waits for a turn
}

// Obstacle is what keeps a drain that has not begun from beginning when maxParallelDrains permits it. It decides whom the Machine delays.
type Obstacle int

const (
	// NoObstacle means that the drain begins.
	NoObstacle Obstacle = iota
	// AwaitsRules means that invalid MachineDrainRules select the Machine. Machines that they do not select do not wait for it. Those that they select
	// get turns in the usual order, so that they do not time out together.
	AwaitsRules
	// Blocked means that something else prevents the drain from beginning, such as a step that fails. Its drain timeout counts, if it has one.
	Blocked
	// BlockedAlone means that this has been so for BlockedAloneAfter, although the workload cluster can be read: no outage blocks it. As the obstacle of the
	// Machine that waits, it means that what blocks it has not kept the manager from observing the turn.
	BlockedAlone
	// Held means that the Machine takes no turn, and that no deadline ends this: it is paused, or see ObservedDrain.IsHeld, or IsHeldByHooks.
	Held
)

// ObstacleOf returns what keeps the drain of a Machine from beginning. Only NoObstacle means that it begins when it has a turn.
func ObstacleOf(m *clusterv1.Machine, observed ObservedDrain) Obstacle {
	switch {
	case HasPauseAnnotation(m) || observed.IsHeld || IsHeldByHooks(m):
		return Held
	case observed.HasInvalidRules:
		return AwaitsRules
	case observed.IsBlockedAlone:
		return BlockedAlone
	case observed.IsBlocked:
		return Blocked
	default:
		return NoObstacle
	}
}

// BlockedAloneAfter is how long a Machine without a drain timeout may delay others while something that concerns only it prevents its drain from beginning.
const BlockedAloneAfter = 5 * time.Minute

// delays reports whether a Machine that has waited longer delays the drain of another one. One that is blocked does, until the other one is overdue: what
// blocks one may block all of them, for example an outage. If the others had turns meanwhile, all would be released or drained together. If neither has a
// drain timeout, none is ever released because of one, and nothing else would end the wait: then it delays only another one that is blocked as well.
func (c Contender) delays(other Contender) bool {
	switch c.Obstacle {
	case NoObstacle, Blocked:
		return true
	case BlockedAlone:
		return c.Timeout > 0 || other.Timeout > 0 || other.Obstacle != NoObstacle
	case AwaitsRules:
		return other.Obstacle == AwaitsRules
	default:
		return false
	}
}

// isBlocked reports whether something other than invalid rules prevents the drain of a Machine that may take a turn from beginning.
func (c Contender) isBlocked() bool { return c.Obstacle == Blocked || c.Obstacle == BlockedAlone }

// isPassedBy reports whether an obstacle keeps a Machine that delays another one from beginning, so that the other one may be overdue. One that was
// blocked itself a moment ago, and could not observe the turn, does not know that yet: what has blocked both may be over.
func (c Contender) isPassedBy(other Contender) bool {
	return c.Obstacle == AwaitsRules || c.isBlocked() && other.Obstacle != Blocked
}

// ContenderOf returns the contender of a Machine whose drain has not started.
func ContenderOf(m *clusterv1.Machine) Contender {
	c, waits := Contender{Name: m.Name, Timeout: DrainTimeout(m)}, recorded(m, v1alpha1.WaitingForTurnAnnotation)
	if requested := RequestedAt(m); requested != nil {
		c.Requested = *requested
	}
	if waits != nil && waits.Before(c.Requested) { // for the turn of a drain in place: it keeps its place when it is deleted
		c.Requested = *recordsFrom(m)
	}
	if WasHeldByHooks(m) && waits != nil {
		c.Resumed = *waits
	} else if IsHeldByHooks(m) { // its wait for a turn begins now
		c.Timeout, c.joins = 0, true
	}
	return c
}

// NeedsTurn reports whether the drain of a Machine may have to wait for a turn, because maxParallelDrains limits it, see LimitOf. present is its
// NodeMaintenance, nil if it has none. The drain of a Machine that already drains, of one that takes no turns, and of one with a lost Node never
// waits. A drain that has begun keeps the turn if its NodeMaintenance must be recreated, see turnBegan. One that was held has no turn any more.
func NeedsTurn(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy, node *corev1.Node, present *v1alpha1.NodeMaintenance, now time.Time) bool {
	isLimited := (LimitOf(m, policy).Max != nil || FollowsAnother(m, policy)) && takesTurns(m, node) && !isLost(node, now)
	drains := present != nil && present.Spec.Stage == v1alpha1.StageDrain && !WasHeldByHooks(m)
	return isLimited && !drains && turnBegan(m) == nil
}

// turnBegan returns since when a Machine has the turn that it has recorded, nil if it has none. The record keeps the turn while the Machine has no
// NodeMaintenance in stage Drain: because it is overdue, must be recreated, or continues after a hold. An overdue Machine whose drain timeout was removed
// has no turn any more: nothing would end it if the drain cannot begin.
func turnBegan(m *clusterv1.Machine) *time.Time {
	if DrainTimeout(m) <= 0 && !WasHeldByHooks(m) {
		return nil
	}
	return recorded(m, v1alpha1.DrainStartedAnnotation)
}

// NeedsTurnAgain reports whether the drain of a Machine that was held may have to wait for a turn, see NeedsTurn, while neither its Node nor its
// NodeMaintenance can be read. The hold has removed the record that it waited.
func NeedsTurnAgain(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy) bool {
	return WasHeldByHooks(m) && NeedsTurn(m, policy, &corev1.Node{}, nil, time.Time{})
}

// lostAfter is how long a Node must have been unreachable to be lost. Kubernetes evicts its Pods after the same time. If the network between the Nodes and
// the API server fails for a shorter time, the drains of all Machines of the Cluster must not begin together.
const lostAfter = 5 * time.Minute

func isLost(node *corev1.Node, now time.Time) bool {
	since, unreachable := rules.UnreachableSince(node)
	return unreachable && now.Sub(since) >= lostAfter
}

// NotReady reports whether the kubelet of a Node says that it is not ready, or says nothing.
func NotReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue
	})
}

// MostUnreachable reports whether most workers of a workload cluster are unreachable or not ready, or were unreachable a moment ago. Then no Node is lost:
// the network has failed, and the others may become ready next.
func MostUnreachable(nodes []corev1.Node, now time.Time) bool {
	workers, unsettled := 0, 0
	for i := range nodes {
		if _, is := nodes[i].Labels["node-role.kubernetes.io/control-plane"]; is {
			continue
		}
		since, unreachable := rules.UnreachableSince(&nodes[i])
		isNew := since.Sub(nodes[i].CreationTimestamp.Time) < lostAfter // it was never unreachable
		if workers++; unreachable || NotReady(&nodes[i]) || now.Sub(since) < lostAfter && !isNew {
			unsettled++
		}
	}
	return 2*unsettled > workers
}

// ObservedDrain is what decides whether a worker Machine whose drain was requested is a contender.
type ObservedDrain struct {
	// Node of the Machine, nil if it does not exist.
	Node *corev1.Node
	// Maintenance is its NodeMaintenance in stage Drain, or nil, and Progress is that of its drain.
	Maintenance *v1alpha1.NodeMaintenance
	Progress    Progress
	// Policy is the one that the Machine follows, nil if it follows none, or if it is not known which.
	Policy *v1alpha1.MachineDrainPolicy
	// HasInvalidRules means that an invalid MachineDrainRule selects the Machine.
	HasInvalidRules bool
	// IsBlocked means that something else has prevented the drain from beginning, or kept the manager from observing it, for a moment at least, and
	// IsBlockedAlone that this has been so for BlockedAloneAfter although the workload cluster can be read.
	IsBlocked, IsBlockedAlone bool
	// IsHeld means that the drain does not begin, and that no deadline ends this: the policy of the Machine cannot be decoded, another manager must
	// drain the Machine, or its drain in place is not wanted any more, see WantsDrain.
	IsHeld bool
}

// WantsDrain reports whether the drain of a Machine whose drain was requested is still wanted under its policy, nil if no policy selects it. The request
// of a drain in place stays until the manager can end the maintenance in the workload cluster.
func WantsDrain(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy) bool {
	stage, _ := RequestedStage(m, policy)
	return !m.DeletionTimestamp.IsZero() || policy != nil && stage == v1alpha1.StageDrain
}

// IsReportedHeld reports whether the condition of a Machine says that its drain is held, see ObservedDrain.
func IsReportedHeld(m *clusterv1.Machine) bool {
	condition := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.MachineNodeMaintenance)
	return condition != nil && (condition.Reason == v1alpha1.ReasonPolicyNotDecodable || condition.Reason == v1alpha1.ReasonHandedOver)
}

// Contenders returns the contenders among the Machines of a Cluster, and the number of its worker Machines. It calls observe for the Machines of
// RequestedDrains, and returns its first error.
func Contenders(
	all []clusterv1.Machine, now time.Time, observe func(*clusterv1.Machine) (ObservedDrain, error),
) (contenders []Contender, workers int, _ error) {
	for i := range all {
		if !isControlPlane(&all[i]) {
			workers++
		}
	}
	for _, m := range RequestedDrains(all) {
		observed, err := observe(m)
		if err != nil {
			return nil, 0, err
		}
		if contends(m, observed, now) {
			c := contenderOf(m, observed)
			c.Limit, c.Patience = ParallelDrains(LimitOf(m, observed.Policy).Max, workers), TurnPatience(observed.Policy)
			contenders = append(contenders, c)
		}
	}
	return contenders, workers, nil
}

// RequestedDrains returns the Machines that take turns and whose Nodes, if they have any, are drained or wait for that. One without a nodeRef has a Node
// if its provider ID says so, see NodeNameOf.
func RequestedDrains(all []clusterv1.Machine) []*clusterv1.Machine {
	var requested []*clusterv1.Machine
	for i := range all {
		if m := &all[i]; !isControlPlane(m) && IsDraining(m) {
			requested = append(requested, m)
		}
	}
	return requested
}

// WithoutNodeRef returns those of RequestedDrains that have no nodeRef.
func WithoutNodeRef(all []clusterv1.Machine) []clusterv1.Machine {
	var unnamed []clusterv1.Machine
	for _, m := range RequestedDrains(all) {
		if !m.Status.NodeRef.IsDefined() {
			unnamed = append(unnamed, *m)
		}
	}
	return unnamed
}

// IsReportedBlocked reports whether the condition of a Machine says that its drain is blocked, see ObservedDrain.
func IsReportedBlocked(m *clusterv1.Machine) bool {
	condition := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.MachineNodeMaintenance)
	return condition != nil && slices.Contains(blockedReasons, condition.Reason)
}

// blockedReasons are the reasons of the conditions of Machines whose drains are blocked.
var blockedReasons = []string{
	v1alpha1.ReasonReconcileFailed, v1alpha1.ReasonMaintenanceNameTaken, v1alpha1.ReasonCRDNotServed, v1alpha1.ReasonWaitingForWorkloadCluster,
}

func contenderOf(m *clusterv1.Machine, observed ObservedDrain) Contender {
	c := ContenderOf(m)
	c.Policy, c.Obstacle = LimitOf(m, observed.Policy).Policy, ObstacleOf(m, observed)
	if drain := observed.Maintenance; drain != nil && !WasHeldByHooks(m) {
		c.Draining, c.Began = true, DrainBegan(drain)
		c.Progress = observed.Progress.After(c.Began)
	} else if began := turnBegan(m); began != nil { // its NodeMaintenance is recreated or resumed
		c.Draining, c.Began = true, *began
	}
	return c
}

// contends reports whether a Machine whose drain was requested is a contender: one whose drain has begun, or begins when maxParallelDrains permits it.
// The drain of a Machine that is paused or held would block the Machines after it without starting. One that has begun always counts, unless hooks of
// other owners have held it: then it needs another turn, or nothing is left to do for it, see onlyTerminates.
func contends(m *clusterv1.Machine, observed ObservedDrain, now time.Time) bool {
	hasNode := observed.Node != nil && !isLost(observed.Node, now) && !observed.Progress.onlyTerminates(observed.Node, now)
	hasBegun := observed.Maintenance != nil && !WasHeldByHooks(m) || turnBegan(m) != nil
	return hasNode && takesTurns(m, observed.Node) && (hasBegun && !IsHeldByHooks(m) || ObstacleOf(m, observed) != Held)
}

// latest returns when the drain of a Machine starts regardless of the limit: its drain timeout after its request, after the end of a hold, and after
// the start of the last drain of the Cluster. So the limit holds while drains end and start; if none does, the Machine waits no longer than its drain timeout.
// The zero time means that the Machine has no timeout.
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

// settling is the minimum time between the request for a drain, or the end of a hold, and the start of the drain. The time of a request has whole
// seconds: after that second, and another one for watch lag, all Machines are known whose drains were requested in the same second and that precede it by
// name. In the same way, all Machines whose hooks are removed together have recorded that they wait for a turn before one of them gets it.
const settling = 2 * time.Second

// Turn says whether maxParallelDrains permits the drain of a Machine.
type Turn struct {
	// Draining is the number of other Machines under the same limit that drain, and Before the number of those that have waited longer. The drain may
	// start while their sum is less than Limit. Limit 0 means no limit.
	Draining, Before, Limit int
	// Excused is how many of the drains in progress do not count, because they have made no progress for the patience of the policy: none or one.
	Excused int
	// Settles is when all Machines whose drains were requested, or whose holds ended, in the same second are known, zero if they are.
	Settles time.Time
	// Latest is when the drain starts regardless of the limit unless another drain starts before, zero if the Machine has no drain timeout.
	Latest time.Time
	// Overdue means that Latest has passed for this Machine and for none that has waited longer, and that the drains in progress use the limit,
	// that an obstacle keeps a Machine which has waited longer from beginning. When a drain ends, the next one begins: until then no other Machine
	// is overdue.
	Overdue bool
	// Former is the policy that may be replaced until Settles, see AwaitPolicy.
	Former string
	// Stalled means that none of the drains in progress has made progress for StallPeriod, and StallsAt is from when on that is so if none does until then,
	// zero if it is not known or no drain is in progress.
	Stalled  bool
	StallsAt time.Time
	// Blocked is the Machine that has waited for the longest time among those that delay this one and cannot begin, and Longest the one that has been
	// draining for the longest time. They are empty if there is none.
	Blocked, Longest string
}

// Now reports whether the drain may start now.
func (t Turn) Now() bool { return t.Limit == 0 || t.isFirst() && t.Settles.IsZero() || t.Overdue }

// isFirst reports whether the drain may start as far as the known Machines are concerned.
func (t Turn) isFirst() bool { return t.Draining-t.Excused+t.Before < t.Limit }

// Message says what a Machine of a Cluster waits for.
func (t Turn) Message(cluster string) string {
	if t.Former != "" {
		return "MachineDrainPolicy " + t.Former + ", whose maxParallelDrains limited the drain, no longer selects the Machine: waiting in case it is replaced"
	}
	if t.isFirst() {
		return fmt.Sprintf("Waiting for Machines of Cluster %s whose drains were requested, or no longer held by hooks, in the same second and that precede this one (maxParallelDrains)", cluster)
	}
	excused := ""
	if t.Excused > 0 {
		excused = "; one does not count, because it makes no progress"
	}
	return fmt.Sprintf("Waiting for other Machines of Cluster %s to be drained: %d draining (maxParallelDrains allows %d%s), %s waiting longer",
		cluster, t.Draining, t.Limit, excused, rounded(t.Before)) + t.holder()
}

// holder says which Machine holds the turn. The name of one that drains changes whenever a drain ends, so only the next Machines have it, see rounded.
func (t Turn) holder() string {
	switch {
	case t.Blocked != "":
		return ". Machine " + t.Blocked + " has waited longer, and its drain cannot begin: see its condition"
	case t.Longest != "" && t.Before < exactly:
		return ". Machine " + t.Longest + " has been draining for the longest time: see its condition"
	default:
		return ""
	}
}

// exactly is from which number on rounded rounds.
const exactly = 10

// rounded rounds numbers from exactly on down to the first digit, so that the conditions of all waiting Machines do not change with each drain that
// ends: each change is a write.
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

// SettlesWithoutNodeRef returns until when a Machine without a nodeRef, whose Node was found by its provider ID, gets no turn. It counts for others only by
// its NodeMaintenance, present, and so do the Machines without a nodeRef that were deleted with it: after clusterctl move, all of them. It is zero if the
// Machine may get one.
func SettlesWithoutNodeRef(m *clusterv1.Machine, present *v1alpha1.NodeMaintenance, now time.Time) time.Time {
	since := now
	if waits := recorded(m, v1alpha1.WaitingForTurnAnnotation); waits != nil { // its NodeMaintenance may be gone, or cannot be read
		since = *waits
	}
	if present != nil {
		since = present.CreationTimestamp.Time
	}
	until := since.Add(settling)
	if m.Status.NodeRef.IsDefined() || !now.Before(until) || until.Sub(now) > 2*settling { // the clock of the workload cluster is ahead
		return time.Time{}
	}
	return until
}

// TurnOf decides when a Machine drains, among the contenders of its Cluster that count under the same limit: the oldest request is first. The order is the
// same for all of them, so their decisions agree even if some have not observed yet that another drain has started, but for obstacles, which the manager
// keeps in memory. A limit of 0 means no limit. Of several overdue Machines only the oldest request starts.
func TurnOf(self Contender, all []Contender, limit int, now time.Time) Turn {
	if limit == 0 || self.Draining {
		return Turn{}
	}
	excused := excusedFor(self, all, now)
	all = underLimitOf(self, all)
	lastBegan := lastDrainBegan(self, all)
	turn := Turn{Limit: limit, Excused: excused, Settles: self.settles(now), Latest: self.latest(lastBegan), Overdue: self.isOverdue(lastBegan, now), Longest: longestDraining(all)}
	isBlocked := false
	var blocked Contender
	for _, other := range all {
		switch {
		case other.Name == self.Name:
		case other.Draining:
			turn.Draining++
		case compareContenders(other, self) < 0:
			turn.Overdue = turn.Overdue && !other.isOverdue(lastBegan, now)
			if other.delays(self) {
				turn.Before++
				isBlocked = isBlocked || other.isPassedBy(self)
				if other.Obstacle != NoObstacle && (turn.Blocked == "" || compareContenders(other, blocked) < 0) {
					blocked, turn.Blocked = other, other.Name
				}
			}
		}
	}
	turn.Overdue = turn.Overdue && (turn.Draining >= limit || isBlocked)
	turn.StallsAt, turn.Stalled = stallsAt(self, all, now)
	return turn
}

// TurnPatience returns after how long without progress a drain no longer counts under the limit of a policy, 0 for never, also if the policy is nil.
func TurnPatience(policy *v1alpha1.MachineDrainPolicy) time.Duration {
	if policy == nil {
		return 0
	}
	return time.Duration(policy.Spec.TurnPatienceSeconds) * time.Second
}

// excusedFor returns how many of the drains in progress do not count for a Machine: one, if it has made no progress for the patience of the policy, and no
// drain exceeds the limit of another policy. If the limit of this policy is exceeded already, one that does not count changes nothing.
func excusedFor(self Contender, all []Contender, now time.Time) int {
	isStalled := func(c Contender) bool { return c.Name != self.Name && c.isStalled(self.Patience, now) }
	if !slices.ContainsFunc(underLimitOf(self, all), isStalled) || exceedsElsewhere(self, all, now) {
		return 0
	}
	return 1
}

// isStalled reports whether a drain in progress has made no progress for a patience. A patience of 0 has no end.
func (c Contender) isStalled(patience time.Duration, now time.Time) bool {
	return c.Draining && patience > 0 && c.Progress.isStalled(patience, now)
}

// exceedsElsewhere reports whether a drain exceeds the limit of another policy than that of a Machine, or may in favor of a Machine that has waited longer,
// and whose drain the manager may not have observed yet.
func exceedsElsewhere(self Contender, all []Contender, now time.Time) bool {
	draining, isStalled := map[string]int{}, map[string]bool{}
	for _, c := range all {
		if c.Draining {
			draining[c.Policy]++
		}
		isStalled[c.Policy] = isStalled[c.Policy] || c.isStalled(c.Patience, now)
	}
	unlimited := 0
	if self.Policy != "" {
		unlimited = draining[""] // of policies that are gone: they count under each limit
	}
	return slices.ContainsFunc(all, func(c Contender) bool {
		isNext := !c.Draining && c.Obstacle == NoObstacle && isStalled[c.Policy] && compareContenders(c, self) < 0
		return c.Policy != self.Policy && c.Limit > 0 && (draining[c.Policy]+unlimited > c.Limit || isNext)
	})
}

// stallsAt returns from when on no drain in progress but that of a Machine has made progress for StallPeriod, and whether that is so now, see Turn.
func stallsAt(self Contender, all []Contender, now time.Time) (last time.Time, stalled bool) {
	for _, other := range all {
		if !other.Draining || other.Name == self.Name {
			continue
		}
		at := other.Progress.stallsAt(StallPeriod)
		if at.IsZero() {
			return at, false
		}
		if at.After(last) {
			last = at
		}
	}
	return last, !last.IsZero() && !now.Before(last)
}

// KeepsSchedulable reports whether the Node of a Machine that waits for this turn is not cordoned: its policy says so, or the drains in progress may need
// it, since they make no progress. A Machine whose stage annotation requests Cordon is cordoned.
func (t Turn) KeepsSchedulable(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy) bool {
	stage, _ := StageOf(m)
	isWanted := policy != nil && policy.Spec.WaitingNodes == v1alpha1.WaitingNodesSchedulable
	return !t.Now() && stage != v1alpha1.StageCordon && (isWanted || t.Stalled)
}

// underLimitOf returns the contenders that count under the limit of one of them.
func underLimitOf(self Contender, all []Contender) []Contender {
	return slices.DeleteFunc(slices.Clone(all), func(other Contender) bool { return other.Policy != "" && other.Policy != self.Policy })
}

// longestDraining returns the name of the Machine that has been draining for the longest time, empty if none drains.
func longestDraining(all []Contender) string {
	var longest Contender
	for _, c := range all {
		if c.Draining && (longest.Name == "" || c.Began.Before(longest.Began)) {
			longest = c
		}
	}
	return longest.Name
}

// settles returns until when the Machine waits for those whose drains were requested, or whose holds ended, in the same second, zero if it does not.
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

// isOverdue reports whether the drain should have started regardless of the limit.
func (c Contender) isOverdue(lastBegan, now time.Time) bool {
	latest := c.latest(lastBegan)
	return !latest.IsZero() && !now.Before(latest)
}

// lastDrainBegan returns when the last drain of another contender began, zero if none drains.
func lastDrainBegan(self Contender, all []Contender) (last time.Time) {
	for _, other := range all {
		if other.Name != self.Name && other.Draining && other.Began.After(last) {
			last = other.Began
		}
	}
	return last
}

// BlindTurn decides whether a Machine that waits for a turn gets it while its NodeMaintenance cannot be read, from the records of the Machines of its
// Cluster. clock is that of the Machine. Otherwise, at is when the Machine gets a turn, unless another one does before; the zero time means that
// it has no timeout. Turns are one drain timeout apart: the Machine must not have been able to observe the turn for that time, and no drain of
// the Cluster must have begun in that time. Of several such Machines, only the oldest request gets a turn. One that has not recorded yet since when it
// cannot observe the turn counts as if that was when the Machine could not. So an outage does not start all drains at once, and none of these
// Machines is released before another drain timeout has passed. isHeld is that of ObservedDrain: a Machine that is Held never gets a turn. BlindTurn
// returns its first error.
func BlindTurn(
	self *clusterv1.Machine, clock Clock, all []clusterv1.Machine, isHeld func(*clusterv1.Machine) (bool, error), now time.Time,
) (at time.Time, granted bool, _ error) {
	requested := RequestedDrains(all)
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
		if err != nil || ObstacleOf(m, ObservedDrain{IsHeld: held}) != Held {
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

// EarliestBlindTurn returns when BlindTurn may grant a turn to a Machine, if the last drain of the Cluster began at lastBegan. It is zero if the Machine
// does not wait for that, or has no drain timeout.
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
	// Whole seconds, as recorded: Machines that lose the connection together get turns together, or the manager observes the turn of one before.
	return since.Truncate(time.Second).Add(DrainTimeout(m))
}

func compareContenders(a, b Contender) int {
	return cmp.Or(a.Requested.Compare(b.Requested), cmp.Compare(a.Name, b.Name))
}

// OldestRequestFirst compares draining Machines in the order in which their drains start.
func OldestRequestFirst(a, b *clusterv1.Machine) int {
	return compareContenders(ContenderOf(a), ContenderOf(b))
}

// ParallelDrains returns how many workers of a Cluster may drain concurrently: a number, or a percentage, rounded down, but at least one. It
// returns 0, which means no limit, if the value is nil or invalid.
func ParallelDrains(maxParallelDrains *intstr.IntOrString, workers int) int {
	return nodeselection.Limit(maxParallelDrains, workers)
}

// takesTurns reports whether maxParallelDrains may delay the drain of a Machine with a Node, and counts it.
func takesTurns(m *clusterv1.Machine, node *corev1.Node) bool {
	return !isControlPlane(m) && !isRemediated(m, node)
}

// isRemediated reports whether a Machine is deleted because it is unhealthy: a user has requested that with the annotation of Cluster API, or its MachineSet
// remediates it for a MachineHealthCheck. An unhealthy Machine whose MachineSet defers the remediation, or leaves it to a rollout, is not. If the Node is
// unreachable, the network may have failed for all Nodes, and only isLost decides. A Machine that has waited then continues to wait.
func isRemediated(m *clusterv1.Machine, node *corev1.Node) bool {
	_, isRequested := m.Annotations[clusterv1.RemediateMachineAnnotation]
	owner := meta.FindStatusCondition(m.Status.Conditions, clusterv1.MachineOwnerRemediatedCondition)
	isDeletedForIt := owner != nil && owner.Status == metav1.ConditionFalse && owner.Reason == clusterv1.MachineSetMachineRemediationMachineDeletingReason
	isAlone := !rules.Unreachable(node) && recorded(m, v1alpha1.WaitingForTurnAnnotation) == nil
	return !m.DeletionTimestamp.IsZero() && (isRequested || isDeletedForIt && isAlone)
}

func isControlPlane(m *clusterv1.Machine) bool {
	_, is := m.Labels[clusterv1.MachineControlPlaneLabel]
	return is
}

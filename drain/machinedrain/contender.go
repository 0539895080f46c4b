package machinedrain

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/lookup"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Contender is a Machine of a Cluster that counts, or for which others may wait, see Standing.
type Contender struct {
	Name string
	// Policy is the name of the policy whose maxParallelDrains counts the Machine, see Limit. If it is empty, that of each policy does.
	Policy string
	// Limit is the number of drains that the policy allows, 0 if that is not known. Topology and Patience are those of its Limit.
	Limit    int
	Topology v1alpha1.TopologyDrainLimit
	Patience time.Duration
	// Requested is when the drain was requested, see RequestedAt. The zero time means that it was not.
	Requested time.Time
	// Resumed is when hooks of other owners no longer held the drain, and the Machine began to wait for a turn; zero if they never held it.
	Resumed  time.Time
	Standing Standing
	// Began is the start of the drain, and Progress is how it makes progress, if its Standing is HasTurn.
	Began    time.Time
	Progress Progress
	// Timeout is the drain timeout of the Machine, 0 if it has none.
	Timeout time.Duration

	labels map[string]string // of its Node, nil if it was not read

	// countsUntil is when a drain that has ended no longer counts, see Replacing. It is zero for every other contender.
	countsUntil time.Time

	joins bool // a hold has just ended: other Machines do not know yet that this one waits for a turn
}

// Standing is what a Machine whose drain was requested is to the turns of its Cluster: whether it waits for a turn, whether it counts for
// maxParallelDrains, and whom it delays.
type Standing int

const (
	// Waits means that the Machine has no turn, and that its drain begins when it gets one.
	Waits Standing = iota
	// AwaitsRules means that the Machine waits, and that invalid MachineDrainRules select it. Machines that they do not select do not wait
	// for it. Those that they select get turns in the usual order, so that they do not time out together.
	AwaitsRules
	// Blocked means that the Machine waits, and that something else prevents the drain from beginning, such as a step that fails. Its drain
	// timeout counts, if it has one.
	Blocked
	// BlockedAlone means that this has been so for BlockedAloneAfter, although the workload cluster can be read: no outage blocks it. If
	// TurnOf decides about the Machine itself, it means that what blocks it has not kept the manager from observing the turn.
	BlockedAlone
	// Held means that the Machine waits, and that no deadline ends what prevents the drain from beginning: it is paused, or see
	// ObservedDrain.IsHeld, or IsHeldByHooks. Others do not wait for it: it would block them without starting.
	Held
	// HasTurn means that the drain has begun, or begins regardless of the limit. The Machine counts, whatever its drain waits for.
	HasTurn
	// TakesNoTurn means that the Machine neither waits nor counts: it is a control plane Machine, whose rollout never waits for workers, is
	// remediated (see isRemediated), or has no Node, a lost one (see isLost), or one where Pods only fail to terminate (see
	// Progress.onlyTerminates).
	TakesNoTurn
)

// StandingOf decides whether a Machine whose drain was requested waits for a turn, counts, or neither.
func StandingOf(m *clusterv1.Machine, observed ObservedDrain, now time.Time) Standing {
	node := observed.Node
	switch {
	case IsControlPlane(m), node == nil, isLost(node, now), isRemediated(m, node), observed.Progress.onlyTerminates(node, now):
		return TakesNoTurn
	case hasTurnSince(m, observed.Maintenance, now) != nil:
		return HasTurn
	case HasPauseAnnotation(m) || observed.IsHeld || IsHeldByHooks(m):
		return Held
	case observed.HasInvalidRules:
		return AwaitsRules
	case observed.IsBlockedAlone:
		return BlockedAlone
	case observed.IsBlocked:
		return Blocked
	default:
		return Waits
	}
}

// waits reports whether the Machine has no turn and needs one where there is a limit.
func (s Standing) waits() bool { return s < HasTurn }

// isContender reports whether the Machine counts, or may delay others.
func (s Standing) isContender() bool { return s <= HasTurn && s != Held }

// hasTurnSince returns since when a Machine has a turn, nil if it has none: its NodeMaintenance drains, or see turnBegan. present is its
// NodeMaintenance, nil if it has none. A drain that was held needs another turn. One whose start is neither reported nor recorded yet
// begins now: its NodeMaintenance may have waited in another stage for longer than the drain timeouts of others.
func hasTurnSince(m *clusterv1.Machine, present *v1alpha1.NodeMaintenance, now time.Time) *time.Time {
	if present == nil || present.Spec.Stage != v1alpha1.StageDrain || WasHeldByHooks(m) {
		return turnBegan(m)
	}
	return cmp.Or(present.StageStart(v1alpha1.StageDrain), turnBegan(m), &now)
}

// BlockedAloneAfter is how long a Machine without a drain timeout, or one that is overdue, may delay others while something that concerns
// only it prevents its drain from beginning.
const BlockedAloneAfter = 5 * time.Minute

// delays reports whether a Machine that has waited longer delays the drain of another one. One that is blocked does, until the other one is
// overdue: what blocks one may block all of them, for example an outage. If the others had turns meanwhile, all would be released or
// drained together. If neither has a drain timeout, none is ever released because of one, and nothing else would end the wait: then it
// delays only another one that is blocked as well.
func (c Contender) delays(other Contender) bool {
	switch c.Standing {
	case Waits, Blocked:
		return true
	case BlockedAlone:
		return c.Timeout > 0 || other.Timeout > 0 || other.Standing != Waits
	case AwaitsRules:
		return other.Standing == AwaitsRules
	default:
		return false
	}
}

// isPassedBy reports whether something keeps a Machine that delays another one from beginning, so that the other one may be overdue. One
// that was blocked itself a moment ago, and could not observe the turn, does not know that yet: what has blocked both may be over.
func (c Contender) isPassedBy(other Contender) bool {
	return c.Standing == AwaitsRules || c.Standing != Waits && other.Standing != Blocked
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

// Under returns the contender under a limit, in a Cluster with a number of workers.
func (c Contender) Under(limit Limit, workers int) Contender {
	c.Policy, c.Limit, c.Topology, c.Patience = limit.Policy, ParallelDrains(limit.Max, workers), limit.Topology, limit.Patience
	return c
}

// lostAfter is how long a Node must have been unreachable to be lost. Kubernetes evicts its Pods after the same time. If the network
// between the Nodes and the API server fails for a shorter time, the drains of all Machines of the Cluster must not begin together.
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

// MostUnreachable reports whether most workers of a workload cluster are unreachable or not ready, or were unreachable a moment ago. Then
// no Node is lost: the network has failed, and the others may become ready next.
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

// ObservedDrain is what decides the Standing of a Machine whose drain was requested.
type ObservedDrain struct {
	// Node of the Machine, nil if it does not exist.
	Node *corev1.Node
	// Maintenance is its NodeMaintenance, nil if it has none. Only one in stage Drain counts. Progress is that of its drain.
	Maintenance *v1alpha1.NodeMaintenance
	Progress    Progress
	// Policy is the one that the Machine follows, nil if it follows none, or if it is not known which.
	Policy *v1alpha1.MachineDrainPolicy
	// HasInvalidRules means that an invalid MachineDrainRule selects the Machine.
	HasInvalidRules bool
	// IsBlocked means that something else has prevented the drain from beginning, or kept the manager from observing it, for a moment at
	// least, and IsBlockedAlone that this has been so for BlockedAloneAfter although the workload cluster can be read.
	IsBlocked, IsBlockedAlone bool
	// IsHeld means that the drain does not begin, and that no deadline ends this: the policy of the Machine cannot be decoded, another manager
	// must drain the Machine, or its drain in place is not wanted any more, see WantsDrain.
	IsHeld bool
}

// WantsDrain reports whether the drain of a Machine whose drain was requested is still wanted under its policy, nil if no policy selects
// it. The request of a drain in place stays until the manager can end the maintenance in the workload cluster.
func WantsDrain(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy) bool {
	stage, _ := RequestedStage(m, policy)
	return !m.DeletionTimestamp.IsZero() || policy != nil && stage == v1alpha1.StageDrain
}

// IsReportedHeld reports whether the condition of a Machine says that its drain is held, see ObservedDrain.
func IsReportedHeld(m *clusterv1.Machine) bool {
	condition := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.MachineNodeMaintenance)
	return condition != nil && (condition.Reason == v1alpha1.ReasonPolicyNotDecodable || condition.Reason == v1alpha1.ReasonHandedOver)
}

// Contenders returns the contenders among the Machines of a Cluster, and the number of its worker Machines. It calls observe for the
// Machines of RequestedDrains, and returns its first error.
func Contenders(
	all []clusterv1.Machine, now time.Time, observe func(*clusterv1.Machine) (ObservedDrain, error),
) (contenders []Contender, workers int, _ error) {
	for i := range all {
		if !IsControlPlane(&all[i]) {
			workers++
		}
	}
	for _, m := range RequestedDrains(all) {
		observed, err := observe(m)
		if err != nil {
			return nil, 0, err
		}
		if !IsDraining(m) && !stillDrains(m, observed.Maintenance, now) {
			continue
		}
		c, limit := ContenderOf(m).On(observed.Node), LimitOf(m, observed.Policy)
		if c.Standing = StandingOf(m, observed, now); !c.Standing.isContender() {
			continue
		}
		if began := hasTurnSince(m, observed.Maintenance, now); began != nil {
			c.Began, c.Progress = *began, observed.Progress.After(*began)
		}
		c = c.Under(limit, workers)
		contenders = append(contenders, c)
	}
	return contenders, workers, nil
}

// stillDrains reports whether the drain in place of a Machine, which nothing valid requests any more, has begun and has neither completed
// nor timed out. present is its NodeMaintenance in stage Drain, nil if it has none.
func stillDrains(m *clusterv1.Machine, present *v1alpha1.NodeMaintenance, now time.Time) bool {
	if present == nil || present.IsDrained() {
		return false
	}
	deadline := ClockOf(m, lookup.Of(present), now).DrainDeadline(m)
	return deadline == nil || now.Before(*deadline)
}

// RequestedDrains returns the worker Machines whose Nodes, if they have any, are drained or wait for that, see MayDrain. One without a
// nodeRef has a Node if its provider ID says so, see NodeNameOf.
func RequestedDrains(all []clusterv1.Machine) []*clusterv1.Machine {
	var requested []*clusterv1.Machine
	for i := range all {
		if m := &all[i]; !IsControlPlane(m) && MayDrain(m) {
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
	v1alpha1.ReasonReconcileFailed, v1alpha1.ReasonNodeMaintenanceNameTaken, v1alpha1.ReasonCRDNotServed, v1alpha1.ReasonWaitingForWorkloadCluster,
}

func compareContenders(a, b Contender) int {
	return cmp.Or(a.Requested.Compare(b.Requested), cmp.Compare(a.Name, b.Name))
}

// OldestRequestFirst compares draining Machines in the order in which their drains start.
func OldestRequestFirst(a, b *clusterv1.Machine) int {
	return compareContenders(ContenderOf(a), ContenderOf(b))
}

// isRemediated reports whether a Machine is deleted because it is unhealthy: a user has requested that with the annotation of Cluster API,
// or its MachineSet remediates it for a MachineHealthCheck. An unhealthy Machine whose MachineSet defers the remediation, or leaves it to a
// rollout, is not. If the Node is unreachable, the network may have failed for all Nodes, and only isLost decides. A Machine that has
// waited then continues to wait.
func isRemediated(m *clusterv1.Machine, node *corev1.Node) bool {
	_, isRequested := m.Annotations[clusterv1.RemediateMachineAnnotation]
	owner := meta.FindStatusCondition(m.Status.Conditions, clusterv1.MachineOwnerRemediatedCondition)
	isDeletedForIt := owner != nil && owner.Status == metav1.ConditionFalse && owner.Reason == clusterv1.MachineSetMachineRemediationMachineDeletingReason
	isAlone := !rules.Unreachable(node) && recorded(m, v1alpha1.WaitingForTurnAnnotation) == nil
	return !m.DeletionTimestamp.IsZero() && (isRequested || isDeletedForIt && isAlone)
}

// IsControlPlane reports whether a Machine is in the control plane of its Cluster: it waits for no turn, and counts in no limit.
func IsControlPlane(m *clusterv1.Machine) bool {
	_, is := m.Labels[clusterv1.MachineControlPlaneLabel]
	return is
}

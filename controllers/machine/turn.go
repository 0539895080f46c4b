package machine

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// turn returns the Turn of the Machine: whether its drain may start, or waits because of maxParallelDrains.
func (r *Reconciler) turn(ctx context.Context, s *scope) (machinedrain.Turn, error) {
	node, err := reachability(ctx, s.client, s.now)(s.node)
	if err != nil || !machinedrain.NeedsTurn(s.machine, s.policy, node, s.maintenance, s.now) {
		return machinedrain.Turn{}, err
	}
	if s.policy != nil && !s.policySettles.IsZero() {
		return machinedrain.Turn{Limit: 1, Settles: s.policySettles, Former: machinedrain.LimitOf(s.machine, nil).Policy}, nil
	}
	if until := machinedrain.SettlesWithoutNodeRef(s.machine, s.maintenance, s.now); s.isNodeLookedUp && !until.IsZero() {
		return machinedrain.Turn{Limit: 1, Settles: until}, nil
	}
	turn, err := r.turnAmong(ctx, s, r.Client)
	if err != nil || !s.isOutOfOrder(turn) {
		return turn, err
	}
	return r.confirmTurn(ctx, s, turn), nil
}

// isOutOfOrder reports whether a turn that the Machine gets does not follow from the order of the requests alone: the Machine is overdue,
// or something blocks its drain.
func (s *scope) isOutOfOrder(turn machinedrain.Turn) bool {
	return turn.Overdue || s.blind && turn.IsLimited() && turn.Now()
}

// confirmTurn decides about a turn out of order by what the API server has: the watch may not have delivered yet that another Machine has
// just recorded one, for example because this process stood still. If the API server cannot be asked, the Machine continues to wait: the
// error of the management cluster must not be taken for one of the workload cluster, whose outage a drain timeout limits. The condition
// names it if it persists.
func (r *Reconciler) confirmTurn(ctx context.Context, s *scope, turn machinedrain.Turn) machinedrain.Turn {
	live, err := r.turnAmong(ctx, s, r.APIReader)
	if problem := r.turnProblem(s, err); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to ask the API server whether the Machine gets a turn")
		turn.Problem = problem
		return s.postponed(turn)
	}
	if s.isOutOfOrder(live) && !r.reserveTurn(s) {
		return s.postponed(live)
	}
	return live
}

// turnProblem records whether the API server could be asked for a turn out of order. It returns what the condition says about an error that
// persists, empty if there is none. A reconciliation that does not ask ends the error.
func (r *Reconciler) turnProblem(s *scope, err error) string {
	failure := s.before.unasked.Next(err, s.now)
	r.memoryOf(s.machine).unasked = failure
	if failure.Persists(s.now) {
		return machinedrain.TurnProblem(err)
	}
	return ""
}

// postponed returns a turn out of order that the Machine does not get now. It asks again after TurnSpacing.
func (s *scope) postponed(turn machinedrain.Turn) machinedrain.Turn {
	turn.Overdue, turn.Settles = false, s.now.Add(machinedrain.TurnSpacing)
	return turn
}

// turns are the last turns out of order that this process has granted. The zero value is empty.
type turns struct {
	mu   sync.Mutex
	last machinedrain.GrantedTurns
}

// reserveTurn reserves a turn out of order for the Machine until the end of the reconciliation, which may have begun long ago. It returns
// false if the Machine does not get it now.
func (r *Reconciler) reserveTurn(s *scope) bool {
	r.turns.mu.Lock()
	defer r.turns.mu.Unlock()
	if r.turns.last == nil {
		r.turns.last = machinedrain.GrantedTurns{}
	}
	return r.turns.last.Reserve(s.nameOfCluster(), s.machine.Name, r.Clock.Now())
}

// turnRecorded remembers when the API server has recorded the turn out of order that is reserved for the Machine.
func (r *Reconciler) turnRecorded(s *scope) {
	r.turns.mu.Lock()
	defer r.turns.mu.Unlock()
	r.turns.last.Recorded(s.nameOfCluster(), s.machine.Name, r.Clock.Now())
}

// endTurn runs at the end of each reconciliation. A turn out of order that it has reserved and not recorded delays no other Machine any
// more.
func (r *Reconciler) endTurn(s *scope) {
	r.turns.mu.Lock()
	defer r.turns.mu.Unlock()
	r.turns.last.Release(s.nameOfCluster(), s.machine.Name)
}

// turnAmong returns the Turn of the Machine among those that a client lists.
func (r *Reconciler) turnAmong(ctx context.Context, s *scope, reader client.Reader) (machinedrain.Turn, error) {
	machines, err := r.machinesIn(ctx, reader, s.nameOfCluster())
	if err != nil {
		return machinedrain.Turn{}, err
	}
	all, workers, err := r.contenders(ctx, s, machines)
	if err != nil {
		return machinedrain.Turn{}, err
	}
	self := machinedrain.ContenderOf(s.machine).On(s.node).Under(machinedrain.LimitOf(s.machine, s.policy), workers)
	switch invalid, err := r.Maintenances.HasInvalidRules(ctx, s.cluster)(s.machine); {
	case err != nil:
		return machinedrain.Turn{}, err
	case invalid:
		self.Standing = machinedrain.AwaitsRules
	default:
		self.Standing = r.standing(s)
	}
	ended, err := r.replacing(ctx, s, machines, all)
	return machinedrain.TurnOf(self, append(all, ended...), self.Limit, s.now), err
}

// standing returns whether something has blocked a Machine that waits for a turn. After a block has ended, others that were blocked by the
// same may not have been reconciled yet.
func (r *Reconciler) standing(s *scope) machinedrain.Standing {
	switch known := r.blockOf(s.machine); {
	case r.isBlocked(s.machine, s.now) && !known.hasTurn:
		return machinedrain.Blocked
	case r.isBlocked(s.machine, s.now), s.now.Sub(known.ended) < 2*pollInterval:
		return machinedrain.BlockedAlone
	default:
		return machinedrain.Waits
	}
}

// machinesIn returns the Machines of a Cluster. They must not be modified.
func (r *Reconciler) machinesIn(ctx context.Context, reader client.Reader, cluster types.NamespacedName) ([]clusterv1.Machine, error) {
	list := &clusterv1.MachineList{}
	err := reader.List(ctx, list, client.InNamespace(cluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name},
		client.UnsafeDisableDeepCopy)
	for i := range list.Items {
		if m := &list.Items[i]; m.DeletionTimestamp.IsZero() {
			list.Items[i] = *r.withRequest(m)
		}
	}
	return list.Items, errors.Wrapf(err, "listing the Machines of Cluster %s", cluster)
}

// blindTurn returns when the Machine gets a turn while its NodeMaintenance cannot be read, and whether it gets it now. at is nil if it
// never does. The API server decides in the end, as in confirmTurn, which says what problem is.
func (r *Reconciler) blindTurn(ctx context.Context, s *scope, clock machinedrain.Clock) (at *time.Time, granted bool, problem string) {
	if earliest := clock.EarliestBlindTurn(s.machine, time.Time{}); earliest.IsZero() || s.now.Before(earliest) {
		return nil, false, ""
	}
	latest, granted, err := r.blindTurnAmong(ctx, s, r.Client, clock)
	if granted {
		latest, granted, err = r.blindTurnAmong(ctx, s, r.APIReader, clock)
		problem = r.turnProblem(s, err)
	}
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to decide whether the Machine gets a turn")
	}
	if granted && !r.reserveTurn(s) {
		latest, granted = s.now.Add(machinedrain.TurnSpacing), false
	}
	if latest.After(s.now) {
		at = &latest
	}
	return at, granted, problem
}

func (r *Reconciler) blindTurnAmong(ctx context.Context, s *scope, reader client.Reader, clock machinedrain.Clock) (at time.Time, granted bool, _ error) {
	machines, err := r.machinesIn(ctx, reader, s.nameOfCluster())
	if err != nil {
		return time.Time{}, false, err
	}
	observe := r.policyOf(ctx, s)
	isHeld := func(machine *clusterv1.Machine) (bool, error) {
		_, held, err := observe(machine)
		return held, err
	}
	return machinedrain.BlindTurn(s.machine, clock, machines, isHeld, s.now)
}

// turnOfBlocked returns the turn of a Machine whose step before the turn waits or fails, nil if it is not known: those of other Machines
// are observed, and their drains may begin one after the other for as long as it is blocked. Its drain timeout counts from the turn.
// Without one, nothing would end the turn. Without a limit, because the policy is missing, maybe for a moment only, all would have turns at
// once: blindTurn decides then.
func (r *Reconciler) turnOfBlocked(ctx context.Context, s *scope, remote client.Client) *machinedrain.Turn {
	isLimitKnown := s.policy != nil || machinedrain.LimitOf(s.machine, nil).IsSet()
	if remote == nil || s.Turn != nil || !isLimitKnown || !machinedrain.WantsDrain(s.machine, s.policy) || machinedrain.DrainTimeout(s.machine) <= 0 {
		return nil
	}
	observed := *s
	observed.client, observed.node = remote, s.nodeIn(ctx, remote)
	turn, err := r.turn(ctx, &observed)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to decide whether the Machine gets a turn")
		return nil
	}
	block := r.blockOf(s.machine)
	block.hasTurn = true
	r.blocked.Store(client.ObjectKeyFromObject(s.machine), block)
	return &turn
}

// nodeIn returns the Node of a Machine that is blocked. One that does not exist or cannot be read counts as reachable.
func (s *scope) nodeIn(ctx context.Context, remote client.Client) *corev1.Node {
	node := s.node
	if node == nil {
		node = &corev1.Node{}
		if err := remote.Get(ctx, types.NamespacedName{Name: s.machine.Status.NodeRef.Name}, node); err != nil {
			return &corev1.Node{}
		}
	}
	if node, err := reachability(ctx, remote, s.now)(node); err == nil {
		return node
	}
	return &corev1.Node{}
}

// nodeNames returns a function that returns the name of the Node of a deleted Machine without a nodeRef, which its provider ID names, empty
// if it names none. It lists Nodes at most once, and only if such a Machine has a provider ID. A running Machine gets its nodeRef first.
func nodeNames(ctx context.Context, remote client.Client) func(*clusterv1.Machine) (string, error) {
	byProviderID := sync.OnceValues(func() (map[string]string, error) {
		nodes := &corev1.NodeList{}
		err := remote.List(ctx, nodes, client.UnsafeDisableDeepCopy)
		return machinedrain.NodeNamesOf(nodes.Items), errors.Wrap(err, "listing Nodes")
	})
	return func(machine *clusterv1.Machine) (string, error) {
		if machine.Spec.ProviderID == "" || machine.DeletionTimestamp.IsZero() {
			return "", nil
		}
		names, err := byProviderID()
		return names[machine.Spec.ProviderID], err
	}
}

// sampledNodes is how many Nodes decide whether most are unreachable. With a limit, the list does not wait for the watch of Nodes.
const sampledNodes = 500

// reachability returns a function that returns a Node as it counts for turns: as one that has just become unreachable, if it is not ready
// while most Nodes are not. It lists Nodes at most once.
func reachability(ctx context.Context, remote client.Client, now time.Time) func(*corev1.Node) (*corev1.Node, error) {
	mostUnreachable := sync.OnceValues(func() (bool, error) {
		nodes := &corev1.NodeList{}
		err := remote.List(ctx, nodes, client.Limit(sampledNodes), client.UnsafeDisableDeepCopy)
		return machinedrain.MostUnreachable(nodes.Items, now), errors.Wrap(err, "listing Nodes")
	})
	return func(node *corev1.Node) (*corev1.Node, error) {
		if node == nil || !machinedrain.NotReady(node) {
			return node, nil
		}
		if most, err := mostUnreachable(); err != nil || !most {
			return node, err
		}
		silent := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: metav1.NewTime(now)}
		meta := metav1.ObjectMeta{CreationTimestamp: node.CreationTimestamp, Labels: node.Labels}
		return &corev1.Node{ObjectMeta: meta, Spec: node.Spec, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{silent}}}, nil
	}
}

// readable returns a client of the workload cluster of a Machine that is blocked, nil if it cannot be read: that blocks all Machines of the
// Cluster.
func (r *Reconciler) readable(ctx context.Context, s *scope, waiting outcome) client.Client {
	key := s.nameOfCluster()
	if waiting.reason == v1alpha1.ReasonWaitingForWorkloadCluster || r.Clusters.HealthState(ctx, key).ConsecutiveFailures > 0 ||
		r.Clusters.Unserved(key) != "" || r.Clusters.FirstListFailure(key).Err != nil {
		return nil
	}
	remote, err := r.Clusters.Client(ctx, key)
	if err != nil {
		return nil
	}
	return remote
}

// contenders returns the Machines of the Cluster that drain or wait because of maxParallelDrains, and the number of worker Machines. All
// data comes from caches.
func (r *Reconciler) contenders(ctx context.Context, s *scope, all []clusterv1.Machine) (contenders []machinedrain.Contender, workers int, err error) {
	in := func(stage v1alpha1.NodeMaintenanceStage, of []clusterv1.Machine) (map[types.NamespacedName]*v1alpha1.NodeMaintenance, error) {
		return r.Maintenances.List(ctx, s.client, s.clusterKey(), of, func(m *v1alpha1.NodeMaintenance) bool { return m.Spec.Stage == stage })
	}
	draining, err := in(v1alpha1.StageDrain, all)
	if err != nil {
		return nil, 0, err
	}
	var waiting map[types.NamespacedName]*v1alpha1.NodeMaintenance // which name the Nodes of Machines without a nodeRef
	if unnamed := machinedrain.WithoutNodeRef(all); len(unnamed) > 0 {
		if waiting, err = in(v1alpha1.StageCordon, unnamed); err != nil {
			return nil, 0, err
		}
	}
	hasInvalidRules, policyOf, counts := r.Maintenances.HasInvalidRules(ctx, s.cluster), r.policyOf(ctx, s), reachability(ctx, s.client, s.now)
	nameOf := nodeNames(ctx, s.client)
	return machinedrain.Contenders(all, s.now, func(machine *clusterv1.Machine) (observed machinedrain.ObservedDrain, err error) {
		key := client.ObjectKeyFromObject(machine)
		observed = machinedrain.ObservedDrain{Maintenance: draining[key], Progress: r.progressOf(s, machine, draining[key])}
		node, name := &corev1.Node{}, machinedrain.NodeName(machine, cmp.Or(draining[key], waiting[key]))
		if name == "" {
			if name, err = nameOf(machine); err != nil || name == "" {
				return observed, err
			}
		}
		if err := s.client.Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
			return observed, errors.Wrapf(answers.IgnoreDoesNotExist(err), "getting Node %s", name)
		}
		if observed.Node, err = counts(node); err != nil {
			return observed, err
		}
		if observed.Policy, observed.IsHeld, err = policyOf(machine); err != nil {
			return observed, err
		}
		// The rules are evaluated only if they were invalid when the Machine was last reconciled. They may have just been fixed.
		if observed.Maintenance == nil && conditions.GetReason(machine, v1alpha1.MachineNodeMaintenance) == v1alpha1.ReasonInvalidDrainRule {
			observed.HasInvalidRules, err = hasInvalidRules(machine)
			return observed, err
		}
		observed.IsBlocked, observed.IsBlockedAlone = r.isBlocked(machine, s.now), r.isBlockedAlone(machine, s.now)
		return observed, nil
	})
}

// progressOf returns the progress of the drain of a Machine, of which m is the NodeMaintenance, nil if it has none. While its volumes
// detach, it is not known until they were observed.
func (r *Reconciler) progressOf(s *scope, machine *clusterv1.Machine, m *v1alpha1.NodeMaintenance) machinedrain.Progress {
	if m == nil {
		return machinedrain.Progress{}
	}
	known := r.Clusters.ProgressOf(workload.Request{Cluster: s.clusterKey(), Object: client.ObjectKeyFromObject(m)}, m)
	if !m.IsDrained() {
		return known
	}
	last := r.volumeFacts.lastDetached(client.ObjectKeyFromObject(machine))
	if last.IsZero() {
		return machinedrain.Progress{}
	}
	return known.After(last)
}

// isBlocked reports whether this process has found for a moment that something prevents the drain of a Machine from beginning. The
// condition of the Machine does not decide: it may be from before a restart, and its reason may be that of a drain in progress.
func (r *Reconciler) isBlocked(machine *clusterv1.Machine, now time.Time) bool {
	since := r.blockOf(machine).since
	return !since.IsZero() && now.Sub(since) >= recordAfter
}

// isBlockedAlone reports whether this process has found for a time that something prevents the drain of a Machine from beginning, although
// the workload cluster can be read.
func (r *Reconciler) isBlockedAlone(machine *clusterv1.Machine, now time.Time) bool {
	since := r.blockOf(machine).alone
	return !since.IsZero() && now.Sub(since) >= machinedrain.BlockedAloneAfter
}

// blockOf returns what this process has found to block a Machine, the zero value if it has found nothing.
func (r *Reconciler) blockOf(machine *clusterv1.Machine) block {
	found, _ := r.blocked.Load(client.ObjectKeyFromObject(machine))
	known, _ := found.(block)
	return known
}

// policyOf returns a function that returns the policy of a Machine of the Cluster, and whether its drain is held, see
// machinedrain.ObservedDrain.
func (r *Reconciler) policyOf(ctx context.Context, s *scope) func(*clusterv1.Machine) (policy *v1alpha1.MachineDrainPolicy, isHeld bool, _ error) {
	policyOf := r.Maintenances.PolicyOf(ctx, s.cluster)
	return func(machine *clusterv1.Machine) (*v1alpha1.MachineDrainPolicy, bool, error) {
		policy, isUnread, err := policyOf(machine)
		switch {
		case r.Filter.ResponsibilityFor(machine) != machinedrain.Reconciles:
			return policy, true, nil
		case s.cluster == nil || err != nil: // it is not known
			return nil, false, err
		}
		return policy, isUnread || !machinedrain.WantsDrain(machine, policy), nil
	}
}

// observeTurn sets the turn of the Machine. What has kept the manager from observing the turn is over. What prevents the drain although the
// turn has come is not, and neither is what prevents the record of an overdue turn: only the age of the block lets others pass (M37).
func (r *Reconciler) observeTurn(ctx context.Context, s *scope) error {
	turn, err := r.turn(ctx, s)
	if err != nil {
		return err
	}
	if !turn.Now() || s.clock().Waiting != nil && !turn.Overdue {
		r.endBlock(s)
	}
	s.Turn = &turn
	return nil
}

// stageAt returns the stage of a Machine's NodeMaintenance. While maxParallelDrains delays the drain, the Node is cordoned, so that Pods
// evicted from other Nodes are not scheduled to it.
func stageAt(turn machinedrain.Turn) v1alpha1.NodeMaintenanceStage {
	if turn.Now() {
		return v1alpha1.StageDrain
	}
	return v1alpha1.StageCordon
}

// keepsSchedulable reports whether the Node is not cordoned while the Machine waits for a turn.
func (s *scope) keepsSchedulable() bool {
	return s.Turn.KeepsSchedulable(s.machine, s.policy, s.maintenance)
}

// awaitTurn waits until maxParallelDrains permits the drain.
func (r *Reconciler) awaitTurn(_ context.Context, s *scope) (outcome, error) {
	if s.Turn.Now() {
		return outcome{}, nil
	}
	message := s.Turn.Message(s.cluster.Name) + ". " + machinedrain.WaitingNode(s.maintenance)
	waiting := outcome{action: wait, reason: v1alpha1.ReasonWaitingForTurn, message: message, at: s.now.Add(turnRetry)}
	for _, at := range []time.Time{s.Turn.Settles, s.Turn.Latest, s.Turn.StallsAt, s.replacedAt()} {
		if at.After(s.now) && at.Before(waiting.at) {
			waiting.at = at
		}
	}
	return waiting, nil
}

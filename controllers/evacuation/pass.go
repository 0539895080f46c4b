package evacuation

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/remote"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/statefulsets"
)

// parallelReports is how many Evacuations are told at once what they wait for.
const parallelReports = 16

// passing is how long a budget may be unobserved before it is said.
const passing = 5 * time.Second

// pass is one look at all Pods of a workload cluster that are to be evicted.
type pass struct {
	cluster     types.NamespacedName
	client      client.Client // reads Evacuations and Nodes from watches
	live        client.Client
	observation remote.Observation
	record      *record
	pdbs        []*policyv1.PodDisruptionBudget
	now         time.Time
	subjects    map[types.UID]*subject
	paused      func(*v1alpha1.NodeMaintenance) bool
	terms       map[string]evacuation.Terms // by Node
	stale       map[string]bool             // budgets, by namespace/name
	blocked     map[string]int              // how many Pods can't be evicted, by reason
	cordoning   bool                        // Nodes are about to be cordoned
	nextTry     time.Time                   // when to look again if no event comes before, zero: never
}

// subject is one Pod to be evicted, and why.
type subject struct {
	evacuation *v1alpha1.Evacuation
	pod        *corev1.Pod
	action     evacuation.Action
}

// status returns the Evacuation as it is to be stored, with the turn of the eviction in it. The reconciler leaves that to the
// evictor, so that the turn and what it waits for are one write.
func (s *subject) status(now time.Time) *v1alpha1.Evacuation {
	changed := s.evacuation.DeepCopy()
	s.action.Apply(changed, now)
	return changed
}

// collect finds the Pods to be evicted now, and those whose evictions are under way and hold room.
func (p *pass) collect(ctx context.Context) ([]budgets.Candidate, error) {
	evacuations, maintenances := &v1alpha1.EvacuationList{}, &v1alpha1.NodeMaintenanceList{} // only read, and there may be many
	if err := p.client.List(ctx, evacuations, client.UnsafeDisableDeepCopy); err != nil {
		return nil, errors.Wrap(err, "listing Evacuations")
	}
	if err := p.client.List(ctx, maintenances, client.UnsafeDisableDeepCopy); err != nil {
		return nil, errors.Wrap(err, "listing NodeMaintenances")
	}
	if err := p.findImminentCordons(ctx, maintenances.Items); err != nil {
		return nil, err
	}
	p.terms = evacuation.TermsByNode(maintenances.Items, p.paused)
	candidates := p.underWay()
	live := map[types.UID]bool{}
	for _, s := range p.due(evacuations.Items) {
		live[s.pod.UID] = true
		if p.isTried(s.pod.UID) || p.awaitsCordons(s) {
			continue
		}
		p.subjects[s.pod.UID] = s
		candidates = append(candidates, p.candidate(s))
	}
	p.record.keep(live, p.now)
	return candidates, nil
}

// due finds the Pods whose turn of eviction it is, those first that have waited longest.
func (p *pass) due(evacuations []v1alpha1.Evacuation) []*subject {
	var due []*subject
	for i := range evacuations {
		if s := p.subjectOf(&evacuations[i]); s != nil {
			due = append(due, s)
		}
	}
	slices.SortFunc(due, func(a, b *subject) int {
		return cmp.Or(a.evacuation.CreationTimestamp.Compare(b.evacuation.CreationTimestamp.Time), cmp.Compare(a.evacuation.Name, b.evacuation.Name))
	})
	return due
}

// subjectOf returns the Pod of an Evacuation if it is to be evicted now, as drain/evacuation says, else nil.
func (p *pass) subjectOf(e *v1alpha1.Evacuation) *subject {
	pod, found := remote.PodOf(p.observation, e)
	if !found {
		return nil
	}
	podType, known := rules.PodTypeOf(pod, p.observation.DaemonSetExists)
	if !known {
		return nil
	}
	action := evacuation.Next(evacuation.InputOf(e, pod, podType, p.terms[pod.Spec.NodeName], p.now))
	if action.Kind == evacuation.AwaitEvacuator { // its turn may end in silence, and then the Pod is ours
		p.tryAgainAt(action.Deadline)
		if reason := statefulsets.WaitReason(e); reason != "" && action.Class == v1alpha1.EvacuatorClassStatefulSet {
			p.blocked[reason]++
		}
	}
	if action.Kind == evacuation.AwaitBackoff {
		p.blocked[action.Reason]++
		p.tryAgainAt(action.Deadline)
	}
	if action.Kind != evacuation.Evict {
		return nil
	}
	return &subject{evacuation: e, pod: pod, action: action}
}

// findImminentCordons notes whether Nodes are about to be cordoned.
func (p *pass) findImminentCordons(ctx context.Context, maintenances []v1alpha1.NodeMaintenance) error {
	for i := range maintenances {
		m := &maintenances[i]
		nodes, until := cordon.Imminent(m, p.now)
		if len(nodes) > 0 && p.paused(m) { // it cordons nothing while its Machine is paused
			continue
		}
		for _, name := range nodes {
			node := &corev1.Node{}
			if err := p.client.Get(ctx, types.NamespacedName{Name: name}, node); client.IgnoreNotFound(err) != nil {
				return errors.Wrapf(err, "getting Node %s", name)
			} else if err == nil && cordon.CanCordon(m, node) {
				p.cordoning = true
				p.tryAgainAt(until)
			}
		}
	}
	return nil
}

// awaitsCordons reports whether the eviction of a Pod waits for Nodes to be cordoned, so that its replacement isn't scheduled onto
// one of them and evicted again.
func (p *pass) awaitsCordons(s *subject) bool {
	if !p.cordoning {
		return false
	}
	until, waits := cordon.Waits(s.evacuation.CreationTimestamp.Time, p.now)
	if waits {
		p.tryAgainAt(until)
	}
	return waits
}

// underWay finds the Pods whose evictions may be about to take room.
func (p *pass) underWay() []budgets.Candidate {
	var candidates []budgets.Candidate
	for _, flight := range p.record.flights.all() {
		if p.now.Sub(flight.begun) >= hung {
			continue
		}
		p.tryAgainAt(flight.begun.Add(hung))
		candidates = append(candidates, budgets.Candidate{Pod: flight.pod, UnderWay: true})
	}
	return candidates
}

// isTried says whether the eviction of a Pod is under way, or was answered a moment ago. One that was refused stays blocked until
// a later try succeeds.
func (p *pass) isTried(pod types.UID) bool {
	until, rests := p.record.rests(pod, p.now)
	if rests {
		p.tryAgainAt(until)
	}
	if !rests && !p.record.flights.has(pod) {
		return false
	}
	if reason := p.record.refusal(pod); reason != "" {
		p.blocked[reason]++
	}
	return true
}

func (p *pass) candidate(s *subject) budgets.Candidate {
	return budgets.Candidate{
		Pod:           budgetedPod(s.pod),
		DeleteUnready: p.terms[s.pod.Spec.NodeName].DeletesUnready && evacuation.HasInstigator(s.evacuation, v1alpha1.NodeMaintenanceInstigatorFinalizer),
	}
}

// budgetedPod is what budgets look at.
func budgetedPod(pod *corev1.Pod) budgets.Pod {
	return budgets.Pod{
		UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName,
		Labels: pod.Labels, Ready: rules.Ready(pod), Phase: pod.Status.Phase, Terminating: pod.DeletionTimestamp != nil,
	}
}

func (p *pass) tryAgainAt(t time.Time) {
	if p.nextTry.IsZero() || t.Before(p.nextTry) {
		p.nextTry = t
	}
}

// report says on each Evacuation why its Pod waits, where that has changed, and counts.
func (p *pass) report(ctx context.Context, waiting []budgets.Waiting) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallelReports)
	for _, each := range waiting {
		p.blocked[string(each.Reason)]++
		s := p.subjects[each.Pod.UID]
		changed := s.status(p.now)
		evacuation.Waiting(changed, string(each.Reason), each.Message)
		if changed.Status.Message == s.evacuation.Status.Message || p.isPassing(each) {
			continue
		}
		group.Go(func() error {
			err := p.client.Status().Patch(groupCtx, changed, client.MergeFrom(s.evacuation))
			return errors.Wrapf(client.IgnoreNotFound(err), "saying why Pod %s waits", klog.KObj(s.pod))
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	p.record.observeBlocked(p.cluster, p.blocked)
	return nil
}

// isPassing says whether a Pod waits for nothing but our own evictions to show, or for the disruption controller to catch up
// with an edit: moments that aren't worth a write. What lasts is told.
func (p *pass) isPassing(waiting budgets.Waiting) bool {
	if waiting.Reason != budgets.BudgetNotObserved {
		return false
	}
	if p.stale[waiting.Budget] {
		return true
	}
	tellAt := p.subjects[waiting.Pod.UID].evacuation.CreationTimestamp.Add(passing)
	if p.now.Before(tellAt) {
		p.tryAgainAt(tellAt)
		return true
	}
	return false
}

// isStale notes the budgets whose room isn't known because of our own evictions, under way or done.
func (p *pass) isStale(pdb *policyv1.PodDisruptionBudget) bool {
	stale := p.record.isStale(pdb) || p.record.flights.taken(client.ObjectKeyFromObject(pdb))
	p.stale[pdb.Namespace+"/"+pdb.Name] = stale
	return stale
}

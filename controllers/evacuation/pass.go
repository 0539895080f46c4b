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
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/statefulset"
)

// parallelReports is the maximum number of concurrent status patches.
const parallelReports = 16

// passing is how long a budget may be unobserved before the status of the Evacuation says so.
const passing = 5 * time.Second

// pass is one evaluation of all Pods of a workload cluster that are to be evicted.
type pass struct {
	cluster     types.NamespacedName
	client      client.Client // reads Evacuations and Nodes from watches
	live        client.Client
	observation workload.Observation
	record      *record
	written     *Written
	pdbs        []*policyv1.PodDisruptionBudget
	now         time.Time
	subjects    map[types.UID]*subject
	paused      func(*v1alpha1.NodeMaintenance) bool
	terms       map[string]evacuation.Terms // by Node
	stale       map[string]bool             // budgets, by namespace/name
	blocked     map[string]int              // numbers of blocked Pods, by reason
	cordoning   bool                        // Nodes are about to be cordoned
	nextTry     time.Time                   // time of the next pass if no event triggers it earlier, zero: none
}

// subject is a Pod to be evicted, with its Evacuation.
type subject struct {
	evacuation *v1alpha1.Evacuation
	pod        *corev1.Pod
	action     evacuation.Action
}

// status returns the Evacuation with the status that says that eviction is next. The evictor stores it instead of the reconciler, so that
// this and the reason why the eviction waits are one write.
func (s *subject) status(now time.Time) *v1alpha1.Evacuation {
	changed := s.evacuation.DeepCopy()
	s.action.Apply(changed, now)
	return changed
}

// collect returns the Pods to be evicted now, and those whose in-flight evictions count against their budgets.
func (p *pass) collect(ctx context.Context) ([]budgets.Candidate, error) {
	evacuations, maintenances := &v1alpha1.EvacuationList{}, &v1alpha1.NodeMaintenanceList{} // read-only, and possibly many
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

// due returns the Pods whose next action is eviction, the oldest Evacuations first.
func (p *pass) due(evacuations []v1alpha1.Evacuation) []*subject {
	var due []*subject
	for i := range evacuations {
		latest, removed := p.written.latest(p.cluster, &evacuations[i])
		if removed {
			continue
		}
		if s := p.subjectOf(latest); s != nil {
			due = append(due, s)
		}
	}
	slices.SortFunc(due, func(a, b *subject) int {
		return cmp.Or(a.evacuation.CreationTimestamp.Compare(b.evacuation.CreationTimestamp.Time), cmp.Compare(a.evacuation.Name, b.evacuation.Name))
	})
	return due
}

// subjectOf returns the Pod of an Evacuation if drain/evacuation decides to evict it now, nil otherwise.
func (p *pass) subjectOf(e *v1alpha1.Evacuation) *subject {
	pod, found := workload.PodOf(p.observation, e)
	if !found {
		return nil
	}
	podType, known := rules.PodTypeOf(pod, p.observation.DaemonSetExists)
	if !known {
		return nil
	}
	action := evacuation.Next(evacuation.InputOf(e, pod, podType, p.terms[pod.Spec.NodeName], p.now))
	if action.Kind == evacuation.AwaitEvacuator { // without an event, the evacuator may miss its deadline, and then the evictor evicts the Pod
		p.requeueAt(action.Deadline)
		if reason := statefulset.WaitReason(e); reason != "" && action.Class == v1alpha1.EvacuatorClassStatefulSet {
			p.blocked[reason]++
		}
	}
	if action.Kind == evacuation.AwaitBackoff {
		p.blocked[action.Reason]++
		p.requeueAt(action.Deadline)
	}
	if action.Kind != evacuation.Evict {
		return nil
	}
	return &subject{evacuation: e, pod: pod, action: action}
}

// findImminentCordons determines whether Nodes are about to be cordoned.
func (p *pass) findImminentCordons(ctx context.Context, maintenances []v1alpha1.NodeMaintenance) error {
	for i := range maintenances {
		m := &maintenances[i]
		nodes, until := cordon.Imminent(m, p.now)
		if len(nodes) > 0 && p.paused(m) { // it cordons no Node while its Machine is paused
			continue
		}
		for _, name := range nodes {
			node := &corev1.Node{}
			if err := p.client.Get(ctx, types.NamespacedName{Name: name}, node); client.IgnoreNotFound(err) != nil {
				return errors.Wrapf(err, "getting Node %s", name)
			} else if err == nil && cordon.CanCordon(m, node) {
				p.cordoning = true
				p.requeueAt(until)
			}
		}
	}
	return nil
}

// awaitsCordons reports whether the eviction of a Pod waits for Nodes to be cordoned, so that its replacement is not scheduled onto one of
// them and evicted again.
func (p *pass) awaitsCordons(s *subject) bool {
	if !p.cordoning {
		return false
	}
	until, waits := cordon.Waits(s.evacuation.CreationTimestamp.Time, p.now)
	if waits {
		p.requeueAt(until)
	}
	return waits
}

// underWay returns the Pods with in-flight evictions that count against their budgets.
func (p *pass) underWay() []budgets.Candidate {
	var candidates []budgets.Candidate
	for _, flight := range p.record.inFlight.all() {
		if p.now.Sub(flight.begun) >= hung {
			continue
		}
		p.requeueAt(flight.begun.Add(hung))
		candidates = append(candidates, budgets.Candidate{Pod: flight.pod, UnderWay: true})
	}
	return candidates
}

// isTried reports whether the eviction of a Pod is in flight, or the Pod waits for a backoff after its last eviction. A Pod whose eviction
// was refused counts as blocked until a later attempt succeeds.
func (p *pass) isTried(pod types.UID) bool {
	until, rests := p.record.backingOff(pod, p.now)
	if rests {
		p.requeueAt(until)
	}
	if !rests && !p.record.inFlight.has(pod) {
		return false
	}
	if reason := p.record.refusal(pod); reason != "" {
		p.blocked[reason]++
	}
	return true
}

func (p *pass) candidate(s *subject) budgets.Candidate {
	return budgets.Candidate{
		Pod:           budgets.PodOf(s.pod),
		DeleteUnready: p.terms[s.pod.Spec.NodeName].DeletesUnready && evacuation.HasInstigator(s.evacuation, v1alpha1.NodeMaintenanceInstigatorFinalizer),
	}
}

func (p *pass) requeueAt(t time.Time) {
	if p.nextTry.IsZero() || t.Before(p.nextTry) {
		p.nextTry = t
	}
}

// report patches the status of each Evacuation whose reason to wait has changed, and updates the metric of blocked Pods.
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
			if err := p.client.Status().Patch(groupCtx, changed, client.MergeFrom(s.evacuation)); err != nil {
				return errors.Wrapf(client.IgnoreNotFound(err), "patching the status of Evacuation %s", klog.KObj(changed))
			}
			p.written.record(p.cluster, changed)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	p.record.observeBlocked(p.cluster, p.blocked)
	return nil
}

// isPassing reports whether a Pod only waits until our own evictions are observed, or has waited for less than passing until the disruption
// controller processes a change. Such short waits are not worth a status patch.
func (p *pass) isPassing(waiting budgets.Waiting) bool {
	if waiting.Reason != budgets.BudgetNotObserved {
		return false
	}
	if p.stale[waiting.Budget] {
		return true
	}
	tellAt := p.subjects[waiting.Pod.UID].evacuation.CreationTimestamp.Add(passing)
	if p.now.Before(tellAt) {
		p.requeueAt(tellAt)
		return true
	}
	return false
}

// isStale reports whether the observed status of a budget does not include our own evictions yet, and records that in the pass.
func (p *pass) isStale(pdb *policyv1.PodDisruptionBudget) bool {
	stale := p.record.isStale(pdb) || p.record.inFlight.takenDisruptions(client.ObjectKeyFromObject(pdb))
	p.stale[pdb.Namespace+"/"+pdb.Name] = stale
	return stale
}

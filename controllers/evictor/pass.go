package evictor

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/draintimeout"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuators"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// parallelReports is the maximum number of concurrent status patches.
const parallelReports = 16

// reportsLast is how long a pass starts status patches. On a busy API server, hundreds of them may take a minute.
const reportsLast = time.Second

// reportTimeout is the timeout of a status patch. A webhook that hangs for those of one Namespace delays the evictions of all by this time.
const reportTimeout = 3 * time.Second

// reportBackoff returns how long to wait after a number of failed patches of a status.
func reportBackoff(failed int32) time.Duration { return min(evacuation.Backoff(failed), time.Minute) }

// notObservedGrace is how long an Evacuation must exist before its status reports that the disruption controller has not processed the
// budget of its Pod yet.
const notObservedGrace = 5 * time.Second

// pass is one evaluation of all Pods of a workload cluster that are to be evicted.
type pass struct {
	cluster     types.NamespacedName
	client      client.Client // reads Evacuations and Nodes from watches
	live        client.Client
	observation workload.Observation
	state       *state
	written     *expectations.Objects[*v1alpha1.Evacuation]
	clock       clock.PassiveClock
	now         time.Time // when the pass began
	subjects    map[types.UID]*subject
	requested   map[string]requested // by Node
	suspended   func(*v1alpha1.NodeMaintenance) bool
	deleted     []clusterv1.Machine                    // the deleted Machines of the Cluster, read-only
	drains      func(node string) evacuation.NodeTerms // of the Node with this name
	terms       map[string]evacuation.Terms            // of the drained Nodes, by name
	blocked     map[string]int                         // numbers of blocked Pods, by reason
	deferred    []*subject                             // those that wait for a backoff of their replacements, or whose signal is in flight
	cordoning   bool                                   // Nodes are about to be cordoned
	nextTry     time.Time                              // time of the next pass if no event triggers it earlier, zero: none
}

// requested contains the Evacuations of the Pods of a Node.
type requested struct {
	pods sets.Set[types.UID]
	last time.Time // when the last one was created
}

// subject is a Pod to be evicted, with its Evacuation.
type subject struct {
	evacuation *v1alpha1.Evacuation
	pod        *corev1.Pod
	action     evacuation.Action
	requested  time.Time // when the eviction was requested
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
	p.observeDrains(ctx, evacuation.DrainersOf(maintenances.Items, p.suspended))
	candidates := p.inFlight()
	live := map[types.UID]bool{}
	for _, s := range p.due(evacuations.Items) {
		uid := s.pod.UID
		live[uid] = true
		backoffUntil := p.backoffOf(ctx, s)
		cordonsUntil, awaitsCordons := cordon.Waits(s.evacuation.CreationTimestamp.Time, p.now)
		switch {
		case p.now.Before(backoffUntil):
			p.requeueAt(backoffUntil)
			p.countRefusal(uid)
		case p.state.inFlight.has(uid):
			p.countRefusal(uid)
			if p.state.signals.reason(uid) != "" {
				p.deferred = append(p.deferred, s)
			}
		case p.cordoning && awaitsCordons && !p.isAtFinalAttempt(ctx, s): // otherwise its replacement may be scheduled onto one of these Nodes and evicted again
			p.requeueAt(cordonsUntil)
		default:
			p.subjects[uid] = s
			candidates = append(candidates, p.candidate(s))
		}
	}
	p.state.backoffs.prune(live, p.now)
	p.state.reports.prune(live, p.now)
	p.state.signals.prune(live, p.now)
	p.state.pauses.prune(p.now)
	return candidates, nil
}

// backoffOf returns the time until which the eviction of a Pod is deferred. The backoff of an eviction that was refused or got no response
// ends at the final eviction attempt of the Pod, and that of one that admission denied a moment after the Pod has changed.
func (p *pass) backoffOf(ctx context.Context, s *subject) time.Time {
	until, failed := p.state.backoffs.of(s.pod.UID), p.state.backoffs.failure(s.pod.UID)
	if failed.IsZero() || until.Before(p.now) {
		return until
	}
	if changed, effective := p.state.backoffs.afterChange(s.pod); effective && changed.Before(until) {
		until = changed
	}
	if final := p.finalAttemptAfter(ctx, s.pod, failed); !final.IsZero() && final.Before(until) {
		return final
	}
	return until
}

// isAtFinalAttempt reports whether the final eviction attempt of a Pod is due.
func (p *pass) isAtFinalAttempt(ctx context.Context, s *subject) bool {
	final := p.finalAttemptAfter(ctx, s.pod, time.Time{})
	return !final.IsZero() && !p.now.Before(final)
}

// finalAttemptAfter returns when a Pod gets its first final eviction attempt after a failed attempt, zero if there is none.
func (p *pass) finalAttemptAfter(ctx context.Context, pod *corev1.Pod, failed time.Time) time.Time {
	terms := p.terms[pod.Spec.NodeName]
	if len(terms.Timeouts) == 0 {
		return time.Time{}
	}
	period, _ := p.gracePeriod(ctx, pod)
	return draintimeout.NextFinalAttempt(terms, period, failed)
}

// waitingAtFinalAttempt returns the Pods that the pass has found waiting although their final eviction attempts are due, with the names of
// their Nodes. It leaves out those that may still be evicted after the responses to evictions of other Pods. Without an event, the next
// pass is when the next of these attempts is due.
func (p *pass) waitingAtFinalAttempt(ctx context.Context, waiting []budgets.Waiting) map[types.UID]string {
	found := p.deferred
	undecided := map[types.UID]bool{}
	for _, each := range waiting {
		found, undecided[each.Pod.UID] = append(found, p.subjects[each.Pod.UID]), each.Reserved || each.Stale
	}
	pods := map[types.UID]string{}
	for _, s := range found {
		final := p.finalAttemptAfter(ctx, s.pod, time.Time{})
		switch {
		case final.IsZero():
		case p.now.Before(final):
			p.requeueAt(final)
		case !undecided[s.pod.UID]:
			pods[s.pod.UID] = s.pod.Spec.NodeName
		}
	}
	return pods
}

// countRefusal counts a Pod whose last eviction was refused as blocked, until a later attempt succeeds, and one whose signal is in flight.
func (p *pass) countRefusal(pod types.UID) {
	if reason := cmp.Or(p.state.signals.reason(pod), p.state.backoffs.refusal(pod)); reason != "" {
		p.blocked[reason]++
	}
}

// due returns the Pods whose next action is eviction, the oldest Evacuations first. It counts the Pods that are blocked otherwise.
func (p *pass) due(evacuations []v1alpha1.Evacuation) []*subject {
	var due []*subject
	decisions.Add(float64(len(evacuations)))
	for i := range evacuations {
		s, deleted := p.subjectOf(&evacuations[i], p.drains, p.now)
		if deleted {
			p.requeueAt(p.now.Add(expectations.TTL)) // the watch delivers its deletion before, unless a backup was restored (R73)
		}
		if s == nil {
			continue
		}
		p.recordRequested(s)
		switch s.action.Kind { //nolint:exhaustive // the Evacuation reconciler carries out the other actions
		case evacuation.AwaitEvacuator: // without an event, the evacuator may miss its deadline, and then the evictor evicts the Pod
			p.requeueAt(s.action.Deadline)
			if d := evacuators.Of(s.action.Class); d.Orders && d.WaitReason(s.evacuation) != "" {
				p.blocked[d.WaitReason(s.evacuation)]++
			}
		case evacuation.AwaitBackoff:
			p.requeueAt(s.action.Deadline)
			p.blocked[s.action.Reason]++
			p.deferred = append(p.deferred, s)
		case evacuation.Evict:
			due = append(due, s)
		}
	}
	slices.SortFunc(due, func(a, b *subject) int {
		return cmp.Or(a.evacuation.CreationTimestamp.Compare(b.evacuation.CreationTimestamp.Time), cmp.Compare(a.evacuation.Name, b.evacuation.Name))
	})
	return due
}

// subjectOf returns the Pod of an Evacuation with the next action. It returns nil if the Evacuation was deleted, and if the Pod or its type
// is not known. deleted means that the Evacuation of a known Pod was deleted. Evictions call it after the pass, so it must not change p.
func (p *pass) subjectOf(observed *v1alpha1.Evacuation, drains func(node string) evacuation.NodeTerms, now time.Time) (s *subject, deleted bool) {
	e, deleted := p.written.Latest(p.cluster, observed)
	pod, found := workload.PodOf(p.observation, e)
	if deleted || !found {
		return nil, deleted && found
	}
	podType, known := rules.PodTypeOf(pod, p.observation.DaemonSetExists)
	if !known {
		return nil, false
	}
	terms := drains(pod.Spec.NodeName).For(planinput.RulePod(p.observation, pod))
	return &subject{evacuation: e, pod: pod, action: evacuation.Next(evacuators.InputOf(e, pod, podType, terms, now))}, false
}

// isStillDue reports whether eviction is still the next action for a Pod. The pass has decided that, but the NodeMaintenance or the
// Evacuation may have ended since. It returns false if that cannot be read.
func (p *pass) isStillDue(ctx context.Context, s *subject, now time.Time) bool {
	latest := &v1alpha1.Evacuation{}
	if err := p.client.Get(ctx, client.ObjectKeyFromObject(s.evacuation), latest, client.UnsafeDisableDeepCopy); err != nil {
		return false
	}
	return p.evictionOf(ctx, latest, now) != nil
}

// evictionOf returns the Pod of an Evacuation if eviction is its next action now. It returns nil if not, or if that cannot be read.
func (p *pass) evictionOf(ctx context.Context, latest *v1alpha1.Evacuation, now time.Time) *subject {
	var err error
	s, _ := p.subjectOf(latest, func(node string) (drains evacuation.NodeTerms) {
		drains, err = p.drainsNow(ctx, node)
		return drains
	}, now)
	if err != nil || s == nil || s.action.Kind != evacuation.Evict {
		return nil
	}
	return s
}

// drainsNow returns the NodeMaintenances that drain a Node now, which may be long after the pass began.
func (p *pass) drainsNow(ctx context.Context, name string) (evacuation.NodeTerms, error) {
	maintenances, err := workload.MaintenancesOf(ctx, p.client, name)
	if err != nil {
		return nil, err
	}
	node, err := workload.NodeNamed(ctx, p.client, name)
	return evacuation.DrainersOf(maintenances, p.suspended).On(node), err
}

// nodeRetry is the delay before a Node that cannot be read is read again.
const nodeRetry = 5 * time.Second

// observeDrains determines which NodeMaintenances drain which Nodes.
func (p *pass) observeDrains(ctx context.Context, drainers *evacuation.Drainers) {
	p.drains, p.terms = p.termsByNode(ctx, drainers), map[string]evacuation.Terms{}
	for _, node := range drainers.KnownNodes() {
		if drains := p.drains(node); len(drains) > 0 {
			terms := drains.Combined()
			terms.Suspended = drains.IsSuspended()
			p.terms[node] = terms
		}
	}
}

// termsByNode returns a function that returns the terms of a Node. It reads each Node once. For a Node that cannot be read it returns none,
// so that no Pod is evicted there for NodeMaintenances.
func (p *pass) termsByNode(ctx context.Context, drainers *evacuation.Drainers) func(node string) evacuation.NodeTerms {
	known := map[string]evacuation.NodeTerms{}
	return func(name string) evacuation.NodeTerms {
		if terms, isKnown := known[name]; isKnown {
			return terms
		}
		node, err := workload.NodeNamed(ctx, p.client, name)
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Failed to get the Node of a Pod that is to be evicted", "Node", klog.KRef("", name))
			p.requeueAt(p.now.Add(nodeRetry))
		}
		known[name] = drainers.On(node)
		return known[name]
	}
}

// inFlight returns the Pods with in-flight evictions that count against their budgets.
func (p *pass) inFlight() []budgets.Candidate {
	var candidates []budgets.Candidate
	for _, eviction := range p.state.inFlight.all() {
		if p.now.Sub(eviction.Begun) >= unansweredTimeout {
			continue
		}
		p.requeueAt(eviction.Begun.Add(unansweredTimeout))
		candidates = append(candidates, budgets.Candidate{Pod: eviction.Pod, InFlight: true})
	}
	return candidates
}

func (p *pass) candidate(s *subject) budgets.Candidate {
	return budgets.Candidate{
		Pod: budgets.PodOf(s.pod), DrainStart: p.drainStart(s),
		DeleteUnready: p.terms[s.pod.Spec.NodeName].DeletesUnready && evacuation.HasInstigator(s.evacuation, v1alpha1.NodeMaintenanceInstigatorFinalizer),
	}
}

// drainStart returns when the drain of a Pod's Node started. A drain whose start is not recorded yet starts now. If no NodeMaintenance
// drains the Node, the Evacuation counts.
func (p *pass) drainStart(s *subject) time.Time {
	terms, drained := p.terms[s.pod.Spec.NodeName]
	switch {
	case !drained:
		return s.evacuation.CreationTimestamp.Time
	case terms.DrainStart == nil:
		return p.now
	default:
		return *terms.DrainStart
	}
}

func (p *pass) recordRequested(s *subject) {
	node, created := s.pod.Spec.NodeName, s.evacuation.CreationTimestamp.Time
	r := p.requested[node]
	if r.pods == nil {
		r.pods = sets.New[types.UID]()
	}
	r.pods.Insert(s.pod.UID)
	if r.last.Before(created) {
		r.last = created
	}
	p.requested[node] = r
}

// expected returns the Pods of drained Nodes whose Evacuations may be about to be created or observed: the drain of the Node has just
// started, or the last Evacuation of a Pod there was just created. Otherwise a younger drain could use a disruption that such a Pod needs,
// and each drain could wait for the other one.
func (p *pass) expected() []budgets.Candidate {
	var candidates []budgets.Candidate
	for node, terms := range p.terms {
		until, expects := budgets.ExpectsMore(ptr.Deref(terms.StageStart, p.now), p.requested[node].last, p.now)
		if terms.Suspended || !expects {
			continue
		}
		pods, _ := p.observation.PodsOn(node)
		for _, pod := range pods {
			podType, known := rules.PodTypeOf(pod, p.observation.DaemonSetExists)
			if p.requested[node].pods.Has(pod.UID) || !known || podType != v1alpha1.PodTypeDefault {
				continue
			}
			candidates = append(candidates, budgets.Candidate{Pod: budgets.PodOf(pod), DrainStart: ptr.Deref(terms.DrainStart, p.now), Expected: true})
			p.requeueAt(until)
		}
	}
	return candidates
}

func (p *pass) requeueAt(t time.Time) {
	if p.nextTry.IsZero() || t.Before(p.nextTry) {
		p.nextTry = t
	}
}

// report patches the status of each Evacuation whose reason to wait has changed, and updates the metric of blocked Pods. Short waits are
// not worth a patch: until the watch delivers our own evictions, and for a new Evacuation until the disruption controller processes a
// change. A patch that fails delays no other: tenants write Evacuations, and one may be so large that its status cannot grow. A patch
// conflicts if the Evacuation has changed since the pass read it: an evacuator may be active now. A later pass retries it, without an event
// of that change, which may never come (R73). Evictions wait for the patches, so report leaves to the next pass what takes longer than
// reportsLast.
func (p *pass) report(ctx context.Context, waiting []budgets.Waiting) {
	var group errgroup.Group
	var mu sync.Mutex
	var failures []error
	group.SetLimit(parallelReports)
	begun := p.clock.Now()
	for _, each := range waiting {
		p.blocked[string(each.Reason)]++
		s := p.subjects[each.Pod.UID]
		changed := s.status(p.now)
		evacuation.Waiting(changed, string(each.Reason), each.Message)
		reportAt, retryAt := s.evacuation.CreationTimestamp.Add(notObservedGrace), p.state.reports.of(each.Pod.UID)
		switch {
		case each.Stale || isReported(each, s.evacuation, changed):
			continue
		case p.now.Before(retryAt):
			p.requeueAt(retryAt)
			continue
		case each.Reason == budgets.BudgetNotObserved && p.now.Before(reportAt):
			p.requeueAt(reportAt)
			continue
		case p.clock.Since(begun) >= reportsLast:
			p.requeueAt(p.now)
			continue
		}
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, reportTimeout)
			defer cancel()
			err := p.client.Status().Patch(ctx, changed, client.MergeFromWithOptions(s.evacuation, client.MergeFromWithOptimisticLock{}))
			switch {
			case answers.DoesNotExist(err):
				return nil
			case answers.IsConflict(err): // not counted: a long backoff would also delay the report after the watch has delivered the change
				p.state.reports.backOff(each.Pod.UID, p.clock.Now().Add(reportBackoff(1)))
				return errors.Wrapf(err, "patching the status of Evacuation %s", klog.KObj(changed))
			case err != nil:
				p.state.reports.backOff(each.Pod.UID, p.clock.Now().Add(reportBackoff(p.state.reports.countFailed(each.Pod.UID))))
				err = errors.Wrapf(err, "patching the status of Evacuation %s", klog.KObj(changed))
				mu.Lock()
				defer mu.Unlock()
				failures = append(failures, err)
				return err
			}
			p.state.reports.endFailures(each.Pod.UID)
			p.written.RecordWritten(p.cluster, changed)
			return nil
		})
	}
	if group.Wait() != nil {
		p.requeueAt(p.now.Add(reportBackoff(1)))
	}
	if len(failures) > 0 { // conflicts are none
		ctrl.LoggerFrom(ctx).Error(failures[0], "Failed to report what the evictions of Pods wait for", "Evacuations", len(failures))
	}
	p.state.observeBlocked(p.cluster, p.blocked)
}

// isReported reports whether the status of an Evacuation says already what its eviction waits for. If progress of an evacuator has stopped
// the eviction, the message stays, and only the condition is missing.
func isReported(w budgets.Waiting, stored, changed *v1alpha1.Evacuation) bool {
	evicting := meta.FindStatusCondition(stored.Status.Conditions, v1alpha1.EvacuationEvicting)
	if evicting == nil || evicting.Status != metav1.ConditionTrue {
		return false
	}
	return changed.Status.Message == stored.Status.Message || w.IsReported(evicting.Reason, evicting.Message)
}

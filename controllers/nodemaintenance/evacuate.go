package nodemaintenance

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/jsonpatch"
	"github.com/capnm/cluster-api-node-maintenance/controllers/setaside"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/draintimeout"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/staticpod"
)

// parallelWrites is the maximum number of concurrent writes of one reconciliation.
const parallelWrites = 8

// unknownInterval is the requeue interval while Pods are not observed on a Node that only other NodeMaintenances of the component select,
// or while the NodeMaintenance ends.
const unknownInterval = 2 * time.Second

// drainState is what the step evacuate has observed and decided.
type drainState struct {
	decision     plan.MaintenanceDecision
	pods         map[string][]drainedPod // on the selected Nodes, by Node name
	createErrors map[types.UID]error     // of Evacuations that the API server refuses, by Pod
	deleteErrors map[types.UID]error     // of deletions before the drain timeout, by Pod
	ruleProblems []rules.Problem
	budgets      func() *budgets.Index // nil: the PodDisruptionBudgets are not known
	finalAttempt draintimeout.Progress

	finalAttempts map[types.UID]time.Time // times of the final eviction attempts that are due, by Pod
}

// drainedPod is a Pod on a selected Node.
type drainedPod struct {
	planinput.Pod

	object     *corev1.Pod
	evacuation *v1alpha1.Evacuation // nil: the Pod has none
	verdict    rules.Verdict        // of this NodeMaintenance's drain rules
	others     []rules.Verdict      // verdicts of the other NodeMaintenances that drain the Node
}

// evacuate watches the Pods of all Nodes of the component. Once they are observed, it creates and withdraws Evacuations as the plan
// decides.
func (r *Reconciler) evacuate(ctx context.Context, s *scope) (bool, error) {
	c := planinput.ComponentOf(s.maintenance.Name, s.drains(), s.now)
	c.DaemonSetsKept = planinput.DaemonSetsKept(s.others)
	pods, observed, err := r.observePods(ctx, s, c)
	if err != nil || !observed {
		return err == nil, err
	}
	decision := c.Decide(planned(pods), s.turns)
	s.drain = &drainState{
		decision: decision.Maintenances[s.maintenance.Name], pods: map[string][]drainedPod{}, deleteErrors: map[types.UID]error{},
		ruleProblems: c.Problems(s.maintenance.Name),
		budgets:      sync.OnceValue(func() *budgets.Index { return r.budgetsIn(s.request.Cluster) }),
	}
	selected := sets.New(nodeNames(s.nodes)...)
	for _, pod := range pods {
		if node := pod.object.Spec.NodeName; selected.Has(node) {
			pod.verdict, pod.others = pod.VerdictOf(s.maintenance.Name)
			s.drain.pods[node] = append(s.drain.pods[node], pod)
		}
	}
	s.drain.finalAttempts = finalAttempts(s, r.Clusters.Waiting(s.request.Cluster))
	targets := decision.Targets.Union(sets.KeySet(s.drain.finalAttempts))
	r.record(s, targets)
	return true, r.applyTargets(ctx, s, targets, decision.Kept)
}

// budgetsIn returns the PodDisruptionBudgets of a workload cluster, nil if they are not known.
func (r *Reconciler) budgetsIn(cluster types.NamespacedName) *budgets.Index {
	observation := r.Clusters.CurrentObservation(cluster)
	if observation == nil {
		return nil
	}
	all, known := observation.Budgets()
	if !known {
		return nil
	}
	return budgets.IndexOf(all, nil)
}

func planned(pods []drainedPod) []plan.Pod {
	all := make([]plan.Pod, 0, len(pods))
	for _, pod := range pods {
		all = append(all, pod.Planned)
	}
	return all
}

// takeTurns decides which Nodes wait because of maxParallelNodes. Until the Pods are observed, every Node whose drain has not started
// waits.
func (r *Reconciler) takeTurns(ctx context.Context, s *scope) (bool, error) {
	c := planinput.ComponentOf(s.maintenance.Name, s.drains(), s.now)
	if !c.IsLimited() {
		return true, nil
	}
	pods, observed, err := r.observePods(ctx, s, c)
	if err != nil {
		return false, err
	}
	if observed {
		s.turns = c.Turns(planned(pods))
		return true, nil
	}
	s.turns.Waiting = sets.New(nodeNames(s.nodes)...)
	for node, targets := range progress.Targets(&s.maintenance.Status) {
		if len(targets) > 0 {
			s.turns.Waiting.Delete(node)
		}
	}
	return true, nil
}

// drains returns this NodeMaintenance and the others in stage Drain, with their Nodes.
func (s *scope) drains() []planinput.Drain {
	drains := []planinput.Drain{{Maintenance: s.maintenance, Nodes: s.nodes}}
	for i := range s.others {
		if other := &s.others[i]; other.Drains() {
			drains = append(drains, planinput.Drain{Maintenance: other, Nodes: s.drainedBy[other.Name], Suspended: s.suspends.Has(other.Name)})
		}
	}
	return drains
}

// observePods returns the Pods of a component, without their verdicts. observed is false until the Pods of all its Nodes are observed.
func (r *Reconciler) observePods(ctx context.Context, s *scope, c *planinput.Component) (all []drainedPod, observed bool, err error) {
	if c.Nodes.Len() == 0 {
		r.Clusters.Release(s.request.Cluster, watchOwner(s.request))
		return nil, true, nil
	}
	observation, err := r.Clusters.Observe(ctx, s.request.Cluster, watchOwner(s.request), sets.List(c.Nodes)...)
	if err != nil {
		return nil, false, err
	}
	s.observation = observation
	for _, node := range sets.List(c.Nodes) {
		// Evacuations are listed before Pods: an Evacuation is deleted after its Pod, so in the opposite order a Pod that has just
		// been removed would get a second Evacuation.
		evacuations, err := evacuationsOn(ctx, s.client, node)
		if err != nil {
			return nil, false, err
		}
		pods, known := observation.PodsOn(node)
		if !known {
			if !slices.Contains(nodeNames(s.nodes), node) { // the event of its first list enqueues only the NodeMaintenances that select it
				s.requeueBy(s.now.Add(unknownInterval))
			}
			return nil, false, nil
		}
		byPod := map[types.UID]*v1alpha1.Evacuation{}
		for i := range evacuations {
			if pod, found := workload.PodOf(observation, &evacuations[i]); found {
				byPod[pod.UID] = &evacuations[i]
			}
		}
		slices.SortFunc(pods, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
		served := r.NodeAgent && staticpod.Served(pods)
		for _, object := range pods {
			pod := drainedPod{Pod: c.Pod(observation, object, byPod[object.UID], served, s.now), object: object, evacuation: byPod[object.UID]}
			if !pod.OverdueAt.IsZero() {
				s.requeueBy(pod.OverdueAt)
			}
			all = append(all, pod)
		}
	}
	return all, true, nil
}

// applyTargets creates Evacuations for the targets on this NodeMaintenance's Nodes, and withdraws from those of other Pods, except the kept
// ones. A refused write does not delay the others: the status names the Pod or the Evacuation, and the write is retried after a backoff.
// One without an answer does not delay the next steps either: a webhook that hangs for the Evacuations of one Namespace must not keep the
// Pods of others from being deleted before the drain timeout.
func (r *Reconciler) applyTargets(ctx context.Context, s *scope, targets, kept sets.Set[types.UID]) error {
	after, err := r.scheduleReplacements(ctx, s, targets)
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(parallelWrites)
	existing := map[types.UID]bool{} // with whether the Evacuation is to be created
	for _, node := range s.nodes {
		for _, pod := range s.drain.pods[node.Name] {
			existing[pod.object.UID] = targets.Has(pod.object.UID) && s.cordonErrors[node.Name] == nil
			if kept.Has(pod.object.UID) && !targets.Has(pod.object.UID) { // a suspended NodeMaintenance continues with it
				continue
			}
			if write := r.evacuationWrite(ctx, s, pod, targets.Has(pod.object.UID), after[pod.object.UID]); write != nil {
				group.Go(write)
			}
		}
	}
	err = group.Wait()
	var retryAt time.Time
	if s.drain.createErrors, retryAt = r.created.refusals(s.request, existing); len(s.drain.createErrors) > 0 {
		s.requeueBy(retryAt)
	}
	if err != nil && !workload.IsNotConnected(err) && !workload.IsPaused(err) {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to request Evacuations")
		s.unanswered, err = err, nil
	}
	return err
}

// evacuationWrite returns the request that the Evacuation of a Pod needs, nil if it needs none now. A Pod that is targeted must not be
// evicted before the time after.
func (r *Reconciler) evacuationWrite(ctx context.Context, s *scope, pod drainedPod, targeted bool, after time.Time) func() error {
	e := pod.evacuation
	if e == nil {
		until, awaited := r.created.awaited(s.request, pod.object.UID, s.drain.finalAttempts[pod.object.UID], s.now)
		switch {
		case !targeted:
			return nil
		case pod.object.DeletionTimestamp != nil && r.created.wasObserved(s.request, pod.object.UID): // the Pod no longer exists, but the watch lags
			return nil
		case awaited:
			s.requeueBy(until)
			return nil
		case s.cordonErrors[pod.object.Spec.NodeName] != nil: // a replacement could be scheduled onto a Node that is not cordoned
			return nil
		}
		if until, awaits := evacuation.AwaitsBudgets(s.maintenance, s.drain.budgets() != nil, s.now); awaits { // their arrival triggers a reconciliation
			s.requeueBy(until)
			return nil
		}
		return func() error { return r.create(ctx, s, pod, after) }
	}
	instigated := evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer)
	requests := targeted && !instigated && e.DeletionTimestamp.IsZero()
	r.created.recordObserved(s.request, pod.object.UID, requests)
	switch {
	case requests:
		if until, awaited := r.created.awaited(s.request, pod.object.UID, s.drain.finalAttempts[pod.object.UID], s.now); awaited { // it was refused
			s.requeueBy(until)
			return nil
		}
		return func() error { return r.requestExisting(ctx, s, pod) }
	case !targeted && instigated && !pod.Planned.Finished:
		return func() error { return r.withdrawFrom(ctx, s, e) }
	}
	return nil
}

// requestExisting adds NodeMaintenances as an instigator of the Evacuation that another instigator has created.
func (r *Reconciler) requestExisting(ctx context.Context, s *scope, pod drainedPod) error {
	err := r.setInstigator(ctx, s, pod.evacuation, evacuation.Request)
	switch {
	case answers.IsAnswer(err):
		r.recordRefused(ctx, s, pod.object, err)
		return nil
	case err != nil:
		r.created.recordUnanswered(s.request, pod.evacuation, errors.Cause(err), r.Clock.Now())
		return err
	}
	r.reportInvalid(s, pod.object, nil)
	return nil
}

// recordRefused records that the API server has refused to create or to change the Evacuation of a Pod.
func (r *Reconciler) recordRefused(ctx context.Context, s *scope, pod *corev1.Pod, err error) {
	ctrl.LoggerFrom(ctx).Error(err, "Failed to request Evacuation", "Pod", klog.KObj(pod))
	err = errors.Cause(err)
	r.created.recordRefused(s.request, pod.UID, err, r.Clock.Now())
	r.Clusters.Event(s.request.Cluster, pod, corev1.EventTypeWarning, eventEvacuationRefused, progress.Describe(err))
}

// create creates the Evacuation of a Pod, which must not be evicted before the time after. If the type of the Pod is not known yet, the
// evacuation controller resolves its evacuators.
func (r *Reconciler) create(ctx context.Context, s *scope, pod drainedPod, after time.Time) error {
	policy := s.maintenance.Spec.Evacuation
	evacuators, problems := pod.Evacuators(pod.object, policy.SharedEvacuationPolicy)
	e := evacuation.New(pod.object, evacuators, policy.ProgressDeadlineSeconds)
	e.Annotations = map[string]string{v1alpha1.EvacuationNodeAnnotation: pod.object.Spec.NodeName}
	if pod.Planned.HasEvacuator {
		metav1.SetMetaDataLabel(&e.ObjectMeta, v1alpha1.StaticPodsOfLabel, v1alpha1.StaticPodsOf(pod.object.Spec.NodeName))
	}
	if policy.Evacuators == v1alpha1.EvacuatorsBuiltIn {
		e.Annotations[v1alpha1.EvacuatorsPolicyAnnotation] = string(policy.Evacuators)
	}
	if !after.IsZero() {
		e.Annotations[v1alpha1.EvacuateAfterAnnotation] = after.UTC().Format(time.RFC3339)
	}
	if index := s.drain.budgets(); index != nil && evacuation.EvictedAtOnce(e, pod.Type, len(index.Covering(budgets.PodOf(pod.object)))) {
		evacuation.RequestByAnnotation(e)
	}
	err := s.client.Create(ctx, e)
	if answers.AlreadyExists(err) {
		err = r.notDecodable(ctx, s, e)
	}
	if err != nil {
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			// The namespace controller deletes its Pods, so an event would warn of nothing. The status names a Pod that stays.
			r.created.recordRefused(s.request, pod.object.UID, errors.Cause(err), r.Clock.Now())
			return nil
		}
		if !answers.IsAnswer(err) && !setaside.Is(err) {
			r.created.recordUnanswered(s.request, e, errors.Cause(err), r.Clock.Now())
			return errors.Wrapf(err, "creating the Evacuation of Pod %s", klog.KObj(pod.object))
		}
		r.recordRefused(ctx, s, pod.object, err)
		return nil
	}
	r.created.recordCreated(s.request, e, r.Clock.Now())
	if len(evacuators) == 0 {
		problems = nil // the evacuation controller resolves them again, and reports them
	}
	r.reportInvalid(s, pod.object, problems)
	ctrl.LoggerFrom(ctx).V(4).Info("Created Evacuation", "Pod", klog.KObj(pod.object))
	return nil
}

// notDecodable returns an error if the Evacuation that exists cannot be decoded, so that no cache contains it.
func (r *Reconciler) notDecodable(ctx context.Context, s *scope, e *v1alpha1.Evacuation) error {
	if err := s.client.Get(ctx, client.ObjectKeyFromObject(e), &v1alpha1.Evacuation{}); setaside.Is(err) {
		return err //nolint:wrapcheck // it names the Evacuation
	}
	return nil
}

// reportInvalid writes events on a Pod about its evacuator annotations and drain labels that have no effect. It is called once for each
// Pod, when the Evacuation is created or gets our instigator.
func (r *Reconciler) reportInvalid(s *scope, pod *corev1.Pod, problems []evacuation.Problem) {
	for _, problem := range problems {
		r.Clusters.Event(s.request.Cluster, pod, corev1.EventTypeWarning, workload.EventInvalidEvacuator, problem.Message)
	}
	if message := rules.UnknownDrainLabel(s.maintenance, pod.Labels); message != "" {
		r.Clusters.Event(s.request.Cluster, pod, corev1.EventTypeWarning, eventUnknownDrainLabel, message)
	}
}

// setInstigator adds or removes NodeMaintenances as an instigator. After a conflict, it retries once with the Evacuation from the API
// server.
func (r *Reconciler) setInstigator(ctx context.Context, s *scope, e *v1alpha1.Evacuation, change func(*v1alpha1.Evacuation)) error {
	err := setInstigator(ctx, s.client, e, change)
	if !answers.IsConflict(err) {
		return err
	}
	live, err := r.Clusters.UncachedClient(ctx, s.request.Cluster)
	if err != nil {
		return err
	}
	current := &v1alpha1.Evacuation{}
	if err := live.Get(ctx, client.ObjectKeyFromObject(e), current); err != nil || current.UID != e.UID {
		return errors.Wrapf(answers.IgnoreDoesNotExist(err), "getting Evacuation %s", klog.KObj(e))
	}
	return setInstigator(ctx, s.client, current, change)
}

// setInstigator keeps the finalizers of other instigators. An Evacuation that is being deleted gets no instigator.
func setInstigator(ctx context.Context, c client.Client, e *v1alpha1.Evacuation, change func(*v1alpha1.Evacuation)) error {
	changed := e.DeepCopy()
	change(changed)
	if e.DeletionTimestamp != nil && len(changed.Finalizers) > len(e.Finalizers) {
		return nil
	}
	err := jsonpatch.Finalizers(ctx, c, e, changed)
	return errors.Wrapf(answers.IgnoreDoesNotExist(err), "setting the instigator of Evacuation %s", klog.KObj(e))
}

// evacuationsOn lists the Evacuations of a Node's Pods.
func evacuationsOn(ctx context.Context, reader client.Reader, node string) ([]v1alpha1.Evacuation, error) {
	list := &v1alpha1.EvacuationList{}
	err := reader.List(ctx, list, workload.OnNode(node))
	return list.Items, errors.Wrapf(err, "listing the Evacuations of Node %s", node)
}

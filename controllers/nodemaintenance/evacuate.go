package nodemaintenance

import (
	"context"
	"slices"
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
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/staticpod"
)

// parallelWrites is the maximum number of concurrent writes of one reconciliation.
const parallelWrites = 8

// podView is a Pod with the verdict of this NodeMaintenance's drain rules.
type podView struct {
	planinput.Pod

	pod     *corev1.Pod
	verdict rules.Verdict
	others  []rules.Verdict // verdicts of the other NodeMaintenances that drain the Node
}

// evacuate watches the Pods of all Nodes of the component. Once they are observed, it creates and withdraws Evacuations as the plan
// decides.
func (r *Reconciler) evacuate(ctx context.Context, s *scope) (bool, error) {
	c := planinput.ComponentOf(s.maintenance.Name, s.drains(), s.now)
	observation, err := r.Clusters.Observe(ctx, s.request.Cluster, owner(s.request), sets.List(c.Nodes)...)
	if err != nil {
		return false, err
	}
	s.ruleProblem = c.Matchers[s.maintenance.Name].Problems()
	if observation == nil { // no Node is selected
		s.decision = &plan.MaintenanceDecision{}
		return true, nil
	}
	observed, known, err := r.view(ctx, s, c, observation)
	if err != nil {
		return false, err
	}
	if !known {
		s.waiting = "Waiting for the first list of Pods."
		return true, nil
	}
	decision := plan.Decide(observed)
	mine := decision.Maintenances[s.maintenance.Name]
	s.decision = &mine
	return true, r.applyTargets(ctx, s, decision.Targets.Union(finalAttempts(s)))
}

// drains returns this NodeMaintenance and the others in stage Drain, with their Nodes.
func (s *scope) drains() []planinput.Drain {
	drains := []planinput.Drain{{Maintenance: s.maintenance, Nodes: s.nodes}}
	for i := range s.others {
		if other := &s.others[i]; planinput.Drains(other) {
			drains = append(drains, planinput.Drain{Maintenance: other, Nodes: s.drainedBy[other.Name]})
		}
	}
	return drains
}

// view describes the Pods of a component. It returns false until the Pods of all Nodes of the component are observed.
func (r *Reconciler) view(ctx context.Context, s *scope, c *planinput.Component, observation workload.Observation) (plan.Observation, bool, error) {
	s.pods, s.evacuations = map[string][]podView{}, map[types.UID]*v1alpha1.Evacuation{}
	observed := plan.Observation{Maintenances: c.Maintenances}
	mine := sets.New[string]()
	for _, node := range s.nodes {
		mine.Insert(node.Name)
	}
	for _, node := range sets.List(c.Nodes) {
		// Evacuations are listed before Pods: an Evacuation is deleted after its Pod, so in the opposite order a Pod that has just
		// been removed would get a second Evacuation.
		evacuations, err := evacuationsOn(ctx, s.client, node)
		if err != nil {
			return plan.Observation{}, false, err
		}
		pods, known := observation.PodsOn(node)
		if !known {
			return plan.Observation{}, false, nil
		}
		for i := range evacuations {
			if pod, found := workload.PodOf(observation, &evacuations[i]); found {
				s.evacuations[pod.UID] = &evacuations[i]
			}
		}
		slices.SortFunc(pods, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
		served := r.NodeAgent && staticpod.Served(pods)
		for _, pod := range pods {
			seen := c.Pod(observation, pod, s.evacuations[pod.UID], served, s.now)
			if !seen.OverdueAt.IsZero() {
				s.requeueBy(seen.OverdueAt)
			}
			observed.Pods = append(observed.Pods, seen.Planned)
			if mine.Has(node) {
				s.pods[node] = append(s.pods[node], podView{Pod: seen, pod: pod, verdict: seen.Verdicts[s.maintenance.Name], others: othersOn(c, node, s.maintenance.Name, seen.Verdicts)})
			}
		}
	}
	return observed, true, nil
}

// othersOn returns the verdicts of the other NodeMaintenances that drain a Node.
func othersOn(c *planinput.Component, node, mine string, verdicts map[string]rules.Verdict) []rules.Verdict {
	var others []rules.Verdict
	for _, m := range c.Maintenances {
		if m.Name != mine && slices.Contains(m.Nodes, node) {
			others = append(others, verdicts[m.Name])
		}
	}
	return others
}

func (s *scope) requeueBy(t time.Time) {
	if s.requeueAt.IsZero() || t.Before(s.requeueAt) {
		s.requeueAt = t
	}
}

// applyTargets creates Evacuations for the targets on this NodeMaintenance's Nodes, and withdraws from those of other Pods. An Evacuation that
// the API server refuses does not delay the others: the status names its Pod, and settle retries after a backoff.
func (r *Reconciler) applyTargets(ctx context.Context, s *scope, targets sets.Set[types.UID]) error {
	after, err := r.scheduleReplacements(ctx, s, targets)
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(parallelWrites)
	there := sets.New[types.UID]()
	for _, node := range s.nodes {
		for _, view := range s.pods[node.Name] {
			there.Insert(view.pod.UID)
			if write := r.evacuationWrite(ctx, s, view, targets.Has(view.pod.UID), after[view.pod.UID]); write != nil {
				group.Go(write)
			}
		}
	}
	err = group.Wait()
	var retryAt time.Time
	if s.notCreated, retryAt = r.created.refusals(s.request, there.Has); len(s.notCreated) > 0 {
		s.requeueBy(retryAt)
	}
	return err
}

// evacuationWrite returns the request that the Evacuation of a Pod needs, nil if it needs none now. A Pod that is targeted must not be
// evicted before the time after.
func (r *Reconciler) evacuationWrite(ctx context.Context, s *scope, view podView, targeted bool, after time.Time) func() error {
	e := s.evacuations[view.pod.UID]
	if e == nil {
		until, awaited := r.created.awaited(s.request, view.pod.UID, s.now)
		switch {
		case !targeted:
			return nil
		case awaited:
			s.requeueBy(until)
			return nil
		case s.refused[view.pod.Spec.NodeName] != nil: // a replacement could be scheduled onto a Node that is not cordoned
			return nil
		}
		return func() error { return r.create(ctx, s, view, after) }
	}
	r.created.observed(s.request, view.pod.UID)
	instigated := evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer)
	switch {
	case targeted && !instigated && e.DeletionTimestamp.IsZero():
		r.reportInvalid(s, view.pod, nil) // its Evacuation has another instigator
		return func() error { return setInstigator(ctx, s.client, e, evacuation.WithInstigator) }
	case !targeted && instigated && !view.Planned.Finished:
		return func() error { return setInstigator(ctx, s.client, e, evacuation.WithoutInstigator) }
	}
	return nil
}

// create creates the Evacuation of a Pod, which must not be evicted before the time after. If the type of the Pod is not known yet, the
// evacuation controller resolves its evacuators.
func (r *Reconciler) create(ctx context.Context, s *scope, view podView, after time.Time) error {
	pod, policy := view.pod, s.maintenance.Spec.Evacuation
	evacuators, problems := view.Evacuators(pod, policy)
	e := evacuation.New(pod, evacuators, policy.ProgressDeadlineSeconds)
	e.Annotations = map[string]string{v1alpha1.EvacuationNodeAnnotation: pod.Spec.NodeName}
	if view.Planned.HasEvacuator {
		metav1.SetMetaDataLabel(&e.ObjectMeta, v1alpha1.StaticPodsOfLabel, v1alpha1.StaticPodsOf(pod.Spec.NodeName))
	}
	if policy.Evacuators == v1alpha1.EvacuatorsBuiltIn {
		e.Annotations[v1alpha1.EvacuatorsPolicyAnnotation] = string(policy.Evacuators)
	}
	if !after.IsZero() {
		e.Annotations[v1alpha1.EvacuateAfterAnnotation] = after.UTC().Format(time.RFC3339)
	}
	if err := s.client.Create(ctx, e); err != nil && !apierrors.IsAlreadyExists(err) {
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil // the namespace controller deletes its Pods
		}
		if !isAnswer(err) {
			return errors.Wrapf(err, "creating the Evacuation of Pod %s", klog.KObj(pod))
		}
		ctrl.LoggerFrom(ctx).Info("Failed to create Evacuation", "Pod", klog.KObj(pod), "err", err.Error())
		r.created.refuse(s.request, pod.UID, err, r.Clock.Now())
		r.Clusters.Event(s.request.Cluster, pod, corev1.EventTypeWarning, eventEvacuationRefused, progress.Describe(err))
		return nil
	}
	r.created.recordCreated(s.request, pod.UID, r.Clock.Now())
	if len(evacuators) == 0 {
		problems = nil // the evacuation controller resolves them again, and reports them
	}
	r.reportInvalid(s, pod, problems)
	ctrl.LoggerFrom(ctx).V(4).Info("Created Evacuation", "Pod", klog.KObj(pod))
	return nil
}

// reportInvalid writes events on a Pod about its evacuator annotations and drain labels that have no effect. It is called once for each
// Pod, when the Evacuation is created or gets our instigator.
func (r *Reconciler) reportInvalid(s *scope, pod *corev1.Pod, problems []evacuation.Problem) {
	for _, problem := range problems {
		r.Clusters.Event(s.request.Cluster, pod, corev1.EventTypeWarning, eventInvalidEvacuator, problem.Message)
	}
	if message := rules.UnknownDrainLabel(s.maintenance, pod.Labels); message != "" {
		r.Clusters.Event(s.request.Cluster, pod, corev1.EventTypeWarning, eventUnknownDrainLabel, message)
	}
}

// setInstigator adds or removes our instigator finalizer. It keeps the finalizers of other instigators.
func setInstigator(ctx context.Context, c client.Client, e *v1alpha1.Evacuation, change func(finalizers []string, own string) []string) error {
	changed := e.DeepCopy()
	changed.Finalizers = change(e.Finalizers, v1alpha1.NodeMaintenanceInstigatorFinalizer)
	err := c.Patch(ctx, changed, client.MergeFromWithOptions(e, client.MergeFromWithOptimisticLock{}))
	return errors.Wrapf(client.IgnoreNotFound(err), "setting the instigator of Evacuation %s", klog.KObj(e))
}

// evacuationsOn lists the Evacuations of a Node's Pods.
func evacuationsOn(ctx context.Context, reader client.Reader, node string) ([]v1alpha1.Evacuation, error) {
	list := &v1alpha1.EvacuationList{}
	err := reader.List(ctx, list, client.MatchingFields{workload.EvacuationsByNode: node})
	return list.Items, errors.Wrapf(err, "listing the Evacuations of Node %s", node)
}

// withdraw withdraws from the Evacuations of a NodeMaintenance that completes, except those of Pods that another NodeMaintenance targets:
// all NodeMaintenances share one instigator finalizer. It does not wait for Evacuations that cannot be cancelled.
func (r *Reconciler) withdraw(ctx context.Context, s *scope) (bool, error) {
	wanted := sets.New[types.UID]()
	others := planinput.ComponentWithout(s.maintenance.Name, s.drains(), s.now)
	if len(others.Maintenances) > 0 {
		observation, err := r.Clusters.Observe(ctx, s.request.Cluster, owner(s.request), sets.List(others.Nodes)...)
		if err != nil {
			return false, err
		}
		observed, known, err := r.view(ctx, s, others, observation)
		if err != nil || !known {
			return false, err
		}
		wanted = plan.Decide(observed).Targets
	}
	for _, node := range s.nodes {
		if err := withdrawAll(ctx, s, node, wanted); err != nil {
			return false, err
		}
	}
	return true, nil
}

// withdrawAll withdraws from the Evacuations of a Node's Pods, except the wanted ones.
func withdrawAll(ctx context.Context, s *scope, node *corev1.Node, wanted sets.Set[types.UID]) error {
	evacuations, err := evacuationsOn(ctx, s.client, node.Name)
	if err != nil {
		return err
	}
	for i := range evacuations {
		e := &evacuations[i]
		if wanted.Has(types.UID(e.Spec.PodRef.UID)) || !evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer) {
			continue
		}
		if err := setInstigator(ctx, s.client, e, evacuation.WithoutInstigator); err != nil {
			return err
		}
	}
	return nil
}

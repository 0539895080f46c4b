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
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/daemonset"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/staticpod"
)

// parallelWrites is the maximum number of concurrent writes of one reconciliation.
const parallelWrites = 8

// podView is a Pod with the verdict of this NodeMaintenance's drain rules.
type podView struct {
	pod       *corev1.Pod
	podType   v1alpha1.PodType // empty: not known
	verdict   rules.Verdict
	others    []rules.Verdict // verdicts of the other NodeMaintenances that drain the Node
	finished  bool
	comesBack bool
	// byAgent means that the Pod is a static Pod that the agent on the Node terminates.
	byAgent bool
}

// component contains the NodeMaintenances in stage Drain that are connected to this one, directly or indirectly, by shared Nodes.
type component struct {
	maintenances []plan.Maintenance
	matchers     map[string]*rules.Matcher
	rules        map[string][]v1alpha1.DrainRule
	nodes        sets.Set[string]
	unreachable  sets.Set[string]
}

// evacuate watches the Pods of all Nodes of the component. Once they are observed, it creates and withdraws Evacuations as the plan
// decides.
func (r *Reconciler) evacuate(ctx context.Context, s *scope) (bool, error) {
	c := r.component(s, true)
	observation, err := r.Clusters.Observe(ctx, s.request.Cluster, owner(s.request), sets.List(c.nodes)...)
	if err != nil {
		return false, err
	}
	s.ruleProblem = c.matchers[s.maintenance.Name].Problems()
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

// component returns the NodeMaintenances that must be decided together. If including is false, it omits this one, so that the decision
// contains only the targets of the others.
func (r *Reconciler) component(s *scope, including bool) *component {
	c := &component{matchers: map[string]*rules.Matcher{}, rules: map[string][]v1alpha1.DrainRule{}, nodes: sets.New[string](), unreachable: sets.New[string]()}
	draining := []*v1alpha1.NodeMaintenance{s.maintenance}
	for i := range s.others {
		if other := &s.others[i]; drains(other) {
			draining = append(draining, other)
		}
	}
	all, specs := make([]plan.Maintenance, 0, len(draining)), map[string]*v1alpha1.NodeMaintenance{}
	for _, m := range draining {
		nodes := s.nodes
		if m != s.maintenance {
			nodes = s.drainedBy[m.Name]
		}
		for _, node := range nodes {
			if rules.Unreachable(node) {
				c.unreachable.Insert(node.Name)
			}
		}
		all, specs[m.Name] = append(all, planInput(m, nodes, s.now)), m
	}
	for _, m := range plan.Component(s.maintenance.Name, all) {
		if m.Name == s.maintenance.Name && !including {
			continue
		}
		c.rules[m.Name] = rules.InEffect(&specs[m.Name].Spec)
		c.matchers[m.Name] = rules.NewMatcher(c.rules[m.Name])
		m.SkippedTypes = c.matchers[m.Name].SkippedTypes()
		c.maintenances = append(c.maintenances, m)
		c.nodes.Insert(m.Nodes...)
	}
	return c
}

func planInput(m *v1alpha1.NodeMaintenance, nodes []*corev1.Node, now time.Time) plan.Maintenance {
	planned := plan.Maintenance{
		Name:         m.Name,
		DrainStart:   now, // a drain that has not started counts as the youngest
		Created:      m.CreationTimestamp.Time,
		Plan:         m.Spec.DrainPlan,
		PlanDefaults: m.Spec.DrainPlanDefaults,
		Published:    publishedTargets(m),
	}
	if start := stageStart(m, v1alpha1.StageDrain); start != nil {
		planned.DrainStart = start.Time
	}
	for _, node := range nodes {
		planned.Nodes = append(planned.Nodes, node.Name)
	}
	return planned
}

// view describes the Pods of a component. It returns false until the Pods of all Nodes of the component are observed.
func (r *Reconciler) view(ctx context.Context, s *scope, c *component, observation workload.Observation) (plan.Observation, bool, error) {
	s.pods, s.evacuations = map[string][]podView{}, map[types.UID]*v1alpha1.Evacuation{}
	observed := plan.Observation{Maintenances: c.maintenances}
	mine := sets.New[string]()
	for _, node := range s.nodes {
		mine.Insert(node.Name)
	}
	for _, node := range sets.List(c.nodes) {
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
			seen := r.viewPod(s, c, observation, pod)
			seen.planned.HasEvacuator = byAgent(s, c, pod, seen, served)
			observed.Pods = append(observed.Pods, seen.planned)
			if mine.Has(node) {
				s.pods[node] = append(s.pods[node], podView{
					pod: pod, podType: seen.podType, verdict: seen.verdicts[s.maintenance.Name], others: c.othersOn(node, s.maintenance.Name, seen.verdicts),
					finished: seen.planned.Finished, comesBack: seen.planned.ComesBack, byAgent: seen.planned.HasEvacuator,
				})
			}
		}
	}
	return observed, true, nil
}

// othersOn returns the verdicts of the other NodeMaintenances that drain a Node.
func (c *component) othersOn(node, mine string, verdicts map[string]rules.Verdict) []rules.Verdict {
	var others []rules.Verdict
	for _, m := range c.maintenances {
		if m.Name != mine && slices.Contains(m.Nodes, node) {
			others = append(others, verdicts[m.Name])
		}
	}
	return others
}

type viewedPod struct {
	planned  plan.Pod
	podType  v1alpha1.PodType // empty: not known
	verdicts map[string]rules.Verdict
}

func (r *Reconciler) viewPod(s *scope, c *component, observation workload.Observation, pod *corev1.Pod) viewedPod {
	subject := workload.RulePod(observation, pod)
	podType := subject.Type
	overdue, overdueAt := rules.Overdue(pod, c.unreachable.Has(pod.Spec.NodeName), s.now)
	if !overdue && !overdueAt.IsZero() {
		s.requeueBy(overdueAt)
	}
	e := s.evacuations[pod.UID]
	seen := viewedPod{verdicts: map[string]rules.Verdict{}, planned: plan.Pod{
		UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName,
		Type: podType, Priority: ptr.Deref(pod.Spec.Priority, 0), Labels: pod.Labels,
		Finished:   subject.Finished || overdue,
		Evacuating: e != nil && evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer),
		ComesBack:  podType == v1alpha1.PodTypeDaemonSet && daemonset.Tolerated(pod.Spec.Tolerations),
		Verdicts:   map[string]plan.Verdict{},
	}}
	if subject.TypeKnown {
		seen.podType = podType
	}
	for name, matcher := range c.matchers {
		verdict := matcher.Decide(subject)
		seen.verdicts[name] = verdict
		seen.planned.Verdicts[name] = plan.Verdict{Behavior: verdict.Behavior, Order: verdict.Order, Undecided: verdict.Undecided != ""}
	}
	return seen
}

// byAgent reports whether the agent on the Node terminates a static Pod. An existing Evacuation decides; otherwise the drain rules do.
func byAgent(s *scope, c *component, pod *corev1.Pod, seen viewedPod, served bool) bool {
	if e := s.evacuations[pod.UID]; e != nil && len(e.Spec.Evacuators) > 0 {
		return staticpod.Evacuated(e)
	}
	if !served {
		return false
	}
	for name, verdict := range seen.verdicts {
		i := slices.IndexFunc(c.rules[name], func(rule v1alpha1.DrainRule) bool { return rule.Name == verdict.Rule })
		var by *v1alpha1.DrainRule
		if i >= 0 {
			by = &c.rules[name][i]
		}
		if verdict.Behavior == v1alpha1.DrainBehaviorDrain && staticpod.HasEvacuator(pod, seen.podType, by) {
			return true
		}
	}
	return false
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
	case !targeted && instigated && !view.finished:
		return func() error { return setInstigator(ctx, s.client, e, evacuation.WithoutInstigator) }
	}
	return nil
}

// create creates the Evacuation of a Pod, which must not be evicted before the time after. If the type of the Pod is not known yet, the
// evacuation controller resolves its evacuators.
func (r *Reconciler) create(ctx context.Context, s *scope, view podView, after time.Time) error {
	pod, policy := view.pod, s.maintenance.Spec.Evacuation
	var evacuators []v1alpha1.Evacuator
	var problems []evacuation.Problem
	if view.podType != "" {
		builtIn := evacuation.BuiltIn(pod, view.podType, policy)
		if view.byAgent {
			builtIn = staticpod.Evacuators()
		}
		evacuators, problems = evacuation.Resolve(evacuation.Subject{Annotations: pod.Annotations, BuiltIn: builtIn, Policy: policy.Evacuators})
	}
	e := evacuation.New(pod, evacuators, policy.ProgressDeadlineSeconds)
	e.Annotations = map[string]string{v1alpha1.EvacuationNodeAnnotation: pod.Spec.NodeName}
	if view.byAgent {
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
	others := r.component(s, false)
	if len(others.maintenances) > 0 {
		observation, err := r.Clusters.Observe(ctx, s.request.Cluster, owner(s.request), sets.List(others.nodes)...)
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

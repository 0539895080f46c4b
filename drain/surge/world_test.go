package surge_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	evacuations "github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

const progressDeadline = 10 * time.Minute

var begin = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// world simulates the environment of Decide: a Deployment with Pods, controllers that act like those of Kubernetes, and the
// Evacuations of Pods.
type world struct {
	deployment  *appsv1.Deployment
	autoscaler  *autoscalingv2.HorizontalPodAutoscaler
	claims      map[string]*corev1.PersistentVolumeClaim
	pods        []*pod
	evacuations map[types.UID]*evacuation
	created     int
	now         time.Time
	events      []string
	messages    []string // of the events
	refusals    map[types.UID]surge.Refusal
	reports     map[types.UID]string // the message of the last report
	// quota is how many Pods the API server allows, 0 for any number: those of this world, and of another one that shares it. Pods that
	// terminate count, too. creation is why it refuses others.
	quota      int
	sharing    *world
	terminated []time.Time // when the last container of each removed Pod ends
	creation   string
	// refused is when the API server first refused a Pod that could not be created since, and attempted the last attempt to create it.
	refused, attempted time.Time
	// full means that no Node has capacity for new Pods.
	full bool
	// copied is what the Deployment controller has copied to the ReplicaSet from the annotation of the Deployment.
	copied string
	// lags means that the watch of Evacuations delivers no report.
	lags bool
	// deadline is the progress deadline of the Evacuations.
	deadline time.Duration
	// refusing are the Pods on whose Evacuations the API server refuses reports.
	refusing map[types.UID]bool
}

type pod struct {
	corev1.Pod
	ready bool
}

// exceeded begins what the ReplicaSet controller reports of a Pod that a ResourceQuota does not allow. quotaExceeded is such a report of a
// quota that mostly others use.
const (
	exceeded      = `pods "web-abc-x" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=20, limited: `
	quotaExceeded = exceeded + "pods=20"
)

type evacuation struct {
	policy    v1alpha1.SurgePolicy
	since     time.Time // when the evacuator became active, or last reported progress
	message   string
	surged    string
	completed bool
	suspended bool
	behind    *evacuation // an earlier state, while the watch has not delivered the present one
}

// deployed returns a world with a Deployment whose replicas are available.
func deployed(replicas int32, changes ...func(*appsv1.Deployment)) *world {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "d", Generation: 1},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType}},
	}
	for _, change := range changes {
		change(d)
	}
	w := &world{
		deployment: d, evacuations: map[types.UID]*evacuation{}, refusals: map[types.UID]surge.Refusal{}, reports: map[types.UID]string{},
		now: begin, creation: quotaExceeded, deadline: progressDeadline, refusing: map[types.UID]bool{},
	}
	w.settle()
	return w
}

func maxSurge(value string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		parsed := intstr.Parse(value)
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &parsed}
	}
}

// scaledBy adds an autoscaler that keeps the current number of replicas.
func (w *world) scaledBy(lowest, highest int32) *world {
	w.autoscaler = &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "h"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			MinReplicas:    &lowest, MaxReplicas: highest,
		},
	}
	return w
}

// evacuated adds Evacuations for the n oldest Pods without one.
func (w *world) evacuated(n int, policy v1alpha1.SurgePolicy) *world {
	for _, p := range w.pods {
		if n > 0 && w.evacuations[p.UID] == nil {
			w.evacuations[p.UID] = &evacuation{policy: policy, since: w.now}
			n--
		}
	}
	return w
}

func (w *world) observed() surge.Observation {
	o := surge.Observation{Deployment: w.deployment, Claims: w.claims, Now: w.now}
	if w.autoscaler != nil {
		o.Autoscalers = append(o.Autoscalers, w.autoscaler)
	}
	var baseline *surge.Baseline
	if w.deployment != nil {
		baseline, _ = surge.BaselineOf(w.deployment)
	}
	for _, p := range w.pods {
		ref := surge.PodRef{Name: p.Name, UID: p.UID}
		e := w.evacuations[p.UID]
		if e != nil && e.behind != nil {
			e = e.behind
		}
		switch expired := e != nil && (e.completed || !w.now.Before(e.since.Add(w.deadline))); {
		case expired && surge.Marked(&p.Pod):
			o.Abandoned = append(o.Abandoned, ref)
		case e != nil && !expired:
			o.Leaving = append(o.Leaving, surge.Leaving{
				PodRef: ref, Policy: e.policy, Asked: true, Suspended: e.suspended, Owned: true, Ready: p.ready, Marked: surge.Marked(&p.Pod),
				Progress: e.since, Deadline: e.since.Add(w.deadline), RenewAt: evacuations.RenewAt(e.since, e.since.Add(w.deadline)),
				Message: e.message, Surged: e.surged,
				Recorded: w.copied,
			})
		}
		if baseline != nil && slices.Contains(baseline.Pods, ref) && surge.Marked(&p.Pod) {
			o.Marked = append(o.Marked, ref)
		}
	}
	if o.Deployment != nil && surge.AwaitsPods(o) {
		o.Unscheduled = w.read()
	}
	return o
}

// read reads the Pods that have no Node.
func (w *world) read() surge.Unscheduled {
	var pods []*corev1.Pod
	for _, p := range w.pods {
		pods = append(pods, &p.Pod)
	}
	return surge.UnscheduledIn(pods, w.now)
}

// apply performs the first writes of a decision: a controller may crash after any of them.
func (w *world) apply(d surge.Decision, writes int) {
	var refused []surge.Report
	for _, report := range d.Reports {
		if writes--; writes < 0 {
			return
		}
		if w.refusing[report.Pod] {
			refused = append(refused, report)
			continue
		}
		status := &v1alpha1.Evacuation{}
		report.Apply(status, w.now)
		e := w.evacuations[report.Pod]
		if e.behind != nil { // a conflict: the manager tries again when the watch has delivered the present state
			e.behind = nil
			return
		}
		if before := *e; w.lags {
			e.behind = &before
		}
		w.reports[report.Pod] = report.Message
		e.message, e.surged, e.completed = status.Status.Message, surge.SurgedIn(status), status.Status.ActiveEvacuatorCompleted
		if report.Refusal != "" {
			w.refusals[report.Pod] = report.Refusal
		} else if !report.Stalled {
			e.since = status.Status.EvacuationProgressTimestamp.Time
		}
	}
	if !d.IsRecorded(refused) {
		return
	}
	change := func(refs []surge.PodRef, to func(*corev1.Pod)) {
		for _, ref := range refs {
			if writes--; writes < 0 {
				return
			}
			if p := w.pod(ref.UID); p != nil {
				to(&p.Pod)
			}
		}
	}
	change(d.Mark, surge.Mark)
	if writes--; writes < 0 {
		return
	}
	if d.Deployment != nil {
		generation := w.deployment.Generation
		if *d.Deployment.Spec.Replicas != *w.deployment.Spec.Replicas {
			generation++
		}
		w.deployment = d.Deployment
		w.deployment.Generation = generation
	}
	if d.Autoscaler != nil {
		w.autoscaler = d.Autoscaler
	}
	if d.Event != nil {
		w.events, w.messages = append(w.events, d.Event.Reason), append(w.messages, d.Event.Message)
	}
	change(d.Unmark, surge.Unmark)
}

// step decides once and applies the decision.
func (w *world) step() surge.Decision {
	d := surge.Decide(w.observed())
	w.apply(d, 1<<20)
	return d
}

func (w *world) pod(uid types.UID) *pod {
	for _, p := range w.pods {
		if p.UID == uid {
			return p
		}
	}
	return nil
}

// replicate simulates the ReplicaSet controller: it creates Pods as far as the quota allows, and deletes Pods in the order of its ranking.
// The scheduler finds no Node for a Pod that is created while the cluster is full.
func (w *world) replicate() {
	lacks := func() bool { return len(w.pods) < int(*w.deployment.Spec.Replicas) }
	for retries := w.retries(); retries && lacks(); {
		w.attempted = w.now
		if w.refusesPods() {
			if w.refused.IsZero() {
				w.refused = w.now
			}
			break
		}
		w.created++
		name := fmt.Sprintf("web-%03d", w.created)
		created := &pod{Pod: corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}}}
		if w.full {
			created.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/2 nodes are available.",
				LastTransitionTime: metav1.NewTime(w.now),
			}}
		}
		w.pods = append(w.pods, created)
	}
	if !lacks() {
		w.refused = time.Time{}
	}
	for len(w.pods) > int(*w.deployment.Spec.Replicas) {
		first := slices.MinFunc(w.pods, func(a, b *pod) int {
			return cmp.Or(cmp.Compare(asInt(a.ready), asInt(b.ready)), -cmp.Compare(asInt(surge.Marked(&a.Pod)), asInt(surge.Marked(&b.Pod))),
				cmp.Compare(b.Name, a.Name))
		})
		w.remove(first.UID)
	}
}

func (w *world) remove(uid types.UID) {
	grace := time.Duration(ptr.Deref(w.deployment.Spec.Template.Spec.TerminationGracePeriodSeconds, 30)) * time.Second
	w.terminated = append(w.terminated, w.now.Add(grace))
	w.pods = slices.DeleteFunc(w.pods, func(p *pod) bool { return p.UID == uid })
	delete(w.evacuations, uid)
}

func asInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// refusesPods reports whether the quota allows no further Pod.
func (w *world) refusesPods() bool {
	used := w.used()
	if w.sharing != nil {
		used += w.sharing.used()
	}
	return w.quota > 0 && used >= w.quota
}

// used returns how many Pods count in the quota.
func (w *world) used() int {
	used := len(w.pods)
	for _, at := range w.terminated {
		used += asInt(w.now.Before(at))
	}
	return used
}

// retries reports whether the ReplicaSet controller has created Pods since the last attempt, if that was refused: when one of its Pods has
// terminated, and 5 ms after the first attempt, then after twice as long each time.
func (w *world) retries() bool {
	if w.refused.IsZero() || slices.ContainsFunc(w.terminated, func(at time.Time) bool { return at.After(w.attempted) && !at.After(w.now) }) {
		return true
	}
	next := w.refused
	for backoff := 5 * time.Millisecond; !next.After(w.attempted); backoff *= 2 {
		next = next.Add(backoff)
	}
	return !next.After(w.now)
}

// schedule simulates an autoscaler of the cluster, which adds Nodes.
func (w *world) schedule() {
	w.full = false
	for _, p := range w.pods {
		p.Status.Conditions = nil
	}
}

// start makes up to n Pods ready that have a Node.
func (w *world) start(n int) {
	for _, p := range w.pods {
		if !p.ready && n > 0 && len(p.Status.Conditions) == 0 {
			p.ready = true
			n--
		}
	}
}

// observe simulates the Deployment controller: it updates the status.
func (w *world) observe() {
	w.deployment = w.deployment.DeepCopy()
	w.copied = cmp.Or(w.deployment.Annotations[v1alpha1.SurgeAnnotation], w.copied)
	total := int32(len(w.pods))
	failing := w.deployment.Status.Conditions
	w.deployment.Status = appsv1.DeploymentStatus{
		ObservedGeneration: w.deployment.Generation, Replicas: total, UpdatedReplicas: total, AvailableReplicas: int32(w.available()),
	}
	if total < *w.deployment.Spec.Replicas && !w.refused.IsZero() {
		if len(failing) == 0 {
			failing = []appsv1.DeploymentCondition{replicaFailure("FailedCreate", w.creation, w.now)}
		}
		w.deployment.Status.Conditions = failing
	}
}

func replicaFailure(reason, message string, since time.Time) appsv1.DeploymentCondition {
	return appsv1.DeploymentCondition{
		Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(since),
	}
}

func (w *world) available() (n int) {
	for _, p := range w.pods {
		n += asInt(p.ready)
	}
	return n
}

// evict removes the Pods whose evacuator has completed or missed its deadline. It returns whether there were any.
func (w *world) evict() (evicted bool) {
	for uid, e := range w.evacuations {
		if e.completed || !w.now.Before(e.since.Add(w.deadline)) {
			w.remove(uid)
			evicted = true
		}
	}
	return evicted
}

// settle runs all other controllers until they have nothing to do.
func (w *world) settle() {
	w.autoscale(0)
	w.replicate()
	w.start(len(w.pods))
	w.observe()
}

// deliver has the watch of Evacuations deliver all reports.
func (w *world) deliver() {
	w.lags = false
	for _, e := range w.evacuations {
		e.behind = nil
	}
}

// run decides until nothing changes any more, and returns the decisions that changed something.
func (w *world) run() (decisions []surge.Decision) {
	w.deliver()
	for range 1000 {
		d := w.step()
		w.settle()
		evicted := w.evict()
		if evicted || d.Deployment != nil || d.Autoscaler != nil || len(d.Mark)+len(d.Unmark)+len(d.Reports) > 0 {
			decisions = append(decisions, d)
			continue
		}
		if d.RequeueAt.IsZero() {
			return decisions
		}
		w.now = d.RequeueAt
	}
	return decisions
}

// returning runs until the autoscaler is expected to scale back.
func (w *world) returning() *world {
	for w.baseline() == nil || w.baseline().Returning == nil || w.raisedTo(w.baseline().Surged) {
		w.step()
		w.settle()
	}
	return w
}

// marked returns how many Pods have the deletion cost of a surge.
func (w *world) marked() (n int) {
	for _, p := range w.pods {
		n += asInt(surge.Marked(&p.Pod))
	}
	return n
}

func (w *world) baseline() *surge.Baseline {
	b, _ := surge.BaselineOf(w.deployment)
	return b
}

// raisedTo reports whether the autoscaler has the note that a surge has raised its minReplicas to a number.
func (w *world) raisedTo(n int32) bool {
	return strings.Contains(w.autoscaler.Annotations[v1alpha1.SurgeAnnotation], fmt.Sprintf(`"raised":%d}`, n))
}

// baselineOf returns the Pods of the baseline of a Deployment.
func (w *world) baselineOf(d *appsv1.Deployment) (pods []types.UID) {
	if d == nil {
		return nil
	}
	if b, _ := surge.BaselineOf(d); b != nil {
		for _, ref := range b.Pods {
			pods = append(pods, ref.UID)
		}
	}
	return pods
}

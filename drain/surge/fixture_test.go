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

// fixture simulates the environment of Decide: a Deployment with Pods, controllers that act like those of Kubernetes, and the
// Evacuations of Pods.
type fixture struct {
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
	// quota is how many Pods the API server allows, 0 for any number: those of this fixture, and of another one that shares it. Pods that
	// terminate count, too. creation is why it refuses others.
	quota      int
	sharing    *fixture
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

// deployed returns a fixture with a Deployment whose replicas are available.
func deployed(replicas int32, changes ...func(*appsv1.Deployment)) *fixture {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "d", Generation: 1},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType}},
	}
	for _, change := range changes {
		change(d)
	}
	f := &fixture{
		deployment: d, evacuations: map[types.UID]*evacuation{}, refusals: map[types.UID]surge.Refusal{}, reports: map[types.UID]string{},
		now: begin, creation: quotaExceeded, deadline: progressDeadline, refusing: map[types.UID]bool{},
	}
	f.settle()
	return f
}

func maxSurge(value string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		parsed := intstr.Parse(value)
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &parsed}
	}
}

// scaledBy adds an autoscaler that keeps the current number of replicas.
func (f *fixture) scaledBy(lowest, highest int32) *fixture {
	f.autoscaler = &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "h"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			MinReplicas:    &lowest, MaxReplicas: highest,
		},
	}
	return f
}

// evacuated adds Evacuations for the n oldest Pods without one.
func (f *fixture) evacuated(n int, policy v1alpha1.SurgePolicy) *fixture {
	for _, p := range f.pods {
		if n > 0 && f.evacuations[p.UID] == nil {
			f.evacuations[p.UID] = &evacuation{policy: policy, since: f.now}
			n--
		}
	}
	return f
}

func (f *fixture) observed() surge.Observation {
	o := surge.Observation{Deployment: f.deployment, Claims: f.claims, Now: f.now}
	if f.autoscaler != nil {
		o.Autoscalers = append(o.Autoscalers, f.autoscaler)
	}
	var baseline *surge.Baseline
	if f.deployment != nil {
		baseline, _ = surge.BaselineOf(f.deployment)
	}
	for _, p := range f.pods {
		ref := surge.PodRef{Name: p.Name, UID: p.UID}
		e := f.evacuations[p.UID]
		if e != nil && e.behind != nil {
			e = e.behind
		}
		switch expired := e != nil && (e.completed || !f.now.Before(e.since.Add(f.deadline))); {
		case expired && surge.Marked(&p.Pod):
			o.Abandoned = append(o.Abandoned, ref)
		case e != nil && !expired:
			o.Leaving = append(o.Leaving, surge.Leaving{
				PodRef: ref, Policy: e.policy, Asked: true, Suspended: e.suspended, Owned: true, Ready: p.ready, Marked: surge.Marked(&p.Pod),
				Progress: e.since, Deadline: e.since.Add(f.deadline), RenewAt: evacuations.RenewAt(e.since, e.since.Add(f.deadline)),
				Message: e.message, Surged: e.surged,
				Recorded: f.copied,
			})
		}
		if baseline != nil && slices.Contains(baseline.Pods, ref) && surge.Marked(&p.Pod) {
			o.Marked = append(o.Marked, ref)
		}
	}
	if o.Deployment != nil && surge.AwaitsPods(o) {
		o.Unscheduled = f.read()
	}
	return o
}

// read reads the Pods that have no Node.
func (f *fixture) read() surge.Unscheduled {
	var pods []*corev1.Pod
	for _, p := range f.pods {
		pods = append(pods, &p.Pod)
	}
	return surge.UnscheduledIn(pods, f.now)
}

// apply performs the first writes of a decision: a controller may crash after any of them.
func (f *fixture) apply(d surge.Decision, writes int) {
	var refused []surge.Report
	for _, report := range d.Reports {
		if writes--; writes < 0 {
			return
		}
		if f.refusing[report.Pod] {
			refused = append(refused, report)
			continue
		}
		status := &v1alpha1.Evacuation{}
		report.Apply(status, f.now)
		e := f.evacuations[report.Pod]
		if e.behind != nil { // a conflict: the manager tries again when the watch has delivered the present state
			e.behind = nil
			return
		}
		if before := *e; f.lags {
			e.behind = &before
		}
		f.reports[report.Pod] = report.Message
		e.message, e.surged, e.completed = status.Status.Message, surge.SurgedIn(status), status.Status.ActiveEvacuatorCompleted
		if report.Refusal != "" {
			f.refusals[report.Pod] = report.Refusal
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
			if p := f.pod(ref.UID); p != nil {
				to(&p.Pod)
			}
		}
	}
	change(d.Mark, surge.Mark)
	if writes--; writes < 0 {
		return
	}
	if d.Deployment != nil {
		generation := f.deployment.Generation
		if *d.Deployment.Spec.Replicas != *f.deployment.Spec.Replicas {
			generation++
		}
		f.deployment = d.Deployment
		f.deployment.Generation = generation
	}
	if d.Autoscaler != nil {
		f.autoscaler = d.Autoscaler
	}
	if d.Event != nil {
		f.events, f.messages = append(f.events, d.Event.Reason), append(f.messages, d.Event.Message)
	}
	change(d.Unmark, surge.Unmark)
}

// step decides once and applies the decision.
func (f *fixture) step() surge.Decision {
	d := surge.Decide(f.observed())
	f.apply(d, 1<<20)
	return d
}

func (f *fixture) pod(uid types.UID) *pod {
	for _, p := range f.pods {
		if p.UID == uid {
			return p
		}
	}
	return nil
}

// replicate simulates the ReplicaSet controller: it creates Pods as far as the quota allows, and deletes Pods in the order of its ranking.
// The scheduler finds no Node for a Pod that is created while the cluster is full.
func (f *fixture) replicate() {
	lacks := func() bool { return len(f.pods) < int(*f.deployment.Spec.Replicas) }
	for retries := f.retries(); retries && lacks(); {
		f.attempted = f.now
		if f.refusesPods() {
			if f.refused.IsZero() {
				f.refused = f.now
			}
			break
		}
		f.created++
		name := fmt.Sprintf("web-%03d", f.created)
		created := &pod{Pod: corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}}}
		if f.full {
			created.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/2 nodes are available.",
				LastTransitionTime: metav1.NewTime(f.now),
			}}
		}
		f.pods = append(f.pods, created)
	}
	if !lacks() {
		f.refused = time.Time{}
	}
	for len(f.pods) > int(*f.deployment.Spec.Replicas) {
		first := slices.MinFunc(f.pods, func(a, b *pod) int {
			return cmp.Or(cmp.Compare(asInt(a.ready), asInt(b.ready)), -cmp.Compare(asInt(surge.Marked(&a.Pod)), asInt(surge.Marked(&b.Pod))),
				cmp.Compare(b.Name, a.Name))
		})
		f.remove(first.UID)
	}
}

func (f *fixture) remove(uid types.UID) {
	grace := time.Duration(ptr.Deref(f.deployment.Spec.Template.Spec.TerminationGracePeriodSeconds, 30)) * time.Second
	f.terminated = append(f.terminated, f.now.Add(grace))
	f.pods = slices.DeleteFunc(f.pods, func(p *pod) bool { return p.UID == uid })
	delete(f.evacuations, uid)
}

func asInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// refusesPods reports whether the quota allows no further Pod.
func (f *fixture) refusesPods() bool {
	used := f.used()
	if f.sharing != nil {
		used += f.sharing.used()
	}
	return f.quota > 0 && used >= f.quota
}

// used returns how many Pods count in the quota.
func (f *fixture) used() int {
	used := len(f.pods)
	for _, at := range f.terminated {
		used += asInt(f.now.Before(at))
	}
	return used
}

// retries reports whether the ReplicaSet controller has created Pods since the last attempt, if that was refused: when one of its Pods has
// terminated, and 5 ms after the first attempt, then after twice as long each time.
func (f *fixture) retries() bool {
	if f.refused.IsZero() || slices.ContainsFunc(f.terminated, func(at time.Time) bool { return at.After(f.attempted) && !at.After(f.now) }) {
		return true
	}
	next := f.refused
	for backoff := 5 * time.Millisecond; !next.After(f.attempted); backoff *= 2 {
		next = next.Add(backoff)
	}
	return !next.After(f.now)
}

// schedule simulates an autoscaler of the cluster, which adds Nodes.
func (f *fixture) schedule() {
	f.full = false
	for _, p := range f.pods {
		p.Status.Conditions = nil
	}
}

// start makes up to n Pods ready that have a Node.
func (f *fixture) start(n int) {
	for _, p := range f.pods {
		if !p.ready && n > 0 && len(p.Status.Conditions) == 0 {
			p.ready = true
			n--
		}
	}
}

// observe simulates the Deployment controller: it updates the status.
func (f *fixture) observe() {
	f.deployment = f.deployment.DeepCopy()
	f.copied = cmp.Or(f.deployment.Annotations[v1alpha1.SurgeAnnotation], f.copied)
	total := int32(len(f.pods))
	failing := f.deployment.Status.Conditions
	f.deployment.Status = appsv1.DeploymentStatus{
		ObservedGeneration: f.deployment.Generation, Replicas: total, UpdatedReplicas: total, AvailableReplicas: int32(f.available()),
	}
	if total < *f.deployment.Spec.Replicas && !f.refused.IsZero() {
		if len(failing) == 0 {
			failing = []appsv1.DeploymentCondition{replicaFailure("FailedCreate", f.creation, f.now)}
		}
		f.deployment.Status.Conditions = failing
	}
}

func replicaFailure(reason, message string, since time.Time) appsv1.DeploymentCondition {
	return appsv1.DeploymentCondition{
		Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(since),
	}
}

func (f *fixture) available() (n int) {
	for _, p := range f.pods {
		n += asInt(p.ready)
	}
	return n
}

// evict removes the Pods whose evacuator has completed or missed its deadline. It returns whether there were any.
func (f *fixture) evict() (evicted bool) {
	for uid, e := range f.evacuations {
		if e.completed || !f.now.Before(e.since.Add(f.deadline)) {
			f.remove(uid)
			evicted = true
		}
	}
	return evicted
}

// settle runs all other controllers until they have nothing to do.
func (f *fixture) settle() {
	f.autoscale(0)
	f.replicate()
	f.start(len(f.pods))
	f.observe()
}

// deliver has the watch of Evacuations deliver all reports.
func (f *fixture) deliver() {
	f.lags = false
	for _, e := range f.evacuations {
		e.behind = nil
	}
}

// run decides until nothing changes any more, and returns the decisions that changed something.
func (f *fixture) run() (decisions []surge.Decision) {
	f.deliver()
	for range 1000 {
		d := f.step()
		f.settle()
		evicted := f.evict()
		if evicted || d.Deployment != nil || d.Autoscaler != nil || len(d.Mark)+len(d.Unmark)+len(d.Reports) > 0 {
			decisions = append(decisions, d)
			continue
		}
		if d.RequeueAt.IsZero() {
			return decisions
		}
		f.now = d.RequeueAt
	}
	return decisions
}

// returning runs until the autoscaler is expected to scale back.
func (f *fixture) returning() *fixture {
	for f.baseline() == nil || f.baseline().Returning == nil || f.raisedTo(f.baseline().Surged) {
		f.step()
		f.settle()
	}
	return f
}

// marked returns how many Pods have the deletion cost of a surge.
func (f *fixture) marked() (n int) {
	for _, p := range f.pods {
		n += asInt(surge.Marked(&p.Pod))
	}
	return n
}

func (f *fixture) baseline() *surge.Baseline {
	b, _ := surge.BaselineOf(f.deployment)
	return b
}

// raisedTo reports whether the autoscaler has the note that a surge has raised its minReplicas to a number.
func (f *fixture) raisedTo(n int32) bool {
	return strings.Contains(f.autoscaler.Annotations[v1alpha1.SurgeAnnotation], fmt.Sprintf(`"raised":%d}`, n))
}

// baselineOf returns the Pods of the baseline of a Deployment.
func (f *fixture) baselineOf(d *appsv1.Deployment) (pods []types.UID) {
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

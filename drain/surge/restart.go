package surge

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// A restart replaces the Pods of a Deployment by a rollout and keeps the number of replicas. It is reported to the Pods, and then one write
// begins it: it sets the annotation RestartedAt in the Pod template and the label RestartedAt of the Deployment, both to the time of the
// report. The Deployment controller does the rest.
//
//   - A Pod whose annotation differs from that of the template belongs to a rollout in progress, which deletes the Pod.
//   - The label says when the Deployment was restarted last, also if another actor has restored the template. The Deployment is not
//     restarted again while a drain continues that had begun by then. So a new Pod on a Node whose drain begins later waits until these
//     drains have ended.
//
// A restart is not reverted: that would be another rollout. maxUnavailable 0 keeps the present Pods while the new ones do not become
// available, and if they do later, the rollout continues.

// DrainsOf returns when the drains of the Node of a Pod have begun that have not ended, or with nil those of all Nodes. It leaves out those
// that have not recorded yet when they have begun.
func DrainsOf(pod *corev1.Pod, maintenances []v1alpha1.NodeMaintenance) []time.Time {
	var begun []time.Time
	for i := range maintenances {
		m := &maintenances[i]
		start := m.StageStart(v1alpha1.StageDrain)
		if start != nil && m.Drains() && !m.IsDrained() && (pod == nil || concerns(m, pod.Spec.NodeName)) {
			begun = append(begun, *start)
		}
	}
	return begun
}

// restart is a Deployment that is restarted for Pods that wait.
type restart struct {
	Observation
	reports []Report
	// requeueAt is the earliest time at which one of the Pods needs another decision.
	requeueAt time.Time
}

// beginRestart restarts the Deployment for the Pods that wait, unless a rollout replaces them.
func beginRestart(o Observation, waiting []Leaving, reports []Report) Decision {
	r := &restart{Observation: o, reports: reports}
	d := Decision{}
	if current := r.present(waiting); len(current) > 0 {
		d = r.begin(current)
	}
	d.Reports, d.RequeueAt = r.reports, r.requeueAt
	return d
}

// present returns the Pods for which the Deployment may be restarted. It reports about those that a rollout replaces, that must wait or are
// refused.
func (r *restart) present(waiting []Leaving) (present []Leaving) {
	rollout := "Waiting for the rollout of Deployment " + nameOf(r.Deployment) + " to end."
	failed, why := r.failure()
	for _, pod := range waiting {
		replaced, late := pod.Restarted != restartedAt(r.Deployment), pod.late(r.Now)
		rolls := replaced || rollsOut(r.Deployment)
		switch {
		case !replaced && r.wasRestarted(pod): // its template is the present one again
			r.refuse(pod, RestartReverted, anotherActor+" changed the template of Deployment "+nameOf(r.Deployment)+" during the restart, or it could not be written")
		case rolls && failed != "":
			r.refuse(pod, failed, why)
		case rolls && late:
			r.refuse(pod, NotAvailable, "The rollout of Deployment "+nameOf(r.Deployment)+" has not replaced the Pod in time")
		case replaced:
			r.await(pod, Report{Surged: EventRestarted, Message: r.restartingMessage()})
		case rolls:
			r.await(pod, Report{Message: rollout})
		case r.repeats(pod, late):
			r.refuse(pod, AlreadyRestarted, "Deployment "+nameOf(r.Deployment)+" was restarted before, and drains that had begun by then continue")
		case r.continues(r.Drains):
			message := "Deployment " + nameOf(r.Deployment) + " was restarted before: waiting until drains that had begun by then have ended."
			r.await(pod, Report{Message: message, Stalled: true})
		default:
			present = append(present, pod)
		}
	}
	return present
}

// begin restarts the Deployment, or refuses that for these Pods.
func (r *restart) begin(pods []Leaving) Decision {
	refusal, why := ineligible(r.Observation)
	if refusal == "" {
		refusal, why = interrupts(r.Deployment)
	}
	switch {
	case refusal != "":
		r.reports = append(r.reports, refuseAll(pods, refusal, why)...)
		return Decision{}
	case len(r.held) > 0: // decideUnheld requeues after HeldInterval
		r.reports = append(r.reports, awaitHeld(r.Observation, r.held, pods)...)
		return Decision{}
	case !settled(r.Deployment):
		r.requeue(r.Now.Add(settleInterval))
		return Decision{}
	}
	if why := lacking(r.Deployment); why != "" {
		more, requeueAt := awaitAvailable(r.Observation, pods, why)
		r.reports = append(r.reports, more...)
		if !requeueAt.IsZero() {
			r.requeue(requeueAt)
		}
		return Decision{}
	}
	r.requeue(r.Now.Add(settleInterval))
	reported, unreported := partition(pods, func(pod Leaving) bool { return pod.Surged == EventRestarted })
	for _, pod := range unreported { // before the write, so that it is known if another actor restores everything at once
		r.await(pod, Report{Surged: EventRestarted, Message: r.restartingMessage()})
	}
	if len(reported) == 0 {
		return Decision{}
	}
	last := slices.MaxFunc(reported, func(a, b Leaving) int { return a.Progress.Compare(b.Progress) }).Progress
	if len(unreported) > 0 { // their reports precede the write, or the API server refuses them
		last = r.Now
	}
	d, at := r.Deployment.DeepCopy(), strconv.FormatInt(last.Unix(), 10) // so that a second write begins no other rollout
	restarted := labels.Set{v1alpha1.RestartedAt: at}
	d.Spec.Template.Annotations, d.Labels = labels.Merge(d.Spec.Template.Annotations, restarted), labels.Merge(d.Labels, restarted)
	return Decision{Deployment: d, Event: &Event{Reason: EventRestarted, Message: r.restartingMessage()}, Serves: pods}
}

func (r *restart) refuse(pod Leaving, refusal Refusal, why string) {
	r.reports = append(r.reports, refuse(pod, refusal, why))
}

// await reports what a Pod waits for, and again after some of its progress deadline if the rollout has made progress since.
func (r *restart) await(pod Leaving, report Report) {
	if pod.Message != report.Message || pod.Surged != report.Surged || !report.Stalled && r.progressed().After(pod.RenewAt) {
		report.Pod = pod.UID
		r.reports = append(r.reports, report)
	}
	r.requeue(pod.Deadline.Add(-lastMargin))
	r.requeue(r.Now.Add(ReadInterval))
}

func (r *restart) requeue(at time.Time) {
	if r.requeueAt.IsZero() || at.Before(r.requeueAt) {
		r.requeueAt = at
	}
}

// wasRestarted reports whether the Deployment was restarted for a Pod: the restart was reported to the Pod, and the label says that it was
// written, or the writes have had enough time. Another actor may restore the label, too.
func (r *restart) wasRestarted(pod Leaving) bool {
	return pod.Surged == EventRestarted && (r.continues(pod.Drains) || !r.Now.Before(pod.Progress.Add(restartTime)))
}

// restartTime is for how long a restart that was reported is written again, or minReplicas of an autoscaler. A write may fail because the
// object has changed, or wait for another leader.
const restartTime = time.Minute

func (r *restart) restartingMessage() string {
	return fmt.Sprintf("Restarting Deployment %s: a rollout replaces all of its Pods (%s).", nameOf(r.Deployment), text.Count(replicas(r.Deployment), "replica"))
}

// restartedAt returns the annotation in the Pod template.
func restartedAt(d *appsv1.Deployment) string {
	return d.Spec.Template.Annotations[v1alpha1.RestartedAt]
}

// continues reports whether one of the drains had begun when the Deployment was restarted last.
func (r *restart) continues(begun []time.Time) bool {
	at, err := strconv.ParseInt(r.Deployment.Labels[v1alpha1.RestartedAt], 10, 64)
	return err == nil && slices.ContainsFunc(begun, func(start time.Time) bool { return start.Unix() <= at })
}

// repeats reports whether the drain of the Pod had begun when the Deployment was restarted last, or waits for one that had too long.
func (r *restart) repeats(pod Leaving, late bool) bool {
	return r.continues(pod.Drains) || late && r.continues(r.Drains)
}

// rollsOut reports whether a rollout of the Deployment is in progress.
func rollsOut(d *appsv1.Deployment) bool {
	return d.Status.ObservedGeneration >= d.Generation && d.Status.Replicas > d.Status.UpdatedReplicas
}

// condition returns a condition of the Deployment, nil if it has none of this type or its controller has not observed the last change.
func (r *restart) condition(conditionType appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	at := slices.IndexFunc(r.Deployment.Status.Conditions, func(c appsv1.DeploymentCondition) bool { return c.Type == conditionType })
	if at < 0 || r.Deployment.Status.ObservedGeneration < r.Deployment.Generation {
		return nil
	}
	return &r.Deployment.Status.Conditions[at]
}

// progressed returns when the rollout made progress last, zero if that is not known.
func (r *restart) progressed() time.Time {
	if c := r.condition(appsv1.DeploymentProgressing); c != nil && !c.LastUpdateTime.After(r.Now) {
		return c.LastUpdateTime.Time
	}
	return time.Time{}
}

// failure returns why a rollout in progress does not continue, as far as is known.
func (r *restart) failure() (Refusal, string) {
	needed := replicas(r.Deployment)
	if createsFirst(r.Deployment) {
		needed++
	}
	if failed := creationFailure(r.Deployment); failed != nil && creationTime(r.Deployment, failed.Message, needed) == 0 {
		return ReplicaFailure, "A new Pod of Deployment " + nameOf(r.Deployment) + " cannot be created: " + oneLine(failed.Message)
	}
	if c := r.condition(appsv1.DeploymentProgressing); c != nil && c.Status == corev1.ConditionFalse {
		return NotAvailable, "The rollout of Deployment " + nameOf(r.Deployment) + " makes no progress: " + oneLine(c.Message)
	}
	return "", ""
}

// interrupts returns why a rollout would not keep all replicas available, or would be reverted.
func interrupts(d *appsv1.Deployment) (Refusal, string) {
	if owner := metav1.GetControllerOfNoCopy(d); owner != nil {
		return Managed, "Deployment " + nameOf(d) + " is controlled by " + owner.Kind + " " + owner.Name + ", which would revert a restart"
	}
	if !createsFirst(d) {
		return Interrupting, "Deployment " + nameOf(d) + " is not restarted: that requires a maxUnavailable of 0 Pods and a maxSurge of at least 1"
	}
	return "", ""
}

// createsFirst reports whether a rollout creates an available Pod before it deletes one.
func createsFirst(d *appsv1.Deployment) bool {
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return false
	}
	var strategy appsv1.RollingUpdateDeployment
	if d.Spec.Strategy.RollingUpdate != nil {
		strategy = *d.Spec.Strategy.RollingUpdate
	}
	surge, surgeErr := scaled(strategy.MaxSurge, d, true)
	unavailable, unavailableErr := scaled(strategy.MaxUnavailable, d, false)
	return surgeErr == nil && unavailableErr == nil && surge >= 1 && unavailable <= 0
}

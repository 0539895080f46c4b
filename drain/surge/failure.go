package surge

import (
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

const (
	// reportAfter is how long a surge waits before it reports that a new Pod cannot run: an autoscaler of the cluster may be adding a Node. It is
	// also the interval at which new Pods are read.
	reportAfter = 30 * time.Second
	// defaultProgressDeadline is the default of progressDeadlineSeconds of Deployments.
	defaultProgressDeadline = 10 * time.Minute
)

// failure is why a new Pod of a surge cannot run.
type failure struct {
	refusal Refusal
	why     string
	// final means that it ends the surge at once.
	final bool
	// since is when the controllers of the workload cluster observed it first, by their clocks.
	since time.Time
}

// failure returns why a new Pod cannot run, nil if nothing is known about that.
func (s *surging) failure() *failure {
	if failed := creationFailure(s.Deployment); failed != nil {
		return &failure{
			refusal: ReplicaFailure, why: "A new Pod of Deployment " + s.name() + " cannot be created: " + oneLine(failed.Message),
			final: isRefusal(failed.Message), since: failed.LastTransitionTime.Time,
		}
	}
	var first *failure
	for _, pod := range s.Unscheduled {
		if condition := unschedulable(pod); condition != nil && (first == nil || condition.LastTransitionTime.Time.Before(first.since)) {
			first = &failure{
				refusal: Unschedulable, why: "New Pod " + pod.Name + " of Deployment " + s.name() + " is unschedulable: " + oneLine(condition.Message),
				since: condition.LastTransitionTime.Time,
			}
		}
	}
	return first
}

// oneLine fits the message of another controller into a message of a surge.
func oneLine(message string) string {
	return text.Cut(strings.TrimSuffix(strings.Join(strings.Fields(text.Plain(message)), " "), "."), text.MaxMessage/2)
}

// creationFailure returns the condition of a Deployment that says that its ReplicaSet cannot create a Pod, or nil.
func creationFailure(d *appsv1.Deployment) *appsv1.DeploymentCondition {
	for i := range d.Status.Conditions {
		c := &d.Status.Conditions[i]
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue && c.Reason == failedCreate {
			return c
		}
	}
	return nil
}

// failedCreate is the reason of the condition ReplicaFailure while Pods cannot be created. Another reason is that they cannot be deleted.
const failedCreate = "FailedCreate"

// refusals are parts of messages of the API server about a request that it refuses, because of a policy or a ResourceQuota for example. A surge does
// not wait for a quota that is full only until other Pods have terminated. With other messages, such as "Internal error occurred: failed calling webhook", it may accept the next request.
var refusals = []string{" is forbidden: ", " denied the request", " is invalid: "}

func isRefusal(message string) bool {
	return slices.ContainsFunc(refusals, func(part string) bool { return strings.Contains(message, part) })
}

// unschedulable returns the condition of a Pod that says that the scheduler has found no Node for it, or nil.
func unschedulable(pod *corev1.Pod) *corev1.PodCondition {
	if pod.DeletionTimestamp != nil || pod.Spec.NodeName != "" {
		return nil
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return c
		}
	}
	return nil
}

// AwaitsPods reports whether Observation.Unscheduled matters: the surge has waited for its new Pods for some time.
func AwaitsPods(o Observation) bool {
	b, err := BaselineOf(o.Deployment)
	if b == nil || err != nil || b.Returning != nil {
		return false
	}
	s := &surging{Observation: o, b: b}
	started := s.started()
	return !s.available() && !started.IsZero() && !o.Now.Before(started.Add(reportAfter))
}

// started returns when the last report of progress of the Pods of this round was written: when the Deployment was scaled up. It is zero if no Pod
// waits any more.
func (s *surging) started() time.Time {
	var started time.Time
	for _, pod := range s.Leaving {
		if s.b.includes(pod.UID) && pod.Progress.After(started) {
			started = pod.Progress
		}
	}
	return started
}

// await waits until all replicas are available. It ends the surge if a new Pod is refused, or cannot run for as long as the owner of the Deployment
// gives to its rollouts: progressDeadlineSeconds of the Deployment. The pods are those of this round that still wait.
func (s *surging) await(way way, pods []Leaving, late []Report) Decision {
	d := Decision{Reports: late, RequeueAt: firstDeadline(pods)}
	if at := s.Now.Add(reportAfter); at.Before(d.RequeueAt) {
		d.RequeueAt = at
	}
	message, failure := s.scalingMessage(), s.failure()
	if failure != nil {
		since := s.started()
		if failure.since.After(since) { // the clocks of the clusters may differ
			since = failure.since
		}
		switch waited := s.Now.Sub(since); {
		case failure.final || waited >= progressDeadline(s.Deployment):
			return s.cancel(way, append(late, s.refuseRest(late, *failure)...))
		case waited >= reportAfter:
			message += " " + failure.why + "."
		}
	}
	for _, pod := range pods {
		if pod.Message != message {
			d.Reports = append(d.Reports, Report{Pod: pod.UID, Message: message, Stalled: true})
		}
	}
	return d
}

// refuseRest refuses the surge for all Pods that are not in reports, also for those that wait for a later round: its Pods could not run either.
func (s *surging) refuseRest(reports []Report, f failure) []Report {
	_, rest := partition(s.Leaving, func(pod Leaving) bool {
		return slices.ContainsFunc(reports, func(r Report) bool { return r.Pod == pod.UID })
	})
	return refuseAll(rest, f.refusal, f.why)
}

func progressDeadline(d *appsv1.Deployment) time.Duration {
	if d.Spec.ProgressDeadlineSeconds == nil {
		return defaultProgressDeadline
	}
	return time.Duration(*d.Spec.ProgressDeadlineSeconds) * time.Second
}

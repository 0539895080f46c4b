package surge

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

const (
	// reportAfter is how long a surge waits before it reports that a new Pod cannot run: an autoscaler of the cluster may be adding a Node.
	reportAfter = 30 * time.Second
	// ReadInterval is the interval at which new Pods are read.
	ReadInterval = reportAfter
	// quotaTime is how long a ResourceQuota must refuse a new Pod to end the surge: Pods that terminate count in it, and those of other
	// surges. The ReplicaSet controller doubles the time between its attempts, so it makes them about 41 s, 82 s and 164 s after the first
	// one. It also makes one whenever a Pod of the same ReplicaSet has terminated, see terminationMargin.
	quotaTime = 3 * time.Minute
	// terminationMargin is how long after their grace period Pods of the Deployment may count in a quota.
	terminationMargin = time.Minute
	// defaultProgressDeadline is the default of progressDeadlineSeconds of Deployments.
	defaultProgressDeadline = 10 * time.Minute
)

// failure is why a new Pod of a surge cannot run.
type failure struct {
	refusal Refusal
	// why is the message, and about its beginning. If only the rest of the message changes, the failure is not reported again.
	why, about string
	// lasts is how long the failure must last to end the surge, 0 if it ends it at once.
	lasts time.Duration
	// since is when the controllers of the workload cluster observed it first, by their clocks, and observed when it was observed last.
	since, observed time.Time
}

// failure returns why a new Pod cannot run, nil if nothing is known about that.
func (s *surging) failure() *failure {
	if failed := creationFailure(s.Deployment); failed != nil {
		why := "A new Pod of Deployment " + s.name() + " cannot be created: " + oneLine(failed.Message)
		return &failure{
			refusal: ReplicaFailure, why: why, about: why, lasts: creationTime(s.Deployment, failed.Message, s.needed()),
			since: failed.LastTransitionTime.Time, observed: s.Now,
		}
	}
	u := s.Unscheduled
	if u.Pod == "" || u.ReadAt.Before(s.started()) { // read during an earlier round
		return nil
	}
	about := "New Pod " + u.Pod + " of Deployment " + s.name() + " is unschedulable"
	return &failure{
		refusal: Unschedulable, why: about + ": " + u.Message, about: about, lasts: progressDeadline(s.Deployment), since: u.Since, observed: u.ReadAt,
	}
}

// Unscheduled is what was read of the Pods of a Deployment that have no Node.
type Unscheduled struct {
	// Pod is the name of the one that is unschedulable for the longest time, "" if there is none.
	Pod string
	// Message is why the Pod is unschedulable, and Since the time from which it has been.
	Message string
	Since   time.Time
	// ReadAt is when they were read, zero if they were not.
	ReadAt time.Time
}

// UnscheduledIn returns the longest unschedulable of the Pods, which were read at a time.
func UnscheduledIn(pods []*corev1.Pod, readAt time.Time) Unscheduled {
	first := Unscheduled{ReadAt: readAt}
	for _, pod := range pods {
		c := rules.Unschedulable(pod)
		if c != nil && (first.Pod == "" || c.LastTransitionTime.Time.Before(first.Since)) {
			first.Pod, first.Message, first.Since = pod.Name, oneLine(c.Message), c.LastTransitionTime.Time
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

// passing are parts of messages of the API server about a Pod that it refuses, and may allow soon: when other Pods have terminated, when
// the status of a new ResourceQuota is known, when the API server has started.
var passing = []string{"exceeded quota: ", "status unknown for quota: ", "not yet ready to handle request"}

// refusals are parts of messages of the API server about a request that it refuses, because of a policy for example. It does the same when
// the request is repeated. With other messages, such as "Internal error occurred: failed calling webhook", it may accept the next request.
var refusals = []string{" is forbidden: ", " denied the request", " is invalid: "}

// podLimit matches the number of Pods in a message about a ResourceQuota that limits it.
var podLimit = regexp.MustCompile(`exceeded quota: .*, limited: (?:.*,)?(?:count/)?pods=(\d+)(?:,|$)`)

// creationTime returns how long the creation of new Pods must fail, with this message, to end the surge. A quota that allows fewer Pods
// than the Deployment alone needs ends it at once: that other Pods terminate does not help.
func creationTime(d *appsv1.Deployment, message string, needed int32) time.Duration {
	has := func(part string) bool { return strings.Contains(message, part) }
	allowed := math.MaxInt
	if found := podLimit.FindStringSubmatch(message); found != nil {
		allowed, _ = strconv.Atoi(found[1]) // out of range is the highest number
	}
	switch deadline := progressDeadline(d); {
	case allowed < int(needed):
		return 0
	case slices.ContainsFunc(passing, has):
		return min(max(quotaTime, gracePeriod(d)+terminationMargin), deadline)
	case slices.ContainsFunc(refusals, has):
		return 0
	default:
		return deadline
	}
}

// gracePeriod returns how long the Pods of a Deployment may take to terminate.
func gracePeriod(d *appsv1.Deployment) time.Duration {
	return time.Duration(min(ptr.Deref(d.Spec.Template.Spec.TerminationGracePeriodSeconds, 0), math.MaxInt32)) * time.Second
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

// started returns when the last report of progress of the Pods of this round was written: when the Deployment was scaled up. It is zero if
// no Pod waits any more.
func (s *surging) started() time.Time {
	var started time.Time
	for _, pod := range s.Leaving {
		if s.b.includes(pod.UID) && pod.Progress.After(started) {
			started = pod.Progress
		}
	}
	return started
}

// await waits until all replicas are available. It ends the surge if a new Pod is refused, or cannot run for as long as the owner of the
// Deployment gives to its rollouts: progressDeadlineSeconds of the Deployment. The pods are those of this round that still wait.
func (s *surging) await(way way, pods []Leaving, late []Report) Decision {
	d := Decision{Reports: slices.Concat(late, s.renew()), RequeueAt: firstDeadline(pods)}
	if at := s.nextRead(); at.Before(d.RequeueAt) {
		d.RequeueAt = at
	}
	message := s.scalingMessage()
	reported := func(m string) bool { return m == message }
	if failure := s.failure(); failure != nil {
		since := s.started()
		if failure.since.After(since) { // the clocks of the clusters may differ
			since = failure.since
		}
		switch waited := max(failure.observed.Sub(since), 0); {
		case waited >= failure.lasts:
			return s.cancel(way, append(late, s.refuseRest(late, *failure)...))
		case waited >= reportAfter:
			about := message + " " + failure.about
			message += " " + failure.why + "."
			reported = func(m string) bool { return strings.HasPrefix(m, about) } // the scheduler's words change whenever a Node changes
		}
	}
	for _, pod := range pods {
		if !reported(pod.Message) || pod.Surged != EventSurged {
			d.Reports = append(d.Reports, Report{Pod: pod.UID, Surged: EventSurged, Message: message, Stalled: true})
		}
	}
	return d
}

// nextRead returns when the surge reconciles again without an event, to read its new Pods.
func (s *surging) nextRead() time.Time {
	if at := s.Unscheduled.ReadAt.Add(ReadInterval); at.After(s.Now) {
		return at
	}
	return s.Now.Add(ReadInterval)
}

// refuseRest refuses the surge for all Pods that are not in reports, also for those that wait for a later round: its Pods could not run
// either.
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

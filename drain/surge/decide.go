package surge

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Observation is the input of Decide, which does not change it.
type Observation struct {
	// Deployment is nil if it does not exist.
	Deployment *appsv1.Deployment
	// Autoscalers that scale the Deployment, or have a note that they were raised for it.
	Autoscalers []*autoscalingv2.HorizontalPodAutoscaler
	// Claims are the PersistentVolumeClaims that the template names, nil for one that does not exist.
	Claims map[string]*corev1.PersistentVolumeClaim
	// Leaving are the Pods of the Deployment whose active evacuator is this one, in the order in which they are to be removed.
	Leaving []Leaving
	// Marked are the marked Pods of the baseline that exist.
	Marked []PodRef
	// Abandoned are the marked Pods whose evacuator has completed or missed its deadline. They are evicted, or stay if the drain is cancelled.
	Abandoned []PodRef
	// Passed are the marked Pods that a later evacuator is to remove: their ReplicaSet must not delete them.
	Passed []PodRef
	// Unscheduled is what was read of the Pods of the Deployment that have no Node, if AwaitsPods. It may have been read some time ago.
	Unscheduled Unscheduled
	// Drains are those in progress in the workload cluster, see DrainsOf.
	Drains []time.Time
	Now    time.Time

	held []Leaving // Pods of the Deployment that are suspended
}

// Leaving is a Pod to be removed.
type Leaving struct {
	PodRef
	// Policy of the maintenances of its Node, see PolicyFor.
	Policy v1alpha1.SurgePolicy
	// Restart means that the Deployment is restarted instead of scaled, see RestartsFor. Restarted is the annotation RestartedAt of its
	// template.
	Restart   bool
	Restarted string
	// Recorded is the annotation of its ReplicaSet to which the Deployment controller copies the baseline. It may be of an earlier surge.
	Recorded string
	// Drains are those in progress of the Node of the Pod.
	Drains []time.Time
	// Asked means that a NodeMaintenance is an instigator of the Evacuation.
	Asked bool
	// Suspended means that no NodeMaintenance drains the Pod now, for example because its Machine is paused.
	Suspended bool
	// Owned means that the Deployment controls the Pod.
	Owned         bool
	Ready, Marked bool
	// Unready means that the API server says that the Pod has not been ready for UnreadyTime, so that the status of the Deployment does not
	// count it as available.
	Unready bool
	// Progress is the time of the last report, Deadline its progress deadline, and RenewAt when the report is repeated, see
	// evacuation.RenewAt. Message and Surged are those of the last report.
	Progress, Deadline, RenewAt time.Time
	Message, Surged             string
}

// Decision is what to write next: first the Reports, then at most one of the other writes, and Unmark beside or instead of it, then the
// Event.
type Decision struct {
	// Deployment and Autoscaler are to be stored if the observed version is still the latest.
	Deployment *appsv1.Deployment
	Autoscaler *autoscalingv2.HorizontalPodAutoscaler
	// Mark and Unmark are the Pods to pass to the functions of these names.
	Mark, Unmark []PodRef
	Reports      []Report
	Event        *Event
	// Recorded are Pods of which one must have its report before the other writes: a report that the API server has refused does not count.
	// Empty: the writes do not depend on the reports. See IsRecorded.
	Recorded []types.UID
	// Serves are the Pods for which the writes add replicas. It is empty if they end a surge. See Refuse.
	Serves []Leaving
	// RequeueAt is when to reconcile again without an event. Zero: only on the next event.
	RequeueAt time.Time
}

// Event is an event on the Deployment about a write.
type Event struct {
	Warning         bool
	Reason, Message string
}

// Reasons of events on a Deployment. Some are also reasons of the condition Surged of Evacuations, see Report.
const (
	// EventSurged on a Deployment means that it is scaled up before its Pods are removed.
	EventSurged = "SurgedForMaintenance"
	// EventCompleted on a Deployment means that it is scaled back, and its ReplicaSet deletes the marked Pods.
	EventCompleted = "SurgeCompleted"
	// EventCanceled on a Deployment means that the surge is cancelled and the Deployment is scaled back.
	EventCanceled = "SurgeCanceled"
	// EventSuperseded on a Deployment means that another actor has edited it or its autoscaler during the surge. The edit is kept.
	EventSuperseded = "SurgeSuperseded"
	// EventRestarted on a Deployment means that it is restarted to replace Pods before they are removed.
	EventRestarted = "RestartedForMaintenance"
)

const (
	// ReturnTime is the maximum time in which an autoscaler is expected to scale back.
	ReturnTime = 2 * time.Minute
	// settleTime is how long a Deployment with unavailable replicas may take to become available.
	settleTime = 2 * time.Minute
	// settleInterval is the interval of reconciliations during settleTime. A Deployment is only watched while it has a baseline.
	settleInterval = 2 * time.Second
	// chosenTime is how long the watch may take to deliver the deletion of a marked Pod.
	chosenTime = 10 * time.Second
	// lastMargin is how long before the progress deadline a surge is cancelled, so that the reason can be reported.
	lastMargin = 10 * time.Second
	// UnreadyTime is how long a Pod to be removed is not ready before the surge does not wait for it to be available.
	UnreadyTime = 30 * time.Second
	// refusedTime is how long the API server refuses a write before the surge ends: a role or a policy may just be changed.
	refusedTime = 30 * time.Second
	// HeldInterval is the interval of reconciliations while a Pod is suspended.
	HeldInterval = 10 * time.Second
)

// Decide returns the next write. While a Pod of its baseline is suspended, a surge stays as it is: to complete or to cancel it could delete
// the Pod. A surge begins for the other Pods only, and no restart begins, since it would replace the suspended Pods too. Pods that wait for
// that are evicted after a time, see awaitHeld.
func Decide(o Observation) Decision {
	d := decideUnheld(o)
	if len(d.Unmark) > 0 && d.RequeueAt.IsZero() { // events of Pods that are not marked any more do not count
		d.RequeueAt = o.Now.Add(settleInterval)
	}
	return d
}

func decideUnheld(o Observation) Decision {
	held, leaving := partition(o.Leaving, func(l Leaving) bool { return l.Suspended })
	if len(held) == 0 {
		return decide(o)
	}
	d := Decision{}
	if o.holds(held) {
		_, waiting := partition(leaving, func(l Leaving) bool { return l.Marked })
		d.Reports = awaitHeld(o, held, waiting)
	} else {
		o.Leaving, o.held = leaving, held
		d = decide(o)
	}
	if at := o.Now.Add(HeldInterval); d.RequeueAt.IsZero() || at.Before(d.RequeueAt) {
		d.RequeueAt = at
	}
	return d
}

// holds reports whether the present surge of the Deployment may concern one of these Pods. After an undo has removed the baseline of a
// surge by an autoscaler, the Pods of that surge are not known. After another actor has removed that of another surge, but kept the
// number of replicas, the Evacuations of its Pods say so.
func (o Observation) holds(held []Leaving) bool {
	if o.Deployment == nil {
		return false
	}
	switch b, err := BaselineOf(o.Deployment); {
	case err != nil || b != nil && len(b.Pods) == 0:
		return true
	case b == nil && slices.ContainsFunc(o.Autoscalers, func(h *autoscalingv2.HorizontalPodAutoscaler) bool { return RaisedFor(h, o.Deployment.Name) }):
		return true
	default:
		return slices.ContainsFunc(held, func(l Leaving) bool {
			return l.Marked || b == nil && l.lostRecord(o.Deployment) != nil || b != nil && b.includes(l.UID)
		})
	}
}

func decide(o Observation) Decision {
	if o.Deployment == nil {
		return orphaned(o)
	}
	b, err := BaselineOf(o.Deployment)
	switch {
	case err != nil:
		return dropInvalid(o, err)
	case b != nil:
		d := (&surging{Observation: o, b: b}).next()
		d.Unmark = slices.Concat(d.Unmark, o.left(b))
		return d
	}
	if d, found := scaleBackAfterUndo(o); found {
		return d
	}
	if d, found := restoreOrphans(o); found {
		return d
	}
	if d, found := scaleBackLost(o); found {
		return d
	}
	d := begin(o)
	d.Unmark = slices.Concat(d.Unmark, o.Abandoned, o.Passed)
	if _, copied := o.Deployment.Annotations[v1alpha1.SurgeAnnotation]; copied && d.Deployment == nil {
		d.Deployment = o.Deployment.DeepCopy()
		SetBaseline(d.Deployment, nil)
	}
	return d
}

// dropInvalid ends the surge of a Deployment whose baseline is missing or invalid. `kubectl rollout undo` during the surge has replaced it,
// for example. The label says to which number of replicas the Deployment is scaled back, unless another actor has scaled it since.
func dropInvalid(o Observation, why error) Decision {
	d := Decision{RequeueAt: o.Now.Add(settleInterval)} // the rest is read then
	lost, _ := markingOf(o.Deployment)
	if lost.surged > 0 {
		d.Reports = refuseAll(o.Leaving, Edited, "Another actor replaced the annotations of Deployment "+nameOf(o.Deployment)+" during the surge")
		if marked, _ := partition(o.Leaving, func(l Leaving) bool { return l.Marked }); len(marked) > 0 {
			d.Unmark = refs(marked)
			return d
		}
	}
	d.Deployment = o.Deployment.DeepCopy()
	SetBaseline(d.Deployment, nil)
	d.Event = &Event{Warning: true, Reason: EventSuperseded, Message: "Removed the record of a surge, annotation " + v1alpha1.SurgeAnnotation + ": " + why.Error()}
	switch {
	case lost.surged == 0:
	case replicas(o.Deployment) == lost.surged:
		d.Deployment.Spec.Replicas = ptr.To(lost.replicas)
		d.Event.Message += ". Scaled back to " + text.Count(lost.replicas, "replica")
	default:
		d.Event.Message += ". " + ownerOf(o.Deployment, "replicas") + " has set " + text.Count(replicas(o.Deployment), "replica") + ": the Deployment keeps them"
	}
	return d
}

// orphaned cleans up the surge of a Deployment that was deleted.
func orphaned(o Observation) Decision {
	d, _ := restoreOrphans(o)
	d.Unmark = slices.Concat(o.Abandoned, o.Passed)
	d.Reports = refuseAll(o.Leaving, NoDeployment, "The Deployment of the Pod does not exist")
	return d
}

// surging is a Deployment with a baseline.
type surging struct {
	Observation
	b *Baseline
}

func (s *surging) next() Decision {
	way := s.way()
	if what, actor := way.edited(); what != "" {
		return s.supersede(way, what, actor)
	}
	if staying := s.staying(); len(staying) > 0 { // before the Deployment is scaled back
		return Decision{Unmark: staying}
	}
	serving, late := s.serving()
	switch {
	case s.b.Returning != nil && (len(serving) > 0 || len(s.Marked) == 0): // the autoscaler is scaling back
		return s.complete(way, serving, nil)
	case len(serving) == 0:
		return s.cancel(way, late)
	case !way.raised():
		return Decision{
			Deployment: way.raiseDeployment(), Autoscaler: way.raiseAutoscaler(),
			Reports: append(late, s.report(serving, EventSurged, s.scalingMessage())...),
			Event:   &Event{Reason: EventSurged, Message: s.scalingMessage()},
			Serves:  s.Leaving, Recorded: uids(serving),
		}
	case !s.available():
		return s.await(way, serving, late)
	}
	if unmarked, _ := partition(serving, func(l Leaving) bool { return !l.Marked }); len(unmarked) > 0 {
		return Decision{Reports: late, Mark: refs(unmarked), Serves: s.Leaving, RequeueAt: firstDeadline(serving)}
	}
	return s.complete(way, serving, late)
}

// complete scales back when the new Pods are available.
func (s *surging) complete(way way, serving []Leaving, reports []Report) Decision {
	d := way.lower()
	if d.Deployment == nil {
		return d // further writes follow
	}
	if d.Event == nil {
		d.Event = &Event{Reason: EventCompleted, Message: "Scaled back to " + text.Count(s.b.Replicas, "replica") + ": the Pods to be removed have been replaced"}
	}
	d.Reports = slices.Concat(reports, s.report(serving, EventCompleted, "Surge completed: "+d.Event.Message+"."))
	return d
}

// cancel reverts a surge for which no Pod waits any more. It restores the deletion cost of the Pods that stay.
func (s *surging) cancel(way way, late []Report) Decision {
	if len(s.Marked) > 0 {
		return Decision{Reports: late, Unmark: s.Marked}
	}
	d, raised := way.lower(), way.raised()
	d.Reports, d.Recorded = late, podsOf(late)
	switch {
	case !raised || d.Deployment == nil: // nothing has been written yet, or further writes follow
	case len(late) > 0:
		d.Event = &Event{Warning: true, Reason: EventCanceled, Message: "Scaling back to " + text.Count(s.b.Replicas, "replica") + ". " + late[0].Message}
	default:
		d.Event = &Event{Reason: EventCanceled, Message: "Scaling back to " + text.Count(s.b.Replicas, "replica") + ": no Pod waits for the surge any more"}
	}
	return d
}

// supersede ends the surge of a Deployment that another actor has edited, and keeps the edit. It first reports to all Pods that wait
// for the surge, so that none of them starts another surge after a restart of the manager.
func (s *surging) supersede(way way, what, actor string) Decision {
	reports := refuseAll(s.Leaving, Edited, actor+" changed "+what+" of Deployment "+s.name()+" during the surge")
	if len(s.Marked) > 0 {
		return Decision{Reports: reports, Unmark: s.Marked}
	}
	d := way.drop()
	d.Reports = reports
	d.Event = &Event{
		Warning: true, Reason: EventSuperseded, Message: actor + " changed " + what + " during the surge: the change is kept, and the Pods are evicted",
	}
	return d
}

// left returns the Pods of earlier rounds that are still marked, because the write after such a round has failed.
func (o Observation) left(b *Baseline) []PodRef {
	return slices.DeleteFunc(slices.Concat(o.Abandoned, o.Passed), func(pod PodRef) bool { return b.includes(pod.UID) })
}

// staying returns the marked Pods whose drain was cancelled.
func (s *surging) staying() []PodRef {
	return slices.DeleteFunc(slices.Clone(s.Marked), func(pod PodRef) bool {
		return slices.Contains(s.Abandoned, pod) || slices.ContainsFunc(s.Leaving, func(l Leaving) bool { return l.PodRef == pod })
	})
}

// serving returns the Pods of the baseline that still wait, and the reports of those whose progress deadline is about to be exceeded.
func (s *surging) serving() (serving []Leaving, late []Report) {
	for _, pod := range s.Leaving {
		switch {
		case !s.b.includes(pod.UID):
		case s.b.Returning == nil && pod.late(s.Now):
			late = append(late, s.tooLate(pod))
		default:
			serving = append(serving, pod)
		}
	}
	return serving, late
}

func (s *surging) tooLate(pod Leaving) Report {
	why := notAvailable(s.Deployment)
	if failure := s.failure(); failure != nil {
		return refuse(pod, failure.refusal, why+". "+failure.why)
	}
	return refuse(pod, NotAvailable, why)
}

func notAvailable(d *appsv1.Deployment) string {
	return "The new Pods of Deployment " + nameOf(d) + " did not become available in time"
}

// late reports whether the progress deadline of the Pod is about to be exceeded.
func (l Leaving) late(now time.Time) bool { return !now.Before(l.Deadline.Add(-lastMargin)) }

func (b *Baseline) includes(uid types.UID) bool {
	return slices.ContainsFunc(b.Pods, func(pod PodRef) bool { return pod.UID == uid })
}

// available reports whether all replicas are available, including the added ones: when a ReplicaSet is scaled down, it deletes Pods
// that are not ready first, regardless of their deletion cost. So those that are to be removed need not be available.
func (s *surging) available() bool {
	status, unready := s.Deployment.Status, int32(0)
	for _, pod := range s.Leaving {
		if pod.Unready && s.b.includes(pod.UID) {
			unready++
		}
	}
	return status.ObservedGeneration >= s.Deployment.Generation &&
		status.AvailableReplicas+unready >= s.needed() && status.UpdatedReplicas == status.Replicas
}

// needed returns how many Pods the Deployment has during the surge.
func (s *surging) needed() int32 { return max(replicas(s.Deployment), s.b.Surged) }

func (s *surging) name() string { return nameOf(s.Deployment) }

func nameOf(d *appsv1.Deployment) string { return d.Namespace + "/" + d.Name }

func firstDeadline(pods []Leaving) time.Time {
	var first time.Time
	for _, pod := range pods {
		if at := pod.Deadline.Add(-lastMargin); first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

func uids(pods []Leaving) []types.UID {
	all := make([]types.UID, 0, len(pods))
	for _, pod := range pods {
		all = append(all, pod.UID)
	}
	return all
}

func refs(pods []Leaving) []PodRef {
	all := make([]PodRef, 0, len(pods))
	for _, pod := range pods {
		all = append(all, pod.PodRef)
	}
	return all
}

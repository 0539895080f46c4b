package surge

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Observation is all that Decide looks at. It is not changed.
type Observation struct {
	// Deployment, nil if there is none.
	Deployment *appsv1.Deployment
	// Autoscalers that scale the Deployment, or have a note that says so.
	Autoscalers []*autoscalingv2.HorizontalPodAutoscaler
	// Claims are the PersistentVolumeClaims that the template names; one that isn't there is nil.
	Claims map[string]*corev1.PersistentVolumeClaim
	// Leaving are the Pods of the Deployment whose Evacuations are ours to carry out now, in the order in which they are to go.
	Leaving []Leaving
	// Marked are the Pods of the baseline, if there is one, that are there and marked.
	Marked []PodRef
	Now    time.Time
}

// Leaving is a Pod that is to go.
type Leaving struct {
	PodRef
	// Policy of the maintenances of its Node, see PolicyFor.
	Policy v1alpha1.SurgePolicy
	// Asked says that a NodeMaintenance asks for the Evacuation.
	Asked bool
	// Owned says that it is a Pod of the Deployment.
	Owned         bool
	Ready, Marked bool
	// Progress is when something was last reported, Deadline when our turn is over, Message what was reported.
	Progress, Deadline time.Time
	Message            string
}

// Decision is the next thing to do: first the Reports, then at most one of the writes, then the Event.
type Decision struct {
	// Deployment and Autoscaler are to be stored, if the version that was observed is still the latest.
	Deployment *appsv1.Deployment
	Autoscaler *autoscalingv2.HorizontalPodAutoscaler
	// Mark and Unmark are Pods.
	Mark, Unmark []PodRef
	Reports      []Report
	Event        *Event
	// LookAgain is when to decide again if nothing happens before. Zero: whenever something happens.
	LookAgain time.Time
}

// Event tells people what has been done to the Deployment.
type Event struct {
	Warning         bool
	Reason, Message string
}

// Reasons of events on a Deployment.
const (
	// EventSurged: it is scaled up to make room.
	EventSurged = "SurgedForMaintenance"
	// EventMoved: it is scaled back, and the marked Pods go.
	EventMoved = "SurgeCompleted"
	// EventCalledOff: it is scaled back, since nobody waits for it any more.
	EventCalledOff = "SurgeCalledOff"
	// EventSuperseded: somebody else has edited it meanwhile, which wins.
	EventSuperseded = "SurgeSuperseded"
)

const (
	// ReturnTime is how long an autoscaler may take to scale back by itself.
	ReturnTime = 2 * time.Minute
	// settleTime is how long a Deployment that isn't fully available may take to become that.
	settleTime = 2 * time.Minute
	// settlePace is how often it is looked at meanwhile. A Deployment is watched while it has a baseline.
	settlePace = 2 * time.Second
	// chosenTime is how long a marked Pod has for its end to show.
	chosenTime = 10 * time.Second
	// lastMargin is what is left of the progress deadline when a surge is given up, to say why.
	lastMargin = 10 * time.Second
)

// Decide says what the next write is.
func Decide(o Observation) Decision {
	if o.Deployment == nil {
		return orphaned(o, NoDeployment, "There is no such Deployment")
	}
	b, err := BaselineOf(o.Deployment)
	switch {
	case err != nil:
		d := Decision{Deployment: o.Deployment.DeepCopy(), Event: &Event{Warning: true, Reason: EventSuperseded, Message: "Dropped the annotation " + v1alpha1.SurgeAnnotation + ": " + err.Error()}}
		SetBaseline(d.Deployment, nil)
		return d
	case b != nil:
		return (&surging{Observation: o, b: b}).next()
	}
	if d, found := restoreOrphans(o); found {
		return d
	}
	return begin(o)
}

// orphaned ends what was begun for a Deployment that is gone.
func orphaned(o Observation, reason Refusal, message string) Decision {
	d, _ := restoreOrphans(o)
	d.Reports = refuseAll(o.Leaving, reason, message)
	return d
}

// surging is a Deployment with a baseline.
type surging struct {
	Observation
	b *Baseline
}

func (s *surging) next() Decision {
	way := s.way()
	if what := way.edited(); what != "" {
		return s.supersede(way, what)
	}
	serving, late := s.serving()
	switch {
	case s.b.Returning != nil: // the autoscaler is on the way back
		return s.goOn(way, serving, nil)
	case len(serving) == 0:
		return s.callOff(way, late)
	case !way.raised():
		return Decision{
			Deployment: way.raiseDeployment(), Autoscaler: way.raiseAutoscaler(),
			Reports: append(late, s.report(serving, s.makingRoom())...),
			Event:   &Event{Reason: EventSurged, Message: s.makingRoom()},
		}
	case !s.available():
		return Decision{Reports: late, LookAgain: firstDeadline(serving)}
	}
	if unmarked, _ := partition(serving, func(l Leaving) bool { return !l.Marked }); len(unmarked) > 0 {
		return Decision{Reports: late, Mark: refs(unmarked), LookAgain: firstDeadline(serving)}
	}
	return s.goOn(way, serving, late)
}

// goOn scales back, now that room is made.
func (s *surging) goOn(way way, serving []Leaving, reports []Report) Decision {
	d := way.lower()
	if d.Deployment == nil {
		return d // more is to follow
	}
	if d.Event == nil {
		d.Event = &Event{Reason: EventMoved, Message: "Scaled back to " + count(s.b.Replicas) + ": the Pods that leave have been replaced"}
	}
	d.Reports = slices.Concat(reports, s.report(serving, "Room is made: "+d.Event.Message+"."))
	return d
}

// callOff takes back what nobody waits for any more. Pods that stay are left as they were found.
func (s *surging) callOff(way way, late []Report) Decision {
	if len(s.Marked) > 0 {
		return Decision{Reports: late, Unmark: s.Marked}
	}
	d, raised := way.lower(), way.raised()
	d.Reports = late
	switch {
	case !raised || d.Deployment == nil: // nothing has been done yet, or more is to follow
	case len(late) > 0:
		d.Event = &Event{Warning: true, Reason: EventCalledOff, Message: "Going back to " + count(s.b.Replicas) + ": the new Pods were not available in time"}
	default:
		d.Event = &Event{Reason: EventCalledOff, Message: "Going back to " + count(s.b.Replicas) + ": nobody waits for room any more"}
	}
	return d
}

// supersede leaves the Deployment to whoever has edited it. All Pods that wait for it are told first, so that none of them
// begins anew after a restart.
func (s *surging) supersede(way way, what string) Decision {
	reports := refuseAll(s.Leaving, Edited, "Somebody has edited "+what+" of Deployment "+s.name()+" while room was made")
	if len(s.Marked) > 0 {
		return Decision{Reports: reports, Unmark: s.Marked}
	}
	d := way.drop()
	d.Reports = reports
	d.Event = &Event{Warning: true, Reason: EventSuperseded, Message: "Somebody has edited " + what + " while room was made: that wins, and the Pods that leave are evicted"}
	return d
}

// serving are the Pods of the baseline that still wait. Those whose time is up are late: they are told, and count no more.
func (s *surging) serving() (serving []Leaving, late []Report) {
	for _, pod := range s.Leaving {
		switch {
		case !s.includes(pod.UID):
		case s.b.Returning == nil && !s.Now.Before(pod.Deadline.Add(-lastMargin)):
			late = append(late, refuse(pod, NotAvailable, "The new Pods of Deployment "+s.name()+" were not available in time"))
		default:
			serving = append(serving, pod)
		}
	}
	return serving, late
}

func (s *surging) includes(uid types.UID) bool {
	for _, pod := range s.b.Pods {
		if pod.UID == uid {
			return true
		}
	}
	return false
}

// available says whether all replicas are available, those included that make room: a ReplicaSet that is scaled down deletes
// Pods that aren't ready first, whatever they cost.
func (s *surging) available() bool {
	status := s.Deployment.Status
	return status.ObservedGeneration >= s.Deployment.Generation &&
		status.AvailableReplicas >= max(replicas(s.Deployment), s.b.Surged) && status.UpdatedReplicas == status.Replicas
}

func (s *surging) name() string { return s.Deployment.Namespace + "/" + s.Deployment.Name }

func firstDeadline(pods []Leaving) time.Time {
	var first time.Time
	for _, pod := range pods {
		if at := pod.Deadline.Add(-lastMargin); first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

func refs(pods []Leaving) []PodRef {
	all := make([]PodRef, 0, len(pods))
	for _, pod := range pods {
		all = append(all, pod.PodRef)
	}
	return all
}

package history

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Pod is a Pod on a Node that is being drained.
type Pod struct {
	Object     *corev1.Pod
	Type       v1alpha1.PodType
	Verdict    rules.Verdict
	Evacuation *v1alpha1.Evacuation // nil: it has none
	Targeted   bool                 // it has, or gets, an Evacuation
	Finished   bool                 // the drain does not wait for the Pod
}

// Observation is what is known about a drain at one time.
type Observation struct {
	Pods  []Pod
	Nodes sets.Set[string] // the Nodes whose Pods are known
	// Published returns the drain targets in the status, by Node. Drained says that the status reports the end of the drain. Both count only
	// at the first observation: they tell what an earlier manager has finished.
	Published func() map[string][]v1alpha1.DrainTarget
	Drained   bool
	// Evicted returns when this manager sent the eviction of a Pod, zero if it did not.
	Evicted func(types.UID) time.Time
	// Budget returns the names of the PodDisruptionBudgets of a Pod, for waits for them.
	Budget func(*corev1.Pod) string
}

func (o Observation) published() map[string][]v1alpha1.DrainTarget {
	if o.Published == nil {
		return nil
	}
	return o.Published()
}

// Step is a set of Pods that are evacuated together: those of one type with the same drain order.
type Step struct {
	Type  v1alpha1.PodType
	Order int32
}

// EndedStep is a step of which all Pods have ended.
type EndedStep struct {
	Step

	Pods       int
	Start, End time.Time
}

// Outcome says how the evacuation of a Pod ended.
type Outcome string

const (
	// Terminated means that the Pod no longer exists.
	Terminated Outcome = "Terminated"
	// Completed means that the Pod has finished, or no longer blocks the drain of its unreachable Node.
	Completed Outcome = "Completed"
	// Withdrawn means that the Pod is no longer evacuated: a rule skips it, its Node is no longer selected, or it waits for its step again.
	Withdrawn Outcome = "Withdrawn"
	// Remaining means that the drain ended before the Pod did.
	Remaining Outcome = "Remaining"
)

// Evacuation is what happened to one Pod, from its Evacuation to its end.
type Evacuation struct {
	Step

	Namespace, Name string
	UID             types.UID
	Node            string
	Start, End      time.Time
	Waits           []Wait
	Refusals        int32 // evictions that the API server refused
	Evicted         bool  // this manager evicted the Pod
	Outcome         Outcome
	Attempt         int // how many evacuations of the Pod have ended before in this drain, because they were withdrawn
}

// Drain is the state of one drain: the Pods whose evacuation has begun and not ended. The zero value is a drain that has not been observed.
type Drain struct {
	pods     map[types.UID]*evacuating
	steps    map[Step]*stepState
	round    int               // of observations
	finished map[Step]bool     // steps that have been returned
	attempts map[types.UID]int // evacuations that have ended, of Pods that may still exist
	earlier  func(Step) bool
	summary  Summary
	evicted  evicted
	lastEnd  time.Time // of an evacuation
	ended    bool
}

// evacuating is a Pod whose evacuation has begun and not ended.
type evacuating struct {
	Evacuation
	place

	round     int  // the last observation that includes it
	requested bool // its Evacuation has not been observed
}

// stepState is a step with Pods whose evacuation has begun.
type stepState struct {
	EndedStep

	active int // Pods whose evacuation has not ended
}

// Observe updates the drain, and returns what has ended since the last observation.
func (d *Drain) Observe(o Observation, now time.Time) (evacuations []Evacuation, steps []EndedStep) {
	if d.ended {
		return nil, nil
	}
	if d.pods == nil {
		d.begin(o, now)
	}
	d.round++
	var pending []Step
	for _, pod := range o.Pods {
		wait := waitOf(pod)
		known := d.pods[pod.Object.UID]
		switch {
		case pod.Finished || pod.Verdict.Behavior == v1alpha1.DrainBehaviorSkip:
			if known != nil {
				evacuations = append(evacuations, d.end(known, outcomeOf(pod), o, now))
			}
			continue
		case wait.Reason == "":
			if known != nil { // the Pod waits for its step, and may be evacuated again
				evacuations = append(evacuations, d.end(known, Withdrawn, o, now))
			}
			if step := stepOf(pod); !slices.Contains(pending, step) {
				pending = append(pending, step)
			}
			continue
		case known == nil:
			known = d.add(pod, now)
		}
		known.round = d.round
		d.update(known, pod, wait, o, now)
	}
	for _, known := range d.pods {
		if known.round != d.round {
			outcome := Terminated
			if !o.Nodes.Has(known.Node) {
				outcome = Withdrawn
			}
			evacuations = append(evacuations, d.end(known, outcome, o, now))
		}
	}
	return evacuations, d.endSteps(pending)
}

// End ends the drain with the Pods that remain, and returns what has ended with it. Later observations change nothing.
func (d *Drain) End(now time.Time) (evacuations []Evacuation, steps []EndedStep) {
	for _, known := range d.pods {
		evacuations = append(evacuations, d.end(known, Remaining, Observation{}, now))
	}
	steps = d.endSteps(nil)
	d.ended = true
	return evacuations, steps
}

// EndOfDrain returns the end of a drain that the API records in whole seconds: the end of its last Pod, if this is within the same second.
func (d *Drain) EndOfDrain(recorded time.Time) time.Time {
	if after := d.lastEnd.Sub(recorded); after >= 0 && after < resolution {
		return d.lastEnd
	}
	return recorded
}

// Ended reports whether the drain has ended.
func (d *Drain) Ended() bool { return d.ended }

// Continued returns a drain that continues this one, which must not be used any more, in another trace: that may have the same steps.
func (d *Drain) Continued() Drain {
	continued := *d
	continued.finished = map[Step]bool{}
	return continued
}

// Summary returns the summary of the evacuations that have ended.
func (d *Drain) Summary() Summary { return d.summary }

// begin initializes the drain. Steps below the published targets were finished, and reported, by an earlier manager.
func (d *Drain) begin(o Observation, now time.Time) {
	d.pods, d.steps, d.finished = map[types.UID]*evacuating{}, map[Step]*stepState{}, map[Step]bool{}
	d.attempts, d.summary.Since = map[types.UID]int{}, now
	reached := o.reached()
	d.earlier = func(step Step) bool {
		last, known := reached[step.Type]
		return known && (step.Order < last || o.Drained && step.Order == last)
	}
}

// reached returns the highest order of each type that all Nodes have reached.
func (o Observation) reached() map[v1alpha1.PodType]int32 {
	var all map[v1alpha1.PodType]int32
	published := o.published()
	for node := range o.Nodes {
		own := map[v1alpha1.PodType]int32{}
		for _, target := range published[node] {
			order := ptr.Deref(target.Order, 0)
			if last, known := own[target.PodType]; !known || order > last {
				own[target.PodType] = order
			}
		}
		if all == nil {
			all = own
			continue
		}
		maps.DeleteFunc(all, func(podType v1alpha1.PodType, _ int32) bool { _, known := own[podType]; return !known })
		for podType, order := range all {
			all[podType] = min(order, own[podType])
		}
	}
	return all
}

func stepOf(pod Pod) Step { return Step{Type: pod.Type, Order: pod.Verdict.Order} }

func outcomeOf(pod Pod) Outcome {
	if pod.Finished {
		return Completed
	}
	return Withdrawn
}

// add adds a Pod whose evacuation has begun.
func (d *Drain) add(pod Pod, now time.Time) *evacuating {
	e := &evacuating{place: placeOf(pod), Evacuation: Evacuation{
		Step: stepOf(pod), Namespace: pod.Object.Namespace, Name: pod.Object.Name, UID: pod.Object.UID, Node: pod.Object.Spec.NodeName, Start: now,
		Attempt: d.attempts[pod.Object.UID],
	}}
	switch {
	case pod.Evacuation != nil:
		e.Start = Instant(pod.Evacuation.CreationTimestamp.Time, now)
	case pod.Object.DeletionTimestamp != nil:
		e.Start = Instant(rules.DeletionRequested(pod.Object), now)
	}
	d.pods[e.UID] = e
	step := d.steps[e.Step]
	if step == nil {
		step = &stepState{EndedStep: EndedStep{Step: e.Step, Start: e.Start}}
		d.steps[e.Step] = step
	}
	step.Pods++
	step.active++
	if e.Start.Before(step.Start) {
		step.Start = e.Start
	}
	return e
}

// update records what a Pod waits for now.
func (d *Drain) update(e *evacuating, pod Pod, wait Wait, o Observation, now time.Time) {
	if pod.Evacuation != nil {
		e.Refusals, e.since = pod.Evacuation.Status.FailedEvictionCounter, pod.Evacuation.CreationTimestamp.Time
	}
	if wait.AwaitsBudget() && o.Budget != nil && !e.isBlockedBy(wait.Reason) {
		wait.Object = o.Budget(pod.Object)
	}
	start := now
	if wait.Reason == WaitTermination {
		start = Instant(rules.DeletionRequested(pod.Object), now)
		if evicted := e.sent(o); !evicted.IsZero() {
			start = evicted
		}
	}
	if e.requested && pod.Evacuation != nil { // the Evacuation says what the first wait was for, also if that has ended
		first := wait
		if wait.Reason == WaitTermination {
			first = EvacuationWait(pod.Evacuation)
		}
		e.Waits[0].Reason, e.Waits[0].Object = first.Reason, first.Object
	}
	e.proceed(wait, start)
	e.requested = pod.Evacuation == nil && wait.Reason == WaitEviction && len(e.Waits) == 1
}

// isBlockedBy reports whether the last wait has this reason, and the object is known.
func (e *Evacuation) isBlockedBy(reason string) bool {
	n := len(e.Waits)
	return n > 0 && e.Waits[n-1].Reason == reason && e.Waits[n-1].Object != ""
}

// sent returns when this manager sent the eviction of the Pod, zero if it did not.
func (e *Evacuation) sent(o Observation) time.Time {
	if o.Evicted == nil {
		return time.Time{}
	}
	at := o.Evicted(e.UID)
	e.Evicted = e.Evicted || !at.IsZero()
	return at
}

// proceed ends the last wait if this one differs, and begins this one.
func (e *Evacuation) proceed(wait Wait, start time.Time) {
	wait.Start = later(start, e.Start)
	e.Waits = Proceed(e.Waits, wait)
}

// end ends the evacuation of a Pod.
func (d *Drain) end(e *evacuating, outcome Outcome, o Observation, now time.Time) Evacuation {
	if at := e.sent(o); outcome == Terminated && !at.IsZero() {
		e.proceed(Wait{Reason: WaitTermination}, at)
	}
	e.End, e.Outcome = later(now, e.Start), outcome
	if n := len(e.Waits); n > 0 {
		e.Waits[n-1].End = later(e.End, e.Waits[n-1].Start)
		e.End = e.Waits[n-1].End
	}
	delete(d.pods, e.UID)
	if outcome == Withdrawn || outcome == Completed { // the Pod may be evacuated again
		d.attempts[e.UID]++
	}
	d.lastEnd = later(d.lastEnd, e.End)
	if step := d.steps[e.Step]; step != nil {
		step.End = later(step.End, e.End)
		step.active--
	}
	d.summary.add(&e.Evacuation)
	if outcome == Terminated {
		d.evicted.add(e)
	}
	return e.Evacuation
}

// endSteps returns the steps without a Pod that is being evacuated or is pending. Each is returned once.
func (d *Drain) endSteps(pending []Step) (ended []EndedStep) {
	for step, state := range d.steps {
		if state.active > 0 || slices.Contains(pending, step) {
			continue
		}
		delete(d.steps, step)
		if !d.finished[step] && !d.earlier(step) {
			d.finished[step] = true
			ended = append(ended, state.EndedStep)
		}
	}
	slices.SortFunc(ended, func(a, b EndedStep) int { return a.Start.Compare(b.Start) })
	return ended
}

// resolution is a little more than the resolution of times in the API: one second.
const resolution = 1500 * time.Millisecond

// Instant returns the time of an event that is observed now and that the API records in whole seconds. The time of the observation is
// closer, unless the event is older. An event in the future was recorded by another clock.
func Instant(recorded, now time.Time) time.Time {
	if now.Sub(recorded) < resolution {
		return now
	}
	return recorded
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

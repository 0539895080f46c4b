package evacuation_test

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

// event is something that may happen in a world.
type event struct {
	name     string
	possible bool
	happens  func(*rapid.T)
}

// usual returns the events that occur often.
func (w *world) usual() []event {
	exists := w.e != nil
	active := exists && w.e.Status.ActiveEvacuatorClass != nil
	evicting := w.evicting()
	alive := exists && w.e.DeletionTimestamp == nil
	awaited := w.last.Deadline.After(w.now)
	return []event{
		{"leave, forbidden", alive && w.forbidsCancellation(), w.leaveForbidden},
		{"cancellation policy", active, w.policy},
		{"completion", active, w.completion},
		{"progress", active, w.progress},
		{"progress in the future", active, w.progressInFuture},
		{"a budget allows no disruptions", evicting, w.budgetIsExhausted},
		{"an eviction is refused", evicting, w.evictionIsRefused},
		{"reconcile in time", exists && awaited, func(r *rapid.T) { w.deadlinePasses(r); w.reconcile(r) }},
		{"reconcile", exists, w.reconcile},
		{"reconcile, once more", exists, w.reconcile},
		{"join", alive, w.join},
		{"the deadline passes", awaited, w.deadlinePasses},
		{"the pause ends", w.paused, func(*rapid.T) { w.paused = false }},
		{"the watch is there", !w.pod.Known, w.watchIsThere},
		{"the drain's time", exists, w.drainsTime},
		{"time passes", true, w.timePasses},
		{"a maintenance allows built-in evacuators only", exists, w.limit},
		{"the surge policy is edited", exists, func(*rapid.T) { w.surges = !w.surges }},
	}
}

// seldom returns the events that end an Evacuation early, so they occur rarely.
func (w *world) seldom() []event {
	exists := w.e != nil
	return []event{
		{"an eviction works", w.evicting(), w.evictionWorks},
		{"an eviction works, once more", w.evicting(), w.evictionWorks},
		{"leave", exists, w.leave},
		{"a user deletes", exists && !w.forbidsCancellation(), w.userDeletes},
		{"the Pod terminates", w.pod.Exists, w.podTerminates},
		{"the Pod ends", true, w.podEnds},
		{"a pause begins", !w.paused, func(*rapid.T) { w.paused = true }},
		{"the watch restarts", true, w.watchRestarts},
	}
}

func (w *world) evicting() bool { return w.e != nil && w.next().Kind == evacuation.Evict }

// happen executes one of the events that are possible now. rapid draws the first ones of a list more often than the last.
func (w *world) happen(r *rapid.T) {
	const often = 63 // so that most Evacuations exist for many events
	events := w.usual()
	if rapid.IntRange(0, often).Draw(r, "seldom") == often {
		events = w.seldom()
	}
	happens := map[string]func(*rapid.T){}
	var names []string
	for _, event := range events {
		if event.possible {
			happens[event.name], names = event.happens, append(names, event.name)
		}
	}
	happens[rapid.SampledFrom(names).Draw(r, "event")](r)
}

// timePasses advances the time in steps that matter for a progress deadline of ten minutes or more, often close to the deadline.
func (w *world) timePasses(r *rapid.T) {
	step := time.Duration(rapid.IntRange(0, 1200).Draw(r, "seconds")) * time.Second
	if left := w.last.Deadline.Sub(w.now); left > 0 && rapid.Bool().Draw(r, "close to the deadline") {
		step = max(0, left-time.Duration(rapid.IntRange(1, 120).Draw(r, "seconds before"))*time.Second)
	}
	w.now = w.now.Add(step)
}

func (w *world) deadlinePasses(*rapid.T) {
	w.now = w.last.Deadline
}

// evacuatorWrites is a write to the status by the active evacuator.
func (w *world) evacuatorWrites(r *rapid.T, change func(*v1alpha1.EvacuationStatus)) {
	changed := w.e.DeepCopy()
	change(&changed.Status)
	w.store(r, changed)
}

func (w *world) progress(r *rapid.T) {
	w.evacuatorWrites(r, func(s *v1alpha1.EvacuationStatus) {
		w.skew = time.Duration(rapid.Int64Range(0, int64(evacuation.ClockSkew)).Draw(r, "skew"))
		skewed := metav1.NewTime(w.now.Add(w.skew))
		s.EvacuationProgressTimestamp = &skewed
		s.Message = fmt.Sprintf("at it since %s", skewed)
		w.progressAt, w.unseenWrite, w.inFuture = w.now, true, false
	})
}

func (w *world) progressInFuture(r *rapid.T) {
	w.evacuatorWrites(r, func(s *v1alpha1.EvacuationStatus) {
		future := metav1.NewTime(w.now.AddDate(10, 0, 0))
		s.EvacuationProgressTimestamp = &future
		w.progressAt, w.skew, w.unseenWrite, w.inFuture = w.now, 0, true, true
	})
}

func (w *world) completion(r *rapid.T) {
	w.evacuatorWrites(r, func(s *v1alpha1.EvacuationStatus) { s.ActiveEvacuatorCompleted = true })
}

func (w *world) policy(r *rapid.T) {
	policy := rapid.SampledFrom([]v1alpha1.EvacuationCancellationPolicy{v1alpha1.CancellationAllow, v1alpha1.CancellationForbid}).Draw(r, "policy")
	w.evacuatorWrites(r, func(s *v1alpha1.EvacuationStatus) { s.EvacuationCancellationPolicy = policy })
}

// evicts acts as the evictor: it writes the action together with what the eviction waits for, in one write.
func (w *world) evicts(r *rapid.T, tell func(*v1alpha1.Evacuation)) {
	action := w.next()
	w.observe(r, action)
	changed := w.e.DeepCopy()
	action.Apply(changed, w.now)
	tell(changed)
	if !meta.IsStatusConditionTrue(changed.Status.Conditions, v1alpha1.EvacuationEvicting) {
		r.Fatal("E14: evicts without the condition Evicting")
	}
	w.store(r, changed)
	w.remember(action)
	if again := w.next(); again.Kind != evacuation.Evict {
		r.Fatalf("E14: a write of the evictor ends the eviction: %s", again.Kind)
	}
}

func (w *world) budgetIsExhausted(r *rapid.T) {
	why := rapid.SampledFrom([]string{"BudgetExhausted", "BlockedByUnhealthyPods", "MultipleBudgets"}).Draw(r, "why")
	w.evicts(r, func(e *v1alpha1.Evacuation) { evacuation.Waiting(e, why, "waiting: "+why) })
}

func (w *world) evictionIsRefused(r *rapid.T) {
	w.evicts(r, func(e *v1alpha1.Evacuation) {
		before := e.Status.FailedEvictionCounter
		evacuation.Refused(e, v1alpha1.ReasonAdmissionRefused, "not now", w.now)
		if e.Status.FailedEvictionCounter != before+1 {
			r.Fatalf("E14: counted %d, then %d", before, e.Status.FailedEvictionCounter)
		}
	})
}

func (w *world) evictionWorks(r *rapid.T) {
	w.evicts(r, func(*v1alpha1.Evacuation) {})
	w.pod.Terminating = true
}

func (w *world) join(r *rapid.T) {
	if who := rapid.SampledFrom([]string{ours, theirs, foreign}).Draw(r, "who"); !slices.Contains(w.e.Finalizers, who) {
		w.e.Finalizers = append(w.e.Finalizers, who)
	}
}

func (w *world) leave(r *rapid.T) {
	who := rapid.SampledFrom([]string{ours, theirs, foreign}).Draw(r, "who")
	w.e.Finalizers = slices.DeleteFunc(w.e.Finalizers, func(finalizer string) bool { return finalizer == who })
	if who == ours {
		evacuation.Withdraw(w.e)
	}
	w.collect()
}

// leaveForbidden withdraws all instigators from an Evacuation that does not allow cancellation.
func (w *world) leaveForbidden(*rapid.T) {
	w.e.Finalizers = slices.DeleteFunc(w.e.Finalizers, func(finalizer string) bool { return finalizer != foreign })
	evacuation.Withdraw(w.e)
}

func (w *world) userDeletes(*rapid.T) {
	w.delete()
}

func (w *world) podTerminates(*rapid.T) {
	w.pod.Terminating = true
}

func (w *world) podEnds(r *rapid.T) {
	if rapid.Bool().Draw(r, "finished") && w.pod.Exists {
		w.pod.Finished = true
		return
	}
	w.pod = evacuation.Pod{Known: w.pod.Known, Type: w.pod.Type}
}

func (w *world) watchRestarts(*rapid.T) { w.pod.Known = false }

func (w *world) watchIsThere(*rapid.T) { w.pod.Known = true }

// limit sets or removes the limits of a maintenance.
func (w *world) limit(r *rapid.T) {
	w.limits = nil
	if rapid.Bool().Draw(r, "built-in only") {
		builtIn := rapid.SampledFrom([][]string{nil, {"a"}, {"c", "d"}}).Draw(r, "built in")
		w.hasLimited = true
		w.limits = &evacuation.Limits{ProgressDeadline: 10 * time.Minute}
		for _, class := range builtIn {
			w.limits.BuiltIn = append(w.limits.BuiltIn, v1alpha1.Evacuator{EvacuatorClass: class})
		}
	}
}

func (w *world) drainsTime(r *rapid.T) {
	w.drainEnds = nil
	if rapid.Bool().Draw(r, "limited") {
		ends := w.now.Add(time.Duration(rapid.IntRange(-5, 120).Draw(r, "minutes left")) * time.Minute)
		w.drainEnds = &ends
	}
}

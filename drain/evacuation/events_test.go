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

// event is something that may happen in a fixture.
type event struct {
	name     string
	possible bool
	happens  func(*rapid.T)
}

// usual returns the events that occur often.
func (f *fixture) usual() []event {
	exists := f.e != nil
	active := exists && f.e.Status.ActiveEvacuatorClass != nil
	evicting := f.evicting()
	alive := exists && f.e.DeletionTimestamp == nil
	awaited := f.last.Deadline.After(f.now)
	return []event{
		{"leave, forbidden", alive && f.forbidsCancellation(), f.leaveForbidden},
		{"cancellation policy", active, f.policy},
		{"completion", active, f.completion},
		{"progress", active, f.progress},
		{"progress in the future", active, f.progressInFuture},
		{"a budget allows no disruptions", evicting, f.budgetIsExhausted},
		{"an eviction is refused", evicting, f.evictionIsRefused},
		{"reconcile in time", exists && awaited, func(r *rapid.T) { f.deadlinePasses(r); f.reconcile(r) }},
		{"reconcile", exists, f.reconcile},
		{"reconcile, once more", exists, f.reconcile},
		{"join", alive, f.join},
		{"the deadline passes", awaited, f.deadlinePasses},
		{"the pause ends", f.paused, func(*rapid.T) { f.paused = false }},
		{"the watch is there", !f.pod.Known, f.watchIsThere},
		{"the drain's time", exists, f.drainsTime},
		{"time passes", true, f.timePasses},
		{"a maintenance allows built-in evacuators only", exists, f.limit},
		{"the surge policy is edited", exists, func(*rapid.T) { f.surges = !f.surges }},
	}
}

// seldom returns the events that end an Evacuation early, so they occur rarely.
func (f *fixture) seldom() []event {
	exists := f.e != nil
	return []event{
		{"an eviction works", f.evicting(), f.evictionWorks},
		{"an eviction works, once more", f.evicting(), f.evictionWorks},
		{"leave", exists, f.leave},
		{"a user deletes", exists && !f.forbidsCancellation(), f.userDeletes},
		{"the Pod terminates", f.pod.Exists, f.podTerminates},
		{"the Pod ends", true, f.podEnds},
		{"a pause begins", !f.paused, func(*rapid.T) { f.paused = true }},
		{"the watch restarts", true, f.watchRestarts},
	}
}

func (f *fixture) evicting() bool { return f.e != nil && f.next().Kind == evacuation.Evict }

// happen executes one of the events that are possible now. rapid draws the first ones of a list more often than the last.
func (f *fixture) happen(r *rapid.T) {
	const often = 63 // so that most Evacuations exist for many events
	events := f.usual()
	if rapid.IntRange(0, often).Draw(r, "seldom") == often {
		events = f.seldom()
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
func (f *fixture) timePasses(r *rapid.T) {
	step := time.Duration(rapid.IntRange(0, 1200).Draw(r, "seconds")) * time.Second
	if left := f.last.Deadline.Sub(f.now); left > 0 && rapid.Bool().Draw(r, "close to the deadline") {
		step = max(0, left-time.Duration(rapid.IntRange(1, 120).Draw(r, "seconds before"))*time.Second)
	}
	f.now = f.now.Add(step)
}

func (f *fixture) deadlinePasses(*rapid.T) {
	f.now = f.last.Deadline
}

// evacuatorWrites is a write to the status by the active evacuator.
func (f *fixture) evacuatorWrites(r *rapid.T, change func(*v1alpha1.EvacuationStatus)) {
	changed := f.e.DeepCopy()
	change(&changed.Status)
	f.store(r, changed)
}

func (f *fixture) progress(r *rapid.T) {
	f.evacuatorWrites(r, func(s *v1alpha1.EvacuationStatus) {
		f.skew = time.Duration(rapid.Int64Range(0, int64(evacuation.ClockSkew)).Draw(r, "skew"))
		skewed := metav1.NewTime(f.now.Add(f.skew))
		s.EvacuationProgressTimestamp = &skewed
		s.Message = fmt.Sprintf("at it since %s", skewed)
		f.progressAt, f.unseenWrite, f.inFuture = f.now, true, false
	})
}

func (f *fixture) progressInFuture(r *rapid.T) {
	f.evacuatorWrites(r, func(s *v1alpha1.EvacuationStatus) {
		future := metav1.NewTime(f.now.AddDate(10, 0, 0))
		s.EvacuationProgressTimestamp = &future
		f.progressAt, f.skew, f.unseenWrite, f.inFuture = f.now, 0, true, true
	})
}

func (f *fixture) completion(r *rapid.T) {
	f.evacuatorWrites(r, func(s *v1alpha1.EvacuationStatus) { s.ActiveEvacuatorCompleted = true })
}

func (f *fixture) policy(r *rapid.T) {
	policy := rapid.SampledFrom([]v1alpha1.EvacuationCancellationPolicy{v1alpha1.CancellationAllow, v1alpha1.CancellationForbid}).Draw(r, "policy")
	f.evacuatorWrites(r, func(s *v1alpha1.EvacuationStatus) { s.EvacuationCancellationPolicy = policy })
}

// evicts acts as the evictor: it writes the action together with what the eviction waits for, in one write.
func (f *fixture) evicts(r *rapid.T, tell func(*v1alpha1.Evacuation)) {
	action := f.next()
	f.observe(r, action)
	changed := f.e.DeepCopy()
	action.Apply(changed, f.now)
	tell(changed)
	if !meta.IsStatusConditionTrue(changed.Status.Conditions, v1alpha1.EvacuationEvicting) {
		r.Fatal("E14: evicts without the condition Evicting")
	}
	f.store(r, changed)
	f.remember(action)
	if again := f.next(); again.Kind != evacuation.Evict {
		r.Fatalf("E14: a write of the evictor ends the eviction: %s", again.Kind)
	}
}

func (f *fixture) budgetIsExhausted(r *rapid.T) {
	why := rapid.SampledFrom([]string{"BudgetExhausted", "BlockedByUnhealthyPods", "MultipleBudgets"}).Draw(r, "why")
	f.evicts(r, func(e *v1alpha1.Evacuation) { evacuation.Waiting(e, why, "waiting: "+why) })
}

func (f *fixture) evictionIsRefused(r *rapid.T) {
	f.evicts(r, func(e *v1alpha1.Evacuation) {
		before := e.Status.FailedEvictionCounter
		evacuation.Refused(e, v1alpha1.ReasonAdmissionRefused, "not now", f.now)
		if e.Status.FailedEvictionCounter != before+1 {
			r.Fatalf("E14: counted %d, then %d", before, e.Status.FailedEvictionCounter)
		}
	})
}

func (f *fixture) evictionWorks(r *rapid.T) {
	f.evicts(r, func(*v1alpha1.Evacuation) {})
	f.pod.Terminating = true
}

func (f *fixture) join(r *rapid.T) {
	if who := rapid.SampledFrom([]string{ours, theirs, foreign}).Draw(r, "who"); !slices.Contains(f.e.Finalizers, who) {
		f.e.Finalizers = append(f.e.Finalizers, who)
	}
}

func (f *fixture) leave(r *rapid.T) {
	who := rapid.SampledFrom([]string{ours, theirs, foreign}).Draw(r, "who")
	f.e.Finalizers = slices.DeleteFunc(f.e.Finalizers, func(finalizer string) bool { return finalizer == who })
	if who == ours {
		evacuation.Withdraw(f.e)
	}
	f.collect()
}

// leaveForbidden withdraws all instigators from an Evacuation that does not allow cancellation.
func (f *fixture) leaveForbidden(*rapid.T) {
	f.e.Finalizers = slices.DeleteFunc(f.e.Finalizers, func(finalizer string) bool { return finalizer != foreign })
	evacuation.Withdraw(f.e)
}

func (f *fixture) userDeletes(*rapid.T) {
	f.delete()
}

func (f *fixture) podTerminates(*rapid.T) {
	f.pod.Terminating = true
}

func (f *fixture) podEnds(r *rapid.T) {
	if rapid.Bool().Draw(r, "finished") && f.pod.Exists {
		f.pod.Finished = true
		return
	}
	f.pod = evacuation.Pod{Known: f.pod.Known, Type: f.pod.Type}
}

func (f *fixture) watchRestarts(*rapid.T) { f.pod.Known = false }

func (f *fixture) watchIsThere(*rapid.T) { f.pod.Known = true }

// limit sets or removes the limits of a maintenance.
func (f *fixture) limit(r *rapid.T) {
	f.limits = nil
	if rapid.Bool().Draw(r, "built-in only") {
		builtIn := rapid.SampledFrom([][]string{nil, {"a"}, {"c", "d"}}).Draw(r, "built in")
		f.hasLimited = true
		f.limits = &evacuation.Limits{ProgressDeadline: 10 * time.Minute}
		for _, class := range builtIn {
			f.limits.BuiltIn = append(f.limits.BuiltIn, v1alpha1.Evacuator{EvacuatorClass: class})
		}
	}
}

func (f *fixture) drainsTime(r *rapid.T) {
	f.drainEnds = nil
	if rapid.Bool().Draw(r, "limited") {
		ends := f.now.Add(time.Duration(rapid.IntRange(-5, 120).Draw(r, "minutes left")) * time.Minute)
		f.drainEnds = &ends
	}
}

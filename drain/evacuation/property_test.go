package evacuation_test

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

func init() {
	// More than rapid's 100, since the interesting lives are long. The flag still counts.
	if err := flag.Set("rapid.checks", "400"); err != nil {
		panic(err)
	}
}

// TestLifeOfAnEvacuation drives Evacuations through whatever evacuators, instigators, users, Pods, budgets and clocks may do, in
// any order, with writes that get lost and managers that are killed between two of them, and holds Next and Apply to what they
// promise: one evacuator is active at a time and each once, nobody is evicted while one makes progress, there is always somebody
// who can go on, and a clean end.
func TestLifeOfAnEvacuation(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(t, r)
		seldom := []func(*rapid.T){w.leave, w.userDeletes, w.podTerminates, w.podEnds, w.watchRestarts}
		r.Repeat(map[string]func(*rapid.T){
			"":                       w.check,
			"reconcile":              w.reconcile,
			"reconcile, once more":   w.reconcile,
			"reconcile in time":      func(r *rapid.T) { w.deadlinePasses(r); w.reconcile(r) },
			"time passes":            w.timePasses,
			"the deadline passes":    w.deadlinePasses,
			"progress":               w.progress,
			"progress in the future": w.progressInFuture,
			"completion":             w.completion,
			"cancellation policy":    w.policy,
			"the drain's time":       w.drainsTime,
			"a budget has no room":   w.budgetHasNoRoom,
			"an eviction is refused": w.evictionIsRefused,
			"an eviction works":      w.evictionWorks,
			"join":                   w.join,
			"leave, forbidden":       w.leaveForbidden,
			"the watch is there":     func(*rapid.T) { w.pod.Known = true },
			// What shortens a life is rare, so that most lives are long.
			"seldom": func(r *rapid.T) {
				if event := rapid.IntRange(0, 3*len(seldom)).Draw(r, "event"); event < len(seldom) {
					seldom[event](r)
				}
			},
		})
		w.mustEnd(r)
	})
}

// world is an API server with one Evacuation and its Pod, and a memory of what has happened.
type world struct {
	t         testing.TB
	e         *v1alpha1.Evacuation // nil: it is gone
	pod       evacuation.Pod
	resolved  []v1alpha1.Evacuator
	drainEnds *time.Time
	now       time.Time

	last        evacuation.Action
	turns       []string      // who has had a turn
	progressAt  time.Time     // when the active evacuator, or its activation, has last written
	progressed  time.Time     // when that was first seen by Next
	skew        time.Duration // by how much its clock is fast
	unseenWrite bool
	inFuture    bool
}

func newWorld(t testing.TB, r *rapid.T) *world {
	t.Helper()
	names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b.example.com", "c", "d", "e"}), 0, 4, rapid.ID).Draw(r, "classes")
	var list []v1alpha1.Evacuator
	for _, class := range names {
		list = append(list, v1alpha1.Evacuator{EvacuatorClass: class, Priority: rapid.Int32Range(0, 3).Draw(r, "priority")})
	}
	ours := rapid.Bool().Draw(r, "created resolved")
	podName := rapid.StringMatching(`[a-z]([-a-z0-9]{0,120}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,120}[a-z0-9])?)?`).Draw(r, "Pod")
	w := &world{
		t:        t,
		now:      noon,
		resolved: list,
		pod: evacuation.Pod{Known: rapid.IntRange(0, 4).Draw(r, "known") > 0, Exists: rapid.IntRange(0, 19).Draw(r, "exists") > 0,
			Type:        rapid.SampledFrom([]v1alpha1.PodType{v1alpha1.PodTypeDefault, v1alpha1.PodTypeDefault, daemonSet, static}).Draw(r, "type"),
			GracePeriod: time.Duration(rapid.SampledFrom([]int{0, 30, 3600}).Draw(r, "grace period")) * time.Second},
	}
	w.e = evacuation.New(podNamed(podName), nil, rapid.SampledFrom([]int32{600, 1800, 21600}).Draw(r, "deadline"))
	if ours {
		w.e.Spec.Evacuators = list
	}
	if rapid.Bool().Draw(r, "foreign finalizer") {
		w.e.Finalizers = append(w.e.Finalizers, foreign)
	}
	w.e.CreationTimestamp = metav1.NewTime(noon)
	mustBeValid(t, w.e, nil)

	// Many lives begin in the middle, when some evacuators have had their turns in silence.
	for range rapid.IntRange(0, len(list)+2).Draw(r, "silent turns") {
		w.reconcile(r)
		if w.last.Deadline.After(w.now) {
			w.now = w.last.Deadline
		}
	}
	return w
}

func (w *world) next() evacuation.Action {
	before := toJSON(w.t, w.e)
	action := evacuation.Next(evacuation.Input{Evacuation: w.e, Pod: w.pod, ResolvedEvacuators: w.resolved, DrainEnds: w.drainEnds, Now: w.now})
	if toJSON(w.t, w.e) != before {
		w.t.Fatal("Next has changed its input")
	}
	return action
}

// reconcile is the controller: it applies what Next says until there is nothing more to do, or a write is lost.
func (w *world) reconcile(r *rapid.T) {
	for range 4 {
		if w.e == nil {
			return
		}
		action := w.next()
		w.observe(r, action)
		w.last = action
		changed := w.e.DeepCopy()
		action.Apply(changed, w.now)
		succeed := rapid.IntRange(0, 9).Draw(r, "writes that succeed")
		if written := w.write(r, action, changed, succeed); !written || succeed < 3 {
			return
		}
	}
	if w.e != nil {
		r.Fatalf("it doesn't settle: still %s", w.last.Kind)
	}
}

// write is the three writes of a controller, of which the last ones may get lost. It says whether anything was to be written.
func (w *world) write(r *rapid.T, action evacuation.Action, changed *v1alpha1.Evacuation, succeed int) bool {
	status := w.e.DeepCopy()
	changed.Status.DeepCopyInto(&status.Status)
	differs := toJSON(w.t, status) != toJSON(w.t, w.e)
	if differs {
		if succeed == 0 {
			return false
		}
		w.store(r, status)
		w.remember(action)
	}
	if action.Delete {
		if succeed <= 1 {
			return true
		}
		if forbidsDelete := w.e.Status.EvacuationCancellationPolicy == v1alpha1.CancellationForbid; forbidsDelete {
			r.Fatalf("%s: a DELETE that is refused", action.Kind)
		}
		w.delete()
	}
	if w.e == nil || succeed <= 2 {
		return differs || action.Delete
	}
	rest := w.e.DeepCopy()
	rest.Finalizers, rest.Spec = changed.Finalizers, changed.Spec
	if toJSON(w.t, rest) == toJSON(w.t, w.e) {
		return differs || action.Delete
	}
	w.store(r, rest)
	w.collect()
	return true
}

// store is an update that the API server takes.
func (w *world) store(r *rapid.T, changed *v1alpha1.Evacuation) {
	if errs := validate(w.t, changed, w.e); len(errs) > 0 {
		r.Fatalf("the API server refuses it: %v", errs.ToAggregate())
	}
	w.e = stored(w.t, changed)
}

func (w *world) delete() {
	if w.e.DeletionTimestamp == nil {
		now := metav1.NewTime(w.now)
		w.e.DeletionTimestamp = &now
	}
	w.collect()
}

func (w *world) collect() {
	if w.e.DeletionTimestamp != nil && len(w.e.Finalizers) == 0 {
		w.e = nil
	}
}

// observe holds an action to what is promised for it.
func (w *world) observe(r *rapid.T, a evacuation.Action) {
	if w.unseenWrite {
		// A timestamp in the future counts as now until it has been written back.
		w.progressed, w.unseenWrite = w.now, w.inFuture
	}
	if a.Message == "" {
		r.Fatalf("%s has no message", a.Kind)
	}
	switch a.Kind {
	case evacuation.Evict:
		w.mayEvict(r)
	case evacuation.AwaitEvacuator:
		w.mayAwaitEvacuator(r, a)
	case evacuation.Activate:
		w.mayActivate(r, a)
	case evacuation.AwaitPod, evacuation.AwaitTermination, evacuation.AwaitForbidden, evacuation.Done:
		if !a.Deadline.IsZero() {
			r.Fatalf("%s has a deadline", a.Kind)
		}
	case evacuation.Cancel:
		if w.asked() || w.e.Status.EvacuationCancellationPolicy == v1alpha1.CancellationForbid {
			r.Fatalf("E9: cancelled, asked for by %v, policy %s", w.e.Finalizers, w.e.Status.EvacuationCancellationPolicy)
		}
	case evacuation.Finish, evacuation.Fail:
		if !w.pod.Known || (w.pod.Exists && !w.pod.Finished) {
			r.Fatalf("E16: it ends, but the Pod runs: %+v", w.pod)
		}
	case evacuation.ResolveEvacuators:
		if len(w.e.Spec.Evacuators) > 0 || len(w.turns) > 0 {
			r.Fatalf("E13: resolved again")
		}
	default:
		r.Fatalf("unknown kind %q", a.Kind)
	}
}

func (w *world) asked() bool { return len(evacuation.Instigators(w.e)) > 0 }

func (w *world) deadline() time.Duration {
	return time.Duration(w.e.Spec.ProgressDeadlineSeconds) * time.Second
}

// inTime says whether there is an active evacuator that has made progress in time. A second is lost to rounding.
func (w *world) inTime() bool {
	return w.e.Status.ActiveEvacuatorClass != nil && !w.e.Status.ActiveEvacuatorCompleted && w.now.Before(w.progressAt.Add(w.deadline()-time.Second))
}

func (w *world) mayEvict(r *rapid.T) {
	if w.pod.Type != v1alpha1.PodTypeDefault || w.pod.Terminating || w.pod.Finished || !w.pod.Exists || !w.pod.Known || !w.asked() {
		r.Fatalf("E15: a Pod is evicted that must not be: %+v", w.pod)
	}
	if w.inTime() && !w.drainIsOver() {
		r.Fatalf("E14: evicted at %s although %s has made progress at %s", w.now, *w.e.Status.ActiveEvacuatorClass, w.progressAt)
	}
	if untried := len(w.e.Spec.Evacuators) - len(w.turns); untried > 0 && !w.drainIsOver() {
		r.Fatalf("E14: evicted although %d evacuators are left", untried)
	}
}

func (w *world) mayAwaitEvacuator(r *rapid.T, a evacuation.Action) {
	if w.e.Status.ActiveEvacuatorCompleted || *w.e.Status.ActiveEvacuatorClass != a.Class {
		r.Fatalf("E12: waits for %s, whose turn it isn't", a.Class)
	}
	if !w.now.Before(w.progressed.Add(w.deadline() + w.skew)) {
		r.Fatalf("E12: %s is waited for at %s, silent since %s", a.Class, w.now, w.progressed)
	}
	if !a.Deadline.After(w.now) || a.Deadline.After(w.now.Add(w.deadline()+evacuation.ClockSkew)) {
		r.Fatalf("E12: waits from %s until %s", w.now, a.Deadline)
	}
	w.mustHaveTime(r, a)
}

func (w *world) mayActivate(r *rapid.T, a evacuation.Action) {
	if slices.Contains(w.turns, a.Class) {
		r.Fatalf("E12: the turn of %s comes twice, after %v", a.Class, w.turns)
	}
	if !a.Deadline.After(w.now) || !w.asked() {
		r.Fatalf("E11: a turn from %s until %s", w.now, a.Deadline)
	}
	if w.inTime() {
		r.Fatalf("E12: the turn of %s is cut short, it has made progress at %s", *w.e.Status.ActiveEvacuatorClass, w.progressAt)
	}
	w.mustHaveTime(r, a)
}

func (w *world) mustHaveTime(r *rapid.T, a evacuation.Action) {
	if w.pod.Type != v1alpha1.PodTypeDefault || w.drainEnds == nil {
		return
	}
	if w.drainIsOver() || a.Deadline.After(w.drainEnds.Add(-evacuation.EvictionMargin-w.pod.GracePeriod)) {
		r.Fatalf("E14: %s until %s, but the drain ends at %s", a.Kind, a.Deadline, w.drainEnds)
	}
}

// remember what was written to the status.
func (w *world) remember(a evacuation.Action) {
	if a.Kind == evacuation.AwaitEvacuator {
		w.unseenWrite, w.inFuture = false, false
	}
	if a.Kind == evacuation.Activate {
		w.turns = append(w.turns, a.Class)
		w.progressAt, w.progressed, w.skew, w.unseenWrite = w.now, w.now, 0, false
	}
}

func (w *world) drainIsOver() bool {
	return w.drainEnds != nil && !w.now.Before(w.drainEnds.Add(-evacuation.EvictionMargin-w.pod.GracePeriod))
}

// check holds at every moment.
func (w *world) check(r *rapid.T) {
	if w.e == nil {
		return
	}
	// Applied twice, an action does what it does once, also when the clock has moved on a little.
	action := w.next()
	once := w.e.DeepCopy()
	action.Apply(once, w.now)
	once = stored(w.t, once)
	twice := once.DeepCopy()
	action.Apply(twice, w.now.Add(time.Second))
	if toJSON(w.t, once) != toJSON(w.t, twice) {
		r.Fatalf("%s is not idempotent:\n%s\n%s", action.Kind, toJSON(w.t, once), toJSON(w.t, twice))
	}
	evicting := meta.IsStatusConditionTrue(once.Status.Conditions, v1alpha1.EvacuationEvicting)
	switch action.Kind {
	case evacuation.Evict:
		if !evicting {
			r.Fatal("E14: evicts, and doesn't show it")
		}
	case evacuation.AwaitEvacuator, evacuation.Activate, evacuation.AwaitForbidden:
		if evicting {
			r.Fatalf("E14: %s, and shows that it evicts", action.Kind)
		}
	}
	if policy := once.Status.EvacuationCancellationPolicy; policy != w.e.Status.EvacuationCancellationPolicy && action.Kind != evacuation.Finish && action.Kind != evacuation.Fail {
		r.Fatalf("E11: %s resets the cancellation policy to %s", action.Kind, policy)
	}
}

// mustEnd lets the Pod go, and others remove their finalizers, and then there has to be an end.
func (w *world) mustEnd(r *rapid.T) {
	w.pod = evacuation.Pod{Known: true, Type: w.pod.Type}
	for range 3 {
		if w.e == nil {
			return
		}
		action := w.next()
		w.observe(r, action)
		if action.Kind == evacuation.Done {
			if !slices.Equal(w.e.Finalizers, []string{foreign}) || w.e.Status.EvacuationCancellationPolicy == v1alpha1.CancellationForbid {
				r.Fatalf("E8: done with %v, policy %s", w.e.Finalizers, w.e.Status.EvacuationCancellationPolicy)
			}
			return
		}
		changed := w.e.DeepCopy()
		action.Apply(changed, w.now)
		w.write(r, action, changed, 3)
	}
	if w.e != nil {
		r.Fatalf("E8: the Pod is gone and there is no end: %s", toJSON(w.t, w.e))
	}
}

// timePasses in steps that matter beside a progress deadline of ten minutes or more; often it comes close to the deadline.
func (w *world) timePasses(r *rapid.T) {
	step := time.Duration(rapid.IntRange(0, 1200).Draw(r, "seconds")) * time.Second
	if left := w.last.Deadline.Sub(w.now); left > 0 && rapid.Bool().Draw(r, "close to the deadline") {
		step = max(0, left-time.Duration(rapid.IntRange(1, 120).Draw(r, "seconds before"))*time.Second)
	}
	w.now = w.now.Add(step)
}

func (w *world) deadlinePasses(r *rapid.T) {
	if !w.last.Deadline.After(w.now) {
		r.Skip("nothing has a deadline")
	}
	w.now = w.last.Deadline
}

// evacuatorWrites is a write to the status by the active evacuator.
func (w *world) evacuatorWrites(r *rapid.T, change func(*v1alpha1.EvacuationStatus)) {
	if w.e == nil || w.e.Status.ActiveEvacuatorClass == nil {
		r.Skip("nobody is active")
	}
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

// evicts says what the evictor does, if it is its turn: it stores what it waits for together with the turn.
func (w *world) evicts(r *rapid.T, tell func(*v1alpha1.Evacuation)) {
	if w.e == nil || w.next().Kind != evacuation.Evict {
		r.Skip("nobody is evicted")
	}
	action := w.next()
	w.observe(r, action)
	changed := w.e.DeepCopy()
	action.Apply(changed, w.now)
	tell(changed)
	if !meta.IsStatusConditionTrue(changed.Status.Conditions, v1alpha1.EvacuationEvicting) {
		r.Fatal("E14: evicts, and doesn't show it")
	}
	w.store(r, changed)
	w.remember(action)
	if again := w.next(); again.Kind != evacuation.Evict {
		r.Fatalf("E14: what is told of an eviction ends it: %s", again.Kind)
	}
}

func (w *world) budgetHasNoRoom(r *rapid.T) {
	why := rapid.SampledFrom([]string{"BudgetExhausted", "BlockedByUnhealthyPods", "MultipleBudgets"}).Draw(r, "why")
	w.evicts(r, func(e *v1alpha1.Evacuation) { evacuation.Waiting(e, why, "waiting: "+why) })
}

func (w *world) evictionIsRefused(r *rapid.T) {
	w.evicts(r, func(e *v1alpha1.Evacuation) {
		before := e.Status.FailedEvictionCounter
		evacuation.Refused(e, v1alpha1.ReasonAdmissionRefused, "not now")
		if e.Status.FailedEvictionCounter != before+1 {
			r.Fatalf("E14: counted %d, then %d", before, e.Status.FailedEvictionCounter)
		}
	})
}

func (w *world) evictionWorks(r *rapid.T) {
	if rapid.IntRange(0, 3).Draw(r, "seldom") > 0 {
		r.Skip("not yet")
	}
	w.evicts(r, func(*v1alpha1.Evacuation) {})
	w.pod.Terminating = true
}

func (w *world) join(r *rapid.T) {
	if w.e == nil || w.e.DeletionTimestamp != nil {
		r.Skip("nobody can join")
	}
	w.e.Finalizers = evacuation.WithInstigator(w.e.Finalizers, rapid.SampledFrom([]string{ours, theirs, foreign}).Draw(r, "who"))
}

func (w *world) leave(r *rapid.T) {
	if w.e == nil {
		r.Skip("it is gone")
	}
	w.e.Finalizers = evacuation.WithoutInstigator(w.e.Finalizers, rapid.SampledFrom([]string{ours, theirs, foreign}).Draw(r, "who"))
	w.collect()
}

// leaveForbidden withdraws all instigators, where that doesn't end the Evacuation.
func (w *world) leaveForbidden(r *rapid.T) {
	if w.e == nil || w.e.DeletionTimestamp != nil || w.e.Status.EvacuationCancellationPolicy != v1alpha1.CancellationForbid {
		r.Skip("not forbidden")
	}
	w.e.Finalizers = evacuation.WithoutInstigators(w.e.Finalizers)
}

func (w *world) userDeletes(r *rapid.T) {
	if w.e == nil || w.e.Status.EvacuationCancellationPolicy == v1alpha1.CancellationForbid {
		r.Skip("can't be deleted")
	}
	w.delete()
}

func (w *world) podTerminates(r *rapid.T) {
	if !w.pod.Exists {
		r.Skip("there is no Pod")
	}
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

func (w *world) drainsTime(r *rapid.T) {
	w.drainEnds = nil
	if rapid.Bool().Draw(r, "limited") {
		ends := w.now.Add(time.Duration(rapid.IntRange(-5, 120).Draw(r, "minutes left")) * time.Minute)
		w.drainEnds = &ends
	}
}

// TestWrites counts what a Pod that is plainly evicted costs its Evacuation: a status write, a DELETE, the finalizers.
func TestWrites(t *testing.T) {
	g := anEvacuation()
	var writes []string
	for _, change := range []func(*evacuation.Pod){
		unknown,
		func(p *evacuation.Pod) { p.Known, p.Exists = true, true },
		func(*evacuation.Pod) {}, // evicted, again and again
		terminating,
		func(p *evacuation.Pod) { *p = evacuation.Pod{Known: true} },
	} {
		g.pod(change)
		before := g.Evacuation.DeepCopy()
		action := g.next(t)
		g.apply(t)
		if toJSON(t, &v1alpha1.Evacuation{Status: before.Status}) != toJSON(t, &v1alpha1.Evacuation{Status: g.Evacuation.Status}) {
			writes = append(writes, "status")
		}
		if action.Delete {
			writes = append(writes, "delete")
		}
		if !slices.Equal(before.Finalizers, g.Evacuation.Finalizers) {
			writes = append(writes, "finalizers")
		}
	}
	if want := []string{"status", "delete", "finalizers"}; !slices.Equal(writes, want) {
		t.Errorf("got %v, want %v", writes, want)
	}
}

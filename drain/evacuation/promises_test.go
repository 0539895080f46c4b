package evacuation_test

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

// observe verifies the guarantees for an action.
func (w *world) observe(r *rapid.T, a evacuation.Action) {
	if w.unseenWrite {
		// A timestamp in the future counts as now until it has been written back.
		w.progressed, w.unseenWrite = w.now, w.inFuture
	}
	if a.Message == "" {
		r.Fatalf("%s has no message", a.Kind)
	}
	begins := a.Kind == evacuation.Evict || a.Kind == evacuation.Activate || a.Kind == evacuation.ResolveEvacuators
	if begins && w.rests() {
		r.Fatalf("M16: %s, while the Machine is paused", a.Kind)
	}
	switch a.Kind {
	case evacuation.Evict:
		w.mayEvict(r)
	case evacuation.AwaitEvacuator:
		w.mayAwaitEvacuator(r, a)
	case evacuation.Activate:
		w.mayActivate(r, a)
	case evacuation.AwaitPod, evacuation.AwaitTermination, evacuation.Done:
		if !a.Deadline.IsZero() {
			r.Fatalf("%s has a deadline", a.Kind)
		}
		if a.Kind == evacuation.Done && w.forbidsCancellation() && w.pod.Exists && !w.pod.Finished {
			r.Fatal("E31: done although cancellation is not allowed and the Pod runs")
		}
	case evacuation.AwaitResume:
		if !w.rests() || !w.pod.Exists || w.pod.Finished || w.pod.Terminating {
			r.Fatalf("M16: deferred although not paused, or not needed: Pod %+v", w.pod)
		}
	case evacuation.Cancel:
		if w.asked() || w.forbidsCancellation() {
			r.Fatalf("E9: cancelled with finalizers %v, policy %s", w.e.Finalizers, w.e.Status.EvacuationCancellationPolicy)
		}
	case evacuation.Finish, evacuation.Fail:
		if !w.pod.Known || (w.pod.Exists && !w.pod.Finished) {
			r.Fatalf("E16: ended although the Pod runs: %+v", w.pod)
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

// wanted reports whether the Evacuation must continue: it has an instigator, or cancellation is not allowed.
func (w *world) wanted() bool { return w.asked() || w.forbidsCancellation() }

func (w *world) deadline() time.Duration {
	return time.Duration(w.e.Spec.ProgressDeadlineSeconds) * time.Second
}

// inTime reports whether the active evacuator has made progress before its deadline. Rounding may cost a second.
func (w *world) inTime() bool {
	return w.limits == nil && w.e.Status.ActiveEvacuatorClass != nil && !w.e.Status.ActiveEvacuatorCompleted &&
		w.now.Before(w.progressAt.Add(w.deadline()-time.Second))
}

func (w *world) mayEvict(r *rapid.T) {
	if w.pod.Type != v1alpha1.PodTypeDefault || w.pod.Terminating || w.pod.Finished || !w.pod.Exists || !w.pod.Known || !w.wanted() {
		r.Fatalf("E15: evicted a Pod that must not be evicted: %+v", w.pod)
	}
	if w.inTime() && !w.drainIsOver() {
		r.Fatalf("E14: evicted at %s although %s has made progress at %s", w.now, *w.e.Status.ActiveEvacuatorClass, w.progressAt)
	}
	if untried := len(w.e.Spec.Evacuators) - len(w.turns); untried > 0 && !w.drainIsOver() && !w.hasLimited {
		r.Fatalf("E14: evicted although %d evacuators are left", untried)
	}
}

func (w *world) mustBeAllowed(r *rapid.T, a evacuation.Action) {
	allowed := func(evacuator v1alpha1.Evacuator) bool { return evacuator.EvacuatorClass == a.Class }
	if w.limits != nil && !slices.ContainsFunc(w.limits.BuiltIn, allowed) {
		r.Fatalf("E39: %s of %s, but only %v are allowed", a.Kind, a.Class, w.limits.BuiltIn)
	}
}

func (w *world) mayAwaitEvacuator(r *rapid.T, a evacuation.Action) {
	w.mustBeAllowed(r, a)
	if w.e.Status.ActiveEvacuatorCompleted || *w.e.Status.ActiveEvacuatorClass != a.Class {
		r.Fatalf("E12: waits for %s, which is not active", a.Class)
	}
	if !w.now.Before(w.progressed.Add(w.deadline() + w.skew)) {
		r.Fatalf("E12: waits for %s at %s, without progress since %s", a.Class, w.now, w.progressed)
	}
	if !a.Deadline.After(w.now) || a.Deadline.After(w.now.Add(w.deadline()+evacuation.ClockSkew)) {
		r.Fatalf("E12: waits from %s until %s", w.now, a.Deadline)
	}
	w.mustHaveTime(r, a)
}

func (w *world) mayActivate(r *rapid.T, a evacuation.Action) {
	w.mustBeAllowed(r, a)
	if slices.Contains(w.turns, a.Class) && (a.Class != v1alpha1.EvacuatorClassDaemonSet || w.pod.Type != v1alpha1.PodTypeDaemonSet) {
		r.Fatalf("E12: activates %s again, after %v", a.Class, w.turns)
	}
	if !a.Deadline.After(w.now) || !w.wanted() {
		r.Fatalf("E11: activates an evacuator from %s until %s", w.now, a.Deadline)
	}
	if w.inTime() {
		r.Fatalf("E12: replaces %s, which has made progress at %s", *w.e.Status.ActiveEvacuatorClass, w.progressAt)
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

// remember records what was written to the status.
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

// check verifies what holds after every event.
func (w *world) check(r *rapid.T) {
	if w.e == nil {
		return
	}
	// An action is idempotent, also if it is applied again a second later.
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
			r.Fatal("E14: evicts without the condition Evicting")
		}
	case evacuation.AwaitEvacuator, evacuation.Activate:
		if evicting {
			r.Fatalf("E14: %s with the condition Evicting", action.Kind)
		}
	}
	if policy := once.Status.EvacuationCancellationPolicy; policy != w.e.Status.EvacuationCancellationPolicy && action.Kind != evacuation.Finish &&
		action.Kind != evacuation.Fail {
		r.Fatalf("E11: %s resets the cancellation policy to %s", action.Kind, policy)
	}
}

// mustEnd deletes the Pod, and verifies that the Evacuation then ends, or waits for foreign finalizers only.
func (w *world) mustEnd(r *rapid.T) {
	w.pod = evacuation.Pod{Known: true, Type: w.pod.Type}
	for range 3 {
		if w.e == nil {
			return
		}
		action := w.next()
		w.observe(r, action)
		if action.Kind == evacuation.Done {
			if !slices.Equal(w.e.Finalizers, []string{foreign}) || w.forbidsCancellation() {
				r.Fatalf("E8: done with %v, policy %s", w.e.Finalizers, w.e.Status.EvacuationCancellationPolicy)
			}
			return
		}
		changed := w.e.DeepCopy()
		action.Apply(changed, w.now)
		w.write(r, action, changed, 3)
	}
	if w.e != nil {
		r.Fatalf("E8: the Pod is deleted, but the Evacuation does not end: %s", toJSON(w.t, w.e))
	}
}

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
func (f *fixture) observe(r *rapid.T, a evacuation.Action) {
	if f.unseenWrite {
		// A timestamp in the future counts as now until it has been written back.
		f.progressed, f.unseenWrite = f.now, f.inFuture
	}
	if a.Message == "" {
		r.Fatalf("%s has no message", a.Kind)
	}
	begins := a.Kind == evacuation.Evict || a.Kind == evacuation.Activate || a.Kind == evacuation.ResolveEvacuators
	if begins && f.rests() {
		r.Fatalf("M16: %s, while the Machine is paused", a.Kind)
	}
	switch a.Kind {
	case evacuation.Evict:
		f.mayEvict(r)
	case evacuation.AwaitEvacuator:
		f.mayAwaitEvacuator(r, a)
	case evacuation.Activate:
		f.mayActivate(r, a)
	case evacuation.AwaitPod, evacuation.AwaitTermination, evacuation.Done:
		if !a.Deadline.IsZero() {
			r.Fatalf("%s has a deadline", a.Kind)
		}
		if a.Kind == evacuation.Done && f.forbidsCancellation() && f.pod.Exists && !f.pod.Finished {
			r.Fatal("E31: done although cancellation is not allowed and the Pod runs")
		}
	case evacuation.AwaitResume:
		if !f.rests() || !f.pod.Exists || f.pod.Finished || f.pod.Terminating {
			r.Fatalf("M16: deferred although not paused, or not needed: Pod %+v", f.pod)
		}
	case evacuation.Cancel:
		if f.asked() || f.forbidsCancellation() {
			r.Fatalf("E9: cancelled with finalizers %v, policy %s", f.e.Finalizers, f.e.Status.EvacuationCancellationPolicy)
		}
	case evacuation.Finish, evacuation.Fail:
		if !f.pod.Known || (f.pod.Exists && !f.pod.Finished) {
			r.Fatalf("E16: ended although the Pod runs: %+v", f.pod)
		}
	case evacuation.ResolveEvacuators:
		if len(f.e.Spec.Evacuators) > 0 || len(f.turns) > 0 {
			r.Fatalf("E13: resolved again")
		}
	default:
		r.Fatalf("unknown kind %q", a.Kind)
	}
}

func (f *fixture) asked() bool { return len(evacuation.Instigators(f.e)) > 0 }

// wanted reports whether the Evacuation must continue: it has an instigator, or cancellation is not allowed.
func (f *fixture) wanted() bool { return f.asked() || f.forbidsCancellation() }

func (f *fixture) deadline() time.Duration {
	return time.Duration(f.e.Spec.ProgressDeadlineSeconds) * time.Second
}

// inTime reports whether the active evacuator has made progress before its deadline. Rounding may cost a second.
func (f *fixture) inTime() bool {
	return f.limits == nil && f.e.Status.ActiveEvacuatorClass != nil && !f.e.Status.ActiveEvacuatorCompleted &&
		f.now.Before(f.progressAt.Add(f.deadline()-time.Second))
}

func (f *fixture) mayEvict(r *rapid.T) {
	if f.pod.Type != v1alpha1.PodTypeDefault || f.pod.Terminating || f.pod.Finished || !f.pod.Exists || !f.pod.Known || !f.wanted() {
		r.Fatalf("E15: evicted a Pod that must not be evicted: %+v", f.pod)
	}
	if f.inTime() && !f.drainIsOver() {
		r.Fatalf("E14: evicted at %s although %s has made progress at %s", f.now, *f.e.Status.ActiveEvacuatorClass, f.progressAt)
	}
	if untried := len(f.e.Spec.Evacuators) - len(f.turns); untried > 0 && !f.drainIsOver() && !f.hasLimited {
		r.Fatalf("E14: evicted although %d evacuators are left", untried)
	}
}

func (f *fixture) mustBeAllowed(r *rapid.T, a evacuation.Action) {
	allowed := func(evacuator v1alpha1.Evacuator) bool { return evacuator.EvacuatorClass == a.Class }
	if f.limits != nil && !slices.ContainsFunc(f.limits.BuiltIn, allowed) {
		r.Fatalf("E39: %s of %s, but only %v are allowed", a.Kind, a.Class, f.limits.BuiltIn)
	}
}

func (f *fixture) mayAwaitEvacuator(r *rapid.T, a evacuation.Action) {
	f.mustBeAllowed(r, a)
	if f.e.Status.ActiveEvacuatorCompleted || *f.e.Status.ActiveEvacuatorClass != a.Class {
		r.Fatalf("E12: waits for %s, which is not active", a.Class)
	}
	if !f.now.Before(f.progressed.Add(f.deadline() + f.skew)) {
		r.Fatalf("E12: waits for %s at %s, without progress since %s", a.Class, f.now, f.progressed)
	}
	if !a.Deadline.After(f.now) || a.Deadline.After(f.now.Add(f.deadline()+evacuation.ClockSkew)) {
		r.Fatalf("E12: waits from %s until %s", f.now, a.Deadline)
	}
	f.mustHaveTime(r, a)
}

func (f *fixture) mayActivate(r *rapid.T, a evacuation.Action) {
	f.mustBeAllowed(r, a)
	if slices.Contains(f.turns, a.Class) && (a.Class != v1alpha1.EvacuatorClassDaemonSet || f.pod.Type != v1alpha1.PodTypeDaemonSet) {
		r.Fatalf("E12: activates %s again, after %v", a.Class, f.turns)
	}
	if !a.Deadline.After(f.now) || !f.wanted() {
		r.Fatalf("E11: activates an evacuator from %s until %s", f.now, a.Deadline)
	}
	if f.inTime() {
		r.Fatalf("E12: replaces %s, which has made progress at %s", *f.e.Status.ActiveEvacuatorClass, f.progressAt)
	}
	f.mustHaveTime(r, a)
}

func (f *fixture) mustHaveTime(r *rapid.T, a evacuation.Action) {
	if f.pod.Type != v1alpha1.PodTypeDefault || f.drainEnds == nil {
		return
	}
	if f.drainIsOver() || a.Deadline.After(f.drainEnds.Add(-evacuation.EvictionMargin-f.pod.GracePeriod)) {
		r.Fatalf("E14: %s until %s, but the drain ends at %s", a.Kind, a.Deadline, f.drainEnds)
	}
}

// remember records what was written to the status.
func (f *fixture) remember(a evacuation.Action) {
	if a.Kind == evacuation.AwaitEvacuator {
		f.unseenWrite, f.inFuture = false, false
	}
	if a.Kind == evacuation.Activate {
		f.turns = append(f.turns, a.Class)
		f.progressAt, f.progressed, f.skew, f.unseenWrite = f.now, f.now, 0, false
	}
}

func (f *fixture) drainIsOver() bool {
	return f.drainEnds != nil && !f.now.Before(f.drainEnds.Add(-evacuation.EvictionMargin-f.pod.GracePeriod))
}

// check verifies what holds after every event.
func (f *fixture) check(r *rapid.T) {
	if f.e == nil {
		return
	}
	// An action is idempotent, also if it is applied again a second later.
	action := f.next()
	once := f.e.DeepCopy()
	action.Apply(once, f.now)
	once = stored(f.t, once)
	twice := once.DeepCopy()
	action.Apply(twice, f.now.Add(time.Second))
	if toJSON(f.t, once) != toJSON(f.t, twice) {
		r.Fatalf("%s is not idempotent:\n%s\n%s", action.Kind, toJSON(f.t, once), toJSON(f.t, twice))
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
	if policy := once.Status.EvacuationCancellationPolicy; policy != f.e.Status.EvacuationCancellationPolicy && action.Kind != evacuation.Finish &&
		action.Kind != evacuation.Fail {
		r.Fatalf("E11: %s resets the cancellation policy to %s", action.Kind, policy)
	}
}

// mustEnd deletes the Pod, and verifies that the Evacuation then ends, or waits for foreign finalizers only.
func (f *fixture) mustEnd(r *rapid.T) {
	f.pod = evacuation.Pod{Known: true, Type: f.pod.Type}
	for range 3 {
		if f.e == nil {
			return
		}
		action := f.next()
		f.observe(r, action)
		if action.Kind == evacuation.Done {
			if !slices.Equal(f.e.Finalizers, []string{foreign}) || f.forbidsCancellation() {
				r.Fatalf("E8: done with %v, policy %s", f.e.Finalizers, f.e.Status.EvacuationCancellationPolicy)
			}
			return
		}
		changed := f.e.DeepCopy()
		action.Apply(changed, f.now)
		f.write(r, action, changed, 3)
	}
	if f.e != nil {
		r.Fatalf("E8: the Pod is deleted, but the Evacuation does not end: %s", toJSON(f.t, f.e))
	}
}

package evacuation_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

// fixture is a model of an API server with one Evacuation and its Pod. It records what has happened.
type fixture struct {
	t         testing.TB
	e         *v1alpha1.Evacuation // nil: deleted
	pod       evacuation.Pod
	resolved  []v1alpha1.Evacuator
	drainEnds *time.Time
	limits    *evacuation.Limits
	// hasLimited is true if there have been limits: then some evacuators may never be activated.
	hasLimited bool
	surges     bool // NodeMaintenances request a surge
	paused     bool // the Machine of the Node is paused
	now        time.Time

	last        evacuation.Action
	turns       []string      // classes that have been activated
	progressAt  time.Time     // last progress of the active evacuator, or its activation
	progressed  time.Time     // when Next first observed that
	skew        time.Duration // how much the evacuator's clock is ahead
	unseenWrite bool
	inFuture    bool
}

func newFixture(t testing.TB, r *rapid.T) *fixture {
	t.Helper()
	names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b.example.com", "c", "d", "e"}), 0, 4, rapid.ID).Draw(r, "classes")
	var list []v1alpha1.Evacuator
	for _, class := range names {
		list = append(list, v1alpha1.Evacuator{EvacuatorClass: class, Priority: rapid.Int32Range(0, 3).Draw(r, "priority")})
	}
	ours := rapid.Bool().Draw(r, "created resolved")
	podName := rapid.StringMatching(`[a-z]([-a-z0-9]{0,120}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,120}[a-z0-9])?)?`).Draw(r, "Pod")
	f := &fixture{
		t:        t,
		now:      noon,
		resolved: list,
		pod: evacuation.Pod{Known: rapid.IntRange(0, 4).Draw(r, "known") > 0, Exists: rapid.IntRange(0, 19).Draw(r, "exists") > 0,
			Type:        rapid.SampledFrom([]v1alpha1.PodType{v1alpha1.PodTypeDefault, v1alpha1.PodTypeDefault, daemonSet, static}).Draw(r, "type"),
			GracePeriod: time.Duration(rapid.SampledFrom([]int{0, 30, 3600}).Draw(r, "grace period")) * time.Second},
	}
	f.e = evacuation.New(podNamed(podName), nil, rapid.SampledFrom([]int32{600, 1800, 21600}).Draw(r, "deadline"))
	if ours {
		f.e.Spec.Evacuators = list
	}
	if rapid.Bool().Draw(r, "requested by annotation") {
		evacuation.RequestByAnnotation(f.e)
	}
	if rapid.Bool().Draw(r, "unowned") {
		f.e.OwnerReferences = nil
	}
	if rapid.Bool().Draw(r, "foreign finalizer") {
		f.e.Finalizers = append(f.e.Finalizers, foreign)
	}
	f.e.CreationTimestamp = metav1.NewTime(noon)
	mustBeValid(t, f.e, nil)

	// Many runs start after some evacuators have exceeded their progress deadlines.
	for range rapid.IntRange(0, len(list)+2).Draw(r, "silent turns") {
		f.reconcile(r)
		if f.last.Deadline.After(f.now) {
			f.now = f.last.Deadline
		}
	}
	return f
}

func (f *fixture) next() evacuation.Action {
	before := toJSON(f.t, f.e)
	action := evacuation.Next(evacuation.Input{
		Evacuation: f.e, Pod: f.pod, ResolvedEvacuators: f.resolved, Limits: f.limits, DrainEnds: f.drainEnds, Suspended: f.rests(),
		Later: later(f.e, f.surges), Last: last(f.pod), Now: f.now,
	})
	if toJSON(f.t, f.e) != before {
		f.t.Fatal("Next has changed its input")
	}
	return action
}

// rests reports whether all instigators of the Evacuation are paused.
func (f *fixture) rests() bool { return evacuation.Terms{Suspended: f.paused}.DefersEvacuation(f.e) }

// reconcile acts as the controller: it applies actions of Next until nothing changes, or a write is lost.
func (f *fixture) reconcile(r *rapid.T) {
	for range 4 {
		if f.e == nil {
			return
		}
		action := f.next()
		f.observe(r, action)
		f.last = action
		changed := f.e.DeepCopy()
		action.Apply(changed, f.now)
		succeed := rapid.IntRange(0, 9).Draw(r, "writes that succeed")
		if written := f.write(r, action, changed, succeed); !written || succeed < 3 {
			return
		}
	}
	if f.e != nil {
		r.Fatalf("the actions don't settle: still %s", f.last.Kind)
	}
}

// write makes the three writes of a controller, of which the last ones may get lost. It reports whether anything had to be written.
func (f *fixture) write(r *rapid.T, action evacuation.Action, changed *v1alpha1.Evacuation, succeed int) bool {
	status := f.e.DeepCopy()
	changed.Status.DeepCopyInto(&status.Status)
	differs := toJSON(f.t, status) != toJSON(f.t, f.e)
	if differs {
		if succeed == 0 {
			return false
		}
		f.store(r, status)
		f.remember(action)
	}
	if action.Delete {
		if succeed <= 1 {
			return true
		}
		if f.forbidsCancellation() {
			r.Fatalf("%s: the API server refuses the DELETE", action.Kind)
		}
		f.delete()
	}
	if f.e == nil || succeed <= 2 {
		return differs || action.Delete
	}
	rest := f.e.DeepCopy()
	rest.Finalizers, rest.Spec = changed.Finalizers, changed.Spec
	if toJSON(f.t, rest) == toJSON(f.t, f.e) {
		return differs || action.Delete
	}
	f.store(r, rest)
	f.collect()
	return true
}

// store makes an update, which the API server must accept.
func (f *fixture) store(r *rapid.T, changed *v1alpha1.Evacuation) {
	if errs := validate(f.t, changed, f.e); len(errs) > 0 {
		r.Fatalf("the API server refuses it: %v", errs.ToAggregate())
	}
	f.e = stored(f.t, changed)
}

func (f *fixture) delete() {
	if f.e.DeletionTimestamp == nil {
		now := metav1.NewTime(f.now)
		f.e.DeletionTimestamp = &now
	}
	f.collect()
}

func (f *fixture) collect() {
	if f.e.DeletionTimestamp != nil && len(f.e.Finalizers) == 0 {
		f.e = nil
	}
}

func (f *fixture) forbidsCancellation() bool {
	return f.e.Status.EvacuationCancellationPolicy == v1alpha1.CancellationForbid
}

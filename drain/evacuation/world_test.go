package evacuation_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

// world is a model of an API server with one Evacuation and its Pod. It records what has happened.
type world struct {
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
	if rapid.Bool().Draw(r, "requested by annotation") {
		evacuation.RequestByAnnotation(w.e)
	}
	if rapid.Bool().Draw(r, "unowned") {
		w.e.OwnerReferences = nil
	}
	if rapid.Bool().Draw(r, "foreign finalizer") {
		w.e.Finalizers = append(w.e.Finalizers, foreign)
	}
	w.e.CreationTimestamp = metav1.NewTime(noon)
	mustBeValid(t, w.e, nil)

	// Many runs start after some evacuators have exceeded their progress deadlines.
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
	action := evacuation.Next(evacuation.Input{
		Evacuation: w.e, Pod: w.pod, ResolvedEvacuators: w.resolved, Limits: w.limits, DrainEnds: w.drainEnds, Suspended: w.rests(),
		Later: later(w.e, w.surges), Last: last(w.pod), Now: w.now,
	})
	if toJSON(w.t, w.e) != before {
		w.t.Fatal("Next has changed its input")
	}
	return action
}

// rests reports whether all instigators of the Evacuation are paused.
func (w *world) rests() bool { return evacuation.Terms{Suspended: w.paused}.DefersEvacuation(w.e) }

// reconcile acts as the controller: it applies actions of Next until nothing changes, or a write is lost.
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
		r.Fatalf("the actions don't settle: still %s", w.last.Kind)
	}
}

// write makes the three writes of a controller, of which the last ones may get lost. It reports whether anything had to be written.
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
		if w.forbidsCancellation() {
			r.Fatalf("%s: the API server refuses the DELETE", action.Kind)
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

// store makes an update, which the API server must accept.
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

func (w *world) forbidsCancellation() bool {
	return w.e.Status.EvacuationCancellationPolicy == v1alpha1.CancellationForbid
}

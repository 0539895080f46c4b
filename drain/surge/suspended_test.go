package surge_test

import (
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

func TestSuspended(t *testing.T) { // M16
	suspend := func(w *world, suspended bool, pods ...*pod) {
		for _, p := range pods {
			w.evacuations[p.UID].suspended = suspended
		}
	}
	writes := func(w *world, d surge.Decision) bool {
		isSuspended := func(r surge.Report) bool { return w.evacuations[r.Pod].suspended }
		return d.Deployment != nil || d.Autoscaler != nil || len(d.Mark)+len(d.Unmark) > 0 || slices.ContainsFunc(d.Reports, isSuspended) || d.Event != nil
	}
	for _, tc := range []struct {
		name  string
		world func() *world
	}{
		{"a Deployment", func() *world { return deployed(2, maxSurge("100%")).evacuated(2, v1alpha1.SurgeAlways) }},
		{"a Deployment with an autoscaler", func() *world {
			return deployed(2, maxSurge("100%")).scaledBy(2, 6).evacuated(2, v1alpha1.SurgeAlways)
		}},
	} {
		t.Run("M16: nothing is written in any state of the surge of "+tc.name+" while one of its Machines is paused, and the surge continues afterwards",
			func(t *testing.T) {
				for steps := range 12 {
					w := tc.world()
					paused := w.pods[0]
					for range steps {
						w.step()
						w.settle()
					}
					if e := w.evacuations[paused.UID]; e == nil || e.completed {
						continue
					}
					suspend(w, true, paused)
					d := surge.Decide(w.observed())
					if began := w.baseline() != nil; began && writes(w, d) {
						t.Fatalf("after %d steps: %+v", steps, d)
					}
					if !d.RequeueAt.After(w.now) {
						t.Fatalf("after %d steps, it is decided again at %s", steps, d.RequeueAt)
					}
					if d.Deployment != nil && slices.Contains(w.baselineOf(d.Deployment), paused.UID) {
						t.Fatalf("a surge begins for the Pod after %d steps", steps)
					}
					suspend(w, false, paused)
					w.run()
					if len(w.evacuations) > 0 || *w.deployment.Spec.Replicas != 2 {
						t.Fatalf("after %d steps: %d Evacuations remain, %d replicas", steps, len(w.evacuations), *w.deployment.Spec.Replicas)
					}
				}
			})
	}
	t.Run("M16, E63: nothing is written while one of the Machines is paused, also after an undo has interrupted a surge by an autoscaler", func(t *testing.T) {
		for steps := range 12 {
			w := deployed(2, maxSurge("100%")).scaledBy(2, 6).evacuated(2, v1alpha1.SurgeAlways)
			for !w.raisedTo(4) {
				w.step()
				w.settle()
			}
			w.undo(nil)
			for range steps {
				w.step()
				w.settle()
			}
			ends := len(w.deployment.Labels)+len(w.autoscaler.Annotations) > 0
			if e := w.evacuations[w.pods[0].UID]; e == nil || e.completed || !ends {
				continue
			}
			suspend(w, true, w.pods[0])
			for range 2 { // also when the autoscaler should have scaled back
				if d := surge.Decide(w.observed()); writes(w, d) {
					t.Errorf("after %d steps: %+v", steps, d)
				}
				w.now = w.now.Add(surge.ReturnTime)
			}
		}
	})
	t.Run("M16: a surge of other Pods of the Deployment begins meanwhile", func(t *testing.T) {
		w := deployed(4, maxSurge("100%")).evacuated(2, v1alpha1.SurgeAlways)
		suspend(w, true, w.pods[0])
		d := surge.Decide(w.observed())
		if pods := w.baselineOf(d.Deployment); !slices.Equal(pods, []types.UID{w.pods[1].UID}) || len(d.Reports) > 0 {
			t.Errorf("got %v, reports %v", pods, d.Reports)
		}
	})
	t.Run("M160: other Pods of the Deployment are evicted two minutes after a surge has been suspended, and the surge continues afterwards", func(t *testing.T) {
		w := deployed(4, maxSurge("25%")).evacuated(2, v1alpha1.SurgeAlways)
		for *w.deployment.Spec.Replicas != 5 {
			w.step()
			w.settle()
		}
		suspend(w, true, w.pods[0])
		waits, waiting := "Waiting for the suspended drain of another Pod of the Deployment.", w.evacuations[w.pods[1].UID]
		for range 3 { // as long as the drain is suspended for less than two minutes
			if w.step(); waiting.completed || waiting.message != waits {
				t.Fatalf("completed: %t, message %q", waiting.completed, waiting.message)
			}
			w.now = w.now.Add(50 * time.Second)
		}
		w.step()
		if held := w.evacuations[w.pods[0].UID]; !waiting.completed || w.refusals[w.pods[1].UID] != surge.Suspended || held.completed {
			t.Errorf("got %+v and %+v", waiting, held)
		}
		if *w.deployment.Spec.Replicas != 5 {
			t.Errorf("%d replicas remain while the surge is suspended", *w.deployment.Spec.Replicas)
		}
		suspend(w, false, w.pods[0])
		if w.run(); *w.deployment.Spec.Replicas != 4 {
			t.Errorf("%d replicas remain", *w.deployment.Spec.Replicas)
		}
	})
	t.Run("M16: a suspended Pod is not refused", func(t *testing.T) {
		w := deployed(1, func(d *appsv1.Deployment) { d.Spec.Paused = true }).evacuated(1, v1alpha1.SurgeAlways)
		suspend(w, true, w.pods[0])
		if d := surge.Decide(w.observed()); writes(w, d) {
			t.Errorf("got %+v", d)
		}
	})
}

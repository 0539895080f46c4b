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
	suspend := func(f *fixture, suspended bool, pods ...*pod) {
		for _, p := range pods {
			f.evacuations[p.UID].suspended = suspended
		}
	}
	writes := func(f *fixture, d surge.Decision) bool {
		isSuspended := func(r surge.Report) bool { return f.evacuations[r.Pod].suspended }
		return d.Deployment != nil || d.Autoscaler != nil || len(d.Mark)+len(d.Unmark) > 0 || slices.ContainsFunc(d.Reports, isSuspended) || d.Event != nil
	}
	for _, tc := range []struct {
		name    string
		fixture func() *fixture
	}{
		{"a Deployment", func() *fixture { return deployed(2, maxSurge("100%")).evacuated(2, v1alpha1.SurgeAlways) }},
		{"a Deployment with an autoscaler", func() *fixture {
			return deployed(2, maxSurge("100%")).scaledBy(2, 6).evacuated(2, v1alpha1.SurgeAlways)
		}},
	} {
		t.Run("M16: nothing is written in any state of the surge of "+tc.name+" while one of its Machines is paused, and the surge continues afterwards",
			func(t *testing.T) {
				for steps := range 12 {
					f := tc.fixture()
					paused := f.pods[0]
					for range steps {
						f.step()
						f.settle()
					}
					if e := f.evacuations[paused.UID]; e == nil || e.completed {
						continue
					}
					suspend(f, true, paused)
					d := surge.Decide(f.observed())
					if began := f.baseline() != nil; began && writes(f, d) {
						t.Fatalf("after %d steps: %+v", steps, d)
					}
					if !d.RequeueAt.After(f.now) {
						t.Fatalf("after %d steps, it is decided again at %s", steps, d.RequeueAt)
					}
					if d.Deployment != nil && slices.Contains(f.baselineOf(d.Deployment), paused.UID) {
						t.Fatalf("a surge begins for the Pod after %d steps", steps)
					}
					suspend(f, false, paused)
					f.run()
					if len(f.evacuations) > 0 || *f.deployment.Spec.Replicas != 2 {
						t.Fatalf("after %d steps: %d Evacuations remain, %d replicas", steps, len(f.evacuations), *f.deployment.Spec.Replicas)
					}
				}
			})
	}
	t.Run("M16, E63: nothing is written while one of the Machines is paused, also after an undo has interrupted a surge by an autoscaler", func(t *testing.T) {
		for steps := range 12 {
			f := deployed(2, maxSurge("100%")).scaledBy(2, 6).evacuated(2, v1alpha1.SurgeAlways)
			for !f.raisedTo(4) {
				f.step()
				f.settle()
			}
			f.undo(nil)
			for range steps {
				f.step()
				f.settle()
			}
			ends := len(f.deployment.Labels)+len(f.autoscaler.Annotations) > 0
			if e := f.evacuations[f.pods[0].UID]; e == nil || e.completed || !ends {
				continue
			}
			suspend(f, true, f.pods[0])
			for range 2 { // also when the autoscaler should have scaled back
				if d := surge.Decide(f.observed()); writes(f, d) {
					t.Errorf("after %d steps: %+v", steps, d)
				}
				f.now = f.now.Add(surge.ReturnTime)
			}
		}
	})
	t.Run("M16: a surge of other Pods of the Deployment begins meanwhile", func(t *testing.T) {
		f := deployed(4, maxSurge("100%")).evacuated(2, v1alpha1.SurgeAlways)
		suspend(f, true, f.pods[0])
		d := surge.Decide(f.observed())
		if pods := f.baselineOf(d.Deployment); !slices.Equal(pods, []types.UID{f.pods[1].UID}) || len(d.Reports) > 0 {
			t.Errorf("got %v, reports %v", pods, d.Reports)
		}
	})
	t.Run("M160: other Pods of the Deployment are evicted two minutes after a surge has been suspended, and the surge continues afterwards", func(t *testing.T) {
		f := deployed(4, maxSurge("25%")).evacuated(2, v1alpha1.SurgeAlways)
		for *f.deployment.Spec.Replicas != 5 {
			f.step()
			f.settle()
		}
		suspend(f, true, f.pods[0])
		waits, waiting := "Waiting for the suspended drain of another Pod of the Deployment.", f.evacuations[f.pods[1].UID]
		for range 3 { // as long as the drain is suspended for less than two minutes
			if f.step(); waiting.completed || waiting.message != waits {
				t.Fatalf("completed: %t, message %q", waiting.completed, waiting.message)
			}
			f.now = f.now.Add(50 * time.Second)
		}
		f.step()
		if held := f.evacuations[f.pods[0].UID]; !waiting.completed || f.refusals[f.pods[1].UID] != surge.Suspended || held.completed {
			t.Errorf("got %+v and %+v", waiting, held)
		}
		if *f.deployment.Spec.Replicas != 5 {
			t.Errorf("%d replicas remain while the surge is suspended", *f.deployment.Spec.Replicas)
		}
		suspend(f, false, f.pods[0])
		if f.run(); *f.deployment.Spec.Replicas != 4 {
			t.Errorf("%d replicas remain", *f.deployment.Spec.Replicas)
		}
	})
	t.Run("M16: a suspended Pod is not refused", func(t *testing.T) {
		f := deployed(1, func(d *appsv1.Deployment) { d.Spec.Paused = true }).evacuated(1, v1alpha1.SurgeAlways)
		suspend(f, true, f.pods[0])
		if d := surge.Decide(f.observed()); writes(f, d) {
			t.Errorf("got %+v", d)
		}
	})
}

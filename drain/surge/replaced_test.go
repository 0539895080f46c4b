package surge_test

import (
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// TestReplacedDeployment: another actor replaces the Deployment or the HorizontalPodAutoscaler during a surge, and with it the record of
// the surge.
func TestReplacedDeployment(t *testing.T) {
	for name, f := range map[string]*fixture{
		"with the declared number of replicas": deployed(1), "while an autoscaler scales": deployed(2).scaledBy(1, 5), "before later rounds": deployed(4),
	} {
		t.Run("E25: a tool that replaces the whole Deployment again and again "+name+" ends the surge, and the Pods are evicted", func(t *testing.T) {
			declared := *f.deployment.Spec.Replicas
			f.evacuated(3, v1alpha1.SurgeAlways)
			leaving, begun := f.observed().Leaving, 0
			for range 120 {
				if d := f.step(); d.Event != nil && d.Event.Reason == surge.EventSurged {
					begun++
					f.settle()
					f.replace(declared)
				}
				f.settle()
				f.now = f.now.Add(3 * time.Second)
			}
			isAccepted := func(pod surge.Leaving) bool { return f.refusals[pod.UID] != surge.Edited }
			if begun != 1 || slices.ContainsFunc(leaving, isAccepted) || *f.deployment.Spec.Replicas != declared || len(f.deployment.Labels) > 0 {
				t.Errorf("surged %d times, refused: %v, %v", begun, f.refusals, f.deployment)
			}
			if h := f.autoscaler; h != nil && (*h.Spec.MinReplicas != 1 || len(h.Annotations) > 0) {
				t.Errorf("got %v", h)
			}
		})
	}
	t.Run("E25: the next round begins, although the watch has not delivered that the last one is completed", func(t *testing.T) {
		f := deployed(4).evacuated(2, v1alpha1.SurgeAlways)
		for f.marked() == 0 {
			f.step()
			f.settle()
		}
		f.lags = true
		f.step() // the Deployment is scaled back
		if f.step(); len(f.refusals) > 0 || f.baseline() != nil {
			t.Errorf("refused: %v, %v", f.refusals, f.deployment)
		}
		if f.run(); len(f.refusals) > 0 || len(f.evacuations) > 0 {
			t.Errorf("refused: %v, %v", f.refusals, f.deployment)
		}
	})
	t.Run("E25: the next round begins, although the watch has not delivered that the last one was cancelled", func(t *testing.T) {
		f := deployed(4).evacuated(2, v1alpha1.SurgeAlways)
		f.step()
		f.full = true
		f.step()
		f.replicate()
		first := f.baseline().Pods[0].UID
		f.now = f.evacuations[first].since.Add(progressDeadline - time.Second)
		for _, e := range f.evacuations {
			if e != f.evacuations[first] {
				e.since = f.now // renewed
			}
		}
		for f.lags = true; f.baseline() != nil; {
			f.step()
		}
		f.step()
		f.schedule()
		if f.run(); len(f.refusals) != 1 || f.refusals[first] == surge.Edited || len(f.evacuations) > 0 {
			t.Errorf("refused: %v, %v", f.refusals, f.reports)
		}
	})
	for name, remove := range map[string]func(*appsv1.Deployment){
		"labels":                 func(d *appsv1.Deployment) { d.Labels = nil },
		"annotations":            func(d *appsv1.Deployment) { d.Annotations = nil },
		"labels and annotations": func(d *appsv1.Deployment) { d.Labels, d.Annotations = nil, nil },
	} {
		for _, marks := range []bool{false, true} {
			t.Run("E93: a tool that replaces the "+name+" of the Deployment, but not the number of replicas, ends the surge, which scales back", func(t *testing.T) {
				f := surged(2, 1)
				if marks {
					f.settle()
					f.step()
				}
				f.deployment = f.deployment.DeepCopy()
				remove(f.deployment)
				f.run()
				if *f.deployment.Spec.Replicas != 2 || len(f.deployment.Labels)+len(f.deployment.Annotations)+len(f.evacuations) > 0 || f.marked() > 0 {
					t.Errorf("marks: %v: %v, %d Pods are marked", marks, f.deployment, f.marked())
				}
				if f.events[len(f.events)-1] != surge.EventSuperseded {
					t.Errorf("got %v", f.events)
				}
			})
		}
	}
	t.Run("E97: a surge whose record is removed scales back while the drain of a Pod is suspended that is not of this surge", func(t *testing.T) {
		f := surged(3, 1)
		f.evacuated(1, v1alpha1.SurgeAlways)
		f.evacuations[f.pods[1].UID].suspended = true
		f.replace(4)
		for range 10 {
			f.step()
			f.settle()
			f.evict()
		}
		if *f.deployment.Spec.Replicas != 3 {
			t.Errorf("got %v, %v", f.deployment, f.refusals)
		}
	})
	t.Run("E97: a surge whose record is removed while the drain of one of its Pods is suspended scales back when that drain is cancelled", func(t *testing.T) {
		f := surged(3, 2)
		held, other := f.pods[0].UID, f.pods[1].UID
		f.evacuations[held].suspended = true
		f.step()
		if got := f.evacuations[other].surged; got != surge.EventSurged {
			t.Errorf("the condition Surged is %q while the Deployment is scaled", got)
		}
		f.replace(*f.deployment.Spec.Replicas)
		if f.step(); *f.deployment.Spec.Replicas != 5 {
			t.Errorf("got %v while the drain of a Pod of the surge is suspended", f.deployment)
		}
		delete(f.evacuations, held)
		if f.run(); *f.deployment.Spec.Replicas != 3 {
			t.Errorf("got %v, %v", f.deployment, f.refusals)
		}
	})
	t.Run("E97: a Pod does not wait for a suspended drain when another actor has removed the record and set another number", func(t *testing.T) {
		f := surged(3, 2)
		held, other := f.pods[0].UID, f.pods[1].UID
		f.evacuations[held].suspended = true
		f.replace(3)
		f.step()
		if e := f.evacuations[other]; !e.completed || e.surged != "" {
			t.Errorf("got %q, %q", e.surged, e.message)
		}
	})
	t.Run("E97: a number of replicas that another actor sets after the surge is kept while the watch lags", func(t *testing.T) {
		f := surged(2, 1)
		f.settle()
		f.step()
		f.lags = true
		f.step()
		f.scale(3)
		f.step()
		if *f.deployment.Spec.Replicas != 3 {
			t.Errorf("got %v, %v", f.deployment, f.events)
		}
	})
	t.Run("E93: a number of replicas that another actor has set is kept when it has also removed the record", func(t *testing.T) {
		f := surged(2, 1)
		f.replace(5)
		if f.run(); *f.deployment.Spec.Replicas != 5 {
			t.Errorf("got %v", f.deployment)
		}
	})
	t.Run("E93: a number of replicas that another actor has set is kept when it has also removed the record of a surge that has ended", func(t *testing.T) {
		f := surged(1, 1)
		f.evacuations[f.pods[0].UID].surged = ""
		f.replace(2)
		if f.run(); *f.deployment.Spec.Replicas != 2 {
			t.Errorf("got %v", f.deployment)
		}
	})
	t.Run("E93: the copy of the record of an earlier surge does not scale", func(t *testing.T) {
		f := deployed(2).evacuated(1, v1alpha1.SurgeAlways)
		f.run()
		f.scale(3)
		f.settle()
		f.evacuated(1, v1alpha1.SurgeAlways)
		for f.baseline() == nil || !f.baseline().Raised {
			f.step()
		}
		f.replace(3) // before the Deployment controller has copied the record
		if f.run(); *f.deployment.Spec.Replicas != 3 {
			t.Errorf("got %v", f.deployment)
		}
	})
	t.Run("E91: an earlier manager that has only reported the surge in the message is succeeded, and another actor replaces the Deployment", func(t *testing.T) {
		f := surged(1, 1)
		f.evacuations[f.pods[0].UID].surged = ""
		f.step()
		f.replace(1)
		f.settle()
		if d := f.step(); f.refusals[f.pods[0].UID] != surge.Edited || d.Deployment != nil {
			t.Errorf("refused: %v, %v", f.refusals, d)
		}
	})
	t.Run("E91: a surge that an earlier manager has only reported in the message begins once more when another actor replaces the Deployment", func(t *testing.T) {
		f, begun := surged(1, 1), 0
		f.evacuations[f.pods[0].UID].surged = ""
		for range 20 {
			f.replace(1)
			f.settle()
			if d := f.step(); f.baseline() != nil { // it is stored
				f.step()
				begun += asInt(f.baseline().Raised)
			} else if d.Deployment != nil {
				t.Fatalf("got %v", d)
			}
		}
		if begun != 1 || f.refusals[f.pods[0].UID] != surge.Edited {
			t.Errorf("surged %d times, refused: %v", begun, f.refusals)
		}
	})
	t.Run("E25: a tool that replaces the HorizontalPodAutoscaler again and again ends the surge after a minute, and the Pod is evicted", func(t *testing.T) {
		f := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		leaving, manifest, last := f.observed().Leaving[0].UID, f.autoscaler.DeepCopy(), begin
		for range 120 {
			if d := f.step(); d.Event != nil && d.Event.Reason == surge.EventSurged {
				last = f.now
				f.settle()
				f.autoscaler = manifest.DeepCopy()
			}
			f.settle()
			f.now = f.now.Add(3 * time.Second)
		}
		if last.After(begin.Add(time.Minute)) || f.refusals[leaving] != surge.Edited || len(f.deployment.Labels)+len(f.autoscaler.Annotations) > 0 {
			t.Errorf("surged until %v, refused: %v, %v", last, f.refusals, f.deployment)
		}
	})
}

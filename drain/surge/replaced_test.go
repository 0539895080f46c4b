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
	for name, w := range map[string]*world{
		"with the declared number of replicas": deployed(1), "while an autoscaler scales": deployed(2).scaledBy(1, 5), "before later rounds": deployed(4),
	} {
		t.Run("E25: a tool that replaces the whole Deployment again and again "+name+" ends the surge, and the Pods are evicted", func(t *testing.T) {
			declared := *w.deployment.Spec.Replicas
			w.evacuated(3, v1alpha1.SurgeAlways)
			leaving, begun := w.observed().Leaving, 0
			for range 120 {
				if d := w.step(); d.Event != nil && d.Event.Reason == surge.EventSurged {
					begun++
					w.settle()
					w.replace(declared)
				}
				w.settle()
				w.now = w.now.Add(3 * time.Second)
			}
			isAccepted := func(pod surge.Leaving) bool { return w.refusals[pod.UID] != surge.Edited }
			if begun != 1 || slices.ContainsFunc(leaving, isAccepted) || *w.deployment.Spec.Replicas != declared || len(w.deployment.Labels) > 0 {
				t.Errorf("surged %d times, refused: %v, %v", begun, w.refusals, w.deployment)
			}
			if h := w.autoscaler; h != nil && (*h.Spec.MinReplicas != 1 || len(h.Annotations) > 0) {
				t.Errorf("got %v", h)
			}
		})
	}
	t.Run("E25: the next round begins, although the watch has not delivered that the last one is completed", func(t *testing.T) {
		w := deployed(4).evacuated(2, v1alpha1.SurgeAlways)
		for w.marked() == 0 {
			w.step()
			w.settle()
		}
		w.lags = true
		w.step() // the Deployment is scaled back
		if w.step(); len(w.refusals) > 0 || w.baseline() != nil {
			t.Errorf("refused: %v, %v", w.refusals, w.deployment)
		}
		if w.run(); len(w.refusals) > 0 || len(w.evacuations) > 0 {
			t.Errorf("refused: %v, %v", w.refusals, w.deployment)
		}
	})
	t.Run("E25: the next round begins, although the watch has not delivered that the last one was cancelled", func(t *testing.T) {
		w := deployed(4).evacuated(2, v1alpha1.SurgeAlways)
		w.step()
		w.full = true
		w.step()
		w.replicate()
		first := w.baseline().Pods[0].UID
		w.now = w.evacuations[first].since.Add(progressDeadline - time.Second)
		for _, e := range w.evacuations {
			if e != w.evacuations[first] {
				e.since = w.now // renewed
			}
		}
		for w.lags = true; w.baseline() != nil; {
			w.step()
		}
		w.step()
		w.schedule()
		if w.run(); len(w.refusals) != 1 || w.refusals[first] == surge.Edited || len(w.evacuations) > 0 {
			t.Errorf("refused: %v, %v", w.refusals, w.reports)
		}
	})
	for name, remove := range map[string]func(*appsv1.Deployment){
		"labels":                 func(d *appsv1.Deployment) { d.Labels = nil },
		"annotations":            func(d *appsv1.Deployment) { d.Annotations = nil },
		"labels and annotations": func(d *appsv1.Deployment) { d.Labels, d.Annotations = nil, nil },
	} {
		for _, marks := range []bool{false, true} {
			t.Run("E93: a tool that replaces the "+name+" of the Deployment, but not the number of replicas, ends the surge, which scales back", func(t *testing.T) {
				w := surged(2, 1)
				if marks {
					w.settle()
					w.step()
				}
				w.deployment = w.deployment.DeepCopy()
				remove(w.deployment)
				w.run()
				if *w.deployment.Spec.Replicas != 2 || len(w.deployment.Labels)+len(w.deployment.Annotations)+len(w.evacuations) > 0 || w.marked() > 0 {
					t.Errorf("marks: %v: %v, %d Pods are marked", marks, w.deployment, w.marked())
				}
				if w.events[len(w.events)-1] != surge.EventSuperseded {
					t.Errorf("got %v", w.events)
				}
			})
		}
	}
	t.Run("E97: a surge whose record is removed scales back while the drain of a Pod is suspended that is not of this surge", func(t *testing.T) {
		w := surged(3, 1)
		w.evacuated(1, v1alpha1.SurgeAlways)
		w.evacuations[w.pods[1].UID].suspended = true
		w.replace(4)
		for range 10 {
			w.step()
			w.settle()
			w.evict()
		}
		if *w.deployment.Spec.Replicas != 3 {
			t.Errorf("got %v, %v", w.deployment, w.refusals)
		}
	})
	t.Run("E97: a surge whose record is removed while the drain of one of its Pods is suspended scales back when that drain is cancelled", func(t *testing.T) {
		w := surged(3, 2)
		held, other := w.pods[0].UID, w.pods[1].UID
		w.evacuations[held].suspended = true
		w.step()
		if got := w.evacuations[other].surged; got != surge.EventSurged {
			t.Errorf("the condition Surged is %q while the Deployment is scaled", got)
		}
		w.replace(*w.deployment.Spec.Replicas)
		if w.step(); *w.deployment.Spec.Replicas != 5 {
			t.Errorf("got %v while the drain of a Pod of the surge is suspended", w.deployment)
		}
		delete(w.evacuations, held)
		if w.run(); *w.deployment.Spec.Replicas != 3 {
			t.Errorf("got %v, %v", w.deployment, w.refusals)
		}
	})
	t.Run("E97: a Pod does not wait for a suspended drain when another actor has removed the record and set another number", func(t *testing.T) {
		w := surged(3, 2)
		held, other := w.pods[0].UID, w.pods[1].UID
		w.evacuations[held].suspended = true
		w.replace(3)
		w.step()
		if e := w.evacuations[other]; !e.completed || e.surged != "" {
			t.Errorf("got %q, %q", e.surged, e.message)
		}
	})
	t.Run("E97: a number of replicas that another actor sets after the surge is kept while the watch lags", func(t *testing.T) {
		w := surged(2, 1)
		w.settle()
		w.step()
		w.lags = true
		w.step()
		w.scale(3)
		w.step()
		if *w.deployment.Spec.Replicas != 3 {
			t.Errorf("got %v, %v", w.deployment, w.events)
		}
	})
	t.Run("E93: a number of replicas that another actor has set is kept when it has also removed the record", func(t *testing.T) {
		w := surged(2, 1)
		w.replace(5)
		if w.run(); *w.deployment.Spec.Replicas != 5 {
			t.Errorf("got %v", w.deployment)
		}
	})
	t.Run("E93: a number of replicas that another actor has set is kept when it has also removed the record of a surge that has ended", func(t *testing.T) {
		w := surged(1, 1)
		w.evacuations[w.pods[0].UID].surged = ""
		w.replace(2)
		if w.run(); *w.deployment.Spec.Replicas != 2 {
			t.Errorf("got %v", w.deployment)
		}
	})
	t.Run("E93: the copy of the record of an earlier surge does not scale", func(t *testing.T) {
		w := deployed(2).evacuated(1, v1alpha1.SurgeAlways)
		w.run()
		w.scale(3)
		w.settle()
		w.evacuated(1, v1alpha1.SurgeAlways)
		for w.baseline() == nil || !w.baseline().Raised {
			w.step()
		}
		w.replace(3) // before the Deployment controller has copied the record
		if w.run(); *w.deployment.Spec.Replicas != 3 {
			t.Errorf("got %v", w.deployment)
		}
	})
	t.Run("E91: an earlier manager that has only reported the surge in the message is succeeded, and another actor replaces the Deployment", func(t *testing.T) {
		w := surged(1, 1)
		w.evacuations[w.pods[0].UID].surged = ""
		w.step()
		w.replace(1)
		w.settle()
		if d := w.step(); w.refusals[w.pods[0].UID] != surge.Edited || d.Deployment != nil {
			t.Errorf("refused: %v, %v", w.refusals, d)
		}
	})
	t.Run("E91: a surge that an earlier manager has only reported in the message begins once more when another actor replaces the Deployment", func(t *testing.T) {
		w, begun := surged(1, 1), 0
		w.evacuations[w.pods[0].UID].surged = ""
		for range 20 {
			w.replace(1)
			w.settle()
			if d := w.step(); w.baseline() != nil { // it is stored
				w.step()
				begun += asInt(w.baseline().Raised)
			} else if d.Deployment != nil {
				t.Fatalf("got %v", d)
			}
		}
		if begun != 1 || w.refusals[w.pods[0].UID] != surge.Edited {
			t.Errorf("surged %d times, refused: %v", begun, w.refusals)
		}
	})
	t.Run("E25: a tool that replaces the HorizontalPodAutoscaler again and again ends the surge after a minute, and the Pod is evicted", func(t *testing.T) {
		w := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		leaving, manifest, last := w.observed().Leaving[0].UID, w.autoscaler.DeepCopy(), begin
		for range 120 {
			if d := w.step(); d.Event != nil && d.Event.Reason == surge.EventSurged {
				last = w.now
				w.settle()
				w.autoscaler = manifest.DeepCopy()
			}
			w.settle()
			w.now = w.now.Add(3 * time.Second)
		}
		if last.After(begin.Add(time.Minute)) || w.refusals[leaving] != surge.Edited || len(w.deployment.Labels)+len(w.autoscaler.Annotations) > 0 {
			t.Errorf("surged until %v, refused: %v, %v", last, w.refusals, w.deployment)
		}
	})
}

package surge_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

func TestCancelledForOneOfTwoMarkedPods(t *testing.T) {
	t.Run("E77: a marked Pod whose drain is cancelled stays when the surge of the other one completes", func(t *testing.T) {
		w := surged(2, 2)
		w.settle()
		w.step() // mark
		stays, moves := w.pods[0].UID, w.pods[1].UID
		if w.marked() != 2 {
			t.Fatal("they are not marked")
		}
		w.pods[2].ready = false // for minutes, a new Pod is not available
		w.observe()
		w.step()
		delete(w.evacuations, stays) // its NodeMaintenance was completed, or its owner has set the label cluster.x-k8s.io/drain: skip
		w.step()
		if w.baseline() == nil {
			t.Fatal("the surge has ended")
		}
		w.run() // the new Pod is available again
		if w.pod(stays) == nil || surge.Marked(&w.pod(stays).Pod) {
			t.Errorf("the Pod that nothing drains was deleted, or is still the first one to be deleted: %v", w.pod(stays))
		}
		if w.pod(moves) != nil || *w.deployment.Spec.Replicas != 2 {
			t.Errorf("the other one was not moved: %v", w.pods)
		}
	})
	t.Run("E77: the same while an autoscaler scales back, which may take two minutes", func(t *testing.T) {
		w := deployed(2, maxSurge("100%")).scaledBy(2, 9).evacuated(2, v1alpha1.SurgeAlways)
		for w.marked() < 2 {
			w.step()
			w.settle()
		}
		stays, moves := w.pods[0].UID, w.pods[1].UID
		for w.baseline().Returning == nil || w.raisedTo(w.baseline().Surged) {
			w.step()
		}
		delete(w.evacuations, stays)
		w.step()
		w.autoscale(2) // the autoscaler scales back, 15 s later at the earliest
		w.settle()
		w.run()
		if w.pod(stays) == nil {
			t.Error("the Pod that nothing drains was deleted")
		}
		if w.pod(moves) != nil {
			t.Error("the other one was not moved")
		}
	})
}

func TestAutoscaler(t *testing.T) {
	t.Run("E26: raises and restores minReplicas, and waits for the autoscaler to scale back", func(t *testing.T) {
		w := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		leaving := w.pods[0].UID
		w.step()
		d := w.step()
		if d.Deployment != nil || *w.autoscaler.Spec.MinReplicas != 3 || *w.deployment.Spec.Replicas != 2 {
			t.Fatalf("got %+v", d)
		}
		w.settle() // it scales up
		w.step()   // mark
		w.step()   // record Returning
		if d := w.step(); d.Autoscaler == nil || *w.autoscaler.Spec.MinReplicas != 1 || len(w.autoscaler.Annotations) > 0 {
			t.Fatalf("got %+v", d)
		}
		if d := w.step(); d.Deployment != nil || !d.RequeueAt.Equal(w.now.Add(surge.ReturnTime)) {
			t.Fatalf("it does not wait: %+v", d)
		}
		w.autoscale(2)
		w.settle()
		w.run()
		if w.pod(leaving) != nil || w.baseline() != nil || *w.deployment.Spec.Replicas != 2 {
			t.Errorf("got %v", w.deployment)
		}
	})
	t.Run("E26: writes the recorded number when the autoscaler does not scale back", func(t *testing.T) {
		w := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		w.run()
		if *w.deployment.Spec.Replicas != 2 || w.baseline() != nil || w.now.Before(begin.Add(surge.ReturnTime)) || len(w.evacuations) > 0 {
			t.Errorf("got %v", w.deployment)
		}
	})
	t.Run("E47: does not wait for the autoscaler until a time that a manager with a wrong clock has recorded", func(t *testing.T) {
		w := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		w.returning().now = w.now.Add(-time.Hour)
		w.step()
		if *w.deployment.Spec.Replicas != 2 || w.baseline() != nil {
			t.Errorf("got %v", w.deployment)
		}
	})
	for _, tc := range []struct {
		name      string
		to        int32
		after     time.Duration
		cancelled bool
	}{
		{"while it scales back", 3, surge.ReturnTime, false},
		{"while it scales back, also if the drain is cancelled then", 3, surge.ReturnTime, true},
		{"when it scales up further", 5, 0, false},
		{"when it scales up further, also if the drain is cancelled then", 5, 0, true},
		{"below the recorded one", 1, 0, false},
	} {
		t.Run("E26, E77: keeps the number that the autoscaler or another actor sets "+tc.name+", and the deletion cost of Pods that stay is restored",
			func(t *testing.T) {
				w := deployed(2, maxSurge("100%")).scaledBy(1, 9).evacuated(2, v1alpha1.SurgeAlways).returning()
				w.scale(tc.to)
				w.settle()
				if tc.cancelled {
					clear(w.evacuations)
				}
				w.now = w.now.Add(tc.after)
				for range 2 {
					w.step()
					w.settle()
				}
				if w.baseline() != nil || *w.deployment.Spec.Replicas != tc.to || w.marked() > 0 {
					t.Errorf("%d replicas, %d Pods are marked: %v", *w.deployment.Spec.Replicas, w.marked(), w.deployment.Annotations)
				}
				w.run()
				if len(w.evacuations) > 0 || len(w.refusals) > 0 || w.marked() > 0 {
					t.Errorf("%d Evacuations remain, %v are refused, %d Pods are marked", len(w.evacuations), w.refusals, w.marked())
				}
			})
	}
	t.Run("E26: restores an autoscaler without minReplicas", func(t *testing.T) {
		w := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		w.autoscaler.Spec.MinReplicas = nil
		w.run()
		if w.autoscaler.Spec.MinReplicas != nil || *w.deployment.Spec.Replicas != 2 {
			t.Errorf("got %v", w.autoscaler.Spec)
		}
	})
	t.Run("E26: keeps an edit of minReplicas", func(t *testing.T) {
		w := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		w.step()
		w.step()
		w.autoscaler = w.autoscaler.DeepCopy()
		w.autoscaler.Spec.MinReplicas = ptr.To[int32](4)
		w.autoscaler.ManagedFields = []metav1.ManagedFieldsEntry{owning("gitops", w.now, `{"f:spec":{"f:minReplicas":{}}}`)}
		w.run()
		if !strings.HasPrefix(w.messages[len(w.messages)-1], `Field manager "gitops" changed the minReplicas of the HorizontalPodAutoscaler`) {
			t.Errorf("E69: the actor is not named: %v", w.messages)
		}
		if *w.autoscaler.Spec.MinReplicas != 4 || len(w.autoscaler.Annotations) > 0 || w.baseline() != nil || !slices.Contains(w.events, surge.EventSuperseded) {
			t.Errorf("got %v, %v", w.autoscaler, w.events)
		}
	})
	t.Run("E26: writes the recorded number when the autoscaler does not scale back after another actor has reverted minReplicas", func(t *testing.T) {
		w := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		w.step()
		w.step()
		w.settle() // it scales up; later it has no metrics
		w.autoscaler = w.autoscaler.DeepCopy()
		w.autoscaler.Spec.MinReplicas = ptr.To[int32](1)
		w.run()
		if *w.deployment.Spec.Replicas != 2 || w.baseline() != nil || len(w.autoscaler.Annotations) > 0 || w.now.Before(begin.Add(surge.ReturnTime)) {
			t.Errorf("%d replicas, %v, %v", *w.deployment.Spec.Replicas, w.deployment.Annotations, w.autoscaler)
		}
		if len(w.evacuations) > 0 || len(w.refusals) != 1 || *w.autoscaler.Spec.MinReplicas != 1 {
			t.Errorf("%d Evacuations remain, %v are refused: %v", len(w.evacuations), w.refusals, w.autoscaler.Spec)
		}
	})
	t.Run("E26: does not scale below a minReplicas that another actor has set", func(t *testing.T) {
		w := deployed(8).scaledBy(1, 16).evacuated(8, v1alpha1.SurgeAlways)
		w.step()
		w.step()
		w.settle() // it scales up; later it has no metrics
		lowest := w.baseline().Surged - 1
		w.autoscaler = w.autoscaler.DeepCopy()
		w.autoscaler.Spec.MinReplicas = ptr.To(lowest)
		for _, d := range w.run() {
			if d.Deployment != nil && *d.Deployment.Spec.Replicas < lowest {
				t.Errorf("writes %d replicas", *d.Deployment.Spec.Replicas)
			}
		}
		if *w.deployment.Spec.Replicas < lowest || w.baseline() != nil || len(w.autoscaler.Annotations) > 0 || *w.autoscaler.Spec.MinReplicas != lowest {
			t.Errorf("%d replicas, %v, %v", *w.deployment.Spec.Replicas, w.deployment.Annotations, w.autoscaler)
		}
	})
	t.Run("E25, E26: restores the autoscaler of a deleted Deployment", func(t *testing.T) {
		w := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		w.step()
		w.step()
		w.deployment = nil
		if d := w.step(); *w.autoscaler.Spec.MinReplicas != 1 || len(w.autoscaler.Annotations) > 0 || len(d.Reports) != 1 {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E26: scales back when the autoscaler is deleted", func(t *testing.T) {
		w := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		w.step()
		w.step()
		w.settle()
		w.autoscaler = nil
		if d := w.step(); *w.deployment.Spec.Replicas != 2 || w.baseline() != nil || len(d.Reports) != 1 {
			t.Errorf("got %+v", d)
		}
	})
}

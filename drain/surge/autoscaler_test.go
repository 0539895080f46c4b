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
		f := surged(2, 2)
		f.settle()
		f.step() // mark
		stays, moves := f.pods[0].UID, f.pods[1].UID
		if f.marked() != 2 {
			t.Fatal("they are not marked")
		}
		f.pods[2].ready = false // for minutes, a new Pod is not available
		f.observe()
		f.step()
		delete(f.evacuations, stays) // its NodeMaintenance was completed, or its owner has set the label cluster.x-k8s.io/drain: skip
		f.step()
		if f.baseline() == nil {
			t.Fatal("the surge has ended")
		}
		f.run() // the new Pod is available again
		if f.pod(stays) == nil || surge.Marked(&f.pod(stays).Pod) {
			t.Errorf("the Pod that nothing drains was deleted, or is still the first one to be deleted: %v", f.pod(stays))
		}
		if f.pod(moves) != nil || *f.deployment.Spec.Replicas != 2 {
			t.Errorf("the other one was not moved: %v", f.pods)
		}
	})
	t.Run("E77: the same while an autoscaler scales back, which may take two minutes", func(t *testing.T) {
		f := deployed(2, maxSurge("100%")).scaledBy(2, 9).evacuated(2, v1alpha1.SurgeAlways)
		for f.marked() < 2 {
			f.step()
			f.settle()
		}
		stays, moves := f.pods[0].UID, f.pods[1].UID
		for f.baseline().Returning == nil || f.raisedTo(f.baseline().Surged) {
			f.step()
		}
		delete(f.evacuations, stays)
		f.step()
		f.autoscale(2) // the autoscaler scales back, 15 s later at the earliest
		f.settle()
		f.run()
		if f.pod(stays) == nil {
			t.Error("the Pod that nothing drains was deleted")
		}
		if f.pod(moves) != nil {
			t.Error("the other one was not moved")
		}
	})
}

func TestAutoscaler(t *testing.T) {
	t.Run("E26: raises and restores minReplicas, and waits for the autoscaler to scale back", func(t *testing.T) {
		f := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		leaving := f.pods[0].UID
		f.step()
		d := f.step()
		if d.Deployment != nil || *f.autoscaler.Spec.MinReplicas != 3 || *f.deployment.Spec.Replicas != 2 {
			t.Fatalf("got %+v", d)
		}
		f.settle() // it scales up
		f.step()   // mark
		f.step()   // record Returning
		if d := f.step(); d.Autoscaler == nil || *f.autoscaler.Spec.MinReplicas != 1 || len(f.autoscaler.Annotations) > 0 {
			t.Fatalf("got %+v", d)
		}
		if d := f.step(); d.Deployment != nil || !d.RequeueAt.Equal(f.now.Add(surge.ReturnTime)) {
			t.Fatalf("it does not wait: %+v", d)
		}
		f.autoscale(2)
		f.settle()
		f.run()
		if f.pod(leaving) != nil || f.baseline() != nil || *f.deployment.Spec.Replicas != 2 {
			t.Errorf("got %v", f.deployment)
		}
	})
	t.Run("E26: writes the recorded number when the autoscaler does not scale back", func(t *testing.T) {
		f := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		f.run()
		if *f.deployment.Spec.Replicas != 2 || f.baseline() != nil || f.now.Before(begin.Add(surge.ReturnTime)) || len(f.evacuations) > 0 {
			t.Errorf("got %v", f.deployment)
		}
	})
	t.Run("E47: does not wait for the autoscaler until a time that a manager with a wrong clock has recorded", func(t *testing.T) {
		f := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		f.returning().now = f.now.Add(-time.Hour)
		f.step()
		if *f.deployment.Spec.Replicas != 2 || f.baseline() != nil {
			t.Errorf("got %v", f.deployment)
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
				f := deployed(2, maxSurge("100%")).scaledBy(1, 9).evacuated(2, v1alpha1.SurgeAlways).returning()
				f.scale(tc.to)
				f.settle()
				if tc.cancelled {
					clear(f.evacuations)
				}
				f.now = f.now.Add(tc.after)
				for range 2 {
					f.step()
					f.settle()
				}
				if f.baseline() != nil || *f.deployment.Spec.Replicas != tc.to || f.marked() > 0 {
					t.Errorf("%d replicas, %d Pods are marked: %v", *f.deployment.Spec.Replicas, f.marked(), f.deployment.Annotations)
				}
				f.run()
				if len(f.evacuations) > 0 || len(f.refusals) > 0 || f.marked() > 0 {
					t.Errorf("%d Evacuations remain, %v are refused, %d Pods are marked", len(f.evacuations), f.refusals, f.marked())
				}
			})
	}
	t.Run("E26: restores an autoscaler without minReplicas", func(t *testing.T) {
		f := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		f.autoscaler.Spec.MinReplicas = nil
		f.run()
		if f.autoscaler.Spec.MinReplicas != nil || *f.deployment.Spec.Replicas != 2 {
			t.Errorf("got %v", f.autoscaler.Spec)
		}
	})
	t.Run("E26: keeps an edit of minReplicas", func(t *testing.T) {
		f := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		f.step()
		f.step()
		f.autoscaler = f.autoscaler.DeepCopy()
		f.autoscaler.Spec.MinReplicas = ptr.To[int32](4)
		f.autoscaler.ManagedFields = []metav1.ManagedFieldsEntry{owning("gitops", f.now, `{"f:spec":{"f:minReplicas":{}}}`)}
		f.run()
		if !strings.HasPrefix(f.messages[len(f.messages)-1], `Field manager "gitops" changed the minReplicas of the HorizontalPodAutoscaler`) {
			t.Errorf("E69: the actor is not named: %v", f.messages)
		}
		if *f.autoscaler.Spec.MinReplicas != 4 || len(f.autoscaler.Annotations) > 0 || f.baseline() != nil || !slices.Contains(f.events, surge.EventSuperseded) {
			t.Errorf("got %v, %v", f.autoscaler, f.events)
		}
	})
	t.Run("E26: writes the recorded number when the autoscaler does not scale back after another actor has reverted minReplicas", func(t *testing.T) {
		f := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		f.step()
		f.step()
		f.settle() // it scales up; later it has no metrics
		f.autoscaler = f.autoscaler.DeepCopy()
		f.autoscaler.Spec.MinReplicas = ptr.To[int32](1)
		f.run()
		if *f.deployment.Spec.Replicas != 2 || f.baseline() != nil || len(f.autoscaler.Annotations) > 0 || f.now.Before(begin.Add(surge.ReturnTime)) {
			t.Errorf("%d replicas, %v, %v", *f.deployment.Spec.Replicas, f.deployment.Annotations, f.autoscaler)
		}
		if len(f.evacuations) > 0 || len(f.refusals) != 1 || *f.autoscaler.Spec.MinReplicas != 1 {
			t.Errorf("%d Evacuations remain, %v are refused: %v", len(f.evacuations), f.refusals, f.autoscaler.Spec)
		}
	})
	t.Run("E26: does not scale below a minReplicas that another actor has set", func(t *testing.T) {
		f := deployed(8).scaledBy(1, 16).evacuated(8, v1alpha1.SurgeAlways)
		f.step()
		f.step()
		f.settle() // it scales up; later it has no metrics
		lowest := f.baseline().Surged - 1
		f.autoscaler = f.autoscaler.DeepCopy()
		f.autoscaler.Spec.MinReplicas = ptr.To(lowest)
		for _, d := range f.run() {
			if d.Deployment != nil && *d.Deployment.Spec.Replicas < lowest {
				t.Errorf("writes %d replicas", *d.Deployment.Spec.Replicas)
			}
		}
		if *f.deployment.Spec.Replicas < lowest || f.baseline() != nil || len(f.autoscaler.Annotations) > 0 || *f.autoscaler.Spec.MinReplicas != lowest {
			t.Errorf("%d replicas, %v, %v", *f.deployment.Spec.Replicas, f.deployment.Annotations, f.autoscaler)
		}
	})
	t.Run("E25, E26: restores the autoscaler of a deleted Deployment", func(t *testing.T) {
		f := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		f.step()
		f.step()
		f.deployment = nil
		if d := f.step(); *f.autoscaler.Spec.MinReplicas != 1 || len(f.autoscaler.Annotations) > 0 || len(d.Reports) != 1 {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E26: scales back when the autoscaler is deleted", func(t *testing.T) {
		f := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		f.step()
		f.step()
		f.settle()
		f.autoscaler = nil
		if d := f.step(); *f.deployment.Spec.Replicas != 2 || f.baseline() != nil || len(d.Reports) != 1 {
			t.Errorf("got %+v", d)
		}
	})
}

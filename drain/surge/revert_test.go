package surge_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// surged returns a fixture whose Deployment is scaled up, and whose new Pods are not available.
func surged(replicas int32, leaving int) *fixture {
	f := deployed(replicas, maxSurge("100%")).evacuated(leaving, v1alpha1.SurgeAlways)
	f.step()
	f.step()
	f.replicate()
	f.observe()
	return f
}

func TestRevert(t *testing.T) {
	t.Run("E25: removes the baseline when cancelled before it has scaled up", func(t *testing.T) {
		f := deployed(1).evacuated(1, v1alpha1.SurgeAlways)
		f.step()
		clear(f.evacuations)
		f.run()
		if f.baseline() != nil || *f.deployment.Spec.Replicas != 1 || len(f.events) > 0 {
			t.Errorf("%v, %v", f.deployment, f.events)
		}
	})
	t.Run("E25: scales back when cancelled while new Pods start", func(t *testing.T) {
		f := surged(2, 2)
		clear(f.evacuations)
		if d := f.step(); d.Deployment == nil || *d.Deployment.Spec.Replicas != 2 || d.Event.Reason != surge.EventCanceled {
			t.Errorf("got %+v", d)
		}
		if f.baseline() != nil {
			t.Error("the baseline was not removed")
		}
	})
	t.Run("E25: restores the deletion cost of marked Pods when cancelled", func(t *testing.T) {
		f := surged(2, 2)
		f.pods[0].Annotations = map[string]string{corev1.PodDeletionCost: "7"}
		f.settle()
		f.step()
		if !surge.Marked(&f.pods[0].Pod) || !surge.Marked(&f.pods[1].Pod) {
			t.Fatal("they are not marked")
		}
		clear(f.evacuations)
		if d := f.step(); len(d.Unmark) != 2 || !d.RequeueAt.After(f.now) {
			t.Errorf("no event follows: %+v", d)
		}
		f.run()
		if got := f.pods[0].Annotations; got[corev1.PodDeletionCost] != "7" || len(got) != 1 || len(f.pods[1].Annotations) > 0 {
			t.Errorf("got %v, %v", got, f.pods[1].Annotations)
		}
		if f.baseline() != nil || *f.deployment.Spec.Replicas != 2 {
			t.Errorf("got %v", f.deployment)
		}
	})
	t.Run("E77: restores the deletion cost of a Pod that is evicted because its ReplicaSet has deleted another one, also after a crash", func(t *testing.T) {
		for _, crashes := range []bool{false, true} {
			f := surged(2, 1)
			f.settle()
			f.step()                // mark
			f.step()                // scale back
			f.remove(f.pods[2].UID) // the new one
			f.observe()
			for ; len(f.refusals) == 0; f.now = f.now.Add(time.Second) {
				f.apply(surge.Decide(f.observed()), map[bool]int{true: 1, false: 9}[crashes])
			}
			f.evacuated(1, v1alpha1.SurgeAlways)
			d := f.step()
			if f.marked() > 0 || f.refusals[f.pods[0].UID] != surge.NotChosen || f.baseline() == nil {
				t.Errorf("crashes: %v: %d Pods are marked, %v, the next surge: %+v", crashes, f.marked(), f.refusals, d)
			}
		}
	})
	t.Run("E77, E87: restores the deletion cost of a Pod that a later evacuator is to remove, before its ReplicaSet can delete it", func(t *testing.T) {
		f := surged(2, 1)
		f.settle()
		f.step() // mark
		passed := surge.PodRef{Name: f.pods[0].Name, UID: f.pods[0].UID}
		clear(f.evacuations)
		during := f.observed()
		during.Passed = []surge.PodRef{passed}
		after := f.observed()
		after.Passed, after.Marked, after.Deployment = during.Passed, nil, after.Deployment.DeepCopy()
		surge.SetBaseline(after.Deployment, nil)
		deleted := after
		deleted.Deployment = nil
		for name, o := range map[string]surge.Observation{"during the surge": during, "after it": after, "after the Deployment was deleted": deleted} {
			if d := surge.Decide(o); !slices.Equal(d.Unmark, []surge.PodRef{passed}) || d.Deployment != nil {
				t.Errorf("%s: got %+v", name, d)
			}
		}
	})
	t.Run("E77, E87: restores the deletion cost of Pods of an earlier round also during the next round, if that has failed before", func(t *testing.T) {
		f := surged(2, 1)
		passed, abandoned := surge.PodRef{Name: "passed", UID: "passed"}, surge.PodRef{Name: "abandoned", UID: "abandoned"}
		for range 4 { // until the Deployment is scaled back
			o := f.observed()
			o.Abandoned, o.Passed = append(o.Abandoned, abandoned), []surge.PodRef{passed}
			if d := surge.Decide(o); !slices.Equal(d.Unmark, []surge.PodRef{abandoned, passed}) {
				t.Errorf("got %+v", d)
			}
			f.step()
			f.settle()
		}
		if f.baseline() != nil {
			t.Errorf("the surge has not ended: %+v", f.baseline())
		}
	})
	t.Run("E24: a Pod of the round whose evacuator has completed stays marked when the Deployment is scaled back for the other one", func(t *testing.T) {
		f := surged(2, 2)
		f.settle()
		f.step() // mark
		o := f.observed()
		o.Abandoned, o.Leaving = []surge.PodRef{o.Leaving[0].PodRef}, o.Leaving[1:]
		if d := surge.Decide(o); len(o.Marked) != 2 || d.Deployment == nil || len(d.Unmark) > 0 {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E25: replaces the other Pod when the evacuation of one of two is cancelled", func(t *testing.T) {
		f := surged(2, 2)
		stays, moves := f.pods[0].UID, f.pods[1].UID
		delete(f.evacuations, stays)
		f.run()
		if f.pod(moves) != nil || *f.deployment.Spec.Replicas != 2 || f.available() != 2 {
			t.Errorf("got %v", f.pods)
		}
	})
	t.Run("E25: keeps an edit of the number of replicas", func(t *testing.T) {
		f := surged(1, 1)
		f.deployment.ManagedFields = []metav1.ManagedFieldsEntry{
			owning("kube-controller-manager", f.now.Add(time.Minute), `{"f:status":{"f:replicas":{}}}`),
			owning("helm", f.now.Add(-time.Hour), `{"f:spec":{"f:replicas":{},"f:template":{}}}`), owning("old", f.now, "?"), {Manager: "older"},
		}
		f.scaleAs("gitops", 5)
		d := f.step()
		if *f.deployment.Spec.Replicas != 5 || f.baseline() != nil || !d.Event.Warning || d.Event.Reason != surge.EventSuperseded {
			t.Errorf("got %+v", d)
		}
		if len(d.Reports) != 1 || d.Reports[0].Refusal != surge.Edited {
			t.Errorf("the eviction does not follow: %v", d.Reports)
		}
		const who = `Field manager "gitops" changed the number of replicas`
		if !strings.HasPrefix(d.Event.Message, who) || !strings.HasPrefix(d.Reports[0].Message, who) {
			t.Errorf("E69: the actor is not named: %v, %v", d.Event.Message, d.Reports)
		}
	})
	t.Run("E25: keeps an edit of the template and restores the number of replicas", func(t *testing.T) {
		f := surged(1, 1)
		f.deployment.Spec.Template.Spec.NodeName = "elsewhere"
		d := f.step()
		if *f.deployment.Spec.Replicas != 1 || f.baseline() != nil || d.Event.Reason != surge.EventSuperseded || len(d.Reports) != 1 {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E25: keeps an edit made before it has scaled up", func(t *testing.T) {
		f := deployed(1).evacuated(1, v1alpha1.SurgeAlways)
		f.step()
		f.scale(3)
		if d := f.step(); *f.deployment.Spec.Replicas != 3 || f.baseline() != nil || d.Event.Reason != surge.EventSuperseded {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E25: drops a baseline that was copied from another Deployment", func(t *testing.T) {
		f := surged(1, 1)
		clear(f.evacuations)
		f.deployment.UID = "copy"
		if d := f.step(); *f.deployment.Spec.Replicas != 2 || f.deployment.Annotations[v1alpha1.SurgeAnnotation] != "" || d.Event == nil {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E27: scales back and evicts when new Pods are not available in time", func(t *testing.T) {
		f := surged(1, 1)
		d := f.step()
		for ; len(d.Reports) == 0 && f.now.Before(begin.Add(progressDeadline)); d = f.step() {
			if !d.RequeueAt.After(f.now) {
				t.Fatalf("got %+v", d)
			}
			f.now = d.RequeueAt
		}
		if !f.now.Equal(begin.Add(progressDeadline - 10*time.Second)) {
			t.Errorf("it ends after %s", f.now.Sub(begin))
		}
		if len(d.Reports) != 1 || d.Reports[0].Refusal != surge.NotAvailable || f.baseline() != nil || *f.deployment.Spec.Replicas != 1 ||
			d.Event.Reason != surge.EventCanceled {
			t.Errorf("got %+v", d)
		}
		if d := f.step(); d.Deployment != nil {
			t.Errorf("it surges again: %+v", d)
		}
	})
	t.Run("E27: scales back also when it reconciles after the progress deadline", func(t *testing.T) {
		f := surged(1, 1)
		f.now = f.now.Add(progressDeadline)
		if d := f.step(); f.baseline() != nil || *f.deployment.Spec.Replicas != 1 {
			t.Errorf("got %+v", d)
		}
	})
}

func TestRolloutUndo(t *testing.T) {
	// record returns the annotations during an earlier surge of a Deployment with one replica, and the Deployment after it.
	after := func(t *testing.T, change ...func(*fixture)) (*fixture, map[string]string) {
		t.Helper()
		f := deployed(1)
		for _, each := range change {
			each(f)
		}
		f.evacuated(1, v1alpha1.SurgeAlways)
		var record map[string]string
		for range 50 {
			if f.step(); f.baseline() != nil {
				record = f.deployment.Annotations
			}
			f.settle()
			if f.autoscaler != nil && f.baseline() != nil && f.baseline().Returning != nil {
				f.autoscale(1)
				f.settle()
			}
		}
		f.evict()
		if _, labelled := f.deployment.Labels[v1alpha1.SurgingLabel]; record == nil || labelled || *f.deployment.Spec.Replicas != 1 {
			t.Fatalf("the first surge does not end: %v", f.deployment)
		}
		return f, record
	}
	t.Run("E63: surges again after the baseline of an earlier surge came back", func(t *testing.T) {
		f, record := after(t)
		f.undo(record)
		f.settle()
		f.evacuated(1, v1alpha1.SurgeIfSingleReplica)
		f.run()
		if len(f.refusals) > 0 || *f.deployment.Spec.Replicas != 1 || f.deployment.Annotations[v1alpha1.SurgeAnnotation] != "" {
			t.Errorf("refused: %v, %v", f.refusals, f.deployment)
		}
	})
	t.Run("E63: does not scale down to the baseline of an earlier surge", func(t *testing.T) {
		f, record := after(t)
		f.undo(record)
		f.scale(2)
		f.settle()
		f.evacuated(1, v1alpha1.SurgeAlways)
		for range 20 {
			if f.step(); *f.deployment.Spec.Replicas < 2 {
				t.Fatalf("scaled to %d", *f.deployment.Spec.Replicas)
			}
			f.settle()
		}
		if len(f.refusals) > 0 || *f.deployment.Spec.Replicas != 2 {
			t.Errorf("refused: %v, %v", f.refusals, f.deployment)
		}
	})
	t.Run("E63: ignores the baseline of an earlier surge by an autoscaler", func(t *testing.T) {
		f, record := after(t, func(f *fixture) { f.scaledBy(1, 5) })
		f.undo(record)
		f.scale(2)
		f.settle()
		if f.step(); *f.deployment.Spec.Replicas != 2 {
			t.Errorf("scaled to %d", *f.deployment.Spec.Replicas)
		}
	})
	t.Run("E63: removes the copy when it refuses the surge", func(t *testing.T) {
		f, record := after(t)
		f.undo(record)
		f.scale(2)
		f.settle()
		f.evacuated(1, v1alpha1.SurgeIfSingleReplica)
		if f.run(); f.deployment.Annotations[v1alpha1.SurgeAnnotation] != "" || *f.deployment.Spec.Replicas != 2 || len(f.refusals) != 1 {
			t.Errorf("refused: %v, %v", f.refusals, f.deployment)
		}
	})
	_, earlier := after(t)
	for name, tc := range map[string]struct {
		annotations map[string]string
		scale       int32
		want        int32
	}{
		"without a record":                            {nil, 0, 1},
		"with the record of an earlier surge":         {earlier, 0, 1},
		"and keeps a number that another actor wrote": {nil, 5, 5},
	} {
		t.Run("E63: an undo during the surge "+name+" restores the number of replicas", func(t *testing.T) {
			f := surged(1, 1)
			f.undo(tc.annotations)
			if tc.scale > 0 {
				f.scale(tc.scale)
			}
			d := f.step()
			if _, labelled := f.deployment.Labels[v1alpha1.SurgingLabel]; labelled || *f.deployment.Spec.Replicas != tc.want ||
				f.deployment.Annotations[v1alpha1.SurgeAnnotation] != "" || d.Event == nil {
				t.Errorf("got %+v", d)
			}
			if len(d.Reports) != 1 || d.Reports[0].Refusal != surge.Edited {
				t.Errorf("the eviction does not follow: %v", d.Reports)
			}
		})
	}
	t.Run("E63: an undo during the surge restores the number of replicas also if an autoscaler does not scale back", func(t *testing.T) {
		for _, cancelled := range []bool{false, true} {
			f := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
			f.step()
			f.step()
			f.settle() // it scales up; later it has no metrics
			f.undo(nil)
			if cancelled {
				clear(f.evacuations)
			}
			f.run()
			if *f.deployment.Spec.Replicas != 2 || *f.autoscaler.Spec.MinReplicas != 1 || len(f.autoscaler.Annotations)+len(f.deployment.Labels) > 0 {
				t.Errorf("cancelled: %v: %d replicas, %v, %v", cancelled, *f.deployment.Spec.Replicas, f.deployment.Annotations, f.autoscaler)
			}
		}
	})
	t.Run("E63: an undo after Pods were marked restores their deletion cost", func(t *testing.T) {
		f := surged(1, 1)
		f.settle()
		f.step() // mark
		f.undo(nil)
		f.step()
		f.step()
		if slices.ContainsFunc(f.pods, func(p *pod) bool { return surge.Marked(&p.Pod) }) || *f.deployment.Spec.Replicas != 1 {
			t.Errorf("got %v", f.deployment)
		}
	})
}

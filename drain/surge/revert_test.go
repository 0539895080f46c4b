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

// surged returns a world whose Deployment is scaled up, and whose new Pods are not available.
func surged(replicas int32, leaving int) *world {
	w := deployed(replicas, maxSurge("100%")).evacuated(leaving, v1alpha1.SurgeAlways)
	w.step()
	w.step()
	w.replicate()
	w.observe()
	return w
}

func TestRevert(t *testing.T) {
	t.Run("E25: removes the baseline when cancelled before it has scaled up", func(t *testing.T) {
		w := deployed(1).evacuated(1, v1alpha1.SurgeAlways)
		w.step()
		clear(w.evacuations)
		w.run()
		if w.baseline() != nil || *w.deployment.Spec.Replicas != 1 || len(w.events) > 0 {
			t.Errorf("%v, %v", w.deployment, w.events)
		}
	})
	t.Run("E25: scales back when cancelled while new Pods start", func(t *testing.T) {
		w := surged(2, 2)
		clear(w.evacuations)
		if d := w.step(); d.Deployment == nil || *d.Deployment.Spec.Replicas != 2 || d.Event.Reason != surge.EventCanceled {
			t.Errorf("got %+v", d)
		}
		if w.baseline() != nil {
			t.Error("the baseline was not removed")
		}
	})
	t.Run("E25: restores the deletion cost of marked Pods when cancelled", func(t *testing.T) {
		w := surged(2, 2)
		w.pods[0].Annotations = map[string]string{corev1.PodDeletionCost: "7"}
		w.settle()
		w.step()
		if !surge.Marked(&w.pods[0].Pod) || !surge.Marked(&w.pods[1].Pod) {
			t.Fatal("they are not marked")
		}
		clear(w.evacuations)
		if d := w.step(); len(d.Unmark) != 2 || !d.RequeueAt.After(w.now) {
			t.Errorf("no event follows: %+v", d)
		}
		w.run()
		if got := w.pods[0].Annotations; got[corev1.PodDeletionCost] != "7" || len(got) != 1 || len(w.pods[1].Annotations) > 0 {
			t.Errorf("got %v, %v", got, w.pods[1].Annotations)
		}
		if w.baseline() != nil || *w.deployment.Spec.Replicas != 2 {
			t.Errorf("got %v", w.deployment)
		}
	})
	t.Run("E77: restores the deletion cost of a Pod that is evicted because its ReplicaSet has deleted another one, also after a crash", func(t *testing.T) {
		for _, crashes := range []bool{false, true} {
			w := surged(2, 1)
			w.settle()
			w.step()                // mark
			w.step()                // scale back
			w.remove(w.pods[2].UID) // the new one
			w.observe()
			for ; len(w.refusals) == 0; w.now = w.now.Add(time.Second) {
				w.apply(surge.Decide(w.observed()), map[bool]int{true: 1, false: 9}[crashes])
			}
			w.evacuated(1, v1alpha1.SurgeAlways)
			d := w.step()
			if w.marked() > 0 || w.refusals[w.pods[0].UID] != surge.NotChosen || w.baseline() == nil {
				t.Errorf("crashes: %v: %d Pods are marked, %v, the next surge: %+v", crashes, w.marked(), w.refusals, d)
			}
		}
	})
	t.Run("E77, E87: restores the deletion cost of a Pod that a later evacuator is to remove, before its ReplicaSet can delete it", func(t *testing.T) {
		w := surged(2, 1)
		w.settle()
		w.step() // mark
		passed := surge.PodRef{Name: w.pods[0].Name, UID: w.pods[0].UID}
		clear(w.evacuations)
		during := w.observed()
		during.Passed = []surge.PodRef{passed}
		after := w.observed()
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
	t.Run("E25: replaces the other Pod when the evacuation of one of two is cancelled", func(t *testing.T) {
		w := surged(2, 2)
		stays, moves := w.pods[0].UID, w.pods[1].UID
		delete(w.evacuations, stays)
		w.run()
		if w.pod(moves) != nil || *w.deployment.Spec.Replicas != 2 || w.available() != 2 {
			t.Errorf("got %v", w.pods)
		}
	})
	t.Run("E25: keeps an edit of the number of replicas", func(t *testing.T) {
		w := surged(1, 1)
		w.deployment.ManagedFields = []metav1.ManagedFieldsEntry{
			owning("kube-controller-manager", w.now.Add(time.Minute), `{"f:status":{"f:replicas":{}}}`),
			owning("helm", w.now.Add(-time.Hour), `{"f:spec":{"f:replicas":{},"f:template":{}}}`), owning("old", w.now, "?"), {Manager: "older"},
		}
		w.scaleAs("gitops", 5)
		d := w.step()
		if *w.deployment.Spec.Replicas != 5 || w.baseline() != nil || !d.Event.Warning || d.Event.Reason != surge.EventSuperseded {
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
		w := surged(1, 1)
		w.deployment.Spec.Template.Spec.NodeName = "elsewhere"
		d := w.step()
		if *w.deployment.Spec.Replicas != 1 || w.baseline() != nil || d.Event.Reason != surge.EventSuperseded || len(d.Reports) != 1 {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E25: keeps an edit made before it has scaled up", func(t *testing.T) {
		w := deployed(1).evacuated(1, v1alpha1.SurgeAlways)
		w.step()
		w.scale(3)
		if d := w.step(); *w.deployment.Spec.Replicas != 3 || w.baseline() != nil || d.Event.Reason != surge.EventSuperseded {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E25: drops a baseline that was copied from another Deployment", func(t *testing.T) {
		w := surged(1, 1)
		clear(w.evacuations)
		w.deployment.UID = "copy"
		if d := w.step(); *w.deployment.Spec.Replicas != 2 || w.deployment.Annotations[v1alpha1.SurgeAnnotation] != "" || d.Event == nil {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E27: scales back and evicts when new Pods are not available in time", func(t *testing.T) {
		w := surged(1, 1)
		d := w.step()
		for ; len(d.Reports) == 0 && w.now.Before(begin.Add(progressDeadline)); d = w.step() {
			if !d.RequeueAt.After(w.now) {
				t.Fatalf("got %+v", d)
			}
			w.now = d.RequeueAt
		}
		if !w.now.Equal(begin.Add(progressDeadline - 10*time.Second)) {
			t.Errorf("it ends after %s", w.now.Sub(begin))
		}
		if len(d.Reports) != 1 || d.Reports[0].Refusal != surge.NotAvailable || w.baseline() != nil || *w.deployment.Spec.Replicas != 1 ||
			d.Event.Reason != surge.EventCanceled {
			t.Errorf("got %+v", d)
		}
		if d := w.step(); d.Deployment != nil {
			t.Errorf("it surges again: %+v", d)
		}
	})
	t.Run("E27: scales back also when it reconciles after the progress deadline", func(t *testing.T) {
		w := surged(1, 1)
		w.now = w.now.Add(progressDeadline)
		if d := w.step(); w.baseline() != nil || *w.deployment.Spec.Replicas != 1 {
			t.Errorf("got %+v", d)
		}
	})
}

func TestRolloutUndo(t *testing.T) {
	// record returns the annotations during an earlier surge of a Deployment with one replica, and the Deployment after it.
	after := func(t *testing.T, change ...func(*world)) (*world, map[string]string) {
		t.Helper()
		w := deployed(1)
		for _, each := range change {
			each(w)
		}
		w.evacuated(1, v1alpha1.SurgeAlways)
		var record map[string]string
		for range 50 {
			if w.step(); w.baseline() != nil {
				record = w.deployment.Annotations
			}
			w.settle()
			if w.autoscaler != nil && w.baseline() != nil && w.baseline().Returning != nil {
				w.autoscale(1)
				w.settle()
			}
		}
		w.evict()
		if _, labelled := w.deployment.Labels[v1alpha1.SurgingLabel]; record == nil || labelled || *w.deployment.Spec.Replicas != 1 {
			t.Fatalf("the first surge does not end: %v", w.deployment)
		}
		return w, record
	}
	t.Run("E63: surges again after the baseline of an earlier surge came back", func(t *testing.T) {
		w, record := after(t)
		w.undo(record)
		w.settle()
		w.evacuated(1, v1alpha1.SurgeIfSingleReplica)
		w.run()
		if len(w.refusals) > 0 || *w.deployment.Spec.Replicas != 1 || w.deployment.Annotations[v1alpha1.SurgeAnnotation] != "" {
			t.Errorf("refused: %v, %v", w.refusals, w.deployment)
		}
	})
	t.Run("E63: does not scale down to the baseline of an earlier surge", func(t *testing.T) {
		w, record := after(t)
		w.undo(record)
		w.scale(2)
		w.settle()
		w.evacuated(1, v1alpha1.SurgeAlways)
		for range 20 {
			if w.step(); *w.deployment.Spec.Replicas < 2 {
				t.Fatalf("scaled to %d", *w.deployment.Spec.Replicas)
			}
			w.settle()
		}
		if len(w.refusals) > 0 || *w.deployment.Spec.Replicas != 2 {
			t.Errorf("refused: %v, %v", w.refusals, w.deployment)
		}
	})
	t.Run("E63: ignores the baseline of an earlier surge by an autoscaler", func(t *testing.T) {
		w, record := after(t, func(w *world) { w.scaledBy(1, 5) })
		w.undo(record)
		w.scale(2)
		w.settle()
		if w.step(); *w.deployment.Spec.Replicas != 2 {
			t.Errorf("scaled to %d", *w.deployment.Spec.Replicas)
		}
	})
	t.Run("E63: removes the copy when it refuses the surge", func(t *testing.T) {
		w, record := after(t)
		w.undo(record)
		w.scale(2)
		w.settle()
		w.evacuated(1, v1alpha1.SurgeIfSingleReplica)
		if w.run(); w.deployment.Annotations[v1alpha1.SurgeAnnotation] != "" || *w.deployment.Spec.Replicas != 2 || len(w.refusals) != 1 {
			t.Errorf("refused: %v, %v", w.refusals, w.deployment)
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
			w := surged(1, 1)
			w.undo(tc.annotations)
			if tc.scale > 0 {
				w.scale(tc.scale)
			}
			d := w.step()
			if _, labelled := w.deployment.Labels[v1alpha1.SurgingLabel]; labelled || *w.deployment.Spec.Replicas != tc.want ||
				w.deployment.Annotations[v1alpha1.SurgeAnnotation] != "" || d.Event == nil {
				t.Errorf("got %+v", d)
			}
			if len(d.Reports) != 1 || d.Reports[0].Refusal != surge.Edited {
				t.Errorf("the eviction does not follow: %v", d.Reports)
			}
		})
	}
	t.Run("E63: an undo during the surge restores the number of replicas also if an autoscaler does not scale back", func(t *testing.T) {
		for _, cancelled := range []bool{false, true} {
			w := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
			w.step()
			w.step()
			w.settle() // it scales up; later it has no metrics
			w.undo(nil)
			if cancelled {
				clear(w.evacuations)
			}
			w.run()
			if *w.deployment.Spec.Replicas != 2 || *w.autoscaler.Spec.MinReplicas != 1 || len(w.autoscaler.Annotations)+len(w.deployment.Labels) > 0 {
				t.Errorf("cancelled: %v: %d replicas, %v, %v", cancelled, *w.deployment.Spec.Replicas, w.deployment.Annotations, w.autoscaler)
			}
		}
	})
	t.Run("E63: an undo after Pods were marked restores their deletion cost", func(t *testing.T) {
		w := surged(1, 1)
		w.settle()
		w.step() // mark
		w.undo(nil)
		w.step()
		w.step()
		if slices.ContainsFunc(w.pods, func(p *pod) bool { return surge.Marked(&p.Pod) }) || *w.deployment.Spec.Replicas != 1 {
			t.Errorf("got %v", w.deployment)
		}
	})
}

package surge_test

import (
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

func TestMoves(t *testing.T) {
	t.Run("E24, E25: one write after the other, the baseline first and gone with the last", func(t *testing.T) {
		w := deployed(1).evacuated(1, v1alpha1.SurgeIfSingleReplica)
		leaving := w.pods[0]

		w.step()
		if w.baseline() == nil || w.baseline().Raised || *w.deployment.Spec.Replicas != 1 {
			t.Fatalf("first the baseline: %v", w.deployment)
		}
		w.step()
		if !w.baseline().Raised || *w.deployment.Spec.Replicas != 2 {
			t.Fatalf("then the number: %v", w.deployment)
		}
		w.replicate()
		w.observe()
		if d := w.step(); d.Deployment != nil || len(d.Mark) > 0 || d.LookAgain.IsZero() {
			t.Fatalf("it waits for the new Pod: %v", d)
		}
		w.settle()
		if d := w.step(); len(d.Mark) != 1 || d.Mark[0].UID != leaving.UID {
			t.Fatalf("the Pod that leaves is marked: %v", d)
		}
		w.step()
		if w.baseline() != nil || *w.deployment.Spec.Replicas != 1 || w.deployment.Labels[v1alpha1.SurgingLabel] != "" {
			t.Fatalf("it is taken back: %v", w.deployment)
		}
		w.settle()
		if w.pod(leaving.UID) != nil || w.available() != 1 {
			t.Fatal("another Pod has gone")
		}
		if d := w.step(); d.Deployment != nil || len(d.Reports) > 0 || !slices.Equal(w.events, []string{surge.EventSurged, surge.EventMoved}) {
			t.Fatalf("that is all: %v, %v", d, w.events)
		}
	})
	for _, tc := range []struct {
		name   string
		world  *world
		rounds []int32
	}{
		{"E24: maxSurge 25% of ten is three at a time", deployed(10, maxSurge("25%")).evacuated(10, v1alpha1.SurgeAlways), []int32{13, 13, 13, 11}},
		{"E24: maxSurge 0 is one at a time", deployed(3, maxSurge("0")).evacuated(2, v1alpha1.SurgeAlways), []int32{4, 4}},
		{"E24: a number", deployed(4, maxSurge("2")).evacuated(3, v1alpha1.SurgeAlways), []int32{6, 5}},
		{"E24: no more than leave", deployed(4, maxSurge("100%")).evacuated(1, v1alpha1.SurgeAlways), []int32{5}},
		{"E24: what isn't a number is one at a time", deployed(4, maxSurge("many")).evacuated(2, v1alpha1.SurgeAlways), []int32{5, 5}},
		{"E26: no more than the autoscaler's maximum", deployed(4, maxSurge("100%")).scaledBy(2, 6).evacuated(3, v1alpha1.SurgeAlways), []int32{6, 5}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			declared := *tc.world.deployment.Spec.Replicas
			var rounds []int32
			for _, d := range tc.world.run() {
				switch {
				case d.Autoscaler != nil && *d.Autoscaler.Spec.MinReplicas > declared:
					rounds = append(rounds, *d.Autoscaler.Spec.MinReplicas)
				case d.Deployment != nil && *d.Deployment.Spec.Replicas > declared && d.Event != nil && d.Event.Reason == surge.EventSurged:
					rounds = append(rounds, *d.Deployment.Spec.Replicas)
				}
			}
			if !slices.Equal(rounds, tc.rounds) || len(tc.world.evacuations) > 0 || *tc.world.deployment.Spec.Replicas != declared {
				t.Errorf("rounds %v, want %v; %d are left, %d replicas", rounds, tc.rounds, len(tc.world.evacuations), *tc.world.deployment.Spec.Replicas)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	claim := func(modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{AccessModes: modes}}
	}
	always, single := v1alpha1.SurgeAlways, v1alpha1.SurgeIfSingleReplica
	for _, tc := range []struct {
		name   string
		world  *world
		change func(*world)
		want   surge.Refusal
	}{
		{"E24: IfSingleReplica with two", deployed(2).evacuated(1, single), nil, surge.TooManyReplicas},
		{"E24: Never", deployed(1).evacuated(1, v1alpha1.SurgeNever), nil, surge.NotAsked},
		{"E24: Recreate", deployed(1, func(d *appsv1.Deployment) { d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType }).evacuated(1, always), nil, surge.Recreated},
		{"E24: a paused rollout", deployed(1, func(d *appsv1.Deployment) { d.Spec.Paused = true }).evacuated(1, always), nil, surge.Paused},
		{"E24: a rollout in progress", deployed(2).evacuated(1, always), func(w *world) { w.deployment.Status.UpdatedReplicas = 1 }, surge.Progressing},
		{"E24: a ReadWriteOnce claim", deployed(1).evacuated(1, always), func(w *world) { w.claims = map[string]*corev1.PersistentVolumeClaim{"a": claim(corev1.ReadWriteOnce)} }, surge.ExclusiveVolume},
		{"E24: a ReadWriteOncePod claim", deployed(1).evacuated(1, always), func(w *world) {
			w.claims = map[string]*corev1.PersistentVolumeClaim{"a": claim(corev1.ReadWriteOncePod)}
		}, surge.ExclusiveVolume},
		{"E24: a claim that isn't there", deployed(1).evacuated(1, always), func(w *world) { w.claims = map[string]*corev1.PersistentVolumeClaim{"a": nil} }, surge.NoVolume},
		{"E24: an autoscaler at its maximum", deployed(3).scaledBy(1, 3).evacuated(1, always), nil, surge.AutoscalerAtMaximum},
		{"E26: an autoscaler that something else owns", deployed(1).scaledBy(1, 3).evacuated(1, always), func(w *world) {
			w.autoscaler.OwnerReferences = []metav1.OwnerReference{{Kind: "ScaledObject", Name: "web", Controller: ptr.To(true)}}
		}, surge.ForeignAutoscaler},
		{"E24: a Pod that isn't ready", deployed(1).evacuated(1, always), func(w *world) { w.pods[0].ready = false }, surge.PodNotReady},
		{"E24: replicas that stay unavailable", deployed(3).evacuated(1, always), func(w *world) {
			w.deployment.Status.AvailableReplicas = 2
			w.now = w.now.Add(5 * time.Minute) // however long it has waited for others
			w.step()
			w.now = w.now.Add(2 * time.Minute)
		}, surge.Unavailable},
		{"E25: a Deployment that is gone", deployed(1).evacuated(1, always), func(w *world) { w.deployment = nil }, surge.NoDeployment},
		{"E25: one that is being deleted", deployed(1).evacuated(1, always), func(w *world) { w.deployment.DeletionTimestamp = ptr.To(metav1.Now()) }, surge.NoDeployment},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.change != nil {
				tc.change(tc.world)
			}
			d := tc.world.step()
			if d.Deployment != nil || d.Autoscaler != nil || len(d.Reports) != 1 || d.Reports[0].Refusal != tc.want || d.Reports[0].Message == "" {
				t.Errorf("got %+v, want %s", d, tc.want)
			}
		})
	}
	t.Run("E24: claims that many Nodes can mount are no obstacle", func(t *testing.T) {
		w := deployed(1).evacuated(1, always)
		w.claims = map[string]*corev1.PersistentVolumeClaim{"a": claim(corev1.ReadWriteOnce, corev1.ReadWriteMany), "b": claim(corev1.ReadOnlyMany)}
		if d := w.step(); d.Deployment == nil {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E24: a Deployment that isn't available at once is given time", func(t *testing.T) {
		w := deployed(3).evacuated(1, always)
		w.deployment.Status.AvailableReplicas = 2
		w.now = w.now.Add(5 * time.Minute)
		if d := w.step(); d.Deployment != nil || len(d.Reports) != 1 || d.Reports[0].Refusal != "" || d.LookAgain.IsZero() {
			t.Errorf("got %+v", d)
		}
		w.now = w.now.Add(time.Minute)
		if d := w.step(); d.Deployment != nil || len(d.Reports) > 0 || d.LookAgain.IsZero() {
			t.Errorf("it is told once: %+v", d)
		}
	})
	t.Run("E24: while a round ends, the next one waits, however long that took", func(t *testing.T) {
		w := deployed(2).evacuated(1, always)
		w.deployment.Generation++
		w.now = w.now.Add(5 * time.Minute)
		if d := w.step(); d.Deployment != nil || len(d.Reports) > 0 || d.LookAgain.IsZero() {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E24: whoever waits for a later round is told of progress before its turn ends in silence", func(t *testing.T) {
		w := deployed(4).evacuated(3, always) // one at a time
		for w.now = w.now.Add(4 * time.Minute); len(w.refusals) == 0 && len(w.evacuations) > 0; w.now = w.now.Add(time.Minute) {
			w.step()
			w.settle()
		}
		if len(w.refusals) > 0 || len(w.evacuations) > 0 || w.now.Before(begin.Add(progressDeadline)) {
			t.Errorf("refused %v, %d are left after %s", w.refusals, len(w.evacuations), w.now.Sub(begin))
		}
	})
	t.Run("E24: where the ReplicaSet deletes another Pod, the one that is left is evicted", func(t *testing.T) {
		w := deployed(1).evacuated(1, always)
		surge.Mark(&w.pods[0].Pod)
		w.now = w.now.Add(time.Minute)
		if d := w.step(); d.Deployment != nil || len(d.Reports) != 1 || d.Reports[0].Refusal != surge.NotChosen {
			t.Errorf("got %+v", d)
		}
	})
}

// surged is a Deployment that is scaled up, and whose new Pods are not available.
func surged(replicas int32, leaving int) *world {
	w := deployed(replicas, maxSurge("100%")).evacuated(leaving, v1alpha1.SurgeAlways)
	w.step()
	w.step()
	w.replicate()
	w.observe()
	return w
}

func TestTakenBack(t *testing.T) {
	t.Run("E25: called off before anything was written", func(t *testing.T) {
		w := deployed(1).evacuated(1, v1alpha1.SurgeAlways)
		w.step()
		clear(w.evacuations)
		w.run()
		if w.baseline() != nil || *w.deployment.Spec.Replicas != 1 || len(w.events) > 0 {
			t.Errorf("%v, %v", w.deployment, w.events)
		}
	})
	t.Run("E25: called off while new Pods start", func(t *testing.T) {
		w := surged(2, 2)
		clear(w.evacuations)
		if d := w.step(); d.Deployment == nil || *d.Deployment.Spec.Replicas != 2 || d.Event.Reason != surge.EventCalledOff {
			t.Errorf("got %+v", d)
		}
		if w.baseline() != nil {
			t.Error("the baseline is still there")
		}
	})
	t.Run("E25: called off with Pods marked: those that stay are left as they were found", func(t *testing.T) {
		w := surged(2, 2)
		w.pods[0].Annotations = map[string]string{corev1.PodDeletionCost: "7"}
		w.settle()
		w.step()
		if !surge.Marked(&w.pods[0].Pod) || !surge.Marked(&w.pods[1].Pod) {
			t.Fatal("they aren't marked")
		}
		clear(w.evacuations)
		w.run()
		if got := w.pods[0].Annotations; got[corev1.PodDeletionCost] != "7" || len(got) != 1 || len(w.pods[1].Annotations) > 0 {
			t.Errorf("got %v, %v", got, w.pods[1].Annotations)
		}
		if w.baseline() != nil || *w.deployment.Spec.Replicas != 2 {
			t.Errorf("got %v", w.deployment)
		}
	})
	t.Run("E25: one of two called off: the other one moves", func(t *testing.T) {
		w := surged(2, 2)
		stays, moves := w.pods[0].UID, w.pods[1].UID
		delete(w.evacuations, stays)
		w.run()
		if w.pod(moves) != nil || *w.deployment.Spec.Replicas != 2 || w.available() != 2 {
			t.Errorf("got %v", w.pods)
		}
	})
	t.Run("E25: an edit of the number of replicas wins", func(t *testing.T) {
		w := surged(1, 1)
		w.scale(5)
		d := w.step()
		if *w.deployment.Spec.Replicas != 5 || w.baseline() != nil || !d.Event.Warning || d.Event.Reason != surge.EventSuperseded {
			t.Errorf("got %+v", d)
		}
		if len(d.Reports) != 1 || d.Reports[0].Refusal != surge.Edited {
			t.Errorf("eviction follows: %v", d.Reports)
		}
	})
	t.Run("E25: an edit of the template wins, and the number is taken back", func(t *testing.T) {
		w := surged(1, 1)
		w.deployment.Spec.Template.Spec.NodeName = "elsewhere"
		d := w.step()
		if *w.deployment.Spec.Replicas != 1 || w.baseline() != nil || d.Event.Reason != surge.EventSuperseded || len(d.Reports) != 1 {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E25: an edit before the number was written", func(t *testing.T) {
		w := deployed(1).evacuated(1, v1alpha1.SurgeAlways)
		w.step()
		w.scale(3)
		if d := w.step(); *w.deployment.Spec.Replicas != 3 || w.baseline() != nil || d.Event.Reason != surge.EventSuperseded {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E25: a copy of the annotation on another Deployment is no baseline", func(t *testing.T) {
		w := surged(1, 1)
		clear(w.evacuations)
		w.deployment.UID = "copy"
		if d := w.step(); *w.deployment.Spec.Replicas != 2 || w.deployment.Annotations[v1alpha1.SurgeAnnotation] != "" || d.Event == nil {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E27: new Pods that aren't available in time: it is taken back, and eviction follows", func(t *testing.T) {
		w := surged(1, 1)
		d := w.step()
		if d.LookAgain.IsZero() || !d.LookAgain.After(w.now.Add(progressDeadline/2)) {
			t.Fatalf("got %+v", d)
		}
		w.now = d.LookAgain
		d = w.step()
		if len(d.Reports) != 1 || d.Reports[0].Refusal != surge.NotAvailable || w.baseline() != nil || *w.deployment.Spec.Replicas != 1 || d.Event.Reason != surge.EventCalledOff {
			t.Errorf("got %+v", d)
		}
		if d := w.step(); d.Deployment != nil {
			t.Errorf("it begins anew: %+v", d)
		}
	})
	t.Run("E27: it is taken back also where nobody looked in time", func(t *testing.T) {
		w := surged(1, 1)
		w.now = w.now.Add(progressDeadline)
		if d := w.step(); w.baseline() != nil || *w.deployment.Spec.Replicas != 1 {
			t.Errorf("got %+v", d)
		}
	})
}

func TestAutoscaler(t *testing.T) {
	t.Run("E26: its minReplicas is raised and restored, and it scales back by itself", func(t *testing.T) {
		w := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		leaving := w.pods[0].UID
		w.step()
		d := w.step()
		if d.Deployment != nil || *w.autoscaler.Spec.MinReplicas != 3 || *w.deployment.Spec.Replicas != 2 {
			t.Fatalf("got %+v", d)
		}
		w.settle() // it scales up
		w.step()   // mark
		w.step()   // note since when
		if d := w.step(); d.Autoscaler == nil || *w.autoscaler.Spec.MinReplicas != 1 || len(w.autoscaler.Annotations) > 0 {
			t.Fatalf("got %+v", d)
		}
		if d := w.step(); d.Deployment != nil || !d.LookAgain.Equal(w.now.Add(surge.ReturnTime)) {
			t.Fatalf("it waits: %+v", d)
		}
		w.autoscale(2)
		w.settle()
		w.run()
		if w.pod(leaving) != nil || w.baseline() != nil || *w.deployment.Spec.Replicas != 2 {
			t.Errorf("got %v", w.deployment)
		}
	})
	t.Run("E26: where it doesn't scale back, the recorded number is written", func(t *testing.T) {
		w := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		w.run()
		if *w.deployment.Spec.Replicas != 2 || w.baseline() != nil || w.now.Before(begin.Add(surge.ReturnTime)) || len(w.evacuations) > 0 {
			t.Errorf("got %v", w.deployment)
		}
	})
	t.Run("E26: where it scales up further, that is left to it", func(t *testing.T) {
		w := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		for range 5 {
			w.step()
			w.settle()
		}
		w.scale(5)
		if d := w.step(); w.baseline() != nil || *w.deployment.Spec.Replicas != 5 {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E26: without a minReplicas it has none again", func(t *testing.T) {
		w := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		w.autoscaler.Spec.MinReplicas = nil
		w.run()
		if w.autoscaler.Spec.MinReplicas != nil || *w.deployment.Spec.Replicas != 2 {
			t.Errorf("got %v", w.autoscaler.Spec)
		}
	})
	t.Run("E26: somebody's edit of minReplicas wins", func(t *testing.T) {
		w := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		w.step()
		w.step()
		w.autoscaler = w.autoscaler.DeepCopy()
		w.autoscaler.Spec.MinReplicas = ptr.To[int32](4)
		w.run()
		if *w.autoscaler.Spec.MinReplicas != 4 || len(w.autoscaler.Annotations) > 0 || w.baseline() != nil || !slices.Contains(w.events, surge.EventSuperseded) {
			t.Errorf("got %v, %v", w.autoscaler, w.events)
		}
	})
	t.Run("E25, E26: a Deployment that is deleted leaves the autoscaler as it was", func(t *testing.T) {
		w := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		w.step()
		w.step()
		w.deployment = nil
		if d := w.step(); *w.autoscaler.Spec.MinReplicas != 1 || len(w.autoscaler.Annotations) > 0 || len(d.Reports) != 1 {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E26: an autoscaler that is deleted: nobody else would scale back", func(t *testing.T) {
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

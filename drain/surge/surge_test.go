package surge_test

import (
	"fmt"
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

func TestRounds(t *testing.T) {
	t.Run("E24, E25: writes one change at a time, stores the baseline first and removes it with the last write", func(t *testing.T) {
		f := deployed(1).evacuated(1, v1alpha1.SurgeIfSingleReplica)
		leaving := f.pods[0]

		f.step()
		if f.baseline() == nil || f.baseline().Raised || *f.deployment.Spec.Replicas != 1 {
			t.Fatalf("the baseline is not written first: %v", f.deployment)
		}
		f.step()
		if !f.baseline().Raised || *f.deployment.Spec.Replicas != 2 {
			t.Fatalf("the number is not written next: %v", f.deployment)
		}
		f.replicate()
		f.observe()
		if d := f.step(); d.Deployment != nil || len(d.Mark) > 0 || d.RequeueAt.IsZero() {
			t.Fatalf("it does not wait for the new Pod: %v", d)
		}
		f.settle()
		if d := f.step(); len(d.Mark) != 1 || d.Mark[0].UID != leaving.UID {
			t.Fatalf("the Pod to be removed is not marked: %v", d)
		}
		f.step()
		if f.baseline() != nil || *f.deployment.Spec.Replicas != 1 || f.deployment.Labels[v1alpha1.SurgingLabel] != "" {
			t.Fatalf("it is not scaled back: %v", f.deployment)
		}
		f.settle()
		if f.pod(leaving.UID) != nil || f.available() != 1 {
			t.Fatal("another Pod was removed")
		}
		if d := f.step(); d.Deployment != nil || len(d.Reports) > 0 || !slices.Equal(f.events, []string{surge.EventSurged, surge.EventCompleted}) {
			t.Fatalf("further writes or events: %v, %v", d, f.events)
		}
	})
	for _, tc := range []struct {
		name    string
		fixture *fixture
		rounds  []int32
	}{
		{"E24: replaces three of ten Pods at a time with maxSurge 25%", deployed(10, maxSurge("25%")).evacuated(10, v1alpha1.SurgeAlways), []int32{13, 13, 13, 11}},
		{"E24: replaces one Pod at a time with maxSurge 0", deployed(3, maxSurge("0")).evacuated(2, v1alpha1.SurgeAlways), []int32{4, 4}},
		{"E24: replaces as many Pods at a time as an integer maxSurge", deployed(4, maxSurge("2")).evacuated(3, v1alpha1.SurgeAlways), []int32{6, 5}},
		{"E24: adds no more replicas than Pods are removed", deployed(4, maxSurge("100%")).evacuated(1, v1alpha1.SurgeAlways), []int32{5}},
		{"E24: replaces one Pod at a time with an invalid maxSurge", deployed(4, maxSurge("many")).evacuated(2, v1alpha1.SurgeAlways), []int32{5, 5}},
		{
			"E26: adds no more replicas than the maxReplicas of the autoscaler",
			deployed(4, maxSurge("100%")).scaledBy(2, 6).evacuated(3, v1alpha1.SurgeAlways), []int32{6, 5},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			declared := *tc.fixture.deployment.Spec.Replicas
			var rounds []int32
			for _, d := range tc.fixture.run() {
				switch {
				case d.Autoscaler != nil && *d.Autoscaler.Spec.MinReplicas > declared:
					rounds = append(rounds, *d.Autoscaler.Spec.MinReplicas)
				case d.Deployment != nil && *d.Deployment.Spec.Replicas > declared && d.Event != nil && d.Event.Reason == surge.EventSurged:
					rounds = append(rounds, *d.Deployment.Spec.Replicas)
				}
			}
			if !slices.Equal(rounds, tc.rounds) || len(tc.fixture.evacuations) > 0 || *tc.fixture.deployment.Spec.Replicas != declared {
				t.Errorf("rounds %v, want %v; %d Evacuations remain, %d replicas", rounds, tc.rounds, len(tc.fixture.evacuations), *tc.fixture.deployment.Spec.Replicas)
			}
		})
	}
}

func TestUnreadyDuringSurge(t *testing.T) {
	t.Run("E24: does not wait for a Pod that is to be removed to be ready again, when all others are available", func(t *testing.T) {
		f := surged(2, 1)
		leaving := f.pods[0]
		leaving.ready = false
		decide := func() surge.Decision {
			f.replicate()
			f.observe()
			o := f.observed()
			for i := range o.Leaving {
				o.Leaving[i].Unready = !leaving.ready
			}
			d := surge.Decide(o)
			f.apply(d, 9)
			return d
		}
		if d := decide(); len(d.Mark) > 0 || f.baseline() == nil {
			t.Fatalf("it does not wait for the new Pod: %+v", d)
		}
		f.pods[2].ready = true
		decide() // mark
		decide() // scale back
		decide()
		if f.pod(leaving.UID) != nil || f.available() != 2 || f.baseline() != nil || len(f.refusals) > 0 {
			t.Errorf("%d Pods are available, %v, refused %v", f.available(), f.deployment.Annotations, f.refusals)
		}
	})
}

func TestRefusals(t *testing.T) {
	claim := func(modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{AccessModes: modes}}
	}
	always, single := v1alpha1.SurgeAlways, v1alpha1.SurgeIfSingleReplica
	for _, tc := range []struct {
		name    string
		fixture *fixture
		change  func(*fixture)
		want    surge.Refusal
	}{
		{"E24: refuses two replicas with IfSingleReplica", deployed(2).evacuated(1, single), nil, surge.TooManyReplicas},
		{"E24: refuses with policy Never", deployed(1).evacuated(1, v1alpha1.SurgeNever), nil, surge.NotRequested},
		{
			"E24: refuses with strategy Recreate",
			deployed(1, func(d *appsv1.Deployment) { d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType }).evacuated(1, always), nil, surge.Recreated,
		},
		{"E24: refuses while the rollout is paused", deployed(1, func(d *appsv1.Deployment) { d.Spec.Paused = true }).evacuated(1, always), nil, surge.Paused},
		{
			"E24: refuses while a rollout is in progress",
			deployed(2).evacuated(1, always), func(f *fixture) { f.deployment.Status.UpdatedReplicas = 1 }, surge.Progressing,
		},
		{
			"E24: refuses with a ReadWriteOnce claim", deployed(1).evacuated(1, always),
			func(f *fixture) {
				f.claims = map[string]*corev1.PersistentVolumeClaim{"a": claim(corev1.ReadWriteOnce)}
			}, surge.ExclusiveVolume,
		},
		{"E24: refuses with a ReadWriteOncePod claim", deployed(1).evacuated(1, always), func(f *fixture) {
			f.claims = map[string]*corev1.PersistentVolumeClaim{"a": claim(corev1.ReadWriteOncePod)}
		}, surge.ExclusiveVolume},
		{
			"E24: refuses with a claim that does not exist",
			deployed(1).evacuated(1, always), func(f *fixture) { f.claims = map[string]*corev1.PersistentVolumeClaim{"a": nil} }, surge.NoVolume,
		},
		{"K74: refuses with more claims than are read", deployed(1, func(d *appsv1.Deployment) {
			for i := range surge.MaxClaims + 1 {
				d.Spec.Template.Spec.Volumes = append(d.Spec.Template.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("claim-", i)},
				}})
			}
		}).evacuated(1, always), nil, surge.ExclusiveVolume},
		{"E24: refuses with an autoscaler at its maximum", deployed(3).scaledBy(1, 3).evacuated(1, always), nil, surge.AutoscalerAtMaximum},
		{"E26: refuses with an autoscaler that has a controller", deployed(1).scaledBy(1, 3).evacuated(1, always), func(f *fixture) {
			f.autoscaler.OwnerReferences = []metav1.OwnerReference{{Kind: "ScaledObject", Name: "web", Controller: ptr.To(true)}}
		}, surge.ForeignAutoscaler},
		{"E24: refuses a Pod that is not ready", deployed(1).evacuated(1, always), func(f *fixture) { f.pods[0].ready = false }, surge.PodNotReady},
		{"E24: refuses when replicas stay unavailable", deployed(3).evacuated(1, always), func(f *fixture) {
			f.deployment.Status.AvailableReplicas = 2
			f.now = f.now.Add(5 * time.Minute) // it may have waited for others for any time
			f.step()
			f.now = f.now.Add(2 * time.Minute)
		}, surge.Unavailable},
		{"E25: refuses when the Deployment does not exist", deployed(1).evacuated(1, always), func(f *fixture) { f.deployment = nil }, surge.NoDeployment},
		{
			"E25: refuses when the Deployment is being deleted",
			deployed(1).evacuated(1, always), func(f *fixture) { f.deployment.DeletionTimestamp = ptr.To(metav1.Now()) }, surge.NoDeployment,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.change != nil {
				tc.change(tc.fixture)
			}
			d := tc.fixture.step()
			if d.Deployment != nil || d.Autoscaler != nil || len(d.Reports) != 1 || d.Reports[0].Refusal != tc.want || d.Reports[0].Message == "" {
				t.Errorf("got %+v, want %s", d, tc.want)
			}
		})
	}
	t.Run("E24: does not surge when another actor has scaled to no replicas", func(t *testing.T) {
		f := deployed(1).evacuated(1, always)
		f.deployment.Spec.Replicas, f.deployment.Status = new(int32(0)), appsv1.DeploymentStatus{ObservedGeneration: f.deployment.Generation}
		if d := f.step(); d.Deployment != nil || len(d.Reports) > 0 || d.RequeueAt.IsZero() { // a baseline without replicas would be invalid
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E24: surges with claims that several Nodes can mount", func(t *testing.T) {
		f := deployed(1).evacuated(1, always)
		f.claims = map[string]*corev1.PersistentVolumeClaim{"a": claim(corev1.ReadWriteOnce, corev1.ReadWriteMany), "b": claim(corev1.ReadOnlyMany)}
		if d := f.step(); d.Deployment == nil {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E24: waits for unavailable replicas before it refuses", func(t *testing.T) {
		f := deployed(3).evacuated(1, always)
		f.deployment.Status.AvailableReplicas = 2
		f.now = f.now.Add(5 * time.Minute)
		if d := f.step(); d.Deployment != nil || len(d.Reports) != 1 || d.Reports[0].Refusal != "" || d.RequeueAt.IsZero() {
			t.Errorf("got %+v", d)
		}
		f.now = f.now.Add(time.Minute)
		if d := f.step(); d.Deployment != nil || len(d.Reports) > 0 || d.RequeueAt.IsZero() {
			t.Errorf("it reports more than once: %+v", d)
		}
	})
	t.Run("E24: delays the next round until the previous one has ended, without a time limit", func(t *testing.T) {
		f := deployed(2).evacuated(1, always)
		f.deployment.Generation++
		f.now = f.now.Add(5 * time.Minute)
		if d := f.step(); d.Deployment != nil || len(d.Reports) > 0 || d.RequeueAt.IsZero() {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E24: reports progress for Pods that wait for a later round before their progress deadline", func(t *testing.T) {
		f := deployed(4).evacuated(3, always) // one at a time
		for f.now = f.now.Add(4 * time.Minute); len(f.refusals) == 0 && len(f.evacuations) > 0; f.now = f.now.Add(time.Minute) {
			f.step()
			f.settle()
		}
		if len(f.refusals) > 0 || len(f.evacuations) > 0 || f.now.Before(begin.Add(progressDeadline)) {
			t.Errorf("refused %v, %d Evacuations remain after %s", f.refusals, len(f.evacuations), f.now.Sub(begin))
		}
	})
	t.Run("E24: reports progress for Pods that wait for a later round also while the new Pods of a round take long", func(t *testing.T) {
		f := deployed(3).evacuated(3, always)
		for f.now.Before(begin.Add(2 * time.Minute)) { // the first round
			f.step()
			f.settle()
			f.now = f.now.Add(time.Minute)
		}
		for f.baseline() == nil || !f.baseline().Raised { // of the second one
			f.step()
			f.observe()
		}
		for f.now.Before(f.observed().Leaving[0].Deadline.Add(-time.Minute)) {
			f.replicate()
			f.observe()
			f.step()
			f.now = f.now.Add(30 * time.Second)
		}
		if len(f.observed().Leaving) != 2 {
			t.Fatalf("a Pod that waits has missed its deadline: %v", f.reports)
		}
		if f.run(); len(f.refusals) > 0 {
			t.Errorf("refused: %v", f.refusals)
		}
	})
	t.Run("E24: evicts the marked Pod when the ReplicaSet deletes another one", func(t *testing.T) {
		f := deployed(1).evacuated(1, always)
		surge.Mark(&f.pods[0].Pod)
		f.now = f.now.Add(time.Minute)
		if d := f.step(); d.Deployment != nil || len(d.Reports) != 1 || d.Reports[0].Refusal != surge.NotChosen {
			t.Errorf("got %+v", d)
		}
	})
}

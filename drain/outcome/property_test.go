package outcome_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
)

// TestProperties reads random drains of shared controllers again and again, while Pods come and go.
func TestProperties(t *testing.T) {
	t.Run("M150: the numbers add up, and no more Pods are replaced than exist", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			controllers := []outcome.Controller{web, db, crd, bare}
			var drains []*v1alpha1.DrainOutcome
			for i := range rapid.IntRange(1, 4).Draw(t, "drains") {
				var evicted []outcome.Evicted
				for _, controller := range controllers {
					if pods := rapid.Int32Range(0, 3).Draw(t, "evicted"); pods > 0 {
						since := start.Add(time.Duration(rapid.IntRange(0, 120).Draw(t, "since")) * time.Second)
						evicted = append(evicted, outcome.Evicted{Controller: controller, Pods: pods, Since: since})
					}
				}
				drain := outcome.Begin(evicted, 0, rapid.Int32Range(0, 2).Draw(t, "lost"), end.Add(time.Duration(i)*time.Second))
				drains = append(drains, &drain)
			}
			for range 3 {
				world := drawWorld(t, controllers)
				outcome.Read(world, end.Add(10*time.Minute), drains...)
				checkSums(t, drains)
				checkReplaced(t, world, drains)
			}
		})
	})
}

func drawWorld(t *rapid.T, controllers []outcome.Controller) outcome.World {
	world := outcome.World{Wanted: map[outcome.Controller]int32{}, Unread: map[outcome.Controller]error{}}
	for _, controller := range controllers {
		for i := range rapid.IntRange(0, 5).Draw(t, "pods") {
			pod := podOf(controller, fmt.Sprint(i))
			pod.CreationTimestamp = metav1.NewTime(start.Add(time.Duration(rapid.IntRange(-60, 120).Draw(t, "created")) * time.Second))
			if change := rapid.SampledFrom([]change{nil, isPending, isNotReady, isFinished, terminates}).Draw(t, "state"); change != nil {
				change(pod)
			}
			world.Pods = append(world.Pods, pod)
		}
		if wanted := rapid.Int32Range(0, 6).Draw(t, "wanted"); controller == web || controller == db {
			world.Wanted[controller] = wanted
		}
	}
	if rapid.IntRange(0, 9).Draw(t, "unread") == 0 {
		world.Unread[db] = errors.New("timeout")
	}
	return world
}

func checkSums(t *rapid.T, drains []*v1alpha1.DrainOutcome) {
	sum := func(p v1alpha1.EvictedPods) int32 {
		return p.Ready + p.NotReady + p.Pending + p.NotReplaced + p.NotNeeded + p.Unknown
	}
	for _, drain := range drains {
		for _, pods := range append([]v1alpha1.EvictedPods{drain.Pods}, podsOf(drain)...) {
			if sum(pods) != pods.Evicted || min(pods.Ready, pods.NotReady, pods.Pending, pods.NotReplaced, pods.NotNeeded, pods.Unknown) < 0 {
				t.Fatalf("%+v does not add up", pods)
			}
		}
		if done := drain.Pods.Pending+drain.Pods.NotReady+drain.Pods.Unknown == 0; outcome.IsComplete(drain) && !done {
			t.Fatalf("complete: %+v", drain.Pods)
		}
	}
}

func podsOf(drain *v1alpha1.DrainOutcome) (all []v1alpha1.EvictedPods) {
	for _, application := range drain.Applications {
		all = append(all, application.Pods)
	}
	return all
}

// checkReplaced compares the applications that were read with the Pods that exist. Those that were removed have been replaced before.
func checkReplaced(t *rapid.T, world outcome.World, drains []*v1alpha1.DrainOutcome) {
	replaced, ready, missing := map[string]int32{}, map[string]int32{}, map[string]int32{}
	for _, drain := range drains {
		for _, application := range drain.Applications {
			replaced[application.Controller] += application.Pods.Ready + application.Pods.NotReady + application.Pods.Pending
			ready[application.Controller] += application.Pods.Ready
			missing[application.Controller] += application.Pods.NotReplaced
		}
	}
	live, liveReady := map[string]int32{}, map[string]int32{}
	for _, pod := range world.Pods {
		if pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded {
			live[outcome.ControllerOf(pod).String()]++
			if len(pod.Status.Conditions) > 0 && pod.Status.Conditions[0].Type == corev1.PodReady {
				liveReady[outcome.ControllerOf(pod).String()]++
			}
		}
	}
	for controller := range replaced {
		if replaced[controller] > live[controller] || ready[controller] > liveReady[controller] {
			t.Fatalf("%s: %d replaced and %d ready, but there are %d and %d Pods", controller, replaced[controller], ready[controller],
				live[controller], liveReady[controller])
		}
	}
	for controller, wanted := range world.Wanted {
		if lacks := max(0, wanted-live[controller.String()]); missing[controller.String()] > lacks {
			t.Fatalf("%s: %d not replaced, but it lacks %d", controller, missing[controller.String()], lacks)
		}
	}
}

package evacuation_test

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

// A Pod with one evacuator, which never reports progress.
func Example() {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace:   "shop",
		Name:        "web-0",
		UID:         "6a1f5c2e-9d0b-4c3a-8e7f-1b2c3d4e5f60",
		Annotations: map[string]string{v1alpha1.EvacuatorPriorityAnnotationPrefix + "mover.example.com": "20000"},
	}}
	evacuators, _ := evacuation.Resolve(evacuation.Subject{Annotations: pod.Annotations})
	e := evacuation.New(pod, evacuators, 1800)

	for range 3 {
		action := evacuation.Next(evacuation.Input{
			Evacuation: e,
			Pod:        evacuation.ObservedPod(e, pod, v1alpha1.PodTypeDefault),
			Now:        now,
		})
		action.Apply(e, now)
		fmt.Println(action.Kind+":", action.Message)
		if action.Kind == evacuation.AwaitEvacuator {
			now = action.Deadline
		}
	}
	// Output:
	// Activate: The evacuation begins. Evacuator mover.example.com is active.
	// AwaitEvacuator: Evacuator mover.example.com is active.
	// Evict: Evacuator mover.example.com has made no progress for 30m0s, and no evacuator is left. Evicting the Pod.
}

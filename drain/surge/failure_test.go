package surge_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// raised returns a world whose Deployment is scaled up, and whose controllers have not acted yet.
func raised(replicas int32, leaving int, changes ...func(*appsv1.Deployment)) *world {
	w := deployed(replicas, changes...).evacuated(leaving, v1alpha1.SurgeAlways)
	w.step()
	w.step()
	return w
}

// act lets all other controllers act, and decides.
func (w *world) act() surge.Decision {
	w.settle()
	return w.step()
}

// expectEnded checks that a surge has ended with a reason, that the number of replicas is restored, and that no other surge begins.
func (w *world) expectEnded(t *testing.T, replicas int32, refused int, reason surge.Refusal, why string) {
	t.Helper()
	if w.baseline() != nil || *w.deployment.Spec.Replicas != replicas || len(w.refusals) != refused {
		t.Fatalf("it does not end: %v, refused %v", w.deployment, w.refusals)
	}
	for uid, refusal := range w.refusals {
		if refusal != reason || !strings.Contains(w.reports[uid], why) {
			t.Errorf("refused with %s: %s", refusal, w.reports[uid])
		}
	}
	if last := len(w.events) - 1; w.events[last] != surge.EventCanceled || !strings.Contains(w.messages[last], why) {
		t.Errorf("got the events %v: %v", w.events, w.messages)
	}
	if d := w.act(); d.Deployment != nil || d.Autoscaler != nil {
		t.Errorf("it surges again: %+v", d)
	}
}

func TestRefusedPods(t *testing.T) {
	t.Run("E67: a surge ends at once when a quota refuses a new Pod, also for the Pods of later rounds", func(t *testing.T) {
		w := raised(4, 3, maxSurge("1"))
		w.quota = 4
		w.act()
		w.expectEnded(t, 4, 3, surge.ReplicaFailure, "A new Pod of Deployment shop/web cannot be created: "+quotaExceeded)
		if !w.now.Equal(begin) || w.available() != 4 {
			t.Errorf("%d are available after %s", w.available(), w.now.Sub(begin))
		}
	})
	t.Run("E67: the minReplicas of an autoscaler is restored when a quota refuses a new Pod", func(t *testing.T) {
		w := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		w.quota = 2
		w.run()
		if *w.autoscaler.Spec.MinReplicas != 1 || *w.deployment.Spec.Replicas != 2 || w.baseline() != nil || w.refusals["web-001"] != surge.ReplicaFailure {
			t.Errorf("got %v, refused %v", w.deployment, w.refusals)
		}
	})
	for _, message := range []string{
		`admission webhook "policy.example.com" denied the request: no`,
		`pods "web-1" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p' denied request: failed expression: false`,
		`Pod "web-1" is invalid: spec.containers[0].image: Required value`,
	} {
		t.Run("E67: a surge ends at once when the API server refuses a new Pod: "+message, func(t *testing.T) {
			w := raised(1, 1)
			w.quota, w.creation = 1, message
			w.act()
			w.expectEnded(t, 1, 1, surge.ReplicaFailure, message)
		})
	}
	for _, message := range []string{
		`Internal error occurred: failed calling webhook "inject.example.com": failed to call webhook: Post "https://inject.mesh.svc:443/": connection refused`,
		`Operation cannot be fulfilled on resourcequotas "pods": the object has been modified; please apply your changes to the latest version and try again`,
	} {
		t.Run("E67: a surge waits when the API server cannot create a new Pod, and says so after 30 s: "+message[:30], func(t *testing.T) {
			w := raised(1, 1)
			pod := w.pods[0].UID
			w.quota, w.creation = 1, message
			if d := w.act(); len(d.Reports) > 0 || d.Deployment != nil || !d.RequeueAt.Equal(w.now.Add(30*time.Second)) {
				t.Fatalf("got %+v", d)
			}
			w.now = w.now.Add(30 * time.Second)
			if w.act(); !strings.Contains(w.reports[pod], message[:30]) || len(w.refusals) > 0 {
				t.Fatalf("reported %s, refused %v", w.reports[pod], w.refusals)
			}
			w.quota = 0
			w.run()
			if len(w.refusals) > 0 || w.pod(pod) != nil || *w.deployment.Spec.Replicas != 1 {
				t.Errorf("the surge does not complete: refused %v, %v", w.refusals, w.deployment)
			}
		})
	}
	t.Run("E67: the failure of an earlier surge does not end the next one", func(t *testing.T) {
		w := raised(1, 1)
		w.quota = 1
		w.act()
		w.expectEnded(t, 1, 1, surge.ReplicaFailure, quotaExceeded)
		w.evict()
		w.settle()
		failing := w.deployment.Status.DeepCopy()
		failing.Conditions = []appsv1.DeploymentCondition{replicaFailure("FailedCreate", quotaExceeded, w.now)}
		w.deployment.Status, w.quota = *failing, 0
		clear(w.refusals)
		w.evacuated(1, v1alpha1.SurgeAlways)
		if d := w.step(); d.Deployment != nil || len(w.refusals) > 0 || d.RequeueAt.IsZero() {
			t.Fatalf("it begins before the failure is over: %+v", d)
		}
		if w.run(); len(w.refusals) > 0 || *w.deployment.Spec.Replicas != 1 {
			t.Errorf("refused %v", w.refusals)
		}
	})
	t.Run("E67: Pods that cannot be deleted do not end a surge", func(t *testing.T) {
		w := raised(1, 1)
		w.replicate()
		w.observe()
		w.deployment.Status.Conditions = []appsv1.DeploymentCondition{replicaFailure("FailedDelete", `pods "x" is forbidden: no`, w.now)}
		if d := w.step(); d.Deployment != nil || len(d.Reports) > 0 {
			t.Errorf("got %+v", d)
		}
	})
}

func TestUnschedulablePods(t *testing.T) {
	const why = "of Deployment shop/web is unschedulable: 0/2 nodes are available"
	// wait decides whenever it is due, until the time since the Deployment was scaled up.
	wait := func(t *testing.T, w *world, until time.Duration) {
		t.Helper()
		for {
			d := w.act()
			if d.RequeueAt.IsZero() || d.RequeueAt.After(begin.Add(until)) {
				break
			}
			if !d.RequeueAt.After(w.now) {
				t.Fatalf("it decides again at %s: %+v", d.RequeueAt, d)
			}
			w.now = d.RequeueAt
		}
		w.now = begin.Add(until)
		w.act()
	}
	for name, tc := range map[string]struct {
		seconds        *int32
		deadline, ends time.Duration
	}{
		"after ten minutes": {nil, 30 * time.Minute, 10 * time.Minute},
		"after the progressDeadlineSeconds of its Deployment":     {ptr.To[int32](120), 30 * time.Minute, 2 * time.Minute},
		"before the progress deadline of its Evacuation":          {ptr.To[int32](3600), 30 * time.Minute, 30*time.Minute - 10*time.Second},
		"before the reserved time of a drain that soon times out": {nil, 5 * time.Minute, 5*time.Minute - 10*time.Second},
	} {
		t.Run("E68: an unschedulable Pod is reported after 30 s, and ends the surge "+name, func(t *testing.T) {
			w := raised(1, 1, func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = tc.seconds })
			pod := w.pods[0].UID
			w.full, w.deadline = true, tc.deadline
			if wait(t, w, 29*time.Second); strings.Contains(w.reports[pod], "unschedulable") {
				t.Fatalf("reported early: %s", w.reports[pod])
			}
			if wait(t, w, 30*time.Second); !strings.HasPrefix(w.reports[pod], "Adding replicas before Pods are removed: ") || !strings.Contains(w.reports[pod], why) {
				t.Fatalf("reported %s", w.reports[pod])
			}
			if wait(t, w, tc.ends-time.Second); len(w.refusals) > 0 || *w.deployment.Spec.Replicas != 2 {
				t.Fatalf("ended early: %v", w.refusals)
			}
			wait(t, w, tc.ends)
			w.expectEnded(t, 1, 1, surge.Unschedulable, why)
		})
	}
	t.Run("E68: the surge completes when an autoscaler adds a Node, and the report says that the Pod is scheduled", func(t *testing.T) {
		w := raised(1, 1)
		pod := w.pods[0].UID
		w.full = true
		wait(t, w, 2*time.Minute)
		w.schedule()
		if d := w.step(); len(d.Reports) != 1 || strings.Contains(w.reports[pod], "unschedulable") || !w.evacuations[pod].since.Equal(begin) {
			t.Fatalf("got %+v; a report that a Pod waits is no progress", d)
		}
		if w.run(); w.pod(pod) != nil || len(w.refusals) > 0 || *w.deployment.Spec.Replicas != 1 {
			t.Errorf("refused %v", w.refusals)
		}
	})
	t.Run("E68: reports an unschedulable Pod once", func(t *testing.T) {
		w := raised(1, 1)
		w.full = true
		wait(t, w, time.Minute)
		w.now = w.now.Add(time.Minute)
		if d := w.step(); len(d.Reports) > 0 || d.RequeueAt.IsZero() {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E68, E47: a workload cluster whose clock is an hour behind does not end a surge early", func(t *testing.T) {
		w := raised(1, 1, func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = ptr.To[int32](120) })
		w.full = true
		w.replicate()
		w.pods[1].Status.Conditions[0].LastTransitionTime = metav1.NewTime(begin.Add(-time.Hour))
		if wait(t, w, 119*time.Second); len(w.refusals) > 0 {
			t.Errorf("refused %v", w.refusals)
		}
	})
	t.Run("E68: Pods that are scheduled, terminate or have a scheduling gate are not unschedulable", func(t *testing.T) {
		for name, change := range map[string]func(*corev1.Pod){
			"scheduled":   func(p *corev1.Pod) { p.Spec.NodeName = "one" },
			"terminating": func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) },
			"gated":       func(p *corev1.Pod) { p.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated },
			"ready":       func(p *corev1.Pod) { p.Status.Conditions[0].Type = corev1.PodReady },
		} {
			w := raised(1, 1, func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = ptr.To[int32](60) })
			w.full = true
			w.replicate()
			w.observe()
			change(&w.pods[1].Pod)
			w.now = w.now.Add(2 * time.Minute)
			if d := w.step(); len(d.Reports) > 0 || d.Deployment != nil {
				t.Errorf("%s: %+v", name, d)
			}
		}
	})
	t.Run("E68: Pods are read only while a surge has waited for 30 s", func(t *testing.T) {
		w := raised(1, 1)
		var awaits []bool
		for _, waited := range []time.Duration{0, 29 * time.Second, 30 * time.Second} {
			w.now = begin.Add(waited)
			awaits = append(awaits, surge.AwaitsPods(w.observed()))
		}
		w.settle()
		if awaits = append(awaits, surge.AwaitsPods(w.observed())); !slices.Equal(awaits, []bool{false, false, true, false}) {
			t.Errorf("got %v", awaits)
		}
	})
}

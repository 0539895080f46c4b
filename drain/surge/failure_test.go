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

// raised returns a fixture whose Deployment is scaled up, and whose controllers have not acted yet.
func raised(replicas int32, leaving int, changes ...func(*appsv1.Deployment)) *fixture {
	f := deployed(replicas, changes...).evacuated(leaving, v1alpha1.SurgeAlways)
	f.step()
	f.step()
	return f
}

// act lets all other controllers act, and decides.
func (f *fixture) act() surge.Decision {
	f.settle()
	return f.step()
}

// expectEnded checks that a surge has ended with a reason, that the number of replicas is restored, and that no other surge begins.
func (f *fixture) expectEnded(t *testing.T, replicas int32, refused int, reason surge.Refusal, why string) {
	t.Helper()
	if f.baseline() != nil || *f.deployment.Spec.Replicas != replicas || len(f.refusals) != refused {
		t.Fatalf("it does not end: %v, refused %v", f.deployment, f.refusals)
	}
	for uid, refusal := range f.refusals {
		if refusal != reason || !strings.Contains(f.reports[uid], why) {
			t.Errorf("refused with %s: %s", refusal, f.reports[uid])
		}
	}
	if last := len(f.events) - 1; f.events[last] != surge.EventCanceled || !strings.Contains(f.messages[last], why) {
		t.Errorf("got the events %v: %v", f.events, f.messages)
	}
	if d := f.act(); d.Deployment != nil || d.Autoscaler != nil {
		t.Errorf("it surges again: %+v", d)
	}
}

// wait decides whenever it is due, until the time since the Deployment was scaled up.
func (f *fixture) wait(t *testing.T, until time.Duration) {
	t.Helper()
	for {
		d := f.act()
		if d.RequeueAt.IsZero() || d.RequeueAt.After(begin.Add(until)) {
			break
		}
		if !d.RequeueAt.After(f.now) {
			t.Fatalf("it decides again at %s: %+v", d.RequeueAt, d)
		}
		f.now = d.RequeueAt
	}
	f.now = begin.Add(until)
	f.act()
}

const denied = `pods "web-1" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p' denied request: failed expression: false`

// TestQuotas covers quotas that are full for some time. In one, it is full until Pods have terminated; in another one, it stays full.
func TestQuotas(t *testing.T) {
	grace := func(seconds int64) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) { d.Spec.Template.Spec.TerminationGracePeriodSeconds = &seconds }
	}
	after := func(waited time.Duration, quota int) func(*fixture) {
		return func(f *fixture) {
			if f.now.Equal(begin.Add(waited)) {
				f.quota = quota
			}
		}
	}
	always := func(*fixture) {}
	for name, tc := range map[string]struct {
		fixtures []*fixture
		quota    int // of all fixtures
		message  string
		change   func(*fixture) // every second
	}{
		"the Pods of the last round have terminated":                        {[]*fixture{raised(3, 3, maxSurge("1"))}, 4, quotaExceeded, always},
		"the Pods of the last round have terminated, which takes 6 minutes": {[]*fixture{raised(2, 2, maxSurge("1"), grace(360))}, 3, quotaExceeded, always},
		"the surge of another Deployment is over":                           {[]*fixture{raised(1, 1), raised(1, 1)}, 3, quotaExceeded, always},
		"another Pod was deleted a second later":                            {[]*fixture{raised(1, 1)}, 1, quotaExceeded, after(time.Second, 2)},
		"another Pod has terminated after 2 minutes":                        {[]*fixture{raised(1, 1)}, 1, quotaExceeded, after(2*time.Minute, 2)},
		"the status of a new quota is known": {
			[]*fixture{raised(1, 1)}, 1, `pods "web-1" is forbidden: status unknown for quota: pods, resources: pods`, after(time.Second, 0),
		},
		"the API server has started": {[]*fixture{raised(1, 1)}, 1, `pods "web-1" is forbidden: not yet ready to handle request`, after(time.Second, 0)},
	} {
		t.Run("E67: a surge that a quota refuses completes when "+name, func(t *testing.T) {
			for _, f := range tc.fixtures {
				f.quota, f.creation = tc.quota, tc.message
			}
			if last := len(tc.fixtures) - 1; last > 0 {
				tc.fixtures[0].sharing, tc.fixtures[last].sharing = tc.fixtures[last], tc.fixtures[0]
			}
			declared := map[*fixture]int{}
			for _, f := range tc.fixtures {
				declared[f] = f.available()
			}
			surges := func(f *fixture) bool { return f.baseline() != nil || len(f.evacuations) > 0 }
			for second := 0; slices.ContainsFunc(tc.fixtures, surges); second++ {
				for _, f := range tc.fixtures {
					tc.change(f)
					f.act()
					if f.evict(); f.available() < declared[f] || len(f.refusals) > 0 || second > 3600 {
						t.Fatalf("%d of %d are available after %d s, refused %v", f.available(), declared[f], second, f.reports)
					}
					f.now = f.now.Add(time.Second)
				}
			}
		})
	}

	for name, tc := range map[string]struct {
		change func(*appsv1.Deployment)
		ends   time.Duration
	}{
		"3 minutes": {func(*appsv1.Deployment) {}, 3 * time.Minute},
		"the progressDeadlineSeconds of its Deployment":  {func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = ptr.To[int32](60) }, time.Minute},
		"its Pods may take to terminate, and one minute": {grace(240), 5 * time.Minute},
		"10 minutes, if its Pods may take longer":        {grace(1 << 62), 10 * time.Minute},
	} {
		t.Run("E67: a quota that stays full is reported after 30 s, and ends the surge after "+name+", also for the Pods of later rounds", func(t *testing.T) {
			f := raised(4, 3, maxSurge("1"), tc.change)
			pod := f.pods[0].UID
			f.quota, f.deadline = 4, 30*time.Minute
			if f.wait(t, 29*time.Second); strings.Contains(f.reports[pod], "quota") {
				t.Fatalf("reported early: %s", f.reports[pod])
			}
			if f.wait(t, 30*time.Second); !strings.Contains(f.reports[pod], "A new Pod of Deployment shop/web cannot be created: "+quotaExceeded) {
				t.Fatalf("reported %s", f.reports[pod])
			}
			if f.wait(t, tc.ends-time.Second); len(f.refusals) > 0 || *f.deployment.Spec.Replicas != 5 {
				t.Fatalf("ended early: %v", f.refusals)
			}
			f.wait(t, tc.ends)
			f.expectEnded(t, 4, 3, surge.ReplicaFailure, "A new Pod of Deployment shop/web cannot be created: "+quotaExceeded)
			if f.available() != 4 {
				t.Errorf("%d are available", f.available())
			}
		})
	}
	for limited, ends := range map[string]bool{
		"pods=5": true, "count/pods=5": true, "limits.cpu=9,pods=5,requests.cpu=9": true,
		"pods=6": false, "pods=1k": false, "pods=99999999999999999999": false, "requests.cpu=1": false, "requests.example.com/pods=1": false,
	} {
		t.Run("E67: a quota ends a surge from 4 to 6 replicas at once only if it allows fewer Pods: "+limited, func(t *testing.T) {
			f := raised(4, 3, maxSurge("2"))
			f.quota, f.creation = 4, exceeded+limited
			d := f.act()
			if ends {
				f.expectEnded(t, 4, 3, surge.ReplicaFailure, exceeded+limited)
			} else if len(d.Reports) > 0 || d.Deployment != nil {
				t.Errorf("got %+v", d)
			}
		})
	}
	t.Run("E67: the time counts from the present round, and from the first refusal in it", func(t *testing.T) {
		for name, since := range map[string]time.Duration{
			"the condition is as old as an earlier failure, or the clock of the workload cluster is behind": -time.Hour,
			"the new Pod was deleted after a minute, and another one was refused":                           time.Minute,
		} {
			f := raised(1, 1)
			f.quota = 1
			f.settle()
			f.deployment.Status.Conditions[0].LastTransitionTime = metav1.NewTime(begin.Add(since))
			if f.wait(t, max(since, 0)+179*time.Second); len(f.refusals) > 0 {
				t.Fatalf("%s: refused %v", name, f.refusals)
			}
			if f.wait(t, max(since, 0)+180*time.Second); len(f.refusals) == 0 {
				t.Fatalf("%s: not refused", name)
			}
		}
	})
}

func TestRefusedPods(t *testing.T) {
	t.Run("E67: a surge ends at once when a policy refuses a new Pod, also for the Pods of later rounds", func(t *testing.T) {
		f := raised(4, 3, maxSurge("1"))
		f.quota, f.creation = 4, denied
		f.act()
		f.expectEnded(t, 4, 3, surge.ReplicaFailure, "A new Pod of Deployment shop/web cannot be created: "+denied)
		if !f.now.Equal(begin) || f.available() != 4 {
			t.Errorf("%d are available after %s", f.available(), f.now.Sub(begin))
		}
	})
	t.Run("E67: the minReplicas of an autoscaler is restored when a quota refuses a new Pod", func(t *testing.T) {
		f := deployed(2).scaledBy(1, 5).evacuated(1, v1alpha1.SurgeAlways)
		f.quota = 2
		f.run()
		if *f.autoscaler.Spec.MinReplicas != 1 || *f.deployment.Spec.Replicas != 2 || f.baseline() != nil || f.refusals["web-001"] != surge.ReplicaFailure {
			t.Errorf("got %v, refused %v", f.deployment, f.refusals)
		}
	})
	for _, message := range []string{
		`admission webhook "policy.example.com" denied the request: no`,
		denied,
		`pods "web-1" is forbidden: failed quota: pods: must specify limits.cpu for: c`,
		`Pod "web-1" is invalid: spec.containers[0].image: Required value`,
	} {
		t.Run("E67: a surge ends at once when the API server refuses a new Pod: "+message, func(t *testing.T) {
			f := raised(1, 1)
			f.quota, f.creation = 1, message
			f.act()
			f.expectEnded(t, 1, 1, surge.ReplicaFailure, message)
		})
	}
	for _, message := range []string{
		`Internal error occurred: failed calling webhook "inject.example.com": failed to call webhook: Post "https://inject.mesh.svc:443/": connection refused`,
		`Operation cannot be fulfilled on resourcequotas "pods": the object has been modified; please apply your changes to the latest version and try again`,
	} {
		t.Run("E67: a surge waits when the API server cannot create a new Pod, and says so after 30 s: "+message[:30], func(t *testing.T) {
			f := raised(1, 1)
			pod := f.pods[0].UID
			f.quota, f.creation = 1, message
			if d := f.act(); len(d.Reports) > 0 || d.Deployment != nil || !d.RequeueAt.Equal(f.now.Add(30*time.Second)) {
				t.Fatalf("got %+v", d)
			}
			f.now = f.now.Add(30 * time.Second)
			if f.act(); !strings.Contains(f.reports[pod], message[:30]) || len(f.refusals) > 0 {
				t.Fatalf("reported %s, refused %v", f.reports[pod], f.refusals)
			}
			f.quota = 0
			f.run()
			if len(f.refusals) > 0 || f.pod(pod) != nil || *f.deployment.Spec.Replicas != 1 {
				t.Errorf("the surge does not complete: refused %v, %v", f.refusals, f.deployment)
			}
		})
	}
	t.Run("E67: the failure of an earlier surge does not end the next one", func(t *testing.T) {
		f := raised(1, 1)
		f.quota, f.creation = 1, denied
		f.act()
		f.expectEnded(t, 1, 1, surge.ReplicaFailure, denied)
		f.evict()
		f.now = f.now.Add(30 * time.Second) // the evicted Pod has terminated
		f.settle()
		failing := f.deployment.Status.DeepCopy()
		failing.Conditions = []appsv1.DeploymentCondition{replicaFailure("FailedCreate", denied, f.now)}
		f.deployment.Status, f.quota = *failing, 0
		clear(f.refusals)
		f.evacuated(1, v1alpha1.SurgeAlways)
		if d := f.step(); d.Deployment != nil || len(f.refusals) > 0 || d.RequeueAt.IsZero() {
			t.Fatalf("it begins before the failure is over: %+v", d)
		}
		if f.run(); len(f.refusals) > 0 || *f.deployment.Spec.Replicas != 1 {
			t.Errorf("refused %v", f.refusals)
		}
	})
	t.Run("E67: Pods that cannot be deleted do not end a surge", func(t *testing.T) {
		f := raised(1, 1)
		f.replicate()
		f.observe()
		f.deployment.Status.Conditions = []appsv1.DeploymentCondition{replicaFailure("FailedDelete", `pods "x" is forbidden: no`, f.now)}
		if d := f.step(); d.Deployment != nil || len(d.Reports) > 0 {
			t.Errorf("got %+v", d)
		}
	})
}

func TestUnschedulablePods(t *testing.T) {
	const why = "of Deployment shop/web is unschedulable: 0/2 nodes are available"
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
			f := raised(1, 1, func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = tc.seconds })
			pod := f.pods[0].UID
			f.full, f.deadline = true, tc.deadline
			if f.wait(t, 29*time.Second); strings.Contains(f.reports[pod], "unschedulable") {
				t.Fatalf("reported early: %s", f.reports[pod])
			}
			if f.wait(t, 30*time.Second); !strings.HasPrefix(f.reports[pod], "Adding replicas before Pods are removed: ") || !strings.Contains(f.reports[pod], why) {
				t.Fatalf("reported %s", f.reports[pod])
			}
			if f.wait(t, tc.ends-time.Second); len(f.refusals) > 0 || *f.deployment.Spec.Replicas != 2 {
				t.Fatalf("ended early: %v", f.refusals)
			}
			f.wait(t, tc.ends)
			f.expectEnded(t, 1, 1, surge.Unschedulable, why)
		})
	}
	t.Run("E68: the surge completes when an autoscaler adds a Node, and the report says that the Pod is scheduled", func(t *testing.T) {
		f := raised(1, 1)
		pod := f.pods[0].UID
		f.full = true
		f.wait(t, 2*time.Minute)
		f.schedule()
		if d := f.step(); len(d.Reports) != 1 || strings.Contains(f.reports[pod], "unschedulable") || !f.evacuations[pod].since.Equal(begin) {
			t.Fatalf("got %+v; a report that a Pod waits is no progress", d)
		}
		if f.run(); f.pod(pod) != nil || len(f.refusals) > 0 || *f.deployment.Spec.Replicas != 1 {
			t.Errorf("refused %v", f.refusals)
		}
	})
	t.Run("E68: reports an unschedulable Pod once, whatever the scheduler says about the Nodes", func(t *testing.T) {
		f := raised(1, 1)
		f.full = true
		f.wait(t, time.Minute)
		f.now = f.now.Add(time.Minute)
		f.pods[1].Status.Conditions[0].Message = "0/3 nodes are available."
		if d := f.step(); len(d.Reports) > 0 || d.RequeueAt.IsZero() {
			t.Errorf("got %+v", d)
		}
		f.wait(t, 10*time.Minute)
		f.expectEnded(t, 1, 1, surge.Unschedulable, "is unschedulable: 0/3 nodes are available")
	})
	t.Run("E68: a Pod that was unschedulable before the deadline ends the surge only if it still is afterwards", func(t *testing.T) {
		f := raised(1, 1)
		f.full, f.deadline = true, 30*time.Minute
		f.wait(t, 10*time.Minute-15*time.Second)
		o := f.observed()
		o.Now = begin.Add(10*time.Minute + time.Second)
		if d := surge.Decide(o); d.Deployment != nil || len(d.Reports) > 0 || !d.RequeueAt.Equal(begin.Add(10*time.Minute+15*time.Second)) {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E68: what was read during an earlier round does not count", func(t *testing.T) {
		f := raised(1, 1)
		f.full = true
		f.settle()
		f.now = begin.Add(f.deadline - time.Second)
		o := f.observed()
		o.Unscheduled.ReadAt, o.Unscheduled.Since = begin.Add(-time.Second), begin.Add(-time.Hour)
		if d := surge.Decide(o); len(d.Reports) != 1 || d.Reports[0].Refusal != surge.NotAvailable {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("E68, E47: a workload cluster whose clock is an hour behind does not end a surge early", func(t *testing.T) {
		f := raised(1, 1, func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = ptr.To[int32](120) })
		f.full = true
		f.replicate()
		f.pods[1].Status.Conditions[0].LastTransitionTime = metav1.NewTime(begin.Add(-time.Hour))
		if f.wait(t, 119*time.Second); len(f.refusals) > 0 {
			t.Errorf("refused %v", f.refusals)
		}
	})
	t.Run("E68: Pods that are scheduled, preempt others, terminate or have a scheduling gate are not unschedulable", func(t *testing.T) {
		for name, change := range map[string]func(*corev1.Pod){
			"scheduled":   func(p *corev1.Pod) { p.Spec.NodeName = "one" },
			"preempting":  func(p *corev1.Pod) { p.Status.NominatedNodeName = "one" },
			"terminating": func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) },
			"gated":       func(p *corev1.Pod) { p.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated },
			"ready":       func(p *corev1.Pod) { p.Status.Conditions[0].Type = corev1.PodReady },
		} {
			f := raised(1, 1, func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = ptr.To[int32](60) })
			f.full = true
			f.replicate()
			f.observe()
			change(&f.pods[1].Pod)
			f.now = f.now.Add(2 * time.Minute)
			if d := f.step(); len(d.Reports) > 0 || d.Deployment != nil {
				t.Errorf("%s: %+v", name, d)
			}
		}
	})
	t.Run("E68: Pods are read only while a surge has waited for 30 s", func(t *testing.T) {
		f := raised(1, 1)
		var awaits []bool
		for _, waited := range []time.Duration{0, 29 * time.Second, 30 * time.Second} {
			f.now = begin.Add(waited)
			awaits = append(awaits, surge.AwaitsPods(f.observed()))
		}
		f.settle()
		if awaits = append(awaits, surge.AwaitsPods(f.observed())); !slices.Equal(awaits, []bool{false, false, true, false}) {
			t.Errorf("got %v", awaits)
		}
	})
}

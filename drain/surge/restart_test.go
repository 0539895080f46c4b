package surge_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// rolling is a fixture whose Deployment is restarted. Its Deployment controller also rolls out.
type rolling struct {
	*fixture
	drains map[types.UID][]time.Time // of the Nodes of Pods
	begun  []time.Time               // of all Nodes
	stuck  bool
}

// restarted returns a fixture of a drain that began a minute ago.
func restarted(replicas int32, changes ...func(*appsv1.Deployment)) *rolling {
	return &rolling{fixture: deployed(replicas, changes...), drains: map[types.UID][]time.Time{}, begun: []time.Time{begin.Add(-time.Minute)}}
}

// drained evacuates the first n Pods without an Evacuation for a drain that began at a time.
func (r *rolling) drained(n int, start time.Time) *rolling {
	r.evacuated(n, v1alpha1.SurgeAlways)
	for uid := range r.evacuations {
		if r.drains[uid] == nil {
			r.drains[uid] = []time.Time{start}
		}
	}
	return r
}

func (r *rolling) observed() surge.Observation {
	o := r.fixture.observed()
	o.Drains = r.begun
	for i := range o.Leaving {
		l := &o.Leaving[i]
		l.Restart, l.Restarted, l.Drains = true, r.pod(l.UID).Annotations[v1alpha1.RestartedAt], r.drains[l.UID]
	}
	return o
}

func (r *rolling) step() surge.Decision {
	before := r.deployment.Spec.Template.Annotations[v1alpha1.RestartedAt]
	d := surge.Decide(r.observed())
	r.apply(d, 1<<20)
	if r.deployment.Spec.Template.Annotations[v1alpha1.RestartedAt] != before {
		r.deployment.Generation++
	}
	return d
}

func (r *rolling) present(p *pod) bool {
	return p.Annotations[v1alpha1.RestartedAt] == r.deployment.Spec.Template.Annotations[v1alpha1.RestartedAt]
}

// roll simulates the Deployment controller: it creates one Pod more than there are replicas, and removes one of an earlier template when
// that is ready.
func (r *rolling) roll() {
	old := slices.IndexFunc(r.pods, func(p *pod) bool { return !r.present(p) })
	switch {
	case len(r.pods) < int(*r.deployment.Spec.Replicas), old >= 0 && len(r.pods) == int(*r.deployment.Spec.Replicas) && !r.stuck:
		r.created++
		name := fmt.Sprintf("web-%03d", r.created)
		r.pods = append(r.pods, &pod{Pod: corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: types.UID(name), Annotations: r.deployment.Spec.Template.Annotations,
		}}})
	case old >= 0 && r.available() > int(*r.deployment.Spec.Replicas):
		r.remove(r.pods[old].UID)
	}
}

func (r *rolling) observe() {
	r.fixture.observe()
	r.deployment.Status.UpdatedReplicas = 0
	for _, p := range r.pods {
		r.deployment.Status.UpdatedReplicas += int32(asInt(r.present(p)))
	}
	r.deployment.Status.Conditions = nil
	if r.stuck {
		r.deployment.Status.Conditions = []appsv1.DeploymentCondition{{
			Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded", Message: "It has timed out progressing.",
		}}
	}
}

// revert restores the template, as a tool does that replaces it.
func (r *rolling) revert() {
	r.deployment = r.deployment.DeepCopy()
	r.deployment.Spec.Template.Annotations = nil
	r.deployment.Generation++
}

// run lets everything proceed until no Pod waits any more.
func (r *rolling) run(t interface{ Fatalf(string, ...any) }) {
	for range 2000 {
		d := r.step()
		r.roll()
		r.start(1)
		r.observe()
		r.evict()
		if len(r.evacuations) == 0 {
			return
		}
		if d.RequeueAt.IsZero() && d.Deployment == nil && len(d.Reports) == 0 {
			t.Fatalf("Pods wait, and nothing is to be done: %v", r.reports)
		}
		if d.RequeueAt.After(r.now) {
			r.now = d.RequeueAt
		}
	}
	t.Fatalf("the Pods wait for ever: %v", r.reports)
}

func (r *rolling) restarts() (n int) {
	for _, event := range r.events {
		n += asInt(event == surge.EventRestarted)
	}
	return n
}

func TestRestart(t *testing.T) {
	unavailable := func(value string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			parsed := intstr.Parse(value)
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxUnavailable: &parsed}
		}
	}
	refusedFor := func(message string) func(*testing.T, *rolling) {
		return func(_ *testing.T, r *rolling) {
			r.step() // reports
			r.step()
			r.deployment.Status.ObservedGeneration = r.deployment.Generation
			r.deployment.Status.Conditions = []appsv1.DeploymentCondition{replicaFailure("FailedCreate", message, r.now)}
			r.step()
		}
	}
	ago := begin.Add(-time.Minute)
	for _, tc := range []struct {
		name     string
		fixture  *rolling
		change   func(*testing.T, *rolling)
		restarts int
		want     surge.Refusal
	}{
		{"E79: one write restarts a Deployment with one replica", restarted(1).drained(1, ago), nil, 1, ""},
		{"E79: one restart is for all Pods of two drains", restarted(3).drained(1, ago).drained(2, begin), nil, 1, ""},
		{"E79: refuses if a rollout may make a replica unavailable", restarted(4).drained(1, ago), nil, 0, surge.Interrupting},
		{"E79: refuses with maxSurge 0", restarted(1, maxSurge("0")).drained(1, ago), nil, 0, surge.Interrupting},
		{"E79: refuses with an invalid maxUnavailable", restarted(1, unavailable("many")).drained(1, ago), nil, 0, surge.Interrupting},
		{"E79: restarts four replicas with maxUnavailable 0", restarted(4, unavailable("0")).drained(2, ago), nil, 1, ""},
		{"E79: refuses while the rollout is paused", restarted(1, func(d *appsv1.Deployment) { d.Spec.Paused = true }).drained(1, ago), nil, 0, surge.Paused},
		{"E79: refuses with strategy Recreate", restarted(1, func(d *appsv1.Deployment) {
			d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
		}).drained(1, ago), nil, 0, surge.Recreated},
		{"E79: refuses if an operator controls the Deployment", restarted(1, func(d *appsv1.Deployment) {
			d.OwnerReferences = []metav1.OwnerReference{{Kind: "App", Name: "web", Controller: ptr.To(true)}}
		}).drained(1, ago), nil, 0, surge.Managed},
		{"E79: refuses if an admission policy refuses the new Pod", restarted(1).drained(1, ago), refusedFor(denied), 1, surge.ReplicaFailure},
		{"E67, E79: refuses if a quota allows only the present Pods", restarted(1).drained(1, ago), refusedFor(exceeded + "pods=1"), 1, surge.ReplicaFailure},
		{"E67, E79: waits if a quota allows one more Pod", restarted(1).drained(1, ago), refusedFor(exceeded + "pods=2"), 1, ""},
		{"E79: refuses when the rollout makes no progress", restarted(1).drained(1, ago), func(_ *testing.T, r *rolling) {
			r.step() // reports
			r.step()
			r.stuck = true
			r.observe()
			r.step()
		}, 1, surge.NotAvailable},
		{"E79: refuses when another actor restores the template", restarted(1).drained(1, ago), func(_ *testing.T, r *rolling) {
			r.step() // reports
			r.step()
			r.step()
			r.revert()
			r.observe()
			r.step()
		}, 1, surge.RestartReverted},
		{"E79: refuses when another actor restores the template at once", restarted(1).drained(1, ago), func(_ *testing.T, r *rolling) {
			r.step() // reports
			r.step()
			r.revert()
			r.observe()
			r.step()
		}, 1, surge.RestartReverted},
		{
			"E79: refuses when another actor replaces the whole Deployment each time, with the same template until then",
			restarted(1).drained(1, ago), func(t *testing.T, r *rolling) {
				t.Helper()
				templates := map[string]bool{}
				for range 40 {
					d := r.step()
					if d.Deployment != nil {
						if templates[r.deployment.Spec.Template.Annotations[v1alpha1.RestartedAt]] = true; len(templates) > 1 {
							t.Fatalf("the templates of the restarts differ: %v", templates)
						}
						r.revert()
						r.deployment.Labels = nil
					}
					r.observe()
					if d.RequeueAt.After(r.now) {
						r.now = d.RequeueAt
					}
				}
			}, 29, surge.RestartReverted,
		}, // one minute
		{"E91: a restart that an earlier manager has only reported in the message is recorded, and begins", restarted(1).drained(1, ago),
			func(_ *testing.T, r *rolling) {
				r.step()
				r.evacuations[r.pods[0].UID].surged = ""
			}, 1, ""},
		{"E79: begins when it could not be written for half a minute", restarted(1).drained(1, ago), func(_ *testing.T, r *rolling) {
			r.step()
			r.now = r.now.Add(30 * time.Second)
		}, 1, ""},
		{"E79: a Pod that scales and joins a restart does not end it for the others", restarted(2).drained(1, ago), func(t *testing.T, r *rolling) {
			t.Helper()
			r.step()
			r.step()
			r.observe()
			r.drained(2, begin)
			o := r.observed()
			o.Leaving[1].Restart = false
			for _, report := range surge.Decide(o).Reports {
				if (report.Refusal == "") != (report.Pod == o.Leaving[0].UID) {
					t.Errorf("report %v", report)
				}
			}
		}, 1, ""},
		{"E79: lets a NodeMaintenance that scales take precedence", restarted(4).drained(2, ago), func(t *testing.T, r *rolling) {
			t.Helper()
			o := r.observed()
			o.Leaving[0].Restart = false
			if d := surge.Decide(o); len(d.Reports) > 0 || d.Deployment.Labels[v1alpha1.SurgingLabel] == "" {
				t.Errorf("it does not scale: %v", d)
			}
		}, 0, surge.Interrupting},
		{"E79: does not restart again for a new Pod on a Node that is drained", restarted(1).drained(1, ago), func(t *testing.T, r *rolling) {
			t.Helper()
			r.run(t)
			r.drained(1, ago)
			r.step()
		}, 1, surge.AlreadyRestarted},
		{"E79: refuses in the end if it is not known whether the rollout makes progress", restarted(1).drained(1, ago), func(_ *testing.T, r *rolling) {
			r.step() // reports
			r.step()
			for range 100 {
				if d := r.step(); d.RequeueAt.After(r.now) {
					r.now = d.RequeueAt
				}
			}
		}, 1, surge.NotAvailable},
		{"E79: restarts again when the drains have ended that had begun before", restarted(1).drained(1, ago), func(t *testing.T, r *rolling) {
			t.Helper()
			r.run(t)
			r.now = r.now.Add(time.Minute)
			r.drained(1, r.now)
			r.begun = append(r.begun, r.now)
			if d := r.step(); d.Deployment != nil || len(d.Reports) != 1 || !d.Reports[0].Stalled {
				t.Fatalf("it does not wait: %v", d)
			}
			r.begun = r.begun[1:]
		}, 2, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, declared := tc.fixture, *tc.fixture.deployment.Spec.Replicas
			if tc.change != nil {
				tc.change(t, r)
			}
			var refusal surge.Refusal
			record := func() {
				for _, each := range r.refusals {
					refusal = each
				}
			}
			record()
			r.stuck = false
			r.run(t)
			record()
			if refusal != tc.want || r.restarts() != tc.restarts || *r.deployment.Spec.Replicas != declared {
				t.Errorf("refusal %q, want %q; %d restarts, want %d; %v", refusal, tc.want, r.restarts(), tc.restarts, r.reports)
			}
		})
	}

	for allowed, want := range map[string]surge.Refusal{"pods=4": "", "pods=3": surge.ReplicaFailure} {
		t.Run("E67, E79: a rollout that may replace Pods first continues with a quota for its replicas, and not with less: "+allowed, func(t *testing.T) {
			r := restarted(4).drained(1, ago) // maxUnavailable is 25% by default
			r.deployment.Status.UpdatedReplicas = 3
			r.deployment.Status.Conditions = []appsv1.DeploymentCondition{replicaFailure("FailedCreate", exceeded+allowed, r.now)}
			if r.step(); r.refusals[r.pods[0].UID] != want {
				t.Errorf("refused: %v", r.refusals)
			}
		})
	}
	t.Run("E67: a rollout of a controlled Deployment that creates Pods first ends with a quota for its replicas", func(t *testing.T) {
		r := restarted(2).drained(1, ago) // maxUnavailable rounds down to 0
		r.deployment.OwnerReferences = []metav1.OwnerReference{{Kind: "Shop", Name: "shop", Controller: ptr.To(true)}}
		r.deployment.Status.UpdatedReplicas = 1
		r.deployment.Status.Conditions = []appsv1.DeploymentCondition{replicaFailure("FailedCreate", exceeded+"pods=2", r.now)}
		if r.step(); r.refusals[r.pods[0].UID] != surge.ReplicaFailure {
			t.Errorf("refused: %v", r.refusals)
		}
	})
	t.Run("E67: a rollout with strategy Recreate does not end with a quota for its replicas, which may be full for a moment", func(t *testing.T) {
		r := restarted(2).drained(1, ago)
		r.deployment.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
		r.deployment.Status.UpdatedReplicas = 1
		r.deployment.Status.Conditions = []appsv1.DeploymentCondition{replicaFailure("FailedCreate", exceeded+"pods=2", r.now)}
		if r.step(); r.refusals[r.pods[0].UID] == surge.ReplicaFailure {
			t.Errorf("refused: %v", r.refusals)
		}
	})
	t.Run("M160: does not begin for two minutes while the Machine of another Pod is paused, and then the Pod is evicted", func(t *testing.T) {
		r := restarted(2).drained(2, ago)
		r.evacuations[r.pods[1].UID].suspended = true
		for range 3 {
			if r.step(); len(r.refusals) > 0 {
				t.Fatalf("refused: %v", r.refusals)
			}
			r.now = r.now.Add(50 * time.Second)
		}
		if r.step(); len(r.refusals) != 1 || r.refusals[r.pods[0].UID] != surge.Suspended {
			t.Errorf("refused: %v", r.refusals)
		}
	})
	t.Run("M160: the two minutes continue when the drain of another Pod of the Deployment is suspended instead", func(t *testing.T) {
		r := restarted(3).drained(3, ago)
		for i := range 4 {
			for j := range 2 {
				r.evacuations[r.pods[j].UID].suspended = j == i%2
			}
			r.step()
			r.now = r.now.Add(50 * time.Second)
		}
		if r.refusals[r.pods[2].UID] != surge.Suspended {
			t.Errorf("refused: %v", r.refusals)
		}
	})
	t.Run("E79: does not begin while the Machine of another Pod is paused", func(t *testing.T) {
		r := restarted(2).drained(2, ago)
		r.evacuations[r.pods[1].UID].suspended = true
		if d := r.step(); d.Deployment != nil || !d.RequeueAt.Equal(r.now.Add(surge.HeldInterval)) { // each time, the Deployment is read
			t.Fatalf("it does not wait: %v", d)
		}
		r.evacuations[r.pods[1].UID].suspended = false
		r.step()
		if d := r.step(); d.Deployment == nil {
			t.Fatalf("it does not begin: %v", d)
		}
	})
}

func asNumber(t *rapid.T, value string) int64 {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestRestartOnce applies random sequences of actions: drains begin and end, controllers reconcile early or late, the manager crashes after
// any write, and another actor restores the template.
//
//   - A restart begins only while no rollout is in progress, and not while a drain continues that had begun before the last one.
//   - Without interference of another actor, there are never fewer available replicas than declared.
//   - No Pod waits for ever.
func TestRestartOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		declared := rapid.Int32Range(1, 3).Draw(t, "replicas") // of which a rollout keeps all available, by default
		r := restarted(declared)
		r.begun = nil
		interfered := false
		var last time.Time // the last restart
		restartsOnce := func(before *appsv1.Deployment, d surge.Decision) {
			if d.Event == nil || d.Event.Reason != surge.EventRestarted {
				return
			}
			old := slices.IndexFunc(r.pods, func(p *pod) bool {
				return p.Annotations[v1alpha1.RestartedAt] != before.Spec.Template.Annotations[v1alpha1.RestartedAt]
			})
			if old >= 0 || before.Status.ObservedGeneration < before.Generation {
				t.Fatalf("a rollout is pending")
			}
			if slices.ContainsFunc(r.begun, func(start time.Time) bool { return !last.IsZero() && !start.After(last) }) {
				t.Fatalf("restarted at %s, and again at %s, drains in progress since %v", last, r.now, r.begun)
			}
			last = time.Unix(asNumber(t, r.deployment.Labels[v1alpha1.RestartedAt]), 0) // when it was reported, which is before the write
		}
		t.Repeat(map[string]func(*rapid.T){
			"decide": func(t *rapid.T) {
				before, writes := r.deployment, rapid.IntRange(0, 4).Draw(t, "writes until it crashes")
				d := surge.Decide(r.observed())
				r.apply(d, writes)
				if r.deployment != before {
					r.deployment.Generation++
					restartsOnce(before, d)
				}
			},
			"roll":    func(*rapid.T) { r.roll() },
			"start":   func(*rapid.T) { r.start(1) },
			"observe": func(*rapid.T) { r.observe() },
			"wait": func(t *rapid.T) {
				r.now = r.now.Add(time.Duration(rapid.IntRange(1, 400).Draw(t, "seconds")) * time.Second)
			},
			"drain": func(t *rapid.T) {
				r.begun = append(r.begun, r.now)
				r.drained(rapid.IntRange(0, 2).Draw(t, "Pods"), r.now)
			},
			"end": func(*rapid.T) {
				if len(r.begun) > 0 && len(r.evacuations) == 0 {
					r.begun = r.begun[1:]
				}
			},
			"evict":  func(*rapid.T) { interfered = r.evict() || interfered },
			"revert": func(*rapid.T) { r.revert(); interfered = true },
			"": func(t *rapid.T) {
				if !interfered && r.available() < int(declared) {
					t.Fatalf("%d of %d are available", r.available(), declared)
				}
			},
		})
		r.observe()
		r.run(t)
	})
}

func TestDrainsOf(t *testing.T) {
	begun := metav1.NewTime(begin)
	for name, tc := range map[string]struct {
		drained  metav1.ConditionStatus
		observed int64
		want     int
	}{
		"E79: a drain continues until it has drained":              {metav1.ConditionFalse, 2, 1},
		"E79: a drain that has drained does not continue":          {metav1.ConditionTrue, 2, 0},
		"E79: a drain that had drained by earlier rules continues": {metav1.ConditionTrue, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
			m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: begun}}
			m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceDrained, Status: tc.drained, ObservedGeneration: tc.observed}}
			if got := surge.DrainsOf(nil, []v1alpha1.NodeMaintenance{m}); len(got) != tc.want {
				t.Errorf("got %v, want %d", got, tc.want)
			}
		})
	}
}

package surge_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// TestSurgeHolds applies random sequences of actions to a Deployment: controllers reconcile early or late, the manager crashes after
// any write, another actor edits, evacuations are cancelled, Pods of further Nodes are evacuated, a quota refuses new Pods, no Node has
// capacity for them, and time passes.
//
//   - Without interference of another actor, there are never fewer available replicas than declared (E24).
//   - Only if another actor has edited the Deployment, Pods are evicted for that reason, also if the watch of Evacuations lags (E25). If an
//     autoscaler scales and the manager crashes before it raises minReplicas, another one after a minute does not know that.
//   - Finally the number of replicas is the declared one, or the one that another actor has set, and the surge is cleaned up (E25).
func TestSurgeHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		declared := rapid.Int32Range(1, 6).Draw(t, "replicas")
		f := deployed(declared, maxSurge(rapid.SampledFrom([]string{"0", "1", "2", "50%"}).Draw(t, "maxSurge")))
		lowest := rapid.Int32Range(1, declared).Draw(t, "minReplicas")
		scaled := rapid.Bool().Draw(t, "autoscaler")
		if scaled {
			f.scaledBy(lowest, declared+rapid.Int32Range(0, 3).Draw(t, "headroom"))
		}
		interfered, edited, undone := false, false, false
		copies := []map[string]string{nil} // annotations of ReplicaSets
		actions := map[string]func(*rapid.T){
			"decide": func(t *rapid.T) {
				f.apply(surge.Decide(f.observed()), rapid.IntRange(0, 4).Draw(t, "writes until it crashes"))
			},
			"decide twice": func(*rapid.T) { f.step(); f.step() },
			"replicate":    func(*rapid.T) { f.replicate() },
			"start":        func(t *rapid.T) { f.start(rapid.IntRange(1, 3).Draw(t, "Pods")) },
			"observe":      func(*rapid.T) { f.observe() },
			"autoscale": func(t *rapid.T) {
				wants := rapid.SampledFrom([]int32{0, declared, declared + 1, declared + 3}).Draw(t, "wants")
				f.autoscale(wants)
				interfered = interfered || scaled && wants > declared
			},
			"evacuate": func(t *rapid.T) { f.evacuated(rapid.IntRange(1, 3).Draw(t, "Pods"), v1alpha1.SurgeAlways) },
			"cancel": func(*rapid.T) {
				for uid := range f.evacuations {
					if f.pod(uid) != nil {
						delete(f.evacuations, uid)
						return
					}
				}
			},
			"wait": func(t *rapid.T) {
				f.now = f.now.Add(time.Duration(rapid.IntRange(1, 400).Draw(t, "seconds")) * time.Second)
			},
			"wait for a deadline": func(*rapid.T) {
				for _, e := range f.observed().Leaving {
					if at := e.Deadline.Add(-5 * time.Second); at.After(f.now) {
						f.now = at
						return
					}
				}
			},
			"evict": func(*rapid.T) { interfered = f.evict() || interfered },
			"edit": func(t *rapid.T) {
				n := rapid.Int32Range(1, 9).Draw(t, "to")
				b, label := f.baseline(), f.deployment.Labels[v1alpha1.SurgingLabel]
				switch {
				case b != nil && n == b.Surged, strings.HasSuffix(label, fmt.Sprintf(".%d", n)), scaled && f.raisedTo(n),
					strings.Contains(f.copied, fmt.Sprintf(`"surged":%d,`, n)): // indistinguishable from the write of the surge
				case scaled:
					if f.autoscaler = f.autoscaler.DeepCopy(); n <= f.autoscaler.Spec.MaxReplicas && n != *f.autoscaler.Spec.MinReplicas {
						f.autoscaler.Spec.MinReplicas, lowest, interfered, edited = &n, n, true, true
					}
				case n != *f.deployment.Spec.Replicas:
					f.scaleAs(rapid.SampledFrom([]string{"gitops", "kubectl"}).Draw(t, "manager"), n)
					declared, interfered, edited = n, true, true
				}
			},
			"lag":     func(*rapid.T) { f.lags = true },
			"deliver": func(*rapid.T) { f.deliver() },
			"refuse": func(t *rapid.T) {
				if leaving := f.observed().Leaving; len(leaving) > 0 {
					f.refusing[rapid.SampledFrom(leaving).Draw(t, "Pod").UID] = true
				}
			},
			"accept":   func(*rapid.T) { clear(f.refusing) },
			"limit":    func(t *rapid.T) { f.quota = rapid.IntRange(0, int(declared)+2).Draw(t, "quota") },
			"fill":     func(*rapid.T) { f.full = true },
			"schedule": func(*rapid.T) { f.schedule() },
			"fail to create": func(t *rapid.T) {
				f.creation = rapid.SampledFrom([]string{quotaExceeded, "Internal error occurred: failed calling webhook"}).Draw(t, "failure")
			},
			"copy": func(*rapid.T) { copies = append(copies, f.deployment.Annotations) },
			"undo": func(t *rapid.T) {
				f.undo(rapid.SampledFrom(copies).Draw(t, "annotations"))
				interfered, undone = true, true
			},
			"replace": func(*rapid.T) {
				if interfered, undone = true, true; scaled {
					f.replace(*f.deployment.Spec.Replicas)
				} else {
					f.replace(declared)
				}
			},
			"": func(t *rapid.T) {
				if !interfered && f.available() < int(declared) {
					t.Fatalf("%d of %d are available", f.available(), declared)
				}
				if wrong := slices.Contains(slices.Collect(maps.Values(f.refusals)), surge.Edited); wrong && !edited && !undone && !scaled {
					t.Fatalf("no other actor has edited: %v", f.refusals)
				}
			},
		}
		t.Repeat(actions)
		clear(f.refusing)

		f.run()
		if _, labelled := f.deployment.Labels[v1alpha1.SurgingLabel]; f.baseline() != nil || labelled || len(f.evacuations) > 0 {
			t.Fatalf("the surge does not end: %v, %d Evacuations remain", f.deployment.Annotations, len(f.evacuations))
		}
		switch {
		case !scaled && *f.deployment.Spec.Replicas != declared:
			t.Fatalf("%d replicas, %d were declared", *f.deployment.Spec.Replicas, declared)
		case scaled && (ptr.Deref(f.autoscaler.Spec.MinReplicas, 1) != lowest || len(f.autoscaler.Annotations) > 0):
			t.Fatalf("minReplicas %d, was %d", *f.autoscaler.Spec.MinReplicas, lowest)
		case scaled && !interfered && *f.deployment.Spec.Replicas != declared:
			t.Fatalf("the autoscaler ends with %d replicas, there were %d", *f.deployment.Spec.Replicas, declared)
		}
		if f.marked() > 0 && !undone {
			t.Fatalf("%d Pods are not removed, but still marked", f.marked())
		}
	})
}

// FuzzBaseline decides with baselines that a tenant may have written.
func FuzzBaseline(f *testing.F) {
	f.Add(`{"deployment":"d","replicas":1,"surged":2,"pods":[{"name":"a","uid":"b"}],"template":"x"}`)
	f.Add(`{"deployment":"d","replicas":-1,"surged":2147483647,"autoscaler":{"uid":"h"},"returning":"2026-01-01T00:00:00Z"}`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, value string) {
		f := deployed(2).scaledBy(1, 4).evacuated(1, v1alpha1.SurgeAlways)
		f.deployment.Annotations, f.deployment.Labels = map[string]string{v1alpha1.SurgeAnnotation: value}, map[string]string{v1alpha1.SurgingLabel: ""}
		for range 10 {
			f.step()
			f.settle()
			if n := *f.deployment.Spec.Replicas; n < 1 || n > 102 {
				t.Fatalf("%d replicas", n)
			}
		}
	})
}

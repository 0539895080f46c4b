package recording_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
	"github.com/capnm/cluster-api-node-maintenance/drain/recording"
)

var begin = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }

// scene is the drain of one Machine. Each change records what has changed.
type scene struct {
	recorder recording.Recorder
	observed recording.Observation
	lines    []recording.Line
}

func newScene() *scene {
	s := &scene{lines: []recording.Line{{Time: begin, Start: &recording.Start{Version: recording.Version, Context: "context test"}}}}
	machine := clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "w1", DeletionTimestamp: ptr.To(metav1.NewTime(begin))}}
	machine.Spec.ClusterName, machine.Status.NodeRef.Name = "prod", "n1"
	m := v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "w1-abc", Annotations: map[string]string{v1alpha1.OwnerMachineAnnotation: "default/w1"}}}
	m.Spec.Stage = v1alpha1.StageDrain
	m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(begin)}}
	m.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "n1"}}}
	budget := policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "payments", Name: "db"}}
	budget.Spec = policyv1.PodDisruptionBudgetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, MaxUnavailable: ptr.To(intstr.FromInt32(1)),
	}
	budget.Status = policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 0, CurrentHealthy: 2, DesiredHealthy: 2, ExpectedPods: 3}
	s.observed = recording.Observation{
		Machines:  []clusterv1.Machine{machine},
		Workloads: []recording.Workload{{Cluster: "default/prod", Maintenances: []v1alpha1.NodeMaintenance{m}, Budgets: []policyv1.PodDisruptionBudget{budget}}},
	}
	return s
}

// observe records at a time.
func (s *scene) observe(seconds int, change func(*recording.Workload)) {
	if change != nil {
		change(&s.observed.Workloads[0])
	}
	s.lines = append(s.lines, s.recorder.Observe(s.observed, at(seconds))...)
}

func evacuation(name, reason string) v1alpha1.Evacuation {
	e := v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{
		Namespace: "payments", Name: "uid-" + name, CreationTimestamp: metav1.NewTime(begin),
		Labels: map[string]string{"app": "db"}, Annotations: map[string]string{v1alpha1.EvacuationNodeAnnotation: "n1"},
	}}
	e.Spec.PodRef = v1alpha1.LocalPodReference{Name: name, UID: "uid-" + name}
	if reason != "" {
		e.Status.Conditions = []metav1.Condition{{Type: v1alpha1.EvacuationEvicting, Status: metav1.ConditionTrue, Reason: reason}}
		e.Status.Message = "Waiting for PodDisruptionBudget payments/db: 2 healthy Pods required"
	}
	return e
}

// file returns the recording as it is stored.
func (s *scene) file(lines ...recording.Line) string {
	var file bytes.Buffer
	for _, line := range append(s.lines, lines...) {
		text, err := json.Marshal(line)
		if err != nil {
			panic(err)
		}
		file.Write(append(text, '\n'))
	}
	return file.String()
}

// drained records a whole drain: two Pods, one of which waits for a budget from second 1 to 661, and a Job.
func drained() *scene {
	s := newScene()
	exhausted := string(budgets.BudgetExhausted)
	s.observe(0, nil)
	s.observe(1, func(w *recording.Workload) {
		w.Evacuations = []v1alpha1.Evacuation{evacuation("db-0", exhausted), evacuation("db-1", "")}
		w.Maintenances[0].Status.NodeStatuses[0].Blocked = []v1alpha1.BlockedPod{
			{Pod: "batch/job", Why: "Waiting for completion (label)", Since: ptr.To(metav1.NewTime(begin))}, {Pod: "payments/db-0", Reason: exhausted, Why: "Waiting"},
		}
	})
	s.observe(9, func(w *recording.Workload) { w.Evacuations = w.Evacuations[:1] })
	s.observe(661, func(w *recording.Workload) {
		w.Budgets[0].Status.DisruptionsAllowed = 1
		w.Evacuations[0].Status.Conditions[0].Reason = v1alpha1.ReasonNoEvacuator
		w.Maintenances[0].Status.NodeStatuses[0].Blocked = nil
	})
	s.observe(662, func(w *recording.Workload) { w.Terminating = sets.New[types.UID]("uid-db-0") })
	s.observe(799, func(w *recording.Workload) { w.Terminating = nil }) // the Pod no longer exists, and its Evacuation does
	s.observe(800, func(w *recording.Workload) {
		w.Evacuations = nil
		w.Maintenances[0].Status.NodeStatuses[0].Blocked = []v1alpha1.BlockedPod{{Pod: "payments/db-0", Why: "stale"}}
		w.Maintenances[0].Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceDrained, Status: metav1.ConditionTrue}}
	})
	return s
}

func read(t *testing.T, file string) *recording.History {
	t.Helper()
	h, err := recording.Read(strings.NewReader(file))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return h
}

func TestRecorder(t *testing.T) {
	t.Run("K25: a line is recorded for each object that has changed, and none while nothing changes", func(t *testing.T) {
		g := NewWithT(t)
		s := newScene()
		s.observe(0, nil)
		g.Expect(s.lines).To(HaveLen(3), "start, Machine and NodeMaintenance; no Pod of the Namespace of the budget is evacuated")
		s.observe(1, func(w *recording.Workload) {
			w.Evacuations = []v1alpha1.Evacuation{evacuation("db-0", string(budgets.BudgetExhausted))}
		})
		g.Expect(s.lines[3].Budget).To(Equal(&recording.Budget{Cluster: "default/prod", Name: "payments/db", Healthy: 2, Required: 2, Pods: 3}))
		g.Expect(s.lines[4].Application).To(Equal(&recording.Application{
			Cluster: "default/prod", Kind: recording.KindBudget, Name: "payments/db", Ready: 2, Replicas: 3, Budget: "payments/db",
		}), "for a Pod without a Deployment or StatefulSet")
		g.Expect(s.lines[5].Pod).To(Equal(&recording.Pod{
			Cluster: "default/prod", Name: "payments/db-0", UID: "uid-db-0", Node: "n1", Since: &begin, Reason: "BudgetExhausted",
			Object: "PodDisruptionBudget payments/db", Message: "Waiting for PodDisruptionBudget payments/db: 2 healthy Pods required",
		}))
		s.observe(2, nil)
		g.Expect(s.lines).To(HaveLen(6))
		s.observe(3, func(w *recording.Workload) { w.Evacuations = nil })
		g.Expect(s.lines).To(HaveLen(7))
		g.Expect(s.lines[6].Pod.Gone).To(BeTrue())
	})

	t.Run("K25: a reason that a tenant writes is not recorded", func(t *testing.T) {
		s := newScene()
		s.observe(1, func(w *recording.Workload) {
			w.Evacuations = []v1alpha1.Evacuation{evacuation("db-0", "<script>")}
		})
		NewWithT(t).Expect(s.lines[len(s.lines)-1].Pod.Reason).To(Equal(history.WaitEviction))
	})
}

func TestHistory(t *testing.T) {
	t.Run("K26: the waits of each Pod follow one another, with the object that blocks", func(t *testing.T) {
		g := NewWithT(t)
		h := read(t, drained().file(recording.Line{Time: at(801), End: recording.EndStopped}))
		g.Expect(h.Incomplete).To(BeEmpty())
		g.Expect(h.Drains).To(HaveLen(1))
		d := h.Drains[0]
		g.Expect(d.Pods).To(HaveLen(3), "a Pod that the status lists after its Evacuation is no new Pod")
		pods := map[string]recording.PodCourse{}
		for _, pod := range d.Pods {
			pods[pod.Name] = pod
		}
		db := pods["payments/db-0"]
		g.Expect(db.Ended).To(BeTrue())
		g.Expect(db.Waits).To(HaveLen(3))
		g.Expect(db.Waits[0]).To(And(HaveField("Object", "PodDisruptionBudget payments/db"), HaveField("Start", at(1)), HaveField("End", at(661))))
		g.Expect(db.Waits[1]).To(And(HaveField("Reason", history.WaitEviction), HaveField("Start", at(661)), HaveField("End", at(662))))
		g.Expect(db.Waits[2]).To(And(HaveField("Reason", history.WaitTermination), HaveField("Start", at(662)), HaveField("End", at(800))))
		g.Expect(pods["batch/job"].Waits[0].Name()).To(Equal("completion (label)"))
		g.Expect(h.Budgets).To(HaveLen(1))
		g.Expect(h.Budgets[0].Steps).To(HaveLen(2))
	})

	t.Run("K26: a NodeMaintenance that is observed before its Machine belongs to it", func(t *testing.T) {
		g := NewWithT(t)
		s := newScene()
		machines := s.observed.Machines
		s.observed.Machines = nil
		s.observe(0, nil)
		s.observed.Machines = machines
		s.observe(1, nil)
		s.observe(2, func(w *recording.Workload) {
			w.Maintenances[0].Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceDrained, Status: metav1.ConditionTrue}}
		})
		s.observed.Machines = nil
		s.observe(3, func(w *recording.Workload) { w.Maintenances = nil })
		h := read(t, s.file())
		g.Expect(h.Drains).To(HaveLen(1))
		g.Expect(h.Drains[0].Summary()).To(Equal([]string{"Drained in 2 s (0 Pods)."}))
	})

	t.Run("K26: an edit that no controller has observed yet does not change the end of a drain", func(t *testing.T) {
		g := NewWithT(t)
		s := newScene()
		drained := func(generation, observed int64) func(*recording.Workload) {
			return func(w *recording.Workload) {
				w.Maintenances[0].Generation = generation
				w.Maintenances[0].Status.Conditions = []metav1.Condition{{
					Type: v1alpha1.NodeMaintenanceDrained, Status: metav1.ConditionTrue, ObservedGeneration: observed,
				}}
			}
		}
		s.observe(0, nil)
		s.observe(2, drained(1, 1))
		s.observe(60, drained(2, 1))
		s.observe(61, drained(2, 2))
		s.observed.Machines = nil
		s.observe(62, func(w *recording.Workload) { w.Maintenances = nil })
		g.Expect(read(t, s.file()).Drains[0].Summary()).To(Equal([]string{"Drained in 2 s (0 Pods)."}))
	})

	t.Run("K26: sentences say how long the drain took, and what it waited for", func(t *testing.T) {
		g := NewWithT(t)
		h := read(t, drained().file())
		g.Expect(h.Drains[0].Title()).To(Equal("Machine default/w1"))
		g.Expect(h.Drains[0].Summary()).To(Equal([]string{
			"Drained in 13 min 20 s (3 Pods); 11 min of that waiting for PodDisruptionBudget payments/db, 11 min of that waiting for completion (label), 2 min 18 s " +
				"of that waiting for termination.",
		}))
		g.Expect(h.Summary()).To(Equal([]string{
			"1 of 1 drains ended; 13 min 20 s from the first start to the last end; 3 Pods.",
			"What blocked longest: PodDisruptionBudget payments/db, for 11 min (1 Pod).",
			"Applications with evacuated Pods: 1; none was below its PodDisruptionBudget or without a ready replica.",
		}))
	})

	t.Run("K26, K37: the wait of a Machine counts from when its reason was observed, and not from the transition of its condition", func(t *testing.T) {
		s := newScene()
		s.observed.Machines[0].Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonWaitingForVolumeDetach,
			LastTransitionTime: metav1.NewTime(begin),
		}}
		s.observe(3000, nil)
		s.observed.Machines = nil
		s.observe(3120, nil)
		NewWithT(t).Expect(read(t, s.file()).Drains[0].Summary()).To(ContainElement("The Machine waited 2 min for volumes to detach."))
	})

	t.Run("K26, K37: the first wait of a Pod counts from when its reason was observed, and not from the creation of its Evacuation", func(t *testing.T) {
		g, s := NewWithT(t), newScene()
		s.observe(3000, func(w *recording.Workload) {
			w.Evacuations = []v1alpha1.Evacuation{evacuation("db-0", string(budgets.BudgetExhausted))}
		})
		s.observe(3060, func(w *recording.Workload) { w.Evacuations = nil })
		pod := read(t, s.file()).Drains[0].Pods[0]
		g.Expect(pod.Start).To(Equal(begin))
		g.Expect(pod.Waits).To(HaveExactElements(And(HaveField("Start", at(3000)), HaveField("End", at(3060)))))
	})

	t.Run("K26: a Pod that blocks a drain before it has an Evacuation is one Pod", func(t *testing.T) {
		g, s := NewWithT(t), newScene()
		s.observe(1, func(w *recording.Workload) {
			w.Maintenances[0].Status.NodeStatuses[0].Blocked = []v1alpha1.BlockedPod{{
				Pod: "payments/db-0", Why: "Cannot evaluate drain rules", Since: ptr.To(metav1.NewTime(at(1))),
			}}
		})
		s.observe(5, func(w *recording.Workload) {
			w.Maintenances[0].Status.NodeStatuses[0].Blocked = nil
			w.Evacuations = []v1alpha1.Evacuation{evacuation("db-0", string(budgets.BudgetExhausted))}
		})
		s.observe(9, func(w *recording.Workload) { w.Evacuations = nil })
		pods := read(t, s.file()).Drains[0].Pods
		g.Expect(pods).To(HaveLen(1))
		g.Expect(pods[0].Ended).To(BeTrue())
		g.Expect(pods[0].Waits).To(HaveExactElements(And(HaveField("Reason", history.WaitOther), HaveField("End", at(5))),
			And(HaveField("Reason", "BudgetExhausted"), HaveField("End", at(9)))))
	})

	t.Run("K25: a gap that comes and goes is named once, and so are Pods whose drains are not recorded", func(t *testing.T) {
		s := newScene()
		for i := range 6 {
			if s.observed.Gaps = nil; i%2 == 0 {
				s.observed.Gaps = []string{"connection refused"}
			}
			s.observe(i, func(w *recording.Workload) {
				w.Evacuations = []v1alpha1.Evacuation{evacuation("db-0", "")}
				w.Evacuations[0].Annotations = map[string]string{v1alpha1.EvacuationNodeAnnotation: "n501"}
			})
		}
		NewWithT(t).Expect(read(t, s.file()).Gaps).To(HaveExactElements("connection refused", ContainSubstring("of a NodeMaintenance, 500 Nodes are")))
	})

	t.Run("K25: a recording that was cut off, or is damaged, is read as far as possible", func(t *testing.T) {
		g := NewWithT(t)
		file := drained().file()
		g.Expect(read(t, file).Incomplete).To(Equal("the recording was cut off"))
		cut := read(t, file[:len(file)*2/3])
		g.Expect(cut.Incomplete).To(MatchRegexp(`line \d+ of the recording is damaged`))
		g.Expect(cut.Drains).To(HaveLen(1))
		g.Expect(cut.Drains[0].Summary()[0]).To(HavePrefix("Not drained after "))
		g.Expect(read(t, drained().file(recording.Line{Time: at(801), End: recording.EndLimitReached})).Incomplete).To(ContainSubstring("maximum size"))
	})

	for name, tc := range map[string]struct{ file, want string }{
		"an empty file":                    {"", "empty"},
		"another file":                     {"kind: Pod\n", "not a recording"},
		"JSON without a version":           {"{}\n", "no version"},
		"a newer version of the format":    {`{"time":"2026-03-01T12:00:00Z","start":{"version":2}}` + "\n", "newer version of the plugin"},
		"a first line that is no time":     {`{"start":{"version":1}}` + "\n", "no time"},
		"a line that is larger than 1 MiB": {`{"time":"2026-03-01T12:00:00Z","start":{"version":1}}` + "\n" + strings.Repeat("x", 2<<20), "token too long"},
	} {
		t.Run("K25: "+name+" is rejected", func(t *testing.T) {
			_, err := recording.Read(strings.NewReader(tc.file))
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(tc.want)))
		})
	}

	t.Run("K26: the clock may be set back", func(t *testing.T) {
		s := drained()
		s.lines[len(s.lines)-1].Time = at(-60)
		for _, pod := range read(t, s.file()).Drains[0].Pods {
			NewWithT(t).Expect(pod.End).NotTo(BeTemporally("<", pod.Start))
		}
	})
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 s", 1240 * time.Millisecond: "1.2 s", 42 * time.Second: "42 s", 13*time.Minute + 20*time.Second: "13 min 20 s", time.Hour: "1 h",
		90*time.Minute + time.Second: "1 h 30 min",
	} {
		NewWithT(t).Expect(recording.Duration(d)).To(Equal(want))
	}
}

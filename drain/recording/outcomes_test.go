package recording_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
	"github.com/capnm/cluster-api-node-maintenance/drain/recording"
)

// endedDrain returns the drain of a Machine that ended at a second.
func endedDrain(machine string, second int) outcome.Ended {
	return outcome.Ended{Namespace: "default", RecentDrain: v1alpha1.RecentDrain{
		Machine: machine, Cluster: "prod", Node: "n-" + machine, DrainOutcome: v1alpha1.DrainOutcome{
			EndTime: metav1.NewTime(at(second)), Pods: v1alpha1.EvictedPods{Evicted: 3, Unknown: 3},
		},
	}}
}

func TestOutcomes(t *testing.T) {
	t.Run("K61: the recording has what became of the evicted Pods, as it was last read", func(t *testing.T) {
		g, s := NewWithT(t), newScene()
		s.observed.Ended = []outcome.Ended{endedDrain("w1", 0)}
		s.observe(1, nil)
		read1 := &s.observed.Ended[0].DrainOutcome
		g.Expect(read(t, s.file()).Outcomes).To(HaveExactElements(HaveField("Read", BeNil())))
		read1.ReadTime, read1.Pods = ptr.To(metav1.NewTime(at(60))), v1alpha1.EvictedPods{Evicted: 3, Ready: 2, Pending: 1}
		read1.Applications = []v1alpha1.EvictedApplication{{Controller: "Deployment shop/web", Pods: v1alpha1.EvictedPods{Evicted: 1, Pending: 1}, Why: "No Node"}}
		s.observe(61, nil)
		s.observed.Ended = nil // the policy has dropped it
		s.observe(62, nil)
		h := read(t, s.file())
		g.Expect(h.Outcomes).To(HaveLen(1))
		o := &h.Outcomes[0]
		g.Expect(o.Title()).To(Equal("Machine default/w1"))
		g.Expect(o.Sentence()).To(Equal("3 evicted: 2 replaced and ready, 1 Pending; read 1 min after the end of the drain"))
		g.Expect(o.Controllers).To(HaveExactElements(HaveField("Controller", "Deployment shop/web")))
		g.Expect(o.Controllers[0].Sentence()).To(Equal("1 evicted: 1 Pending. No Node"))
		g.Expect(h.Summary()).To(ContainElement("Pods after 1 drain, as last read: 3 evicted: 2 replaced and ready, 1 Pending."))
	})

	t.Run("K61: the drain of a NodeMaintenance has an outcome, and that of a deleted Machine has one", func(t *testing.T) {
		g, s := NewWithT(t), newScene()
		of := endedDrain("w1", 0).DrainOutcome
		s.observed.Ended = []outcome.Ended{endedDrain("w1", 0)}
		s.observe(1, func(w *recording.Workload) {
			w.Maintenances[0].Status.Outcome = &of
			byHand := *w.Maintenances[0].DeepCopy()
			byHand.Name, byHand.Annotations = "by-hand", nil
			w.Maintenances = append(w.Maintenances, byHand)
		})
		var titles []string
		for _, o := range read(t, s.file()).Outcomes {
			titles = append(titles, o.Title())
		}
		g.Expect(titles).To(ConsistOf("Machine default/w1", "NodeMaintenance by-hand"))
	})

	t.Run("K61: a drain is one although its NodeMaintenance exists longer than the deleted Machine, or was drained before the deletion", func(t *testing.T) {
		g, s := NewWithT(t), newScene()
		inPlace := endedDrain("w1", 0).DrainOutcome
		inPlace.Pods = v1alpha1.EvictedPods{Evicted: 2, Ready: 2}
		deletion := s.observed.Machines[0].DeletionTimestamp
		s.observed.Machines[0].DeletionTimestamp = nil
		s.observe(1, func(w *recording.Workload) { w.Maintenances[0].Status.Outcome = &inPlace })
		g.Expect(read(t, s.file()).Outcomes).To(HaveExactElements(HaveField("Pods.Ready", BeEquivalentTo(2))))
		s.observed.Machines[0].DeletionTimestamp = deletion
		s.observe(2, nil)
		s.observed.Machines, s.observed.Ended = nil, []outcome.Ended{endedDrain("w1", 120)}
		s.observe(121, nil)
		s.observed.Ended = nil // the policy has dropped it
		s.observe(122, nil)
		h := read(t, s.file())
		g.Expect(h.Outcomes).To(HaveExactElements(HaveField("Pods", v1alpha1.EvictedPods{Evicted: 3, Unknown: 3})))
		g.Expect(h.Outcomes[0].Title()).To(Equal("Machine default/w1"))
	})

	t.Run("K61: the drain in place of a Machine is not hidden by one of an earlier Machine with its name", func(t *testing.T) {
		g, s := NewWithT(t), newScene()
		inPlace := endedDrain("w1", 60).DrainOutcome
		s.observed.Machines[0].DeletionTimestamp, s.observed.Ended = nil, []outcome.Ended{endedDrain("w1", 0)}
		s.observe(61, func(w *recording.Workload) { w.Maintenances[0].Status.Outcome = &inPlace })
		g.Expect(read(t, s.file()).Outcomes).To(HaveExactElements(HaveField("Ended", BeTemporally("==", at(60)))))
	})

	t.Run("K61: a drain that ended more than an hour before the recording is not in it", func(t *testing.T) {
		g, s := NewWithT(t), newScene()
		s.observed.Ended = []outcome.Ended{endedDrain("late", -1800), endedDrain("early", -3601)}
		s.observe(0, nil)
		g.Expect(read(t, s.file()).Outcomes).To(HaveExactElements(HaveField("Machine", "default/late")))
	})

	t.Run("K61: of two Machines with the same name, the recording has the one that was drained last", func(t *testing.T) {
		s := newScene()
		s.observed.Ended = []outcome.Ended{endedDrain("w1", 10), endedDrain("w1", 0)}
		s.observe(11, nil)
		NewWithT(t).Expect(read(t, s.file()).Outcomes).To(HaveExactElements(HaveField("Ended", BeTemporally("==", at(10)))))
	})

	t.Run("K61: drains with Pods without a place are the first, and the sum of any numbers is one", func(t *testing.T) {
		g := NewWithT(t)
		lines := []string{`{"time":"2026-03-01T12:00:00Z","start":{"version":1}}`}
		for i := range 2_001 {
			lines = append(lines, fmt.Sprintf(`{"time":"2026-03-01T12:00:00Z","outcome":{"machine":"d/w%d","pods":{"evicted":2147483647,"pending":%d}}}`, i, i-5))
		}
		h := read(t, strings.Join(append(lines, `{"time":"2026-03-01T12:00:00Z","end":"Stopped"}`), "\n"))
		g.Expect(h.Outcomes).To(HaveLen(2_000))
		g.Expect(h.Outcomes[0].Machine).To(Equal("d/w1999"))
		g.Expect(h.Gaps).To(ConsistOf("more than 2000 outcomes of drains; the others are missing"))
		g.Expect(h.Summary()).To(HaveExactElements(HavePrefix("Pods after 2000 drains, as last read: 2000000000 evicted: ")))
	})
}

func TestLate(t *testing.T) {
	const (
		none    = "Applications with evacuated Pods: 1; none was below its PodDisruptionBudget or without a ready replica"
		unknown = ". What happened to their applications before is not known."
	)
	evacuates := func(w *recording.Workload) {
		w.Evacuations, w.Deployments = []v1alpha1.Evacuation{evacuation("db-0", "")}, []appsv1.Deployment{deployment("db", 3, 3)}
	}
	for name, test := range map[string]struct {
		first   int // the second of the first observation, after the start of the drain
		change  func(*recording.Workload)
		verdict []string
		drain   string // a sentence about the drain
	}{
		"K66: says that none was, if the recording observed the drain from its start": {first: 2, change: evacuates, verdict: []string{none + "."}},
		"K67: does not say so of the time before the recording observed the drain": {
			first: 20, change: evacuates,
			verdict: []string{none + " while they were recorded.", "1 drain may have evacuated Pods before the recording observed it" + unknown},
			drain:   "Pods that were evacuated before the recording observed the drain are missing.",
		},
		"K67: does not say so of Pods that were evacuated before": {
			first: 1, change: func(w *recording.Workload) {
				evacuates(w)
				w.Maintenances[0].Status.Summary.PodsEvacuated = 4
			},
			verdict: []string{none + " while they were recorded.", "1 drain may have evacuated Pods before the recording observed it, at least 4" + unknown},
			drain:   "4 Pods had been evacuated before the recording observed the drain, and are missing.",
		},
		"K67: says so if all Pods were evacuated before": {
			first: 60, change: func(w *recording.Workload) {
				w.Maintenances[0].Status.Summary.PodsEvacuated = 1
				w.Maintenances[0].Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceDrained, Status: metav1.ConditionTrue}}
			},
			verdict: []string{"1 drain may have evacuated Pods before the recording observed it, at least 1" + unknown},
			drain:   "1 Pod had been evacuated before the recording observed the drain, and is missing.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, s := NewWithT(t), newScene()
			s.observe(test.first, test.change)
			s.observe(test.first+1, func(w *recording.Workload) { w.Maintenances[0].Status.Summary.PodsEvacuated += 3 })
			h := read(t, s.file())
			g.Expect(h.Summary()[1:]).To(Equal(test.verdict))
			g.Expect(h.IsLate()).To(Equal(test.drain != ""))
			if test.drain != "" {
				g.Expect(h.Drains[0].Summary()).To(ContainElement(test.drain))
			}
		})
	}

	t.Run("K67: a Machine that was drained before the recording may have had Pods", func(t *testing.T) {
		g, s := NewWithT(t), newScene()
		s.observed.Workloads[0].Maintenances = nil
		s.observed.Machines[0].Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.MachineNodeMaintenance, Reason: v1alpha1.ReasonWaitingForVolumeDetach, LastTransitionTime: metav1.NewTime(begin.Add(-time.Minute)),
		}}
		s.observe(0, nil)
		g.Expect(read(t, s.file()).Summary()).To(ContainElement("1 drain may have evacuated Pods before the recording observed it" + unknown))
	})
}

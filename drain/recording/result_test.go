package recording_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
	"github.com/capnm/cluster-api-node-maintenance/drain/recording"
)

// result returns a change to the condition of the Machine.
func (s *scene) result(seconds int, reason, message string) {
	status := metav1.ConditionFalse
	s.observed.Machines[0].Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.MachineNodeMaintenance, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(begin),
	}}
	s.observe(seconds, nil)
}

func TestResult(t *testing.T) {
	isDrained := func(w *recording.Workload) {
		w.Maintenances[0].Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceDrained, Status: metav1.ConditionTrue}}
	}
	complete := func(w *recording.Workload) { w.Maintenances[0].Spec.Stage = v1alpha1.StageComplete }
	timedOut := history.DrainExceeded + "Pod web/a: Waiting for PodDisruptionBudget web/a"
	isSkipped := "The Node is not drained: the Cluster is being deleted"
	isUndrained := func(w *recording.Workload) { w.Maintenances[0].Status.Conditions = nil } // Pods were created
	const late = " Pods that were evacuated before the recording observed the drain are missing."
	const unknown = "1 of 1 drains ended, of 1 it is not known whether the Node was drained;"
	unread := func(s *scene) { s.observed.Workloads[0].Maintenances = nil }
	for name, tc := range map[string]struct {
		change    func(*scene)
		want, all string
		isFirst   bool // the change makes the first observation
	}{
		"a drain that timed out, without the time that the deletion of the infrastructure takes": {
			func(s *scene) { s.result(600, v1alpha1.ReasonTimedOut, timedOut) },
			"The drain timed out after 10 min (0 Pods).", "1 of 1 drains ended, 1 of them before the Node was drained", false,
		},
		"a drain that timed out before the wait for volumes, during which the Pods terminated": {
			func(s *scene) {
				s.result(600, v1alpha1.ReasonWaitingForVolumeDetach, "volumes")
				s.observe(700, isDrained)
				s.result(720, v1alpha1.ReasonTimedOut, timedOut+"\nThe volumes did not detach within nodeVolumeDetachTimeoutSeconds: x")
			},
			"The drain timed out after 10 min (0 Pods). The Machine waited 2 min for volumes to detach.", "1 of 1 drains ended, 1 of them before the Node was drained",
			false,
		},
		"a drain that ended, and volumes that did not detach in time": {
			func(s *scene) {
				s.observe(120, isDrained)
				s.result(121, v1alpha1.ReasonWaitingForVolumeDetach, "volumes")
				s.result(721, v1alpha1.ReasonTimedOut, history.VolumesExceeded+"x")
			},
			"Drained in 2 min (0 Pods). The Machine waited 10 min for volumes to detach. The volumes did not detach before the timeout.", "1 of 1 drains ended;", false,
		},
		"a hook that another actor removed": {
			func(s *scene) {
				s.result(60, v1alpha1.ReasonHookRemoved, "Another actor removed the annotation")
				s.observe(70, complete)
			},
			"Another actor removed the hook after 1 min (0 Pods), and Cluster API drained the Node.", "1 of 1 drains ended, 1 of them before the Node was drained",
			false,
		},
		"a drain that ended because its Cluster was deleted": {
			func(s *scene) {
				s.result(60, v1alpha1.ReasonSkipped, isSkipped)
			},
			"Skipped after 1 min (0 Pods): " + isSkipped + ".", "1 of 1 drains ended, 1 of them before the Node was drained", false,
		},
		"a drain that timed out in place, and ended after the deletion of the Machine": {
			func(s *scene) {
				s.result(60, v1alpha1.ReasonTimedOut, timedOut)
				s.result(90, v1alpha1.ReasonMachineDraining, "")
				s.observe(120, isDrained)
				s.result(121, v1alpha1.ReasonMachineDrained, "The Node is drained")
			},
			"Drained in 2 min (0 Pods).", "1 of 1 drains ended;", false,
		},
		"a drain in place that was completed before the Node was drained": {
			func(s *scene) {
				s.observed.Machines[0].DeletionTimestamp = nil
				s.observe(30, nil)
				s.observe(60, complete)
			},
			"Not drained after 1 min, when the maintenance was ended (0 Pods)." + late, "1 of 1 drains ended, 1 of them before the Node was drained", true,
		},
		"a hook that another actor removed after the Node was drained": {
			func(s *scene) {
				s.observe(120, isDrained)
				s.result(121, v1alpha1.ReasonWaitingForVolumeDetach, "volumes")
				s.result(301, v1alpha1.ReasonHookRemoved, "Another actor removed the annotation")
				s.observe(302, complete)
			},
			"Drained in 2 min (0 Pods). The Machine waited 3 min for volumes to detach. Another actor removed the hook afterwards.", "1 of 1 drains ended;", false,
		},
		"a Machine that was skipped after its Node was drained": {
			func(s *scene) {
				s.observe(120, isDrained)
				s.result(300, v1alpha1.ReasonSkipped, isSkipped)
				s.observe(310, isUndrained)
				s.observe(320, isDrained)
			},
			"Drained in 2 min (0 Pods). The Machine was skipped afterwards: the Cluster is being deleted.", "1 of 1 drains ended;", false,
		},
		"a Machine that was skipped when its Node, which had been drained, had Pods again": {
			func(s *scene) {
				s.observe(120, isDrained)
				s.observe(200, isUndrained)
				s.result(300, v1alpha1.ReasonSkipped, isSkipped)
				s.observe(310, isDrained)
			},
			"Skipped after 5 min (0 Pods): " + isSkipped + ".", "1 of 1 drains ended, 1 of them before the Node was drained;", false,
		},
		"a Machine that was skipped after its Node was drained in place, as its condition says": {
			func(s *scene) {
				unread(s)
				s.observed.Gaps = []string{"connection refused"}
				s.result(120, v1alpha1.ReasonMachineDrained, "The Node is drained")
				s.result(300, v1alpha1.ReasonSkipped, isSkipped)
			},
			"Drained; the start of the drain was not recorded (0 Pods). The Machine was skipped afterwards: the Cluster is being deleted." + late,
			"1 of 1 drains ended;", true,
		},
		"a hook that another actor removed while the workload cluster could not be read": {
			func(s *scene) {
				s.observed.Gaps = []string{"connection refused"}
				s.observe(60, nil)
				s.result(300, v1alpha1.ReasonHookRemoved, "Another actor removed the annotation")
			},
			"Another actor removed the hook after 5 min (0 Pods), and Cluster API drained the Node. It is not known whether the Node was drained before.", unknown,
			false,
		},
		"a Machine that was skipped before the recording": {
			func(s *scene) {
				unread(s)
				s.observed.Machines[0].DeletionTimestamp = ptr.To(metav1.NewTime(at(-60)))
				s.result(0, v1alpha1.ReasonSkipped, isSkipped)
			},
			"Skipped: the Cluster is being deleted. It is not known whether the Node was drained before." + late, unknown, true,
		},
		"a Machine that was skipped while its NodeMaintenance was not observed": {
			func(s *scene) {
				unread(s)
				s.result(0, v1alpha1.ReasonMachineDraining, "")
				s.result(60, v1alpha1.ReasonSkipped, isSkipped)
			},
			"Skipped: the Cluster is being deleted. It is not known whether the Node was drained before." + late, unknown, true,
		},
		"a Machine that was skipped before its drain started": {
			func(s *scene) {
				unread(s)
				s.observe(0, nil)
				s.result(60, v1alpha1.ReasonSkipped, isSkipped)
			},
			"Skipped before the drain started: " + isSkipped + ".", "1 of 1 drains ended, 1 of them before the Node was drained;", true,
		},
		"volumes that did not detach in time, while the workload cluster could not be read": {
			func(s *scene) {
				unread(s)
				s.observed.Gaps = []string{"connection refused"}
				s.observe(0, nil)
				s.result(600, v1alpha1.ReasonTimedOut, "The wait for volumes, which cannot be observed, exceeded nodeVolumeDetachTimeoutSeconds: x")
			},
			"The wait for volumes timed out. It is not known whether the Node was drained before." + late, unknown, true,
		},
		"volumes that did not detach in time after a drain that was not observed": {
			func(s *scene) {
				unread(s)
				s.result(0, v1alpha1.ReasonWaitingForVolumeDetach, "volumes")
				s.result(600, v1alpha1.ReasonTimedOut, history.VolumesExceeded+"x")
			},
			"Drained; the start of the drain was not recorded (0 Pods). The Machine waited 10 min for volumes to detach. " +
				"The volumes did not detach before the timeout." + late,
			"1 of 1 drains ended;", true,
		},
		"a Node that was drained in place, and on which Pods were created": {
			func(s *scene) {
				s.observed.Machines[0].DeletionTimestamp = nil
				s.observe(0, nil)
				s.observe(60, isDrained)
				s.result(61, v1alpha1.ReasonMachineDrained, "The Node is drained")
				s.observe(120, isUndrained)
			},
			"Not drained after 15 min, when the maintenance was ended (0 Pods).", "1 of 1 drains ended, 1 of them before the Node was drained", true,
		},
		"a drain that was completed before its Machine was deleted without a result": {
			func(s *scene) { s.observe(60, complete) },
			"Not drained after 1 min, when the maintenance was ended (0 Pods).", "1 of 1 drains ended, 1 of them before the Node was drained", false,
		},
		"a drain that started after its Machine was skipped": {
			func(s *scene) {
				maintenances := s.observed.Workloads[0].Maintenances
				unread(s)
				s.observe(0, nil)
				s.result(60, v1alpha1.ReasonSkipped, isSkipped)
				s.observed.Workloads[0].Maintenances = maintenances
				maintenances[0].Status.StageStatuses[0].StartTimestamp = metav1.NewTime(at(70))
				s.observe(80, nil)
			},
			"Skipped after 0 s (0 Pods): " + isSkipped + ".", "1 of 1 drains ended, 1 of them before the Node was drained", true,
		},
		"a drain whose end only the condition of the Machine says": {
			func(s *scene) { s.result(120, v1alpha1.ReasonMachineDrained, "The Node is drained") },
			"Drained in 2 min (0 Pods).", "1 of 1 drains ended;", false,
		},
		"a drain that timed out in place and continued, of a Machine that was deleted without a result": {
			func(s *scene) {
				s.result(60, v1alpha1.ReasonTimedOut, timedOut)
				s.result(90, v1alpha1.ReasonMachineDraining, "")
			},
			"No result was recorded in 15 min (0 Pods). It is not known whether the Node was drained.", unknown, false,
		},
	} {
		t.Run("K48: the report is right about "+name, func(t *testing.T) {
			g, s := NewWithT(t), newScene()
			if !tc.isFirst {
				s.observe(0, nil)
			}
			tc.change(s)
			s.observed.Machines = nil
			s.observe(900, func(w *recording.Workload) { w.Maintenances = nil })
			h := read(t, s.file())
			g.Expect(h.Drains).To(HaveLen(1))
			g.Expect(strings.Join(h.Drains[0].Summary(), " ")).To(Equal(tc.want))
			g.Expect(h.Summary()[0]).To(HavePrefix(tc.all))
		})
	}

	t.Run("K48: it is not known whether the Node of a Machine was drained whose end was observed together with its deletion", func(t *testing.T) {
		s := newScene()
		s.observe(0, nil)
		s.observed.Machines = nil
		s.observe(2, func(w *recording.Workload) { w.Maintenances = nil })
		summary := read(t, s.file()).Drains[0].Summary()
		NewWithT(t).Expect(summary).To(Equal([]string{"No result was recorded in 2 s (0 Pods).", "It is not known whether the Node was drained."}))
	})

	t.Run("K48: a NodeMaintenance of a user that was deleted before its Nodes were drained is not drained", func(t *testing.T) {
		s := newScene()
		s.observed.Machines, s.observed.Workloads[0].Maintenances[0].Annotations = nil, nil
		s.observe(0, nil)
		s.observe(60, func(w *recording.Workload) { w.Maintenances = nil })
		NewWithT(t).Expect(read(t, s.file()).Drains[0].Summary()).To(Equal([]string{"Not drained after 1 min, when the maintenance was ended (0 Pods)."}))
	})
}

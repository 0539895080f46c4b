package maintain

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

func TestProgress(t *testing.T) {
	const changed = "another actor has changed the annotation " + v1alpha1.MachineStageAnnotation
	waits := metav1.Condition{
		Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonMachineDraining, Message: "Drain not completed yet",
	}
	completed := metav1.Condition{Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonMachineCompleted}
	unmanaged := metav1.Condition{
		Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNotManaged, Message: "No MachineDrainPolicy selects the Machine",
	}
	for name, tc := range map[string]struct {
		requested v1alpha1.NodeMaintenanceStage
		present   string
		condition metav1.Condition
		want      Progress
	}{
		"waits while the Node is drained":                           {v1alpha1.StageDrain, "Drain", waits, Progress{Message: "Drain not completed yet"}},
		"waits when it has just requested Drain of a cordoned Node": {v1alpha1.StageDrain, "Cordon", waits, Progress{Message: "Drain not completed yet"}},
		"fails if another actor completes the maintenance":          {v1alpha1.StageDrain, "Complete", completed, Progress{Failed: changed}},
		"fails if another actor requests an earlier stage":          {v1alpha1.StageDrain, "Idle", waits, Progress{Failed: changed}},
		"fails if another actor sets what is no stage":              {v1alpha1.StageDrain, "drain", waits, Progress{Failed: changed}},
		"fails if another actor drains a Node to be cordoned":       {v1alpha1.StageCordon, "Drain", waits, Progress{Failed: changed}},
		"fails if another actor removes the annotation":             {v1alpha1.StageDrain, "", waits, Progress{Failed: changed}},
		"says that the annotation of a Machine that no policy selects stays, and how to remove it": {v1alpha1.StageDrain, "Drain", unmanaged, Progress{
			Failed: "No MachineDrainPolicy selects the Machine. It stays, and takes effect when a policy selects the Machine; to remove it: kubectl node-maintenance " +
				"complete machine m -n default",
		}},
	} {
		t.Run("K14: the command "+name, func(t *testing.T) {
			m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m"}}
			if tc.present != "" {
				m.Annotations = map[string]string{v1alpha1.MachineStageAnnotation: tc.present}
			}
			m.Status.Conditions = []metav1.Condition{tc.condition}
			NewWithT(t).Expect(Machines{}.progress(Target{}, m, tc.requested)).To(Equal(tc.want))
		})
	}
}

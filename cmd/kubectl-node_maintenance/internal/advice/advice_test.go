package advice_test

import (
	"testing"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/advice"
)

func TestReasonsOfMachines(t *testing.T) {
	for _, reason := range []string{
		v1alpha1.ReasonMachineDraining, v1alpha1.ReasonWaitingForTurn, v1alpha1.ReasonInvalidDrainRule, v1alpha1.ReasonMaintenanceNameTaken,
		v1alpha1.ReasonWaitingForVolumeDetach, v1alpha1.ReasonWaitingForWorkloadCluster, v1alpha1.ReasonCRDNotServed, v1alpha1.ReasonNotManaged,
		v1alpha1.ReasonHandedOver, v1alpha1.ReasonHookRemoved, v1alpha1.ReasonReconcileFailed, v1alpha1.ReasonTimedOut, v1alpha1.ReasonSkipped,
	} {
		t.Run("K2: the guide explains the reason "+reason+" of a Machine", func(t *testing.T) {
			if _, section := advice.Of(reason); section == "" {
				t.Error("no section of the guide")
			}
		})
	}
}

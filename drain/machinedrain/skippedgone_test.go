package machinedrain_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// The manager has released a Machine without a drain, and the Machine is gone before its NodeMaintenance was moved to stage Complete.
func TestSkippedMachineThatIsGone(t *testing.T) {
	t.Run("M18: the NodeMaintenance of a Machine that was released without a drain is reconciled when the Machine no longer exists", func(t *testing.T) {
		skipped := machine(func(m *clusterv1.Machine) {
			m.DeletionTimestamp = ptr.To(metav1.NewTime(after(0)))
			m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSkipped}}
		})
		m := draining(1)
		m.Annotations = map[string]string{v1alpha1.OwnerMachineAnnotation: "ns/m", v1alpha1.OwnerManagementClusterAnnotation: "here"}
		if !machinedrain.IsSuspended(m, skipped, nil, "here") || machinedrain.IsSuspended(m, nil, nil, "here") {
			t.Fatal("its suspension does not end with the Machine")
		}
		if !machinedrain.DrainContinues(skipped, nil) {
			t.Error("no event follows: it stays as it is until the next event of its Node, its Pods or the connection")
		}
	})
}

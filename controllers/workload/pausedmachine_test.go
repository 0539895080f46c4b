package workload

import (
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

// A user removes the finalizers of a paused Machine. Its NodeMaintenance is not suspended any more, as that of any Machine which no longer
// exists. Events of its Node and Pods have not been processed since the pause began.
func TestPausedMachineThatIsGone(t *testing.T) {
	t.Run("M16, M18: the NodeMaintenance of a Machine that is deleted during its pause is reconciled, as after the end of the pause", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
				Namespace: clusterA.Namespace, Name: "m",
				Annotations: map[string]string{clusterv1.PausedAnnotation: "", v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner},
			}}
			machine.Spec.ClusterName = clusterA.Name
			m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: map[string]string{
				v1alpha1.OwnerMachineAnnotation: clusterA.Namespace + "/m", v1alpha1.OwnerManagementClusterAnnotation: "here",
			}}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
			g.Expect(machinedrain.IsSuspended(m, machine, nil, "here")).To(BeTrue())
			g.Expect(machinedrain.IsSuspended(m, nil, nil, "here")).To(BeFalse(), "without its Machine")

			clusters := NewClusters(fakes.Client(), nil, nil, Limits{}, clock.RealClock{})
			resumed := 0
			clusters.Subscribe(func(Change) { resumed++ })
			clusters.ResumeAfterPause().Delete(t.Context(), event.DeleteEvent{Object: machine}, nil)
			time.Sleep(time.Minute)
			g.Expect(resumed).To(BeNumerically(">", 0), "no other event may come for a long time")
		})
	})
}

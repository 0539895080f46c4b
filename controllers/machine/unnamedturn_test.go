package machine

import (
	"context"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// TestTurnsOfMachinesWithoutNodeRefWhoseStepFails: after clusterctl move, the webhook of the infrastructure provider does not answer. No
// Machine of the Cluster has a NodeMaintenance yet.
func TestTurnsOfMachinesWithoutNodeRefWhoseStepFails(t *testing.T) {
	for name, tc := range map[string]struct {
		hasNodeRef bool
		lasts      time.Duration
		released   int
	}{
		"M26, M39: Machines whose step before the turn fails do not have turns together":                         {hasNodeRef: true, lasts: 2 * time.Minute},
		"M26, M39, M128: Machines without a nodeRef whose step before the turn fails do not have turns together": {lasts: 2 * time.Minute},
		"M39: Machines whose step before the turn fails do not time out together":                                {true, 90 * time.Minute, 1},
		"M39, M128: Machines without a nodeRef whose step before the turn fails do not time out together":        {false, 90 * time.Minute, 1},
	} {
		t.Run(name, func(t *testing.T) {
			g, start := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
			machines := deletedWorkers(start, "a", "b", "c", "d")
			for i, m := range machines {
				m.Spec.ProviderID, m.Spec.Deletion.NodeDrainTimeoutSeconds = "cloud://"+m.Name, ptr.To[int32](3600)
				m.DeletionTimestamp = ptr.To(metav1.NewTime(start.Add(time.Duration(i-10) * time.Second)))
				if !tc.hasNodeRef {
					m.Status.NodeRef.Name = ""
				}
			}
			fails, remote := true, workloadCluster(machines...).Build()
			management := managementCluster(machines...).WithObjects(policyWithLimit(intstr.FromInt32(1))).Build()
			r := newReconciler(t, management, connectedTo(remote, start), clocktesting.NewFakePassiveClock(start))
			r.APIReader = interceptor.NewClient(management, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
					if fails {
						return errors.New("the conversion webhook of the infrastructure provider does not answer")
					}
					return c.Get(ctx, key, object, options...)
				},
			})
			t.Cleanup(func() {
				for _, m := range machines {
					r.forget(client.ObjectKeyFromObject(m))
				}
			})
			reconcileAll := func(from time.Time) {
				for i, m := range machines { // not in the same moment
					_ = reconcileAt(t, r, m, from.Add(time.Duration(i)*3*time.Second))
				}
			}
			for after := time.Duration(0); after < tc.lasts; after += pollInterval {
				reconcileAll(start.Add(after))
			}
			turns, list := turnsIn(t, management), &clusterv1.MachineList{}
			g.Expect(management.List(t.Context(), list)).To(Succeed())
			released := slices.DeleteFunc(list.Items, func(m clusterv1.Machine) bool { return m.DeletionTimestamp.IsZero() || machinedrain.HasHook(&m) })
			g.Expect(released).To(HaveLen(tc.released))
			if g.Expect(turns).To(Equal(1)); tc.released > 0 { // one after the other
				return
			}
			fails = false
			infrastructureExists(r, machines...)
			for range 3 {
				reconcileAll(r.Clock.Now().Add(pollInterval))
			}
			drains, all := drainingIn(t, remote)
			g.Expect(all).NotTo(BeZero())
			g.Expect([]int{turns, len(drains)}).To(HaveEach(BeNumerically("<=", 1)), "turns, and drains after the failure; maxParallelDrains allows 1")
		})
	}
}

package machinedrain_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

var deletedAt = metav1.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// waiting is a Machine of Cluster c that was deleted after some minutes, and whose condition says what it waits for.
func waiting(name string, after int, reason, message string) clusterv1.Machine {
	m := machine(func(m *clusterv1.Machine) {
		m.Name, m.Spec.ClusterName = name, "c"
		m.Annotations = map[string]string{v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner}
		m.DeletionTimestamp = ptr.To(metav1.NewTime(deletedAt.Add(time.Duration(after) * time.Minute)))
	})
	meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: reason, Message: message})
	return *m
}

func waitsOf(all ...clusterv1.Machine) []v1alpha1.DrainWait {
	p := policy("p")
	return machinedrain.TallyOf(&p, []v1alpha1.MachineDrainPolicy{p}, all, map[string]map[string]string{"c": nil}).LongestWaits
}

func TestLongestWaits(t *testing.T) {
	blocked := func(evacuating int32, why ...string) string {
		m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "nm"}}
		m.Status.Summary = v1alpha1.NodeMaintenanceSummary{Nodes: 1, PodsEvacuating: evacuating}
		node := v1alpha1.NodeMaintenanceNodeStatus{}
		for i, each := range why {
			node.Blocked = append(node.Blocked, v1alpha1.BlockedPod{Pod: fmt.Sprintf("shop/web-%d", i), Why: each})
		}
		m.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{node}
		return machinedrain.DrainMessage(m)
	}
	for _, tc := range []struct {
		name, reason, message, want string
	}{
		{name: "M34: which Pods wait, and why", reason: v1alpha1.ReasonMachineDraining, message: blocked(2, "no room", "no room"), want: "Pods shop/web-0, shop/web-1: no room"},
		{name: "M34: how far the drain is makes no difference", reason: v1alpha1.ReasonMachineDraining, message: blocked(99, "no room", "no room"), want: "Pods shop/web-0, shop/web-1: no room"},
		{name: "M34: at most three reasons", reason: v1alpha1.ReasonMachineDraining, message: blocked(4, "a", "b", "c", "d"), want: "Pod shop/web-0: a\nPod shop/web-1: b\nPod shop/web-2: c"},
		{name: "M34: a drain that nothing holds up doesn't wait", reason: v1alpha1.ReasonMachineDraining, message: blocked(7)},
		{name: "M34: what isn't about Pods", reason: v1alpha1.ReasonWaitingForWorkloadCluster, message: "Waiting for a connection", want: "Waiting for a connection"},
		{
			name: "M34: volumes", reason: v1alpha1.ReasonWaitingForVolumeDetach,
			message: "Waiting for Node volumes to be detached\n* PersistentVolumeClaims: shop/db\nNot waited for: 1", want: "PersistentVolumeClaims: shop/db",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := waitsOf(waiting("m", 0, tc.reason, tc.message))
			if tc.want == "" {
				if len(got) > 0 {
					t.Errorf("got %v, want none", got)
				}
				return
			}
			if len(got) != 1 || got[0] != (v1alpha1.DrainWait{Machine: "m", Cluster: "c", Since: deletedAt, Reason: tc.reason, Message: tc.want}) {
				t.Errorf("got %+v", got)
			}
		})
	}
	t.Run("M34: the five Machines that were deleted first", func(t *testing.T) {
		var all []clusterv1.Machine
		for i := range 9 {
			all = append(all, waiting(fmt.Sprintf("m%d", i), 9-i, v1alpha1.ReasonMachineDraining, "waiting"))
		}
		running := machine(func(m *clusterv1.Machine) { m.Spec.ClusterName = "c" })
		var names []string
		for _, wait := range waitsOf(append(all, *running)...) {
			names = append(names, wait.Machine)
		}
		if got := strings.Join(names, " "); got != "m8 m7 m6 m5 m4" {
			t.Errorf("got %s", got)
		}
	})
	t.Run("M34: whatever tenants say, it fits", rapid.MakeCheck(func(t *rapid.T) {
		for _, wait := range waitsOf(waiting("m", 0, "Draining", rapid.String().Draw(t, "start")+strings.Repeat("\n* "+rapid.String().Draw(t, "line"), rapid.IntRange(0, 400).Draw(t, "lines")))) {
			if utf8.RuneCountInString(wait.Message) > 1024 || wait.Message == "" {
				t.Fatalf("got %q", wait.Message)
			}
		}
	}))
}

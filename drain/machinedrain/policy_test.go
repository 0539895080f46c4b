package machinedrain_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// waiting returns a Machine of Cluster c that was deleted at a minute, and whose drain waits.
func waiting(name string, minute int, reason, message string) *clusterv1.Machine {
	m := machine(func(m *clusterv1.Machine) {
		m.Name, m.Spec.ClusterName = name, "c"
		m.Annotations = map[string]string{v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner}
		m.DeletionTimestamp = ptr.To(metav1.NewTime(deleted.Add(time.Duration(minute) * time.Minute)))
	})
	meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{
		Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: reason, Message: message,
	})
	return m
}

// blocking returns a NodeMaintenance that reports blocked Pods, with these reasons.
func blocking(why ...string) *v1alpha1.NodeMaintenance {
	m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "nm"}}
	node := v1alpha1.NodeMaintenanceNodeStatus{}
	for i, each := range why {
		node.Blocked = append(node.Blocked, v1alpha1.BlockedPod{Pod: fmt.Sprintf("shop/web-%d", i), Why: each})
	}
	m.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{node}
	return m
}

func TestWaitOf(t *testing.T) {
	const draining = v1alpha1.ReasonMachineDraining
	for _, tc := range []struct {
		name, reason, message string
		maintenance           *v1alpha1.NodeMaintenance
		want                  string
	}{
		{
			name: "M34: names the blocked Pods and the reason", reason: draining, message: "Drain not completed yet",
			maintenance: blocking("no disruptions allowed", "no disruptions allowed"), want: "Pods shop/web-0, shop/web-1: no disruptions allowed",
		},
		{
			name: "M34: leaves out the progress of the drain", reason: draining, message: "99 Pods evacuating", maintenance: blocking("no disruptions allowed"),
			want: "Pod shop/web-0: no disruptions allowed",
		},
		{
			name: "M34: names at most three reasons", reason: draining, maintenance: blocking("a", "b", "c", "d"),
			want: "Pod shop/web-0: a\nPod shop/web-1: b\nPod shop/web-2: c",
		},
		{name: "M34: leaves out a drain that nothing blocks", reason: draining, message: "7 Pods evacuating", maintenance: blocking()},
		{
			name: "M34: repeats the condition for other reasons", reason: v1alpha1.ReasonWaitingForWorkloadCluster, message: "Waiting for a connection",
			want: "Waiting for a connection",
		},
		{name: "M34: does not read text as blocked Pods", reason: v1alpha1.ReasonWaitingForTurn, message: "Waiting\n* shop/web", want: "Waiting\n* shop/web"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := waiting("m", 0, tc.reason, tc.message)
			var blockers []string
			if machinedrain.NeedsBlockers(m) {
				blockers = machinedrain.Blockers(tc.maintenance, nil)
			}
			got := machinedrain.WaitOf(m, blockers)
			if tc.want == "" {
				if got != nil {
					t.Errorf("got %v, want none", got)
				}
				return
			}
			if want := (&v1alpha1.DrainWait{Machine: "m", Cluster: "c", Since: *m.DeletionTimestamp, Reason: tc.reason, Message: tc.want}); !reflect.DeepEqual(got,
				want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
	t.Run("M34: lists the Machines by deletion", func(t *testing.T) {
		var all []clusterv1.Machine
		for i := range 3 {
			all = append(all, *waiting(fmt.Sprintf("m%d", i), 9-i, draining, "waiting"))
		}
		running := machine(func(m *clusterv1.Machine) { m.Spec.ClusterName = "c" })
		p := policy("p")
		var names []string
		for _, each := range machinedrain.TallyOf(&p, []v1alpha1.MachineDrainPolicy{p}, append(all, *running), map[string]map[string]string{"c": nil}).Draining {
			names = append(names, each.Name)
		}
		if got := strings.Join(names, " "); got != "m2 m1 m0" {
			t.Errorf("got %s", got)
		}
	})
	t.Run("M34: parses the selectors of policies once, and not for each Machine", func(t *testing.T) {
		policies := make([]v1alpha1.MachineDrainPolicy, 20)
		for i := range policies {
			policies[i] = policy(fmt.Sprintf("p%02d", i))
			policies[i].Spec.ClusterSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"policy": v1alpha1.LabelValue(policies[i].Name)}}
		}
		all := make([]clusterv1.Machine, 100)
		for i := range all {
			all[i] = *machine(func(m *clusterv1.Machine) { m.Spec.ClusterName = "c" })
		}
		clusters := map[string]map[string]string{"c": {"policy": "p19"}}
		if allocations := testing.AllocsPerRun(5, func() { machinedrain.TallyOf(&policies[19], policies, all, clusters) }); allocations > 2000 {
			t.Errorf("%g allocations for 100 Machines", allocations)
		}
		if tally := machinedrain.TallyOf(&policies[19], policies, all, clusters); tally.Machines != 100 {
			t.Errorf("got %+v", tally)
		}
	})
	t.Run("M34: bounds the message, whatever tenants write", rapid.MakeCheck(func(t *rapid.T) {
		reasons := rapid.SliceOfN(rapid.String(), 1, 400).Draw(t, "reasons")
		for i := range reasons {
			reasons[i] = strings.Repeat(reasons[i], rapid.IntRange(0, 400).Draw(t, "times"))
		}
		wait := machinedrain.WaitOf(waiting("m", 0, draining, rapid.String().Draw(t, "message")), machinedrain.Blockers(blocking(reasons...), nil))
		if wait == nil || wait.Message == "" || utf8.RuneCountInString(wait.Message) > 1024 {
			t.Fatalf("got %v", wait)
		}
	}))
}

func TestPoolsCondition(t *testing.T) { // M82
	g := NewWithT(t)
	policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Generation: 3}}
	policy.Spec.ClusterSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"drain": "yes"}}
	clusters := map[string]map[string]string{"a": {"drain": "yes"}, "b": nil}
	pool := func(cluster, name string, nodes int) clusterv1.MachinePool {
		p := clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{Name: name}}
		p.Spec.ClusterName, p.Status.NodeRefs = cluster, make([]corev1.ObjectReference, nodes)
		return p
	}
	long := strings.Repeat("long-", 20) + "name" // no valid label value: Cluster API labels the Machines with its hash
	machines := []clusterv1.Machine{
		{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{clusterv1.MachinePoolNameLabel: "with-machines"}}},
		{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{clusterv1.MachinePoolNameLabel: "hash_fVOsWg_z"}}},
	}
	pools := []clusterv1.MachinePool{
		pool("a", "with-machines", 1), pool("a", long, 1), pool("a", "empty", 0), pool("b", "not-selected", 1), pool("gone", "without-cluster", 1),
	}
	g.Expect(machinedrain.PoolsCondition(policy, pools, machines, clusters)).To(BeNil())

	condition := machinedrain.PoolsCondition(policy, append(pools, pool("a", "two", 2), pool("a", "one", 1)), machines, clusters)
	g.Expect(condition).NotTo(BeNil())
	g.Expect(condition.Status).To(Equal(metav1.ConditionFalse))
	g.Expect(condition.ObservedGeneration).To(BeEquivalentTo(3))
	g.Expect(condition.Message).To(ContainSubstring("no Machines for MachinePools: one, two."))
}

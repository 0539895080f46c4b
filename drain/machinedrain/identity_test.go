package machinedrain_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func anIdentity() machinedrain.Identity {
	return machinedrain.Identity{
		Cluster: types.NamespacedName{Namespace: "ns", Name: "c"},
		Machine: &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m", UID: "machine-uid"}},
		Node:    &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "node-uid"}},
	}
}

// maintenanceOf returns the NodeMaintenance that a manager creates.
func maintenanceOf(id machinedrain.Identity, changes ...func(*v1alpha1.NodeMaintenance)) *v1alpha1.NodeMaintenance {
	m := machinedrain.Maintenance(machinedrain.Request{ManagementCluster: "here", Cluster: id.Cluster, Machine: id.Machine, Node: id.Node})
	for _, change := range changes {
		change(m)
	}
	return m
}

func naming(key, value string) func(*v1alpha1.NodeMaintenance) {
	return func(m *v1alpha1.NodeMaintenance) { m.Annotations[key] = value }
}

func TestIdentityIs(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*v1alpha1.NodeMaintenance)
		want   bool
	}{
		{"M36: accepts the NodeMaintenance that a manager creates", func(*v1alpha1.NodeMaintenance) {}, true},
		{"M36: accepts any name", func(m *v1alpha1.NodeMaintenance) { m.Name = "other" }, true},
		{"M16: accepts the NodeMaintenance of another management cluster", naming(v1alpha1.OwnerManagementClusterAnnotation, "there"), true},
		{"M36: rejects a missing management cluster", naming(v1alpha1.OwnerManagementClusterAnnotation, ""), false},
		{"M36: rejects another Machine", naming(v1alpha1.OwnerMachineAnnotation, "ns/other"), false},
		{"M36: rejects another Cluster", naming(v1alpha1.OwnerClusterAnnotation, "ns/other"), false},
		{"M36: rejects another Node with the same name", naming(v1alpha1.NodeUIDAnnotation, "other"), false},
		{"M36: rejects missing annotations", func(m *v1alpha1.NodeMaintenance) { m.Annotations = nil }, false},
		{"M36: rejects a selector of another Node", func(m *v1alpha1.NodeMaintenance) { m.Spec.NodeSelector = v1alpha1.SelectNodes("other") }, false},
		{"M36: rejects a selector of two Nodes", func(m *v1alpha1.NodeMaintenance) { m.Spec.NodeSelector = v1alpha1.SelectNodes("node", "other") }, false},
		{"M36: rejects a selector with labels", func(m *v1alpha1.NodeMaintenance) {
			m.Spec.NodeSelector.NodeSelectorTerms[0].MatchExpressions = []v1alpha1.NodeSelectorRequirement{{Key: "a", Operator: corev1.NodeSelectorOpExists}}
		}, false},
		{"M17: accepts a deleted one that the manager has not let go yet", isBeingDeleted, true},
		{"M17: rejects a deleted one that a finalizer of another owner keeps", isKeptByAnother, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := anIdentity().Is(maintenanceOf(anIdentity(), tc.change)); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

func isBeingDeleted(m *v1alpha1.NodeMaintenance) {
	m.DeletionTimestamp = ptr.To(metav1.NewTime(time.Unix(0, 0)))
	m.Finalizers = append(m.Finalizers, "example.com/audit")
}

// isKeptByAnother makes a NodeMaintenance one that was deleted, that the manager has let go, and that a finalizer of another owner keeps.
func isKeptByAnother(m *v1alpha1.NodeMaintenance) {
	isBeingDeleted(m)
	m.Finalizers = []string{"example.com/audit"}
}

func TestIdentityFind(t *testing.T) {
	id := anIdentity()
	first, second := id.Names()[0], id.Names()[1]
	ours := func(name string) *v1alpha1.NodeMaintenance {
		return maintenanceOf(id, func(m *v1alpha1.NodeMaintenance) { m.Name = name })
	}
	kept := func(name string) *v1alpha1.NodeMaintenance {
		m := ours(name)
		isKeptByAnother(m)
		return m
	}
	theirs := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{NodeSelector: v1alpha1.SelectNodes("other")}}
	for _, tc := range []struct {
		name  string
		named map[string]*v1alpha1.NodeMaintenance
		found bool
		as    string
		taken []string
	}{
		{"M36: uses the first name when no NodeMaintenance exists", nil, false, first, nil},
		{"M36: finds it by the first name", map[string]*v1alpha1.NodeMaintenance{first: ours(first)}, true, first, nil},
		{"M36: uses the second name if the first is taken", map[string]*v1alpha1.NodeMaintenance{first: theirs}, false, second, []string{first}},
		{"M36: finds it by the second name", map[string]*v1alpha1.NodeMaintenance{first: theirs, second: ours(second)}, true, second, []string{first}},
		{"M36: keeps the second name when the first is free again", map[string]*v1alpha1.NodeMaintenance{second: ours(second)}, true, second, nil},
		{"M36: has no name if both are taken", map[string]*v1alpha1.NodeMaintenance{first: theirs, second: theirs}, false, "", []string{first, second}},
		{
			"M17: uses the second name if a finalizer keeps the deleted first", map[string]*v1alpha1.NodeMaintenance{first: kept(first)}, false, second, []string{first},
		},
		{"M17: finds the one that replaces it", map[string]*v1alpha1.NodeMaintenance{first: kept(first), second: ours(second)}, true, second, []string{first}},
		{
			"M17: has no name if finalizers keep both",
			map[string]*v1alpha1.NodeMaintenance{first: kept(first), second: kept(second)}, false, "", []string{first, second},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			var all []v1alpha1.NodeMaintenance
			for _, m := range tc.named {
				all = append(all, *m)
			}
			found := id.FindAmong(all, id.Find(tc.named))
			g.Expect(found.Maintenance != nil).To(Equal(tc.found))
			g.Expect(found.Name).To(Equal(tc.as))
			g.Expect(found.Taken).To(Equal(tc.taken))
			for _, name := range tc.taken {
				g.Expect(found.TakenMessage()).To(ContainSubstring(name))
			}
			if len(tc.taken) == 0 {
				g.Expect(found.TakenMessage()).To(BeEmpty())
			}
		})
	}
	t.Run("M16: finds it after clusterctl move by a name that depends on another UID of the Machine", func(t *testing.T) {
		g := NewWithT(t)
		found := id.FindAmong([]v1alpha1.NodeMaintenance{*theirs, *ours("moved")}, id.Find(map[string]*v1alpha1.NodeMaintenance{first: theirs}))
		g.Expect(found.Maintenance).To(Equal(ours("moved")))
		g.Expect(found.Name).To(Equal("moved"))
	})
	t.Run("M36: the second name cannot be predicted without the UID of the Machine", func(t *testing.T) {
		other := anIdentity()
		other.Machine.UID = "other"
		g := NewWithT(t)
		g.Expect(other.Names()[0]).To(Equal(first))
		g.Expect(other.Names()[1]).NotTo(Equal(second))
	})
}

func TestOwnerMachine(t *testing.T) {
	for name, tc := range map[string]struct {
		managementCluster, cluster, machine string
		want                                bool
	}{
		"M18: serves a Machine of this management cluster":           {"here", "ns/c", "ns/m", true},
		"M18: serves a Machine of another management cluster":        {"there", "ns/c", "ns/m", false},
		"M18: serves a Machine of another Cluster":                   {"here", "ns/other", "ns/m", false},
		"M18: names a Machine in another namespace than its Cluster": {"here", "ns/c", "other/m", false},
		"M18: names no Machine":                                      {"here", "ns/c", "", false},
		"M18: names a Machine without a name":                        {"here", "ns/c", "ns/", false},
	} {
		t.Run(name, func(t *testing.T) {
			m := &v1alpha1.NodeMaintenance{}
			m.Annotations = map[string]string{
				v1alpha1.OwnerManagementClusterAnnotation: tc.managementCluster, v1alpha1.OwnerClusterAnnotation: tc.cluster, v1alpha1.OwnerMachineAnnotation: tc.machine,
			}
			machine, ours := machinedrain.OwnerMachine(m, "here", types.NamespacedName{Namespace: "ns", Name: "c"})
			if ours != tc.want || ours && machine.String() != tc.machine {
				t.Errorf("got %s, %t", machine, ours)
			}
		})
	}
	t.Run("M12: serves a Machine of the Cluster, whatever the management cluster", func(t *testing.T) {
		m := &v1alpha1.NodeMaintenance{}
		m.Annotations = map[string]string{
			v1alpha1.OwnerManagementClusterAnnotation: "there", v1alpha1.OwnerClusterAnnotation: "ns/c", v1alpha1.OwnerMachineAnnotation: "ns/m",
		}
		if machine, ok := machinedrain.OwnerMachineOfAnyManager(m, types.NamespacedName{Namespace: "ns", Name: "c"}); !ok || machine.String() != "ns/m" {
			t.Errorf("got %s, %t", machine, ok)
		}
	})
	t.Run("M18: a NodeMaintenance that a user created serves no Machine", func(t *testing.T) {
		if _, ours := machinedrain.OwnerMachine(&v1alpha1.NodeMaintenance{}, "", types.NamespacedName{}); ours {
			t.Error("the NodeMaintenance serves a Machine")
		}
	})
}

func TestKeepsNodeCordoned(t *testing.T) {
	for name, tc := range map[string]struct {
		machine *clusterv1.Machine
		want    bool
	}{
		"M17: keeps the Node of a deleted Machine cordoned":    {machine(isDeleted), true},
		"M30: restores the Node of a running Machine":          {machine(), false},
		"M18: restores the Node if the Machine does not exist": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := machinedrain.KeepsNodeCordoned(tc.machine); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

func TestIsSuspended(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1alpha1.NodeMaintenance, *clusterv1.Machine)
		want   bool
	}{
		"started here": {},
		"M16: the Machine is paused": {want: true, change: func(_ *v1alpha1.NodeMaintenance, machine *clusterv1.Machine) {
			machine.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
		}},
		"M89: started in another management cluster": {want: true, change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) {
			m.Annotations[v1alpha1.OwnerManagementClusterAnnotation] = "elsewhere"
		}},
		"M89: continued here": {change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) {
			continued := m.DeepCopy()
			m.Annotations[v1alpha1.OwnerManagementClusterAnnotation] = "elsewhere"
			machinedrain.Update(m, continued)
		}},
		"M89: completed in another management cluster": {change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) { machinedrain.Complete(m, "elsewhere") }},
		"M89: deleted in another management cluster": {change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) {
			m.Annotations[v1alpha1.OwnerManagementClusterAnnotation], m.DeletionTimestamp = "elsewhere", ptr.To(metav1.NewTime(time.Unix(0, 0)))
		}},
		"M90: completed in another management cluster, where the Machine with that name is not paused": {
			change: func(m *v1alpha1.NodeMaintenance, machine *clusterv1.Machine) {
				machinedrain.Complete(m, "elsewhere")
				machine.Annotations, machine.Status.NodeRef.Name = map[string]string{clusterv1.PausedAnnotation: ""}, "another"
			},
		},
		"M54: the Machine was released without a drain": {want: true, change: func(_ *v1alpha1.NodeMaintenance, machine *clusterv1.Machine) { skipped(machine) }},
		"M54: it ends if that was completed": {change: func(m *v1alpha1.NodeMaintenance, machine *clusterv1.Machine) {
			skipped(machine)
			machinedrain.Complete(m, "here")
		}},
		"M54: the Machine is drained again, although its condition still says that it is skipped": {
			change: func(_ *v1alpha1.NodeMaintenance, machine *clusterv1.Machine) {
				skipped(machine)
				machine.Annotations = map[string]string{v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner}
			},
		},
		"M54: a running Machine was not released": {change: func(_ *v1alpha1.NodeMaintenance, machine *clusterv1.Machine) {
			skipped(machine)
			machine.DeletionTimestamp = nil
		}},
		"M54: the Machine was released when it was drained": {change: func(_ *v1alpha1.NodeMaintenance, machine *clusterv1.Machine) {
			skipped(machine)
			machine.Status.Conditions[0].Reason = v1alpha1.ReasonMachineDrained
		}},
		"serves no Machine": {change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) { m.Annotations = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"}}
			m := machinedrain.Maintenance(machinedrain.Request{ManagementCluster: "here", Machine: machine, Node: &corev1.Node{}})
			if tc.change != nil {
				tc.change(m, machine)
			}
			if got := machinedrain.IsSuspended(m, machine, nil, "here"); got != tc.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

// skipped makes a Machine one that was released without a drain.
func skipped(machine *clusterv1.Machine) {
	isDeleted(machine)
	conditions.Set(machine, metav1.Condition{Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSkipped})
}

func TestIsSuspendedWithoutMachine(t *testing.T) {
	for name, tc := range map[string]struct {
		managementCluster string
		stage             v1alpha1.NodeMaintenanceStage
		want              bool
	}{
		"M90: serves a Machine of another management cluster":              {"elsewhere", v1alpha1.StageDrain, true},
		"M90: was completed, and served one of another management cluster": {"elsewhere", v1alpha1.StageComplete, false},
		"M18: its Machine was deleted here":                                {"here", v1alpha1.StageDrain, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := machinedrain.Maintenance(machinedrain.Request{ManagementCluster: tc.managementCluster, Machine: machine(), Node: &corev1.Node{}, Stage: tc.stage})
			if got := machinedrain.IsSuspended(m, nil, nil, "here"); got != tc.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

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

func TestEndsWithNode(t *testing.T) {
	ofShutdown := func(uid string) map[string]string {
		return map[string]string{v1alpha1.ShutdownBootAnnotation: "boot", v1alpha1.NodeUIDAnnotation: uid}
	}
	serving := func(cluster string) map[string]string {
		return map[string]string{v1alpha1.OwnerClusterAnnotation: cluster, v1alpha1.OwnerMachineAnnotation: "ns/m", v1alpha1.NodeUIDAnnotation: "uid"}
	}
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        bool
	}{
		"M88: serves a Machine of the Cluster":                        {serving("ns/c"), true},
		"M90: serves a Machine of another Cluster":                    {serving("ns/other"), false},
		"S70: serves the shutdown of the Node that it names":          {ofShutdown("uid"), true},
		"S70: it is not known which Node it serves":                   {ofShutdown(""), false},
		"R12: a user has created it, and names the Node with its UID": {map[string]string{v1alpha1.NodeUIDAnnotation: "uid"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations}}
			if got := machinedrain.EndsWithNode(m, types.NamespacedName{Namespace: "ns", Name: "c"}); got != tc.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestIsOrphaned(t *testing.T) {
	t.Run("M16, M136: reverts the drain of a deletion that clusterctl move or a restored snapshot does not preserve, and no other drain", func(t *testing.T) {
		cases := map[string]struct {
			change   func(*v1alpha1.NodeMaintenance, *clusterv1.Machine)
			stage    v1alpha1.NodeMaintenanceStage
			orphaned bool
		}{
			"started in another management cluster": {orphaned: true},
			"started here, for a deletion that a snapshot does not have, but the Machine requires a drain in place": {
				stage: v1alpha1.StageDrain, change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) {
					m.Annotations[v1alpha1.OwnerManagementClusterAnnotation], m.Annotations[v1alpha1.RequestedForAnnotation] = "here", v1alpha1.RequestedForDeletion
				},
			},
			"started here, for a deletion that a snapshot does not have, during an update in place that was allowed": {
				change: func(m *v1alpha1.NodeMaintenance, machine *clusterv1.Machine) {
					m.Annotations[v1alpha1.OwnerManagementClusterAnnotation], m.Annotations[v1alpha1.RequestedForAnnotation] = "here", v1alpha1.RequestedForDeletion
					machine.UID, machine.Annotations = "u", map[string]string{
						clusterv1.UpdateInProgressAnnotation: "", v1alpha1.UpdateAllowedAnnotation: v1alpha1.ReasonMachineDrained + "/u",
					}
				},
			},
			"started here": {change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) {
				m.Annotations[v1alpha1.OwnerManagementClusterAnnotation] = "here"
			}},
			"started here, for a deletion that a snapshot does not have": {orphaned: true, change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) {
				m.Annotations[v1alpha1.OwnerManagementClusterAnnotation], m.Annotations[v1alpha1.RequestedForAnnotation] = "here", v1alpha1.RequestedForDeletion
			}},
			"announces a rollout here": {change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) {
				m.Annotations[v1alpha1.OwnerManagementClusterAnnotation], m.Annotations[v1alpha1.RequestedForAnnotation] = "here", v1alpha1.RequestedForRollout
			}},
			"the Machine is being deleted here as well": {change: func(_ *v1alpha1.NodeMaintenance, machine *clusterv1.Machine) {
				machine.DeletionTimestamp = ptr.To(metav1.NewTime(time.Unix(0, 0)))
			}},
			"of another Machine": {change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) {
				m.Annotations[v1alpha1.OwnerMachineAnnotation] = "ns/other"
			}},
			"of another Cluster": {change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) {
				m.Annotations[v1alpha1.OwnerClusterAnnotation] = "other/c"
			}},
			"waits because of maxParallelDrains": {orphaned: true, change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) {
				m.Spec.Stage = v1alpha1.StageCordon
			}},
			"announces a rollout, and is recreated if still needed": {orphaned: true, change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) {
				m.Spec.Stage, m.Annotations[v1alpha1.RequestedForAnnotation] = v1alpha1.StageIdle, v1alpha1.RequestedForRollout
			}},
			"requested by the stage annotation, which moves with the Machine": {change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) {
				m.Annotations[v1alpha1.RequestedForAnnotation] = v1alpha1.RequestedForStage
			}},
			"completed": {change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) { machinedrain.Complete(m, "elsewhere") }},
		}
		for name, c := range cases {
			g := NewWithT(t)
			machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"}, Spec: clusterv1.MachineSpec{ClusterName: "c"}}
			m := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
			m.Annotations = map[string]string{
				v1alpha1.OwnerManagementClusterAnnotation: "elsewhere", v1alpha1.OwnerClusterAnnotation: "ns/c", v1alpha1.OwnerMachineAnnotation: "ns/m",
			}
			if c.change != nil {
				c.change(m, machine)
			}
			g.Expect(machinedrain.IsOrphaned(m, machine, c.stage, "here")).To(Equal(c.orphaned), name)
		}
	})
}

func TestIsRecreated(t *testing.T) {
	running := func(*clusterv1.Machine) {}
	deleted := func(m *clusterv1.Machine) { m.DeletionTimestamp = ptr.To(metav1.Now()) }
	for _, tc := range []struct {
		name    string
		machine func(*clusterv1.Machine) // nil: the Machine does not exist
		stage   v1alpha1.NodeMaintenanceStage
		wanted  v1alpha1.NodeMaintenanceStage
		want    bool
	}{
		{"R58: not without its Machine", nil, v1alpha1.StageDrain, v1alpha1.StageDrain, false},
		{"R58: while the Machine is being deleted", deleted, v1alpha1.StageDrain, v1alpha1.StageDrain, true},
		{"R58: while the Machine is being deleted, also in stage Complete", deleted, v1alpha1.StageComplete, v1alpha1.StageDrain, true},
		{"R58: if a NodeMaintenance is wanted for the Machine", running, v1alpha1.StageDrain, v1alpha1.StageCordon, true},
		{"R58: not in stage Complete", running, v1alpha1.StageComplete, v1alpha1.StageDrain, false},
		{"R58: not if none is wanted for the Machine", running, v1alpha1.StageDrain, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			id := anIdentity()
			machine := id.Machine.DeepCopy()
			if tc.machine == nil {
				machine = nil
			} else {
				tc.machine(machine)
			}
			m := maintenanceOf(id, func(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = tc.stage })
			if got := machinedrain.IsRecreated(m, machine, tc.wanted); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

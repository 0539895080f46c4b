package orphan_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/orphan"
)

const foreign = v1alpha1.InstigatorFinalizerPrefix + "example.com"

func node() *corev1.Node {
	ours := func(conditionType corev1.NodeConditionType) corev1.NodeCondition {
		return corev1.NodeCondition{Type: conditionType, Status: corev1.ConditionTrue, Reason: v1alpha1.ReasonNodeMaintenance}
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "uid", Annotations: map[string]string{v1alpha1.NodeOriginAnnotation: cordon.Schedulable}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			ours(v1alpha1.NodeMaintenanceInProgress), ours(v1alpha1.NodeDrained), ours(v1alpha1.NodeMaintenancePlanned),
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
		}},
	}
}

func maintenance(stage v1alpha1.NodeMaintenanceStage, node string) v1alpha1.NodeMaintenance {
	return v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: stage, NodeSelector: v1alpha1.SelectNodes(node)},
	}
}

func evacuations() []v1alpha1.Evacuation {
	asked := func(name string, finalizers ...string) v1alpha1.Evacuation {
		return v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: finalizers}}
	}
	return []v1alpha1.Evacuation{
		asked("ours", v1alpha1.NodeMaintenanceInstigatorFinalizer), asked("shared", foreign, v1alpha1.NodeMaintenanceInstigatorFinalizer), asked("theirs", foreign),
	}
}

func deletedMachine(annotation string) *clusterv1.Machine {
	return &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
		Name: "m", DeletionTimestamp: new(metav1.Now()), Annotations: map[string]string{annotation: ""},
	}}
}

func runningMachine(annotation string) *clusterv1.Machine {
	return &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: map[string]string{annotation: ""}}}
}

func TestExcludedFromLoadBalancers(t *testing.T) {
	g := NewWithT(t)
	excluded := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "one", Labels: map[string]string{corev1.LabelNodeExcludeBalancers: ""},
		Annotations: map[string]string{v1alpha1.ExcludedFromLoadBalancersAnnotation: "true"},
	}}
	g.Expect(orphan.Find(orphan.Observation{Name: "one", Node: excluded}).Record).To(BeTrue(), "R49: an exclusion without a cordon is left behind as well")
	excluded.Annotations = nil
	g.Expect(orphan.Find(orphan.Observation{Name: "one", Node: excluded}).Empty()).To(BeTrue(), "R49: a label without our record belongs to another actor")
}

func TestMachineOf(t *testing.T) {
	const id = "cloud://1"
	machine := func(name, node, providerID string, deleted, hook bool) clusterv1.Machine {
		m := clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Name: name}}
		m.Status.NodeRef.Name, m.Spec.ProviderID = node, providerID
		if deleted {
			m.DeletionTimestamp = new(metav1.Now())
		}
		if hook {
			m.Annotations = map[string]string{v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner}
		}
		return m
	}
	named, unnamed := machine("named", "one", "", false, true), machine("unnamed", "", id, true, true)
	unknown := machine("unknown", "", "", true, true) // only its infrastructure machine may have the provider ID
	for name, tc := range map[string]struct {
		providerID string // of the Node
		machines   []clusterv1.Machine
		want       string
	}{
		"R64: the Machine of a Node is the one whose nodeRef names the Node":             {id, []clusterv1.Machine{named, unnamed}, "named"},
		"R64: also if another Machine has the provider ID of the Node":                   {id, []clusterv1.Machine{unnamed, named}, "named"},
		"M128: or else a Machine without a nodeRef that has the provider ID of the Node": {id, []clusterv1.Machine{unnamed, unknown}, "unnamed"},
		"R64: a Machine with another Node is not":                                        {id, []clusterv1.Machine{machine("another", "two", id, true, true)}, ""},
		"M55, M128: a deleted Machine whose Node is not known may be":                    {id, []clusterv1.Machine{unknown}, "unknown"},
		"R64: not that of a Node without a provider ID":                                  {"", []clusterv1.Machine{unknown}, ""},
		"R64: nor a running Machine":                                                     {id, []clusterv1.Machine{machine("runs", "", "", false, true)}, ""},
		"R64: nor one whose hook was removed":                                            {id, []clusterv1.Machine{machine("released", "", "", true, false)}, ""},
		"R64: nor one with another provider ID":                                          {id, []clusterv1.Machine{machine("m", "", "cloud://2", true, true)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g, found := NewWithT(t), ""
			if m := orphan.MachineOf(tc.machines, "one", &corev1.Node{Spec: corev1.NodeSpec{ProviderID: tc.providerID}}); m != nil {
				found = m.Name
			}
			g.Expect(found).To(Equal(tc.want))
			if tc.want != "named" {
				g.Expect(orphan.MachineOf(tc.machines, "one", nil)).To(BeNil(), "without a Node")
			}
		})
	}
}

func TestAppeared(t *testing.T) {
	recorded, conditions := node(), node()
	recorded.Status.Conditions, conditions.Annotations = nil, nil
	for _, tc := range []struct {
		name          string
		before, after *corev1.Node
		appeared      bool
	}{
		{name: "R64: a record", before: &corev1.Node{}, after: recorded, appeared: true},
		{name: "R64: conditions", before: &corev1.Node{}, after: conditions, appeared: true},
		{name: "R64: a record after conditions", before: conditions, after: node(), appeared: true},
		{name: "R64: nothing new", before: node(), after: node()},
		{name: "R64: the end of a maintenance", before: node(), after: &corev1.Node{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			NewWithT(t).Expect(orphan.Appeared(tc.before, tc.after)).To(Equal(tc.appeared))
		})
	}
}

func TestLeftBehind(t *testing.T) {
	mentions := maintenance(v1alpha1.StageCordon, "two")
	mentions.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "one"}}}
	another := maintenance(v1alpha1.StageDrain, "one")
	another.Annotations = map[string]string{v1alpha1.NodeUIDAnnotation: "another"}
	withdrawing := maintenance(v1alpha1.StageCordon, "one")
	withdrawing.DeletionTimestamp, withdrawing.Finalizers = new(metav1.Now()), []string{v1alpha1.MaintenanceCompletionFinalizer}
	everything := []string{"record", "MaintenancePlanned", "MaintenanceInProgress", "Drained", "ours", "shared"}

	for _, tc := range []struct {
		name         string
		maintenances []v1alpha1.NodeMaintenance
		gone         bool // the Node
		machine      *clusterv1.Machine
		wanted       v1alpha1.NodeMaintenanceStage
		left         []string
	}{
		{name: "R43: everything is orphaned without a maintenance", left: everything},
		{
			name: "R43: a maintenance of another Node is not responsible", maintenances: []v1alpha1.NodeMaintenance{maintenance(v1alpha1.StageDrain, "two")},
			left: everything,
		},
		{name: "R43: a maintenance of an earlier Node of that name is not responsible", maintenances: []v1alpha1.NodeMaintenance{another}, left: everything},
		{
			name:         "E57: a maintenance in stage Cordon is not responsible for Evacuations",
			maintenances: []v1alpha1.NodeMaintenance{maintenance(v1alpha1.StageCordon, "one")},
			left:         []string{"ours", "shared"},
		},
		{name: "E57: a maintenance that is being deleted withdraws from Evacuations", maintenances: []v1alpha1.NodeMaintenance{withdrawing}},
		{name: "R43: a maintenance in stage Drain is responsible", maintenances: []v1alpha1.NodeMaintenance{maintenance(v1alpha1.StageDrain, "one")}},
		{name: "R43: a maintenance in stage Complete is responsible", maintenances: []v1alpha1.NodeMaintenance{maintenance(v1alpha1.StageComplete, "one")}},
		{
			name: "R43: a maintenance is responsible for a Node that has left its selection", maintenances: []v1alpha1.NodeMaintenance{mentions},
			left: []string{"ours", "shared"},
		},
		{
			name:         "R43: a maintenance in stage Idle is responsible for the condition MaintenancePlanned only",
			maintenances: []v1alpha1.NodeMaintenance{maintenance(v1alpha1.StageIdle, "one")},
			left:         []string{"record", "MaintenanceInProgress", "Drained", "ours", "shared"},
		},
		{name: "R43: Evacuations of a deleted Node are orphaned without a maintenance", gone: true, left: []string{"ours", "shared"}},
		{
			name: "M55: nothing is orphaned while the Machine of the Node drains", machine: deletedMachine(v1alpha1.PreDrainHookAnnotation), wanted: v1alpha1.StageDrain,
		},
		{
			name: "R64: only Evacuations are orphaned while a cordon of the Node is wanted", machine: runningMachine(""), wanted: v1alpha1.StageCordon,
			left: []string{"ours", "shared"},
		},
		{
			name: "E57: Evacuations are orphaned while the Node is cordoned for its Machine", machine: runningMachine(""), wanted: v1alpha1.StageCordon,
			maintenances: []v1alpha1.NodeMaintenance{maintenance(v1alpha1.StageCordon, "one")}, left: []string{"ours", "shared"},
		},
		{
			name: "M16: nothing is orphaned while the Machine is paused and a cordon is wanted", machine: runningMachine(clusterv1.PausedAnnotation),
			wanted: v1alpha1.StageCordon,
		},
		{name: "R64: everything is orphaned if no maintenance is wanted", machine: runningMachine(""), left: everything},
		{name: "R64: everything is orphaned if only an announcement is wanted", machine: runningMachine(""), wanted: v1alpha1.StageIdle, left: everything},
		{name: "M16: nothing is orphaned while the Machine of the Node is paused", machine: runningMachine(clusterv1.PausedAnnotation)},
		{
			name: "M55: the Node of a deleted Machine without the hook stays cordoned", machine: deletedMachine("another"),
			left: []string{"MaintenancePlanned", "MaintenanceInProgress", "Drained", "ours", "shared"},
		},
		{
			name: "R43: the maintenance of a deleted Node is responsible for its Evacuations", gone: true,
			maintenances: []v1alpha1.NodeMaintenance{maintenance(v1alpha1.StageDrain, "one")},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			observed := orphan.Observation{Name: "one", Node: node(), Evacuations: evacuations(), Maintenances: tc.maintenances, Machine: tc.machine, Wanted: tc.wanted}
			if tc.gone {
				observed.Node = nil
			}
			found := orphan.Find(observed)
			left := []string{}
			if found.Record {
				left = append(left, "record")
			}
			for _, conditionType := range found.Conditions {
				left = append(left, string(conditionType))
			}
			for _, e := range found.Evacuations {
				left = append(left, e.Name)
			}
			g.Expect(left).To(ConsistOf(tc.left))
			g.Expect(found.Empty()).To(Equal(len(tc.left) == 0))
		})
	}
}

package machinedrain_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

func machine(changes ...func(*clusterv1.Machine)) *clusterv1.Machine {
	m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m", Labels: map[string]string{"pool": "a"}}}
	m.Status.NodeRef.Name = "node"
	for _, change := range changes {
		change(m)
	}
	return m
}

func policy(name string, changes ...func(*v1alpha1.MachineDrainPolicy)) v1alpha1.MachineDrainPolicy {
	p := v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	for _, change := range changes {
		change(&p)
	}
	return p
}

func TestSkip(t *testing.T) {
	facts := func(changes ...func(*machinedrain.Facts)) machinedrain.Facts {
		f := machinedrain.Facts{Machine: machine(), ControlPlaneMachines: 1}
		for _, change := range changes {
			change(&f)
		}
		return f
	}
	annotated := func(f *machinedrain.Facts) {
		f.Machine.Annotations = map[string]string{clusterv1.ExcludeNodeDrainingAnnotation: ""}
	}
	copied := func(f *machinedrain.Facts) {
		machinedrain.SetHook(f.Machine)
		f.Machine.Annotations[clusterv1.ExcludeNodeDrainingAnnotation] = v1alpha1.HookOwner
	}
	for _, tc := range []struct {
		name  string
		facts machinedrain.Facts
		want  machinedrain.SkipReason
	}{
		{"M10: drains an ordinary Machine", facts(), machinedrain.NotSkipped},
		{"M10: skips if the Cluster is being deleted", facts(func(f *machinedrain.Facts) { f.ClusterDeleting = true }), machinedrain.SkipClusterDeleting},
		{"M10: skips without a nodeRef", facts(func(f *machinedrain.Facts) { f.Machine.Status.NodeRef.Name = "" }), machinedrain.SkipNoNode},
		{
			"M87: waits for the lookup of the Node without a nodeRef",
			facts(func(f *machinedrain.Facts) { f.Machine.Status.NodeRef.Name = ""; f.NodeUnknown = true }), machinedrain.NotSkipped,
		},
		{
			"M87: does not wait for the lookup of a Node that is not drained",
			facts(func(f *machinedrain.Facts) { f.Machine.Status.NodeRef.Name = ""; f.NodeUnknown = true }, annotated), machinedrain.SkipExcluded,
		},
		{
			"M10: skips if the control plane object is being deleted",
			facts(func(f *machinedrain.Facts) { f.ControlPlaneDeleting = true }), machinedrain.SkipControlPlaneDeleting,
		},
		{
			"M10: skips if all control plane Machines are being deleted",
			facts(func(f *machinedrain.Facts) { f.ControlPlaneMachines = 0 }), machinedrain.SkipNoControlPlane,
		},
		{
			"M10: drains if the control plane is external and has no Machines",
			facts(func(f *machinedrain.Facts) { f.ControlPlaneMachines = 0; f.ControlPlaneExternal = true }), machinedrain.NotSkipped,
		},
		{"M10: skips a Machine with the exclude annotation", facts(annotated), machinedrain.SkipExcluded},
		{"M107: drains a Machine with the hook to which the exclude annotation of a release was copied", facts(copied), machinedrain.NotSkipped},
		{"M10: skips if the Machine already waits for pre-terminate hooks", facts(func(f *machinedrain.Facts) {
			f.Machine.Status.Deletion = &clusterv1.MachineDeletionStatus{WaitForPreTerminateHookStartTime: metav1.Now()}
		}), machinedrain.SkipPreTerminateStarted},
		{
			"M10: skips if the infrastructure machine does not exist",
			facts(func(f *machinedrain.Facts) { f.InfraMachineDeleted = true }), machinedrain.SkipInfraMachineDeleted,
		},
		{
			"M10: names the deletion of the Cluster first", facts(func(f *machinedrain.Facts) { f.ClusterDeleting = true }, annotated), machinedrain.SkipClusterDeleting,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := machinedrain.Skip(tc.facts); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestSkipNode(t *testing.T) {
	node := func(ready corev1.ConditionStatus, taints ...string) *corev1.Node {
		n := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
		for _, key := range taints {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute})
		}
		return n
	}
	for name, test := range map[string]struct {
		node *corev1.Node
		want machinedrain.SkipReason
	}{
		"M81: drains a Node":                                      {node(corev1.ConditionTrue), machinedrain.NotSkipped},
		"M81: drains an unreachable Node":                         {node(corev1.ConditionUnknown, corev1.TaintNodeUnreachable), machinedrain.NotSkipped},
		"M81: drains a Node with the taint whose kubelet answers": {node(corev1.ConditionTrue, corev1.TaintNodeOutOfService), machinedrain.NotSkipped},
		"M81: does not drain an unreachable Node with the taint": {
			node(corev1.ConditionUnknown, corev1.TaintNodeUnreachable, corev1.TaintNodeOutOfService), machinedrain.SkipOutOfService,
		},
		"M12: does not drain a Node that does not exist": {nil, machinedrain.SkipNodeGone},
	} {
		t.Run(name, func(t *testing.T) {
			if got := machinedrain.SkipNode(test.node); got != test.want {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestProviderIDOf(t *testing.T) {
	t.Run("M128: reads the provider ID of an infrastructure machine as its contract names it", func(t *testing.T) {
		of := func(spec map[string]any) string {
			return machinedrain.ProviderIDOf(&unstructured.Unstructured{Object: map[string]any{"spec": spec}})
		}
		if set, unset := of(map[string]any{"providerID": "cloud://m"}), of(nil); set != "cloud://m" || unset != "" {
			t.Errorf("got %q and %q", set, unset)
		}
	})
}

func TestNodeNameOf(t *testing.T) {
	node := func(name, providerID string) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: providerID}}
	}
	for name, tc := range map[string]struct {
		nodes []corev1.Node
		want  string
	}{
		"M10: finds the Node by providerID":             {[]corev1.Node{node("a", "x"), node("b", "y")}, "b"},
		"M10: finds no Node":                            {[]corev1.Node{node("a", "x"), node("b", "")}, ""},
		"M10: finds no Node if two have the providerID": {[]corev1.Node{node("a", "y"), node("b", "y")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := machinedrain.NodeNameOf("y", tc.nodes); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestMaintenanceName(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodeName := rapid.StringMatching(`[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?`).Draw(t, "node")
		key := types.NamespacedName{Namespace: "ns", Name: "m"}
		name := machinedrain.MaintenanceName(key, nodeName, "uid-1")
		if name != machinedrain.MaintenanceName(key, nodeName, "uid-1") {
			t.Fatal("the name differs for the same input")
		}
		if name == machinedrain.MaintenanceName(key, nodeName, "uid-2") {
			t.Fatal("a later Node with the same name has the same NodeMaintenance")
		}
		if !strings.Contains(nodeName, "..") && !strings.Contains(nodeName, ".-") && !strings.Contains(nodeName, "-.") {
			if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 {
				t.Fatalf("%s: %v", name, errs)
			}
		}
	})
}

func TestMaintenance(t *testing.T) {
	request := machinedrain.Request{
		ManagementCluster: "mgmt", Cluster: types.NamespacedName{Namespace: "ns", Name: "c"}, Machine: machine(),
		Node:   &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "uid"}},
		Policy: ptr.To(policy("p", func(p *v1alpha1.MachineDrainPolicy) { p.Spec.Surge = v1alpha1.SurgeAlways })),
		Rules:  []v1alpha1.DrainRule{{Name: "r", Behavior: v1alpha1.DrainBehaviorSkip}},
	}
	made := machinedrain.Maintenance(request)
	if made.Spec.Stage != v1alpha1.StageDrain || made.Spec.Evacuation.Surge != v1alpha1.SurgeAlways || made.Annotations[v1alpha1.NodeUIDAnnotation] != "uid" {
		t.Errorf("unexpected %+v", made)
	}
	t.Run("M7: updates a running drain only if a rule is edited", func(t *testing.T) {
		present := made.DeepCopy()
		if machinedrain.Update(present, machinedrain.Maintenance(request)) {
			t.Error("updated without a change")
		}
		request.Rules[0].Behavior = v1alpha1.DrainBehaviorWaitCompleted
		if !machinedrain.Update(present, machinedrain.Maintenance(request)) || present.Spec.DrainRules[0].Behavior != v1alpha1.DrainBehaviorWaitCompleted {
			t.Error("not updated after the edit")
		}
	})
	t.Run("M124: has the evictionWebhooks of the policy, also after an edit", func(t *testing.T) {
		present := made.DeepCopy()
		request.Policy.Spec.EvictionWebhooks = []string{"moves.example.com"}
		if !machinedrain.Update(present, machinedrain.Maintenance(request)) || len(present.Spec.Evacuation.EvictionWebhooks) != 1 {
			t.Error("not updated after the edit")
		}
		if machinedrain.Update(present, machinedrain.Maintenance(request)) {
			t.Error("updated without a change")
		}
	})
	for name, test := range map[string]struct {
		plan     []v1alpha1.DrainPlanEntry
		defaults v1alpha1.DrainPlanDefaults
		want     string
	}{
		"M35: has one step for each Pod type if the policy has no drainPlan": {
			want: "None Default:2147483647 DaemonSet:2147483647 Static:2147483647",
		},
		"M35: completes a drainPlan with the tiers": {
			plan: []v1alpha1.DrainPlanEntry{{PodType: "Default", PodPriority: 5}},
			want: "PriorityTiers Default:5",
		},
		"M35: completes a drainPlan with one step for each Pod type if the policy says None": {
			plan: []v1alpha1.DrainPlanEntry{{PodType: "Default", PodPriority: 5}}, defaults: v1alpha1.DrainPlanDefaultsNone,
			want: "None Default:5",
		},
		"M35: has the tiers if the policy has no drainPlan and says PriorityTiers": {
			defaults: v1alpha1.DrainPlanDefaultsPriorityTiers,
			want: "PriorityTiers Default:1000000000 Default:2000000000 Default:2000001000 Default:2147483647 DaemonSet:1000000000 DaemonSet:2000000000 " +
				"DaemonSet:2000001000 DaemonSet:2147483647 Static:1000000000 Static:2000000000 Static:2000001000 Static:2147483647",
		},
	} {
		t.Run(name, func(t *testing.T) {
			request := request
			request.Policy = ptr.To(policy("p", func(p *v1alpha1.MachineDrainPolicy) {
				p.Spec.DrainPlan, p.Spec.DrainPlanDefaults = test.plan, test.defaults
			}))
			spec := machinedrain.Maintenance(request).Spec
			got := string(spec.DrainPlanDefaults)
			for _, entry := range spec.DrainPlan {
				got += fmt.Sprintf(" %s:%d", entry.PodType, entry.PodPriority)
			}
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
	t.Run("M35: has one step for each Pod type without a policy", func(t *testing.T) {
		request := request
		request.Policy = nil
		if spec := machinedrain.Maintenance(request).Spec; spec.DrainPlanDefaults != v1alpha1.DrainPlanDefaultsNone || len(spec.DrainPlan) != 3 {
			t.Errorf("unexpected %v", spec.DrainPlan)
		}
	})
	t.Run("E28: evicts the Pods of StatefulSets in any order by default, as Cluster API does", func(t *testing.T) {
		for _, policy := range []*v1alpha1.MachineDrainPolicy{nil, request.Policy} {
			request := request
			request.Policy = policy
			if got := machinedrain.Maintenance(request).Spec.Evacuation.StatefulSetPods; got != v1alpha1.StatefulSetPodsUnordered {
				t.Errorf("got %s", got)
			}
		}
	})
	t.Run("R5: does not set an earlier stage", func(t *testing.T) {
		present := made.DeepCopy()
		present.Spec.Stage = v1alpha1.StageComplete
		machinedrain.Update(present, made)
		if present.Spec.Stage != v1alpha1.StageComplete {
			t.Error("the stage changed")
		}
	})
}

func drainMessage(m *v1alpha1.NodeMaintenance) string {
	_, message := machinedrain.DrainProgress(m, nil)
	return message
}

func TestDrainMessage(t *testing.T) {
	m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "nm"}}
	m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))}}
	m.Status.Summary = v1alpha1.NodeMaintenanceSummary{Nodes: 1, PodsPending: 3, PodsEvacuating: 5, PodsSkipped: 1}
	node := v1alpha1.NodeMaintenanceNodeStatus{}
	for i := range 5 {
		node.Blocked = append(node.Blocked, v1alpha1.BlockedPod{Pod: fmt.Sprintf("default/web-%d", i), Why: "no disruptions allowed"})
	}
	m.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{node}
	want := `Drain not completed yet (started at 2026-01-01T00:00:00Z) (NodeMaintenance nm): 5 Pods evacuating, 3 pending, 1 skipped
* Pods default/web-0, default/web-1, default/web-2 and 2 more: no disruptions allowed`
	t.Run("M27: names the start of the drain, the blocked Pods and the reason", func(t *testing.T) {
		if got := drainMessage(m); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	})
	t.Run("M27: names at most five reasons", func(t *testing.T) {
		for reasons, want := range map[int]string{6: "and 1 more reason", 9: "and 4 more reasons"} {
			m.Status.NodeStatuses[0].Blocked = nil
			for i := range reasons {
				m.Status.NodeStatuses[0].Blocked = append(m.Status.NodeStatuses[0].Blocked, v1alpha1.BlockedPod{Pod: "p", Why: fmt.Sprint(i)})
			}
			got := drainMessage(m)
			if strings.Count(got, "\n") != 6 || !strings.HasSuffix(got, want) {
				t.Errorf("got:\n%s", got)
			}
		}
	})
}

func TestIsDrained(t *testing.T) {
	drained := func(stage v1alpha1.NodeMaintenanceStage, status metav1.ConditionStatus, observed int64) *v1alpha1.NodeMaintenance {
		m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: stage}}
		m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceDrained, Status: status, ObservedGeneration: observed}}
		return m
	}
	for name, tc := range map[string]struct {
		m    *v1alpha1.NodeMaintenance
		want bool
	}{
		"R35: is drained if True in stage Drain":       {drained(v1alpha1.StageDrain, metav1.ConditionTrue, 2), true},
		"R35: is not drained if False in stage Drain":  {drained(v1alpha1.StageDrain, metav1.ConditionFalse, 2), false},
		"M7: is not drained if True for earlier rules": {drained(v1alpha1.StageDrain, metav1.ConditionTrue, 1), false},
		"R35: is not drained if True in another stage": {drained(v1alpha1.StageComplete, metav1.ConditionTrue, 2), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.m.IsDrained(); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

func TestTallyOf(t *testing.T) {
	inCluster := func(name string, changes ...func(*clusterv1.Machine)) clusterv1.Machine {
		m := machine(changes...)
		m.Spec.ClusterName = name
		return *m
	}
	held := func(m *clusterv1.Machine) {
		m.Annotations = map[string]string{v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner}
	}
	deleted := func(m *clusterv1.Machine) { m.DeletionTimestamp = ptr.To(metav1.Now()) }
	all := []clusterv1.Machine{
		inCluster("one", held), inCluster("one", held, deleted), inCluster("two", held), inCluster("two", deleted), inCluster("gone", held, deleted),
	}
	clusters := map[string]map[string]string{"one": nil, "two": nil}
	policies := []v1alpha1.MachineDrainPolicy{policy("a"), policy("b")}
	if got, want := machinedrain.TallyOf(&policies[0], policies, all, clusters),
		(machinedrain.Tally{Clusters: 2, Machines: 4, Draining: []*clusterv1.Machine{&all[1]}}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := machinedrain.TallyOf(&policies[1], policies, all, clusters); !reflect.DeepEqual(got, machinedrain.Tally{}) {
		t.Errorf("the second policy has %+v", got)
	}
}

func TestUnanswered(t *testing.T) {
	for name, tc := range map[string]struct {
		request machinedrain.Unanswered
		failed  bool
	}{
		"M57: names a request that takes too long while the health probes succeed": {machinedrain.Unanswered{Began: after(10), ProbeAnswered: after(15)}, true},
		"M57: also if none succeeds during the next attempt": {
			machinedrain.Unanswered{Began: after(10), ProbeAnswered: after(9), FailedBefore: true}, true,
		},
		"M57: also if one has succeeded since the condition names a lost connection": {
			machinedrain.Unanswered{Began: after(10), ProbeAnswered: after(9), Reported: after(5)}, true,
		},
		"M15: waits for the connection if none has since then": {
			machinedrain.Unanswered{Began: after(10), ProbeAnswered: after(4), Reported: after(5)}, false,
		},
		"M15: waits for the connection if the last health probe was before": {machinedrain.Unanswered{Began: after(10), ProbeAnswered: after(9)}, false},
		"M15: waits for the connection if a health probe has failed": {
			machinedrain.Unanswered{Began: after(10), ProbeAnswered: after(15), FailedBefore: true, ProbesFail: true}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.request.HasFailed(); got != tc.failed {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestInvalidRuleMessage(t *testing.T) {
	for rule, want := range map[string]string{
		rules.MachineDrainRulePrefix + "web": "Waiting for invalid MachineDrainRule ns/web to be fixed: why",
		rules.RuleTooLarge:                   "Waiting for the MachineDrainRules of namespace ns to be reduced: why",
	} {
		t.Run("M27: says which MachineDrainRules to fix: "+rule, func(t *testing.T) {
			if got := machinedrain.InvalidRuleMessage("ns", rules.Problem{Rule: rule, Message: "why"}); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestDrainProgress(t *testing.T) {
	m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	cordonFailed := m.DeepCopy()
	cordonFailed.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.NodeMaintenanceCordoned, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonCordonFailed, Message: "Node n cannot be cordoned: frozen",
	}}
	for _, tc := range []struct {
		name            string
		maintenance     *v1alpha1.NodeMaintenance
		failure         error
		reason, message string
	}{
		{name: "a drain without failures", maintenance: m, reason: v1alpha1.ReasonMachineDraining, message: drainMessage(m)},
		{
			name: "M39: names a Node that cannot be cordoned", maintenance: cordonFailed, reason: v1alpha1.ReasonCordonFailed,
			message: drainMessage(m) + "\n* Node n cannot be cordoned: frozen",
		},
		{
			name: "M39: names a NodeMaintenance that cannot be reconciled", maintenance: m, failure: errors.New("no answer"), reason: v1alpha1.ReasonReconcileFailed,
			message: drainMessage(m) + "\n* NodeMaintenance m cannot be reconciled: no answer. The request is retried; see the log of the manager",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if reason, message := machinedrain.DrainProgress(tc.maintenance, tc.failure); reason != tc.reason || message != tc.message {
				t.Errorf("got %s %q, want %s %q", reason, message, tc.reason, tc.message)
			}
		})
	}
}

func TestOverrules(t *testing.T) {
	t.Run("M54, M81: Cluster API must not drain the Node when the Cluster is being deleted or the Node is out of service", func(t *testing.T) {
		for reason, want := range map[machinedrain.SkipReason][2]bool{
			machinedrain.SkipClusterDeleting: {true, true},
			machinedrain.SkipOutOfService:    {true, false},
			machinedrain.SkipNodeGone:        {false, false},
			machinedrain.SkipExcluded:        {false, false},
		} {
			if drain, volumes := reason.Overrules(); [2]bool{drain, volumes} != want {
				t.Errorf("got %v, %v for %s, want %v", drain, volumes, reason, want)
			}
		}
	})
}

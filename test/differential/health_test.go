package differential

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	lua "github.com/yuin/gopher-lua"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
)

// state is a state of an object that GitOps tools apply, and the health that they must show.
type state struct {
	name   string
	object client.Object
	health status.Status
}

// TestHealth computes the health of our kinds as Flux does, with kstatus, and as Argo CD does, with the health check in the guide.
func TestHealth(t *testing.T) {
	t.Run("M111: of each state of a MachineDrainPolicy", func(t *testing.T) {
		unobserved := defaults(t, "config/crd/bases/maintenance.cluster.x-k8s.io_machinedrainpolicies.yaml")
		check(t, "MachineDrainPolicy", unobserved, []state{
			{"no manager has observed it", policyWith(func(p *v1alpha1.MachineDrainPolicy) { p.Status = v1alpha1.MachineDrainPolicyStatus{} }), status.InProgressStatus},
			{"the manager has not observed the last change", policyWith(func(p *v1alpha1.MachineDrainPolicy) { p.Generation++ }), status.InProgressStatus},
			{"valid", policyWith(func(*v1alpha1.MachineDrainPolicy) {}), status.CurrentStatus},
			{"machineSelector is invalid", policyWith(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.MachineSelector = invalid() }), status.FailedStatus},
			{"clusterSelector is invalid", policyWith(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.ClusterSelector = invalid() }), status.FailedStatus},
			{"a selector of the drain plan is invalid", policyWith(func(p *v1alpha1.MachineDrainPolicy) {
				p.Spec.DrainPlan = []v1alpha1.DrainPlanEntry{{PodSelector: invalid()}}
			}), status.FailedStatus},
			{"a MachinePool has no Machines", policyWith(func(*v1alpha1.MachineDrainPolicy) {}, "pool"), status.CurrentStatus},
			{"being deleted", policyWith(deleted[*v1alpha1.MachineDrainPolicy]), status.TerminatingStatus},
		})
	})
	t.Run("R67: of each state of a NodeMaintenance", func(t *testing.T) {
		unobserved := defaults(t, "config/workload/crd/maintenance.cluster.x-k8s.io_nodemaintenances.yaml")
		const idle, cordon, drain, complete = v1alpha1.StageIdle, v1alpha1.StageCordon, v1alpha1.StageDrain, v1alpha1.StageComplete
		const cordoned, cordonFailed, notCordoned = v1alpha1.ReasonCordoned, v1alpha1.ReasonCordonFailed, v1alpha1.ReasonNotCordoned
		const drained, notDraining, noNodes = v1alpha1.ReasonDrained, v1alpha1.ReasonNotDraining, v1alpha1.ReasonNoNodesSelected
		notObserved, stale, gone := maintenanceIn(idle, notCordoned, notDraining), maintenanceIn(drain, cordoned, drained), maintenanceIn(drain, cordoned, drained)
		notObserved.Status = v1alpha1.NodeMaintenanceStatus{}
		stale.Generation++
		deleted(gone)
		check(t, "NodeMaintenance", unobserved, []state{
			{"no manager has observed it", notObserved, status.InProgressStatus},
			{"the manager has not observed the last change, or completes it", stale, status.InProgressStatus},
			{"Idle", maintenanceIn(idle, notCordoned, notDraining), status.CurrentStatus},
			{"Cordon: cordoned", maintenanceIn(cordon, cordoned, notDraining), status.CurrentStatus},
			{"Cordon: a Node cannot be cordoned", maintenanceIn(cordon, cordonFailed, notDraining), status.InProgressStatus},
			{"Cordon: no Node", maintenanceIn(cordon, noNodes, notDraining), status.CurrentStatus},
			{"Drain: the Pods are not observed", maintenanceIn(drain, cordoned, v1alpha1.ReasonPodsNotObserved), status.InProgressStatus},
			{"Drain: draining", maintenanceIn(drain, cordoned, v1alpha1.ReasonDraining), status.InProgressStatus},
			{"Drain: Nodes wait and are schedulable", maintenanceIn(drain, notCordoned, v1alpha1.ReasonDraining), status.InProgressStatus},
			{"Drain: a Node cannot be cordoned", maintenanceIn(drain, cordonFailed, v1alpha1.ReasonDraining), status.InProgressStatus},
			{"Drain: drained, and a Node cannot be cordoned", maintenanceIn(drain, cordonFailed, drained), status.InProgressStatus},
			{"Drain: a drain rule is invalid", maintenanceIn(drain, cordoned, v1alpha1.ReasonInvalidDrainRule), status.FailedStatus},
			{"Drain: drained", maintenanceIn(drain, cordoned, drained), status.CurrentStatus},
			{"Drain: no Node", maintenanceIn(drain, noNodes, noNodes), status.CurrentStatus},
			{"Complete", maintenanceIn(complete, notCordoned, notDraining), status.CurrentStatus},
			{"being deleted", gone, status.TerminatingStatus},
		})
	})
}

// check computes the health of each state. unobserved is the status of an object that no manager has observed.
func check(t *testing.T, kind string, unobserved map[string]any, states []state) {
	t.Helper()
	script := healthCheck(t, kind)
	argo := map[status.Status]string{status.InProgressStatus: "Progressing", status.FailedStatus: "Degraded", status.CurrentStatus: "Healthy"}
	for _, each := range states {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(each.object)
		if err != nil {
			t.Fatal(err)
		}
		if content["status"] == nil {
			content["status"] = unobserved
		}
		object := &unstructured.Unstructured{Object: content}
		object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
		computed, err := status.Compute(object)
		if err != nil {
			t.Fatal(err)
		}
		if computed.Status != each.health {
			t.Errorf("%s: kstatus says %s, want %s", each.name, computed.Status, each.health)
		}
		if computed.Status != status.CurrentStatus && computed.Message == "" {
			t.Errorf("%s: kstatus gives no message", each.name)
		}
		if each.health == status.TerminatingStatus { // Argo CD does not ask the health check
			continue
		}
		if got := evaluate(t, script, content); got != argo[each.health] {
			t.Errorf("%s: Argo CD says %s, want %s", each.name, got, argo[each.health])
		}
	}
}

// policyWith returns a policy with the status that the manager writes. The change of its generation or deletion comes after that.
func policyWith(change func(*v1alpha1.MachineDrainPolicy), pools ...string) *v1alpha1.MachineDrainPolicy {
	p := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Name: "all", Namespace: "default", Generation: 1}}
	with := p.DeepCopy()
	change(with)
	p.Spec, p.Status.ObservedGeneration = with.Spec, p.Generation
	var unmanaged []clusterv1.MachinePool
	for _, name := range pools {
		pool := clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{Name: name}}
		pool.Spec.ClusterName, pool.Status.NodeRefs = "c1", []corev1.ObjectReference{{Name: "node"}}
		unmanaged = append(unmanaged, pool)
	}
	for _, condition := range []*metav1.Condition{
		machinedrain.PoolsCondition(p, unmanaged, nil, map[string]map[string]string{"c1": nil}), machinedrain.SelectorsCondition(p), machinedrain.StalledCondition(p),
	} {
		if condition != nil {
			meta.SetStatusCondition(&p.Status.Conditions, *condition)
		}
	}
	change(p)
	return p
}

func invalid() *v1alpha1.LabelSelector {
	return &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"a key": "b"}}
}

// maintenanceIn returns a NodeMaintenance whose conditions Cordoned and Drained have these reasons, with the conditions that the manager
// derives.
func maintenanceIn(stage v1alpha1.NodeMaintenanceStage, cordoned, drained string) *v1alpha1.NodeMaintenance {
	m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "kernel", Generation: 3}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: stage}}
	m.Status.ObservedGeneration = m.Generation
	set := func(conditionType, reason, isTrue string) {
		condition := metav1.Condition{Type: conditionType, Status: metav1.ConditionFalse, Reason: reason}
		if reason == isTrue {
			condition.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&m.Status.Conditions, condition)
	}
	set(v1alpha1.NodeMaintenanceCordoned, cordoned, v1alpha1.ReasonCordoned)
	set(v1alpha1.NodeMaintenanceDrained, drained, v1alpha1.ReasonDrained)
	progress.SetHealth(m, time.Now())
	return m
}

func deleted[T client.Object](object T) {
	now := metav1.Now()
	object.SetDeletionTimestamp(&now)
}

// defaults returns the status that the API server sets in new objects.
func defaults(t *testing.T, crd string) map[string]any {
	t.Helper()
	versions, _, _ := unstructured.NestedSlice(decode(t, read(t, crd)), "spec", "versions")
	if len(versions) != 1 {
		t.Fatalf("%s has %d versions", crd, len(versions))
	}
	value, found, err := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "status", "default")
	if err != nil || !found {
		t.Fatalf("%s has no default of status: %v", crd, err)
	}
	return value
}

// healthCheck returns the script for a kind from the ConfigMap in the guide.
func healthCheck(t *testing.T, kind string) string {
	t.Helper()
	for i, block := range strings.Split(read(t, "docs/guide/installation.md"), "```") {
		if i%2 == 0 || !strings.Contains(block, "name: argocd-cm") {
			continue
		}
		key := "resource.customizations.health." + v1alpha1.GroupVersion.Group + "_" + kind
		script, found, err := unstructured.NestedString(decode(t, strings.TrimPrefix(block, "yaml")), "data", key)
		if err != nil || !found {
			t.Fatalf("the ConfigMap in the guide has no %s: %v", key, err)
		}
		return script
	}
	t.Fatal("the guide has no health check for Argo CD")
	return ""
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func decode(t *testing.T, content string) map[string]any {
	t.Helper()
	object := map[string]any{}
	encoded, err := yaml.YAMLToJSON([]byte(content))
	if err == nil {
		err = json.Unmarshal(encoded, &object)
	}
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// evaluate runs a health check as Argo CD does, and returns the health.
func evaluate(t *testing.T, script string, object map[string]any) string {
	t.Helper()
	state := lua.NewState()
	defer state.Close()
	state.SetGlobal("obj", luaValue(state, object))
	if err := state.DoString(script); err != nil {
		t.Fatal(err)
	}
	result, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("the health check returns %s", state.Get(-1).Type())
	}
	return result.RawGetString("status").String()
}

func luaValue(state *lua.LState, value any) lua.LValue {
	switch value := value.(type) {
	case map[string]any:
		table := state.NewTable()
		for key, each := range value {
			table.RawSetString(key, luaValue(state, each))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, each := range value {
			table.Append(luaValue(state, each))
		}
		return table
	case string:
		return lua.LString(value)
	case bool:
		return lua.LBool(value)
	case int64:
		return lua.LNumber(value)
	case float64:
		return lua.LNumber(value)
	}
	return lua.LNil
}

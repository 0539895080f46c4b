package machinedrain_test

import (
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestRelease(t *testing.T) {
	hook := []string{
		v1alpha1.PreDrainHookAnnotation, v1alpha1.HookOwner, v1alpha1.DrainStartedAnnotation, "x", "pre-drain.delete.hook.machine.cluster.x-k8s.io/other", "y",
	}
	const others = "pre-drain.delete.hook.machine.cluster.x-k8s.io/other"
	for name, tc := range map[string]struct {
		more           []string
		drain, volumes bool
		want           map[string]string
	}{
		"M11, M12: lets Cluster API drain if nothing was drained, and keeps other hooks": {nil, false, false, map[string]string{others: "y"}},
		"M12: excludes only the drain if volumes did not detach": {
			nil, true, false, map[string]string{others: "y", clusterv1.ExcludeNodeDrainingAnnotation: v1alpha1.HookOwner},
		},
		"M12: excludes drain and volumes if both are done": {nil, true, true, map[string]string{
			others: "y", clusterv1.ExcludeNodeDrainingAnnotation: v1alpha1.HookOwner, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation: v1alpha1.HookOwner,
		}},
		"M12: keeps exclude annotations of a user": {[]string{clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation, ""}, true, true, map[string]string{
			others: "y", clusterv1.ExcludeNodeDrainingAnnotation: v1alpha1.HookOwner, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation: "",
		}},
		"M12, M107: removes a copied exclude annotation of the part that is not done": {
			[]string{clusterv1.ExcludeNodeDrainingAnnotation, v1alpha1.HookOwner, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation, v1alpha1.HookOwner}, true, false,
			map[string]string{others: "y", clusterv1.ExcludeNodeDrainingAnnotation: v1alpha1.HookOwner},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := machine(isDeleted, annotated(append(hook, tc.more...)...))
			machinedrain.Release(m, tc.drain, tc.volumes)
			if !reflect.DeepEqual(m.Annotations, tc.want) {
				t.Errorf("got %v, want %v", m.Annotations, tc.want)
			}
			if machinedrain.IsDraining(m) {
				t.Error("the Machine still has the hook")
			}
		})
	}
}

func TestOnlyReportsDiffer(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*clusterv1.Machine)
		want   bool
	}{
		"M142: the wait for the pre-drain hook": {func(m *clusterv1.Machine) {
			m.ResourceVersion, m.ManagedFields = "2", []metav1.ManagedFieldsEntry{{Manager: "capi"}}
			m.Status.Phase, m.Status.Deletion = "Deleting", &clusterv1.MachineDeletionStatus{WaitForPreDrainHookStartTime: metav1.Now()}
			m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{Type: clusterv1.MachineDeletingCondition})
		}, true},
		"M142: when a condition has changed": {func(m *clusterv1.Machine) { m.Status.Conditions[0].LastTransitionTime = metav1.Now() }, true},
		"M142: an annotation":                {func(m *clusterv1.Machine) { m.Annotations = map[string]string{v1alpha1.DrainStartedAnnotation: ""} }, false},
		"M142: a label":                      {func(m *clusterv1.Machine) { m.Labels = map[string]string{"a": ""} }, false},
		"M142: a timeout":                    {func(m *clusterv1.Machine) { m.Spec.Deletion.NodeDrainTimeoutSeconds = new(int32(1)) }, false},
		"M142: the Node":                     {func(m *clusterv1.Machine) { m.Status.NodeRef.Name = "other" }, false},
		"M142: the condition of this provider": {func(m *clusterv1.Machine) {
			m.Status.Conditions[0].Reason = v1alpha1.ReasonReconcileFailed
		}, false},
		"M142: a remediation": {func(m *clusterv1.Machine) {
			m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{Type: clusterv1.MachineOwnerRemediatedCondition})
		}, false},
		"M142: the wait for a pre-terminate hook": {func(m *clusterv1.Machine) {
			m.Status.Deletion = &clusterv1.MachineDeletionStatus{WaitForPreTerminateHookStartTime: metav1.Now()}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{UID: "m", ResourceVersion: "1"}}
			a.Status.Conditions = []metav1.Condition{{Type: v1alpha1.MachineNodeMaintenance, Reason: v1alpha1.ReasonWaitingForTurn}}
			b := a.DeepCopy()
			tc.change(b)
			if got := machinedrain.OnlyReportsDiffer(a, b); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestHookRemoved(t *testing.T) {
	requested := func(purpose string) *v1alpha1.NodeMaintenance {
		return &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.RequestedForAnnotation: purpose}}}
	}
	all := policy("all")
	for name, tc := range map[string]struct {
		reason      string
		annotations []string
		policy      *v1alpha1.MachineDrainPolicy
		maintenance *v1alpha1.NodeMaintenance
		want        bool
	}{
		"M53: another actor removed the hook of a Machine whose condition has no result": {reason: v1alpha1.ReasonMachineDraining, want: true},
		"M53: it did so before the first condition":                                      {maintenance: requested(v1alpha1.RequestedForDeletion), want: true},
		"M53: the manager removed the hook of a drained Machine": {
			reason: v1alpha1.ReasonMachineDrained, maintenance: requested(v1alpha1.RequestedForDeletion),
		},
		"M53: the manager removed the hook of a Machine that was not drained": {reason: v1alpha1.ReasonSkipped},
		"M53: the manager removed the hook of a Machine at its drain timeout": {reason: v1alpha1.ReasonTimedOut},
		"M53: the manager removed the hook of a drained Machine, whose result the API server has refused": {
			reason: v1alpha1.ReasonMachineDraining, annotations: []string{clusterv1.ExcludeNodeDrainingAnnotation, v1alpha1.HookOwner},
			maintenance: requested(v1alpha1.RequestedForDeletion),
		},
		"M53: the manager removed the hook of a Machine whose volumes did not detach in an outage, and whose result the API server has refused": {
			reason: v1alpha1.ReasonWaitingForVolumeDetach, annotations: []string{clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation, v1alpha1.HookOwner},
		},
		"M53: another actor removed the hook of a Machine that a user has excluded from the drain": {
			reason: v1alpha1.ReasonMachineDraining, annotations: []string{clusterv1.ExcludeNodeDrainingAnnotation, ""}, want: true,
		},
		"M53: another actor removed the hook of a Machine that was drained in place before": {
			reason: v1alpha1.ReasonMachineDrained, annotations: []string{v1alpha1.DrainRequestedAnnotation, "2026-01-01T00:00:00Z"}, policy: &all, want: true,
		},
		"M9: a Machine without condition and NodeMaintenance was deleted without the hook": {policy: &all},
		"M9, M149: a Machine that no policy selects has a condition because of its stage annotation": {
			reason: v1alpha1.ReasonNotManaged, annotations: []string{v1alpha1.MachineStageAnnotation, "Cordon"},
		},
		"M149: a Machine that no policy selected had no hook, also if a policy begins to select it after its deletion": {
			reason: v1alpha1.ReasonNotManaged, annotations: []string{v1alpha1.MachineStageAnnotation, "Cordon"}, policy: &all,
		},
		"M17: the manager removed the hook of a Machine during its update in place": {
			reason:      v1alpha1.ReasonMachineDrained,
			annotations: []string{clusterv1.UpdateInProgressAnnotation, "", v1alpha1.DrainRequestedAnnotation, "2026-01-01T00:00:00Z"},
		},
		"M53: a Machine with a stage annotation that a policy selects had the hook": {
			reason: v1alpha1.ReasonWaitingForWorkloadCluster, annotations: []string{v1alpha1.MachineStageAnnotation, "Cordon"}, policy: &all, want: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := machine(isDeleted, annotated(tc.annotations...))
			if tc.reason != "" {
				conditions.Set(m, metav1.Condition{Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: tc.reason})
			}
			if got := machinedrain.HookRemoved(m, tc.policy, read(tc.maintenance)); got != tc.want {
				t.Errorf("HookRemoved returns %t", got)
			}
		})
	}
}

func TestSetHook(t *testing.T) {
	t.Run("M12: removes only this provider's exclude annotations from a running Machine", func(t *testing.T) {
		m := machine(annotated(clusterv1.ExcludeNodeDrainingAnnotation, v1alpha1.HookOwner, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation, ""))
		want := map[string]string{clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation: ""}
		if withHook := m.DeepCopy(); !machinedrain.SetHook(withHook) || !machinedrain.HasHook(withHook) || machinedrain.SetHook(withHook) {
			t.Errorf("SetHook results in %v", withHook.Annotations)
		} else if !machinedrain.RemoveHook(withHook) || !reflect.DeepEqual(withHook.Annotations, want) {
			t.Errorf("RemoveHook results in %v", withHook.Annotations)
		}
		if !machinedrain.RemoveHook(m) || !reflect.DeepEqual(m.Annotations, want) || machinedrain.RemoveHook(m) {
			t.Errorf("RemoveHook without a hook results in %v", m.Annotations)
		}
	})
}

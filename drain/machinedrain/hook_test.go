package machinedrain_test

import (
	"reflect"
	"testing"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestRelease(t *testing.T) {
	hook := []string{v1alpha1.PreDrainHookAnnotation, v1alpha1.HookOwner, v1alpha1.DrainStartedAnnotation, "x", "pre-drain.delete.hook.machine.cluster.x-k8s.io/other", "y"}
	const others = "pre-drain.delete.hook.machine.cluster.x-k8s.io/other"
	for name, tc := range map[string]struct {
		more           []string
		drain, volumes bool
		want           map[string]string
	}{
		"M11, M12: lets Cluster API drain if nothing was drained, and keeps other hooks": {nil, false, false, map[string]string{others: "y"}},
		"M12: excludes only the drain if volumes did not detach":                         {nil, true, false, map[string]string{others: "y", clusterv1.ExcludeNodeDrainingAnnotation: v1alpha1.HookOwner}},
		"M12: excludes drain and volumes if both are done": {nil, true, true, map[string]string{
			others: "y", clusterv1.ExcludeNodeDrainingAnnotation: v1alpha1.HookOwner, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation: v1alpha1.HookOwner,
		}},
		"M12: keeps exclude annotations of a user": {[]string{clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation, ""}, true, true, map[string]string{
			others: "y", clusterv1.ExcludeNodeDrainingAnnotation: v1alpha1.HookOwner, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation: "",
		}},
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

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
		"M11, M12: nothing was done: Cluster API does it, and the hooks of others stay": {nil, false, false, map[string]string{others: "y"}},
		"M12: drained, but volumes weren't waited for":                                  {nil, true, false, map[string]string{others: "y", clusterv1.ExcludeNodeDrainingAnnotation: v1alpha1.HookOwner}},
		"M12: all is done": {nil, true, true, map[string]string{
			others: "y", clusterv1.ExcludeNodeDrainingAnnotation: v1alpha1.HookOwner, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation: v1alpha1.HookOwner,
		}},
		"M12: what a user has excluded stays the user's": {[]string{clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation, ""}, true, true, map[string]string{
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
				t.Error("it still is being drained")
			}
		})
	}
}

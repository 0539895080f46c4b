package machinedrain

import (
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// HasHook says whether our hook is on the Machine.
func HasHook(m *clusterv1.Machine) bool {
	_, held := m.Annotations[v1alpha1.PreDrainHookAnnotation]
	return held
}

// IsDraining says whether the Machine is deleted, and held until its Node is drained.
func IsDraining(m *clusterv1.Machine) bool { return !m.DeletionTimestamp.IsZero() && HasHook(m) }

// clockNotes keep the clock of a deletion, see Clock.
var clockNotes = []string{v1alpha1.DrainStartedAnnotation, v1alpha1.VolumeWaitStartedAnnotation}

// Release takes our hook off a Machine, and has Cluster API leave out the parts that are over: done here, or out of time here.
// Where the Machine says so anyway, that stays as it is.
func Release(m *clusterv1.Machine, drainOver, volumesOver bool) {
	delete(m.Annotations, v1alpha1.PreDrainHookAnnotation)
	for _, annotation := range clockNotes {
		delete(m.Annotations, annotation)
	}
	for exclude, over := range map[string]bool{clusterv1.ExcludeNodeDrainingAnnotation: drainOver, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation: volumesOver} {
		if _, excluded := m.Annotations[exclude]; over && !excluded {
			m.Annotations[exclude] = v1alpha1.HookOwner
		}
	}
}

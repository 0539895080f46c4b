package machinedrain

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// WatchFilter is the value of --watch-filter: the manager acts only for objects whose label cluster.x-k8s.io/watch-filter has this value.
// The empty filter selects all objects. Every path into a controller asks it, because events of other objects and timers bypass the
// predicates of a watch, and because a label may change while the object is being processed.
type WatchFilter string

// Selects reports whether the manager acts for an object.
func (f WatchFilter) Selects(object metav1.Object) bool {
	return f == "" || object.GetLabels()[clusterv1.WatchLabel] == string(f)
}

// hookOwner is the value of the hooks that the manager sets. It names the filter, so that the manager recognizes its hook on a Machine that
// the filter no longer selects.
func (f WatchFilter) hookOwner() string {
	if f == "" {
		return v1alpha1.HookOwner
	}
	return v1alpha1.HookOwner + "/" + string(f)
}

// SetHook is SetHook for the manager with this filter.
func (f WatchFilter) SetHook(m *clusterv1.Machine) (changed bool) {
	changed = SetHook(m)
	if m.Annotations[v1alpha1.PreDrainHookAnnotation] != f.hookOwner() {
		m.Annotations[v1alpha1.PreDrainHookAnnotation] = f.hookOwner()
		changed = true
	}
	return changed
}

// Responsibility is what a manager does for a Machine.
type Responsibility int

const (
	// Ignores means that the Machine is not the manager's.
	Ignores Responsibility = iota
	// Reconciles means that the manager reconciles the Machine.
	Reconciles
	// Leaves means that the filter no longer selects the running Machine, and the manager removes its hook: another manager sets it again.
	Leaves
	// HandsOver means that the deleted Machine has the hook of the manager, but a manager with another filter must drain it.
	HandsOver
)

// ResponsibilityFor decides what a manager does for a Machine. A deleted Machine whose label was removed is drained by the manager that has
// set the hook: no other manager would.
func (f WatchFilter) ResponsibilityFor(m *clusterv1.Machine) Responsibility {
	switch {
	case f.Selects(m):
		return Reconciles
	case m.Annotations[v1alpha1.PreDrainHookAnnotation] != f.hookOwner():
		return Ignores
	case m.DeletionTimestamp.IsZero():
		return Leaves
	case m.Labels[clusterv1.WatchLabel] == "":
		return Reconciles
	default:
		return HandsOver
	}
}

// MayStrand reports whether a Machine that the filter does not select may have a maintenance that the manager with the filter must end: its
// Cluster, nil if it does not exist, has not left the filter, and no other manager works there. The maintenance does not end while the
// Cluster is being deleted, nor before an update in place that has begun is completed. That of a deleted Machine ends as its deletion does.
func (f WatchFilter) MayStrand(cluster *clusterv1.Cluster, m *clusterv1.Machine) bool {
	return cluster != nil && cluster.DeletionTimestamp.IsZero() && f.Selects(cluster) && m.DeletionTimestamp.IsZero() &&
		MayHaveMaintenance(m) && !UpdateContinues(m)
}

// HandedOverMessage says which manager must drain a Machine of which another one has set the hook.
func (f WatchFilter) HandedOverMessage(m *clusterv1.Machine) string {
	return "Waiting for the manager with --watch-filter=" + m.Labels[clusterv1.WatchLabel] + " to drain the Node, because label " + clusterv1.WatchLabel +
		" of the Machine was changed"
}

// NotSelectedMessage says why the manager does not connect to a Cluster. It is empty if the filter selects the Cluster.
func (f WatchFilter) NotSelectedMessage(cluster *clusterv1.Cluster) string {
	if f.Selects(cluster) {
		return ""
	}
	return ": Cluster " + cluster.Name + " does not have the label " + clusterv1.WatchLabel + "=" + string(f)
}

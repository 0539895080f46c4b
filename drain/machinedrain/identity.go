package machinedrain

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
)

// OwnerMachine returns the Machine that a NodeMaintenance in the workload cluster of a Cluster serves. ours is false if it serves none, or
// a Machine of another management cluster or Cluster: two management clusters may share a workload cluster.
func OwnerMachine(m *v1alpha1.NodeMaintenance, managementCluster string, cluster types.NamespacedName) (machine types.NamespacedName, ours bool) {
	machine, ours = OwnerMachineOfAnyManager(m, cluster)
	return machine, ours && IsOfManagementCluster(m, managementCluster)
}

// IsOfManagementCluster reports whether the manager of this management cluster has created, continued or completed a NodeMaintenance.
func IsOfManagementCluster(m *v1alpha1.NodeMaintenance, managementCluster string) bool {
	return m.Annotations[v1alpha1.OwnerManagementClusterAnnotation] == managementCluster
}

// OwnerMachineOfAnyManager is like OwnerMachine, for any management cluster: the Cluster may have been moved here from another one.
func OwnerMachineOfAnyManager(m *v1alpha1.NodeMaintenance, cluster types.NamespacedName) (machine types.NamespacedName, ok bool) {
	namespace, name, _ := strings.Cut(m.Annotations[v1alpha1.OwnerMachineAnnotation], "/")
	ok = m.Annotations[v1alpha1.OwnerClusterAnnotation] == cluster.String() && namespace == cluster.Namespace && name != ""
	return types.NamespacedName{Namespace: namespace, Name: name}, ok
}

// EndsWithNode reports whether a NodeMaintenance is completed and deleted when the Node that it names no longer exists: it serves a Machine
// of the Cluster, whose drain may have begun in another management cluster, from which the Cluster was moved, or the shutdown of the Node.
func EndsWithNode(m *v1alpha1.NodeMaintenance, cluster types.NamespacedName) bool {
	_, servesMachine := OwnerMachineOfAnyManager(m, cluster)
	_, servesShutdown := m.Annotations[v1alpha1.ShutdownBootAnnotation]
	return (servesMachine || servesShutdown) && m.Annotations[v1alpha1.NodeUIDAnnotation] != ""
}

// IsOrphaned reports whether a NodeMaintenance serves a deletion of this running Machine, or a rollout that began in another management
// cluster, so that no controller continues it here. clusterctl move does not preserve deletions
// (https://github.com/kubernetes-sigs/cluster-api/issues/3215), nor does a management cluster that is restored from an earlier snapshot,
// and a Machine may be created again under its name. A maintenance that the Machine's stage annotation requests moves with the annotation.
// stage is the one that the Machine requires now: if that is Drain, or if an update in place continues, the drain of a deletion in this
// management cluster continues for it.
func IsOrphaned(m *v1alpha1.NodeMaintenance, machine *clusterv1.Machine, stage v1alpha1.NodeMaintenanceStage, managementCluster string) bool {
	owner, served := OwnerMachineOfAnyManager(m, types.NamespacedName{Namespace: machine.Namespace, Name: machine.Spec.ClusterName})
	purpose := m.Annotations[v1alpha1.RequestedForAnnotation]
	isOfAnother, isWanted := !IsOfManagementCluster(m, managementCluster), stage == v1alpha1.StageDrain || UpdateContinues(machine)
	return served && owner.Name == machine.Name && machine.DeletionTimestamp.IsZero() && m.Spec.Stage != v1alpha1.StageComplete &&
		purpose != v1alpha1.RequestedForStage && (isOfAnother || purpose == v1alpha1.RequestedForDeletion && !isWanted)
}

// IsSuspended reports whether nothing is done for a NodeMaintenance that names a Machine. Either the Machine is paused, or hooks of other
// owners hold its drain or have held it, see suspendsDrain, or the Machine was released without a drain, see WasSkipped, and the machine
// controller completes the maintenance next, or the maintenance began in another management cluster and the manager has neither continued
// nor completed it here. If clusterctl has moved the Machine, it may not be deleted here, or have other drain rules. If it has not, the
// manager there continues, and knows whether the Machine is paused. machine is nil if it does not exist here, and holding are its
// HoldingHooks. A NodeMaintenance that is in stage Complete or deleted changes no Pod and ends.
func IsSuspended(m *v1alpha1.NodeMaintenance, machine *clusterv1.Machine, holding []Hook, managementCluster string) bool {
	isServed := machine != nil && !IsOfNamesake(m, machine, managementCluster)
	stops := isServed && (HasPauseAnnotation(machine) || m.Drains() && (suspendsDrain(machine, holding) || WasSkipped(machine)))
	_, serves := m.Annotations[v1alpha1.OwnerMachineAnnotation]
	ends := m.Spec.Stage == v1alpha1.StageComplete || !m.DeletionTimestamp.IsZero()
	return stops || serves && !ends && !IsOfManagementCluster(m, managementCluster)
}

// IsOfNamesake reports whether a NodeMaintenance that names this Machine serves another one, of another management cluster: the Machine
// here has another Node.
func IsOfNamesake(m *v1alpha1.NodeMaintenance, machine *clusterv1.Machine, managementCluster string) bool {
	return !IsOfManagementCluster(m, managementCluster) && SelectsAnotherNode(m, machine)
}

// SelectsAnotherNode reports whether a NodeMaintenance that names this Machine is not the one of its Node.
func SelectsAnotherNode(m *v1alpha1.NodeMaintenance, machine *clusterv1.Machine) bool {
	nodes, _ := nodeselection.Names(m)
	return machine.Status.NodeRef.IsDefined() && !slices.Contains(nodes, machine.Status.NodeRef.Name)
}

// KeepsNodeCordoned reports whether the Node of a Machine stays cordoned even if another actor completes the NodeMaintenance that serves
// the Machine. It does while the Machine is being deleted.
func KeepsNodeCordoned(machine *clusterv1.Machine) bool {
	return machine != nil && !machine.DeletionTimestamp.IsZero()
}

// IsRecreated reports whether the manager recreates a NodeMaintenance of a Machine that a user has deleted: the Machine is being deleted,
// or a NodeMaintenance is wanted for it, see WantedStage. Otherwise the deletion ends the maintenance. machine is nil if it no longer
// exists.
func IsRecreated(m *v1alpha1.NodeMaintenance, machine *clusterv1.Machine, wanted v1alpha1.NodeMaintenanceStage) bool {
	switch {
	case machine == nil:
		return false
	case KeepsNodeCordoned(machine):
		return true
	default:
		return m.Spec.Stage != v1alpha1.StageComplete && wanted != ""
	}
}

// Identity identifies the NodeMaintenance of a Machine's Node.
type Identity struct {
	Cluster types.NamespacedName
	Machine *clusterv1.Machine
	Node    *corev1.Node
}

// Is reports whether a NodeMaintenance is that of the Machine's Node: it names the Machine, its Cluster and a management cluster, and
// selects exactly this Node, by name and by UID. Admission allows only managers to write these annotations. The management cluster may be
// another one, from which clusterctl moved the Cluster. One that was deleted, and that the manager has let go, does nothing any more, even
// if a finalizer of another owner keeps it.
func (i Identity) Is(m *v1alpha1.NodeMaintenance) bool {
	machine, served := OwnerMachineOfAnyManager(m, i.Cluster)
	names, byNameOnly := nodeselection.Names(m)
	return served && machine.Namespace == i.Machine.Namespace && machine.Name == i.Machine.Name && !m.HasEnded() &&
		m.Annotations[v1alpha1.OwnerManagementClusterAnnotation] != "" &&
		byNameOnly && len(names) == 1 && names[0] == i.Node.Name &&
		i.Node.UID != "" && m.Annotations[v1alpha1.NodeUIDAnnotation] == string(i.Node.UID)
}

// Names returns the names that the NodeMaintenance may have, in the order of preference. A user who may create NodeMaintenances can predict
// the first name and take it. The second name contains a hash of the UID of the Machine, which users of the workload cluster cannot read.
func (i Identity) Names() []string {
	key := types.NamespacedName{Namespace: i.Machine.Namespace, Name: i.Machine.Name}
	return []string{
		MaintenanceName(key, i.Node.Name, i.Node.UID),
		maintenanceName(i.Node.Name, key.String(), i.Node.Name, string(i.Node.UID), string(i.Machine.UID)),
	}
}

// Found is the result of the lookup of the NodeMaintenance of a Machine's Node.
type Found struct {
	// Maintenance is nil if it does not exist.
	Maintenance *v1alpha1.NodeMaintenance
	// Name is its name, or the name to create it with. It is empty if all names are taken.
	Name string
	// Taken are the names that NodeMaintenances of other authors have, or deleted ones that finalizers of other owners keep.
	Taken []string
}

// Find selects the NodeMaintenance among those that have one of its names. named contains them by name.
func (i Identity) Find(named map[string]*v1alpha1.NodeMaintenance) Found {
	var found Found
	for _, name := range i.Names() {
		switch m := named[name]; {
		case m == nil && found.Name == "":
			found.Name = name
		case m == nil:
		case !i.Is(m):
			found.Taken = append(found.Taken, name)
		case found.Maintenance == nil:
			found.Maintenance = m
		}
	}
	if found.Maintenance != nil {
		found.Name = found.Maintenance.Name
	}
	return found
}

// FindAmong looks for the NodeMaintenance among all of the workload cluster. If one of its names is taken, a manager of another management
// cluster may have created it with a name that depends on another UID of the Machine.
func (i Identity) FindAmong(all []v1alpha1.NodeMaintenance, found Found) Found {
	if at := slices.IndexFunc(all, func(m v1alpha1.NodeMaintenance) bool { return i.Is(&m) }); at >= 0 {
		found.Maintenance, found.Name = all[at].DeepCopy(), all[at].Name
	}
	return found
}

// TakenMessage says that other NodeMaintenances have names that the manager would use. It is empty if no name is taken.
func (f Found) TakenMessage() string {
	if len(f.Taken) == 0 {
		return ""
	}
	message := "NodeMaintenance " + strings.Join(f.Taken, " and NodeMaintenance ") +
		" was not written by the manager for this Machine and Node, or was deleted and has a finalizer of another owner, and is not used"
	if f.Name == "" {
		message += ". Delete one of them, or its finalizers, so that the drain can start"
	}
	return message
}

// maintenanceNamePrefixLength is the maximum length of the Node's name in the name of its NodeMaintenance. With a dash and the hash, the
// name stays below the 253 characters of an object name.
const maintenanceNamePrefixLength = 200

// MaintenanceName returns the first of the names that the NodeMaintenance of a Machine's Node may have. It starts with the name of the
// Node. It is the same after a restart and after clusterctl move, and differs for a later Node of the same name.
func MaintenanceName(machine types.NamespacedName, nodeName string, nodeUID types.UID) string {
	return maintenanceName(nodeName, machine.String(), nodeName, string(nodeUID))
}

func maintenanceName(nodeName string, from ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(from, "\x00")))
	prefix := nodeName
	if len(prefix) > maintenanceNamePrefixLength {
		prefix = prefix[:maintenanceNamePrefixLength]
	}
	return strings.TrimRight(prefix, "-.") + "-" + hex.EncodeToString(sum[:4])
}

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

// Identity tells the NodeMaintenance of a Machine's Node from all others.
type Identity struct {
	Cluster types.NamespacedName
	Machine *clusterv1.Machine
	Node    *corev1.Node
}

// Is says whether a NodeMaintenance is the one of the Machine's Node: it names the Machine, its Cluster and a management cluster, and
// selects exactly this Node, by name and by UID. Admission lets managers alone write what it names. The management cluster may be
// another one, from which clusterctl moved the Cluster.
func (i Identity) Is(m *v1alpha1.NodeMaintenance) bool {
	machine, served := OwnerMachineOfAnyManager(m, i.Cluster)
	names, byNameOnly := nodeselection.Names(m)
	return served && machine.Namespace == i.Machine.Namespace && machine.Name == i.Machine.Name &&
		m.Annotations[v1alpha1.OwnerManagementClusterAnnotation] != "" &&
		byNameOnly && len(names) == 1 && names[0] == i.Node.Name &&
		i.Node.UID != "" && m.Annotations[v1alpha1.NodeUIDAnnotation] == string(i.Node.UID)
}

// Names are the names that the NodeMaintenance may have, in the order in which they are tried. A user who may
// create NodeMaintenances can predict the first one and take it. The second one contains a hash of the UID of the Machine, which users of
// the workload cluster cannot read.
func (i Identity) Names() []string {
	key := types.NamespacedName{Namespace: i.Machine.Namespace, Name: i.Machine.Name}
	return []string{
		MaintenanceName(key, i.Node.Name, i.Node.UID),
		maintenanceName(i.Node.Name, key.String(), i.Node.Name, string(i.Node.UID), string(i.Machine.UID)),
	}
}

// Found is what is known of the NodeMaintenance of a Machine's Node.
type Found struct {
	// Maintenance is nil if there is none.
	Maintenance *v1alpha1.NodeMaintenance
	// Name is the one that it has, or is to be created with. Empty: others have taken all of them.
	Name string
	// Taken are the names that NodeMaintenances of others have.
	Taken []string
}

// Find looks for the NodeMaintenance among those that have one of its names, by name.
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

// FindAmong looks for the NodeMaintenance among those of the workload cluster: where one of its names is taken, a manager of another
// management cluster may have created it by a name of its own.
func (i Identity) FindAmong(all []v1alpha1.NodeMaintenance, found Found) Found {
	if at := slices.IndexFunc(all, func(m v1alpha1.NodeMaintenance) bool { return i.Is(&m) }); at >= 0 {
		found.Maintenance, found.Name = all[at].DeepCopy(), all[at].Name
	}
	return found
}

// TakenMessage tells people that a NodeMaintenance of another author has a name that the one of the Machine's Node would have. Empty
// where there is none.
func (f Found) TakenMessage() string {
	if len(f.Taken) == 0 {
		return ""
	}
	message := "NodeMaintenance " + strings.Join(f.Taken, " and ") + " was not written by the manager for this Machine and Node, and is not used"
	if f.Name == "" {
		message += ". Delete it to let the drain begin"
	}
	return message
}

// maintenanceNamePrefixLength leaves room for a dash and the hash within the 253 characters of an object name.
const maintenanceNamePrefixLength = 200

// MaintenanceName is the first of the names that the NodeMaintenance of a Machine's Node may have. It is the same after a restart and
// after clusterctl move, differs between two Nodes of the same name that come one after the other, and starts with the Node's name
// for people.
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

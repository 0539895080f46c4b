package machines

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// maintenanceNamePrefixLength leaves room for a dash and the hash within the 253 characters of an object name.
const maintenanceNamePrefixLength = 200

// MaintenanceName names the NodeMaintenance of a Machine. It is the same after a restart and after clusterctl move, differs
// between two Nodes of the same name that come one after the other, and starts with the Node's name for people.
func MaintenanceName(machine types.NamespacedName, nodeName string, nodeUID types.UID) string {
	sum := sha256.Sum256([]byte(machine.String() + "\x00" + nodeName + "\x00" + string(nodeUID)))
	prefix := nodeName
	if len(prefix) > maintenanceNamePrefixLength {
		prefix = prefix[:maintenanceNamePrefixLength]
	}
	return strings.TrimRight(prefix, "-.") + "-" + hex.EncodeToString(sum[:4])
}

package evacuation

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
)

// Noted is the Node that an Evacuation notes as that of its Pod, with what is known about it without reading the Pod. Whoever may
// write the Evacuation may have written the note.
type Noted struct {
	// Name of the Node.
	Name string
	// Node, nil if there is none of that name.
	Node *corev1.Node
	// Watched: its Pods are watched already.
	Watched bool
	// Maintenances that may select the Node.
	Maintenances []v1alpha1.NodeMaintenance
}

// NeedsPod reports whether the Pod of the Evacuation must be read before the Pods of the noted Node are watched: each Node that is
// watched for Evacuations alone costs a watch and memory. It need not where the note adds no watch: the Pods of the Node are watched
// already, or a NodeMaintenance drains it.
func (n Noted) NeedsPod() bool {
	if n.Name == "" {
		return true
	}
	if n.Watched {
		return false
	}
	for i := range n.Maintenances {
		m := &n.Maintenances[i]
		if n.Node != nil && m.Spec.Stage == v1alpha1.StageDrain && m.DeletionTimestamp.IsZero() && nodeselection.Selects(m, n.Node) {
			return false
		}
	}
	return true
}

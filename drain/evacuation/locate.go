package evacuation

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
)

// Noted is the Node that the annotation of an Evacuation names as that of its Pod, with what is known about it without reading the
// Pod. The annotation is untrusted: all users with write access to the Evacuation can change it.
type Noted struct {
	// Name of the Node.
	Name string
	// Node of that name, nil if it does not exist.
	Node *corev1.Node
	// Watched is true if the Pods of the Node are watched already.
	Watched bool
	// Maintenances that may select the Node.
	Maintenances []v1alpha1.NodeMaintenance
}

// NeedsPod reports whether the Pod of the Evacuation must be read to verify the annotation before the Pods of the Node are watched, since
// each watch costs memory. It returns false if the annotation adds no watch: the Pods of the Node are watched already, or a
// NodeMaintenance drains it.
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

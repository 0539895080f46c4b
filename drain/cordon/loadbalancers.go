package cordon

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Excludes says whether a maintenance keeps the Nodes that it selects out of load balancers: from the moment when their Pods
// begin to go, and no earlier, since a Node that is only cordoned still serves.
func Excludes(m *v1alpha1.NodeMaintenance) bool {
	return m.Spec.ExcludeFromLoadBalancers && m.Spec.Stage == v1alpha1.StageDrain && Holds(m)
}

// Exclude labels the Node so that load balancers send it no traffic, and records that. A Node that somebody else has labelled
// has no record. It says whether it has changed the Node; a write must carry the resourceVersion.
func Exclude(node *corev1.Node) (changed bool) {
	if _, labelled := node.Labels[corev1.LabelNodeExcludeBalancers]; labelled {
		return false
	}
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Labels[corev1.LabelNodeExcludeBalancers] = ""
	node.Annotations[v1alpha1.ExcludedFromLoadBalancersAnnotation] = "true"
	return true
}

// Recorded reports whether the Node carries a record of NodeMaintenances: how it was found, or that they excluded it from load
// balancers.
func Recorded(node *corev1.Node) bool {
	_, found := node.Annotations[v1alpha1.NodeOriginAnnotation]
	_, excluded := node.Annotations[v1alpha1.ExcludedFromLoadBalancersAnnotation]
	return found || excluded
}

// Include takes the label back where a maintenance has set it, and removes the record.
func Include(node *corev1.Node) (changed bool) {
	if _, recorded := node.Annotations[v1alpha1.ExcludedFromLoadBalancersAnnotation]; !recorded {
		return false
	}
	delete(node.Annotations, v1alpha1.ExcludedFromLoadBalancersAnnotation)
	delete(node.Labels, corev1.LabelNodeExcludeBalancers)
	return true
}

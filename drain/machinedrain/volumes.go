package machinedrain

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// WaitsForVolumes says whether a drained Node's volumes are waited for. Where they aren't, Cluster API wouldn't either: the
// Machine says so, or the Node doesn't answer, and then nobody detaches anything there.
func WaitsForVolumes(m *clusterv1.Machine, node *corev1.Node) bool {
	_, excluded := m.Annotations[clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation]
	return !excluded && !rules.Unreachable(node)
}

// DaemonSetPods says what the rules of a Machine's NodeMaintenance say about the Pods of DaemonSets now. Where the policy
// drains them they still stay at first, since a CSI driver's node plugin is one of them, and it is needed until the volumes
// are detached. Then the rule that skips them is lifted, and stays so. present is nil where there is no NodeMaintenance yet.
func DaemonSetPods(policy *v1alpha1.MachineDrainPolicy, present *v1alpha1.NodeMaintenance) v1alpha1.DaemonSetPodsPolicy {
	if DrainsDaemonSets(policy) && DaemonSetRuleLifted(present) {
		return v1alpha1.DaemonSetPodsDrain
	}
	return v1alpha1.DaemonSetPodsSkip
}

// DrainsDaemonSets says whether the policy has the Pods of DaemonSets go.
func DrainsDaemonSets(policy *v1alpha1.MachineDrainPolicy) bool {
	return policy != nil && policy.Spec.DaemonSetPods == v1alpha1.DaemonSetPodsDrain
}

// DaemonSetRuleLifted says whether a Machine's NodeMaintenance has come to the Pods of DaemonSets: all else is gone, volumes included.
func DaemonSetRuleLifted(m *v1alpha1.NodeMaintenance) bool {
	return m != nil && !slices.ContainsFunc(m.Spec.DrainRules, func(rule v1alpha1.DrainRule) bool { return rule.Name == rules.RuleDaemonSetPods })
}

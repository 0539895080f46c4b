// Package staticpod decides about the static Pods of Nodes on which the node agent (exp/nodeagent) runs: which of them have an
// evacuator, and which drain targets the Node records for the agent.
//
// On a Node without an agent static Pods stop with the kubelet, and drains skip them (R41).
package staticpod

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// maxTargets is the maximum number of drain targets that a Node records.
const maxTargets = 64

// Served reports whether one of these Pods of a Node is a running agent. It uses the Pod and not the condition that the agent
// reports on the Node: the condition remains when the agent is removed.
func Served(pods []*corev1.Pod) bool {
	return slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
		return rules.IsNodeAgent(pod) && pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil
	})
}

// HasEvacuator reports whether a Pod of this type on a Node with an agent has the evacuator kubelet.k8s.io. Pods in kube-system have it
// only if a rule names them (S11). Those of a control plane, and load balancers through which its API servers are reached, are there: a
// plan that covers all static Pods would otherwise stop the API server, or keep the kubelet or the manager from reaching it, and nothing
// could end the maintenance. by is the rule that decides about the Pod, nil if no rule matches.
func HasEvacuator(pod *corev1.Pod, podType v1alpha1.PodType, by *v1alpha1.DrainRule) bool {
	return podType == v1alpha1.PodTypeStatic && (pod.Namespace != metav1.NamespaceSystem || by != nil && selectsByLabel(by))
}

// selectsByLabel reports whether every entry of a rule selects Pods by label, and not only by type or namespace.
func selectsByLabel(rule *v1alpha1.DrainRule) bool {
	bySelector := func(p v1alpha1.DrainRulePodSelector) bool {
		return p.Selector != nil && len(p.Selector.MatchLabels)+len(p.Selector.MatchExpressions) > 0
	}
	return len(rule.Pods) > 0 && !slices.ContainsFunc(rule.Pods, func(p v1alpha1.DrainRulePodSelector) bool { return !bySelector(p) })
}

// Evacuated reports whether the spec of an Evacuation lists the evacuator kubelet.k8s.io.
func Evacuated(e *v1alpha1.Evacuation) bool {
	return slices.ContainsFunc(e.Spec.Evacuators, func(e v1alpha1.Evacuator) bool { return e.EvacuatorClass == v1alpha1.EvacuatorClassKubelet })
}

// Targets returns, as JSON, the drain targets of static Pods that maintenances in stage Drain have published for a Node, and a text that
// names these maintenances and their reasons. Both are empty if no targets have been published. The result does not depend on the order of
// the maintenances.
func Targets(node *corev1.Node, maintenances []v1alpha1.NodeMaintenance) (targets, cause string, _ error) {
	var rows []v1alpha1.DrainTarget
	var publishers []*v1alpha1.NodeMaintenance
	byName := slices.SortedFunc(slices.Values(maintenances), func(a, b v1alpha1.NodeMaintenance) int { return cmp.Compare(a.Name, b.Name) })
	for i := range byName {
		m := &byName[i]
		if uid := m.Annotations[v1alpha1.NodeUIDAnnotation]; uid == "" || uid == string(node.UID) {
			published := plan.PublishedByNode(v1alpha1.PodTypeStatic, m)[node.Name]
			if len(published) > 0 {
				publishers = append(publishers, m)
			}
			rows = append(rows, published...)
		}
	}
	if len(rows) == 0 {
		return "", "", nil
	}
	slices.SortStableFunc(rows, func(a, b v1alpha1.DrainTarget) int { return cmp.Compare(b.PodPriority, a.PodPriority) })
	content, err := json.Marshal(rows[:min(len(rows), maxTargets)])
	return string(content), evacuation.Causes(node.Name, publishers), errors.Wrap(err, "writing drain targets")
}

// Affected returns the names of the Nodes for which a maintenance has published targets of static Pods before or after a change.
func Affected(before, after *v1alpha1.NodeMaintenance) []string {
	affected := plan.PublishedByNode(v1alpha1.PodTypeStatic, before)
	maps.Copy(affected, plan.PublishedByNode(v1alpha1.PodTypeStatic, after))
	return slices.Sorted(maps.Keys(affected))
}

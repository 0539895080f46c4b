// Package staticpod decides what concerns the static Pods of Nodes on which the node agent runs (exp/nodeagent): who has an
// evacuator, and how far the drains of a Node have come, which is what the agent goes by.
//
// Where no agent runs nothing of this happens: static Pods stop with the kubelet, and drains skip them (R41).
package staticpod

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// maxTargets bounds what is noted on a Node.
const maxTargets = 64

// Served says whether an agent runs among these Pods of a Node. It goes by the Pod, and not by what the agent says about
// itself: nobody takes that back when it is gone.
func Served(pods []*corev1.Pod) bool {
	return slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
		return rules.IsNodeAgent(pod) && pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil
	})
}

// HasEvacuator says whether a Pod of this type on a Node with an agent has the evacuator kubelet.k8s.io. The Pods of a control
// plane only have it where a rule names them (S11): to stop an API server because a plan didn't leave it out would stop the
// drain, too. by is the rule that decides about the Pod, nil where none matches.
func HasEvacuator(pod *corev1.Pod, podType v1alpha1.PodType, by *v1alpha1.DrainRule) bool {
	return podType == v1alpha1.PodTypeStatic && (!ControlPlane(pod) || by != nil && names(by))
}

// names says whether a rule is about some Pods by their labels, and not about all, or all of a type or a namespace.
func names(rule *v1alpha1.DrainRule) bool {
	bySelector := func(p v1alpha1.DrainRulePodSelector) bool {
		return p.Selector != nil && len(p.Selector.MatchLabels)+len(p.Selector.MatchExpressions) > 0
	}
	return len(rule.Pods) > 0 && !slices.ContainsFunc(rule.Pods, func(p v1alpha1.DrainRulePodSelector) bool { return !bySelector(p) })
}

// Evacuators returns those of an agent.
func Evacuators() []v1alpha1.Evacuator {
	role := v1alpha1.EvacuatorRoleController
	return []v1alpha1.Evacuator{{
		EvacuatorClass: v1alpha1.EvacuatorClassKubelet, Priority: v1alpha1.EvacuatorControllerPriority, Role: &role,
	}}
}

// Evacuated says whether an Evacuation has the evacuator.
func Evacuated(e *v1alpha1.Evacuation) bool {
	return slices.ContainsFunc(e.Spec.Evacuators, func(e v1alpha1.Evacuator) bool { return e.EvacuatorClass == v1alpha1.EvacuatorClassKubelet })
}

// ControlPlane says whether a static Pod is one of a control plane, as kubeadm and others that follow it label and name them.
func ControlPlane(pod *corev1.Pod) bool {
	if pod.Namespace != metav1.NamespaceSystem {
		return false
	}
	return pod.Labels["tier"] == "control-plane" || slices.ContainsFunc(
		[]string{"etcd-", "kube-apiserver-", "kube-controller-manager-", "kube-scheduler-"},
		func(prefix string) bool { return strings.HasPrefix(pod.Name, prefix) })
}

// Targets returns what is to be noted on a Node: the drain targets of static Pods that maintenances in stage Drain have
// published for it. Empty: none.
func Targets(node *corev1.Node, maintenances []v1alpha1.NodeMaintenance) (string, error) {
	var rows []v1alpha1.DrainTarget
	for i := range maintenances {
		m := &maintenances[i]
		if uid := m.Annotations[v1alpha1.NodeUIDAnnotation]; uid == "" || uid == string(node.UID) {
			rows = append(rows, targetsOf(m)[node.Name]...)
		}
	}
	if len(rows) == 0 {
		return "", nil
	}
	slices.SortStableFunc(rows, func(a, b v1alpha1.DrainTarget) int { return cmp.Compare(b.PodPriority, a.PodPriority) })
	content, err := json.Marshal(rows[:min(len(rows), maxTargets)])
	return string(content), errors.Wrap(err, "writing drain targets")
}

// Affected returns the Nodes, by name, that a maintenance has published targets of static Pods for, before or after a change.
func Affected(before, after *v1alpha1.NodeMaintenance) []string {
	affected := map[string]bool{}
	for _, m := range []*v1alpha1.NodeMaintenance{before, after} {
		for node := range targetsOf(m) {
			affected[node] = true
		}
	}
	var names []string
	for name := range affected {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func targetsOf(m *v1alpha1.NodeMaintenance) map[string][]v1alpha1.DrainTarget {
	if m == nil || m.Spec.Stage != v1alpha1.StageDrain {
		return nil
	}
	byNode := map[string][]v1alpha1.DrainTarget{}
	for _, status := range m.Status.NodeStatuses {
		for _, target := range plan.Published(&m.Status, status) {
			if target.PodType == v1alpha1.PodTypeStatic {
				byNode[status.NodeRef.Name] = append(byNode[status.NodeRef.Name], target)
			}
		}
	}
	return byNode
}

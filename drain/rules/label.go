package rules

import (
	"fmt"
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Spellings of the drain label's values for texts. DrainLabel accepts more.
const (
	labelSkip          = "skip"
	labelWaitCompleted = "wait-completed"
)

// DrainLabel reads the label cluster.x-k8s.io/drain, by which the owner of a pod decides without access to the management
// cluster. It accepts exactly the spellings that Cluster API accepts: "skip" and, with or without one hyphen,
// "waitcompleted", in upper and lower case (M2).
//
// Without the label both results are empty. A value with another meaning counts as no label; it is returned as
// unknownValue, for an event on the pod: the owner believes in a protection that isn't there. An empty value is
// returned as two quotes, to tell it from no label.
func DrainLabel(labels map[string]string) (behavior v1alpha1.DrainBehavior, unknownValue string) {
	value, found := labels[clusterv1.PodDrainLabel]
	switch {
	case !found:
		return "", ""
	case strings.EqualFold(value, labelSkip):
		return v1alpha1.DrainBehaviorSkip, ""
	case strings.EqualFold(strings.Replace(value, "-", "", 1), "waitcompleted"):
		return v1alpha1.DrainBehaviorWaitCompleted, ""
	case value == "":
		return "", `""`
	default:
		return "", value
	}
}

// UnknownDrainLabel says, for an event on a Pod that a maintenance drains, that its drain label has a value without an effect (M2).
// Empty: it has not, or the maintenance ignores the label.
func UnknownDrainLabel(m *v1alpha1.NodeMaintenance, labels map[string]string) string {
	if _, unknownValue := DrainLabel(labels); unknownValue == "" || m.Spec.DrainLabelPolicy == v1alpha1.DrainLabelPolicyIgnore {
		return ""
	}
	return fmt.Sprintf("Label %s has the unknown value %q, so NodeMaintenance %s drains the Pod. Valid values are %s and %s.",
		clusterv1.PodDrainLabel, labels[clusterv1.PodDrainLabel], m.Name, labelSkip, labelWaitCompleted)
}

// labelText is how a drain label is named to people.
func labelText(behavior v1alpha1.DrainBehavior) string {
	value := labelSkip
	if behavior == v1alpha1.DrainBehaviorWaitCompleted {
		value = labelWaitCompleted
	}
	return "label " + clusterv1.PodDrainLabel + ": " + value
}

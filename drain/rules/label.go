package rules

import (
	"fmt"
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Values of the drain label in messages. DrainLabel accepts more spellings.
const (
	labelSkip          = "skip"
	labelWaitCompleted = "wait-completed"
)

// DrainLabel parses the label cluster.x-k8s.io/drain of a Pod. It accepts the same spellings as Cluster API: "skip" and, with or without one
// hyphen, "waitcompleted", in upper and lower case (M2).
//
// Without the label, both results are empty. Another value counts as no label, and is returned as unknownValue for an event on the Pod: its
// owner expects a protection that does not exist. An empty value is returned as two quotes.
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

// UnknownDrainLabel returns the message of an event on a Pod whose drain label has an unknown value (M2). It is empty if the label is valid, or if
// the NodeMaintenance ignores it.
func UnknownDrainLabel(m *v1alpha1.NodeMaintenance, labels map[string]string) string {
	if _, unknownValue := DrainLabel(labels); unknownValue == "" || m.Spec.DrainLabelPolicy == v1alpha1.DrainLabelPolicyIgnore {
		return ""
	}
	return fmt.Sprintf("Label %s has the unknown value %q, so NodeMaintenance %s drains the Pod. Valid values are %s and %s.",
		clusterv1.PodDrainLabel, labels[clusterv1.PodDrainLabel], m.Name, labelSkip, labelWaitCompleted)
}

// labelText returns a drain label as messages name it.
func labelText(behavior v1alpha1.DrainBehavior) string {
	value := labelSkip
	if behavior == v1alpha1.DrainBehaviorWaitCompleted {
		value = labelWaitCompleted
	}
	return "label " + clusterv1.PodDrainLabel + ": " + value
}

package machinedrain

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
)

const (
	maxKinds       = 5
	maxPodsOfAKind = 3
	// drainGoesOn begins what is said of a drain that goes on.
	drainGoesOn = "Drain not completed yet"
)

// DrainProgress returns reason and message of a Machine's condition while its drain goes on. failure is why the NodeMaintenance cannot be
// reconciled, nil if it can.
func DrainProgress(m *v1alpha1.NodeMaintenance, failure error) (reason, message string) {
	reason, message = v1alpha1.ReasonMachineDraining, DrainMessage(m)
	if cordoned := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.NodeMaintenanceCordoned); cordoned != nil && cordoned.Reason == v1alpha1.ReasonCordonFailed {
		reason, message = v1alpha1.ReasonCordonFailed, message+"\n* "+cordoned.Message
	}
	if failure != nil {
		reason, message = v1alpha1.ReasonReconcileFailed, message+"\n* NodeMaintenance "+m.Name+" cannot be reconciled: "+progress.Describe(failure)
	}
	return reason, message
}

// FailureMessage returns the message of a Machine's condition while a step of its deletion fails.
func FailureMessage(err error) string {
	return "The drain cannot continue: " + progress.Describe(err)
}

// DrainMessage tells people, in the manner of Cluster API's own drain, how the drain of a Machine's Node goes: how far it
// is, what waits, on which Pods, why. It is bounded: at most five reasons with three Pods each.
func DrainMessage(m *v1alpha1.NodeMaintenance) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s (NodeMaintenance %s)", drainGoesOn, startedAt(m), m.Name)
	summary := m.Status.Summary
	if summary.Nodes == 0 {
		b.WriteString(": waiting for its first report")
	} else {
		fmt.Fprintf(&b, ": %d Pods evacuating, %d waiting for their turn, %d skipped", summary.PodsEvacuating, summary.PodsPending, summary.PodsSkipped)
	}
	var kinds []string
	pods := map[string][]string{}
	for _, node := range m.Status.NodeStatuses {
		for _, blocked := range node.Blocked {
			if len(pods[blocked.Why]) == 0 {
				kinds = append(kinds, blocked.Why)
			}
			pods[blocked.Why] = append(pods[blocked.Why], blocked.Pod)
		}
	}
	for i, why := range kinds {
		if i == maxKinds {
			fmt.Fprintf(&b, "\n* and %d more reasons", len(kinds)-maxKinds)
			break
		}
		fmt.Fprintf(&b, "\n* %s: %s", podList(pods[why]), why)
	}
	return b.String()
}

func startedAt(m *v1alpha1.NodeMaintenance) string {
	if start := m.StageStart(v1alpha1.StageDrain); start != nil {
		return " (started at " + start.UTC().Format(time.RFC3339) + ")"
	}
	return ""
}

func podList(pods []string) string {
	noun := "Pod"
	if len(pods) > 1 {
		noun = "Pods"
	}
	shown := pods[:min(len(pods), maxPodsOfAKind)]
	list := noun + " " + strings.Join(shown, ", ")
	if more := len(pods) - len(shown); more > 0 {
		list += fmt.Sprintf(", ... (%d more)", more)
	}
	return list
}

// DrainBegan is when a NodeMaintenance in stage Drain has begun to drain, as far as it is known: it has not before its creation.
func DrainBegan(m *v1alpha1.NodeMaintenance) time.Time {
	if start := m.StageStart(v1alpha1.StageDrain); start != nil {
		return *start
	}
	return m.CreationTimestamp.Time
}

// Drained says whether the NodeMaintenance, as it is specified now, has no Pod left that must go.
func Drained(m *v1alpha1.NodeMaintenance) bool {
	if m.Spec.Stage != v1alpha1.StageDrain {
		return false
	}
	for _, condition := range m.Status.Conditions {
		if condition.Type == v1alpha1.NodeMaintenanceDrained {
			return condition.Status == "True" && condition.ObservedGeneration == m.Generation
		}
	}
	return false
}

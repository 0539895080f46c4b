package progress

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// drainInProgress is the message of the condition Reconciling during a drain. It does not change with every Pod, as the condition Drained
// does not.
const drainInProgress = "The Nodes are being drained: status.summary.blocking says what the drain has waited for the longest"

// SetHealth sets the conditions Reconciling and Stalled of a NodeMaintenance, and removes the ones that do not apply: at most one of the
// two does. They follow from the stage and the conditions Cordoned and Drained. kstatus computes the health of the object from them and
// from status.observedGeneration. A stage that changes no Node, or whose selector selects none, is reached at once.
func SetHealth(m *v1alpha1.NodeMaintenance, now time.Time) {
	conditionType, cause := health(m)
	for _, each := range []string{v1alpha1.NodeMaintenanceReconciling, v1alpha1.NodeMaintenanceStalled} {
		if each != conditionType {
			meta.RemoveStatusCondition(&m.Status.Conditions, each)
			continue
		}
		if cause.Message == "" {
			cause.Message = drainInProgress
		}
		meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{
			Type: each, Status: metav1.ConditionTrue, Reason: cause.Reason, Message: cause.Message,
			ObservedGeneration: m.Generation, LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
		})
	}
}

// health returns the type of the condition that applies, and the condition that is its cause. Empty: none applies.
func health(m *v1alpha1.NodeMaintenance) (conditionType string, cause metav1.Condition) {
	cordoned := ptr.Deref(meta.FindStatusCondition(m.Status.Conditions, v1alpha1.NodeMaintenanceCordoned), metav1.Condition{})
	drained := ptr.Deref(meta.FindStatusCondition(m.Status.Conditions, v1alpha1.NodeMaintenanceDrained), metav1.Condition{})
	drains := m.Spec.Stage == v1alpha1.StageDrain
	switch {
	case !drains && m.Spec.Stage != v1alpha1.StageCordon:
		return "", metav1.Condition{}
	case drains && drained.Reason == v1alpha1.ReasonInvalidDrainRule:
		return v1alpha1.NodeMaintenanceStalled, drained
	case cordoned.Reason == v1alpha1.ReasonCordonFailed:
		return v1alpha1.NodeMaintenanceReconciling, cordoned
	case drains && drained.Status != metav1.ConditionTrue && drained.Reason != v1alpha1.ReasonNoNodesSelected:
		return v1alpha1.NodeMaintenanceReconciling, drained
	}
	return "", metav1.Condition{}
}

package progress_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
)

// TestHealth: test/differential shows what kstatus says about these states.
func TestHealth(t *testing.T) { // R67
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	condition := func(conditionType string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: conditionType, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now)}
	}
	cordoned := condition(v1alpha1.NodeMaintenanceCordoned, metav1.ConditionTrue, v1alpha1.ReasonCordoned, "")
	draining := condition(v1alpha1.NodeMaintenanceDrained, metav1.ConditionFalse, v1alpha1.ReasonDraining, "")
	m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
	m.Status.Conditions = []metav1.Condition{cordoned, draining}

	health := func(at time.Time, change metav1.Condition) []metav1.Condition {
		meta.SetStatusCondition(&m.Status.Conditions, change)
		progress.SetHealth(m, at)
		return m.Status.Conditions[2:]
	}
	g := NewWithT(t)
	g.Expect(health(now, draining)).To(HaveExactElements(SatisfyAll(
		HaveField("Type", "Reconciling"), HaveField("Status", metav1.ConditionTrue), HaveField("Reason", v1alpha1.ReasonDraining),
		HaveField("Message", ContainSubstring("status.summary.blocking")), HaveField("ObservedGeneration", BeEquivalentTo(2)),
	)))
	later := now.Add(time.Minute)
	failed := condition(v1alpha1.NodeMaintenanceCordoned, metav1.ConditionFalse, v1alpha1.ReasonCordonFailed, "Node one cannot be cordoned")
	g.Expect(health(later, failed)).To(HaveExactElements(SatisfyAll(
		HaveField("Type", "Reconciling"), HaveField("Reason", v1alpha1.ReasonCordonFailed), HaveField("Message", "Node one cannot be cordoned"),
		HaveField("LastTransitionTime", metav1.NewTime(now)),
	)), "the time is that of the status")
	health(later, cordoned)
	invalid := condition(v1alpha1.NodeMaintenanceDrained, metav1.ConditionFalse, v1alpha1.ReasonInvalidDrainRule, "Waiting for invalid drain rule a to be fixed")
	g.Expect(health(later, invalid)).To(HaveExactElements(SatisfyAll(
		HaveField("Type", "Stalled"), HaveField("Status", metav1.ConditionTrue), HaveField("Message", "Waiting for invalid drain rule a to be fixed"),
		HaveField("LastTransitionTime", metav1.NewTime(later)),
	)))
	g.Expect(health(later, condition(v1alpha1.NodeMaintenanceDrained, metav1.ConditionTrue, v1alpha1.ReasonDrained, ""))).To(BeEmpty())
}

package integration

import (
	"fmt"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// statusActs check what NodeMaintenances report on Nodes and in events.
var statusActs = []act{
	{"R37: sets the Node conditions of the stage and removes them at the end of the maintenance", (*scene).testNodeConditions},
	{"R14: reports once a minute the field manager that keeps making a Node schedulable", (*scene).testCordonConflict},
	{"R8: warns of an implausible selection", (*scene).testSelection},
	{"R29: reports in an event that a new NodeMaintenance is fast-forwarded", (*scene).testFastForward},
}

func (s *scene) testNodeConditions() {
	s.Helper()
	s.runOn("m1", "web", 2, deployment("web", 2), budget("web", 0))
	s.expectDisruptionsAllowed("web", 0)
	s.setCondition("m1", `{"type":"Drained","status":"False","reason":"Elsewhere"}`)
	s.create(s.workload.Client, nm("upgrade", v1alpha1.StageIdle, ofNodes("m1")), nm("later", v1alpha1.StageIdle, ofNodes("m1")))

	s.expectNodeConditions("m1", v1alpha1.NodeMaintenancePlanned)
	s.Expect(s.audited().WithUserAgent(fleet.ManagerAgent).Writes().Resource("nodes")).To(BeEmpty(), "Idle changes only the condition (R10)")
	s.Expect(s.audited().WithUserAgent(fleet.ManagerAgent).Writes().Resource("evacuations")).To(BeEmpty())

	s.setStage("upgrade", v1alpha1.StageCordon)
	s.expectNodeConditions("m1", v1alpha1.NodeMaintenancePlanned, v1alpha1.NodeMaintenanceInProgress)
	s.deleteMaintenances("later")
	s.expectNodeConditions("m1", v1alpha1.NodeMaintenanceInProgress)
	s.setStage("upgrade", v1alpha1.StageDrain)
	s.expectNodeConditions("m1", v1alpha1.NodeMaintenanceInProgress, v1alpha1.NodeDrainInProgress)
	s.setCondition("m1", `{"type":"DrainInProgress","$patch":"delete"}`)
	s.expectNodeConditions("m1", v1alpha1.NodeMaintenanceInProgress, v1alpha1.NodeDrainInProgress)
	s.Expect(util.IsNodeReady(s.node("m1"))).To(BeTrue(), "the conditions of the kubelet are unchanged")

	s.Expect(s.workload.Client.Delete(s.Context(), budget("web", 0))).To(Succeed())
	s.expectNodeConditions("m1", v1alpha1.NodeMaintenanceInProgress, v1alpha1.NodeDrained)
	s.deleteMaintenances("upgrade")
	s.expectNodeConditions("m1")
	s.Eventually(func() bool { return s.node("m1").Spec.Unschedulable }, soon, pace).Should(BeFalse())
}

func (s *scene) testCordonConflict() {
	s.Helper()
	s.withNodes("fought")
	held := "held-" + string(s.node("fought").UID) // an earlier repetition has already warned this minute, for another name
	s.create(s.workload.Client, nm(held, v1alpha1.StageCordon, ofNodes("fought")))
	for range 6 {
		s.Eventually(func() bool { return s.node("fought").Spec.Unschedulable }, soon, pace).Should(BeTrue())
		flip := fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q},"spec":{"unschedulable":false}}`, "fought")
		s.Expect(s.workload.Client.Patch(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "fought"}},
			client.RawPatch(types.ApplyPatchType, []byte(flip)), client.FieldOwner("autoscaler"), client.ForceOwnership)).To(Succeed())
	}
	s.Eventually(func() bool { return s.node("fought").Spec.Unschedulable }, soon, pace).Should(BeTrue())
	s.expectEvent(held, "CordonConflict", ContainSubstring(`Field manager "autoscaler" repeatedly makes Node fought schedulable`))
	s.Consistently(func() int { return s.countEvents(held, "CordonConflict") }, 3*time.Second, pace).Should(Equal(1))
	s.deleteMaintenances(held)
}

func (s *scene) testSelection() {
	s.Helper()
	everything := nm("everything", v1alpha1.StageIdle, ofNodesLabelled(controlplane.KubeletLabel, controlplane.KubeletLabelValue))
	s.create(s.workload.Client, everything, nm("nothing", v1alpha1.StageIdle, ofNodes("nowhere")), nm("one", v1alpha1.StageIdle, ofNodes("m1")))
	for name, reason := range map[string]string{"everything": v1alpha1.ReasonAllNodesSelected, "nothing": v1alpha1.ReasonNoNodesSelected} {
		s.Eventually(func(g Gomega) {
			condition := meta.FindStatusCondition(s.stored(name).Status.Conditions, v1alpha1.NodeMaintenanceSelectionPlausible)
			g.Expect(condition).NotTo(BeNil())
			g.Expect(condition.Status).To(Equal(metav1.ConditionFalse))
			g.Expect(condition.Reason).To(Equal(reason))
		}, soon, pace).Should(Succeed())
		s.expectEvent(name, reason, ContainSubstring("The nodeSelector selects"))
	}
	plausible := func(name string) func() bool {
		return func() bool {
			return meta.IsStatusConditionTrue(s.stored(name).Status.Conditions, v1alpha1.NodeMaintenanceSelectionPlausible)
		}
	}
	s.Eventually(plausible("one"), soon, pace).Should(BeTrue())
	s.create(s.workload.Client, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "another", Labels: map[string]string{stageNode: ""}}})
	s.Eventually(plausible("everything"), soon, pace).Should(BeTrue(), "there is another Node now")
	s.deleteMaintenances("everything", "nothing", "one")
}

func (s *scene) testFastForward() {
	s.Helper()
	s.runOn("m1", "web", 1, deployment("web", 1), budget("web", 0))
	s.runOn("m3", "slow", 1, deployment("slow", 1), budget("slow", 0))
	s.expectDisruptionsAllowed("web", 0)
	s.expectDisruptionsAllowed("slow", 0)
	s.create(s.workload.Client, nm("first", v1alpha1.StageDrain, ofNodes("m1")))
	s.expectNodeConditions("m1", v1alpha1.NodeMaintenanceInProgress, v1alpha1.NodeDrainInProgress)
	s.Eventually(func() int32 { return s.stored("first").Status.Summary.PodsEvacuating }, soon, pace).Should(BeEquivalentTo(1))

	newcomer := nm("newcomer", v1alpha1.StageDrain, ofNodes("m1", "m3"))
	newcomer.Spec.DrainRules = []v1alpha1.DrainRule{{
		Name: "web-later", Behavior: v1alpha1.DrainBehaviorDrain, Order: ptr.To[int32](100),
		Pods: []v1alpha1.DrainRulePodSelector{{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}},
	}}
	s.create(s.workload.Client, newcomer)
	s.expectEvent("newcomer", "FastForwarded", Equal("Node m1: fast-forwarded by older first"))
	s.Consistently(func() int { return s.countEvents("newcomer", "FastForwarded") }, 3*time.Second, pace).Should(Equal(1))
	s.deleteMaintenances("newcomer", "first")
	s.expectNodeConditions("m1")
	s.expectNodeConditions("m3")
}

// setCondition patches one condition of a Node.
func (s *scene) setCondition(node, condition string) {
	s.Helper()
	patch := fmt.Appendf(nil, `{"status":{"conditions":[%s]}}`, condition)
	s.Expect(s.workload.Client.Status().Patch(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
		client.RawPatch(types.StrategicMergePatchType, patch))).To(Succeed())
}

// expectNodeConditions waits until a Node has exactly these conditions of ours.
func (s *scene) expectNodeConditions(node string, types ...corev1.NodeConditionType) {
	s.Helper()
	s.Eventually(func() []corev1.NodeConditionType {
		carried := []corev1.NodeConditionType{}
		for _, condition := range s.node(node).Status.Conditions {
			if condition.Reason == v1alpha1.ReasonNodeMaintenance && condition.Status == corev1.ConditionTrue {
				carried = append(carried, condition.Type)
			}
		}
		return carried
	}, soon, pace).Should(ConsistOf(types))
}

func (s *scene) eventsAbout(name, reason string) []corev1.Event {
	s.Helper()
	m, list := s.stored(name), &corev1.EventList{}
	s.Expect(s.workload.Client.List(s.Context(), list, client.InNamespace(namespace))).To(Succeed())
	var events []corev1.Event
	for _, event := range list.Items {
		if event.InvolvedObject.UID == m.UID && event.Reason == reason {
			events = append(events, event)
		}
	}
	return events
}

func (s *scene) expectEvent(name, reason string, message any) {
	s.Helper()
	s.Eventually(func() []corev1.Event { return s.eventsAbout(name, reason) }, soon, pace).Should(ContainElement(HaveField("Message", message)))
}

// countEvents counts events, including the repetitions that one Event object counts.
func (s *scene) countEvents(name, reason string) int {
	s.Helper()
	count := 0
	for _, event := range s.eventsAbout(name, reason) {
		count += int(event.Count)
	}
	return count
}

package integration

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// manyNodes are enough to be seen; the 5,000 that Kubernetes supports take a machine of two cores several minutes to create and
// to cordon. That their status fits is tested in drain/progress.
const manyNodes = 1000

// TestStatus looks at what maintenances say about themselves, on Nodes and in events.
func TestStatus(t *testing.T) {
	t.Parallel()
	all := newScene(t, fleet.Options{PodReadyDelay: 100 * time.Millisecond, PodDeletionDelay: 100 * time.Millisecond})
	all.withMachines("m1", "m2", "m3")

	t.Run("R37: Nodes carry the conditions of the stage, until the maintenance ends", func(t *testing.T) {
		all.sub(t).testNodeConditions()
	})
	t.Run("R14: who keeps making a Node schedulable is named, once a minute", func(t *testing.T) {
		all.sub(t).testCordonConflict()
	})
	t.Run("R8: a selection that is rarely meant is told of", func(t *testing.T) {
		all.sub(t).testSelection()
	})
	t.Run("R29: a newcomer that is fast-forwarded says so in an event", func(t *testing.T) {
		all.sub(t).testFastForward()
	})
	t.Run("R42: steady maintenances cause no writes", func(t *testing.T) {
		all.sub(t).testSteadyState()
	})
}

func (s *scene) testNodeConditions() {
	s.Helper()
	defer s.clear()
	s.runOn("m1", "web", 2, deployment("web", 2), budget("web", 0))
	s.waitForRoom("web", 0)
	s.setCondition("m1", `{"type":"Drained","status":"False","reason":"Elsewhere"}`)
	s.create(s.workload.Client, nm("upgrade", v1alpha1.StageIdle, of("m1")), nm("later", v1alpha1.StageIdle, of("m1")))

	s.expectNodeConditions("m1", v1alpha1.NodeMaintenancePlanned)
	s.Expect(s.audited().WithUserAgent(fleet.ManagerAgent).Writes().Resource("nodes")).To(BeEmpty(), "Idle touches nothing but the condition (R10)")
	s.Expect(s.audited().WithUserAgent(fleet.ManagerAgent).Writes().Resource("evacuations")).To(BeEmpty())

	s.to("upgrade", v1alpha1.StageCordon)
	s.expectNodeConditions("m1", v1alpha1.NodeMaintenancePlanned, v1alpha1.NodeMaintenanceInProgress)
	s.ends("later")
	s.expectNodeConditions("m1", v1alpha1.NodeMaintenanceInProgress)
	s.to("upgrade", v1alpha1.StageDrain)
	s.expectNodeConditions("m1", v1alpha1.NodeMaintenanceInProgress, v1alpha1.NodeDrainInProgress)
	s.setCondition("m1", `{"type":"DrainInProgress","$patch":"delete"}`)
	s.expectNodeConditions("m1", v1alpha1.NodeMaintenanceInProgress, v1alpha1.NodeDrainInProgress)
	s.Expect(isReady(s.node("m1"))).To(BeTrue(), "what the kubelet says is left alone")

	s.Expect(s.workload.Client.Delete(s.Context(), budget("web", 0))).To(Succeed())
	s.expectNodeConditions("m1", v1alpha1.NodeMaintenanceInProgress, v1alpha1.NodeDrained)
	s.ends("upgrade")
	s.expectNodeConditions("m1")
	s.Eventually(func() bool { return s.node("m1").Spec.Unschedulable }, soon, pace).Should(BeFalse())
}

func (s *scene) testCordonConflict() {
	s.Helper()
	s.create(s.workload.Client, nm("held", v1alpha1.StageCordon, of("m1")))
	for range 6 {
		s.Eventually(func() bool { return s.node("m1").Spec.Unschedulable }, soon, pace).Should(BeTrue())
		flip := fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q},"spec":{"unschedulable":false}}`, "m1")
		s.Expect(s.workload.Client.Patch(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m1"}},
			client.RawPatch(types.ApplyPatchType, []byte(flip)), client.FieldOwner("autoscaler"), client.ForceOwnership)).To(Succeed())
	}
	s.Eventually(func() bool { return s.node("m1").Spec.Unschedulable }, soon, pace).Should(BeTrue())
	s.expectEvent("held", "CordonConflict", ContainSubstring(`Field manager "autoscaler" keeps making Node m1 schedulable`))
	s.Consistently(func() int { return s.countEvents("held", "CordonConflict") }, 3*time.Second, pace).Should(Equal(1))
	s.ends("held")
}

func (s *scene) testSelection() {
	s.Helper()
	everything := nm("everything", v1alpha1.StageIdle, ofLabelled(controlplane.KubeletLabel, controlplane.KubeletLabelValue))
	s.create(s.workload.Client, everything, nm("nothing", v1alpha1.StageIdle, of("nowhere")), nm("one", v1alpha1.StageIdle, of("m1")))
	for name, reason := range map[string]string{"everything": v1alpha1.ReasonAllNodesSelected, "nothing": v1alpha1.ReasonNoNodesSelected} {
		s.Eventually(func(g Gomega) {
			condition := meta.FindStatusCondition(s.stored(name).Status.Conditions, v1alpha1.NodeMaintenanceSelectionPlausible)
			g.Expect(condition).NotTo(BeNil())
			g.Expect(condition.Status).To(Equal(metav1.ConditionFalse))
			g.Expect(condition.Reason).To(Equal(reason))
		}, soon, pace).Should(Succeed())
		s.expectEvent(name, reason, ContainSubstring("The nodeSelector selects"))
	}
	s.Eventually(func() bool {
		return meta.IsStatusConditionTrue(s.stored("one").Status.Conditions, v1alpha1.NodeMaintenanceSelectionPlausible)
	}, soon, pace).Should(BeTrue())
	s.ends("everything", "nothing", "one")
}

func (s *scene) testFastForward() {
	s.Helper()
	defer s.clear()
	s.runOn("m1", "web", 1, deployment("web", 1), budget("web", 0))
	s.runOn("m3", "slow", 1, deployment("slow", 1), budget("slow", 0))
	s.waitForRoom("web", 0)
	s.waitForRoom("slow", 0)
	s.create(s.workload.Client, nm("first", v1alpha1.StageDrain, of("m1")))
	s.expectNodeConditions("m1", v1alpha1.NodeMaintenanceInProgress, v1alpha1.NodeDrainInProgress)
	s.Eventually(func() int32 { return s.stored("first").Status.Summary.PodsEvacuating }, soon, pace).Should(BeEquivalentTo(1))

	newcomer := nm("newcomer", v1alpha1.StageDrain, of("m1", "m3"))
	newcomer.Spec.DrainRules = []v1alpha1.DrainRule{{
		Name: "web-later", Behavior: v1alpha1.DrainBehaviorDrain, Order: ptr.To[int32](100),
		Pods: []v1alpha1.DrainRulePodSelector{{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}},
	}}
	s.create(s.workload.Client, newcomer)
	s.expectEvent("newcomer", "FastForwarded", Equal("Node m1: fast-forwarded by older first"))
	s.Consistently(func() int { return s.countEvents("newcomer", "FastForwarded") }, 3*time.Second, pace).Should(Equal(1))
	s.ends("newcomer", "first")
	s.expectNodeConditions("m1")
	s.expectNodeConditions("m3")
}

// testSteadyState has a Machine whose drain is blocked, and maintenances in the other stages.
func (s *scene) testSteadyState() {
	s.Helper()
	s.runOn("m2", "stuck", 3, deployment("stuck", 3), budget("stuck", 0))
	s.waitForRoom("stuck", 0)
	s.create(s.workload.Client, nm("idle", v1alpha1.StageIdle, of("m1")), nm("cordoned", v1alpha1.StageCordon, of("m3")))
	s.deleteMachine("m2")
	s.expectNodeConditions("m1", v1alpha1.NodeMaintenancePlanned)
	s.expectNodeConditions("m3", v1alpha1.NodeMaintenanceInProgress)
	s.expectNodeConditions("m2", v1alpha1.NodeMaintenanceInProgress, v1alpha1.NodeDrainInProgress)
	s.Eventually(func() string { return s.condition("m2").Message }, soon, pace).Should(ContainSubstring("stuck"))
	s.expectNoWrites(20 * time.Second)

	s.Expect(s.workload.Client.Delete(s.Context(), budget("stuck", 0))).To(Succeed())
	s.expectGone("m2")
	s.ends("idle", "cordoned")
}

// TestManyNodes maintains more Nodes than fit into a status with all that could be said of them. They have no kubelets.
func TestManyNodes(t *testing.T) {
	t.Parallel()
	const count = manyNodes
	s := newScene(t, fleet.Options{ManagerArgs: []string{"--clustercache-client-qps=2000", "--clustercache-client-burst=4000"}})
	s.withMachines("m1") // the workload cluster is served
	s = s.sub(t)
	begin := time.Now()
	s.createNodes(count)
	t.Logf("%d Nodes created after %s", count, time.Since(begin))

	begin = time.Now()
	s.create(s.workload.Client, nm("many", v1alpha1.StageCordon, ofLabelled("many", "true")))
	s.expectOnAll(count, func(node *corev1.Node) bool {
		return node.Spec.Unschedulable && carries(node, v1alpha1.NodeMaintenanceInProgress)
	})
	t.Logf("R13: %d Nodes cordoned after %s", count, time.Since(begin))
	s.to("many", v1alpha1.StageDrain)
	s.expectOnAll(count, func(node *corev1.Node) bool { return carries(node, v1alpha1.NodeDrained) })
	t.Logf("R37: all of them drained after %s", time.Since(begin))

	m := s.stored("many")
	s.Expect(m.Status.Summary.Progress).To(Equal(fmt.Sprintf("%d/%d", count, count)))
	s.Expect(m.Status.NodeStatuses).To(HaveLen(count), "R36")
	published := progress.Targets(&m.Status)
	for _, node := range m.Status.NodeStatuses {
		s.Expect(published[node.NodeRef.Name]).NotTo(BeEmpty())
	}
	content, err := json.Marshal(m)
	s.Expect(err).NotTo(HaveOccurred())
	t.Logf("R36: the object has %d bytes and %d sets of drain targets; %d Nodes are told of in part", len(content), len(m.Status.DrainTargetSets), m.Status.Summary.Truncated)
	s.Expect(len(content)).To(BeNumerically("<", 1_000_000))
	s.expectNoWrites(15 * time.Second)

	s.Expect(s.workload.Client.Delete(s.Context(), maintenance("many"))).To(Succeed())
	s.expectOnAll(count, func(node *corev1.Node) bool {
		return !node.Spec.Unschedulable && !carries(node, v1alpha1.NodeDrained) && !carries(node, v1alpha1.NodeMaintenanceInProgress)
	})
}

func (s *scene) createNodes(count int) {
	s.Helper()
	var group errgroup.Group
	group.SetLimit(32)
	for i := range count {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i/256, i%256), Labels: map[string]string{"many": "true"}}}
		group.Go(func() error { return s.workload.Client.Create(s.Context(), node) })
	}
	s.Expect(group.Wait()).To(Succeed())
}

func (s *scene) expectOnAll(count int, holds func(*corev1.Node) bool) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		nodes := &corev1.NodeList{}
		g.Expect(s.workload.Client.List(s.Context(), nodes, client.HasLabels{"many"})).To(Succeed())
		g.Expect(nodes.Items).To(HaveLen(count))
		missing := 0
		for i := range nodes.Items {
			if !holds(&nodes.Items[i]) {
				missing++
			}
		}
		g.Expect(missing).To(BeZero())
	}, 2*eventually, time.Second).Should(Succeed())
}

// expectNoWrites waits until our manager has written nothing for three seconds, and checks that it stays so.
func (s *scene) expectNoWrites(during time.Duration) {
	s.Helper()
	writtenSince := func(settled *writes) controlplane.Events {
		workload, err := s.workload.Audit().Since(settled.workload)
		s.Expect(err).NotTo(HaveOccurred())
		management, err := s.fleet.Management.Audit().Since(settled.management)
		s.Expect(err).NotTo(HaveOccurred())
		return append(workload, management...).WithUserAgent(fleet.ManagerAgent).Writes()
	}
	settled, since := s.watchWrites(), time.Now()
	s.Eventually(func() time.Duration {
		if written := writtenSince(settled); len(written) > 0 {
			settled, since = s.watchWrites(), time.Now()
		}
		return time.Since(since)
	}, eventually, 200*time.Millisecond).Should(BeNumerically(">", 3*time.Second), "it never settles")
	settled = s.watchWrites()
	s.Consistently(func() controlplane.Events { return writtenSince(settled) }, during, time.Second).Should(BeEmpty())
}

// setCondition patches one condition of a Node, as anybody may.
func (s *scene) setCondition(node, condition string) {
	s.Helper()
	patch := fmt.Appendf(nil, `{"status":{"conditions":[%s]}}`, condition)
	s.Expect(s.workload.Client.Status().Patch(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch(types.StrategicMergePatchType, patch))).To(Succeed())
}

// expectNodeConditions waits until a Node carries these conditions of ours, and no others of ours.
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

func carries(node *corev1.Node, conditionType corev1.NodeConditionType) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == conditionType && condition.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

func (s *scene) eventsAbout(name, reason string) []corev1.Event {
	s.Helper()
	list := &corev1.EventList{}
	s.Expect(s.workload.Client.List(s.Context(), list, client.InNamespace(namespace))).To(Succeed())
	var events []corev1.Event
	for _, event := range list.Items {
		if event.InvolvedObject.Kind == "NodeMaintenance" && event.InvolvedObject.Name == name && event.Reason == reason {
			events = append(events, event)
		}
	}
	return events
}

func (s *scene) expectEvent(name, reason string, message any) {
	s.Helper()
	s.Eventually(func() []corev1.Event { return s.eventsAbout(name, reason) }, soon, pace).Should(ContainElement(HaveField("Message", message)))
}

// countEvents counts how often something was told: repeated events are counted in one object.
func (s *scene) countEvents(name, reason string) int {
	s.Helper()
	count := 0
	for _, event := range s.eventsAbout(name, reason) {
		count += int(event.Count)
	}
	return count
}

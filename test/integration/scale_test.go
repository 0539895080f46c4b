package integration

import (
	"encoding/json"
	"flag"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// manyNodes is by default twice the number of Nodes whose drain targets the status shows for each Node. The 5,000 Nodes that Kubernetes
// supports take minutes on a machine with two cores: see `make test-scale`.
var manyNodes = flag.Int("nodes", 200, "how many Nodes a maintenance of many Nodes has")

// steady is the time in which maintenances with nothing to do must not write.
const steady = time.Minute

// TestManyNodes maintains more Nodes than a status can describe in full, with maintenances in other stages and a Machine whose drain is
// blocked at the same time. The many Nodes have no kubelets.
func TestManyNodes(t *testing.T) {
	parallel(t, 90*time.Second)
	all := newScene(t, fleet.Options{ManagerArgs: []string{"--clustercache-client-qps=2000", "--clustercache-client-burst=4000"}})
	all.withMachines("m1", "m3")
	all.play(t, act{"R13, R36, R37, R42: maintains many Nodes, and writes nothing when there is nothing to do", (*scene).manyNodesAndSteady})
}

func (s *scene) manyNodesAndSteady() {
	s.withMachines("m2")
	s.runOn("m2", "stuck", 3, deployment("stuck", 3), budget("stuck", 0))
	s.expectDisruptionsAllowed("stuck", 0)
	s.create(s.workload.Client, nm("idle", idle, ofNodes("m1")), nm("cordoned", cordoned, ofNodes("m3")))
	s.deleteMachine("m2")
	count := *manyNodes
	begin := time.Now()
	s.createNodes(count)
	s.Logf("%d Nodes created after %s", count, time.Since(begin))

	begin = time.Now()
	s.create(s.workload.Client, nm("many", cordoned, ofNodesLabelled("many", "true")))
	s.expectOnAll(count, func(node *corev1.Node) bool {
		return node.Spec.Unschedulable && carries(node, v1alpha1.NodeMaintenanceInProgress)
	})
	s.Logf("R13: %d Nodes cordoned after %s", count, time.Since(begin))
	s.setStage("many", draining)
	s.expectOnAll(count, func(node *corev1.Node) bool { return carries(node, v1alpha1.NodeDrained) })
	s.Logf("R37: all of them drained after %s", time.Since(begin))
	s.expectWholeStatus("many", count)

	s.expectNodeConditions("m1", v1alpha1.NodeMaintenancePlanned)
	s.expectNodeConditions("m3", v1alpha1.NodeMaintenanceInProgress)
	s.expectNodeConditions("m2", v1alpha1.NodeMaintenanceInProgress, v1alpha1.NodeDrainInProgress)
	s.Eventually(func() string { return s.condition("m2").Message }, soon, pace).Should(ContainSubstring("stuck"))
	// The status of the policy is updated at most every ten seconds.
	s.Eventually(s.longestWaits, soon, pace).Should(ConsistOf(HaveField("Message", ContainSubstring("stuck"))))
	s.expectNoWrites(steady)

	begin = time.Now()
	s.Expect(s.workload.Client.Delete(s.Context(), maintenance("many"))).To(Succeed())
	s.expectOnAll(count, func(node *corev1.Node) bool {
		return !node.Spec.Unschedulable && !carries(node, v1alpha1.NodeDrained) && !carries(node, v1alpha1.NodeMaintenanceInProgress)
	})
	s.Logf("R16: %d Nodes released after %s", count, time.Since(begin))
	s.Expect(s.workload.Client.Delete(s.Context(), budget("stuck", 0))).To(Succeed())
	s.expectGone("m2")
}

// expectWholeStatus checks that the status of a drained maintenance has each Node and its targets, and fits into an object.
func (s *scene) expectWholeStatus(name string, nodes int) {
	s.Helper()
	s.Eventually(func() string { return s.stored(name).Status.Summary.Progress }, eventually, time.Second).Should(Equal(fmt.Sprintf("%d/%d", nodes, nodes)))
	m := s.stored(name)
	s.Expect(m.Status.NodeStatuses).To(HaveLen(nodes), "R36")
	published := progress.Targets(&m.Status)
	for _, node := range m.Status.NodeStatuses {
		s.Expect(published[node.NodeRef.Name]).NotTo(BeEmpty())
	}
	content, err := json.Marshal(m)
	s.Expect(err).NotTo(HaveOccurred())
	s.Logf("R36: the object has %d bytes and %d sets of drain targets; %d Nodes are described in part", len(content), len(m.Status.DrainTargetSets),
		m.Status.Summary.Truncated)
	s.Expect(len(content)).To(BeNumerically("<", 1_000_000))
}

func (s *scene) createNodes(count int) {
	s.Helper()
	var group errgroup.Group
	group.SetLimit(32)
	for i := range count {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i/256, i%256), Labels: map[string]string{"many": "true", stageNode: ""},
		}}
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
	}, eventually+time.Duration(count)*pace, time.Second).Should(Succeed())
}

func carries(node *corev1.Node, conditionType corev1.NodeConditionType) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == conditionType && condition.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// expectNoWrites waits until our manager has written nothing for a while, and checks that it continues to write nothing.
func (s *scene) expectNoWrites(during time.Duration) {
	s.Helper()
	writtenSince := func(settled *writes) controlplane.Events {
		workload, err := s.workload.Audit().Since(settled.workload)
		s.Expect(err).NotTo(HaveOccurred())
		management, err := s.fleet.Management.Audit().Since(settled.management)
		s.Expect(err).NotTo(HaveOccurred())
		isReading := contains(`"outcome":{"readTime"`) // of what became of evicted Pods, 1, 3 and 10 minutes after the drain
		return append(workload, management...).WithUserAgent(fleet.ManagerAgent).Writes().Where(func(e controlplane.Event) bool { return !isReading(e) })
	}
	settled, since := s.watchWrites(), time.Now()
	s.Eventually(func() time.Duration {
		if written := writtenSince(settled); len(written) > 0 {
			settled, since = s.watchWrites(), time.Now()
		}
		return time.Since(since)
	}, eventually, time.Second).Should(BeNumerically(">", aWhile), "it never settles")
	settled = s.watchWrites()
	s.Consistently(func() controlplane.Events { return writtenSince(settled) }, during, time.Second).Should(BeEmpty())
}

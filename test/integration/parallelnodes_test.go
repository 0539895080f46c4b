package integration

import (
	"slices"
	"strings"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// heldPods runs a Pod with an evacuator, which stays until the test deletes it, on each Node.
func (s *scene) heldPods(nodes ...string) (pods []*corev1.Pod) {
	s.Helper()
	for _, node := range nodes {
		pods = append(pods, bare(node, node, withEvacuator))
	}
	s.run(pods...)
	return pods
}

// expectTurns checks which Nodes of a NodeMaintenance are drained now and which ones are next.
func (s *scene) expectTurns(name string, draining, next []string) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		status := s.stored(name).Status
		g.Expect(status.Summary.NextNodes).To(Equal(next))
		active := []string{}
		for _, node := range status.NodeStatuses {
			g.Expect(node.Waiting).To(Equal(slices.Contains(next, node.NodeRef.Name)), node.NodeRef.Name)
			if !node.Waiting && !node.Drained {
				active = append(active, node.NodeRef.Name)
			}
		}
		g.Expect(active).To(Equal(draining))
	}, soon, pace).Should(Succeed())
}

func parallelNodes(s *scene) {
	nodes := []string{"r55-a", "r55-b", "r55-c", "r55-d"}
	s.withNodes(nodes...)
	pods := s.heldPods(nodes...)
	s.maintain(nm("r55", draining, ofNodes(nodes...), func(m *v1alpha1.NodeMaintenance) { m.Spec.MaxParallelNodes = ptr.To(intstr.FromString("50%")) }))
	s.expectTargets(2, pods...)
	s.expectCordoned(nodes...)
	s.expectTurns("r55", []string{"r55-a", "r55-b"}, []string{"r55-c", "r55-d"})
	s.Expect(s.nodeStatus("r55", "r55-c").DrainMessage).To(Equal("Waiting for Nodes r55-a, r55-b to be drained (maxParallelNodes allows 2)"))
	s.expectNodeConditions("r55-c", v1alpha1.NodeMaintenanceInProgress)

	s.deletePods("r55-b")
	s.expectTurns("r55", []string{"r55-a", "r55-c"}, []string{"r55-d"})
	s.deletePods("r55-a", "r55-c")
	s.expectTurns("r55", []string{"r55-d"}, nil)
	s.Expect(s.drained("r55")).To(Equal("False Draining"))
	s.deletePods("r55-d")
	s.Eventually(func() string { return s.drained("r55") }, soon, pace).Should(Equal("True Drained"))

	var order []string
	for _, event := range s.ours().Resource("evacuations").Verb("create") {
		order = append(order, event.Name)
	}
	for i, node := range []string{"r55-c", "r55-d"} {
		s.Expect(slices.IndexFunc(order, func(name string) bool { return strings.HasSuffix(name, node) })).To(BeNumerically(">=", i+2), "%v", order)
	}
	s.deleteMaintenances("r55")
	s.expectReleased(nodes...)
}

func schedulableNodes(s *scene) {
	nodes := []string{"r55-x", "r55-y"}
	s.withNodes(nodes...)
	pods := s.heldPods(nodes...)
	s.maintain(nm("r55-schedulable", draining, ofNodes(nodes...), func(m *v1alpha1.NodeMaintenance) {
		m.Spec.MaxParallelNodes, m.Spec.WaitingNodes = ptr.To(intstr.FromInt32(1)), v1alpha1.WaitingNodesSchedulable
	}))
	s.expectTargets(1, pods...)
	s.expectCordoned("r55-x")
	s.Expect(s.node("r55-y").Spec.Unschedulable).To(BeFalse())
	s.fleet.KillManager()
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	s.deletePods("r55-x")
	s.expectTurns("r55-schedulable", []string{"r55-y"}, nil)
	s.expectCordoned(nodes...)
	s.expectTargets(1, pods[1])
	s.deletePods("r55-y")
	s.Eventually(func() string { return s.drained("r55-schedulable") }, soon, pace).Should(Equal("True Drained"))
	cordons := s.first(s.nodeWrites("r55-y").Where(setsUnschedulable))
	s.expectOrder(cordons, s.first(s.ours().Resource("evacuations").Verb("create").Where(contains(`"r55-y"`))))
	s.deleteMaintenances("r55-schedulable")
	s.expectReleased(nodes...)
}

func overlappingLimit(s *scene) {
	nodes := []string{"r56-a", "r56-b", "r56-c"}
	s.withNodes(nodes...)
	pods := s.heldPods(nodes...)
	s.maintain(nm("r56", draining, ofNodes(nodes...), func(m *v1alpha1.NodeMaintenance) { m.Spec.MaxParallelNodes = ptr.To(intstr.FromInt32(1)) }))
	s.expectTurns("r56", []string{"r56-a"}, []string{"r56-b", "r56-c"})
	s.maintain(nm("r56-one", draining, ofNodes("r56-c")))
	s.expectTurns("r56", []string{"r56-a", "r56-c"}, []string{"r56-b"})
	s.expectTargets(2, pods[0], pods[2], pods[1])
	s.deletePods("r56-a")
	s.Eventually(func() bool { return s.nodeStatus("r56", "r56-a").Drained }, soon, pace).Should(BeTrue())
	s.expectTurns("r56", []string{"r56-c"}, []string{"r56-b"})
	s.deletePods("r56-c")
	s.expectTurns("r56", []string{"r56-b"}, nil)
	s.deletePods("r56-b")
	s.deleteMaintenances("r56", "r56-one")
	s.expectReleased(nodes...)
}

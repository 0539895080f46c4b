package integration

import (
	"syscall"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

func orphansAreCleanedUp(s *scene) {
	s.withNodes("r43", "r43-kept")
	left, kept := bare("r43", "r43", withEvacuator), bare("r43-kept", "r43-kept", withEvacuator)
	s.run(left, kept)
	s.maintain(nm("r43", draining, ofNodes("r43"), func(m *v1alpha1.NodeMaintenance) { m.Spec.ExcludeFromLoadBalancers = true }))
	s.maintain(nm("r43-kept", draining, ofNodes("r43-kept")))
	s.expectCordoned("r43", "r43-kept")
	s.expectTargets(2, left, kept)
	for _, node := range []string{"r43", "r43-kept"} {
		s.expectNodeConditions(node, v1alpha1.NodeMaintenanceInProgress, v1alpha1.NodeDrainInProgress)
	}

	s.Expect(s.node("r43").Labels).To(HaveKey(corev1.LabelNodeExcludeBalancers))

	s.fleet.KillManager()
	s.Expect(s.workload.Client.Patch(s.Context(), maintenance("r43"), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).
		To(Succeed())
	s.deleteMaintenances("r43") // without completion
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	s.expectReleased("r43")
	s.Expect(s.node("r43").Labels).NotTo(HaveKey(corev1.LabelNodeExcludeBalancers), "R49")
	s.Expect(s.node("r43").Annotations).NotTo(HaveKey(v1alpha1.ExcludedFromLoadBalancersAnnotation), "R49")
	s.expectNodeConditions("r43")
	s.Eventually(func() *v1alpha1.Evacuation { return s.evacuation(left) }, soon, pace).Should(BeNil())
	s.Expect(s.pod("r43").UID).To(Equal(left.UID))

	s.expectCordoned("r43-kept")
	s.expectTargets(1, kept)
	s.expectNodeConditions("r43-kept", v1alpha1.NodeMaintenanceInProgress, v1alpha1.NodeDrainInProgress)
	s.deleteMaintenances("r43-kept")
}

// vanishesAtRuntime deletes a NodeMaintenance without its finalizer while the manager is frozen, so that the manager cannot complete it.
func vanishesAtRuntime(s *scene) {
	s.withNodes("r64")
	waiting, pending := bare("r64-waiting", "r64", withEvacuator), bare("r64-pending", "r64", withApp("r64"))
	s.create(s.workload.Client, budget("r64", 0))
	s.run(waiting, pending)
	s.maintain(nm("r64-other", cordoned, ofNodes("m1"))) // the watch of Nodes has begun, and does not end
	s.maintain(nm("r64", draining, ofNodes("r64"), func(m *v1alpha1.NodeMaintenance) { m.Spec.ExcludeFromLoadBalancers = true }))
	s.expectTargets(2, waiting, pending)
	s.Eventually(func() string { return s.activeClass(waiting) }, soon, pace).Should(Equal(evacuatorClass))

	s.Expect(s.fleet.Manager.Signal(syscall.SIGSTOP)).To(Succeed())
	s.Expect(s.workload.Client.Delete(s.Context(), maintenance("r64"))).To(Succeed())
	s.Expect(s.workload.Client.Patch(s.Context(), maintenance("r64"), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).
		To(Succeed())
	s.deleteMaintenances("r64")
	s.Expect(s.fleet.Manager.Signal(syscall.SIGCONT)).To(Succeed())

	s.expectReleased("r64")
	s.expectNodeConditions("r64")
	s.Expect(s.node("r64").Labels).NotTo(HaveKey(corev1.LabelNodeExcludeBalancers))
	s.Eventually(func(g Gomega) {
		g.Expect(s.evacuation(waiting)).To(BeNil())
		g.Expect(s.evacuation(pending)).To(BeNil())
	}, soon, pace).Should(Succeed())
	s.Expect(s.workload.Client.Delete(s.Context(), budget("r64", 0))).To(Succeed())
	s.Consistently(func() int { return len(s.evictions()) }, aMoment, pace).Should(BeZero())
	s.deleteMaintenances("r64-other")
}

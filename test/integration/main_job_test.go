package integration

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

// TestMainJob deletes Machines whose Nodes run Pods, with Cluster API's core manager. Before that, the manager has nothing to do.
func TestMainJob(t *testing.T) {
	parallel(t, 110*time.Second)
	all := newScene(t, fleet.Options{PodReadyDelay: time.Second, PodDeletionDelay: time.Second})
	all.withMachines("m1", "m2", "m3")
	all.play(t, idleActs...)
	t.Run("a manager that stops while it connects to a Cluster releases the lease", func(t *testing.T) { all.sub(t).leaseIsReleased() })

	t.Run("reports in the status of a policy which Machines follow it", func(t *testing.T) {
		s := all.sub(t)
		s.Eventually(func(g Gomega) {
			policy := read(g, s.fleet.Client, keyOf("all"), &v1alpha1.MachineDrainPolicy{})
			g.Expect(policy.Status.Clusters).To(BeEquivalentTo(1))
			g.Expect(policy.Status.Machines).To(BeEquivalentTo(3))
			g.Expect(policy.Status.ActiveDrains).To(BeZero())
		}, soon, pace).Should(Succeed())
	})

	t.Run("E18, M12: evicts twenty Pods, two at a time, without a refused eviction, with few writes and no read of Pods", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		s.runOn("m1", "web", 20, deployment("web", 20), budget("web", 2))
		s.expectDisruptionsAllowed("web", 2)
		s.deleteMachine("m1")
		s.expectGone("m1")
		s.Expect(s.evictions().Succeeded()).To(HaveLen(20))
		s.expectNoneRefused()
		s.expectInvariants()
		s.expectCosts(20)
		s.Expect(s.audited().WithUserAgent(fleet.CoreAgent).Writes().Resource("nodes").Verb("patch", "update").Where(setsUnschedulable)).
			To(BeEmpty(), "Cluster API cordons a second time")
		stops := s.audited().By(kwok.ProviderUser).Verb("patch").Resource("nodes").Named("", "m1").Where(contains(controlplane.KubeletLabel))
		s.Expect(stops).NotTo(BeEmpty(), "the provider stops the kubelet, and may repeat it")
	})

	t.Run("M4: follows MachineDrainRules and labels: Skip, WaitCompleted and drain order", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		s.create(s.fleet.Client,
			drainRule("10-monitoring", "monitoring", clusterv1.MachineDrainRuleDrainBehaviorSkip, nil),
			drainRule("20-storage", "storage", clusterv1.MachineDrainRuleDrainBehaviorDrain, ptr.To[int32](100)),
		)
		s.runOn("m2", "monitoring", 2, deployment("monitoring", 2))
		s.runOn("m2", "labelled", 1, deployment("labelled", 1, labelled(clusterv1.PodDrainLabel, "skip")))
		s.runOn("m2", "storage", 3, deployment("storage", 3))
		s.runOn("m2", "api", 5, deployment("api", 5))
		job := bare("job", "m2", func(pod *corev1.Pod) {
			pod.Spec.RestartPolicy = corev1.RestartPolicyNever
			pod.Labels[clusterv1.PodDrainLabel] = "Wait-Completed"
		})
		s.run(job)
		staying := append(append(s.podsOf("monitoring"), s.podsOf("labelled")...), s.podsOf("job")...)
		storage, api := s.podsOf("storage"), s.podsOf("api")

		s.deleteMachine("m2")
		s.Eventually(func(g Gomega) {
			g.Expect(s.condition("m2").Reason).To(Equal(v1alpha1.ReasonMachineDraining))
			g.Expect(s.condition("m2").Message).To(ContainSubstring("Waiting for completion (label cluster.x-k8s.io/drain: wait-completed)"))
		}, soon, pace).Should(Succeed())
		s.annotate(job, controlplane.PodCompleteAfterAnnotation, "10ms")
		s.expectGone("m2")

		s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf(append(names(storage), names(api)...)))
		s.expectInvariants(staying...)
		s.expectGoneBefore(api, storage)
	})

	t.Run("M9: does not drain a deleted Machine without the hook, which Cluster API drains", func(t *testing.T) {
		s := all.sub(t)
		s.leavesToCore("no policy selects this Machine")
		defer s.removeWorkloads()
		s.runOn("m3", "left", 5, deployment("left", 5))
		s.setPolicy(func(policy *v1alpha1.MachineDrainPolicy) { policy.Spec.MachineSelector = notLabelled("unmanaged") })
		s.change("m3", func(machine *clusterv1.Machine) {
			delete(machine.Annotations, v1alpha1.PreDrainHookAnnotation)
			machine.Labels["unmanaged"] = "true"
		})
		s.Eventually(func() map[string]string { return s.machine("m3").Annotations }, soon, pace).ShouldNot(HaveKey(v1alpha1.PreDrainHookAnnotation))
		s.deleteMachine("m3")
		s.expectGone("m3")
		s.Expect(s.evictions()).To(BeEmpty())
		s.Expect(s.audited().WithUserAgent(fleet.CoreAgent).Resource("pods", "eviction")).NotTo(BeEmpty())
	})
}

package integration

import (
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
)

// drainsZoneAfterZone drains two Machines in one zone, and then one in another zone.
func (s *scene) drainsZoneAfterZone() {
	before := read(s, s.fleet.Client, keyOf("all"), &v1alpha1.MachineDrainPolicy{}).Spec.MaxParallelDrains
	s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) {
		p.Spec.MaxParallelDrains = nil
		p.Spec.MaxParallelDrainsPerTopology = v1alpha1.TopologyDrainLimit{Key: corev1.LabelTopologyZone}
	})
	defer s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) {
		p.Spec.MaxParallelDrains, p.Spec.MaxParallelDrainsPerTopology = before, v1alpha1.TopologyDrainLimit{}
	})
	policy := read(s, s.fleet.Client, keyOf("all"), &v1alpha1.MachineDrainPolicy{})
	s.Expect(policy.Spec.MaxParallelDrainsPerTopology.MaxDomains).To(BeEquivalentTo(1), "the default")
	for _, invalid := range []v1alpha1.TopologyDrainLimit{{MaxDomains: 2}, {Key: "not a key"}, {Key: "a", MaxDomains: -1}, {Key: "a", MaxDomains: 1001}} {
		changed := policy.DeepCopy()
		changed.Spec.MaxParallelDrainsPerTopology = invalid
		s.Expect(s.fleet.Client.Patch(s.Context(), changed, client.MergeFrom(policy), client.DryRunAll)).
			To(MatchError(ContainSubstring("maxParallelDrainsPerTopology")), "%+v", invalid)
	}

	first, second, third := "pearl-1", "pearl-2", "pearl-3"
	for name, zone := range map[string]string{first: "zone-x", second: "zone-x", third: "zone-y"} {
		s.create(s.fleet.Client, s.cluster.Machine(name, kwok.With(func(m *clusterv1.Machine) { deletesNode(&m.Spec) }),
			kwok.With(func(m *infrav1.KwokMachine) { m.Spec.Zone = zone }))...)
	}
	s.expectRunning(first, second, third)
	s.create(s.workload.Client, budget("quorum", 0))
	s.run(bare("quorum-1", first, withApp("quorum")), bare("quorum-2", second, withApp("quorum")), bare("quorum-3", third, withApp("quorum")))
	for _, name := range []string{first, second, third} {
		s.deleteMachine(name)
	}
	s.Eventually(func() []string { return s.staged(v1alpha1.StageDrain) }, soon, pace).Should(ConsistOf(first, second))
	s.Eventually(func() string { return s.condition(third).Reason }, soon, pace).Should(Equal(v1alpha1.ReasonWaitingForTurn))
	s.Eventually(func() string { return s.condition(third).Message }, soon, pace).Should(ContainSubstring(
		"Waiting for Nodes of Cluster c1 in other domains of topology.kubernetes.io/zone to be drained: zone-x. This Node is in zone-y " +
			"(maxParallelDrainsPerTopology allows 1). Machine pearl-"))
	s.expectCordoned(third)
	s.Expect(s.staged(v1alpha1.StageDrain)).To(ConsistOf(first, second))

	s.Expect(s.workload.Client.Delete(s.Context(), budget("quorum", 0))).To(Succeed())
	for _, name := range []string{first, second, third} {
		s.expectGone(name)
	}
	begun := s.ours().Resource("nodemaintenances").Verb("create", "patch").Where(contains(`"stage":"Drain"`)).Named("", s.drainsBegun()[2])
	s.Expect(begun).To(HaveLen(1))
	for _, name := range []string{first, second} {
		releases := s.managed().By(fleet.ManagerUser).Resource("machines").Succeeded().Named(namespace, name).Where(fleet.ReleasesHook)
		s.Expect(releases).To(HaveLen(1), name)
		s.Expect(begun[0].Requested.Sub(releases[0].Requested)).To(BeNumerically(">", time.Duration(0)), name)
	}
	s.expectInvariants()
}

// drainsAfterReplacement drains two Machines. The replacement of the first one's Pod is Pending until another Node is there. They have a
// separate policy, since drains of other scenes, whose Pods have no replacements, count for that of these scenes.
func (s *scene) drainsAfterReplacement() {
	policy := read(s, s.fleet.Client, keyOf("all"), &v1alpha1.MachineDrainPolicy{})
	policy = &v1alpha1.MachineDrainPolicy{ObjectMeta: metaNamed("a-coral", ""), Spec: policy.Spec} // before "all" by name
	policy.Namespace, policy.Spec.MachineSelector = namespace, &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"pace": "coral"}}
	policy.Spec.NextDrain, policy.Spec.ReplacementTimeoutSeconds = v1alpha1.NextDrainWhenReplaced, ptr.To[int32](3600)
	policy.Spec.MaxParallelDrains = ptr.To(intstr.FromInt32(1))
	for why, invalid := range map[string]func(*v1alpha1.MachineDrainPolicySpec){
		"requires replacementTimeoutSeconds":  func(spec *v1alpha1.MachineDrainPolicySpec) { spec.ReplacementTimeoutSeconds = nil },
		"requires nextDrain WhenReplaced":     func(spec *v1alpha1.MachineDrainPolicySpec) { spec.NextDrain = v1alpha1.NextDrainImmediately },
		"requires maxParallelDrains or":       func(spec *v1alpha1.MachineDrainPolicySpec) { spec.MaxParallelDrains = nil },
		"spec.replacementTimeoutSeconds: Inv": func(spec *v1alpha1.MachineDrainPolicySpec) { spec.ReplacementTimeoutSeconds = ptr.To[int32](3601) },
	} {
		changed := policy.DeepCopy()
		invalid(&changed.Spec)
		s.Expect(s.fleet.Client.Create(s.Context(), changed, client.DryRunAll)).To(MatchError(ContainSubstring(why)))
	}
	s.create(s.fleet.Client, policy)
	defer func() { s.Expect(s.fleet.Client.Delete(s.Context(), policy)).To(Succeed()) }()

	first, second := "coral-1", "coral-2"
	s.withMachines(first, second)
	for _, name := range []string{first, second} {
		machine := s.machine(name)
		s.patch(s.fleet.Client, machine, func() { machine.Labels["pace"] = "coral" })
	}
	s.Eventually(func() int32 {
		return read(s, s.fleet.Client, client.ObjectKeyFromObject(policy), &v1alpha1.MachineDrainPolicy{}).Status.Machines
	}, soon, pace).Should(BeEquivalentTo(2))
	place := func(pod *corev1.PodTemplateSpec) { pod.Spec.NodeSelector = map[string]string{"place": "coral"} }
	label := func(name string) {
		node := s.node(name)
		s.patch(s.workload.Client, node, func() { node.Labels["place"] = "coral" })
	}
	label(first)
	s.create(s.workload.Client, deployment("coral", 1, place))
	s.Eventually(func() []string { return s.nodesOf("coral") }, eventually, pace).Should(ConsistOf(first))
	s.deleteMachine(first)
	s.expectGone(first)
	s.deleteMachine(second)
	s.Eventually(func() string { return s.condition(second).Reason }, soon, pace).Should(Equal(v1alpha1.ReasonWaitingForTurn))
	s.Eventually(func() string { return s.condition(second).Message }, soon, pace).Should(ContainSubstring(
		"The drain of Machine coral-1 has ended, and counts until its Pods are replaced by ready ones, until "))
	s.Eventually(func() int32 {
		for _, recent := range read(s, s.fleet.Client, client.ObjectKeyFromObject(policy), &v1alpha1.MachineDrainPolicy{}).Status.RecentDrains {
			if recent.Machine == first {
				return recent.Pods.Pending
			}
		}
		return 0
	}, eventually, pace).Should(BeEquivalentTo(1))
	s.Expect(s.staged(v1alpha1.StageDrain)).To(BeEmpty())
	s.Expect(s.nodesOf("coral")).To(BeEmpty())

	s.withMachines("coral-3")
	label("coral-3")
	s.expectGone(second)
	s.Expect(s.nodesOf("coral")).To(ConsistOf("coral-3"))
	s.expectInvariants()
}

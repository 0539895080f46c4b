package integration

import (
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/storage"
)

// The 110 Pods of a Node, which is the kubelet's default limit. Besides these, one Pod has an evacuator and one has a volume.
const (
	crowdPods   = 101 // are evicted immediately
	tightPods   = 3   // have a PodDisruptionBudget that allows no disruption
	refusedPods = 4   // an admission policy denies their eviction
)

// fullNode drains a Node of 110 Pods, some of which are blocked, and checks what users see. It returns the Machine and the Pods, and how
// often an eviction was refused.
func (s *scene) fullNode(a *storage.Attacher) (machine types.UID, pods []*corev1.Pod, refused float64) {
	s.mayBeRefused("an admission policy denies evictions")
	s.withVolumes("full")
	a.Hold("full")
	asking := bare("asking", "full", withEvacuator)
	pods = []*corev1.Pod{asking, bare("full", "full", mounting("full"))}
	for name, count := range map[string]int{"crowd": crowdPods, "tight": tightPods, "refused": refusedPods} {
		for i := range count {
			pods = append(pods, bare(fmt.Sprintf("%s-%d", name, i), "full", withApp(name)))
		}
	}
	s.create(s.workload.Client, budgetRequiring("tight", tightPods))
	s.run(pods...)
	s.expectAttached("full", "full")
	s.expectHealthy("tight", tightPods)
	binding := s.refuseEvictions("refused", "not before the end of the quarter")
	before, machine := s.metrics(), s.machine("full").UID
	since := func(name string, labels ...string) func() float64 {
		return func() float64 { return s.metrics().Sum(name, pairs(labels)) - before.Sum(name, pairs(labels)) }
	}

	s.deleteMachine("full")
	s.Eventually(func() []corev1.Pod { return s.podsOf("crowd") }, eventually, pace).Should(BeEmpty())
	s.Eventually(since("capnm_drains_in_progress"), soon, pace).Should(BeEquivalentTo(1))
	s.Eventually(since("capnm_pods_blocked", "cluster", "c1", "reason", string(budgets.BudgetExhausted)), soon, pace).Should(BeEquivalentTo(tightPods))
	s.Eventually(since("capnm_pods_blocked", "cluster", "c1", "reason", v1alpha1.ReasonAdmissionPolicyRefused), soon, pace).Should(BeEquivalentTo(refusedPods))
	s.Eventually(since("capnm_evacuations_total", "evacuator_class", "other"), soon, pace).Should(BeEquivalentTo(1))
	s.Expect(s.metrics().Sum("capnm_connected_clusters", nil)).To(BeEquivalentTo(1))
	s.Eventually(s.longestWaits, soon, pace).Should(ConsistOf(And(
		HaveField("Machine", "full"), HaveField("Cluster", "c1"), HaveField("Since", *s.machine("full").DeletionTimestamp),
		HaveField("Reason", v1alpha1.ReasonMachineDraining), HaveField("Message",
			MatchRegexp(`Pods? default/(refused|tight)-\d.*: (Waiting for PodDisruptionBudget default/tight|An admission policy refused the eviction)`)),
	)))
	s.Expect(since("capnm_hook_wait_seconds")()).To(BeZero())
	deleted := s.machine("full").DeletionTimestamp.Unix()
	s.Expect(since("capnm_drain_start_timestamp_seconds", "reason", v1alpha1.ReasonMachineDraining)()).To(BeNumerically("~", deleted, 60))

	s.editBudget("tight", func(pdb *policyv1.PodDisruptionBudget) { pdb.Spec.Selector = labelSelector("app", "others") })
	s.Expect(s.workload.Client.Delete(s.Context(), binding)).To(Succeed())
	s.deletePods("asking")
	s.expectWaitsForVolumes("full", "default/full")
	s.Eventually(since("capnm_volumes_waited_for"), soon, pace).Should(BeEquivalentTo(1))
	s.Expect(since("capnm_volume_wait_start_timestamp_seconds")()).To(BeNumerically(">=", deleted))
	s.detach(a, "full")
	s.expectGone("full")

	evicted, refused := since("capnm_evictions_total", "result", "evicted")(), since("capnm_evictions_total", "result", "refused")()
	s.Expect(evicted).To(BeEquivalentTo(len(pods)-1), "all but the Pod that its evacuator deleted")
	s.Expect(since("capnm_evacuations_total", "evacuator_class", "eviction")()).To(Equal(evicted))
	s.Expect(refused).To(BeNumerically(">=", refusedPods))
	s.Expect(since("capnm_evictions_total", "result", "error")()).To(BeZero())
	s.Expect(since("capnm_drain_duration_seconds", "reason", v1alpha1.ReasonMachineDrained)()).To(BeEquivalentTo(1))
	s.Expect(since("capnm_hook_wait_seconds", "reason", v1alpha1.ReasonMachineDrained)()).To(BeEquivalentTo(1))
	for _, gauge := range []string{
		"capnm_drains_in_progress", "capnm_drain_start_timestamp_seconds", "capnm_volumes_waited_for", "capnm_volume_wait_start_timestamp_seconds",
		"capnm_pods_blocked",
	} {
		s.Eventually(since(gauge), soon, pace).Should(BeZero(), gauge)
	}
	s.Eventually(s.longestWaits, soon, pace).Should(BeEmpty())
	s.expectFewPolicyWrites()
	s.expectBoundedLabels(append(pods, bare("full", "full"))...)
	return machine, pods, refused
}

func (s *scene) metrics() fleet.Metrics {
	s.Helper()
	metrics, err := s.fleet.Manager.Metrics(s.Context())
	s.Expect(err).NotTo(HaveOccurred())
	return metrics
}

func pairs(labels []string) map[string]string {
	all := map[string]string{}
	for i := 0; i < len(labels); i += 2 {
		all[labels[i]] = labels[i+1]
	}
	return all
}

// longestWaits returns the blocked drains in the status of the policy.
func (s *scene) longestWaits() []v1alpha1.DrainWait {
	s.Helper()
	policy := read(s, s.fleet.Client, keyOf("all"), &v1alpha1.MachineDrainPolicy{})
	return policy.Status.LongestWaits
}

// expectFewPolicyWrites checks that the policy's status was written once for each change of its numbers, which are that the Machine exists,
// is deleted, released and gone, and for what the drain waits for at most every ten seconds, however often that changes. What became of the
// Pods of this drain and of earlier ones is written at other times.
func (s *scene) expectFewPolicyWrites() {
	s.Helper()
	writes := s.managed().WithUserAgent(fleet.ManagerAgent).Writes().Resource("machinedrainpolicies", "status")
	lasted := writes[len(writes)-1].Answered.Sub(writes[0].Requested)
	writes = writes.Where(func(event controlplane.Event) bool { return !contains(`"recentDrains"`)(event) })
	s.Expect(len(writes)).To(BeNumerically("<=", 4+1+int(lasted/(10*time.Second))), "in %s: %s", lasted, writes)
}

// expectBoundedLabels checks that no label of our metrics is a Pod or a Node, and that each metric has few series.
func (s *scene) expectBoundedLabels(pods ...*corev1.Pod) {
	s.Helper()
	names := map[string]bool{}
	for _, pod := range pods {
		names[pod.Name], names[string(pod.UID)], names[pod.Spec.NodeName] = true, true, true
	}
	for name, family := range s.metrics() {
		if !strings.HasPrefix(name, "capnm_") {
			continue
		}
		s.Expect(len(family.GetMetric())).To(BeNumerically("<=", 20), name)
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				s.Expect(names).NotTo(HaveKey(label.GetValue()), "%s{%s}", name, label.GetName())
			}
		}
	}
}

// expectFewEvents checks the events of a drain: one for each Pod, two for the Machine, and one for each refused Pod that counts the
// repetitions. The number of events does not grow with time.
func (s *scene) expectFewEvents(machine types.UID, pods []*corev1.Pod, refused float64) {
	s.Helper()
	ofPods := map[types.UID]bool{}
	for _, pod := range pods {
		ofPods[pod.UID] = true
	}
	var told map[string]int
	s.Eventually(func(g Gomega) {
		var objects map[types.UID]int
		told, objects = s.eventsOf(g, s.workload.Client, func(event corev1.Event) bool {
			ofEvacuation := event.InvolvedObject.Kind == "Evacuation" && strings.Contains(event.InvolvedObject.Name, "-refused-")
			return event.Source.Component == "capnm" && (ofPods[event.InvolvedObject.UID] || ofEvacuation)
		})
		g.Expect(told).To(Equal(map[string]int{"EvictedForMaintenance": len(pods) - 1, "EvictionRefused": refusedPods}))
		for object, count := range objects {
			g.Expect(count).To(Equal(1), "%s", object)
		}
		told, _ = s.eventsOf(g, s.fleet.Client, func(event corev1.Event) bool {
			return event.InvolvedObject.UID == machine && strings.HasPrefix(event.Source.Component, "node-maintenance")
		})
		g.Expect(told).To(Equal(map[string]int{"NodeDrainRequested": 1, "NodeMaintenanceHookReleased": 1}))
	}, soon, pace).Should(Succeed())

	ours := func(events controlplane.Events) int {
		return len(events.WithUserAgent(fleet.ManagerAgent).Writes().Resource("events"))
	}
	s.Expect(ours(s.managed())).To(Equal(2))
	const ofNodeMaintenance = 2
	s.Expect(ours(s.audited())).To(BeNumerically("<=", len(pods)-1+int(refused)+ofNodeMaintenance))
}

// eventsOf counts the events that ours matches, by reason and by object.
func (s *scene) eventsOf(g Gomega, c client.Client, ours func(corev1.Event) bool) (reasons map[string]int, objects map[types.UID]int) {
	s.Helper()
	list := &corev1.EventList{}
	g.Expect(c.List(s.Context(), list, client.InNamespace(namespace))).To(Succeed())
	reasons, objects = map[string]int{}, map[types.UID]int{}
	for _, event := range list.Items {
		if ours(event) {
			reasons[event.Reason]++
			objects[event.InvolvedObject.UID]++
		}
	}
	return reasons, objects
}

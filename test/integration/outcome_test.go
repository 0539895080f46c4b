package integration

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// outcomeTimeout exceeds the three minutes after which a Pod counts as without a place.
const outcomeTimeout = 6 * time.Minute

// TestDrainOutcome drains Nodes with Pods that find a new place and Pods that do not. The scheduler is real.
func TestDrainOutcome(t *testing.T) {
	parallel(t, 260*time.Second)
	all := newScene(t, fleet.Options{PodReadyDelay: 200 * time.Millisecond, PodDeletionDelay: 200 * time.Millisecond})
	all.withMachines("m1", "m2", "spare")
	onlyOn := func(node string) func(*corev1.PodTemplateSpec) {
		return func(template *corev1.PodTemplateSpec) {
			template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
		}
	}

	t.Run("K61, M150, M151, M153, R87: says which evicted Pods are replaced, Pending or gone: policy, NodeMaintenance, metric and events", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		s.runOn("m1", "web", 3, deployment("web", 3))
		s.create(s.workload.Client, deployment("pinned", 1, onlyOn("m1")))
		s.run(bare("debug", "m1"))
		s.Eventually(func(g Gomega) {
			g.Expect(s.podsOf("pinned")).To(ConsistOf(HaveField("Status.Phase", corev1.PodRunning)))
		}, eventually, pace).Should(Succeed())
		uid := string(s.machine("m1").UID)
		s.deleteMachine("m1")
		s.expectGone("m1")

		of := v1alpha1.EvictedPods{Evicted: 5, Ready: 3, Pending: 1, NotReplaced: 1}
		s.Eventually(func(g Gomega) { g.Expect(s.recentDrain(g, uid).Pods).To(Equal(of)) }, outcomeTimeout, pace).Should(Succeed())

		s.runOn("m2", "shop", 2, deployment("shop", 2))
		byHand := maintenance("by-hand", ofNodes("m2"), func(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = v1alpha1.StageDrain })
		s.create(s.workload.Client, byHand)
		s.Eventually(func(g Gomega) {
			outcome := read(g, s.workload.Client, client.ObjectKeyFromObject(byHand), &v1alpha1.NodeMaintenance{}).Status.Outcome
			g.Expect(outcome).NotTo(BeNil())
			g.Expect(outcome.Pods.Evicted).To(BeNumerically(">=", 2), "the Pods of shop, and maybe replacements of web")
			g.Expect(outcome.Pods.Ready).To(Equal(outcome.Pods.Evicted))
			g.Expect(outcome.Applications).To(BeEmpty())
		}, outcomeTimeout, pace).Should(Succeed())

		s.Eventually(func() float64 { return s.metrics().Sum("capnm_pods_without_place", map[string]string{"cluster": "c1"}) }, outcomeTimeout, pace).
			Should(BeEquivalentTo(2))
		drain := s.recentDrain(s, uid)
		s.Expect(drain.Pods).To(Equal(of))
		s.Expect(drain.Machine + " " + drain.Cluster + " " + drain.Node).To(Equal("m1 c1 m1"))
		s.Expect(drain.Applications).To(HaveExactElements(
			And(HaveField("Controller", "Pod default/debug"), HaveField("Why", "The Pod has no controller that recreates it")),
			And(HaveField("Controller", "Deployment default/pinned"), HaveField("Why", ContainSubstring("nodes are available"))),
		), "web is not read again")
		s.pluginSaysOutcome(drain)
		s.Eventually(func(g Gomega) {
			events := &corev1.EventList{}
			g.Expect(s.fleet.Client.List(s.Context(), events, client.InNamespace(namespace))).To(Succeed())
			var messages []string
			for _, event := range events.Items {
				if event.Reason == "PodsWithoutPlace" {
					messages = append(messages, event.InvolvedObject.Kind+": "+event.Message)
				}
			}
			g.Expect(messages).To(ConsistOf(And(
				HavePrefix("MachineDrainPolicy: After the drain of Node m1 (Machine m1, Cluster c1), 2 evicted Pods have no place: "),
				ContainSubstring("1 Pod of Pod default/debug"), ContainSubstring("1 Pod of Deployment default/pinned"),
			)))
		}, soon, pace).Should(Succeed())
	})
}

// pluginSaysOutcome checks what status says about a drain, for a user with the roles of the plugin (K61).
func (s *scene) pluginSaysOutcome(drain v1alpha1.RecentDrain) {
	s.Helper()
	reader, _ := s.pluginUser("outcome", "management-reader", "workload-reader")
	for _, args := range [][]string{{"status"}, {"status", "machine", "m1"}} {
		output, _, code := s.plugin(reader, args...)
		s.Expect(code).To(BeZero())
		s.Expect(output).To(MatchRegexp(`Machine default/m1, ended \S+ ago: 5 evicted: 3 replaced and ready, 1 Pending, 1 not replaced; read \S+ after the drain\n`))
		for _, application := range drain.Applications {
			s.Expect(output).To(ContainSubstring(application.Controller + ": 1 evicted: "))
			s.Expect(output).To(ContainSubstring(". " + application.Why + "\n"))
		}
		s.Expect(output).NotTo(MatchRegexp("(?i)No right to .* machinedrainpolicies"))
	}
}

// recentDrain returns the drain of a deleted Machine in the status of the policy.
func (s *scene) recentDrain(g Gomega, uid string) v1alpha1.RecentDrain {
	for _, drain := range read(g, s.fleet.Client, keyOf("all"), &v1alpha1.MachineDrainPolicy{}).Status.RecentDrains {
		if drain.MachineUID == uid {
			return drain
		}
	}
	g.Expect(uid).To(BeEmpty(), "the drain is not in the status of the policy")
	return v1alpha1.RecentDrain{}
}

package integration

import (
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/recording"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// TestTraces drains Nodes with a manager that sends traces to Jaeger.
func TestTraces(t *testing.T) {
	parallel(t, 90*time.Second)
	jaeger := startCollector(t)
	flag := tracingConfig(t, jaeger.otlp)
	all := newScene(t, fleet.Options{PodReadyDelay: 200 * time.Millisecond, PodDeletionDelay: time.Second, ManagerArgs: []string{flag}})
	all.withMachines("traced", "daemons", "crashed", "hung")

	t.Run("M70, M72, M74, M75, M150: a deletion is a trace of its parts, drain orders, Pods and waits, which agrees with the audit log", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		tracedDeletion(s, jaeger)
	})
	t.Run("M70: the drain of the Pods of DaemonSets is a separate part, after the volumes", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		tracedDaemonSets(s, jaeger)
	})
	t.Run("M70, M72, K26: the traces of a rollout, their report and that of a recording have the durations and the order of the audit log", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		tracedRollout(s, jaeger)
	})
	t.Run("M71: a manager that is killed during a drain continues the trace and repeats no span", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		tracedCrash(s, jaeger)
	})
	t.Run("R50: the NodeMaintenance of a user is a trace, which says what became of the evicted Pods", func(t *testing.T) {
		tracedMaintenance(all.sub(t), jaeger)
	})
	t.Run("M73: a collector that never answers delays no drain", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		hangingCollector(s)
	})
}

func tracedDeletion(s *scene, jaeger *collector) {
	s.setPolicy(func(policy *v1alpha1.MachineDrainPolicy) { policy.Spec.MaxParallelDrains = ptr.To(intstr.FromInt32(1)) })
	s.create(s.fleet.Client, drainRule("last", "storage", clusterv1.MachineDrainRuleDrainBehaviorDrain, ptr.To[int32](100)))
	s.runOn("traced", "web", 4, deployment("web", 4), budget("web", 1))
	s.runOn("traced", "storage", 2, deployment("storage", 2))
	refused := bare("refused", "traced")
	s.run(refused)
	s.expectDisruptionsAllowed("web", 1)
	policy := s.refuseEvictions("refused", "not yet")
	web, storage := s.podsOf("web"), s.podsOf("storage")
	before := s.metrics()

	machine := s.machine("traced")
	s.deleteMachine("traced")
	machineDeleted := s.machine("traced").DeletionTimestamp.Time
	s.expectRefused(refused, v1alpha1.ReasonAdmissionPolicyRefused, "not yet")
	s.Expect(s.workload.Client.Delete(s.Context(), policy)).To(Succeed())
	s.expectGone("traced")

	trace := jaeger.traceOf(s, machine.UID)
	s.Logf("the trace:\n%s", trace.tree())
	trace.expectWhole()
	root, drain := trace.one("delete Machine"), trace.one("stage Drain")
	s.Expect(root.Tags).To(And(HaveKeyWithValue("k8s.node.name", "traced"), HaveKeyWithValue("capnm.machine.name", "traced"),
		HaveKeyWithValue("capnm.outcome", v1alpha1.ReasonMachineDrained)))
	s.Expect(namesOf(trace.childrenOf(root))).To(ConsistOf("await turn", "stage Drain", "detach volumes", "release hook"))
	s.Expect(namesOf(trace.childrenOf(drain))).To(Equal([]string{"drain order 0", "drain order 100"}))
	s.Expect(trace.childrenOf(trace.one("drain order 0"))).To(HaveLen(len(web) + 1))
	s.Expect(trace.childrenOf(trace.one("drain order 100"))).To(HaveLen(len(storage)))

	waited := trace.named("await PodDisruptionBudget")
	s.Expect(len(waited)).To(BeNumerically(">=", len(web)-1))
	for _, each := range waited {
		s.Expect(each.Tags).To(And(HaveKeyWithValue("capnm.waits_for", "PodDisruptionBudget default/web"), HaveKey("k8s.pod.name"),
			HaveKeyWithValue("k8s.namespace.name", namespace)))
	}
	s.Expect(trace.childrenOf(trace.evacuationOf(refused))).To(ContainElement(And(HaveField("Name", "eviction refused"),
		HaveField("Tags", HaveKeyWithValue("capnm.reason", v1alpha1.ReasonAdmissionPolicyRefused)))))
	trace.expectAsAudited(append(web, *refused), storage)
	byBudget := trace.where(func(each span) bool {
		name, _ := each.Tags["k8s.pod.name"].(string)
		return each.Name == "terminate" && strings.HasPrefix(name, "web-")
	})
	for i, eviction := range s.evictionsOf("web-") { // each waits for the replacement of the previous Pod
		s.Expect(byBudget[i].Tags).To(HaveKeyWithValue("k8s.pod.name", eviction.Name))
	}

	trace.expectOutcome(jaeger, machine.UID, len(web)+len(storage)+1, 1)
	report := jaeger.report(s, machine.UID)
	s.Expect(*report).To(And(HaveField("Machine", namespace+"/traced"), HaveField("Nodes", ConsistOf("traced")),
		HaveField("Deleted", BeTemporally("==", machineDeleted))))
	s.Expect(report.Pods).To(HaveLen(len(web) + len(storage) + 1))
	s.Expect(recording.Causes([]recording.Drain{*report})).To(ContainElements(
		And(HaveField("Object", "PodDisruptionBudget default/web"), HaveField("Pods", BeNumerically(">=", len(web)-1))),
		HaveField("Reason", v1alpha1.ReasonAdmissionPolicyRefused),
	))

	for _, part := range []string{"turn", "drain", "volumes", "release"} {
		s.Expect(s.metrics().Sum("capnm_drain_part_duration_seconds", pairs([]string{"part", part}))-before.Sum("capnm_drain_part_duration_seconds",
			pairs([]string{"part", part}))).To(BeEquivalentTo(1), part)
	}
	s.Expect(s.metrics().Sum("capnm_pod_wait_seconds", pairs([]string{"reason", string(budgets.BudgetExhausted)})) - before.Sum("capnm_pod_wait_seconds", nil)).
		To(BeNumerically(">=", len(web)-1))
	s.Logf("the log: %s", regexp.MustCompile(`.*The drain has ended.*`).FindString(s.fleet.Manager.Log()))
	s.Expect(s.fleet.Manager.Log()).To(MatchRegexp(`"The drain has ended".*Node="traced".*pods=7 evictions=7 refusals=[1-9].*` +
		`longestWaits=\["Pod default/.*traceID=.*outcome="Drained"`))
	s.setPolicy(func(policy *v1alpha1.MachineDrainPolicy) { policy.Spec.MaxParallelDrains = nil })
}

// expectAsAudited compares the spans of Pods with the evictions and deletions in the audit log of the API server: the same Pods, each of
// which begins to terminate and terminates at about the same time. Those of a step begin to terminate after those of all previous steps.
func (t *trace) expectAsAudited(steps ...[]corev1.Pod) {
	t.Helper()
	evicted, deleted := map[string]controlplane.Event{}, map[string]controlplane.Event{}
	for _, event := range t.evictions().Succeeded() {
		evicted[event.Name] = event
	}
	for _, event := range t.audited().Verb("delete").Resource("pods").Succeeded() {
		deleted[event.Name] = event
	}
	t.Expect(evicted).To(HaveLen(len(slices.Concat(steps...))))
	var previous, last time.Time // when the last Pod of the previous steps, and of all steps so far, began to terminate
	for _, pods := range steps {
		previous = last
		for i := range pods {
			name, whole := pods[i].Name, t.evacuationOf(&pods[i])
			waits := t.childrenOf(whole)
			terminates := waits[len(waits)-1]
			t.Expect(terminates.Name).To(Equal("terminate"), "%s", waits)
			t.expectFollows(terminates.Start, evicted[name])
			t.expectFollows(whole.End, deleted[name])
			for i := range waits[1:] {
				t.Expect(waits[i+1].Start).To(BeTemporally(">=", waits[i].End), "%s", waits)
			}
			t.Expect(terminates.Start).To(BeTemporally(">", previous), "%s", name)
			if terminates.Start.After(last) {
				last = terminates.Start
			}
		}
	}
}

// expectFollows checks that a time in the trace is that of a request in the audit log. A busy machine may delay it. It is earlier
// only because the API stores whole seconds.
func (t *trace) expectFollows(at time.Time, request controlplane.Event) {
	t.Helper()
	t.Expect(at).To(And(BeTemporally(">=", request.Requested.Add(-time.Second)), BeTemporally("<", request.Answered.Add(precision))), "%s", request)
}

func tracedDaemonSets(s *scene, jaeger *collector) {
	s.setPolicy(func(policy *v1alpha1.MachineDrainPolicy) { policy.Spec.DaemonSetPods = v1alpha1.DaemonSetPodsDrain })
	defer s.setPolicy(func(policy *v1alpha1.MachineDrainPolicy) { policy.Spec.DaemonSetPods = v1alpha1.DaemonSetPodsSkip })
	s.runOn("daemons", "web", 2, deployment("web", 2))
	s.runOn("daemons", "agent", 1, daemonSetOn("agent", "daemons"))
	agent, machine := s.podsOf("agent")[0], s.machine("daemons")
	s.deleteMachine("daemons")
	s.expectGone("daemons")

	trace := jaeger.traceOf(s, machine.UID)
	s.Logf("the trace:\n%s", trace.tree())
	trace.expectWhole()
	s.Expect(namesOf(trace.childrenOf(trace.one("delete Machine")))).To(Equal([]string{"stage Drain", "detach volumes", "drain DaemonSets", "release hook"}))
	steps := trace.childrenOf(trace.one("drain DaemonSets"))
	s.Expect(namesOf(steps)).To(Equal([]string{"drain order 0"}))
	s.Expect(trace.childrenOf(steps[0])).To(ConsistOf(trace.evacuationOf(&agent)))
	s.Expect(trace.childrenOf(trace.evacuationOf(&agent))).To(ContainElement(HaveField("Tags",
		HaveKeyWithValue("capnm.waits_for", "evacuator "+v1alpha1.EvacuatorClassDaemonSet))))
}

func tracedCrash(s *scene, jaeger *collector) {
	s.create(s.fleet.Client, drainRule("later", "late", clusterv1.MachineDrainRuleDrainBehaviorDrain, ptr.To[int32](10)))
	s.runOn("crashed", "web", 4, deployment("web", 4), budgetRequiring("web", 3))
	s.runOn("crashed", "late", 2, deployment("late", 2))
	s.expectDisruptionsAllowed("web", 1)
	web, late := s.podsOf("web"), s.podsOf("late")
	machine := s.machine("crashed")
	s.setUnschedulable("hung", true) // no replacement is scheduled, so the budget allows one disruption only
	defer s.setUnschedulable("hung", false)
	s.deleteMachine("crashed")
	s.Eventually(func(g Gomega) {
		spans, err := jaeger.spans(s.Context(), traceID(machine.UID))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(namesOf(spans)).To(ContainElement("evacuate Pod"))
	}, eventually, pace).Should(Succeed())
	s.fleet.KillManager()
	s.editBudget("web", func(pdb *policyv1.PodDisruptionBudget) { pdb.Spec.Selector = labelSelector("app", "others") })
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	s.expectGone("crashed")

	trace := jaeger.traceOf(s, machine.UID)
	s.Logf("the trace:\n%s", trace.tree())
	trace.expectWhole()
	s.Expect(trace.named("evacuate Pod")).To(HaveLen(len(web) + len(late)))
	s.Expect(namesOf(trace.childrenOf(trace.one("stage Drain")))).To(Equal([]string{"drain order 0", "drain order 10"}))
	trace.expectAsAudited(web, late)
}

func tracedMaintenance(s *scene, jaeger *collector) {
	s.withNodes("r50-one", "r50-two")
	one, two := bare("r50-one", "r50-one"), bare("r50-two", "r50-two", withEvacuator)
	s.run(one, two)
	m := nm("r50", draining, ofNodes("r50-one", "r50-two"))
	s.maintain(m)
	uid := s.stored("r50").UID
	s.expectDeleted(one)
	s.deletePods("r50-two")
	s.Eventually(s.fleet.Manager.Log, soon, pace).Should(MatchRegexp(
		`"The drain has ended".*NodeMaintenance="r50" pods=2 evictions=1 .*traceID=.* outcome="Drained"`))
	s.Eventually(func() *v1alpha1.DrainOutcome { return s.stored("r50").Status.Outcome }, soon, pace).Should(HaveField("ReadTime", Not(BeNil())))
	s.deleteMaintenances("r50")

	trace := jaeger.traceOf(s, uid)
	s.Logf("the trace:\n%s", trace.tree())
	trace.expectWhole()
	s.Expect(namesOf(trace.childrenOf(trace.one("NodeMaintenance")))).To(Equal([]string{"stage Drain"}))
	s.Expect(trace.named("evacuate Pod")).To(HaveLen(2))
	s.Expect(trace.childrenOf(trace.evacuationOf(two))).To(ContainElement(And(HaveField("Name", "await evacuator"),
		HaveField("Tags", HaveKeyWithValue("capnm.waits_for", "evacuator "+evacuatorClass)))))
	trace.expectOutcome(jaeger, uid, 2, 2)
}

// hangingCollector drains a Node while the manager's collector accepts connections and never answers.
func hangingCollector(s *scene) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	s.Expect(err).NotTo(HaveOccurred())
	s.Cleanup(func() { _ = listener.Close() })
	s.runOn("hung", "hung", 5, deployment("hung", 5))
	s.Expect(s.fleet.Manager.Stop()).To(Succeed())
	s.Expect(s.fleet.StartManager(s.Context(), tracingConfig(s.T, listener.Addr().String()))).To(Succeed())
	s.deleteMachine("hung")
	s.expectGone("hung")
	s.Expect(s.evictions().Succeeded()).To(HaveLen(5))
	evictions := s.evictions().Succeeded()
	s.Expect(evictions[4].Answered.Sub(evictions[0].Requested)).To(BeNumerically("<", 10*time.Second), "no eviction waits for the collector")
	s.Expect(s.fleet.Manager.Stop()).To(Succeed(), "the manager stops in time")
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
}

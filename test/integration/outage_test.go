package integration

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// outage is long enough for health probes to fail and too short for the ClusterCache to disconnect.
const outage = 30 * time.Second

// maxOutageErrors is the maximum number of errors in the log during an outage, of in-flight requests and of watches that retry with a
// backoff. A hot loop would log thousands.
const maxOutageErrors = 60

func TestWorkloadAPIServerOutage(t *testing.T) {
	parallel(t, 210*time.Second)
	all := newScene(t, fleet.Options{PodReadyDelay: time.Second, PodDeletionDelay: time.Second})
	all.withMachines("m1", "m2", "m3", "m4")

	t.Run("E19: names an API server without policy/v1, does not delete Pods instead, and continues when policy/v1 is served", func(t *testing.T) {
		all.sub(t).withoutPolicy("m3")
	})

	t.Run("M15: reports that the API server is unreachable and continues the drain when it returns", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		s.runOn("m1", "web", 10, deployment("web", 10), budget("web", 2))
		s.expectDisruptionsAllowed("web", 2)
		s.deleteMachine("m1")
		s.Eventually(func() int { return len(s.evictions().Succeeded()) }, soon, pace).Should(BeNumerically(">=", 2))

		before := len(errorLines(s.fleet.Manager.Log()))
		s.Expect(s.workload.StopComponent(s.Context(), controlplane.APIServer)).To(Succeed())
		s.Consistently(func() map[string]string { return s.machine("m1").Annotations }, outage, time.Second).Should(HaveKey(v1alpha1.PreDrainHookAnnotation))
		s.Eventually(func() string { return s.condition("m1").Reason }, soon, pace).Should(Equal(v1alpha1.ReasonWaitingForWorkloadCluster))
		s.Expect(s.condition("m1").Message).To(MatchRegexp("last reached at 20.*Z"))
		errors := errorLines(s.fleet.Manager.Log())[before:]
		s.Expect(len(errors)).To(BeNumerically("<=", maxOutageErrors), strings.Join(errors, "\n"))

		s.Expect(s.workload.StartComponent(s.Context(), controlplane.APIServer)).To(Succeed())
		s.expectGone("m1")
		s.Expect(s.evictions().Succeeded()).To(HaveLen(10))
		s.expectInvariants()
	})

	t.Run("M87: waits for the connection to look up the Node of a deleted Machine without nodeRef", func(t *testing.T) { all.sub(t).nodeUnknown("m4") })

	t.Run("M13, M15: releases the Machine of an unreachable workload cluster at the drain timeout", func(t *testing.T) {
		s := all.sub(t)
		s.change("m2", func(m *clusterv1.Machine) { m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To(int32(outage.Seconds())) })
		before := len(errorLines(s.fleet.Manager.Log()))
		s.Expect(s.workload.StopComponent(s.Context(), controlplane.APIServer)).To(Succeed())
		s.deleteMachine("m2")
		timesOut := s.machine("m2").DeletionTimestamp.Add(outage)
		s.Eventually(func(g Gomega) {
			g.Expect(s.machine("m2").Annotations).NotTo(HaveKey(v1alpha1.PreDrainHookAnnotation))
			g.Expect(s.condition("m2").Reason).To(Equal(v1alpha1.ReasonTimedOut))
		}, eventually, pace).Should(Succeed())
		s.Expect(s.conditionsOf("m2")).To(ContainElement(And(
			HaveField("Reason", v1alpha1.ReasonWaitingForWorkloadCluster), HaveField("Message", MatchRegexp("last reached at 20.*Z")))))
		s.Expect(s.released("m2").Requested).To(BeTemporally(">=", timesOut))
		s.Expect(excludes(s.released("m2"))).To(Equal([]string{"drain"}))
		errors := errorLines(s.fleet.Manager.Log())[before:]
		s.Expect(len(errors)).To(BeNumerically("<=", maxOutageErrors), strings.Join(errors, "\n"))
		s.Expect(s.workload.StartComponent(s.Context(), controlplane.APIServer)).To(Succeed())
	})
}

// turnTimeout is the drain timeout of Machines that wait for turns. One of them gets a turn each time it has passed.
const turnTimeout = 30 * time.Second

// waitsForTurnThroughout deletes Machines, of which one drains and the others wait for turns beyond their drain timeouts. No Pod can be
// evicted. The drain timeout of a Machine is removed when it gets a turn, so that none may be released. There are so many that the last one
// still waits at the end, also where each part takes half a minute.
func (s *scene) waitsForTurnThroughout(machines ...string) {
	last := machines[len(machines)-1]
	s.mayBeRefused("the manager must not read infrastructure machines for some time")
	s.withMachines(machines...)
	for _, name := range machines {
		s.run(bare("on-"+name, name, withApp("turns")))
		s.change(name, func(m *clusterv1.Machine) {
			m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To(int32(turnTimeout.Seconds()))
		})
	}
	s.create(s.workload.Client, budget("turns", 0))
	unlimited := s.limitDrains()
	begun := func() []string {
		s.Helper()
		begun := s.staged(v1alpha1.StageDrain)
		for _, name := range begun {
			if s.machine(name).Spec.Deletion.NodeDrainTimeoutSeconds != nil {
				s.change(name, func(m *clusterv1.Machine) { m.Spec.Deletion.NodeDrainTimeoutSeconds = nil })
			}
		}
		return begun
	}
	expectWaits := func(after string) {
		s.Helper()
		s.Eventually(func(g Gomega) {
			for _, name := range machines {
				g.Expect(s.machine(name).Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation), "%s is released after %s", name, after)
			}
			g.Expect(s.condition(last).Reason).To(Equal(v1alpha1.ReasonWaitingForTurn), after)
		}, soon, pace).Should(Succeed())
		s.Expect(s.evictions().Succeeded()).To(BeEmpty(), after)
		begun()
	}
	s.deleteMachine(machines[0])
	s.Eventually(begun, soon, pace).Should(HaveLen(1))
	for _, name := range machines[1:] {
		s.deleteMachine(name)
	}
	expectWaits("the deletion")
	s.Eventually(begun, soon, pace).Should(HaveLen(2), "the drain timeout grants a turn")
	s.Expect(time.Since(s.machine(machines[1]).DeletionTimestamp.Time)).To(BeNumerically(">", turnTimeout-time.Second), "the oldest of those that wait")
	s.Expect(s.machine(last).Annotations).To(HaveKey(v1alpha1.WaitingForTurnAnnotation))

	s.fleet.KillManager()
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	s.Eventually(func() float64 { begun(); return s.metrics().Sum("capnm_connected_clusters", nil) }, soon, pace).Should(BeEquivalentTo(1))
	expectWaits("a restart of the manager")

	s.hideInfrastructure("infrastructure.test.capnm.dev")
	s.Eventually(func() string { begun(); return s.condition(last).Reason }, soon, pace).Should(Equal(v1alpha1.ReasonReconcileFailed))
	s.hideInfrastructure("")
	expectWaits("a failure of admission")

	before := s.maintenanceOf(last).UID
	s.Expect(s.workload.Client.Delete(s.Context(), &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{
		Name: "nodemaintenances." + v1alpha1.GroupVersion.Group,
	}})).To(Succeed())
	s.Eventually(func(g Gomega) {
		for _, name := range machines { // their stages cannot be read
			s.change(name, func(m *clusterv1.Machine) {
				if _, hasTurn := m.Annotations[v1alpha1.DrainStartedAnnotation]; hasTurn {
					m.Spec.Deletion.NodeDrainTimeoutSeconds = nil
				}
			})
		}
		list := &v1alpha1.NodeMaintenanceList{}
		g.Expect(s.workload.Client.List(s.Context(), list)).To(Succeed())
		g.Expect(list.Items).To(HaveLen(len(machines)))
		for _, m := range list.Items {
			g.Expect(m.UID).NotTo(Equal(before))
		}
	}, eventually, pace).Should(Succeed())
	expectWaits("the deletion of the CRD")

	s.workload.CutNetwork()
	s.Eventually(func() string { begun(); return s.condition(last).Reason }, soon, pace).Should(Equal(v1alpha1.ReasonWaitingForWorkloadCluster))
	s.workload.RestoreNetwork()
	expectWaits("an outage")

	unlimited()
	s.Expect(s.workload.Client.Delete(s.Context(), budget("turns", 0))).To(Succeed())
	for _, name := range machines {
		s.expectGone(name)
	}
	s.Expect(s.evictions().Succeeded()).To(HaveLen(len(machines)))
	s.expectInvariants()
}

// nodeUnknown deletes a Machine without nodeRef, as it is after clusterctl move, while neither Cluster API nor our manager can look up its
// Node. Cluster API does not wait for the hook of such a Machine and does not delete its Node, so until the drain has ended, only its
// webhooks run.
func (s *scene) nodeUnknown(machine string) {
	s.run(bare("remaining", machine))
	s.workload.CutNetwork()
	s.fleet.KillManager()
	s.Expect(s.fleet.Core.Stop()).To(Succeed())
	s.Expect(s.fleet.Core.Start(s.Context(), "--namespace=another")).To(Succeed())
	s.Expect(s.fleet.Client.Status().Patch(s.Context(), s.machine(machine), client.RawPatch(types.MergePatchType, []byte(`{"status":{"nodeRef":null}}`)))).
		To(Succeed())
	s.deleteMachine(machine)
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	s.Eventually(func() string { return s.condition(machine).Message }, soon, pace).Should(ContainSubstring("The Node is unknown"))
	s.Expect(s.condition(machine).Reason).To(Equal(v1alpha1.ReasonWaitingForWorkloadCluster))
	s.Expect(s.machine(machine).Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation))

	s.workload.RestoreNetwork()
	s.Eventually(func() string { return s.condition(machine).Reason }, eventually, pace).Should(Equal(v1alpha1.ReasonDrained))
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("remaining"))
	s.expectOrder(s.evictions().Succeeded()[0], s.released(machine))

	s.Expect(s.fleet.Core.Stop()).To(Succeed())
	s.Expect(s.fleet.Core.Start(s.Context())).To(Succeed())
	s.Eventually(func() bool { return s.isGone(machine) }, eventually, pace).Should(BeTrue())
	s.Expect(client.IgnoreNotFound(s.workload.Client.Delete(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: machine}}))).To(Succeed())
	s.expectGone(machine)
	s.expectInvariants()
}

// maxTries is the maximum number of failed evictions of one Pod: the tenth is sent 17 minutes after the first.
const maxTries = 10

// withoutPolicy restarts an API server without policy/v1 during a drain, which is then cancelled. Another drain starts, and finishes when
// policy/v1 is served.
func (s *scene) withoutPolicy(machine string) {
	s.withNodes("other")
	cancelled, waiting := bare("cancelled", "other", withEvacuator), bare("waiting", machine)
	s.run(cancelled, waiting)
	s.maintain(nm("admin", draining, ofNodes("other")))
	s.Eventually(func() string { return s.activeClass(cancelled) }, soon, pace).Should(Equal(evacuatorClass))

	before := len(errorLines(s.fleet.Manager.Log()))
	s.Expect(s.workload.StopComponent(s.Context(), controlplane.APIServer)).To(Succeed())
	s.Expect(s.workload.StartComponent(s.Context(), controlplane.APIServer, "--runtime-config=policy/v1=false")).To(Succeed())
	s.Expect(s.workload.Client.SubResource("eviction").Create(s.Context(), cancelled, &policyv1.Eviction{})).To(Satisfy(answers.NotServed))

	s.completeEvacuator(cancelled)
	s.expectWaits(cancelled, string(budgets.EvictionNotServed), budgets.NotServed)
	s.Eventually(func() float64 {
		return s.metrics().Sum("capnm_pods_blocked", map[string]string{"reason": string(budgets.EvictionNotServed)})
	}, soon, pace).Should(BeEquivalentTo(1))
	s.deleteMaintenances("admin")
	s.expectReleased("other")
	s.Eventually(func() *v1alpha1.Evacuation { return s.evacuation(cancelled) }, soon, pace).Should(BeNil())

	s.deleteMachine(machine)
	s.expectWaits(waiting, string(budgets.EvictionNotServed), budgets.NotServed)
	s.expectTold(machine, budgets.NotServed)
	for _, pod := range []*corev1.Pod{cancelled, waiting} {
		s.Expect(s.pod(pod.Name).UID).To(Equal(pod.UID))
		s.Expect(s.pod(pod.Name).DeletionTimestamp).To(BeNil())
	}
	s.Expect(s.evictions().Succeeded()).To(BeEmpty())
	s.Expect(len(s.evictions())).To(BeNumerically("<=", maxTries), tally(s.evictions()))
	lists := s.audited().WithUserAgent(fleet.ManagerAgent).Resource("poddisruptionbudgets").Failed(404)
	s.Expect(len(lists)).To(BeNumerically("<=", maxOutageErrors), tally(lists))
	errors := errorLines(s.fleet.Manager.Log())[before:]
	s.Expect(len(errors)).To(BeNumerically("<=", maxOutageErrors), strings.Join(errors, "\n"))

	s.Expect(s.workload.StopComponent(s.Context(), controlplane.APIServer)).To(Succeed())
	s.Expect(s.workload.StartComponent(s.Context(), controlplane.APIServer)).To(Succeed())
	s.expectGone(machine)
	s.Expect(s.evictions().Succeeded()).To(HaveLen(1))
	s.expectInvariants(*cancelled)
	s.cleanUp()
}

func TestDisconnect(t *testing.T) {
	parallel(t, 350*time.Second)
	all := newScene(t, fleet.Options{})
	all.withMachines("m1", "m2", "told", "excluded", "spare")

	t.Run("M15, M29: restores watches after a disconnect, observes what happened during it, and reports it in metrics", func(t *testing.T) {
		s := all.sub(t)
		defer s.removeWorkloads()
		waiting := bare("waiting", "m1", withEvacuator)
		s.run(waiting)
		s.runOn("m1", "web", 4, deployment("web", 4), budget("web", 0))
		s.deleteMachine("m1")
		s.Eventually(func() string { return s.activeClass(waiting) }, soon, pace).Should(Equal(evacuatorClass))

		s.workload.CutNetwork()
		s.Eventually(s.connectionsUp, disconnected, time.Second).Should(BeZero())
		for _, gauge := range []string{"capnm_connected_clusters", "capnm_pods_blocked"} {
			s.Eventually(func() float64 { return s.metrics().Sum(gauge, nil) }, soon, pace).Should(BeZero(), gauge)
		}
		s.Expect(s.machine("m1").Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation))
		s.Eventually(func() string { return s.condition("m1").Reason }, soon, pace).Should(Equal(v1alpha1.ReasonWaitingForWorkloadCluster))
		s.deletePods(waiting.Name)
		s.Expect(s.workload.Client.Patch(s.Context(), budget("web", 0), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"maxUnavailable":1}}`)))).To(Succeed())
		s.workload.RestoreNetwork()

		s.expectGone("m1")
		s.Expect(s.evictions().Succeeded()).To(HaveLen(4))
		s.Expect(s.connectionsUp()).To(BeEquivalentTo(1))
		s.Expect(s.metrics().Sum("capnm_connected_clusters", nil)).To(BeEquivalentTo(1))
		s.expectInvariants()
	})

	t.Run("M15: drains the next Node after a disconnect", func(t *testing.T) {
		s := all.sub(t)
		s.runOn("m2", "api", 4, deployment("api", 4), budget("api", 1))
		s.deleteMachine("m2")
		s.expectGone("m2")
		s.Expect(s.evictions().Succeeded()).To(HaveLen(4))
		s.expectInvariants()
	})

	t.Run("M27: reports on the condition of a Machine everything that it waits for, and the result", func(t *testing.T) { all.sub(t).conditionReasons() })

	t.Run("M37, M92, M93: releases no Machine that waits for a turn beyond its drain timeout: after a restart, in a failure of admission, "+
		"without the CRD, in an outage", func(t *testing.T) {
		all.sub(t).waitsForTurnThroughout("turn-1", "turn-2", "turn-3", "turn-4", "turn-5", "turn-6", "turn-7", "turn-8")
	})
}

// tooLargeRule returns an invalid rule: Cluster API's webhook rejects one that cannot be parsed, but accepts one that is too large.
func tooLargeRule(app string) *clusterv1.MachineDrainRule {
	invalid := drainRule("invalid", app, clusterv1.MachineDrainRuleDrainBehaviorSkip, nil)
	invalid.Spec.Pods[0].Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn}}}
	for i := range rules.MaxRulesBytes / utilvalidation.LabelValueMaxLength {
		values := &invalid.Spec.Pods[0].Selector.MatchExpressions[0].Values
		*values = append(*values, fmt.Sprintf("%0*d", utilvalidation.LabelValueMaxLength, i))
	}
	return invalid
}

// conditionReasons deletes two more Machines, one of which waits for everything that a Machine can wait for, and checks the sequence of
// conditions of all Machines.
func (s *scene) conditionReasons() {
	defer s.removeWorkloads()
	invalid := tooLargeRule("web")
	s.create(s.fleet.Client, invalid)
	s.runOn("told", "web", 2, deployment("web", 2), budget("web", 0))
	s.reportAttached("told", "kubernetes.io/iscsi/10.0.0.1:3260:iqn.test:1")
	s.deleteMachine("told")
	s.expectTold("told", "Waiting for the MachineDrainRules of namespace default to be reduced: ")
	s.Expect(s.fleet.Client.Delete(s.Context(), invalid)).To(Succeed())
	s.expectTold("told", "Waiting for PodDisruptionBudget default/web: 2 healthy Pods required; it never allows a disruption (maxUnavailable: 0)")
	s.openBudget()
	s.expectWaitsForVolumes("told", "attached volumes that match no known PersistentVolume")
	s.change("told", func(m *clusterv1.Machine) { m.Spec.Deletion.NodeVolumeDetachTimeoutSeconds = ptr.To[int32](1) })
	s.expectGone("told")
	s.change("excluded", func(m *clusterv1.Machine) { m.Annotations[clusterv1.ExcludeNodeDrainingAnnotation] = "" })
	s.deleteMachine("excluded")
	s.expectGone("excluded")

	s.Expect(s.said("told")).To(Equal([]string{"False InvalidDrainRule", "False Draining", "False WaitingForVolumeDetach", "False TimedOut"}))
	s.Expect(s.said("excluded")).To(Equal([]string{"True Skipped"}))
	cut := s.said("m1")
	s.Expect(cut).To(ContainElements("False Draining", "False WaitingForWorkloadCluster"))
	s.Expect(cut[len(cut)-1]).To(Equal("True Drained"))
}

func (s *scene) expectTold(machine, message string) {
	s.Helper()
	s.Eventually(func() string { return s.condition(machine).Message }, soon, pace).Should(ContainSubstring(message))
}

// said returns the sequence of status and reason of our condition on a Machine.
func (s *scene) said(machine string) []string {
	s.Helper()
	var said []string
	for _, condition := range s.conditionsOf(machine) {
		said = append(said, string(condition.Status)+" "+condition.Reason)
	}
	return slices.Compact(said)
}

// conditionsOf returns the sequence of our condition on a Machine, which may no longer exist.
func (s *scene) conditionsOf(machine string) (written []metav1.Condition) {
	s.Helper()
	events, err := s.fleet.Management.Audit().Since(controlplane.Mark{})
	s.Expect(err).NotTo(HaveOccurred())
	for _, write := range events.WithUserAgent(fleet.ManagerAgent).Verb("patch").Resource("machines", "status").Named(namespace, machine).Succeeded() {
		var applied struct {
			Status struct {
				Conditions []metav1.Condition `json:"conditions"`
			} `json:"status"`
		}
		s.Expect(json.Unmarshal(write.RequestObject, &applied)).To(Succeed())
		written = append(written, applied.Status.Conditions...)
	}
	return written
}

// disconnected is the time in which the ClusterCache disconnects: after five failed probes, each after 10 s to 15 s.
const disconnected = 4 * time.Minute

// connectionsUp returns the number of connections of our manager to workload clusters.
func (s *scene) connectionsUp() (float64, error) {
	metrics, err := s.fleet.Manager.Metrics(s.Context())
	return metrics.Sum("capi_cluster_cache_connection_up", nil), err
}

var errorLine = regexp.MustCompile(`(?m)^E\d{4} .*$`)

func errorLines(log string) []string { return errorLine.FindAllString(log, -1) }

package chaos

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// TestInvariants has histories that violate an invariant, and similar ones that do not.
func TestInvariants(t *testing.T) {
	expectViolations(t, []happening{
		{"a Pod is evicted", func(s *story) { s.storePod("a"); s.evict("a", "uid-a") }, nil},
		{"an eviction has no UID", func(s *story) { s.storePod("a"); s.evict("a", "") }, removalsNameTheUID},
		{"a request that was cut off has no UID", func(s *story) {
			s.storePod("a")
			s.request(&s.Workload, controlplane.Event{Verb: "create", Resource: "pods", Subresource: "eviction", Name: "a", Message: "client disconnected"})
		}, nil},

		{"the same manager evicts a Pod twice", func(s *story) {
			s.storePod("a")
			s.requestEviction("a", "uid-a", fleet.ManagerAgent)
			s.evict("a", "uid-a")
		}, evictedOnce},
		{"a manager repeats an eviction whose response a fault has lost", func(s *story) {
			s.storePod("a")
			s.requestEviction("a", "uid-a", fleet.ManagerAgent)
			s.Faults = []InjectedFault{{Period{s.now, s.now}, networkReset}}
			s.evict("a", "uid-a")
		}, nil},
		{"a manager repeats an eviction during which the API server was killed", func(s *story) {
			s.storePod("a")
			s.requestEviction("a", "uid-a", fleet.ManagerAgent)
			s.Faults = []InjectedFault{{Period{s.now.Add(delivery / 2), s.now.Add(delivery)}, "workload-apiserver-killed"}}
			s.evict("a", "uid-a")
		}, nil},
		{"a manager repeats the eviction of its killed predecessor", func(s *story) {
			s.storePod("a")
			s.requestEviction("a", "uid-a", fleet.ManagerAgent)
			s.Managers = append(s.Managers, s.now.Add(500*time.Millisecond))
			s.evict("a", "uid-a")
		}, nil},
		{"a manager repeats the eviction of its killed predecessor much later", func(s *story) {
			s.storePod("a")
			s.requestEviction("a", "uid-a", fleet.ManagerAgent)
			s.Managers = append(s.Managers, s.now.Add(500*time.Millisecond))
			s.later(handover).evict("a", "uid-a")
		}, evictedOnce},
		{"a Pod is evicted that has terminated for long", func(s *story) { s.storePod("a", terminating); s.later(lag).evict("a", "uid-a") }, evictedOnce},
		{"a Pod with the same name is evicted", func(s *story) {
			s.storePod("a")
			s.evict("a", "uid-a")
			s.removePod("a")
			again := func(pod *corev1.Pod) { pod.UID = "uid-again" }
			s.storePod("a", again)
			s.evict("a", "uid-again")
		}, nil},

		{"a Pod is evicted from a Node that is only cordoned", func(s *story) {
			s.storeMaintenance(v1alpha1.StageCordon)
			s.later(lag).storePod("a")
			s.evict("a", "uid-a")
		}, evictedInStageDrain},
		{"a Pod is evicted just after its maintenance completed", func(s *story) {
			s.storePod("a")
			s.storeMaintenance(v1alpha1.StageComplete)
			s.evict("a", "uid-a")
		}, nil},
		{"a Pod is evicted from another Node", func(s *story) {
			s.storePod("a", func(pod *corev1.Pod) { pod.Spec.NodeName = "n2" })
			s.evict("a", "uid-a")
		}, evictedInStageDrain},

		{"a Pod is evicted that its label skips", func(s *story) { s.storePod("a", labelled("Skip")); s.evict("a", "uid-a") }, protectedStay},
		{"a Pod is deleted that its label waits for", func(s *story) { s.storePod("a", labelled("wait-completed")); s.delete("a") }, protectedStay},
		{"a Pod of a DaemonSet is evicted", func(s *story) { s.storePod("a", controlledBy("DaemonSet")); s.evict("a", "uid-a") }, protectedStay},
		{"a Pod of a DaemonSet is deleted by a policy that drains them", func(s *story) {
			s.DaemonSetPods = true
			s.storePod("a", controlledBy("DaemonSet"))
			s.delete("a")
		}, nil},
		{"a Pod is evicted that a rule skips", func(s *story) {
			s.storeRule("a", clusterv1.MachineDrainRuleDrainBehaviorSkip, nil)
			s.storePod("a")
			s.later(lag).evict("a", "uid-a")
		}, protectedStay},
		{"a Pod is evicted that a rule skips, which was created in an outage of the management cluster", func(s *story) {
			s.Faults = []InjectedFault{{Period{s.now, s.now.Add(10 * time.Second)}, "management-apiserver-killed"}}
			s.storeRule("a", clusterv1.MachineDrainRuleDrainBehaviorSkip, nil)
			s.storePod("a")
			s.later(lag).evict("a", "uid-a")
		}, nil},
		{"a Pod is evicted that a rule skips by its Namespace", func(s *story) { skipNamespace(s, "default"); s.later(lag).evict("a", "uid-a") }, protectedStay},
		{"a Pod is evicted while a rule skips another Namespace", func(s *story) { skipNamespace(s, "other"); s.later(lag).evict("a", "uid-a") }, nil},
		{"a Pod is evicted that a new rule skips", func(s *story) {
			s.storePod("a")
			s.later(lag/2).storeRule("a", clusterv1.MachineDrainRuleDrainBehaviorSkip, nil)
			s.evict("a", "uid-a")
		}, nil},
		{"a Pod is evicted that an edited rule has skipped for long", func(s *story) {
			s.storeRule("a", clusterv1.MachineDrainRuleDrainBehaviorDrain, nil)
			s.storePod("a")
			s.storeRule("a", clusterv1.MachineDrainRuleDrainBehaviorWaitCompleted, nil)
			s.later(lag).evict("a", "uid-a")
		}, protectedStay},

		{"a budget grants the disruption", func(s *story) {
			s.storePod("a")
			s.storeBudget("b", "a", 1)
			s.storeBudget("b", "a", 0, "a")
			s.evict("a", "uid-a")
		}, nil},
		{"a budget does not grant the disruption", func(s *story) { s.storePod("a"); s.storeBudget("b", "a", 0); s.evict("a", "uid-a") }, budgetsRespected},
		{"a budget counts a disruption that it does not allow", func(s *story) {
			s.storePod("a")
			s.storeBudget("b", "a", 0)
			s.storeBudget("b", "a", 0, "a")
			s.evict("a", "uid-a")
		}, budgetsRespected},
		{"two budgets select the Pod", func(s *story) {
			s.storePod("a")
			s.storeBudget("b", "a", 1)
			s.storeBudget("c", "a", 1)
			s.evict("a", "uid-a")
		}, budgetsRespected},
		{"an unready Pod is evicted", func(s *story) { s.storePod("a", unready); s.storeBudget("b", "a", 0); s.evict("a", "uid-a") }, nil},
		{"a Pod is deleted in spite of its budget", func(s *story) { s.storePod("a"); s.storeBudget("b", "a", 1); s.delete("a") }, budgetsRespected},
		{"a Pod is deleted before the drain timeout", func(s *story) { s.withTimeout(60); s.storePod("a"); s.storeBudget("b", "a", 0); s.delete("a") }, nil},
		{"a Pod is deleted before the drain timeout while it is evicted", func(s *story) {
			s.withTimeout(60)
			s.storePod("a")
			s.storeBudget("b", "a", 1)
			s.delete("a")
			s.storeBudget("b", "a", 0, "a")
			s.requestEviction("a", "uid-a", fleet.ManagerAgent)
			s.removePod("a")
		}, nil},
		{"a Pod that is deleted before the drain timeout is evicted at the same time, which needs no disruption", func(s *story) {
			s.withTimeout(60)
			s.storePod("a")
			s.storeBudget("b", "a", 0)
			s.delete("a")
			s.requestEviction("a", "uid-a", fleet.ManagerAgent)
			s.removePod("a")
		}, nil},
		{"M13: a Pod whose eviction was refused is deleted in the first ten seconds, in time for its grace period", func(s *story) {
			s.beginShortDrain()
			s.refuseEviction("a")
			s.delete("a")
		}, nil},
		{"M13: a Pod whose eviction was not refused is deleted in the first ten seconds", func(s *story) {
			s.beginShortDrain()
			s.delete("a")
		}, budgetsRespected},
		{"M13: a Pod is deleted in the first ten seconds, and the eviction of another one was refused", func(s *story) {
			s.beginShortDrain()
			s.storePod("b")
			s.refuseEviction("b")
			s.delete("a")
		}, budgetsRespected},
		{"a Pod is deleted long before the drain timeout", func(s *story) {
			s.withTimeout(600)
			s.storePod("a")
			s.storeBudget("b", "a", 0)
			s.delete("a")
		}, budgetsRespected},
		{"a Pod that the drain waits for is deleted before the drain timeout", func(s *story) {
			s.withTimeout(60)
			s.storePod("a", labelled("wait-completed"))
			s.delete("a")
		}, nil},
		{"a Pod that the drain waits for is deleted before the drain timeout, soon after its label said to skip it", func(s *story) {
			s.withTimeout(60)
			s.storePod("a", labelled("skip"))
			s.storePod("a", labelled("wait-completed"))
			s.delete("a")
		}, nil},
		{"a Pod that the drain skips is deleted before the drain timeout", func(s *story) {
			s.withTimeout(60)
			s.storePod("a", labelled("skip"))
			s.delete("a")
		}, protectedStay},
		{"an eviction that was cut off is repeated", func(s *story) {
			s.storePod("a")
			s.storeBudget("b", "a", 2)
			s.storeBudget("b", "a", 1, "a")
			s.storeBudget("b", "a", 0, "a")
			s.evict("a", "uid-a")
		}, nil},

		{"E55: a Pod is evicted just after its budget was deleted", func(s *story) {
			s.storePod("a")
			s.storeBudget("b", "a", 0)
			s.store(&s.Workload, budgetKeys+"default/b", nil)
			s.evict("a", "uid-a")
		}, replacementsAwaited},
		{"E55: a Pod is evicted just after its budget was deleted, which was when the first drain began", func(s *story) {
			s.Workload.Versions = slices.DeleteFunc(s.Workload.Versions, func(v Version) bool { return v.Key == maintenanceKeys+"m" })
			s.storePod("a")
			s.storeBudget("b", "a", 0)
			s.storeMaintenance(v1alpha1.StageDrain)
			s.store(&s.Workload, budgetKeys+"default/b", nil)
			s.evict("a", "uid-a")
		}, nil},
		{"E55: a Pod is evicted just after its budget was deleted, while the watch of budgets is late", func(s *story) {
			s.Faults = []InjectedFault{{Period{s.now, s.now}, watchStale}}
			s.storePod("a")
			s.storeBudget("b", "a", 0)
			s.store(&s.Workload, budgetKeys+"default/b", nil)
			s.evict("a", "uid-a")
		}, nil},
		{"E55: a Pod is evicted just after a budget was deleted that allowed its disruption", func(s *story) {
			s.storePod("a")
			s.storeBudget("b", "a", 1)
			s.store(&s.Workload, budgetKeys+"default/b", nil)
			s.evict("a", "uid-a")
		}, nil},
		{"E55: a Pod is evicted three seconds after its budget was deleted", func(s *story) {
			s.storePod("a")
			s.storeBudget("b", "a", 0)
			s.store(&s.Workload, budgetKeys+"default/b", nil)
			s.later(replacement).evict("a", "uid-a")
		}, nil},
		{"a Pod is evicted before a Pod with a lower drain order is gone", func(s *story) {
			lowAndHigh(s)
			s.evict("low", "uid-low")
			s.evict("high", "uid-high")
		}, orderRespected},
		{"a Pod is evicted after the Pods with a lower drain order are gone", func(s *story) {
			lowAndHigh(s)
			s.evict("low", "uid-low")
			s.removePod("low")
			s.evict("high", "uid-high")
		}, nil},
		{"a Pod is evicted although a Pod with a lower drain order has appeared", func(s *story) {
			lowAndHigh(s)
			s.removePod("low")
			s.storePod("low", func(pod *corev1.Pod) { pod.UID = "uid-low-again" })
			s.evict("high", "uid-high")
		}, nil},
		{"a Pod is evicted while a Pod with a lower drain order terminates on the unreachable Node", func(s *story) {
			lowAndHigh(s)
			s.storeNode(unreachable)
			s.evict("low", "uid-low")
			s.evict("high", "uid-high")
		}, nil},
		{"the final eviction attempt disregards the order", func(s *story) { s.storeMachine(timeout(60)); lowAndHigh(s); s.evict("high", "uid-high") }, nil},

		{"Cluster API evicts", func(s *story) { s.storePod("a"); s.requestEviction("a", "uid-a", fleet.CoreAgent) }, coreDoesNotEvict},
		{"Cluster API evicts the replacement of a Pod after a user removed the hook", func(s *story) {
			s.Unhooked["n1"] = true
			s.storePod("a")
			s.removePod("a")
			s.storePod("a", func(pod *corev1.Pod) { pod.UID, pod.Spec.NodeName = "uid-b", "n2" })
			s.requestEviction("a", "", fleet.CoreAgent)
		}, nil},
		{"Cluster API evicts after a user removed the hook", func(s *story) {
			s.Unhooked["n1"] = true
			s.storePod("a")
			s.requestEviction("a", "uid-a", fleet.CoreAgent)
		}, nil},
		{"Cluster API evicts while clusterctl deletes a Machine that it has moved", func(s *story) {
			s.storePod("a")
			s.storeMachine(func(machine *clusterv1.Machine) {
				machine.Annotations = map[string]string{"clusterctl.cluster.x-k8s.io/delete-for-move": ""}
			})
			s.store(&s.Management, machineKeys+"default/n1", nil)
			s.requestEviction("a", "uid-a", fleet.CoreAgent)
		}, nil},
		{"Cluster API evicts long after clusterctl deleted a Machine that it has moved", func(s *story) {
			s.storePod("a")
			s.storeMachine(func(machine *clusterv1.Machine) {
				machine.Annotations = map[string]string{"clusterctl.cluster.x-k8s.io/delete-for-move": ""}
			})
			s.store(&s.Management, machineKeys+"default/n1", nil)
			s.later(obsolete).requestEviction("a", "uid-a", fleet.CoreAgent)
		}, coreDoesNotEvict},

		{"a Node is restored", func(s *story) { s.storeNode(cordoned(true)); s.storeNode() }, nil},
		{"a Node is left cordoned", func(s *story) { s.storeNode(cordoned(true)); s.storeNode(cordoned(false)) }, nodesRestored},
		{"a Node is restored that another actor has made schedulable", func(s *story) {
			s.storeNode(cordoned(false))
			s.storeNode(cordoned(true))
			s.storeNode(cordoned(true), func(node *corev1.Node) { node.Spec.Unschedulable = false })
			s.storeNode(cordoned(true))
			s.storeNode()
		}, nil},
		{"a Node is uncordoned that a user had cordoned", func(s *story) {
			s.storeNode(cordoned(false))
			s.storeNode(cordoned(true))
			s.storeNode()
		}, nodesRestored},

		{"a surge is restored", func(s *story) { s.storeDeployment(1, false); s.storeDeployment(2, true); s.storeDeployment(1, false) }, nil},
		{"a surge is not restored", func(s *story) { s.storeDeployment(1, false); s.storeDeployment(2, true); s.storeDeployment(2, false) }, surgesRestored},
		{"a surge is restored twice", func(s *story) {
			s.storeDeployment(2, false)
			s.storeDeployment(3, true)
			s.storeDeployment(2, false)
			s.storeDeployment(1, false)
		}, surgesRestored},
	})
}

// skipNamespace has a rule that skips the Pods of a Namespace, and a Pod in Namespace default.
func skipNamespace(s *story, name string) {
	s.storeRule("a", clusterv1.MachineDrainRuleDrainBehaviorSkip, nil)
	pods := &s.Management.Versions[len(s.Management.Versions)-1].Object.(*clusterv1.MachineDrainRule).Spec.Pods[0]
	pods.NamespaceSelector, pods.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: name}}, nil
	s.storePod("a")
}

// withTimeout gives the Machine a drain timeout, whose half is over if it is a minute, before which Pods are deleted.
func (s *story) withTimeout(seconds int32) {
	s.DeletesOnTimeout = true
	s.storeMachine(timeout(seconds))
	s.now = s.now.Add(30 * time.Second)
}

// beginShortDrain begins a drain whose timeout is little more than the grace period of its Pod. No manager has run before.
func (s *story) beginShortDrain() {
	s.DeletesOnTimeout, s.Down = true, [][]Period{{{Until: s.now}}}
	s.storeMachine(timeout(corev1.DefaultTerminationGracePeriodSeconds + 8))
	s.storePod("a")
	s.storeBudget("b", "a", 0)
}

// lowAndHigh has a Pod with drain order 1 and one with drain order 2 on the Node when its drain begins.
func lowAndHigh(s *story) {
	s.storeRule("low", clusterv1.MachineDrainRuleDrainBehaviorDrain, ptr.To[int32](1))
	s.storeRule("high", clusterv1.MachineDrainRuleDrainBehaviorDrain, ptr.To[int32](2))
	s.storePod("low")
	s.storePod("high")
	s.later(lag)
	s.Workload.Versions = slices.DeleteFunc(s.Workload.Versions, func(v Version) bool { return v.Key == maintenanceKeys+"m" })
	s.storeMaintenance(v1alpha1.StageDrain)
	s.now = s.now.Add(time.Minute)
}

func TestLeftovers(t *testing.T) {
	g := NewWithT(t)
	annotated := func(key string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{key: ""}}}
	}
	for _, object := range []client.Object{
		&v1alpha1.NodeMaintenance{}, &v1alpha1.Evacuation{}, annotated(v1alpha1.NodeOriginAnnotation), annotated(v1alpha1.ExcludedFromLoadBalancersAnnotation),
		&corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: v1alpha1.NoDaemonSetPodsTaint}}}},
		&corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Status: corev1.ConditionTrue, Reason: v1alpha1.ReasonNodeMaintenance}}}},
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.SurgingLabel: ""}}},
	} {
		g.Expect(Leftovers([]Version{{Object: object}})).To(HaveLen(1))
	}
	g.Expect(Leftovers([]Version{{Object: &corev1.Node{}}, {Object: &corev1.Pod{}}, {}})).To(BeEmpty())
}

func TestExcuse(t *testing.T) {
	g := NewWithT(t)
	blocked := &metav1.Condition{Message: "PodDisruptionBudget ns/never allows no disruption"}
	g.Expect(Excuse(blocked, []string{"ns/never"})).NotTo(BeEmpty())
	g.Expect(Excuse(blocked, []string{"ns/other"})).To(BeEmpty())
	g.Expect(Excuse(nil, []string{"ns/never"})).To(BeEmpty())
}

func TestOnlySomeParts(t *testing.T) {
	g := NewWithT(t)
	s := Schedule{Faults: []Step{{Fault: "a"}, {Fault: "b"}}, Drains: []Drain{{Machine: "m"}, {Machine: "n"}}, Apps: []App{{Name: "web"}, {Name: "db"}}}
	g.Expect(s.Parts()).To(Equal(6))
	g.Expect(s.Only([]int{0, 1, 2, 3, 4, 5})).To(Equal(s))
	g.Expect(s.Only([]int{1, 3, 4})).To(Equal(Schedule{Faults: s.Faults[1:], Drains: s.Drains[1:], Apps: s.Apps[:1]}))
	g.Expect(s.Only(nil)).To(Equal(Schedule{Drains: s.Drains[:1]}), "a run needs a deletion")
	two := s
	two.Other = &Schedule{Drains: []Drain{{Machine: "m"}}, Apps: []App{{Name: "cache"}}}
	g.Expect(two.Parts()).To(Equal(8))
	g.Expect(two.Only([]int{0, 1, 2, 3, 4, 5, 6, 7})).To(Equal(two))
	g.Expect(two.Only([]int{1, 2, 7}).Other).To(Equal(two.Other))
	g.Expect(two.Only([]int{1, 2}).Other).To(BeNil(), "the second Cluster exists if it has any part")
	needed := Shrink([]int{0, 1, 2, 3, 4, 5}, 20, func(parts []int) bool { return slices.Contains(parts, 1) && slices.Contains(parts, 4) })
	g.Expect(needed).To(Equal([]int{1, 4}))
}

func TestShrink(t *testing.T) {
	g := NewWithT(t)
	var s Schedule
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		s.Faults = append(s.Faults, Step{Fault: name})
	}
	runs := 0
	needs := func(names ...string) func(Schedule) bool {
		return func(s Schedule) bool {
			runs++
			return len(s.Keep(names...).Faults) == len(names)
		}
	}
	g.Expect(s.Shrink(20, needs("b", "f"))).To(Equal(s.Keep("b", "f")))
	g.Expect(s.Shrink(20, needs())).To(Equal(s.Keep()))
	runs = 0
	g.Expect(s.Shrink(3, needs("b")).Faults).To(HaveLen(4))
	g.Expect(runs).To(BeNumerically("<=", 3))
	g.Expect(s.Shrink(0, needs())).To(Equal(s))
}

func TestScheduleFollowsFromItsSeed(t *testing.T) {
	g := NewWithT(t)
	table := faults()
	g.Expect(NewSchedule(7, table).String()).To(Equal(NewSchedule(7, table).String()))
	g.Expect(NewSchedule(7, table).String()).NotTo(Equal(NewSchedule(8, table).String()))
	for seed := range uint64(200) {
		s := NewSchedule(seed, table)
		for _, step := range s.Faults {
			g.Expect(step.At + step.For).To(BeNumerically("<=", s.window()))
		}
	}
}

func TestSideOfOneNamespace(t *testing.T) {
	g := NewWithT(t)
	side := Side{
		Audit:    controlplane.Events{{Namespace: "default", Name: "a"}, {Namespace: "other", Name: "b"}, {Name: "c"}},
		Versions: []Version{{Key: machineKeys + "default/m"}, {Key: machineKeys + "other/m"}, {Key: ruleKeys + "other/r"}, {Key: nodeKeys + "n"}},
	}
	own := side.of("default")
	g.Expect(own.Audit).To(Equal(controlplane.Events{{Namespace: "default", Name: "a"}, {Name: "c"}}))
	g.Expect(own.Versions).To(Equal([]Version{{Key: machineKeys + "default/m"}, {Key: nodeKeys + "n"}}))
	g.Expect(side.of("other").Versions).To(HaveLen(3))
	g.Expect(side.Versions[1].Key).To(Equal(machineKeys+"other/m"), "the record itself is unchanged")
}

func TestThen(t *testing.T) {
	at := func(second int) time.Time { return time.Date(2026, 1, 1, 0, 0, second, 0, time.UTC) }
	machine := func(name string) *clusterv1.Machine {
		return &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	}
	const key = machineKeys + "default/n1"
	before := Side{
		Clock:    Clock{{Revision: 500}, {at(1), at(1), 501}},
		Versions: []Version{{500, key, machine("deleted")}, {510, key, nil}},
	}
	after := Side{
		Clock:    Clock{{Revision: 3}, {at(0), at(0), 3}, {at(2), at(2), 4}, {at(3), at(3), 5}},
		Versions: []Version{{4, key, machine("moved")}, {5, key, machine("deleted again")}},
	}
	joined := before.Then(after)
	versions := timelines[*clusterv1.Machine](&joined, machineKeys)["default/n1"]
	for second, want := range map[int]string{1: "deleted", 2: "moved", 3: "deleted again"} {
		if got, exists := versions.at(joined.Clock.Before(at(second))); !exists || got.Name != want {
			t.Errorf("second %d: got %v, want %s", second, got, want)
		}
	}
}

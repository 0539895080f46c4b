package integration

import (
	"cmp"
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
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
)

// TestRollouts rolls a MachineDeployment out and back, scales three MachineDeployments down at once, and maintains Machines of a fourth
// one. Each part starts in the state in which the previous part ended. The first part deletes what the manager installs in the workload
// cluster.
func TestRollouts(t *testing.T) {
	parallel(t, 270*time.Second)
	all := newScene(t, fleet.Options{PodReadyDelay: 200 * time.Millisecond, PodDeletionDelay: 200 * time.Millisecond})
	all.testBundleRestored()
	all.withMachineDeployment("red", 3)
	all.create(all.fleet.Client, &infrav1.KwokMachineTemplate{ObjectMeta: metaNamed("red-v2", "")})
	all.create(all.workload.Client, budget("web", 0), deployment("web", 9))
	all.Eventually(func() []string { return all.nodesOf("web") }, eventually, pace).Should(ConsistOf(all.machinesOf("red")))

	var old, waiting []string
	t.Run("M24: announces the next Nodes of a rollout", func(t *testing.T) {
		s := all.sub(t)
		old = s.machinesOf("red")
		s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.Rollout.OutdatedNodes = v1alpha1.OutdatedNodesAnnounce })
		s.roll("red", "red-v2")
		s.Eventually(func() []string { return without(old, s.machinesOf("red")) }, eventually, pace).
			Should(HaveLen(1), "one Machine is deleted and blocked by the PodDisruptionBudget")
		waiting = both(old, s.machinesOf("red"))
		s.Eventually(func() []string { return s.staged(v1alpha1.StageIdle) }, soon, pace).Should(ConsistOf(waiting))
		for _, name := range waiting {
			s.Expect(s.node(name).Spec.Unschedulable).To(BeFalse(), name)
			s.Expect(s.maintenanceOf(name).Spec.Reason).To(Equal("A rollout will replace Machine default/" + name))
		}
	})

	t.Run("R48: keeps a Node cordoned that a user cordoned while its maintenance was announced, when the announcement is withdrawn", func(t *testing.T) {
		s := all.sub(t)
		s.setUnschedulable(waiting[0], true)
		s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.Rollout.OutdatedNodes = v1alpha1.OutdatedNodesIgnore })
		s.Eventually(func() []string { return both(waiting, s.staged("")) }, soon, pace).Should(BeEmpty())
		s.Expect(s.node(waiting[0]).Spec.Unschedulable).To(BeTrue())
		s.Expect(s.nodeWrites(waiting[0])).To(BeEmpty())
		s.setUnschedulable(waiting[0], false)
	})

	t.Run("M24: cordons the outdated Nodes but not the updated one with Cordon", func(t *testing.T) {
		s := all.sub(t)
		s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.Rollout.OutdatedNodes = v1alpha1.OutdatedNodesCordon })
		s.expectCordoned(waiting...)
		s.Expect(s.staged(v1alpha1.StageCordon)).To(ConsistOf(waiting))
		for _, name := range without(s.machinesOf("red"), old) {
			s.Expect(s.node(name).Spec.Unschedulable).To(BeFalse(), name)
		}
	})

	t.Run("M25: withdraws the NodeMaintenances of a paused rollout until it continues", func(t *testing.T) {
		s := all.sub(t)
		s.editDeployment("red", func(d *clusterv1.MachineDeployment) { d.Spec.Paused = ptr.To(true) })
		s.expectReleased(waiting...)
		s.Eventually(func() []string { return s.staged("") }, soon, pace).Should(ConsistOf(without(old, waiting)), "the drain of the deleted Machine continues")
		s.editDeployment("red", func(d *clusterv1.MachineDeployment) { d.Spec.Paused = nil })
		s.expectCordoned(waiting...)
	})

	t.Run("M25: withdraws the NodeMaintenances of a rollout that is rolled back, and uncordons the Nodes", func(t *testing.T) {
		s := all.sub(t)
		s.roll("red", "red")
		s.expectReleased(waiting...)
		s.setBudget("web", 2)
		s.expectRolled("red", 3)
		s.Expect(s.machinesOf("red")).To(ContainElements(waiting))
		s.Eventually(func() []string { return s.staged("") }, soon, pace).Should(BeEmpty())
	})

	t.Run("M24: evicts no Pod twice in a rollout of all Nodes with Cordon", func(t *testing.T) {
		s := all.sub(t)
		s.expectDisruptionsAllowed("web", 2)
		pods, before := s.podsOf("web"), s.machinesOf("red")
		s.roll("red", "red-v2")
		s.Eventually(func() []string { return both(before, s.machinesOf("red")) }, eventually, pace).Should(BeEmpty())
		s.expectRolled("red", 3)
		s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf(names(pods)), "each old Pod and no replacement")
		s.expectInvariants()
	})

	t.Run("M26: limits drains across MachineDeployments with maxParallelDrains, oldest deletion first, and cordons the waiting Nodes", func(t *testing.T) {
		s := all.sub(t)
		for _, name := range []string{"green", "blue"} {
			s.withMachineDeployment(name, 2)
		}
		s.create(s.fleet.Client, s.cluster.ControlPlaneMachine("control-plane")...)
		s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.MaxParallelDrains = ptr.To(intstr.FromInt32(2)) })
		s.Expect(s.workload.Client.DeleteAllOf(s.Context(), deployment("web", 0), client.InNamespace(namespace))).To(Succeed())
		s.Eventually(func() int { return len(s.podsOf("web")) }, eventually, pace).Should(BeZero())
		s.setBudget("web", 0)
		first, second, last := s.machinesOf("green"), s.machinesOf("blue"), s.machinesOf("red")
		for _, name := range slices.Concat(first, second, last) {
			s.create(s.workload.Client, bare("on-"+name, name, func(pod *corev1.Pod) { pod.Labels["app"] = "web" }))
		}
		s.Eventually(func() []string { return s.nodesOf("web") }, eventually, pace).Should(HaveLen(7))

		s.scale("green", 0)
		s.Eventually(func() []string { return s.staged(v1alpha1.StageDrain) }, soon, pace).Should(ConsistOf(first))
		s.scale("blue", 0)
		s.expectWaitingForTurn(second...)
		for _, name := range second {
			s.Eventually(func() bool { return time.Since(s.machine(name).DeletionTimestamp.Time) > time.Second }, soon, pace).
				Should(BeTrue(), "red is deleted in a later second")
		}
		s.scale("red", 0)
		s.expectWaitingForTurn(last...)
		s.expectCordoned(slices.Concat(second, last)...)
		s.Expect(s.staged(v1alpha1.StageDrain)).To(ConsistOf(first))

		policy := &v1alpha1.MachineDrainPolicy{} // M126: a moment without it starts none
		s.Expect(s.fleet.Client.Get(s.Context(), keyOf("all"), policy)).To(Succeed())
		s.Expect(s.fleet.Client.Delete(s.Context(), policy)).To(Succeed())
		for _, name := range slices.Concat(second, last) {
			s.Eventually(func() string { return s.condition(name).Message }, eventually, pace).
				Should(ContainSubstring("the last maxParallelDrains of MachineDrainPolicy all limits its drain"))
		}
		s.Expect(s.staged(v1alpha1.StageDrain)).To(ConsistOf(first))
		policy.ResourceVersion = ""
		s.create(s.fleet.Client, policy)

		s.Eventually(func() string { return s.machine("control-plane").Annotations[v1alpha1.PreDrainHookAnnotation] }, eventually, pace).ShouldNot(BeEmpty())
		s.deleteMachine("control-plane")
		s.expectGone("control-plane") // it does not wait for workers

		s.Expect(s.workload.Client.DeleteAllOf(s.Context(), budget("web", 0), client.InNamespace(namespace))).To(Succeed())
		for _, name := range slices.Concat(first, second, last) {
			s.expectGone(name)
		}
		s.expectAtMostDraining(2)
		begun := s.drainsBegun()
		s.Expect(slices.Max(positions(begun, first))).To(BeNumerically("<", slices.Min(positions(begun, second))))
		s.Expect(slices.Max(positions(begun, second))).To(BeNumerically("<", slices.Min(positions(begun, last))))
		s.expectInvariants()
	})

	t.Run("M132: a drain that waits for a replica on the Node of a waiting Machine ends, since that Node becomes schedulable", func(t *testing.T) {
		all.sub(t).failsOver()
	})

	t.Run("M154: drains the Nodes of one zone at a time with maxParallelDrainsPerTopology", func(t *testing.T) {
		all.sub(t).drainsZoneAfterZone()
	})

	t.Run("M155: the next drain begins when the replacement of an evicted Pod is ready", func(t *testing.T) {
		all.sub(t).drainsAfterReplacement()
	})

	maintainMachines(t, all)
}

// withMachineDeployment adds a MachineDeployment and waits until its Machines run and have our hook.
func (s *scene) withMachineDeployment(name string, replicas int32) {
	s.Helper()
	s.create(s.fleet.Client, s.cluster.MachineDeployment(name, replicas, kwok.With(func(d *clusterv1.MachineDeployment) {
		deletesNode(&d.Spec.Template.Spec)
	}))...)
	s.expectRolled(name, int(replicas))
}

// expectRolled waits until a MachineDeployment has this number of Machines, which all run, are up to date, have our hook and an initialized
// Node, and until the previous Machines are deleted.
func (s *scene) expectRolled(name string, replicas int) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		all := s.allMachinesOf(name)
		g.Expect(all).To(HaveLen(replicas))
		for _, machine := range all {
			g.Expect(machine.DeletionTimestamp.IsZero()).To(BeTrue())
			g.Expect(machine.Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation))
			g.Expect(conditions.IsTrue(&machine, clusterv1.MachineUpToDateCondition)).To(BeTrue())
			g.Expect(conditions.IsTrue(&machine, clusterv1.MachineAvailableCondition)).To(BeTrue())
			g.Expect(isInitialized(s.node(machine.Name))).To(BeTrue())
		}
	}, eventually, pace).Should(Succeed())
}

func (s *scene) allMachinesOf(deployment string) []clusterv1.Machine {
	s.Helper()
	list := &clusterv1.MachineList{}
	s.Expect(s.fleet.Client.List(s.Context(), list, client.InNamespace(namespace), client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: deployment})).
		To(Succeed())
	slices.SortFunc(list.Items, func(a, b clusterv1.Machine) int { return cmp.Compare(a.Name, b.Name) })
	return list.Items
}

// machinesOf returns the Machines of a MachineDeployment that are not being deleted. Their Nodes have the same names.
func (s *scene) machinesOf(deployment string) []string {
	s.Helper()
	names := []string{}
	for _, machine := range s.allMachinesOf(deployment) {
		if machine.DeletionTimestamp.IsZero() {
			names = append(names, machine.Name)
		}
	}
	return names
}

// staged returns the Machines whose NodeMaintenances are in a stage, or in any stage for "".
func (s *scene) staged(stage v1alpha1.NodeMaintenanceStage) []string {
	s.Helper()
	list, staged := &v1alpha1.NodeMaintenanceList{}, []string{}
	s.Expect(s.workload.Client.List(s.Context(), list)).To(Succeed())
	for _, m := range list.Items {
		if stage == "" || m.Spec.Stage == stage {
			staged = append(staged, strings.TrimPrefix(m.Annotations[v1alpha1.OwnerMachineAnnotation], namespace+"/"))
		}
	}
	return staged
}

// nodesOf returns the Nodes on which Pods of an app run.
func (s *scene) nodesOf(app string) []string {
	s.Helper()
	nodes := []string{}
	for _, pod := range s.podsOf(app) {
		if pod.Status.Phase == "Running" {
			nodes = append(nodes, pod.Spec.NodeName)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// roll sets the template of a MachineDeployment.
func (s *scene) roll(name, template string) {
	s.Helper()
	s.editDeployment(name, func(d *clusterv1.MachineDeployment) { d.Spec.Template.Spec.InfrastructureRef.Name = template })
}

func (s *scene) scale(name string, replicas int32) {
	s.Helper()
	s.editDeployment(name, func(d *clusterv1.MachineDeployment) { d.Spec.Replicas = ptr.To(replicas) })
}

func (s *scene) editDeployment(name string, change func(*clusterv1.MachineDeployment)) {
	s.Helper()
	deployment := read(s, s.fleet.Client, keyOf(name), &clusterv1.MachineDeployment{})
	s.patch(s.fleet.Client, deployment, func() { change(deployment) })
}

// setBudget changes a PodDisruptionBudget in place. Without one, all Pods could be evicted for a moment.
func (s *scene) setBudget(app string, maxUnavailable int) {
	s.Helper()
	present := read(s, s.workload.Client, keyOf(app), &policyv1.PodDisruptionBudget{})
	s.patch(s.workload.Client, present, func() { present.Spec = budget(app, maxUnavailable).Spec })
}

func (s *scene) expectWaitingForTurn(machines ...string) {
	s.Helper()
	for _, name := range machines {
		s.Eventually(func(g Gomega) {
			g.Expect(s.condition(name).Reason).To(Equal(v1alpha1.ReasonWaitingForTurn), name)
			g.Expect(s.condition(name).Message).To(ContainSubstring("Waiting for other Machines of Cluster c1 to be drained: 2 draining (maxParallelDrains allows 2), "))
		}, soon, pace).Should(Succeed())
	}
}

// drainsBegun returns the Nodes in the order in which their drains started, which is when their NodeMaintenance was created in stage Drain
// or moved to it.
func (s *scene) drainsBegun() []string {
	s.Helper()
	begun := []string{}
	for _, event := range s.ours().Resource("nodemaintenances").Verb("create", "patch").Where(contains(`"stage":"Drain"`)) {
		begun = append(begun, event.Name)
	}
	return begun
}

// expectAtMostDraining checks in the audit logs how many worker Nodes were drained at the same time: from the write that starts a drain to
// the write that removes the hook or allows an in-place update. It compares the times of the requests, because the next drain can start
// before the response to the removal.
func (s *scene) expectAtMostDraining(limit int) {
	s.Helper()
	type moment struct {
		at     time.Time
		change int
	}
	var moments []moment
	for _, event := range s.ours().Resource("nodemaintenances").Verb("create", "patch").Where(contains(`"stage":"Drain"`)) {
		if !strings.HasPrefix(event.Name, "control-plane") {
			moments = append(moments, moment{event.Requested, 1})
		}
	}
	for _, event := range s.managed().By(fleet.ManagerUser).Resource("machines").Succeeded().Where(endsDrain) {
		if event.Name != "control-plane" {
			moments = append(moments, moment{event.Requested, -1})
		}
	}
	slices.SortFunc(moments, func(a, b moment) int { return a.at.Compare(b.at) })
	now, most := 0, 0
	for _, m := range moments {
		now += m.change
		most = max(most, now)
	}
	s.Expect(most).To(Equal(limit))
}

// endsDrain matches the write of a Machine after which its Node no longer counts for maxParallelDrains, or the last one before.
func endsDrain(event controlplane.Event) bool {
	return fleet.ReleasesHook(event) || contains(`"`+v1alpha1.UpdateAllowedAnnotation+`":"`)(event)
}

// positions returns the indexes of Nodes in a list of names.
func positions(begun, nodes []string) []int {
	all := []int{}
	for _, node := range nodes {
		all = append(all, slices.IndexFunc(begun, func(name string) bool { return strings.HasPrefix(name, node+"-") }))
	}
	return all
}

func without(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(some, name) })
}

func both(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(name string) bool { return !slices.Contains(b, name) })
}

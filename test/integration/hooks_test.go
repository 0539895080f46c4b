package integration

import (
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

const (
	foreignHook      = clusterv1.PreDrainDeleteHookAnnotationPrefix + "/foreign"
	preTerminateHook = clusterv1.PreTerminateDeleteHookAnnotationPrefix + "/kcp-cleanup"
)

// TestHooks tests when the hook is removed: after volumes are detached, and what other actors do to Machines and NodeMaintenances during a
// drain.
func TestHooks(t *testing.T) {
	parallel(t, 260*time.Second)
	all := newScene(t, fleet.Options{PodReadyDelay: 100 * time.Millisecond, PodDeletionDelay: 200 * time.Millisecond})
	all.testVolumes()
	all.withMachines("paused", "resting", "annotated", "halted", "frozen", "withdrawn", "moved", "slow", "slower", "overtime", "ordered", "completed", "balanced",
		"foreign", "pooled", "orphaned", "inherited", "spare")

	t.Run("M16: does not change a paused Machine and its Node", func(t *testing.T) { all.sub(t).paused() })
	t.Run("M16: does not change the Machines and Nodes of a paused Cluster", func(t *testing.T) { all.sub(t).pausedCluster() })
	t.Run("M102: drains a Machine whose Cluster has the annotation of a pause", func(t *testing.T) { all.sub(t).clusterAnnotated() })
	t.Run("M16: stops a drain while its Cluster is paused, and then continues it", func(t *testing.T) {
		all.sub(t).pausedInTheMiddle("halted", (*scene).pauseCluster)
	})
	t.Run("M16: stops a drain while its Machine is paused, and then continues it", func(t *testing.T) {
		all.sub(t).pausedInTheMiddle("frozen", pauseMachine("frozen"))
	})
	t.Run("E50: evicts no Pod while its Machine is paused and the NodeMaintenance is completed", func(t *testing.T) {
		all.sub(t).pausedInTheMiddle("withdrawn", pauseMachineAndComplete("withdrawn"))
	})
	t.Run("E38: evicts no Pod twice when its Machine is paused and resumed during slow evictions", func(t *testing.T) {
		all.sub(t).pausedDuringEviction("slow", pauseMachine("slow"))
	})
	t.Run("E38: evicts no Pod twice when its Cluster is paused and resumed during slow evictions", func(t *testing.T) {
		all.sub(t).pausedDuringEviction("slower", (*scene).pauseCluster)
	})
	t.Run("M89: does nothing for a drain of another management cluster before it can continue it", func(t *testing.T) { all.sub(t).inherited() })
	t.Run("M12: sets the hook again on a Machine that was moved after its hook was released", func(t *testing.T) { all.sub(t).moved() })
	t.Run("M13, M96, M97: deletes the remaining Pods before the Machine is released with onTimeout Delete, also if its timeout is set late",
		func(t *testing.T) { all.sub(t).deletedAtTimeout() })
	t.Run("M13, M96, M97: evicts Pods of later steps and waits for their termination before the Machine is released, also if its timeout is set late",
		func(t *testing.T) { all.sub(t).finalEvictionAttempt() })
	t.Run("M17: recreates a NodeMaintenance that a user completes during the drain, and does not uncordon the Node", func(t *testing.T) {
		all.sub(t).completedByOthers()
	})
	t.Run("M32: excludes the Node from load balancers before the first eviction", func(t *testing.T) { all.sub(t).loadBalancers() })
	t.Run("M32: includes the Node in load balancers after the maintenance, unless another actor excluded it", func(t *testing.T) {
		all.sub(t).loadBalancersRestored()
	})
	t.Run("M11, M113, M114, M115, M116: a hook of another owner holds the drain before it begins and in the middle, unless the policy ignores it",
		func(t *testing.T) {
			all.sub(t).heldByHooks()
		})
	t.Run("M9: drains a control plane Machine before its pre-terminate hook is handled", func(t *testing.T) { all.sub(t).preTerminate() })
	t.Run("M9: sets the hook on a Machine of a MachinePool and drains it", func(t *testing.T) { all.sub(t).machinePool() })
	t.Run("M82: names a MachinePool without Machines in the condition of the policy, until it has one", func(t *testing.T) { all.sub(t).poolWithoutMachines() })
	t.Run("M9, M14: drains a Machine that a MachineHealthCheck deletes", func(t *testing.T) { all.sub(t).healthCheck() })
	t.Run("M18, M88, R58: deletes NodeMaintenances without Machine and Node on connect, and reports those whose Nodes exist, which users complete or delete",
		func(t *testing.T) { all.sub(t).orphans() })
	t.Run("M17: finishes a drain whose policy was deleted, also after a restart", func(t *testing.T) { all.sub(t).policyGone() })
}

// blocked deletes a Machine, two Pods of whose Node a PodDisruptionBudget protects, and waits until that is reported.
func (s *scene) blocked(machine string) {
	s.Helper()
	s.runOn(machine, "web", 2, deployment("web", 2), budget("web", 0))
	s.deleteMachine(machine)
	s.Eventually(func() string { return s.condition(machine).Message }, soon, pace).Should(ContainSubstring("Waiting for PodDisruptionBudget"))
}

func (s *scene) openBudget() {
	s.Helper()
	s.Expect(s.workload.Client.Delete(s.Context(), budget("web", 0))).To(Succeed())
}

func (s *scene) moved() {
	machine, node := s.machine("moved"), s.node("moved")
	m := machinedrain.Maintenance(machinedrain.Request{ManagementCluster: "the previous one", Cluster: s.cluster.Key(), Machine: machine, Node: node})
	s.create(s.workload.Client, m)
	s.change("moved", func(m *clusterv1.Machine) {
		m.Annotations[clusterv1.ExcludeNodeDrainingAnnotation] = v1alpha1.HookOwner
		m.Annotations[clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation] = v1alpha1.HookOwner
		delete(m.Annotations, v1alpha1.PreDrainHookAnnotation)
	})
	s.Eventually(func() map[string]string { return s.machine("moved").Annotations }, soon, pace).Should(And(
		HaveKey(v1alpha1.PreDrainHookAnnotation),
		Not(HaveKey(clusterv1.ExcludeNodeDrainingAnnotation)), Not(HaveKey(clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation))))
	s.expectReleased("moved")
	s.Eventually(func() *v1alpha1.NodeMaintenance { return s.maintenanceOf("moved") }, soon, pace).Should(BeNil())
	s.deleteMachine("moved")
	s.expectGone("moved")
}

// inherited deletes a Machine again after a move in the middle of its drain. Invalid drain rules prevent that the drain continues.
func (s *scene) inherited() {
	defer s.removeWorkloads()
	evicting, waiting := bare("evicting", "inherited"), bare("waiting", "inherited")
	s.run(evicting, waiting)
	invalid := tooLargeRule("web")
	s.create(s.fleet.Client, invalid)
	s.fleet.KillManager()
	m := machinedrain.Maintenance(machinedrain.Request{
		ManagementCluster: "the previous one", Cluster: s.cluster.Key(), Machine: s.machine("inherited"), Node: s.node("inherited"),
	})
	s.create(s.workload.Client, m)
	m.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "inherited"}}}
	s.Expect(s.workload.Client.Status().Update(s.Context(), m)).To(Succeed())
	e := evacuation.New(s.pod(evicting.Name), nil, 1800)
	metav1.SetMetaDataAnnotation(&e.ObjectMeta, v1alpha1.EvacuationNodeAnnotation, "inherited")
	evacuation.Request(e)
	s.create(s.workload.Client, e)
	s.deleteMachine("inherited")
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())

	s.Eventually(func() string { return s.condition("inherited").Reason }, eventually, pace).Should(Equal(v1alpha1.ReasonInvalidDrainRule))
	s.Consistently(func(g Gomega) {
		g.Expect(s.node("inherited").Spec.Unschedulable).To(BeFalse())
		g.Expect(s.evacuation(waiting)).To(BeNil())
		g.Expect(s.evictions()).To(BeEmpty())
	}, 30*time.Second, pace).Should(Succeed())

	s.Expect(s.fleet.Client.Delete(s.Context(), invalid)).To(Succeed())
	s.expectGone("inherited")
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("evicting", "waiting"))
	s.expectInvariants()
}

func (s *scene) deletedAtTimeout() {
	defer s.removeWorkloads()
	s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.OnTimeout = v1alpha1.OnTimeoutDelete })
	defer s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.OnTimeout = v1alpha1.OnTimeoutRelease })
	s.run(bare("stays", "overtime", labelledSkip))
	s.blocked("overtime")
	s.change("overtime", func(m *clusterv1.Machine) { m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](120) })
	s.Expect(s.ours().Verb("delete").Resource("pods")).To(BeEmpty(), "Pods are deleted shortly before their grace periods would exceed the timeout")
	s.Eventually(func() map[string]string { return s.machine("overtime").Annotations }, soon, pace).Should(HaveKey(v1alpha1.DrainStartedAnnotation))
	s.fleet.KillManager() // a manager that still reads the earlier Machine would write the annotation again
	s.makeOverdue("overtime")
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	s.expectGone("overtime")
	deleted := s.ours().Verb("delete").Resource("pods")
	s.Expect(sets.New(deleted.Names()...)).To(HaveLen(2)) // a Pod can be deleted twice until the watch delivers its deletion
	s.expectOrder(deleted[0], s.released("overtime"))
	s.Expect(excludes(s.released("overtime"))).To(Equal([]string{"drain", "volumes"}))
	s.Expect(s.evictions()).To(BeEmpty())
}

// makeOverdue sets a drain timeout of a Machine that passed 50 minutes ago, as if its drain had begun in place an hour ago, had been
// blocked since, and its NodeMaintenance had been recreated: a record from before the deletion counts only for a drain in place (M107).
func (s *scene) makeOverdue(machine string) {
	s.Helper()
	s.change(machine, func(m *clusterv1.Machine) {
		hourAgo := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
		m.Annotations[v1alpha1.MachineStageAnnotation], m.Annotations[v1alpha1.DrainRequestedAnnotation] = string(v1alpha1.StageDrain), hourAgo+"/"+string(m.UID)
		m.Annotations[v1alpha1.DrainStartedAnnotation] = hourAgo
		m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](600)
	})
}

func (s *scene) finalEvictionAttempt() {
	s.create(s.fleet.Client, drainRule("later", "later", clusterv1.MachineDrainRuleDrainBehaviorDrain, ptr.To[int32](1)))
	completes := bare("completes", "ordered", func(pod *corev1.Pod) { pod.Labels[clusterv1.PodDrainLabel] = "wait-completed" })
	s.run(bare("stays", "ordered", labelledSkip), completes)
	s.runOn("ordered", "later", 2, deployment("later", 2, func(template *corev1.PodTemplateSpec) {
		template.Annotations[controlplane.PodDeletionDelayAnnotation] = "3s"
	}))
	s.blocked("ordered") // so later steps do not start
	s.Expect(s.evictions()).To(BeEmpty())
	s.makeOverdue("ordered")
	s.Eventually(func() bool { return s.isGone("ordered") }, eventually, pace).Should(BeTrue())
	asked := s.evictions().Succeeded() // the PodDisruptionBudget still exists
	s.expectGoneWithPods("ordered")
	s.Expect(asked).To(HaveLen(2))
	s.Expect(asked.Names()).To(HaveEach(HavePrefix("later-")))
	for _, eviction := range asked {
		terminated := s.audited().Verb("delete").Resource("pods").Named(namespace, eviction.Name).Succeeded()
		s.expectOrder(eviction, s.first(terminated), s.released("ordered"))
	}
}

// expectGoneWithPods is expectGone for a Node with remaining Pods, which it deletes: the garbage collector takes a minute.
func (s *scene) expectGoneWithPods(machine string) {
	s.Helper()
	s.Eventually(func() bool { return s.isGone(machine) }, eventually, pace).Should(BeTrue())
	s.removeWorkloads()
	s.expectGone(machine)
}

func (s *scene) completedByOthers() {
	defer s.removeWorkloads()
	s.blocked("completed")
	before := s.maintenanceOf("completed")
	s.Expect(s.workload.Client.Patch(s.Context(), before, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"stage":"Complete"}}`)))).To(Succeed())
	s.Eventually(func(g Gomega) {
		now := s.maintenanceOf("completed")
		g.Expect(now).NotTo(BeNil())
		g.Expect(now.UID).NotTo(Equal(before.UID))
		g.Expect(now.Spec.Stage).To(Equal(v1alpha1.StageDrain))
	}, soon, pace).Should(Succeed())
	s.Expect(s.machine("completed").Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation))
	s.openBudget()
	s.expectGone("completed")
	s.Expect(s.evictions().Succeeded()).To(HaveLen(2))
	s.Expect(s.nodeWrites("completed").Where(setsSchedulable)).To(BeEmpty())
}

func (s *scene) loadBalancers() {
	defer s.removeWorkloads()
	s.runOn("balanced", "web", 2, deployment("web", 2))
	s.deleteMachine("balanced")
	s.expectGone("balanced")
	excluded := s.nodeWrites("balanced").Where(func(event controlplane.Event) bool {
		return patches(event, "add", "/metadata/labels/"+strings.ReplaceAll(corev1.LabelNodeExcludeBalancers, "/", "~1"), "")
	})
	s.expectOrder(s.first(excluded), s.first(s.evictions()))
}

func (s *scene) loadBalancersRestored() {
	s.withNodes("ours", "theirs", "asked")
	s.relabel("theirs", corev1.LabelNodeExcludeBalancers, "true")
	s.maintain(nm("firmware", v1alpha1.StageCordon, ofNodes("ours", "theirs"), func(m *v1alpha1.NodeMaintenance) { m.Spec.ExcludeFromLoadBalancers = true }))
	s.maintain(nm("kernel", v1alpha1.StageDrain, ofNodes("asked")))
	s.expectCordoned("ours", "theirs", "asked")
	s.Expect(s.node("ours").Labels).NotTo(HaveKey(corev1.LabelNodeExcludeBalancers), "the Node is only cordoned")
	s.setStage("firmware", v1alpha1.StageDrain)
	s.Eventually(func() map[string]string { return s.node("ours").Labels }, soon, pace).Should(HaveKey(corev1.LabelNodeExcludeBalancers))
	s.Expect(s.node("asked").Labels).NotTo(HaveKey(corev1.LabelNodeExcludeBalancers), "no NodeMaintenance requests it")
	s.setStage("firmware", v1alpha1.StageComplete)
	s.expectReleased("ours", "theirs")
	s.Expect(s.node("ours").Labels).NotTo(HaveKey(corev1.LabelNodeExcludeBalancers))
	s.Expect(s.node("ours").Annotations).NotTo(HaveKey(v1alpha1.ExcludedFromLoadBalancersAnnotation))
	s.Expect(s.node("theirs").Labels).To(HaveKeyWithValue(corev1.LabelNodeExcludeBalancers, "true"))
	s.cleanUp()
}

// heldByHooks holds the drain of a Machine by the hook of another owner before it begins, and again while it waits for a
// PodDisruptionBudget. Then the drain times out only by the time after the hold. A policy ignores the hook on another Machine.
func (s *scene) heldByHooks() {
	defer s.removeWorkloads()
	s.change("foreign", func(m *clusterv1.Machine) { m.Annotations[foreignHook] = "another-actor" })
	s.runOn("foreign", "web", 2, deployment("web", 2), budget("web", 0))
	s.deleteMachine("foreign")
	s.expectHeldByHook("foreign")
	// Another drain in the same Cluster, whose Machine has a hook that the policy ignores, shows that the manager had enough time.
	s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.IgnoredPreDrainHooks = []string{"ignored"} })
	defer s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.IgnoredPreDrainHooks = nil })
	const ignored = clusterv1.PreDrainDeleteHookAnnotationPrefix + "/ignored"
	s.withMachines("unheld")
	s.change("unheld", func(m *clusterv1.Machine) { m.Annotations[ignored] = "waits-for-the-drain" })
	s.run(bare("unheld", "unheld"))
	s.deleteMachine("unheld")
	s.Eventually(func() map[string]string { return s.machine("unheld").Annotations }, eventually, pace).Should(And(
		Not(HaveKey(v1alpha1.PreDrainHookAnnotation)), HaveKeyWithValue(ignored, "waits-for-the-drain")))
	s.change("unheld", func(m *clusterv1.Machine) { delete(m.Annotations, ignored) })
	s.expectGone("unheld")
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("unheld"))
	s.Expect(s.maintenanceOf("foreign")).To(BeNil())
	s.Expect(s.node("foreign").Spec.Unschedulable).To(BeFalse())

	s.change("foreign", func(m *clusterv1.Machine) { delete(m.Annotations, foreignHook) })
	s.Eventually(func() string { return s.condition("foreign").Message }, soon, pace).Should(ContainSubstring("Waiting for PodDisruptionBudget"))
	s.Expect(s.machine("foreign").Annotations).NotTo(HaveKey(v1alpha1.DrainHeldAnnotation))
	s.change("foreign", func(m *clusterv1.Machine) { m.Annotations[foreignHook] = "another-actor" })
	s.expectHeldByHook("foreign")
	s.openBudget()
	s.Consistently(func(g Gomega) {
		g.Expect(s.evictions()).To(HaveLen(1))
		g.Expect(s.node("foreign").Spec.Unschedulable).To(BeTrue())
	}, budgets.LossCounts+undisturbed, pace).Should(Succeed())

	s.create(s.workload.Client, budget("web", 0))
	s.expectHealthy("web", 2)
	const timeout = 2 * time.Second // shorter than the time since the drain began
	s.change("foreign", func(m *clusterv1.Machine) {
		m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To(int32(timeout.Seconds()))
		m.Annotations[preTerminateHook] = "" // keeps the NodeMaintenance after the timeout
	})
	s.expectHeldByHook("foreign")
	resumed := time.Now().Truncate(time.Second) // as the start of a drain is recorded
	s.change("foreign", func(m *clusterv1.Machine) { delete(m.Annotations, foreignHook) })
	s.Eventually(func() *time.Time { return s.maintenanceOf("foreign").DrainStart() }, soon, pace).Should(HaveValue(BeTemporally(">=", resumed)))
	s.Expect(s.released("foreign").Requested).To(BeTemporally(">=", resumed.Add(timeout)))
	s.Expect(s.evictions()).To(HaveLen(1))
	s.change("foreign", func(m *clusterv1.Machine) { delete(m.Annotations, preTerminateHook) })
	s.expectGoneWithPods("foreign")
}

// expectHeldByHook waits until the condition of a Machine names the hook that holds its drain.
func (s *scene) expectHeldByHook(machine string) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		condition := s.condition(machine)
		g.Expect(condition.Reason).To(Equal(v1alpha1.ReasonWaitingForPreDrainHook))
		g.Expect(condition.Message).To(ContainSubstring("foreign (owner another-actor)"))
		g.Expect(s.machine(machine).Annotations).To(And(HaveKey(v1alpha1.PreDrainHookAnnotation), HaveKeyWithValue(foreignHook, "another-actor"),
			HaveKey(v1alpha1.DrainHeldAnnotation)))
	}, soon, pace).Should(Succeed())
}

func (s *scene) preTerminate() {
	s.create(s.fleet.Client, s.cluster.ControlPlaneMachine("cp")...)
	s.expectRunning("cp")
	s.change("cp", func(m *clusterv1.Machine) { m.Annotations[preTerminateHook] = "" })
	s.run(bare("on-cp", "cp"))
	s.deleteMachine("cp")
	s.Eventually(func(g Gomega) {
		machine := s.machine("cp")
		g.Expect(machine.Annotations).NotTo(HaveKey(v1alpha1.PreDrainHookAnnotation))
		g.Expect(machine.Status.Deletion).NotTo(BeNil())
		g.Expect(machine.Status.Deletion.WaitForPreTerminateHookStartTime.IsZero()).To(BeFalse())
	}, eventually, pace).Should(Succeed())
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("on-cp"))
	s.change("cp", func(m *clusterv1.Machine) { delete(m.Annotations, preTerminateHook) })
	s.expectGone("cp")
}

func (s *scene) machinePool() {
	s.change("pooled", func(m *clusterv1.Machine) {
		m.Labels[clusterv1.MachinePoolNameLabel] = "pool"
		delete(m.Annotations, v1alpha1.PreDrainHookAnnotation)
	})
	s.Eventually(func() map[string]string { return s.machine("pooled").Annotations }, soon, pace).Should(HaveKey(v1alpha1.PreDrainHookAnnotation))
	s.run(bare("in-pool", "pooled"))
	s.deleteMachine("pooled")
	s.expectGone("pooled")
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("in-pool"))
}

// poolWithoutMachines creates a MachinePool as a provider without MachinePool Machines has it: it has Nodes and no Machines. It is paused,
// since no such provider runs here.
func (s *scene) poolWithoutMachines() {
	pool := &clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "opaque", Annotations: map[string]string{clusterv1.PausedAnnotation: ""},
	}}
	pool.Spec.ClusterName, pool.Spec.Template.Spec.ClusterName = s.cluster.Key().Name, s.cluster.Key().Name
	pool.Spec.Template.Spec.Bootstrap.DataSecretName = ptr.To("none")
	pool.Spec.Template.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "OpaquePool", Name: "opaque",
	}
	s.create(s.fleet.Client, pool)
	patch := client.MergeFrom(pool.DeepCopy())
	pool.Status.NodeRefs = []corev1.ObjectReference{{Kind: "Node", Name: "spare"}}
	s.Expect(s.fleet.Client.Status().Patch(s.Context(), pool, patch)).To(Succeed())
	managed := func() *metav1.Condition {
		policy := read(s, s.fleet.Client, keyOf("all"), &v1alpha1.MachineDrainPolicy{})
		return meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.MachineDrainPolicyMachinePoolsManaged)
	}
	s.Eventually(managed, soon, pace).Should(HaveField("Message", ContainSubstring("MachinePools: opaque.")))

	s.change("spare", func(m *clusterv1.Machine) { m.Labels[clusterv1.MachinePoolNameLabel] = "opaque" })
	s.Eventually(managed, soon, pace).Should(BeNil())
	s.change("spare", func(m *clusterv1.Machine) { delete(m.Labels, clusterv1.MachinePoolNameLabel) })
	s.Expect(s.fleet.Client.Delete(s.Context(), pool)).To(Succeed())
}

func (s *scene) healthCheck() {
	s.create(s.fleet.Client, s.cluster.MachineDeployment("checked", 1)...)
	ill := s.machineOf("checked")
	s.expectRunning(ill)
	check := &clusterv1.MachineHealthCheck{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "checked"}}
	check.Spec.ClusterName = s.cluster.Key().Name
	check.Spec.Selector = *labelSelector(clusterv1.MachineDeploymentNameLabel, "checked")
	check.Spec.Checks.UnhealthyNodeConditions = []clusterv1.UnhealthyNodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionUnknown, TimeoutSeconds: ptr.To[int32](1),
	}}
	s.create(s.fleet.Client, check)
	s.run(bare("lost", ill))
	s.stopAnswering(ill)
	s.expectGoneWithPods(ill)
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("lost"))
	s.Expect(excludes(s.released(ill))).To(ContainElement("drain"))
	s.Expect(s.fleet.Client.Delete(s.Context(), check)).To(Succeed())
	s.expectRunning(s.machineOf("checked"))
}

// machineOf returns the name of the Machine of a MachineDeployment with one replica.
func (s *scene) machineOf(deployment string) (name string) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		list := &clusterv1.MachineList{}
		g.Expect(s.fleet.Client.List(s.Context(), list, client.InNamespace(namespace), client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: deployment})).
			To(Succeed())
		running := slices.DeleteFunc(list.Items, func(m clusterv1.Machine) bool { return !m.DeletionTimestamp.IsZero() })
		g.Expect(running).To(HaveLen(1))
		name = running[0].Name
	}, eventually, pace).Should(Succeed())
	return name
}

func (s *scene) orphans() {
	s.withNodes("left-behind", "left-behind-too", "not-ours")
	kubeSystem := read(s, s.fleet.Client, client.ObjectKey{Name: metav1.NamespaceSystem}, &corev1.Namespace{})
	orphan := func(name string, node *corev1.Node, managementCluster string) *v1alpha1.NodeMaintenance {
		machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		return machinedrain.Maintenance(machinedrain.Request{ManagementCluster: managementCluster, Cluster: s.cluster.Key(), Machine: machine, Node: node})
	}
	gone := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "long-gone", UID: "gone"}}
	ours, theirs := orphan("o1", s.node("left-behind"), string(kubeSystem.UID)), orphan("o3", s.node("not-ours"), "another one")
	second := orphan("o5", s.node("left-behind-too"), string(kubeSystem.UID))
	nodeless, theirNodeless := orphan("o2", gone, string(kubeSystem.UID)), orphan("o4", gone, "another one")
	s.fleet.KillManager()
	s.create(s.workload.Client, ours, second, nodeless, theirs, theirNodeless)
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	exists := func(m *v1alpha1.NodeMaintenance) error {
		return s.workload.Client.Get(s.Context(), client.ObjectKeyFromObject(m), m)
	}
	s.Eventually(func() error { return exists(nodeless) }, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	s.Eventually(func() error { return exists(theirNodeless) }, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	s.Eventually(func(g Gomega) {
		g.Expect(exists(ours)).To(Succeed())
		g.Expect(meta.IsStatusConditionTrue(ours.Status.Conditions, v1alpha1.NodeMaintenanceMachineDeleted)).To(BeTrue())
		g.Expect(exists(second)).To(Succeed())
		g.Expect(meta.IsStatusConditionTrue(second.Status.Conditions, v1alpha1.NodeMaintenanceMachineDeleted)).To(BeTrue())
	}, eventually, pace).Should(Succeed())
	s.Expect(ours.Spec.Stage).To(Equal(v1alpha1.StageDrain))
	s.Expect(s.node("left-behind").Spec.Unschedulable).To(BeTrue())
	s.Expect(exists(theirs)).To(Succeed())
	s.Expect(meta.FindStatusCondition(theirs.Status.Conditions, v1alpha1.NodeMaintenanceMachineDeleted)).To(BeNil())

	s.setStage(ours.Name, v1alpha1.StageComplete) // as the message of the condition says
	s.setStage(theirs.Name, v1alpha1.StageComplete)
	s.deleteMaintenances(second.Name)
	s.expectReleased("left-behind", "left-behind-too", "not-ours")
	s.deleteMaintenances(ours.Name, theirs.Name)
	s.cleanUp()
}

func (s *scene) policyGone() {
	s.blocked("orphaned")
	s.Expect(s.fleet.Client.Delete(s.Context(), &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "all"}})).To(Succeed())
	s.Eventually(func() map[string]string { return s.machine("spare").Annotations }, soon, pace).ShouldNot(HaveKey(v1alpha1.PreDrainHookAnnotation))
	s.Expect(s.machine("orphaned").Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation))
	s.fleet.KillManager()
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	s.openBudget()
	s.Eventually(func() error {
		return s.fleet.Client.Get(s.Context(), keyOf("orphaned"), &clusterv1.Machine{})
	}, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	s.Expect(s.evictions().Succeeded()).To(HaveLen(2))
	s.expectInvariants()
}

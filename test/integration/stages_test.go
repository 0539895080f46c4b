package integration

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

const (
	idle     = v1alpha1.StageIdle
	cordoned = v1alpha1.StageCordon
	draining = v1alpha1.StageDrain
	complete = v1alpha1.StageComplete

	// aMoment is how long a test checks that something does not happen.
	aMoment = time.Second
)

// TestStages maintains Nodes as an administrator of a workload cluster does with kubectl.
func TestStages(t *testing.T) {
	parallel(t, 150*time.Second)
	all := newScene(t, fleet.Options{PodDeletionDelay: 300 * time.Millisecond})
	all.withMachines("m1", "m3") // then the manager serves the Cluster
	all.withPriorities(100, 500, 1000, 2000, 5000, 10000, 15000)
	all.play(t, append(stageActs, statusActs...)...)
}

// stageActs each use separate Nodes.
var stageActs = []act{
	{"R10: Idle changes no Node and no Pod", idleChangesNothing},
	{"R47: Idle lists its Nodes", idleListsNodes},
	{"R11: stores the finalizer before the first side effect", finalizerFirst},
	{"R12: deletes a NodeMaintenance in stage Idle immediately", idleIsDeletedImmediately},
	{"R12: completes a deleted NodeMaintenance and does not cordon again", deletionCompletes},
	{"R12: deletes a NodeMaintenance whose Node was deleted", deletedNode},
	{"R12: does not change a Node of the recorded name with another UID", otherUID},
	{"R13: keeps Nodes unschedulable in stages Cordon and Drain", keepsCordoned},
	{"R15: releases a Node that leaves the selection, and drains a Node that joins from the current step", labelDrift},
	{"R59: counts the drain timeout of a Node that joins from then, and not from the start of stage Drain", joinsAfterTimeout},
	{"R15: releases a Node that left the selection while the manager was stopped", labelDriftUnseen},
	{"R15: keeps a Node cordoned that left one selection while another NodeMaintenance selects it", labelDriftShared},
	{"R16: uncordons a Node when no other NodeMaintenance cordons it", uncordonedByTheLast},
	{"R16: uncordons Nodes whose NodeMaintenances are deleted at the same time", deletedTogether},
	{"R17: withdraws from Evacuations when no other NodeMaintenance drains the Node", withdrawnByTheLast},
	{"R18: keeps finalizers of other actors on Evacuations", foreignFinalizersStay},
	{"R18: completes while an Evacuation that forbids cancellation remains", forbidden},
	{"R19, R100: keeps a Node cordoned that a user had cordoned, unless Complete follows Idle, or the user uncordons it", humanCordon},
	{"R20: creates one Evacuation for each Pod and restores its finalizer", oneEvacuation},
	{"R21: evacuates later Pods and Pods without a controller or with an emptyDir, and waits for terminating Pods", allPods},
	{"R23, R24, R34: evacuates Pods of two Nodes by priority, also after a crash", byPriority},
	{"R25, R28, R29, R30, R31: reports the progress of overlapping NodeMaintenances as the example of KEP-4212 does", overlapping},
	{"R26: publishes drain targets of a selector beside those without a selector", rowsOfSelectors},
	{"R33: records the start of each stage once", stageStatuses},
	{"R35: is Drained only in stage Drain, and again after another Pod was drained", drainedAgain},
	{"R35: is not Drained without a selected Node", noNodes},
	{"R55: drains no more Nodes at the same time than maxParallelNodes allows, in the order of their names", parallelNodes},
	{"R55: keeps waiting Nodes schedulable with waitingNodes Schedulable, also when the manager restarts", schedulableNodes},
	{"R56: lets a NodeMaintenance without a limit drain a Node that waits in another", overlappingLimit},
	{"R45: honors the drain labels of Pods without any drain rule", drainLabels},
	{"M2, E4, E33: events on a Pod report its invalid label and annotation, and name the NodeMaintenance and its reason", eventsOnPods},
	{"R42: the commands of the guide work", followGuide},
	{"R43, R49: restores Nodes of vanished NodeMaintenances on connect, including the load balancer label", orphansAreCleanedUp},
	{"R63, R64: evicts no further Pod and restores the Node when a NodeMaintenance vanishes while the manager runs", vanishesAtRuntime},
}

func idleChangesNothing(s *scene) {
	s.withNodes("r10")
	s.run(bare("r10", "r10"))
	s.maintain(nm("r10", idle, ofNodes("r10")))
	s.Consistently(func(g Gomega) {
		g.Expect(s.nodeWrites("r10")).To(BeEmpty())
		g.Expect(s.ours().Resource("pods", "", "eviction", "status")).To(BeEmpty())
		g.Expect(s.ours().Resource("evacuations")).To(BeEmpty())
	}, aMoment, pace).Should(Succeed())
	s.Expect(s.stored("r10").Finalizers).To(BeEmpty())
	s.deleteMaintenances("r10")
}

func idleListsNodes(s *scene) {
	s.withNodes("r47")
	s.maintain(nm("r47", idle, ofNodes("r47")))
	s.Eventually(func() []v1alpha1.NodeMaintenanceNodeStatus { return s.stored("r47").Status.NodeStatuses }, soon, pace).
		Should(ConsistOf(HaveField("NodeRef.Name", "r47")))
	s.deleteMaintenances("r47")
}

func finalizerFirst(s *scene) {
	s.withNodes("r11-a", "r11-b")
	s.run(bare("r11", "r11-b", withEvacuator))
	s.maintain(nm("r11-a", cordoned, ofNodes("r11-a")))
	s.maintain(nm("r11-b", draining, ofNodes("r11-b")))
	s.expectCordoned("r11-a", "r11-b")
	s.Eventually(func() []string { return s.targets(s.pod("r11")) }, soon, pace).Should(HaveLen(1))
	s.deleteMaintenances("r11-a", "r11-b")
	for _, name := range []string{"r11-a", "r11-b"} {
		stored := s.first(s.ours().Resource("nodemaintenances").Named("", name).Where(contains(v1alpha1.MaintenanceCompletionFinalizer)))
		s.expectOrder(stored, s.first(s.nodeWrites(name)))
	}
	stored := s.first(s.ours().Resource("nodemaintenances").Named("", "r11-b").Where(contains(v1alpha1.MaintenanceCompletionFinalizer)))
	s.expectOrder(stored, s.first(s.ours().Resource("evacuations").Verb("create")))
}

func idleIsDeletedImmediately(s *scene) {
	s.withNodes("r12-idle")
	s.maintain(nm("r12-idle", idle, ofNodes("r12-idle")))
	s.deleteMaintenances("r12-idle")
	s.Expect(s.ours().Resource("nodemaintenances").Named("", "r12-idle")).To(BeEmpty(), "only its status is written")
	s.Expect(s.nodeWrites("r12-idle")).To(BeEmpty())
}

func deletionCompletes(s *scene) {
	const keep = "example.com/keep"
	s.withNodes("r12")
	pod := bare("r12", "r12", withEvacuator)
	s.run(pod)
	s.maintain(nm("r12", draining, ofNodes("r12"), func(m *v1alpha1.NodeMaintenance) { m.Finalizers = []string{keep} }))
	s.expectTargets(1, pod)

	s.Expect(s.workload.Client.Delete(s.Context(), maintenance("r12"))).To(Succeed())
	s.Eventually(func() []string { return s.stored("r12").Finalizers }, soon, pace).Should(Equal([]string{keep}))
	s.Expect(s.stored("r12").Spec.Stage).To(Equal(complete))
	s.expectReleased("r12")
	s.expectTargets(0, pod)

	// The object still exists, so its events still cause reconciliations.
	s.Consistently(func() bool { return s.node("r12").Spec.Unschedulable }, aMoment, pace).Should(BeFalse())
	written := s.ours().Resource("nodemaintenances").Named("", "r12")
	completes := s.first(written.Where(contains(`"stage":"Complete"`)))
	uncordons := s.first(s.nodeWrites("r12").Where(setsSchedulable))
	releases := written[len(written)-1]
	s.Expect(removesFinalizer(v1alpha1.MaintenanceCompletionFinalizer)(releases)).To(BeTrue(), "%s", releases.RequestObject)
	s.expectOrder(completes, uncordons, releases)
	s.Expect(s.nodeWrites("r12").Where(setsUnschedulable)).To(HaveLen(1), "the Node is cordoned once")
	s.Expect(s.stored("r12").Finalizers).To(Equal([]string{keep}))
	s.Expect(s.workload.Client.Patch(s.Context(), maintenance("r12"), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).
		To(Succeed())
	s.deleteMaintenances("r12")
	s.Expect(s.pod("r12").UID).To(Equal(pod.UID))
}

func deletedNode(s *scene) {
	s.withNodes("r12-gone")
	s.maintain(nm("r12-gone", draining, ofNodes("r12-gone")))
	s.expectCordoned("r12-gone")
	s.Expect(s.workload.Client.Delete(s.Context(), s.node("r12-gone"))).To(Succeed())
	s.deleteMaintenances("r12-gone")
}

func otherUID(s *scene) {
	s.withNodes("r12-uid")
	s.setUnschedulable("r12-uid", true)
	pod := bare("r12-uid", "r12-uid")
	s.run(pod)
	s.maintain(nm("r12-uid", draining, ofNodes("r12-uid"), func(m *v1alpha1.NodeMaintenance) {
		m.Annotations = map[string]string{v1alpha1.NodeUIDAnnotation: "11111111-2222-3333-4444-555555555555"}
	}))
	s.Expect(s.drained("r12-uid")).To(Equal("False " + v1alpha1.ReasonNoNodesSelected))
	s.deleteMaintenances("r12-uid")
	s.Expect(s.nodeWrites("r12-uid")).To(BeEmpty())
	s.Expect(s.evacuation(pod)).To(BeNil())
	s.Expect(s.evictions()).To(BeEmpty())
	s.Expect(s.node("r12-uid").Spec.Unschedulable).To(BeTrue())
}

func keepsCordoned(s *scene) {
	s.withNodes("r13")
	s.maintain(nm("r13", cordoned, ofNodes("r13")))
	s.expectCordoned("r13")
	s.setUnschedulable("r13", false)
	s.expectCordoned("r13")
	s.setStage("r13", draining)
	s.setUnschedulable("r13", false)
	s.expectCordoned("r13")
	s.deleteMaintenances("r13")
	s.expectReleased("r13")
}

func labelDrift(s *scene) {
	s.withNodes("r15-leaves pool=r15", "r15-joins", "r15-stays pool=r15")
	leaves, joins, stays := bare("r15-leaves", "r15-leaves", withEvacuator), bare("r15-joins", "r15-joins", withEvacuator, priority(1000)),
		bare("r15-stays", "r15-stays", withEvacuator, priority(1000))
	low := bare("r15-low", "r15-stays", withEvacuator)
	s.run(leaves, joins, stays, low)
	s.maintain(nm("r15", draining, ofNodesLabelled("pool", "r15"), upTo(100, 1000)))
	s.expectTargets(2, leaves, low, joins, stays)

	s.relabel("r15-leaves", "pool", "")
	s.expectReleased("r15-leaves")
	s.expectTargets(1, low, leaves, joins, stays)
	s.Expect(s.pod("r15-leaves").DeletionTimestamp).To(BeNil())
	s.Eventually(func() string { return s.nodeStatus("r15", "r15-leaves").NodeRef.Name }, soon, pace).Should(BeEmpty())

	s.deletePods("r15-low")
	s.expectTargets(1, stays, leaves, joins)
	s.relabel("r15-joins", "pool", "r15")
	s.expectCordoned("r15-joins", "r15-stays")
	s.expectTargets(2, stays, joins, leaves)

	s.setStage("r15", complete)
	s.expectReleased("r15-leaves", "r15-joins", "r15-stays")
	s.expectTargets(0, leaves, joins, stays)
	s.deleteMaintenances("r15")
}

func joinsAfterTimeout(s *scene) {
	s.withNodes("r59-first pool=r59", "r59-joins")
	s.create(s.workload.Client, budget("r59", 0))
	first, joins := bare("r59-first", "r59-first", withApp("r59")), bare("r59-joined", "r59-joins", withApp("r59"))
	s.run(first, joins)
	deletes := func(m *v1alpha1.NodeMaintenance) { m.Spec.Evacuation.OnTimeout = v1alpha1.OnTimeoutDelete }
	s.maintain(nm("r59", draining, ofNodesLabelled("pool", "r59"), endsAfter(6), deletes))
	s.expectDeleted(first)
	joined := time.Now().Truncate(time.Second)
	s.relabel("r59-joins", "pool", "r59")
	s.expectDeleted(joins)
	deleted := s.first(s.ours().Verb("delete").Resource("pods").Named(namespace, joins.Name))
	s.Expect(deleted.Requested).To(BeTemporally(">=", joined.Add(3*time.Second)), "not in the first half of its drain")
	s.Expect(s.nodeStatus("r59", "r59-joins").DrainStartTime.Time).To(BeTemporally(">=", joined))
	s.Expect(s.nodeStatus("r59", "r59-first").DrainStartTime).To(BeNil())
	s.Expect(s.workload.Client.Delete(s.Context(), budget("r59", 0))).To(Succeed())
	s.setStage("r59", complete)
	s.deleteMaintenances("r59")
}

func labelDriftUnseen(s *scene) {
	s.withNodes("r15-cordoned pool=r15-c", "r15-drained pool=r15-d", "r15-completed pool=r15-e")
	pod, deleted := bare("r15-drained", "r15-drained", withEvacuator), bare("r15-completed", "r15-completed", withEvacuator)
	s.run(pod, deleted)
	s.maintain(nm("r15-c", cordoned, ofNodesLabelled("pool", "r15-c")))
	s.maintain(nm("r15-d", draining, ofNodesLabelled("pool", "r15-d")))
	s.maintain(nm("r15-e", draining, ofNodesLabelled("pool", "r15-e")))
	s.expectCordoned("r15-cordoned", "r15-drained", "r15-completed")
	s.expectTargets(2, pod, deleted)
	for name, node := range map[string]string{"r15-c": "r15-cordoned", "r15-d": "r15-drained", "r15-e": "r15-completed"} {
		s.Eventually(func() string { return s.nodeStatus(name, node).NodeRef.Name }, soon, pace).Should(Equal(node))
	}

	s.fleet.KillManager()
	for _, node := range []string{"r15-cordoned", "r15-drained", "r15-completed"} {
		s.relabel(node, "pool", "")
	}
	s.Expect(s.workload.Client.Delete(s.Context(), maintenance("r15-e"))).To(Succeed())
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	s.expectReleased("r15-cordoned", "r15-drained", "r15-completed")
	s.expectTargets(0, pod, deleted)
	s.deleteMaintenances("r15-c", "r15-d", "r15-e")
}

func labelDriftShared(s *scene) {
	s.withNodes("r15-shared pool=r15-s")
	pod := bare("r15-shared", "r15-shared", withEvacuator)
	s.run(pod)
	s.maintain(nm("r15-by-label", draining, ofNodesLabelled("pool", "r15-s")))
	s.maintain(nm("r15-by-name", draining, ofNodes("r15-shared")))
	s.expectCordoned("r15-shared")
	s.expectTargets(1, pod)
	before := s.existing(pod)

	s.relabel("r15-shared", "pool", "")
	s.Eventually(func() []v1alpha1.NodeMaintenanceNodeStatus { return s.stored("r15-by-label").Status.NodeStatuses }, soon, pace).Should(BeEmpty())
	s.Consistently(func(g Gomega) {
		g.Expect(s.node("r15-shared").Spec.Unschedulable).To(BeTrue())
		g.Expect(s.existing(pod).UID).To(Equal(before.UID))
	}, aMoment, pace).Should(Succeed())
	s.deleteMaintenances("r15-by-name")
	s.expectReleased("r15-shared")
	s.expectTargets(0, pod)
	s.deleteMaintenances("r15-by-label")
}

func uncordonedByTheLast(s *scene) {
	s.withNodes("r16")
	s.maintain(nm("r16-a", cordoned, ofNodes("r16")))
	s.maintain(nm("r16-b", idle, ofNodes("r16")))
	s.maintain(nm("r16-c", draining, ofNodes("r16")))
	s.expectCordoned("r16")
	s.setStage("r16-a", complete)
	s.Consistently(func() bool { return s.node("r16").Spec.Unschedulable }, aMoment, pace).Should(BeTrue())
	s.setStage("r16-c", complete)
	s.expectReleased("r16")
	s.deleteMaintenances("r16-a", "r16-b", "r16-c")
	s.expectReleased("r16")
	s.Expect(s.nodeWrites("r16").Where(setsSchedulable)).To(HaveLen(1))
}

func deletedTogether(s *scene) {
	nodes := []string{"r16-1", "r16-2", "r16-3", "r16-4", "r16-5"}
	s.withNodes(nodes...)
	s.maintain(nm("r16-x", draining, ofNodes(nodes...)))
	s.maintain(nm("r16-y", draining, ofNodes(nodes...)))
	for _, node := range nodes {
		s.create(s.workload.Client, nm(node, cordoned, ofNodes(node)))
	}
	s.expectCordoned(nodes...)
	s.deleteMaintenances(append([]string{"r16-x", "r16-y"}, nodes...)...)
	s.expectReleased(nodes...)
}

func withdrawnByTheLast(s *scene) {
	s.withNodes("r17")
	wanted, skipped := bare("r17-wanted", "r17", withEvacuator), bare("r17-skipped", "r17", withEvacuator)
	s.run(wanted, skipped)
	s.maintain(nm("r17-all", draining, ofNodes("r17")))
	s.maintain(nm("r17-some", draining, ofNodes("r17"), func(m *v1alpha1.NodeMaintenance) {
		m.Spec.DrainRules = []v1alpha1.DrainRule{{
			Name: "r17", Behavior: v1alpha1.DrainBehaviorSkip, Pods: []v1alpha1.DrainRulePodSelector{{Selector: labelSelector("app", "r17-skipped")}},
		}}
	}))
	s.expectTargets(2, wanted, skipped)
	before := s.existing(wanted)
	s.setStage("r17-all", complete)
	s.expectTargets(1, wanted, skipped)
	s.Consistently(func() types.UID { return s.existing(wanted).UID }, aMoment, pace).Should(Equal(before.UID))
	s.setStage("r17-some", complete)
	s.expectTargets(0, wanted, skipped)
	s.Eventually(func() *v1alpha1.Evacuation { return s.evacuation(wanted) }, soon, pace).Should(BeNil())
	s.Expect(s.evictions()).To(BeEmpty())
	s.deleteMaintenances("r17-all", "r17-some")
}

func foreignFinalizersStay(s *scene) {
	const instigator, other = v1alpha1.InstigatorFinalizerPrefix + "example.com", "example.com/other"
	s.withNodes("r18")
	asked, kept := bare("r18-asked", "r18", withEvacuator), bare("r18-kept", "r18", withEvacuator)
	s.run(asked, kept)
	s.maintain(nm("r18", draining, ofNodes("r18")))
	s.expectTargets(2, asked, kept)
	s.setFinalizers(asked, v1alpha1.NodeMaintenanceInstigatorFinalizer, instigator, other)
	s.setFinalizers(kept, v1alpha1.NodeMaintenanceInstigatorFinalizer, other)
	s.deleteMaintenances("r18")
	s.expectTargets(0, asked, kept)
	s.Consistently(func(g Gomega) {
		e := s.existing(asked)
		g.Expect(e.Finalizers).To(ConsistOf(instigator, other))
		g.Expect(e.DeletionTimestamp).To(BeNil(), "another instigator still requests it")
	}, aMoment, pace).Should(Succeed())
	s.Expect(s.existing(kept).Finalizers).To(ConsistOf(other))
	s.Eventually(func() *metav1.Time { return s.existing(kept).DeletionTimestamp }, soon, pace).ShouldNot(BeNil())
	s.setFinalizers(asked)
	s.setFinalizers(kept)
	s.Eventually(func() *v1alpha1.Evacuation { return s.evacuation(asked) }, soon, pace).Should(BeNil())
}

func forbidden(s *scene) {
	s.withNodes("r18-forbidden")
	pod := bare("r18-forbidden", "r18-forbidden", withEvacuator)
	s.run(pod)
	s.maintain(nm("r18-forbidden", draining, ofNodes("r18-forbidden")))
	s.Eventually(func() string { return s.activeClass(pod) }, soon, pace).Should(Equal(evacuatorClass))
	s.Expect(s.workload.Client.Status().Patch(s.Context(), s.existing(pod), client.RawPatch(types.MergePatchType,
		[]byte(`{"status":{"evacuationCancellationPolicy":"Forbid"}}`)))).To(Succeed())

	s.deleteMaintenances("r18-forbidden")
	s.expectReleased("r18-forbidden")
	s.Consistently(func() any { return s.existing(pod).DeletionTimestamp }, aMoment, pace).Should(BeNil())
	s.Expect(s.ours().Resource("evacuations").Verb("delete").Named(namespace, s.existing(pod).Name)).To(BeEmpty())
	s.deletePods("r18-forbidden")
	s.Eventually(func() *v1alpha1.Evacuation { return s.evacuation(pod) }, soon, pace).Should(BeNil())
}

func humanCordon(s *scene) {
	s.withNodes("r19")
	s.setUnschedulable("r19", true)
	s.maintain(nm("r19", draining, ofNodes("r19")))
	s.expectCordoned("r19")
	s.deleteMaintenances("r19")
	s.Expect(s.node("r19").Spec.Unschedulable).To(BeTrue())
	s.Expect(s.node("r19").Annotations).NotTo(HaveKey(v1alpha1.NodeOriginAnnotation))

	s.maintain(nm("r19-idle", idle, ofNodes("r19")))
	s.setStage("r19-idle", complete)
	s.expectReleased("r19")
	s.maintain(nm("r19-later", idle, ofNodes("r19"))) // before it, the watch has delivered that Complete has finished
	s.setUnschedulable("r19", true)
	s.Consistently(func() bool { return s.node("r19").Spec.Unschedulable }, aMoment, pace).Should(BeTrue(), "Complete has finished")
	s.deleteMaintenances("r19-idle", "r19-later")
	s.Expect(s.node("r19").Spec.Unschedulable).To(BeTrue())

	s.maintain(nm("r100", cordoned, ofNodes("r19")))
	s.expectCordoned("r19")
	s.setUnschedulable("r19", false)
	s.expectCordoned("r19")
	s.deleteMaintenances("r100")
	s.expectReleased("r19")
}

func stageStatuses(s *scene) {
	s.withNodes("r33", "r33-drain")
	started := func(name string) []v1alpha1.NodeMaintenanceStage {
		var stages []v1alpha1.NodeMaintenanceStage
		for _, status := range s.stored(name).Status.StageStatuses {
			s.Expect(status.StartTimestamp.IsZero()).To(BeFalse())
			stages = append(stages, status.Name)
		}
		return stages
	}
	s.maintain(nm("r33", idle, ofNodes("r33")))
	s.Expect(started("r33")).To(Equal([]v1alpha1.NodeMaintenanceStage{idle}))
	s.setStage("r33", cordoned)
	before := s.stored("r33").Status.StageStatuses
	s.setStage("r33", draining)
	s.setStage("r33", complete)
	s.Expect(started("r33")).To(Equal([]v1alpha1.NodeMaintenanceStage{idle, cordoned, draining, complete}))
	s.Expect(s.stored("r33").Status.StageStatuses[:2]).To(Equal(before))
	s.maintain(nm("r33-drain", draining, ofNodes("r33-drain")))
	s.Expect(started("r33-drain")).To(Equal([]v1alpha1.NodeMaintenanceStage{cordoned, draining}))
	s.deleteMaintenances("r33", "r33-drain")
}

func drainedAgain(s *scene) {
	s.withNodes("r35")
	s.maintain(nm("r35", cordoned, ofNodes("r35")))
	s.Expect(s.drained("r35")).To(Equal("False " + v1alpha1.ReasonNotDraining))
	s.setStage("r35", draining)
	s.Eventually(func() string { return s.drained("r35") }, soon, pace).Should(Equal("True Drained"))
	s.run(bare("r35", "r35", withEvacuator))
	s.Eventually(func() string { return s.drained("r35") }, soon, pace).Should(Equal("False Draining"))
	s.deletePods("r35")
	s.Eventually(func() string { return s.drained("r35") }, soon, pace).Should(Equal("True Drained"))
	s.setStage("r35", complete)
	s.Expect(s.drained("r35")).To(Equal("False " + v1alpha1.ReasonNotDraining))
	s.deleteMaintenances("r35")
}

func drainLabels(s *scene) {
	s.withNodes("r45")
	labelled := func(value string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Labels[clusterv1.PodDrainLabel], pod.Spec.RestartPolicy = value, corev1.RestartPolicyNever
		}
	}
	job := bare("r45-job", "r45", labelled("WaitCompleted"))
	s.run(bare("r45-skip", "r45", labelled("Skip")), job, bare("r45-web", "r45"))
	s.maintain(nm("r45", draining, ofNodes("r45")))
	s.expectMessages("r45/r45: Waiting for Pod default/r45-job to complete.")
	s.annotate(job, controlplane.PodCompleteAfterAnnotation, "10ms")
	s.Eventually(func() string { return s.drained("r45") }, soon, pace).Should(Equal("True Drained"))
	s.Expect(s.evictions().Names()).To(ConsistOf("r45-web"))
	s.Expect(s.nodeStatus("r45", "r45").PodsSkipped).To(BeEquivalentTo(1))
	s.deleteMaintenances("r45")
}

// eventsOnPods drains a Pod with an evacuator and a Pod without one.
func eventsOnPods(s *scene) {
	s.withNodes("e33")
	s.run(
		bare("e33-web", "e33", func(pod *corev1.Pod) { pod.Labels[clusterv1.PodDrainLabel] = "skipp" }),
		bare("e33-held", "e33", withEvacuator, func(pod *corev1.Pod) {
			pod.Annotations[v1alpha1.EvacuatorPriorityAnnotationPrefix+"loud.example.com"] = "very high"
		}),
	)
	s.maintain(nm("e33", draining, ofNodes("e33"), func(m *v1alpha1.NodeMaintenance) { m.Spec.Reason = "Kernel update" }))
	s.expectEventOn("e33-web", "UnknownDrainLabel", `has the unknown value "skipp"`)
	s.expectEventOn("e33-web", "EvictedForMaintenance", "NodeMaintenance e33 drains Node e33 (Kernel update)")
	s.expectEventOn("e33-held", "InvalidEvacuatorAnnotation", "very high")
	s.deletePods("e33-held")
	s.deleteMaintenances("e33")
}

func noNodes(s *scene) {
	s.maintain(nm("r35-none", draining, ofNodesLabelled("pool", "r35-none")))
	s.Eventually(func() string { return s.drained("r35-none") }, soon, pace).Should(Equal("False " + v1alpha1.ReasonNoNodesSelected))
	s.deleteMaintenances("r35-none")
}

package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// aWhile is how long a test checks that something does not happen.
const aWhile = 5 * time.Second

// TestDaemonSets evicts the Pods of DaemonSets and prevents their return, with the real DaemonSet controller (E29).
func TestDaemonSets(t *testing.T) {
	parallel(t, 70*time.Second)
	all := newScene(t, fleet.Options{PodReadyDelay: 200 * time.Millisecond, PodDeletionDelay: 500 * time.Millisecond})
	all.withMachines("m1", "m2", "m3")

	all.play(t,
		act{"E29: deletes Pods of DaemonSets after all other Pods, which return once after the maintenance", (*scene).daemonSetGoesLast},
		act{"E29, R40: deletes the old and the new Pod during a rollout with maxSurge", (*scene).surgingRolloutIsDrained},
		act{"E29, R40: prevents the return of Pods with update strategy OnDelete", (*scene).onDeleteStaysAway},
		act{"E29, R40: keeps the taint until the last NodeMaintenance of the Node completes or is deleted", (*scene).taintIsShared},
		act{"R47: prevents Pods of a DaemonSet that is created after the drain", (*scene).laterDaemonSetStaysAway},
		act{"E29, R40: continues after the manager was killed when it had set the taint", (*scene).killedAfterTaint},
		act{"E29, R40: keeps and reports Pods of a DaemonSet that tolerates all taints", (*scene).tolerantIsLeft},
		act{"E48: reports why the API server refuses to delete a Pod of a DaemonSet", (*scene).refusedDeletionIsReported},
		act{"E29, R38: neither deletes nor reports a Pod that no NodeMaintenance targets", (*scene).untargetedIsLeft},
		act{"R41: counts a static Pod as skipped and creates no Evacuation for it", (*scene).staticPodIsSkipped},
		act{"R43: removes an orphaned taint from a cordoned Node on connect, and from another Node before a maintenance", (*scene).ownerlessTaintIsRemoved},
		act{"E29, R40: keeps the hook of a Machine until Pods of DaemonSets have terminated with daemonSetPods Drain", (*scene).machineDrainsDaemonSets},
	)
}

func (s *scene) daemonSetGoesLast() {
	s.runDaemonSet(daemonSet("agent"))
	s.runOn("m1", "web", 3, deployment("web", 3))
	agent, elsewhere, web := s.daemonPod("agent", "m1"), s.daemonPod("agent", "m2"), s.podsOf("web")
	s = s.sub(s.T)
	s.startDrain("kernel", "m1")
	s.expectDrained("kernel")
	s.expectNoneReturns("agent", "m1")

	events := s.audited()
	deletions := events.WithUserAgent(fleet.ManagerAgent).Verb("delete").Resource("pods")
	s.Expect(deletions).To(HaveLen(1))
	s.Expect(deletions[0].UIDPrecondition()).To(Equal(agent.UID))
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf(names(web)), "Pods of DaemonSets are deleted, not evicted")
	lastGone := func() (last time.Time) {
		for _, gone := range events.Verb("delete").Resource("pods").Succeeded() {
			if slices.Contains(names(web), gone.Name) && gone.Requested.After(last) { // our watch may deliver the deletion before kwok has its response
				last = gone.Requested
			}
		}
		return last
	}()
	tainted := events.WithUserAgent(fleet.ManagerAgent).Verb("patch").Resource("nodes").Named("", "m1").Succeeded().Where(setsTaint)
	s.Expect(tainted).To(HaveLen(1))
	s.Expect(tainted[0].Requested).To(BeTemporally(">", lastGone))
	s.Run("R39: reports on the Evacuation why and until when, before it deletes the Pod", func(t *testing.T) {
		s := s.part(t)
		reported := events.WithUserAgent(fleet.ManagerAgent).Verb("patch").Resource("evacuations", "status").
			Named(namespace, evacuation.Name(agent.UID, agent.Name)).Succeeded().Where(contains("expectedEvacuationFinishTime"))
		s.Expect(reported).To(HaveLen(1))
		// The patch has a progress timestamp only if the evacuator became active in an earlier second.
		s.Expect(string(reported[0].RequestObject)).To(ContainSubstring("new kernel"))
		s.Expect(reported[0].Requested).To(BeTemporally(">=", tainted[0].Answered))
		s.Expect(deletions[0].Requested).To(BeTemporally(">=", reported[0].Answered))
	})

	s.setStage("kernel", complete)
	s.expectBackOnce("agent", "m1")
	s.Eventually(func() bool { return s.node("m1").Spec.Unschedulable }, soon, pace).Should(BeFalse())
	s.Expect(s.daemonPod("agent", "m2").UID).To(Equal(elsewhere.UID))
	s.expectInvariants()
}

func (s *scene) refusedDeletionIsReported() {
	s.runDaemonSet(daemonSet("guarded"))
	pod := s.daemonPod("guarded", "m1")
	s = s.sub(s.T)
	permit := s.refuse("deletions", fmt.Sprintf("oldObject.metadata.name == %q", pod.Name), admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Delete},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
	}, func() error { return s.workload.Client.Delete(s.Context(), pod.DeepCopy(), client.DryRunAll) })
	s.startDrain("kernel", "m1")
	s.Eventually(func() []v1alpha1.BlockedPod { return s.nodeStatus("kernel", "m1").Blocked }, soon, pace).Should(ConsistOf(
		HaveField("Why", And(HavePrefix("Cannot delete the Pod: "), ContainSubstring("ValidatingAdmissionPolicy 'deletions'")))))
	s.Expect(s.daemonPod("guarded", "m1").UID).To(Equal(pod.UID))
	permit()
	s.expectDrained("kernel")
	s.setStage("kernel", complete)
	s.expectBackOnce("guarded", "m1")
}

func (s *scene) surgingRolloutIsDrained() {
	zero, one := intstr.FromInt32(0), intstr.FromInt32(1)
	ds := daemonSet("surging", func(ds *appsv1.DaemonSet) {
		ds.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{
			Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &zero, MaxSurge: &one},
		}
	})
	s.runDaemonSet(ds)
	s.patch(s.workload.Client, ds, func() {
		ds.Spec.Template.Annotations = map[string]string{controlplane.PodReadyDelayAnnotation: "1h"} // the rollout stays in progress
	})
	var node string
	s.Eventually(func(g Gomega) {
		perNode := map[string]int{}
		for _, pod := range s.podsOf("surging") {
			if perNode[pod.Spec.NodeName]++; pod.Spec.NodeName != "" && perNode[pod.Spec.NodeName] == 2 {
				node = pod.Spec.NodeName
			}
		}
		g.Expect(node).NotTo(BeEmpty())
	}, soon, pace).Should(Succeed())

	s = s.sub(s.T)
	s.startDrain("kernel", node)
	s.expectDrained("kernel")
	s.expectNoneReturns("surging", node)
	s.Expect(s.audited().WithUserAgent(fleet.ManagerAgent).Verb("delete").Resource("pods").Succeeded()).To(HaveLen(2))
	s.setStage("kernel", complete)
	s.expectBackOnce("surging", node)
}

func (s *scene) onDeleteStaysAway() {
	ds := daemonSet("manual", func(ds *appsv1.DaemonSet) { ds.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType })
	s.runDaemonSet(ds)
	s.patch(s.workload.Client, ds, func() { ds.Spec.Template.Labels["revision"] = "2" })
	s = s.sub(s.T)
	s.startDrain("kernel", "m2")
	s.expectDrained("kernel")
	s.expectNoneReturns("manual", "m2")
	s.setStage("kernel", complete)
	s.expectBackOnce("manual", "m2")
	s.Expect(s.daemonPod("manual", "m2").Labels).To(HaveKeyWithValue("revision", "2"))
	s.Expect(s.daemonPod("manual", "m1").Labels).NotTo(HaveKey("revision"))
}

func (s *scene) taintIsShared() {
	s.runDaemonSet(daemonSet("agent"))
	s = s.sub(s.T)
	s.startDrain("first", "m2")
	s.startDrain("second", "m2")
	s.expectDrained("first")
	s.expectDrained("second")
	s.setStage("first", complete)
	s.expectNoneReturns("agent", "m2")
	s.Expect(s.workload.Client.Delete(s.Context(), maintenance("second"))).To(Succeed())
	s.expectBackOnce("agent", "m2")
}

func (s *scene) laterDaemonSetStaysAway() {
	s = s.sub(s.T)
	s.startDrain("kernel", "m1")
	s.expectDrained("kernel")
	s.Eventually(func() []corev1.Taint { return s.node("m1").Spec.Taints }, soon, pace).Should(ContainElement(HaveField("Key", v1alpha1.NoDaemonSetPodsTaint)))
	s.runDaemonSet(daemonSet("observer"))
	s.Eventually(func() int32 { // until the DaemonSet controller has observed the taint
		return read(s, s.workload.Client, keyOf("observer"), &appsv1.DaemonSet{}).Status.DesiredNumberScheduled
	}, soon, pace).Should(BeEquivalentTo(2))
	s.runDaemonSet(daemonSet("later"))
	s.expectNoneReturns("later", "m1")
	s.setStage("kernel", complete)
	s.expectBackOnce("later", "m1")
}

func (s *scene) killedAfterTaint() {
	s.runDaemonSet(daemonSet("agent"))
	s = s.sub(s.T)
	s.startDrain("kernel", "m1")
	s.Eventually(func() []corev1.Taint { return s.node("m1").Spec.Taints }, eventually, time.Millisecond).
		Should(ContainElement(HaveField("Key", v1alpha1.NoDaemonSetPodsTaint)))
	s.fleet.KillManager()
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	s.expectDrained("kernel")
	s.Expect(uidsOf(s.audited().WithUserAgent(fleet.ManagerAgent).Verb("delete").Resource("pods"))).
		To(HaveLen(1), "a Pod can be deleted twice, if the first response was lost")
	s.expectNoneReturns("agent", "m1")
	s.setStage("kernel", complete)
	s.expectBackOnce("agent", "m1")
}

func (s *scene) tolerantIsLeft() {
	s.runDaemonSet(daemonSet("tolerant", func(ds *appsv1.DaemonSet) {
		ds.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}))
	s.runDaemonSet(daemonSet("agent"))
	tolerant := s.daemonPod("tolerant", "m1")
	s = s.sub(s.T)
	s.startDrain("kernel", "m1")
	s.expectDrained("kernel")
	s.expectNoneReturns("agent", "m1")
	s.Expect(s.daemonPod("tolerant", "m1").UID).To(Equal(tolerant.UID))
	s.Expect(s.audited().WithUserAgent(fleet.ManagerAgent).Verb("delete").Resource("pods").Names()).NotTo(ContainElement(tolerant.Name))
	m := s.stored("kernel")
	s.Expect(m.Status.NodeStatuses[0].PodsSkipped).To(BeEquivalentTo(1))
	left := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.NodeMaintenancePodsRemaining)
	s.Expect(left).NotTo(BeNil())
	s.Expect(left.Reason).To(Equal(v1alpha1.ReasonDaemonSetToleratesMaintenance))
	s.Expect(left.Message).To(HaveSuffix("because the DaemonSets would replace them immediately: default/tolerant"))
	s.expectEvent("kernel", v1alpha1.ReasonDaemonSetToleratesMaintenance, Equal(left.Message))
	s.setStage("kernel", complete)
	s.expectBackOnce("agent", "m1")
	s.Eventually(func() *metav1.Condition {
		return meta.FindStatusCondition(s.stored("kernel").Status.Conditions, v1alpha1.NodeMaintenancePodsRemaining)
	}, soon, pace).Should(BeNil())
}

func (s *scene) untargetedIsLeft() {
	s.runDaemonSet(daemonSet("agent"))
	foreign, forged := s.daemonPod("agent", "m1"), s.daemonPod("agent", "m2")
	const other = v1alpha1.InstigatorFinalizerPrefix + "other.example.com"
	for finalizer, pod := range map[string]*corev1.Pod{other: foreign, v1alpha1.NodeMaintenanceInstigatorFinalizer: forged} {
		e := evacuation.New(pod, nil, 1800)
		e.Finalizers = []string{finalizer}
		s.create(s.workload.Client, e)
	}
	defer func() {
		e := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: evacuation.Name(foreign.UID, foreign.Name)}}
		s.Expect(s.workload.Client.Patch(s.Context(), e, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	}()
	s.Eventually(func(g Gomega) {
		g.Expect(s.activeClass(foreign)).To(Equal(v1alpha1.EvacuatorClassDaemonSet))
		g.Expect(s.evacuation(forged)).To(BeNil(), "E57: no NodeMaintenance requests it")
	}, soon, pace).Should(Succeed())
	s.Consistently(func(g Gomega) {
		status := s.existing(foreign).Status
		g.Expect(status.ActiveEvacuatorCompleted).To(BeFalse())
		g.Expect(status.ExpectedEvacuationFinishTime).To(BeNil())
		for _, pod := range []*corev1.Pod{foreign, forged} {
			g.Expect(s.daemonPod("agent", pod.Spec.NodeName).UID).To(Equal(pod.UID))
			g.Expect(s.node(pod.Spec.NodeName).Spec.Taints).NotTo(ContainElement(HaveField("Key", v1alpha1.NoDaemonSetPodsTaint)))
		}
	}, aWhile, 4*pace).Should(Succeed())
}

func (s *scene) staticPodIsSkipped() {
	static := &corev1.Pod{
		ObjectMeta: metaNamed("static-m1", "static"), Spec: corev1.PodSpec{NodeName: "m1", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	static.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "a-hash"}
	s.create(s.workload.Client, static)
	s.startDrain("kernel", "m1")
	s.expectDrained("kernel")
	s.Expect(s.stored("kernel").Status.NodeStatuses[0].PodsSkipped).To(BeEquivalentTo(1))
	s.Expect(s.audited().Verb("create").Resource("evacuations")).To(BeEmpty())
	s.Expect(s.podsOf("static")).To(ConsistOf(And(HaveField("UID", static.UID), HaveField("DeletionTimestamp", BeNil()))))
	s.setStage("kernel", complete)
}

func (s *scene) ownerlessTaintIsRemoved() {
	s.withNodes("tainted", "tainted-schedulable")
	s.fleet.KillManager()
	foreign := corev1.Taint{Key: "example.com/theirs", Effect: corev1.TaintEffectPreferNoSchedule}
	for _, name := range []string{"tainted", "tainted-schedulable"} {
		node := s.node(name)
		patch := client.MergeFrom(node.DeepCopy())
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: v1alpha1.NoDaemonSetPodsTaint, Effect: corev1.TaintEffectNoSchedule}, foreign)
		node.Spec.Unschedulable = name == "tainted"
		s.Expect(s.workload.Client.Patch(s.Context(), node, patch)).To(Succeed())
	}
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	expectRemoved := func(node string) {
		s.Eventually(func() []corev1.Taint { return s.node(node).Spec.Taints }, eventually, pace).Should(And(
			Not(ContainElement(HaveField("Key", v1alpha1.NoDaemonSetPodsTaint))), ContainElement(foreign)))
	}
	expectRemoved("tainted")
	s.maintain(nm("any", idle, ofNodes("m1")))
	expectRemoved("tainted-schedulable")
	s.deleteMaintenances("any")
}

func (s *scene) machineDrainsDaemonSets() {
	s.withMachines("m4")
	s.setPolicy(func(policy *v1alpha1.MachineDrainPolicy) { policy.Spec.DaemonSetPods = v1alpha1.DaemonSetPodsDrain })
	defer s.setPolicy(func(policy *v1alpha1.MachineDrainPolicy) { policy.Spec.DaemonSetPods = v1alpha1.DaemonSetPodsSkip })
	s.runDaemonSet(daemonSet("agent"))
	s.runOn("m4", "web", 2, deployment("web", 2))
	s = s.sub(s.T)
	agent := s.daemonPod("agent", "m4")
	s.deleteMachine("m4")
	s.expectGone("m4")
	deletions := s.audited().WithUserAgent(fleet.ManagerAgent).Verb("delete").Resource("pods").Succeeded()
	s.Expect(deletions).To(HaveLen(1))
	s.Expect(deletions[0].UIDPrecondition()).To(Equal(agent.UID))
	s.Expect(s.creations("agent", "m4")).To(BeEmpty())
	gone := s.audited().Verb("delete").Resource("pods").Named(namespace, agent.Name).Succeeded()
	s.Expect(s.released("m4").Requested).To(BeTemporally(">", gone[len(gone)-1].Requested), "the hook was released before the Pod had terminated")
	s.expectInvariants()
}

// daemonSet returns a DaemonSet of Pods labelled app.
func daemonSet(app string, changes ...func(*appsv1.DaemonSet)) *appsv1.DaemonSet {
	template := deployment(app, 1).Spec.Template
	ds := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app},
		Spec:       appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, Template: template},
	}
	for _, change := range changes {
		change(ds)
	}
	return ds
}

// runDaemonSet creates a DaemonSet and waits until its Pods run on all Nodes.
func (s *scene) runDaemonSet(ds *appsv1.DaemonSet) {
	s.Helper()
	s.create(s.workload.Client, ds)
	s.Eventually(func(g Gomega) {
		now := read(g, s.workload.Client, keyOf(ds.Name), &appsv1.DaemonSet{})
		g.Expect(now.Status.ObservedGeneration).To(Equal(now.Generation))
		g.Expect(now.Status.NumberAvailable).To(And(BeNumerically(">", 0), Equal(now.Status.DesiredNumberScheduled)))
	}, eventually, pace).Should(Succeed())
}

// daemonPod returns the one Pod of a DaemonSet on a Node.
func (s *scene) daemonPod(app, node string) *corev1.Pod {
	s.Helper()
	pods := s.daemonPods(app, node)
	s.Expect(pods).To(HaveLen(1))
	return &pods[0]
}

func (s *scene) daemonPods(app, node string) []corev1.Pod {
	s.Helper()
	return slices.DeleteFunc(s.podsOf(app), func(pod corev1.Pod) bool { return pod.Spec.NodeName != node })
}

// startDrain creates a NodeMaintenance in stage Drain without drain rules.
func (s *scene) startDrain(name, node string) {
	s.Helper()
	s.create(s.workload.Client, maintenance(name, func(m *v1alpha1.NodeMaintenance) {
		m.Spec.NodeSelector, m.Spec.Stage, m.Spec.Reason = v1alpha1.SelectNodes(node), v1alpha1.StageDrain, "new kernel"
	}))
}

func (s *scene) expectDrained(name string) {
	s.Helper()
	s.Eventually(func() bool {
		return meta.IsStatusConditionTrue(s.stored(name).Status.Conditions, v1alpha1.NodeMaintenanceDrained)
	}, eventually, pace).Should(BeTrue())
}

// creations returns the requests with which the DaemonSet controller created Pods for a Node, including Pods that were deleted since.
func (s *scene) creations(app, node string) controlplane.Events {
	s.Helper()
	return s.audited().Verb("create").Resource("pods").Succeeded().Where(contains(`"app":"` + app + `"`)).Where(contains(`"values":["` + node + `"]`))
}

// expectNoneReturns checks that a Node has no Pod of a DaemonSet and that none is created for it. expectBackOnce checks in the audit log
// that none was created until the end of the maintenance.
func (s *scene) expectNoneReturns(app, node string) {
	s.Helper()
	s.Consistently(func(g Gomega) {
		g.Expect(s.daemonPods(app, node)).To(BeEmpty())
		g.Expect(s.creations(app, node)).To(BeEmpty())
		g.Expect(s.node(node).Spec.Taints).To(ContainElement(HaveField("Key", v1alpha1.NoDaemonSetPodsTaint)))
	}, aMoment, 4*pace).Should(Succeed())
}

// expectBackOnce waits for the Pod of a DaemonSet and checks that it was created once.
func (s *scene) expectBackOnce(app, node string) {
	s.Helper()
	s.Eventually(func() []corev1.Pod { return s.daemonPods(app, node) }, eventually, pace).Should(HaveLen(1))
	s.Expect(s.node(node).Spec.Taints).NotTo(ContainElement(HaveField("Key", v1alpha1.NoDaemonSetPodsTaint)))
	s.Eventually(func() controlplane.Events { return s.creations(app, node) }, soon, pace).Should(HaveLen(1)) // which is audited after the Pod can be observed
}

// setsTaint matches writes that add our taint to a Node.
func setsTaint(event controlplane.Event) bool {
	return patches(event, "add", "/spec/taints", v1alpha1.NoDaemonSetPodsTaint)
}

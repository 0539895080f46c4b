package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// TestEvictions moves Pods away by evacuators of third parties, and evicts Pods while the API server and the disruption controller block or
// refuse that for different reasons. Each subtest uses separate Nodes.
func TestEvictions(t *testing.T) {
	parallel(t, 240*time.Second)
	all := newScene(t, fleet.Options{PodDeletionDelay: 200 * time.Millisecond})
	all.withMigrators()
	for _, each := range slices.Concat(evacuatorActs, evictionActs) {
		t.Run(each.name, func(t *testing.T) {
			s := all.sub(t)
			defer s.removeWorkloads()
			each.play(s)
		})
	}
}

var evictionActs = []act{
	{"E20: applies changes of a PodDisruptionBudget immediately", budgetIsEdited},
	{"E55: does not evict Pods while an operator replaces their PodDisruptionBudget", budgetIsReplaced},
	{"E55: evicts no Pod in gaps of 20 ms and 300 ms between two PodDisruptionBudgets, and all when no other one follows", gapsBetweenBudgets},
	{"E20: applies changes of maxUnavailable and unhealthyPodEvictionPolicy", applicationIsEdited},
	{"E18: names both PodDisruptionBudgets that select a Pod", twoBudgets},
	{"E20: waits for a PodDisruptionBudget while the disruption controller is stopped", stoppedController},
	{"E20, E85: names a PodDisruptionBudget that the disruption controller cannot compute, and the reason", syncFailed},
	{"E20: names a PodDisruptionBudget that selects only Pods without a controller", budgetOfBarePods},
	{"E21: deletes only Pods that are not ready with unhealthyBudget Override", unhealthyIsDeleted},
	{"E18: reports that the namespace is being deleted", terminatingNamespace},
	{"E18, E52: reports that an admission policy denies the eviction, retries, and makes the final eviction attempt regardless of the backoff", admissionRefuses},
	{"M13: deletes Pods with long grace periods in the first half of the timeout, and warns if one does not fit", longGracePeriods},
	{"E64: refuses evictions as the evictor expects", refusingResponses},
	{"E65: evicts Pods soon after an admission webhook allows it, and when they change", webhookSaysLater},
	{"E73, E74, E75: requests evictions that a PodDisruptionBudget refuses where an admission webhook receives them", evictionIsTheSignal},
	{"E22: evicts Pods of an unreachable Node with a grace period of one second", unreachableNode},
	{"E18: does not evict a replacement of the same name on another Node", sameNameElsewhere},
	{"E23: evicts Pods of one Node while the evictions of another Node hang", hangingNode},
	{"E56: drains the older one of two Nodes whose Pods share several PodDisruptionBudgets", crossedBudgets},
	{"E56: drains the older one of two Nodes that have waited for shared PodDisruptionBudgets", crossedBudgetsThatOpen},
	{"E18: finishes an in-flight eviction before the manager exits", managerEnds},
	{"E36: evicts Pods while a user recreates NodeMaintenances of a Node that cannot be cordoned", cordonsThatNeverCome},
	{"E37: watches Pods only on existing Nodes, whatever Nodes Evacuations name", forgedNodes},
	{"E30: does not wait for a replica of a StatefulSet that was pending before the drain", pendingReplica},
	{"E30: names and counts the replica that a Pod waits for, and stops waiting with Unordered", namedReplica},
	{"E28, E30: evicts the Pods of two Nodes in one order, and does not wait for replacements that are unschedulable", localReplicas},
	{"E2: fails and deletes an Evacuation of a Pod that does not exist", podNotFound},
	{"E2: does not fail the Evacuations of Pods that the watch delivers later than their Evacuations", podsOfAMoment},
	{"E4: reports an invalid evacuator annotation in an event on the Pod", invalidAnnotation},
	{"E43: writes the Evacuations of Pods that are evicted at once two times", evictedAtOnce},
	{"E41: leaves no Evacuation behind while the manager or the garbage collector is stopped", nothingLeftBehind},
}

func applicationIsEdited(s *scene) {
	s.withNodes("e20-b")
	s.runOn("e20-b", "shop", 3, deployment("shop", 3, onlyOn("e20-b")), budget("shop", 0))
	s.expectHealthy("shop", 3)
	pods := s.podsOf("shop")
	s.maintain(nm("e20-b", draining, ofNodes("e20-b")))
	s.expectWaits(&pods[0], string(budgets.BudgetExhausted), "it never allows a disruption (maxUnavailable: 0)")
	s.editBudget("shop", func(pdb *policyv1.PodDisruptionBudget) { pdb.Spec.MaxUnavailable = ptr.To(intstr.FromInt(1)) })
	s.Eventually(func() int { return len(s.evictions().Succeeded()) }, soon, pace).Should(Equal(1))
	s.editBudget("shop", func(pdb *policyv1.PodDisruptionBudget) { pdb.Spec.MaxUnavailable = ptr.To(intstr.FromInt(0)) })
	s.expectHealthy("shop", 2) // the replacement of the evicted Pod cannot be scheduled

	var left []*corev1.Pod
	for i := range pods {
		if pods[i].Name != s.evictions()[0].Name {
			left = append(left, &pods[i])
		}
	}
	s.makeUnready(left[0].Name, left[1].Name)
	s.expectHealthy("shop", 0)
	s.expectWaits(left[0], string(budgets.BlockedByUnhealthyPods), "this Pod is not ready; 3 healthy Pods required")
	s.Expect(s.evictions()).To(HaveLen(1))
	s.editBudget("shop", func(pdb *policyv1.PodDisruptionBudget) {
		pdb.Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.AlwaysAllow)
	})
	s.expectDeleted(left...)
	s.deleteMaintenances("e20-b")
}

func stoppedController(s *scene) {
	s.withNodes("e20-stop")
	pod := bare("e20-stop", "e20-stop")
	s.run(pod)
	s.Expect(s.workload.StopComponent(s.Context(), controlplane.ControllerManager)).To(Succeed())
	s.create(s.workload.Client, budgetRequiring("e20-stop", 0))
	s.maintain(nm("e20-stop", draining, ofNodes("e20-stop")))
	s.expectWaits(pod, string(budgets.BudgetNotObserved), "Waiting for PodDisruptionBudget default/e20-stop: the disruption controller "+
		"has not updated its status yet")
	s.Expect(s.evictions()).To(BeEmpty())
	s.Expect(s.workload.StartComponent(s.Context(), controlplane.ControllerManager)).To(Succeed())
	s.expectDeleted(pod)
	s.deleteMaintenances("e20-stop")
}

func syncFailed(s *scene) {
	s.withNodes("e20-sync")
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "e20-sync"}}
	s.create(s.workload.Client, owner)
	pod := bare("e20-sync", "e20-sync", func(pod *corev1.Pod) { // its controller has no scale subresource
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, Controller: ptr.To(true)}}
	})
	s.run(pod)
	s.create(s.workload.Client, budget("e20-sync", 1))
	s.maintain(nm("e20-sync", draining, ofNodes("e20-sync")))
	s.expectWaits(pod, string(budgets.BudgetSyncFailed), "Waiting for PodDisruptionBudget default/e20-sync: the disruption controller cannot compute it: "+
		"configmaps does not implement the scale subresource")
	s.Expect(s.evictions()).To(BeEmpty())
	s.Expect(s.workload.Client.Delete(s.Context(), budget("e20-sync", 1))).To(Succeed())
	s.expectDeleted(pod)
	s.deleteMaintenances("e20-sync")
}

func unhealthyIsDeleted(s *scene) {
	s.withNodes("e21")
	ready, unready := bare("e21-ready", "e21", withApp("e21")), bare("e21-unready", "e21", withApp("e21"))
	s.run(ready, unready)
	s.create(s.workload.Client, budgetRequiring("e21", 2))
	s.makeUnready("e21-unready")
	s.expectHealthy("e21", 1)
	s.maintain(nm("e21", draining, ofNodes("e21")))
	s.expectWaits(unready, string(budgets.BlockedByUnhealthyPods), "this Pod is not ready; ")
	s.Expect(s.pod("e21-unready").DeletionTimestamp).To(BeNil())

	override := []byte(`{"spec":{"evacuation":{"unhealthyBudget":"Override"}}}`)
	s.Expect(s.workload.Client.Patch(s.Context(), maintenance("e21"), client.RawPatch(types.MergePatchType, override))).To(Succeed())
	s.expectDeleted(unready)
	deleted := s.ours().Verb("delete").Resource("pods")
	s.Expect(deleted.Names()).To(ConsistOf("e21-unready"))
	s.expectWaits(ready, string(budgets.BudgetExhausted), "2 healthy Pods required")
	s.Expect(s.pod("e21-ready").DeletionTimestamp).To(BeNil())
	s.Expect(s.evictions()).To(BeEmpty())
	s.deleteMaintenances("e21")
}

func terminatingNamespace(s *scene) {
	s.mayBeRefused("the namespace is being deleted")
	s.withNodes("e18-ns")
	doomed := s.withNamespace("doomed")
	pod := bare("e18-ns", "e18-ns", withEvacuator)
	pod.Namespace = doomed.Name
	s.create(s.workload.Client, pod)
	s.maintain(nm("e18-ns", draining, ofNodes("e18-ns")))
	s.Eventually(func() string { return s.activeClass(pod) }, soon, pace).Should(Equal(evacuatorClass))

	// The namespace controller is stopped, so the Pod still exists when it is evicted.
	s.Expect(s.workload.StopComponent(s.Context(), controlplane.ControllerManager)).To(Succeed())
	s.Expect(s.workload.Client.Delete(s.Context(), doomed)).To(Succeed())
	s.completeEvacuator(pod)
	s.expectRefused(pod, v1alpha1.ReasonNamespaceTerminating, "The namespace is being deleted")
	s.Expect(s.workload.StartComponent(s.Context(), controlplane.ControllerManager)).To(Succeed())
	s.Eventually(func() error {
		return s.workload.Client.Get(s.Context(), client.ObjectKeyFromObject(doomed), doomed)
	}, eventually, pace).Should(Satisfy(apierrors.IsNotFound), "the Evacuation blocks the deletion of its namespace")
	s.deleteMaintenances("e18-ns")
}

func admissionRefuses(s *scene) {
	s.mayBeRefused("an admission policy denies evictions")
	s.withNodes("e18-keep")
	kept, free := bare("e18-kept", "e18-keep"), bare("e18-free", "e18-keep")
	s.run(kept, free)
	binding := s.refuseEvictions("e18-kept", "not before the end of the quarter")
	s.maintain(nm("e18-keep", draining, ofNodes("e18-keep")))
	s.expectRefused(kept, v1alpha1.ReasonAdmissionPolicyRefused, "An admission policy refused the eviction")
	s.Expect(s.existing(kept).Status.Message).To(ContainSubstring("not before the end of the quarter"))
	s.expectDeleted(free)
	s.expectEventOn(s.existing(kept).Name, "EvictionRefused", "not before the end of the quarter")

	s.Eventually(func() int32 { return s.existing(kept).Status.FailedEvictionCounter }, eventually, pace).Should(BeNumerically(">=", 6)) // 25 s are left
	refused := s.existing(kept).Status
	s.Expect(s.workload.Client.Delete(s.Context(), binding)).To(Succeed())
	s.Eventually(func() error { // the API server observes the deletion after a moment
		dryRun := &policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}}
		return client.IgnoreNotFound(s.workload.Client.SubResource("eviction").Create(s.Context(), kept, dryRun))
	}, soon, pace).Should(Succeed())
	s.Expect(s.workload.Client.Patch(s.Context(), maintenance("e18-keep"), drainTimeout(time.Second))).To(Succeed())
	s.expectDeleted(kept)
	evicted := s.first(s.evictions().Succeeded().Named(namespace, kept.Name))
	backoff := evacuation.WithJitter(evacuation.Backoff(refused.FailedEvictionCounter), 1)
	s.Expect(evicted.Requested).To(BeTemporally("<", refused.FailedEvictionTime.Add(backoff)), "the final eviction attempt does not wait for the backoff")
	s.deleteMaintenances("e18-keep")
}

func unreachableNode(s *scene) {
	s.withNodes("e22")
	pod := bare("e22", "e22")
	s.run(pod)
	s.stopAnswering("e22")
	s.maintain(nm("e22", draining, ofNodes("e22")))
	s.Eventually(func() controlplane.Events { return s.evictions().Succeeded() }, soon, pace).Should(HaveLen(1))
	s.Expect(graceOf(s.evictions()[0])).To(BeEquivalentTo(1))
	s.Eventually(func() string { return s.drained("e22") }, soon, pace).Should(HavePrefix("True"), "the drain waits for the overdue Pod")
	s.Expect(s.pod("e22").DeletionTimestamp).NotTo(BeNil())
	s.Expect(s.workload.StartKubelet(s.Context(), "e22")).To(Succeed())
	s.deleteMaintenances("e22")
}

func sameNameElsewhere(s *scene) {
	s.withNodes("e18-old", "e18-new")
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "db"}}
	template := deployment("db", 1).Spec.Template
	template.Annotations[v1alpha1.EvacuatorPriorityAnnotationPrefix+evacuatorClass] = "5000"
	set.Spec = appsv1.StatefulSetSpec{Replicas: ptr.To[int32](1), Selector: labelSelector("app", "db"), Template: template}
	defer func() { s.Expect(s.workload.Client.Delete(s.Context(), set)).To(Succeed()) }()
	s.runOn("e18-old", "db", 1, set)
	old := s.podsOf("db")[0]
	s.maintain(nm("e18-old", draining, ofNodes("e18-old")))
	s.Eventually(func() string { return s.activeClass(&old) }, soon, pace).Should(Equal(evacuatorClass))

	s.Expect(s.workload.Client.Delete(s.Context(), &old)).To(Succeed())
	var current *corev1.Pod
	s.Eventually(func(g Gomega) {
		pods := s.podsOf("db")
		g.Expect(pods).To(HaveLen(1))
		current = &pods[0]
		g.Expect(current.Name).To(Equal(old.Name))
		g.Expect(current.UID).NotTo(Equal(old.UID))
		g.Expect(current.Spec.NodeName).NotTo(Or(BeEmpty(), Equal("e18-old")))
		g.Expect(s.evacuation(&old)).To(BeNil())
	}, eventually, pace).Should(Succeed())
	s.completeEvacuator(&old) // a late evacuator
	s.Consistently(func(g Gomega) {
		g.Expect(s.pod(current.Name).UID).To(Equal(current.UID))
		g.Expect(s.evacuation(current)).To(BeNil())
		g.Expect(s.evictions()).To(BeEmpty())
	}, aMoment, pace).Should(Succeed())
	s.deleteMaintenances("e18-old")
}

// hangingPods is more than the limit of in-flight evictions on one Node.
const hangingPods = 20

func hangingNode(s *scene) {
	s.withNodes("e23-stuck", "e23-free")
	var stuck, free []*corev1.Pod
	for i := range hangingPods {
		stuck = append(stuck, bare(fmt.Sprintf("e23-stuck-%d", i), "e23-stuck", withApp("e23")))
		free = append(free, bare(fmt.Sprintf("e23-free-%d", i), "e23-free", withApp("e23")))
	}
	s.run(append(stuck, free...)...)
	s.create(s.workload.Client, budgetRequiring("e23-shared", 0,
		func(pdb *policyv1.PodDisruptionBudget) { // selects two Pods of each Node and allows their disruption
			pdb.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "statefulset.kubernetes.io/pod-name", Operator: metav1.LabelSelectorOpIn, Values: []string{"shared"}},
			}}
		}))
	for _, pod := range append(stuck[:2:2], free[:2]...) {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"statefulset.kubernetes.io/pod-name":"shared"}}}`))
		s.Expect(s.workload.Client.Patch(s.Context(), pod.DeepCopy(), patch)).To(Succeed())
	}
	s.expectHealthy("e23-shared", 4)
	webhook := s.hangEvictions("e23-stuck")
	s.maintain(nm("e23-stuck", draining, ofNodes("e23-stuck")))
	s.Eventually(webhook.asked, soon).Should(Receive())
	s.maintain(nm("e23-free", draining, ofNodes("e23-free")))
	s.expectDeleted(free...)
	evicted := s.evictions().Succeeded().Names()
	s.Expect(evicted).To(HaveLen(hangingPods))
	s.Expect(evicted).To(ContainElement(free[0].Name))
	for _, pod := range stuck {
		s.Expect(evicted).NotTo(ContainElement(pod.Name))
	}
	close(webhook.released)
	s.expectDeleted(stuck...)
	s.Expect(s.evictions().Failed(403, 429)).To(BeEmpty())
	s.deleteMaintenances("e23-stuck", "e23-free")
}

// cordonsThatNeverCome creates NodeMaintenances of a Node with another UID until the Pod is evicted.
func cordonsThatNeverCome(s *scene) {
	s.withNodes("e36", "e36-victim")
	pod := bare("e36", "e36")
	s.run(pod)
	attacks := 0
	attack := func() (name string, at time.Time) {
		attacks++
		m := nm(fmt.Sprintf("e36-attack-%d", attacks), cordoned, ofNodes("e36-victim"), func(m *v1alpha1.NodeMaintenance) {
			m.Annotations = map[string]string{v1alpha1.NodeUIDAnnotation: "11111111-2222-3333-4444-555555555555"}
		})
		s.maintain(m)
		return m.Name, m.CreationTimestamp.Time
	}
	last, at := attack()
	s.maintain(nm("e36", draining, ofNodes("e36")))
	s.Eventually(func() int {
		if time.Since(at) > 4*time.Second {
			before := last
			last, at = attack()
			s.deleteMaintenances(before)
		}
		return len(s.evictions().Succeeded())
	}, soon, pace).Should(Equal(1))
	s.expectDeleted(pod)
	s.Expect(s.node("e36-victim").Spec.Unschedulable).To(BeFalse())
	s.deleteMaintenances(last, "e36")
}

func managerEnds(s *scene) {
	s.withNodes("e18-end")
	pod := bare("e18-end", "e18-end")
	s.run(pod)
	webhook := s.hangEvictions(pod.Name)
	s.maintain(nm("e18-end", draining, ofNodes("e18-end")))
	s.Eventually(webhook.asked, soon).Should(Receive())
	stopped := make(chan error, 1)
	go func() { stopped <- s.fleet.Manager.Stop() }()
	s.Eventually(s.fleet.Manager.Log, soon, pace).Should(ContainSubstring("Stopping and waiting for leader election runnables"))
	close(webhook.released)
	s.Expect(<-stopped).To(Succeed())
	s.Eventually(func() []string { return s.evictions().Succeeded().Names() }, soon, pace).Should(ConsistOf(pod.Name))

	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	s.expectDeleted(pod)
	s.deleteMaintenances("e18-end")
	s.Expect(s.evictions()).To(HaveLen(1))
}

func longGracePeriods(s *scene) {
	s.withNodes("m13-grace")
	grace := func(seconds int64) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = &seconds }
	}
	s.create(s.workload.Client, budget("m13-grace", 0))
	fits, exceeds := bare("m13-fits", "m13-grace", withApp("m13-grace"), grace(18)), bare("m13-exceeds", "m13-grace", withApp("m13-grace"), grace(25))
	s.run(fits, exceeds)
	deletes := func(m *v1alpha1.NodeMaintenance) { m.Spec.Evacuation.OnTimeout = v1alpha1.OnTimeoutDelete }
	s.maintain(nm("m13-grace", draining, ofNodes("m13-grace"), endsAfter(30), deletes))
	s.Eventually(func() []v1alpha1.BlockedPod { return s.nodeStatus("m13-grace", "m13-grace").Blocked }, soon, pace).Should(ConsistOf(
		And(HaveField("Pod", "default/m13-exceeds"), HaveField("Why", ContainSubstring("Its grace period of 25s does not fit into the drain timeout of 30s"))),
		And(HaveField("Pod", "default/m13-fits"), HaveField("Why", Not(ContainSubstring("grace period")))),
	))
	start := s.drainStart("m13-grace")
	s.expectDeleted(fits, exceeds)
	for _, pod := range []*corev1.Pod{fits, exceeds} {
		deleted := s.first(s.ours().Verb("delete").Resource("pods").Named(namespace, pod.Name))
		s.Expect(deleted.Requested).To(And(BeTemporally(">=", start.Add(10*time.Second)), BeTemporally("<", start.Add(15*time.Second))), pod.Name)
	}
	s.Expect(s.evictions()).To(BeEmpty())
	s.deleteMaintenances("m13-grace")
}

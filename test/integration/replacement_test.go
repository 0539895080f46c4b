package integration

import (
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// toleratesAll adds a toleration for all taints, so that the Pods are scheduled to cordoned Nodes.
func toleratesAll(template *corev1.PodTemplateSpec) {
	template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
}

// replacementsReturn drains a Node on which a Deployment, a StatefulSet, a ReplicaSet and a user recreate evicted Pods immediately.
func (s *scene) replacementsReturn(machine string) {
	defer s.removeWorkloads()
	pinned := func(app string) corev1.PodTemplateSpec {
		return deployment(app, 1, onlyOn(machine), toleratesAll).Spec.Template
	}
	set := &appsv1.StatefulSet{ObjectMeta: metaNamed("returning-set", "set"), Spec: appsv1.StatefulSetSpec{
		Replicas: ptr.To[int32](1), Selector: labelSelector("app", "set"), Template: pinned("set"),
	}}
	named := &appsv1.ReplicaSet{ObjectMeta: metaNamed("named", "named"), Spec: appsv1.ReplicaSetSpec{
		Replicas: ptr.To[int32](1), Selector: labelSelector("app", "named"), Template: deployment("named", 1).Spec.Template,
	}}
	named.Spec.Template.Spec.NodeName = machine
	s.create(s.workload.Client, set, named)
	defer s.remove(set, named)
	s.runOn(machine, "web", 1, deployment("web", 1, onlyOn(machine), toleratesAll))
	s.deleteMachine(machine)
	s.expectCordoned(machine)
	s.create(s.workload.Client, bare("script", machine), bare("newcomer", machine))

	names := map[string]string{
		"web-": "Deployment default/web", "returning-set-": "StatefulSet default/returning-set", "named-": "ReplicaSet default/named", "script": "Pod default/script",
	}
	s.Eventually(func(g Gomega) {
		if err := s.workload.Client.Create(s.Context(), bare("script", machine)); err != nil { // as soon as the previous Pod is deleted
			g.Expect(apierrors.IsAlreadyExists(err)).To(BeTrue(), "%v", err)
		}
		scheduled := s.replacementsOn(g, machine)
		for _, controller := range names {
			g.Expect(scheduled[controller].Evictions).To(BeNumerically(">=", 1), controller)
			g.Expect(s.condition(machine).Message).To(ContainSubstring("A replacement of " + controller + " returned to cordoned Node " + machine))
		}
		g.Expect(s.maintenanceOf(machine).Status.NodeStatuses[0].Blocked).To(SatisfyAll(HaveLen(len(names)),
			HaveEach(HaveField("Reason", v1alpha1.ReasonReplacementReturned))))
		g.Expect(s.metrics().Sum("capnm_pods_blocked", map[string]string{"reason": v1alpha1.ReasonReplacementReturned})).To(BeEquivalentTo(len(names)))
	}, eventually, pace).Should(Succeed())
	s.expectEventOn(s.maintenanceOf(machine).Name, "ReplacementReturned", "Deployment default/web")

	// A Pod that replaces no other Pod is not deferred.
	s.expectEvicted("newcomer", 1)
	s.Eventually(func() int32 { return s.replacementsOn(s, machine)["Pod default/newcomer"].Evictions }, soon, pace).Should(BeEquivalentTo(1))
	newcomer := s.replacementsOn(s, machine)["Pod default/newcomer"]
	s.Expect(newcomer.EvictionTime).To(Equal(newcomer.FirstEvictionTime))

	// After a restart, the next eviction keeps its scheduled time.
	scheduled := s.replacementsOn(s, machine)["Deployment default/web"]
	s.Expect(s.fleet.Manager.Stop()).To(Succeed())
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	s.Eventually(func() bool {
		return slices.ContainsFunc(s.evictionsOf("web-"), func(e controlplane.Event) bool { return !e.Requested.Before(scheduled.EvictionTime.Time) })
	}, eventually, pace).Should(BeTrue(), "the eviction at %s", scheduled.EvictionTime)
	for prefix, controller := range names {
		evictions := len(s.evictionsOf(prefix))
		record := s.replacementsOn(s, machine)[controller]
		s.Expect(evictions).To(BeNumerically("<=", record.Evictions+2), "%s: its Pod, the replacements that are counted, and one that terminates", controller)
		s.Expect(record.Evictions).To(BeNumerically("<=", len(s.evictionsOf(prefix))), "%s: evictions that were not made", controller)
		backoff := time.Duration(0)
		for i := range record.Evictions - 1 {
			backoff += 20 * time.Second << i
		}
		s.Expect(record.EvictionTime.Sub(record.FirstEvictionTime.Time)).To(BeNumerically(">=", backoff), "%s: %d evictions", controller, record.Evictions)
	}

	// A drain rule ends the wait.
	for _, app := range []string{"web", "set", "named", "script"} {
		s.create(s.fleet.Client, drainRule("skip-"+app, app, clusterv1.MachineDrainRuleDrainBehaviorSkip, nil))
	}
	s.Eventually(func() bool { return s.isGone(machine) }, eventually, pace).Should(BeTrue())
	s.remove(set, named) // they recreate Pods as fast as the test deletes them
	s.expectGoneWithPods(machine)
}

// replacementsOn returns the scheduled evictions of replacements on a Node, by controller.
func (s *scene) replacementsOn(g Gomega, node string) map[string]v1alpha1.ReplacementStatus {
	s.Helper()
	m := s.maintenanceOf(node)
	g.Expect(m).NotTo(BeNil())
	scheduled := map[string]v1alpha1.ReplacementStatus{}
	for _, record := range m.Status.Replacements {
		scheduled[record.Controller] = record
	}
	return scheduled
}

// expectEvicted waits until Pods whose names begin with a prefix were evicted n times.
func (s *scene) expectEvicted(prefix string, n int) {
	s.Helper()
	s.Eventually(func() controlplane.Events { return s.evictionsOf(prefix) }, soon, pace).Should(HaveLen(n), prefix)
}

// evictionsOf returns the evictions of Pods whose names begin with a prefix.
func (s *scene) evictionsOf(prefix string) controlplane.Events {
	s.Helper()
	return s.evictions().Succeeded().Where(func(event controlplane.Event) bool { return strings.HasPrefix(event.Name, prefix) })
}

// remove deletes controllers and orphans their Pods.
func (s *scene) remove(objects ...client.Object) {
	s.Helper()
	for _, object := range objects {
		s.Expect(client.IgnoreNotFound(s.workload.Client.Delete(s.Context(), object, client.PropagationPolicy("Background")))).
			To(Succeed(), fmt.Sprintf("%T", object))
	}
}

func pendingReplica(s *scene) {
	s.withNodes("pending-1 pool=pending", "pending-2 pool=pending")
	set := statefulSet("pending", 3)
	set.Spec.Template.Spec.NodeSelector = map[string]string{"pool": "pending"}
	set.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: labelSelector("app", "pending"), TopologyKey: corev1.LabelHostname}},
	}}
	s.create(s.workload.Client, set)
	s.Eventually(func(g Gomega) { // one Pod runs on each Node, the third is pending
		pods := s.podsOf("pending")
		g.Expect(pods).To(HaveLen(3))
		g.Expect(pods).To(ContainElement(And(HaveField("Name", "pending-2"), HaveField("Status.Phase", corev1.PodPending), HaveField("Spec.NodeName", ""),
			HaveField("Status.Conditions", ContainElement(HaveField("Reason", corev1.PodReasonUnschedulable))))))
	}, eventually, pace).Should(Succeed())
	first := s.pod("pending-0")
	s.create(s.workload.Client, nm("pending", v1alpha1.StageDrain, ofNodes(first.Spec.NodeName), inOrder))
	s.expectDrained("pending")
	s.Expect(s.evictions().Succeeded().Where(ofApp("pending")).Names()).To(Equal([]string{"pending-0"}))
	s.Expect(s.reportsOf(first)).NotTo(ContainElement(ContainSubstring(v1alpha1.EvacuationOrdered)), "the Pod waited for the pending replica")
	s.deleteMaintenances("pending")
}

// inOrder makes a NodeMaintenance evict the Pods of StatefulSets in order.
func inOrder(m *v1alpha1.NodeMaintenance) {
	m.Spec.Evacuation.StatefulSetPods = v1alpha1.StatefulSetPodsOrdered
}

// localReplicas drains two Nodes, which are the only ones on which the Pods of a StatefulSet can run, as those with local volumes.
func localReplicas(s *scene) {
	s.withNodes("local-1 pool=local", "local-2 pool=local")
	set := statefulSet("local", 4)
	set.Spec.Template.Spec.NodeSelector = map[string]string{"pool": "local"}
	set.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: labelSelector("app", "local"),
	}}
	s.create(s.workload.Client, set)
	isRunning := HaveField("Status.Phase", corev1.PodRunning)
	s.Eventually(func() []corev1.Pod { return s.podsOf("local") }, eventually, pace).Should(And(HaveLen(4), HaveEach(isRunning)))
	s.create(s.workload.Client, nm("local", v1alpha1.StageDrain, ofNodesLabelled("pool", "local"), inOrder))
	s.expectDrained("local")
	s.Expect(s.evictions().Succeeded().Where(ofApp("local")).Names()).To(Equal([]string{"local-3", "local-2", "local-1", "local-0"}))
	s.deleteMaintenances("local")
}

func namedReplica(s *scene) {
	s.withNodes("named-1 pool=named")
	set := statefulSet("named", 2)
	set.Spec.Template.Spec.NodeSelector = map[string]string{"pool": "named"}
	s.create(s.workload.Client, set)
	s.Eventually(func() []corev1.Pod { return s.podsOf("named") }, eventually, pace).
		Should(And(HaveLen(2), HaveEach(HaveField("Status.Phase", corev1.PodRunning))))
	first := s.pod("named-0")
	s.withNodes("named-2 pool=named")
	s.Expect(s.workload.StopKubelet(s.Context(), "named-2")).To(Succeed()) // the replacement of named-1 is scheduled there, and never ready
	defer func() { s.Expect(s.workload.StartKubelet(s.Context(), "named-2")).To(Succeed()) }()
	s.create(s.workload.Client, nm("named", v1alpha1.StageDrain, ofNodes("named-1"), inOrder))
	why := "Waiting at most 3m0s for Pod default/named-1 of StatefulSet default/named to be replaced and ready."
	s.expectSays(first, why)
	s.Eventually(func() []string { return s.evictions().Succeeded().Where(ofApp("named")).Names() }, soon, pace).Should(Equal([]string{"named-1"}))
	s.Eventually(func() []v1alpha1.BlockedPod { return s.nodeStatus("named", "named-1").Blocked }, soon, pace).
		Should(ConsistOf(And(HaveField("Pod", "default/named-0"), HaveField("Why", why))))
	s.Eventually(func() float64 {
		return s.metrics().Sum("capnm_pods_blocked", map[string]string{"reason": v1alpha1.ReasonWaitingForReplica})
	}, soon, pace).Should(BeEquivalentTo(1))

	unordered := []byte(`{"spec":{"evacuation":{"statefulSetPods":"Unordered"}}}`)
	s.Expect(s.workload.Client.Patch(s.Context(), maintenance("named"), client.RawPatch(types.MergePatchType, unordered))).To(Succeed())
	s.expectDrained("named")
	s.Expect(s.evictions().Succeeded().Where(ofApp("named")).Names()).To(Equal([]string{"named-1", "named-0"}))
	s.Expect(s.reportsOf(first)).To(ContainElement(ContainSubstring("requests no order for the Pods of StatefulSets")))
	s.Eventually(func() float64 {
		return s.metrics().Sum("capnm_pods_blocked", map[string]string{"reason": v1alpha1.ReasonWaitingForReplica})
	}, soon, pace).Should(BeZero())
	s.deleteMaintenances("named")
}

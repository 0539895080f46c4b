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
		g.Expect(s.maintenanceOf(machine).Status.NodeStatuses[0].Blocked).To(SatisfyAll(HaveLen(len(names)), HaveEach(HaveField("Reason", v1alpha1.ReasonReplacementReturned))))
		g.Expect(s.metrics().Sum("capnm_pods_blocked", map[string]string{"reason": v1alpha1.ReasonReplacementReturned})).To(BeEquivalentTo(len(names)))
	}, soon, pace).Should(Succeed())
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
	}, soon, pace).Should(BeTrue(), "the eviction at %s", scheduled.EvictionTime)
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
		s.Expect(client.IgnoreNotFound(s.workload.Client.Delete(s.Context(), object, client.PropagationPolicy("Background")))).To(Succeed(), fmt.Sprintf("%T", object))
	}
}

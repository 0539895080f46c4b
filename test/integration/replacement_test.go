package integration

import (
	"fmt"
	"strings"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// toleratesAll lets the Pods of a template run on cordoned Nodes.
func toleratesAll(template *corev1.PodTemplateSpec) {
	template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
}

// replacementsReturn drains a Node to which a Deployment, a StatefulSet, a ReplicaSet and a user return their Pods as soon as they are evicted.
func (s *scene) replacementsReturn(machine string) {
	defer s.clear()
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
	s.create(s.workload.Client, bare("script", machine))
	s.expectEvicted("script", 1)
	s.Eventually(func() error { return s.workload.Client.Create(s.Context(), bare("script", machine)) }, soon, pace).Should(Succeed())

	// The first replacement of each is evicted at once, the next one after a backoff.
	names := map[string]string{
		"web-": "Deployment default/web", "returning-set-": "StatefulSet default/returning-set", "named-": "ReplicaSet default/named", "script": "Pod default/script",
	}
	var scheduled map[string]v1alpha1.ReplacementStatus
	s.Eventually(func(g Gomega) {
		m := s.maintenanceOf(machine)
		g.Expect(m).NotTo(BeNil())
		scheduled = map[string]v1alpha1.ReplacementStatus{}
		for _, record := range m.Status.Replacements {
			scheduled[record.Controller] = record
		}
		for prefix, controller := range names {
			g.Expect(scheduled[controller].Evictions).To(BeEquivalentTo(2), controller)
			g.Expect(s.condition(machine).Message).To(ContainSubstring("A replacement of "+controller+" returned to cordoned Node "+machine), "%d evictions", len(s.evictionsOf(prefix)))
		}
		g.Expect(m.Status.NodeStatuses[0].Blocked).To(HaveLen(len(names)))
		g.Expect(m.Status.NodeStatuses[0].Blocked).To(HaveEach(HaveField("Reason", v1alpha1.ReasonReplacementReturned)))
		g.Expect(s.metrics().Sum("capnm_pods_blocked", map[string]string{"reason": v1alpha1.ReasonReplacementReturned})).To(BeEquivalentTo(len(names)))
	}, soon, pace).Should(Succeed())
	for _, prefix := range []string{"web-", "returning-set-", "named-"} {
		s.Expect(len(s.evictionsOf(prefix))).To(BeNumerically("<=", 2), "%s: the Pod and its first replacement", prefix)
	}
	s.expectEventOn(s.maintenanceOf(machine).Name, "ReplacementReturned", "Deployment default/web")

	// A Pod that replaces none is not deferred, and a restart changes nothing.
	s.create(s.workload.Client, bare("newcomer", machine))
	s.expectEvicted("newcomer", 1)
	evicted := len(s.evictionsOf("web-"))
	s.Expect(s.fleet.Manager.Stop()).To(Succeed())
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	s.expectEvicted("web-", evicted+1)
	s.Expect(s.evictionsOf("web-")[evicted].Requested).To(BeTemporally(">=", scheduled["Deployment default/web"].EvictionTime.Time))
	s.expectOrder(s.evictionsOf("newcomer")[0], s.evictionsOf("web-")[evicted])

	// A drain rule ends the wait.
	for _, app := range []string{"web", "set", "named", "script"} {
		s.create(s.fleet.Client, drainRule("skip-"+app, app, clusterv1.MachineDrainRuleDrainBehaviorSkip, nil))
	}
	s.expectGoneWithPods(machine)
}

// expectEvicted waits until Pods whose names begin with a prefix were evicted n times.
func (s *scene) expectEvicted(prefix string, n int) {
	s.Helper()
	s.Eventually(func() controlplane.Events { return s.evictionsOf(prefix) }, soon, pace).Should(HaveLen(n), prefix)
}

// evictionsOf are the evictions of the Pods whose names begin with a prefix.
func (s *scene) evictionsOf(prefix string) controlplane.Events {
	s.Helper()
	return s.evictions().Succeeded().Where(func(event controlplane.Event) bool { return strings.HasPrefix(event.Name, prefix) })
}

// remove deletes controllers, and leaves their Pods.
func (s *scene) remove(objects ...client.Object) {
	s.Helper()
	for _, object := range objects {
		s.Expect(client.IgnoreNotFound(s.workload.Client.Delete(s.Context(), object, client.PropagationPolicy("Background")))).To(Succeed(), fmt.Sprintf("%T", object))
	}
}

package integration

import (
	"fmt"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/rand"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

func (s *scene) paused() {
	s.change("paused", func(m *clusterv1.Machine) { m.Annotations[clusterv1.PausedAnnotation] = "" })
	s.deleteMachine("paused")
	// Another drain in the same Cluster shows that the manager had enough time.
	s.withMachines("other")
	s.deleteMachine("other")
	s.expectGone("other")
	s.Expect(s.machine("paused").Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation))
	s.Expect(s.maintenanceOf("paused")).To(BeNil())
	s.Expect(s.nodeWrites("paused")).To(BeEmpty())
	s.change("paused", func(m *clusterv1.Machine) { delete(m.Annotations, clusterv1.PausedAnnotation) })
	s.expectGone("paused")
}

func (s *scene) pausedCluster() {
	s.untilSeen(func() { s.pauseCluster(true) })
	s.run(bare("resting", "resting"))
	s.deleteMachine("resting")
	// Without the pause, the condition of the Machine would change first.
	s.Consistently(func(g Gomega) {
		g.Expect(s.machine("resting").Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation))
		g.Expect(s.condition("resting")).To(BeZero())
	}, undisturbed, pace).Should(Succeed())
	s.Expect(s.maintenanceOf("resting")).To(BeNil())
	s.Expect(s.nodeWrites("resting")).To(BeEmpty())
	s.pauseCluster(false)
	s.expectGone("resting")
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("resting"))
}

// clusterAnnotated drains a Machine while its Cluster has the annotation of a pause, which Cluster API's Machine controller ignores, too.
func (s *scene) clusterAnnotated() {
	annotate := func(value string) {
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.cluster.Key().Namespace, Name: s.cluster.Key().Name}}
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, clusterv1.PausedAnnotation, value)
		s.Expect(s.fleet.Client.Patch(s.Context(), cluster, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
	}
	s.untilSeen(func() { annotate(`""`) })
	s.run(bare("annotated", "annotated"))
	s.deleteMachine("annotated")
	s.expectGone("annotated")
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("annotated"))
	annotate("null")
}

// undisturbed is longer than the time in which a drain starts.
const undisturbed = 3 * time.Second

func (s *scene) pauseCluster(paused bool) {
	s.Helper()
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.cluster.Key().Namespace, Name: s.cluster.Key().Name}}
	s.Expect(s.fleet.Client.Patch(s.Context(), cluster, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"paused":%t}}`, paused)))).To(Succeed())
}

// pausedInTheMiddle pauses a drain that waits for a PodDisruptionBudget, and deletes the PodDisruptionBudget.
func (s *scene) pausedInTheMiddle(machine string, pause func(s *scene, paused bool)) {
	one := intstr.FromInt(1)
	full := budget(machine, 0)
	full.Spec.MaxUnavailable, full.Spec.MinAvailable = nil, &one
	s.create(s.workload.Client, full)
	s.run(bare(machine, machine))
	s.deleteMachine(machine)
	s.Eventually(func() string { return s.condition(machine).Message }, soon, pace).Should(ContainSubstring("Waiting for PodDisruptionBudget"))

	s.untilSeen(func() { pause(s, true) })
	s.Expect(s.workload.Client.Delete(s.Context(), full)).To(Succeed())
	s.Consistently(func(g Gomega) {
		g.Expect(s.evictions()).To(BeEmpty())
		g.Expect(s.machine(machine).Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation))
		g.Expect(s.node(machine).Spec.Unschedulable).To(BeTrue())
	}, budgets.LossCounts+undisturbed, pace).Should(Succeed())

	pause(s, false)
	s.expectGone(machine)
	s.Expect(s.evictions().Names()).To(ConsistOf(machine))
}

// pausedDuringEviction pauses and resumes while an admission webhook delays the eviction of a Pod. The eviction of another Pod shows
// that the evictor has considered all Pods of the workload cluster again.
func (s *scene) pausedDuringEviction(machine string, pause func(s *scene, paused bool)) {
	webhook := s.hangEvictions(machine + "-hangs")
	slow, free := bare(machine+"-hangs", machine), bare(machine+"-free", "spare")
	s.run(slow, free)
	s.deleteMachine(machine)
	s.Eventually(webhook.asked, soon).Should(Receive())

	s.untilSeen(func() { pause(s, true) })
	s.untilSeen(func() { pause(s, false) })
	s.maintain(nm(free.Name, draining, ofNodes("spare")))
	s.expectDeleted(free)
	s.deleteMaintenances(free.Name)

	close(webhook.released)
	s.expectGone(machine)
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf(slow.Name, free.Name))
	s.Expect(s.evictions().Failed(403, 429)).To(BeEmpty())
}

// untilSeen changes a Machine or Cluster and waits until our manager has observed it: watches of the workload cluster could be faster. Then
// the manager sets its hook on a later Machine of a later Cluster, because each watch delivers changes in order.
func (s *scene) untilSeen(change func()) {
	s.Helper()
	change()
	later := kwok.NewCluster("later-" + rand.String(5))
	s.create(s.fleet.Client, later.Objects()[0], later.Machine(later.Key().Name)[1])
	s.Eventually(func() map[string]string { return s.machine(later.Key().Name).Annotations }, soon, pace).Should(HaveKey(v1alpha1.PreDrainHookAnnotation))
}

func pauseMachine(name string) func(*scene, bool) {
	return func(s *scene, paused bool) {
		s.change(name, func(m *clusterv1.Machine) {
			delete(m.Annotations, clusterv1.PausedAnnotation)
			if paused {
				m.Annotations[clusterv1.PausedAnnotation] = ""
			}
		})
	}
}

// pauseMachineAndComplete is like pauseMachine, and completes the NodeMaintenance of the paused Machine.
func pauseMachineAndComplete(name string) func(*scene, bool) {
	return func(s *scene, paused bool) {
		s.untilSeen(func() { pauseMachine(name)(s, paused) })
		if paused {
			complete := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"stage":"Complete"}}`))
			s.Expect(s.workload.Client.Patch(s.Context(), s.maintenanceOf(name), complete)).To(Succeed())
		}
	}
}

package integration

import (
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// Scenes of TestStages about the order of evacuations.

func oneEvacuation(s *scene) {
	const instigator = v1alpha1.InstigatorFinalizerPrefix + "example.com"
	s.withNodes("r20")
	one, two := bare("r20-one", "r20", withEvacuator), bare("r20-two", "r20", withEvacuator)
	s.run(one, two)
	s.maintain(nm("r20", draining, ofNodes("r20")))
	s.expectTargets(2, one, two)
	created := func() controlplane.Events { return s.ours().Resource("evacuations").Verb("create") }
	s.Eventually(created, soon, pace).Should(HaveLen(2), "an Evacuation can be observed before its creation is in the audit log")
	e := s.existing(one)
	s.Expect(e.Spec.PodRef).To(Equal(v1alpha1.LocalPodReference{Name: one.Name, UID: string(one.UID)}))
	s.Expect(e.Spec.ProgressDeadlineSeconds).To(BeEquivalentTo(1800))
	s.Expect(e.Finalizers).To(ConsistOf(v1alpha1.NodeMaintenanceInstigatorFinalizer))

	s.setFinalizers(one, instigator)
	s.Eventually(func() []string { return s.existing(one).Finalizers }, soon, pace).Should(ConsistOf(instigator, v1alpha1.NodeMaintenanceInstigatorFinalizer))
	s.Expect(s.existing(one).UID).To(Equal(e.UID))
	s.Expect(created()).To(HaveLen(2), "there is no third Evacuation")
	s.setFinalizers(two) // no instigator is left: the Evacuation is cancelled and recreated, or gets its finalizer back
	s.expectTargets(2, one, two)

	s.deleteMaintenances("r20")
	s.setFinalizers(one)
}

func allPods(s *scene) {
	s.withNodes("r21")
	terminating := bare("r21-terminating", "r21", func(pod *corev1.Pod) { pod.Annotations[controlplane.PodDeletionDelayAnnotation] = "1h" })
	plain := bare("r21-plain", "r21", func(pod *corev1.Pod) {
		pod.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	})
	s.run(terminating, plain)
	s.Expect(s.workload.Client.Delete(s.Context(), bare("r21-terminating", ""))).To(Succeed())
	s.maintain(nm("r21", draining, ofNodes("r21")))
	s.expectCordoned("r21")
	created := func() controlplane.Events { return s.ours().Resource("evacuations").Verb("create") }
	s.Eventually(created, soon, pace).Should(HaveLen(2))
	s.Expect(s.pod("r21-terminating").DeletionTimestamp).NotTo(BeNil())
	s.annotate(terminating, controlplane.PodDeletionDelayAnnotation, "10ms")
	s.Eventually(func() string { return s.drained("r21") }, soon, pace).Should(Equal("True Drained"))

	s.create(s.workload.Client, bare("r21-later", "r21"))
	s.Eventually(func() []string { return s.evictions().Succeeded().Names() }, soon, pace).Should(ConsistOf("r21-plain", "r21-later"))
	s.Eventually(created, soon, pace).Should(HaveLen(3))
	s.expectInvariants()
	s.deleteMaintenances("r21")
	s.Expect(created()).To(HaveLen(3))
}

func byPriority(s *scene) {
	s.withNodes("r23-a", "r23-b")
	pods := []*corev1.Pod{
		bare("r23-a-low", "r23-a", withEvacuator, priority(100)), bare("r23-b-low", "r23-b", withEvacuator, priority(100)),
		bare("r23-a-middle", "r23-a", withEvacuator, priority(500)), bare("r23-a-high", "r23-a", withEvacuator, priority(1000)),
		bare("r23-b-high", "r23-b", withEvacuator, priority(1000)),
	}
	s.run(pods...)
	s.maintain(nm("r23", draining, ofNodes("r23-a", "r23-b"), upTo(100, 500, 1000)))
	s.expectTargets(2, pods...)
	counts := func(node string) []int32 {
		status := s.nodeStatus("r23", node)
		return []int32{status.PodsPendingEvacuation, status.PodsEvacuating}
	}
	s.Eventually(func() []int32 { return counts("r23-a") }, soon, pace).Should(Equal([]int32{2, 1}))
	s.Eventually(func() []int32 { return counts("r23-b") }, soon, pace).Should(Equal([]int32{1, 1}))

	s.deletePods("r23-a-low")
	s.expectMessages("r23/r23-a: Waiting for node r23-b.", "r23/r23-b: Evacuating")
	s.Eventually(func() []string { return s.targets(pods...) }, soon, pace).
		Should(ConsistOf("r23-b-low"), "a step ends when its last Pod on any Node has terminated")

	s.fleet.KillManager()
	s.deletePods("r23-b-low")
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	s.Eventually(func() []string { return s.targets(pods...) }, soon, pace).Should(ConsistOf("r23-a-middle"))
	s.Eventually(func() []string { return s.rows("r23", "r23-b") }, soon, pace).Should(Equal([]string{"500"}))

	// A later Pod of a lower step is a target immediately. The published targets do not move backward, also after a restart.
	late := bare("r23-b-late", "r23-b", withEvacuator, priority(100))
	s.fleet.KillManager()
	s.run(late)
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	pods = append(pods, late)
	s.Eventually(func() []string { return s.targets(pods...) }, soon, pace).Should(ConsistOf("r23-a-middle", "r23-b-late"))
	s.Expect(s.rows("r23", "r23-a")).To(Equal([]string{"500"}))
	s.deletePods("r23-a-middle", "r23-b-late")
	s.Eventually(func() []string { return s.targets(pods...) }, soon, pace).Should(ConsistOf("r23-a-high", "r23-b-high"))
	s.deletePods("r23-a-high", "r23-b-high")
	s.Eventually(func() string { return s.drained("r23") }, soon, pace).Should(Equal("True Drained"))
	s.deleteMaintenances("r23")
}

// overlapping is KEP-4212's "Pod Selection and DrainTargets Example", with one or two Pods of each kind.
func overlapping(s *scene) {
	s.withNodes("one", "two", "three", "four")
	s.run(
		bare("one-5000", "one", withEvacuator, priority(5000)), bare("one-10000", "one", withEvacuator, priority(10000)),
		bare("one-15000", "one", withEvacuator, priority(15000)),
		bare("two-5000", "two", withEvacuator, priority(5000)), bare("two-15000", "two", withEvacuator, priority(15000)),
		bare("three-10000", "three", withEvacuator, priority(10000)), bare("three-15000", "three", withEvacuator, priority(15000)),
		bare("four-2000", "four", withEvacuator, priority(2000)),
	)
	s.maintain(nm("maintenance-a", draining, ofNodes("one", "two"), upTo(5000, 15000)))
	s.maintain(nm("maintenance-b", draining, ofNodes("one", "three"), upTo(10000, 15000)))
	s.expectMessages("maintenance-a/one: Evacuating", "maintenance-a/two: Evacuating",
		"maintenance-b/one: Evacuating (limited by maintenance-a)", "maintenance-b/three: Evacuating")
	s.deletePods("three-10000")
	s.expectMessages("maintenance-b/one: Evacuating (limited by maintenance-a)", "maintenance-b/three: Waiting for node one.")
	s.deletePods("one-5000")
	s.expectMessages("maintenance-a/one: Waiting for node two.", "maintenance-a/two: Evacuating",
		"maintenance-b/one: Waiting for node two (maintenance-a).", "maintenance-b/three: Waiting for node two (maintenance-a).")
	s.deletePods("two-5000")
	s.expectMessages("maintenance-a/one: Evacuating (limited by maintenance-b)", "maintenance-a/two: Evacuating",
		"maintenance-b/one: Evacuating", "maintenance-b/three: Waiting for node one.")
	for _, name := range []string{"maintenance-a", "maintenance-b"} {
		s.Eventually(func() []string { return s.rows(name, "one") }, soon, pace).Should(Equal([]string{"10000"}))
	}

	s.maintain(nm("maintenance-c", draining, ofNodes("one", "four"), upTo(2000, 15000)))
	s.expectMessages("maintenance-c/one: Evacuating (fast-forwarded by older maintenance-b)", "maintenance-c/four: Evacuating",
		"maintenance-a/one: Evacuating (limited by maintenance-b, maintenance-c)", "maintenance-b/one: Evacuating")
	s.expectEvents("maintenance-c", "FastForwarded", "Node one: fast-forwarded by older maintenance-b")
	s.deletePods("one-10000")
	s.expectMessages("maintenance-c/one: Waiting for node four.", "maintenance-b/one: Waiting for node four (maintenance-c).", "maintenance-b/three: Evacuating")
	s.deletePods("four-2000", "two-15000")
	s.expectMessages("maintenance-a/one: Evacuating", "maintenance-a/two: Drained", "maintenance-c/one: Evacuating", "maintenance-c/four: Drained")
	s.deletePods("one-15000", "three-15000")
	for _, name := range []string{"maintenance-a", "maintenance-b", "maintenance-c"} {
		s.Eventually(func() string { return s.drained(name) }, soon, pace).Should(Equal("True Drained"))
	}
	s.deleteMaintenances("maintenance-a", "maintenance-b", "maintenance-c")
	s.expectReleased("one", "two", "three", "four")
}

func rowsOfSelectors(s *scene) {
	s.withNodes("r26")
	web := bare("r26-web", "r26", withEvacuator, priority(1000))
	postgres := bare("r26-postgres", "r26", withEvacuator, priority(2000), func(pod *corev1.Pod) { pod.Labels["app"] = "postgres" })
	rest := bare("r26-rest", "r26", withEvacuator, priority(2000))
	s.run(web, postgres, rest)
	s.maintain(nm("r26", draining, ofNodes("r26"), planned(entry(v1alpha1.PodTypeDefault, 1000), entry(v1alpha1.PodTypeDefault, 2000, "app", "postgres"),
		entry(v1alpha1.PodTypeDefault, 2000))))
	s.expectTargets(1, web, postgres, rest)
	s.Eventually(func() []string { return s.rows("r26", "r26") }, soon, pace).Should(ConsistOf("1000", "1000/postgres"))
	s.deletePods("r26-web")
	s.expectTargets(1, postgres, rest)
	s.Eventually(func() []string { return s.rows("r26", "r26") }, soon, pace).Should(ConsistOf("1000", "2000/postgres"))
	s.deletePods("r26-postgres")
	s.expectTargets(1, rest)
	s.Eventually(func() []string { return s.rows("r26", "r26") }, soon, pace).Should(ConsistOf("2000", "2000/postgres"))
	s.deleteMaintenances("r26")
}

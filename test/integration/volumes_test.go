package integration

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/storage"
)

// testVolumes is the part of TestHooks that drains Nodes with volumes, which the real attach/detach controller attaches and detaches.
func (s *scene) testVolumes() {
	t, all := s.T, s
	a := all.withAttacher()
	all.withMachines("held", "staying", "unmatched", "late", "leftover", "silent", "daemonsets", "serviced", "outofservice", "full")

	t.Run("M12, M19: releases the hook when the last volume is detached, and Cluster API does not wait for volumes again", func(t *testing.T) {
		s := all.sub(t)
		s.lastDetach(a)
		t.Run("M23: observes volumes with watches, without polling", func(t *testing.T) { s.part(t).expectReadByWatch() })
	})
	t.Run("M20: does not wait for volumes of skipped Pods", func(t *testing.T) { all.sub(t).volumesOfSkippedPods() })
	t.Run("M19, M22: waits for and names attached volumes that match no PersistentVolume", func(t *testing.T) { all.sub(t).unmatched() })
	t.Run("M13: releases the Machine after nodeVolumeDetachTimeoutSeconds, also if it is set during the wait", func(t *testing.T) { all.sub(t).volumeTimeout(a) })
	t.Run("M21: waits for volumes of the Pods that remain after the drain timeout only until the volume detach timeout", func(t *testing.T) {
		all.sub(t).leftover()
	})
	t.Run("M14: does not wait for volumes of an unreachable Node", func(t *testing.T) { all.sub(t).silentNode(a) })
	t.Run("M81: releases a Machine whose unreachable Node is out of service, although a budget protects its Pods", func(t *testing.T) {
		all.sub(t).outOfService(a)
	})
	t.Run("M19, R40: deletes Pods of DaemonSets after the volumes are detached", func(t *testing.T) { all.sub(t).daemonSetsLast(a) })
	t.Run("M80: drains a Machine with the stage annotation as a deleted one, and restores the Node", func(t *testing.T) { all.sub(t).serviced(a) })
	t.Run("M94, M95: a drain in place that has ended times out neither after a restart nor at the deletion, and a Pod that has started meanwhile is drained",
		func(t *testing.T) {
			all.sub(t).drainedBefore("serviced")
		})
	t.Run("M29, M34, K52: reports the progress of a drain of 110 Pods in metrics, and what it waits for in the policy", func(t *testing.T) {
		s := all.sub(t)
		machine, pods, refused := s.fullNode(a)
		t.Run("M28: writes one event for each of 110 Pods, two for the Machine, and one for each Pod whose evictions are refused", func(t *testing.T) {
			s.part(t).expectFewEvents(machine, pods, refused)
		})
	})
	all.removeWorkloads()
}

func (s *scene) lastDetach(a *storage.Attacher) {
	s.withVolumes("one", "two")
	a.Hold("one")
	s.run(bare("db", "held", mounting("one", "two")))
	s.expectAttached("held", "one", "two")

	s.deleteMachine("held")
	s.expectWaitsForVolumes("held", "PersistentVolumeClaims: default/one")
	s.Eventually(func() string { return s.condition("held").Message }, soon, pace).ShouldNot(ContainSubstring("default/two"))
	s.Eventually(func() []corev1.AttachedVolume { return s.node("held").Status.VolumesAttached }, soon, pace).
		Should(BeEmpty(), "the attach/detach controller still reports the volume, so this does not test the VolumeAttachment")
	s.detach(a, "one")
	s.expectGone("held")

	s.expectInvariants()
	s.Expect(excludes(s.released("held"))).To(Equal([]string{"drain", "volumes"}))
	s.expectDetachedBefore(s.released("held"))
	core := s.audited().WithUserAgent(fleet.CoreAgent)
	s.Expect(core.Resource("volumeattachments.storage.k8s.io")).To(BeEmpty(), "Cluster API waits for volumes a second time")
}

// expectReadByWatch checks that the manager did not poll: it reads each PersistentVolume and claim once by name, and watches all other
// objects after one list. A Pod that no longer exists may be read once if the garbage collector is slow (E2).
func (s *scene) expectReadByWatch() {
	s.Helper()
	ours := s.audited().WithUserAgent(fleet.ManagerAgent)
	for _, resource := range []string{"persistentvolumes", "persistentvolumeclaims"} {
		s.Expect(ours.Verb("list", "watch").Resource(resource)).To(BeEmpty())
		read := map[string]bool{}
		for _, event := range ours.Verb("get").Resource(resource) {
			key := event.Namespace + "/" + event.Name
			s.Expect(read).NotTo(HaveKey(key), "%s is read again", event)
			read[key] = true
		}
	}
	for _, resource := range []string{"volumeattachments.storage.k8s.io", "pods"} {
		s.Expect(ours.Verb("get").Resource(resource).Succeeded()).To(BeEmpty())
		s.Expect(len(ours.Verb("list").Resource(resource).Where(isOfDrain))).To(BeNumerically("<=", 1), resource)
		s.Expect(len(ours.Verb("watch").Resource(resource))).To(BeNumerically("<=", 1), resource)
	}
	s.Expect(ours.Resource("secrets")).To(BeEmpty())
	s.Expect(s.managed().By(fleet.ManagerUser).Resource("secrets")).To(BeEmpty())
}

func (s *scene) volumesOfSkippedPods() {
	s.withVolumes("daemon", "labelled", "ruled", "shared")
	s.create(s.workload.Client, storage.VolumeFor("scratch", namespace, "ephemeral-scratch"))
	s.create(s.fleet.Client, drainRule("stay", "ruled", clusterv1.MachineDrainRuleDrainBehaviorSkip, nil))
	daemonSet := daemonSetOn("agent", "staying")
	storage.Mount(&daemonSet.Spec.Template.Spec, "daemon")
	s.create(s.workload.Client, daemonSet)
	ephemeral := bare("ephemeral", "staying", labelledSkip)
	ephemeral.Annotations[controlplane.PodReadyDelayAnnotation] = "2s" // the claim is bound earlier
	ephemeral.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
		VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: storage.ClaimOf("scratch")},
	}}}}
	s.run(
		bare("labelled", "staying", labelledSkip, mounting("labelled", "shared")), bare("ruled", "staying", mounting("ruled")),
		bare("evicted", "staying", mounting("shared")), ephemeral,
	)
	s.expectAttached("staying", "daemon", "labelled", "ruled", "shared", "scratch")

	s.deleteMachine("staying")
	s.expectGone("staying")
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("evicted"))
	s.Expect(excludes(s.released("staying"))).To(Equal([]string{"drain", "volumes"}))
	for _, event := range s.audited().Verb("delete").Resource("volumeattachments.storage.k8s.io") {
		s.Expect(event.Requested).To(BeTemporally(">", s.released("staying").Answered), "the volume was detached earlier, so this proves nothing: %s", event)
	}
	s.Expect(s.workload.Client.Delete(s.Context(), daemonSet)).To(Succeed())
}

func labelledSkip(pod *corev1.Pod) { pod.Labels[clusterv1.PodDrainLabel] = "Skip" }

// daemonSetOn returns a DaemonSet with a Pod on one Node.
func daemonSetOn(name, node string) *appsv1.DaemonSet {
	return daemonSet(name, func(d *appsv1.DaemonSet) {
		d.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	})
}

func (s *scene) unmatched() {
	attachment := func(name string, source storagev1.VolumeAttachmentSource) *storagev1.VolumeAttachment {
		return &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{Attacher: "none.test", NodeName: "unmatched", Source: source},
		}
	}
	inline := corev1.PersistentVolumeSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}}
	inline.CSI = storage.VolumeFor("inline", namespace, "").Spec.CSI
	for _, va := range []*storagev1.VolumeAttachment{
		attachment("va-inline", storagev1.VolumeAttachmentSource{InlineVolumeSpec: &inline}),
		attachment("va-gone", storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("never-was")}),
	} {
		s.create(s.workload.Client, va)
		before := va.DeepCopy()
		va.Status.Attached = true
		s.Expect(s.workload.Client.Status().Patch(s.Context(), va, client.MergeFrom(before))).To(Succeed())
	}
	inTree := corev1.UniqueVolumeName("kubernetes.io/iscsi/10.0.0.1:3260:iqn.test:1")
	s.reportAttached("unmatched", inTree)

	s.deleteMachine("unmatched")
	s.expectWaitsForVolumes("unmatched",
		"VolumeAttachments that name no PersistentVolume: va-inline",
		"VolumeAttachments whose PersistentVolume does not exist: va-gone",
		"attached volumes that match no known PersistentVolume: "+string(inTree))
	s.Expect(errorLines(s.fleet.Manager.Log())).NotTo(ContainElement(ContainSubstring("va-inline")))
	s.removeAttachment("va-inline")
	s.removeAttachment("va-gone")
	s.Eventually(func() string { return s.condition("unmatched").Message }, soon, pace).ShouldNot(ContainSubstring("VolumeAttachments"))
	s.Expect(s.machine("unmatched").Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation))
	s.reportAttached("unmatched")
	s.expectGone("unmatched")
	s.Expect(excludes(s.released("unmatched"))).To(Equal([]string{"drain", "volumes"}))
}

// reportAttached sets the attached volumes in the status of a Node. The attach/detach controller does not change them if no Pod has a
// volume.
func (s *scene) reportAttached(node string, names ...corev1.UniqueVolumeName) {
	s.Helper()
	object := s.node(node)
	before := object.DeepCopy()
	object.Status.VolumesAttached = nil
	for _, name := range names {
		object.Status.VolumesAttached = append(object.Status.VolumesAttached, corev1.AttachedVolume{Name: name, DevicePath: "none"})
	}
	s.Expect(s.workload.Client.Status().Patch(s.Context(), object, client.MergeFrom(before))).To(Succeed())
}

func (s *scene) volumeTimeout(a *storage.Attacher) {
	s.withVolumes("stuck")
	a.Hold("stuck")
	s.run(bare("stuck", "late", mounting("stuck")))
	s.expectAttached("late", "stuck")
	s.deleteMachine("late")
	s.expectWaitsForVolumes("late", "default/stuck")
	s.change("late", func(m *clusterv1.Machine) { m.Spec.Deletion.NodeVolumeDetachTimeoutSeconds = ptr.To[int32](1) })
	s.expectGone("late")
	written := s.conditionsOf("late")
	s.Expect(written[len(written)-1]).To(And(HaveField("Reason", v1alpha1.ReasonTimedOut),
		HaveField("Message", And(ContainSubstring("nodeVolumeDetachTimeoutSeconds"), ContainSubstring("default/stuck")))))
	s.Expect(excludes(s.released("late"))).To(Equal([]string{"drain", "volumes"}))
	s.detach(a, "stuck")
}

func (s *scene) leftover() {
	s.withVolumes("left")
	s.create(s.workload.Client, budget("left", 0))
	s.run(bare("left", "leftover", mounting("left")))
	s.expectAttached("leftover", "left")
	s.change("leftover", func(m *clusterv1.Machine) {
		m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](1)
	})
	s.deleteMachine("leftover")
	s.expectWaitsForVolumes("leftover", "default/left")
	s.change("leftover", func(m *clusterv1.Machine) { m.Spec.Deletion.NodeVolumeDetachTimeoutSeconds = ptr.To[int32](2) })
	s.Eventually(func() bool { return s.isGone("leftover") }, eventually, pace).Should(BeTrue())
	s.Expect(s.evictions()).To(BeEmpty())
	s.Expect(excludes(s.released("leftover"))).To(Equal([]string{"drain", "volumes"}))
	s.removeWorkloads() // the garbage collector takes a minute to delete Pods of a deleted Node
	s.expectGone("leftover")
}

func (s *scene) silentNode(a *storage.Attacher) {
	s.withVolumes("lost")
	a.Hold("lost")
	s.run(bare("unseen", "silent", mounting("lost")))
	s.expectAttached("silent", "lost")
	s.deleteMachine("silent")
	s.expectWaitsForVolumes("silent", "default/lost")
	s.stopAnswering("silent")
	s.Expect(excludes(s.released("silent"))).To(Equal([]string{"drain"}), "Cluster API checks whether the Node is reachable")
	s.expectGone("silent")
	s.detach(a, "lost")
}

func (s *scene) outOfService(a *storage.Attacher) {
	s.withVolumes("dead")
	a.Hold("dead")
	s.create(s.workload.Client, budget("dead", 0))
	s.run(bare("dead", "outofservice", mounting("dead")))
	s.expectAttached("outofservice", "dead")
	s.stopAnswering("outofservice")
	s.deleteMachine("outofservice")
	s.Eventually(func() string { return s.condition("outofservice").Message }, soon, pace).Should(ContainSubstring("Pod default/dead: "))
	s.Expect(s.machine("outofservice").Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation))

	patch := fmt.Appendf(nil, `{"spec":{"taints":[{"key":%q,"value":"nodeshutdown","effect":"NoSchedule"}]}}`, corev1.TaintNodeOutOfService)
	s.Expect(s.workload.Client.Patch(s.Context(), s.node("outofservice"), client.RawPatch(types.StrategicMergePatchType, patch))).To(Succeed())
	s.Eventually(func() bool { return s.isGone("outofservice") }, eventually, pace).Should(BeTrue())
	s.Expect(s.evictions()).To(BeEmpty())
	s.Expect(excludes(s.released("outofservice"))).To(Equal([]string{"drain"}), "Cluster API checks whether the Node is reachable before it waits for volumes")
	s.removeWorkloads() // the garbage collector takes a minute to delete Pods of a deleted Node
	s.expectGone("outofservice")
	s.detach(a, "dead")
}

// stopAnswering stops a kubelet and sets the Node condition that the node lifecycle controller would set after 50 s.
func (s *scene) stopAnswering(node string) { s.stopKubelet(node, corev1.ConditionUnknown) }

// stopKubelet stops a kubelet, and sets whether its Node is ready.
func (s *scene) stopKubelet(node string, ready corev1.ConditionStatus) {
	s.Helper()
	s.Expect(s.workload.StopKubelet(s.Context(), node)).To(Succeed())
	s.Eventually(func(g Gomega) {
		object := s.node(node)
		before := object.DeepCopy()
		for i := range object.Status.Conditions {
			if object.Status.Conditions[i].Type == corev1.NodeReady {
				object.Status.Conditions[i].Status, object.Status.Conditions[i].Reason = ready, "KubeletStopped"
			}
		}
		g.Expect(s.workload.Client.Status().Patch(s.Context(), object, client.MergeFrom(before))).To(Succeed())
	}, soon, pace).Should(Succeed())
}

// volumeBesidePlugin runs a Pod with a volume, whose detachment it holds, and a Pod of a DaemonSet on a Node. It returns the latter.
func (s *scene) volumeBesidePlugin(a *storage.Attacher, node, volume string) (*appsv1.DaemonSet, corev1.Pod) {
	s.Helper()
	s.withVolumes(volume)
	a.Hold(volume)
	plugin := daemonSetOn("plugin-"+node, node)
	s.create(s.workload.Client, plugin)
	s.run(bare("app-"+node, node, mounting(volume)))
	s.expectAttached(node, volume)
	s.Eventually(func() []corev1.Pod { return s.podsOf(plugin.Name) }, soon, pace).Should(HaveLen(1))
	return plugin, s.podsOf(plugin.Name)[0]
}

func (s *scene) daemonSetsLast(a *storage.Attacher) {
	s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.DaemonSetPods = v1alpha1.DaemonSetPodsDrain })
	defer s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec.DaemonSetPods = v1alpha1.DaemonSetPodsSkip })
	plugin, pod := s.volumeBesidePlugin(a, "daemonsets", "data")

	s.deleteMachine("daemonsets")
	s.expectWaitsForVolumes("daemonsets", "default/data")
	s.Expect(s.node("daemonsets").Spec.Taints).NotTo(ContainElement(HaveField("Key", v1alpha1.NoDaemonSetPodsTaint)))
	s.Expect(s.pod(pod.Name).DeletionTimestamp).To(BeNil())
	s.detach(a, "data")
	s.expectGone("daemonsets")

	deleted := s.first(s.ours().Verb("delete").Resource("pods").Named(namespace, pod.Name))
	s.expectDetachedBefore(deleted)
	s.expectOrder(deleted, s.released("daemonsets"))
	s.Expect(excludes(s.released("daemonsets"))).To(Equal([]string{"drain", "volumes"}))
	s.Expect(s.workload.Client.Delete(s.Context(), plugin)).To(Succeed())
}

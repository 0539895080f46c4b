package integration

import (
	"slices"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/storage"
)

// withAttacher installs a CSI driver and runs its attacher until the test ends.
func (s *scene) withAttacher() *storage.Attacher {
	s.Helper()
	a, err := storage.StartAttacher(s.Context(), s.workload.Client, 0)
	s.Expect(err).NotTo(HaveOccurred())
	return a
}

// detach allows the attacher to detach a volume.
func (s *scene) detach(a *storage.Attacher, volume string) {
	s.Helper()
	s.Expect(a.Detach(s.Context(), volume)).To(Succeed())
}

func (s *scene) attachmentsOf(volume string) []storagev1.VolumeAttachment {
	s.Helper()
	all := &storagev1.VolumeAttachmentList{}
	s.Expect(s.workload.Client.List(s.Context(), all)).To(Succeed())
	return slices.DeleteFunc(all.Items, func(va storagev1.VolumeAttachment) bool {
		return storage.VolumeOf(&va) != volume
	})
}

// withVolumes creates volumes with their claims and waits until they are bound. For a Pod whose claim is not bound, the attach/detach
// controller waits a minute before it retries.
func (s *scene) withVolumes(names ...string) {
	s.Helper()
	for _, name := range names {
		pv, claim := storage.Volume(namespace, name)
		s.create(s.workload.Client, pv, claim)
	}
	for _, name := range names {
		s.Eventually(func(g Gomega) {
			claim := read(g, s.workload.Client, keyOf(name), &corev1.PersistentVolumeClaim{})
			g.Expect(claim.Status.Phase).To(Equal(corev1.ClaimBound))
		}, eventually, pace).Should(Succeed())
	}
}

// mounting adds claims to a Pod.
func mounting(claims ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		storage.Mount(&pod.Spec, claims...)
		pod.Annotations[controlplane.PodReadyDelayAnnotation] = "500ms" // its update has the attach/detach controller look twice
	}
}

// expectAttached waits until the attach/detach controller and the attacher report volumes as attached to a Node.
func (s *scene) expectAttached(node string, volumes ...string) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		var attached []string
		for _, each := range s.node(node).Status.VolumesAttached {
			attached = append(attached, string(each.Name))
		}
		for _, volume := range volumes {
			g.Expect(attached).To(ContainElement("kubernetes.io/csi/"+storage.Driver+"^handle-"+volume), volume)
			all := s.attachmentsOf(volume)
			g.Expect(all).To(HaveLen(1), volume)
			g.Expect(all[0].Status.Attached).To(BeTrue(), volume)
		}
	}, eventually, pace).Should(Succeed())
}

// expectWaitsForVolumes waits until a Machine reports that it waits for these volumes.
func (s *scene) expectWaitsForVolumes(machine string, texts ...string) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		condition := s.condition(machine)
		g.Expect(condition.Reason).To(Equal("WaitingForVolumeDetach"), condition.Message)
		g.Expect(condition.Status).To(Equal(metav1.ConditionFalse))
		for _, text := range texts {
			g.Expect(condition.Message).To(ContainSubstring(text))
		}
	}, eventually, pace).Should(Succeed())
}

// change changes a Machine.
func (s *scene) change(name string, change func(*clusterv1.Machine)) {
	s.Helper()
	machine := s.machine(name)
	s.patch(s.fleet.Client, machine, func() { change(machine) })
}

// released returns the request that removed our hook from a Machine. Its effect can be observed before it is in the audit log.
func (s *scene) released(machine string) controlplane.Event {
	s.Helper()
	var released controlplane.Events
	s.Eventually(func(g Gomega) {
		events, err := s.fleet.Management.Audit().Since(s.managementBegin)
		g.Expect(err).NotTo(HaveOccurred())
		released = events.WithUserAgent(fleet.ManagerAgent).Verb("patch").Resource("machines").Named(namespace, machine).Succeeded().Where(fleet.ReleasesHook)
		g.Expect(released).To(HaveLen(1))
	}, soon, pace).Should(Succeed())
	return released[0]
}

// excludes returns the steps of a deletion that the release told Cluster API to skip.
func excludes(release controlplane.Event) (parts []string) {
	for part, annotation := range map[string]string{
		"drain": clusterv1.ExcludeNodeDrainingAnnotation, "volumes": clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation,
	} {
		if contains(`"` + annotation + `":"node-maintenance`)(release) {
			parts = append(parts, part)
		}
	}
	slices.Sort(parts)
	return parts
}

// expectDetachedBefore checks that the last volume was detached before requests were made.
func (s *scene) expectDetachedBefore(then ...controlplane.Event) {
	s.Helper()
	detached := s.audited().By(controlplane.AdminUser).Verb("patch").Resource("volumeattachments.storage.k8s.io").Succeeded()
	s.Expect(detached).NotTo(BeEmpty())
	for _, event := range then { // our watch may deliver the deletion before the attacher has its response
		s.Expect(event.Requested).To(BeTemporally(">", detached[len(detached)-1].Requested), "%s", event)
	}
}

// removeAttachment deletes a VolumeAttachment and its finalizers.
func (s *scene) removeAttachment(name string) {
	s.Helper()
	attachment := &storagev1.VolumeAttachment{}
	err := s.workload.Client.Get(s.Context(), types.NamespacedName{Name: name}, attachment)
	if apierrors.IsNotFound(err) {
		return
	}
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(client.IgnoreNotFound(s.workload.Client.Delete(s.Context(), attachment))).To(Succeed())
}

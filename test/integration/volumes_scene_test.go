package integration

import (
	"context"
	"slices"
	"sync"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

const (
	csiDriver = "csi.test"
	// attacherFinalizer is what an external attacher holds a VolumeAttachment with until it has detached the volume.
	attacherFinalizer = "external-attacher/csi-test"
)

// attacher plays the external attacher of a CSI driver: it confirms what the attach/detach controller asks for. What it holds
// stays attached until the test has it detached.
type attacher struct {
	client client.WithWatch

	mu   sync.Mutex
	held map[string]bool // by PersistentVolume
}

// withAttacher installs the CSI driver, and plays its attacher until the test ends.
func (s *scene) withAttacher() *attacher {
	s.Helper()
	s.create(s.workload.Client, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: csiDriver}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(true)}})
	a := &attacher{client: s.workload.Client, held: map[string]bool{}}
	watch, err := a.client.Watch(s.Context(), &storagev1.VolumeAttachmentList{})
	s.Expect(err).NotTo(HaveOccurred())
	s.Cleanup(watch.Stop)
	go func() {
		for event := range watch.ResultChan() {
			if attachment, ok := event.Object.(*storagev1.VolumeAttachment); ok && attachment.Spec.Attacher == csiDriver {
				a.serve(s.Context(), attachment) // what fails is tried again with the next event, or shows as a volume that stays
			}
		}
	}()
	return a
}

func (a *attacher) serve(ctx context.Context, attachment *storagev1.VolumeAttachment) {
	switch {
	case attachment.DeletionTimestamp == nil && !slices.Contains(attachment.Finalizers, attacherFinalizer):
		_ = a.patch(ctx, attachment, func(va *storagev1.VolumeAttachment) { va.Finalizers = append(va.Finalizers, attacherFinalizer) })
	case attachment.DeletionTimestamp == nil && !attachment.Status.Attached:
		before := attachment.DeepCopy()
		attachment.Status.Attached = true
		_ = a.client.Status().Patch(ctx, attachment, client.MergeFrom(before))
	case attachment.DeletionTimestamp != nil && !a.holds(attachment):
		_ = a.patch(ctx, attachment, func(va *storagev1.VolumeAttachment) { va.Finalizers = nil })
	}
}

func (a *attacher) patch(ctx context.Context, attachment *storagev1.VolumeAttachment, change func(*storagev1.VolumeAttachment)) error {
	before := attachment.DeepCopy()
	change(attachment)
	return client.IgnoreNotFound(a.client.Patch(ctx, attachment, client.MergeFrom(before)))
}

func (a *attacher) holds(attachment *storagev1.VolumeAttachment) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held[ptr.Deref(attachment.Spec.Source.PersistentVolumeName, "")]
}

// hold keeps a volume attached.
func (a *attacher) hold(volume string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held[volume] = true
}

// detach lets go of a volume, and detaches it if that is due.
func (s *scene) detach(a *attacher, volume string) {
	s.Helper()
	a.mu.Lock()
	delete(a.held, volume)
	a.mu.Unlock()
	for _, attachment := range s.attachmentsOf(volume) {
		if attachment.DeletionTimestamp != nil {
			s.Expect(a.patch(s.Context(), &attachment, func(va *storagev1.VolumeAttachment) { va.Finalizers = nil })).To(Succeed())
		}
	}
}

func (s *scene) attachmentsOf(volume string) []storagev1.VolumeAttachment {
	s.Helper()
	all := &storagev1.VolumeAttachmentList{}
	s.Expect(s.workload.Client.List(s.Context(), all)).To(Succeed())
	return slices.DeleteFunc(all.Items, func(va storagev1.VolumeAttachment) bool {
		return ptr.Deref(va.Spec.Source.PersistentVolumeName, "") != volume
	})
}

// volume is a PersistentVolume of the driver that is bound to a claim of its name.
func volume(name string) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {
	return volumeFor(name, name), &corev1.PersistentVolumeClaim{ObjectMeta: metaNamed(name, name), Spec: claimOf(name)}
}

func claimOf(volume string) corev1.PersistentVolumeClaimSpec {
	return corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, StorageClassName: ptr.To(""), VolumeName: volume,
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}
}

func volumeFor(name, claim string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pv.Spec = corev1.PersistentVolumeSpec{
		Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		ClaimRef:                      &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: namespace, Name: claim},
		PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: csiDriver, VolumeHandle: "handle-" + name}},
	}
	return pv
}

// withVolumes creates volumes with their claims, and waits until they are bound: the attach/detach controller looks at a Pod
// whose claim isn't only a minute later again.
func (s *scene) withVolumes(names ...string) {
	s.Helper()
	for _, name := range names {
		pv, claim := volume(name)
		s.create(s.workload.Client, pv, claim)
	}
	for _, name := range names {
		s.Eventually(func(g Gomega) {
			claim := &corev1.PersistentVolumeClaim{}
			g.Expect(s.workload.Client.Get(s.Context(), keyOf(name), claim)).To(Succeed())
			g.Expect(claim.Status.Phase).To(Equal(corev1.ClaimBound))
		}, eventually, pace).Should(Succeed())
	}
}

// mounting has a Pod use claims.
func mounting(claims ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		mount(&pod.Spec, claims...)
		pod.Annotations[controlplane.PodReadyDelayAnnotation] = "500ms" // its update has the attach/detach controller look twice
	}
}

func mount(spec *corev1.PodSpec, claims ...string) {
	for _, claim := range claims {
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
}

// expectAttached waits until volumes are attached to a Node, as the attach/detach controller and the attacher say.
func (s *scene) expectAttached(node string, volumes ...string) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		var attached []string
		for _, each := range s.node(node).Status.VolumesAttached {
			attached = append(attached, string(each.Name))
		}
		for _, volume := range volumes {
			g.Expect(attached).To(ContainElement("kubernetes.io/csi/"+csiDriver+"^handle-"+volume), volume)
			all := s.attachmentsOf(volume)
			g.Expect(all).To(HaveLen(1), volume)
			g.Expect(all[0].Status.Attached).To(BeTrue(), volume)
		}
	}, eventually, pace).Should(Succeed())
}

// expectWaitsForVolumes waits until a Machine says that it waits for volumes, and for these.
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

// change edits a Machine.
func (s *scene) change(name string, change func(*clusterv1.Machine)) {
	s.Helper()
	machine := s.machine(name)
	before := machine.DeepCopy()
	change(machine)
	s.Expect(s.fleet.Client.Patch(s.Context(), machine, client.MergeFrom(before))).To(Succeed())
}

// released is the request that took our hook off a Machine.
func (s *scene) released(machine string) controlplane.Event {
	s.Helper()
	events, err := s.fleet.Management.Audit().Since(s.managementBegin)
	s.Expect(err).NotTo(HaveOccurred())
	released := events.WithUserAgent(fleet.ManagerAgent).Verb("patch").Resource("machines").Named(namespace, machine).Succeeded().Where(takesHookOff)
	s.Expect(released).To(HaveLen(1))
	return released[0]
}

// excludes says which parts of a deletion the release told Cluster API to leave out.
func excludes(release controlplane.Event) (parts []string) {
	for part, annotation := range map[string]string{"drain": clusterv1.ExcludeNodeDrainingAnnotation, "volumes": clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation} {
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
	for _, event := range then { // our watch may see it before the one who has detached has his answer
		s.Expect(event.Requested).To(BeTemporally(">", detached[len(detached)-1].Requested), "%s", event)
	}
}

// removeAttachment takes a VolumeAttachment away, whoever holds it.
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

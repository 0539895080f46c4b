package e2e

import (
	"context"
	"strconv"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Kubernetes' attach/detach controller, external-attacher and the kubelets attach, mount and detach the volumes of Kubernetes' mock driver.
var _ = Describe("Volumes of a CSI driver", func() {
	It("M19, M20: holds a Machine until the volumes of its evicted Pods are detached, and not for those of skipped Pods", func(ctx context.Context) {
		w := newWorkloadClusterOf(ctx, "testdata/cluster.yaml", "volumes", 1, 2, "capnm.dev/csi-attacher:e2e", "capnm.dev/csi-mock:e2e")
		management.apply(ctx, w.name, read("testdata/rules.yaml"))
		w.waitHooks(ctx)
		deleted, pods := w.applyToOneWorker(ctx, read("testdata/csi.yaml"))
		Expect(pods).To(HaveLen(2))
		node := deleted.Status.NodeRef.Name
		attachments := w.attachments(ctx, Default, node)
		Expect(attachments).To(And(HaveLen(2), HaveKey("evicted"), HaveKey("skipped")))

		By("deleting the Machine while external-attacher is stopped")
		begin := len(w.events())
		w.scaleAttacher(ctx, 0)
		Expect(management.client.Delete(ctx, deleted)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(w.attachments(ctx, g, node)["evicted"].DeletionTimestamp).NotTo(BeNil())
			machine := get(ctx, g, management.client, &clusterv1.Machine{ObjectMeta: named(w.name, deleted.Name)})
			g.Expect(machine.Annotations).To(HaveKey(hook))
			g.Expect(machine.Status.Conditions).To(ContainElement(And(
				HaveField("Type", v1alpha1.MachineNodeMaintenance), HaveField("Reason", v1alpha1.ReasonWaitingForVolumeDetach),
				HaveField("Message", And(ContainSubstring("default/evicted"), Not(ContainSubstring("default/skipped")))))))
		}, eventually, pace).Should(Succeed())

		By("starting external-attacher again")
		w.scaleAttacher(ctx, 1)
		expectGone(ctx, management.client, deleted)
		events := w.events()[begin:]
		w.expectEvictions(events, pods, map[string]int{"evicted": 1})
		removed := events.Verb("delete").Resource("nodes").Named("", node).Succeeded()
		Expect(removed).NotTo(BeEmpty())
		// The attacher removes its finalizer when the driver has detached the volume.
		detached := events.By("system:serviceaccount:kube-system:csi-attacher").Verb("patch").Resource("volumeattachments.storage.k8s.io").
			Named("", attachments["evicted"].Name).Succeeded()
		Expect(detached).NotTo(BeEmpty())
		Expect(detached[len(detached)-1].Answered).To(BeTemporally("<", removed[0].Requested), "the Node stayed until the volume was detached")
		for _, deletion := range events.Verb("delete").Resource("volumeattachments.storage.k8s.io").Named("", attachments["skipped"].Name).Succeeded() {
			Expect(deletion.Requested).To(BeTemporally(">", removed[0].Requested), "%s, before the Node was removed", deletion)
		}

		By("the volume is attached to the Node of the Pod that replaces the evicted one")
		Eventually(func(g Gomega) {
			replaced := get(ctx, g, w.Client, &appsv1.Deployment{ObjectMeta: named("default", "evicted")})
			g.Expect(replaced.Status.AvailableReplicas).To(BeEquivalentTo(1))
			replacements := &corev1.PodList{}
			g.Expect(w.List(ctx, replacements, client.InNamespace("default"), client.MatchingLabels{"app": "evicted"})).To(Succeed())
			g.Expect(replacements.Items).To(HaveLen(1))
			g.Expect(w.attachments(ctx, g, replacements.Items[0].Spec.NodeName)).To(HaveKeyWithValue("evicted", HaveField("Status.Attached", true)))
		}, eventually, pace).Should(Succeed())
		w.delete(ctx)
	})
})

// attachments returns the VolumeAttachments to a Node, by the names of their PersistentVolumes.
func (w *workloadCluster) attachments(ctx context.Context, g Gomega, node string) map[string]storagev1.VolumeAttachment {
	all, attachments := &storagev1.VolumeAttachmentList{}, map[string]storagev1.VolumeAttachment{}
	g.Expect(w.List(ctx, all)).To(Succeed())
	for _, attachment := range all.Items {
		if attachment.Spec.NodeName == node {
			attachments[*attachment.Spec.Source.PersistentVolumeName] = attachment
		}
	}
	return attachments
}

// scaleAttacher starts or stops external-attacher. Without it, no volume is attached or detached.
func (w *workloadCluster) scaleAttacher(ctx context.Context, replicas int) {
	GinkgoHelper()
	run(ctx, tool("kubectl"), "--kubeconfig="+w.kubeconfig(), "--namespace=kube-system", "scale", "deployment", "csi-attacher",
		"--replicas="+strconv.Itoa(replicas))
	Eventually(func(g Gomega) {
		pods := &corev1.PodList{}
		g.Expect(w.List(ctx, pods, client.InNamespace("kube-system"), client.MatchingLabels{"app": "csi-attacher"})).To(Succeed())
		g.Expect(pods.Items).To(HaveLen(replicas))
	}, eventually, pace).Should(Succeed())
}

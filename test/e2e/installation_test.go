package e2e

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const ourNamespace = "capnm-system"

var _ = Describe("The installation", Label("short"), func() {
	It("runs the manager as a Pod of the restricted profile, with a read-only root and probes", func(ctx context.Context) {
		namespace := get(ctx, Default, management.client, &corev1.Namespace{ObjectMeta: named("", ourNamespace)})
		Expect(namespace.Labels).To(HaveKeyWithValue("pod-security.kubernetes.io/enforce", "restricted"))
		deployment := get(ctx, Default, management.client, &appsv1.Deployment{ObjectMeta: named(ourNamespace, "capnm-controller-manager")})
		Expect(deployment.Status.AvailableReplicas).To(BeEquivalentTo(1))
		pod := ourPod(ctx, Default)
		container := pod.Spec.Containers[0]
		Expect(*container.SecurityContext.ReadOnlyRootFilesystem).To(BeTrue())
		Expect(container.LivenessProbe).NotTo(BeNil())
		Expect(container.ReadinessProbe).NotTo(BeNil())
		Expect(pod.Status.ContainerStatuses[0].Ready).To(BeTrue())
		Expect(pod.Status.ContainerStatuses[0].RestartCount).To(BeZero())
	})
})

// ourPod returns the Pod of our manager.
func ourPod(ctx context.Context, g Gomega) *corev1.Pod {
	pods := &corev1.PodList{}
	g.Expect(management.client.List(ctx, pods, client.InNamespace(ourNamespace), client.MatchingLabels{"control-plane": "controller-manager"})).To(Succeed())
	g.Expect(pods.Items).To(HaveLen(1))
	return &pods.Items[0]
}

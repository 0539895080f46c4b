package controlplane

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

var labels = map[string]string{"app": "web"}

func podTemplate(annotations map[string]string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "example.test/app"}}},
	}
}

// withNode starts a cluster with a Node.
func withNode(t *testing.T, options Options) (*ControlPlane, *kubernetes.Clientset) {
	t.Helper()
	options.Scheduler, options.Kwok = true, true
	cluster := ForTest(t, options)
	client := clientFor(t, cluster.AdminConfig())
	_, err := client.CoreV1().Nodes().Create(t.Context(), NewNode("n1"), metav1.CreateOptions{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return cluster, client
}

func podNamed(t *testing.T, client kubernetes.Interface, name string, annotations map[string]string) *corev1.Pod {
	t.Helper()
	template := podTemplate(annotations)
	template.Name = name
	pod, err := client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}, metav1.CreateOptions{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return pod
}

func phaseOf(t *testing.T, client kubernetes.Interface, name string) func() (corev1.PodPhase, error) {
	t.Helper()
	return func() (corev1.PodPhase, error) {
		pod, err := client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "gone", nil
		}
		if err != nil {
			return "", err
		}
		return pod.Status.Phase, nil
	}
}

func TestPodLifecycle(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	_, client := withNode(t, Options{PodReadyDelay: time.Second, PodDeletionDelay: 2 * patience})

	created := time.Now()
	replicas := int32(2)
	_, err := client.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: podTemplate(nil),
		},
	}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() (int32, error) {
		deployment, err := client.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return 0, err
		}
		return deployment.Status.AvailableReplicas, nil
	}, patience).Should(Equal(replicas))
	g.Expect(time.Since(created)).To(BeNumerically(">", time.Second), "pods got ready without their delay")

	podNamed(t, client, "quick", map[string]string{PodReadyDelayAnnotation: "0s", PodDeletionDelayAnnotation: "1ms"})
	podNamed(t, client, "slow", map[string]string{PodReadyDelayAnnotation: "0s"})
	podNamed(t, client, "finite", map[string]string{PodCompleteAfterAnnotation: "500ms"})
	g.Eventually(phaseOf(t, client, "quick"), patience).Should(Equal(corev1.PodRunning))
	g.Eventually(phaseOf(t, client, "slow"), patience).Should(Equal(corev1.PodRunning))
	g.Eventually(phaseOf(t, client, "finite"), patience).Should(Equal(corev1.PodSucceeded))
	for _, name := range []string{"slow", "quick"} {
		g.Expect(client.CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{})).To(Succeed())
	}
	g.Eventually(phaseOf(t, client, "quick"), patience).Should(BeEquivalentTo("gone"))
	g.Expect(phaseOf(t, client, "slow")()).To(Equal(corev1.PodRunning), "its delay is longer")
	shorter := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"1s"}}}`, PodDeletionDelayAnnotation)
	changed := time.Now()
	_, err = client.CoreV1().Pods("default").Patch(t.Context(), "slow", types.MergePatchType, shorter, metav1.PatchOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(phaseOf(t, client, "slow"), patience).Should(BeEquivalentTo("gone"))
	g.Expect(time.Since(changed)).To(BeNumerically(">", time.Second), "the Pod was deleted without its delay")
}

func TestJobCompletes(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	_, client := withNode(t, Options{})
	template := podTemplate(nil)
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	_, err := client.BatchV1().Jobs("default").Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "sum"},
		Spec:       batchv1.JobSpec{Template: template},
	}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() (int32, error) {
		job, err := client.BatchV1().Jobs("default").Get(t.Context(), "sum", metav1.GetOptions{})
		if err != nil {
			return 0, err
		}
		return job.Status.Succeeded, nil
	}, patience).Should(Equal(int32(1)))
}

func TestPodIsReadyAgain(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	_, client := withNode(t, Options{})
	podNamed(t, client, "app", nil)
	ready := func() (corev1.ConditionStatus, error) {
		pod, err := client.CoreV1().Pods("default").Get(t.Context(), "app", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady {
				return condition.Status, nil
			}
		}
		return "", nil
	}
	g.Eventually(ready, patience).Should(Equal(corev1.ConditionTrue))

	lost := []byte(`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`) // as the node lifecycle controller does
	patched, err := client.CoreV1().Pods("default").Patch(t.Context(), "app", types.StrategicMergePatchType, lost, metav1.PatchOptions{}, "status")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(patched.Status.Conditions).To(ContainElement(And(HaveField("Type", corev1.PodReady), HaveField("Status", corev1.ConditionFalse))))
	g.Eventually(ready, patience).Should(Equal(corev1.ConditionTrue))
}

func TestKubeletStops(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	// A short lease is renewed every second.
	cluster, client := withNode(t, Options{ExtraArgs: map[Component][]string{Kwok: {"--node-lease-duration-seconds=4"}}})
	podNamed(t, client, "app", nil)
	g.Eventually(phaseOf(t, client, "app"), patience).Should(Equal(corev1.PodRunning))
	renewed := func() (string, error) {
		lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return lease.Spec.RenewTime.String(), nil
	}
	last, err := renewed()
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(renewed, patience).ShouldNot(Equal(last))

	g.Expect(cluster.StopKubelet(t.Context(), "n1")).To(Succeed())
	// After a renewal that was in flight, there are no more.
	g.Eventually(func(g Gomega) {
		last, err := renewed()
		g.Expect(err).NotTo(HaveOccurred())
		g.Consistently(renewed, 3*time.Second, 100*time.Millisecond).Should(Equal(last))
	}, patience).Should(Succeed())
	g.Expect(client.CoreV1().Pods("default").Delete(t.Context(), "app", metav1.DeleteOptions{})).To(Succeed())
	g.Consistently(phaseOf(t, client, "app"), time.Second).Should(Equal(corev1.PodRunning), "no kubelet terminates it")

	g.Expect(cluster.StartKubelet(t.Context(), "n1")).To(Succeed())
	g.Eventually(phaseOf(t, client, "app"), patience).Should(BeEquivalentTo("gone"))
}

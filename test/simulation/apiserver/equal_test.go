package apiserver

import (
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestEqual compares Equal with the comparison of apimachinery, for all pairs of these objects.
func TestEqual(t *testing.T) {
	now := time.Unix(1_700_000_000, 5).UTC()
	pod := func(change func(*corev1.Pod)) client.Object {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"app": "web"}, CreationTimestamp: metav1.NewTime(now)},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("1")},
			}}}},
		}
		change(pod)
		return pod
	}
	custom := func(content map[string]any) client.Object { return &unstructured.Unstructured{Object: content} }
	objects := []client.Object{
		pod(func(*corev1.Pod) {}),
		pod(func(pod *corev1.Pod) { pod.Annotations, pod.Spec.Volumes = map[string]string{}, []corev1.Volume{} }),
		pod(func(pod *corev1.Pod) { pod.Labels["app"] = "other" }),
		pod(func(pod *corev1.Pod) { delete(pod.Labels, "app") }),
		pod(func(pod *corev1.Pod) { pod.CreationTimestamp = metav1.NewTime(now.In(time.FixedZone("east", 3600))) }),
		pod(func(pod *corev1.Pod) { pod.CreationTimestamp = metav1.NewTime(now.Add(time.Second)) }),
		pod(func(pod *corev1.Pod) { pod.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }),
		pod(func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = apiresource.MustParse("1000m")
		}),
		pod(func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = apiresource.MustParse("2")
		}),
		pod(func(pod *corev1.Pod) { pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{}) }),
		pod(func(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(30)) }),
		pod(func(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(0)) }),
		&corev1.Secret{Data: map[string][]byte{"value": []byte("a")}},
		&corev1.Secret{Data: map[string][]byte{"value": []byte("b")}},
		&policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1))}},
		&policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromString("1"))}},
		&policyv1.PodDisruptionBudget{Status: policyv1.PodDisruptionBudgetStatus{DisruptedPods: map[string]metav1.Time{"web": metav1.NewTime(now)}}},
		custom(map[string]any{"spec": map[string]any{"size": int64(1), "zones": []any{"a"}}}),
		custom(map[string]any{"spec": map[string]any{"size": float64(1), "zones": []any{"a"}}}),
		custom(map[string]any{"spec": map[string]any{"size": int64(1), "zones": []any{"b"}}}),
		custom(map[string]any{"spec": map[string]any{"size": int64(1), "zones": nil}}),
		custom(map[string]any{"spec": map[string]any{"size": int64(1)}}),
	}
	g := gomega.NewWithT(t)
	for i, a := range objects {
		for j, b := range objects {
			b = b.DeepCopyObject().(client.Object)
			g.Expect(Equal(a, b)).To(gomega.BeEquivalentTo(apiequality.Semantic.DeepEqual(a, b)), "objects %d and %d", i, j)
		}
	}
}

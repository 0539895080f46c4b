package integration

import (
	"fmt"
	"slices"
	"strings"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// The vocabulary of tests of evacuators.

// statefulSet returns a StatefulSet of Pods labelled app in the pool "set".
func statefulSet(app string, replicas int32) *appsv1.StatefulSet {
	d := deployment(app, replicas, inPool("set"))
	return &appsv1.StatefulSet{
		ObjectMeta: d.ObjectMeta,
		Spec:       appsv1.StatefulSetSpec{Replicas: d.Spec.Replicas, Selector: d.Spec.Selector, Template: d.Spec.Template},
	}
}

// autoscaler returns an autoscaler of the Deployment of the same name. Its metrics do not exist.
func autoscaler(name string, lowest, highest int32) *autoscalingv2.HorizontalPodAutoscaler {
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metaNamed(name, name),
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
			MinReplicas:    &lowest, MaxReplicas: highest,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
				Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: ptr.To[int32](50)},
			}}},
		},
	}
}

func (s *scene) expectMinReplicas(name string, n int32) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		h := read(g, s.workload.Client, keyOf(name), &autoscalingv2.HorizontalPodAutoscaler{})
		g.Expect(h.Spec.MinReplicas).To(HaveValue(Equal(n)))
	}, eventually, pace).Should(Succeed())
}

// surgeWrites returns the writes of our manager for a surge.
func (s *scene) surgeWrites() controlplane.Events {
	s.Helper()
	return s.ours().Where(func(event controlplane.Event) bool {
		return slices.Contains([]string{"deployments", "horizontalpodautoscalers", "pods", "evacuations"}, event.Resource)
	})
}

// surging returns a NodeMaintenance in stage Drain with a surge policy.
func surging(name string, policy v1alpha1.SurgePolicy, nodes ...string) *v1alpha1.NodeMaintenance {
	return nm(name, v1alpha1.StageDrain, ofNodes(nodes...), func(m *v1alpha1.NodeMaintenance) { m.Spec.Evacuation.Surge = policy })
}

// inPool restricts Pods to the Nodes of a pool.
func inPool(pool string) func(*corev1.PodTemplateSpec) {
	return func(template *corev1.PodTemplateSpec) { template.Spec.NodeSelector = map[string]string{"pool": pool} }
}

// runSurging creates Deployments and waits until they are available.
func (s *scene) runSurging(deployments ...*appsv1.Deployment) {
	s.Helper()
	for _, d := range deployments {
		s.create(s.workload.Client, d)
	}
	for _, d := range deployments {
		s.Eventually(func(g Gomega) {
			now := read(g, s.workload.Client, keyOf(d.Name), &appsv1.Deployment{})
			g.Expect(now.Status.AvailableReplicas).To(Equal(*d.Spec.Replicas))
		}, eventually, pace).Should(Succeed(), d.Name)
	}
}

// requesting adds a resource request to the Pods: limitPods counts those that have one.
func requesting(cpu string) func(*corev1.PodTemplateSpec) {
	return func(t *corev1.PodTemplateSpec) {
		t.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
}

// limitPods creates a ResourceQuota that allows only the present Pods with resource requests, and waits until the API server enforces
// it.
func (s *scene) limitPods(name string, present int64) {
	s.Helper()
	s.create(s.workload.Client, &corev1.ResourceQuota{ObjectMeta: metaNamed(name, name), Spec: corev1.ResourceQuotaSpec{
		Hard:   corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(present, resource.DecimalSI)},
		Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeNotBestEffort},
	}})
	probe := &corev1.Pod{ObjectMeta: metaNamed(name, name), Spec: deployment(name, 0, requesting("1m")).Spec.Template.Spec}
	s.Eventually(func() error { return s.workload.Client.Create(s.Context(), probe.DeepCopy(), client.DryRunAll) }, soon, pace).
		Should(MatchError(HaveSuffix(overQuota(name, present))))
}

// overQuota returns what the API server says of a Pod that a quota of limitPods does not allow. By these words, a surge recognizes a
// quota (E67).
func overQuota(name string, present int64) string {
	return fmt.Sprintf("is forbidden: exceeded quota: %s, requested: pods=1, used: pods=%[2]d, limited: pods=%[2]d", name, present)
}

// allowMore lets a quota of limitPods allow more Pods. The API server would remember a deleted one for a while.
func (s *scene) allowMore(name string) {
	s.Helper()
	quota := read(s, s.workload.Client, keyOf(name), &corev1.ResourceQuota{})
	s.patch(s.workload.Client, quota, func() { quota.Spec.Hard[corev1.ResourcePods] = resource.MustParse("1k") })
}

func (s *scene) patchDeployment(name, patch string) {
	s.Helper()
	s.Expect(s.workload.Client.Patch(s.Context(), &appsv1.Deployment{ObjectMeta: metaNamed(name, name)},
		client.RawPatch(types.StrategicMergePatchType, []byte(patch)))).To(Succeed())
}

// applyAsGitOps applies a Deployment in the pool of its name, as Flux and Argo CD do. Without replicas, it does not set their number.
func (s *scene) applyAsGitOps(app string, replicas *int32) {
	s.Helper()
	labels := map[string]any{"app": app}
	spec := map[string]any{
		"selector": map[string]any{"matchLabels": labels},
		"template": map[string]any{"metadata": map[string]any{"labels": labels}, "spec": map[string]any{
			"nodeSelector": map[string]any{"pool": app}, "containers": []any{map[string]any{"name": "c", "image": "none"}},
		}},
	}
	if replicas != nil {
		spec["replicas"] = int64(*replicas)
	}
	d := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"namespace": namespace, "name": app}, "spec": spec,
	}}
	s.Expect(s.workload.Client.Apply(s.Context(), client.ApplyConfigurationFromUnstructured(d), client.FieldOwner("gitops"), client.ForceOwnership)).To(Succeed())
}

func (s *scene) generation(name string) int64 {
	s.Helper()
	d := read(s, s.workload.Client, keyOf(name), &appsv1.Deployment{})
	return d.Generation
}

func (s *scene) expectReplicas(name string, n int32) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		d := read(g, s.workload.Client, keyOf(name), &appsv1.Deployment{})
		g.Expect(d.Spec.Replicas).To(HaveValue(Equal(n)))
	}, eventually, pace).Should(Succeed())
}

// expectScaledBack waits until a Deployment has n replicas and no label or annotation of a surge.
func (s *scene) expectScaledBack(name string, n int32) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		d := read(g, s.workload.Client, keyOf(name), &appsv1.Deployment{})
		g.Expect(d.Spec.Replicas).To(HaveValue(Equal(n)))
		g.Expect(d.Annotations).NotTo(HaveKey(v1alpha1.SurgeAnnotation))
		g.Expect(d.Labels).NotTo(HaveKey(v1alpha1.SurgingLabel))
		g.Expect(d.Status.Replicas).To(Equal(n))
	}, eventually, pace).Should(Succeed())
}

// watchAvailable starts to count the Pods of an app that are ready and not terminating. The returned function stops and returns the lowest
// and the highest number.
func (s *scene) watchAvailable(app string) func() (least, most int) {
	s.Helper()
	list := &corev1.PodList{}
	ofApp := client.MatchingLabels{"app": app}
	s.Expect(s.workload.Client.List(s.Context(), list, ofApp)).To(Succeed())
	serving := map[types.UID]bool{}
	count := func(pod *corev1.Pod, gone bool) int {
		delete(serving, pod.UID)
		if rules.Ready(pod) && !gone && pod.DeletionTimestamp == nil {
			serving[pod.UID] = true
		}
		return len(serving)
	}
	for i := range list.Items {
		count(&list.Items[i], false)
	}
	least, most := len(serving), len(serving)
	watch, err := s.workload.Client.Watch(s.Context(), &corev1.PodList{}, ofApp, &client.ListOptions{Raw: watchFrom(list.ResourceVersion)})
	s.Expect(err).NotTo(HaveOccurred())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range watch.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				n := count(pod, event.Type == "DELETED")
				least, most = min(least, n), max(most, n)
			}
		}
	}()
	return func() (int, int) {
		watch.Stop()
		<-done
		return least, most
	}
}

// reportsOf returns the writes of our manager to the status of a Pod's Evacuation.
func (s *scene) reportsOf(pod *corev1.Pod) []string {
	s.Helper()
	var bodies []string
	for _, write := range s.ours().Verb("patch").Resource("evacuations", "status") {
		if strings.HasPrefix(write.Name, string(pod.UID)) {
			bodies = append(bodies, string(write.RequestObject))
		}
	}
	return bodies
}

// expectReport waits for a write of our manager to the status of a Pod's Evacuation that contains two texts. An event may precede it.
func (s *scene) expectReport(pod *corev1.Pod, reason, why string) {
	s.Helper()
	s.Eventually(func() []string { return s.reportsOf(pod) }, soon, pace).Should(ContainElement(And(ContainSubstring(reason), ContainSubstring(why))))
}

func watchFrom(version string) *metav1.ListOptions {
	return &metav1.ListOptions{ResourceVersion: version}
}

// ofApp matches requests about Pods of a Deployment or StatefulSet.
func ofApp(app string) func(controlplane.Event) bool {
	return func(event controlplane.Event) bool { return strings.HasPrefix(event.Name, app+"-") }
}

package forecast_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// withVolume adds a volume that a container writes.
func withVolume(name string, source corev1.VolumeSource) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: name}}})
	}
}

func emptyDir(medium corev1.StorageMedium, limit string) corev1.VolumeSource {
	source := &corev1.EmptyDirVolumeSource{Medium: medium}
	if limit != "" {
		source.SizeLimit = ptr.To(resource.MustParse(limit))
	}
	return corev1.VolumeSource{EmptyDir: source}
}

func hostPath(path string, hostPathType corev1.HostPathType) corev1.VolumeSource {
	return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &hostPathType}}
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{key: value} }
}

func readOnly(p *corev1.Pod) {
	p.Spec.Containers[len(p.Spec.Containers)-1].VolumeMounts[0].ReadOnly = true
}

// warningsAbout returns the warnings about Pods of Node one, in a line each.
func warningsAbout(o forecast.Observation, cluster *forecast.Cluster, pods ...corev1.Pod) []string {
	o.Node, o.Surroundings, o.Now, o.Pods = node("one"), surroundings{}, now, pods
	if o.Budgets == nil {
		o.Budgets = budgets.NewIndex(nil, nil)
	}
	var lines []string
	for _, w := range forecast.Of(o).Warnings(cluster) {
		lines = append(lines, fmt.Sprintf("%s %s %v: %s", w.Kind, w.Object, w.Pods, w.Message))
	}
	return lines
}

func TestWarnings(t *testing.T) {
	const data = "DataLeftBehind Deployment default/web [default/web-1]: the eviction leaves behind the data in "
	for name, test := range map[string]struct {
		pods []corev1.Pod
		want []string
	}{
		"K56: that no controller recreates a Pod": {
			[]corev1.Pod{pod("b"), pod("a"), pod("web-1", ofDeployment)},
			[]string{"NotRecreated  [default/a default/b]: not recreated: there is no controller"},
		},
		"K56: nothing about Pods that stay, complete, have finished, are terminating or belong to the Node": {[]corev1.Pod{
			pod("keep"), pod("job"), pod("logs", ofDaemonSet, withVolume("v", emptyDir("", ""))),
			pod("done", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
			pod("deleted", func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }),
		}, nil},
		"K56: which emptyDir volumes are deleted, with their size limit": {
			[]corev1.Pod{pod("web-1", ofDeployment, withVolume("a", emptyDir("", "")), withVolume("b", emptyDir("", "1Gi")))},
			[]string{data + "emptyDir a, emptyDir b (sizeLimit 1Gi)"},
		},
		"K56: nothing about volumes in memory and paths of the operating system": {
			[]corev1.Pod{pod("web-1", ofDeployment, withVolume("a", emptyDir(corev1.StorageMediumMemory, "8Mi")),
				withVolume("b", hostPath("/var/run/docker.sock", "")), withVolume("c", hostPath("//dev/", "")))},
			nil,
		},
		"K56: which directories of the Node the replacement does not have": {
			[]corev1.Pod{pod("web-1", ofDeployment, withVolume("a", hostPath("/devices", corev1.HostPathDirectory)),
				withVolume("b", hostPath("/run/x.sock", corev1.HostPathSocket)))},
			[]string{data + "hostPath /devices"},
		},
		"K56: nothing about volumes that no container can write": {
			[]corev1.Pod{pod("web-1", ofDeployment, withVolume("a", hostPath("/etc/ssl", "")), readOnly)}, nil,
		},
		"K56: that an init container can write a volume": {
			[]corev1.Pod{pod("web-1", ofDeployment, withVolume("a", emptyDir("", "")), func(p *corev1.Pod) {
				p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers, nil
			})},
			[]string{data + "emptyDir a"},
		},
		"K56: nothing about the volumes that annotations declare to be safe": {[]corev1.Pod{
			pod("web-1", ofDeployment, withVolume("a", emptyDir("", "")), withVolume("b", emptyDir("", "")),
				annotated("cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes", "a, b")),
			pod("web-2", ofDeployment, withVolume("a", emptyDir("", "")), annotated("cluster-autoscaler.kubernetes.io/safe-to-evict", "true")),
		}, nil},
		"K56: once for all Pods of a controller, those with the most Pods first": {
			[]corev1.Pod{pod("db-0", ofSet, withVolume("a", emptyDir("", ""))), pod("web-1", ofDeployment, withVolume("a", emptyDir("", ""))),
				pod("web-2", ofDeployment, withVolume("a", emptyDir("", "")))},
			[]string{
				"DataLeftBehind Deployment default/web [default/web-1 default/web-2]: the eviction leaves behind the data in emptyDir a",
				"DataLeftBehind StatefulSet default/db [default/db-0]: the eviction leaves behind the data in emptyDir a",
			},
		},
		"K55, K56: three of many volumes, and no name hides the rest": {
			[]corev1.Pod{pod("web-1", ofDeployment, withVolume("a", hostPath("/"+strings.Repeat("x", 4000), "")), withVolume("b", emptyDir("", "")),
				withVolume("c", emptyDir("", "")), withVolume("d", emptyDir("", "")), withVolume("e", emptyDir("", "")))},
			[]string{data + "hostPath /" + strings.Repeat("x", 98) + "…, emptyDir b, emptyDir c and 2 more"},
		},
		"K56: nothing about what an evacuator of the owner may move": {
			[]corev1.Pod{pod("alone", withVolume("a", emptyDir("", "")), annotated("evacuation.coordination.k8s.io/priority_mover.example.com", "100"))}, nil,
		},
		"K57: which annotation asks not to evict a Pod": {
			[]corev1.Pod{
				pod("web-1", ofDeployment, annotated("cluster-autoscaler.kubernetes.io/safe-to-evict", "false")),
				pod("db-0", ofSet, annotated("karpenter.sh/do-not-disrupt", "true")), pod("db-1", ofSet, annotated("karpenter.sh/do-not-disrupt", "false")),
			},
			[]string{
				`DoNotDisrupt Deployment default/web [default/web-1]: annotation cluster-autoscaler.kubernetes.io/safe-to-evict: "false" asks not to evict; ` +
					"the drain does not honor it",
				`DoNotDisrupt StatefulSet default/db [default/db-0]: annotation karpenter.sh/do-not-disrupt: "true" asks not to evict; the drain does not honor it`,
			},
		},
	} {
		description, says, _ := strings.Cut(name, ": ")
		t.Run(description+": warns "+says, func(t *testing.T) {
			m := maintenance("m", rule("keep", v1alpha1.DrainBehaviorSkip, 0), rule("job", v1alpha1.DrainBehaviorWaitCompleted, 0))
			NewWithT(t).Expect(warningsAbout(forecast.Observation{Maintenance: m}, nil, test.pods...)).To(Equal(test.want))
		})
	}
}

// roomy makes a Node one with a place for two Pods.
func roomy(n *corev1.Node) {
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourcePods: resource.MustParse("2"), corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi"),
	}
}

func TestLastReady(t *testing.T) {
	const last = "LastReady Deployment default/web [default/web-1]: the last ready replica: none is ready until its replacement is"
	web := func(name string, changes ...func(*corev1.Pod)) corev1.Pod {
		p := pod(name, ofDeployment, func(p *corev1.Pod) { p.Labels["app"] = "web" })
		for _, change := range changes {
			change(&p)
		}
		return p
	}
	elsewhere := func(p *corev1.Pod) { p.Spec.NodeName = "two" }
	unready := func(p *corev1.Pod) { p.Status.Conditions = nil }
	foreign := func(p *corev1.Pod) { p.Namespace = "other" }
	moved := annotated("evacuation.coordination.k8s.io/priority_mover.example.com", "100")
	deleted := func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }
	none := budgets.NewIndex(nil, nil)
	allows := func(disruptions int32) *budgets.Index {
		return budgets.NewIndex([]*policyv1.PodDisruptionBudget{budget("web", disruptions)}, nil)
	}
	for name, test := range map[string]struct {
		budgets *budgets.Index
		pods    []corev1.Pod
		want    []string
	}{
		"of the only Pod of a controller":                          {none, []corev1.Pod{web("web-1")}, []string{last}},
		"of it with a budget that allows the eviction":             {allows(1), []corev1.Pod{web("web-1")}, []string{last}},
		"not of it with a budget that refuses the eviction":        {allows(0), []corev1.Pod{web("web-1")}, nil},
		"of a Pod if the others are not ready":                     {none, []corev1.Pod{web("web-1"), web("web-2", elsewhere, unready)}, []string{last}},
		"of a Pod if the others are terminating":                   {none, []corev1.Pod{web("web-1"), web("web-2", elsewhere, deleted)}, []string{last}},
		"not of one that is not ready":                             {none, []corev1.Pod{web("web-1", unready)}, nil},
		"not if another one is ready":                              {none, []corev1.Pod{web("web-1"), web("web-2", elsewhere)}, nil},
		"not of several on the Node, which a note is about":        {none, []corev1.Pod{web("web-1"), web("web-2")}, nil},
		"of a Pod if the ready ones are those of other Namespaces": {none, []corev1.Pod{web("web-1"), web("web-2", foreign)}, []string{last}},
		"not of a Pod that its own evacuator may move":             {none, []corev1.Pod{web("web-1", moved)}, nil},
		"not of Pods that run once, whatever their controller": {none, []corev1.Pod{pod("step-1", func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "argoproj.io/v1alpha1", Kind: "Workflow", Name: "w", UID: "w", Controller: ptr.To(true)}}
		})}, nil},
	} {
		t.Run("K58: warns "+name, func(t *testing.T) {
			cluster := forecast.NewCluster([]*corev1.Node{node("two", roomy)}, nil)
			for i := range test.pods {
				cluster.Add(&test.pods[i])
			}
			onNode := slices.DeleteFunc(slices.Clone(test.pods), func(p corev1.Pod) bool { return p.Spec.NodeName != "one" || p.Namespace != "default" })
			got := warningsAbout(forecast.Observation{Maintenance: maintenance("m"), Budgets: test.budgets}, cluster, onNode...)
			NewWithT(t).Expect(got).To(Equal(test.want))
			NewWithT(t).Expect(warningsAbout(forecast.Observation{Maintenance: maintenance("m"), Budgets: test.budgets}, nil, onNode...)).To(BeEmpty())
		})
	}

	t.Run("K58: does not warn of a Pod whose Deployment surges", func(t *testing.T) {
		p, m, cluster := web("web-1"), maintenance("m"), forecast.NewCluster([]*corev1.Node{node("two", roomy)}, nil)
		cluster.Add(&p)
		m.Spec.Evacuation.Surge = v1alpha1.SurgeIfSingleReplica
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "d"}, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](1)}}
		d.Status = appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1}
		surges := map[types.NamespacedName]surge.Observation{{Namespace: "default", Name: "web"}: {Deployment: d}}
		NewWithT(t).Expect(warningsAbout(forecast.Observation{Maintenance: m, Surges: surges}, cluster, p)).To(BeEmpty())
	})
}

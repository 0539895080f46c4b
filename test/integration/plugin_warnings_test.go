package integration

import (
	"encoding/json"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// TestPluginWarnings compares what plan warns of with what becomes of the evicted Pods. It needs no manager: plan reads the cluster and
// writes nothing, and the test evicts the Pods.
func TestPluginWarnings(t *testing.T) {
	parallel(t, time.Minute)
	cluster := controlplane.ForTest(t, controlplane.Options{Name: "workload", Scheduler: true, Kwok: true})
	s := &scene{T: t, WithT: NewWithT(t)}
	c, err := client.NewWithWatch(cluster.AdminConfig(), client.Options{Scheme: clusterapi.Scheme()})
	s.Expect(err).NotTo(HaveOccurred())
	s.workload = &fleet.Workload{ControlPlane: cluster, Client: c}
	s.Eventually(func() error { return c.Get(s.Context(), keyOf("default"), &corev1.ServiceAccount{}) }, soon, pace).Should(Succeed())

	t.Run("K56, K57, K58, K59, K60: plan warns of what the drain costs each Pod, and the scheduler finds no Node for those that are named",
		func(t *testing.T) { s.part(t).warnsOfEachCost() })
	t.Run("K59, K62, K63: in random clusters, plan names the Pods for which the scheduler finds no Node, and no others",
		func(t *testing.T) { s.part(t).comparesPlacements() })
}

// warned is the part of the output of plan that the test compares.
type warned struct {
	Kind                 forecast.WarningKind
	Object, Message, Fix string
	Pods                 []string
}

// warnings runs plan for a Node and returns the warnings and the exit code.
func (s *scene) warnings(node string, args ...string) ([]warned, int) {
	s.Helper()
	alone, _, code := s.allWarnings(node, args...)
	return alone, code
}

// allWarnings returns the warnings about the drain and those about all drains apart.
func (s *scene) allWarnings(node string, args ...string) (alone, together []warned, code int) {
	s.Helper()
	output, _, code := s.plugin(s.workload.AdminConfig(), append([]string{"plan", "node", node, "-o", "json"}, args...)...)
	var plan struct {
		Drains            []struct{ Warnings []warned }
		Warnings          []warned
		Gaps, WarningGaps []string
	}
	s.Expect(json.Unmarshal([]byte(output), &plan)).To(Succeed())
	s.Expect(append(plan.Gaps, plan.WarningGaps...)).To(BeEmpty())
	s.Expect(plan.Drains).To(HaveLen(1))
	return plan.Drains[0].Warnings, plan.Warnings, code
}

// withSizedNode adds a Node of a size, in whose status the kubelet leaves it.
func (s *scene) withSizedNode(name, cpu string, changes ...func(*corev1.Node)) {
	s.Helper()
	node := controlplane.NewIdleNode(name)
	for _, change := range changes {
		change(node)
	}
	s.create(s.workload.Client, node)
	before := node.DeepCopy()
	node.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("20"),
	}
	node.Status.Capacity = node.Status.Allocatable
	s.Expect(s.workload.Client.Status().Patch(s.Context(), node, client.MergeFrom(before))).To(Succeed())
	s.relabel(name, controlplane.KubeletLabel, controlplane.KubeletLabelValue)
	s.Eventually(func() bool { return isInitialized(s.node(name)) }, eventually, pace).Should(BeTrue())
}

// localVolume returns a claim and its volume on Nodes with a label.
func localVolume(name, key, value string) []client.Object {
	size, class := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, ""
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	return []client.Object{
		&corev1.PersistentVolume{ObjectMeta: metaNamed(name, name), Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/none"}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: selectingNodes(key, value)},
			ClaimRef:     &corev1.ObjectReference{Namespace: namespace, Name: name},
		}},
		&corev1.PersistentVolumeClaim{ObjectMeta: metaNamed(name, name), Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, StorageClassName: &class, VolumeName: name, Resources: corev1.VolumeResourceRequirements{Requests: size},
		}},
	}
}

func selectingNodes(key string, values ...string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}},
	}}}
}

// writing adds a volume that the container writes.
func writing(name string, source corev1.VolumeSource) func(*corev1.PodTemplateSpec) {
	return func(t *corev1.PodTemplateSpec) {
		t.Spec.Volumes = append(t.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
		t.Spec.Containers[0].VolumeMounts = append(t.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
	}
}

func claiming(name string) func(*corev1.PodTemplateSpec) {
	return writing("data", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}})
}

func (s *scene) warnsOfEachCost() {
	s.Helper()
	s.withSizedNode("k56-first", "8")
	cache := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("1Gi"))}}
	s.create(s.workload.Client, append(localVolume("db", corev1.LabelHostname, "k56-first"),
		deployment("cache", 2, writing("cache", cache), func(t *corev1.PodTemplateSpec) {
			t.Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] = "false"
		}),
		deployment("db", 1, claiming("db")), deployment("large", 1, requesting("3")), deployment("web", 1, requesting("1")))...)
	s.run(bare("alone", "k56-first"))
	s.expectReady(6)
	s.withSizedNode("k56-second", "2")

	about := func(kind forecast.WarningKind, object string, pods int, message string) any {
		return And(HaveField("Kind", kind), HaveField("Object", object), HaveField("Pods", HaveLen(pods)), HaveField("Message", message))
	}
	const noPlace, last = "may find no place on 1 other Node: ", "the last ready replica: none is ready until its replacement is"
	others := []any{
		about(forecast.NotRecreated, "", 1, "not recreated: there is no controller"),
		about(forecast.DataLeftBehind, "Deployment default/cache", 2,
			"the eviction leaves behind the data in emptyDir cache (sizeLimit 1Gi)"),
		about(forecast.DoNotDisrupt, "Deployment default/cache", 2,
			`annotation cluster-autoscaler.kubernetes.io/safe-to-evict: "false" asks not to evict; the drain does not honor it`),
	}
	found, code := s.warnings("k56-first")
	s.Expect(code).To(BeZero())
	s.Expect(found).To(ConsistOf(append([]any{
		about(forecast.MayFindNoNode, "Deployment default/db", 1, noPlace+"node affinity of PersistentVolume db (1)"),
		about(forecast.MayFindNoNode, "Deployment default/large", 1, noPlace+"not enough free cpu (1)"),
		about(forecast.LastReady, "Deployment default/db", 1, last), about(forecast.LastReady, "Deployment default/large", 1, last),
		about(forecast.LastReady, "Deployment default/web", 1, last),
	}, others...)...))
	_, code = s.warnings("k56-first", "--fail-on", "warnings")
	s.Expect(code).To(Equal(1))
	output, _, _ := s.plugin(s.workload.AdminConfig(), "plan", "node", "k56-first")
	s.Expect(output).To(And(ContainSubstring("\n  Pod default/alone: not recreated"), ContainSubstring("\n  2 Pods of Deployment default/cache: ")))
	begin, err := s.workload.Audit().Mark()
	s.Expect(err).NotTo(HaveOccurred())
	s.begin = begin
	found, _ = s.warnings("k56-first", "--placement=false")
	s.Expect(found).To(ConsistOf(others...))
	s.expectReadsOnlyPodsOf("k56-first")

	s.setUnschedulable("k56-first", true)
	s.Expect(s.isPlaced("db")).To(BeFalse())
	s.Expect(s.isPlaced("large")).To(BeFalse())
	s.Expect(s.isPlaced("web")).To(BeTrue())
	s.removeNodes("k56-first", "k56-second")
}

// expectReady waits until so many Pods run and are ready.
func (s *scene) expectReady(count int) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		pods := &corev1.PodList{}
		g.Expect(s.workload.Client.List(s.Context(), pods, client.InNamespace(namespace))).To(Succeed())
		g.Expect(pods.Items).To(And(HaveLen(count), HaveEach(Satisfy(func(pod corev1.Pod) bool { return rules.Ready(&pod) }))))
	}, eventually, pace).Should(Succeed())
}

// expectReadsOnlyPodsOf expects that the plugin has written nothing, and has listed no Nodes and only the Pods of one.
func (s *scene) expectReadsOnlyPodsOf(node string) {
	s.Helper()
	requests := s.audited().WithUserAgent(pluginAgent)
	s.Expect(requests.Writes()).To(BeEmpty())
	s.Expect(requests.Verb("list").Resource("nodes")).To(BeEmpty())
	pods := requests.Verb("list").Resource("pods")
	s.Expect(pods).To(HaveLen(1))
	s.Expect(pods[0].URI).To(ContainSubstring("fieldSelector=spec.nodeName%3D" + node))
}

// schedulerLag is how long the scheduler may not have observed that another Pod was removed, and then waits to try a Pod again.
const schedulerLag = 3 * time.Second

// isPlaced deletes the Pods of a Deployment and returns whether the scheduler finds Nodes for the replacements. It leaves no Pods.
func (s *scene) isPlaced(app string) bool {
	s.Helper()
	old := map[types.UID]bool{}
	for _, pod := range s.podsOf(app) {
		old[pod.UID] = true
		s.Expect(s.workload.Client.Delete(s.Context(), &pod)).To(Succeed())
	}
	placed, refused := false, time.Time{}
	s.Eventually(func(g Gomega) {
		pods := s.podsOf(app)
		g.Expect(pods).To(HaveLen(len(old)))
		for i := range pods {
			g.Expect(old).NotTo(HaveKey(pods[i].UID))
			if placed = pods[i].Spec.NodeName != ""; rules.Unschedulable(&pods[i]) != nil && refused.IsZero() {
				refused = time.Now()
			}
			g.Expect(placed || !refused.IsZero() && time.Since(refused) > schedulerLag).To(BeTrue())
		}
	}, eventually, pace).Should(Succeed())
	s.Expect(s.workload.Client.Delete(s.Context(), deployment(app, 1), client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
	s.Eventually(func() []corev1.Pod { return s.podsOf(app) }, eventually, pace).Should(BeEmpty())
	return placed
}

// removeNodes deletes everything that runs, and Nodes.
func (s *scene) removeNodes(nodes ...string) {
	s.Helper()
	s.Expect(s.workload.Client.DeleteAllOf(s.Context(), &appsv1.Deployment{}, client.InNamespace(namespace))).To(Succeed())
	s.Eventually(func(g Gomega) {
		g.Expect(s.workload.Client.DeleteAllOf(s.Context(), &corev1.Pod{}, client.InNamespace(namespace), client.GracePeriodSeconds(0))).To(Succeed())
		pods := &corev1.PodList{}
		g.Expect(s.workload.Client.List(s.Context(), pods, client.InNamespace(namespace))).To(Succeed())
		g.Expect(pods.Items).To(BeEmpty())
	}, eventually, pace).Should(Succeed())
	for _, node := range nodes {
		s.Expect(s.workload.Client.Delete(s.Context(), s.node(node))).To(Succeed())
	}
	s.Expect(s.workload.Client.DeleteAllOf(s.Context(), &corev1.PersistentVolumeClaim{}, client.InNamespace(namespace))).To(Succeed())
	s.Expect(s.workload.Client.DeleteAllOf(s.Context(), &corev1.PersistentVolume{})).To(Succeed())
	s.Eventually(func(g Gomega) {
		claims, volumes := &corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{}
		g.Expect(s.workload.Client.List(s.Context(), claims)).To(Succeed())
		g.Expect(s.workload.Client.List(s.Context(), volumes)).To(Succeed())
		g.Expect(len(claims.Items) + len(volumes.Items)).To(BeZero())
	}, eventually, pace).Should(Succeed())
}

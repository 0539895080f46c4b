package integration

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
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

// placementCases is small, since each case takes a few seconds.
var placementCases = flag.Int("placements", 2, "in how many random clusters the warnings about places are compared with the scheduler")

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
	t.Run("K59: in random clusters, plan names the Pods for which the scheduler finds no Node, and no others", func(t *testing.T) {
		s := s.part(t)
		var total placements
		for i := range *placementCases {
			seed := rand.Uint64()
			s.Logf("case %d: seed %d", i, seed)
			total.add(s.comparePlacements(rand.New(rand.NewPCG(seed, 0))))
		}
		s.Logf("%d clusters: %d Pods, %d named, for %d the scheduler found no Node", *placementCases, total.pods, total.named, total.unplaced)
		s.Expect(total.wrong*10).To(BeNumerically("<=", total.named), "%d were named and found a Node", total.wrong)
	})
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
	output, _, code := s.plugin(s.workload.AdminConfig(), append([]string{"plan", "node", node, "-o", "json"}, args...)...)
	var plan struct {
		Drains      []struct{ Warnings []warned }
		WarningGaps []string
	}
	s.Expect(json.Unmarshal([]byte(output), &plan)).To(Succeed())
	s.Expect(plan.WarningGaps).To(BeEmpty())
	s.Expect(plan.Drains).To(HaveLen(1))
	return plan.Drains[0].Warnings, code
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

// placements counts the Pods of cases: those that plan named, for which the scheduler found no Node, and which were named wrongly.
type placements struct{ pods, named, unplaced, wrong int }

func (p *placements) add(other placements) {
	p.pods, p.named, p.unplaced, p.wrong = p.pods+other.pods, p.named+other.named, p.unplaced+other.unplaced, p.wrong+other.wrong
}

// comparePlacements runs applications with random needs on a Node, adds random Nodes, and compares what plan says about each application
// with what the scheduler does when its Pod alone is evicted.
func (s *scene) comparePlacements(random *rand.Rand) (counted placements) {
	s.Helper()
	pick := func(values ...string) string { return values[random.IntN(len(values))] }
	nodes := []string{"target"}
	labelled := func(zone, disk string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone], n.Labels["disk"] = zone, disk }
	}
	s.withSizedNode("target", "16", labelled("a", "ssd"))
	var apps []string
	for i := range 8 {
		app := fmt.Sprintf("app-%d", i)
		apps = append(apps, app)
		s.create(s.workload.Client, s.randomApplication(random, i, app)...)
	}
	s.expectReady(len(apps))
	for i := range 1 + random.IntN(3) {
		name := fmt.Sprintf("other-%d", i)
		nodes = append(nodes, name)
		s.withSizedNode(name, pick("2", "4"), labelled(pick("a", "b"), pick("ssd", "hdd")), func(n *corev1.Node) {
			if random.IntN(3) == 0 {
				n.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: pick("db", "ml"), Effect: corev1.TaintEffectNoSchedule}}
			}
			n.Spec.Unschedulable = random.IntN(5) == 0
		})
		s.run(bare("on-"+name, name, func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(pick("100m", "1", "1500m"))}
			if random.IntN(3) == 0 {
				for i := range int32(8) {
					pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{ContainerPort: 8080 + i, HostPort: 8080 + i})
				}
			}
		}))
	}
	found, _ := s.warnings("target")
	named := map[string]string{}
	for _, w := range found {
		if w.Kind == forecast.MayFindNoNode {
			named[w.Object] = w.Message
		}
	}
	s.setUnschedulable("target", true)
	for _, app := range apps {
		message, isNamed := named["Deployment default/"+app]
		placed := s.isPlaced(app)
		s.Expect(placed || isNamed).To(BeTrue(), "%s found no Node and was not named", app)
		counted.add(placements{1, count(isNamed), count(!placed), count(isNamed && placed)})
		s.Logf("%s: placed %t, %s", app, placed, message)
	}
	s.removeNodes(nodes...)
	return counted
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// randomApplication returns a Deployment with one replica that fits on the Node target, and its volume.
func (s *scene) randomApplication(random *rand.Rand, i int, app string) []client.Object {
	s.Helper()
	var objects []client.Object
	changes := []func(*corev1.PodTemplateSpec){requesting([]string{"100m", "500m", "1", "2"}[random.IntN(4)])}
	switch random.IntN(6) {
	case 0:
		changes = append(changes, func(t *corev1.PodTemplateSpec) { t.Spec.NodeSelector = map[string]string{"disk": "ssd"} })
	case 1:
		changes = append(changes, func(t *corev1.PodTemplateSpec) {
			selector := selectingNodes(corev1.LabelTopologyZone, "a", "c")
			t.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: selector}}
		})
	case 2:
		key := []string{corev1.LabelHostname, corev1.LabelTopologyZone}[random.IntN(2)]
		objects = localVolume(app, key, map[string]string{corev1.LabelHostname: "target", corev1.LabelTopologyZone: "a"}[key])
		changes = append(changes, claiming(app))
	case 3:
		changes = append(changes, func(t *corev1.PodTemplateSpec) {
			t.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: 8080 + int32(i)}}
		})
	}
	if random.IntN(3) == 0 {
		changes = append(changes, func(t *corev1.PodTemplateSpec) {
			t.Spec.Tolerations = []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpEqual, Value: "db"}}
		})
	}
	return append(objects, deployment(app, 1, changes...))
}

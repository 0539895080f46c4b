package integration

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// placementCases is small, since each case takes about half a minute.
var (
	placementCases = flag.Int("placements", 2, "in how many random clusters the warnings about places are compared with the scheduler")
	placementSeed  = flag.Uint64("placement-seed", 0, "the first seed of these clusters; 0 is a random one")
)

// The shares of what the generator makes. Each cluster has a Pod for each need; so many of them get one that no Node fulfills. Every second
// cluster is tight: the others request so much that they may fit alone only.
const (
	hopelessPods = 4
	tightEvery   = 2
)

// need is what decides where a Pod of a generated cluster finds a place.
type need string

var needs = []need{"requests", "node selector", "node affinity", "volume", "host port", "taint", "anti-affinity", "other anti-affinity", "affinity", "spread"}

// placements counts the Pods of generated clusters, and the clusters.
type placements struct {
	pods, named, unplaced, wrong    int
	clusters, tight                 int
	short, shortNamed, wronglyShort int // clusters whose Pods do not fit together
	sync.Mutex
}

// parallelClusters is how many generated clusters share a control plane at the same time.
const parallelClusters = 6

// comparesPlacements runs Pods with random needs on a Node of each of some clusters. It compares what plan says with what the scheduler
// does with each Pod when it alone is evicted, and then when all are.
func (s *scene) comparesPlacements() {
	s.Helper()
	var total placements
	first := *placementSeed
	if first == 0 {
		first = rand.Uint64()
	}
	places := make(chan struct{}, parallelClusters)
	s.Run("clusters", func(t *testing.T) {
		for i := range *placementCases {
			t.Run(fmt.Sprintf("seed %d", first+uint64(i)), func(t *testing.T) {
				t.Parallel()
				places <- struct{}{}
				defer func() { <-places }()
				c := &generated{scene: s.part(t), Rand: rand.New(rand.NewPCG(first+uint64(i), 0)), name: fmt.Sprintf("k59-%d", i), isTight: i%tightEvery == 0}
				c.compare(&total)
			})
		}
	})
	s.Logf("%d clusters, %d tight; %d Pods, of which %d in each cluster are made to find no Node: plan named %d, of which %d found one; %d found none",
		total.clusters, total.tight, total.pods, hopelessPods, total.named, total.wrong, total.unplaced)
	s.Logf("in %d clusters, Pods found a place alone and not together: plan named %d of them, and %d others", total.short, total.shortNamed, total.wronglyShort)
	s.Expect(total.unplaced).To(BeNumerically(">=", hopelessPods**placementCases))
	s.Expect(total.wrong*10).To(BeNumerically("<=", total.named), "%d Pods were named and found a Node", total.wrong)
	// The scheduler decides at random between equal Nodes, so in any cluster it may find the places that two orders do not.
	s.Expect(total.wronglyShort).To(BeNumerically("<=", 1+total.shortNamed/10), "%d clusters were named, and all Pods fit", total.wronglyShort)
}

// generated is one of several clusters that share a control plane. Its Pods run on its Nodes only.
type generated struct {
	*scene
	*rand.Rand

	name    string // also that of its Namespace
	isTight bool
	nodes   []string // without the drained one
	created int      // Pods
}

func (c *generated) target() string { return c.name + "-target" }

func (c *generated) compare(total *placements) {
	c.Helper()
	pods := c.generate()
	named, together, _ := c.allWarnings(c.target())
	isNamed := map[string]bool{}
	for _, w := range named {
		if w.Kind == forecast.MayFindNoNode {
			isNamed[w.Object] = true
		}
	}
	c.setUnschedulable(c.target(), true)
	counted := placements{pods: len(pods)}
	fits := map[string]bool{}
	for _, pod := range pods {
		app := pod.OwnerReferences[0].Name
		named := isNamed["ConfigMap "+c.name+"/"+app]
		fits[app] = c.evict(pod)[app]
		c.Logf("%s (%s, hopeless %q): placed %t, named %t", app, pod.Annotations["need"], pod.Annotations["hopeless"], fits[app], named)
		c.Expect(fits[app] || named).To(BeTrue(), "%s found no Node and was not named", app)
		c.Expect(fits[app] && pod.Annotations["hopeless"] != "").To(BeFalse(), "%s was made to find no Node", app)
		counted.named, counted.unplaced = counted.named+count(named), counted.unplaced+count(!fits[app])
		counted.wrong += count(named && fits[app])
	}
	short := false
	for app, placed := range c.evict(pods...) {
		short = short || fits[app] && !placed
	}
	c.Logf("tight %t, short %t, named %v", c.isTight, short, together)
	total.Lock()
	defer total.Unlock()
	total.pods, total.named = total.pods+counted.pods, total.named+counted.named
	total.unplaced, total.wrong = total.unplaced+counted.unplaced, total.wrong+counted.wrong
	total.clusters, total.tight, total.short = total.clusters+1, total.tight+count(c.isTight), total.short+count(short)
	total.shortNamed, total.wronglyShort = total.shortNamed+count(short && len(together) > 0), total.wronglyShort+count(!short && len(together) > 0)
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// evict evicts Pods of the drained Node, creates their replacements, and returns for which of them the scheduler finds a Node. Then it
// restores the Pods on the drained Node.
func (c *generated) evict(pods ...*corev1.Pod) map[string]bool {
	c.Helper()
	for _, pod := range pods {
		now := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
		now.DeleteOptions = &metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
		c.Expect(c.workload.Client.SubResource("eviction").Create(c.Context(), pod, now)).To(Succeed())
	}
	c.start(pods, "")
	placed, refused := map[string]bool{}, map[string]time.Time{}
	c.Eventually(func(g Gomega) {
		for _, pod := range pods {
			app := pod.OwnerReferences[0].Name
			present := read(g, c.workload.Client, client.ObjectKeyFromObject(pod), &corev1.Pod{})
			if placed[app] = present.Spec.NodeName != ""; rules.Unschedulable(present) != nil && refused[app].IsZero() {
				refused[app] = time.Now()
			}
			g.Expect(placed[app] || !refused[app].IsZero() && time.Since(refused[app]) > schedulerLag).To(BeTrue())
		}
	}, eventually, pace).Should(Succeed())
	for _, pod := range pods {
		c.Expect(c.workload.Client.Delete(c.Context(), pod.DeepCopy(), client.GracePeriodSeconds(0))).To(Succeed())
	}
	c.start(pods, c.target())
	return placed
}

// start creates Pods on a Node, or where the scheduler places them if it is empty. It gives each a new name, as most controllers do: kwok
// deletes Pods by their names, and may delete a later one.
func (c *generated) start(pods []*corev1.Pod, node string) {
	c.Helper()
	for _, pod := range pods {
		c.created++
		pod.Name = fmt.Sprintf("%s-%d", pod.OwnerReferences[0].Name, c.created)
		fresh := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels, Annotations: pod.Annotations, OwnerReferences: pod.OwnerReferences,
		}, Spec: *pod.Spec.DeepCopy()}
		fresh.Spec.NodeName = node
		c.create(c.workload.Client, fresh)
	}
}

// generate creates the cluster, and returns the Pods on the drained Node.
func (c *generated) generate() []*corev1.Pod {
	c.Helper()
	c.withNamespace(c.name)
	c.withSizedNode(c.target(), "32", c.labelled("a"))
	for i := range 2 + c.IntN(2) {
		c.nodes = append(c.nodes, fmt.Sprintf("%s-%d", c.name, i))
		c.withSizedNode(c.nodes[i], "4", c.labelled([]string{"a", "b"}[c.IntN(2)]), func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "pool", Value: c.name, Effect: corev1.TaintEffectNoSchedule}}
		})
	}
	c.occupy()
	hopeless := map[need]bool{}
	for _, i := range c.Perm(len(needs))[:hopelessPods] {
		hopeless[needs[i]] = true
	}
	var pods []*corev1.Pod
	for i, need := range needs {
		pod := c.pod(fmt.Sprintf("app-%d", i), c.target())
		pod.Annotations["need"] = string(need)
		c.request(pod, "100m")
		if hopeless[need] {
			pod.Annotations["hopeless"] = "true"
			c.makeHopeless(need, pod)
		} else if c.makeHopeful(need, pod); c.isTight {
			c.request(pod, []string{"500m", "1", "1500m", "2"}[c.IntN(4)])
		}
		pods = append(pods, pod)
	}
	c.start(pods, c.target())
	return pods
}

func (c *generated) labelled(zone string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Labels["case"], n.Labels[corev1.LabelTopologyZone], n.Labels[corev1.LabelHostname] = c.name, c.name+zone, n.Name
	}
}

// pod returns a Pod of a controller, which does nothing.
func (c *generated) pod(name, node string) *corev1.Pod {
	c.Helper()
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.name, Name: name}}
	c.create(c.workload.Client, owner)
	pod := bare(name, node)
	pod.Namespace, pod.Spec.NodeSelector = c.name, map[string]string{"case": c.name}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: owner.UID, Controller: ptr.To(true)}}
	pod.Spec.Tolerations = []corev1.Toleration{{Key: "pool", Operator: corev1.TolerationOpExists}}
	return pod
}

func (c *generated) request(pod *corev1.Pod, cpu string) {
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
}

// The host ports that occupants use: all of them, or the one on the first Node.
const (
	portOfAll   = 8080
	portOfFirst = 8081
)

// occupy runs a Pod on each Node, to which the needs of the others refer, and a peer on the drained Node.
func (c *generated) occupy() {
	c.Helper()
	var pods []*corev1.Pod
	for i, node := range c.nodes {
		pod := c.pod("occupant-"+node, node)
		c.request(pod, "500m")
		shuns := []string{"all"}
		pod.Labels["on"], pod.Labels["spread"], pod.Spec.Containers[0].Ports = "other", "all", []corev1.ContainerPort{{ContainerPort: 1, HostPort: portOfAll}}
		if i == 0 {
			shuns = append(shuns, "first")
			pod.Labels["first"] = "true"
			pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{ContainerPort: 2, HostPort: portOfFirst})
		}
		terms := []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "shunned", Operator: metav1.LabelSelectorOpIn, Values: shuns}},
		}}}
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
		pods = append(pods, pod)
	}
	peer := c.pod("peer", c.target())
	peer.Labels["on"], peer.OwnerReferences = "target", nil
	for _, pod := range append(pods, peer) {
		c.create(c.workload.Client, pod)
	}
}

// byHost is a term of affinity to the Pods with a label on the same Node.
func byHost(key, value string) []corev1.PodAffinityTerm {
	return []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}}}
}

// makeHopeless gives a Pod a need that only the drained Node fulfills.
func (c *generated) makeHopeless(need need, pod *corev1.Pod) {
	c.Helper()
	switch need {
	case "requests":
		c.request(pod, "4")
	case "node selector":
		pod.Spec.NodeSelector[corev1.LabelHostname] = c.target()
	case "node affinity":
		c.setNodeAffinity(pod, corev1.LabelHostname, c.target())
	case "volume":
		c.claim(pod, corev1.LabelHostname, c.target())
	case "host port":
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 1, HostPort: portOfAll}}
	case "taint":
		pod.Spec.Tolerations = nil
	case "anti-affinity":
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: byHost("on", "other")}}
	case "other anti-affinity":
		pod.Labels["shunned"] = "all"
	case "affinity":
		pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: byHost("on", "target")}}
	case "spread":
		c.spread(pod, "spread", "all")
	}
}

// makeHopeful gives a Pod a need that a Node fulfills.
func (c *generated) makeHopeful(need need, pod *corev1.Pod) {
	c.Helper()
	switch need {
	case "requests", "taint":
	case "node selector":
		pod.Spec.NodeSelector[corev1.LabelHostname] = c.nodes[c.IntN(len(c.nodes))]
	case "node affinity":
		c.setNodeAffinity(pod, corev1.LabelHostname, c.target(), c.nodes[c.IntN(len(c.nodes))])
	case "volume":
		c.claim(pod, "case", c.name)
	case "host port":
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 1, HostPort: portOfFirst}}
	case "anti-affinity":
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: byHost("first", "true")}}
	case "other anti-affinity":
		pod.Labels["shunned"] = "first"
	case "affinity":
		pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: byHost("on", "other")}}
	case "spread":
		c.spread(pod, "first", "true")
	}
}

func (c *generated) setNodeAffinity(pod *corev1.Pod, key string, values ...string) {
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: selectingNodes(key, values...)}}
}

// spread spreads a Pod over the Nodes, together with the occupants that have a label.
func (c *generated) spread(pod *corev1.Pod, key, value string) {
	pod.Labels[key] = value
	pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{key: value}},
	}}
}

// claim gives a Pod a volume that Nodes with a label can use.
func (c *generated) claim(pod *corev1.Pod, key, value string) {
	c.Helper()
	objects := localVolume(c.name, key, value)
	for _, object := range objects {
		object.SetNamespace(c.name)
	}
	volume, _ := objects[0].(*corev1.PersistentVolume)
	volume.Namespace, volume.Spec.ClaimRef.Namespace = "", c.name
	c.create(c.workload.Client, objects...)
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.name},
	}}}
	c.Eventually(func(g Gomega) {
		claim := read(g, c.workload.Client, types.NamespacedName{Namespace: c.name, Name: c.name}, &corev1.PersistentVolumeClaim{})
		g.Expect(claim.Status.Phase).To(Equal(corev1.ClaimBound))
	}, eventually, pace).Should(Succeed())
}

package forecast_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
)

func selectingApp(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func term(app, key string, changes ...func(*corev1.PodAffinityTerm)) corev1.PodAffinityTerm {
	t := corev1.PodAffinityTerm{LabelSelector: selectingApp(app), TopologyKey: key}
	for _, change := range changes {
		change(&t)
	}
	return t
}

func apartFrom(terms ...corev1.PodAffinityTerm) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
	}
}

func togetherWith(terms ...corev1.PodAffinityTerm) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
	}
}

func spreadBy(key string, changes ...func(*corev1.TopologySpreadConstraint)) func(*corev1.Pod) {
	constraint := corev1.TopologySpreadConstraint{
		MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selectingApp("db-0"),
	}
	for _, change := range changes {
		change(&constraint)
	}
	return func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, constraint)
	}
}

// neighbor returns a Pod of another controller on a Node.
func neighbor(app, node string, changes ...func(*corev1.Pod)) corev1.Pod {
	p := pod(app, ofDeployment)
	p.Spec.NodeName = node
	for _, change := range changes {
		change(&p)
	}
	return p
}

func TestNeighbors(t *testing.T) {
	const host, zone = corev1.LabelHostname, corev1.LabelTopologyZone
	at := func(name, zone string, changes ...func(*corev1.Node)) *corev1.Node {
		return node(name, append([]func(*corev1.Node){roomy, inZone(zone), func(n *corev1.Node) { n.Labels[host] = name }}, changes...)...)
	}
	one, two, three := at("one", "a"), at("two", "b"), at("three", "c")
	unlabelled := node("none", roomy)
	inNamespace := func(name string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Namespace = name } }
	namespaces := func(selector *metav1.LabelSelector) func(*corev1.PodAffinityTerm) {
		return func(t *corev1.PodAffinityTerm) { t.NamespaceSelector = selector }
	}
	ofTeam := namespaces(&metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}})
	known := func(name string) (map[string]string, bool) { return map[string]string{"team": name}, name != "unread" }
	tainted := tainted("a", "NoSchedule")
	for name, test := range map[string]struct {
		nodes  []*corev1.Node // in addition to Node one
		others []corev1.Pod
		pod    func(*corev1.Pod)
		want   string
	}{
		"anti-affinity to a Pod of the Node": {
			[]*corev1.Node{two}, []corev1.Pod{neighbor("web", "two")}, apartFrom(term("web", host)),
			" on 1 other Node: anti-affinity by kubernetes.io/hostname (1)",
		},
		"anti-affinity to a Pod of the zone": {
			[]*corev1.Node{two, at("other", "b")}, []corev1.Pod{neighbor("web", "other")}, apartFrom(term("web", zone)),
			" on 2 other Nodes: anti-affinity by topology.kubernetes.io/zone (2)",
		},
		"anti-affinity of replicas on each Node": {
			[]*corev1.Node{two, three}, []corev1.Pod{neighbor("db-0", "two"), neighbor("db-0", "three")}, apartFrom(term("db-0", host)),
			" on 2 other Nodes: anti-affinity by kubernetes.io/hostname (2)",
		},
		"nothing about anti-affinity to itself": {[]*corev1.Node{at("other", "a")}, nil, apartFrom(term("db-0", zone)), ""},
		"anti-affinity to another replica in the zone of the drained Node": {
			[]*corev1.Node{at("other", "a")}, []corev1.Pod{neighbor("db-0", "one")}, apartFrom(term("db-0", zone)),
			" on 1 other Node: anti-affinity by topology.kubernetes.io/zone (1)",
		},
		"nothing about anti-affinity where the Nodes lack the label": {
			[]*corev1.Node{unlabelled}, []corev1.Pod{neighbor("web", "none")}, apartFrom(term("web", host)), "",
		},
		"nothing about anti-affinity to Pods of another Namespace": {
			[]*corev1.Node{two}, []corev1.Pod{neighbor("web", "two", inNamespace("x"))}, apartFrom(term("web", host)), "",
		},
		"anti-affinity to Pods of a Namespace with a label": {
			[]*corev1.Node{two}, []corev1.Pod{neighbor("web", "two", inNamespace("x"))}, apartFrom(term("web", host, ofTeam)),
			" on 1 other Node: anti-affinity by kubernetes.io/hostname (1)",
		},
		"anti-affinity to Pods of all Namespaces": {
			[]*corev1.Node{two}, []corev1.Pod{neighbor("web", "two", inNamespace("unread"))},
			apartFrom(term("web", host, namespaces(&metav1.LabelSelector{}))), " on 1 other Node: anti-affinity by kubernetes.io/hostname (1)",
		},
		"nothing about anti-affinity to Pods of a Namespace that was not read": {
			[]*corev1.Node{two}, []corev1.Pod{neighbor("web", "two", inNamespace("unread"))}, apartFrom(term("web", host, ofTeam)), "",
		},
		"nothing about anti-affinity to a Pod that it may preempt": {
			[]*corev1.Node{two}, []corev1.Pod{neighbor("web", "two")}, func(p *corev1.Pod) { apartFrom(term("web", host))(p); withPriority(1)(p) }, "",
		},
		"the anti-affinity of another Pod": {
			[]*corev1.Node{two}, []corev1.Pod{neighbor("web", "two", apartFrom(term("db-0", host)))}, nil,
			" on 1 other Node: anti-affinity of Deployment default/web by kubernetes.io/hostname (1)",
		},
		"the anti-affinity of a Pod without a controller": {
			[]*corev1.Node{two}, []corev1.Pod{neighbor("web", "two", apartFrom(term("db-0", host)), func(p *corev1.Pod) { p.OwnerReferences = nil })}, nil,
			" on 1 other Node: anti-affinity of Pod default/web by kubernetes.io/hostname (1)",
		},
		"nothing about the anti-affinity of a Pod that it may preempt": {
			[]*corev1.Node{two}, []corev1.Pod{neighbor("web", "two", apartFrom(term("db-0", host)))}, withPriority(1), "",
		},
		"affinity to a Pod of the drained Node": {
			[]*corev1.Node{two}, []corev1.Pod{neighbor("web", "one")}, togetherWith(term("web", host)),
			" on 1 other Node: affinity to Pods by kubernetes.io/hostname (1)",
		},
		"nothing about affinity to a Pod of the zone": {
			[]*corev1.Node{at("other", "a")}, []corev1.Pod{neighbor("web", "one")}, togetherWith(term("web", zone)), "",
		},
		"affinity with two terms, which no Pod fulfills together": {
			[]*corev1.Node{two}, []corev1.Pod{neighbor("web", "two"), neighbor("cache", "two")}, togetherWith(term("web", host), term("cache", host)),
			" on 1 other Node: affinity to Pods by kubernetes.io/hostname (1)",
		},
		"nothing about affinity to itself, which the first Pod fulfills": {[]*corev1.Node{two}, nil, togetherWith(term("db-0", host)), ""},
		"affinity to itself if another replica is elsewhere": {
			[]*corev1.Node{two}, []corev1.Pod{neighbor("db-0", "one")}, togetherWith(term("db-0", host)),
			" on 1 other Node: affinity to Pods by kubernetes.io/hostname (1)",
		},
		"affinity to itself where the Node lacks the label": {
			[]*corev1.Node{unlabelled}, nil, togetherWith(term("db-0", host)), " on 1 other Node: affinity to Pods by kubernetes.io/hostname (1)",
		},
		"nothing about affinity to Pods of a Namespace that was not read": {
			[]*corev1.Node{two}, []corev1.Pod{neighbor("web", "one", inNamespace("unread"))}, togetherWith(term("web", host, ofTeam)), "",
		},
		"topology spread over Nodes": {
			[]*corev1.Node{two, three}, []corev1.Pod{neighbor("db-0", "two"), neighbor("db-0", "three")}, spreadBy(host),
			" on 2 other Nodes: topology spread by kubernetes.io/hostname (2)",
		},
		"nothing about topology spread that only prefers": {
			[]*corev1.Node{two}, []corev1.Pod{neighbor("db-0", "two")},
			spreadBy(host, func(c *corev1.TopologySpreadConstraint) { c.WhenUnsatisfiable = corev1.ScheduleAnyway }), "",
		},
		"nothing about topology spread within maxSkew": {
			[]*corev1.Node{two}, []corev1.Pod{neighbor("db-0", "two")}, spreadBy(host, func(c *corev1.TopologySpreadConstraint) { c.MaxSkew = 2 }), "",
		},
		"nothing about topology spread to Pods of another Namespace": {
			[]*corev1.Node{two}, []corev1.Pod{neighbor("db-0", "two", inNamespace("x"))}, spreadBy(host), "",
		},
		"nothing about topology spread where cordoned Nodes do not count": {
			[]*corev1.Node{two}, []corev1.Pod{neighbor("db-0", "two")},
			spreadBy(host, func(c *corev1.TopologySpreadConstraint) { c.NodeTaintsPolicy = ptr.To(corev1.NodeInclusionPolicyHonor) }), "",
		},
		"topology spread over too few domains": {
			[]*corev1.Node{two, three}, []corev1.Pod{neighbor("db-0", "one"), neighbor("db-0", "two"), neighbor("db-0", "three")},
			spreadBy(zone, func(c *corev1.TopologySpreadConstraint) { c.MinDomains = ptr.To[int32](4) }),
			" on 2 other Nodes: topology spread by topology.kubernetes.io/zone (2)",
		},
		"nothing about topology spread over Nodes that its nodeSelector leaves out": {
			[]*corev1.Node{two, three}, []corev1.Pod{neighbor("db-0", "two")}, func(p *corev1.Pod) {
				p.Spec.NodeSelector = map[string]string{zone: "b"}
				spreadBy(host)(p)
			}, "",
		},
		"topology spread where the Node lacks the label": {
			[]*corev1.Node{unlabelled}, nil, spreadBy(zone), " on 1 other Node: topology spread by topology.kubernetes.io/zone (1)",
		},
		"nothing about topology spread of Pods of another revision": {
			[]*corev1.Node{two}, []corev1.Pod{neighbor("db-0", "two", func(p *corev1.Pod) { p.Labels["revision"] = "1" })}, func(p *corev1.Pod) {
				p.Labels["revision"] = "2"
				spreadBy(host, func(c *corev1.TopologySpreadConstraint) { c.MatchLabelKeys = []string{"revision"} })(p)
			}, "",
		},
		"several causes": {
			[]*corev1.Node{at("x", "a", tainted), two}, []corev1.Pod{neighbor("web", "two")}, apartFrom(term("web", zone)),
			" on 2 other Nodes: anti-affinity by topology.kubernetes.io/zone (1), taint a:NoSchedule (1)",
		},
	} {
		t.Run("K62: warns of "+name, func(t *testing.T) {
			g := NewWithT(t)
			drained := pod("db-0", ofController)
			if test.pod != nil {
				test.pod(&drained)
			}
			cluster := forecast.NewCluster(append(test.nodes, one), sets.New("one"))
			cluster.NamespaceLabels = known
			for i := range test.others {
				cluster.Add(&test.others[i])
			}
			cluster.Add(&drained)
			got := warningsAbout(forecast.Observation{Maintenance: maintenance("m")}, cluster, drained)
			if test.want == "" {
				g.Expect(got).To(BeEmpty())
			} else {
				g.Expect(got).To(Equal([]string{"MayFindNoNode StatefulSet default/db [default/db-0]: may find no place" + test.want}))
			}
		})
	}
}

func TestLongNames(t *testing.T) {
	t.Run("K55: long names of tenants in the causes leave room for the other causes and for their numbers", func(t *testing.T) {
		drained, names := pod("db-0", ofController), []string{"two", "three", "four", "five"}
		nodes, pods := []*corev1.Node{node("one", roomy)}, []corev1.Pod{drained}
		for i, name := range names {
			nodes = append(nodes, node(name, roomy, func(n *corev1.Node) { n.Labels = map[string]string{corev1.LabelHostname: name} }))
			pods = append(pods, neighbor("web", name, apartFrom(term("db-0", corev1.LabelHostname)), func(p *corev1.Pod) {
				p.OwnerReferences[0].Kind, p.OwnerReferences[0].Name = "Set", strings.Repeat(fmt.Sprint(i), 253)
			}))
		}
		cluster := forecast.NewCluster(nodes, sets.New("one"))
		for i := range pods {
			cluster.Add(&pods[i])
		}
		g := NewWithT(t)
		got := warningsAbout(forecast.Observation{Maintenance: maintenance("m")}, cluster, drained)
		g.Expect(got).To(HaveLen(1))
		_, message, _ := strings.Cut(got[0], "]: ")
		g.Expect(message).To(And(HavePrefix("may find no place on 4 other Nodes: "), HaveSuffix("… (1) and 1 more")))
		g.Expect(utf8.RuneCountInString(message)).To(BeNumerically("<=", 700), "a terminal shows no more of a message")
	})
}

func TestPlacesTogether(t *testing.T) {
	cpu := func(name, quantity string, changes ...func(*corev1.Pod)) corev1.Pod {
		p := pod(name, ofController, requesting(corev1.ResourceCPU, quantity))
		for _, change := range changes {
			change(&p)
		}
		return p
	}
	// sized is a Node with two CPUs and places for ten Pods.
	sized := func(name string, changes ...func(*corev1.Node)) *corev1.Node {
		n := node(name, append([]func(*corev1.Node){roomy}, changes...)...)
		n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("10")
		return n
	}
	two, three := sized("two"), sized("three", inZone("c"))
	inC := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "c"} }
	on := func(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }
	for name, test := range map[string]struct {
		nodes  []*corev1.Node
		others []corev1.Pod
		pods   []corev1.Pod
		want   string
	}{
		"nothing if all Pods fit": {[]*corev1.Node{two}, nil, []corev1.Pod{cpu("a", "1"), cpu("b", "1")}, ""},
		"Pods that only fit alone": {
			[]*corev1.Node{two}, nil, []corev1.Pod{cpu("b", "1"), cpu("a", "1"), cpu("c", "1")},
			"[default/a default/b default/c]: each alone may find a place, but 1 of the 3 may find none together on 1 other Node: not enough free cpu (1)",
		},
		"Pods of several drains": {
			[]*corev1.Node{two}, nil, []corev1.Pod{cpu("a", "1500m"), cpu("b", "1500m", on("later"))},
			"[default/a default/b]: each alone may find a place, but 1 of the 2 may find none together on 1 other Node: not enough free cpu (1)",
		},
		"Pods for which only parts of Nodes are free": {
			[]*corev1.Node{two, three}, nil, []corev1.Pod{cpu("a", "1100m"), cpu("b", "1100m"), cpu("c", "1100m")},
			"[default/a default/b default/c]: each alone may find a place, but 1 of the 3 may find none together on 2 other Nodes: not enough free cpu (2)",
		},
		"the same host port": {
			[]*corev1.Node{two}, nil, []corev1.Pod{cpu("a", "1", withPort(80, "")), cpu("b", "1", withPort(80, ""))},
			"[default/a default/b]: each alone may find a place, but 1 of the 2 may find none together on 1 other Node: host port 80 in use (1)",
		},
		"nothing about Pods that find no place alone": {[]*corev1.Node{two}, nil, []corev1.Pod{cpu("a", "3"), cpu("b", "2")}, ""},
		"nothing about small Pods that leave a large one its Node": {
			[]*corev1.Node{two, three}, nil, []corev1.Pod{cpu("a", "500m"), cpu("b", "500m"), cpu("c", "2"), cpu("d", "1")}, "",
		},
		"nothing if large Pods leave small ones the only Node that can run them": {
			[]*corev1.Node{sized("a", inZone("c")), two}, nil, []corev1.Pod{cpu("a", "2"), cpu("b", "1", inC)}, "",
		},
		"nothing if the Pods that the fewest Nodes can run are first": {
			[]*corev1.Node{sized("a", inZone("c")), sized("b", inZone("d"))}, nil,
			[]corev1.Pod{cpu("large", "2", withAffinity(selectingZone("c", "d"))), cpu("small", "1", inC)}, "",
		},
		"nothing about Pods that take the place of those with a lower priority": {
			[]*corev1.Node{two}, []corev1.Pod{cpu("low", "2", on("two"))}, []corev1.Pod{cpu("a", "1", withPriority(1)), cpu("b", "1", withPriority(1))}, "",
		},
		"a Pod whose place one with a higher priority takes": {
			[]*corev1.Node{two}, nil, []corev1.Pod{cpu("a", "500m"), cpu("b", "1900m", withPriority(1))},
			"[default/a default/b]: each alone may find a place, but 1 of the 2 may find none together on 1 other Node: not enough free cpu (1)",
		},
	} {
		t.Run("K63: warns of "+name, func(t *testing.T) {
			cluster := forecast.NewCluster(append(test.nodes, node("one", roomy), node("later", roomy)), sets.New("one", "later"))
			for i := range test.others {
				cluster.Add(&test.others[i])
			}
			var drains []forecast.Forecast
			for _, name := range []string{"one", "later"} {
				o := forecast.Observation{Maintenance: maintenance("m"), Node: node(name), Surroundings: surroundings{}, Now: now, Pods: test.pods}
				drains = append(drains, forecast.Of(o))
			}
			got := ""
			if w := cluster.Shortage(drains); w != nil {
				got = fmt.Sprintf("%v: %s", w.Pods, w.Message)
			}
			NewWithT(t).Expect(got).To(Equal(test.want))
		})
	}
}

// BenchmarkPlacement warns about a full Node in a cluster with 5,000 Nodes and 150,000 Pods. All have anti-affinity and topology spread.
func BenchmarkPlacement(b *testing.B) {
	demanding := func(p *corev1.Pod) {
		app := p.Labels["app"]
		apartFrom(term(app, corev1.LabelHostname))(p)
		spreadBy(corev1.LabelTopologyZone, func(c *corev1.TopologySpreadConstraint) { c.LabelSelector = selectingApp(app) })(p)
		requesting(corev1.ResourceCPU, "100m")(p)
		requesting(corev1.ResourceMemory, "100Mi")(p)
	}
	var nodes []*corev1.Node
	for i := range 5000 {
		nodes = append(nodes, node(fmt.Sprintf("n%d", i), inZone(fmt.Sprint("zone-", i%3)), func(n *corev1.Node) {
			n.Labels[corev1.LabelHostname] = n.Name
			n.Status.Allocatable = corev1.ResourceList{
				corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"),
			}
		}))
	}
	on := func(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }
	var others, drained []corev1.Pod
	for i := range 150_000 {
		others = append(others, pod(fmt.Sprint("app-", i%3000), ofController, on(fmt.Sprintf("n%d", i%5000)), demanding))
	}
	for i := range 110 {
		drained = append(drained, pod(fmt.Sprint("app-", i), ofController, on("n0"), demanding, requesting(corev1.ResourceCPU, "4")))
	}
	for b.Loop() {
		cluster := forecast.NewCluster(nodes, sets.New("n0"))
		for i := range others {
			cluster.Add(&others[i])
		}
		o := forecast.Observation{Maintenance: maintenance("m"), Node: node("n0"), Surroundings: surroundings{}, Now: now, Pods: drained}
		predicted := forecast.Of(o)
		if warnings := predicted.Warnings(cluster); len(warnings) == 0 || len(warnings[0].Pods)*2 < len(drained) {
			b.Fatal("most Pods find no place")
		}
		if cluster.Shortage([]forecast.Forecast{predicted}) != nil {
			b.Fatal("no Pod finds a place alone")
		}
	}
}

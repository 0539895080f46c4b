package forecast_test

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
)

// requesting adds a container to a Pod.
func requesting(name corev1.ResourceName, quantity string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		requests := corev1.ResourceList{name: resource.MustParse(quantity)}
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Resources: corev1.ResourceRequirements{Requests: requests}})
	}
}

func withPort(port int32, ip string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		ports := []corev1.ContainerPort{{ContainerPort: port, HostPort: port, HostIP: ip}}
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Ports: ports})
	}
}

func withPriority(priority int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Priority = &priority }
}

func tainted(key string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: effect}) }
}

func inZone(zone string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels = map[string]string{corev1.LabelTopologyZone: zone} }
}

func selectingZone(values ...string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: values}},
	}}}
}

func withAffinity(selector *corev1.NodeSelector) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: selector}}
	}
}

func claiming(source corev1.VolumeSource) func(*corev1.Pod) { return withVolume("data", source) }

// ofController makes a Pod one of several that are ready, so that the only warnings are about its place.
func ofController(p *corev1.Pod) {
	ofSet(p)
	p.Status.Conditions = nil
}

func TestMayFindNoNode(t *testing.T) {
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}
	ephemeral := corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
	two, three := node("two", roomy, inZone("b")), node("three", roomy, inZone("c"))
	// other is a Pod on a Node.
	other := func(node string, changes ...func(*corev1.Pod)) corev1.Pod {
		return pod("other-"+node, slices.Concat([]func(*corev1.Pod){func(p *corev1.Pod) { p.Spec.NodeName = node }}, changes)...)
	}
	cordoned := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	tolerating := func(t corev1.Toleration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{t} }
	}
	finished := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
	for name, test := range map[string]struct {
		nodes    []*corev1.Node
		draining string
		volume   *corev1.NodeSelector // of the PersistentVolume of claim data
		unread   bool                 // the PersistentVolume
		others   []corev1.Pod
		pod      func(*corev1.Pod)
		want     string
	}{
		"nothing if a Node offers a place":          {nodes: []*corev1.Node{node("bad", cordoned), two}},
		"that there is no other Node":               {want: ": there is no other Node"},
		"that the Nodes of the plan offer no place": {nodes: []*corev1.Node{two}, draining: "two", want: ": there is no other Node"},
		"the volume of another Node": {
			nodes: []*corev1.Node{two, three}, volume: selectingZone("a"), pod: claiming(claim),
			want: " on 2 other Nodes: node affinity of PersistentVolume pv (2)",
		},
		"nothing about a volume with a Node": {
			nodes: []*corev1.Node{two, three}, volume: selectingZone("a", "c"), pod: claiming(claim),
		},
		"nothing about a volume that was not read": {
			nodes: []*corev1.Node{two}, volume: selectingZone("a"), unread: true, pod: claiming(claim),
		},
		"nothing about an ephemeral volume":        {nodes: []*corev1.Node{two}, volume: selectingZone("a"), pod: claiming(ephemeral)},
		"nothing about a selector that is invalid": {nodes: []*corev1.Node{two}, pod: withAffinity(selectingZone())},
		"a nodeSelector": {
			nodes: []*corev1.Node{two}, pod: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} },
			want: " on 1 other Node: nodeSelector or node affinity (1)",
		},
		"a required node affinity": {
			nodes: []*corev1.Node{two, three}, pod: withAffinity(selectingZone("a")),
			want: " on 2 other Nodes: nodeSelector or node affinity (2)",
		},
		"nothing about a node affinity with a Node": {nodes: []*corev1.Node{two, three}, pod: withAffinity(selectingZone("a", "b"))},
		"taints, the most frequent first": {
			nodes: []*corev1.Node{node("x", roomy, tainted("a", "NoSchedule")), node("y", roomy, cordoned), node("z", roomy, cordoned)},
			want:  " on 3 other Nodes: taint node.kubernetes.io/unschedulable:NoSchedule (2), taint a:NoSchedule (1)",
		},
		"nothing about a taint that only discourages": {nodes: []*corev1.Node{node("x", roomy, tainted("a", "PreferNoSchedule"))}},
		"nothing about a taint that is tolerated": {
			nodes: []*corev1.Node{node("x", roomy, tainted("a", "NoExecute"))},
			pod:   tolerating(corev1.Toleration{Key: "a", Operator: corev1.TolerationOpExists}),
		},
		"a host port": {
			nodes: []*corev1.Node{two}, others: []corev1.Pod{other("two", withPort(80, "10.0.0.1"))}, pod: withPort(80, ""),
			want: " on 1 other Node: host port 80 in use (1)",
		},
		"nothing about a host port of another address": {
			nodes: []*corev1.Node{two}, others: []corev1.Pod{other("two", withPort(80, "10.0.0.1"))}, pod: withPort(80, "10.0.0.2"),
		},
		"requests that no Node has": {
			nodes: []*corev1.Node{two}, pod: requesting(corev1.ResourceCPU, "3"), want: " on 1 other Node: not enough free cpu (1)",
		},
		"requests that no Node has free": {
			nodes:  []*corev1.Node{two, three},
			others: []corev1.Pod{other("two", requesting(corev1.ResourceCPU, "1500m")), other("three", requesting(corev1.ResourceCPU, "1001m"))},
			pod:    requesting(corev1.ResourceCPU, "1"), want: " on 2 other Nodes: not enough free cpu (2)",
		},
		"a device that no Node has": {
			nodes: []*corev1.Node{two}, pod: requesting("example.com/gpu", "1"),
			want: " on 1 other Node: not enough free example.com/gpu (1)",
		},
		"nothing about requests that fit exactly": {
			nodes: []*corev1.Node{two}, others: []corev1.Pod{other("two", requesting(corev1.ResourceCPU, "1"))},
			pod: requesting(corev1.ResourceCPU, "1"),
		},
		"the number of Pods": {
			nodes: []*corev1.Node{two}, others: []corev1.Pod{other("two"), other("two")},
			want: " on 1 other Node: not enough free pods (1)",
		},
		"nothing about Pods that have finished": {
			nodes: []*corev1.Node{two}, others: []corev1.Pod{other("two", finished), other("two")},
		},
		"nothing about Pods that it may preempt": {
			nodes: []*corev1.Node{two}, others: []corev1.Pod{other("two"), other("two")}, pod: withPriority(1),
		},
		"requests beside Pods with a higher priority": {
			nodes: []*corev1.Node{two}, others: []corev1.Pod{other("two", withPriority(2)), other("two", withPriority(1))},
			pod:  withPriority(1),
			want: " on 1 other Node: not enough free pods (1)",
		},
		"requests of a Pod that preempts none": {nodes: []*corev1.Node{two}, others: []corev1.Pod{other("two"), other("two")}, pod: func(p *corev1.Pod) {
			p.Spec.Priority, p.Spec.PreemptionPolicy = ptr.To[int32](1), ptr.To(corev1.PreemptNever)
		}, want: " on 1 other Node: not enough free pods (1)"},
		"three causes of many": {
			nodes: []*corev1.Node{
				node("v", tainted("v", "NoSchedule")), node("w", tainted("w", "NoSchedule")), node("x", tainted("x", "NoSchedule")), node("y", tainted("y", "NoSchedule")),
			},
			want: " on 4 other Nodes: taint v:NoSchedule (1), taint w:NoSchedule (1), taint x:NoSchedule (1) and 1 more",
		},
		"nothing about a Pod without a controller": {pod: func(p *corev1.Pod) { p.OwnerReferences = nil }},
	} {
		t.Run("K59: warns "+name, func(t *testing.T) {
			g := NewWithT(t)
			drained := pod("db-0", ofController)
			if test.pod != nil {
				test.pod(&drained)
			}
			cluster := forecast.NewCluster(append(test.nodes, node("one", roomy)), sets.New("one", test.draining))
			for i := range test.others {
				cluster.Add(&test.others[i])
			}
			cluster.Add(&drained)
			o := forecast.Observation{Maintenance: maintenance("m"), Node: node("one"), Surroundings: surroundings{}, Now: now, Pods: []corev1.Pod{drained}}
			for _, key := range forecast.Of(o).Claims() {
				g.Expect(key).To(Equal(types.NamespacedName{Namespace: "default", Name: "data"}))
				if !test.unread {
					volume := &corev1.PersistentVolume{}
					volume.Name, volume.Spec.NodeAffinity = "pv", &corev1.VolumeNodeAffinity{Required: test.volume}
					cluster.Volumes[key] = volume
				}
			}
			got := slices.DeleteFunc(warningsAbout(o, cluster, drained), func(line string) bool { return strings.HasPrefix(line, string(forecast.NotRecreated)) })
			if test.want == "" {
				g.Expect(got).To(BeEmpty())
			} else {
				g.Expect(got).To(Equal([]string{"MayFindNoNode StatefulSet default/db [default/db-0]: may find no place" + test.want}))
			}
		})
	}
}

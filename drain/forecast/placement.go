package forecast

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/go-logr/logr" //nolint:depguard // component-helpers requires a logger; this one discards
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podresource "k8s.io/component-helpers/resource"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
	"github.com/capnm/cluster-api-node-maintenance/drain/volumes"
)

// maxCauses is how many causes a message names for which Nodes offer no place, and maxCause the length of each: tenants choose the names in
// them.
const maxCauses, maxCause = 3, 200

// Claims returns the PersistentVolumeClaims whose volumes restrict where the replacements of evicted Pods can run. An ephemeral volume does
// not: the replacement gets a new one. See volumes.FirstClaims for their number.
func (f Forecast) Claims() []types.NamespacedName {
	var claims [][]types.NamespacedName
	for i := range f.Pods {
		if p := &f.Pods[i]; p.isWarnedAbout() && p.controller() != "" {
			claims = append(claims, claimsOf(p.Pod))
		}
	}
	return volumes.FirstClaims(claims)
}

func claimsOf(pod *corev1.Pod) []types.NamespacedName {
	var claims []types.NamespacedName
	for _, name := range surge.ClaimsOf(corev1.PodTemplateSpec{Spec: pod.Spec}) {
		claims = append(claims, types.NamespacedName{Namespace: pod.Namespace, Name: name})
	}
	return claims
}

// amounts are quantities as the scheduler counts them: of CPUs in thousandths.
type amounts map[corev1.ResourceName]int64

func amountsOf(list corev1.ResourceList) amounts {
	counted := make(amounts, len(list))
	for name, quantity := range list {
		if counted[name] = quantity.Value(); name == corev1.ResourceCPU {
			counted[name] = quantity.MilliValue()
		}
	}
	return counted
}

// place is a Node and what its Pods use, by their priority.
type place struct {
	node        *corev1.Node
	allocatable amounts
	used        map[int32]*usage
}

// usage is what the Pods with one priority use of a Node.
type usage struct {
	requests amounts
	ports    []corev1.ContainerPort
}

func (at *place) add(pod *corev1.Pod) {
	priority := ptr.Deref(pod.Spec.Priority, 0)
	if at.used[priority] == nil {
		at.used[priority] = &usage{requests: amounts{}}
	}
	u := at.used[priority]
	u.ports = append(u.ports, hostPortsOf(pod)...)
	for name, amount := range requestsOf(pod) {
		u.requests[name] += amount
	}
}

// with returns the place with one more Pod.
func (at *place) with(pod *corev1.Pod) *place {
	more := &place{at.node, at.allocatable, make(map[int32]*usage, len(at.used))}
	for priority, u := range at.used {
		more.used[priority] = &usage{maps.Clone(u.requests), slices.Clone(u.ports)}
	}
	more.add(pod)
	return more
}

// requestsOf returns what a Pod requests of a Node.
func requestsOf(pod *corev1.Pod) amounts {
	requests := amountsOf(podresource.PodRequests(pod, podresource.PodResourcesOptions{}))
	requests[corev1.ResourcePods] = 1
	return requests
}

// hostPortsOf returns the ports that a Pod uses of its Node. As for the scheduler, those of init containers that end do not count.
func hostPortsOf(pod *corev1.Pod) []corev1.ContainerPort {
	ends := func(c corev1.Container) bool {
		return ptr.Deref(c.RestartPolicy, "") != corev1.ContainerRestartPolicyAlways
	}
	var ports []corev1.ContainerPort
	for _, container := range slices.Concat(pod.Spec.Containers, slices.DeleteFunc(slices.Clone(pod.Spec.InitContainers), ends)) {
		for _, port := range container.Ports {
			if port.HostPort > 0 {
				ports = append(ports, port)
			}
		}
	}
	return ports
}

// conflict reports whether two Pods with these host ports cannot run on one Node.
func conflict(a, b corev1.ContainerPort) bool {
	wildcard := func(ip string) bool { return ip == "" || ip == "0.0.0.0" || ip == "::" }
	protocol := func(p corev1.ContainerPort) corev1.Protocol { return cmp.Or(p.Protocol, corev1.ProtocolTCP) }
	return a.HostPort == b.HostPort && protocol(a) == protocol(b) && (a.HostIP == b.HostIP || wildcard(a.HostIP) || wildcard(b.HostIP))
}

// mayFindNoNode says why no other Node offers a place for the replacement of a Pod as it is, each Pod considered alone. It is empty if one
// does. It knows the most important filters of the scheduler only, and rather says nothing than something wrong. A Node with a selector
// that cannot be evaluated, or with Pods that the replacement may preempt, offers a place.
func (c *Cluster) mayFindNoNode(p *Pod) string {
	if p.controller() == "" {
		return ""
	}
	return c.alone(p.Pod).refusal
}

// outlook is what a Pod needs, and why it may find no place alone. refusal is empty if it finds one.
type outlook struct {
	needs   needs
	refusal string
}

// alone evaluates a Pod once, until Add changes the cluster.
func (c *Cluster) alone(pod *corev1.Pod) *outlook {
	if c.outlooks[pod] == nil {
		o := &outlook{needs: c.needsOf(pod)}
		o.refusal = c.refusalOf(&o.needs)
		c.outlooks[pod] = o
	}
	return c.outlooks[pod]
}

func (c *Cluster) refusalOf(n *needs) string {
	refused := refusals{}
	for _, at := range c.places {
		cause := n.refusedBy(at)
		if cause == "" {
			return ""
		}
		refused[cause]++
	}
	return "may find no place" + refused.text(len(c.places))
}

// refusals are the causes for which Nodes offer no place, with their number.
type refusals map[string]int

// text names the most frequent causes, as the end of a sentence. nodes is the number of Nodes that were asked.
func (r refusals) text(nodes int) string {
	if nodes == 0 {
		return ": there is no other Node"
	}
	sorted := slices.SortedFunc(maps.Keys(r), func(a, b string) int { return cmp.Or(cmp.Compare(r[b], r[a]), cmp.Compare(a, b)) })
	for i, cause := range sorted {
		sorted[i] = fmt.Sprintf("%s (%d)", text.Cut(cause, maxCause), r[cause])
	}
	return fmt.Sprintf(" on %s: %s", text.Count(nodes, "other Node"), text.List(sorted, maxCauses))
}

// needs is what a Pod needs of a Node.
type needs struct {
	pod      *corev1.Pod
	nodes    nodeaffinity.RequiredNodeAffinity
	volumes  []boundVolume
	requests amounts
	ports    []corev1.ContainerPort
	crowd    string
	neighbors
}

// stays reports whether the replacement cannot preempt Pods with a priority.
func (n *needs) stays(priority *int32) bool {
	return ptr.Deref(priority, 0) >= ptr.Deref(n.pod.Spec.Priority, 0) || ptr.Deref(n.pod.Spec.PreemptionPolicy, "") == corev1.PreemptNever
}

// boundVolume is a PersistentVolume that only some Nodes can use.
type boundVolume struct {
	name     string
	selector *nodeaffinity.LazyErrorNodeSelector
}

func (c *Cluster) needsOf(pod *corev1.Pod) needs {
	n := needs{pod: pod, nodes: nodeaffinity.GetRequiredNodeAffinity(pod), requests: requestsOf(pod), ports: hostPortsOf(pod), crowd: crowdOf(pod)}
	for _, claim := range claimsOf(pod) {
		if v := c.Volumes[claim]; v != nil && v.Spec.NodeAffinity != nil && v.Spec.NodeAffinity.Required != nil {
			n.volumes = append(n.volumes, boundVolume{v.Name, nodeaffinity.NewLazyErrorNodeSelector(v.Spec.NodeAffinity.Required)})
		}
	}
	n.neighbors = c.neighborsOf(&n)
	return n
}

// refusedBy says why a Node offers no place. It is empty if the Node may offer one.
func (n *needs) refusedBy(at *place) string {
	for _, volume := range n.volumes {
		if matches, err := volume.selector.Match(at.node); !matches && err == nil {
			return "node affinity of PersistentVolume " + text.Cut(volume.name, maxName)
		}
	}
	if matches, err := n.nodes.Match(at.node); !matches && err == nil {
		return "nodeSelector or node affinity"
	}
	if taint := n.untolerated(at.node, false); taint != nil {
		return "taint " + taint.ToString()
	}
	if cause := n.neighbors.refusedBy(at.node); cause != "" {
		return cause
	}
	return n.unfit(at)
}

// untolerated returns a taint of a Node that the Pod does not tolerate, nil if there is none. A Node that is cordoned has one, also if its
// controller has not added it yet, and one that drains is cordoned.
func (n *needs) untolerated(node *corev1.Node, drains bool) *corev1.Taint {
	taints := node.Spec.Taints
	if node.Spec.Unschedulable || drains {
		taints = append(slices.Clone(taints), corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	keepsOut := func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }
	if taint, found := scheduling.FindMatchingUntoleratedTaint(logr.Discard(), taints, n.pod.Spec.Tolerations, keepsOut, true); found {
		return &taint
	}
	return nil
}

// unfit says what a Node lacks beside the Pods that the replacement cannot preempt. It is empty if it lacks nothing.
func (n *needs) unfit(at *place) string {
	for _, port := range n.ports {
		for priority, u := range at.used {
			if n.stays(&priority) && slices.ContainsFunc(u.ports, func(other corev1.ContainerPort) bool { return conflict(port, other) }) {
				return fmt.Sprintf("host port %d in use", port.HostPort)
			}
		}
	}
	lacking := ""
	for name, requested := range n.requests {
		free := at.allocatable[name]
		for priority, u := range at.used {
			if n.stays(&priority) {
				free -= u.requests[name]
			}
		}
		if requested > max(free, 0) && (lacking == "" || string(name) < lacking) {
			lacking = string(name)
		}
	}
	if lacking != "" {
		return "not enough free " + lacking
	}
	return ""
}

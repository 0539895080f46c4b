package forecast

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuators"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Cluster is the part of a workload cluster that decides what becomes of evicted Pods and of their applications, at one time.
type Cluster struct {
	// Volumes are the PersistentVolumes of the claims of Forecast.Claims, as far as they were read.
	Volumes map[types.NamespacedName]*corev1.PersistentVolume
	// NamespaceLabels returns the labels of a Namespace, if they were read. It may be nil.
	NamespaceLabels func(namespace string) (labels map[string]string, known bool)

	nodes     map[string]*corev1.Node
	places    map[string]*place // by Node, of those that do not drain
	ready     map[string]int    // Pods, by controller
	crowds    map[string]*crowd
	exclusive []*crowd // those with anti-affinity
	outlooks  map[*corev1.Pod]*outlook
}

// NewCluster returns a cluster without Pods. The Nodes that drain offer no place for Pods.
func NewCluster(nodes []*corev1.Node, draining sets.Set[string]) *Cluster {
	c := &Cluster{
		Volumes: map[types.NamespacedName]*corev1.PersistentVolume{}, nodes: map[string]*corev1.Node{}, places: map[string]*place{},
		ready: map[string]int{}, crowds: map[string]*crowd{}, outlooks: map[*corev1.Pod]*outlook{},
	}
	for _, node := range nodes {
		c.nodes[node.Name] = node
		if !draining.Has(node.Name) {
			c.places[node.Name] = &place{node, amountsOf(node.Status.Allocatable), map[int32]*usage{}}
		}
	}
	return c
}

// Add counts a Pod. One that is terminating or has finished does not count.
func (c *Cluster) Add(pod *corev1.Pod) {
	if rules.Finished(pod) || pod.DeletionTimestamp != nil {
		return
	}
	clear(c.outlooks)
	if p := (&Pod{Pod: pod}); rules.Ready(pod) {
		c.ready[p.controller()]++
	}
	if at := c.places[pod.Spec.NodeName]; at != nil {
		at.add(pod)
	}
	key := crowdOf(pod)
	if c.crowds[key] == nil {
		c.crowds[key] = newCrowd(pod)
		if len(c.crowds[key].exclusive) > 0 {
			c.exclusive = append(c.exclusive, c.crowds[key])
		}
	}
	c.crowds[key].on[pod.Spec.NodeName]++
}

// lastReady says that the Pod is the only ready one of its controller. It is empty if it is not, if its budget refuses the eviction, or if
// an evacuator may replace the Pod before. Pods that run once, for example those of Jobs, replicate nothing.
func (c *Cluster) lastReady(p *Pod) string {
	controller := p.controller()
	mayMove := slices.ContainsFunc(p.Evacuators, func(e v1alpha1.Evacuator) bool { return !evacuators.Of(e.EvacuatorClass).Orders })
	runsOnce := p.Spec.RestartPolicy == corev1.RestartPolicyNever || p.Spec.RestartPolicy == corev1.RestartPolicyOnFailure
	if controller == "" || runsOnce || mayMove || p.Waiting != nil || !rules.Ready(p.Pod) || c.ready[controller] != 1 {
		return ""
	}
	return "the last ready replica: none is ready until its replacement is"
}

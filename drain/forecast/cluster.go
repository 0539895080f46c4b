package forecast

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Cluster is the part of a workload cluster that decides what becomes of evicted Pods and of their applications.
type Cluster struct {
	ready map[string]int // Pods, by controller
}

// NewCluster returns a cluster without Pods.
func NewCluster() *Cluster {
	return &Cluster{ready: map[string]int{}}
}

// Add counts a Pod. One that is terminating or has finished does not count.
func (c *Cluster) Add(pod *corev1.Pod) {
	if rules.Finished(pod) || pod.DeletionTimestamp != nil {
		return
	}
	if p := (&Pod{Pod: pod}); rules.Ready(pod) {
		c.ready[p.controller()]++
	}
}

// lastReady says that the Pod is the only ready one of its controller. It is empty if it is not, if its budget refuses the eviction, or if
// an evacuator may replace the Pod before. Pods of Jobs replicate nothing.
func (c *Cluster) lastReady(p *Pod) string {
	controller := p.controller()
	mayMove := slices.ContainsFunc(p.Evacuators, func(e v1alpha1.Evacuator) bool { return e.EvacuatorClass != v1alpha1.EvacuatorClassStatefulSet })
	kind, _ := p.Controller()
	if kind == "" || kind == "Job.batch" || mayMove || p.Waiting != nil || !rules.Ready(p.Pod) || c.ready[controller] != 1 {
		return ""
	}
	return "the last ready replica: none is ready until its replacement is"
}

package workload

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// progresses are the drains whose Pods this process has evaluated since it has watched them. The status of a NodeMaintenance alone does not
// say that a drain makes no progress: Pods may have terminated in an outage, or while no manager ran.
type progresses struct {
	mu        sync.Mutex
	byRequest map[Request]observedProgress
}

type observedProgress struct {
	machinedrain.Progress

	uid types.UID
}

// ObserveProgress records the progress of the drain of a NodeMaintenance that a reconciliation has found.
func (c *Clusters) ObserveProgress(request Request, m *v1alpha1.NodeMaintenance, present machinedrain.Progress, now time.Time) {
	p := &c.progresses
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byRequest == nil {
		p.byRequest = map[Request]observedProgress{}
	}
	if present.Observed = now; p.byRequest[request].uid == m.UID {
		present.Observed = p.byRequest[request].Observed
	}
	p.byRequest[request] = observedProgress{Progress: present, uid: m.UID}
}

// ForgetProgress ends what ObserveProgress has recorded: the Pods are not evaluated any more.
func (c *Clusters) ForgetProgress(request Request) {
	c.progresses.remove(func(other Request) bool { return other == request })
}

// ProgressOf returns what ObserveProgress has recorded, the zero value if it has recorded nothing.
func (c *Clusters) ProgressOf(request Request, m *v1alpha1.NodeMaintenance) machinedrain.Progress {
	p := &c.progresses
	p.mu.Lock()
	defer p.mu.Unlock()
	if observed := p.byRequest[request]; observed.uid == m.UID {
		return observed.Progress
	}
	return machinedrain.Progress{}
}

func (p *progresses) remove(matches func(Request) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.byRequest, func(request Request, _ observedProgress) bool { return matches(request) })
}

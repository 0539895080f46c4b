package history

import (
	"maps"
	"slices"
	"time"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// maxControllers is the number of controllers of evicted Pods that a drain remembers. It exceeds the limit of the API, so that its list has
// the controllers with the most Pods.
const maxControllers = 512

// evicted are the Pods that have terminated during their evacuation.
type evicted struct {
	pods   map[outcome.Controller]outcome.Evicted
	beyond int32 // Pods of controllers beyond maxControllers
}

// add adds a Pod whose evacuation has ended with its termination. Pods of DaemonSets and static Pods have their places on their Node only.
func (e *evicted) add(pod *evacuating) {
	if pod.Type != v1alpha1.PodTypeDefault {
		return
	}
	of, known := e.pods[pod.controller]
	switch {
	case !known && len(e.pods) >= maxControllers:
		e.beyond++
		return
	case e.pods == nil:
		e.pods = map[outcome.Controller]outcome.Evicted{}
	}
	if !known || pod.since.Before(of.Since) {
		of.Since = pod.since
	}
	of.Controller = pod.controller
	of.Pods++
	e.pods[pod.controller] = of
}

// Evicted returns the Pods that have terminated during their evacuation, by controller. beyond is the number of those whose controllers are
// not known, because there are too many.
func (d *Drain) Evicted() (pods []outcome.Evicted, beyond int32) {
	return slices.Collect(maps.Values(d.evicted.pods)), d.evicted.beyond
}

// place is what recreates a Pod, and the start of its evacuation by the clock of the workload cluster, which creation times of Pods are
// compared with.
type place struct {
	controller outcome.Controller
	since      time.Time
}

// placeOf returns the place of a Pod. Before its Evacuation is observed, since is a time before its replacement is created.
func placeOf(pod Pod) place {
	p := place{controller: outcome.ControllerOf(pod.Object), since: pod.Object.CreationTimestamp.Time}
	switch {
	case pod.Evacuation != nil:
		p.since = pod.Evacuation.CreationTimestamp.Time
	case pod.Object.DeletionTimestamp != nil:
		p.since = rules.DeletionRequested(pod.Object)
	}
	return p
}

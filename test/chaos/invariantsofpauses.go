package chaos

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// pausesRespected checks that the manager changes nothing of a paused Cluster, in neither cluster, and of a paused Machine neither the
// Machine nor the Pods of its Node.
func pausesRespected(h *History) []string {
	var found []string
	for name, cluster := range timelines[*clusterv1.Cluster](&h.Management, clusterKeys) {
		paused := periodsOf(h.Management.Clock, cluster, func(c *clusterv1.Cluster) bool { return ptr.Deref(c.Spec.Paused, false) })
		changes := slices.Concat(h.changes(&h.Workload), h.changes(&h.Management).Where(func(e controlplane.Event) bool {
			return e.Group == clusterv1.GroupVersion.Group
		}))
		found = append(found, h.requestedIn(paused, changes, "Cluster "+name+" had been paused")...)
	}
	removals := h.removals()
	for name, machine := range timelines[*clusterv1.Machine](&h.Management, machineKeys) {
		paused := periodsOf(h.Management.Clock, machine, func(m *clusterv1.Machine) bool {
			return metav1.HasAnnotation(m.ObjectMeta, clusterv1.PausedAnnotation)
		})
		changes := h.changes(&h.Management).Resource("machines", "", "status").Where(func(e controlplane.Event) bool { return e.Namespace+"/"+e.Name == name })
		found = append(found, h.requestedIn(paused, slices.Concat(changes, h.removalsFrom(removals, name)), "Machine "+name+" had been paused")...)
	}
	return found
}

// removalsFrom returns the requests to remove Pods from the Node of a Machine, which has the same name.
func (h *History) removalsFrom(removals []removal, machine string) controlplane.Events {
	var requests controlplane.Events
	for _, r := range removals {
		if r.pod == nil {
			continue
		}
		if node, _ := r.pod.boundSince(); h.Namespace+"/"+node == machine {
			requests = append(requests, r.Event)
		}
	}
	return requests
}

// hooksRespected checks that the manager neither removes Pods from the Node of a deleted Machine while a pre-drain hook of another owner
// holds its drain, nor releases the Machine.
func hooksRespected(h *History) []string {
	var found []string
	removals, releases := h.removals(), h.releases()
	for name, machine := range timelines[*clusterv1.Machine](&h.Management, machineKeys) {
		held := periodsOf(h.Management.Clock, machine, isHeldByHooks)
		requests := h.removalsFrom(removals, name)
		for _, r := range releases {
			if h.Namespace+"/"+r.machine == name {
				requests = append(requests, controlplane.Event{Verb: "release", Resource: "machines", Name: r.machine, Requested: r.requested})
			}
		}
		found = append(found, h.requestedIn(held, requests, "a hook of another owner had held Machine "+name)...)
	}
	return found
}

// isHeldByHooks returns whether hooks of other owners hold the drain of a Machine.
func isHeldByHooks(m *clusterv1.Machine) bool { return len(machinedrain.HoldingHooks(m, nil)) > 0 }

// changes returns the requests of our manager that change objects other than events.
func (h *History) changes(side *Side) controlplane.Events {
	return side.byManager().Writes().Where(func(e controlplane.Event) bool { return e.Resource != "events" && e.Resource != "leases" })
}

// requestedIn returns the requests in periods in which something must not change, from when the manager must have observed that.
func (h *History) requestedIn(still []Period, requests controlplane.Events, what string) []string {
	var found []string
	for _, p := range still {
		for _, request := range requests {
			reaction := appearance
			if h.isHindered(p.From, request.Requested) {
				reaction = lag
			}
			if p.From.Before(h.observedSince(request.Requested, reaction)) && (p.Until.IsZero() || request.Requested.Before(p.Until)) {
				found = append(found, fmt.Sprintf("%s: %s since %s", request, what, p.From.Format("15:04:05.000")))
			}
		}
	}
	return found
}

// periodsOf returns the periods in which something was true of an object.
func periodsOf[T client.Object](clock Clock, versions timeline[T], is func(T) bool) []Period {
	var periods []Period
	since := time.Time{}
	for _, version := range versions {
		from, until := clock.period(version.revision)
		switch now := version.exists && is(version.object); {
		case now && since.IsZero():
			since = until
		case !now && !since.IsZero():
			periods, since = append(periods, Period{since, from}), time.Time{}
		}
	}
	if !since.IsZero() {
		periods = append(periods, Period{From: since})
	}
	return periods
}

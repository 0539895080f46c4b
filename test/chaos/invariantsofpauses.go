package chaos

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
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
		found = append(found, h.requestedIn(paused, changes, "Cluster "+name)...)
	}
	removals := h.removals()
	for name, machine := range timelines[*clusterv1.Machine](&h.Management, machineKeys) {
		paused := periodsOf(h.Management.Clock, machine, func(m *clusterv1.Machine) bool {
			return metav1.HasAnnotation(m.ObjectMeta, clusterv1.PausedAnnotation)
		})
		changes := h.changes(&h.Management).Resource("machines", "", "status").Where(func(e controlplane.Event) bool { return e.Namespace+"/"+e.Name == name })
		for _, r := range removals {
			if r.pod == nil {
				continue
			}
			if node, _ := r.pod.boundSince(); metav1.NamespaceDefault+"/"+node == name {
				changes = append(changes, r.Event)
			}
		}
		found = append(found, h.requestedIn(paused, changes, "Machine "+name)...)
	}
	return found
}

// changes returns the requests of our manager that change objects other than events.
func (h *History) changes(side *Side) controlplane.Events {
	return side.Audit.WithUserAgent(fleet.ManagerAgent).Writes().Where(func(e controlplane.Event) bool { return e.Resource != "events" && e.Resource != "leases" })
}

// requestedIn returns the requests in periods in which something was paused, from when the manager must have observed that.
func (h *History) requestedIn(paused []Period, requests controlplane.Events, what string) []string {
	var found []string
	for _, p := range paused {
		for _, request := range requests {
			reaction := appearance
			if h.isHindered(p.From, request.Requested) {
				reaction = lag
			}
			if request.Requested.After(p.From.Add(reaction)) && (p.Until.IsZero() || request.Requested.Before(p.Until)) {
				found = append(found, fmt.Sprintf("%s: %s had been paused since %s", request, what, p.From.Format("15:04:05.000")))
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

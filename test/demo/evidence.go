package main

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// evidence is the input of the checks. It is plain data, so that tests can construct it.
type evidence struct {
	// Workload and Management are the audit logs of the API servers.
	Workload, Management controlplane.Events
	// Pods are the observed Pods by UID. Those that were never bound have no Node.
	Pods map[types.UID]podFact
	// Drains are the deleted Machines.
	Drains []drainFact
	// WebReplicas is the number of web Pods, WebNeeded the number that must be ready, and WebLeast the observed minimum.
	WebReplicas, WebNeeded, WebLeast int
	// Uncordoned are the Nodes that were observed as schedulable after they had been cordoned.
	Uncordoned []string
}

// podFact describes a Pod.
type podFact struct {
	Namespace, Name, Node, App string
	// Behavior and Order are the verdict of the Node's NodeMaintenance, empty if it had none.
	Behavior v1alpha1.DrainBehavior
	Order    int32
	// Gone is when its deletion was observed, or zero.
	Gone time.Time
}

func (p podFact) String() string { return p.Namespace + "/" + p.Name }

// drainFact describes a deleted Machine.
type drainFact struct {
	Machine, Node string
	Maintenance   string // name of the NodeMaintenance, empty if there was none
	Deleted, Gone time.Time
}

// evidence returns the input of the checks.
func (w *world) evidence() evidence {
	e := evidence{Pods: map[types.UID]podFact{}, WebReplicas: webReplicas, WebNeeded: webNeeded, WebLeast: w.web.least}
	matchers := map[string]*rules.Matcher{}
	for _, machine := range w.machines {
		if machine.DeletionTimestamp == nil {
			continue
		}
		drain := drainFact{Machine: machine.Name, Node: machine.Status.NodeRef.Name, Deleted: machine.deleted, Gone: machine.gone}
		if m := w.maintenanceOf(machine.Name); m != nil {
			drain.Maintenance = m.Name
			matchers[drain.Node] = rules.NewMatcher(m.Spec.DrainRules)
		}
		e.Drains = append(e.Drains, drain)
	}
	slices.SortFunc(e.Drains, func(a, b drainFact) int { return a.Deleted.Compare(b.Deleted) })
	for uid, pod := range w.pods {
		fact := podFact{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName, App: pod.Labels[appLabel], Gone: pod.gone}
		if matcher := matchers[fact.Node]; matcher != nil {
			verdict := decide(matcher, pod.Pod)
			fact.Behavior, fact.Order = verdict.Behavior, verdict.Order
		}
		e.Pods[uid] = fact
	}
	for name, node := range w.nodes {
		if node.uncordoned {
			e.Uncordoned = append(e.Uncordoned, name)
		}
	}
	slices.Sort(e.Uncordoned)
	return e
}

// eviction is one eviction request.
type eviction struct {
	controlplane.Event
	UID  types.UID // precondition of the request, empty if it had none
	Pod  podFact
	Seen bool // the watch has shown this Pod
}

// evictions returns the eviction requests of all users, in the order of their responses.
func (e evidence) evictions() []eviction {
	var all []eviction
	for _, event := range e.Workload.Verb("create").Resource("pods", "eviction") {
		uid := event.UIDPrecondition()
		pod, seen := e.Pods[uid]
		if !seen {
			pod = podFact{Namespace: event.Namespace, Name: event.Name}
		}
		all = append(all, eviction{Event: event, UID: uid, Pod: pod, Seen: seen})
	}
	slices.SortStableFunc(all, func(a, b eviction) int { return a.Answered.Compare(b.Answered) })
	return all
}

// accepted returns the successful evictions.
func (e evidence) accepted() []eviction {
	return slices.DeleteFunc(e.evictions(), func(v eviction) bool { return v.Code < 200 || v.Code >= 300 })
}

// refused counts the evictions that were refused because of a budget.
func (e evidence) refused() int {
	return e.Workload.Verb("create").Resource("pods", "eviction").Failed(429).Len()
}

// kubelet is the user of kwok, which simulates the kubelets.
const kubelet = "kwok"

// left returns, for each deleted Pod, the earliest time of its deletion: the request of its kubelet. Reactions to the deletion are
// later. The preceding eviction identifies the Pod, since the Pods of a StatefulSet share a name. For Pods that were not evicted,
// it is the time in the watch.
func (e evidence) left() map[types.UID]time.Time {
	removals := map[string][]time.Time{}
	for _, event := range e.Workload.By(kubelet).Verb("delete").Resource("pods").Succeeded() {
		key := event.Namespace + "/" + event.Name
		removals[key] = append(removals[key], event.Requested)
	}
	left := map[types.UID]time.Time{}
	for uid, pod := range e.Pods {
		if !pod.Gone.IsZero() {
			left[uid] = pod.Gone
		}
	}
	for _, evicted := range e.accepted() {
		for _, at := range removals[evicted.Pod.String()] {
			if at.After(evicted.Requested) {
				left[evicted.UID] = at
				break
			}
		}
	}
	return left
}

// reports returns when the kubelet reported the status of each Pod: first that it is ready, and last, for a Pod that completes, that
// it has completed.
func (e evidence) reports() map[string][]time.Time {
	reports := map[string][]time.Time{}
	for _, event := range e.Workload.By(kubelet).Verb("patch", "update").Resource("pods", "status").Succeeded() {
		key := event.Namespace + "/" + event.Name
		reports[key] = append(reports[key], event.Requested)
	}
	return reports
}

// over returns until when each Pod has blocked the drain: a drained Pod until it is deleted, and a Pod with WaitCompleted until it has
// finished.
func (e evidence) over() map[types.UID]time.Time {
	over, reports := e.left(), e.reports()
	for uid, pod := range e.Pods {
		if pod.Behavior != v1alpha1.DrainBehaviorWaitCompleted {
			continue
		}
		delete(over, uid)
		if reported := reports[pod.String()]; len(reported) > 1 {
			over[uid] = reported[len(reported)-1]
		}
	}
	return over
}

// releases returns, by Machine, the requests that removed our hook.
func (e evidence) releases() map[string]controlplane.Events {
	releases := map[string]controlplane.Events{}
	for _, event := range e.Management.By(fleet.ManagerUser).Resource("machines.cluster.x-k8s.io").Succeeded().Where(fleet.ReleasesHook) {
		releases[event.Name] = append(releases[event.Name], event)
	}
	return releases
}

// onNode returns all Pods that were on a Node, sorted.
func (e evidence) onNode(node string) []types.UID {
	var uids []types.UID
	for uid, pod := range e.Pods {
		if pod.Node == node {
			uids = append(uids, uid)
		}
	}
	slices.SortFunc(uids, func(a, b types.UID) int { return cmp.Compare(e.Pods[a].String(), e.Pods[b].String()) })
	return uids
}

package main

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// evidence is all that the checks judge by. It is plain data, so that tests can make it up.
type evidence struct {
	// Workload and Management are what the API servers recorded.
	Workload, Management controlplane.Events
	// Pods that the watch has seen, by UID; those that were never bound to a Node have no Node.
	Pods map[types.UID]podFact
	// Drains are the Machines that were deleted.
	Drains []drainFact
	// WebReplicas, WebNeeded and WebLeast are how many web Pods there are, have to be ready, and were ready at the worst time.
	WebReplicas, WebNeeded, WebLeast int
	// Uncordoned are the Nodes that the watch has seen schedulable again after they had been cordoned.
	Uncordoned []string
}

// podFact is what is known of a Pod.
type podFact struct {
	Namespace, Name, Node, App string
	// Behavior and Order by the rules of the Node's NodeMaintenance; empty if it had none.
	Behavior v1alpha1.DrainBehavior
	Order    int32
	// Gone is when the watch has seen it gone; zero if it hasn't.
	Gone time.Time
}

func (p podFact) String() string { return p.Namespace + "/" + p.Name }

// drainFact is a Machine that was deleted.
type drainFact struct {
	Machine, Node string
	Maintenance   string // name of the NodeMaintenance; empty if there was none
	Deleted, Gone time.Time
}

// evidenceOf takes down what the world has come to.
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
	UID  types.UID // it required the Pod to have; empty if it didn't
	Pod  podFact
	Seen bool // the watch knows this Pod
}

// evictions returns all eviction requests of whomever, in the order of their answers.
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

// accepted returns the evictions that were granted.
func (e evidence) accepted() []eviction {
	return slices.DeleteFunc(e.evictions(), func(v eviction) bool { return v.Code < 200 || v.Code >= 300 })
}

// refused counts the evictions that weren't, since a budget had no room.
func (e evidence) refused() int {
	return e.Workload.Verb("create").Resource("pods", "eviction").Failed(429).Len()
}

// kubelet is whom kwok acts as, which plays the kubelets.
const kubelet = "kwok"

// left returns, for each Pod that left a Node, the earliest moment in which it may have been gone: when its kubelet asked the
// API server to remove it. Whoever acts upon its absence does so later. Pods are told apart by the eviction that went
// before, since the Pods of a StatefulSet share a name; of those that weren't evicted only the watch knows when they left.
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

// reports returns when the kubelet reported the status of each Pod: first that it is ready, and of a Pod that finishes by
// itself last that it has.
func (e evidence) reports() map[string][]time.Time {
	reports := map[string][]time.Time{}
	for _, event := range e.Workload.By(kubelet).Verb("patch", "update").Resource("pods", "status").Succeeded() {
		key := event.Namespace + "/" + event.Name
		reports[key] = append(reports[key], event.Requested)
	}
	return reports
}

// over returns when each Pod has ceased to hold a drain back: a Pod that drains when it is gone, one that is waited for
// when it has finished.
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

// releases returns, by Machine, the requests that took our hook off a Machine.
func (e evidence) releases() map[string]controlplane.Events {
	releases := map[string]controlplane.Events{}
	patches := e.Management.By(fleet.ManagerUser).Verb("patch", "update").Resource("machines.cluster.x-k8s.io").Succeeded()
	for _, event := range patches {
		var patch struct {
			Metadata struct {
				Annotations map[string]*string `json:"annotations"`
			} `json:"metadata"`
		}
		if json.Unmarshal(event.RequestObject, &patch) != nil {
			continue
		}
		value, named := patch.Metadata.Annotations[v1alpha1.PreDrainHookAnnotation]
		if removed := named && value == nil || event.Verb == "update" && !named; removed {
			releases[event.Name] = append(releases[event.Name], event)
		}
	}
	return releases
}

// onNode returns the Pods that have been on a Node, sorted.
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

package main

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// frame is a snapshot of a drain.
type frame struct {
	Elapsed       time.Duration
	Machine, Node string
	Condition     string // the Machine's, as "status reason: message"
	Maintenance   maintenanceView
	WebReady      int
	Pods          []podRow
}

// maintenanceView is the displayed state of a NodeMaintenance. The zero value means that it does not exist yet.
type maintenanceView struct {
	Name, Stage, Drained, Message, Blocking string
	Pending, Evacuating, Skipped            int32
}

// podState is the progress of a Pod.
type podState string

const (
	stateUnknown     podState = "?" // before there are rules
	stateWaiting     podState = "waiting"
	stateEvacuating  podState = "evacuating"
	stateTerminating podState = "terminating"
	stateGone        podState = "deleted"
	stateStays       podState = "skipped"
	stateCompleting  podState = "completing"
	stateCompleted   podState = "completed"
)

// podRow is the displayed state of a Pod.
type podRow struct {
	// Pod is the name without namespace: the demo's namespaces have the names of their applications.
	Pod                  string
	Verdict, Rule, Order string
	State                podState
	Why                  string

	uid  types.UID
	rank int64
}

// frameOf returns a snapshot of the drain of a Machine.
func (w *world) frameOf(machine, node string, elapsed time.Duration) frame {
	f := frame{Elapsed: elapsed, Machine: machine, Node: node, WebReady: w.web.ready, Condition: w.conditionOf(machine)}
	m := w.maintenanceOf(machine)
	var matcher *rules.Matcher
	if m != nil {
		f.Maintenance = viewOf(m)
		matcher = rules.NewMatcher(m.Spec.DrainRules)
	}
	pods := w.podsOn(node)
	if matcher == nil {
		for _, pod := range pods {
			f.Pods = append(f.Pods, podRow{Pod: pod.Name, State: stateUnknown, uid: pod.UID})
		}
	} else {
		lowest := lowestOrder(matcher, pods)
		for _, pod := range pods {
			f.Pods = append(f.Pods, w.rowOf(pod, decide(matcher, pod.Pod), lowest))
		}
	}
	slices.SortFunc(f.Pods, func(a, b podRow) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.uid, b.uid))
	})
	return f
}

func (w *world) conditionOf(machine string) string {
	seen := w.machines[machine]
	switch {
	case seen == nil:
		return ""
	case !seen.gone.IsZero():
		return "the Machine is deleted"
	}
	condition := meta.FindStatusCondition(seen.Status.Conditions, v1alpha1.MachineNodeMaintenance)
	if condition == nil {
		return ""
	}
	first, _, _ := strings.Cut(condition.Message, "\n")
	return fmt.Sprintf("%s %s: %s", condition.Status, condition.Reason, shownAbove.ReplaceAllString(first, ""))
}

// shownAbove is the part of a drain's message that the frame shows elsewhere.
var shownAbove = regexp.MustCompile(` \((started at|NodeMaintenance) [^)]*\)`)

func viewOf(m *v1alpha1.NodeMaintenance) maintenanceView {
	view := maintenanceView{
		Name: m.Name, Stage: string(m.Spec.Stage), Drained: "Unknown", Blocking: m.Status.Summary.Blocking,
		Pending: m.Status.Summary.PodsPending, Evacuating: m.Status.Summary.PodsEvacuating, Skipped: m.Status.Summary.PodsSkipped,
	}
	if drained := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.NodeMaintenanceDrained); drained != nil {
		view.Drained = string(drained.Status)
	}
	for _, node := range m.Status.NodeStatuses {
		view.Message = node.DrainMessage
	}
	return view
}

// lowestOrder returns the lowest drain order of the remaining Pods.
func lowestOrder(matcher *rules.Matcher, pods []*observedPod) int32 {
	lowest := int32(math.MaxInt32)
	for _, pod := range pods {
		if !pod.gone.IsZero() || rules.Finished(pod.Pod) {
			continue
		}
		if verdict := decide(matcher, pod.Pod); verdict.Behavior != v1alpha1.DrainBehaviorSkip {
			lowest = min(lowest, verdict.Order)
		}
	}
	return lowest
}

func (w *world) rowOf(pod *observedPod, verdict rules.Verdict, lowest int32) podRow {
	row := podRow{Pod: pod.Name, Verdict: string(verdict.Behavior), Rule: cmp.Or(verdict.Rule, "(none)"), uid: pod.UID}
	row.State, row.Why = w.stateOf(pod, verdict, lowest)
	switch verdict.Behavior {
	case v1alpha1.DrainBehaviorDrain:
		row.Order = fmt.Sprint(verdict.Order)
		row.rank = 2 * int64(verdict.Order)
	case v1alpha1.DrainBehaviorWaitCompleted:
		row.Order = "0"
		row.rank = 1
	default:
		row.rank = math.MaxInt64
	}
	return row
}

// stateOf returns the progress of a Pod, and what it waits for.
func (w *world) stateOf(pod *observedPod, verdict rules.Verdict, lowest int32) (podState, string) {
	evacuation := w.evacuations[pod.UID]
	switch {
	case verdict.Undecided != "":
		return stateWaiting, verdict.Undecided
	case verdict.Behavior == v1alpha1.DrainBehaviorSkip:
		return stateStays, ""
	case verdict.Behavior == v1alpha1.DrainBehaviorWaitCompleted && rules.Finished(pod.Pod):
		return stateCompleted, ""
	case !pod.gone.IsZero():
		return stateGone, ""
	case verdict.Behavior == v1alpha1.DrainBehaviorWaitCompleted:
		return stateCompleting, "waiting for the Pod to complete"
	case pod.DeletionTimestamp != nil:
		return stateTerminating, ""
	case evacuation != nil:
		return stateEvacuating, evacuation.Status.Message
	case verdict.Order > lowest:
		return stateWaiting, fmt.Sprintf("Pods with drain order %d must terminate first", lowest)
	default:
		return stateWaiting, ""
	}
}

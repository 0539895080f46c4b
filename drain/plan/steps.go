package plan

import (
	"cmp"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// rank is the position of a Pod type in the order in which types drain.
type rank int8

const (
	rankDefault rank = iota
	rankDaemonSet
	rankStatic
	ranks // the number of ranks, and the rank of unknown types, which select nothing
)

func rankOf(podType v1alpha1.PodType) rank {
	switch podType {
	case v1alpha1.PodTypeDefault, "":
		return rankDefault
	case v1alpha1.PodTypeDaemonSet:
		return rankDaemonSet
	case v1alpha1.PodTypeStatic:
		return rankStatic
	default:
		return ranks
	}
}

// step is the position of a Pod in a plan. The Pods of a step are evacuated after all Pods of lower steps have terminated.
type step struct {
	rank  rank
	order int32
	entry int // index into the entries of the rank
}

func (s step) compare(t step) int {
	return cmp.Or(cmp.Compare(s.rank, t.rank), cmp.Compare(s.order, t.order), cmp.Compare(s.entry, t.entry))
}

// entry is a plan entry with a parsed selector.
type entry struct {
	priority int32
	selector *selector
}

// plan contains the entries of a completed drain plan by rank, in the order of the plan.
type plan [ranks][]entry

func newPlan(m *Maintenance, known selectors) plan {
	var p plan
	for _, e := range Complete(m.Plan, m.PlanDefaults) {
		if r := rankOf(e.PodType); r < ranks {
			p[r] = append(p[r], entry{priority: e.PodPriority, selector: known.parse(e.PodSelector.Core())})
		}
	}
	return p
}

// stepOf returns the step of a Pod with this drain order. There always is one: a completed plan has an entry for each type that selects all
// its Pods.
func (p plan) stepOf(pod *Pod, order int32) step {
	r := podRank(pod)
	for i, e := range p[r] {
		if pod.Priority <= e.priority && e.selector.matches(pod.Labels) {
			return step{rank: r, order: order, entry: i}
		}
	}
	return step{rank: r, order: order, entry: len(p[r]) - 1}
}

// podRank returns the rank of the Pod's type. A Pod of an unknown type counts as Default.
func podRank(pod *Pod) rank {
	if r := rankOf(pod.Type); r < ranks {
		return r
	}
	return rankDefault
}

// stance is what a maintenance requires of a Pod.
type stance int8

const (
	stays     stance = iota // the Pod is skipped
	drains                  // the Pod must be evacuated
	completes               // the Pod must not be evacuated, and the drain waits until it completes
	undecided               // the rules cannot be evaluated: the Pod must not be evacuated, and the drain waits for a decision
)

// vetoes reports whether the Pod must not be targeted, regardless of other maintenances.
func (s stance) vetoes() bool { return s == completes || s == undecided }

// opinion is the stance of a maintenance and, unless the Pod stays, the step of the Pod.
type opinion struct {
	stance stance
	step   step
}

// Stays reports whether a maintenance skips the Pod: its rules do, or the Pod terminates with the kubelet and cannot be evacuated, or its
// DaemonSet would replace it immediately.
func (p *Pod) Stays(maintenance string) bool {
	rank, verdict := podRank(p), p.Verdicts[maintenance]
	isSkipped := !verdict.Undecided && verdict.Behavior == v1alpha1.DrainBehaviorSkip
	return isSkipped || rank == rankStatic && !p.HasEvacuator || rank == rankDaemonSet && p.IsRecreated
}

func (m *maintenance) opinionOf(pod *Pod) opinion {
	verdict := pod.Verdicts[m.Name]
	switch {
	case pod.Stays(m.Name):
		return opinion{stance: stays}
	case verdict.Undecided && verdict.Unread && pod.Evacuating: // decided before; the caches are filled again after a restart
		return opinion{stance: drains, step: m.plan.stepOf(pod, 0)}
	case verdict.Undecided:
		return opinion{stance: undecided, step: m.plan.stepOf(pod, 0)}
	case verdict.Behavior == v1alpha1.DrainBehaviorDrain:
		return opinion{stance: drains, step: m.plan.stepOf(pod, verdict.Order)}
	case verdict.Behavior == v1alpha1.DrainBehaviorWaitCompleted:
		return opinion{stance: completes, step: m.plan.stepOf(pod, 0)}
	default: // there is no verdict, or one of a later version
		return opinion{stance: undecided, step: m.plan.stepOf(pod, 0)}
	}
}

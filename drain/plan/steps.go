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
	ranks // how many there are; types that aren't known are here, and select nothing
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

// step is where a Pod stands in a plan. A step goes after all lower ones are gone.
type step struct {
	rank  rank
	order int32
	entry int // index into the entries of the rank
}

func (s step) compare(t step) int {
	return cmp.Or(cmp.Compare(s.rank, t.rank), cmp.Compare(s.order, t.order), cmp.Compare(s.entry, t.entry))
}

// entry is a plan entry whose selector is parsed.
type entry struct {
	priority int32
	selector *selector
}

// plan has the entries of a completed drain plan by rank, each list in the order of the plan.
type plan [ranks][]entry

func newPlan(m *Maintenance, known selectors) plan {
	var p plan
	for _, e := range Complete(m.Plan, m.PlanDefaults) {
		if r := rankOf(e.PodType); r < ranks {
			p[r] = append(p[r], entry{priority: e.PodPriority, selector: known.parse(e.PodSelector)})
		}
	}
	return p
}

// stepOf returns where a Pod of this order stands. There always is such a step: a completed plan has an entry for each type
// that selects all its Pods.
func (p plan) stepOf(pod *Pod, order int32) step {
	r := podRank(pod)
	for i, e := range p[r] {
		if pod.Priority <= e.priority && e.selector.matches(pod.Labels) {
			return step{rank: r, order: order, entry: i}
		}
	}
	return step{rank: r, order: order, entry: len(p[r]) - 1}
}

// podRank is the rank of the Pod's type. A Pod whose type isn't known is like most: Default.
func podRank(pod *Pod) rank {
	if r := rankOf(pod.Type); r < ranks {
		return r
	}
	return rankDefault
}

// stance is what a maintenance makes of a Pod.
type stance int8

const (
	stays     stance = iota // it is skipped: the maintenance has no opinion
	drains                  // it must go
	completes               // it is left alone until it has finished by itself
	undecided               // nobody knows: it is left alone, and waited for
)

// vetoes says whether the Pod must not be targeted, whatever others want.
func (s stance) vetoes() bool { return s == completes || s == undecided }

// opinion is the stance of a maintenance and, unless the Pod stays, the step where the Pod stands.
type opinion struct {
	stance stance
	step   step
}

func (m *maintenance) opinionOf(pod *Pod) opinion {
	if podRank(pod) == rankStatic && !pod.HasEvacuator {
		return opinion{stance: stays} // it stops with the kubelet: nobody could evacuate it
	}
	if podRank(pod) == rankDaemonSet && pod.ComesBack {
		return opinion{stance: stays} // to wait for it is to wait for ever
	}
	verdict := pod.Verdicts[m.Name]
	switch {
	case verdict.Undecided:
		return opinion{stance: undecided, step: m.plan.stepOf(pod, 0)}
	case verdict.Behavior == v1alpha1.DrainBehaviorDrain:
		return opinion{stance: drains, step: m.plan.stepOf(pod, verdict.Order)}
	case verdict.Behavior == v1alpha1.DrainBehaviorWaitCompleted:
		return opinion{stance: completes, step: m.plan.stepOf(pod, 0)}
	case verdict.Behavior == v1alpha1.DrainBehaviorSkip:
		return opinion{stance: stays}
	default: // there is no verdict, or one of a version to come
		return opinion{stance: undecided, step: m.plan.stepOf(pod, 0)}
	}
}

package budgets

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Pod contains the properties of a Pod that the eviction subresource depends on, and its Node.
type Pod struct {
	UID                   types.UID
	Namespace, Name, Node string
	Labels                map[string]string
	Ready                 bool // the condition Ready is True
	Phase                 corev1.PodPhase
	Terminating           bool // it has a deletionTimestamp
	Controlled            bool // it has a controller
	Created               time.Time
}

// PodOf returns the properties of a Pod that budgets depend on.
func PodOf(pod *corev1.Pod) Pod {
	return Pod{
		UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName,
		Labels: pod.Labels, Ready: rules.Ready(pod), Phase: pod.Status.Phase, Terminating: pod.DeletionTimestamp != nil,
		Controlled: metav1.GetControllerOfNoCopy(pod) != nil, Created: pod.CreationTimestamp.Time,
	}
}

// needsNoBudget corresponds to canIgnorePDB of the API server.
func (p Pod) needsNoBudget() bool {
	switch p.Phase {
	case corev1.PodSucceeded, corev1.PodFailed, corev1.PodPending:
		return true
	default:
		return p.Terminating
	}
}

// Candidate is a Pod that is to be evicted as soon as possible.
type Candidate struct {
	Pod Pod

	// DeleteUnready means that the Pod is to be deleted if it is not ready and its budget can never allow a disruption (E21).
	DeleteUnready bool

	// DrainStart is when the drain of the Pod's Node started: see OldestFirst.
	DrainStart time.Time

	// Expected means that the Pod is not to be evicted yet, but probably will be in a moment. It is neither admitted nor waiting, and the
	// disruption that it will need is not available to the candidates after it.
	Expected bool

	// InFlight means that the eviction of the Pod has no response yet. The Pod is not admitted again, and the disruption that it may need is
	// not available to others. Pod contains the properties at admission: the watch may deliver that the Pod terminates before it delivers the
	// new status of its budget.
	InFlight bool
}

// Admitted is a candidate that may be evicted now.
type Admitted struct {
	Candidate

	// Budget is the budget that selects the Pod, nil if the Pod needs no budget.
	Budget *Budget

	// Delete means that the Pod is to be deleted instead of evicted: see Candidate.DeleteUnready.
	Delete bool

	// Granted means that the Pod is to be deleted instead of evicted: see Index.Granted.
	Granted bool
}

// Waiting is a candidate whose eviction the API server would refuse.
type Waiting struct {
	Candidate

	Reason Reason

	// Message says what the Pod waits for. It does not contain the current number of healthy Pods, so that a status that contains it is not
	// written again at every event.
	Message string

	// Budget is the "namespace/name" of the budget, the first one by name if there are several.
	Budget string

	// NeverAllowsDisruption means that the budget does not allow a disruption before a user changes it or adds Pods.
	NeverAllowsDisruption bool

	// Stale means that the Pod only waits until the watch delivers a status of its budget that includes our own evictions.
	Stale bool

	// Reserved means that the budget allows disruptions, but other candidates use them: their evictions have no response yet, and may be
	// refused.
	Reserved bool
}

// Index finds the budgets of a Pod. It is immutable.
type Index struct {
	byNamespace map[string][]*Budget // each sorted by name
	stale       map[*Budget]bool
}

// NewIndex parses the budgets. See IndexOf.
func NewIndex(pdbs []*policyv1.PodDisruptionBudget, stale func(*policyv1.PodDisruptionBudget) bool) *Index {
	parsed := make([]*Budget, 0, len(pdbs))
	for _, pdb := range pdbs {
		if pdb != nil {
			parsed = append(parsed, New(pdb))
		}
	}
	return IndexOf(parsed, stale)
}

// IndexOf returns the index of budgets. The function stale, which may be nil, reports whether the observed status of a budget may not
// include our own evictions yet. Such a budget allows no disruption until its next event.
func IndexOf(all []*Budget, stale func(*policyv1.PodDisruptionBudget) bool) *Index {
	index := &Index{byNamespace: map[string][]*Budget{}, stale: map[*Budget]bool{}}
	for _, b := range all {
		index.byNamespace[b.Namespace()] = append(index.byNamespace[b.Namespace()], b)
		index.stale[b] = stale != nil && stale(b.pdb)
	}
	for _, list := range index.byNamespace {
		slices.SortStableFunc(list, func(a, b *Budget) int { return strings.Compare(a.Name(), b.Name()) })
	}
	return index
}

// Admit decides which candidates may be evicted now, in their order: see OldestFirst. It admits no more Pods of a budget than the budget
// allows disruptions, in-flight evictions included. A Pod that is listed twice counts once.
//
// It takes time proportional to the candidates times the budgets of their namespaces.
func (i *Index) Admit(candidates []Candidate) (admitted []Admitted, waiting []Waiting) {
	return i.AdmitWithin(candidates, func(Pod) int { return math.MaxInt })
}

// AdmitWithin is Admit with a limit for each Node: free returns how many more evictions of the Namespace of a Pod may be in flight on its
// Node. The Pods that exceed it are neither admitted nor waiting, and use no disruption: a Node whose evictions hang leaves the disruptions
// to others.
func (i *Index) AdmitWithin(candidates []Candidate, free func(Pod) int) (admitted []Admitted, waiting []Waiting) {
	used := map[*Budget]int{} // disruptions
	seen := map[identity]bool{}
	for _, c := range unseen(candidates, seen, func(c Candidate) bool { return c.InFlight }) {
		if decision := i.decide(c.Pod, used); decision.needsDisruption {
			used[decision.budget]++
		}
	}
	type place struct{ node, namespace string }
	limits, evicting := map[place]int{}, map[string]int{} // evicting counts by Node
	isFull := func(pod Pod) bool {
		at := place{pod.Node, pod.Namespace}
		if _, known := limits[at]; !known {
			limits[at] = free(pod)
		}
		return evicting[pod.Node] >= limits[at]
	}
	for _, c := range unseen(candidates, seen, func(Candidate) bool { return true }) {
		decision := i.decide(c.Pod, used)
		deletes := decision.deletes(c)
		switch {
		case decision.wait != nil && !deletes:
			if !c.Expected {
				decision.wait.Candidate = c
				waiting = append(waiting, *decision.wait)
			}
			continue
		case isFull(c.Pod), c.Expected && !decision.needsDisruption:
			continue
		case decision.needsDisruption:
			used[decision.budget]++
		}
		evicting[c.Pod.Node]++
		switch {
		case c.Expected:
		case deletes:
			admitted = append(admitted, Admitted{Candidate: c, Delete: true})
		default:
			admitted = append(admitted, Admitted{Candidate: c, Budget: decision.budget})
		}
	}
	return admitted, waiting
}

// unseen returns the candidates to which include applies and whose Pods were not seen yet, and adds these Pods to seen.
func unseen(candidates []Candidate, seen map[identity]bool, include func(Candidate) bool) []Candidate {
	var first []Candidate
	for _, c := range candidates {
		if id := c.Pod.identity(); include(c) && !seen[id] {
			seen[id] = true
			first = append(first, c)
		}
	}
	return first
}

// identity identifies a Pod. A recreated Pod has the same name and another UID.
type identity struct {
	uid             types.UID
	namespace, name string
}

func (p Pod) identity() identity { return identity{p.UID, p.Namespace, p.Name} }

// decision is the decision about one Pod: it may be evicted unless wait is set.
type decision struct {
	budget          *Budget
	needsDisruption bool
	wait            *Waiting
}

// deletes reports whether the candidate is deleted although its budget does not allow a disruption, because it is not ready and would wait
// forever.
func (d decision) deletes(c Candidate) bool {
	return d.wait != nil && c.DeleteUnready && !c.Pod.Ready && d.isFutile()
}

// isFutile reports whether a Pod that is not ready would wait forever: the status of its budget is up to date, and the budget can never
// allow a disruption.
func (d decision) isFutile() bool {
	return d.wait.Reason == BlockedByUnhealthyPods && d.budget.NeverAllowsDisruption()
}

// decide follows the rules of the package documentation in their order. used contains the disruptions that other Pods use.
func (i *Index) decide(pod Pod, used map[*Budget]int) decision {
	if pod.needsNoBudget() {
		return decision{}
	}
	selecting := i.Covering(pod)
	if len(selecting) == 0 {
		return decision{}
	}
	if wait := waitForSelectors(selecting); wait != nil {
		return decision{wait: wait}
	}
	budget := selecting[0]
	switch {
	case !pod.Ready && budget.AlwaysAllowsUnready():
		return decision{budget: budget}
	case i.stale[budget]:
		return decision{budget: budget, wait: budget.waitStale()}
	case !pod.Ready && budget.healthy():
		return decision{budget: budget}
	case budget.allowed() > used[budget]:
		return decision{budget: budget, needsDisruption: true}
	default:
		return decision{budget: budget, wait: budget.waitForDisruption(pod)}
	}
}

// Covering returns the budgets that select a Pod, and those of its namespace that have an invalid selector, by name.
func (i *Index) Covering(pod Pod) []*Budget {
	var selecting []*Budget
	for _, b := range i.byNamespace[pod.Namespace] {
		if b.mayCover(pod) {
			selecting = append(selecting, b)
		}
	}
	return selecting
}

// OldestFirst returns the candidates in the order in which they get disruptions: those of the Node whose drain started first, then those of
// the next one, and so on; drains that started together by the name of the Node. The Pods of one Node keep their order. The order is the
// same for all budgets and after a restart. If each budget had another one, two Nodes could each use a disruption that the other one needs
// to finish (E56).
func OldestFirst(candidates []Candidate) []Candidate {
	return slices.SortedStableFunc(slices.Values(candidates), func(a, b Candidate) int {
		return cmp.Or(a.DrainStart.Compare(b.DrainStart), strings.Compare(a.Pod.Node, b.Pod.Node))
	})
}

const (
	// expectFor is how long more Evacuations are expected on a Node after the start of its drain, or after the last Evacuation there was
	// created. They are created together, and observed one after the other.
	expectFor = 3 * time.Second
	// expectAtMost limits that, since users can create Evacuations, too.
	expectAtMost = 30 * time.Second
)

// ExpectsMore reports whether more Evacuations are expected on a Node, and until when. requested is when the last one was created, or zero
// if the Node has no Evacuation: a time of the workload cluster, whose clock may be ahead.
func ExpectsMore(start, requested, now time.Time) (until time.Time, expects bool) {
	until = earliest(latest(start, requested).Add(expectFor), start.Add(expectAtMost))
	return until, now.Before(until) && start.Sub(now) < expectFor
}

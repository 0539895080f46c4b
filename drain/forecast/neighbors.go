package forecast

import (
	"encoding/json"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// crowd is Pods that affinity to Pods and topology spread do not distinguish. A cluster has far fewer crowds than Pods.
type crowd struct {
	pod       *corev1.Pod              // with their Namespace, labels, priority and controller only
	exclusive []framework.AffinityTerm // of their required anti-affinity
	on        map[string]int           // Pods, by Node
}

// crowdOf returns the key of the crowd of a Pod.
func crowdOf(pod *corev1.Pod) string {
	key := []any{pod.Namespace, (&Pod{Pod: pod}).controller(), pod.Labels, pod.Spec.Priority, framework.GetPodAntiAffinityTerms(pod.Spec.Affinity)}
	encoded, _ := json.Marshal(key) // as every object of the API
	return string(encoded)
}

func newCrowd(pod *corev1.Pod) *crowd {
	c := &crowd{on: map[string]int{}, pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels, OwnerReferences: pod.OwnerReferences,
	}}}
	c.pod.Spec.Priority = pod.Spec.Priority
	c.exclusive, _ = framework.GetAffinityTerms(pod, framework.GetPodAntiAffinityTerms(pod.Spec.Affinity)) // an invalid selector excludes nothing
	return c
}

// domain is a part of the cluster: the Nodes with a value of a label.
type domain struct{ key, value string }

// neighbors is what the other Pods of the cluster mean for the place of a Pod.
type neighbors struct {
	apart    map[domain]string // causes that keep the Pod out, by domain
	affinity *affinity         // nil if the Pod has none, or if it cannot be evaluated
	spreads  []spread
}

// affinity are the domains where other Pods fulfill the terms of the Pod.
type affinity struct {
	keys      []string // of the terms
	fulfilled map[domain]bool
	first     bool // no other Pod fulfills the terms, and the Pod itself does: any domain is its place
}

// spread is a constraint of the topology spread of a Pod.
type spread struct {
	corev1.TopologySpreadConstraint

	self     int            // 1 if the constraint selects the Pod itself
	staying  map[string]int // Pods that the Pod cannot preempt, by the value of the domain
	smallest int            // number of Pods in a domain
}

// neighborsOf returns what the other Pods of the cluster mean for a Pod. They count on all Nodes: those on a Node that drains may be
// evicted later, or not at all. The Pod itself does not count.
func (c *Cluster) neighborsOf(n *needs) neighbors {
	own, _ := framework.GetAffinityTerms(n.pod, framework.GetPodAntiAffinityTerms(n.pod.Spec.Affinity))
	around := neighbors{apart: map[domain]string{}, affinity: c.affinityOf(n), spreads: c.spreadsOf(n)}
	exclude := func(crowd *crowd, key, cause string) {
		for name := range crowd.on {
			if d, found := c.domainOf(name, key); found && c.count(crowd, name, n) > 0 && (around.apart[d] == "" || cause < around.apart[d]) {
				around.apart[d] = cause
			}
		}
	}
	for _, other := range c.exclusive {
		for i := range other.exclusive {
			if term := &other.exclusive[i]; n.stays(other.pod.Spec.Priority) && c.matches(term, n.pod) == matched {
				exclude(other, term.TopologyKey, "anti-affinity of "+nameOf(other.pod)+" by "+text.Cut(term.TopologyKey, maxName))
			}
		}
	}
	if len(own) == 0 {
		return around
	}
	for _, other := range c.crowds {
		for i := range own {
			if n.stays(other.pod.Spec.Priority) && c.matches(&own[i], other.pod) == matched {
				exclude(other, own[i].TopologyKey, "anti-affinity by "+text.Cut(own[i].TopologyKey, maxName))
			}
		}
	}
	return around
}

// nameOf names the controller of a Pod, or a Pod without one.
func nameOf(pod *corev1.Pod) string {
	if controller := (&Pod{Pod: pod}).controller(); controller != "" {
		return controller
	}
	return "Pod " + pod.Namespace + "/" + text.Cut(pod.Name, maxName)
}

// domainOf returns the domain of a Node by a label. A Node that was not read, or without the label, has none.
func (c *Cluster) domainOf(node, key string) (domain, bool) {
	known := c.nodes[node]
	if known == nil {
		return domain{}, false
	}
	value, found := known.Labels[key]
	return domain{key, value}, found
}

// count returns how many Pods of a crowd are on a Node, besides the Pod that is to find a place.
func (c *Cluster) count(of *crowd, node string, n *needs) int {
	if of == c.crowds[n.crowd] && node == n.pod.Spec.NodeName {
		return of.on[node] - 1
	}
	return of.on[node]
}

// match is whether a term selects a Pod.
type match int

const (
	unmatched match = iota
	matched
	unknown // it depends on the labels of a Namespace that was not read
)

func (c *Cluster) matches(term *framework.AffinityTerm, pod *corev1.Pod) match {
	read, known := map[string]string(nil), false
	if c.NamespaceLabels != nil {
		read, known = c.NamespaceLabels(pod.Namespace)
	}
	requirements, selects := term.NamespaceSelector.Requirements()
	switch {
	case !term.Selector.Matches(labels.Set(pod.Labels)):
		return unmatched
	case !known && selects && len(requirements) > 0 && !term.Namespaces.Has(pod.Namespace):
		return unknown
	case term.Matches(pod, read):
		return matched
	default:
		return unmatched
	}
}

// affinityOf evaluates the required affinity of a Pod to other Pods.
func (c *Cluster) affinityOf(n *needs) *affinity {
	terms, err := framework.GetAffinityTerms(n.pod, framework.GetPodAffinityTerms(n.pod.Spec.Affinity))
	if err != nil || len(terms) == 0 {
		return nil
	}
	a := &affinity{fulfilled: map[domain]bool{}}
	for i := range terms {
		a.keys = append(a.keys, terms[i].TopologyKey)
	}
	for _, other := range c.crowds {
		switch c.matchesAll(terms, other.pod) {
		case unknown:
			return nil
		case matched:
			c.fulfill(a, other, n)
		case unmatched:
		}
	}
	a.first = len(a.fulfilled) == 0 && c.matchesAll(terms, n.pod) != unmatched
	return a
}

// matchesAll is matches for all terms: like the scheduler, affinity requires one Pod to match all of them.
func (c *Cluster) matchesAll(terms []framework.AffinityTerm, pod *corev1.Pod) match {
	result := matched
	for i := range terms {
		switch c.matches(&terms[i], pod) {
		case unmatched:
			return unmatched
		case unknown:
			result = unknown
		case matched:
		}
	}
	return result
}

// fulfill adds the domains of a crowd to those where affinity is fulfilled.
func (c *Cluster) fulfill(a *affinity, other *crowd, n *needs) {
	for name := range other.on {
		for _, key := range a.keys {
			if d, found := c.domainOf(name, key); found && c.count(other, name, n) > 0 {
				a.fulfilled[d] = true
			}
		}
	}
}

// spreadsOf counts the Pods that the topology spread of a Pod is about.
func (c *Cluster) spreadsOf(n *needs) []spread {
	var spreads []spread
	for _, constraint := range n.pod.Spec.TopologySpreadConstraints {
		if constraint.WhenUnsatisfiable == corev1.DoNotSchedule {
			spreads = append(spreads, spread{TopologySpreadConstraint: constraint})
		}
	}
	for i := range spreads {
		selector, err := spreads[i].selector(n.pod)
		if err != nil {
			return nil
		}
		c.countSpread(&spreads[i], spreads, selector, n)
	}
	return spreads
}

// selector returns the selector of a constraint: the API server merges matchLabelKeys into it only since Kubernetes 1.34.
func (s *spread) selector(pod *corev1.Pod) (labels.Selector, error) {
	selector, err := metav1.LabelSelectorAsSelector(s.LabelSelector)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller only asks whether there is one
	}
	same := labels.Set{}
	for _, key := range s.MatchLabelKeys {
		if value, found := pod.Labels[key]; found {
			same[key] = value
		}
	}
	if requirements, selects := selector.Requirements(); selects && len(same) > 0 {
		selector = labels.SelectorFromSet(same).Add(requirements...)
	}
	return selector, nil
}

func (c *Cluster) countSpread(s *spread, all []spread, selector labels.Selector, n *needs) {
	if s.staying = map[string]int{}; selector.Matches(labels.Set(n.pod.Labels)) {
		s.self = 1
	}
	present, counts := map[string]int{}, map[string]bool{}
	for name, node := range c.nodes {
		lacks := func(other spread) bool { _, found := node.Labels[other.TopologyKey]; return !found }
		if counts[name] = !slices.ContainsFunc(all, lacks) && c.isSpreadOver(node, s, n); counts[name] {
			present[node.Labels[s.TopologyKey]] += 0
		}
	}
	for _, other := range c.crowds {
		if other.pod.Namespace != n.pod.Namespace || selector.Empty() || !selector.Matches(labels.Set(other.pod.Labels)) {
			continue
		}
		for name := range other.on {
			if !counts[name] {
				continue
			}
			value, pods := c.nodes[name].Labels[s.TopologyKey], max(c.count(other, name, n), 0)
			if present[value] += pods; n.stays(other.pod.Spec.Priority) {
				s.staying[value] += pods
			}
		}
	}
	if s.smallest = math.MaxInt32; len(present) < int(ptr.Deref(s.MinDomains, 1)) {
		s.smallest = 0
	}
	for pods := range maps.Values(present) {
		s.smallest = min(s.smallest, pods)
	}
}

// isSpreadOver reports whether a constraint counts a Node. A Node that drains has the taint of a cordoned one then.
func (c *Cluster) isSpreadOver(node *corev1.Node, s *spread, n *needs) bool {
	if ptr.Deref(s.NodeAffinityPolicy, corev1.NodeInclusionPolicyHonor) == corev1.NodeInclusionPolicyHonor {
		if matches, _ := n.nodes.Match(node); !matches {
			return false
		}
	}
	return ptr.Deref(s.NodeTaintsPolicy, corev1.NodeInclusionPolicyIgnore) == corev1.NodeInclusionPolicyIgnore ||
		n.untolerated(node, c.places[node.Name] == nil) == nil
}

// refusedBy says why the other Pods leave no place on a Node. It is empty if they do.
func (around *neighbors) refusedBy(node *corev1.Node) string {
	if a := around.affinity; a != nil {
		for _, key := range a.keys {
			if value, found := node.Labels[key]; !found || !a.first && !a.fulfilled[domain{key, value}] {
				return "affinity to Pods by " + text.Cut(key, maxName)
			}
		}
	}
	cause := ""
	for key, value := range node.Labels {
		if found := around.apart[domain{key, value}]; found != "" && (cause == "" || found < cause) {
			cause = found
		}
	}
	if cause != "" {
		return cause
	}
	for i := range around.spreads {
		s := &around.spreads[i]
		if value, found := node.Labels[s.TopologyKey]; !found || s.staying[value]+s.self-s.smallest > int(s.MaxSkew) {
			return "topology spread by " + text.Cut(s.TopologyKey, maxName)
		}
	}
	return ""
}

package machinedrain

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Domains says what maxParallelDrainsPerTopology of a policy means for the turn of a Machine. The zero value means that there is no such
// limit.
type Domains struct {
	// Limit is that of the policy.
	Limit v1alpha1.TopologyDrainLimit
	// Own is the domain of the Machine, empty if its Node shares its domain with no other one. IsUnknown means that the Node was not read.
	Own       string
	IsUnknown bool
	// Others are the other domains in which Nodes are drained, or which Machines that delay this one wait for, in alphabetical order: the
	// value of the label, or the name of a Machine whose Node shares its domain with no other one.
	Others []string
	// Excused is how many of them do not count, because the only drain there does not, see Turn: none or one.
	Excused int
	// Longest is the Machine that has been draining there for the longest time, empty if none drains.
	Longest string
}

// permits reports whether the Node of the Machine may be drained.
func (d Domains) permits() bool {
	return d.Limit.Key == "" || len(d.Others)-d.Excused < int(d.Limit.MaxDomains)
}

// message says what a Machine of a Cluster waits for while its Node may not be drained.
func (d Domains) message(cluster string) string {
	const named = 3
	own := "This Node is in " + d.Own
	switch {
	case d.IsUnknown:
		own = "This Node could not be read, and counts as a separate domain"
	case d.Own == "":
		own = "This Node does not have the label, and is a separate domain"
	}
	excused := ""
	if d.Excused > 0 {
		excused = "; one does not count, because its drain makes no progress"
	}
	return fmt.Sprintf("Waiting for Nodes of Cluster %s in other domains of %s to be drained: %s. %s (maxParallelDrainsPerTopology allows %d%s)",
		cluster, d.Limit.Key, text.List(d.Others, named), own, d.Limit.MaxDomains, excused)
}

// labelsOf returns the labels of a Node. They are nil only if it was not read: then only its name is known.
func labelsOf(node *corev1.Node) map[string]string {
	if node == nil || node.Labels == nil && node.CreationTimestamp.IsZero() {
		return nil
	}
	if node.Labels == nil {
		return map[string]string{}
	}
	return node.Labels
}

// On returns the contender with a Node, whose labels say in which domain it is. A Node that was not read shares its domain with no other.
func (c Contender) On(node *corev1.Node) Contender {
	c.labels = labelsOf(node)
	return c
}

// domain is a value of the label, or the name of a Machine whose Node shares its domain with no other one.
type domain struct{ value, alone string }

func (d domain) String() string {
	if d.value == "" {
		return "Machine " + d.alone
	}
	return d.value
}

// domain returns that of the Node of a contender. No Node that does not have the label shares a domain: nothing says that two of them are
// not in different zones. The same applies to one that was not read.
func (c Contender) domain(key string) domain {
	if value := c.labels[key]; value != "" {
		return domain{value: value}
	}
	return domain{alone: c.Name}
}

// domainsFor returns what maxParallelDrainsPerTopology of the policy of a Machine means for the Machine while others drain, those for
// the longest time first, and those ahead delay it. One of the drains that are excused does not count.
func domainsFor(self Contender, draining, ahead []Contender, isExcused func(Contender) bool) Domains {
	key := self.Topology.Key
	if key == "" {
		return Domains{}
	}
	own, counting, excusable := self.domain(key), map[domain]int{}, map[domain]bool{}
	for _, c := range ahead {
		counting[c.domain(key)] += 2 // it does not drain: no excuse applies
	}
	for _, c := range draining {
		d := c.domain(key)
		counting[d]++
		excusable[d] = excusable[d] || isExcused(c)
	}
	domains := Domains{Limit: self.Topology, Own: own.value, IsUnknown: self.labels == nil}
	if i := slices.IndexFunc(draining, func(c Contender) bool { return c.countsUntil.IsZero() && c.domain(key) != own }); i >= 0 {
		domains.Longest = draining[i].Name
	}
	for d, count := range counting {
		if d == own {
			continue
		}
		domains.Others = append(domains.Others, d.String())
		if count == 1 && excusable[d] {
			domains.Excused = 1
		}
	}
	slices.Sort(domains.Others)
	return domains
}

// exceeds reports whether the drains under the limit of a contender exceed it.
func (c Contender) exceeds(draining []Contender) bool {
	domains := map[domain]bool{}
	for _, each := range draining {
		domains[each.domain(c.Topology.Key)] = true
	}
	tooMany := c.Limit > 0 && len(draining) > c.Limit
	return tooMany || c.Topology.Key != "" && len(domains) > int(c.Topology.MaxDomains)
}

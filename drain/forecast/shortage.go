package forecast

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"k8s.io/utils/ptr"
)

// mover is a Pod that finds a place if it alone is evicted.
type mover struct {
	*needs

	name string // "namespace/name"
	size float64
	// kind is equal for Pods for which the same Nodes are places. It is empty if that is not known.
	kind string
	// places is how many Nodes are a place for it alone. It is counted only if the Pods do not fit by size.
	places int
}

// Shortage says that the replacements of the Pods that all these drains evict do not find places together, although each alone does. It
// returns nil if they do. It looks for places by first fit: by size, and then once more with the Pods first that the fewest Nodes can run.
// One order for which all fit is enough to say nothing, although the scheduler may fill the Nodes in another one. What the Pods mean for
// the affinity and the topology spread of each other is not considered.
func (c *Cluster) Shortage(drains []Forecast) *Warning {
	movers := c.movers(drains)
	var left []*mover
	var last refusals
	for _, prepare := range []func([]*mover){func([]*mover) {}, c.countPlaces} {
		prepare(movers)
		slices.SortFunc(movers, func(a, b *mover) int {
			return cmp.Or(byPriority(a, b), cmp.Compare(a.places, b.places), cmp.Compare(b.size, a.size), cmp.Compare(a.name, b.name))
		})
		if left, last = c.fit(movers); len(left) == 0 {
			return nil
		}
	}
	names := make([]string, 0, len(movers))
	for _, m := range movers {
		names = append(names, m.name)
	}
	slices.Sort(names)
	return &Warning{Kind: MayNotFitTogether, Pods: names, Message: fmt.Sprintf(
		"each alone may find a place, but %d of the %d may find none together%s", len(left), len(movers), last.text(len(c.places)))}
}

func byPriority(a, b *mover) int {
	return cmp.Compare(ptr.Deref(b.pod.Spec.Priority, 0), ptr.Deref(a.pod.Spec.Priority, 0))
}

func (c *Cluster) countPlaces(movers []*mover) {
	counts := map[string]int{}
	for _, m := range movers {
		count, known := counts[m.kind]
		if m.kind == "" || !known {
			count = 0
			for _, at := range c.places {
				if m.refusedBy(at) == "" {
					count++
				}
			}
			counts[m.kind] = count
		}
		m.places = count
	}
}

func (c *Cluster) movers(drains []Forecast) []*mover {
	total := amounts{}
	for _, at := range c.places {
		for name, amount := range at.allocatable {
			total[name] += amount
		}
	}
	var movers []*mover
	for i := range drains {
		for j := range drains[i].Pods {
			p := &drains[i].Pods[j]
			if p.isWarnedAbout() && p.controller() != "" && c.alone(p.Pod).refusal == "" {
				m := &mover{needs: &c.alone(p.Pod).needs, name: p.Namespace + "/" + p.Name}
				m.describe(total)
				movers = append(movers, m)
			}
		}
	}
	return movers
}

// describe sets what the order of the movers depends on. total is what the places of the cluster have.
func (m *mover) describe(total amounts) {
	for name, amount := range m.requests {
		m.size = max(m.size, float64(amount)/float64(max(total[name], 1)))
	}
	spec := &m.pod.Spec
	dependsOnPods := m.affinity != nil || len(m.spreads) > 0 || len(m.apart) > 0
	if !dependsOnPods && len(m.volumes) == 0 {
		key, _ := json.Marshal([]any{spec.NodeSelector, spec.Affinity, spec.Tolerations, m.requests, m.ports, spec.Priority, spec.PreemptionPolicy})
		m.kind = string(key)
	}
}

// fit gives each mover the first place, and returns those without one, and why the first of them has none.
func (c *Cluster) fit(movers []*mover) (left []*mover, last refusals) {
	names, taken, full := slices.Sorted(maps.Keys(c.places)), maps.Clone(c.places), map[string]int{}
	for _, m := range movers {
		at := full[m.kind]
		for at < len(names) && m.refusedBy(taken[names[at]]) != "" {
			at++
		}
		if m.kind != "" {
			full[m.kind] = at // the Nodes before it only become fuller
		}
		if at < len(names) {
			taken[names[at]] = taken[names[at]].with(m.pod)
			continue
		}
		if left = append(left, m); last == nil {
			last = refusals{}
			for _, place := range taken {
				last[m.refusedBy(place)]++
			}
		}
	}
	return left, last
}

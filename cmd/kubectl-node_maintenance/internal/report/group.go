package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	words "github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Group is a controller, several of whose Pods the drains may evict at the same time, because no PodDisruptionBudget selects them.
type Group struct {
	// Cluster is empty with a context of a workload cluster.
	Cluster, Kind, Namespace, Name string

	step int
}

// maxGroups is how many groups a plan names, and reads the replicas of.
const maxGroups = 10

// NoteGroups adds a note for each group, and for each StatefulSet whose order concerns several drains. replicas returns how many a
// controller declares, 0 if that is not known.
func (p *Plan) NoteGroups(replicas func(Group) int32) {
	p.noteOrder()
	sizes := p.groups()
	groups := slices.SortedFunc(maps.Keys(sizes), func(a, b Group) int {
		return cmp.Or(cmp.Compare(sizes[b], sizes[a]), cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)))
	})
	for i, g := range groups {
		if i == maxGroups {
			p.Notes = append(p.Notes, fmt.Sprintf("No PodDisruptionBudget selects the Pods of %s more either.", words.Count(len(groups)-i, "controller")))
			return
		}
		note := fmt.Sprintf("%d Pods of %s %s/%s may be evicted at the same time: no PodDisruptionBudget selects them.", sizes[g], g.Kind, g.Namespace, g.Name)
		if n := int(replicas(g)); n > 0 && n <= sizes[g] {
			note += fmt.Sprintf(" All %s are on Nodes that drain.", words.Count(n, "replica"))
		}
		p.Notes = append(p.Notes, note)
	}
}

// groups returns the groups with two or more Pods, and the largest number of their Pods that may be evicted at the same time.
func (p *Plan) groups() map[Group]int {
	type limited struct { // drains under one limit
		Group
		policy   string
		parallel int
	}
	onNodes := map[limited][]int{}
	for i := range p.Drains {
		d, here := &p.Drains[i], map[limited]int{}
		for j := range d.Pods {
			if g := d.Pods[j].group; g.Kind != "" {
				g.Cluster, g.Namespace, g.step = d.Cluster, d.Pods[j].Namespace, d.Pods[j].Step
				here[limited{g, d.Policy, d.parallel}]++
			}
		}
		for g, n := range here {
			onNodes[g] = append(onNodes[g], n)
		}
	}
	sizes := map[Group]int{}
	for g, counts := range onNodes {
		slices.Sort(counts)
		slices.Reverse(counts)
		if g.parallel > 0 {
			counts = counts[:min(g.parallel, len(counts))] // of the Nodes with the most Pods
		}
		for _, n := range counts {
			sizes[g.Group] += n
		}
	}
	maps.DeleteFunc(sizes, func(_ Group, n int) bool { return n < 2 })
	return sizes
}

// noteOrder adds a note for each StatefulSet whose Pods on the Nodes of several drains are evicted in order, if the drains are concurrent.
func (p *Plan) noteOrder() {
	type set struct {
		cluster string
		types.NamespacedName
	}
	all, together := map[set]int{}, map[set]int{}
	for i := range p.Drains {
		for j := range p.Drains[i].Pods {
			if pod := &p.Drains[i].Pods[j]; pod.set.Name != "" {
				s := set{p.Drains[i].Cluster, pod.set}
				all[s]++
				together[s] = max(together[s], pod.inOrder) // the drain says it
			}
		}
	}
	maps.DeleteFunc(all, func(s set, n int) bool { return n <= together[s] })
	sorted := slices.SortedFunc(maps.Keys(all), func(a, b set) int {
		return cmp.Or(cmp.Compare(all[b], all[a]), cmp.Compare(a.String(), b.String()))
	})
	for _, s := range sorted[:min(len(sorted), maxGroups)] {
		p.Notes = append(p.Notes, "If these drains are concurrent, "+forecast.OrderMessage(s.NamespacedName, all[s])+".")
	}
}

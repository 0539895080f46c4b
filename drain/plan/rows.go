package plan

import (
	"cmp"
	"slices"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// maxRows is how many drain targets a node status can hold. The plan of one maintenance never has that many selectors.
const maxRows = 192

// reach is how far Pods of one type and selector are targeted: those of a lower order all, those of this order up to the
// priority.
type reach struct {
	order, priority int32
}

func (r reach) compare(s reach) int {
	return cmp.Or(cmp.Compare(r.order, s.order), cmp.Compare(r.priority, s.priority))
}

func (r reach) covers(order, priority int32) bool {
	return reach{order: order, priority: priority}.compare(r) <= 0
}

// rowKey is what tells rows of a Node apart.
type rowKey struct {
	rank     rank
	selector *selector
}

// reaches are the rows of a Node, in any order. A missing one has reached nothing.
type reaches map[rowKey]reach

// raise sets a row, unless it is there and higher.
func (r reaches) raise(key rowKey, to reach) {
	if now, ok := r[key]; !ok || now.compare(to) < 0 {
		r[key] = to
	}
}

// of returns how far Pods of this selector are targeted: by its row, or that of all Pods.
func (r reaches) of(key rowKey) (reach, bool) {
	own, isOwn := r[key]
	all, isAll := r[rowKey{rank: key.rank, selector: everything}]
	if isAll && (!isOwn || own.compare(all) < 0) {
		return all, true
	}
	return own, isOwn
}

// cover says whether a Pod of this order is under the rows.
func (r reaches) cover(p *Pod, order int32) bool {
	rank := podRank(p)
	for key, to := range r {
		if key.rank == rank && to.covers(order, p.Priority) && key.selector.matches(p.Labels) {
			return true
		}
	}
	return false
}

// CoversPod says whether a Pod of the given order is under published drain targets: those of its type and selector that have
// come to a higher order, or to its order and at least its priority. To know whom to evacuate, ask Decision.Targets: it also
// has Pods that no row of their Node covers, because a maintenance that skips them holds the rows back.
func CoversPod(targets []v1alpha1.DrainTarget, pod Pod, order int32) bool {
	r := reaches{}
	r.raiseTo(targets, selectors{})
	return r.cover(&pod, order)
}

// rowKeys returns the keys of the rows that a plan has: one for each distinct selector of a type.
func (p plan) rowKeys() map[rowKey]bool {
	keys := map[rowKey]bool{}
	for r, entries := range p {
		for _, e := range entries {
			keys[rowKey{rank: rank(r), selector: e.selector}] = true
		}
	}
	return keys
}

// raiseTo raises the rows to those of a status.
func (r reaches) raiseTo(targets []v1alpha1.DrainTarget, known selectors) {
	for _, target := range targets {
		to := reach{priority: target.PodPriority}
		if target.Order != nil {
			to.order = *target.Order
		}
		if rank := rankOf(target.PodType); rank < ranks {
			r.raise(rowKey{rank: rank, selector: known.parse(target.PodSelector)}, to)
		}
	}
}

// reachedRows says what the plan has reached at the cursor: the highest entry so far of each selector. Where that of all Pods
// is higher, it counts for the selector too (see of), which is why in KEP-4212's example 1000/postgres stands beside 1000
// before the entry for postgres is reached.
//
// A maintenance without a live Pod has reached all entries of its plan.
func (m *maintenance) reachedRows() reaches {
	if !m.live {
		return m.allRows()
	}
	r := reaches{}
	for rank := rankDefault; rank <= m.cursor.rank; rank++ {
		for i, e := range m.plan[rank] {
			if rank == m.cursor.rank && i > m.cursor.entry {
				break
			}
			to := reach{priority: e.priority}
			if rank == m.cursor.rank {
				to.order = m.cursor.order
			}
			r.raise(rowKey{rank: rank, selector: e.selector}, to)
		}
	}
	return r
}

// allRows has all entries of the plan, so that a Pod that appears later is a target immediately, and Pods of DaemonSets are kept
// away from a drained Node (R47). Types that the rules skip are left out: their rows would keep Pods of DaemonSets away that the
// maintenance leaves alone, and that may be needed, as a CSI driver is to detach volumes.
func (m *maintenance) allRows() reaches {
	r := reaches{}
	for at, entries := range m.plan {
		if m.skips(rank(at)) {
			continue
		}
		for _, e := range entries {
			r.raise(rowKey{rank: rank(at), selector: e.selector}, reach{priority: e.priority})
		}
	}
	return r
}

// skips says whether the rules of the maintenance skip all Pods of a type.
func (m *maintenance) skips(r rank) bool {
	return slices.ContainsFunc(m.SkippedTypes, func(podType v1alpha1.PodType) bool { return rankOf(podType) == r })
}

// rows returns what all maintenances of the Node have reached, and what had been published before. Those that nothing holds
// back don't count, unless there is no other: they limit nobody.
func (n *node) rows() reaches {
	limiting := slices.DeleteFunc(slices.Clone(n.maintenances), func(m *maintenance) bool { return !m.live })
	if len(limiting) == 0 {
		limiting = n.maintenances
	}
	rows := leastPowerful(limiting)
	for key, to := range n.floor {
		rows.raise(key, to)
	}
	return rows
}

// leastPowerful returns what all of them have reached.
func leastPowerful(maintenances []*maintenance) reaches {
	rows := reaches{}
	for _, m := range maintenances {
		for key := range m.reached {
			if _, done := rows[key]; done {
				continue
			}
			if least, ok := leastOf(maintenances, key); ok {
				rows[key] = least
			}
		}
	}
	return rows
}

// leastOf returns how far all of them have come with a row. Those without a live Pod have no say about types that they skip.
func leastOf(maintenances []*maintenance, key rowKey) (least reach, ok bool) {
	for _, m := range maintenances {
		if !m.live && m.skips(key.rank) {
			continue
		}
		to, reached := m.reached.of(key)
		if !reached {
			return reach{}, false
		}
		if !ok || to.compare(least) < 0 {
			least, ok = to, true
		}
	}
	return least, ok
}

// row is a drain target to publish.
type row struct {
	rowKey
	reach
}

// publish returns the drain targets of a maintenance for one of its Nodes. All maintenances of a Node publish the same
// rows, but for selectors: each has a row for every selector of its own plan, even when that says no more than the row of
// all Pods; and of others' selectors those rows that say more, or that it has published before.
func (m *maintenance) publish(n *node, rows reaches, known selectors) []v1alpha1.DrainTarget {
	result := make([]row, 0, len(m.selectors))
	for key := range m.selectors {
		if to, ok := rows.of(key); ok {
			result = append(result, row{key, to})
		}
	}
	result = append(result, m.foreignRows(n, rows, known)...)
	slices.SortFunc(result, row.compare)
	return targetsOf(result)
}

// foreignRows returns the rows of selectors that the plan of the maintenance doesn't have, as many as there is room for:
// those that say more than the row of all Pods first.
func (m *maintenance) foreignRows(n *node, rows reaches, known selectors) []row {
	var more, same []row
	for key, own := range rows {
		if m.selectors[key] {
			continue
		}
		if to, _ := rows.of(key); rows.saysMore(key, own) {
			more = append(more, row{key, to})
		} else {
			same = append(same, row{key, to})
		}
	}
	if len(same) > 0 {
		before := reaches{}
		before.raiseTo(m.Published[n.name], known)
		same = slices.DeleteFunc(same, func(r row) bool { _, published := before[r.rowKey]; return !published })
	}
	slices.SortFunc(more, row.compare)
	slices.SortFunc(same, row.compare)
	room := max(0, maxRows-len(m.selectors))
	more = append(more, same...)
	return more[:min(len(more), room)]
}

// saysMore says whether a row reaches further than that of all Pods.
func (r reaches) saysMore(key rowKey, own reach) bool {
	all, ok := r[rowKey{rank: key.rank, selector: everything}]
	return !ok || all.compare(own) < 0
}

func (r row) compare(s row) int {
	return cmp.Or(cmp.Compare(r.rank, s.rank), cmp.Compare(r.selector.key, s.selector.key))
}

func targetsOf(rows []row) []v1alpha1.DrainTarget {
	targets := make([]v1alpha1.DrainTarget, 0, len(rows))
	for _, r := range rows {
		target := v1alpha1.DrainTarget{
			PodType:     podTypes[r.rank],
			PodPriority: r.priority,
			PodSelector: r.selector.spec,
		}
		if r.order != 0 {
			target.Order = &r.order
		}
		targets = append(targets, target)
	}
	return targets
}

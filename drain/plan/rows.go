package plan

import (
	"cmp"
	"maps"
	"slices"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// maxRows is the maximum number of drain targets of a Node. The plan of one maintenance never has that many selectors.
const maxRows = 192

// reach says which Pods of one type and selector are targeted: all Pods with a lower order, and those with this order up to the priority.
type reach struct {
	order, priority int32
}

func (r reach) compare(s reach) int {
	return cmp.Or(cmp.Compare(r.order, s.order), cmp.Compare(r.priority, s.priority))
}

func (r reach) covers(order, priority int32) bool {
	return reach{order: order, priority: priority}.compare(r) <= 0
}

// rowKey identifies a row of a Node.
type rowKey struct {
	rank     rank
	selector *selector
}

// reaches are the rows of a Node. A missing row has reached nothing.
type reaches map[rowKey]reach

// raise raises a row to a reach, unless it is higher.
func (r reaches) raise(key rowKey, to reach) {
	if now, ok := r[key]; !ok || now.compare(to) < 0 {
		r[key] = to
	}
}

// of returns the reach of a selector: the higher one of its row and the row of all Pods.
func (r reaches) of(key rowKey) (reach, bool) {
	own, isOwn := r[key]
	all, isAll := r[rowKey{rank: key.rank, selector: everything}]
	if isAll && (!isOwn || own.compare(all) < 0) {
		return all, true
	}
	return own, isOwn
}

// cover reports whether the rows cover a Pod with this drain order.
func (r reaches) cover(p *Pod, order int32) bool {
	rank := podRank(p)
	for key, to := range r {
		if key.rank == rank && to.covers(order, p.Priority) && key.selector.matches(p.Labels) {
			return true
		}
	}
	return false
}

// CoversPod reports whether published drain targets cover a Pod with the given drain order: one of its type and selector has reached a
// higher order, or its order and at least its priority. Decision.Targets also contains Pods that no row of their Node covers, because a
// maintenance that skips them holds the rows back.
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

// reachedRows returns what the plan has reached at the cursor: the highest entry so far of each selector. A higher entry for all Pods
// counts for each selector, too (see of). So KEP-4212's example has the row 1000/postgres beside 1000 before the entry for postgres is
// reached.
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

// allRows returns the rows of all entries of the plan, so that a Pod that appears later is a target immediately, and Pods of DaemonSets are
// kept away from a drained Node (R47). It omits the types that the rules skip: their rows would keep away Pods of DaemonSets that the
// maintenance skips and that may be needed, such as a CSI driver that detaches volumes.
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

// skips reports whether the rules of the maintenance skip all Pods of a type.
func (m *maintenance) skips(r rank) bool {
	return slices.ContainsFunc(m.SkippedTypes, func(podType v1alpha1.PodType) bool { return rankOf(podType) == r })
}

// rows returns what all maintenances of the Node have reached, and what was published before. Maintenances without a live Pod do not count
// unless there is no other, because they do not limit the others.
func (n *node) rows() reaches {
	limiting := slices.DeleteFunc(slices.Clone(n.maintenances), func(m *maintenance) bool { return !m.live })
	if len(limiting) == 0 {
		limiting = n.maintenances
	}
	rows := leastPowerful(limiting)
	if n.daemonSetsKept || slices.ContainsFunc(n.maintenances, (*maintenance).keepsDaemonSets) {
		maps.DeleteFunc(rows, func(key rowKey, _ reach) bool { return key.rank == rankDaemonSet })
	}
	for key, to := range n.floor {
		rows.raise(key, to)
	}
	return rows
}

// leastPowerful returns what all of the maintenances have reached.
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

// leastOf returns the reach of a row that all limiting maintenances have reached.
func leastOf(maintenances []*maintenance, key rowKey) (least reach, ok bool) {
	for _, m := range maintenances {
		if !m.limits(key.rank) {
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

// limits reports whether a maintenance limits the rows of a type. If it skips the type, it does while it has a live Pod of it, which an
// earlier rule selects. That of a Machine does until it has drained its Node: see Maintenance.ServesMachine.
func (m *maintenance) limits(r rank) bool {
	return !m.skips(r) || m.live && (m.ServesMachine || m.liveTypes[r])
}

// keepsDaemonSets reports whether a maintenance keeps the Pods of DaemonSets on its Node even after the drain, see
// Maintenance.ServesDeletion.
func (m *maintenance) keepsDaemonSets() bool { return m.ServesDeletion && m.skips(rankDaemonSet) }

// row is a drain target to publish.
type row struct {
	rowKey
	reach
}

// publish returns the drain targets of a maintenance for one of its Nodes. All maintenances of a Node publish the same rows, except for
// selectors: each publishes a row for each selector in its plan, and of the selectors of others the rows that reach further than the
// row of all Pods, or that it has published before. Where they are too many, those that it has published before come first.
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

// foreignRows returns the rows of selectors that the plan of the maintenance does not have, up to maxRows in total: first those that it has
// published before.
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
	if len(more)+len(same) == 0 {
		return nil
	}
	before := reaches{}
	before.raiseTo(m.Published[n.name], known)
	isNew := func(r row) bool { _, published := before[r.rowKey]; return !published }
	foreign := slices.Concat(slices.DeleteFunc(same, isNew), more)
	room := max(0, maxRows-len(m.selectors))
	if len(foreign) > room {
		rank := map[bool]int{true: 1} // what is published never moves backward
		slices.SortFunc(foreign, func(a, b row) int { return cmp.Or(cmp.Compare(rank[isNew(a)], rank[isNew(b)]), a.compare(b)) })
	}
	return foreign[:min(len(foreign), room)]
}

// saysMore reports whether a row reaches further than the row of all Pods.
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

// Published returns the drain targets of a Node in a status: those of the Node itself, or the shared ones that it refers to.
func Published(status *v1alpha1.NodeMaintenanceStatus, node v1alpha1.NodeMaintenanceNodeStatus) []v1alpha1.DrainTarget {
	if i := node.DrainTargetsIndex; i != nil && *i >= 0 && int(*i) < len(status.DrainTargetSets) {
		return status.DrainTargetSets[*i].DrainTargets
	}
	return node.DrainTargets
}

// OfType returns those of the drain targets that are for Pods of one type.
func OfType(podType v1alpha1.PodType, targets []v1alpha1.DrainTarget) []v1alpha1.DrainTarget {
	var found []v1alpha1.DrainTarget // most Nodes have none, and each event of a NodeMaintenance asks for all Nodes
	for _, target := range targets {
		if target.PodType == podType {
			found = append(found, target)
		}
	}
	return found
}

// PublishedByNode returns the drain targets for Pods of one type that a NodeMaintenance in stage Drain has published, by Node, without
// Nodes that have none. Those of a NodeMaintenance that is being deleted count until it has left the stage: what prevents new Pods must not
// end before. Whether a Pod may still be removed for it is another decision, see evacuation.NodeTerms. m may be nil.
func PublishedByNode(podType v1alpha1.PodType, m *v1alpha1.NodeMaintenance) map[string][]v1alpha1.DrainTarget {
	byNode := map[string][]v1alpha1.DrainTarget{}
	if m == nil || m.Spec.Stage != v1alpha1.StageDrain {
		return byNode
	}
	for _, status := range m.Status.NodeStatuses {
		if targets := OfType(podType, Published(&m.Status, status)); len(targets) > 0 {
			byNode[status.NodeRef.Name] = targets
		}
	}
	return byNode
}

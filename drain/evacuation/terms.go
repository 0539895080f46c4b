package evacuation

import (
	"cmp"
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
)

// Terms are the combined settings of the maintenances that drain a Node, for the evacuation of its Pods.
type Terms struct {
	// DrainEnds is when the first of its drains times out. Nil: never.
	DrainEnds *time.Time
	// DrainStart is when the first of its drains started. Nil: no drain has started.
	DrainStart *time.Time
	// Unordered is true if all of its drains evict the Pods of StatefulSets in any order.
	Unordered bool
	// BuiltInOnly is true if one of its drains allows built-in evacuators only. ProgressDeadline is the shortest of those drains.
	BuiltInOnly      bool
	ProgressDeadline time.Duration
	// DeletesUnready is true if all of its drains allow the deletion of Pods that aren't ready and whose budget can never allow a
	// disruption (E21).
	DeletesUnready bool
	// Suspended is true if all of its drains are suspended, see machinedrain.IsSuspended, or end: the manager then withdraws from the Evacuations.
	Suspended bool
}

// DefersEvacuation reports whether the Evacuation of a Pod of the Node is deferred because all its instigators are suspended. NodeMaintenances that
// serve no Machine, and instigators other than NodeMaintenances, are never suspended.
func (t Terms) DefersEvacuation(e *v1alpha1.Evacuation) bool {
	instigators := Instigators(e)
	return t.Suspended && len(instigators) == 1 && instigators[0] == v1alpha1.NodeMaintenanceInstigatorFinalizer
}

// TermsByNode returns the terms of all Nodes that a maintenance drains. If several drain a Node, the earliest drain timeout applies,
// and budgets are overridden only if all of them override budgets: as with the order of Pods, the most restrictive one wins. Evacuators
// that are not built in are excluded if one of them excludes them, so that they cannot block its drain. suspended reports whether a
// maintenance is suspended; nil: none is.
func TermsByNode(maintenances []v1alpha1.NodeMaintenance, suspended func(*v1alpha1.NodeMaintenance) bool) map[string]Terms {
	byNode, ending := map[string]Terms{}, sets.New[string]()
	for i := range maintenances {
		terms, drains := termsOf(&maintenances[i])
		if !drains {
			for j := range maintenances[i].Status.NodeStatuses {
				if ends(&maintenances[i]) {
					ending.Insert(maintenances[i].Status.NodeStatuses[j].NodeRef.Name)
				}
			}
			continue
		}
		terms.Suspended = suspended != nil && suspended(&maintenances[i])
		for j := range maintenances[i].Status.NodeStatuses {
			node := maintenances[i].Status.NodeStatuses[j].NodeRef.Name
			if others, shared := byNode[node]; shared {
				byNode[node] = others.and(terms)
			} else {
				byNode[node] = terms
			}
		}
	}
	for node := range ending {
		if _, drained := byNode[node]; !drained {
			byNode[node] = Terms{Suspended: true}
		}
	}
	return byNode
}

// TermsOn returns the terms of one Node, see TermsByNode.
func TermsOn(node string, maintenances []v1alpha1.NodeMaintenance, suspended func(*v1alpha1.NodeMaintenance) bool) Terms {
	var all *Terms
	ending := false
	for i := range maintenances {
		m := &maintenances[i]
		terms, drains := termsOf(m)
		if (drains || ends(m)) && !nodeselection.HasNodeStatus(m, node) {
			continue
		}
		if !drains {
			ending = ending || ends(m)
			continue
		}
		terms.Suspended = suspended != nil && suspended(m)
		if all != nil {
			terms = all.and(terms)
		}
		all = &terms
	}
	return ptr.Deref(all, Terms{Suspended: ending})
}

// TermsChanged reports whether the terms of a maintenance, or the Nodes that they apply to, have changed. before is nil for a new
// maintenance, after for a deleted one.
func TermsChanged(before, after *v1alpha1.NodeMaintenance) bool {
	beforeTerms, drained := termsOf(before)
	afterTerms, drains := termsOf(after)
	if !drained || !drains {
		return drained != drains || ends(before) != ends(after)
	}
	const manager = v1alpha1.OwnerManagementClusterAnnotation // a drain may be suspended until it changes
	return !reflect.DeepEqual(beforeTerms, afterTerms) || before.Annotations[manager] != after.Annotations[manager] ||
		!slices.EqualFunc(before.Status.NodeStatuses, after.Status.NodeStatuses, sameNode)
}

func termsOf(m *v1alpha1.NodeMaintenance) (terms Terms, drains bool) {
	if m == nil || m.Spec.Stage != v1alpha1.StageDrain || !m.DeletionTimestamp.IsZero() {
		return Terms{}, false
	}
	terms = Terms{
		DrainEnds:      DrainEnds(m),
		DrainStart:     m.StageStart(v1alpha1.StageDrain),
		Unordered:      m.Spec.Evacuation.StatefulSetPods == v1alpha1.StatefulSetPodsUnordered,
		BuiltInOnly:    m.Spec.Evacuation.Evacuators == v1alpha1.EvacuatorsBuiltIn,
		DeletesUnready: m.Spec.Evacuation.UnhealthyBudget == v1alpha1.UnhealthyBudgetOverride,
	}
	if terms.BuiltInOnly {
		terms.ProgressDeadline = time.Duration(m.Spec.Evacuation.ProgressDeadlineSeconds) * time.Second
	}
	return terms, true
}

// ends reports whether a maintenance was completed or deleted, and the manager has not withdrawn from its Evacuations yet. The start of stage Complete
// is recorded after that, and the finalizer removed.
func ends(m *v1alpha1.NodeMaintenance) bool {
	if m == nil {
		return false
	}
	if !m.DeletionTimestamp.IsZero() {
		return slices.Contains(m.Finalizers, v1alpha1.MaintenanceCompletionFinalizer)
	}
	return m.Spec.Stage == v1alpha1.StageComplete && m.StageStart(v1alpha1.StageComplete) == nil
}

func sameNode(a, b v1alpha1.NodeMaintenanceNodeStatus) bool { return a.NodeRef == b.NodeRef }

func (t Terms) and(more Terms) Terms {
	both := Terms{
		DrainEnds:      earlier(t.DrainEnds, more.DrainEnds),
		DrainStart:     earlier(t.DrainStart, more.DrainStart),
		Unordered:      t.Unordered && more.Unordered,
		BuiltInOnly:    t.BuiltInOnly || more.BuiltInOnly,
		DeletesUnready: t.DeletesUnready && more.DeletesUnready,
		Suspended:      t.Suspended && more.Suspended,
	}
	both.ProgressDeadline = min(cmp.Or(t.ProgressDeadline, more.ProgressDeadline), cmp.Or(more.ProgressDeadline, t.ProgressDeadline))
	return both
}

func earlier(a, b *time.Time) *time.Time {
	if a == nil || b != nil && b.Before(*a) {
		return b
	}
	return a
}

// DrainEnds returns when the drain of a maintenance times out, counted from the start of the stage. Nil: never, or the stage has not
// started.
func DrainEnds(m *v1alpha1.NodeMaintenance) *time.Time {
	timeout := m.Spec.Evacuation.DrainTimeoutSeconds
	if timeout == nil || *timeout <= 0 {
		return nil
	}
	start := m.StageStart(v1alpha1.StageDrain)
	if start == nil {
		return nil
	}
	ends := start.Add(time.Duration(*timeout) * time.Second)
	return &ends
}

// FirstDrain returns when the first of the drains in progress started. Nil: no drain is in progress.
func FirstDrain(maintenances []v1alpha1.NodeMaintenance) *time.Time {
	var first *time.Time
	for i := range maintenances {
		if terms, drains := termsOf(&maintenances[i]); drains {
			first = earlier(first, terms.DrainStart)
		}
	}
	return first
}

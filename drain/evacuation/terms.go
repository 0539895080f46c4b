package evacuation

import (
	"cmp"
	"reflect"
	"slices"
	"time"

	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Terms are what the maintenances of a Node lay down for the evacuation of its Pods.
type Terms struct {
	// DrainEnds is when the time of the first of its drains is up. Nil: never.
	DrainEnds *time.Time
	// DrainStart is when the first of its drains began. Nil: none has begun.
	DrainStart *time.Time
	// Unordered: all of its drains evict the Pods of StatefulSets in any order.
	Unordered bool
	// BuiltInOnly: one of its drains lets built-in evacuators only have a turn. ProgressDeadline is the shortest of those drains.
	BuiltInOnly      bool
	ProgressDeadline time.Duration
	// DeletesUnready: all of its drains let Pods that aren't ready be deleted, where their budget can never have room (E21).
	DeletesUnready bool
	// Paused: all of its drains serve Machines that are paused.
	Paused bool
}

// Rest says whether the Evacuation of a Pod of the Node is put off: whoever asks for it is paused. A NodeMaintenance that serves no
// Machine, and an instigator that is none, is never paused.
func (t Terms) Rest(e *v1alpha1.Evacuation) bool {
	instigators := Instigators(e)
	return t.Paused && len(instigators) == 1 && instigators[0] == v1alpha1.NodeMaintenanceInstigatorFinalizer
}

// TermsByNode collects the terms of all Nodes that a maintenance drains. Where several drain a Node, the first that ends counts,
// and budgets are overridden only where none of them respects them: as with the order of Pods, the least powerful one wins. Evacuators
// that are not built in have no turn where one of them says so: it protects the Node from being held. paused
// says whether a maintenance serves a Machine that is paused; nil: that makes no difference.
func TermsByNode(maintenances []v1alpha1.NodeMaintenance, paused func(*v1alpha1.NodeMaintenance) bool) map[string]Terms {
	byNode := map[string]Terms{}
	for i := range maintenances {
		terms, drains := termsOf(&maintenances[i])
		if !drains {
			continue
		}
		terms.Paused = paused != nil && paused(&maintenances[i])
		for j := range maintenances[i].Status.NodeStatuses {
			node := maintenances[i].Status.NodeStatuses[j].NodeRef.Name
			if others, shared := byNode[node]; shared {
				byNode[node] = others.and(terms)
			} else {
				byNode[node] = terms
			}
		}
	}
	return byNode
}

// TermsOn are the terms of one Node.
func TermsOn(node string, maintenances []v1alpha1.NodeMaintenance, paused func(*v1alpha1.NodeMaintenance) bool) Terms {
	var all *Terms
	for i := range maintenances {
		m := &maintenances[i]
		terms, drains := termsOf(m)
		selects := func(status v1alpha1.NodeMaintenanceNodeStatus) bool { return status.NodeRef.Name == node }
		if !drains || !slices.ContainsFunc(m.Status.NodeStatuses, selects) {
			continue
		}
		terms.Paused = paused != nil && paused(m)
		if all != nil {
			terms = all.and(terms)
		}
		all = &terms
	}
	return ptr.Deref(all, Terms{})
}

// TermsChanged says whether a maintenance lays down other terms now, or for other Nodes. Before is nil for one that is new, after
// for one that is gone.
func TermsChanged(before, after *v1alpha1.NodeMaintenance) bool {
	beforeTerms, drained := termsOf(before)
	afterTerms, drains := termsOf(after)
	return drained != drains || drains && (!reflect.DeepEqual(beforeTerms, afterTerms) || !slices.EqualFunc(before.Status.NodeStatuses, after.Status.NodeStatuses, sameNode))
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

func sameNode(a, b v1alpha1.NodeMaintenanceNodeStatus) bool { return a.NodeRef == b.NodeRef }

func (t Terms) and(more Terms) Terms {
	both := Terms{
		DrainEnds:      earlier(t.DrainEnds, more.DrainEnds),
		DrainStart:     earlier(t.DrainStart, more.DrainStart),
		Unordered:      t.Unordered && more.Unordered,
		BuiltInOnly:    t.BuiltInOnly || more.BuiltInOnly,
		DeletesUnready: t.DeletesUnready && more.DeletesUnready,
		Paused:         t.Paused && more.Paused,
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

// DrainEnds is when the time of a maintenance's drain is up, counted from the start of the stage. Nil: never, or not begun.
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

// FirstDrain is when the first of the drains in progress began. Nil: there is none.
func FirstDrain(maintenances []v1alpha1.NodeMaintenance) *time.Time {
	var first *time.Time
	for i := range maintenances {
		if terms, drains := termsOf(&maintenances[i]); drains {
			first = earlier(first, terms.DrainStart)
		}
	}
	return first
}

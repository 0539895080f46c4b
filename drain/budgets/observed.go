package budgets

import (
	"maps"
	"reflect"
	"slices"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
)

// LossCounts is how long a Pod that has lost a budget is not evicted. Operators replace a budget by deleting it and creating another one,
// and no budget protects their Pods in between.
const LossCounts = 3 * time.Second

// maxFormer is the maximum number of former budgets that are kept for a namespace. Tenants may delete budgets at any rate.
const maxFormer = 256

// Loss is the end of the protection of a Pod by a budget.
type Loss struct {
	// Budget is the "namespace/name" of the budget.
	Budget string
	// Deleted is true if the budget was deleted, false if its selector or the labels of the Pod have changed.
	Deleted bool
	// At is when this was observed.
	At time.Time
}

// Observed contains the budgets of a workload cluster as a watch has delivered them, and for LossCounts those that selected Pods before.
// The methods get the time of an event. They must not be called concurrently.
type Observed struct {
	present     map[types.NamespacedName]*Budget
	unconfirmed map[types.NamespacedName]bool // budgets that an earlier watch has delivered, until the first list
	listed      bool
	former      map[string][]former // by namespace
	relabelled  map[types.UID]relabelled
}

// former is a budget that was deleted, or the version of a budget before a change of its selector.
type former struct {
	budget *Budget
	loss   Loss
	// any means that it may have selected any Pod of its namespace: there were too many to keep them all.
	any bool
}

// relabelled is a Pod whose labels have changed. loss is what the Pod had lost with its former labels, nil if nothing.
type relabelled struct {
	at   time.Time
	loss *Loss
}

// NewObserved returns an Observed for a watch that has delivered nothing yet. earlier, which may be nil, is that of the watch before it:
// the first list shows which of its budgets were deleted in between.
func NewObserved(earlier *Observed) *Observed {
	o := &Observed{
		present: map[types.NamespacedName]*Budget{}, unconfirmed: map[types.NamespacedName]bool{}, former: map[string][]former{},
		relabelled: map[types.UID]relabelled{},
	}
	if earlier != nil {
		o.present, o.relabelled = maps.Clone(earlier.present), maps.Clone(earlier.relabelled)
		for namespace, list := range earlier.former {
			o.former[namespace] = slices.Clone(list)
		}
		for name := range o.present {
			o.unconfirmed[name] = true
		}
	}
	return o
}

// Observe records that a budget exists. The budget must not change afterwards.
func (o *Observed) Observe(pdb *policyv1.PodDisruptionBudget, at time.Time) {
	name, after := nameOf(pdb), New(pdb)
	if before := o.present[name]; before != nil {
		switch {
		case before.pdb.UID != pdb.UID: // a list may deliver a recreated budget as an update
			o.end(before, true, at)
		case !reflect.DeepEqual(before.pdb.Spec.Selector, pdb.Spec.Selector):
			o.end(before, false, at)
		}
	}
	o.present[name] = after
	delete(o.unconfirmed, name)
}

// ObserveDeletion records that a budget does not exist any more.
func (o *Observed) ObserveDeletion(pdb *policyv1.PodDisruptionBudget, at time.Time) {
	name := nameOf(pdb)
	if before := o.present[name]; before != nil {
		o.end(before, true, at)
	}
	delete(o.present, name)
	delete(o.unconfirmed, name)
}

// ObserveList records that the watch has delivered its first list: budgets of the earlier watch that are not in it were deleted.
func (o *Observed) ObserveList(at time.Time) {
	for name := range o.unconfirmed {
		o.ObserveDeletion(o.present[name].pdb, at)
	}
	o.listed = true
}

// ObserveLabels records that the labels of a Pod have changed.
func (o *Observed) ObserveLabels(before, after Pod, at time.Time) {
	loss, lost := o.LossOf(before, at)
	for _, b := range o.present {
		if b.Namespace() == before.Namespace && b.mayCover(before) && !b.mayCover(after) && (!lost || loss.At.Before(at) || b.String() < loss.Budget) {
			loss, lost = Loss{Budget: b.String(), At: at}, true
		}
	}
	record := relabelled{at: at}
	if lost {
		record.loss = &loss
	}
	o.relabelled[after.UID] = record
}

// Budgets returns the budgets. known is false until the watch has delivered its first list.
func (o *Observed) Budgets() (all []*Budget, known bool) {
	if !o.listed {
		return nil, false
	}
	return slices.Collect(maps.Values(o.present)), true
}

// LossOf returns the last loss of a Pod within LossCounts. A Pod that needs no budget has lost none.
func (o *Observed) LossOf(pod Pod, now time.Time) (last Loss, lost bool) {
	if pod.needsNoBudget() {
		return Loss{}, false
	}
	own, changed := o.relabelled[pod.UID]
	if changed && own.loss != nil && own.loss.counts(now) {
		last, lost = *own.loss, true
	}
	for _, f := range o.former[pod.Namespace] {
		switch {
		case !f.loss.counts(now) || !f.any && (!f.budget.mayCover(pod) || o.stillCovers(f.budget, pod)):
		case changed && f.loss.At.Before(own.at): // the Pod had other labels then
		case !lost || last.At.Before(f.loss.At):
			last, lost = f.loss, true
		}
	}
	return last, lost
}

// Expire drops what no longer counts. It reports whether anything is left that will.
func (o *Observed) Expire(now time.Time) (left bool) {
	for namespace, list := range o.former {
		list = slices.DeleteFunc(list, func(f former) bool { return !f.loss.counts(now) })
		if o.former[namespace] = list; len(list) == 0 {
			delete(o.former, namespace)
		}
	}
	maps.DeleteFunc(o.relabelled, func(_ types.UID, r relabelled) bool { return !now.Before(r.at.Add(LossCounts)) })
	return o.HasLosses()
}

// HasLosses reports whether there is anything that Expire will drop.
func (o *Observed) HasLosses() bool { return len(o.former)+len(o.relabelled) > 0 }

// end records that a budget, or a version of it, does not select Pods any more. It drops the records that the new one includes.
func (o *Observed) end(b *Budget, deleted bool, at time.Time) {
	ended := former{budget: b, loss: Loss{Budget: b.String(), Deleted: deleted, At: at}}
	list := slices.DeleteFunc(o.former[b.Namespace()], func(f former) bool {
		isSame := f.budget.Name() == b.Name() && (deleted || f.budget.pdb.UID == b.pdb.UID)
		return !f.loss.counts(at) || !f.any && isSame && reflect.DeepEqual(f.budget.pdb.Spec.Selector, b.pdb.Spec.Selector)
	})
	if len(list) >= maxFormer {
		ended.any, list = true, nil
	}
	o.former[b.Namespace()] = append(list, ended)
}

// stillCovers reports whether the present version of a budget selects a Pod.
func (o *Observed) stillCovers(b *Budget, pod Pod) bool {
	present := o.present[nameOf(b.pdb)]
	return present != nil && present.pdb.UID == b.pdb.UID && present.mayCover(pod)
}

func (l Loss) counts(now time.Time) bool { return now.Before(l.At.Add(LossCounts)) }

func nameOf(pdb *policyv1.PodDisruptionBudget) types.NamespacedName {
	return types.NamespacedName{Namespace: pdb.Namespace, Name: pdb.Name}
}

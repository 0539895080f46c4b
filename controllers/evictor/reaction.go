package evictor

import (
	"sync"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

// reactions measures, for one workload cluster, how soon allowed disruptions are used: the time from the arrival of the event by which a
// PodDisruptionBudget allows a disruption until the next eviction of one of its Pods is sent. It counts only budgets that Pods wait for
// when the event arrives.
type reactions struct {
	mu      sync.Mutex
	awaited sets.Set[string]     // budgets that Pods waited for in the last pass
	allowed map[string]time.Time // when the event of a budget arrived
}

func newReactions() *reactions {
	return &reactions{awaited: sets.New[string](), allowed: map[string]time.Time{}}
}

// receive records the event of a budget. The first event that allows a disruption counts until one allows none.
func (r *reactions) receive(pdb *policyv1.PodDisruptionBudget, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := client.ObjectKeyFromObject(pdb).String()
	if pdb.Status.DisruptionsAllowed <= 0 {
		delete(r.allowed, name)
		return
	}
	if _, earlier := r.allowed[name]; !earlier && r.awaited.Has(name) {
		r.allowed[name] = now
	}
}

// observePass records the result of a pass. It drops the events that arrived before the pass, of budgets under which the pass admitted no
// Pod: an in-flight eviction uses what such a budget allows, or no Pod waits for it.
func (r *reactions) observePass(begun time.Time, admitted []budgets.Admitted, waiting []budgets.Waiting) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.awaited = sets.New[string]()
	for _, each := range waiting {
		if each.Budget != "" {
			r.awaited.Insert(each.Budget)
		}
	}
	used := sets.New[string]()
	for _, each := range admitted {
		if each.Budget != nil {
			used.Insert(nameOf(each.Budget).String())
		}
	}
	for name, at := range r.allowed {
		if !used.Has(name) && !at.After(begun) {
			delete(r.allowed, name)
		}
	}
}

// send returns the time since the event that has allowed an eviction, when that eviction is sent. It returns false for the following
// evictions that the same event allows.
func (r *reactions) send(budget *budgets.Budget, now time.Time) (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := nameOf(budget).String()
	at, known := r.allowed[name]
	delete(r.allowed, name)
	return now.Sub(at), known
}

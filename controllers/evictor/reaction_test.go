package evictor

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

func TestReactions(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	pdb := func(allowed int32) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
		}
	}
	budget := budgets.New(pdb(1))
	waiting, admitted := []budgets.Waiting{{Budget: "shop/web"}}, []budgets.Admitted{{Budget: budget}}
	for name, test := range map[string]struct {
		events func(*reactions)
		want   time.Duration // zero: not measured
	}{
		"E42: from the event to the eviction": {func(r *reactions) {
			r.receive(pdb(1), at(10))
			r.observePass(at(20), admitted, nil)
		}, 90 * time.Millisecond},
		"E42: from the first of several events that allow a disruption": {func(r *reactions) {
			r.receive(pdb(1), at(10))
			r.receive(pdb(2), at(15))
			r.observePass(at(20), admitted, nil)
		}, 90 * time.Millisecond},
		"E42: from the event after the last one that allows no disruption": {func(r *reactions) {
			r.receive(pdb(1), at(10))
			r.receive(pdb(0), at(15))
			r.receive(pdb(1), at(40))
			r.observePass(at(50), admitted, nil)
		}, 60 * time.Millisecond},
		"E42: from an event that arrives during a pass": {func(r *reactions) {
			r.receive(pdb(1), at(10))
			r.observePass(at(5), nil, waiting)
			r.observePass(at(20), admitted, nil)
		}, 90 * time.Millisecond},
		"E42: does not count an event whose disruption an in-flight eviction uses": {func(r *reactions) {
			r.receive(pdb(1), at(10))
			r.observePass(at(20), nil, waiting)
		}, 0},
		"E42: does not count an event that no Pod waits for": {func(r *reactions) {
			r.observePass(at(5), nil, nil)
			r.receive(pdb(1), at(10))
			r.observePass(at(20), admitted, nil)
		}, 0},
		"E42: counts one eviction for an event": {func(r *reactions) {
			r.receive(pdb(2), at(10))
			r.observePass(at(20), admitted, nil)
			r.send(budget, at(30))
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r := newReactions()
			r.observePass(start, nil, waiting)
			test.events(r)
			took, known := r.send(budget, at(100))
			g.Expect(known).To(Equal(test.want > 0))
			if known {
				g.Expect(took).To(Equal(test.want))
			}
		})
	}
}

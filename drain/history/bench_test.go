package history

import (
	"fmt"
	"testing"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

// BenchmarkObserve observes a Node with 110 Pods that wait for their budget, which is what a blocked drain does again and again.
func BenchmarkObserve(b *testing.B) {
	pods := make([]Pod, 0, 110)
	for i := range cap(pods) {
		pods = append(pods, drainedPod(fmt.Sprint(i), blockedBy(string(budgets.BudgetExhausted))))
	}
	d, observation := &Drain{}, seen(pods...)
	d.Observe(observation, at(0))
	b.ReportAllocs()
	for b.Loop() {
		d.Observe(observation, at(1))
	}
}

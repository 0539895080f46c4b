package budgets_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

// heldPass is a pass over a budget of Pods of Nodes a, b and c, whose drains began in this order.
type heldPass struct {
	at      float64
	allows  int32
	pods    string // the Pods to be evicted, each with the name of its Node first, and ! if it is not ready
	refused string // a Pod whose last eviction was refused
	ended   string // Nodes that are not drained any more
	stale   bool
	want    string // the Node that the messages of the Pods of c name
	changes float64
}

func TestHolders(t *testing.T) {
	for _, tc := range []struct {
		name   string
		passes []heldPass
	}{
		{"E90: names the drain that uses the disruption until another one does and the name is a minute old", []heldPass{
			{at: 0, allows: 1, pods: "a1 a2 b1 b2 c1", want: "a"}, {at: 1, pods: "a2 b1 b2 c1", want: "a"}, {at: 20, allows: 1, pods: "a2 b1 b2 c1", want: "a"},
			{at: 30, pods: "b1 b2 c1", want: "a"}, {at: 40, allows: 1, pods: "b1 b2 c1", want: "a", changes: 60}, {at: 50, pods: "b2 c1", want: "a", changes: 60},
			{at: 60, pods: "b2 c1", want: "b"}, {at: 70, allows: 1, pods: "b2 c1", want: "b"},
		}},
		{"E90: names none while no drain has used a disruption", []heldPass{{pods: "a1 b1 c1"}, {at: 90, pods: "a1 b1 c1"}}},
		{"E90: names none for Pods of the same drain", []heldPass{{allows: 1, pods: "c1 c2"}, {at: 1, pods: "c2"}}},
		{"E90: names the oldest of two that use disruptions", []heldPass{{allows: 2, pods: "a1 b1 c1", want: "a"}, {at: 100, pods: "c1", want: "a"}}},
		{"E90: names none that evicts only Pods that are not ready, without a disruption", []heldPass{{pods: "a! c1"}, {at: 1, pods: "c1"}}},
		{"E90: names the younger drain when the older one has no more Pods", []heldPass{
			{allows: 2, pods: "a1 a2 a3 b1 c1", want: "a"}, {at: 100, allows: 2, pods: "a3 b1 c1", want: "a"}, {at: 101, allows: 1, pods: "b2 c1", want: "b"},
		}},
		{"E90: names none after the budget has allowed a disruption that no Pod waits for", []heldPass{
			{allows: 1, pods: "a1 c1", want: "a"}, {at: 100, allows: 1}, {at: 101, pods: "c1"},
		}},
		{"E90: names the same one while the status of the budget is stale", []heldPass{
			{allows: 1, pods: "a1 c1", want: "a"}, {at: 1, allows: 1, stale: true}, {at: 2, pods: "c1", want: "a"},
		}},
		{"E90: names none a minute after the drain has ended", []heldPass{
			{allows: 1, pods: "a1 c1", want: "a"}, {at: 30, pods: "c1", ended: "a", want: "a", changes: 60}, {at: 60, pods: "c1", ended: "a"},
			{at: 70, allows: 1, pods: "b1 c1", ended: "a", changes: 120}, {at: 120, pods: "c1", ended: "a", want: "b"},
		}},
		{"E90: names none whose eviction was refused", []heldPass{
			{allows: 1, pods: "a1 c1", want: "a"}, {at: 1, pods: "c1", refused: "a1", want: "a", changes: 60}, {at: 60, pods: "c1", refused: "a1"},
		}},
		{"E90: names none whose later eviction was refused", []heldPass{
			{allows: 1, pods: "a1 a2 a3 c1", want: "a"}, {at: 100, allows: 1, pods: "a2 a3 c1", want: "a"}, {at: 101, pods: "a3 c1", refused: "a2"},
		}},
		{"E90: names none if another instigator requests the eviction on a Node that is not drained", []heldPass{{allows: 1, pods: "a1 c1", ended: "a"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var holders budgets.Holders
			for i, pass := range tc.passes {
				g := NewWithT(t)
				machineOf := func(pod budgets.Pod) (string, bool) {
					return "machine-" + pod.Node, pod.Node != "" && pod.Node != pass.ended && pod.Name != pass.refused
				}
				var candidates []budgets.Candidate
				for name := range strings.FieldsSeq(pass.pods) {
					candidates = append(candidates, started(pod(name, onNode(name[:1])), at(float64(name[0]))))
					candidates[len(candidates)-1].Pod.Ready = name[1] != '!'
				}
				index := budgets.NewIndex([]*pdb{budget("web", allows(pass.allows))}, always(pass.stale))
				admitted, waiting := index.Admit(budgets.OldestFirst(candidates))
				next, changes := holders.Next(index, admitted, waiting, machineOf, at(pass.at))
				holders = next
				for _, w := range waiting {
					want := w.Message
					if pass.want != "" && pass.want != w.Pod.Node {
						want += "; the drain of Node " + pass.want + " (Machine machine-" + pass.want + ") has used its disruptions"
					}
					g.Expect(holders.Explain(w)).To(Equal(want), "pass %d: %s", i, w.Pod.Name)
				}
				if pass.changes == 0 {
					g.Expect(changes).To(BeZero(), "pass %d", i)
				} else {
					g.Expect(changes).To(Equal(at(pass.changes)), "pass %d", i)
				}
			}
		})
	}
}

func TestHoldersAreBounded(t *testing.T) {
	g := NewWithT(t)
	drained := func(pod budgets.Pod) (string, bool) { return strings.Repeat("m\n", 300), pod.Node != "" }
	index := budgets.NewIndex([]*pdb{budget("web")}, nil)
	admitted, waiting := index.Admit([]budgets.Candidate{pod("a"), pod("b", onNode("two"))})
	holders, _ := budgets.Holders(nil).Next(index, admitted, waiting, drained, at(0))
	waiting[0].Message = strings.Repeat("x", 600)
	said := holders.Explain(waiting[0])
	g.Expect([]rune(said)).To(HaveLen(512), "E90: the message fits")
	g.Expect(said).To(And(HaveSuffix(" m…) has used its disruptions"), Not(ContainSubstring("\n"))), "E90: the names are printable")
	for _, each := range []budgets.Waiting{
		{Candidate: waiting[0].Candidate, Budget: waiting[0].Budget, Reason: budgets.BudgetExhausted, NeverAllowsDisruption: true, Message: "never"},
		{Candidate: waiting[0].Candidate, Budget: waiting[0].Budget, Reason: budgets.MultipleBudgets, Message: "two"},
	} {
		g.Expect(holders.Explain(each)).To(Equal(each.Message), "E90: a wait that no drain causes")
	}
	holders, _ = holders.Next(budgets.NewIndex(nil, nil), nil, nil, drained, at(1))
	g.Expect(holders).To(BeEmpty(), "E90: nothing is kept about a budget that was deleted")

	// The name changes more rarely if more Pods wait.
	for range 2000 {
		waiting = append(waiting, waiting[0])
	}
	first, _ := holders.Next(index, admitted, waiting, drained, at(0))
	_, changes := first.Next(index, nil, waiting, func(budgets.Pod) (string, bool) { return "", false }, at(100))
	g.Expect(changes).To(BeTemporally("~", at(200), time.Second), "E90: ten writes in a second")
	for _, later := range []float64{300, 600} {
		first, _ = first.Next(index, nil, waiting, func(budgets.Pod) (string, bool) { return "", false }, at(later))
	}
	g.Expect(first).To(BeEmpty(), "E90: nothing is kept about a drain that has ended")
}

package evictor

import (
	"time"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// nameHolders adds to the messages of waiting Pods which drain has used the disruptions of their budgets.
func (p *pass) nameHolders(index *budgets.Index, admitted []budgets.Admitted, waiting []budgets.Waiting) {
	var changes time.Time
	if p.state.holders, changes = p.state.holders.Next(index, admitted, waiting, p.drainedMachine, p.now); !changes.IsZero() {
		p.requeueAt(changes)
	}
	for i := range waiting {
		waiting[i].Message = p.state.holders.Explain(waiting[i])
	}
}

// drainedMachine returns the Machine of a Pod's Node, empty if it is not known. It returns false if the Node is not drained, or the last
// eviction of the Pod was refused.
func (p *pass) drainedMachine(pod budgets.Pod) (name string, isDrained bool) {
	terms, isDrained := p.terms[pod.Node]
	for _, m := range terms.Maintenances {
		if machine, serves := machinedrain.OwnerMachineOfAnyManager(m, p.cluster); serves {
			name = machine.Name
		}
	}
	return name, isDrained && p.state.backoffs.refusal(pod.UID) == ""
}

package recording

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

const (
	// endedBefore is how long before the recording a drain may have ended whose outcome is recorded: until then, the manager reads it.
	endedBefore = time.Hour
	// maxOutcomes is the maximum number of outcomes that are read of a recording, maxControllers that of controllers in each.
	maxOutcomes, maxControllers = 2_000, 20
	// maxEvicted is the maximum number of Pods in an outcome that is read: sums of such numbers do not overflow.
	maxEvicted = 1_000_000
)

// Outcome is what became of the Pods that a drain has evicted.
type Outcome struct {
	Cluster string `json:"cluster,omitempty"`
	// Machine is "namespace/name" of the Machine, Maintenance the name of a NodeMaintenance that serves none. Traces have both.
	Machine     string `json:"machine,omitempty"`
	Maintenance string `json:"nodeMaintenance,omitempty"`
	Node        string `json:"node,omitempty"`
	// Ended is when the drain ended, Read when the manager last read what became of the Pods. It is nil before the first reading.
	Ended time.Time            `json:"ended"`
	Read  *time.Time           `json:"read,omitempty"`
	Pods  v1alpha1.EvictedPods `json:"pods"`
	// Controllers are those with Pods that are not replaced by ready ones, More how many others there are.
	Controllers []OutcomeOfController `json:"controllers,omitempty"`
	More        int                   `json:"moreControllers,omitempty"`
	// Message says why Pods are unknown for good.
	Message string `json:"message,omitempty"`
}

// OutcomeOfController is what became of the evicted Pods of a controller, see v1alpha1.EvictedApplication.
type OutcomeOfController struct {
	Controller string               `json:"controller"`
	Pods       v1alpha1.EvictedPods `json:"pods"`
	Why        string               `json:"why,omitempty"`
}

// Title names the drain.
func (o *Outcome) Title() string {
	if o.Machine == "" {
		return "NodeMaintenance " + o.Maintenance
	}
	return "Machine " + o.Machine
}

// Sentence says what became of the Pods: "6 evicted: 4 replaced and ready, 2 Pending; read 3 min after the end of the drain".
func (o *Outcome) Sentence() string {
	sentence := outcome.Summary(o.Pods)
	if o.Read == nil {
		sentence += "; not read yet"
	} else {
		sentence += "; read " + Duration(max(o.Read.Sub(o.Ended), 0)) + " after the end of the drain"
	}
	if o.Message != "" {
		sentence += "; " + o.Message
	}
	return sentence
}

// Sentence says what became of the Pods of the controller, and why.
func (o *OutcomeOfController) Sentence() string {
	sentence := outcome.Summary(o.Pods)
	if o.Why != "" {
		sentence += ". " + o.Why
	}
	return sentence
}

// outcomes adds a line for each drain that has ended since, or shortly before, the recording began: of a Machine the last one that has. The
// policy of a deleted Machine has the outcome, and so may its NodeMaintenance, which exists for some time after the Machine, or was drained
// before the deletion.
func (r *Recorder) outcomes(o *Observation, present map[string]Line) {
	add := func(recorded Outcome, of *v1alpha1.DrainOutcome) {
		id := "outcome " + recorded.id()
		if last, known := present[id]; of != nil && of.EndTime.After(r.begin.Add(-endedBefore)) && (!known || of.EndTime.After(last.Outcome.Ended)) {
			recorded.set(of)
			present[id] = Line{Outcome: &recorded}
		}
	}
	for i := range o.Ended {
		drain := &o.Ended[i]
		add(Outcome{Cluster: drain.ClusterName(), Machine: drain.MachineName(), Node: drain.Node}, &drain.DrainOutcome)
	}
	for i := range o.Workloads {
		w := &o.Workloads[i]
		for j := range w.Maintenances {
			add(outcomeOf(w.Cluster, &w.Maintenances[j]), w.Maintenances[j].Status.Outcome)
		}
	}
}

// outcomeOf names the drain of a NodeMaintenance.
func outcomeOf(cluster string, m *v1alpha1.NodeMaintenance) Outcome {
	o := Outcome{Cluster: cluster, Machine: m.Annotations[v1alpha1.OwnerMachineAnnotation]}
	switch {
	case o.Machine == "":
		o.Maintenance = m.Name
	case len(m.Status.NodeStatuses) == 1:
		o.Node = m.Status.NodeStatuses[0].NodeRef.Name
	}
	return o
}

// id identifies the drain of an outcome.
func (o *Outcome) id() string { return o.Cluster + " " + o.Title() }

func (o *Outcome) set(of *v1alpha1.DrainOutcome) {
	o.Ended, o.Read, o.Pods, o.Message = of.EndTime.UTC(), timeOf(of.ReadTime), of.Pods, text.Cut(of.Message, maxMessage)
	for _, application := range of.Applications[:min(len(of.Applications), maxControllers)] {
		o.Controllers = append(o.Controllers, OutcomeOfController{application.Controller, application.Pods, text.Cut(application.Why, maxMessage)})
	}
	o.More = len(of.Applications) - len(o.Controllers)
}

// outcome adds an outcome, or replaces what was read of the same drain, or of an earlier one, before.
func (b *builder) outcome(o Outcome) {
	id := o.id()
	last, known := b.outcomes[id]
	switch {
	case known && o.Ended.Before(last.Ended): // the policy has dropped the drain of the Machine, and its NodeMaintenance still exists
		return
	case !known && len(b.outcomes) == maxOutcomes:
		b.gap("more than " + itoa(maxOutcomes) + " outcomes of drains; the others are missing")
		return
	}
	o.Pods, o.More = bounded(o.Pods), max(o.More, 0)
	o.More += max(len(o.Controllers)-maxControllers, 0)
	o.Controllers = o.Controllers[:min(len(o.Controllers), maxControllers)]
	for i := range o.Controllers {
		o.Controllers[i].Pods = bounded(o.Controllers[i].Pods)
	}
	b.outcomes[id] = o
}

// bounded returns numbers that no manager exceeds.
func bounded(pods v1alpha1.EvictedPods) v1alpha1.EvictedPods {
	for _, n := range []*int32{&pods.Evicted, &pods.Ready, &pods.NotReady, &pods.Pending, &pods.NotReplaced, &pods.NotNeeded, &pods.Unknown} {
		*n = min(max(*n, 0), maxEvicted)
	}
	return pods
}

// sorted returns outcomes, those with most Pods without a place first.
func sorted(outcomes map[string]Outcome) []Outcome {
	return slices.SortedFunc(maps.Values(outcomes), func(a, b Outcome) int {
		return cmp.Or(cmp.Compare(b.withoutPlace(), a.withoutPlace()), cmp.Compare(b.notReady(), a.notReady()), a.Ended.Compare(b.Ended),
			cmp.Compare(a.id(), b.id()))
	})
}

func (o *Outcome) withoutPlace() int32 { return o.Pods.Pending + o.Pods.NotReplaced }

func (o *Outcome) notReady() int32 { return o.Pods.NotReady + o.Pods.Unknown }

// outcome says in a sentence what became of the evicted Pods of all drains, as far as that was recorded.
func (h *History) outcome() []string {
	if len(h.Outcomes) == 0 {
		return nil
	}
	var sum v1alpha1.EvictedPods
	for i := range h.Outcomes {
		pods := h.Outcomes[i].Pods
		sum.Evicted, sum.Ready, sum.NotReady = sum.Evicted+pods.Evicted, sum.Ready+pods.Ready, sum.NotReady+pods.NotReady
		sum.Pending, sum.NotReplaced = sum.Pending+pods.Pending, sum.NotReplaced+pods.NotReplaced
		sum.NotNeeded, sum.Unknown = sum.NotNeeded+pods.NotNeeded, sum.Unknown+pods.Unknown
	}
	return []string{"Pods after " + text.Count(len(h.Outcomes), "drain") + ", as last read: " + outcome.Summary(sum) + "."}
}

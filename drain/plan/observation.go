package plan

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Observation is all that Decide looks at: maintenances in stage Drain and the Pods of their Nodes. To decide about one
// maintenance, observe all that touch it: see Component. Decide changes none of it.
type Observation struct {
	Maintenances []Maintenance
	Pods         []Pod
}

// Maintenance is a NodeMaintenance whose stage is Drain.
type Maintenance struct {
	Name string
	// DrainStart is when the Drain stage has started, Created when the object was created. They tell the older of two
	// maintenances; of equally old ones it is the first by name.
	DrainStart, Created time.Time
	// Plan is the drain plan as in the spec. Decide completes it with the entries of PlanDefaults.
	Plan         []v1alpha1.DrainPlanEntry
	PlanDefaults v1alpha1.DrainPlanDefaults
	// SkippedTypes are the Pod types that the drain rules skip as a whole.
	SkippedTypes []v1alpha1.PodType
	// Nodes are the names of the selected Nodes.
	Nodes []string
	// Published has the drain targets of the last status, by Node.
	Published map[string][]v1alpha1.DrainTarget
}

// Pod is a Pod and what the maintenances of its Node say about it.
type Pod struct {
	UID                   types.UID
	Namespace, Name, Node string

	Type     v1alpha1.PodType
	Priority int32
	Labels   map[string]string

	// Finished: it has succeeded or failed, so it holds nothing back.
	Finished bool
	// Evacuating: it holds an Evacuation with our instigator finalizer.
	Evacuating bool
	// HasEvacuator matters to static Pods: they stop with the kubelet, so without an evacuator of the kubelet's they are
	// skipped.
	HasEvacuator bool
	// ComesBack matters to Pods of DaemonSets: their DaemonSet would replace them at once, whatever is done to keep them away,
	// so they are skipped, too. See package daemonsets.
	ComesBack bool

	// Verdicts of the drain rules, by name of the maintenance. A missing one is Undecided.
	Verdicts map[string]Verdict
}

// Verdict is what the drain rules of a maintenance say about a Pod.
type Verdict struct {
	Behavior v1alpha1.DrainBehavior
	// Order sorts Pods that drain: those of a higher order go after those of a lower one are gone.
	Order int32
	// Undecided: it isn't known now what the rules say. The Pod is left alone, and the drain waits for it.
	Undecided bool
}

// Decision is who may go now, and why the others wait.
type Decision struct {
	// Targets are the Pods that must have an Evacuation of ours now. All other live Pods that have one get it withdrawn.
	Targets sets.Set[types.UID]
	// Maintenances has the progress of each maintenance, by name.
	Maintenances map[string]MaintenanceDecision
}

// MaintenanceDecision is the progress of one maintenance.
type MaintenanceDecision struct {
	// Nodes has the progress on each selected Node.
	Nodes map[string]NodeDecision
	// Drained: no live Pod that must go, none that is to complete, and none that is undecided is left on any Node. False
	// when no Node is selected.
	Drained bool
	// Blocking says in one line what the drain waits for; empty when Drained.
	Blocking string
}

// NodeDecision is the progress of one maintenance on one Node.
type NodeDecision struct {
	// Targets are the rows to publish. Their selectors are shared with the Observation: don't change them.
	Targets []v1alpha1.DrainTarget
	// Message says how the drain of the Node goes, and what it waits for.
	Message string
	// Pending counts the live Pods that must go, or may have to, and have no Evacuation; Evacuating those that have one;
	// Skipped the live Pods that stay. Pods that are to complete by themselves are in none of them.
	Pending, Evacuating, Skipped int32
	// Drained: as for the maintenance, on this Node.
	Drained bool
	// FastForwardedBy names the older maintenances whose progress has Pods evacuated here that this one would still keep.
	FastForwardedBy []string
}

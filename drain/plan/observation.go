package plan

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Observation is the input of Decide: maintenances in stage Drain, and the Pods of their Nodes. To decide about one maintenance, observe
// its whole Component. Decide does not modify it.
type Observation struct {
	Maintenances []Maintenance
	Pods         []Pod
	// DaemonSetsKept are the names of Nodes for which no new rows for the Pods of DaemonSets are published, see
	// Maintenance.ServesDeletion: the NodeMaintenance of a deleted Machine is not in stage Drain yet.
	DaemonSetsKept sets.Set[string]
}

// Maintenance is a NodeMaintenance whose stage is Drain.
type Maintenance struct {
	Name string
	// DrainStart is the start time of stage Drain, Created the creation time of the object. The maintenance with the earlier DrainStart
	// is the older one, then the one with the earlier Created, then the first by name.
	DrainStart, Created time.Time
	// Plan is the drain plan of the spec. Decide completes it with the entries of PlanDefaults.
	Plan         []v1alpha1.DrainPlanEntry
	PlanDefaults v1alpha1.DrainPlanDefaults
	// SkippedTypes are the Pod types of which the drain rules skip all Pods.
	SkippedTypes []v1alpha1.PodType
	// ServesMachine means that it serves a Machine. Until such a maintenance has drained its Node, other maintenances publish no rows for the
	// types that it skips: a CSI driver is needed until the volumes of the Machine are detached.
	ServesMachine bool
	// ServesDeletion means that this Machine is being deleted. If the maintenance skips the Pods of DaemonSets, others publish no new rows for
	// them on its Node as long as it is in stage Drain: the volumes are detached after the drain.
	ServesDeletion bool
	// Nodes are the names of the selected Nodes.
	Nodes []string
	// Published are the drain targets of the last status, by Node.
	Published map[string][]v1alpha1.DrainTarget
	// Suspended means that nothing is done for the maintenance. It still holds back the Pods of others by its order and its verdicts, but none
	// is evacuated for it.
	Suspended bool
}

// Pod is a Pod with the verdicts of the maintenances of its Node.
type Pod struct {
	UID                   types.UID
	Namespace, Name, Node string

	Type     v1alpha1.PodType
	Priority int32
	Labels   map[string]string

	// Finished means that the Pod has succeeded or failed, so that it blocks nothing.
	Finished bool
	// Evacuating means that the Pod has an Evacuation with our instigator finalizer.
	Evacuating bool
	// HasEvacuator means that a static Pod has an evacuator on its Node. The API server cannot evict static Pods, so the others are
	// skipped.
	HasEvacuator bool
	// IsRecreated means that the DaemonSet of the Pod would replace it immediately, so that the Pod is skipped. See package
	// drain/daemonset.
	IsRecreated bool

	// Verdicts are those of the drain rules, by name of the maintenance. A missing one is Undecided.
	Verdicts map[string]Verdict
}

// Verdict is the verdict of the drain rules of a maintenance on a Pod.
type Verdict struct {
	Behavior v1alpha1.DrainBehavior
	// Order is the drain order: Pods with a higher order are evacuated after all Pods with a lower order have terminated.
	Order int32
	// Undecided means that the rules cannot be evaluated now. The Pod is not evacuated, and the drain waits for it.
	Undecided bool
	// Unread means that it is undecided only because an object has not been read yet, or cannot be read. A Pod that has an Evacuation keeps
	// it.
	Unread bool
}

// Decision is the result of Decide.
type Decision struct {
	// Targets are the Pods that must have our Evacuation now. The Evacuations of all other live Pods must be withdrawn, except those of Kept.
	Targets sets.Set[types.UID]
	// Kept are the Pods that have our Evacuation and that only suspended maintenances drain.
	Kept sets.Set[types.UID]
	// Maintenances is the progress of each maintenance, by name.
	Maintenances map[string]MaintenanceDecision
}

// MaintenanceDecision is the progress of one maintenance.
type MaintenanceDecision struct {
	// Nodes is the progress on each selected Node.
	Nodes map[string]NodeDecision
	// Drained means that no Node has a live Pod that must be evacuated, must complete, or is undecided. It is false if no Node is
	// selected.
	Drained bool
	// Blocking is a message about what the drain waits for, empty when Drained.
	Blocking string
}

// NodeDecision is the progress of one maintenance on one Node.
type NodeDecision struct {
	// Targets are the rows to publish. They share their selectors with the Observation, and must not be modified.
	Targets []v1alpha1.DrainTarget
	// Message is a message about the progress of the drain, and what it waits for.
	Message string
	// Pending is the number of live Pods that drain or are undecided and have no Evacuation, Evacuating of those that have one, Skipped of
	// those that stay. Pods that must complete are not counted.
	Pending, Evacuating, Skipped int32
	// Drained is the same as MaintenanceDecision.Drained, for this Node.
	Drained bool
	// Waiting means that the drain of the Node has not started, because of maxParallelNodes. Decide does not set it, planinput does.
	Waiting bool
	// FastForwardedBy names the older maintenances because of whose progress Pods are evacuated that this one does not allow yet.
	FastForwardedBy []string
}

// Component returns the named maintenance and those that are connected with it by shared Nodes, directly or through others, in the given
// order. Decide needs all of them to decide about any of them, and no others.
func Component(of string, maintenances []Maintenance) []Maintenance {
	byNode := map[string][]int{}
	for i, m := range maintenances {
		for _, node := range m.Nodes {
			byNode[node] = append(byNode[node], i)
		}
	}
	touched := make([]bool, len(maintenances))
	var queue []int
	touch := func(i int) {
		if !touched[i] {
			touched[i] = true
			queue = append(queue, i)
		}
	}
	for i, m := range maintenances {
		if m.Name == of {
			touch(i)
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		for _, node := range maintenances[queue[0]].Nodes {
			for _, neighbor := range byNode[node] {
				touch(neighbor)
			}
			delete(byNode, node) // all of its maintenances are touched
		}
	}
	var component []Maintenance
	for i, m := range maintenances {
		if touched[i] {
			component = append(component, m)
		}
	}
	return component
}

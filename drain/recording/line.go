package recording

import "time"

// Version is the version of the format. A reader ignores fields that it does not know. A new version has lines that an old reader would
// misunderstand.
const Version = 1

// Line is a line of a recording: a time, and one of the other fields.
type Line struct {
	Time time.Time `json:"time"`

	// Start is the first line.
	Start   *Start       `json:"start,omitempty"`
	Machine *Machine     `json:"machine,omitempty"`
	Drain   *Maintenance `json:"nodeMaintenance,omitempty"`
	Pod     *Pod         `json:"pod,omitempty"`
	Budget  *Budget      `json:"budget,omitempty"`
	// Application is that of Pods that are evacuated.
	Application *Application `json:"application,omitempty"`
	// Outcome is what became of the Pods that a drain has evicted.
	Outcome *Outcome `json:"outcome,omitempty"`
	// Gap is something that could not be read.
	Gap string `json:"gap,omitempty"`
	// End is why the recording ended. A recording without this line was cut off.
	End string `json:"end,omitempty"`
}

// Reasons of the end of a recording.
const (
	EndStopped      = "Stopped"      // by the user
	EndLimitReached = "LimitReached" // the file has the maximum size
)

// Start describes a recording.
type Start struct {
	Version int `json:"version"`
	// Context is the kubeconfig context of the recording, for people.
	Context string `json:"context,omitempty"`
}

// Machine is the state of a Machine that is being deleted or maintained.
type Machine struct {
	Cluster string `json:"cluster"`
	// Name is "namespace/name".
	Name    string     `json:"name"`
	Node    string     `json:"node,omitempty"`
	Deleted *time.Time `json:"deleted,omitempty"`
	// Reason and Message are those of the condition NodeMaintenance, Since its transition.
	Reason  string     `json:"reason,omitempty"`
	Message string     `json:"message,omitempty"`
	Since   *time.Time `json:"since,omitempty"`
	Gone    bool       `json:"gone,omitempty"`
}

// Maintenance is the state of a NodeMaintenance.
type Maintenance struct {
	Cluster string `json:"cluster,omitempty"`
	Name    string `json:"name"`
	// Machine is "namespace/name" of the Machine that it serves.
	Machine string     `json:"machine,omitempty"`
	Stage   string     `json:"stage"`
	Since   *time.Time `json:"since,omitempty"`
	Nodes   []string   `json:"nodes,omitempty"`
	// Evacuated is how many Pods had been evacuated when the NodeMaintenance was first observed. The recording does not have them.
	Evacuated int32 `json:"podsEvacuatedBefore,omitempty"`
	// Drained is true if the condition Drained is True.
	Drained bool `json:"drained,omitempty"`
	Gone    bool `json:"gone,omitempty"`
}

// Pod is the state of a Pod that is evacuated or blocks a drain.
type Pod struct {
	Cluster string `json:"cluster,omitempty"`
	// Name is "namespace/name". UID is empty for a Pod that has no Evacuation.
	Name  string     `json:"name"`
	UID   string     `json:"uid,omitempty"`
	Node  string     `json:"node,omitempty"`
	Since *time.Time `json:"since,omitempty"`
	// Reason is what the Pod waits for, Object the object that blocks it, as kind and name, and Message the sentence of the status.
	Reason  string `json:"reason,omitempty"`
	Object  string `json:"object,omitempty"`
	Message string `json:"message,omitempty"`
	// NeverAllows means that Object is a PodDisruptionBudget that never allows a disruption.
	NeverAllows bool `json:"neverAllows,omitempty"`
	// Refusals is the number of evictions that the API server refused.
	Refusals int32 `json:"refusals,omitempty"`
	Gone     bool  `json:"gone,omitempty"`
}

// Budget is the state of a PodDisruptionBudget.
type Budget struct {
	Cluster string `json:"cluster,omitempty"`
	// Name is "namespace/name".
	Name     string `json:"name"`
	Allowed  int32  `json:"disruptionsAllowed"`
	Healthy  int32  `json:"currentHealthy"`
	Required int32  `json:"desiredHealthy"`
	Pods     int32  `json:"expectedPods"`
	// Unread means that the PodDisruptionBudget cannot be read at present; the numbers are the last ones that were read.
	Unread bool `json:"unread,omitempty"`
	Gone   bool `json:"gone,omitempty"`
}

// Application is the state of a Deployment or StatefulSet. For Pods of other controllers, it is that of their PodDisruptionBudget.
type Application struct {
	Cluster string `json:"cluster,omitempty"`
	Kind    string `json:"kind"`
	// Name is "namespace/name".
	Name string `json:"name"`
	// Ready is how many replicas are ready, Replicas how many there should be.
	Ready    int32 `json:"readyReplicas"`
	Replicas int32 `json:"replicas"`
	// Budget is "namespace/name" of the PodDisruptionBudget that selects the Pods, or empty. BudgetUnread means that it is not known whether
	// there is one: PodDisruptionBudgets cannot be read at present.
	Budget       string `json:"budget,omitempty"`
	BudgetUnread bool   `json:"budgetUnread,omitempty"`
	// Unread means that the application cannot be read at present; the numbers are the last ones that were read.
	Unread bool `json:"unread,omitempty"`
	Gone   bool `json:"gone,omitempty"`
}

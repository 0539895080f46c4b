package v1alpha1

// SurgePolicy says when room is made for a Pod before it goes.
//
// Never is the default: a surge creates Pods and changes the replicas of Deployments and the minReplicas of HorizontalPodAutoscalers. That
// takes capacity and edits objects of others, which only the operator of the fleet can decide.
// +kubebuilder:validation:Enum=Never;OnRequest;IfSingleReplica;Always
type SurgePolicy string

const (
	// SurgeNever evicts without making room first.
	SurgeNever SurgePolicy = "Never"
	// SurgeOnRequest makes room for Deployments whose Pods ask for it by the annotation of KEP-4212,
	// evacuation.coordination.k8s.io/priority_deployment.apps.k8s.io: 10000/controller, up to their maxSurge at a time.
	SurgeOnRequest SurgePolicy = "OnRequest"
	// SurgeIfSingleReplica makes room for Deployments that declare one replica.
	SurgeIfSingleReplica SurgePolicy = "IfSingleReplica"
	// SurgeAlways makes room for every Deployment, up to its maxSurge at a time.
	SurgeAlways SurgePolicy = "Always"
)

// StatefulSetPodsPolicy says whether the Pods of a StatefulSet are evicted in order.
// +kubebuilder:validation:Enum=Ordered;Unordered
type StatefulSetPodsPolicy string

const (
	// StatefulSetPodsOrdered evicts the Pods of a StatefulSet from the highest ordinal down, one at a time. The next Pod waits
	// until the replacement of the last one is ready, for at most 3 minutes each. A replica that was not ready, or did not exist,
	// before the drain began is not waited for. The order is a courtesy: PodDisruptionBudgets protect availability.
	StatefulSetPodsOrdered StatefulSetPodsPolicy = "Ordered"
	// StatefulSetPodsUnordered evicts the Pods of a StatefulSet as PodDisruptionBudgets allow it, like other Pods.
	StatefulSetPodsUnordered StatefulSetPodsPolicy = "Unordered"
)

// EvacuatorsPolicy says which evacuators may take over Pods.
// +kubebuilder:validation:Enum=Any;BuiltIn
type EvacuatorsPolicy string

const (
	// EvacuatorsAny honors the evacuators that Pods are annotated with.
	EvacuatorsAny EvacuatorsPolicy = "Any"
	// EvacuatorsBuiltIn lets only evacuators of this project have a turn, so that a tenant cannot hold a Node with silent ones. It also
	// applies to Evacuations that others created before the drain, and progressDeadlineSeconds bounds theirs. Where several
	// NodeMaintenances drain a Node, BuiltIn wins.
	EvacuatorsBuiltIn EvacuatorsPolicy = "BuiltIn"
)

// UnhealthyBudgetPolicy says what happens to unready Pods whose own budget can never have room.
// +kubebuilder:validation:Enum=Respect;Override
type UnhealthyBudgetPolicy string

const (
	// UnhealthyBudgetRespect waits, and names the Pods that block their own budget.
	UnhealthyBudgetRespect UnhealthyBudgetPolicy = "Respect"
	// UnhealthyBudgetOverride deletes Pods that are not ready when their own budget can never have room.
	UnhealthyBudgetOverride UnhealthyBudgetPolicy = "Override"
)

// OnTimeoutPolicy says what happens to Pods that are left when the drain's time is up.
// +kubebuilder:validation:Enum=Release;Delete
type OnTimeoutPolicy string

const (
	// OnTimeoutRelease leaves them: the Machine is deleted with them.
	OnTimeoutRelease OnTimeoutPolicy = "Release"
	// OnTimeoutDelete deletes them, early enough for each one's grace period.
	OnTimeoutDelete OnTimeoutPolicy = "Delete"
)

// EvacuationPolicy is how the Pods of a maintenance are evacuated; what a MachineDrainPolicy decided, compiled in.
type EvacuationPolicy struct {
	// progressDeadlineSeconds is how long an evacuator may go without reporting progress.
	// +optional
	// +default=1800
	// +kubebuilder:validation:Minimum=600
	// +kubebuilder:validation:Maximum=21600
	ProgressDeadlineSeconds int32 `json:"progressDeadlineSeconds,omitempty"`

	// surge says for which Deployments replicas are added before their Pods are removed. With OnRequest the Pods decide by an annotation.
	// Where several NodeMaintenances drain a Node, the one that surges most wins.
	// +optional
	// +default="Never"
	Surge SurgePolicy `json:"surge,omitempty"`

	// statefulSetPods says whether the Pods of a StatefulSet are evicted in order, one at a time. It concerns StatefulSets with
	// podManagementPolicy OrderedReady and update strategy RollingUpdate. Where several NodeMaintenances drain a Node, Ordered wins.
	// +optional
	// +default="Ordered"
	StatefulSetPods StatefulSetPodsPolicy `json:"statefulSetPods,omitempty"`

	// evacuators says which evacuators may take over Pods.
	// +optional
	// +default="Any"
	Evacuators EvacuatorsPolicy `json:"evacuators,omitempty"`

	// unhealthyBudget says what happens to unready Pods whose own budget can never have room.
	// +optional
	// +default="Respect"
	UnhealthyBudget UnhealthyBudgetPolicy `json:"unhealthyBudget,omitempty"`

	// drainTimeoutSeconds is the time that the drain has, counted from the start of the Drain stage. Absent or 0: no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DrainTimeoutSeconds *int32 `json:"drainTimeoutSeconds,omitempty"`

	// onTimeout says what happens to Pods that are left when that time is up.
	// +optional
	// +default="Release"
	OnTimeout OnTimeoutPolicy `json:"onTimeout,omitempty"`
}

package v1alpha1

// SurgePolicy says for which Deployments replicas are added before their Pods are evicted.
//
// The default is Never, because a surge needs capacity and changes the replicas of Deployments and the minReplicas of
// HorizontalPodAutoscalers, which other actors own. The operator of the Clusters decides about that.
// +kubebuilder:validation:Enum=Never;OnRequest;IfSingleReplica;Always
type SurgePolicy string

const (
	// SurgeNever adds no replicas.
	SurgeNever SurgePolicy = "Never"
	// SurgeOnRequest adds replicas for Pods that request it with the annotation of KEP-4212,
	// evacuation.coordination.k8s.io/priority_deployment.apps.k8s.io: 10000/controller. At most maxSurge replicas are added at a time.
	SurgeOnRequest SurgePolicy = "OnRequest"
	// SurgeIfSingleReplica adds a replica to Deployments that declare one replica.
	SurgeIfSingleReplica SurgePolicy = "IfSingleReplica"
	// SurgeAlways adds replicas to all Deployments, at most maxSurge at a time.
	SurgeAlways SurgePolicy = "Always"
)

// SurgeMethod says how the Pods of a Deployment are replaced before they are removed. The default is Scale.
// +kubebuilder:validation:Enum=Scale;Restart
type SurgeMethod string

const (
	// SurgeMethodScale adds replicas to the Deployment, and restores their number when the new Pods are available.
	SurgeMethodScale SurgeMethod = "Scale"
	// SurgeMethodRestart replaces all Pods of the Deployment by a rollout, as `kubectl rollout restart` does: it sets the annotation
	// maintenance.cluster.x-k8s.io/restarted-at in the Pod template, and keeps the number of replicas. It restarts only Deployments whose
	// maxUnavailable resolves to 0 and whose maxSurge resolves to at least 1, and each of them again only when the drains that had begun
	// before have ended.
	SurgeMethodRestart SurgeMethod = "Restart"
)

// StatefulSetPodsPolicy says whether the Pods of a StatefulSet are evicted in order. The default is Unordered, as Cluster API drains.
// +kubebuilder:validation:Enum=Ordered;Unordered
type StatefulSetPodsPolicy string

const (
	// StatefulSetPodsOrdered evicts the Pods of a StatefulSet one at a time, starting with the highest ordinal, on all Nodes that are drained
	// together. Each Pod waits up to 3 minutes until the replacement of the previous Pod is ready. It does not wait for replicas that were not
	// ready, or did not exist, before the drain, or that the scheduler reports as unschedulable. This order does not protect availability:
	// PodDisruptionBudgets do.
	StatefulSetPodsOrdered StatefulSetPodsPolicy = "Ordered"
	// StatefulSetPodsUnordered evicts the Pods of a StatefulSet as PodDisruptionBudgets allow, like other Pods.
	StatefulSetPodsUnordered StatefulSetPodsPolicy = "Unordered"
)

// EvacuatorsPolicy says which evacuators can become active.
// +kubebuilder:validation:Enum=Any;BuiltIn
type EvacuatorsPolicy string

const (
	// EvacuatorsAny allows all evacuators that the annotations of a Pod name.
	EvacuatorsAny EvacuatorsPolicy = "Any"
	// EvacuatorsBuiltIn allows only the evacuators of this project, so that a tenant cannot delay a drain with evacuators that never
	// finish. It also applies to Evacuations that other instigators created before the drain, and progressDeadlineSeconds also limits
	// theirs. If several NodeMaintenances drain a Node, BuiltIn takes precedence.
	EvacuatorsBuiltIn EvacuatorsPolicy = "BuiltIn"
)

// UnhealthyBudgetPolicy says what happens to Pods that are not ready and whose PodDisruptionBudget never allows a disruption.
// +kubebuilder:validation:Enum=Respect;Override
type UnhealthyBudgetPolicy string

const (
	// UnhealthyBudgetRespect waits and reports the Pods that block their PodDisruptionBudget.
	UnhealthyBudgetRespect UnhealthyBudgetPolicy = "Respect"
	// UnhealthyBudgetOverride deletes Pods that are not ready if their PodDisruptionBudget never allows a disruption.
	UnhealthyBudgetOverride UnhealthyBudgetPolicy = "Override"
)

// OnTimeoutPolicy says what happens to the remaining Pods at the drain timeout.
// +kubebuilder:validation:Enum=Release;Delete
type OnTimeoutPolicy string

const (
	// OnTimeoutRelease does not change the remaining Pods. The Machine is deleted with them.
	OnTimeoutRelease OnTimeoutPolicy = "Release"
	// OnTimeoutDelete deletes the remaining Pods before the timeout, early enough for their grace periods.
	OnTimeoutDelete OnTimeoutPolicy = "Delete"
)

// EvacuationPolicy says how the Pods of a NodeMaintenance are evacuated. For a Machine, the controller copies what it shares with the
// MachineDrainPolicy from there.
type EvacuationPolicy struct {
	SharedEvacuationPolicy `json:",inline"`

	// drainTimeoutSeconds is the drain timeout, counted from the start of stage Drain or, for a Node that is selected later, from then. If
	// it is not set or 0, there is no timeout.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DrainTimeoutSeconds *int32 `json:"drainTimeoutSeconds,omitempty"`
}

// DefaultProgressDeadlineSeconds is the default of progressDeadlineSeconds of policies and Evacuations.
const DefaultProgressDeadlineSeconds = 1800

// SharedEvacuationPolicy is the part of an EvacuationPolicy that a MachineDrainPolicy has, too.
type SharedEvacuationPolicy struct {
	// progressDeadlineSeconds is the longest time in seconds that an active evacuator may take to report progress.
	// +optional
	// +default=1800
	// +kubebuilder:validation:Minimum=600
	// +kubebuilder:validation:Maximum=21600
	ProgressDeadlineSeconds int32 `json:"progressDeadlineSeconds,omitempty"`

	// surge says for which Deployments replicas are added before their Pods are evicted. With OnRequest, Pods request it with the
	// annotation evacuation.coordination.k8s.io/priority_deployment.apps.k8s.io: 10000/controller. The default is Never, because a surge
	// needs capacity and changes replicas. The operator of the Clusters decides about that. If several NodeMaintenances drain a Node, the
	// policy that surges the most applies. A surge that is requested later, by an edit or by another NodeMaintenance of the Node, applies to
	// Pods that wait for their eviction already, unless an evacuator has been active for them.
	// +optional
	// +default="Never"
	Surge SurgePolicy `json:"surge,omitempty"`

	// surgeMethod says how Deployments surge. Scale adds replicas. Restart replaces all Pods of a Deployment, also those on other Nodes, by a
	// rollout. It is for GitOps tools that restore the number of replicas. If several NodeMaintenances request a surge for the same
	// Deployment, Scale takes precedence.
	// +optional
	// +default="Scale"
	SurgeMethod SurgeMethod `json:"surgeMethod,omitempty"`

	// statefulSetPods says whether the Pods of a StatefulSet are evicted in order, one at a time. It applies to StatefulSets with
	// podManagementPolicy OrderedReady and update strategy RollingUpdate. If several NodeMaintenances drain a Node, Ordered takes
	// precedence.
	// +optional
	// +default="Unordered"
	StatefulSetPods StatefulSetPodsPolicy `json:"statefulSetPods,omitempty"`

	// evacuators says which evacuators can become active.
	// +optional
	// +default="Any"
	Evacuators EvacuatorsPolicy `json:"evacuators,omitempty"`

	// unhealthyBudget says what happens to Pods that are not ready and whose PodDisruptionBudget never allows a disruption.
	// +optional
	// +default="Respect"
	UnhealthyBudget UnhealthyBudgetPolicy `json:"unhealthyBudget,omitempty"`

	// evictionWebhooks are the names of admission webhooks whose operators move Pods when their eviction is requested, in addition to those
	// whose rules are for pods/eviction and hardly anything else. Evictions are requested for them although a PodDisruptionBudget refuses
	// them.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	EvictionWebhooks []string `json:"evictionWebhooks,omitempty"`

	// onTimeout says what happens to the remaining Pods at the drain timeout, which for a Machine is its nodeDrainTimeoutSeconds.
	// +optional
	// +default="Release"
	OnTimeout OnTimeoutPolicy `json:"onTimeout,omitempty"`
}

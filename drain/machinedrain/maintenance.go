package machinedrain

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

// Request is what a Machine's NodeMaintenance is made of.
type Request struct {
	ManagementCluster string
	Cluster           types.NamespacedName
	Machine           *clusterv1.Machine
	Node              *corev1.Node
	// Name is the first of Identity.Names where it isn't said.
	Name string
	// Policy that the Machine follows; nil where it has been removed while the hook was on: the defaults count then.
	Policy *v1alpha1.MachineDrainPolicy
	Rules  []v1alpha1.DrainRule
	// Stage is Drain where it isn't said.
	Stage v1alpha1.NodeMaintenanceStage
	// For is what it is requested for; RequestedForDeletion where it isn't said.
	For string
}

// reasons tell people what a NodeMaintenance was requested for; %s is the Machine.
var reasons = map[string]string{
	v1alpha1.RequestedForDeletion: "Machine %s is being deleted",
	v1alpha1.RequestedForRollout:  "Machine %s is going to be replaced by a rollout",
	v1alpha1.RequestedForStage:    "Machine %s asks for it by its annotation " + v1alpha1.MachineStageAnnotation,
}

// Maintenance builds the NodeMaintenance of a Machine's Node. There is one, whatever it is requested for, so that a Machine that
// is deleted in the middle of something else goes on from there.
func Maintenance(r Request) *v1alpha1.NodeMaintenance {
	r.Stage, r.For = cmp.Or(r.Stage, v1alpha1.StageDrain), cmp.Or(r.For, v1alpha1.RequestedForDeletion)
	machine := types.NamespacedName{Namespace: r.Machine.Namespace, Name: r.Machine.Name}
	m := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{
			Name: cmp.Or(r.Name, MaintenanceName(machine, r.Node.Name, r.Node.UID)),
			Annotations: map[string]string{
				v1alpha1.OwnerManagementClusterAnnotation: r.ManagementCluster,
				v1alpha1.OwnerClusterAnnotation:           r.Cluster.String(),
				v1alpha1.OwnerMachineAnnotation:           machine.String(),
				v1alpha1.NodeUIDAnnotation:                string(r.Node.UID),
				v1alpha1.RequestedForAnnotation:           r.For,
			},
			Finalizers: []string{v1alpha1.MaintenanceCompletionFinalizer},
		},
		Spec: v1alpha1.NodeMaintenanceSpec{
			NodeSelector: v1alpha1.SelectNodes(r.Node.Name),
			Stage:        r.Stage,
			DrainRules:   r.Rules,
			Evacuation:   evacuationPolicy(r),
			Reason:       fmt.Sprintf(reasons[r.For], machine),

			ExcludeFromLoadBalancers: r.Policy == nil || ptr.Deref(r.Policy.Spec.ExcludeFromLoadBalancers, true),
		},
	}
	m.Spec.DrainPlan, m.Spec.DrainPlanDefaults = drainPlan(r.Policy)
	return m
}

// drainPlan returns the drain plan of a Machine, and what completes it. Where the policy asks for nothing else, the Pods of one
// MachineDrainRule order are evicted together, as Cluster API does, whatever their priority (M35). The entries are written out:
// the schema would default an absent plan to KEP-4212's tiers.
func drainPlan(policy *v1alpha1.MachineDrainPolicy) ([]v1alpha1.DrainPlanEntry, v1alpha1.DrainPlanDefaults) {
	var entries []v1alpha1.DrainPlanEntry
	var defaults v1alpha1.DrainPlanDefaults
	if policy != nil {
		entries, defaults = policy.Spec.DrainPlan, policy.Spec.DrainPlanDefaults
	}
	if defaults == "" {
		defaults = v1alpha1.DrainPlanDefaultsPriorityTiers
		if len(entries) == 0 {
			defaults = v1alpha1.DrainPlanDefaultsNone
		}
	}
	if len(entries) == 0 {
		entries = plan.Complete(nil, defaults)
	}
	return entries, defaults
}

// Update brings a NodeMaintenance that is there up to date with what it would be if it were made now, as far as it may
// change: its stage only moves forward, and rules and policy follow their edits. It says whether anything has changed.
func Update(present, desired *v1alpha1.NodeMaintenance) (changed bool) {
	changed = adopt(present, desired.Annotations[v1alpha1.OwnerManagementClusterAnnotation])
	if StageBefore(present.Spec.Stage, desired.Spec.Stage) {
		present.Spec.Stage, changed = desired.Spec.Stage, true
	}
	if purpose := desired.Annotations[v1alpha1.RequestedForAnnotation]; present.Annotations[v1alpha1.RequestedForAnnotation] != purpose {
		metav1.SetMetaDataAnnotation(&present.ObjectMeta, v1alpha1.RequestedForAnnotation, purpose)
		present.Spec.Reason, changed = desired.Spec.Reason, true
	}
	if present.Spec.ExcludeFromLoadBalancers != desired.Spec.ExcludeFromLoadBalancers {
		present.Spec.ExcludeFromLoadBalancers, changed = desired.Spec.ExcludeFromLoadBalancers, true
	}
	if !apiequality.Semantic.DeepEqual(present.Spec.DrainRules, desired.Spec.DrainRules) {
		present.Spec.DrainRules, changed = desired.Spec.DrainRules, true
	}
	if !apiequality.Semantic.DeepEqual(present.Spec.Evacuation, desired.Spec.Evacuation) {
		present.Spec.Evacuation, changed = desired.Spec.Evacuation, true
	}
	return changed
}

// stages in their order.
var stages = []v1alpha1.NodeMaintenanceStage{v1alpha1.StageIdle, v1alpha1.StageCordon, v1alpha1.StageDrain, v1alpha1.StageComplete}

// StageBefore says whether a stage comes before another one.
func StageBefore(a, b v1alpha1.NodeMaintenanceStage) bool {
	return slices.Index(stages, a) < slices.Index(stages, b)
}

// evacuationPolicy writes out every default, so that it compares equal with what the API server has stored.
func evacuationPolicy(r Request) v1alpha1.EvacuationPolicy {
	policy := v1alpha1.EvacuationPolicy{
		ProgressDeadlineSeconds: 1800,
		Surge:                   v1alpha1.SurgeNever,
		StatefulSetPods:         v1alpha1.StatefulSetPodsOrdered,
		Evacuators:              v1alpha1.EvacuatorsAny,
		UnhealthyBudget:         v1alpha1.UnhealthyBudgetRespect,
		OnTimeout:               v1alpha1.OnTimeoutRelease,
	}
	if timeout := r.Machine.Spec.Deletion.NodeDrainTimeoutSeconds; timeout != nil && *timeout > 0 {
		policy.DrainTimeoutSeconds = timeout
	}
	if r.Policy == nil {
		return policy
	}
	spec := r.Policy.Spec
	if spec.ProgressDeadlineSeconds > 0 {
		policy.ProgressDeadlineSeconds = spec.ProgressDeadlineSeconds
	}
	if spec.Surge != "" {
		policy.Surge = spec.Surge
	}
	if spec.StatefulSetPods != "" {
		policy.StatefulSetPods = spec.StatefulSetPods
	}
	if spec.Evacuators != "" {
		policy.Evacuators = spec.Evacuators
	}
	if spec.UnhealthyBudget != "" {
		policy.UnhealthyBudget = spec.UnhealthyBudget
	}
	if spec.OnTimeout != "" {
		policy.OnTimeout = spec.OnTimeout
	}
	return policy
}

package machines

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Request is what a Machine's NodeMaintenance is made of.
type Request struct {
	ManagementCluster string
	Cluster           types.NamespacedName
	Machine           *clusterv1.Machine
	Node              *corev1.Node
	// Policy that the Machine follows; nil where it has been removed while the hook was on: the defaults count then.
	Policy *v1alpha1.MachineDrainPolicy
	Rules  []v1alpha1.DrainRule
}

// Maintenance builds the NodeMaintenance that drains a deleted Machine's Node.
func Maintenance(r Request) *v1alpha1.NodeMaintenance {
	machine := types.NamespacedName{Namespace: r.Machine.Namespace, Name: r.Machine.Name}
	m := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{
			Name: MaintenanceName(machine, r.Node.Name, r.Node.UID),
			Annotations: map[string]string{
				v1alpha1.OwnerManagementClusterAnnotation: r.ManagementCluster,
				v1alpha1.OwnerClusterAnnotation:           r.Cluster.String(),
				v1alpha1.OwnerMachineAnnotation:           machine.String(),
				v1alpha1.NodeUIDAnnotation:                string(r.Node.UID),
			},
			Finalizers: []string{v1alpha1.MaintenanceCompletionFinalizer},
		},
		Spec: v1alpha1.NodeMaintenanceSpec{
			NodeSelector: v1alpha1.SelectNodes(r.Node.Name),
			Stage:        v1alpha1.StageDrain,
			DrainRules:   r.Rules,
			Evacuation:   evacuationPolicy(r),
			Reason:       fmt.Sprintf("Machine %s is being deleted", machine),

			ExcludeFromLoadBalancers: r.Policy == nil || ptr.Deref(r.Policy.Spec.ExcludeFromLoadBalancers, true),
		},
	}
	if r.Policy != nil {
		m.Spec.DrainPlan = r.Policy.Spec.DrainPlan
	}
	return m
}

// Update brings a NodeMaintenance that is there up to date with what it would be if it were made now, as far as it may
// change: its stage only moves forward, and rules and policy follow their edits. It says whether anything has changed.
func Update(present, desired *v1alpha1.NodeMaintenance) (changed bool) {
	changed = adopt(present, desired.Annotations[v1alpha1.OwnerManagementClusterAnnotation])
	if present.Spec.Stage == v1alpha1.StageIdle || present.Spec.Stage == v1alpha1.StageCordon {
		present.Spec.Stage, changed = desired.Spec.Stage, true
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

// evacuationPolicy writes out every default, so that it compares equal with what the API server has stored.
func evacuationPolicy(r Request) v1alpha1.EvacuationPolicy {
	policy := v1alpha1.EvacuationPolicy{
		ProgressDeadlineSeconds: 1800,
		Surge:                   v1alpha1.SurgeNever,
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

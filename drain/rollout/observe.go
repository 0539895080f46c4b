package rollout

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Observe reduces Cluster API's objects to a Rollout. policyOf returns the policy that a Machine follows, nil if it follows none.
func Observe(cluster *clusterv1.Cluster, deployment *clusterv1.MachineDeployment, machines []clusterv1.Machine, policyOf func(*clusterv1.Machine) *v1alpha1.MachineDrainPolicy) Rollout {
	strategy := deployment.Spec.Rollout.Strategy.Type
	_, annotated := deployment.Annotations[clusterv1.PausedAnnotation]
	r := Rollout{
		Paused:        annotated || ptr.Deref(deployment.Spec.Paused, false),
		Deleting:      !cluster.DeletionTimestamp.IsZero() || !deployment.DeletionTimestamp.IsZero(),
		RollingUpdate: strategy == "" || strategy == clusterv1.RollingUpdateMachineDeploymentStrategyType,
	}
	for i := range machines {
		r.Machines = append(r.Machines, machineOf(&machines[i], outdatedNodes(&machines[i], policyOf(&machines[i]))))
	}
	return r
}

// outdatedNodes returns rollout.outdatedNodes of a Machine's policy. It is empty for a Machine without a Node, which cannot be announced.
func outdatedNodes(machine *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy) v1alpha1.OutdatedNodesPolicy {
	switch {
	case policy == nil || !machine.Status.NodeRef.IsDefined():
		return ""
	case policy.Spec.Rollout.OutdatedNodes == "":
		return v1alpha1.OutdatedNodesAnnounce
	default:
		return policy.Spec.Rollout.OutdatedNodes
	}
}

// machineOf reduces a Machine. Cluster API's condition UpToDate says whether the Machine is outdated, because it takes rolloutAfter and
// in-place updates into account. A rollout makes progress when a Machine is created, becomes available, becomes outdated or is deleted.
func machineOf(machine *clusterv1.Machine, policy v1alpha1.OutdatedNodesPolicy) Machine {
	upToDate := meta.FindStatusCondition(machine.Status.Conditions, clusterv1.MachineUpToDateCondition)
	available := meta.FindStatusCondition(machine.Status.Conditions, clusterv1.MachineAvailableCondition)
	m := Machine{
		Name: machine.Name, Policy: policy,
		Outdated:     upToDate != nil && upToDate.Status == metav1.ConditionFalse && upToDate.Reason == clusterv1.MachineNotUpToDateReason,
		Available:    available != nil && available.Status == metav1.ConditionTrue,
		Deleting:     !machine.DeletionTimestamp.IsZero(),
		LastProgress: machine.CreationTimestamp.Time,
	}
	if m.Deleting {
		m.LastProgress = latest(m.LastProgress, machine.DeletionTimestamp.Time)
	}
	if upToDate != nil {
		m.LastProgress = latest(m.LastProgress, upToDate.LastTransitionTime.Time)
	}
	if m.Available && !m.Outdated {
		m.LastProgress = latest(m.LastProgress, available.LastTransitionTime.Time)
	}
	return m
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

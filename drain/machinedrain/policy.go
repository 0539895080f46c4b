package machinedrain

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// PolicyFor returns the policy that a Machine follows: the first by name, in the Machine's namespace, that selects its
// Cluster and it. Nil: the Machine is left to Cluster API.
func PolicyFor(machine *clusterv1.Machine, clusterLabels map[string]string, policies []v1alpha1.MachineDrainPolicy) *v1alpha1.MachineDrainPolicy {
	var first *v1alpha1.MachineDrainPolicy
	for i := range policies {
		policy := &policies[i]
		if policy.Namespace != machine.Namespace || !policy.DeletionTimestamp.IsZero() {
			continue
		}
		if !PolicySelectsCluster(policy, clusterLabels) || !selects(policy.Spec.MachineSelector, machine.Labels) {
			continue
		}
		if first == nil || policy.Name < first.Name {
			first = policy
		}
	}
	return first
}

// PolicySelectsCluster says whether Machines of a Cluster with these labels may follow the policy.
func PolicySelectsCluster(policy *v1alpha1.MachineDrainPolicy, clusterLabels map[string]string) bool {
	return selects(policy.Spec.ClusterSelector, clusterLabels)
}

// selects: an absent or empty selector selects everything; one that can't be read selects nothing, since opting in by
// mistake is worse than not opting in.
func selects(selector *metav1.LabelSelector, set map[string]string) bool {
	if selector == nil {
		return true
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(set))
}

package machinedrain

import (
	"fmt"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// UnreadPolicy returns the first, by name, of the policies of a namespace that cannot be read and come before the policy that a Machine follows. It
// may select the Machine, so it is not known which policy the Machine follows, or whether it follows one. It returns "" if that is known.
func UnreadPolicy(follows *v1alpha1.MachineDrainPolicy, unread []string) string {
	first := ""
	for _, name := range unread {
		if (follows == nil || name < follows.Name) && (first == "" || name < first) {
			first = name
		}
	}
	return first
}

// UnreadPolicyMessage says that a drain waits for a policy that cannot be read.
func UnreadPolicyMessage(namespace, policy, problem string) string {
	return fmt.Sprintf("Waiting for MachineDrainPolicy %s/%s, which may select the Machine, to be fixed: %s", namespace, policy, problem)
}

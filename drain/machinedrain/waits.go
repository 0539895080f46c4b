package machinedrain

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

const (
	// maxWaits is how many drains a policy names.
	maxWaits = 5
	// maxWaitLines is how many reasons it gives for each, and maxWaitText how much it says about all of them.
	maxWaitLines = 3
	maxWaitText  = 1024
)

// longestWaits names the drains that something holds up, those of the Machines that were deleted first. It goes by what the
// Machines' conditions say.
func longestWaits(draining []*clusterv1.Machine) []v1alpha1.DrainWait {
	var waits []v1alpha1.DrainWait
	for _, machine := range draining {
		condition := meta.FindStatusCondition(machine.Status.Conditions, v1alpha1.MachineNodeMaintenance)
		if condition == nil || condition.Status != metav1.ConditionFalse {
			continue
		}
		if what := waitReason(condition.Message); what != "" {
			waits = append(waits, v1alpha1.DrainWait{
				Machine: machine.Name, Cluster: machine.Spec.ClusterName, Since: *machine.DeletionTimestamp, Reason: condition.Reason, Message: what,
			})
		}
	}
	slices.SortFunc(waits, func(a, b v1alpha1.DrainWait) int {
		return cmp.Or(a.Since.Compare(b.Since.Time), cmp.Compare(a.Machine, b.Machine))
	})
	return waits[:min(len(waits), maxWaits)]
}

// waitReason takes from the message of a Machine's condition what holds the drain up, "" if nothing does: how far it is changes all
// the time, and is left out.
func waitReason(message string) string {
	lines := strings.Split(message, "\n")
	var listed []string
	for _, line := range lines[1:] {
		if what, found := strings.CutPrefix(line, "* "); found && len(listed) < maxWaitLines {
			listed = append(listed, what)
		}
	}
	if len(listed) == 0 && !strings.HasPrefix(lines[0], drainGoesOn) {
		listed = lines[:1]
	}
	what := []rune(strings.Join(listed, "\n"))
	return string(what[:min(len(what), maxWaitText)])
}

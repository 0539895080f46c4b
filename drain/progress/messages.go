package progress

import (
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// maxErrorText is the maximum length of the error, so that the advice fits, too.
const maxErrorText = 360

// Describe returns the shortened text of the error of a request, and what to do about it.
func Describe(err error) string {
	message := text.Cut(strings.Join(strings.Fields(err.Error()), " "), maxErrorText)
	return strings.TrimRight(message, ". ") + ". " + advice(err)
}

func advice(err error) string {
	switch {
	case answers.IsDeniedByWebhook(err), apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsUnauthorized(err):
		return "Change the admission policy, webhook, quota or role that refuses the request"
	case apierrors.IsConflict(err):
		return "Another client changes the object continuously: find it in the audit log of the API server"
	default:
		return "The request is retried; see the log of the manager"
	}
}

// maxNamed is the maximum number of Nodes that a message names.
const maxNamed = 5

// FastForwards returns a message for each set of older maintenances that newly fast-forwards this one, with the Nodes. It compares the
// previous status with the new one, so a restart repeats no message.
func FastForwards(before, now []v1alpha1.NodeMaintenanceNodeStatus, decided map[string]plan.NodeDecision) []string {
	said := make(map[string]string, len(before))
	for _, node := range before {
		said[node.NodeRef.Name] = node.DrainMessage
	}
	var causes []string
	nodes := map[string][]string{}
	for _, node := range now {
		name, decision := node.NodeRef.Name, decided[node.NodeRef.Name]
		if decision.Drained || len(decision.FastForwardedBy) == 0 || node.DrainMessage == said[name] {
			continue
		}
		cause := strings.Join(decision.FastForwardedBy, ", ")
		if nodes[cause] == nil {
			causes = append(causes, cause)
		}
		nodes[cause] = append(nodes[cause], name)
	}
	slices.Sort(causes)
	texts := make([]string, 0, len(causes))
	for _, cause := range causes {
		texts = append(texts, fmt.Sprintf("%s: fast-forwarded by older %s", text.Named("Node", nodes[cause], maxNamed), cause))
	}
	return texts
}

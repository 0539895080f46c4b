package progress

import (
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

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
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsUnauthorized(err):
		return "Change the admission policy, webhook, quota or role that refuses the request"
	case apierrors.IsConflict(err):
		return "Another client changes the object continuously: find it in the audit log of the API server"
	default:
		return "The request is retried; see the log of the manager"
	}
}

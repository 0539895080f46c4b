package progress

import (
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// maxErrorText is how much of an error is told, so that what to do about it is told as well.
const maxErrorText = 360

// Describe returns the text of an error of a request, bounded, and what to do about it.
func Describe(err error) string {
	message := text.Cut(strings.Join(strings.Fields(err.Error()), " "), maxErrorText)
	return strings.TrimRight(message, ". ") + ". " + advice(err)
}

func advice(err error) string {
	switch {
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsUnauthorized(err):
		return "Change the admission policy, webhook, quota or role that refuses the request"
	case apierrors.IsConflict(err):
		return "Another client changes the object without pause: find it in the audit log of the API server"
	default:
		return "The request is retried; the log of the manager has more"
	}
}

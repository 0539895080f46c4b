package workload

import (
	"strings"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/drain/lookup"
)

// fromPolicy and fromMutatingPolicy begin the cause that names an admission policy. A ValidatingAdmissionPolicy chooses the reason. The
// integration tests compare testdata/responses.json of package evictor with the responses of a real API server.
const fromPolicy, fromMutatingPolicy = "ValidatingAdmissionPolicy '", "policy '"

// IsAdmission reports whether admission has refused a request, or may have: the response of a webhook or a policy, with any code and
// reason, or one with a reason that the API server's own admission uses.
func IsAdmission(err error) bool {
	return lookup.IsDeniedByWebhook(err) || IsDeniedByPolicy(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}

// IsConflict reports whether a write was refused because the object has changed since it was read. The denial of a webhook says nothing
// about that, also if it has the code of a conflict.
func IsConflict(err error) bool {
	return apierrors.IsConflict(err) && !lookup.IsDeniedByWebhook(err)
}

// IsDeniedByPolicy reports whether an admission policy has given the response.
func IsDeniedByPolicy(err error) bool {
	response, _ := ResponseOf(err)
	return CauseWith(response, fromPolicy) != "" || CauseWith(response, fromMutatingPolicy) != ""
}

// ResponseOf returns the response of the API server, and false if the error is not one.
func ResponseOf(err error) (metav1.Status, bool) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return metav1.Status{}, false
	}
	return status.Status(), true
}

// CauseWith returns the message of the first cause without a type whose message has a prefix.
func CauseWith(response metav1.Status, prefix string) string {
	for _, cause := range CausesOf(response) {
		if cause.Type == "" && strings.HasPrefix(cause.Message, prefix) {
			return cause.Message
		}
	}
	return ""
}

// CausesOf returns the causes in a response.
func CausesOf(response metav1.Status) []metav1.StatusCause {
	if response.Details == nil {
		return nil
	}
	return response.Details.Causes
}

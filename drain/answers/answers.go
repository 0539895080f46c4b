// Package answers says what the answer of an API server, or its absence, means for the request. An admission webhook
// chooses code, reason, details and causes of its denial: it can answer as if the object did not exist.
package answers

import (
	"io"
	"slices"
	"strings"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// firstError is the first code of HTTP that means an error.
const firstError = 400

// transportError is net.Error.
type transportError interface {
	error
	Timeout() bool
	Temporary() bool
}

// IsUnanswered reports whether a request failed without an answer of the API server: the connection failed, the answer took too long, or
// something else answered. An answer that cannot be decoded is one, and so is a refusal without a reason, such as that of most admission
// webhooks.
func IsUnanswered(err error) bool {
	var answer apierrors.APIStatus
	if errors.As(err, &answer) {
		status := answer.Status()
		isOfAnother := status.Code < firstError || apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
		return status.Reason == metav1.StatusReasonUnknown && isOfAnother && !IsDeniedByWebhook(err)
	}
	var transport transportError
	return errors.As(err, &transport) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// IsAnswer reports whether an error is the API server's answer to this particular request. Missing answers, timeouts and overload are not.
// The denial of a webhook is one, also if it has the reason of one of these.
func IsAnswer(err error) bool {
	var answer apierrors.APIStatus
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout, metav1.StatusReasonTooManyRequests:
		return IsDeniedByWebhook(err)
	default:
		return errors.As(err, &answer) && !IsUnanswered(err)
	}
}

// IsOverload reports whether the API server refuses a request because it is overloaded or not ready (429 or 503). The denial of a webhook
// says nothing about that.
func IsOverload(err error) bool {
	return (apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err)) && !IsDeniedByWebhook(err)
}

// DoesNotExist reports whether the API server has answered that the object of a request does not exist. If it does not serve the kind, it
// is not known whether the object exists.
func DoesNotExist(err error) bool {
	return apierrors.IsNotFound(err) && !NotServed(err) && !IsDeniedByWebhook(err)
}

// IgnoreDoesNotExist returns nil if DoesNotExist, and err otherwise: a write that no API server has received must be repeated. Reads
// from a cache may use client.IgnoreNotFound: no proxy answers them.
func IgnoreDoesNotExist(err error) error {
	if DoesNotExist(err) {
		return nil
	}
	return err
}

// NotServed reports whether the API server does not serve the resource of a request, or its version, such as policy/v1. An unknown resource
// and a missing object both result in 404. Only the answer about the latter is a Status that names the object; to any other answer, the
// client adds a cause and the name in the request.
func NotServed(err error) bool {
	var status apierrors.APIStatus
	switch {
	case !errors.As(err, &status), IsDeniedByWebhook(err):
		return false
	case apierrors.IsNotFound(err):
		return status.Status().Details == nil || status.Status().Details.Name == "" || apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
	case apierrors.IsBadRequest(err):
		return strings.Contains(err.Error(), `no kind "Eviction" is registered for version`)
	default:
		return false
	}
}

// KindNotServed reports whether a request for an object failed because the API server does not serve its kind, or refuses new objects since
// the CRD is being deleted. A timeout counts too: a cached read times out while the informer of a kind that is not served retries.
func KindNotServed(err error) bool {
	terminating := apierrors.IsForbidden(err) && strings.Contains(err.Error(), "custom resource definition is terminating")
	return terminating || NotServed(err) || meta.IsNoMatchError(errors.Cause(err)) || apierrors.IsTimeout(err)
}

// AlreadyExists reports whether the API server has not created an object because there is one with its name. A webhook may answer as if
// there were.
func AlreadyExists(err error) bool {
	return apierrors.IsAlreadyExists(err) && !IsDeniedByWebhook(err)
}

// IsConflict reports whether a write was refused because the object has changed since it was read. The denial of a webhook says nothing
// about that, also if it has the code of a conflict.
func IsConflict(err error) bool {
	return apierrors.IsConflict(err) && !IsDeniedByWebhook(err)
}

// IsGone reports whether an eviction failed because the Pod no longer exists, or was replaced by another Pod with the same name. A conflict
// that does not name the Pod is a refusal: of an admission webhook, or after the API server could not update a PodDisruptionBudget.
func IsGone(err error) bool {
	return IsConflict(err) && slices.Contains(podKinds, conflictKind(err)) || DoesNotExist(err)
}

// podKinds are what conflicts of a Pod name: its resource, or its kind if the UID differs.
var podKinds = []string{"pods", "Pod"}

// IsBudgetConflict reports whether an eviction failed because other writes of the PodDisruptionBudget made all attempts of the API server
// fail.
func IsBudgetConflict(err error) bool {
	return IsConflict(err) && conflictKind(err) == "poddisruptionbudgets"
}

func conflictKind(err error) string {
	response, _ := ResponseOf(err)
	if response.Details == nil {
		return ""
	}
	return response.Details.Kind
}

// fromWebhook and deniedByWebhook enclose the name of an admission webhook at the beginning of the response that it has given. The
// integration tests compare testdata/responses.json of package evictor with the responses of a real API server.
const fromWebhook, deniedByWebhook = `admission webhook "`, `" denied the request`

// IsDeniedByWebhook reports whether an admission webhook has given the response to a write. Its code, reason, details and causes are what
// the webhook has chosen: they say nothing about the object.
func IsDeniedByWebhook(err error) bool {
	response, _ := ResponseOf(err)
	name, found := strings.CutPrefix(response.Message, fromWebhook)
	return found && strings.Contains(name, deniedByWebhook)
}

// fromPolicy and fromMutatingPolicy begin the cause that names an admission policy. A ValidatingAdmissionPolicy chooses the reason. The
// tests of fromWebhook include them.
const fromPolicy, fromMutatingPolicy = "ValidatingAdmissionPolicy '", "policy '"

// IsDeniedByPolicy reports whether an admission policy has given the response.
func IsDeniedByPolicy(err error) bool {
	response, _ := ResponseOf(err)
	return CauseWith(response, fromPolicy) != "" || CauseWith(response, fromMutatingPolicy) != ""
}

// IsAdmission reports whether admission has refused a request, or may have: the response of a webhook or a policy, with any code and
// reason, or one with a reason that the API server's own admission uses.
func IsAdmission(err error) bool {
	return IsDeniedByWebhook(err) || IsDeniedByPolicy(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
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

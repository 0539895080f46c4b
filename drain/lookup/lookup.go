// Package lookup distinguishes an object that does not exist from one that has not been read yet or could not be read. A decision that
// depends on an object takes a Result, so that no caller can pass nil for an object that it has not read.
package lookup

import (
	"strings"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Result is the result of reading an object. Its zero value means that the object has not been read yet, or could not be read.
type Result[T any] struct {
	object *T
	read   bool
}

// Of returns the Result of a successful request: object is nil if it does not exist.
func Of[T any](object *T) Result[T] { return Result[T]{object: object, read: true} }

// Get returns the object, and whether it exists. found is also false if it is not known: see IsKnown.
func (r Result[T]) Get() (object *T, found bool) { return r.object, r.object != nil }

// IsKnown reports whether the object was read, or is known not to exist.
func (r Result[T]) IsKnown() bool { return r.read }

// fromWebhook and deniedByWebhook enclose the name of an admission webhook at the beginning of the response that it has given. The
// integration tests compare testdata/responses.json of package evictor with the responses of a real API server.
const fromWebhook, deniedByWebhook = `admission webhook "`, `" denied the request`

// IsDeniedByWebhook reports whether an admission webhook has given the response to a write. Its code, reason, details and causes are what
// the webhook has chosen: they say nothing about the object.
func IsDeniedByWebhook(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	name, found := strings.CutPrefix(status.Status().Message, fromWebhook)
	return found && strings.Contains(name, deniedByWebhook)
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

// DoesNotExist reports whether the API server has answered that the object of a request does not exist. If it does not serve the kind, it
// is not known whether the object exists.
func DoesNotExist(err error) bool {
	return apierrors.IsNotFound(err) && !NotServed(err) && !IsDeniedByWebhook(err)
}

// AlreadyExists reports whether the API server has not created an object because there is one with its name. A webhook may answer as if
// there were.
func AlreadyExists(err error) bool {
	return apierrors.IsAlreadyExists(err) && !IsDeniedByWebhook(err)
}

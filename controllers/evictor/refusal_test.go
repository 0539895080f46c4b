package evictor

import (
	"context"
	"strings"
	"testing"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// moreThanOneBudget is the message of the API server.
const moreThanOneBudget = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."

func TestRefusal(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	withCause := func(err *apierrors.StatusError, cause metav1.CauseType, message string) error {
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: cause, Message: message})
		return err
	}
	for _, tc := range []struct {
		name    string
		err     error
		reason  string
		message string
	}{
		{"E18: a budget", withCause(apierrors.NewTooManyRequests("no", 0), policyv1.DisruptionBudgetCause, "The disruption budget web 5 healthy Pods required and has 5 currently"), v1alpha1.ReasonBudgetRefused, "The disruption budget web 5 healthy Pods required and has 5 currently"},
		{"E18: a budget that is being updated", apierrors.NewTooManyRequests("still being processed", 10), v1alpha1.ReasonBudgetUpdating, "The PodDisruptionBudget is being updated: still being processed"},
		{"E18: a budget that other writes keep from being updated", apierrors.NewConflict(schema.GroupResource{Group: "policy", Resource: "poddisruptionbudgets"}, "web", errors.New("modified")), v1alpha1.ReasonBudgetUpdating, "The PodDisruptionBudget is being updated: "},
		{"E18: a terminating namespace", withCause(apierrors.NewForbidden(pods, "web", errors.New("terminating")), corev1.NamespaceTerminatingCause, ""), v1alpha1.ReasonNamespaceTerminating, "The namespace is being deleted"},
		{"E18: more than one budget", apierrors.NewInternalError(errors.New(moreThanOneBudget)), v1alpha1.ReasonMultipleBudgets, "More than one PodDisruptionBudget selects this Pod"},
		{"E18: an admission policy", apierrors.NewForbidden(pods, "web", errors.New("ValidatingAdmissionPolicy 'x' denied request")), v1alpha1.ReasonAdmissionRefused, "An admission policy or webhook refused the eviction"},
		{"E18: an admission webhook that does not run", apierrors.NewInternalError(errors.New(`failed calling webhook "x"`)), v1alpha1.ReasonAdmissionFailed, "The API server could not call an admission webhook"},
		{"E18: no response before the timeout of the client", errors.Wrap(context.DeadlineExceeded, "evicting"), v1alpha1.ReasonNoResponse, "The API server did not respond to the eviction in time"},
		{"E18: no response before the timeout of the API server", apierrors.NewTimeoutError("too long", 1), v1alpha1.ReasonNoResponse, "The API server did not respond to the eviction in time"},
		{"E19: an API server without policy/v1", apierrors.NewGenericServerResponse(404, "create", schema.GroupResource{}, "", "", 0, true), "EvictionNotServed", "The API server does not serve evictions and PodDisruptionBudgets of policy/v1"},
		{"E18: another error", apierrors.NewMethodNotSupported(pods, "create"), v1alpha1.ReasonEvictionRefused, "The API server refused the eviction"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, answered := classify(tc.err)
			if !answered || got.reason != tc.reason || !strings.HasPrefix(got.message, tc.message) {
				t.Errorf("got %+v, want %s, %q", got, tc.reason, tc.message)
			}
		})
	}
	t.Run("an error that is no response of the API server", func(t *testing.T) {
		for _, err := range []error{errors.New("connection refused"), apierrors.NewUnauthorized("no")} {
			if got, answered := classify(err); answered {
				t.Errorf("%v is classified as a refusal: %+v", err, got)
			}
		}
	})
}

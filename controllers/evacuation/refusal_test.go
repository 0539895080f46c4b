package evacuation

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

// moreThanOneBudget is what the API server says.
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
		{"E18: a budget", withCause(apierrors.NewTooManyRequests("no", 0), policyv1.DisruptionBudgetCause, "The disruption budget web needs 5 healthy pods and has 5 currently"), v1alpha1.ReasonBudgetRefused, "The disruption budget web needs 5 healthy pods and has 5 currently"},
		{"E18: still being processed", apierrors.NewTooManyRequests("still being processed", 10), v1alpha1.ReasonBudgetUpdating, "The disruption budget is being updated: still being processed"},
		{"E18: a terminating namespace", withCause(apierrors.NewForbidden(pods, "web", errors.New("terminating")), corev1.NamespaceTerminatingCause, ""), v1alpha1.ReasonNamespaceTerminating, "The namespace is being deleted"},
		{"E18: more than one budget", apierrors.NewInternalError(errors.New(moreThanOneBudget)), v1alpha1.ReasonMultipleBudgets, "More than one disruption budget"},
		{"E18: an admission policy", apierrors.NewForbidden(pods, "web", errors.New("ValidatingAdmissionPolicy 'x' denied request")), v1alpha1.ReasonAdmissionRefused, "An admission policy has refused the eviction"},
		{"E18: an admission webhook that is down", apierrors.NewInternalError(errors.New(`failed calling webhook "x"`)), v1alpha1.ReasonAdmissionFailed, "An admission webhook could not be asked"},
		{"E18: no answer within our own time", errors.Wrap(context.DeadlineExceeded, "evicting"), v1alpha1.ReasonNoResponse, "The API server has not answered the eviction in time"},
		{"E18: no answer within the API server's time", apierrors.NewTimeoutError("too long", 1), v1alpha1.ReasonNoResponse, "The API server has not answered the eviction in time"},
		{"E19: an API server without policy/v1", apierrors.NewGenericServerResponse(404, "create", schema.GroupResource{}, "", "", 0, true), "EvictionNotServed", "The API server doesn't serve evictions and disruption budgets of policy/v1"},
		{"E18: anything else", apierrors.NewMethodNotSupported(pods, "create"), v1alpha1.ReasonEvictionRefused, "The API server has refused the eviction"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, answered := classify(tc.err)
			if !answered || got.reason != tc.reason || !strings.HasPrefix(got.message, tc.message) {
				t.Errorf("got %+v, want %s, %q", got, tc.reason, tc.message)
			}
		})
	}
	t.Run("what isn't an answer is an error", func(t *testing.T) {
		for _, err := range []error{errors.New("connection refused"), apierrors.NewUnauthorized("no")} {
			if got, answered := classify(err); answered {
				t.Errorf("%v is taken for an answer: %+v", err, got)
			}
		}
	})
}

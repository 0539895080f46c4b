package evacuation

import (
	"strings"
	"testing"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
		name string
		err  error
		want string
	}{
		{"E18: a budget", withCause(apierrors.NewTooManyRequests("no", 0), policyv1.DisruptionBudgetCause, "The disruption budget web needs 5 healthy pods and has 5 currently"), "The disruption budget web needs 5 healthy pods and has 5 currently"},
		{"E18: still being processed", apierrors.NewTooManyRequests("still being processed", 10), "The disruption budget is being updated: still being processed"},
		{"E18: a terminating namespace", withCause(apierrors.NewForbidden(pods, "web", errors.New("terminating")), corev1.NamespaceTerminatingCause, ""), "The namespace is being deleted"},
		{"E18: more than one budget", apierrors.NewInternalError(errors.New(moreThanOneBudget)), "More than one disruption budget"},
		{"E18: an admission policy", apierrors.NewForbidden(pods, "web", errors.New("ValidatingAdmissionPolicy 'x' denied request")), "An admission policy has refused the eviction"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := refusal(tc.err); !strings.HasPrefix(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if !isAnswer(tc.err) {
				t.Error("it is an answer of the API server")
			}
		})
	}
	t.Run("what isn't an answer is an error", func(t *testing.T) {
		if isAnswer(errors.New("connection refused")) || isAnswer(apierrors.NewUnauthorized("no")) || isAnswer(apierrors.NewServerTimeout(pods, "create", 1)) {
			t.Error("that is no answer")
		}
	})
}

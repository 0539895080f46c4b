package evacuation

import (
	"strings"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// isAnswer says whether err is the API server's answer to the eviction. Else it hasn't been reached, or refuses to work for us at all.
func isAnswer(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && !apierrors.IsUnauthorized(err) && !apierrors.IsServerTimeout(err) && !apierrors.IsTimeout(err)
}

// refusal says for people why the API server has refused an eviction (E18).
func refusal(err error) string {
	message := err.Error()
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return "The namespace is being deleted: " + message
	case apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
		return budgetRefusal(err)
	case apierrors.IsTooManyRequests(err):
		return "The disruption budget is being updated: " + message
	case apierrors.IsInternalError(err) && strings.Contains(message, "more than one PodDisruptionBudget"):
		return "More than one disruption budget covers the Pod, which the eviction API does not support"
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		return "An admission policy has refused the eviction: " + message
	default:
		return "The API server has refused the eviction: " + message
	}
}

// budgetRefusal takes the cause's message, which names the budget and its numbers.
func budgetRefusal(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil {
		for _, cause := range status.Status().Details.Causes {
			if cause.Type == policyv1.DisruptionBudgetCause && cause.Message != "" {
				return cause.Message
			}
		}
	}
	return err.Error()
}

package evictor

import (
	"context"
	"strings"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

// refusal is why the API server has refused an eviction: a machine-readable reason and a message for users (E18).
type refusal struct {
	reason, message string
}

// classify returns why the API server has refused an eviction. It returns answered = false if the API server could not be reached or has
// rejected our credentials.
func classify(err error) (why refusal, answered bool) {
	var status apierrors.APIStatus
	switch message := err.Error(); {
	case isTimeout(err):
		return refusal{v1alpha1.ReasonNoResponse, "The API server did not respond to the eviction in time; an admission webhook may be slow: " + message}, true
	case !errors.As(err, &status) || apierrors.IsUnauthorized(err):
		return refusal{}, false
	case workload.NotServed(err):
		return refusal{string(budgets.EvictionNotServed), budgets.NotServed + ": " + message}, true
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return refusal{v1alpha1.ReasonNamespaceTerminating, "The namespace is being deleted: " + message}, true
	case apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
		return refusal{v1alpha1.ReasonBudgetRefused, budgetRefusal(err)}, true
	case apierrors.IsTooManyRequests(err), workload.IsBudgetConflict(err):
		return refusal{v1alpha1.ReasonBudgetUpdating, "The PodDisruptionBudget is being updated: " + message}, true
	case apierrors.IsInternalError(err) && strings.Contains(message, "more than one PodDisruptionBudget"):
		return refusal{v1alpha1.ReasonMultipleBudgets, "More than one PodDisruptionBudget selects this Pod, so Kubernetes cannot evict it"}, true
	case apierrors.IsInternalError(err) && strings.Contains(message, "failed calling webhook"):
		return refusal{v1alpha1.ReasonAdmissionFailed, "The API server could not call an admission webhook: " + message}, true
	case isAdmission(err):
		return refusal{v1alpha1.ReasonAdmissionRefused, "An admission policy or webhook refused the eviction: " + message}, true
	default:
		return refusal{v1alpha1.ReasonEvictionRefused, "The API server refused the eviction: " + message}, true
	}
}

// isAdmission reports whether the error has a reason that admission policies and webhooks use for refusals.
func isAdmission(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}

// isTimeout reports whether the request timed out, in the API server or in the client.
func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || utilnet.IsTimeout(errors.Cause(err))
}

// budgetRefusal returns the message of the status cause, which names the budget and its numbers of Pods.
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

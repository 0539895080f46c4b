package evictor

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

// What the API server says in the messages of responses that have no separate code, reason or type of cause. The integration tests compare
// testdata/responses.json with the responses of a real API server.
const (
	// cannotCallWebhook begins the cause that names an admission webhook without a valid response.
	cannotCallWebhook = `failed calling webhook "`
	// notAuthorized is in the message of a response to a user who may not evict Pods.
	notAuthorized = ` cannot create resource "pods/eviction" in API group `
	// stillProcessed ends the cause that names a PodDisruptionBudget whose status is not up to date.
	stillProcessed = " is still being processed by the server."
	// multipleBudgets is in the message of a response about a Pod with several PodDisruptionBudgets.
	multipleBudgets = "more than one PodDisruptionBudget"
	// budgetKind is the kind in the details of a response that says that a PodDisruptionBudget cannot be used.
	budgetKind = "poddisruptionbudget"
)

// refusal is why the API server has refused an eviction: a machine-readable reason and a message for users (E18).
type refusal struct {
	reason, message string
	retryAfter      time.Duration // that the response asks for, 0 if it does not ask for that
}

// classify returns why the API server has refused an eviction. It returns answered = false if the API server could not be reached or has
// rejected our credentials.
func classify(err error) (why refusal, answered bool) {
	response, responded := answers.ResponseOf(err)
	if why = ofAdmission(err, response); why.reason == "" { // it comes first: what it decides may have any code and reason
		why = ofServer(err, response, responded)
	}
	if seconds, suggested := apierrors.SuggestsClientDelay(err); suggested {
		why.retryAfter = time.Duration(seconds) * time.Second
	}
	return why, why.reason != ""
}

// ofAdmission returns which part of admission has given the response, and an empty refusal if none has.
func ofAdmission(err error, response metav1.Status) refusal {
	switch said := err.Error(); {
	case answers.IsDeniedByWebhook(err):
		return refusal{reason: v1alpha1.ReasonWebhookRefused, message: "An admission webhook refused the eviction: " + said}
	case answers.IsDeniedByPolicy(err):
		return refusal{reason: v1alpha1.ReasonAdmissionPolicyRefused, message: "An admission policy refused the eviction: " + said}
	case answers.CauseWith(response, cannotCallWebhook) != "":
		return refusal{reason: v1alpha1.ReasonAdmissionFailed, message: "The API server could not call an admission webhook: " + said}
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return refusal{reason: v1alpha1.ReasonNamespaceTerminating, message: "The namespace is being deleted: " + said}
	default:
		return refusal{}
	}
}

// ofServer returns why the API server itself has refused an eviction, and an empty refusal if there is no response.
func ofServer(err error, response metav1.Status, responded bool) refusal {
	said := err.Error()
	switch {
	case isTimeout(err):
		message := "The API server did not respond to the eviction in time; an admission webhook may be slow: " + said
		return refusal{reason: v1alpha1.ReasonNoResponse, message: message}
	case !responded || apierrors.IsUnauthorized(err):
		return refusal{}
	case answers.NotServed(err):
		return refusal{reason: string(budgets.EvictionNotServed), message: budgets.NotServed + ": " + said}
	case apierrors.IsForbidden(err) && strings.Contains(said, notAuthorized):
		return refusal{reason: v1alpha1.ReasonEvictionForbidden, message: "The manager is not allowed to evict the Pod: " + said}
	}
	if why := ofBudget(err, response); why.reason != "" {
		return why
	}
	switch {
	case apierrors.IsTooManyRequests(err):
		return refusal{reason: v1alpha1.ReasonAPIServerBusy, message: "The API server does not process the eviction now: " + unstructured(response)}
	case answers.IsAdmission(err):
		return refusal{reason: v1alpha1.ReasonAdmissionRefused, message: "Admission refused the eviction: " + said}
	default:
		return refusal{reason: v1alpha1.ReasonEvictionRefused, message: "The API server refused the eviction: " + said}
	}
}

// ofBudget returns why a PodDisruptionBudget does not allow the eviction, and an empty refusal if the response says nothing about one.
func ofBudget(err error, response metav1.Status) refusal {
	about := aboutBudget(response)
	switch said := err.Error(); {
	case answers.IsBudgetConflict(err):
		return refusal{reason: v1alpha1.ReasonDisruptionBudgetUpdating, message: "The PodDisruptionBudget is being updated: " + said}
	case strings.HasSuffix(about, stillProcessed):
		return refusal{reason: v1alpha1.ReasonDisruptionBudgetUpdating, message: "The PodDisruptionBudget is being updated: " + about}
	case about != "":
		return refusal{reason: v1alpha1.ReasonDisruptionBudgetRefused, message: about}
	case apierrors.IsInternalError(err) && strings.Contains(said, multipleBudgets):
		return refusal{reason: v1alpha1.ReasonMultipleBudgets, message: "More than one PodDisruptionBudget selects this Pod, so Kubernetes cannot evict it"}
	default:
		return refusal{}
	}
}

// isTimeout reports whether the request timed out, in the API server or in the client.
func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || utilnet.IsTimeout(errors.Cause(err))
}

// aboutBudget returns what the response says about a PodDisruptionBudget, "" if it says nothing.
func aboutBudget(response metav1.Status) string {
	for _, cause := range answers.CausesOf(response) {
		if cause.Type == policyv1.DisruptionBudgetCause {
			return cmp.Or(cause.Message, response.Message)
		}
	}
	if response.Details != nil && response.Details.Kind == budgetKind {
		return response.Message
	}
	return ""
}

// unstructured returns the text of a response that is no object of Kubernetes, or otherwise its message.
func unstructured(response metav1.Status) string {
	for _, cause := range answers.CausesOf(response) {
		if cause.Type == metav1.CauseTypeUnexpectedServerResponse && cause.Message != "" {
			return cause.Message
		}
	}
	return response.Message
}

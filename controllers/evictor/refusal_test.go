package evictor

import (
	"context"
	_ "embed"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
)

// recorded are responses of a real API server. An integration test compares them with those of the API server that it starts, and writes
// them with the flag -update-responses.
//
//go:embed testdata/responses.json
var recorded []byte

func TestRecordedRefusals(t *testing.T) {
	responses := map[string]metav1.Status{}
	if err := json.Unmarshal(recorded, &responses); err != nil {
		t.Fatal(err)
	}
	for what, want := range map[string]struct {
		reason, message string
		retryAfter      time.Duration
	}{
		"a webhook that says later": {
			v1alpha1.ReasonWebhookRefused, `An admission webhook refused the eviction: admission webhook "gate.example.com" denied the request: later`, 45 * time.Second,
		},
		"a webhook that forbids the eviction": {
			v1alpha1.ReasonWebhookRefused, `An admission webhook refused the eviction: admission webhook "gate.example.com" denied the request: not today`, 0,
		},
		"a webhook that says nothing": {
			v1alpha1.ReasonWebhookRefused, `An admission webhook refused the eviction: admission webhook "gate.example.com" denied the request without explanation`, 0,
		},
		"a webhook that says not found":         {v1alpha1.ReasonWebhookRefused, "An admission webhook refused the eviction: ", 0},
		"a webhook that says conflict":          {v1alpha1.ReasonWebhookRefused, "An admission webhook refused the eviction: ", 0},
		"a webhook that says unauthorized":      {v1alpha1.ReasonWebhookRefused, "An admission webhook refused the eviction: ", 0},
		"a webhook that says timeout":           {v1alpha1.ReasonWebhookRefused, "An admission webhook refused the eviction: ", 0},
		"a webhook that imitates a budget":      {v1alpha1.ReasonWebhookRefused, "An admission webhook refused the eviction: ", 0},
		"a webhook that says namespace deleted": {v1alpha1.ReasonWebhookRefused, "An admission webhook refused the eviction: ", 0},
		"a webhook that does not run": {
			v1alpha1.ReasonAdmissionFailed, `The API server could not call an admission webhook: Internal error occurred: failed calling webhook "down.example.com"`, 0,
		},
		"a webhook whose match condition cannot be evaluated": {v1alpha1.ReasonAdmissionRefused, "Admission refused the eviction: ", 0},
		"an admission policy": {
			v1alpha1.ReasonAdmissionPolicyRefused,
			`An admission policy refused the eviction: pods "e64-policy" is forbidden: ValidatingAdmissionPolicy 'e64' with binding 'e64' denied request: not today`, 0,
		},
		"an admission policy with the reason Forbidden":        {v1alpha1.ReasonAdmissionPolicyRefused, "An admission policy refused the eviction: ", 0},
		"an admission policy that cannot be evaluated":         {v1alpha1.ReasonAdmissionPolicyRefused, "An admission policy refused the eviction: ", 0},
		"a mutating admission policy that cannot be evaluated": {v1alpha1.ReasonAdmissionPolicyRefused, "An admission policy refused the eviction: ", 0},
		"a budget": {v1alpha1.ReasonDisruptionBudgetRefused, "The disruption budget e64-exhausted needs 1 healthy pods and has 1 currently", 0},
		"a budget that is being updated": {
			v1alpha1.ReasonDisruptionBudgetUpdating,
			"The PodDisruptionBudget is being updated: The disruption budget e64-processed is still being processed by the server.",
			10 * time.Second,
		},
		"a budget with many evictions": {
			v1alpha1.ReasonDisruptionBudgetRefused, `poddisruptionbudget.policy "e64-full" is forbidden: DisruptedPods map too big`, 0,
		},
		"two budgets":                       {v1alpha1.ReasonMultipleBudgets, "More than one PodDisruptionBudget selects this Pod", 0},
		"a namespace that is being deleted": {v1alpha1.ReasonNamespaceTerminating, "The namespace is being deleted: ", 0},
		"authorization": {
			v1alpha1.ReasonEvictionForbidden,
			`The manager is not allowed to evict the Pod: pods "e64-forbidden" is forbidden: User "e64-stranger" cannot create resource "pods/eviction"`, 0,
		},
		"API Priority and Fairness": {
			v1alpha1.ReasonAPIServerBusy, "The API server does not process the eviction now: Too many requests, please try again later.", time.Second,
		},
	} {
		t.Run("E64: "+what, func(t *testing.T) {
			response, found := responses[what]
			got, answered := classify(&apierrors.StatusError{ErrStatus: response})
			if answers.IsGone(&apierrors.StatusError{ErrStatus: response}) {
				t.Error("the Pod counts as deleted")
			}
			if !found || !answered || got.reason != want.reason || !strings.HasPrefix(got.message, want.message) || got.retryAfter != want.retryAfter {
				t.Errorf("got %+v, want %+v", got, want)
			}
			delete(responses, what)
		})
	}
	for what := range responses {
		t.Errorf("the response of %s has no test", what)
	}
}

func TestRefusal(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for _, tc := range []struct {
		name    string
		err     error
		reason  string
		message string
	}{
		{
			"E18: a budget that other writes keep from being updated",
			apierrors.NewConflict(schema.GroupResource{Group: "policy", Resource: "poddisruptionbudgets"}, "web", errors.New("modified")),
			v1alpha1.ReasonDisruptionBudgetUpdating,
			"The PodDisruptionBudget is being updated: ",
		},
		{
			"E18: no response before the timeout of the client",
			errors.Wrap(context.DeadlineExceeded, "evicting"), v1alpha1.ReasonNoResponse, "The API server did not respond to the eviction in time",
		},
		{
			"E18: no response before the timeout of the API server",
			apierrors.NewTimeoutError("too long", 1), v1alpha1.ReasonNoResponse, "The API server did not respond to the eviction in time",
		},
		{
			"E19: an API server without policy/v1", apierrors.NewGenericServerResponse(404, "create", schema.GroupResource{}, "", "", 0, true), "EvictionNotServed",
			"The API server does not serve evictions and PodDisruptionBudgets of policy/v1",
		},
		{
			"E64: an API server that cannot list budgets yet", apierrors.NewTooManyRequests("storage is (re)initializing", 1), v1alpha1.ReasonAPIServerBusy,
			"The API server does not process the eviction now: storage is (re)initializing",
		},
		{
			"E64: an admission plugin", apierrors.NewForbidden(pods, "web", errors.New("not yet ready to handle request")), v1alpha1.ReasonAdmissionRefused,
			"Admission refused the eviction: ",
		},
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

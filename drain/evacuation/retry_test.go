package evacuation_test

import (
	"math"
	"testing"
	"time"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

// refused is the refusal of a policy while it refuses Pods of a workload cluster and of a Node.
func refused(inCluster, onNode int, took time.Duration) evacuation.Refusal {
	return evacuation.Refusal{Reason: v1alpha1.ReasonAdmissionPolicyRefused, InCluster: inCluster, OnNode: onNode, Took: took}
}

func TestRefusalBackoff(t *testing.T) {
	for _, test := range []struct {
		name     string
		refusal  evacuation.Refusal
		refusals int32
		jitter   float64
		want     time.Duration
	}{
		{"E65: starts with 1 s after a refusal of a webhook", evacuation.Refusal{Reason: v1alpha1.ReasonWebhookRefused}, 1, 0, time.Second},
		{"E65: doubles", evacuation.Refusal{Reason: v1alpha1.ReasonWebhookRefused}, 5, 0, 16 * time.Second},
		{"E65: is 30 s at most", evacuation.Refusal{Reason: v1alpha1.ReasonWebhookRefused}, 6, 0, 30 * time.Second},
		{"E65: stays 30 s", evacuation.Refusal{Reason: v1alpha1.ReasonWebhookRefused}, math.MaxInt32, 0, 30 * time.Second},
		{"E65: is 30 s at most after a refusal of an admission policy", evacuation.Refusal{Reason: v1alpha1.ReasonAdmissionPolicyRefused}, 40, 0, 30 * time.Second},
		{"E65: is 30 s at most after another refusal of admission", evacuation.Refusal{Reason: v1alpha1.ReasonAdmissionRefused}, 40, 0, 30 * time.Second},
		{"E65: is 30 s at most after a refusal of authorization", evacuation.Refusal{Reason: v1alpha1.ReasonEvictionForbidden}, 40, 0, 30 * time.Second},
		{"E65: is 30 s at most if the API server has too many requests", evacuation.Refusal{Reason: v1alpha1.ReasonAPIServerBusy}, 40, 0, 30 * time.Second},
		{"E65: is 30 s at most if a webhook does not run", evacuation.Refusal{Reason: v1alpha1.ReasonAdmissionFailed, Took: time.Second}, 40, 0, 30 * time.Second},
		{
			"E14: doubles up to 15 minutes if a webhook hangs",
			evacuation.Refusal{Reason: v1alpha1.ReasonAdmissionFailed, Took: 10 * time.Second}, 40, 0, 15 * time.Minute,
		},
		{"E14: doubles up to 15 minutes without a response", evacuation.Refusal{Reason: v1alpha1.ReasonNoResponse, Took: 40 * time.Second}, 40, 0, 15 * time.Minute},
		{
			"E14: doubles up to 15 minutes after a refusal of a budget, whatever the response asks for",
			evacuation.Refusal{Reason: v1alpha1.ReasonDisruptionBudgetRefused, RetryAfter: 10 * time.Second}, 40, 0, 15 * time.Minute,
		},
		{
			"E14: starts with 1 s after a refusal of a budget",
			evacuation.Refusal{Reason: v1alpha1.ReasonDisruptionBudgetUpdating, RetryAfter: 10 * time.Second}, 1, 0, time.Second,
		},
		{"E65: is as long as the response asks for", evacuation.Refusal{Reason: v1alpha1.ReasonWebhookRefused, RetryAfter: 45 * time.Second}, 1, 0, 45 * time.Second},
		{"E65: is a minute at most", evacuation.Refusal{Reason: v1alpha1.ReasonWebhookRefused, RetryAfter: time.Hour}, 40, 0, time.Minute},
		{
			"E65: grows although the response asks for less",
			evacuation.Refusal{Reason: v1alpha1.ReasonWebhookRefused, RetryAfter: time.Second}, 40, 0, 30 * time.Second,
		},
		{"E65: has jitter", evacuation.Refusal{Reason: v1alpha1.ReasonWebhookRefused}, 40, 1, 24 * time.Second},
		{
			"E65: jitter does not shorten what the response asks for",
			evacuation.Refusal{Reason: v1alpha1.ReasonWebhookRefused, RetryAfter: 28 * time.Second}, 40, 1, 28 * time.Second,
		},
		{"E65: is 30 s at most while 600 Pods are refused", refused(600, 0, 0), 40, 0, 30 * time.Second},
		{"E65: is longer while more Pods are refused", refused(2700, 0, 0), 40, 0, 135 * time.Second},
		{"E65: is as long from the first refusal on", refused(2700, 0, 0), 1, 0, 135 * time.Second},
		{"E65: is 15 minutes at most, whatever the number of refused Pods", refused(math.MaxInt32, 0, 0), 40, 0, 15 * time.Minute},
		{"E65: is longer while responses to many Pods take long", refused(700, 10, 5*time.Second), 40, 0, 109375 * time.Millisecond},
		{"E65: is longer while responses to many Pods of a Node take long", refused(100, 100, 5*time.Second), 40, 0, 125 * time.Second},
		{"E65: is 30 s at most while responses to a few Pods take long", refused(24, 24, 5*time.Second), 40, 0, 30 * time.Second},
		{"E65: has jitter while many Pods are refused", refused(2700, 0, 0), 40, 1, 108 * time.Second},
		{"E65: is as long as the response asks for while many Pods are refused", evacuation.Refusal{
			Reason: v1alpha1.ReasonAPIServerBusy, InCluster: 1000, RetryAfter: 55 * time.Second,
		}, 40, 0, 55 * time.Second},
		{"E14: starts with 1 s after a refusal of a budget while admission refuses many Pods", evacuation.Refusal{
			Reason: v1alpha1.ReasonDisruptionBudgetRefused, InCluster: 2700,
		}, 1, 0, time.Second},
		{"E14: has jitter after a refusal of a budget", evacuation.Refusal{Reason: v1alpha1.ReasonDisruptionBudgetRefused}, 40, 1, 12 * time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := test.refusal.Backoff(test.refusals, test.jitter); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestChangeBackoff(t *testing.T) {
	for _, test := range []struct {
		name, reason string
		changes      int32
		refused      int
		want         time.Duration
		effective    bool
	}{
		{"E65: an attempt follows a change of the Pod", v1alpha1.ReasonWebhookRefused, 0, 1, time.Second, true},
		{"E65: each refusal in a row before which the Pod has changed doubles the backoff", v1alpha1.ReasonWebhookRefused, 4, 1, 16 * time.Second, true},
		{"E65: the backoff is 30 s at most", v1alpha1.ReasonWebhookRefused, math.MaxInt32, 1, 30 * time.Second, true},
		{"E65: an attempt follows a change of one of 600 refused Pods", v1alpha1.ReasonWebhookRefused, 0, 600, time.Second, true},
		{"E65: the backoff is longer while many Pods are refused", v1alpha1.ReasonWebhookRefused, 0, 2700, 135 * time.Second, true},
		{"E65: an admission policy may look at the Pod", v1alpha1.ReasonAdmissionPolicyRefused, 0, 1, time.Second, true},
		{"E65: no change of the Pod makes the API server less busy", v1alpha1.ReasonAPIServerBusy, 0, 1, 0, false},
		{"E65: no change of the Pod starts a webhook", v1alpha1.ReasonAdmissionFailed, 0, 1, 0, false},
		{"E14: events of a budget are not those of the Pod", v1alpha1.ReasonDisruptionBudgetRefused, 0, 1, 0, false},
		{"E14: no refusal", "", 0, 1, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, effective := (evacuation.Refusal{Reason: test.reason, InCluster: test.refused}).ChangeBackoff(test.changes); got != test.want ||
				effective != test.effective {
				t.Errorf("got %s, %t, want %s, %t", got, effective, test.want, test.effective)
			}
		})
	}
}

package evacuation_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

func TestFailedEvictionCounter(t *testing.T) {
	refused := func(times int32) v1alpha1.EvacuationStatus {
		return v1alpha1.EvacuationStatus{FailedEvictionCounter: times, Message: "waiting"}
	}
	for name, tc := range map[string]struct {
		before, after v1alpha1.EvacuationStatus
		accepted      bool
	}{
		"E6: failedEvictionCounter may increase":                        {refused(1), refused(2), true},
		"E6: failedEvictionCounter may be absent":                       {refused(0), refused(0), true},
		"E6: failedEvictionCounter must not decrease":                   {refused(2), refused(1), false},
		"E6: failedEvictionCounter must not be removed":                 {refused(2), refused(0), false},
		"E6: failedEvictionCounter must not be removed with the status": {refused(2), v1alpha1.EvacuationStatus{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			before := evacuation.New(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: uid}}, nil, 1800)
			before.Status = tc.before
			after := before.DeepCopy()
			after.Status = tc.after
			if errs := validate(t, after, before); (len(errs) == 0) != tc.accepted {
				t.Errorf("accepted: %t, %v", len(errs) == 0, errs)
			}
		})
	}
}

package workload

import (
	"context"
	"net/http"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/capnm/cluster-api-node-maintenance/drain/lookup"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestIsAdmission(t *testing.T) {
	pods, ofProxy := schema.GroupResource{Resource: "pods"}, metav1.StatusCause{Type: metav1.CauseTypeUnexpectedServerResponse}
	byPolicy := apierrors.NewUnauthorized("no")
	byPolicy.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Message: "ValidatingAdmissionPolicy 'p' with binding 'p' denied it"}}}
	for name, tc := range map[string]struct {
		err               error
		admission, answer bool
	}{
		"a webhook that says forbidden":         {fakes.DeniedWith(http.StatusForbidden, metav1.StatusReasonForbidden), true, true},
		"a webhook that says unauthorized":      {fakes.DeniedWith(http.StatusUnauthorized, metav1.StatusReasonUnauthorized), true, true},
		"a webhook that says conflict":          {fakes.DeniedWith(http.StatusConflict, metav1.StatusReasonConflict), true, true},
		"a webhook that says too large":         {fakes.DeniedWith(http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge), true, true},
		"a webhook that says too many requests": {fakes.DeniedWith(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests), true, true},
		"a webhook that says timeout":           {fakes.DeniedWith(http.StatusGatewayTimeout, metav1.StatusReasonTimeout), true, true},
		"a webhook that says internal error":    {fakes.DeniedWith(http.StatusInternalServerError, metav1.StatusReasonInternalError), true, true},
		"a webhook that gives no reason":        {fakes.DeniedWith(http.StatusTooManyRequests, ""), true, true},
		"a webhook that gives a proxy's cause":  {fakes.DeniedWith(http.StatusBadGateway, "", ofProxy), true, true},
		"a policy that says unauthorized":       {byPolicy, true, true},
		"the API server's own admission":        {apierrors.NewForbidden(pods, "p", errors.New("exceeded quota")), true, true},
		"a conflict":                            {apierrors.NewConflict(pods, "p", errors.New("modified")), false, true},
		"an API server that fails":              {apierrors.NewInternalError(errors.New(`failed calling webhook "w"`)), false, true},
		"an API server that is busy":            {apierrors.NewTooManyRequests("later", 1), false, false},
		"an API server that times out":          {apierrors.NewTimeoutError("later", 1), false, false},
		"no answer":                             {context.DeadlineExceeded, false, false},
		"no error":                              {nil, false, false},
	} {
		t.Run("E64: "+name, func(t *testing.T) {
			g, err := NewWithT(t), errors.Wrap(tc.err, "patching")
			g.Expect(IsAdmission(err)).To(Equal(tc.admission))
			g.Expect(IsAnswer(err)).To(Equal(tc.answer))
		})
	}
}

func TestConflictsOfWebhooks(t *testing.T) {
	evacuations := schema.GroupResource{Resource: "evacuations"}
	for name, tc := range map[string]struct {
		err              error
		conflict, exists bool
	}{
		"a conflict":                             {apierrors.NewConflict(evacuations, "e", errors.New("modified")), true, false},
		"an object that already exists":          {apierrors.NewAlreadyExists(evacuations, "e"), false, true},
		"a webhook that says conflict":           {fakes.DeniedWith(http.StatusConflict, metav1.StatusReasonConflict), false, false},
		"a webhook that says that it exists":     {fakes.DeniedWith(http.StatusConflict, metav1.StatusReasonAlreadyExists), false, false},
		"a webhook that says 409 without reason": {fakes.DeniedWith(http.StatusConflict, ""), false, false},
	} {
		t.Run("E64: "+name, func(t *testing.T) {
			g, err := NewWithT(t), errors.Wrap(tc.err, "creating")
			g.Expect(IsConflict(err)).To(Equal(tc.conflict))
			g.Expect(lookup.AlreadyExists(err)).To(Equal(tc.exists))
		})
	}
}

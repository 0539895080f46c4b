package answers

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/capnm/cluster-api-node-maintenance/controllers/setaside"
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
			g.Expect(AlreadyExists(err)).To(Equal(tc.exists))
		})
	}
}

func TestIsUnanswered(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"a refused connection":                     {&url.Error{Op: "Get", URL: "https://workload", Err: refused}, true},
		"a request that took too long":             {&url.Error{Op: "Get", URL: "https://workload", Err: context.DeadlineExceeded}, true},
		"a connection that ends within the answer": {io.ErrUnexpectedEOF, true},
		"a server that does not speak the protocol": {
			apierrors.NewGenericServerResponse(http.StatusMovedPermanently, http.MethodGet, schema.GroupResource{}, "", "moved", 0, true), true,
		},
		"an admission webhook that gives no reason": {&apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusBadRequest, Message: `admission webhook "w" denied the request: no`,
		}}, false},
		"a refusal":                             {apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", errors.New("no rule allows it")), false},
		"E53: an object that is set aside":      {&setaside.Error{Kind: "NodeMaintenance", Err: errors.New("a number is too large")}, false},
		"E53: an object that cannot be decoded": {json.Unmarshal([]byte(`{"metadata":1}`), &metav1.PartialObjectMetadata{}), false},
		"M16: the Cluster is paused":            {errors.New("the Cluster is paused"), false},
	} {
		t.Run("M57: "+name, func(t *testing.T) {
			if got := IsUnanswered(errors.Wrap(tc.err, "getting")); got != tc.want {
				t.Errorf("got %v for %v", got, tc.err)
			}
		})
	}
}

func TestNotServed(t *testing.T) {
	const unknown = "the server could not find the requested resource"
	status := func(code int32, reason metav1.StatusReason, message string, details *metav1.StatusDetails) error {
		return errors.Wrap(&apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message, Details: details,
		}}, "evicting")
	}
	for _, tc := range []struct { // the answers are those of kube-apiserver, with --runtime-config=policy/v1=false and without
		name            string
		err             error
		notServed, gone bool
	}{
		{
			"E19: PodDisruptionBudgets of policy/v1 are not served",
			status(404, metav1.StatusReasonNotFound, unknown+" (get poddisruptionbudgets.policy)", &metav1.StatusDetails{
				Group: "policy", Kind: "poddisruptionbudgets",
				Causes: []metav1.StatusCause{{Type: metav1.CauseTypeUnexpectedServerResponse, Message: "404 page not found"}},
			}), true, false,
		},
		{"E19: the eviction subresource is not served", status(404, metav1.StatusReasonNotFound, unknown, &metav1.StatusDetails{}), true, false},
		{
			"E19: the version of the eviction is not served", status(400, metav1.StatusReasonBadRequest,
				`Eviction in version "v1" cannot be handled as a Eviction: no kind "Eviction" is registered for version "policy/v1" in scheme "pkg/runtime/scheme.go:111"`,
				nil), true, false,
		},
		{
			"M109: the kind of a named object is not served",
			apierrors.NewGenericServerResponse(http.StatusNotFound, http.MethodGet, schema.GroupResource{Resource: "pods"}, "p", "404 page not found", 0, true), true,
			false,
		},
		{"E18: the Pod does not exist", status(404, metav1.StatusReasonNotFound, `pods "p" not found`, &metav1.StatusDetails{Kind: "pods", Name: "p"}), false, true},
		{
			"E18: the Pod was replaced by another Pod with the same name",
			apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "p", errors.New("UID")), false, true,
		},
		{
			"E18: the UID of the Pod differs",
			apierrors.NewConflict(schema.GroupResource{Resource: "Pod"}, "p", errors.New("the UID in the precondition does not match")), false, true,
		},
		{
			"E18: the PodDisruptionBudget could not be updated",
			apierrors.NewConflict(schema.GroupResource{Group: "policy", Resource: "poddisruptionbudgets"}, "b", errors.New("modified")), false, false,
		},
		{
			"E18: an admission webhook refused it with a conflict",
			status(409, metav1.StatusReasonConflict, `admission webhook "w" denied the request`, nil), false, false,
		},
		{
			"E64: an admission webhook refused it with a conflict that names the Pod",
			status(409, metav1.StatusReasonConflict, `admission webhook "w" denied the request: in use`, &metav1.StatusDetails{Kind: "pods", Name: "p"}), false, false,
		},
		{"E64: an admission webhook refused it as if nothing served it", status(404, "", `admission webhook "w" denied the request: no`, nil), false, false},
		{
			"E64: an admission webhook refused it as if the Pod did not exist",
			status(404, metav1.StatusReasonNotFound, `admission webhook "w" denied the request: no`, &metav1.StatusDetails{Kind: "pods", Name: "p"}), false, false,
		},
		{"E18: the request is invalid for another reason", apierrors.NewBadRequest("name must be p"), false, false},
		{"E18: no answer", errors.New("connection refused"), false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if notServed, gone := NotServed(tc.err), IsGone(tc.err); notServed != tc.notServed || gone != tc.gone {
				t.Errorf("not served: %t, gone: %t", notServed, gone)
			}
		})
	}
}

func TestKindNotServed(t *testing.T) {
	maintenances := schema.GroupResource{Group: "maintenance.cluster.x-k8s.io", Resource: "nodemaintenances"}
	for name, test := range map[string]struct {
		err    error
		served bool
	}{
		"M52: the CRD is being deleted": {
			apierrors.NewForbidden(maintenances, "a", errors.New("create not allowed while custom resource definition is terminating")), false,
		},
		"M52: the CRD is deleted": {apierrors.NewGenericServerResponse(http.StatusNotFound, http.MethodPost, maintenances, "", "", 0, true), false},
		"M52: a policy refuses":   {apierrors.NewForbidden(maintenances, "a", errors.New("frozen")), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := KindNotServed(errors.Wrap(test.err, "creating NodeMaintenance a")); got == test.served {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestIsOverload(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"R98: the API server has too many requests":     {apierrors.NewTooManyRequests("busy", 1), true},
		"R98: the API server is not ready":              {apierrors.NewServiceUnavailable("starting"), true},
		"R98: a webhook denies the request with 429":    {fakes.DeniedWith(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests), false},
		"R98: a webhook denies the request with 503":    {fakes.DeniedWith(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable), false},
		"R98: the API server had a timeout":             {apierrors.NewTimeoutError("busy", 1), false},
		"R98: the API server does not permit the write": {apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "n", errors.New("no")), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := IsOverload(errors.Wrap(tc.err, "patching")); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

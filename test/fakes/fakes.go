// Package fakes has clients without an API server, responses of webhooks and readings of metrics, for unit tests of one function.
package fakes

import (
	"net/http"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Scheme returns a scheme with the kinds of management and workload clusters.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	kinds := runtime.SchemeBuilder{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, clusterv1.AddToScheme, v1alpha1.AddToScheme}
	utilruntime.Must(kinds.AddToScheme(scheme))
	return scheme
}

// Builder returns a builder of a client that stores the objects.
func Builder(objects ...client.Object) *fake.ClientBuilder {
	return fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(objects...)
}

// Client returns a client that stores the objects.
func Client(objects ...client.Object) client.WithWatch { return Builder(objects...).Build() }

// DeniedWithConflict is the response of an admission webhook that denies a request with the code and the reason of a conflict.
func DeniedWithConflict() error {
	return DeniedWith(http.StatusConflict, metav1.StatusReasonConflict)
}

// DeniedWith is the response of an admission webhook that denies a request with a code, a reason and causes.
func DeniedWith(code int32, reason metav1.StatusReason, causes ...metav1.StatusCause) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: `admission webhook "w" denied the request: no`,
		Details: &metav1.StatusDetails{Kind: "any", Name: "any", Causes: causes},
	}}
}

// Gauge returns the value of a metric of a Cluster, 0 if it has none.
func Gauge(t *testing.T, name, cluster string) (value float64) {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if family.GetName() == name && label.GetName() == "cluster" && label.GetValue() == cluster {
					value += metric.GetGauge().GetValue()
				}
			}
		}
	}
	return value
}

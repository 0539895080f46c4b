// Package fakes has clients without an API server, for unit tests of one function.
package fakes

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

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

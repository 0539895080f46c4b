package clusterapi

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	runtimev1 "sigs.k8s.io/cluster-api/api/runtime/v1beta2"

	maintenancev1 "github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

// Scheme returns a new scheme with every kind that tests use, in management and in workload
// clusters: those of Kubernetes, of Cluster API, of this project and of the kwok provider.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	kinds := runtime.SchemeBuilder{
		clientgoscheme.AddToScheme,
		apiextensionsv1.AddToScheme,
		clusterv1.AddToScheme,
		runtimev1.AddToScheme,
		maintenancev1.AddToScheme,
		kwok.AddToScheme,
	}
	// It fails if two kinds claim one name, which is a programming error.
	utilruntime.Must(kinds.AddToScheme(scheme))
	return scheme
}

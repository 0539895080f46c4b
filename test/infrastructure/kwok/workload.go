package kwok

import (
	"sync"

	"github.com/pkg/errors"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// Workload describes how to reach a workload cluster.
type Workload struct {
	// Endpoint of the API server for Cluster API.
	Endpoint clusterv1.APIEndpoint
	// Kubeconfig for Cluster API.
	Kubeconfig []byte
	// Config is used by the provider. It never uses a link that tests cut, since the network between
	// Cluster API and the workload cluster does not affect infrastructure.
	Config *rest.Config
}

// The users in workload clusters, which distinguish their requests in an audit log.
const (
	// ClusterAPIUser is the user of the kubeconfig Secret: Cluster API's core manager, and all other
	// controllers that use it.
	ClusterAPIUser = "capi"
	// ProviderUser is the user of this provider.
	ProviderUser = "kwok-infrastructure"

	systemMasters = "system:masters"
)

// Direct describes a workload cluster that Cluster API connects to directly.
func Direct(controlPlane *controlplane.ControlPlane) (Workload, error) {
	kubeconfig, err := controlPlane.KubeconfigFor(ClusterAPIUser, systemMasters)
	if err != nil {
		return Workload{}, errors.Wrap(err, "issuing the kubeconfig of Cluster API")
	}
	host, port := controlPlane.Host()
	return newWorkload(controlPlane, host, port, kubeconfig)
}

// Proxied describes a workload cluster that Cluster API reaches over the link that
// ControlPlane.CutNetwork cuts.
func Proxied(controlPlane *controlplane.ControlPlane) (Workload, error) {
	kubeconfig, err := controlPlane.ProxiedKubeconfigFor(ClusterAPIUser, systemMasters)
	if err != nil {
		return Workload{}, errors.Wrap(err, "issuing the kubeconfig of Cluster API")
	}
	host, port := controlPlane.ProxiedHost()
	return newWorkload(controlPlane, host, port, kubeconfig)
}

func newWorkload(controlPlane *controlplane.ControlPlane, host string, port int, kubeconfig []byte) (Workload, error) {
	config, err := controlPlane.ConfigFor(ProviderUser, systemMasters)
	if err != nil {
		return Workload{}, errors.Wrap(err, "issuing the credentials of the kwok provider")
	}
	return Workload{
		Endpoint:   clusterv1.APIEndpoint{Host: host, Port: int32(port)},
		Kubeconfig: kubeconfig,
		Config:     config,
	}, nil
}

// Workloads maps Clusters to workload clusters. The zero value is empty.
type Workloads struct {
	lock      sync.RWMutex
	byCluster map[client.ObjectKey]Workload
}

// Add adds the workload cluster of a Cluster. The Cluster need not exist yet; an existing one waits
// until it is added.
func (w *Workloads) Add(cluster client.ObjectKey, workload Workload) {
	w.lock.Lock()
	defer w.lock.Unlock()
	if w.byCluster == nil {
		w.byCluster = map[client.ObjectKey]Workload{}
	}
	w.byCluster[cluster] = workload
}

// Find returns the workload cluster of a Cluster. It can be used as Options.Workload.
func (w *Workloads) Find(cluster client.ObjectKey) (Workload, bool) {
	w.lock.RLock()
	defer w.lock.RUnlock()
	workload, ok := w.byCluster[cluster]
	return workload, ok
}

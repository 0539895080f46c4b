package kwok

import (
	"sync"

	"github.com/pkg/errors"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// Workload is what the provider needs to know of a workload cluster.
type Workload struct {
	// Endpoint of the API server, as Cluster API gets to know it.
	Endpoint clusterv1.APIEndpoint
	// Kubeconfig that Cluster API connects with.
	Kubeconfig []byte
	// Config that the provider itself connects with. Infrastructure is not affected by the
	// network between Cluster API and the workload cluster, so this is never a link that
	// tests cut.
	Config *rest.Config
}

// The users that act in workload clusters. They are what tells the requests of one from those
// of the other in an audit log.
const (
	// ClusterAPIUser is whom the kubeconfig Secret is issued to: Cluster API's core manager, and
	// all other controllers that use its connection.
	ClusterAPIUser = "capi"
	// ProviderUser is this provider.
	ProviderUser = "kwok-infrastructure"

	systemMasters = "system:masters"
)

// Direct describes a workload cluster that Cluster API connects straight to.
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

// Workloads remembers which workload cluster belongs to which Cluster. The zero value is empty.
type Workloads struct {
	lock      sync.RWMutex
	byCluster map[client.ObjectKey]Workload
}

// Add makes a workload cluster known. The Cluster need not exist yet, but a Cluster that does
// waits for this.
func (w *Workloads) Add(cluster client.ObjectKey, workload Workload) {
	w.lock.Lock()
	defer w.lock.Unlock()
	if w.byCluster == nil {
		w.byCluster = map[client.ObjectKey]Workload{}
	}
	w.byCluster[cluster] = workload
}

// Remove forgets a workload cluster, e.g. because its control plane has been stopped: the
// provider no longer waits for it when Machines are deleted.
func (w *Workloads) Remove(cluster client.ObjectKey) {
	w.lock.Lock()
	defer w.lock.Unlock()
	delete(w.byCluster, cluster)
}

// Find returns the workload cluster of a Cluster; it fits Options.Workload.
func (w *Workloads) Find(cluster client.ObjectKey) (Workload, bool) {
	w.lock.RLock()
	defer w.lock.RUnlock()
	workload, ok := w.byCluster[cluster]
	return workload, ok
}

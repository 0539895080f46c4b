package tenants

import (
	"context"
	"fmt"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

// Label has the tenant's name on its Nodes.
const Label = "bench.capnm.dev/tenant"

// Tenant is a workload cluster on a shared API server. Its first Node, its Namespace, its Cluster and the Machine of this Node, if it has
// one, have the same name.
type Tenant struct {
	Name    string
	Cluster kwok.Cluster
	Host    *Host

	link        *controlplane.NetworkLink // nil if it cannot be cut
	maintenance string
}

// Add creates the Node and the Namespace of a Cluster.
func (h *Host) Add(ctx context.Context, c client.Client, cluster kwok.Cluster) (*Tenant, error) {
	name := cluster.Key().Name
	t := &Tenant{Name: name, Cluster: cluster, Host: h}
	node := controlplane.NewNode(name)
	node.Labels[Label] = name
	node.Spec.ProviderID = kwok.ProviderID(name, name)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := kwok.Create(ctx, c, []client.Object{namespace, node}); err != nil {
		return nil, err
	}
	t.maintenance = machinedrain.MaintenanceName(client.ObjectKey{Namespace: cluster.Key().Namespace, Name: name}, name, node.UID)
	h.lock.Lock()
	defer h.lock.Unlock()
	h.tenants[UserPrefix+name] = t
	return t, nil
}

// BehindLink makes the tenant reachable over a separate link, which Cut cuts. It must be called before Workload.
func (t *Tenant) BehindLink() (err error) {
	t.link, err = controlplane.NewNetworkLink(t.Host.listener.Addr().String())
	return err
}

// Cut cuts the network to the tenant until Restore.
func (t *Tenant) Cut() { t.link.Cut() }

// Restore reverts Cut.
func (t *Tenant) Restore() { t.link.Restore() }

// Workload returns how the infrastructure provider reaches the tenant. Each tenant has a different client certificate, since client-go
// shares one connection among equal ones.
func (t *Tenant) Workload() (kwok.Workload, error) {
	port := t.Host.port()
	if t.link != nil {
		port = t.link.Port()
	}
	direct, err := t.Host.KubeconfigFor(UserPrefix+t.Name, systemMasters)
	if err != nil {
		return kwok.Workload{}, err
	}
	kubeconfig, err := redirect(direct, port)
	if err != nil {
		return kwok.Workload{}, err
	}
	provider, err := t.Host.ConfigFor(kwok.ProviderUser, systemMasters)
	if err != nil {
		return kwok.Workload{}, err
	}
	endpoint := clusterv1.APIEndpoint{Host: "127.0.0.1", Port: int32(port)}
	return kwok.Workload{Endpoint: endpoint, Kubeconfig: kubeconfig, Config: provider}, nil
}

// redirect changes the server of a kubeconfig.
func redirect(kubeconfig []byte, port int) ([]byte, error) {
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, errors.Wrap(err, "reading a tenant's kubeconfig")
	}
	for _, cluster := range config.Clusters {
		cluster.Server = fmt.Sprintf("https://127.0.0.1:%d", port)
	}
	content, err := clientcmd.Write(*config)
	return content, errors.Wrap(err, "writing a tenant's kubeconfig")
}

// AddIdleNode creates another Node, which has no kubelet and so no Pods.
func (t *Tenant) AddIdleNode(ctx context.Context, c client.Client, name string) error {
	node := controlplane.NewIdleNode(name)
	node.Labels[Label] = t.Name
	return kwok.Create(ctx, c, []client.Object{node})
}

// selectorFor returns the parameter and the selector for a list of all objects of a resource. It is "" to leave the list unrestricted.
func (t *Tenant) selectorFor(resource string) (parameter, selector string) {
	const byField = "fieldSelector"
	switch resource {
	case "nodes":
		return "labelSelector", Label + "=" + t.Name
	case "namespaces":
		return byField, "metadata.name=" + t.Name
	case "nodemaintenances":
		return byField, "metadata.name=" + t.maintenance
	case "pods", "events", "persistentvolumeclaims", "poddisruptionbudgets", "evacuations", "daemonsets", "deployments", "replicasets", "statefulsets",
		"horizontalpodautoscalers":
		return byField, "metadata.namespace=" + t.Name
	default:
		return "", ""
	}
}

// Package observe reads the objects that a report is made from. It writes nothing.
//
// A right that the user lacks is recorded as a gap, and the rest is read nevertheless.
package observe

import (
	"cmp"
	"context"
	"sync"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// The limits of requests to one API server are those of kubectl.
const (
	requestsPerSecond = 50
	requestBurst      = 300
)

// Cluster is a connection to a management or workload cluster.
type Cluster struct {
	client.WithWatch

	Config *rest.Config
	// Name says to people which cluster this is.
	Name string
	// HasMachines means that the cluster serves Machines, HasMaintenances that it serves NodeMaintenances. A cluster that manages itself
	// serves both.
	HasMachines, HasMaintenances bool

	gaps     *Gaps
	families map[types.NamespacedName]*family // by Cluster
}

// Connect connects to a cluster. It returns when the context is done, also if the API server does not answer.
func Connect(ctx context.Context, config *rest.Config, name string, gaps *Gaps) (*Cluster, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = requestsPerSecond, requestBurst
	discoverer, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, errors.Wrapf(err, "connecting to %s", name)
	}
	resources, err := discover(ctx, discoverer)
	if err != nil {
		return nil, errors.Wrapf(err, "discovering the API of %s", name)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(resources)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, errors.Wrap(err, "registering types")
		}
	}
	c := &Cluster{Config: config, Name: name, gaps: gaps}
	if c.WithWatch, err = client.NewWithWatch(config, client.Options{Scheme: scheme, Mapper: mapper}); err != nil {
		return nil, errors.Wrapf(err, "connecting to %s", name)
	}
	c.HasMachines = serves(mapper, clusterv1.GroupVersion.WithKind("Machine"))
	c.HasMaintenances = serves(mapper, v1alpha1.GroupVersion.WithKind("NodeMaintenance"))
	return c, nil
}

// discovered is what an API server serves.
type discovered struct {
	resources []*restmapper.APIGroupResources
	err       error
}

// discover returns what an API server serves. The client takes no context.
func discover(ctx context.Context, discoverer discovery.DiscoveryInterface) ([]*restmapper.APIGroupResources, error) {
	answer := make(chan discovered, 1)
	go func() {
		resources, err := restmapper.GetAPIGroupResources(discoverer)
		answer <- discovered{resources, err}
	}()
	select {
	case found := <-answer:
		return found.resources, found.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func serves(mapper meta.RESTMapper, kind schema.GroupVersionKind) bool {
	_, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	return err == nil
}

// Connections finds the clusters of a command.
type Connections struct {
	// Current is the cluster of the kubeconfig's context.
	Current *Cluster
	Gaps    *Gaps

	override string // the file of --workload-kubeconfig
	agent    string

	mu         sync.Mutex
	overridden types.NamespacedName // the Cluster of the override, once it was used
	workloads  map[types.NamespacedName]func() (*Workload, error)
}

// NewConnections connects to the cluster of the kubeconfig's context. workloadKubeconfig, if not empty, is the file that is used for
// workload clusters instead of the Secrets of the Clusters.
func NewConnections(ctx context.Context, config *rest.Config, contextName, workloadKubeconfig string) (*Connections, error) {
	gaps := &Gaps{}
	name := "context " + contextName
	if contextName == "" { // in a Pod, or without a kubeconfig
		name = "API server " + config.Host
	}
	current, err := Connect(ctx, config, name, gaps)
	if err != nil {
		return nil, err
	}
	return &Connections{
		Current: current, Gaps: gaps, override: workloadKubeconfig, agent: config.UserAgent, workloads: map[types.NamespacedName]func() (*Workload, error){},
	}, nil
}

// Workload returns the workload cluster of a Cluster. If it cannot be reached, that is not tried again for other Machines of the Cluster.
func (c *Connections) Workload(ctx context.Context, cluster types.NamespacedName) (*Workload, error) {
	return c.once(cluster, func() (*Workload, error) {
		connected, err := c.connectWorkload(ctx, cluster)
		if err != nil {
			return nil, err
		}
		w := newWorkload(connected)
		w.isOverridden = c.override != ""
		return w, nil
	})
}

// once returns what the first call of connect for a cluster has returned. Calls for other clusters do not wait for it.
func (c *Connections) once(cluster types.NamespacedName, connect func() (*Workload, error)) (*Workload, error) {
	c.mu.Lock()
	known := c.workloads[cluster]
	if known == nil {
		known = sync.OnceValues(connect)
		c.workloads[cluster] = known
	}
	c.mu.Unlock()
	return known()
}

func (c *Connections) connectWorkload(ctx context.Context, cluster types.NamespacedName) (*Cluster, error) {
	config, err := c.workloadConfig(ctx, cluster)
	if err != nil {
		return nil, err
	}
	config.UserAgent, config.Timeout, config.WarningHandler = c.agent, c.Current.Config.Timeout, c.Current.Config.WarningHandler
	return Connect(ctx, config, "Cluster "+cluster.String(), c.Gaps)
}

// CurrentWorkload returns the cluster of the context as a workload cluster.
func (c *Connections) CurrentWorkload() *Workload {
	current, _ := c.once(types.NamespacedName{}, func() (*Workload, error) { return newWorkload(c.Current), nil })
	return current
}

func (c *Connections) workloadConfig(ctx context.Context, cluster types.NamespacedName) (*rest.Config, error) {
	if c.override != "" {
		return c.overriddenConfig(cluster)
	}
	secret := &corev1.Secret{}
	key := types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name + "-kubeconfig"} // the contract of Cluster API
	if err := c.Current.Get(ctx, key, secret); err != nil {
		return nil, errors.Wrapf(err, "getting the kubeconfig of Cluster %s from Secret %s (not needed with --workload-kubeconfig FILE)", cluster, key)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(secret.Data["value"])
	if err != nil {
		return nil, errors.Wrapf(err, "reading the kubeconfig in Secret %s", key)
	}
	return config, confined(config, key)
}

// overriddenConfig reads the file of --workload-kubeconfig, which is that of one Cluster.
func (c *Connections) overriddenConfig(cluster types.NamespacedName) (*rest.Config, error) {
	c.mu.Lock()
	first := cmp.Or(c.overridden, cluster)
	c.overridden = first
	c.mu.Unlock()
	if first != cluster {
		return nil, errors.Errorf("Cluster %s is not read: --workload-kubeconfig is used for Cluster %s", cluster, first)
	}
	file, err := clientcmd.LoadFromFile(c.override)
	if err == nil {
		err = clientcmd.ResolveLocalPaths(file) // as kubectl, relative to the file
	}
	if err != nil {
		return nil, errors.Wrap(err, "reading --workload-kubeconfig")
	}
	config, err := clientcmd.NewDefaultClientConfig(*file, nil).ClientConfig()
	return config, errors.Wrapf(err, "reading %s", c.override)
}

// confined returns an error if a kubeconfig from a Secret would run a program or read files of the user: the author of the Secret must
// not gain that.
func confined(config *rest.Config, secret types.NamespacedName) error {
	if config.ExecProvider != nil || config.AuthProvider != nil || config.BearerTokenFile != "" || config.CertFile != "" || config.KeyFile != "" ||
		config.CAFile != "" {
		return errors.Errorf("the kubeconfig in Secret %s runs a program or refers to local files; save it to a file, check it, and pass --workload-kubeconfig FILE",
			secret)
	}
	return nil
}

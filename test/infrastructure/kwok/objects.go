package kwok

import (
	"context"
	"maps"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	controlplanev1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/controlplane/v1beta1"
	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
)

// Cluster builds the objects of one cluster for a test. It is a value: each With or In returns a
// modified copy.
type Cluster struct {
	namespace, name, version string
	externalControlPlane     bool
}

// NewCluster returns a cluster in namespace default, of the Kubernetes version that
// test/controlplane runs, whose control plane consists of stand-alone Machines, if any.
func NewCluster(name string) Cluster {
	// The version is unknown outside a checkout. Cluster API does not require it.
	version, _ := controlplane.KubernetesVersion()
	return Cluster{namespace: metav1.NamespaceDefault, name: name, version: version}
}

// InNamespace moves the cluster to a namespace.
func (c Cluster) InNamespace(namespace string) Cluster {
	c.namespace = namespace
	return c
}

// WithExternalControlPlane gives the cluster a control plane that needs no Machines.
func (c Cluster) WithExternalControlPlane() Cluster {
	c.externalControlPlane = true
	return c
}

// Key returns the namespace and name of the Cluster.
func (c Cluster) Key() client.ObjectKey {
	return client.ObjectKey{Namespace: c.namespace, Name: c.name}
}

// Objects returns the Cluster and the objects that it refers to.
func (c Cluster) Objects(changes ...Change) []client.Object {
	cluster := &clusterv1.Cluster{ObjectMeta: c.meta(c.name)}
	cluster.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: infrav1.GroupVersion.Group, Kind: infrav1.KwokClusterKind, Name: c.name,
	}
	objects := []client.Object{cluster, &infrav1.KwokCluster{ObjectMeta: c.meta(c.name)}}
	if c.externalControlPlane {
		cluster.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{
			APIGroup: controlplanev1.GroupVersion.Group, Kind: controlplanev1.KwokControlPlaneKind, Name: c.name,
		}
		objects = append(objects, &controlplanev1.KwokControlPlane{
			ObjectMeta: c.meta(c.name),
			Spec:       controlplanev1.KwokControlPlaneSpec{Version: c.version},
		})
	}
	return apply(changes, objects)
}

// Machine returns a stand-alone worker Machine and its KwokMachine.
func (c Cluster) Machine(name string, changes ...Change) []client.Object {
	machine := &clusterv1.Machine{ObjectMeta: c.meta(name), Spec: c.machineSpec(infrav1.KwokMachineKind, name)}
	return apply(changes, []client.Object{&infrav1.KwokMachine{ObjectMeta: c.meta(name)}, machine})
}

// ControlPlaneMachine returns a stand-alone control plane Machine and its KwokMachine. It does not
// run the control plane, but Cluster API treats it as if it did.
func (c Cluster) ControlPlaneMachine(name string, changes ...Change) []client.Object {
	return c.Machine(name, append([]Change{With(func(m *clusterv1.Machine) { m.Labels[clusterv1.MachineControlPlaneLabel] = "" })}, changes...)...)
}

// MachineDeployment returns a MachineDeployment and its KwokMachineTemplate. Its Machines have a label
// with its name, so that a cluster can have more than one.
func (c Cluster) MachineDeployment(name string, replicas int32, changes ...Change) []client.Object {
	pool := map[string]string{clusterv1.MachineDeploymentNameLabel: name}
	labels := maps.Clone(pool)
	labels[clusterv1.ClusterNameLabel] = c.name
	deployment := &clusterv1.MachineDeployment{ObjectMeta: c.meta(name)}
	deployment.Spec = clusterv1.MachineDeploymentSpec{
		ClusterName: c.name,
		Replicas:    ptr.To(replicas),
		Selector:    metav1.LabelSelector{MatchLabels: pool},
		Template: clusterv1.MachineTemplateSpec{
			ObjectMeta: clusterv1.ObjectMeta{Labels: labels},
			Spec:       c.machineSpec(infrav1.KwokMachineTemplateKind, name),
		},
	}
	return apply(changes, []client.Object{&infrav1.KwokMachineTemplate{ObjectMeta: c.meta(name)}, deployment})
}

func (c Cluster) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: c.namespace, Name: name,
		Labels: map[string]string{clusterv1.ClusterNameLabel: c.name},
	}
}

func (c Cluster) machineSpec(kind, name string) clusterv1.MachineSpec {
	return clusterv1.MachineSpec{
		ClusterName: c.name,
		Version:     c.version,
		// With the name of a Secret, no bootstrap provider is needed. The Secret need not exist: only the
		// machine would read it.
		Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("not-used")},
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{
			APIGroup: infrav1.GroupVersion.Group, Kind: kind, Name: name,
		},
	}
}

// Create creates objects in the given order.
func Create(ctx context.Context, c client.Client, groups ...[]client.Object) error {
	for _, objects := range groups {
		for _, object := range objects {
			if err := c.Create(ctx, object); err != nil {
				return errors.Wrapf(err, "creating %T %s", object, client.ObjectKeyFromObject(object))
			}
		}
	}
	return nil
}

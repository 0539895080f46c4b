package observe

import (
	"cmp"
	"context"
	"strings"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;machinedrainrules;machines,verbs=get;list,roleName=capnm-plugin-management-reader
// +kubebuilder:rbac:groups=maintenance.cluster.x-k8s.io,resources=machinedrainpolicies,verbs=get;list,roleName=capnm-plugin-management-reader
// +kubebuilder:rbac:groups=controlplane.cluster.x-k8s.io;infrastructure.cluster.x-k8s.io,resources=*,verbs=get,roleName=capnm-plugin-management-reader

// Machine is a Machine and what the decisions about its drain depend on in the management cluster.
type Machine struct {
	*clusterv1.Machine

	Cluster  *clusterv1.Cluster
	Policies []v1alpha1.MachineDrainPolicy
	// PoliciesUnread means that they could not be read: whether one selects the Machine is not known.
	PoliciesUnread bool
	Rules          []clusterv1.MachineDrainRule
	Facts          machinedrain.Facts
	// Siblings are all Machines of the Cluster.
	Siblings []clusterv1.Machine
}

// ClusterKey returns the name of the Cluster.
func (m *Machine) ClusterKey() types.NamespacedName {
	return types.NamespacedName{Namespace: m.Namespace, Name: m.Spec.ClusterName}
}

// Policy returns the MachineDrainPolicy that the Machine follows, or nil.
func (m *Machine) Policy() *v1alpha1.MachineDrainPolicy {
	return machinedrain.PolicyFor(m.Machine, m.Cluster.Labels, m.Policies).Settings(m.Machine)
}

// Proposed are policies and rules that are not applied. They take the place of those with the same name.
type Proposed struct {
	Policies []v1alpha1.MachineDrainPolicy
	Rules    []clusterv1.MachineDrainRule
}

// Machines returns the Machines in a namespace, or in all.
func (c *Cluster) Machines(ctx context.Context, namespace string, options ...client.ListOption) ([]clusterv1.Machine, error) {
	list := &clusterv1.MachineList{}
	var all []clusterv1.Machine
	err := c.listAll(ctx, list, func() { all = append(all, list.Items...) }, append(options, client.InNamespace(namespace))...)
	return all, errors.Wrapf(err, "listing the Machines of %s", c.Name)
}

// Policies returns the MachineDrainPolicies in a namespace, or in all. What cannot be read is a gap, and a management cluster without this
// provider has none.
func (c *Cluster) Policies(ctx context.Context, namespace string) []v1alpha1.MachineDrainPolicy {
	list := &v1alpha1.MachineDrainPolicyList{}
	var all []v1alpha1.MachineDrainPolicy
	err := c.listAll(ctx, list, func() { all = append(all, list.Items...) }, client.InNamespace(namespace))
	if meta.IsNoMatchError(err) {
		return nil
	}
	if _, err := c.tolerate(err, "list", "machinedrainpolicies.maintenance.cluster.x-k8s.io"); err != nil {
		c.gaps.Add(errors.Wrapf(err, "listing the MachineDrainPolicies of %s", c.Name).Error())
	}
	return all
}

// noMachineError means that a Machine does not exist.
type noMachineError struct{ key types.NamespacedName }

// Error implements error.
func (e noMachineError) Error() string { return "there is no Machine " + e.key.String() }

// IsNoMachine reports whether the Machine that was to be read does not exist.
func IsNoMachine(err error) bool { return errors.As(err, &noMachineError{}) }

// family is what the decisions about all Machines of a Cluster depend on. It is read once, for a command that is about many of them.
type family struct {
	cluster  *clusterv1.Cluster
	policies []v1alpha1.MachineDrainPolicy
	rules    []clusterv1.MachineDrainRule
	machines []clusterv1.Machine
	// controlPlane is nil if it does not exist, or if the Cluster refers to none.
	controlPlane                                       *unstructured.Unstructured
	machinesUnread, controlPlaneUnread, policiesUnread bool
}

// MachineOf reads a Machine and its surroundings. If only the surroundings cannot be read, it returns the Machine with the error. It must
// not be called concurrently.
func (c *Cluster) MachineOf(ctx context.Context, key types.NamespacedName, proposed Proposed) (*Machine, error) {
	m := &Machine{Machine: &clusterv1.Machine{}}
	if err := c.Get(ctx, key, m.Machine); apierrors.IsNotFound(err) {
		return nil, noMachineError{key}
	} else if err != nil {
		return nil, errors.Wrapf(err, "getting Machine %s", key)
	}
	m.Cluster, m.PoliciesUnread = unreadCluster(m.ClusterKey()), true
	f, err := c.familyOf(ctx, m.ClusterKey())
	if err != nil {
		return m, err
	}
	m.Cluster, m.PoliciesUnread = f.cluster, f.policiesUnread
	m.Policies = replaced(f.policies, proposed.Policies, key.Namespace, func(p *v1alpha1.MachineDrainPolicy) client.Object { return p })
	m.Rules = replaced(f.rules, proposed.Rules, key.Namespace, func(r *clusterv1.MachineDrainRule) client.Object { return r })
	if m.Siblings = f.machines; f.machinesUnread {
		m.Siblings = []clusterv1.Machine{*m.Machine}
	}
	if m.Facts, err = c.facts(ctx, m, f); f.machinesUnread { // a gap says that this is a guess
		m.Facts.ControlPlaneMachines = max(m.Facts.ControlPlaneMachines, 1)
	}
	return m, err
}

// unreadCluster returns a Cluster of which only the name is known.
func unreadCluster(key types.NamespacedName) *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
}

// familyOf reads what the Machines of a Cluster have in common.
func (c *Cluster) familyOf(ctx context.Context, key types.NamespacedName) (*family, error) {
	if known := c.families[key]; known != nil {
		return known, nil
	}
	f := &family{cluster: &clusterv1.Cluster{}}
	if read, err := c.tolerate(c.Get(ctx, key, f.cluster), "get", "clusters.cluster.x-k8s.io"); err != nil {
		return nil, errors.Wrapf(err, "getting Cluster %s", key)
	} else if !read {
		f.cluster = unreadCluster(key)
	}
	policies, rules := &v1alpha1.MachineDrainPolicyList{}, &clusterv1.MachineDrainRuleList{}
	err := c.List(ctx, policies, client.InNamespace(key.Namespace))
	if meta.IsNoMatchError(err) { // a management cluster without this provider has none
		err = nil
	}
	read, err := c.tolerate(err, "list", "machinedrainpolicies.maintenance.cluster.x-k8s.io")
	if err != nil {
		return nil, errors.Wrap(err, "listing MachineDrainPolicies")
	}
	f.policiesUnread = !read
	if _, err := c.tolerate(c.List(ctx, rules, client.InNamespace(key.Namespace)), "list", "machinedrainrules.cluster.x-k8s.io"); err != nil {
		return nil, errors.Wrap(err, "listing MachineDrainRules")
	}
	f.policies, f.rules = policies.Items, rules.Items
	f.machines, err = c.Machines(ctx, key.Namespace, client.MatchingLabels{clusterv1.ClusterNameLabel: key.Name})
	read, err = c.tolerate(err, "list", "machines.cluster.x-k8s.io")
	if err != nil {
		return nil, err
	}
	f.machinesUnread = !read
	if ref := f.cluster.Spec.ControlPlaneRef; ref.IsDefined() {
		if f.controlPlane, read, err = c.referenced(ctx, ref, key.Namespace); err != nil {
			return nil, err
		}
		f.controlPlaneUnread = !read
	}
	if c.families == nil {
		c.families = map[types.NamespacedName]*family{}
	}
	c.families[key] = f
	return f, nil
}

// replaced returns the objects with the proposed ones in place of those with the same name. A proposed object without a namespace belongs
// to that of the Machine.
func replaced[T any](present, proposed []T, namespace string, object func(*T) client.Object) []T {
	byName, all := map[string]int{}, append([]T{}, present...)
	for i := range all {
		byName[object(&all[i]).GetName()] = i
	}
	for i := range proposed {
		one := proposed[i]
		o := object(&one)
		if o.GetNamespace() == "" {
			o.SetNamespace(namespace)
		}
		at, found := byName[o.GetName()]
		switch {
		case o.GetNamespace() != namespace:
		case found:
			all[at] = one
		default:
			all = append(all, one)
		}
	}
	return all
}

// facts reads what decides whether the Node of a Machine is drained at all.
func (c *Cluster) facts(ctx context.Context, m *Machine, f *family) (machinedrain.Facts, error) {
	facts := machinedrain.Facts{Machine: m.Machine, ClusterDeleting: !m.Cluster.DeletionTimestamp.IsZero()}
	for i := range m.Siblings {
		if machinedrain.IsControlPlane(&m.Siblings[i]) && m.Siblings[i].DeletionTimestamp.IsZero() {
			facts.ControlPlaneMachines++
		}
	}
	if f.controlPlane != nil {
		facts.ControlPlaneDeleting = !f.controlPlane.GetDeletionTimestamp().IsZero()
		facts.ControlPlaneExternal = util.IsExternalManagedControlPlane(f.controlPlane)
	}
	if f.controlPlaneUnread { // a gap says that this is a guess
		facts.ControlPlaneExternal = facts.ControlPlaneMachines == 0
	}
	infraMachine, read, err := c.referenced(ctx, m.Spec.InfrastructureRef, m.Namespace)
	facts.InfraMachineDeleted = read && (infraMachine == nil || !infraMachine.GetDeletionTimestamp().IsZero())
	if infraMachine != nil {
		m.Spec.ProviderID = cmp.Or(m.Spec.ProviderID, machinedrain.ProviderIDOf(infraMachine))
	}
	return facts, err
}

// FindNode looks up the Node of a Machine without a nodeRef by its provider ID, as the manager does before it drains the Node.
func (c *Connections) FindNode(ctx context.Context, m *Machine) error {
	facts := m.Facts
	facts.NodeUnknown = true
	if m.Status.NodeRef.IsDefined() || m.Spec.ProviderID == "" || machinedrain.Skip(facts) != machinedrain.NotSkipped {
		return nil
	}
	w, err := c.Workload(ctx, m.ClusterKey())
	if err != nil {
		return err
	}
	nodes, err := w.Nodes(ctx)
	if err != nil {
		return err
	}
	all := make([]corev1.Node, 0, len(nodes))
	for _, node := range nodes {
		all = append(all, *node)
	}
	m.Status.NodeRef.Name = machinedrain.NodeNameOf(m.Spec.ProviderID, all)
	return nil
}

// referenced reads an object of a provider, nil if it does not exist. read is false if the user may not.
func (c *Cluster) referenced(ctx context.Context, ref clusterv1.ContractVersionedObjectReference,
	namespace string,
) (_ *unstructured.Unstructured, read bool, _ error) {
	mapping, err := c.RESTMapper().RESTMapping(schema.GroupKind{Group: ref.APIGroup, Kind: ref.Kind})
	if read, err := c.tolerate(err, "get", strings.ToLower(ref.Kind)+"."+ref.APIGroup); !read {
		return nil, false, err
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(mapping.GroupVersionKind)
	err = c.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Name}, object)
	if apierrors.IsNotFound(err) {
		return nil, true, nil
	}
	if read, err = c.tolerate(err, "get", mapping.Resource.GroupResource().String()); !read {
		object = nil
	}
	return object, read, errors.Wrapf(err, "getting %s %s", ref.Kind, ref.Name)
}

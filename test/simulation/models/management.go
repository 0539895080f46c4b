package models

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/kubeconfig"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
	controlplanev1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/controlplane/v1beta1"
	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
)

// ManagementOptions are the options of the models of a management cluster.
type ManagementOptions struct {
	// Random is the source of random choices. Management draws seeds from it.
	Random *rand.Rand
	// Workload returns the client with which Cluster API and the infrastructure provider access the workload cluster of a Cluster, or nil if
	// there is none (yet).
	Workload func(cluster client.ObjectKey) client.Client
	// Server returns the URL of a workload cluster for its kubeconfig.
	Server func(cluster client.ObjectKey) string
}

const (
	// coreUser is the user of Cluster API's core manager.
	coreUser = "capi-core"
	// creationDelay and deletionDelay are the longest times that the infrastructure takes to create and to delete a machine.
	creationDelay, deletionDelay = 5 * time.Second, 3 * time.Second
)

// Management returns all models of a management cluster. Its infrastructure is that of test/infrastructure/kwok.
func Management(options ManagementOptions) []Model {
	cluster, machine, set, deployment := &clusterv1.Cluster{}, &clusterv1.Machine{}, &clusterv1.MachineSet{}, &clusterv1.MachineDeployment{}
	infraMachine, infraCluster, controlPlane := &infrav1.KwokMachine{}, &infrav1.KwokCluster{}, &controlplanev1.KwokControlPlane{}
	kwokMachines := &kwokMachines{options: options, random: newRandom(options.Random), due: map[types.UID]time.Time{}}
	sets := &machineSets{random: newRandom(options.Random)}
	return []Model{
		{
			Name: "cluster", User: coreUser, Run: (&clusters{options}).run,
			Kinds: []client.Object{cluster, machine, set, deployment, infraCluster, controlPlane, &corev1.Secret{}},
		},
		{Name: "machine", User: coreUser, Kinds: []client.Object{cluster, machine, infraMachine, controlPlane}, Run: (&machines{options}).run},
		{Name: "machineset", User: coreUser, Kinds: []client.Object{cluster, machine, set, deployment}, Run: sets.run},
		{Name: "machinedeployment", User: coreUser, Kinds: []client.Object{cluster, set, deployment}, Run: (&machineDeployments{hashes{}}).run},
		{Name: "infrastructure", User: "infrastructure", Kinds: []client.Object{cluster, machine, infraMachine}, Run: kwokMachines.run},
	}
}

// clusters is the Cluster controller, and the providers of control planes and of clusters' infrastructure. It deletes a Cluster with all
// that belongs to it.
type clusters struct{ options ManagementOptions }

func (m *clusters) run(ctx context.Context, c client.Client) (_ time.Duration, failed error) {
	all := &clusterv1.ClusterList{}
	if err := read(ctx, c, all); err != nil {
		return 0, err
	}
	for _, cluster := range pointers(all.Items) {
		switch {
		case annotations.IsPaused(cluster, cluster):
		case cluster.DeletionTimestamp != nil:
			failed = cmp.Or(failed, deleteCluster(ctx, c, cluster))
		default:
			failed = cmp.Or(failed, m.provision(ctx, c, cluster))
		}
	}
	return 0, failed
}

func (m *clusters) provision(ctx context.Context, c client.Client, cluster *clusterv1.Cluster) error {
	cluster, err := update(ctx, c, cluster, func(cluster *clusterv1.Cluster) { controllerutil.AddFinalizer(cluster, clusterv1.ClusterFinalizer) })
	if err != nil {
		return err
	}
	key := client.ObjectKey{Namespace: cluster.Namespace, Name: secret.Name(cluster.Name, secret.Kubeconfig)}
	if err := c.Get(ctx, key, &corev1.Secret{}); client.IgnoreNotFound(err) != nil {
		return errors.Wrapf(err, "getting Secret %s", key)
	} else if err != nil {
		missing, err := m.kubeconfig(cluster)
		if err != nil {
			return err
		}
		if err := create(ctx, c, missing); err != nil {
			return err
		}
	}
	infraCluster := &infrav1.KwokCluster{}
	if err := c.Get(ctx, referenced(cluster, cluster.Spec.InfrastructureRef), infraCluster); client.IgnoreNotFound(err) != nil {
		return errors.Wrapf(err, "getting KwokCluster %s", cluster.Name)
	} else if err == nil {
		err := setStatus(ctx, c, infraCluster, func(o *infrav1.KwokCluster) { o.Status.Initialization.Provisioned = ptr.To(true) })
		if err != nil {
			return err
		}
	}
	controlPlane := &controlplanev1.KwokControlPlane{}
	if err := c.Get(ctx, referenced(cluster, cluster.Spec.ControlPlaneRef), controlPlane); client.IgnoreNotFound(err) != nil {
		return errors.Wrapf(err, "getting KwokControlPlane %s", cluster.Name)
	} else if err == nil {
		err := setStatus(ctx, c, controlPlane, func(o *controlplanev1.KwokControlPlane) {
			o.Status.Initialization.ControlPlaneInitialized, o.Status.ExternalManagedControlPlane = ptr.To(true), ptr.To(true)
			o.Status.Version = o.Spec.Version
		})
		if err != nil {
			return err
		}
	}
	return setStatus(ctx, c, cluster, func(cluster *clusterv1.Cluster) {
		status := &cluster.Status
		status.Initialization.InfrastructureProvisioned, status.Initialization.ControlPlaneInitialized = ptr.To(true), ptr.To(true)
		status.ObservedGeneration = cluster.Generation
		status.SetTypedPhase(clusterv1.ClusterPhaseProvisioned)
		for _, condition := range []string{
			clusterv1.ClusterAvailableCondition, clusterv1.ClusterInfrastructureReadyCondition, clusterv1.ClusterControlPlaneInitializedCondition,
			clusterv1.ClusterControlPlaneAvailableCondition, clusterv1.ClusterRemoteConnectionProbeCondition,
		} {
			setCondition(&status.Conditions, condition, true, condition, "")
		}
	})
}

// setCondition sets a condition of Cluster API.
func setCondition(conditions *[]metav1.Condition, conditionType string, is bool, reason, message string) {
	status := metav1.ConditionFalse
	if is {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type: conditionType, Status: status, Reason: reason, Message: message, LastTransitionTime: now(),
	})
}

// referenced returns the key of an object of the infrastructure.
func referenced(by client.Object, ref clusterv1.ContractVersionedObjectReference) client.ObjectKey {
	return client.ObjectKey{Namespace: by.GetNamespace(), Name: ref.Name}
}

// kubeconfig returns the Secret with a kubeconfig, without TLS and credentials.
func (m *clusters) kubeconfig(cluster *clusterv1.Cluster) (*corev1.Secret, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters[cluster.Name] = &clientcmdapi.Cluster{Server: m.options.Server(client.ObjectKeyFromObject(cluster))}
	config.AuthInfos["admin"] = &clientcmdapi.AuthInfo{}
	config.Contexts[cluster.Name] = &clientcmdapi.Context{Cluster: cluster.Name, AuthInfo: "admin"}
	config.CurrentContext = cluster.Name
	content, err := clientcmd.Write(*config)
	if err != nil {
		return nil, errors.Wrap(err, "encoding a kubeconfig")
	}
	owner := metav1.NewControllerRef(cluster, clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind))
	return kubeconfig.GenerateSecretWithOwner(client.ObjectKeyFromObject(cluster), content, *owner), nil
}

// deleteCluster deletes what belongs to a Cluster, group by group. The server collects the kubeconfig Secret as garbage.
func deleteCluster(ctx context.Context, c client.Client, cluster *clusterv1.Cluster) (failed error) {
	in := []client.ListOption{client.InNamespace(cluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name}}
	for _, list := range []client.ObjectList{
		&clusterv1.MachineDeploymentList{}, &clusterv1.MachineSetList{}, &clusterv1.MachineList{},
		&controlplanev1.KwokControlPlaneList{}, &infrav1.KwokClusterList{},
	} {
		if err := c.List(ctx, list, in...); err != nil {
			return errors.Wrapf(err, "listing %T", list)
		}
		remaining, err := meta.ExtractList(list)
		if err != nil {
			return errors.WithStack(err)
		}
		for _, object := range remaining {
			if object, ok := object.(client.Object); ok {
				failed = cmp.Or(failed, remove(ctx, c, object))
			}
		}
		if len(remaining) > 0 || failed != nil {
			return failed // runs again when they have changed
		}
	}
	_, err := update(ctx, c, cluster, func(cluster *clusterv1.Cluster) { controllerutil.RemoveFinalizer(cluster, clusterv1.ClusterFinalizer) })
	return err
}

// kwokMachines is the infrastructure provider: it creates the Nodes of Machines, and stops their kubelets when the machines are deleted.
type kwokMachines struct {
	options ManagementOptions
	random  *rand.Rand
	due     map[types.UID]time.Time // when a KwokMachine will have been created or deleted
}

func (m *kwokMachines) run(ctx context.Context, c client.Client) (again time.Duration, failed error) {
	all := &infrav1.KwokMachineList{}
	if err := read(ctx, c, all); err != nil {
		return 0, err
	}
	for _, infraMachine := range pointers(all.Items) {
		rest, err := m.reconcile(ctx, c, infraMachine)
		again, failed = sooner(again, rest), cmp.Or(failed, err)
	}
	return again, failed
}

// wait returns the rest of a random delay that begins with the first call.
func (m *kwokMachines) wait(infraMachine *infrav1.KwokMachine, longest time.Duration) time.Duration {
	if _, known := m.due[infraMachine.UID]; !known {
		m.due[infraMachine.UID] = time.Now().Add(between(m.random, longest/10, longest))
	}
	return max(0, time.Until(m.due[infraMachine.UID]))
}

func (m *kwokMachines) reconcile(ctx context.Context, c client.Client, infraMachine *infrav1.KwokMachine) (time.Duration, error) {
	owner, machine, cluster := metav1.GetControllerOfNoCopy(infraMachine), &clusterv1.Machine{}, &clusterv1.Cluster{}
	clusterKey := client.ObjectKey{Namespace: infraMachine.Namespace, Name: infraMachine.Labels[clusterv1.ClusterNameLabel]}
	if infraMachine.DeletionTimestamp != nil {
		return m.delete(ctx, c, infraMachine, m.options.Workload(clusterKey))
	}
	if owner == nil || ptr.Deref(infraMachine.Status.Initialization.Provisioned, false) {
		return 0, nil
	}
	if err := c.Get(ctx, client.ObjectKey{Namespace: infraMachine.Namespace, Name: owner.Name}, machine); err != nil {
		return 0, errors.Wrapf(client.IgnoreNotFound(err), "getting Machine %s", owner.Name)
	}
	if err := c.Get(ctx, clusterKey, cluster); err != nil {
		return 0, errors.Wrapf(client.IgnoreNotFound(err), "getting Cluster %s", clusterKey)
	}
	workload := m.options.Workload(clusterKey)
	isDue := ptr.Deref(cluster.Status.Initialization.InfrastructureProvisioned, false) && machine.Spec.Bootstrap.DataSecretName != nil
	if workload == nil || !isDue || annotations.IsPaused(cluster, infraMachine) || machine.DeletionTimestamp != nil {
		return 0, nil
	}
	if rest := m.wait(infraMachine, creationDelay); rest > 0 {
		return rest, nil
	}
	node := newNode(machine)
	if err := create(ctx, workload, node); err != nil {
		return 0, err
	}
	infraMachine, err := update(ctx, c, infraMachine, func(o *infrav1.KwokMachine) {
		controllerutil.AddFinalizer(o, infrav1.KwokMachineFinalizer)
		o.Spec.ProviderID = node.Spec.ProviderID
	})
	if err != nil {
		return 0, err
	}
	delete(m.due, infraMachine.UID)
	return 0, setStatus(ctx, c, infraMachine, func(o *infrav1.KwokMachine) {
		o.Status.Initialization.Provisioned = ptr.To(true)
		o.Status.Addresses = []clusterv1.MachineAddress{{Type: clusterv1.MachineHostName, Address: node.Name}}
	})
}

// newNode returns the Node of a Machine, as its kubelet registers it.
func newNode(machine *clusterv1.Machine) *corev1.Node {
	node := controlplane.NewNode(machine.Name)
	node.Annotations = map[string]string{
		"volumes.kubernetes.io/controller-managed-attach-detach": "true", clusterv1.MachineAnnotation: machine.Name,
		clusterv1.ClusterNameAnnotation: machine.Spec.ClusterName, clusterv1.ClusterNamespaceAnnotation: machine.Namespace,
	}
	if _, is := machine.Labels[clusterv1.MachineControlPlaneLabel]; is {
		const role = "node-role.kubernetes.io/control-plane"
		node.Labels[role] = ""
		node.Spec.Taints = []corev1.Taint{{Key: role, Effect: corev1.TaintEffectNoSchedule}}
	}
	node.Spec.ProviderID = kwok.ProviderID(machine.Spec.ClusterName, machine.Name)
	node.Status.NodeInfo.KubeletVersion = machine.Spec.Version
	register(node)
	return node
}

// delete stops the kubelet of a machine after a delay. Cluster API deletes the Node.
func (m *kwokMachines) delete(ctx context.Context, c client.Client, infraMachine *infrav1.KwokMachine, workload client.Client) (time.Duration, error) {
	if !controllerutil.ContainsFinalizer(infraMachine, infrav1.KwokMachineFinalizer) {
		return 0, nil
	}
	if rest := m.wait(infraMachine, deletionDelay); rest > 0 {
		return rest, nil
	}
	if workload != nil {
		node, err := nodeOf(ctx, workload, infraMachine.Spec.ProviderID)
		if err != nil {
			return 0, err
		}
		if node != nil {
			_, err = update(ctx, workload, node, func(node *corev1.Node) {
				delete(node.Labels, controlplane.KubeletLabel)
			})
		}
		if err != nil {
			return 0, err
		}
	}
	_, err := update(ctx, c, infraMachine, func(o *infrav1.KwokMachine) { controllerutil.RemoveFinalizer(o, infrav1.KwokMachineFinalizer) })
	return 0, err
}

// nodeOf returns the Node with a provider ID, or nil.
func nodeOf(ctx context.Context, workload client.Client, providerID string) (*corev1.Node, error) {
	nodes := &corev1.NodeList{}
	if err := read(ctx, workload, nodes); err != nil || providerID == "" {
		return nil, err
	}
	for _, node := range pointers(nodes.Items) {
		if node.Spec.ProviderID == providerID {
			return node, nil
		}
	}
	return nil, nil
}

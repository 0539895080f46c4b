package kwok

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"maps"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
)

const (
	roleLabelControlPlane = "node-role.kubernetes.io/control-plane"
	// attachDetachAnnotation makes the controller manager attach volumes. Every kubelet sets it by
	// default.
	attachDetachAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"
)

// ProviderID returns the provider ID of a KwokMachine and its Node.
func ProviderID(cluster, machine string) string {
	return fmt.Sprintf("kwok:///%s/%s", cluster, machine)
}

// newNode returns the Node as the machine's kubelet would register it.
func newNode(machine *clusterv1.Machine, kwokMachine *infrav1.KwokMachine) *corev1.Node {
	node := controlplane.NewNode(kwokMachine.Name)
	node.Annotations = map[string]string{attachDetachAnnotation: "true"}
	node.Labels[corev1.LabelTopologyZone] = cmp.Or(kwokMachine.Spec.Zone, zoneOf(kwokMachine.Name))
	node.Spec.ProviderID = ProviderID(machine.Spec.ClusterName, kwokMachine.Name)
	// Bootstrap providers add this taint, so that no Pod is scheduled before the Machine's labels are set.
	node.Spec.Taints = []corev1.Taint{clusterv1.NodeUninitializedTaint}
	if util.IsControlPlaneMachine(machine) {
		node.Labels[roleLabelControlPlane] = ""
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: roleLabelControlPlane, Effect: corev1.TaintEffectNoSchedule})
	}
	node.Status.Capacity = capacityOf(kwokMachine)
	node.Status.Allocatable = node.Status.Capacity.DeepCopy()
	// Cluster API compares this with the Machine's version.
	node.Status.NodeInfo.KubeletVersion = machine.Spec.Version
	return node
}

func capacityOf(kwokMachine *infrav1.KwokMachine) corev1.ResourceList {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("16"),
		corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	maps.Copy(capacity, kwokMachine.Spec.Capacity)
	return capacity
}

func zoneOf(name string) string {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(name)) // Write of a hash never fails.
	return []string{"zone-a", "zone-b", "zone-c"}[hash.Sum32()%3]
}

// register creates the Node, unless an earlier attempt has.
func register(ctx context.Context, workload Workload, node *corev1.Node) error {
	nodes, err := nodesOf(workload)
	if err != nil {
		return err
	}
	_, err = nodes.Create(ctx, node, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return errors.Wrapf(err, "creating Node %s", node.Name)
	}
	existing, err := nodes.Get(ctx, node.Name, metav1.GetOptions{})
	if err != nil {
		return errors.Wrapf(err, "reading Node %s", node.Name)
	}
	if existing.Spec.ProviderID != node.Spec.ProviderID {
		return errors.Errorf("Node %s belongs to another machine: its provider ID is %q", node.Name, existing.Spec.ProviderID)
	}
	return nil
}

// stopKubelet removes the Node from kwok, which then neither reports the Node's health nor starts
// or terminates its Pods.
func stopKubelet(ctx context.Context, workload Workload, kwokMachine *infrav1.KwokMachine) error {
	nodes, err := nodesOf(workload)
	if err != nil {
		return err
	}
	node, err := nodes.Get(ctx, kwokMachine.Name, metav1.GetOptions{})
	if err != nil {
		return errors.Wrapf(client.IgnoreNotFound(err), "reading Node %s", kwokMachine.Name)
	}
	if node.Spec.ProviderID != ProviderID(clusterOf(kwokMachine).Name, kwokMachine.Name) {
		return nil
	}
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"labels":{%q:null}}}`, node.UID, controlplane.KubeletLabel)
	_, err = nodes.Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return errors.Wrapf(client.IgnoreNotFound(err), "stopping the kubelet of Node %s", node.Name)
}

// nodesOf creates a client each time, which is cheap: clients of one configuration share their
// connections, and a typed client needs no discovery.
func nodesOf(workload Workload) (typedcorev1.NodeInterface, error) {
	nodes, err := typedcorev1.NewForConfig(workload.Config)
	if err != nil {
		return nil, errors.Wrap(err, "creating a client for the workload cluster")
	}
	return nodes.Nodes(), nil
}

package kwok_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

// environment is a management cluster with Cluster API and the provider, and a workload cluster.
// Each test creates a separate Cluster; for Cluster API, the Nodes of the others are unknown.
type environment struct {
	management, workload client.Client
	controlPlane         *controlplane.ControlPlane
	workloads            *kwok.Workloads
}

func start(t *testing.T) *environment {
	t.Helper()
	// The log of libraries, in addition to the provider's.
	ctrl.SetLogger(logr.New(log.NullLogSink{}))
	g, ctx := NewWithT(t), t.Context()
	management := controlplane.ForTest(t, controlplane.Options{Name: "management"})
	workload := controlplane.ForTest(t, controlplane.Options{Name: "workload", Scheduler: true, Kwok: true})

	begin := time.Now()
	core, err := clusterapi.Install(ctx, management, clusterapi.Fast())
	g.Expect(err).NotTo(HaveOccurred())
	t.Logf("Cluster API is ready after %s", time.Since(begin))
	t.Cleanup(func() { g.Expect(core.Stop()).To(Succeed()) })

	workloads := &kwok.Workloads{}
	provider, err := kwok.Start(ctx, kwok.Options{Management: management.AdminConfig(), Workload: workloads.Find})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(provider.Stop()).To(Succeed()) })

	env := &environment{controlPlane: workload, workloads: workloads}
	env.management, err = client.New(management.AdminConfig(), client.Options{Scheme: clusterapi.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	env.workload, err = client.New(workload.AdminConfig(), client.Options{Scheme: clusterapi.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	return env
}

func (e *environment) connect(t *testing.T, cluster kwok.Cluster) {
	t.Helper()
	workload, err := kwok.Proxied(e.controlPlane)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	e.workloads.Add(cluster.Key(), workload)
}

func (e *environment) node(t *testing.T, name string) *corev1.Node {
	t.Helper()
	node := &corev1.Node{}
	NewWithT(t).Expect(e.workload.Get(t.Context(), client.ObjectKey{Name: name}, node)).To(Succeed())
	return node
}

func (e *environment) machines(t *testing.T, cluster kwok.Cluster, opts ...client.ListOption) []clusterv1.Machine {
	t.Helper()
	machines := &clusterv1.MachineList{}
	opts = append(opts, client.InNamespace(cluster.Key().Namespace))
	NewWithT(t).Expect(e.management.List(t.Context(), machines, opts...)).To(Succeed())
	return machines.Items
}

// runPod binds a pod to a node and waits until it runs.
func (e *environment) runPod(t *testing.T, name, node string) *corev1.Pod {
	t.Helper()
	g := NewWithT(t)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	g.Expect(e.workload.Create(t.Context(), pod)).To(Succeed())
	g.Eventually(func() (corev1.PodPhase, error) {
		err := e.workload.Get(t.Context(), client.ObjectKeyFromObject(pod), pod)
		return pod.Status.Phase, err
	}, soon).Should(Equal(corev1.PodRunning))
	return pod
}

func (e *environment) gone(ctx context.Context, c client.Client, object client.Object) func() (bool, error) {
	current := object.DeepCopyObject().(client.Object)
	return func() (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(object), current)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}
}

func podCount(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.DecimalSI) }

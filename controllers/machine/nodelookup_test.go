package machine

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// TestNodeLookupAfterAnotherBlock: after clusterctl move, the webhook of the infrastructure provider does not answer for ten minutes. When
// it does, the workload cluster happens to be disconnected.
func TestNodeLookupAfterAnotherBlock(t *testing.T) {
	t.Run("M87: what has blocked a Machine before does not count as a failed attempt to connect", func(t *testing.T) {
		g, start := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
		machine := deletedWorkers(start, "m")[0]
		machine.DeletionTimestamp = ptr.To(metav1.NewTime(start.Add(-time.Second)))
		machine.Status.NodeRef.Name, machine.Spec.ProviderID = "", "cloud://m"
		connection, fails := &breaking{ClusterCache: connectedTo(workloadCluster(machine).Build(), start)}, true
		management := managementCluster(machine).WithObjects(policyWithLimit(intstr.FromInt32(1))).Build()
		r := newReconciler(t, management, connection, clocktesting.NewFakePassiveClock(start))
		r.references.Set(clusterKey, "c/kubeconfig", referenced{}, time.Hour)
		r.APIReader = interceptor.NewClient(management, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
				if fails {
					return errors.New("the conversion webhook of the infrastructure provider does not answer")
				}
				return c.Get(ctx, key, object, options...)
			},
		})
		isReleased := func() bool {
			g.Expect(client.IgnoreNotFound(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine))).To(Succeed())
			return !machinedrain.HasHook(machine)
		}
		for after := time.Duration(0); after < 10*time.Minute; after += pollInterval {
			g.Expect(reconcileAt(t, r, machine, start.Add(after))).NotTo(Succeed())
		}
		connection.broken, fails = true, false
		infrastructureExists(r, machine)
		lost := start.Add(10 * time.Minute)
		for after := time.Duration(0); after < machinedrain.BlindPeriod; after += contactRetry {
			g.Expect(reconcileAt(t, r, machine, lost.Add(after))).To(Succeed())
			g.Expect(isReleased()).To(BeFalse(), "undrained, %s after the connection was lost", after)
		}
		g.Expect(reconcileAt(t, r, machine, lost.Add(machinedrain.BlindPeriod))).To(Succeed())
		g.Expect(isReleased()).To(BeTrue(), "it may never have had a Node")
	})
}

// TestNodeLookupWithoutInfrastructure: after clusterctl move, Cluster API does not write the status of the Cluster for ten minutes.
func TestNodeLookupWithoutInfrastructure(t *testing.T) {
	t.Run("M87: while the status of the Cluster does not say that its infrastructure is provisioned, no attempt to connect has failed", func(t *testing.T) {
		g, start := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
		machine := deletedWorkers(start, "m")[0]
		machine.Status.NodeRef.Name, machine.Spec.ProviderID = "", "cloud://m"
		cluster, policy := provisionedCluster(), policyWithLimit(intstr.FromInt32(1))
		cluster.Status = clusterv1.ClusterStatus{}
		management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(cluster, policy, machine, controlPlaneMachine()).
			WithStatusSubresource(machine).Build()
		connection := &disconnected{ClusterCache: clustercache.NewFakeEmptyClusterCache()}
		r := newReconciler(t, management, connection, clocktesting.NewFakePassiveClock(start))
		r.references.Set(clusterKey, "c/kubeconfig", referenced{}, time.Hour)
		infrastructureExists(r, machine)
		for after := time.Duration(0); after < 10*time.Minute; after += contactRetry {
			g.Expect(reconcileAt(t, r, machine, start.Add(after))).To(Succeed())
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
			g.Expect(machinedrain.HasHook(machine)).To(BeTrue(), "undrained, after %s without a status", after)
		}
		g.Expect(conditions.GetMessage(machine, v1alpha1.MachineNodeMaintenance)).To(Equal("Waiting for a connection to the workload cluster: " +
			"the infrastructure of the Cluster is not provisioned. The Node is unknown: the Machine has a provider ID and no nodeRef"))
		connection.state = clustercache.HealthCheckingState{LastProbeTime: start.Add(10 * time.Minute), ConsecutiveFailures: 1}
		for _, after := range []time.Duration{0, machinedrain.BlindPeriod} {
			g.Expect(reconcileAt(t, r, machine, start.Add(10*time.Minute+after))).To(Succeed())
		}
		g.Expect(client.IgnoreNotFound(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine))).To(Succeed())
		g.Expect(machinedrain.HasHook(machine)).To(BeFalse(), "it may never have had a Node")
	})
}

// TestDrainTimeoutWithoutInfrastructure: nothing else ends the wait if the infrastructure is never provisioned.
func TestDrainTimeoutWithoutInfrastructure(t *testing.T) {
	t.Run("M39, M87: the drain timeout ends the wait for a Cluster whose infrastructure is not provisioned", func(t *testing.T) {
		g, start := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
		machine := deletedWorkers(start, "m")[0]
		machine.Status.NodeRef.Name, machine.Spec.ProviderID, machine.Spec.Deletion.NodeDrainTimeoutSeconds = "", "cloud://m", ptr.To[int32](120)
		cluster, policy := provisionedCluster(), policyWithLimit(intstr.FromInt32(1))
		cluster.Status = clusterv1.ClusterStatus{}
		management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(cluster, policy, machine, controlPlaneMachine()).
			WithStatusSubresource(machine).Build()
		r := newReconciler(t, management, &disconnected{ClusterCache: clustercache.NewFakeEmptyClusterCache()}, clocktesting.NewFakePassiveClock(start))
		infrastructureExists(r, machine)
		for _, after := range []time.Duration{0, machinedrain.BlindPeriod, 119 * time.Second, 2 * time.Minute} {
			g.Expect(machinedrain.HasHook(machine)).To(BeTrue(), "before %s", after)
			g.Expect(reconcileAt(t, r, machine, start.Add(after))).To(Succeed())
			g.Expect(client.IgnoreNotFound(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine))).To(Succeed())
		}
		g.Expect(machinedrain.HasHook(machine)).To(BeFalse())
	})
}

// TestConnectionThatAnotherFailureHides: the Node cannot be looked up while the workload cluster is connected, because the infrastructure
// machine cannot be read for a moment.
func TestConnectionThatAnotherFailureHides(t *testing.T) {
	t.Run("M87: the minute begins again after a connection during which another step failed", func(t *testing.T) {
		g, start := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
		machine := deletedWorkers(start, "m")[0]
		machine.DeletionTimestamp = ptr.To(metav1.NewTime(start.Add(-time.Second)))
		machine.Status.NodeRef.Name, machine.Spec.ProviderID = "", "cloud://m"
		connection := &breaking{ClusterCache: connectedTo(workloadCluster(machine).Build(), start), broken: true}
		management := managementCluster(machine).WithObjects(policyWithLimit(intstr.FromInt32(1))).Build()
		r := newReconciler(t, management, connection, clocktesting.NewFakePassiveClock(start))
		r.references.Set(clusterKey, "c/kubeconfig", referenced{}, time.Hour)
		infrastructureExists(r, machine)
		g.Expect(reconcileAt(t, r, machine, start)).To(Succeed())
		connection.broken = false
		r.references.Set(types.NamespacedName{Namespace: machine.Namespace}, machine.UID, referenced{failure: errors.New("no answer")}, time.Hour)
		g.Expect(reconcileAt(t, r, machine, start.Add(30*time.Second))).NotTo(Succeed())
		connection.broken = true
		infrastructureExists(r, machine)
		g.Expect(reconcileAt(t, r, machine, start.Add(machinedrain.BlindPeriod))).To(Succeed())
		g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
		g.Expect(machinedrain.HasHook(machine)).To(BeTrue(), "released undrained, with the first attempt after the connection")
	})
}

// TestConnectionLostBeforeAPause: a Machine is reconciled once without a connection, and then paused for an hour.
func TestConnectionLostBeforeAPause(t *testing.T) {
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for name, change := range map[string]func(*clusterv1.Machine){
		"M87: the time of a pause, in which the manager does not look up the Node, does not count": func(m *clusterv1.Machine) {
			m.Status.NodeRef.Name, m.Spec.ProviderID = "", "cloud://m"
		},
		"M92: the time of a pause, in which the manager does not try to observe the drain, does not count": func(m *clusterv1.Machine) {
			m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](1800)
			m.Annotations[v1alpha1.DrainStartedAnnotation] = start.Add(-10 * time.Minute).Format(time.RFC3339)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, machine := NewWithT(t), deletedWorkers(start, "m")[0]
			change(machine)
			connection := &breaking{ClusterCache: connectedTo(workloadCluster(machine).Build(), start), broken: true}
			management := managementCluster(machine).WithObjects(policyWithLimit(intstr.FromInt32(1))).Build()
			r := newReconciler(t, management, connection, clocktesting.NewFakePassiveClock(start))
			r.references.Set(clusterKey, "c/kubeconfig", referenced{}, time.Hour)
			infrastructureExists(r, machine)
			isReleasedAt := func(after time.Duration) bool {
				g.Expect(reconcileAt(t, r, machine, start.Add(after))).To(Succeed())
				g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
				return !machinedrain.HasHook(machine)
			}
			g.Expect(isReleasedAt(0)).To(BeFalse())
			machine.Annotations[clusterv1.PausedAnnotation] = ""
			g.Expect(management.Update(t.Context(), machine)).To(Succeed())
			g.Expect(isReleasedAt(5 * time.Second)).To(BeFalse())
			delete(machine.Annotations, clusterv1.PausedAnnotation)
			g.Expect(management.Update(t.Context(), machine)).To(Succeed())
			g.Expect(isReleasedAt(time.Hour)).To(BeFalse(), "undrained, with the first attempt after the pause")
			g.Expect(isReleasedAt(time.Hour+machinedrain.BlindPeriod)).To(BeTrue(), "after a minute of attempts")
		})
	}
}

// breaking is a ClusterCache whose connection breaks.
type breaking struct {
	clustercache.ClusterCache
	broken bool
}

func (c *breaking) GetClient(ctx context.Context, key client.ObjectKey) (client.Client, error) {
	if c.broken {
		return nil, clustercache.ErrClusterNotConnected
	}
	return c.ClusterCache.GetClient(ctx, key) //nolint:wrapcheck // of a test
}

package machine

import (
	"context"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expiring"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// clusterKey names the Cluster of the tests.
var clusterKey = types.NamespacedName{Namespace: "fleet", Name: "c"}

func provisionedCluster() *clusterv1.Cluster {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: clusterKey.Namespace, Name: clusterKey.Name, UID: "c"}}
	cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	return cluster
}

// controlPlaneMachine returns a Machine that is not a worker, and is not deleted.
func controlPlaneMachine() *clusterv1.Machine {
	return &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
		Namespace: "fleet", Name: "cp", Labels: map[string]string{clusterv1.ClusterNameLabel: "c", clusterv1.MachineControlPlaneLabel: ""},
	}}
}

// deletedMachine is a Machine that is being deleted and has the hook.
func deletedMachine() *clusterv1.Machine {
	return &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "fleet", Name: "m", UID: "m", DeletionTimestamp: new(metav1.Now()), Finalizers: []string{clusterv1.MachineFinalizer},
			Annotations: map[string]string{v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner},
		},
		Spec:   clusterv1.MachineSpec{ClusterName: "c"},
		Status: clusterv1.MachineStatus{NodeRef: clusterv1.MachineNodeReference{Name: "node"}},
	}
}

// runningMachine is a Machine that is not being deleted, and has no hook.
func runningMachine() *clusterv1.Machine {
	m := deletedMachine()
	m.DeletionTimestamp, m.Finalizers, m.Annotations = nil, nil, map[string]string{}
	return m
}

// deletedWorkers returns Machines with these names. The first was deleted ten hours ago, each of the others an hour after the one before.
func deletedWorkers(now time.Time, names ...string) []*clusterv1.Machine {
	machines := make([]*clusterv1.Machine, 0, len(names))
	for i, name := range names {
		m := deletedMachine()
		m.Name, m.UID, m.Status.NodeRef.Name, m.Labels = name, types.UID(name), name, map[string]string{clusterv1.ClusterNameLabel: "c"}
		m.DeletionTimestamp = ptr.To(metav1.NewTime(now.Add(time.Duration(i-10) * time.Hour)))
		machines = append(machines, m)
	}
	return machines
}

// nodeOf returns the Node of a Machine of deletedWorkers.
func nodeOf(m *clusterv1.Machine) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.Name, UID: m.UID}, Spec: corev1.NodeSpec{ProviderID: m.Spec.ProviderID}}
}

// drainOf returns the NodeMaintenance of a Machine of deletedWorkers whose drain has begun.
func drainOf(m *clusterv1.Machine, began time.Time) *v1alpha1.NodeMaintenance {
	drain := machinedrain.Maintenance(machinedrain.Request{ManagementCluster: "here", Cluster: clusterKey, Machine: m, Node: nodeOf(m)})
	drain.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(began)}}
	return drain
}

// policyForAll returns a policy that selects all Machines.
func policyForAll() *v1alpha1.MachineDrainPolicy {
	return &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "all"}}
}

// policyWithLimit returns a policy that selects all Machines, with this limit.
func policyWithLimit(maxParallelDrains intstr.IntOrString) *v1alpha1.MachineDrainPolicy {
	policy := policyForAll()
	policy.Spec.MaxParallelDrains = &maxParallelDrains
	return policy
}

// managementCluster returns the builder of a client of the management cluster, with the Cluster, a Machine of its control plane, and these
// Machines.
func managementCluster(machines ...*clusterv1.Machine) *fake.ClientBuilder {
	builder := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(provisionedCluster(), controlPlaneMachine()).
		WithStatusSubresource(&clusterv1.Machine{})
	for _, m := range machines {
		builder.WithObjects(m)
	}
	return builder
}

// workloadCluster returns the builder of a client of the workload cluster, with the Nodes of these Machines.
func workloadCluster(machines ...*clusterv1.Machine) *fake.ClientBuilder {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(v1alpha1.GroupVersion.WithKind("NodeMaintenance"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	builder := fake.NewClientBuilder().WithScheme(newScheme()).WithRESTMapper(mapper)
	for _, m := range machines {
		builder.WithObjects(nodeOf(m))
	}
	return builder
}

// connectedTo returns a ClusterCache whose last health probe was answered at this time.
func connectedTo(remote client.Client, probed time.Time) clustercache.ClusterCache {
	return disconnected{
		clustercache.NewFakeClusterCache(remote, clusterKey), clustercache.HealthCheckingState{LastProbeTime: probed, LastProbeSuccessTime: probed},
	}
}

// readingThrough returns a Reconciler that can only read the workload cluster.
func readingThrough(cache clustercache.ClusterCache) *Reconciler {
	management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(provisionedCluster()).Build()
	return &Reconciler{Clusters: workload.NewClusters(management, cache, newScheme(), workload.Limits{}, clock.RealClock{})}
}

// infrastructureExists makes a Reconciler know that the infrastructure machines of these Machines exist.
func infrastructureExists(r *Reconciler, machines ...*clusterv1.Machine) {
	for _, m := range machines {
		r.references.Set(types.NamespacedName{Namespace: m.Namespace}, m.UID, referenced{}, time.Hour)
	}
}

// reconcileAt reconciles a Machine at a time of the fake clock of newReconciler.
func reconcileAt(t *testing.T, r *Reconciler, m *clusterv1.Machine, at time.Time) error {
	t.Helper()
	r.Clock.(*clocktesting.FakePassiveClock).SetTime(at)
	_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)})
	return err
}

// reconcileOnce reconciles a Machine, and reads it again.
func reconcileOnce(t *testing.T, r *Reconciler, m *clusterv1.Machine) {
	t.Helper()
	g := NewWithT(t)
	_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(r.Client.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
}

// drainingIn returns the NodeMaintenances whose stage is Drain, and the number of all.
func drainingIn(t *testing.T, remote client.Client) (draining []v1alpha1.NodeMaintenance, all int) {
	t.Helper()
	list := &v1alpha1.NodeMaintenanceList{}
	NewWithT(t).Expect(remote.List(t.Context(), list)).To(Succeed())
	all = len(list.Items)
	return slices.DeleteFunc(list.Items, func(m v1alpha1.NodeMaintenance) bool { return m.Spec.Stage != v1alpha1.StageDrain }), all
}

// turnsIn returns how many Machines have recorded that they have a turn.
func turnsIn(t *testing.T, management client.Client) (turns int) {
	t.Helper()
	list := &clusterv1.MachineList{}
	NewWithT(t).Expect(management.List(t.Context(), list)).To(Succeed())
	for i := range list.Items {
		if _, has := list.Items[i].Annotations[v1alpha1.DrainStartedAnnotation]; has {
			turns++
		}
	}
	return turns
}

// notConnected returns a Reconciler that has not tried to connect to a workload cluster yet.
func notConnected(t *testing.T, management client.Client, now clock.PassiveClock) *Reconciler {
	t.Helper()
	return newReconciler(t, management, disconnected{clustercache.NewFakeEmptyClusterCache(), clustercache.HealthCheckingState{}}, now)
}

// newReconciler returns a Reconciler of a manager that has just started.
func newReconciler(t *testing.T, management client.Client, remote clustercache.ClusterCache, now clock.PassiveClock) *Reconciler {
	t.Helper()
	management = answering{management}
	return &Reconciler{
		Client: management, APIReader: management, Clock: now, Maintenances: &machinemaintenance.Requester{Client: management, ManagementCluster: "here"},
		Clusters: workload.NewClusters(management, remote, newScheme(), workload.Limits{}, now),
		Recorder: tracing.NewRecorder(t.Context(), nil), events: record.NewFakeRecorder(1000), references: expiring.NewMap[types.UID, referenced](t.Context()),
		ConnectNow: func(types.NamespacedName) {}, retryAfter: func(types.NamespacedName, time.Duration) {},
	}
}

// answering is a fake client that returns a Machine whose status was applied, as an API server does. It lists objects by name without an
// index.
type answering struct{ client.Client }

func (c answering) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	at := slices.IndexFunc(options, func(option client.ListOption) bool { _, is := option.(client.MatchingFields); return is })
	if at < 0 {
		return c.Client.List(ctx, list, options...) //nolint:wrapcheck // it adds nothing
	}
	if err := c.Client.List(ctx, list, slices.Delete(slices.Clone(options), at, at+1)...); err != nil {
		return err //nolint:wrapcheck // it adds nothing
	}
	all, err := meta.ExtractList(list)
	if err != nil {
		return err //nolint:wrapcheck // it adds nothing
	}
	named := options[at].(client.MatchingFields)[metav1.ObjectNameField]
	all = slices.DeleteFunc(all, func(each runtime.Object) bool { return each.(client.Object).GetName() != named })
	return meta.SetList(list, all) //nolint:wrapcheck // it adds nothing
}

func (c answering) Status() client.SubResourceWriter {
	return answeringStatus{c.Client.Status(), c.Client}
}

type answeringStatus struct {
	client.SubResourceWriter
	client client.Client
}

func (s answeringStatus) Apply(ctx context.Context, object runtime.ApplyConfiguration, options ...client.SubResourceApplyOption) error {
	if err := s.SubResourceWriter.Apply(ctx, object, options...); err != nil {
		return err
	}
	applied, stored := object.(metav1.Object), &clusterv1.Machine{}
	if err := s.client.Get(ctx, client.ObjectKey{Namespace: applied.GetNamespace(), Name: applied.GetName()}, stored); err != nil {
		return err
	}
	applied.SetResourceVersion(stored.ResourceVersion)
	return nil
}

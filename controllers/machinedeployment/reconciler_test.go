package machinedeployment

import (
	"context"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

// A manager that does not ignore the MachineDeployment would use the workload clusters, which are nil.
func TestWatchFilter(t *testing.T) {
	labelled := func(name, value string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{clusterv1.WatchLabel: value}}
	}
	t.Run("M105: ignores a MachineDeployment if the watch filter selects neither it nor its Cluster", func(t *testing.T) {
		deployment := &clusterv1.MachineDeployment{ObjectMeta: labelled("md", "theirs")}
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"}}
		deployment.Spec.ClusterName = cluster.Name
		r := &Reconciler{Client: fakes.Client(deployment, cluster), Filter: "ours"}
		if result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(deployment)}); err != nil || !result.IsZero() {
			t.Errorf("got %v, %v", result, err)
		}
	})
	for name, filter := range map[string]string{
		"M105: neither announces nor cordons the Node of a Machine that the watch filter does not select": "ours",
		"M105: cordons that of a Machine that it selects":                                                 "theirs",
	} {
		t.Run(name, func(t *testing.T) {
			cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"}}
			machine := &clusterv1.Machine{ObjectMeta: labelled("m", "theirs"), Spec: clusterv1.MachineSpec{ClusterName: cluster.Name}}
			machine.Status.NodeRef.Name = "node"
			management := fakes.Client(cluster, machine)
			remote := fakes.Client(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"}})
			r := &Reconciler{Filter: machinedrain.WatchFilter(filter), Maintenances: &machinemaintenance.Requester{Client: management, ManagementCluster: "here"}}
			if err := r.apply(t.Context(), &scope{cluster: cluster, remote: remote}, machine, v1alpha1.StageCordon); err != nil {
				t.Fatal(err)
			}
			maintenances := &v1alpha1.NodeMaintenanceList{}
			if err := remote.List(t.Context(), maintenances); err != nil {
				t.Fatal(err)
			}
			if got := len(maintenances.Items) > 0; got != (filter == "theirs") {
				t.Errorf("got %d NodeMaintenances", len(maintenances.Items))
			}
		})
	}
}

func TestApplyAll(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{}, "one", errors.New("refused"))
	for name, tc := range map[string]struct {
		failure error
		began   time.Duration // before a health probe was answered
		want    int
	}{
		"M137: cordons the Nodes of the other Machines although a webhook refuses it for one": {refused, 0, 1},
		"M137: also although a webhook hangs for that one":                                    {context.DeadlineExceeded, time.Minute, 1},
		"M137: sends no other request while the API server does not answer":                   {io.EOF, -time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, s, created := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"}}, &scope{}, 0
			s.cluster = cluster
			var nodes []client.Object
			for _, name := range []string{"one", "two"} {
				machine := clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: clusterv1.MachineSpec{ClusterName: cluster.Name}}
				machine.Status.NodeRef.Name = name
				s.machines, nodes = append(s.machines, machine), append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}})
			}
			s.remote = interceptor.NewClient(fakes.Client(nodes...), interceptor.Funcs{
				Create: func(_ context.Context, _ client.WithWatch, object client.Object, _ ...client.CreateOption) error {
					if strings.HasPrefix(object.GetName(), "one") {
						return tc.failure
					}
					created++
					return nil
				},
			})
			r := &Reconciler{Maintenances: &machinemaintenance.Requester{Client: fakes.Client(), ManagementCluster: "here"}}
			r.Clock = clocktesting.NewFakePassiveClock(time.Now().Add(-tc.began))
			probed := clustercache.NewFakeClusterCache(s.remote, client.ObjectKeyFromObject(cluster))
			r.Clusters = workload.NewClusters(fakes.Client(), probed, fakes.Scheme(), workload.Limits{}, r.Clock)
			err := r.applyAll(t.Context(), s, map[string]v1alpha1.NodeMaintenanceStage{"one": v1alpha1.StageCordon, "two": v1alpha1.StageCordon})
			if !errors.Is(err, tc.failure) || created != tc.want {
				t.Errorf("got %v, and %d NodeMaintenances", err, created)
			}
		})
	}
}

func TestMachineThatLeaves(t *testing.T) {
	for name, tc := range map[string]struct {
		leave func(*clusterv1.Machine, *clusterv1.MachineDeployment)
		stays bool
	}{
		"M105: restores the Node of a Machine that the watch filter does not select any more": {
			leave: func(m *clusterv1.Machine, _ *clusterv1.MachineDeployment) { delete(m.Labels, clusterv1.WatchLabel) },
		},
		"M105: also if it does not select the MachineDeployment any more": {
			leave: func(_ *clusterv1.Machine, d *clusterv1.MachineDeployment) { delete(d.Labels, clusterv1.WatchLabel) },
		},
		"M24: leaves a Machine of another MachineDeployment to the reconciliation of that one": {
			leave: func(m *clusterv1.Machine, _ *clusterv1.MachineDeployment) {
				m.Labels[clusterv1.MachineDeploymentNameLabel] = "other"
			}, stays: true,
		},
		"M24: restores the Node of a Machine that no policy selects any more": {
			leave: func(*clusterv1.Machine, *clusterv1.MachineDeployment) {},
		},
		"M167: keeps it cordoned while the Machine has the hook, since its policy may be replaced": {
			leave: func(m *clusterv1.Machine, _ *clusterv1.MachineDeployment) { machinedrain.SetHook(m) }, stays: true,
		},
		"M105: restores the Node of a Machine with the hook that the watch filter does not select any more": {
			leave: func(m *clusterv1.Machine, _ *clusterv1.MachineDeployment) {
				machinedrain.SetHook(m)
				delete(m.Labels, clusterv1.WatchLabel)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, deployment, cordon, remote := cordonedByRollout(t, tc.leave, interceptor.Funcs{})
			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(deployment)}); err != nil {
				t.Fatal(err)
			}
			if err := remote.Get(t.Context(), client.ObjectKeyFromObject(cordon), cordon); err != nil {
				t.Fatal(err)
			}
			if stays := cordon.Spec.Stage == v1alpha1.StageCordon && cordon.DeletionTimestamp.IsZero(); stays != tc.stays {
				t.Errorf("got stage %s, deleted: %v", cordon.Spec.Stage, cordon.DeletionTimestamp)
			}
		})
	}
}

func TestOtherPolicy(t *testing.T) {
	for name, tc := range map[string]struct {
		after time.Duration // since the other policy was found
		stays bool
	}{
		"M167: keeps a Node cordoned when another policy selects its Machine, since its policy may be replaced": {after: 2 * time.Second, stays: true},
		"M167: restores it after three seconds if the other policy ignores outdated Nodes":                      {after: 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r, deployment, cordon, remote := cordonedByRollout(t, func(*clusterv1.Machine, *clusterv1.MachineDeployment) {}, interceptor.Funcs{})
			clock := clocktesting.NewFakePassiveClock(time.Now())
			r.Clock = clock
			request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(deployment)}
			policy := func(name string) *v1alpha1.MachineDrainPolicy {
				policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: deployment.Namespace, Name: name}}
				policy.Spec.Rollout.OutdatedNodes = v1alpha1.OutdatedNodesIgnore
				return policy
			}
			machines := &clusterv1.MachineList{}
			g.Expect(r.Client.List(t.Context(), machines)).To(Succeed())
			former := machinedrain.ParsePolicies([]v1alpha1.MachineDrainPolicy{*policy("former")})
			s := &scope{cluster: &clusterv1.Cluster{}, deployment: deployment, machines: machines.Items, policies: former}
			g.Expect(r.awaitPolicies(s, clock.Now())).To(BeZero(), "it follows the first policy at once")
			g.Expect(r.Client.Create(t.Context(), policy("other"))).To(Succeed())

			g.Expect(r.Reconcile(t.Context(), request)).To(Equal(reconcile.Result{RequeueAfter: 3 * time.Second}))
			clock.SetTime(clock.Now().Add(tc.after))
			_, err := r.Reconcile(t.Context(), request)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(cordon), cordon)).To(Succeed()) // it has a finalizer
			g.Expect(cordon.Spec.Stage == v1alpha1.StageCordon && cordon.DeletionTimestamp.IsZero()).To(Equal(tc.stays), "stage %s", cordon.Spec.Stage)
		})
	}
}

// cordonedByRollout returns a Reconciler, a MachineDeployment, and the NodeMaintenance that was requested for its Machine before both were
// changed. The workload cluster answers as funcs say.
func cordonedByRollout(t *testing.T, change func(*clusterv1.Machine, *clusterv1.MachineDeployment), funcs interceptor.Funcs) (
	r *Reconciler, deployment *clusterv1.MachineDeployment, cordon *v1alpha1.NodeMaintenance, remote client.Client,
) {
	t.Helper()
	labels := map[string]string{clusterv1.WatchLabel: "ours", clusterv1.ClusterNameLabel: "c", clusterv1.MachineDeploymentNameLabel: "md"}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "default", Name: name, Labels: maps.Clone(labels)}
	}
	cluster := &clusterv1.Cluster{ObjectMeta: meta("c")}
	deployment = &clusterv1.MachineDeployment{ObjectMeta: meta("md"), Spec: clusterv1.MachineDeploymentSpec{ClusterName: "c"}}
	other := &clusterv1.MachineDeployment{ObjectMeta: meta("other"), Spec: clusterv1.MachineDeploymentSpec{ClusterName: "c"}}
	machine := &clusterv1.Machine{ObjectMeta: meta("m"), Spec: clusterv1.MachineSpec{ClusterName: "c"}}
	machine.Status.NodeRef.Name = "node"
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"}}
	cordon = machinedrain.Maintenance(machinedrain.Request{
		ManagementCluster: "here", Cluster: client.ObjectKeyFromObject(cluster), Machine: machine, Node: node, Stage: v1alpha1.StageCordon,
		For: v1alpha1.RequestedForRollout,
	})
	change(machine, deployment)
	management := fakes.Client(cluster, deployment, other, machine)
	remote = fakes.Builder(node, cordon).WithRESTMapper(mapper()).WithInterceptorFuncs(funcs).Build()
	r = &Reconciler{
		Client: management, Filter: "ours", Maintenances: &machinemaintenance.Requester{Client: management, ManagementCluster: "here"},
		Clock: clocktesting.NewFakePassiveClock(time.Now()),
	}
	connected := clustercache.NewFakeClusterCache(remote, client.ObjectKeyFromObject(cluster))
	r.Clusters = workload.NewClusters(management, connected, fakes.Scheme(), workload.Limits{}, r.Clock)
	return r, deployment, cordon, remote
}

func TestNodeThatAProxyDenies(t *testing.T) {
	t.Run("M24, M109: a reconciliation that a proxy answers with 404 is repeated", func(t *testing.T) {
		proxy := apierrors.NewGenericServerResponse(http.StatusNotFound, http.MethodGet, corev1.Resource("nodes"), "node", "page not found", 0, true)
		r, deployment, _, _ := cordonedByRollout(t, func(*clusterv1.Machine, *clusterv1.MachineDeployment) {}, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
				if _, is := object.(*corev1.Node); is {
					return proxy
				}
				return c.Get(ctx, key, object, options...)
			},
		})
		_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(deployment)})
		if !errors.Is(err, proxy) {
			t.Errorf("got %v: no event follows", err)
		}
	})
}

func mapper() apimeta.RESTMapper {
	mapper := apimeta.NewDefaultRESTMapper(nil)
	mapper.Add(v1alpha1.GroupVersion.WithKind("NodeMaintenance"), apimeta.RESTScopeRoot)
	return mapper
}

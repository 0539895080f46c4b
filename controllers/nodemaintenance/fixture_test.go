package nodemaintenance

import (
	"context"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

// connectedTo is a ClusterCache with a connection to a server.
type connectedTo struct {
	clustercache.ClusterCache
	config *rest.Config
}

func (c connectedTo) GetRESTConfig(context.Context, client.ObjectKey) (*rest.Config, error) {
	return c.config, nil
}

// clustersWith returns the connections to the workload cluster of one Cluster.
func clustersWith(cache clustercache.ClusterCache, cluster types.NamespacedName) *workload.Clusters {
	management := fakes.Client(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}})
	return workload.NewClusters(management, cache, fakes.Scheme(), workload.Limits{}, clock.RealClock{})
}

// reconcilerOf returns a reconciler for one workload cluster.
func reconcilerOf(t *testing.T, server client.WithWatch, cluster types.NamespacedName) *Reconciler {
	t.Helper()
	return &Reconciler{
		written:  expectations.New[*corev1.Node](t.Context(), workload.TrimNode),
		Clusters: clustersWith(connectedTo{clustercache.NewFakeClusterCache(server, cluster), &rest.Config{}}, cluster),
		Recorder: tracing.NewRecorder(t.Context(), nil), Maintenances: &machinemaintenance.Requester{}, Clock: clock.RealClock{},
	}
}

// reconcileOnce runs the steps for a NodeMaintenance, with the Nodes that it selects.
func (r *Reconciler) reconcileOnce(t *testing.T, server client.Client, cluster types.NamespacedName, name string) error {
	t.Helper()
	g, request := NewWithT(t), workload.Request{Cluster: cluster, Object: types.NamespacedName{Name: name}}
	s := &scope{request: request, client: server, before: &v1alpha1.NodeMaintenance{}, now: time.Now()}
	g.Expect(server.Get(t.Context(), request.Object, s.before)).To(Succeed())
	s.maintenance = s.before.DeepCopy()
	var err error
	s.nodes, err = selectedNodes(t.Context(), server, s.maintenance)
	g.Expect(err).NotTo(HaveOccurred())
	for _, step := range r.steps(s) {
		if done, err := step(t.Context(), s); err != nil || !done {
			return err
		}
	}
	return nil
}

// maintenanceOf returns a NodeMaintenance that drains Nodes.
func maintenanceOf(name string, nodes ...string) *v1alpha1.NodeMaintenance {
	return &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain, NodeSelector: v1alpha1.SelectNodes(nodes...)},
	}
}

// withMaintenances returns a client of a workload cluster that stores NodeMaintenances and other objects.
func withMaintenances(objects ...client.Object) client.Client {
	return withMaintenancesBuilder(objects...).Build()
}

func withMaintenancesBuilder(objects ...client.Object) *fake.ClientBuilder {
	return fakes.Builder(objects...).
		WithIndex(&v1alpha1.Evacuation{}, "node", func(client.Object) []string { return nil }).
		WithIndex(&v1alpha1.NodeMaintenance{}, "node", func(object client.Object) []string {
			return nodeselection.Keys(object.(*v1alpha1.NodeMaintenance))
		})
}

// beforePatch calls a function before each patch of an object. If the function returns an error, that is the answer.
func beforePatch(call func(client.Object) error) interceptor.Funcs {
	return interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if err := call(object); err != nil {
				return err
			}
			return c.Patch(ctx, object, patch, options...)
		},
	}
}

// beforeStatusPatch is beforePatch for patches of a status.
func beforeStatusPatch(call func(client.Object) error) interceptor.Funcs {
	return interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, of string, object client.Object, patch client.Patch,
			options ...client.SubResourcePatchOption,
		) error {
			if err := call(object); err != nil {
				return err
			}
			return c.SubResource(of).Patch(ctx, object, patch, options...)
		},
	}
}

// notFoundByProxy is the error of a client about the 404 of a proxy.
func notFoundByProxy(name string) error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, http.MethodPatch, corev1.Resource("nodes"), name, "page not found", 0, true)
}

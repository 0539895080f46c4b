package nodemaintenance

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
)

// watched is a ClusterCache with a connection to a server, on which watches can be added.
type watched struct {
	connectedTo
	live client.Client
}

func (c watched) GetUncachedClient(context.Context, client.ObjectKey) (client.Client, error) {
	return c.live, nil
}

func (c watched) Watch(_ context.Context, _ client.ObjectKey, w clustercache.Watcher) error {
	return w.Watch(nil)
}

// besideUndecodable returns the connection to a workload cluster with a NodeMaintenance that cannot be decoded.
func besideUndecodable(t *testing.T, live client.Client, cluster types.NamespacedName) *workload.Clusters {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		kind, items := "EvacuationList", []any{}
		switch {
		case r.URL.Query().Has("watch"):
			<-r.Context().Done()
			return
		case strings.HasSuffix(r.URL.Path, "/nodemaintenances"):
			kind = "NodeMaintenanceList"
			items = append(items, map[string]any{
				"apiVersion": v1alpha1.GroupVersion.String(), "kind": "NodeMaintenance", "metadata": map[string]any{"name": "odd", "resourceVersion": "1"},
				"spec": map[string]any{"stage": 1},
			})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": kind, "metadata": map[string]any{"resourceVersion": "1"}, "items": items,
		})
	}))
	t.Cleanup(api.Close)
	config := &rest.Config{Host: api.URL, Timeout: time.Minute}
	clusters := clustersWith(watched{connectedTo{clustercache.NewFakeEmptyClusterCache(), config}, live}, cluster)
	clusters.UseCaches(workload.CacheOptions{})
	t.Cleanup(func() { clusters.Disconnect(cluster) })
	NewWithT(t).Expect(clusters.AddWatches(t.Context(), cluster, nil)).To(Succeed())
	NewWithT(t).Eventually(func() int { return len(clusters.SetAside(cluster, "NodeMaintenance")) }).Should(Equal(1))
	return clusters
}

// mapperOfWatched maps the kinds that are watched in a workload cluster.
func mapperOfWatched() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{v1alpha1.GroupVersion})
	mapper.Add(v1alpha1.GroupVersion.WithKind("NodeMaintenance"), meta.RESTScopeRoot)
	mapper.Add(v1alpha1.GroupVersion.WithKind("Evacuation"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	return mapper
}

func TestDeletedBesideUndecodable(t *testing.T) {
	for name, tc := range map[string]struct {
		idle, cordoned bool // the NodeMaintenance was in stage Idle before Complete; a user has cordoned the Node
		undecodable    bool
		keepsFinalizer bool
	}{
		"R89: a NodeMaintenance that was completed from Idle and is deleted uncordons its Node": {idle: true, cordoned: true},
		"R89, E53: it keeps its finalizer while another one cannot be decoded, so that it can do so then": {
			idle: true, cordoned: true, undecodable: true, keepsFinalizer: true,
		},
		"E53: it does not if its Node is schedulable":                                            {idle: true, undecodable: true},
		"E53: nor if it has only to restore what is recorded, since its Node is cleaned up then": {cordoned: true, undecodable: true},
	} {
		t.Run(name, func(t *testing.T) {
			g, cluster, m := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}, maintenanceOf("m", "a")
			m.Spec.Stage, m.Finalizers, m.DeletionTimestamp = v1alpha1.StageComplete, []string{v1alpha1.MaintenanceCompletionFinalizer}, new(metav1.Now())
			if tc.idle {
				m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageIdle, StartTimestamp: metav1.NewTime(time.Unix(0, 0))}}
			}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a"}, Spec: corev1.NodeSpec{Unschedulable: tc.cordoned}}
			server := withMaintenancesBuilder(m, node).WithStatusSubresource(m).WithRESTMapper(mapperOfWatched()).Build()
			r := reconcilerOf(t, server, cluster)
			if tc.undecodable {
				r.Clusters = besideUndecodable(t, server, cluster)
			}
			g.Expect(r.reconcileOnce(t, server, cluster, m.Name)).To(Succeed())
			err := server.Get(t.Context(), client.ObjectKeyFromObject(m), m)
			g.Expect(apierrors.IsNotFound(err)).NotTo(Equal(tc.keepsFinalizer))
			g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(node), node)).To(Succeed())
			g.Expect(node.Spec.Unschedulable).To(Equal(tc.cordoned && tc.undecodable))
		})
	}
}

func TestDeselectedBesideUndecodable(t *testing.T) {
	t.Run("E53: a Node that is no longer selected stays cordoned, and in the status, while a NodeMaintenance cannot be decoded", func(t *testing.T) {
		g, cluster, m := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}, selectingByLabel()
		m.Finalizers = []string{v1alpha1.MaintenanceCompletionFinalizer}
		m.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "a"}}}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a"}, Spec: corev1.NodeSpec{Unschedulable: true}}
		node.Annotations = map[string]string{v1alpha1.NodeOriginAnnotation: "schedulable"}
		server := withMaintenancesBuilder(m, node).WithStatusSubresource(m).WithRESTMapper(mapperOfWatched()).Build()
		r := reconcilerOf(t, server, cluster)
		present := r.Clusters
		r.Clusters = besideUndecodable(t, server, cluster)
		for _, isDecoded := range []bool{false, true} {
			if isDecoded {
				r.Clusters = present
			}
			g.Expect(r.reconcileOnce(t, server, cluster, m.Name)).To(Succeed())
			g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(node), node)).To(Succeed())
			g.Expect(node.Spec.Unschedulable).To(Equal(!isDecoded))
			stored := &v1alpha1.NodeMaintenance{}
			g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
			g.Expect(nodesInStatus(stored).Has("a")).To(Equal(!isDecoded))
		}
	})
}

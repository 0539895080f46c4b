package machine

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// connected is a ClusterCache with a connection to a server.
type connected struct {
	disconnected
	config *rest.Config
	live   client.Client
}

func (c connected) GetRESTConfig(context.Context, client.ObjectKey) (*rest.Config, error) {
	return c.config, nil
}

func (c connected) GetUncachedClient(context.Context, client.ObjectKey) (client.Client, error) {
	return c.live, nil
}

func (c connected) Watch(_ context.Context, _ client.ObjectKey, w clustercache.Watcher) error {
	return w.Watch(nil)
}

func TestFirstListFails(t *testing.T) {
	t.Run("M99: a Machine waits with the kind and the error while the first list of NodeMaintenances fails", func(t *testing.T) {
		g := NewWithT(t)
		failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "out of order", http.StatusInternalServerError)
		}))
		t.Cleanup(failing.Close)
		mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{v1alpha1.GroupVersion})
		mapper.Add(v1alpha1.GroupVersion.WithKind("NodeMaintenance"), meta.RESTScopeRoot)
		mapper.Add(v1alpha1.GroupVersion.WithKind("Evacuation"), meta.RESTScopeNamespace)
		live := fake.NewClientBuilder().WithScheme(newScheme()).WithRESTMapper(mapper).Build()
		cache := connected{disconnected{ClusterCache: clustercache.NewFakeEmptyClusterCache()}, &rest.Config{Host: failing.URL}, live}
		r := &Reconciler{Clusters: workload.NewClusters(live, cache, newScheme(), workload.Limits{}, clock.RealClock{})}
		r.Clusters.UseCaches(workload.CacheOptions{})
		s := &scope{machine: deletedMachine(), cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c"}}}
		t.Cleanup(func() { r.Clusters.Disconnect(s.clusterKey()) })
		g.Expect(r.Clusters.AddWatches(t.Context(), s.clusterKey(), nil)).To(Succeed())
		var waiting outcome
		g.Eventually(func() string {
			s.now = time.Now().Add(time.Minute)
			waiting = r.awaitLists(t.Context(), s)
			return waiting.message
		}).WithTimeout(time.Minute).Should(And(ContainSubstring("listing NodeMaintenances"), ContainSubstring("out of order")))
		g.Expect(waiting.action).To(Equal(wait))
		g.Expect(waiting.reason).To(Equal(v1alpha1.ReasonReconcileFailed))
		g.Expect(waiting.blind).To(BeTrue(), "no deadline passes because of what has not been read")
	})
}

// deletedBeforeVolumesAreListed is a deleted Machine of a workload cluster whose lists do not arrive.
func deletedBeforeVolumesAreListed(t *testing.T) (*Reconciler, *scope) {
	t.Helper()
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(silent.Close)
	cache := connected{disconnected{ClusterCache: clustercache.NewFakeEmptyClusterCache()}, &rest.Config{Host: silent.URL}, nil}
	management := fake.NewClientBuilder().WithScheme(newScheme()).Build()
	r := &Reconciler{Clusters: workload.NewClusters(management, cache, newScheme(), workload.Limits{}, clock.RealClock{})}
	s := &scope{machine: deletedMachine(), cluster: &clusterv1.Cluster{}, node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, now: time.Now()}
	s.cluster.Namespace, s.cluster.Name = "fleet", "c"
	t.Cleanup(func() {
		r.Clusters.Disconnect(s.clusterKey())
		removeDrainMetrics(client.ObjectKeyFromObject(s.machine))
	})
	return r, s
}

func TestVolumesAttachedAfterDaemonSets(t *testing.T) {
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        action
	}{
		"M140: neither the manager nor Cluster API waits for volumes that were attached after the Pods of DaemonSets were drained": {
			map[string]string{v1alpha1.VolumesDetachedAnnotation: "true"}, proceed,
		},
		"M135: waits for the volumes if another actor has removed the rule that skips the Pods of DaemonSets": {nil, wait},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r, s := deletedBeforeVolumesAreListed(t)
			s.node.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "kubernetes.io/csi/since^v"}}
			s.observe(&v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: tc.annotations}})
			result, err := r.awaitVolumesDetached(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.action).To(Equal(tc.want))
			machinedrain.Release(s.machine, true, s.volumesOver)
			_, excluded := s.machine.Annotations[clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation]
			g.Expect(excluded).To(Equal(tc.want == proceed), "Cluster API does not wait either")
		})
	}
}

func TestVolumesThatAreNotObserved(t *testing.T) {
	t.Run("M27, M94: volumes do not time out before they were observed, and the condition says so after ten seconds", func(t *testing.T) {
		g := NewWithT(t)
		r, s := deletedBeforeVolumesAreListed(t)
		s.machine.DeletionTimestamp = ptr.To(metav1.NewTime(s.now.Add(-time.Hour)))
		for annotation, ago := range map[string]time.Duration{
			v1alpha1.DrainStartedAnnotation: 20 * time.Minute, v1alpha1.DrainEndedAnnotation: 10 * time.Minute, v1alpha1.VolumeWaitStartedAnnotation: 10 * time.Minute,
		} {
			metav1.SetMetaDataAnnotation(&s.machine.ObjectMeta, annotation, s.now.Add(-ago).UTC().Format(time.RFC3339))
		}
		s.machine.Spec.Deletion.NodeVolumeDetachTimeoutSeconds = ptr.To[int32](60)
		s.observe(&v1alpha1.NodeMaintenance{
			ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: v1alpha1.NodeMaintenanceSpec{DrainRules: []v1alpha1.DrainRule{{Name: rules.RuleDaemonSetPods}}},
		})
		for _, step := range []struct {
			after        time.Duration
			want         string
			reconciledBy time.Duration
		}{
			{0, "", 10 * time.Second}, {9 * time.Second, "", time.Second}, {time.Second, v1alpha1.ReasonWaitingForVolumeDetach, pollInterval},
		} {
			s.now = s.now.Add(step.after)
			result, err := r.awaitVolumesDetached(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.action).To(Equal(wait))
			g.Expect(result.reason).To(Equal(step.want))
			g.Expect(result.at).To(Equal(s.now.Add(step.reconciledBy)))
			g.Expect(s.timedOut).To(BeEmpty())
			g.Expect(s.volumesOver).To(BeFalse())
		}
	})
}

package observe

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// workloadServer serves one NodeMaintenance, forbids Evacuations, and has no PodDisruptionBudgets. It counts the lists of NodeMaintenances.
func workloadServer(t *testing.T) (config *rest.Config, lists *atomic.Int32) {
	t.Helper()
	handler, lists := workloadHandler()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	return &rest.Config{Host: server.URL}, lists
}

func workloadHandler() (handler http.Handler, lists *atomic.Int32) {
	group := v1alpha1.GroupVersion
	version := metav1.GroupVersionForDiscovery{GroupVersion: group.String(), Version: group.Version}
	maintenance := v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	answers := map[string]any{
		"/api": metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}},
		"/apis": metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList"}, Groups: []metav1.APIGroup{
			{Name: group.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version},
		}},
		"/apis/" + group.String(): metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList"}, GroupVersion: group.String(), APIResources: []metav1.APIResource{
				{Name: "nodemaintenances", Kind: "NodeMaintenance"}, {Name: "evacuations", Kind: "Evacuation", Namespaced: true},
			},
		},
		"/apis/" + group.String() + "/nodemaintenances": v1alpha1.NodeMaintenanceList{
			TypeMeta: metav1.TypeMeta{APIVersion: group.String(), Kind: "NodeMaintenanceList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"},
			Items: []v1alpha1.NodeMaintenance{maintenance},
		},
	}
	lists = &atomic.Int32{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		query := r.URL.Query()
		answer, served := answers[r.URL.Path]
		switch {
		case !served:
			w.WriteHeader(http.StatusForbidden)
			answer = metav1.Status{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
				Message: "forbidden",
			}
		case query.Get("sendInitialEvents") != "": // the client lists instead
			w.WriteHeader(http.StatusUnprocessableEntity)
			answer = metav1.Status{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity,
				Reason: metav1.StatusReasonInvalid,
			}
		case query.Get("watch") != "":
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		case strings.HasSuffix(r.URL.Path, "/nodemaintenances"):
			lists.Add(1)
		}
		_ = json.NewEncoder(w).Encode(answer)
	}), lists
}

func TestWatch(t *testing.T) {
	t.Run("K50: the live view and a recording show the NodeMaintenances of a cluster whose Evacuations and budgets cannot be watched", func(t *testing.T) {
		g := NewWithT(t)
		config, lists := workloadServer(t)
		c, err := NewConnections(t.Context(), config, "test", "")
		g.Expect(err).NotTo(HaveOccurred())
		w, err := NewWatch(t.Context(), c, ctrlcache.ByObject{})
		g.Expect(err).NotTo(HaveOccurred())
		w.FollowDetails()
		g.Eventually(func(g Gomega) {
			maintenances, evacuations := w.Drains(t.Context(), types.NamespacedName{})
			g.Expect(maintenances).To(HaveLen(1))
			g.Expect(evacuations).To(BeEmpty())
			g.Expect(w.Problems()).To(ConsistOf(ContainSubstring("failed to list *v1alpha1.Evacuation: forbidden")))
			g.Expect(c.Gaps.List()).To(ConsistOf(ContainSubstring("watching *v1.PodDisruptionBudget in context test"),
				ContainSubstring("watching *v1.Deployment in context test"), ContainSubstring("watching *v1.StatefulSet in context test")))
		}, time.Minute).Should(Succeed())
		w.mu.Lock()
		defer w.mu.Unlock()
		g.Expect(w.problems).To(HaveKey(subject{kind: "*v1alpha1.Evacuation"}), "an event of one kind does not end the problem of another")
		g.Expect(lists.Load()).To(BeEquivalentTo(1), "the watch of NodeMaintenances is not started again because of budgets")
	})

	t.Run("K67: a cluster that refuses connections is named, what was read of it is known to be out of date, and it is read again", func(t *testing.T) {
		g := NewWithT(t)
		handler, _ := workloadHandler()
		server := httptest.NewServer(handler)
		c, err := NewConnections(t.Context(), &rest.Config{Host: server.URL}, "test", "")
		g.Expect(err).NotTo(HaveOccurred())
		w, err := NewWatch(t.Context(), c, ctrlcache.ByObject{})
		g.Expect(err).NotTo(HaveOccurred())
		w.FollowDetails()
		isLost := func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.workloads[types.NamespacedName{}].maintenances.isLost.Load()
		}
		g.Eventually(func() int {
			maintenances, _ := w.Drains(t.Context(), types.NamespacedName{})
			return len(maintenances)
		}, time.Minute).Should(Equal(1))
		g.Expect(isLost()).To(BeFalse())
		g.Expect(w.Unread(types.NamespacedName{})).To(HaveLen(3), "budgets and applications cannot be read")

		server.Listener.Close() //nolint:errcheck // it is closed
		server.CloseClientConnections()
		g.Eventually(func(g Gomega) {
			g.Expect(isLost()).To(BeTrue())
			g.Expect(w.Problems()).To(ContainElement(ContainSubstring("connection refused")))
		}, time.Minute).Should(Succeed())

		again := httptest.NewUnstartedServer(handler)
		listener, err := net.Listen("tcp", server.Listener.Addr().String())
		g.Expect(err).NotTo(HaveOccurred())
		again.Listener = listener
		again.Start()
		t.Cleanup(again.Close)
		t.Cleanup(again.CloseClientConnections)
		g.Eventually(isLost, time.Minute).Should(BeFalse())
		g.Eventually(w.Problems, 2*time.Minute).ShouldNot(ContainElement(ContainSubstring("connection refused")))
	})

	t.Run("K50: a Cluster that is no longer asked for, for example because it was deleted, is no problem", func(t *testing.T) {
		g, gone, used := NewWithT(t), types.NamespacedName{Name: "gone"}, types.NamespacedName{Name: "used"}
		w := &Watch{Changed: make(chan struct{}, 1), problems: map[subject]problem{}, workloads: map[types.NamespacedName]*workload{
			gone: {asked: time.Now().Add(-2 * problemAge)}, used: {asked: time.Now()},
		}}
		for _, cluster := range []types.NamespacedName{gone, used} {
			w.report(subject{cluster: cluster}, errors.New("connecting to "+cluster.Name))
		}
		g.Expect(w.Problems()).To(Equal([]string{"connecting to used"}))
	})
}

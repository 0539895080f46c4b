package workload

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	testingclock "k8s.io/utils/clock/testing"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
)

func TestWatchFailure(t *testing.T) {
	const metadata = `"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1"`
	for name, tc := range map[string]struct {
		what, path, list string
		otherNode        bool // the list is also of other Nodes
	}{
		"M57: reports a refused list of the Pods of a Node after 10 s, until it succeeds": {
			listedPods("n1"), "/api/v1/pods", `"kind":"PodList","apiVersion":"v1"`, false,
		},
		"M57: reports a refused list of PodDisruptionBudgets after 10 s, until it succeeds": {
			listedBudgets, "/apis/policy/v1/poddisruptionbudgets", `"kind":"PodDisruptionBudgetList","apiVersion":"policy/v1"`, true,
		},
		"M57: reports a refused list of Namespaces after 10 s, until it succeeds": {listedNamespaces, "/api/v1/namespaces", metadata, true},
		"M57: reports a refused list of DaemonSets after 10 s, until it succeeds": {listedDaemonSets, "/apis/apps/v1/daemonsets", metadata, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var allowed atomic.Bool
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch {
				case r.URL.Path != tc.path:
					<-r.Context().Done()
				case !allowed.Load():
					w.WriteHeader(http.StatusForbidden)
					_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"it is forbidden","reason":"Forbidden","code":403}`))
				case r.URL.Query().Get("watch") != "":
					w.(http.Flusher).Flush()
					<-r.Context().Done()
				default:
					_, _ = w.Write([]byte(`{` + tc.list + `,"metadata":{"resourceVersion":"1"},"items":[]}`))
				}
			}))
			defer server.Close()
			now := testingclock.NewFakeClock(time.Now())
			cluster := types.NamespacedName{Namespace: "default", Name: "c1"}
			w, err := newDrainWatch(cluster, &rest.Config{Host: server.URL}, func(Change) {}, now, nil)
			g.Expect(err).NotTo(HaveOccurred())
			defer w.stop()
			clusters := &Clusters{clock: now, watches: map[types.NamespacedName]*connectedWatch{cluster: {drainWatch: w}}}
			g.Expect(w.observe("owner", []string{"n1"})).To(Succeed())

			g.Eventually(func() error { return w.failures.Get(listing + tc.what).Err }).WithTimeout(time.Minute).Should(HaveOccurred())
			g.Expect(clusters.WatchFailure(cluster, "n1")).To(Succeed())
			now.Step(persistAfter)
			g.Expect(clusters.WatchFailure(cluster, "n1")).To(MatchError("listing " + tc.what + ": it is forbidden"))
			g.Expect(clusters.WatchFailure(cluster, "n2") != nil).To(Equal(tc.otherNode))
			allowed.Store(true)
			g.Eventually(func() error { return clusters.WatchFailure(cluster, "n1") }).WithTimeout(time.Minute).Should(Succeed())
		})
	}
}

func TestListFailure(t *testing.T) {
	t.Run("M99: reports a failing list of a connection after 10 s, with the kind and the error, until it succeeds or the informer ends", func(t *testing.T) {
		g := NewWithT(t)
		now := testingclock.NewFakeClock(time.Now())
		cluster := types.NamespacedName{Namespace: "default", Name: "c1"}
		clusters := NewClusters(nil, nil, nil, Limits{}, now)
		opened := &sharingCache{ctx: t.Context(), config: &rest.Config{}, end: func() {}, shared: map[ctrlcache.Informer]*sharedInformer{}}
		clusters.informers.caches[cluster] = opened
		var failing error
		failed := 0
		lists := &recordingListerWatcher{
			ListerWatcherWithContext: toolscache.ToListerWatcherWithContext(&toolscache.ListWatch{
				ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
					return nil, failing
				},
			}),
			what: "Evacuations", failures: &opened.failures, clock: now, ignores: answers.NotServed, failed: func() { failed++ },
		}
		list := func(err error) {
			failing = err
			_, _ = lists.ListWithContext(t.Context(), metav1.ListOptions{})
		}
		list(errors.New("unknown field"))
		g.Expect(clusters.WatchFailure(cluster, "n1")).To(Succeed())
		now.Step(persistAfter)
		list(errors.New("unknown field"))
		g.Expect(clusters.WatchFailure(cluster, "n1")).To(MatchError("listing Evacuations: unknown field"))
		g.Expect(failed).To(Equal(1), "Machines are reconciled once, when the failure is reported")
		list(nil)
		g.Expect(clusters.WatchFailure(cluster, "n1")).To(Succeed())
	})
}

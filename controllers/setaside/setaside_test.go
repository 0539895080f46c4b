package setaside_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/setaside"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

const oddTime = "2026-01-01t00:00:00z"

// stored is an Evacuation as an API server sends it.
func stored(name, progress string, version int) string {
	return fmt.Sprintf(`{"apiVersion":"maintenance.cluster.x-k8s.io/v1alpha1","kind":"Evacuation",`+
		`"metadata":{"namespace":"shop","name":%q,"resourceVersion":"%d"},"spec":{"podRef":{"name":%q,"uid":"u"}},`+
		`"status":{"evacuationProgressTimestamp":%q}}`, name, version, name, progress)
}

// server answers lists with the present objects, and watches with events.
type server struct {
	mu     sync.Mutex
	items  []string
	events chan string
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	s.mu.Lock()
	items := s.items
	s.mu.Unlock()
	if r.URL.Query().Get("watch") == "" {
		fmt.Fprintf(w, `{"apiVersion":"maintenance.cluster.x-k8s.io/v1alpha1","kind":"EvacuationList","metadata":{"resourceVersion":"10"},"items":[%s]}`,
			strings.Join(items, ","))
		return
	}
	w.(http.Flusher).Flush()
	for {
		select {
		case event := <-s.events:
			fmt.Fprintln(w, event)
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

func (s *server) send(event, object string) {
	s.events <- fmt.Sprintf(`{"type":%q,"object":%s}`, event, object)
}

type reported struct {
	mu    sync.Mutex
	texts []string
}

func (r *reported) report(object *metav1.PartialObjectMetadata, err *setaside.Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.texts = append(r.texts, object.Name+": "+err.Error())
}

func (r *reported) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.texts...)
}

func TestInformerSetsAside(t *testing.T) {
	t.Run("E53: delivers the objects that can be decoded, and reports each other one once, with its error", func(t *testing.T) {
		g := NewWithT(t)
		s := &server{
			events: make(chan string), items: []string{stored("a", "2026-01-01T00:00:00Z", 1), stored("b", oddTime, 2), stored("c", "2026-01-01T00:00:00Z", 3)},
		}
		api := httptest.NewServer(s)
		t.Cleanup(api.Close)
		scheme := fakes.Scheme()
		reports := &reported{}
		cluster := types.NamespacedName{Namespace: "default", Name: "c1"}
		aside := setaside.New(cluster, reports.report)
		t.Cleanup(aside.Close)
		lw, err := aside.ListerWatcher(setaside.Source{
			Config: &rest.Config{Host: api.URL}, HTTPClient: api.Client(), Scheme: scheme, Kinds: []client.Object{&v1alpha1.Evacuation{}},
		}, &v1alpha1.Evacuation{}, nil)
		g.Expect(err).NotTo(HaveOccurred())
		informer := cache.NewSharedIndexInformer(lw, &v1alpha1.Evacuation{}, 0, cache.Indexers{})
		go informer.RunWithContext(t.Context())
		eventually := func(check any) AsyncAssertion { return g.Eventually(check).WithTimeout(time.Minute) }
		eventually(informer.HasSynced).Should(BeTrue())
		g.Expect(informer.GetStore().ListKeys()).To(ConsistOf("shop/a", "shop/c"))
		key := types.NamespacedName{Namespace: "shop", Name: "b"}
		g.Expect(aside.Get("Evacuation", key)).To(MatchError(ContainSubstring(`Evacuation shop/b cannot be decoded: parsing time "2026-01-01t00:00:00z"`)))
		g.Expect(aside.List("Evacuation", "other")).To(BeEmpty())
		g.Expect(reports.all()).To(HaveLen(1))

		s.send("MODIFIED", stored("c", oddTime, 11)) // is no longer in the cache
		eventually(informer.GetStore().ListKeys).Should(ConsistOf("shop/a"))
		s.send("MODIFIED", stored("c", oddTime, 12)) // is not reported again
		s.send("ADDED", stored("d", "2026-01-01T00:00:00Z", 13))
		eventually(informer.GetStore().ListKeys).Should(ConsistOf("shop/a", "shop/d"))
		g.Expect(reports.all()).To(HaveLen(2))
		g.Expect(aside.List("Evacuation", "")).To(HaveLen(2))
		g.Expect(testutil.GatherAndCompare(metrics.Registry, strings.NewReader(`
# HELP capnm_undecodable_objects Objects that the manager has set aside, because it cannot decode them, by the Cluster that they are in and `+
			`by kind. Objects of the management cluster have no Cluster.
# TYPE capnm_undecodable_objects gauge
capnm_undecodable_objects{cluster="c1",cluster_namespace="default",kind="Evacuation"} 2
`), "capnm_undecodable_objects")).To(Succeed())

		s.send("MODIFIED", stored("b", "2026-01-01T00:00:00Z", 14))
		eventually(informer.GetStore().ListKeys).Should(ConsistOf("shop/a", "shop/b", "shop/d"))
		older := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "b", ResourceVersion: "1"}}
		aside.Delivered("Evacuation", older)
		g.Expect(aside.Get("Evacuation", key)).NotTo(Succeed())
		newer := older.DeepCopy()
		newer.ResourceVersion = "14"
		aside.Delivered("Evacuation", newer)
		s.send("DELETED", stored("c", oddTime, 15))
		eventually(func() any { return aside.List("Evacuation", "") }).Should(BeEmpty())

		s.send("MODIFIED", stored("d", oddTime, 16))
		eventually(informer.GetStore().ListKeys).Should(ConsistOf("shop/a", "shop/b"))
		s.mu.Lock()
		s.items = []string{stored("a", "2026-01-01T00:00:00Z", 1)}
		s.mu.Unlock()
		s.events <- `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","code":410,"reason":"Expired","status":"Failure"}}` // the informer lists again
		eventually(informer.GetStore().ListKeys).Should(ConsistOf("shop/a"))
		g.Expect(aside.List("Evacuation", "")).To(BeEmpty(), "what the list does not contain no longer exists")
	})
}

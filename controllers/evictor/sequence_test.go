package evictor

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/setaside"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestEvictSequentially(t *testing.T) {
	pod := podNamed("web", "")
	for _, tc := range []struct {
		name   string
		change func(p *pass, m *v1alpha1.NodeMaintenance, e *v1alpha1.Evacuation) error // after the pass has admitted the Pod
		evicts bool
	}{
		{name: "evicts an admitted Pod", evicts: true},
		{name: "E83: evicts no Pod that is not observed any more", change: func(p *pass, _ *v1alpha1.NodeMaintenance, _ *v1alpha1.Evacuation) error {
			p.observation = onePod{pod: &corev1.Pod{}}
			return nil
		}},
		{name: "E57: evicts no Pod whose NodeMaintenance was completed meanwhile", change: func(p *pass, m *v1alpha1.NodeMaintenance, _ *v1alpha1.Evacuation) error {
			m.Spec.Stage = v1alpha1.StageComplete
			return p.client.Update(t.Context(), m)
		}},
		{name: "E57: evicts no Pod whose NodeMaintenance was deleted meanwhile", change: func(p *pass, m *v1alpha1.NodeMaintenance, _ *v1alpha1.Evacuation) error {
			return p.client.Delete(t.Context(), m)
		}},
		{name: "E53: evicts no Pod whose NodeMaintenance can no longer be decoded", change: func(p *pass, m *v1alpha1.NodeMaintenance, _ *v1alpha1.Evacuation) error {
			aside := setaside.New(p.cluster, nil)
			p.client = aside.Client(p.client)
			return p.client.Delete(t.Context(), m) // from the cache
		}},
		{
			name: "E57: evicts no Pod from whose Evacuation all have withdrawn meanwhile",
			change: func(p *pass, _ *v1alpha1.NodeMaintenance, e *v1alpha1.Evacuation) error {
				evacuation.Withdraw(e)
				return p.client.Update(t.Context(), e)
			},
		},
		{name: "E58: evicts no Pod whose Machine was paused meanwhile", change: func(p *pass, _ *v1alpha1.NodeMaintenance, _ *v1alpha1.Evacuation) error {
			p.suspended = func(*v1alpha1.NodeMaintenance) bool { return true }
			return nil
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			e, m := evacuationOf(pod, "evacuation"), drainOf("one")
			p := passOver(t, now, onePod{pod: pod}, m, e, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: corev1.NodeSpec{Unschedulable: true}})
			candidates, err := p.collect(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(candidates).To(HaveLen(1))
			if tc.change != nil {
				g.Expect(p.client.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
				g.Expect(p.client.Get(t.Context(), client.ObjectKeyFromObject(e), e)).To(Succeed())
				g.Expect(tc.change(p, m, e)).To(Succeed())
			}
			clock := clocktesting.NewFakeClock(now)
			unreachable := fake.NewClientBuilder().WithScheme(runtime.NewScheme()).Build()
			ended := make(chan struct{})
			v := &Evictor{
				Clock: clock, shutdown: &shutdownGate{}, Clusters: workload.NewClusters(unreachable, nil, nil, workload.Limits{}, clock),
				enqueue: func(types.NamespacedName) { close(ended) },
			}
			budget := budgets.New(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}})
			p.live = unreachable
			v.startEvictions(t.Context(), p, []budgets.Admitted{{Candidate: candidates[0], Budget: budget}})
			if p.state.inFlight.isStale(budget.PodDisruptionBudget()) {
				<-ended
			}
			g.Expect(p.state.backoffs.failure(pod.UID).IsZero()).To(Equal(!tc.evicts), "an eviction that is sent gets no response here")
		})
	}
}

// connected is a ClusterCache with a connection to a server.
type connected struct {
	clustercache.ClusterCache
	config *rest.Config
}

func (c connected) GetRESTConfig(context.Context, client.ObjectKey) (*rest.Config, error) {
	return c.config, nil
}

type twoPods struct {
	onePod
	second onePod
}

func (o twoPods) PodByUID(uid types.UID) (*corev1.Pod, bool) {
	if pod, found := o.onePod.PodByUID(uid); found {
		return pod, true
	}
	return o.second.PodByUID(uid)
}

// passOverTwoPods returns a pass over two Pods that drain one Node, the candidates, and an evictor whose requests for evictions a server
// answers.
func passOverTwoPods(t *testing.T, limits workload.Limits, answer http.HandlerFunc) (*Evictor, *pass, []budgets.Candidate) {
	t.Helper()
	g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c1"}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/eviction") {
			http.Error(w, "", http.StatusForbidden)
			return
		}
		answer(w, r)
	}))
	t.Cleanup(server.Close)
	management := fakes.Client(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}})
	remote := connected{clustercache.NewFakeClusterCache(management, cluster), &rest.Config{Host: server.URL}}
	clusters := workload.NewClusters(management, remote, fakes.Scheme(), limits, clock.RealClock{})
	_, err := clusters.Observe(t.Context(), cluster, "test", "one")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { clusters.Disconnect(cluster) })

	pods := twoPods{onePod{pod: podNamed("web-1", "")}, onePod{pod: podNamed("web-2", "")}}
	p := passOver(t, now, pods, drainOf("one"), evacuationOf(pods.pod, "1"), evacuationOf(pods.second.pod, "2"),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
	p.cluster = cluster
	candidates, err := p.collect(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(candidates).To(HaveLen(2))
	return &Evictor{Clock: clocktesting.NewFakeClock(now), shutdown: &shutdownGate{}, Clusters: clusters}, p, candidates
}

func TestRefusalOfABudget(t *testing.T) {
	t.Run("E84: after a PodDisruptionBudget has refused an eviction, the next pass decides about its other Pods", func(t *testing.T) {
		g, requests := NewWithT(t), atomic.Int32{}
		v, p, candidates := passOverTwoPods(t, workload.Limits{QPS: 100, Burst: 100}, func(w http.ResponseWriter, _ *http.Request) {
			requests.Add(1)
			w.Header().Set("Content-Type", runtime.ContentTypeJSON)
			w.WriteHeader(http.StatusTooManyRequests)
			_ = json.NewEncoder(w).Encode(metav1.Status{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonTooManyRequests,
				Message: "Cannot evict pod", Code: http.StatusTooManyRequests,
				Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}},
			})
		})
		budget := budgets.New(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}})
		g.Expect(v.begin(t.Context(), p, candidates[0].Pod)).To(BeTrue())
		v.evictSequentially(t.Context(), p, budget, []budgets.Admitted{{Candidate: candidates[0], Budget: budget}, {Candidate: candidates[1], Budget: budget}})
		g.Expect(requests.Load()).To(BeEquivalentTo(1))
	})
}

func TestEvictionThatWaitsForTheRateLimit(t *testing.T) {
	completes := func(g *WithT, p *pass) {
		m := drainOf("one")
		g.Expect(p.client.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
		m.Spec.Stage = v1alpha1.StageComplete
		g.Expect(p.client.Update(t.Context(), m)).To(Succeed())
	}
	losesBudget := func(_ *WithT, p *pass) {
		pods := p.observation.(twoPods)
		pods.loss = &budgets.Loss{At: now}
		p.observation = pods
	}
	for name, tc := range map[string]struct {
		change func(g *WithT, p *pass) // while the eviction waits
		want   int32
	}{
		"E57: evicts no Pod whose NodeMaintenance was completed while the eviction waited for the rate limit": {completes, 1},
		"E55: evicts no Pod that lost its budget while the eviction waited for the rate limit":                {losesBudget, 1},
		"E23: evicts a Pod whose eviction has waited for the rate limit":                                      {func(*WithT, *pass) {}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each waits for two seconds
			g, requests := NewWithT(t), atomic.Int32{}
			v, p, candidates := passOverTwoPods(t, workload.Limits{QPS: 0.5, Burst: 1}, func(w http.ResponseWriter, _ *http.Request) {
				requests.Add(1)
				http.Error(w, "", http.StatusForbidden)
			})
			v.evict(t.Context(), p, budgets.Admitted{Candidate: candidates[0]})
			tc.change(g, p)
			v.evict(t.Context(), p, budgets.Admitted{Candidate: candidates[1]})
			g.Expect(requests.Load()).To(Equal(tc.want))
		})
	}
}

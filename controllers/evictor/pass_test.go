package evictor

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/setaside"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// drainOf returns a NodeMaintenance that drains a Node.
func drainOf(node string) *v1alpha1.NodeMaintenance {
	return &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain, NodeSelector: v1alpha1.SelectNodes(node)},
	}
}

// passOver returns a pass over a workload cluster with these objects.
func passOver(t *testing.T, now time.Time, observation workload.Observation, objects ...client.Object) *pass {
	t.Helper()
	return &pass{
		drains: func(node string) evacuation.NodeTerms {
			return evacuation.DrainersOf([]v1alpha1.NodeMaintenance{*drainOf("one")}, nil).On(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
		},
		client: fakes.Builder().WithStatusSubresource(&v1alpha1.Evacuation{}).WithObjects(objects...).
			WithIndex(&v1alpha1.NodeMaintenance{}, "node", func(object client.Object) []string {
				return nodeselection.Keys(object.(*v1alpha1.NodeMaintenance))
			}).Build(),
		observation: observation, state: newState(), written: expectations.New[*v1alpha1.Evacuation](t.Context(), workload.Trim),
		clock: clocktesting.NewFakePassiveClock(now), now: now,
		subjects: map[types.UID]*subject{}, requested: map[string]requested{}, blocked: map[string]int{},
		suspended: func(*v1alpha1.NodeMaintenance) bool { return false },
	}
}

func TestAwaitCordons(t *testing.T) {
	maintenance := drainOf("one")
	maintenance.CreationTimestamp = metav1.NewTime(now)
	for _, tc := range []struct {
		name  string
		node  *corev1.Node
		waits bool
	}{
		{name: "waits for a Node that will be cordoned", node: &corev1.Node{}, waits: true},
		{name: "does not wait for a cordoned Node", node: &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}},
		{name: "does not wait for a Node that does not exist"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			objects := []client.Object{maintenance}
			if tc.node != nil {
				tc.node.Name = "one"
				objects = append(objects, tc.node)
			}
			p := passOver(t, now.Add(time.Second), onePod{}, objects...)
			candidates, err := p.collect(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(candidates).To(BeEmpty())
			g.Expect(p.cordoning).To(Equal(tc.waits))
			g.Expect(p.nextTry.IsZero()).To(Equal(!tc.waits), "if the Node is not cordoned, no event follows")
		})
	}
}

func TestAwaitMaintenances(t *testing.T) {
	machine := clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "m1", DeletionTimestamp: new(metav1.NewTime(now)), Annotations: map[string]string{v1alpha1.PreDrainHookAnnotation: ""},
	}}
	machine.Status.NodeRef.Name = "one"
	for _, tc := range []struct {
		name                                  string
		unschedulable, cannotBegin, announced bool
		after                                 time.Duration
		waits                                 bool
	}{
		{name: "E46: waits for the Node of a Machine that was deleted a moment ago", after: time.Second, waits: true},
		{name: "E46: waits for the Node of such a Machine that a rollout has announced an hour ago", after: time.Second, announced: true, waits: true},
		{name: "E46: waits while the manager has not created the NodeMaintenance", after: 5 * time.Second, waits: true},
		{name: "E46: waits ten seconds at most", after: 10 * time.Second},
		{name: "E46: waits two seconds at most for a drain that cannot begin", after: 2 * time.Second, cannotBegin: true},
		{name: "E46: does not wait for a cordoned Node", after: time.Second, unschedulable: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			objects := []client.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: corev1.NodeSpec{Unschedulable: tc.unschedulable}}}
			if tc.announced {
				m := drainOf("one")
				m.CreationTimestamp, m.Spec.Stage = metav1.NewTime(now.Add(-time.Hour)), v1alpha1.StageIdle
				m.Annotations = map[string]string{v1alpha1.OwnerClusterAnnotation: "default/c", v1alpha1.OwnerMachineAnnotation: "default/m1"}
				objects = append(objects, m)
			}
			p := passOver(t, now.Add(tc.after), onePod{}, objects...)
			p.cluster = types.NamespacedName{Namespace: "default", Name: "c"}
			p.deleted = []clusterv1.Machine{*machine.DeepCopy()}
			if tc.cannotBegin {
				p.deleted[0].Status.Conditions = []metav1.Condition{{Type: v1alpha1.MachineNodeMaintenance, Reason: v1alpha1.ReasonMaintenanceNameTaken}}
			}
			_, err := p.collect(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(p.cordoning).To(Equal(tc.waits))
			g.Expect(p.nextTry.IsZero()).To(Equal(!tc.waits), "if the Node is not cordoned, no event follows")
		})
	}
}

func TestWaitForCordonsIsBounded(t *testing.T) {
	pod := podNamed("web", "")
	pod.Spec.NodeName = "two"
	e := evacuation.New(pod, nil, 0)
	e.CreationTimestamp = metav1.NewTime(now)
	for _, tc := range []struct {
		name     string
		after    time.Duration
		recreate time.Duration // before now
		paused   bool
		evicts   bool
	}{
		{name: "waits for a NodeMaintenance that is about to cordon", after: 5 * time.Second, recreate: time.Second},
		{name: "waits no longer than half a minute, however often it is recreated", after: 30 * time.Second, recreate: time.Second, evicts: true},
		{name: "waits ten seconds for each", after: 20 * time.Second, recreate: 10 * time.Second, evicts: true},
		{name: "does not wait for one that serves a paused Machine", after: 5 * time.Second, recreate: time.Second, paused: true, evicts: true},
	} {
		t.Run("E36: "+tc.name, func(t *testing.T) {
			g := NewWithT(t)
			now := now.Add(tc.after)
			m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "one", CreationTimestamp: metav1.NewTime(now.Add(-tc.recreate))}}
			m.Spec.Stage, m.Spec.NodeSelector = v1alpha1.StageCordon, v1alpha1.SelectNodes("one")
			p := passOver(t, now, onePod{pod: pod}, m, e, drainOf("two"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "two"},
			})
			p.suspended = func(m *v1alpha1.NodeMaintenance) bool { return tc.paused && m.Name == "one" }
			candidates, err := p.collect(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(candidates).To(HaveLen(map[bool]int{true: 1}[tc.evicts]))
			if !tc.evicts {
				g.Expect(p.nextTry).To(BeTemporally(">", now))
			}
		})
	}
}

// onePod is an Observation with one Pod.
type onePod struct {
	workload.Observation
	pod  *corev1.Pod
	loss *budgets.Loss
}

func (o onePod) NamespaceLabels(string) (labels map[string]string, known bool) { return nil, true }

func (o onePod) PodByUID(uid types.UID) (*corev1.Pod, bool) { return o.pod, o.pod.UID == uid }

func (o onePod) LossOf(budgets.Pod) (budgets.Loss, bool) {
	return ptr.Deref(o.loss, budgets.Loss{}), o.loss != nil
}

func TestEvacuationThatABackupRestores(t *testing.T) {
	t.Run("R73: the Pod of a deleted Evacuation that the API server has again waits for ten minutes at most", func(t *testing.T) {
		g, pod := NewWithT(t), podNamed("web", "1")
		e := evacuationOf(pod, "e")
		p := passOver(t, now, onePod{pod: pod})
		p.written.RecordDeleted(p.cluster, e)
		g.Expect(p.due([]v1alpha1.Evacuation{*e})).To(BeEmpty())
		g.Expect(p.nextTry).To(Equal(now.Add(expectations.TTL)))
	})
	t.Run("R73: an eviction that begins after the pass leaves the time of the next pass, which the pass returns meanwhile", func(t *testing.T) {
		g, pod := NewWithT(t), podNamed("web", "1")
		e := evacuationOf(pod, "e")
		p := passOver(t, now, onePod{pod: pod}, e)
		g.Expect(p.client.Get(t.Context(), client.ObjectKeyFromObject(e), e)).To(Succeed())
		p.written.RecordDeleted(p.cluster, e)
		g.Expect(p.isStillDue(t.Context(), &subject{evacuation: e}, now)).To(BeFalse())
		g.Expect(p.nextTry).To(BeZero())
	})
}

func TestPauseAfterLoss(t *testing.T) {
	pod := podNamed("web", "")
	pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](10)
	drain := func(started, ends time.Duration) evacuation.Terms {
		return evacuation.Terms{Timeouts: []evacuation.Timeout{{Start: now.Add(started), Ends: now.Add(ends), Observed: now.Add(started)}}}
	}
	for _, tc := range []struct {
		name   string
		loss   *budgets.Loss
		terms  evacuation.Terms
		waits  time.Duration
		starts bool // the eviction of an admitted Pod
	}{
		{name: "evicts a Pod that has lost no budget", starts: true},
		{name: "waits with a Pod that has lost its budget", loss: &budgets.Loss{At: now.Add(-time.Second)}, waits: 2 * time.Second},
		{name: "waits before the final eviction attempt", loss: &budgets.Loss{At: now}, terms: drain(-time.Hour, 42*time.Second), waits: 2 * time.Second},
		{name: "does not wait at the final eviction attempt", loss: &budgets.Loss{At: now}, terms: drain(-time.Hour, 40*time.Second), starts: true},
		{name: "waits in the first half of a short drain", loss: &budgets.Loss{At: now}, terms: drain(0, 20*time.Second), waits: 3 * time.Second},
	} {
		t.Run("E55: "+tc.name, func(t *testing.T) {
			g := NewWithT(t)
			p := passOver(t, now, onePod{pod: pod, loss: tc.loss})
			p.subjects[pod.UID], p.terms = &subject{pod: pod}, map[string]evacuation.Terms{"one": tc.terms}
			v := &Evictor{Clock: clocktesting.NewFakeClock(now), shutdown: &shutdownGate{}}
			g.Expect(v.begin(t.Context(), p, budgets.PodOf(pod))).To(Equal(tc.starts), "a budget may be deleted after the pass has admitted the Pod")

			inFlight := budgets.Candidate{Pod: budgets.Pod{UID: "other"}, InFlight: true}
			candidates, waiting := p.separatePaused(t.Context(), []budgets.Candidate{{Pod: budgets.PodOf(pod)}, inFlight})
			g.Expect(candidates).To(ContainElement(inFlight))
			if tc.waits == 0 {
				g.Expect(candidates).To(HaveLen(2))
				g.Expect(waiting).To(BeEmpty())
				return
			}
			g.Expect(candidates).To(HaveLen(1))
			g.Expect(waiting).To(ConsistOf(HaveField("Reason", budgets.BudgetRemoved)))
			g.Expect(p.nextTry).To(Equal(now.Add(tc.waits)), "no event follows")
		})
	}
}

func (o onePod) PodsOn(node string) ([]*corev1.Pod, bool) {
	return []*corev1.Pod{o.pod}, node == o.pod.Spec.NodeName
}

func TestExpectedEvacuations(t *testing.T) {
	pod := podNamed("web", "")
	mirror := pod.DeepCopy()
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: ""}
	e := evacuation.New(pod, nil, 0)
	started := func(ago time.Duration) evacuation.Terms {
		return evacuation.Terms{DrainStart: ptr.To(now.Add(-ago)), StageStart: ptr.To(now.Add(-ago))}
	}
	recreated := started(time.Second)
	recreated.DrainStart = ptr.To(now.Add(-time.Hour))
	suspended := started(time.Second)
	suspended.Suspended = true
	for _, tc := range []struct {
		name      string
		terms     evacuation.Terms
		pod       *corev1.Pod
		requested []*v1alpha1.Evacuation
		expects   bool
	}{
		{name: "expects the Evacuations of a drain that has just started", terms: started(time.Second), pod: pod, expects: true},
		{name: "expects those of a drain whose start is not recorded yet", pod: pod, expects: true},
		{name: "expects those of a drain whose NodeMaintenance was just recreated", terms: recreated, pod: pod, expects: true},
		{name: "expects none three seconds later", terms: started(3 * time.Second), pod: pod},
		{name: "expects none of a suspended drain", terms: suspended, pod: pod},
		{name: "expects none of a static Pod", terms: started(time.Second), pod: mirror},
		{name: "does not expect what exists", terms: started(time.Second), pod: pod, requested: []*v1alpha1.Evacuation{e}},
	} {
		t.Run("E56: "+tc.name, func(t *testing.T) {
			g := NewWithT(t)
			p := passOver(t, now, onePod{pod: tc.pod})
			p.terms = map[string]evacuation.Terms{"one": tc.terms}
			for _, each := range tc.requested {
				p.recordRequested(&subject{evacuation: each, pod: tc.pod})
			}
			g.Expect(p.expected()).To(HaveLen(map[bool]int{true: 1}[tc.expects]))
			g.Expect(p.nextTry.IsZero()).To(Equal(!tc.expects), "no event follows if none comes")
		})
	}
}

func TestDrainStart(t *testing.T) {
	g := NewWithT(t)
	p := passOver(t, now, onePod{})
	p.terms = map[string]evacuation.Terms{"starting": {}, "started": {DrainStart: ptr.To(now.Add(-time.Hour))}}
	start := func(node string) time.Time {
		pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}}
		return p.drainStart(&subject{
			pod: pod, evacuation: &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-time.Minute))}},
		})
	}
	g.Expect(start("started")).To(Equal(now.Add(-time.Hour)), "E56")
	g.Expect(start("starting")).To(Equal(now), "E56: it is the youngest")
	g.Expect(start("not drained")).To(Equal(now.Add(-time.Minute)), "E56: the Evacuation of another instigator")
}

func TestUnusedBudget(t *testing.T) {
	g := NewWithT(t)
	pod := podNamed("web", "")
	p := passOver(t, now, onePod{pod: pod}) // its Evacuation has ended since the pass began
	p.subjects[pod.UID] = &subject{pod: pod, evacuation: evacuation.New(pod, nil, 0)}
	var reads atomic.Int32
	p.live = interceptor.NewClient(p.client.(client.WithWatch), interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			reads.Add(1)
			return nil
		},
	})
	passes := atomic.Int32{}
	v := &Evictor{Clock: clocktesting.NewFakeClock(now), shutdown: &shutdownGate{}, enqueue: func(types.NamespacedName) { passes.Add(1) }}
	budget := budgets.New(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}})
	v.startEvictions(t.Context(), p, []budgets.Admitted{{Candidate: budgets.Candidate{Pod: budgets.PodOf(pod)}, Budget: budget}})
	g.Consistently(reads.Load, 10*time.Millisecond).Should(BeZero(), "E23: the budget is read although no Pod was evicted")
	g.Expect(p.state.inFlight.reserveBudget(nameOf(budget))).To(BeTrue())
	g.Expect(passes.Load()).To(BeZero(), "E88: a budget none of whose Pods can be evicted starts no further pass at once")
	g.Expect(p.nextTry).To(Equal(now.Add(nodeRetry)))
}

func TestOldestDrainBeginsFirst(t *testing.T) {
	t.Run("E88: Pods without a budget use up no limit before a Pod of an older drain that has one", func(t *testing.T) {
		g, pod := NewWithT(t), podNamed("web", "")
		p := passOver(t, now, onePod{pod: pod}, drainOf("one"), evacuationOf(pod, "evacuation"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
		candidates, err := p.collect(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(candidates).To(HaveLen(1))
		hangs := fakes.Builder().WithInterceptorFuncs(interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				<-t.Context().Done()
				return t.Context().Err()
			},
		}).Build()
		p.live = hangs
		clock := clocktesting.NewFakeClock(now)
		v := &Evictor{
			Clock: clock, shutdown: &shutdownGate{}, Clusters: workload.NewClusters(hangs, nil, nil, workload.Limits{}, clock), enqueue: func(types.NamespacedName) {},
		}
		admitted := []budgets.Admitted{{Candidate: candidates[0], Budget: budgets.New(&policyv1.PodDisruptionBudget{})}}
		for i := range budgets.EvictionsInCluster {
			uid := types.UID(fmt.Sprint("other-", i))
			other := budgets.Pod{UID: uid, Node: fmt.Sprint("node-", i%8)}
			p.subjects[uid] = &subject{pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}}
			admitted = append(admitted, budgets.Admitted{Candidate: budgets.Candidate{Pod: other}})
		}
		v.startEvictions(t.Context(), p, admitted)
		g.Expect(p.state.inFlight.has(pod.UID)).To(BeTrue())
		g.Expect(p.state.inFlight.all()).To(HaveLen(budgets.EvictionsInCluster))
	})
}

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

func TestNewMaintenanceOfAnEmptyName(t *testing.T) {
	t.Run("R8, E76: a NodeMaintenance that names an empty Node ends no pass over the other Pods of the workload cluster", func(t *testing.T) {
		g, pod := NewWithT(t), podNamed("web", "")
		unnamed := &v1alpha1.NodeMaintenance{
			ObjectMeta: metav1.ObjectMeta{Name: "unnamed", CreationTimestamp: metav1.NewTime(now)},
			Spec:       v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageCordon, NodeSelector: v1alpha1.SelectNodes("")},
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: corev1.NodeSpec{Unschedulable: true}}
		p := passOver(t, now, onePod{pod: pod}, evacuationOf(pod, "evacuation"), drainOf("one"), unnamed, node)
		candidates, err := p.collect(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(candidates).To(HaveLen(1))
	})
}

package evictor

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/signals"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

// signaled is a Pod whose budget refuses its eviction, in a workload cluster with a webhook that receives eviction requests.
type signaled struct {
	pod         *corev1.Pod
	pdb         *policyv1.PodDisruptionBudget // as observed; the API server has the same unless live is set
	live        *policyv1.PodDisruptionBudget
	deleted     bool // the budget does not exist any more
	evacuation  *v1alpha1.Evacuation
	maintenance *v1alpha1.NodeMaintenance
	webhook     *admissionregistrationv1.ValidatingWebhookConfiguration
	unreadable  string // "webhooks" or "budgets"
	observation signaledObservation
	suspended   bool
}

type signaledObservation struct {
	onePod
	unknownNamespace bool
}

func (o signaledObservation) NamespaceLabels(string) (map[string]string, bool) {
	return nil, !o.unknownNamespace
}

func newSignaled() *signaled {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db", UID: "db"}, Spec: corev1.PodSpec{NodeName: "one"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	return &signaled{
		pod: pod, maintenance: drainOf("one"), evacuation: evacuation.New(pod, nil, 0), observation: signaledObservation{onePod: onePod{pod: pod}},
		pdb: &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db", UID: "budget"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
			Status: policyv1.PodDisruptionBudgetStatus{CurrentHealthy: 1, DesiredHealthy: 1, ExpectedPods: 1},
		},
		webhook: &admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "moves"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{Name: "moves.example.com", Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}},
			}}}},
		},
	}
}

// pass returns a pass over the Pod, and how often webhook configurations were listed.
func (s *signaled) pass(t *testing.T, now time.Time) (p *pass, index *budgets.Index, lists func() int) {
	t.Helper()
	objects := []client.Object{s.evacuation, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}}
	if s.maintenance != nil {
		objects = append(objects, s.maintenance)
	}
	p = passOver(t, now, s.observation, objects...)
	p.suspended = func(*v1alpha1.NodeMaintenance) bool { return s.suspended }
	p.collected(s.evacuation)
	builder, listed := fakes.Builder(), 0
	if s.webhook != nil {
		builder = builder.WithObjects(s.webhook)
	}
	if s.live == nil {
		s.live = s.pdb
	}
	if !s.deleted {
		builder = builder.WithObjects(s.live.DeepCopy())
	}
	p.live = builder.WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if listed++; s.unreadable == "webhooks" {
				return errors.New("forbidden")
			}
			return c.List(ctx, list, options...)
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			if s.unreadable == "budgets" {
				return errors.New("timeout")
			}
			return c.Get(ctx, key, object, options...)
		},
	}).Build()
	return p, budgets.NewIndex([]*policyv1.PodDisruptionBudget{s.pdb}, nil), func() int { return listed }
}

func TestMaySignal(t *testing.T) {
	changed := func(s *signaled, change func(*policyv1.PodDisruptionBudget)) {
		s.live = s.pdb.DeepCopy()
		change(s.live)
	}
	for _, tc := range []struct {
		name   string
		change func(*signaled)
		may    bool
	}{
		{"signals if the budget refuses", func(*signaled) {}, true},
		{"does not signal without a webhook", func(s *signaled) { s.webhook = nil }, false},
		{"does not signal for a webhook of another Namespace", func(s *signaled) {
			s.webhook.Webhooks[0].NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "other"}}
		}, false},
		{"does not signal if the webhooks cannot be read", func(s *signaled) { s.unreadable = "webhooks" }, false},
		{"does not signal if the labels of the Namespace are not known", func(s *signaled) { s.observation.unknownNamespace = true }, false},
		{"does not signal if the budget does not exist any more", func(s *signaled) { s.deleted = true }, false},
		{"does not signal if the budget was recreated", func(s *signaled) { changed(s, func(pdb *policyv1.PodDisruptionBudget) { pdb.UID = "recreated" }) }, false},
		{"does not signal if the budget allows a disruption now", func(s *signaled) {
			changed(s, func(pdb *policyv1.PodDisruptionBudget) { pdb.Status.DisruptionsAllowed = 1 })
		}, false},
		{"does not signal if the budget does not select the Pod any more", func(s *signaled) {
			changed(s, func(pdb *policyv1.PodDisruptionBudget) { pdb.Spec.Selector = nil })
		}, false},
		{"does not signal if the budget cannot be read", func(s *signaled) { s.unreadable = "budgets" }, false},
		{"does not signal a moment after the Pod has lost a budget", func(s *signaled) {
			s.observation.loss = &budgets.Loss{Budget: "default/other", At: now.Add(-time.Second)}
		}, false},
		{"does not signal if the NodeMaintenance does not exist any more", func(s *signaled) { s.maintenance = nil }, false},
		{"does not signal while the drain is suspended", func(s *signaled) { s.suspended = true }, false},
	} {
		t.Run("E74: "+tc.name, func(t *testing.T) {
			g, s := NewWithT(t), newSignaled()
			tc.change(s)
			p, index, _ := s.pass(t, now)
			v := &Evictor{Clock: clocktesting.NewFakeClock(now), shutdown: &shutdownGate{}}
			g.Expect(v.maySignal(t.Context(), p, index, p.subjects[s.pod.UID], budgets.PodOf(s.pod))).To(Equal(tc.may))
		})
	}
}

func TestStartSignals(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*signaled)
		lists  int // of webhook configurations
	}{
		{"reads the webhooks once in 30 s", func(s *signaled) { s.webhook = nil }, 2},
		{"reads the webhooks once in 30 s if they cannot be read", func(s *signaled) { s.unreadable = "webhooks" }, 1},
		{"reads no webhooks while a budget allows a disruption", func(s *signaled) { s.pdb.Status.DisruptionsAllowed = 1 }, 0},
	} {
		t.Run("E73: "+tc.name, func(t *testing.T) {
			g, s := NewWithT(t), newSignaled()
			tc.change(s)
			p, index, lists := s.pass(t, now)
			read := make(chan types.NamespacedName, 10)
			v := &Evictor{Clock: clocktesting.NewFakeClock(now), shutdown: &shutdownGate{}, enqueue: func(cluster types.NamespacedName) { read <- cluster }}
			waiting := []budgets.Waiting{{
				Candidate: budgets.Candidate{Pod: budgets.PodOf(s.pod)}, Reason: budgets.BudgetExhausted, Message: "waiting", Budget: "default/db",
			}}
			v.startSignals(t.Context(), p, index, waiting)
			if tc.lists > 0 {
				g.Eventually(read).WithTimeout(time.Minute).Should(Receive())
			}
			v.startSignals(t.Context(), p, index, waiting)
			g.Expect(lists()).To(Equal(tc.lists))
			g.Expect(waiting[0].Message).To(Equal("waiting"))
			g.Expect(p.state.inFlight.all()).To(BeEmpty(), "not one request")
			g.Expect(p.state.signals.all()).To(BeEmpty())
			g.Expect(p.nextTry.IsZero()).To(Equal(tc.lists == 0), "they are read again")
		})
	}
}

func TestReadReceivers(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	v := &Evictor{Clock: clocktesting.NewFakeClock(now), shutdown: &shutdownGate{}}
	t.Run("E73: while the webhooks cannot be read, messages name those that were last read, and no signal is sent", func(t *testing.T) {
		g, s := NewWithT(t), newSignaled()
		s.unreadable = "webhooks"
		p, index, _ := s.pass(t, now)
		p.state.signals.setRead(signals.ReceiversOf([]admissionregistrationv1.ValidatingWebhookConfiguration{*s.webhook}, nil), true, now.Add(-time.Hour))
		g.Expect(v.readReceivers(t.Context(), p)).To(BeEmpty())
		waiting := []budgets.Waiting{{
			Candidate: budgets.Candidate{Pod: budgets.PodOf(s.pod)}, Reason: budgets.BudgetExhausted, Message: "waiting", Budget: "default/db",
		}}
		v.startSignals(t.Context(), p, index, waiting)
		g.Expect(waiting[0].Message).To(ContainSubstring("moves.example.com"))
		g.Expect(p.state.signals.all()).To(BeEmpty())
	})
	t.Run("E73: reads all pages of the webhooks", func(t *testing.T) {
		g, s := NewWithT(t), newSignaled()
		p, _, _ := s.pass(t, now)
		p.live = interceptor.NewClient(p.live.(client.WithWatch), interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				if (&client.ListOptions{}).ApplyOptions(options).Continue == "" {
					list.SetContinue("more")
					return nil
				}
				return c.List(ctx, list)
			},
		})
		g.Expect(v.readReceivers(t.Context(), p)).To(HaveLen(1))
	})
}

func TestReadThatHangs(t *testing.T) {
	t.Run("E73: no pass waits for webhooks that are being read, nor is one repeated until they are", func(t *testing.T) {
		g, s := NewWithT(t), newSignaled()
		p, index, _ := s.pass(t, now)
		answer, read := make(chan struct{}), make(chan types.NamespacedName, 10)
		p.live = interceptor.NewClient(p.live.(client.WithWatch), interceptor.Funcs{
			List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
				<-answer
				return errors.New("timeout")
			},
		})
		v := &Evictor{Clock: clocktesting.NewFakeClock(now), shutdown: &shutdownGate{}, enqueue: func(cluster types.NamespacedName) { read <- cluster }}
		p.state.signals.setRead(nil, true, now.Add(-time.Hour))
		waiting := []budgets.Waiting{{
			Candidate: budgets.Candidate{Pod: budgets.PodOf(s.pod)}, Reason: budgets.BudgetExhausted, Message: "waiting", Budget: "default/db",
		}}
		for range 2 {
			v.startSignals(t.Context(), p, index, waiting)
			g.Expect(p.nextTry).To(BeZero())
		}
		close(answer)
		g.Eventually(read).WithTimeout(time.Minute).Should(Receive())
		v.startSignals(t.Context(), p, index, waiting)
		g.Expect(p.nextTry).To(Equal(now.Add(receiversInterval)))
		g.Expect(p.state.signals.all()).To(BeEmpty())
	})
}

func TestSignaling(t *testing.T) {
	t.Run("E74: keeps the records of Pods that wait, and of others until they have no effect", func(t *testing.T) {
		g, s := NewWithT(t), newSignaling()
		for _, uid := range []types.UID{"waits", "gone", "in flight"} {
			s.begin(signals.Pod{UID: uid, Budget: "default/db"}, "BudgetExhausted", now)
		}
		g.Expect(s.reason("waits")).To(Equal("BudgetExhausted"))
		s.end("waits")
		s.end("gone")
		g.Expect(s.reason("waits")).To(BeEmpty())
		live := map[types.UID]bool{"waits": true}
		s.prune(live, now.Add(signals.Interval-1))
		g.Expect(s.all()).To(HaveLen(3))
		g.Expect(s.last()).To(Equal(now.Add(signals.Interval)))
		s.prune(live, now.Add(signals.Interval))
		g.Expect(s.all()).To(And(HaveLen(2), HaveKey(types.UID("waits")), HaveKey(types.UID("in flight"))))
	})
	t.Run("E75: a Pod whose signal is in flight stays in the metric of blocked Pods", func(t *testing.T) {
		g, s := NewWithT(t), newSignaled()
		p, _, _ := s.pass(t, now)
		g.Expect(p.state.inFlight.begin(budgets.PodOf(s.pod), now)).To(BeTrue())
		p.state.signals.begin(signals.Pod{UID: s.pod.UID}, "BudgetExhausted", now)
		p.deleted = nil
		_, err := p.collect(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(p.blocked).To(HaveKeyWithValue("BudgetExhausted", 1))
	})
	t.Run("E74: a state is kept until a Pod may be signaled again", func(t *testing.T) {
		g := NewWithT(t)
		cluster := types.NamespacedName{Namespace: "ns", Name: "c1"}
		v := &Evictor{states: map[types.NamespacedName]*state{}}
		s := v.stateOf(cluster)
		s.signals.begin(signals.Pod{UID: "web"}, "", now)
		s.signals.end("web")
		g.Expect(v.disconnect(cluster, now).RequeueAfter).To(Equal(signals.Interval))
		g.Expect(v.stateOf(cluster)).To(BeIdenticalTo(s))
		g.Expect(v.disconnect(cluster, now.Add(signals.Interval)).RequeueAfter).To(BeZero())
		g.Expect(v.states).To(BeEmpty())
	})
}

package evictor

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
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
				p.deleted[0].Status.Conditions = []metav1.Condition{{Type: v1alpha1.MachineNodeMaintenance, Reason: v1alpha1.ReasonNodeMaintenanceNameTaken}}
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

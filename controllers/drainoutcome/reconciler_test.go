package drainoutcome

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"github.com/prometheus/client_golang/prometheus/testutil"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

var (
	end     = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	db      = outcome.Controller{Kind: "StatefulSet", Namespace: "shop", Name: "db"}
	cluster = types.NamespacedName{Namespace: "fleet", Name: "c"}
	policy  = types.NamespacedName{Namespace: "fleet", Name: "p"}
)

// fixture is a management cluster with a policy, and a workload cluster with a StatefulSet.
type fixture struct {
	*WithT
	t          *testing.T
	clock      *clocktesting.FakeClock
	management client.WithWatch
	remote     client.WithWatch
	fails      error // of lists in the workload cluster
	onList     func()
	lists      int
	*Reconciler
	recorder *record.FakeRecorder
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{WithT: NewWithT(t), t: t, clock: clocktesting.NewFakeClock(end), recorder: record.NewFakeRecorder(10)}
	p := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: policy.Namespace, Name: policy.Name}}
	c := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}}
	f.management = fakes.Builder(p, c).WithStatusSubresource(p).Build()
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: db.Namespace, Name: db.Name}, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](1)}}
	f.remote = fakes.Builder(set).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if f.lists++; f.fails != nil {
				return f.fails
			}
			if f.onList != nil {
				f.onList()
			}
			return c.List(ctx, list, options...)
		},
	}).Build()
	f.restart()
	t.Cleanup(func() { tracing.ObserveWithoutPlace(sourceOf(policy), nil) })
	return f
}

// restart replaces the reconciler, which forgets what is in memory.
func (f *fixture) restart() {
	f.Reconciler = &Reconciler{Client: f.management, Clock: f.clock, events: f.recorder}
	f.Clusters = workload.NewClusters(f.management, clustercache.NewFakeClusterCache(f.remote, cluster), fakes.Scheme(), workload.Limits{}, f.clock)
}

// reconcile reconciles the policy a time after the end of the drain, and returns its drains and when it is reconciled again.
func (f *fixture) reconcile(after time.Duration) (drains []v1alpha1.RecentDrain, next time.Duration) {
	f.t.Helper()
	f.clock.SetTime(end.Add(after))
	result, err := f.Reconcile(f.t.Context(), reconcile.Request{NamespacedName: policy})
	f.Expect(err).NotTo(HaveOccurred())
	p := &v1alpha1.MachineDrainPolicy{}
	f.Expect(f.management.Get(f.t.Context(), policy, p)).To(Succeed())
	if result.RequeueAfter == 0 {
		return p.Status.RecentDrains, 0
	}
	return p.Status.RecentDrains, after + result.RequeueAfter
}

func (f *fixture) createPod(changes ...func(*corev1.Pod)) {
	f.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: db.Namespace, Name: "db-0", CreationTimestamp: metav1.NewTime(end)}}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: db.Kind, Name: db.Name, Controller: ptr.To(true)}}
	for _, change := range changes {
		change(pod)
	}
	f.Expect(f.remote.Create(f.t.Context(), pod)).To(Succeed())
}

func isReady(pod *corev1.Pod) {
	pod.Spec.NodeName = "other"
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
}

func drainOf(machine string) v1alpha1.RecentDrain {
	evicted := []outcome.Evicted{{Controller: db, Pods: 1, Since: end.Add(-time.Minute)}}
	return v1alpha1.RecentDrain{
		MachineUID: machine, Machine: machine, Cluster: cluster.Name, Node: "one", DrainOutcome: outcome.Begin(evicted, 0, 0, end),
	}
}

func TestReconcile(t *testing.T) {
	t.Run("M150, M151, M153: a Pod without a place is counted, reported once, and found in its place, although the manager is restarted", func(t *testing.T) {
		f := newFixture(t)
		f.createPod()
		f.Record(policy, drainOf("m"))
		drains, next := f.reconcile(0)
		f.Expect(drains).To(HaveLen(1))
		f.Expect(drains[0].Pods).To(Equal(v1alpha1.EvictedPods{Evicted: 1, Pending: 1}))
		f.Expect(next).To(Equal(time.Minute))
		f.Expect(f.ended).To(BeEmpty(), "the drain is in the status")
		f.Expect(testutil.GatherAndCount(metrics.Registry, "capnm_pods_without_place")).To(Equal(1), "a Cluster has the metric after a drain, although no Pod counts")

		f.restart()
		_, next = f.reconcile(10 * time.Second)
		f.Expect([]any{f.lists, next}).To(Equal([]any{1, time.Minute}), "a reading that is not due makes no request")
		_, next = f.reconcile(time.Minute)
		f.Expect(next).To(Equal(3 * time.Minute))
		f.Expect(f.recorder.Events).To(BeEmpty())
		_, next = f.reconcile(3 * time.Minute)
		f.Expect(next).To(Equal(10 * time.Minute))
		f.Expect(fakes.Gauge(t, "capnm_pods_without_place", cluster.Name)).To(BeEquivalentTo(1))
		f.Expect(f.recorder.Events).To(Receive(ContainSubstring(
			"After the drain of Node one (Machine m, Cluster c), 1 evicted Pod has no place: 1 Pod of " + db.String())))
		f.restart()
		f.reconcile(10 * time.Minute)
		f.Expect(f.recorder.Events).To(BeEmpty(), "it was reported")

		f.Expect(f.remote.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(db.Namespace))).To(Succeed())
		f.createPod(isReady)
		drains, next = f.reconcile(20 * time.Minute)
		f.Expect(drains[0].Pods).To(Equal(v1alpha1.EvictedPods{Evicted: 1, Ready: 1}))
		f.Expect(next).To(BeZero())
		f.Expect(fakes.Gauge(t, "capnm_pods_without_place", cluster.Name)).To(BeZero())
	})
	t.Run("M150, M151: what a workload cluster does not answer is unknown until the next reading", func(t *testing.T) {
		f := newFixture(t)
		f.createPod(isReady)
		f.fails = errors.New("connection refused")
		f.Record(policy, drainOf("m"))
		drains, next := f.reconcile(0)
		f.Expect(drains[0].Pods).To(Equal(v1alpha1.EvictedPods{Evicted: 1, Unknown: 1}))
		f.Expect(drains[0].Applications[0].Why).To(ContainSubstring("connection refused"))
		f.Expect(next).To(Equal(time.Minute))
		f.fails = nil
		f.reconcile(30 * time.Second)
		f.Expect(f.lists).To(Equal(1), "the reading is not repeated at each event")
		drains, _ = f.reconcile(time.Minute)
		f.Expect(drains[0].Pods).To(Equal(v1alpha1.EvictedPods{Evicted: 1, Ready: 1}))
	})
	t.Run("M151: keeps 16 drains, those with Pods that are not replaced longer than the others", func(t *testing.T) {
		f := newFixture(t)
		f.Record(policy, drainOf("missing"))
		f.reconcile(0)
		for i := range 40 {
			done := drainOf(fmt.Sprint(i))
			done.DrainOutcome = outcome.Begin(nil, 0, 0, end.Add(time.Duration(i+1)*time.Second))
			f.Record(policy, done)
			f.reconcile(time.Duration(i+1) * time.Second)
		}
		drains, _ := f.reconcile(time.Minute)
		f.Expect(drains).To(HaveLen(16))
		f.Expect(drains[0].Machine).To(Equal("39"))
		f.Expect(drains[15].Machine).To(Equal("missing"))
	})
	t.Run("M155: it stays known that a drain is complete, and one that is awaited is read, although the status has no place for them", func(t *testing.T) {
		f := newFixture(t)
		p := &v1alpha1.MachineDrainPolicy{}
		f.Expect(f.management.Get(t.Context(), policy, p)).To(Succeed())
		p.Spec.NextDrain, p.Spec.ReplacementTimeoutSeconds = v1alpha1.NextDrainWhenReplaced, ptr.To[int32](600)
		f.Expect(f.management.Update(t.Context(), p)).To(Succeed())
		for i := range 40 {
			f.Record(policy, drainOf(fmt.Sprint(i)))
		}
		drains, _ := f.reconcile(0)
		f.Expect(drains).To(HaveLen(16))
		f.Expect(f.IsComplete("0")).To(BeFalse())
		set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: db.Namespace, Name: db.Name}}
		f.Expect(f.remote.Delete(t.Context(), set)).To(Succeed()) // no Pod is needed any more
		f.reconcile(20 * time.Second)
		for i := range 40 {
			f.Expect(f.IsComplete(fmt.Sprint(i))).To(BeTrue(), "drain %d", i)
		}
		f.Expect(f.ended).To(BeEmpty())
		f.reconcile(2 * time.Hour)
		f.Expect(f.complete).To(BeEmpty())
	})
	t.Run("M151: a reading is not repeated because another controller writes the status of the policy meanwhile", func(t *testing.T) {
		f := newFixture(t)
		f.createPod()
		f.onList = func() {
			p := &v1alpha1.MachineDrainPolicy{}
			f.Expect(f.management.Get(t.Context(), policy, p)).To(Succeed())
			p.Status.Machines++
			p.Status.RecentDrains = []v1alpha1.RecentDrain{drainOf("elsewhere")}
			p.Status.RecentDrains[0].Cluster = "elsewhere"
			f.Expect(f.management.Status().Update(t.Context(), p)).To(Succeed())
		}
		f.Record(policy, drainOf("m"))
		drains, _ := f.reconcile(0)
		f.Expect(drains).To(ConsistOf(HaveField("Machine", "m"), HaveField("Machine", "elsewhere")))
		f.Expect(drains).To(ContainElement(HaveField("DrainOutcome.Pods", v1alpha1.EvictedPods{Evicted: 1, Pending: 1})))
		f.Expect(f.ended).To(BeEmpty())
	})
	t.Run("M151: a later reading stays, although the cache was stale", func(t *testing.T) {
		f := newFixture(t)
		f.createPod(isReady)
		f.Record(policy, drainOf("m"))
		drains, _ := f.reconcile(0)
		f.Expect(drains[0].Pods).To(Equal(v1alpha1.EvictedPods{Evicted: 1, Ready: 1}))
		stored, err := f.store(t.Context(), policy, []v1alpha1.RecentDrain{drainOf("m")})
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(stored).To(Equal(drains))
	})
	t.Run("M151: a reading of a manager whose clock is ahead neither delays nor outlasts the next one", func(t *testing.T) {
		f := newFixture(t)
		f.createPod()
		f.Record(policy, drainOf("m"))
		drains, _ := f.reconcile(30 * time.Minute)
		f.Expect(drains[0].Pods).To(Equal(v1alpha1.EvictedPods{Evicted: 1, Pending: 1}))
		f.Expect(f.remote.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(db.Namespace))).To(Succeed())
		f.createPod(isReady)
		drains, _ = f.reconcile(time.Minute)
		f.Expect(drains[0].Pods).To(Equal(v1alpha1.EvictedPods{Evicted: 1, Ready: 1}))
	})
	t.Run("M150: the numbers are those of the last reading, although the API server has refused to store the first one", func(t *testing.T) {
		f := newFixture(t)
		f.createPod()
		f.Record(policy, drainOf("m"))
		refused := errors.New("refused")
		f.Client = interceptor.NewClient(f.management, interceptor.Funcs{
			SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
				return refused
			},
		})
		_, err := f.Reconcile(t.Context(), reconcile.Request{NamespacedName: policy})
		f.Expect(err).To(MatchError(refused))
		f.Client = f.management
		drains, _ := f.reconcile(time.Second)
		f.Expect(drains).To(HaveLen(1))
		f.Expect(drains[0].Pods).To(Equal(v1alpha1.EvictedPods{Evicted: 1, Pending: 1}))
	})
	t.Run("M151: the status has at most 256 applications", func(t *testing.T) {
		f := newFixture(t)
		for i := range 16 {
			drain, evicted := drainOf(fmt.Sprint(i)), []outcome.Evicted(nil)
			for j := range 64 {
				evicted = append(evicted, outcome.Evicted{Controller: outcome.Controller{Kind: "Pod", Namespace: "shop", Name: fmt.Sprint(j)}, Pods: 1})
			}
			drain.DrainOutcome = outcome.Begin(evicted, 0, 0, end.Add(time.Duration(i)*time.Second))
			f.Record(policy, drain)
		}
		drains, _ := f.reconcile(20 * time.Second)
		f.Expect(drains).To(HaveLen(4))
		f.Expect(drains[0].Machine).To(Equal("15"))
		f.Expect(drains[0].Applications[0].Since.Year()).To(Equal(1970), "a time that the API accepts")
	})
	t.Run("M150: the drains of a Cluster that another manager reconciles stay", func(t *testing.T) {
		f := newFixture(t)
		f.Record(policy, drainOf("m"))
		f.Filter = "other"
		drains, next := f.reconcile(0)
		f.Expect(drains[0].Pods).To(Equal(v1alpha1.EvictedPods{Evicted: 1, Unknown: 1}))
		f.Expect([]any{f.lists, next}).To(Equal([]any{0, time.Duration(0)}))
	})
	t.Run("M151: nothing is kept of a policy that does not exist", func(t *testing.T) {
		f := newFixture(t)
		gone := types.NamespacedName{Namespace: "fleet", Name: "gone"}
		f.Record(gone, drainOf("m"))
		_, err := f.Reconcile(t.Context(), reconcile.Request{NamespacedName: gone})
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(f.ended).To(BeEmpty())
	})
}

package evictor

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

func TestDisconnect(t *testing.T) {
	cluster := types.NamespacedName{Namespace: "ns", Name: "c1"}
	pod := budgets.Pod{UID: "web", Namespace: "ns", Name: "web", Node: "one"}
	t.Run("E38: keeps in-flight evictions and backoffs while no Pods are observed", func(t *testing.T) {
		g := NewWithT(t)
		v := &Evictor{states: map[types.NamespacedName]*state{}}
		s := v.stateOf(cluster)
		g.Expect(s.inFlight.begin(pod, now)).To(BeTrue())
		g.Expect(v.disconnect(cluster, now).RequeueAfter).To(BeZero(), "the response to the eviction enqueues the workload cluster")
		g.Expect(v.stateOf(cluster)).To(BeIdenticalTo(s))
		s.inFlight.end(pod.UID)
		s.backoffs.backOff(pod.UID, now.Add(watchLag))
		g.Expect(v.disconnect(cluster, now).RequeueAfter).To(Equal(watchLag))
		g.Expect(v.stateOf(cluster)).To(BeIdenticalTo(s))
		g.Expect(v.disconnect(cluster, now.Add(watchLag)).RequeueAfter).To(BeZero())
		g.Expect(v.states).To(BeEmpty())
		g.Expect(v.disconnect(cluster, now).RequeueAfter).To(BeZero())
	})
}

func TestBegin(t *testing.T) {
	pod := budgets.Pod{UID: "web", Namespace: "ns", Name: "web", Node: "one"}
	t.Run("E38: does not evict a Pod again whose eviction has ended since the pass collected it", func(t *testing.T) {
		g := NewWithT(t)
		v, p := &Evictor{Clock: clocktesting.NewFakeClock(now), shutdown: &shutdownGate{}}, &pass{
			state: newState(), observation: onePod{}, subjects: map[types.UID]*subject{pod.UID: {pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID}}}},
		}
		g.Expect(v.begin(t.Context(), p, pod)).To(BeTrue())
		g.Expect(v.begin(t.Context(), p, pod)).To(BeFalse(), "the eviction is in flight")
		p.state.backoffs.backOff(pod.UID, now.Add(watchLag))
		v.end(p, pod)
		g.Expect(v.begin(t.Context(), p, pod)).To(BeFalse(), "the Pod was evicted")
		g.Expect(p.state.inFlight.all()).To(BeEmpty())
	})
	t.Run("E82: an eviction that hangs triggers a pass, and one that gets its response does not", func(t *testing.T) {
		g, fakeClock, passes := NewWithT(t), clocktesting.NewFakeClock(now), make(chan types.NamespacedName, 1)
		v := &Evictor{Clock: fakeClock, shutdown: &shutdownGate{}, enqueue: func(cluster types.NamespacedName) { passes <- cluster }}
		p := &pass{
			cluster: types.NamespacedName{Namespace: "ns", Name: "c1"}, state: newState(), observation: onePod{},
			subjects: map[types.UID]*subject{pod.UID: {pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID}}}},
		}
		g.Expect(v.begin(t.Context(), p, pod)).To(BeTrue())
		v.end(p, pod)
		fakeClock.Step(budgets.EvictionHangsAfter)
		g.Consistently(passes, 10*time.Millisecond).ShouldNot(Receive())
		g.Expect(v.begin(t.Context(), p, pod)).To(BeTrue())
		fakeClock.Step(budgets.EvictionHangsAfter)
		g.Eventually(passes).WithTimeout(time.Minute).Should(Receive(Equal(p.cluster)))
		v.end(p, pod)
	})
}

func TestMayEvictMore(t *testing.T) {
	g := NewWithT(t)
	before, after := &v1alpha1.NodeMaintenance{}, &v1alpha1.NodeMaintenance{}
	after.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceCordoned, Status: metav1.ConditionTrue}}
	g.Expect(mayEvictMore(before, after)).To(BeTrue())
	g.Expect(mayEvictMore(before, before)).To(BeFalse())
	g.Expect(mayEvictMore(after, after)).To(BeFalse())
	g.Expect(mayEvictMore(after, before)).To(BeFalse())
	g.Expect(mayEvictMore(nil, after)).To(BeFalse(), "only the terms of a new one matter")
	g.Expect(mayEvictMore(after, nil)).To(BeFalse())
}

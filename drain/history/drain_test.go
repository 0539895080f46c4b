package history

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

var begin = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// at returns a time after the begin.
func at(seconds float64) time.Time {
	return begin.Add(time.Duration(seconds * float64(time.Second)))
}

// drainedPod returns a Pod with an Evacuation that was created at the begin.
func drainedPod(name string, changes ...func(*Pod)) Pod {
	pod := Pod{
		Object:     &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: "n"}},
		Type:       v1alpha1.PodTypeDefault,
		Verdict:    rules.Verdict{Behavior: v1alpha1.DrainBehaviorDrain},
		Evacuation: &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(begin)}},
		Targeted:   true,
	}
	for _, change := range changes {
		change(&pod)
	}
	return pod
}

func blockedBy(reason string) func(*Pod) {
	return func(pod *Pod) {
		pod.Evacuation.Status.Conditions = []metav1.Condition{{Type: v1alpha1.EvacuationEvicting, Status: metav1.ConditionTrue, Reason: reason}}
	}
}

func terminating(since time.Time) func(*Pod) {
	return func(pod *Pod) {
		const grace = 30
		pod.Object.DeletionTimestamp = ptr.To(metav1.NewTime(since.Add(grace * time.Second)))
		pod.Object.DeletionGracePeriodSeconds = ptr.To[int64](grace)
	}
}

func ordered(order int32) func(*Pod) { return func(pod *Pod) { pod.Verdict.Order = order } }

func pending(pod *Pod) { pod.Evacuation, pod.Targeted = nil, false }

// seen returns the observation of Pods on their Node.
func seen(pods ...Pod) Observation {
	return Observation{Pods: pods, Nodes: sets.New("n"), Budget: func(*corev1.Pod) string { return "PodDisruptionBudget web/web" }}
}

func TestWaitsInTurn(t *testing.T) {
	g, d := NewWithT(t), &Drain{}
	d.Observe(seen(drainedPod("a")), at(0.2))
	d.Observe(seen(drainedPod("a", blockedBy(string(budgets.BudgetExhausted)))), at(1))
	d.Observe(seen(drainedPod("a", blockedBy(string(budgets.BudgetExhausted)))), at(20))
	d.Observe(seen(drainedPod("a", blockedBy("written by a tenant"))), at(40))
	d.Observe(seen(drainedPod("a", blockedBy(string(budgets.BudgetExhausted)), terminating(at(50)))), at(60))
	ended, steps := d.Observe(seen(), at(75.5))

	g.Expect(ended).To(HaveLen(1))
	g.Expect(ended[0].Start).To(Equal(at(0.2)), "closer than the creationTimestamp")
	g.Expect(ended[0].End).To(Equal(at(75.5)))
	g.Expect(ended[0].Outcome).To(Equal(Terminated))
	g.Expect(ended[0].Waits).To(Equal([]Wait{
		{Reason: WaitEviction, Start: at(0.2), End: at(1)},
		{Reason: string(budgets.BudgetExhausted), Object: "PodDisruptionBudget web/web", Start: at(1), End: at(40)},
		{Reason: WaitEviction, Start: at(40), End: at(50)},
		{Reason: WaitTermination, Start: at(50), End: at(75.5)},
	}))
	g.Expect(steps).To(Equal([]EndedStep{{Step: Step{Type: v1alpha1.PodTypeDefault}, Pods: 1, Start: at(0.2), End: at(75.5)}}))
	g.Expect(d.Summary().Longest[0]).To(Equal(PodWait{
		Pod: "web/a", Reason: string(budgets.BudgetExhausted), Object: "PodDisruptionBudget web/web", For: 39 * time.Second,
	}))
}

func TestEvictionBetweenObservations(t *testing.T) {
	g, d := NewWithT(t), &Drain{}
	evictedAt := func(types.UID) time.Time { return at(3) }
	d.Observe(seen(drainedPod("a", func(pod *Pod) { pod.Evacuation = nil })), at(1))
	gone := seen()
	gone.Evicted = evictedAt
	ended, _ := d.Observe(gone, at(5))
	g.Expect(ended[0].Waits).To(Equal([]Wait{{Reason: WaitEviction, Start: at(1), End: at(3)}, {Reason: WaitTermination, Start: at(3), End: at(5)}}))
	g.Expect(d.Summary().Evictions).To(Equal(1))
}

func TestTheFirstWaitIsThatOfTheEvacuation(t *testing.T) {
	g, d := NewWithT(t), &Drain{}
	d.Observe(seen(drainedPod("a", func(pod *Pod) { pod.Evacuation = nil })), at(0))
	withEvacuator := drainedPod("a", func(pod *Pod) { pod.Evacuation.Status.ActiveEvacuatorClass = ptr.To("example.com") })
	d.Observe(seen(withEvacuator), at(0.1))
	ended, _ := d.Observe(seen(), at(5))
	g.Expect(ended[0].Waits).To(Equal([]Wait{{Reason: WaitEvacuator, Object: "evacuator example.com", Start: at(0), End: at(5)}}))
}

func TestTheFirstWaitHasEndedWhenTheEvacuationIsObserved(t *testing.T) {
	g, d := NewWithT(t), &Drain{}
	d.Observe(seen(drainedPod("a", func(pod *Pod) { pod.Evacuation = nil })), at(0))
	deleted := func(pod *Pod) { pod.Evacuation.Status.ActiveEvacuatorClass = ptr.To("example.com") }
	d.Observe(seen(drainedPod("a", deleted, terminating(at(1)))), at(1.5))
	ended, _ := d.Observe(seen(), at(5))
	g.Expect(ended[0].Waits).To(Equal([]Wait{
		{Reason: WaitEvacuator, Object: "evacuator example.com", Start: at(0), End: at(1.5)}, {Reason: WaitTermination, Start: at(1.5), End: at(5)},
	}))
}

func TestWaitAfterRestart(t *testing.T) {
	t.Run("M72: what a Pod waits for when a manager observes it first says nothing about the time before", func(t *testing.T) {
		g, d := NewWithT(t), &Drain{}
		d.Observe(seen(drainedPod("a", blockedBy(string(budgets.BudgetExhausted)))), at(3000))
		ended, _ := d.Observe(seen(), at(3060))
		g.Expect(ended[0].Start).To(Equal(begin))
		g.Expect(ended[0].Waits).To(Equal([]Wait{{Reason: string(budgets.BudgetExhausted), Object: "PodDisruptionBudget web/web", Start: at(3000), End: at(3060)}}))
	})
}

func TestStepsEndInOrder(t *testing.T) {
	g, d := NewWithT(t), &Drain{}
	later := drainedPod("later", ordered(10))
	_, steps := d.Observe(seen(drainedPod("a"), drainedPod("b", pending), drainedPod("later", ordered(10), pending)), at(1))
	g.Expect(steps).To(BeEmpty())
	_, steps = d.Observe(seen(drainedPod("b", pending), drainedPod("later", ordered(10), pending)), at(2))
	g.Expect(steps).To(BeEmpty(), "b of the same step is pending")
	d.Observe(seen(drainedPod("b"), drainedPod("later", ordered(10), pending)), at(3))
	_, steps = d.Observe(seen(later), at(4))
	g.Expect(steps).To(HaveLen(1))
	g.Expect(steps[0].Pods).To(Equal(2))
	_, steps = d.Observe(seen(later, drainedPod("returned")), at(5))
	g.Expect(steps).To(BeEmpty())
	_, steps = d.Observe(seen(later), at(6))
	g.Expect(steps).To(BeEmpty(), "the step was returned before")
	evacuations, steps := d.End(at(7))
	g.Expect(evacuations).To(ConsistOf(And(HaveField("Name", "later"), HaveField("Outcome", Remaining))))
	g.Expect(steps).To(ConsistOf(HaveField("Order", int32(10))))
	evacuations, steps = d.Observe(seen(later), at(8))
	g.Expect(append(evacuations, Evacuation{})).To(HaveLen(1), "the drain has ended")
	g.Expect(steps).To(BeEmpty())
}

func TestAManagerThatStartsInTheMiddle(t *testing.T) {
	g, d := NewWithT(t), &Drain{}
	observation := seen(drainedPod("a", ordered(10), blockedBy(string(budgets.BudgetExhausted))), drainedPod("b"))
	observation.Published = func() map[string][]v1alpha1.DrainTarget {
		return map[string][]v1alpha1.DrainTarget{"n": {{PodType: v1alpha1.PodTypeDefault, Order: ptr.To[int32](10)}}}
	}
	d.Observe(observation, at(100))
	ended, steps := d.Observe(seen(), at(110))
	g.Expect(ended).To(HaveLen(2))
	for _, e := range ended {
		g.Expect(e.Start).To(Equal(begin), "as the API records it")
	}
	g.Expect(steps).To(ConsistOf(HaveField("Order", int32(10))), "the manager before has ended the step 0")
}

func TestPodsOfADeselectedNodeAreWithdrawn(t *testing.T) {
	g, d := NewWithT(t), &Drain{}
	d.Observe(seen(drainedPod("a"), drainedPod("b")), at(1))
	ended, _ := d.Observe(seen(drainedPod("a", func(pod *Pod) { pod.Verdict.Behavior = v1alpha1.DrainBehaviorSkip }), drainedPod("b")), at(2))
	g.Expect(ended).To(ConsistOf(And(HaveField("Name", "a"), HaveField("Outcome", Withdrawn))))
	ended, _ = d.Observe(Observation{Nodes: sets.New("other")}, at(3))
	g.Expect(ended).To(ConsistOf(And(HaveField("Name", "b"), HaveField("Outcome", Withdrawn))))
}

func TestWaitsAreLimited(t *testing.T) {
	g, d := NewWithT(t), &Drain{}
	for i := range 10 * maxWaits {
		reason := []string{string(budgets.BudgetExhausted), v1alpha1.ReasonAdmissionRefused}[i%2]
		d.Observe(seen(drainedPod("a", blockedBy(reason))), at(float64(i)))
	}
	ended, _ := d.Observe(seen(), at(10*maxWaits))
	g.Expect(ended[0].Waits).To(HaveLen(maxWaits))
	g.Expect(ended[0].Waits[maxWaits-1].End).To(Equal(ended[0].End))
	g.Expect(d.Summary().Longest).To(HaveLen(maxLongest))
}

func TestSpansFollowFromUIDs(t *testing.T) {
	g := NewWithT(t)
	trace := Trace{Root: "4be5b53a-9a4c-4e6f-9b19-8a6f6f0d4d36", Cluster: types.NamespacedName{Namespace: "ns", Name: "c1"}, Machine: "m", Node: "n"}
	e := &Evacuation{
		UID: "p", Name: "a", Start: at(0), End: at(2), Outcome: Terminated,
		Waits: []Wait{{Reason: WaitEviction, Start: at(0), End: at(1)}, {Reason: WaitTermination, Start: at(1), End: at(2)}},
	}
	spans, again := trace.EvacuationSpans(e), trace.EvacuationSpans(e)
	g.Expect(spans).To(Equal(again))
	ids := sets.New[string]()
	for _, span := range spans {
		ids.Insert(span.ID.String())
		g.Expect(span.TraceID).To(Equal(trace.ID()))
	}
	g.Expect(ids).To(HaveLen(3))
	g.Expect(spans[0].Parent).To(Equal(trace.StepSpan(EndedStep{Step: e.Step}).ID))
	g.Expect(spans[1].Parent).To(Equal(spans[0].ID))
	parts := trace.PartSpans(Course{Deleted: at(0), DrainStart: ptr.To(at(0)), DrainEnd: at(3)}.Before(at(3)))
	g.Expect(trace.StepSpan(EndedStep{Step: e.Step}).Parent).To(Equal(parts[0].ID))
	g.Expect(parts[0].Parent).To(Equal(trace.DeletionSpan(at(0), at(3), "", "").ID))
}

func TestInstant(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Instant(at(3), at(4.4))).To(Equal(at(4.4)), "the API records whole seconds")
	g.Expect(Instant(at(3), at(4.6))).To(Equal(at(3)))
	g.Expect(Instant(at(60), at(4))).To(Equal(at(4)), "another clock recorded it")
}

func TestProceed(t *testing.T) {
	g := NewWithT(t)
	waits := Proceed(nil, Wait{Reason: "a", Start: at(0)})
	waits = Proceed(waits, Wait{Reason: "a", Object: "x", NeverAllows: true, Start: at(1)})
	g.Expect(waits).To(Equal([]Wait{{Reason: "a", Object: "x", NeverAllows: true, Start: at(0)}}), "the object has become known")
	waits = Proceed(waits, Wait{Reason: "a", Start: at(2)})
	g.Expect(waits).To(HaveLen(1))
	waits = Proceed(waits, Wait{Reason: "a", Object: "y", Start: at(3)})
	g.Expect(waits).To(HaveLen(2))
	g.Expect(waits[0].End).To(Equal(at(3)))
}

func TestEachReasonHasASpanName(t *testing.T) {
	g := NewWithT(t)
	for reason, each := range descriptions {
		g.Expect(each.span).NotTo(BeEmpty(), reason)
		g.Expect(Kinds).To(ContainElement(each.kind), reason)
	}
	for key := range partSpans {
		g.Expect(partSpans[key]).NotTo(BeEmpty(), key)
	}
}

func TestEvacuationWait(t *testing.T) {
	ordered := func(reason string) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.EvacuationOrdered, Status: metav1.ConditionFalse, Reason: reason}
	}
	for _, tc := range []struct {
		name, class string
		condition   metav1.Condition
		reason      string
		kind        Kind
	}{
		{"a surge", v1alpha1.EvacuatorClassDeployment, metav1.Condition{}, "Surge", KindEvacuator},
		{"the order of a StatefulSet", v1alpha1.EvacuatorClassStatefulSet, ordered(v1alpha1.ReasonWaitingForReplica), v1alpha1.ReasonWaitingForReplica, KindOrder},
		{"a reason that another client has written", v1alpha1.EvacuatorClassStatefulSet, ordered("Mine"), WaitEvacuator, KindEvacuator},
		{"an evacuator that reports no reason", v1alpha1.EvacuatorClassDaemonSet, ordered(v1alpha1.ReasonWaitingForReplica), WaitEvacuator, KindEvacuator},
		{"an evacuator of another author", "example.com", ordered(v1alpha1.ReasonWaitingForReplica), WaitEvacuator, KindEvacuator},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := &v1alpha1.Evacuation{}
			e.Status.ActiveEvacuatorClass, e.Status.Conditions = &tc.class, []metav1.Condition{tc.condition}
			wait := EvacuationWait(e)
			if wait.Reason != tc.reason || wait.Object != "evacuator "+tc.class || KindOf(wait.Reason) != tc.kind {
				t.Errorf("got %+v of kind %s", wait, KindOf(wait.Reason))
			}
		})
	}
}

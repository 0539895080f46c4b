package evictor

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

// A Pod without an evacuator waits for its budget, and its owner annotates it. The controller of Evacuations activates the evacuator after
// the pass of the evictor has collected the Pod.
func TestEvacuatorActivatedDuringAPass(t *testing.T) {
	t.Run("E12: what a Pod waits for does not complete an evacuator that was activated meanwhile", func(t *testing.T) {
		g, pod := NewWithT(t), podNamed("web", "")
		e := evacuation.New(pod, nil, 0)
		e.UID, e.CreationTimestamp = "evacuation", metav1.NewTime(now.Add(-time.Minute))
		p := passOver(t, now, onePod{pod: pod}, e)
		g.Expect(p.client.Get(t.Context(), client.ObjectKeyFromObject(e), e)).To(Succeed())
		p.subjects[pod.UID] = p.due([]v1alpha1.Evacuation{*e})[0]

		e.Spec.Evacuators = []v1alpha1.Evacuator{{EvacuatorClass: "mover.example.com", Priority: 1}}
		g.Expect(p.client.Update(t.Context(), e)).To(Succeed())
		observed := evacuation.ObservedPod(e, pod, v1alpha1.PodTypeDefault)
		evacuation.Next(evacuation.Input{Evacuation: e.DeepCopy(), Pod: observed, Now: now}).Apply(e, now)
		g.Expect(e.IsAssignedTo("mover.example.com")).To(BeTrue())
		g.Expect(p.client.Status().Update(t.Context(), e)).To(Succeed())

		p.report(t.Context(), []budgets.Waiting{{
			Candidate: budgets.Candidate{Pod: budgets.PodOf(pod)}, Reason: budgets.BudgetExhausted, Message: "waiting for a budget",
		}})
		g.Expect(p.client.Get(t.Context(), client.ObjectKeyFromObject(e), e)).To(Succeed())
		next := evacuation.Next(evacuation.Input{Evacuation: e, Pod: observed, Now: now})
		g.Expect(next.Kind).To(Equal(evacuation.AwaitEvacuator), "%s", next.Message)
		g.Expect(p.nextTry).To(Equal(now.Add(time.Second)), "the watch may have delivered the change before the patch")
	})
}

// The watch of Evacuations lags by 70 seconds, as with hundreds of drains. Another actor has changed the Evacuation once. When the watch
// has delivered that, what the Pod waits for is reported by the pass that the event starts.
func TestReportAfterALaggingWatch(t *testing.T) {
	t.Run("E12: what a Pod waits for is reported as soon as the watch has delivered the change with which the report conflicted", func(t *testing.T) {
		g, pod := NewWithT(t), podNamed("web", "")
		observed := evacuation.New(pod, nil, 0)
		observed.UID, observed.ResourceVersion, observed.CreationTimestamp = "evacuation", "1", metav1.NewTime(now.Add(-time.Minute))
		evacuation.Request(observed)
		stored := observed.DeepCopy()
		stored.ResourceVersion, stored.Labels = "2", map[string]string{"changed": "by-a-user"}
		p := passOver(t, now, onePod{pod: pod}, stored)
		clock := clocktesting.NewFakeClock(now)
		p.clock = clock
		waiting := []budgets.Waiting{{Candidate: budgets.Candidate{Pod: budgets.PodOf(pod)}, Reason: budgets.BudgetExhausted, Message: "waiting for a budget"}}
		pass := func(seen *v1alpha1.Evacuation) {
			p.now, p.nextTry = clock.Now(), time.Time{}
			p.subjects[pod.UID] = p.due([]v1alpha1.Evacuation{*seen.DeepCopy()})[0]
			p.report(t.Context(), waiting)
		}
		for clock.SetTime(now); clock.Since(now) < 70*time.Second; clock.Step(time.Second) { // the watch lags
			pass(observed)
		}
		g.Expect(p.client.Get(t.Context(), client.ObjectKeyFromObject(stored), stored)).To(Succeed())
		delivered, at := stored.DeepCopy(), clock.Now()
		pass(delivered) // the event
		for p.message(t, stored) == "" {
			clock.SetTime(p.nextTry)
			pass(delivered)
		}
		g.Expect(clock.Since(at)).To(BeNumerically("<=", time.Second), "after the event of the Evacuation, which lagged by %s", at.Sub(now))
	})
}

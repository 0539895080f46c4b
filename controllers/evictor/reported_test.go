package evictor

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

// An evacuator misses its deadline, and the Pod waits for its budget. Late progress of the evacuator stops the eviction: the condition
// Evicting is removed, and the message stays. When the evacuator is silent again, the Pod waits for the same budget.
func TestReportAfterTheEvictionWasStopped(t *testing.T) {
	t.Run("E18, M96: reports again what an eviction waits for that was stopped by progress of the evacuator", func(t *testing.T) {
		g, pod := NewWithT(t), podNamed("web", "")
		e := evacuation.New(pod, []v1alpha1.Evacuator{{EvacuatorClass: "slow", Priority: 1}}, 600)
		e.UID, e.CreationTimestamp = "evacuation", metav1.NewTime(now.Add(-time.Hour))
		e.Status.ActiveEvacuatorClass = new("slow")
		e.Status.EvacuationProgressTimestamp = new(metav1.NewTime(now.Add(-20 * time.Minute)))
		p := passOver(t, now, onePod{pod: pod}, e.DeepCopy())
		exhausted := budgets.Waiting{Candidate: budgets.Candidate{Pod: budgets.PodOf(pod)}, Reason: budgets.BudgetExhausted, Message: "waiting for a budget"}
		stored := func() *v1alpha1.Evacuation {
			current := &v1alpha1.Evacuation{}
			g.Expect(p.client.Get(t.Context(), client.ObjectKeyFromObject(e), current)).To(Succeed())
			return current
		}
		report := func() {
			due := p.due([]v1alpha1.Evacuation{*stored()})
			g.Expect(due).To(HaveLen(1))
			p.subjects[pod.UID] = due[0]
			p.report(t.Context(), []budgets.Waiting{exhausted})
		}
		report()
		g.Expect(meta.IsStatusConditionTrue(stored().Status.Conditions, v1alpha1.EvacuationEvicting)).To(BeTrue())

		progress := stored()
		progress.Status.EvacuationProgressTimestamp = new(metav1.NewTime(now))
		action := evacuation.Next(evacuation.Input{Evacuation: progress, Pod: evacuation.ObservedPod(progress, pod, v1alpha1.PodTypeDefault), Now: now})
		g.Expect(action.Kind).To(Equal(evacuation.AwaitEvacuator))
		action.Apply(progress, now)
		g.Expect(p.client.Status().Update(t.Context(), progress)).To(Succeed())

		p.now = now.Add(20 * time.Minute)
		report()
		evicting := meta.FindStatusCondition(stored().Status.Conditions, v1alpha1.EvacuationEvicting)
		g.Expect(evicting).NotTo(BeNil(), "the Pod waits for its budget, and no condition says so")
		g.Expect(evacuation.IsAttempted(stored(), now, true)).To(BeTrue(), "FinalEvictionAttempt never becomes true")
	})
}

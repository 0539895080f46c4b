package history

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

func TestWaitsForItsStepAgain(t *testing.T) {
	for name, first := range map[string]func(*Pod){
		"its rules were undecided":                   func(pod *Pod) { pending(pod); pod.Verdict.Undecided = "Namespace web is not known" },
		"it had to complete":                         func(pod *Pod) { pending(pod); pod.Verdict.Behavior = v1alpha1.DrainBehaviorWaitCompleted },
		"another NodeMaintenance vetoes it from now": func(*Pod) {},
	} {
		t.Run("M71: a Pod that waits for its step again has not terminated: "+name, func(t *testing.T) {
			g, d := NewWithT(t), &Drain{}
			d.Observe(seen(drainedPod("a", first)), at(1))
			ended, _ := d.Observe(seen(drainedPod("a", ordered(10), pending)), at(2))
			g.Expect(ended).To(ConsistOf(HaveField("Outcome", Withdrawn)), "the Pod exists")
			d.Observe(seen(drainedPod("a", ordered(10))), at(3))
			ended, steps := d.Observe(seen(), at(5))
			g.Expect(ended).To(ConsistOf(And(HaveField("Outcome", Terminated), HaveField("Order", int32(10)))))
			g.Expect(steps).To(ContainElement(HaveField("Order", int32(10))))
			g.Expect(d.Summary().Pods).To(Equal(1))
		})
	}
}

func TestDrainedAgain(t *testing.T) { // M71: repeats no span
	g, d, trace := NewWithT(t), &Drain{}, Trace{Root: "m"}
	ids := sets.New[string]()
	export := func(ended []Evacuation, _ []EndedStep) {
		for i := range ended {
			for _, span := range trace.EvacuationSpans(&ended[i]) {
				g.Expect(ids.Has(span.ID.String())).To(BeFalse(), "%s %s is repeated", span.Name, ended[i].Outcome)
				ids.Insert(span.ID.String())
			}
		}
	}
	export(d.Observe(seen(drainedPod("a")), at(1)))
	export(d.Observe(seen(drainedPod("a", func(pod *Pod) { pod.Verdict.Behavior = v1alpha1.DrainBehaviorSkip })), at(2)))
	export(d.Observe(seen(drainedPod("a")), at(3)))
	export(d.Observe(seen(), at(4)))
	g.Expect(ids).NotTo(BeEmpty())
}

func TestAManagerThatStartsWhileANodeIsBehindAnother(t *testing.T) { // M71
	g, d := NewWithT(t), &Drain{}
	behind := drainedPod("a")
	o := Observation{Nodes: sets.New("n", "drained"), Pods: []Pod{behind}, Published: func() map[string][]v1alpha1.DrainTarget {
		return map[string][]v1alpha1.DrainTarget{
			"drained": {{PodType: v1alpha1.PodTypeDefault, Order: ptr.To[int32](100)}},
			"n":       {{PodType: v1alpha1.PodTypeDefault}},
		}
	}}
	d.Observe(o, at(100))
	o.Pods = nil
	_, steps := d.Observe(o, at(110))
	g.Expect(steps).To(ConsistOf(HaveField("Order", int32(0))), "the earlier manager has not ended step 0")
}

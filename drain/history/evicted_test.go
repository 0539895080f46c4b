package history

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
)

// controlled sets the StatefulSet that controls a Pod.
func controlled(name string) func(*Pod) {
	return func(pod *Pod) {
		pod.Object.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: name, Controller: ptr.To(true)}}
	}
}

func TestEvicted(t *testing.T) {
	db := outcome.Controller{Kind: "StatefulSet", Namespace: "web", Name: "db"}
	t.Run("M150: counts the Pods that terminated during their evacuation, from the first Evacuation on", func(t *testing.T) {
		g, d := NewWithT(t), &Drain{}
		later := func(pod *Pod) { pod.Evacuation.CreationTimestamp = metav1.NewTime(at(10)) }
		requested := func(pod *Pod) { pod.Evacuation = nil }
		finished := func(pod *Pod) { pod.Finished = true }
		daemonSet := func(pod *Pod) { pod.Type = v1alpha1.PodTypeDaemonSet }
		d.Observe(seen(drainedPod("a", controlled("db"), later), drainedPod("b", controlled("db"), requested), drainedPod("c", controlled("job")),
			drainedPod("d", controlled("agent"), daemonSet), drainedPod("e", controlled("withdrawn")), drainedPod("f", controlled("remains"))), at(10))
		d.Observe(seen(drainedPod("a", controlled("db"), later), drainedPod("b", controlled("db")), drainedPod("c", controlled("job"), finished),
			drainedPod("d", controlled("agent"), daemonSet), drainedPod("e", controlled("withdrawn"), pending), drainedPod("f", controlled("remains"))), at(11))
		d.Observe(seen(drainedPod("f", controlled("remains"))), at(12))
		d.End(at(13))
		pods, beyond := d.Evicted()
		g.Expect(beyond).To(BeZero())
		g.Expect(pods).To(ConsistOf(outcome.Evicted{Controller: db, Pods: 2, Since: begin}))
	})
	t.Run("M151: remembers a limited number of controllers", func(t *testing.T) {
		g, e := NewWithT(t), &evicted{}
		for i := range maxControllers + 3 {
			e.add(&evacuating{
				Evacuation: Evacuation{Step: Step{Type: v1alpha1.PodTypeDefault}},
				place:      place{outcome.Controller{Kind: "Job", Namespace: "web", Name: time.Duration(i).String()}, begin},
			})
		}
		g.Expect(e.pods).To(HaveLen(maxControllers))
		g.Expect(e.beyond).To(BeEquivalentTo(3))
	})
}

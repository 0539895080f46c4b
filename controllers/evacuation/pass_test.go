package evacuation

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/remote"
)

func TestAwaitCordons(t *testing.T) {
	created := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	maintenance := v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "one", CreationTimestamp: metav1.NewTime(created)}}
	maintenance.Spec.Stage = v1alpha1.StageDrain
	maintenance.Spec.NodeSelector.NodeSelectorTerms = []v1alpha1.NodeSelectorTerm{{MatchFields: []v1alpha1.NodeSelectorRequirement{
		{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"one"}},
	}}}
	for _, tc := range []struct {
		name string
		node *corev1.Node
		held bool
	}{
		{name: "a Node that is still to be cordoned", node: &corev1.Node{}, held: true},
		{name: "one that is", node: &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}},
		{name: "one that is gone"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			known := fake.NewClientBuilder()
			if tc.node != nil {
				tc.node.Name = "one"
				known.WithObjects(tc.node)
			}
			p := &pass{client: known.Build(), now: created.Add(time.Second)}
			g.Expect(p.awaitCordons(t.Context(), []v1alpha1.NodeMaintenance{maintenance})).To(Succeed())
			g.Expect(p.held).To(Equal(tc.held))
			g.Expect(p.nextTry.IsZero()).To(Equal(!tc.held), "a cordon that never comes brings no event")
		})
	}
}

// onePod is an Observation of one Pod.
type onePod struct {
	remote.Observation
	pod *corev1.Pod
}

func (o onePod) PodByUID(uid types.UID) (*corev1.Pod, bool) { return o.pod, o.pod.UID == uid }

func TestUnderWay(t *testing.T) {
	begun := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "web"}, Spec: corev1.PodSpec{NodeName: "one"}}
	ending := pod.DeepCopy()
	ending.DeletionTimestamp = &metav1.Time{Time: begun}
	for _, tc := range []struct {
		name   string
		pod    *corev1.Pod
		flight types.UID
		after  time.Duration
		holds  bool
	}{
		{name: "an eviction that isn't answered yet keeps its room", pod: pod, flight: "web", after: time.Second, holds: true},
		{name: "so does one whose Pod ends already: its budget may not have been seen since", pod: ending, flight: "web", after: time.Second, holds: true},
		{name: "one that hangs does no more", pod: pod, flight: "web", after: hung},
		{name: "one of a Pod that nobody knows doesn't", pod: pod, flight: "gone", after: time.Second},
	} {
		t.Run("E18: "+tc.name, func(t *testing.T) {
			g := NewWithT(t)
			p := &pass{observation: onePod{pod: tc.pod}, record: newRecord(), now: begun.Add(tc.after)}
			g.Expect(p.record.flights.start(tc.flight, "one", begun)).To(BeTrue())
			candidates := p.underWay()
			if !tc.holds {
				g.Expect(candidates).To(BeEmpty())
				return
			}
			g.Expect(candidates).To(HaveLen(1))
			g.Expect(candidates[0].UnderWay).To(BeTrue())
			g.Expect(candidates[0].Pod.Node).To(Equal("one"))
			g.Expect(p.nextTry).To(BeTemporally("==", begun.Add(hung)), "if it hangs, nothing else tells")
		})
	}
}

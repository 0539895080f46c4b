package workload

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestConfirmDrained(t *testing.T) {
	t.Run("M95, M96: a confirmation holds for one generation and until the watch of the Pods ends", func(t *testing.T) {
		g := NewWithT(t)
		cluster := types.NamespacedName{Namespace: "fleet", Name: "c"}
		request := Request{Cluster: cluster, Object: types.NamespacedName{Name: "m"}}
		c := NewClusters(nil, nil, nil, Limits{}, clock.RealClock{})
		var changes []Change
		c.Subscribe(func(change Change) { changes = append(changes, change) })
		m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "1", Generation: 1}}
		g.Expect(c.IsConfirmed(request, m)).To(BeFalse())

		c.ConfirmDrained(request, m, "node", false, sets.New[types.UID]("skipped"))
		c.ConfirmDrained(request, m, "node", false, sets.New[types.UID]("skipped", "finished"))
		g.Expect(c.IsConfirmed(request, m)).To(BeTrue())
		pods, unreachable := c.ConfirmedPods(request, m)
		g.Expect(pods).To(HaveLen(2))
		g.Expect(unreachable).To(BeFalse())
		g.Expect(changes).To(Equal([]Change{{Cluster: cluster, Type: DrainConfirmed, Node: "node"}}), "only the first confirmation reconciles the Machine")

		edited, recreated := m.DeepCopy(), m.DeepCopy()
		edited.Generation, recreated.UID = 2, "2"
		g.Expect(c.IsConfirmed(request, edited)).To(BeFalse())
		pods, _ = c.ConfirmedPods(request, edited)
		g.Expect(pods).To(BeEmpty())
		g.Expect(c.IsConfirmed(request, recreated)).To(BeFalse())

		c.ConfirmAttempted(request, m, "node")
		g.Expect(c.IsConfirmed(request, m)).To(BeFalse(), "Pods remain")
		g.Expect(c.IsAttempted(request, m)).To(BeTrue())
		g.Expect(c.IsAttempted(request, edited)).To(BeFalse())
		g.Expect(changes).To(HaveLen(2))

		c.WithdrawConfirmation(request)
		g.Expect(c.IsConfirmed(request, m)).To(BeFalse())
		g.Expect(c.IsAttempted(request, m)).To(BeFalse())
		c.ConfirmDrained(request, m, "node", false, nil)
		c.Disconnect(cluster)
		g.Expect(c.IsConfirmed(request, m)).To(BeFalse())
	})
}

func TestSetWaiting(t *testing.T) {
	t.Run("M96: the Pods that the evictor has found waiting are those of its last pass, and of the present watch", func(t *testing.T) {
		g := NewWithT(t)
		cluster := types.NamespacedName{Namespace: "fleet", Name: "c"}
		former, present := &drainWatch{}, &drainWatch{stop: func() {}, observedBudgets: newObservedBudgets(nil, clock.RealClock{})}
		c := NewClusters(nil, nil, nil, Limits{}, clock.RealClock{})
		c.SetWaiting(cluster, present, map[types.UID]string{"a": "one"})
		g.Expect(c.Waiting(cluster)).To(BeEmpty(), "the watch has ended during the pass")
		c.watches[cluster] = &connectedWatch{drainWatch: present}
		var changes []Change
		c.Subscribe(func(change Change) { changes = append(changes, change) })
		added := func(node string) Change { return Change{Cluster: cluster, Type: PodsWaiting, Node: node} }

		c.SetWaiting(cluster, present, map[types.UID]string{})
		g.Expect(changes).To(BeEmpty())
		c.SetWaiting(cluster, present, map[types.UID]string{"a": "one", "b": "one", "c": "two"})
		g.Expect(c.Waiting(cluster)).To(HaveLen(3))
		g.Expect(changes).To(ConsistOf(added("one"), added("two")))
		c.SetWaiting(cluster, present, map[types.UID]string{"a": "one", "d": "three"})
		g.Expect(c.Waiting(cluster)).To(And(HaveLen(2), HaveKey(types.UID("a")), HaveKey(types.UID("d"))))
		g.Expect(changes[2:]).To(ConsistOf(added("three")), "only Pods that were added reconcile")

		c.SetWaiting(cluster, former, map[types.UID]string{"e": "one"})
		g.Expect(c.Waiting(cluster)).To(HaveLen(2), "the watch was restarted during the pass")
		c.SetWaiting(cluster, present, nil)
		g.Expect(c.Waiting(cluster)).To(BeEmpty(), "the pass could not evaluate the Pods")
		c.SetWaiting(cluster, present, map[types.UID]string{"a": "one"})
		c.Disconnect(cluster)
		g.Expect(c.Waiting(cluster)).To(BeEmpty())
	})
}

func TestObserveProgress(t *testing.T) {
	t.Run("M132, M133: progress is known only since this process has evaluated the Pods, and until their watch ends", func(t *testing.T) {
		g := NewWithT(t)
		cluster := types.NamespacedName{Namespace: "fleet", Name: "c"}
		request := Request{Cluster: cluster, Object: types.NamespacedName{Name: "m"}}
		c := NewClusters(nil, nil, nil, Limits{}, clock.RealClock{})
		m, first := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "1"}}, time.Unix(1000, 0)
		g.Expect(c.ProgressOf(request, m)).To(BeZero())

		c.ObserveProgress(request, m, machinedrain.Progress{Last: first, Left: 2}, first)
		c.ObserveProgress(request, m, machinedrain.Progress{Last: first.Add(time.Second), Left: 1}, first.Add(time.Minute))
		g.Expect(c.ProgressOf(request, m)).To(Equal(machinedrain.Progress{Last: first.Add(time.Second), Left: 1, Observed: first}))
		recreated := m.DeepCopy()
		recreated.UID = "2"
		g.Expect(c.ProgressOf(request, recreated)).To(BeZero())

		c.ForgetProgress(request)
		g.Expect(c.ProgressOf(request, m)).To(BeZero())
		c.ObserveProgress(request, m, machinedrain.Progress{Last: first}, first)
		c.Disconnect(cluster)
		g.Expect(c.ProgressOf(request, m)).To(BeZero())
	})
}

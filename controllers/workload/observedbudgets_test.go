package workload

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	cachetesting "k8s.io/client-go/tools/cache/testing"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

func pdbOf(name, app string) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
	}
}

func podOf(app string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p", Labels: map[string]string{"app": app}}}
}

// watchOf returns a drain watch whose PodDisruptionBudgets come from a source.
func watchOf(ctx context.Context, source *cachetesting.FakeControllerSource, earlier *observedBudgets) *drainWatch {
	informer := func(source *cachetesting.FakeControllerSource, object runtime.Object) cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(source, object, 0, cache.Indexers{})
	}
	return &drainWatch{
		ctx: ctx, notify: func(Change) {}, clock: clock.RealClock{}, observedBudgets: newObservedBudgets(earlier, clock.RealClock{}),
		budgets:    informer(source, &policyv1.PodDisruptionBudget{}),
		namespaces: informer(cachetesting.NewFakeControllerSource(), &metav1.PartialObjectMetadata{}),
		daemonSets: informer(cachetesting.NewFakeControllerSource(), &metav1.PartialObjectMetadata{}),
	}
}

func TestLossIsKnownWithTheDeletion(t *testing.T) {
	g, source, pod := NewWithT(t), cachetesting.NewFakeControllerSource(), budgets.PodOf(podOf("web"))
	w := watchOf(t.Context(), source, nil)
	source.Add(pdbOf("web", "web"))
	_, known := w.Budgets()
	g.Expect(known).To(BeFalse(), "E55: nothing was listed")
	g.Expect(w.startShared()).To(Succeed())
	g.Eventually(func() bool { _, known := w.Budgets(); return known }).WithTimeout(time.Minute).Should(BeTrue())
	g.Expect(w.budgets.GetStore().Delete(pdbOf("web", "web"))).To(Succeed()) // as the informer does before the event of the deletion arrives
	pdbs, _ := w.Budgets()
	g.Expect(pdbs).To(HaveLen(1), "E55: the Pod would be evicted before its loss is known")
	source.Delete(pdbOf("web", "web"))
	g.Eventually(func() int { pdbs, _ := w.Budgets(); return len(pdbs) }).WithTimeout(time.Minute).Should(BeZero())
	_, lost := w.LossOf(pod)
	g.Expect(lost).To(BeTrue(), "E55")
}

func TestLossWithChangedLabels(t *testing.T) {
	g := NewWithT(t)
	w := watchOf(t.Context(), cachetesting.NewFakeControllerSource(), nil)
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, cache.Indexers{})
	w.nodes, w.byUID = map[string]*nodePods{"one": {informer: informer, known: sets.New[types.UID]()}}, map[types.UID]*corev1.Pod{}
	w.observedBudgets.changed(pdbOf("web", "web"))
	w.podChanged(PodChanged, "one", informer, podOf("web"))
	_, lost := w.LossOf(budgets.PodOf(podOf("web")))
	g.Expect(lost).To(BeFalse())
	w.podChanged(PodChanged, "one", informer, podOf("db"))
	loss, lost := w.LossOf(budgets.PodOf(podOf("db")))
	g.Expect(lost).To(BeTrue(), "E55")
	g.Expect(loss.Budget).To(Equal("default/web"))
}

func TestLossesExpire(t *testing.T) {
	g, now := NewWithT(t), testingclock.NewFakeClock(time.Now())
	b := newObservedBudgets(nil, now)
	for range 100 {
		b.changed(pdbOf("web", "web"))
		b.deleted(pdbOf("web", "web"))
	}
	g.Expect(b.expires).To(BeTrue(), "E55: no event follows")
	now.Step(budgets.LossCounts)
	b.expire()
	g.Expect(b.observed.HasLosses()).To(BeFalse())
	g.Expect(b.expires).To(BeFalse())
}

func TestBudgetsOfARestartedWatch(t *testing.T) {
	g, now := NewWithT(t), testingclock.NewFakeClock(time.Now())
	cluster, config := types.NamespacedName{Namespace: "default", Name: "c1"}, &rest.Config{Host: "https://127.0.0.1:1"}
	c := NewClusters(nil, nil, nil, Limits{}, now)
	watch, err := c.startWatch(cluster, config)
	g.Expect(err).NotTo(HaveOccurred())
	watch.observedBudgets.changed(pdbOf("web", "web"))
	c.ContactRestored(cluster)
	g.Expect(c.watches).NotTo(BeEmpty(), "contact was not lost")
	c.ContactLost(cluster)
	c.ContactRestored(cluster)
	g.Expect(c.watches).To(BeEmpty())
	watch, err = c.startWatch(cluster, config)
	g.Expect(err).NotTo(HaveOccurred())
	defer watch.stop()
	_, known := watch.Budgets()
	g.Expect(known).To(BeFalse())
	watch.observedBudgets.listComplete()
	_, lost := watch.LossOf(budgets.PodOf(podOf("web")))
	g.Expect(lost).To(BeTrue(), "E55: the budget was deleted while the watch was restarted")
	g.Expect(c.budgets).To(BeEmpty())
	c.Release(cluster, "the last owner")
	g.Expect(c.watches).To(BeEmpty())
	g.Expect(c.budgets).To(HaveKey(cluster))
	c.Forget(cluster)
	g.Expect(c.budgets).To(BeEmpty(), "E55: the Cluster was deleted")
}

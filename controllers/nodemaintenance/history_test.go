package nodemaintenance

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestBudgetsOf(t *testing.T) {
	t.Run("E37: a wait names some of the PodDisruptionBudgets of a Pod, however many a tenant creates", func(t *testing.T) {
		g, all := NewWithT(t), []*policyv1.PodDisruptionBudget{}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
		for i := range 1000 {
			all = append(all, &policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("web-%04d", i)},
				Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
			})
		}
		g.Expect(budgetsOf(budgets.NewIndex(all[:2], nil), pod)).To(Equal("PodDisruptionBudget shop/web-0000, PodDisruptionBudget shop/web-0001"))
		g.Expect(budgetsOf(budgets.NewIndex(all, nil), pod)).
			To(Equal("PodDisruptionBudget shop/web-0000, PodDisruptionBudget shop/web-0001, PodDisruptionBudget shop/web-0002 and 997 more"))
	})
}

func TestWithoutPlace(t *testing.T) {
	end := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	counted := func(t *testing.T, now time.Time, change func(*scope)) float64 {
		t.Helper()
		request := workload.Request{Cluster: types.NamespacedName{Namespace: "fleet", Name: t.Name()}, Object: types.NamespacedName{Name: "nm"}}
		read := metav1.NewTime(now.Add(-time.Minute))
		s := &scope{request: request, now: now, maintenance: &v1alpha1.NodeMaintenance{}}
		s.maintenance.Status.Outcome = &v1alpha1.DrainOutcome{
			EndTime: metav1.NewTime(end), ReadTime: &read, Pods: v1alpha1.EvictedPods{Evicted: 1, Pending: 1},
		}
		change(s)
		tracing.ObserveWithoutPlace(sourceOf(request), map[types.NamespacedName]int32{request.Cluster: 1}) // by the last reading
		_, err := (&Reconciler{}).readOutcome(t.Context(), s)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		return fakes.Gauge(t, "capnm_pods_without_place", request.Cluster.Name)
	}
	t.Run("M153: the Pods of a drain without a place are counted", func(t *testing.T) {
		NewWithT(t).Expect(counted(t, end.Add(time.Hour+time.Minute), func(*scope) {})).To(BeEquivalentTo(1))
	})
	t.Run("M153: they are not counted any more ten minutes after their last reading", func(t *testing.T) {
		NewWithT(t).Expect(counted(t, end.Add(time.Hour+11*time.Minute), func(*scope) {})).To(BeZero())
	})
	t.Run("M153: they are not counted here any more when the Machine is deleted", func(t *testing.T) {
		NewWithT(t).Expect(counted(t, end.Add(time.Hour+time.Minute), func(s *scope) {
			deleted := metav1.NewTime(end)
			s.owner = &ownerMachine{machine: &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &deleted}}}
		})).To(BeZero())
	})
}

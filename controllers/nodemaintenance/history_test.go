package nodemaintenance

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
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

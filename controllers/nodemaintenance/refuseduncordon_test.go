package nodemaintenance

import (
	"context"
	"net/url"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

func TestRefusedUncordon(t *testing.T) {
	test := func(t *testing.T, cordonedAgain bool, refusal error) {
		t.Helper()
		g, cluster, m := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}, maintenanceOf("m", "a", "b")
		atLast := []string{"a", "b"}
		m.Spec.Stage, m.Finalizers = v1alpha1.StageComplete, []string{v1alpha1.MaintenanceCompletionFinalizer}
		m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageIdle, StartTimestamp: metav1.NewTime(time.Unix(0, 0))}}
		m.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "a"}}, {NodeRef: v1alpha1.NodeReference{Name: "b"}}}
		cordoned := func(name string) *corev1.Node { // by a user
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.NodeSpec{Unschedulable: true}}
		}
		refuses := true
		server := withMaintenancesBuilder(m, cordoned("a"), cordoned("b")).WithStatusSubresource(m).
			WithInterceptorFuncs(beforePatch(func(object client.Object) error {
				if object.GetName() == "b" && refuses {
					return refusal
				}
				return nil
			})).Build()
		r := reconcilerOf(t, server, cluster)
		stored := &v1alpha1.NodeMaintenance{}
		reconcile := func() (schedulable []string) {
			g.Expect(r.reconcileOnce(t, server, cluster, m.Name)).To(Succeed())
			nodes := &corev1.NodeList{}
			g.Expect(server.List(t.Context(), nodes)).To(Succeed())
			for _, node := range nodes.Items {
				if !node.Spec.Unschedulable {
					schedulable = append(schedulable, node.Name)
				}
			}
			g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
			return schedulable
		}
		for range 2 {
			g.Expect(reconcile()).To(ConsistOf("a"))
			g.Expect(meta.IsStatusConditionTrue(stored.Status.Conditions, v1alpha1.NodeMaintenanceRestoreFailed)).To(BeTrue())
		}
		if cordonedAgain {
			a := &corev1.Node{}
			g.Expect(server.Get(t.Context(), types.NamespacedName{Name: "a"}, a)).To(Succeed())
			a.Spec.Unschedulable = true
			g.Expect(server.Update(t.Context(), a)).To(Succeed())
			atLast = []string{"b"}
			g.Expect(reconcile()).To(BeEmpty())
		}
		refuses = false
		for range 2 {
			g.Expect(reconcile()).To(ConsistOf(atLast))
			g.Expect(stored.Status.Conditions).NotTo(ContainElement(HaveField("Type", v1alpha1.NodeMaintenanceRestoreFailed)))
			g.Expect(stored.StageStart(v1alpha1.StageComplete)).NotTo(BeNil())
		}
	}
	forbidden := apierrors.NewForbidden(corev1.Resource("nodes"), "b", errors.New("change freeze"))
	unanswered := &url.Error{Op: "Patch", URL: "https://workload", Err: context.DeadlineExceeded}
	t.Run("R89: a Node becomes schedulable, as Complete after Idle requires, when the API server accepts that", func(t *testing.T) {
		test(t, false, forbidden)
	})
	t.Run("R92: a Node that another actor has cordoned again meanwhile stays cordoned", func(t *testing.T) { test(t, true, forbidden) })
	t.Run("R92: also if the request for another Node has got no answer", func(t *testing.T) { test(t, true, unanswered) })
	t.Run("R92: or the API server was overloaded", func(t *testing.T) { test(t, true, apierrors.NewTooManyRequests("busy", 1)) })
	t.Run("R92: or timed out", func(t *testing.T) { test(t, true, apierrors.NewTimeoutError("busy", 1)) })
	t.Run("R92: or had a timeout elsewhere", func(t *testing.T) { test(t, true, apierrors.NewServerTimeout(corev1.Resource("nodes"), "patch", 1)) })
	t.Run("R92: or a webhook has said that there was a conflict", func(t *testing.T) {
		conflict := apierrors.NewConflict(corev1.Resource("nodes"), "b", nil)
		conflict.ErrStatus.Message = `admission webhook "freeze" denied the request: change freeze`
		test(t, true, conflict)
	})
}

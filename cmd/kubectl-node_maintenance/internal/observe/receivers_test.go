package observe

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestReceiversFor(t *testing.T) {
	webhook := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "moves"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "moves.example.com", Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}},
		}}}},
	}
	for _, test := range []struct {
		name      string
		allowed   int32 // disruptions
		forbidden bool
		receivers []string
		gaps      []string
		lists     int
	}{
		{"K39: reads the webhooks if a PodDisruptionBudget blocks the drain", 0, false, []string{"moves.example.com"}, nil, 2},
		{"K39: does not read the webhooks otherwise", 1, false, nil, nil, 0},
		{"K39: webhooks that may not be read are a gap", 0, true, nil, []string{
			"No right to list validatingwebhookconfigurations.admissionregistration.k8s.io in c",
			"No right to list mutatingwebhookconfigurations.admissionregistration.k8s.io in c",
		}, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n"}}
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", UID: "db"}, Spec: corev1.PodSpec{NodeName: "n"},
				Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
			}
			pdb := &policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"},
				Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}, MinAvailable: ptr.To(intstr.FromInt(1))},
				Status:     policyv1.PodDisruptionBudgetStatus{CurrentHealthy: 1, DesiredHealthy: 1, ExpectedPods: 1, DisruptionsAllowed: test.allowed},
			}
			lists := 0
			c := fakes.Builder().WithIndex(&corev1.Pod{}, "spec.nodeName", func(object client.Object) []string {
				return []string{object.(*corev1.Pod).Spec.NodeName}
			}).WithObjects(node, pod, pdb, webhook.DeepCopy(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}).WithInterceptorFuncs(interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					switch list.(type) {
					case *admissionregistrationv1.ValidatingWebhookConfigurationList, *admissionregistrationv1.MutatingWebhookConfigurationList:
						if lists++; test.forbidden {
							return apierrors.NewForbidden(schema.GroupResource{}, "", nil)
						}
					}
					return c.List(ctx, list, options...)
				},
			}).Build()
			w := newWorkload(&Cluster{Name: "c", HasMaintenances: true, gaps: &Gaps{}, WithWatch: c})
			m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
			m.Spec.Stage, m.Spec.NodeSelector = v1alpha1.StageDrain, v1alpha1.SelectNodes("n")
			for range 2 { // of two predictions, the second one reads nothing
				observed, err := w.Forecast(t.Context(), m, node, time.Now())
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(observed.Receivers.Of(nil, nil)).To(Equal(test.receivers))
			}
			g.Expect(w.gaps.List()).To(Equal(test.gaps))
			g.Expect(lists).To(Equal(test.lists))
		})
	}
}

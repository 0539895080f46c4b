package nodemaintenance

import (
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestOverloadOfTheAPIServer(t *testing.T) {
	busy := apierrors.NewTooManyRequests("busy", 1)
	for name, tc := range map[string]struct {
		refusals map[string]error // by the name of the Node to restore
		reported []bool           // at each attempt
	}{
		"R98: RestoreFailed reports an overload of the API server when it has lasted for ten seconds": {
			map[string]error{"a": busy}, []bool{false, false, true},
		},
		"R98: or that it is not ready for as long": {map[string]error{"a": busy, "b": apierrors.NewServiceUnavailable("starting")}, []bool{false, false, true}},
		"R98: and at once if a webhook answers as if so": {
			map[string]error{"a": fakes.DeniedWith(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests)}, []bool{true},
		},
		"R98: and at once if another Node is refused for another reason": {
			map[string]error{"a": busy, "b": apierrors.NewForbidden(corev1.Resource("nodes"), "b", errors.New("change freeze"))}, []bool{true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, cluster, m := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}, maintenanceOf("m", "a", "b")
			m.Spec.Stage, m.Finalizers = v1alpha1.StageComplete, []string{v1alpha1.MaintenanceCompletionFinalizer}
			cordoned := func(name string) *corev1.Node {
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.NodeSpec{Unschedulable: true}}
				node.Annotations = map[string]string{v1alpha1.NodeOriginAnnotation: "schedulable"}
				return node
			}
			refuses, now := true, clocktesting.NewFakeClock(time.Now().Truncate(time.Second))
			server := withMaintenancesBuilder(m, cordoned("a"), cordoned("b")).WithStatusSubresource(m).
				WithInterceptorFuncs(beforePatch(func(object client.Object) error {
					if refuses {
						return tc.refusals[object.GetName()]
					}
					return nil
				})).Build()
			r := reconcilerOf(t, server, cluster)
			r.Clock = now
			reconcile := func() (isReported bool) {
				result, err := r.Reconcile(t.Context(), workload.Request{Cluster: cluster, Object: client.ObjectKeyFromObject(m)})
				g.Expect(err).NotTo(HaveOccurred())
				now.Step(result.RequeueAfter)
				g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
				return meta.FindStatusCondition(m.Status.Conditions, v1alpha1.NodeMaintenanceRestoreFailed) != nil
			}
			for _, want := range tc.reported {
				g.Expect(reconcile()).To(Equal(want))
			}
			refuses = false
			g.Expect(reconcile()).To(BeFalse())
			nodes := &corev1.NodeList{}
			g.Expect(server.List(t.Context(), nodes)).To(Succeed())
			g.Expect(nodes.Items).To(HaveEach(HaveField("Spec.Unschedulable", false)))
		})
	}
}

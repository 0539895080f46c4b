package nodemaintenance

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

func TestRefusedEnd(t *testing.T) {
	node := func(name string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Annotations: map[string]string{v1alpha1.NodeOriginAnnotation: "schedulable"}}}
		n.Spec.Unschedulable = true
		n.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.NodeMaintenanceInProgress, Status: corev1.ConditionTrue, Reason: v1alpha1.ReasonNodeMaintenance}}
		return n
	}
	e := evacuation.New(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "pod"}}, nil, 0)
	e.Annotations = map[string]string{v1alpha1.EvacuationNodeAnnotation: "b"}
	for name, tc := range map[string]struct {
		deleted bool
		refuses func(object client.Object, subresource string) bool
		says    string
	}{
		"R71: names a Node that the API server refuses to restore, and restores the others": {
			deleted: true, refuses: func(object client.Object, subresource string) bool {
				return object.GetName() == "b" && subresource == ""
			}, says: "Cannot restore Node b: ",
		},
		"R71: also in stage Complete": {
			refuses: func(object client.Object, subresource string) bool {
				return object.GetName() == "b" && subresource == ""
			}, says: "Cannot restore Node b: ",
		},
		"R71: names an Evacuation from which it cannot withdraw": {
			deleted: true, refuses: func(object client.Object, _ string) bool { return object.GetName() == e.Name }, says: "Cannot withdraw from Evacuation ns/" + e.Name + ": ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, scheme := NewWithT(t), runtime.NewScheme()
			g.Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
			g.Expect(corev1.AddToScheme(scheme)).To(Succeed())
			m := &v1alpha1.NodeMaintenance{
				ObjectMeta: metav1.ObjectMeta{Name: "m", Finalizers: []string{v1alpha1.MaintenanceCompletionFinalizer}},
				Spec:       v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageComplete, NodeSelector: v1alpha1.SelectNodes("a", "b")},
			}
			if tc.deleted {
				m.DeletionTimestamp = new(metav1.Now())
			}
			check := func(object client.Object, subresource string) error {
				if tc.refuses(object, subresource) {
					return apierrors.NewForbidden(corev1.Resource("any"), object.GetName(), nil)
				}
				return nil
			}
			server := fake.NewClientBuilder().WithScheme(scheme).WithObjects(m, node("a"), node("b"), e.DeepCopy()).WithStatusSubresource(m, node("a")).
				WithIndex(&v1alpha1.Evacuation{}, "node", func(object client.Object) []string {
					return []string{object.GetAnnotations()[v1alpha1.EvacuationNodeAnnotation]}
				}).
				WithInterceptorFuncs(interceptor.Funcs{
					Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
						if err := check(object, ""); err != nil {
							return err
						}
						return c.Patch(ctx, object, patch, options...)
					},
				}).Build()
			s := &scope{client: server, before: &v1alpha1.NodeMaintenance{}, now: time.Now()}
			g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(m), s.before)).To(Succeed())
			s.maintenance = s.before.DeepCopy()
			for _, name := range []string{"a", "b"} {
				found := &corev1.Node{}
				g.Expect(server.Get(t.Context(), types.NamespacedName{Name: name}, found)).To(Succeed())
				s.nodes = append(s.nodes, found)
			}
			r := &Reconciler{
				written:  expectations.New[*corev1.Node](t.Context(), workload.TrimNode),
				Clusters: workload.NewClusters(nil, clustercache.NewFakeEmptyClusterCache(), scheme, workload.Limits{}, clock.RealClock{}), Recorder: tracing.NewRecorder(t.Context(), nil),
			}
			for _, step := range r.steps(s) {
				done, err := step(t.Context(), s)
				g.Expect(err).NotTo(HaveOccurred())
				if !done {
					break
				}
			}
			restored, stored := &corev1.Node{}, &v1alpha1.NodeMaintenance{}
			g.Expect(server.Get(t.Context(), types.NamespacedName{Name: "a"}, restored)).To(Succeed())
			g.Expect(restored.Spec.Unschedulable).To(BeFalse())
			g.Expect(restored.Status.Conditions).To(BeEmpty())
			g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed(), "it keeps its finalizer")
			condition := meta.FindStatusCondition(stored.Status.Conditions, "RestoreFailed")
			g.Expect(condition).NotTo(BeNil())
			g.Expect(condition.Message).To(HavePrefix(tc.says))
			g.Expect(stored.StageStart(v1alpha1.StageComplete)).NotTo(BeNil())
		})
	}
}

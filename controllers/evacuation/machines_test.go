package evacuation

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

func TestSuspension(t *testing.T) {
	served := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: map[string]string{
		v1alpha1.OwnerClusterAnnotation: "fleet/c", v1alpha1.OwnerMachineAnnotation: "fleet/m", v1alpha1.OwnerManagementClusterAnnotation: "here",
	}}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
	machine := func(annotations map[string]string) *clusterv1.Machine {
		return &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "m", Annotations: annotations}}
	}
	for _, tc := range []struct {
		name      string
		machine   *clusterv1.Machine
		fails     error
		suspended bool
	}{
		{name: "a paused Machine suspends its NodeMaintenance", machine: machine(map[string]string{clusterv1.PausedAnnotation: ""}), suspended: true},
		{name: "another Machine does not", machine: machine(nil)},
		{name: "neither does a Machine that does not exist"},
		{name: "a Machine that cannot be read suspends it until it can be read", machine: machine(nil), fails: errors.New("no answer"), suspended: true},
	} {
		t.Run("M16: "+tc.name, func(t *testing.T) {
			g := NewWithT(t)
			scheme := runtime.NewScheme()
			g.Expect(clusterv1.AddToScheme(scheme)).To(Succeed())
			builder := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
					if tc.fails != nil {
						return tc.fails
					}
					return c.Get(ctx, key, object, options...)
				},
			})
			if tc.machine != nil {
				builder.WithObjects(tc.machine)
			}
			machines := &Machines{Reader: builder.Build(), ManagementCluster: "here"}
			suspension := machines.Suspension(t.Context(), types.NamespacedName{Namespace: "fleet", Name: "c"})
			g.Expect(suspension.Of(served)).To(Equal(tc.suspended))
			g.Expect(suspension.Err() != nil).To(Equal(tc.fails != nil))
		})
	}
}

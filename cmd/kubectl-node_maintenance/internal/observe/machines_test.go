package observe

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestMachineOf(t *testing.T) {
	t.Run("K4: names the missing permissions of a user who may get a Machine and list nothing, and reads the rest", func(t *testing.T) {
		g := NewWithT(t)
		scheme := runtime.NewScheme()
		g.Expect(clusterv1.AddToScheme(scheme)).To(Succeed())
		g.Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
		machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "w1"}, Spec: clusterv1.MachineSpec{ClusterName: "prod"}}
		machine.Status.NodeRef.Name = "w1"
		forbidden := interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return apierrors.NewForbidden(schema.GroupResource{}, "", nil)
		}}
		c := &Cluster{Name: "management", hasPolicies: true, gaps: &Gaps{}, WithWatch: fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(forbidden).
			WithObjects(machine, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "prod"}}).Build()}
		read, err := c.MachineOf(t.Context(), types.NamespacedName{Namespace: "default", Name: "w1"}, Proposed{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(read.Siblings).To(HaveLen(1))
		g.Expect(machinedrain.Skip(read.Facts)).To(Equal(machinedrain.NotSkipped))
		g.Expect(c.gaps.List()).To(ContainElements(
			"No right to list machinedrainpolicies.maintenance.cluster.x-k8s.io in management",
			"No right to list machinedrainrules.cluster.x-k8s.io in management",
			"No right to list machines.cluster.x-k8s.io in management",
		))
	})
}

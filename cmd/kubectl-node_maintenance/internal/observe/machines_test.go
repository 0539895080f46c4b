package observe

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestMachineOf(t *testing.T) {
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "w1"}, Spec: clusterv1.MachineSpec{ClusterName: "prod"}}
	machine.Status.NodeRef.Name = "w1"
	// lists returns a management cluster that answers lists with an error.
	lists := func(answer func(client.ObjectList) error) *Cluster {
		return &Cluster{
			Name: "management", gaps: &Gaps{},
			WithWatch: fakes.Builder(machine.DeepCopy(), &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "prod"}}).
				WithInterceptorFuncs(interceptor.Funcs{List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
					return answer(list)
				}}).Build(),
		}
	}
	for name, tc := range map[string]struct {
		answer error
		isGap  bool
	}{
		"K35: a cluster that does not serve policies has none": {answer: &meta.NoKindMatchError{}},
		"K35: the answer 404 is a gap while the discovery names them: it may be that of a proxy": {
			apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{Resource: "machinedrainpolicies"}, "", "", 0, true), true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			c := lists(func(list client.ObjectList) error {
				if _, is := list.(*v1alpha1.MachineDrainPolicyList); is {
					return tc.answer
				}
				return nil
			})
			read, err := c.MachineOf(t.Context(), client.ObjectKeyFromObject(machine), Proposed{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(read.Policies).To(BeEmpty())
			g.Expect(read.PoliciesUnread).To(Equal(tc.isGap))
			isGap := slices.Contains(c.gaps.List(), "management does not serve machinedrainpolicies.maintenance.cluster.x-k8s.io")
			g.Expect(isGap).To(Equal(tc.isGap))
		})
	}
	t.Run("K4: names the missing permissions of a user who may get a Machine and list nothing, and reads the rest", func(t *testing.T) {
		g := NewWithT(t)
		c := lists(func(client.ObjectList) error { return apierrors.NewForbidden(schema.GroupResource{}, "", nil) })
		read, err := c.MachineOf(t.Context(), client.ObjectKeyFromObject(machine), Proposed{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(read.Siblings).To(HaveLen(1))
		g.Expect(machinedrain.Skip(read.Facts)).To(Equal(machinedrain.NotSkipped))
		g.Expect(c.gaps.List()).To(ContainElements(
			"No right to list machinedrainpolicies.maintenance.cluster.x-k8s.io in management",
			"No right to list machinedrainrules.cluster.x-k8s.io in management",
			"No right to list machines.cluster.x-k8s.io in management",
		))
		g.Expect(read.PoliciesUnread).To(BeTrue(), "K71")
	})
	t.Run("K53: reads once what the Machines of a Cluster have in common", func(t *testing.T) {
		g := NewWithT(t)
		requests := map[string]int{}
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "prod"}}
		other := machine.DeepCopy()
		other.Name, other.Status.NodeRef.Name = "w2", "w2"
		for _, m := range []*clusterv1.Machine{machine, other} {
			m.Labels = map[string]string{clusterv1.ClusterNameLabel: "prod"}
		}
		c := &Cluster{Name: "management", gaps: &Gaps{}, WithWatch: fakes.Builder(machine.DeepCopy(), other, cluster).WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
				requests[fmt.Sprintf("get %T %s", object, key.Name)]++
				return c.Get(ctx, key, object, options...)
			},
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				requests[fmt.Sprintf("list %T", list)]++
				return c.List(ctx, list, options...)
			},
		}).Build()}
		for _, name := range []string{"w1", "w2"} {
			read, err := c.MachineOf(t.Context(), client.ObjectKey{Namespace: "default", Name: name}, Proposed{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(read.Name).To(Equal(name))
			g.Expect(read.Siblings).To(HaveLen(2))
		}
		g.Expect(requests).To(Equal(map[string]int{
			"get *v1beta2.Machine w1": 1, "get *v1beta2.Machine w2": 1, "get *v1beta2.Cluster prod": 1, "list *v1alpha1.MachineDrainPolicyList": 1,
			"list *v1beta2.MachineDrainRuleList": 1, "list *v1beta2.MachineList": 1,
		}))
	})
}

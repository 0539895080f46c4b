package machinemaintenance

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestSuspension(t *testing.T) {
	served := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: map[string]string{
		v1alpha1.OwnerClusterAnnotation: "fleet/c", v1alpha1.OwnerMachineAnnotation: "fleet/m", v1alpha1.OwnerManagementClusterAnnotation: "here",
	}}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain, NodeSelector: v1alpha1.NodeSelector{NodeSelectorTerms: []v1alpha1.NodeSelectorTerm{{
		MatchFields: []v1alpha1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"n1"}}},
	}}}}}
	machine := func(annotations map[string]string) *clusterv1.Machine {
		return &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "m", Annotations: annotations}}
	}
	of := func(node string) *clusterv1.Machine {
		m := machine(nil)
		m.Status.NodeRef.Name = node
		return m
	}
	// held returns a deleted Machine that has hooks of another owner. The policy of its Cluster ignores one of them.
	held := func(hooks ...string) *clusterv1.Machine {
		m := machine(map[string]string{v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner})
		m.Spec.ClusterName, m.DeletionTimestamp, m.Finalizers = "c", &metav1.Time{Time: time.Unix(1, 0)}, []string{clusterv1.MachineFinalizer}
		for _, hook := range hooks {
			m.Annotations[clusterv1.PreDrainDeleteHookAnnotationPrefix+"/"+hook] = "x"
		}
		return m
	}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c"}}
	policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "all"}}
	policy.Spec.IgnoredPreDrainHooks = []string{"ignored"}
	for _, tc := range []struct {
		name      string
		machine   *clusterv1.Machine
		fails     error
		listFails error
		suspended bool

		unconfirmed bool // the machine controller has not found the NodeMaintenance to be up to date
	}{
		{name: "M16: a paused Machine suspends its NodeMaintenance", machine: machine(map[string]string{clusterv1.PausedAnnotation: ""}), suspended: true},
		{name: "M16: another Machine does not", machine: machine(nil)},
		{name: "M16: neither does a Machine that does not exist"},
		{name: "M162: a Machine does until its NodeMaintenance is found to be up to date", machine: machine(nil), unconfirmed: true, suspended: true},
		{name: "M162: a Machine of the selected Node does as well", machine: of("n1"), unconfirmed: true, suspended: true},
		{name: "M162: a Machine of another Node does not, since its controller never updates the NodeMaintenance", machine: of("n2"), unconfirmed: true},
		{name: "M16: a Machine that cannot be read suspends it until it can be read", machine: machine(nil), fails: errors.New("no answer"), suspended: true},
		{name: "M113: a hook of another owner suspends it before the hold is recorded", machine: held("approval"), suspended: true},
		{name: "M113: a deleted Machine without such a hook does not", machine: held()},
		{name: "M116: a hook that the policy ignores does not", machine: held("ignored")},
		{name: "M116: one of several that it does not ignore does", machine: held("ignored", "approval"), suspended: true},
		{name: "M116: while the policies cannot be read, no hook is ignored", machine: held("ignored"), listFails: errors.New("no answer"), suspended: true},
		{name: "M116: the policies are not read for a Machine without such a hook", machine: held(), listFails: errors.New("no answer")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			builder := fakes.Builder(cluster, policy).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
					if tc.fails != nil {
						return tc.fails
					}
					return c.Get(ctx, key, object, options...)
				},
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					if tc.listFails != nil {
						return tc.listFails
					}
					return c.List(ctx, list, options...)
				},
			})
			if tc.machine != nil {
				builder.WithObjects(tc.machine)
			}
			reader := builder.Build()
			requester := &Requester{Client: reader, ManagementCluster: "here"}
			if tc.machine != nil && !tc.unconfirmed {
				requester.Continue(tc.machine, time.Time{})
			}
			suspension := requester.Suspension(t.Context(), types.NamespacedName{Namespace: "fleet", Name: "c"})
			g.Expect(suspension.Of(served)).To(Equal(tc.suspended))
			g.Expect(suspension.Err() != nil).To(Equal(tc.suspended && (tc.fails != nil || tc.listFails != nil)))
		})
	}
}

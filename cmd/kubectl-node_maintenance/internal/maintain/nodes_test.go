package maintain

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestDeletionOfAMaintenance(t *testing.T) {
	gone := apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("nodemaintenances").GroupResource(), "m")
	denied := &apierrors.StatusError{ErrStatus: *gone.ErrStatus.DeepCopy()}
	denied.ErrStatus.Message = `admission webhook "w" denied the request: no`
	for name, tc := range map[string]struct {
		answer error
		fails  bool
	}{
		"a NodeMaintenance that another actor has just deleted is deleted": {gone, false},
		"E64: one does not count as deleted because a webhook answers so":  {denied, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
			n := Nodes{
				Cluster: interceptor.NewClient(fakes.Client(m), interceptor.Funcs{
					Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return tc.answer },
				}),
				New: func(Target) *v1alpha1.NodeMaintenance { return m.DeepCopy() },
			}
			_, err := n.Request(t.Context(), Target{Key: types.NamespacedName{Name: "m"}}, v1alpha1.StageComplete, "")
			NewWithT(t).Expect(err != nil).To(Equal(tc.fails))
		})
	}
}

package maintain

import (
	"context"
	"net/http"
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
	denied := fakes.DeniedWith(http.StatusNotFound, metav1.StatusReasonNotFound)
	for name, tc := range map[string]struct {
		answer error
		fails  bool
	}{
		"a NodeMaintenance that another actor has just deleted counts as deleted":                        {gone, false},
		"E64: a NodeMaintenance does not count as deleted because a webhook says that it does not exist": {denied, true},
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

package machinemaintenance

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestCompleteAndDelete(t *testing.T) {
	for name, tc := range map[string]struct {
		answer error // of the API server to the deletion
		fails  bool
	}{
		"E64: a NodeMaintenance does not count as deleted because a webhook denies that with the code of a conflict": {fakes.DeniedWithConflict(), true},
		"a conflict means that another NodeMaintenance has the name, which stays": {
			apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("nodemaintenances").GroupResource(), "m", errors.New("another UID")), false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
			m.Spec.Stage = v1alpha1.StageComplete
			remote := interceptor.NewClient(fakes.Client(), interceptor.Funcs{
				Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return tc.answer },
			})
			err := CompleteAndDelete(t.Context(), remote, m, "here")
			NewWithT(t).Expect(err != nil).To(Equal(tc.fails))
		})
	}
}

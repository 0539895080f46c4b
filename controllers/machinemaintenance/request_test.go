package machinemaintenance

import (
	"context"
	"net/http"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
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

func TestEnsure(t *testing.T) {
	for name, tc := range map[string]struct {
		answer error // of the API server to the creation
		fails  bool
	}{
		"E64: a NodeMaintenance does not count as created because a webhook says that it exists": {
			fakes.DeniedWith(http.StatusConflict, metav1.StatusReasonAlreadyExists), true,
		},
		"one that exists, and that the watch has not delivered yet, is no failure": {
			apierrors.NewAlreadyExists(v1alpha1.GroupVersion.WithResource("nodemaintenances").GroupResource(), "m"), false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			remote := interceptor.NewClient(fakes.Client(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}), interceptor.Funcs{
				Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return tc.answer },
			})
			machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "m"}}
			machine.Status.NodeRef.Name = "n1"
			_, _, err := (&Requester{Client: fakes.Client(), ManagementCluster: "here"}).Ensure(t.Context(), remote, Request{
				Cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c"}}, Machine: machine, Policy: &v1alpha1.MachineDrainPolicy{},
				Stage: v1alpha1.StageCordon, For: v1alpha1.RequestedForStage,
			})
			NewWithT(t).Expect(err != nil).To(Equal(tc.fails), "%v", err)
		})
	}
}

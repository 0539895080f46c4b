package inplace_test

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	runtimehooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/exp/inplace"
)

// updater serves the hook UpdateMachine.
type updater struct {
	management client.Reader // mgr.GetAPIReader(), which does not read from a cache
}

// UpdateMachine implements the hook.
func (u updater) UpdateMachine(ctx context.Context, request *runtimehooksv1.UpdateMachineRequest, response *runtimehooksv1.UpdateMachineResponse) {
	if !inplace.Await(ctx, u.management, request, response) {
		return
	}
	response.SetStatus(runtimehooksv1.ResponseStatusSuccess)
	response.SetMessage("The Machine is updated")
}

// An extension waits for the drain that the MachineDrainPolicy of the Machine requires.
func ExampleAwait() {
	scheme := runtime.NewScheme()
	_ = clusterv1.AddToScheme(scheme)
	_ = v1alpha1.AddToScheme(scheme)
	machine := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "worker-7", Annotations: map[string]string{clusterv1.UpdateInProgressAnnotation: ""}},
		Spec:       clusterv1.MachineSpec{ClusterName: "prod"},
		Status: clusterv1.MachineStatus{Conditions: []metav1.Condition{{
			Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonMachineDraining, Message: "2 Pods evacuating",
		}}},
	}
	management := fake.NewClientBuilder().WithScheme(scheme).WithObjects(machine,
		&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "prod"}},
		&v1alpha1.MachineDrainPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "all"},
			Spec:       v1alpha1.MachineDrainPolicySpec{InPlaceUpdates: v1alpha1.InPlaceUpdatesDrain},
		}).Build()

	call := func() {
		request, response := &runtimehooksv1.UpdateMachineRequest{}, &runtimehooksv1.UpdateMachineResponse{}
		request.Desired.Machine.Namespace, request.Desired.Machine.Name = "default", "worker-7"
		updater{management}.UpdateMachine(context.Background(), request, response)
		fmt.Printf("%s, retry after %d s: %s\n", response.GetStatus(), response.GetRetryAfterSeconds(), response.GetMessage())
	}
	call()

	machine = &clusterv1.Machine{}
	_ = management.Get(context.Background(), client.ObjectKey{Namespace: "default", Name: "worker-7"}, machine)
	machine.Annotations[v1alpha1.UpdateAllowedAnnotation] = v1alpha1.ReasonMachineDrained + "/" + string(machine.UID) // as the manager does after the drain
	_ = management.Update(context.Background(), machine)
	call()

	// Output:
	// Success, retry after 10 s: Waiting for stage Drain of the Node (Draining): 2 Pods evacuating
	// Success, retry after 0 s: The Machine is updated
}

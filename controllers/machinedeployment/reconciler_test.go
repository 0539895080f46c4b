package machinedeployment

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// A manager that does not ignore the objects of these tests would use the workload cluster, which is nil.
func TestWatchFilter(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := clusterv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	labelled := func(name, value string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{clusterv1.WatchLabel: value}}
	}
	t.Run("M105: ignores a MachineDeployment that the watch filter does not select", func(t *testing.T) {
		deployment := &clusterv1.MachineDeployment{ObjectMeta: labelled("md", "theirs")}
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"}}
		deployment.Spec.ClusterName = cluster.Name
		r := &Reconciler{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(deployment, cluster).Build(), Filter: "ours"}
		if result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(deployment)}); err != nil || !result.IsZero() {
			t.Errorf("got %v, %v", result, err)
		}
	})
	t.Run("M105: neither announces nor cordons the Node of a Machine that the watch filter does not select", func(t *testing.T) {
		r, s := &Reconciler{Filter: "ours"}, &scope{cluster: &clusterv1.Cluster{}}
		machine := &clusterv1.Machine{ObjectMeta: labelled("m", "theirs")}
		if err := r.apply(t.Context(), s, machine, v1alpha1.StageCordon); err != nil {
			t.Error(err)
		}
	})
}

package integration

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

func TestSmoke(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	f := fleet.ForTest(t, fleet.Options{PodReadyDelay: time.Second, PodDeletionDelay: time.Second})
	w := f.Workloads["workload"]
	cluster := kwok.NewCluster("c1").WithExternalControlPlane()
	g.Expect(f.Connect(cluster, "workload")).To(Succeed())
	g.Expect(f.Client.Create(ctx, &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "all"}})).To(Succeed())
	g.Expect(kwok.Create(ctx, f.Client, cluster.Objects(), cluster.Machine("m1"), cluster.Machine("m2"))).To(Succeed())
	g.Expect(kwok.WaitForMachinesRunning(ctx, f.Client, cluster.Key(), 2)).To(Succeed())
	_ = appsv1.Deployment{}
	t.Log("machines running")
	machine := &clusterv1.Machine{}
	g.Eventually(func(g Gomega) {
		g.Expect(f.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: "m1"}, machine)).To(Succeed())
		g.Expect(machine.Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation))
	}, "10s").Should(Succeed())
	g.Expect(w.Client.List(ctx, &v1alpha1.NodeMaintenanceList{})).To(Succeed())
	start := time.Now()
	g.Expect(f.Client.Delete(ctx, machine)).To(Succeed())
	g.Eventually(func() error {
		return f.Client.Get(ctx, client.ObjectKeyFromObject(machine), machine)
	}, "30s", "20ms").ShouldNot(Succeed())
	t.Logf("gone after %s", time.Since(start))
	g.Expect(f.Manager.Log()).To(ContainSubstring("Released the hook"))
	t.Log(f.Manager.LogTail(40))
}

package kwok

import (
	"testing"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
)

func TestNamesAgree(t *testing.T) {
	g := NewWithT(t)
	prod := NewCluster("prod").InNamespace("team").WithVersion("v1.36.3").WithExternalControlPlane()
	cluster := find[*clusterv1.Cluster](t, prod.Objects())
	g.Expect(client.ObjectKeyFromObject(cluster)).To(Equal(prod.Key()))
	g.Expect(cluster.Spec.ControlPlaneRef.Name).To(Equal("prod"))
	g.Expect(cluster.Spec.InfrastructureRef.Name).To(Equal("prod"))

	machines := prod.Machine("m")
	machine := find[*clusterv1.Machine](t, machines)
	g.Expect(machine.Spec.Version).To(Equal("v1.36.3"))
	g.Expect(machine.Spec.InfrastructureRef.Name).To(Equal(find[*infrav1.KwokMachine](t, machines).Name))

	workers := prod.MachineDeployment("workers", 3)
	deployment := find[*clusterv1.MachineDeployment](t, workers)
	g.Expect(deployment.Spec.Template.Spec.InfrastructureRef.Name).To(Equal(find[*infrav1.KwokMachineTemplate](t, workers).Name))
	for label, value := range deployment.Spec.Selector.MatchLabels {
		g.Expect(deployment.Spec.Template.Labels).To(HaveKeyWithValue(label, value))
	}
}

func TestChanges(t *testing.T) {
	g := NewWithT(t)
	prod := NewCluster("prod")
	gold := MachineLabels(map[string]string{"tier": "gold"})
	noted := MachineAnnotations(map[string]string{"note": "x"})

	deployment := find[*clusterv1.MachineDeployment](t, prod.MachineDeployment("workers", 1, gold, noted))
	g.Expect(deployment.Labels).NotTo(HaveKey("tier"), "the label is for the Machines")
	g.Expect(deployment.Spec.Template.Labels).To(HaveKeyWithValue("tier", "gold"))
	g.Expect(deployment.Spec.Template.Labels).To(HaveKey(clusterv1.ClusterNameLabel))
	g.Expect(deployment.Spec.Template.Annotations).To(HaveKeyWithValue("note", "x"))

	machines := prod.ControlPlaneMachine("cp", gold, With(func(m *infrav1.KwokMachine) { m.Spec.Zone = "z" }))
	machine := find[*clusterv1.Machine](t, machines)
	g.Expect(machine.Labels).To(And(HaveKeyWithValue("tier", "gold"), HaveKey(clusterv1.MachineControlPlaneLabel)))
	kwokMachine := find[*infrav1.KwokMachine](t, machines)
	g.Expect(kwokMachine.Labels).NotTo(HaveKey("tier"))
	g.Expect(kwokMachine.Spec.Zone).To(Equal("z"))
}

func TestZone(t *testing.T) { // the most specific zone applies
	g := NewWithT(t)
	machine, kwokMachine := &clusterv1.Machine{}, &infrav1.KwokMachine{}
	g.Expect(zoneOf(machine, kwokMachine)).To(HavePrefix("zone-"))
	machine.Spec.FailureDomain = "rack-7"
	g.Expect(zoneOf(machine, kwokMachine)).To(Equal("rack-7"))
	kwokMachine.Spec.Zone = "here"
	g.Expect(zoneOf(machine, kwokMachine)).To(Equal("here"))
}

func find[T client.Object](t *testing.T, objects []client.Object) T {
	t.Helper()
	for _, object := range objects {
		if typed, ok := object.(T); ok {
			return typed
		}
	}
	t.Fatalf("no %T among the objects", *new(T))
	panic("unreachable")
}

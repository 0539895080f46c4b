package e2e

import (
	"context"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// The specs share a Cluster of a ClusterClass with one control plane Machine, and a MachineDeployment and a MachinePool of two Machines
// each.
var _ = Describe("A Cluster of a ClusterClass", Ordered, func() {
	var w *workloadCluster

	BeforeAll(func(ctx context.Context) {
		// In an upgrade, Cluster API sets the new image of kube-proxy also for the old Nodes, and leaves the old one of CoreDNS.
		images := run(ctx, "docker", "image", "ls", "--filter=reference=registry.k8s.io/kube-proxy", "--filter=reference=registry.k8s.io/coredns/*",
			"--format={{.Repository}}:{{.Tag}}")
		w = newWorkloadClusterOf(ctx, "testdata/topology.yaml", "topology", 1, 4, strings.Fields(images)...)
		management.apply(ctx, w.name, read("testdata/rules.yaml"))
		w.waitHooks(ctx)
		w.apply(ctx, loaded)
		w.waitReady(ctx)
	})

	It("rolls out a MachineDeployment without a failed request when a variable changes", func(ctx context.Context) {
		deployed := w.labelled(clusterv1.MachineDeploymentNameLabel)
		before, begin, client := deployed(ctx, Default), len(w.events()), w.pollSingle(ctx)
		Expect(before).To(HaveLen(2))
		cluster := w.cluster(ctx, Default)
		patch(ctx, cluster, func() { cluster.Spec.Topology.Variables[0].Value.Raw = []byte(`"second"`) })
		w.waitReplaced(ctx, before, deployed)
		w.waitReady(ctx)
		client.expectAnswered("the Service")
		w.expectOursEvict(w.events()[begin:])
		for _, machine := range deployed(ctx, Default) {
			node := get(ctx, Default, w.Client, &corev1.Node{ObjectMeta: named("", machine.Status.NodeRef.Name)})
			Expect(node.Labels).To(HaveKeyWithValue("example.com/rack", "second"))
		}
	})

	It("M82: drains the Machine that a MachinePool removes, and one that a user deletes", func(ctx context.Context) {
		w.waitAvailable(ctx, 1, 4)
		pooled := w.labelled(clusterv1.MachinePoolNameLabel)
		before, pods := pooled(ctx, Default), map[string][]corev1.Pod{}
		Expect(before).To(HaveLen(2))
		for _, machine := range before {
			pods[machine.Name] = w.podsOn(ctx, Default, machine.Status.NodeRef.Name)
			Expect(pods[machine.Name]).NotTo(BeEmpty())
		}
		client, begin := w.pollSingle(ctx), len(w.events())
		// Without the annotation, Cluster API's docker provider could delete both Machines: it chooses at random, again while the first one is
		// drained.
		removed := &before[0]
		patch(ctx, removed, func() { metav1.SetMetaDataAnnotation(&removed.ObjectMeta, clusterv1.DeleteMachineAnnotation, "true") })
		cluster := w.cluster(ctx, Default)
		patch(ctx, cluster, func() { *cluster.Spec.Topology.Workers.MachinePools[0].Replicas = 1 })
		w.waitAvailable(ctx, 1, 3)
		w.waitReady(ctx)
		left := &pooled(ctx, Default)[0]
		Expect(left.Name).NotTo(Equal(removed.Name))
		w.expectEvictions(w.events()[begin:], pods[removed.Name], map[string]int{"single": len(pods[removed.Name])})

		begin, pods[left.Name] = len(w.events()), w.podsOn(ctx, Default, left.Status.NodeRef.Name)
		Expect(management.client.Delete(ctx, left)).To(Succeed())
		expectGone(ctx, management.client, left)
		w.waitAvailable(ctx, 1, 3)
		w.waitReady(ctx)
		w.expectEvictions(w.events()[begin:], pods[left.Name], map[string]int{"single": len(pods[left.Name])})
		client.expectAnswered("the Service")
	})

	It("drains each Node when Kubernetes is upgraded, and the API server answers", func(ctx context.Context) {
		w.waitAvailable(ctx, 1, 3)
		before, begin, client, version := w.machines(ctx, Default), len(w.events()), w.pollAPIServer(), kubernetesVersion(ctx, nextNodeImage)
		Expect(before).NotTo(ContainElement(HaveField("Spec.Version", version)))
		cluster := w.cluster(ctx, Default)
		patch(ctx, cluster, func() { cluster.Spec.Topology.Version = version })
		w.waitReplaced(ctx, before, w.machines)
		w.waitReady(ctx)
		client.expectAvailable("the API server", 30*time.Second)
		events := w.events()[begin:]
		w.expectOursEvict(events)
		Expect(events.WithUserAgent(fleet.ManagerAgent).Verb("create").Resource("nodemaintenances.maintenance.cluster.x-k8s.io").Succeeded()).To(HaveLen(len(before)))
		nodes := &corev1.NodeList{}
		Expect(w.List(ctx, nodes)).To(Succeed())
		Expect(nodes.Items).To(And(HaveLen(len(before)), HaveEach(HaveField("Status.NodeInfo.KubeletVersion", version))))
	})

	It("is deleted", func(ctx context.Context) { w.delete(ctx) })
})

// labelled returns a list of the Machines that have a label.
func (w *workloadCluster) labelled(label string) func(context.Context, Gomega) []clusterv1.Machine {
	return func(ctx context.Context, g Gomega) []clusterv1.Machine {
		return slices.DeleteFunc(w.machines(ctx, g), func(m clusterv1.Machine) bool { return m.Labels[label] == "" })
	}
}

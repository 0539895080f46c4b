package integration

import (
	"flag"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// repeat helps to find flaky tests: starting a fleet takes longer than most scenes, so the same fleet runs them several times.
var repeat = flag.Int("repeat", 1, "how often each scene of a test is played")

// act is a named scene.
type act struct {
	name string
	play func(*scene)
}

// play runs scenes one after the other. Before each scene, the fleet is in the state in which the first scene found it.
func (s *scene) play(t *testing.T, acts ...act) {
	t.Helper()
	for range *repeat {
		for _, each := range acts {
			t.Run(each.name, func(t *testing.T) {
				sub := s.sub(t)
				each.play(sub)
				sub.cleanUp()
			})
		}
	}
}

// stageNode is the label of Nodes that a scene has added.
const stageNode = "capnm.test/scene"

// cleanUp removes NodeMaintenances, workloads and Nodes without Machines from the workload cluster.
func (s *scene) cleanUp() {
	s.Helper()
	maintenances := &v1alpha1.NodeMaintenanceList{}
	s.Expect(s.workload.Client.List(s.Context(), maintenances)).To(Succeed())
	var left []string
	for _, m := range maintenances.Items {
		if m.Annotations[v1alpha1.OwnerMachineAnnotation] == "" {
			left = append(left, m.Name)
		}
	}
	s.deleteMaintenances(left...)
	s.removeWorkloads()
	s.Eventually(func(g Gomega) {
		evacuations := &v1alpha1.EvacuationList{}
		g.Expect(s.workload.Client.List(s.Context(), evacuations)).To(Succeed())
		g.Expect(evacuations.Items).To(BeEmpty())
	}, eventually, pace).Should(Succeed())
	s.Expect(s.workload.Client.DeleteAllOf(s.Context(), &corev1.Node{}, client.HasLabels{stageNode})).To(Succeed())
}

// removeWorkloads deletes the workloads and rules of a scene. Pods are deleted without a grace period, because no kubelet confirms the
// termination of Pods on a deleted Node. This includes Pods that a ReplicaSet creates before it is deleted, too.
func (s *scene) removeWorkloads() {
	s.Helper()
	inNamespace := client.InNamespace(namespace)
	s.Expect(s.fleet.Client.DeleteAllOf(s.Context(), &clusterv1.MachineDrainRule{}, inNamespace)).To(Succeed())
	for _, kind := range []client.Object{&appsv1.DaemonSet{}, &appsv1.Deployment{}, &appsv1.StatefulSet{}} {
		s.Expect(s.workload.Client.DeleteAllOf(s.Context(), kind, inNamespace)).To(Succeed())
	}
	s.Eventually(func(g Gomega) {
		replicaSets, pods := &appsv1.ReplicaSetList{}, &corev1.PodList{}
		g.Expect(s.workload.Client.List(s.Context(), replicaSets, inNamespace)).To(Succeed())
		g.Expect(s.workload.Client.DeleteAllOf(s.Context(), &appsv1.ReplicaSet{}, inNamespace)).To(Succeed())
		g.Expect(s.workload.Client.DeleteAllOf(s.Context(), &corev1.Pod{}, inNamespace, client.GracePeriodSeconds(0))).To(Succeed())
		g.Expect(replicaSets.Items).To(BeEmpty())
		g.Expect(s.workload.Client.List(s.Context(), pods, inNamespace)).To(Succeed())
		g.Expect(pods.Items).To(BeEmpty())
	}, eventually, pace).Should(Succeed())
	// PodDisruptionBudgets are deleted after the Pods, which could be evicted otherwise.
	s.Expect(s.workload.Client.DeleteAllOf(s.Context(), &policyv1.PodDisruptionBudget{}, inNamespace)).To(Succeed())
}

// removeAll deletes the objects of our kinds in a cluster without a manager.
func removeAll(t *testing.T, g *WithT, c client.Client) {
	t.Helper()
	maintenances, evacuations := &v1alpha1.NodeMaintenanceList{}, &v1alpha1.EvacuationList{}
	g.Expect(c.List(t.Context(), maintenances)).To(Succeed())
	g.Expect(c.List(t.Context(), evacuations)).To(Succeed())
	var objects []client.Object
	for i := range maintenances.Items {
		objects = append(objects, &maintenances.Items[i])
	}
	for i := range evacuations.Items {
		objects = append(objects, &evacuations.Items[i])
	}
	for _, object := range objects {
		g.Expect(client.IgnoreNotFound(c.Delete(t.Context(), object))).To(Succeed())
		g.Expect(client.IgnoreNotFound(c.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))).To(Succeed())
	}
}

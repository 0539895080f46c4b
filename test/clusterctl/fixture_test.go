package clusterctl

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

const (
	namespace = metav1.NamespaceDefault
	// podsOnNode is the number of Pods on each drained Node. Their budget allows one eviction, and no more until it is deleted, so that
	// the drain stays in progress.
	podsOnNode = 4
)

// fixture is a workload cluster and the current management cluster of its Cluster.
type fixture struct {
	*testing.T
	*WithT
	at       *management
	workload *controlplane.ControlPlane
	pods     client.Client // of the workload cluster
	cluster  kwok.Cluster
	links    *kwok.Workloads
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, WithT: NewWithT(t), cluster: kwok.NewCluster("c1").WithExternalControlPlane(), links: &kwok.Workloads{}}
	f.workload = controlplane.ForTest(t, controlplane.Options{Name: "workload", Kwok: true})
	var err error
	f.pods, err = client.New(f.workload.AdminConfig(), client.Options{Scheme: clusterapi.Scheme()})
	f.Expect(err).NotTo(HaveOccurred())
	link, err := kwok.Direct(f.workload)
	f.Expect(err).NotTo(HaveOccurred())
	f.links.Add(f.cluster.Key(), link)
	return f
}

func (f *fixture) sub(t *testing.T) *fixture {
	t.Helper()
	sub := *f
	sub.T, sub.WithT = t, NewWithT(t)
	return &sub
}

func (f *fixture) addMachine(name string) {
	f.Helper()
	f.Expect(kwok.Create(f.Context(), f.at.client, f.cluster.Machine(name))).To(Succeed())
	f.Eventually(func(g Gomega) {
		machine := f.machine(g, name)
		g.Expect(machine.Status.Phase).To(Equal(string(clusterv1.MachinePhaseRunning)))
		g.Expect(machine.Annotations).To(HaveKeyWithValue(v1alpha1.PreDrainHookAnnotation, v1alpha1.HookOwner))
	}, eventually, pace).Should(Succeed())
}

func (f *fixture) machine(g Gomega, name string) *clusterv1.Machine {
	f.Helper()
	machine := &clusterv1.Machine{}
	g.Expect(f.at.client.Get(f.Context(), keyOf(name), machine)).To(Succeed())
	return machine
}

func (f *fixture) node(g Gomega, name string) *corev1.Node {
	f.Helper()
	node := &corev1.Node{}
	g.Expect(f.pods.Get(f.Context(), types.NamespacedName{Name: name}, node)).To(Succeed())
	return node
}

// drain deletes a new Machine with Pods that no budget blocks, and waits until Machine, Node and Pods are deleted.
func (f *fixture) drain(name string) {
	f.Helper()
	f.addMachine(name)
	f.addPods(name, 0)
	f.Expect(f.at.client.Delete(f.Context(), f.machine(f, name))).To(Succeed())
	f.expectGone(name)
}

// beginDrain creates Pods on a Machine's Node, under a budget that allows one eviction, deletes the Machine, and waits until the drain is
// blocked.
func (f *fixture) beginDrain(name string) {
	f.Helper()
	f.addPods(name, podsOnNode-1)
	f.Expect(f.at.client.Delete(f.Context(), f.machine(f, name))).To(Succeed())
	f.Eventually(func(g Gomega) {
		g.Expect(f.podsOf(g, name)).To(HaveLen(podsOnNode - 1))
		condition := conditions.Get(f.machine(g, name), v1alpha1.MachineNodeMaintenance)
		g.Expect(condition).NotTo(BeNil())
		g.Expect(condition.Reason).To(Equal(v1alpha1.ReasonMachineDraining))
		g.Expect(condition.Message).To(ContainSubstring("Waiting for PodDisruptionBudget default/" + name))
	}, eventually, pace).Should(Succeed())
}

func (f *fixture) addPods(node string, minAvailable int) {
	f.Helper()
	for i := range podsOnNode {
		f.Expect(f.pods.Create(f.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%d", node, i), Labels: map[string]string{"app": node}},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		})).To(Succeed())
	}
	needed := intstr.FromInt(minAvailable)
	f.Expect(f.pods.Create(f.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: node},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &needed, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": node}}},
	})).To(Succeed())
	f.Eventually(func(g Gomega) {
		budget := &policyv1.PodDisruptionBudget{}
		g.Expect(f.pods.Get(f.Context(), keyOf(node), budget)).To(Succeed())
		g.Expect(budget.Status.DisruptionsAllowed).To(BeEquivalentTo(podsOnNode - minAvailable))
	}, eventually, pace).Should(Succeed())
}

// liftBudget lets the budget of a Node's Pods allow all disruptions.
func (f *fixture) liftBudget(node string) {
	f.Helper()
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: node}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"minAvailable":0}}`)) // the disruption controller may write the status meanwhile
	f.Expect(f.pods.Patch(f.Context(), budget, patch)).To(Succeed())
}

func (f *fixture) podsOf(g Gomega, node string) []corev1.Pod {
	f.Helper()
	pods := &corev1.PodList{}
	g.Expect(f.pods.List(f.Context(), pods, client.InNamespace(namespace), client.MatchingLabels{"app": node})).To(Succeed())
	return pods.Items
}

// expectGone waits until a Machine, its Node and all objects of the drain are deleted.
func (f *fixture) expectGone(name string) {
	f.Helper()
	f.Eventually(func() error { return f.at.client.Get(f.Context(), keyOf(name), &clusterv1.Machine{}) }, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	f.Eventually(func() error { return f.pods.Get(f.Context(), types.NamespacedName{Name: name}, &corev1.Node{}) }, eventually, pace).
		Should(Satisfy(apierrors.IsNotFound))
	f.expectNothingLeft()
}

func (f *fixture) expectNothingLeft() {
	f.Helper()
	f.Eventually(func(g Gomega) {
		maintenances, evacuations := &v1alpha1.NodeMaintenanceList{}, &v1alpha1.EvacuationList{}
		g.Expect(f.pods.List(f.Context(), maintenances)).To(Succeed())
		g.Expect(maintenances.Items).To(BeEmpty())
		g.Expect(f.pods.List(f.Context(), evacuations)).To(Succeed())
		g.Expect(evacuations.Items).To(BeEmpty())
	}, eventually, pace).Should(Succeed())
}

// expectEvictedOnce checks that n Pods were evicted since the start of the test, each once and all of them by us.
func (f *fixture) expectEvictedOnce(n int) {
	f.Helper()
	events, err := f.workload.Audit().Since(controlplane.Mark{})
	f.Expect(err).NotTo(HaveOccurred())
	evicted := map[types.UID]bool{}
	for _, eviction := range events.Verb("create").Resource("pods", "eviction").Succeeded() {
		uid := eviction.UIDPrecondition()
		f.Expect(uid).NotTo(BeEmpty(), "%s has no UID", eviction)
		f.Expect(eviction.UserAgent).To(HavePrefix(fleet.ManagerAgent))
		f.Expect(evicted).NotTo(HaveKey(uid), "%s is the second eviction of this Pod", eviction)
		evicted[uid] = true
	}
	f.Expect(evicted).To(HaveLen(n))
}

func keyOf(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

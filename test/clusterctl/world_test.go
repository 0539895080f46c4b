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

// world is a workload cluster and the current management cluster of its Cluster.
type world struct {
	*testing.T
	*WithT
	at       *management
	workload *controlplane.ControlPlane
	pods     client.Client // of the workload cluster
	cluster  kwok.Cluster
	links    *kwok.Workloads
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, WithT: NewWithT(t), cluster: kwok.NewCluster("c1").WithExternalControlPlane(), links: &kwok.Workloads{}}
	w.workload = controlplane.ForTest(t, controlplane.Options{Name: "workload", Kwok: true})
	var err error
	w.pods, err = client.New(w.workload.AdminConfig(), client.Options{Scheme: clusterapi.Scheme()})
	w.Expect(err).NotTo(HaveOccurred())
	link, err := kwok.Direct(w.workload)
	w.Expect(err).NotTo(HaveOccurred())
	w.links.Add(w.cluster.Key(), link)
	return w
}

func (w *world) sub(t *testing.T) *world {
	t.Helper()
	sub := *w
	sub.T, sub.WithT = t, NewWithT(t)
	return &sub
}

func (w *world) addMachine(name string) {
	w.Helper()
	w.Expect(kwok.Create(w.Context(), w.at.client, w.cluster.Machine(name))).To(Succeed())
	w.Eventually(func(g Gomega) {
		machine := w.machine(g, name)
		g.Expect(machine.Status.Phase).To(Equal(string(clusterv1.MachinePhaseRunning)))
		g.Expect(machine.Annotations).To(HaveKeyWithValue(v1alpha1.PreDrainHookAnnotation, v1alpha1.HookOwner))
	}, eventually, pace).Should(Succeed())
}

func (w *world) machine(g Gomega, name string) *clusterv1.Machine {
	w.Helper()
	machine := &clusterv1.Machine{}
	g.Expect(w.at.client.Get(w.Context(), keyOf(name), machine)).To(Succeed())
	return machine
}

func (w *world) node(g Gomega, name string) *corev1.Node {
	w.Helper()
	node := &corev1.Node{}
	g.Expect(w.pods.Get(w.Context(), types.NamespacedName{Name: name}, node)).To(Succeed())
	return node
}

// drain deletes a new Machine with Pods that no budget blocks, and waits until Machine, Node and Pods are deleted.
func (w *world) drain(name string) {
	w.Helper()
	w.addMachine(name)
	w.addPods(name, 0)
	w.Expect(w.at.client.Delete(w.Context(), w.machine(w, name))).To(Succeed())
	w.expectGone(name)
}

// beginDrain creates Pods on a Machine's Node, under a budget that allows one eviction, deletes the Machine, and waits until the drain is
// blocked.
func (w *world) beginDrain(name string) {
	w.Helper()
	w.addPods(name, podsOnNode-1)
	w.Expect(w.at.client.Delete(w.Context(), w.machine(w, name))).To(Succeed())
	w.Eventually(func(g Gomega) {
		g.Expect(w.podsOf(g, name)).To(HaveLen(podsOnNode - 1))
		condition := conditions.Get(w.machine(g, name), v1alpha1.MachineNodeMaintenance)
		g.Expect(condition).NotTo(BeNil())
		g.Expect(condition.Reason).To(Equal(v1alpha1.ReasonMachineDraining))
		g.Expect(condition.Message).To(ContainSubstring("Waiting for PodDisruptionBudget default/" + name))
	}, eventually, pace).Should(Succeed())
}

func (w *world) addPods(node string, minAvailable int) {
	w.Helper()
	for i := range podsOnNode {
		w.Expect(w.pods.Create(w.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%d", node, i), Labels: map[string]string{"app": node}},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		})).To(Succeed())
	}
	needed := intstr.FromInt(minAvailable)
	w.Expect(w.pods.Create(w.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: node},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &needed, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": node}}},
	})).To(Succeed())
	w.Eventually(func(g Gomega) {
		budget := &policyv1.PodDisruptionBudget{}
		g.Expect(w.pods.Get(w.Context(), keyOf(node), budget)).To(Succeed())
		g.Expect(budget.Status.DisruptionsAllowed).To(BeEquivalentTo(podsOnNode - minAvailable))
	}, eventually, pace).Should(Succeed())
}

// liftBudget lets the budget of a Node's Pods allow all disruptions.
func (w *world) liftBudget(node string) {
	w.Helper()
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: node}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"minAvailable":0}}`)) // the disruption controller may write the status meanwhile
	w.Expect(w.pods.Patch(w.Context(), budget, patch)).To(Succeed())
}

func (w *world) podsOf(g Gomega, node string) []corev1.Pod {
	w.Helper()
	pods := &corev1.PodList{}
	g.Expect(w.pods.List(w.Context(), pods, client.InNamespace(namespace), client.MatchingLabels{"app": node})).To(Succeed())
	return pods.Items
}

// expectGone waits until a Machine, its Node and all objects of the drain are deleted.
func (w *world) expectGone(name string) {
	w.Helper()
	w.Eventually(func() error { return w.at.client.Get(w.Context(), keyOf(name), &clusterv1.Machine{}) }, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	w.Eventually(func() error { return w.pods.Get(w.Context(), types.NamespacedName{Name: name}, &corev1.Node{}) }, eventually, pace).
		Should(Satisfy(apierrors.IsNotFound))
	w.expectNothingLeft()
}

func (w *world) expectNothingLeft() {
	w.Helper()
	w.Eventually(func(g Gomega) {
		maintenances, evacuations := &v1alpha1.NodeMaintenanceList{}, &v1alpha1.EvacuationList{}
		g.Expect(w.pods.List(w.Context(), maintenances)).To(Succeed())
		g.Expect(maintenances.Items).To(BeEmpty())
		g.Expect(w.pods.List(w.Context(), evacuations)).To(Succeed())
		g.Expect(evacuations.Items).To(BeEmpty())
	}, eventually, pace).Should(Succeed())
}

// expectEvictedOnce checks that n Pods were evicted since the start of the test, each once and all of them by us.
func (w *world) expectEvictedOnce(n int) {
	w.Helper()
	events, err := w.workload.Audit().Since(controlplane.Mark{})
	w.Expect(err).NotTo(HaveOccurred())
	evicted := map[types.UID]bool{}
	for _, eviction := range events.Verb("create").Resource("pods", "eviction").Succeeded() {
		uid := eviction.UIDPrecondition()
		w.Expect(uid).NotTo(BeEmpty(), "%s has no UID", eviction)
		w.Expect(eviction.UserAgent).To(HavePrefix(fleet.ManagerAgent))
		w.Expect(evicted).NotTo(HaveKey(uid), "%s is the second eviction of this Pod", eviction)
		evicted[uid] = true
	}
	w.Expect(evicted).To(HaveLen(n))
}

func keyOf(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

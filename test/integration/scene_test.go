package integration

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

const (
	namespace = metav1.NamespaceDefault

	// soon is the timeout for a few round trips, eventually the timeout for a drain. Both are generous, because tests assert on order and
	// counts and never on seconds.
	soon       = 2 * time.Minute
	eventually = 4 * time.Minute
	pace       = 100 * time.Millisecond
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(klog.Background())
	if err := takePlaces(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// scene is the view of a test on one Cluster in a fleet.
type scene struct {
	*testing.T
	*WithT
	fleet    *fleet.Fleet
	cluster  kwok.Cluster
	workload *fleet.Workload

	begin, managementBegin controlplane.Mark // where this scene begins in the audit logs

	invariants *invariants
}

// newScene starts a fleet with one Cluster whose Machines follow an empty policy.
func newScene(t *testing.T, options fleet.Options) *scene {
	t.Helper()
	return newSceneOver(t, options, func(s *scene) { s.Expect(s.fleet.Connect(s.cluster, "workload")).To(Succeed()) })
}

// newSceneOver is newScene with a connection to the workload cluster that connect makes.
func newSceneOver(t *testing.T, options fleet.Options, connect func(*scene)) *scene {
	t.Helper()
	s := &scene{T: t, WithT: NewWithT(t), fleet: fleet.ForTest(t, options), cluster: kwok.NewCluster("c1").WithExternalControlPlane()}
	s.workload = s.fleet.Workloads["workload"]
	s.holdInvariants()
	connect(s)
	s.create(s.fleet.Client, &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "all"}})
	s.create(s.fleet.Client, s.cluster.Objects()...)
	s.Eventually(func() error { // the manager applies the bundle when it connects
		return s.workload.Client.List(t.Context(), &v1alpha1.NodeMaintenanceList{})
	}, eventually, pace).Should(Succeed())
	return s
}

// sub returns the scene for a subtest. It reads the audit log from now on.
func (s *scene) sub(t *testing.T) *scene {
	t.Helper()
	sub := s.part(t)
	sub.mark()
	sub.holdInvariants()
	return sub
}

// mark lets the scene read the audit logs from now on.
func (s *scene) mark() {
	s.Helper()
	var err error
	s.begin, err = s.workload.Audit().Mark()
	s.Expect(err).NotTo(HaveOccurred())
	s.managementBegin, err = s.fleet.Management.Audit().Mark()
	s.Expect(err).NotTo(HaveOccurred())
}

// part returns the scene for a subtest that checks what this scene has done.
func (s *scene) part(t *testing.T) *scene {
	t.Helper()
	part := *s
	part.T, part.WithT = t, NewWithT(t)
	return &part
}

func (s *scene) create(c client.Client, objects ...client.Object) {
	s.Helper()
	s.Expect(kwok.Create(s.Context(), c, objects)).To(Succeed())
}

// ensure creates objects unless they exist: tests that share a fleet grant the same roles.
func (s *scene) ensure(c client.Client, objects ...client.Object) {
	s.Helper()
	for _, object := range objects {
		s.Expect(client.IgnoreAlreadyExists(c.Create(s.Context(), object))).To(Succeed())
	}
}

// read gets an object.
func read[T client.Object](g Gomega, c client.Client, key client.ObjectKey, object T) T {
	if s, isScene := g.(*scene); isScene {
		s.Helper()
	}
	g.Expect(c.Get(context.Background(), key, object)).To(Succeed())
	return object
}

// patch changes an object.
func (s *scene) patch(c client.Client, object client.Object, change func()) {
	s.Helper()
	before := object.DeepCopyObject().(client.Object)
	change()
	s.Expect(c.Patch(s.Context(), object, client.MergeFrom(before))).To(Succeed())
}

// withMachines adds Machines and waits until they run and have our hook.
func (s *scene) withMachines(names ...string) {
	s.Helper()
	for _, name := range names {
		s.create(s.fleet.Client, s.cluster.Machine(name, kwok.With(func(m *clusterv1.Machine) { deletesNode(&m.Spec) }))...)
	}
	s.expectRunning(names...)
}

// deletesNode lets Cluster API delete the Node of a Machine however long its connection is down: by default it tries only once when ten
// seconds have passed since the deletion of the Machine, and its connection may come back later than ours.
func deletesNode(m *clusterv1.MachineSpec) {
	m.Deletion.NodeDeletionTimeoutSeconds = ptr.To[int32](0)
}

// expectRunning waits until Machines run and have our hook, and the scheduler can place Pods on their Nodes.
func (s *scene) expectRunning(names ...string) {
	s.Helper()
	for _, name := range names {
		s.Eventually(func(g Gomega) {
			machine := s.machine(name)
			g.Expect(machine.Status.Phase).To(Equal(string(clusterv1.MachinePhaseRunning)))
			g.Expect(machine.Annotations).To(HaveKeyWithValue(v1alpha1.PreDrainHookAnnotation, v1alpha1.HookOwner))
			g.Expect(isInitialized(s.node(name))).To(BeTrue())
		}, eventually, pace).Should(Succeed())
	}
}

func (s *scene) machine(name string) *clusterv1.Machine {
	s.Helper()
	return read(s, s.fleet.Client, client.ObjectKey{Namespace: namespace, Name: name}, &clusterv1.Machine{})
}

func (s *scene) node(name string) *corev1.Node {
	s.Helper()
	return read(s, s.workload.Client, client.ObjectKey{Name: name}, &corev1.Node{})
}

// isInitialized returns true if the Node is ready, and the taints with which it registered are removed. A Node may be ready, and its
// Machine available, before that.
func isInitialized(node *corev1.Node) bool {
	return util.IsNodeReady(node) && !slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Key == clusterv1.NodeUninitializedTaint.Key || taint.Key == corev1.TaintNodeNotReady
	})
}

// deleteMachine deletes a Machine and does not wait.
func (s *scene) deleteMachine(name string) {
	s.Helper()
	s.Expect(s.fleet.Client.Delete(s.Context(), s.machine(name))).To(Succeed())
}

func (s *scene) isGone(machine string) bool {
	s.Helper()
	return apierrors.IsNotFound(s.fleet.Client.Get(s.Context(), keyOf(machine), &clusterv1.Machine{}))
}

// expectGone waits until a Machine, its Node and all objects of its drain are deleted.
func (s *scene) expectGone(name string) {
	s.Helper()
	s.Eventually(func() bool { return s.isGone(name) }, eventually, pace).Should(BeTrue())
	s.Eventually(func() error {
		return s.workload.Client.Get(s.Context(), types.NamespacedName{Name: name}, &corev1.Node{})
	}, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	s.Eventually(func(g Gomega) {
		maintenances, evacuations := &v1alpha1.NodeMaintenanceList{}, &v1alpha1.EvacuationList{}
		g.Expect(s.workload.Client.List(s.Context(), maintenances)).To(Succeed())
		g.Expect(s.workload.Client.List(s.Context(), evacuations)).To(Succeed())
		for _, m := range maintenances.Items {
			g.Expect(m.Annotations[v1alpha1.OwnerMachineAnnotation]).NotTo(Equal(namespace+"/"+name), "NodeMaintenance %s is left over", m.Name)
		}
		for _, e := range evacuations.Items {
			g.Expect(e.Annotations[v1alpha1.EvacuationNodeAnnotation]).NotTo(Equal(name), "Evacuation %s is left over", e.Name)
		}
	}, eventually, pace).Should(Succeed())
}

// maintenanceOf returns the NodeMaintenance of a Machine, or nil.
func (s *scene) maintenanceOf(machine string) *v1alpha1.NodeMaintenance {
	s.Helper()
	list := &v1alpha1.NodeMaintenanceList{}
	s.Expect(s.workload.Client.List(s.Context(), list)).To(Succeed())
	for i := range list.Items {
		m := &list.Items[i]
		hasEnded := !m.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(m, v1alpha1.MaintenanceCompletionFinalizer)
		if m.Annotations[v1alpha1.OwnerMachineAnnotation] == namespace+"/"+machine && !hasEnded {
			return m
		}
	}
	return nil
}

// condition returns our condition on a Machine.
func (s *scene) condition(machine string) metav1.Condition {
	s.Helper()
	if condition := conditions.Get(s.machine(machine), v1alpha1.MachineNodeMaintenance); condition != nil {
		return *condition
	}
	return metav1.Condition{}
}

// setPolicy changes the policy that the Machines follow, and waits until the manager has observed it, which may observe Machines earlier.
func (s *scene) setPolicy(change func(*v1alpha1.MachineDrainPolicy)) {
	s.Helper()
	policy := read(s, s.fleet.Client, keyOf("all"), &v1alpha1.MachineDrainPolicy{})
	s.patch(s.fleet.Client, policy, func() { change(policy) })
	s.Eventually(func() int64 {
		return read(s, s.fleet.Client, keyOf("all"), &v1alpha1.MachineDrainPolicy{}).Status.ObservedGeneration
	}, soon, pace).Should(Equal(policy.Generation))
}

// runOn creates objects and waits until n Pods labelled app are ready on one Node. Meanwhile it cordons the other Nodes. If the scheduler
// has not observed that and binds a Pod to another Node, runOn deletes the Pod.
func (s *scene) runOn(node, app string, n int, objects ...client.Object) {
	s.Helper()
	nodes := &corev1.NodeList{}
	s.Expect(s.workload.Client.List(s.Context(), nodes)).To(Succeed())
	cordon := func(other *corev1.Node, unschedulable bool) { // which may be deleted meanwhile
		patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, unschedulable)
		s.Expect(client.IgnoreNotFound(s.workload.Client.Patch(s.Context(), other.DeepCopy(), client.RawPatch(types.MergePatchType, patch)))).To(Succeed())
	}
	for i := range nodes.Items {
		if nodes.Items[i].Name != node {
			cordon(&nodes.Items[i], true)
		}
	}
	s.create(s.workload.Client, objects...)
	s.Eventually(func(g Gomega) {
		pods := s.podsOf(app)
		for i := range pods {
			if elsewhere := pods[i].Spec.NodeName; elsewhere != "" && elsewhere != node && s.counted(app, len(pods)) {
				g.Expect(client.IgnoreNotFound(s.workload.Client.Delete(s.Context(), &pods[i], client.GracePeriodSeconds(0)))).To(Succeed())
			}
		}
		g.Expect(pods).To(HaveLen(n))
		for _, pod := range pods {
			g.Expect(pod.Spec.NodeName).To(Equal(node))
			g.Expect(pod.Status.Phase).To(Equal(corev1.PodRunning))
		}
	}, eventually, pace).Should(Succeed())
	for i := range nodes.Items {
		if nodes.Items[i].Name != node {
			cordon(&nodes.Items[i], nodes.Items[i].Spec.Unschedulable)
		}
	}
}

// counted says whether the controller of a ReplicaSet has observed all Pods labelled app. If a Pod is deleted before, the controller waits
// for it for five minutes and creates no other Pod.
func (s *scene) counted(app string, pods int) bool {
	s.Helper()
	sets := &appsv1.ReplicaSetList{}
	s.Expect(s.workload.Client.List(s.Context(), sets, client.MatchingLabels{"app": app})).To(Succeed())
	known := 0
	for i := range sets.Items {
		known += int(sets.Items[i].Status.Replicas)
	}
	return known == pods || len(sets.Items) == 0
}

func (s *scene) setUnschedulable(name string, unschedulable bool) {
	s.Helper()
	node := s.node(name)
	s.patch(s.workload.Client, node, func() { node.Spec.Unschedulable = unschedulable })
}

// withNamespace adds a namespace and waits until it has its default ServiceAccount, without which the API server rejects Pods.
func (s *scene) withNamespace(name string) *corev1.Namespace {
	s.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	s.create(s.workload.Client, namespace)
	s.Eventually(func() error {
		return s.workload.Client.Get(s.Context(), types.NamespacedName{Namespace: name, Name: "default"}, &corev1.ServiceAccount{})
	}, soon, pace).Should(Succeed())
	return namespace
}

func (s *scene) podsOf(app string) []corev1.Pod {
	s.Helper()
	pods := &corev1.PodList{}
	s.Expect(s.workload.Client.List(s.Context(), pods, client.MatchingLabels{"app": app})).To(Succeed())
	return pods.Items
}

// deployment returns a Deployment of Pods labelled app.
func deployment(app string, replicas int32, changes ...func(*corev1.PodTemplateSpec)) *appsv1.Deployment {
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}, Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	for _, change := range changes {
		change(&template)
	}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, Template: template,
		},
	}
}

func labelled(key, value string) func(*corev1.PodTemplateSpec) {
	return func(template *corev1.PodTemplateSpec) { template.Labels[key] = value }
}

// budget returns a PodDisruptionBudget for Pods labelled app.
func budget(app string, maxUnavailable int) *policyv1.PodDisruptionBudget {
	unavailable := intstr.FromInt(maxUnavailable)
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &unavailable, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
	}
}

// drainRule returns a MachineDrainRule for Pods labelled app.
func drainRule(name, app string, behavior clusterv1.MachineDrainRuleDrainBehavior, order *int32) *clusterv1.MachineDrainRule {
	return &clusterv1.MachineDrainRule{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: clusterv1.MachineDrainRuleSpec{
			Drain: clusterv1.MachineDrainRuleDrainConfig{Behavior: behavior, Order: order},
			Pods:  []clusterv1.MachineDrainRulePodSelector{{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}},
		},
	}
}

// expectDisruptionsAllowed waits until a PodDisruptionBudget allows n disruptions.
func (s *scene) expectDisruptionsAllowed(app string, n int32) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		pdb := read(g, s.workload.Client, keyOf(app), &policyv1.PodDisruptionBudget{})
		g.Expect(pdb.Status.DisruptionsAllowed).To(Equal(n))
	}, eventually, pace).Should(Succeed())
}

func keyOf(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

func metaNamed(name, app string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": app}}
}

func notLabelled(key string) *v1alpha1.LabelSelector {
	return &v1alpha1.LabelSelector{MatchExpressions: []v1alpha1.LabelSelectorRequirement{{Key: key, Operator: metav1.LabelSelectorOpDoesNotExist}}}
}

func names(pods []corev1.Pod) []string {
	var all []string
	for _, pod := range pods {
		all = append(all, pod.Name)
	}
	return all
}

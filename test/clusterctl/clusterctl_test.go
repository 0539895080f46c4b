package clusterctl

import (
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/guide"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

// TestClusterctl covers the life of an installation. Each part continues from the end of the previous one.
func TestClusterctl(t *testing.T) {
	if os.Getenv("CAPNM_TEST_CLUSTERCTL") == "" {
		t.Skip("SKIPPED: make test-clusterctl runs this test")
	}
	t.Parallel()
	r := newRepository(t)
	all := newFixture(t)
	first := newManagement(t, r, "first", oldVersion, all.links)
	all.at = first
	all.Expect(first.client.Create(t.Context(), &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "all"}})).To(Succeed())
	all.Expect(kwok.Create(t.Context(), first.client, all.cluster.Objects())).To(Succeed())
	evicted := 0
	offersUpgrade := MatchRegexp(`runtime-extension-node-maintenance +` + fleet.InstallationNamespace + ` +RuntimeExtensionProvider +` + oldVersion + ` +` +
		newVersion)

	t.Run("init: an installed provider drains the Node of a deleted Machine", func(t *testing.T) {
		f := all.sub(t)
		f.drain("m1")
		evicted += podsOnNode
		f.expectEvictedOnce(evicted)
	})

	t.Run("M27: clusterctl describe shows the condition of a drain", func(t *testing.T) {
		f := all.sub(t)
		f.addMachine("m2")
		f.beginDrain("m2")
		f.againAfterDeletion("m2")
		f.Eventually(func() string {
			return first.clusterctl(t, "describe", "cluster", f.cluster.Key().Name, "--namespace="+namespace, "--show-conditions=all", "--color=false")
		}, eventually, pace).Should(MatchRegexp(v1alpha1.MachineNodeMaintenance+` +False +`+v1alpha1.ReasonMachineDraining), "the drain begins again")
	})

	t.Run("upgrade: a drain in progress continues under the new version", func(t *testing.T) {
		f := all.sub(t)
		f.Expect(first.clusterctl(t, "upgrade", "plan")).To(offersUpgrade)
		first.clusterctl(t, "upgrade", "apply", "--runtime-extension="+fleet.InstallationNamespace+"/node-maintenance:"+newVersion)
		first.waitAvailable(t, newVersion)
		f.liftBudget("m2")
		f.expectGone("m2")
		evicted += podsOnNode
		f.expectEvictedOnce(evicted)
	})

	t.Run("downgrade: the command of the guide installs an older version, under which a drain in progress continues", func(t *testing.T) {
		f := all.sub(t)
		f.addMachine("m8")
		f.beginDrain("m8")
		steps, err := guide.Section(r.root, "upgrade.md", "Downgrade")
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(steps).To(HaveLen(1))
		command := strings.Fields(steps[0].Content)
		f.Expect(command[0]).To(Equal("clusterctl"))
		first.clusterctl(t, command[1:]...)
		first.waitAvailable(t, oldVersion)
		f.Expect(first.clusterctl(t, "upgrade", "plan")).To(offersUpgrade)
		f.liftBudget("m8")
		f.expectGone("m8")
		evicted += podsOnNode
		f.expectEvictedOnce(evicted)
	})

	t.Run("two managers: a drain continues when the leader is killed", func(t *testing.T) {
		f := all.sub(t)
		first.scale(t, 2)
		f.addMachine("m6")
		f.beginDrain("m6")
		holder := first.leader(f)
		f.Expect(holder).NotTo(BeEmpty())
		first.killLeader(t)
		f.Eventually(func(g Gomega) {
			now := first.leader(g)
			g.Expect(now).NotTo(BeEmpty())
			g.Expect(now).NotTo(Equal(holder))
		}, eventually, pace).Should(Succeed())
		f.liftBudget("m6")
		f.expectGone("m6")
		evicted += podsOnNode
		f.expectEvictedOnce(evicted)
		first.scale(t, 1)
	})

	t.Run("the manager uses exactly the permissions of its role", func(t *testing.T) {
		f := all.sub(t)
		f.probeProviderGroups()
		f.drain("m7") // so that the current leader has drained a Machine
		evicted += podsOnNode
		f.addMachine("m3")
		f.beginDrain("m3")
		f.expectQueriesAnswered(f.scrape())
		f.liftBudget("m3")
		f.expectGone("m3")
		evicted += podsOnNode
		f.expectLeastPrivilege()
	})

	second := newManagement(t, r, "second", newVersion, all.links)

	t.Run("M16: clusterctl move reverts a drain in progress and keeps all hooks", func(t *testing.T) {
		f := all.sub(t)
		f.addMachine("m4")
		f.beginDrain("m4")
		evicted++
		first.clusterctl(t, "move", "--namespace="+namespace, "--to-kubeconfig="+second.kubeconfig)
		f.Expect(first.client.Get(t.Context(), keyOf("m4"), &clusterv1.Machine{})).To(Satisfy(apierrors.IsNotFound))

		f.at, all.at = second, second
		f.Eventually(func(g Gomega) {
			machine := f.machine(g, "m4")
			g.Expect(machine.DeletionTimestamp).To(BeNil(), "clusterctl does not preserve deletions")
			g.Expect(machine.Annotations).To(HaveKeyWithValue(v1alpha1.PreDrainHookAnnotation, v1alpha1.HookOwner))
			g.Expect(machine.Status.Phase).To(Equal(string(clusterv1.MachinePhaseRunning)))
			g.Expect(f.node(g, "m4").Spec.Unschedulable).To(BeFalse())
		}, eventually, pace).Should(Succeed())
		f.expectNothingLeft()
		f.Expect(f.podsOf(f, "m4")).To(HaveLen(podsOnNode - 1))
		f.Expect(second.client.Get(t.Context(), keyOf("all"), &v1alpha1.MachineDrainPolicy{})).To(Succeed())
	})

	t.Run("M16: a Machine that is deleted again after a move is drained, and no Pod is evicted twice", func(t *testing.T) {
		f := all.sub(t)
		f.liftBudget("m4")
		f.Expect(second.client.Delete(t.Context(), f.machine(f, "m4"))).To(Succeed())
		f.expectGone("m4")
		evicted += podsOnNode - 1
		f.expectEvictedOnce(evicted)
	})

	t.Run("S73: in a Cluster that is its own management cluster, the node agent leaves the namespace of the manager restricted", func(t *testing.T) {
		all.sub(t).nodeAgentBesideManager()
	})

	t.Run("S72: of two managers at a workload cluster, one without the node agent does not remove that of the other", func(t *testing.T) {
		all.sub(t).nodeAgentOfTwo(first)
	})

	t.Run("M17, S71: after the policies are deleted, clusterctl delete leaves no Machine waiting and no node agent", func(t *testing.T) {
		f := all.sub(t)
		f.addMachine("m5")
		f.setNodeAgent(second, v1alpha1.NodeAgentEnabled)
		f.Eventually(func(g Gomega) { f.nodeAgent(g, f.pods) }, eventually, pace).Should(Succeed())
		f.Expect(second.client.DeleteAllOf(t.Context(), &v1alpha1.MachineDrainPolicy{}, client.InNamespace(namespace))).To(Succeed())
		f.Eventually(func(g Gomega) {
			g.Expect(f.machine(g, "m5").Annotations).NotTo(HaveKey(v1alpha1.PreDrainHookAnnotation))
		}, eventually, pace).Should(Succeed())
		f.expectNoNodeAgent(f.pods)
		second.clusterctl(t, "delete", "--runtime-extension=node-maintenance", "--include-crd")
		f.Eventually(func() error { return second.client.Get(t.Context(), deploymentKey, &appsv1.Deployment{}) }, eventually, pace).
			Should(Satisfy(apierrors.IsNotFound))
		account := client.ObjectKey{Namespace: fleet.InstallationNamespace, Name: "capnm-manager"}
		f.Expect(second.client.Get(t.Context(), account, &corev1.ServiceAccount{})).To(Satisfy(apierrors.IsNotFound))
		f.Eventually(second.kubelet.Running, eventually, pace).Should(BeEmpty())
		f.Expect(second.client.Delete(t.Context(), f.machine(f, "m5"))).To(Succeed())
		f.Eventually(func() error { return second.client.Get(t.Context(), keyOf("m5"), &clusterv1.Machine{}) }, eventually, pace).
			Should(Satisfy(apierrors.IsNotFound))
	})
}

// againAfterDeletion deletes the NodeMaintenance of a drain, and waits until it is recreated.
func (f *fixture) againAfterDeletion(machine string) {
	f.Helper()
	only := func(g Gomega) *v1alpha1.NodeMaintenance {
		list := &v1alpha1.NodeMaintenanceList{}
		g.Expect(f.pods.List(f.Context(), list)).To(Succeed())
		g.Expect(list.Items).To(HaveLen(1))
		return &list.Items[0]
	}
	before := only(f)
	f.Expect(before.Annotations).To(HaveKeyWithValue(v1alpha1.OwnerMachineAnnotation, namespace+"/"+machine))
	f.Expect(f.pods.Delete(f.Context(), before)).To(Succeed())
	f.Eventually(func(g Gomega) { g.Expect(only(g).UID).NotTo(Equal(before.UID)) }, eventually, pace).Should(Succeed())
}

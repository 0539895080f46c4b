package clusterctl

import (
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

const nodeAgentName = "capnm-node-agent"

// nodeAgentBesideManager enables the node agent in a Cluster that is its own management cluster.
func (f *fixture) nodeAgentBesideManager() {
	f.Helper()
	link, err := kwok.Direct(f.at.ControlPlane)
	f.Expect(err).NotTo(HaveOccurred())
	self := kwok.NewCluster("self").WithExternalControlPlane()
	f.links.Add(self.Key(), link)
	f.Expect(kwok.Create(f.Context(), f.at.client, self.Objects())).To(Succeed())
	f.setNodeAgent(f.at, v1alpha1.NodeAgentEnabled)
	f.Eventually(func(g Gomega) { f.nodeAgent(g, f.at.client) }, eventually, pace).Should(Succeed())
	enforced := func(name string) string {
		namespace := &corev1.Namespace{}
		f.Expect(f.at.client.Get(f.Context(), types.NamespacedName{Name: name}, namespace)).To(Succeed())
		return namespace.Labels["pod-security.kubernetes.io/enforce"]
	}
	f.Expect(enforced(nodeAgentName)).To(Equal("privileged"))
	f.Expect(enforced(fleet.InstallationNamespace)).To(Equal("restricted"))
	f.setNodeAgent(f.at, v1alpha1.NodeAgentDisabled)
	for _, cluster := range []client.Client{f.at.client, f.pods} {
		f.expectNoNodeAgent(cluster)
	}
}

// nodeAgentOfTwo connects the managers of two management clusters to one workload cluster. Only one of them enables the node agent, and
// then only the other one.
func (f *fixture) nodeAgentOfTwo(other *management) {
	f.Helper()
	f.setNodeAgent(f.at, v1alpha1.NodeAgentEnabled)
	var agent *appsv1.DaemonSet
	f.Eventually(func(g Gomega) { agent = f.nodeAgent(g, f.pods) }, eventually, pace).Should(Succeed())
	expectKeptBy := func(m, owner *management) {
		f.Helper()
		f.Eventually(func(g Gomega) {
			events := &corev1.EventList{}
			g.Expect(m.client.List(f.Context(), events, client.InNamespace(namespace))).To(Succeed())
			g.Expect(events.Items).To(ContainElement(And(HaveField("Reason", "NodeAgentUnchanged"), HaveField("InvolvedObject.Name", f.cluster.Key().Name),
				HaveField("Message", ContainSubstring("the UID "+f.identity(owner)+", has installed it")))))
		}, eventually, pace).Should(Succeed())
		f.Expect(f.nodeAgent(f, f.pods).UID).To(Equal(agent.UID))
	}

	f.Expect(kwok.Create(f.Context(), other.client, f.cluster.Objects())).To(Succeed())
	expectKeptBy(other, f.at)

	f.Expect(other.client.Create(f.Context(), &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "all"}})).To(Succeed())
	f.setNodeAgent(other, v1alpha1.NodeAgentEnabled)
	f.Eventually(func(g Gomega) {
		g.Expect(f.nodeAgent(g, f.pods).Annotations).To(HaveKeyWithValue(v1alpha1.OwnerManagementClusterAnnotation, f.identity(other)))
	}, eventually, pace).Should(Succeed())
	f.setNodeAgent(f.at, v1alpha1.NodeAgentDisabled)
	expectKeptBy(f.at, other)

	f.Expect(other.client.DeleteAllOf(f.Context(), &v1alpha1.MachineDrainPolicy{}, client.InNamespace(namespace))).To(Succeed())
	f.expectNoNodeAgent(f.pods)
}

// identity returns the UID that identifies a management cluster.
func (f *fixture) identity(m *management) string {
	f.Helper()
	system := &corev1.Namespace{}
	f.Expect(m.client.Get(f.Context(), types.NamespacedName{Name: metav1.NamespaceSystem}, system)).To(Succeed())
	return string(system.UID)
}

// setNodeAgent enables or disables the node agent in the policy of a management cluster.
func (f *fixture) setNodeAgent(m *management, mode v1alpha1.NodeAgentPolicy) {
	f.Helper()
	policy := &v1alpha1.MachineDrainPolicy{}
	f.Expect(m.client.Get(f.Context(), keyOf("all"), policy)).To(Succeed())
	before := client.MergeFrom(policy.DeepCopy())
	policy.Spec.NodeAgent = mode
	f.Expect(m.client.Patch(f.Context(), policy, before)).To(Succeed())
}

func (f *fixture) nodeAgent(g Gomega, cluster client.Client) *appsv1.DaemonSet {
	f.Helper()
	agent := &appsv1.DaemonSet{}
	g.Expect(cluster.Get(f.Context(), types.NamespacedName{Namespace: nodeAgentName, Name: nodeAgentName}, agent)).To(Succeed())
	return agent
}

func (f *fixture) expectNoNodeAgent(cluster client.Client) {
	f.Helper()
	f.Eventually(func() error {
		return cluster.Get(f.Context(), types.NamespacedName{Namespace: nodeAgentName, Name: nodeAgentName}, &appsv1.DaemonSet{})
	}, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
}

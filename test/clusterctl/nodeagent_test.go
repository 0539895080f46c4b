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
func (w *world) nodeAgentBesideManager() {
	w.Helper()
	link, err := kwok.Direct(w.at.ControlPlane)
	w.Expect(err).NotTo(HaveOccurred())
	self := kwok.NewCluster("self").WithExternalControlPlane()
	w.links.Add(self.Key(), link)
	w.Expect(kwok.Create(w.Context(), w.at.client, self.Objects())).To(Succeed())
	w.setNodeAgent(w.at, v1alpha1.NodeAgentEnabled)
	w.Eventually(func(g Gomega) { w.nodeAgent(g, w.at.client) }, eventually, pace).Should(Succeed())
	enforced := func(name string) string {
		namespace := &corev1.Namespace{}
		w.Expect(w.at.client.Get(w.Context(), types.NamespacedName{Name: name}, namespace)).To(Succeed())
		return namespace.Labels["pod-security.kubernetes.io/enforce"]
	}
	w.Expect(enforced(nodeAgentName)).To(Equal("privileged"))
	w.Expect(enforced(fleet.InstallationNamespace)).To(Equal("restricted"))
	w.setNodeAgent(w.at, v1alpha1.NodeAgentDisabled)
	for _, cluster := range []client.Client{w.at.client, w.pods} {
		w.expectNoNodeAgent(cluster)
	}
}

// nodeAgentOfTwo connects the managers of two management clusters to one workload cluster. Only one of them enables the node agent, and
// then only the other one.
func (w *world) nodeAgentOfTwo(other *management) {
	w.Helper()
	w.setNodeAgent(w.at, v1alpha1.NodeAgentEnabled)
	var agent *appsv1.DaemonSet
	w.Eventually(func(g Gomega) { agent = w.nodeAgent(g, w.pods) }, eventually, pace).Should(Succeed())
	expectKeptBy := func(m, owner *management) {
		w.Helper()
		w.Eventually(func(g Gomega) {
			events := &corev1.EventList{}
			g.Expect(m.client.List(w.Context(), events, client.InNamespace(namespace))).To(Succeed())
			g.Expect(events.Items).To(ContainElement(And(HaveField("Reason", "NodeAgentUnchanged"), HaveField("InvolvedObject.Name", w.cluster.Key().Name),
				HaveField("Message", ContainSubstring("the UID "+w.identity(owner)+", has installed it")))))
		}, eventually, pace).Should(Succeed())
		w.Expect(w.nodeAgent(w, w.pods).UID).To(Equal(agent.UID))
	}

	w.Expect(kwok.Create(w.Context(), other.client, w.cluster.Objects())).To(Succeed())
	expectKeptBy(other, w.at)

	w.Expect(other.client.Create(w.Context(), &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "all"}})).To(Succeed())
	w.setNodeAgent(other, v1alpha1.NodeAgentEnabled)
	w.Eventually(func(g Gomega) {
		g.Expect(w.nodeAgent(g, w.pods).Annotations).To(HaveKeyWithValue(v1alpha1.OwnerManagementClusterAnnotation, w.identity(other)))
	}, eventually, pace).Should(Succeed())
	w.setNodeAgent(w.at, v1alpha1.NodeAgentDisabled)
	expectKeptBy(w.at, other)

	w.Expect(other.client.DeleteAllOf(w.Context(), &v1alpha1.MachineDrainPolicy{}, client.InNamespace(namespace))).To(Succeed())
	w.expectNoNodeAgent(w.pods)
}

// identity returns the UID that identifies a management cluster.
func (w *world) identity(m *management) string {
	w.Helper()
	system := &corev1.Namespace{}
	w.Expect(m.client.Get(w.Context(), types.NamespacedName{Name: metav1.NamespaceSystem}, system)).To(Succeed())
	return string(system.UID)
}

// setNodeAgent enables or disables the node agent in the policy of a management cluster.
func (w *world) setNodeAgent(m *management, mode v1alpha1.NodeAgentPolicy) {
	w.Helper()
	policy := &v1alpha1.MachineDrainPolicy{}
	w.Expect(m.client.Get(w.Context(), keyOf("all"), policy)).To(Succeed())
	before := client.MergeFrom(policy.DeepCopy())
	policy.Spec.NodeAgent = mode
	w.Expect(m.client.Patch(w.Context(), policy, before)).To(Succeed())
}

func (w *world) nodeAgent(g Gomega, cluster client.Client) *appsv1.DaemonSet {
	w.Helper()
	agent := &appsv1.DaemonSet{}
	g.Expect(cluster.Get(w.Context(), types.NamespacedName{Namespace: nodeAgentName, Name: nodeAgentName}, agent)).To(Succeed())
	return agent
}

func (w *world) expectNoNodeAgent(cluster client.Client) {
	w.Helper()
	w.Eventually(func() error {
		return cluster.Get(w.Context(), types.NamespacedName{Namespace: nodeAgentName, Name: nodeAgentName}, &appsv1.DaemonSet{})
	}, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
}

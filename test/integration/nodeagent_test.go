package integration

import (
	"encoding/json"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/config/workload"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/guide"
)

// TestNodeAgent checks when the node agent is installed in a workload cluster, and when it is removed. Its Pods do not run.
func TestNodeAgent(t *testing.T) {
	parallel(t, 60*time.Second)
	all := newScene(t, fleet.Options{ManagerArgs: []string{"--feature-gates=NodeAgent=true", "--node-agent-image=agent:v1"}})
	policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "agents"}}
	policy.Spec.NodeAgent = v1alpha1.NodeAgentEnabled
	enabled := func(s *scene) {
		s.Helper()
		s.create(s.fleet.Client, policy.DeepCopy())
		s.Eventually(s.nodeAgent, eventually, pace).Should(Succeed())
	}

	t.Run("S73: the node agent has a separate namespace", func(t *testing.T) {
		s := all.sub(t)
		enabled(s)
		own := read(s, s.workload.Client, client.ObjectKey{Name: "capnm-node-agent"}, &corev1.Namespace{})
		s.Expect(own.Labels).To(HaveKeyWithValue("pod-security.kubernetes.io/enforce", "privileged"))
		managers := client.ObjectKey{Name: fleet.InstallationNamespace} // in a self-managed cluster
		s.Expect(s.workload.Client.Get(s.Context(), managers, &corev1.Namespace{})).To(Satisfy(apierrors.IsNotFound))
	})
	t.Run("S12: the admission policy of the node agent fits the types of what it checks", func(t *testing.T) {
		s := all.sub(t)
		s.Eventually(func(g Gomega) {
			key := client.ObjectKey{Name: "nodeagents." + v1alpha1.GroupVersion.Group}
			checked := read(g, s.workload.Client, key, &admissionregistrationv1.ValidatingAdmissionPolicy{})
			g.Expect(checked.Status.TypeChecking).NotTo(BeNil())
			g.Expect(checked.Status.TypeChecking.ExpressionWarnings).To(BeEmpty())
		}, soon, pace).Should(Succeed())
	})
	t.Run("S71: the node agent is kept while the CRD of MachineDrainPolicies is missing, and an event says so", func(t *testing.T) {
		s := all.sub(t)
		serve := s.unservePolicies()
		s.expectAgentUnchanged("the CustomResourceDefinition of MachineDrainPolicies is missing or being deleted")
		s.Expect(s.nodeAgent()).To(Succeed())
		serve()
		s.Eventually(s.nodeAgent, eventually, pace).Should(Satisfy(apierrors.IsNotFound), "no policy enables it any more")
	})
	t.Run("S72: the node agent that another management cluster has claimed is kept, and an event says so", func(t *testing.T) {
		s := all.sub(t)
		enabled(s)
		owns := func(uid string) {
			agent := read(s, s.workload.Client, nodeAgentKey, &appsv1.DaemonSet{})
			s.patch(s.workload.Client, agent, func() { agent.Annotations[v1alpha1.OwnerManagementClusterAnnotation] = uid })
		}
		owns("there")
		s.Expect(s.fleet.Client.Delete(s.Context(), policy.DeepCopy())).To(Succeed())
		s.expectAgentUnchanged("another management cluster, whose Namespace kube-system has the UID there, has installed it")
		s.create(s.fleet.Client, policy.DeepCopy())
		s.Consistently(func() string {
			return read(s, s.workload.Client, nodeAgentKey, &appsv1.DaemonSet{}).Annotations[v1alpha1.OwnerManagementClusterAnnotation]
		}, aMoment, pace).Should(Equal("there"), "it is claimed once in each connection")
		owns("")
		s.Expect(s.fleet.Client.Delete(s.Context(), policy.DeepCopy())).To(Succeed())
		s.Eventually(s.nodeAgent, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	})
	t.Run("S71: the node agent is removed when no MachineDrainPolicy selects the Cluster any more", func(t *testing.T) {
		s := all.sub(t)
		enabled(s)
		s.Expect(s.fleet.Client.Delete(s.Context(), policy.DeepCopy())).To(Succeed())
		s.Eventually(s.nodeAgent, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	})
	t.Run("S18: a new version of the bundle keeps what users have set", func(t *testing.T) {
		s := all.sub(t)
		enabled(s)
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: nodeAgentKey.Namespace, Name: nodeAgentKey.Name}}
		config.Data = map[string]string{"config.yaml": "logindDropInDir: /run/systemd/logind.conf.d"}
		s.create(s.workload.Client, config)
		agent := read(s, s.workload.Client, nodeAgentKey, &appsv1.DaemonSet{})
		s.patch(s.workload.Client, agent, func() {
			agent.Spec.Template.Spec.Containers[0].Args = []string{"--static-pod-path=/etc/kubelet.d"}
			earlier := agent.Spec.DeepCopy() // of the version that the annotations say
			earlier.Template.Spec.Containers[0].Args, earlier.Template.Spec.PriorityClassName = nil, "earlier"
			agent.Spec.Template.Spec.PriorityClassName = "earlier"
			recorded, err := json.Marshal(earlier)
			s.Expect(err).NotTo(HaveOccurred())
			agent.Annotations[v1alpha1.BundleSpecAnnotation] = string(recorded)
			agent.Annotations[v1alpha1.BundleVersionAnnotation] = strconv.Itoa(workload.BundleVersion - 1)
		})
		cluster := read(s, s.fleet.Client, s.cluster.Key(), &clusterv1.Cluster{}) // its changes trigger a check
		s.patch(s.fleet.Client, cluster, func() { metav1.SetMetaDataAnnotation(&cluster.ObjectMeta, "check", "again") })
		s.Eventually(func(g Gomega) {
			agent := read(g, s.workload.Client, nodeAgentKey, &appsv1.DaemonSet{})
			g.Expect(agent.Annotations).To(HaveKeyWithValue(v1alpha1.BundleVersionAnnotation, strconv.Itoa(workload.BundleVersion)))
			g.Expect(agent.Spec.Template.Spec.PriorityClassName).To(Equal("system-node-critical"))
			g.Expect(agent.Spec.Template.Spec.Containers[0].Args).To(ConsistOf("--static-pod-path=/etc/kubelet.d"))
		}, eventually, pace).Should(Succeed())
		s.Expect(read(s, s.workload.Client, nodeAgentKey, &corev1.ConfigMap{}).Data).To(Equal(config.Data))
		s.Expect(read(s, s.fleet.Client, client.ObjectKeyFromObject(policy), &v1alpha1.MachineDrainPolicy{}).Spec.NodeAgent).To(Equal(v1alpha1.NodeAgentEnabled))
		s.Expect(s.fleet.Client.Delete(s.Context(), policy.DeepCopy())).To(Succeed())
		s.Eventually(s.nodeAgent, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	})
	t.Run("S71: the node agent is removed by a manager without the feature gate", func(t *testing.T) {
		s := all.sub(t)
		enabled(s)
		s.fleet.KillManager()
		s.Expect(s.fleet.StartManager(s.Context(), "--feature-gates=NodeAgent=false")).To(Succeed())
		s.Eventually(s.nodeAgent, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
		s.Expect(s.fleet.Client.Delete(s.Context(), policy.DeepCopy())).To(Succeed())
	})
	t.Run("S92: the commands of the guide remove a node agent that no manager serves", func(t *testing.T) {
		s := all.sub(t)
		s.fleet.KillManager()
		s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
		enabled(s)
		s.fleet.KillManager()
		node := controlplane.NewNode("agents")
		s.create(s.workload.Client, node)
		status := client.MergeFrom(node.DeepCopy())
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: v1alpha1.NodeAgentReady, Status: corev1.ConditionTrue})
		s.Expect(s.workload.Client.Status().Patch(s.Context(), node, status)).To(Succeed())
		commands, err := guide.Section("../..", "nodeagent.md", "Disable it")
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(commands).To(HaveLen(1))
		s.newKubectl().run(commands[0].Content, "")
		s.Expect(s.nodeAgent()).To(Satisfy(apierrors.IsNotFound))
		s.Expect(read(s, s.workload.Client, client.ObjectKeyFromObject(node), &corev1.Node{}).Status.Conditions).
			NotTo(ContainElement(HaveField("Type", v1alpha1.NodeAgentReady)))
		objects, err := workload.NodeAgent("")
		s.Expect(err).NotTo(HaveOccurred())
		for _, object := range objects {
			s.Expect(s.workload.Client.Get(s.Context(), client.ObjectKeyFromObject(object), object)).To(Satisfy(apierrors.IsNotFound), object.GetKind())
		}
	})
}

var nodeAgentKey = types.NamespacedName{Namespace: "capnm-node-agent", Name: "capnm-node-agent"}

// nodeAgent returns an error if the node agent is not installed.
func (s *scene) nodeAgent() error {
	return s.workload.Client.Get(s.Context(), nodeAgentKey, &appsv1.DaemonSet{})
}

func (s *scene) expectAgentUnchanged(why string) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		events := &corev1.EventList{}
		g.Expect(s.fleet.Client.List(s.Context(), events, client.InNamespace(namespace))).To(Succeed())
		g.Expect(events.Items).To(ContainElement(And(HaveField("Reason", "NodeAgentUnchanged"), HaveField("InvolvedObject.Name", s.cluster.Key().Name),
			HaveField("Message", "The node agent is neither installed nor removed: "+why))))
	}, eventually, pace).Should(Succeed())
}

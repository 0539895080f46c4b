package realnode_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
	"github.com/capnm/cluster-api-node-maintenance/test/realnode"
	"github.com/capnm/cluster-api-node-maintenance/test/realnode/spec"
)

const (
	// eventually is generous, because the tests assert order and counts, never seconds.
	eventually = 3 * time.Minute
	pace       = 100 * time.Millisecond

	agentImage     = "realnode.test/node-agent:test"
	agentNamespace = "capnm-node-agent"
	agentName      = "capnm-node-agent"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(klog.Background())
	os.Exit(m.Run())
}

// scene is a fleet with one Cluster whose policy enables the node agent.
type scene struct {
	*testing.T
	*WithT
	fleet    *fleet.Fleet
	cluster  kwok.Cluster
	workload *fleet.Workload
	agent    string // path of the agent's program
}

func newScene(t *testing.T) *scene {
	t.Helper()
	realnode.Skip(t)
	agent := filepath.Join(t.TempDir(), "node-agent")
	if err := realnode.Build(agent, "./cmd/node-agent"); err != nil {
		t.Fatal(err)
	}
	s := &scene{T: t, WithT: NewWithT(t), agent: agent, cluster: kwok.NewCluster("c1").WithExternalControlPlane()}
	s.fleet = fleet.ForTest(t, fleet.Options{ManagerArgs: []string{"--feature-gates=NodeAgent=true", "--node-agent-image=" + agentImage}})
	s.workload = s.fleet.Workloads["workload"]
	s.Expect(s.fleet.Connect(s.cluster, "workload")).To(Succeed())
	policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "all"}}
	policy.Spec.NodeAgent = v1alpha1.NodeAgentEnabled
	s.create(s.fleet.Client, policy)
	s.create(s.fleet.Client, s.cluster.Objects()...)
	s.reachAPIServer()
	return s
}

func (s *scene) sub(t *testing.T) *scene {
	t.Helper()
	sub := *s
	sub.T, sub.WithT = t, NewWithT(t)
	return &sub
}

func (s *scene) create(c client.Client, objects ...client.Object) {
	s.Helper()
	s.Expect(kwok.Create(s.Context(), c, objects)).To(Succeed())
}

// reachAPIServer configures the agents to reach the API server through the proxy whose network can be cut. There is no kube-proxy for the
// Service of the API server.
func (s *scene) reachAPIServer() {
	s.Helper()
	host, port := s.workload.ProxiedHost()
	s.Eventually(func() error {
		agents := &appsv1.DaemonSet{}
		if err := s.workload.Client.Get(s.Context(), types.NamespacedName{Namespace: agentNamespace, Name: agentName}, agents); err != nil {
			return err
		}
		before := agents.DeepCopy()
		container := &agents.Spec.Template.Spec.Containers[0]
		container.Env = append(container.Env, corev1.EnvVar{Name: "KUBERNETES_SERVICE_HOST", Value: host}, corev1.EnvVar{
			Name: "KUBERNETES_SERVICE_PORT", Value: strconv.Itoa(port),
		})
		container.Args = append(container.Args, "--v=2")
		container.ReadinessProbe.PeriodSeconds = 1
		return s.workload.Client.Patch(s.Context(), agents, client.MergeFrom(before))
	}, eventually, pace).Should(Succeed())
	s.Eventually(func(g Gomega) { // it would replace Pods that it had created from the earlier template, and their tokens would become invalid
		agents := &appsv1.DaemonSet{}
		g.Expect(s.workload.Client.Get(s.Context(), types.NamespacedName{Namespace: agentNamespace, Name: agentName}, agents)).To(Succeed())
		g.Expect(agents.Status.ObservedGeneration).To(Equal(agents.Generation))
	}, eventually, pace).Should(Succeed(), "the DaemonSet controller has observed it")
}

// configure writes the agents' configuration.
func (s *scene) configure(config string) {
	s.Helper()
	s.configureMore(map[string]string{"config.yaml": config})
}

// configureMore writes the agents' configurations: the one for all Nodes and those that Nodes select by label.
func (s *scene) configureMore(configs map[string]string) {
	s.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: agentName}}
	s.Expect(client.IgnoreNotFound(s.workload.Client.Delete(s.Context(), object))).To(Succeed())
	object = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: agentName}, Data: configs}
	s.create(s.workload.Client, object)
}

// node starts a real node, and waits until its agent holds a lock.
func (s *scene) node(options realnode.Options) *realnode.Node {
	s.Helper()
	if options.InhibitDelayMax == 0 {
		options.InhibitDelayMax = 10 * time.Minute
	}
	options.Programs = map[string]string{agentImage: s.agent}
	node := realnode.ForTest(s.T, s.workload.ControlPlane, options)
	s.Cleanup(func() { s.deleteNode(node.Name()) })
	s.awaitAgent(node)
	return node
}

// deleteNode deletes a Node after its test.
func (s *scene) deleteNode(name string) {
	// The context of the test is already done.
	_ = s.workload.Client.Delete(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

func (s *scene) awaitAgent(node *realnode.Node) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		pod := s.agentPod(g, node.Name())
		for _, status := range pod.Status.ContainerStatuses {
			g.Expect(status.Ready).To(BeTrue(), status.Name)
		}
		g.Expect(s.agentCondition(g, node.Name()).Reason).NotTo(BeEmpty())
		g.Expect(node.Locks()).To(ContainElements("node-agent", "node-agent-lock"))
	}, eventually, pace).Should(Succeed())
}

// awaitConfiguration waits until the agent on a Node uses the configuration of this name.
func (s *scene) awaitConfiguration(node, name string) {
	s.Helper()
	s.Eventually(func() string { return s.agentCondition(s, node).Message }, eventually, pace).Should(ContainSubstring("configuration %q", name))
}

func (s *scene) agentPod(g Gomega, node string) *corev1.Pod {
	pods := &corev1.PodList{}
	g.Expect(s.workload.Client.List(s.Context(), pods, client.InNamespace(agentNamespace))).To(Succeed())
	for i := range pods.Items {
		if pods.Items[i].Spec.NodeName == node && pods.Items[i].DeletionTimestamp == nil {
			return &pods.Items[i]
		}
	}
	g.Expect(pods.Items).To(ContainElement(HaveField("Spec.NodeName", node)), "the Node has no agent")
	return &corev1.Pod{}
}

func (s *scene) agentCondition(g Gomega, name string) corev1.NodeCondition {
	node := &corev1.Node{}
	g.Expect(s.workload.Client.Get(s.Context(), types.NamespacedName{Name: name}, node)).To(Succeed())
	for _, condition := range node.Status.Conditions {
		if condition.Type == v1alpha1.NodeAgentReady {
			return condition
		}
	}
	return corev1.NodeCondition{}
}

// run starts Pods on a node and waits until they run.
func (s *scene) run(node *realnode.Node, pods ...*corev1.Pod) {
	s.Helper()
	for _, pod := range pods {
		realnode.On(node.Name())(pod)
		s.create(s.workload.Client, pod)
	}
	for _, pod := range pods {
		s.awaitStarted(node, pod.Name, 1)
	}
}

// awaitKnown waits until the agent has stored what the kubelet reports about Pods.
func (s *scene) awaitKnown(node *realnode.Node, pods ...*corev1.Pod) {
	s.Helper()
	for _, pod := range pods {
		s.Eventually(func() (string, error) {
			return node.ReadFile("/var/lib/kubelet/pods/*/volumes/kubernetes.io~empty-dir/state/pods.json")
		},
			eventually, pace).Should(ContainSubstring(string(pod.UID)), pod.Name)
	}
}

func (s *scene) awaitStarted(node *realnode.Node, pod string, times int) {
	s.Helper()
	s.Eventually(func() int { return node.Journal().Count(pod, "started") }, eventually, pace).Should(Equal(times), pod)
}

func (s *scene) maintenance(g Gomega, name string) *v1alpha1.NodeMaintenance {
	m := &v1alpha1.NodeMaintenance{}
	g.Expect(s.workload.Client.Get(s.Context(), types.NamespacedName{Name: name}, m)).To(Succeed())
	return m
}

// expectGraceful expects that each of the Pods has received SIGTERM and has exited before SIGKILL.
func (s *scene) expectGraceful(journal realnode.Journal, pods ...string) {
	s.Helper()
	for _, pod := range pods {
		s.Expect(journal.Of(pod)).To(ContainElements("SIGTERM", "ended"), "Pod %s did not terminate gracefully", pod)
	}
}

// expectOrder expects that all earlier Pods have terminated before any of the later ones receives SIGTERM.
func (s *scene) expectOrder(journal realnode.Journal, earlier, later []string) {
	s.Helper()
	for _, first := range earlier {
		ended, _ := journal.First(first, "ended")
		for _, second := range later {
			asked, _ := journal.First(second, "SIGTERM")
			s.Expect(ended.Before(asked)).To(BeTrue(), "%s must terminate before %s receives SIGTERM", first, second)
		}
	}
}

// expectPoweredOff waits until the node is off, and expects that it powered off because all locks were released.
func (s *scene) expectPoweredOff(node *realnode.Node) realnode.Journal {
	s.Helper()
	s.Eventually(node.Off, eventually, pace).Should(BeTrue())
	journal := node.Journal()
	s.Expect(journal.Of(spec.Who)).To(ContainElement(spec.PowerOff), "the locks must be released before logind's deadline")
	s.Logf("journal:\n%s", shortened(journal))
	return journal
}

func shortened(journal realnode.Journal) string {
	lines := strings.Split(journal.String(), "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}

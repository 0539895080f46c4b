package realnode_test

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
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

// selectConfiguration sets the label of a Node that selects the agent's configuration, as JSON.
func (s *scene) selectConfiguration(node, name string) {
	s.Helper()
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, v1alpha1.ShutdownConfigLabel, name))
	s.Expect(s.workload.Client.Patch(s.Context(), s.nodeObject(node), patch)).To(Succeed())
}

// awaitReason waits until the agent's condition of a Node has a reason.
func (s *scene) awaitReason(node, reason string) {
	s.Helper()
	s.Eventually(func() string { return s.agentCondition(s, node).Reason }, eventually, pace).Should(Equal(reason))
}

// awaitReadiness waits until the kubelet reports this readiness of the agent's Pod, from the probe.
func (s *scene) awaitReadiness(node *realnode.Node, status corev1.ConditionStatus) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		g.Expect(s.agentPod(g, node.Name()).Status.Conditions).To(ContainElement(
			And(HaveField("Type", corev1.PodReady), HaveField("Status", status))))
	}, eventually, pace).Should(Succeed())
}

// awaitRuntime waits until the kubelet and the agent use the container runtime after it has restarted.
func (s *scene) awaitRuntime(node *realnode.Node) {
	s.Helper()
	ready := func(kind corev1.NodeConditionType) OmegaMatcher {
		return ContainElement(And(HaveField("Type", kind), HaveField("Status", corev1.ConditionTrue)))
	}
	s.Eventually(func(g Gomega) {
		g.Expect(s.nodeObject(node.Name()).Status.Conditions).To(And(ready(corev1.NodeReady), ready(v1alpha1.NodeAgentReady)))
	}, eventually, pace).Should(Succeed())
}

// expectNoKubelet expects that no kubelet could start Pods when the last lock was released.
func (s *scene) expectNoKubelet(journal realnode.Journal) {
	s.Helper()
	stopped, found := journal.First(spec.Who, "stopped "+spec.Kubelet)
	s.Expect(found).To(BeTrue(), "the kubelet must be stopped")
	released, _ := journal.First(spec.Who, spec.LockReleased+"node-agent-lock")
	s.Expect(stopped.Before(released)).To(BeTrue(), "the kubelet must be stopped before the last lock is released")
	s.Expect(journal.Of(spec.Who)).NotTo(ContainElement("started " + spec.Kubelet))
}

// replaceAgent replaces the Pod of the agent by one that holds its locks before the first one ends.
func (s *scene) replaceAgent(node *realnode.Node) {
	s.Helper()
	before, agents := s.agentPod(s, node.Name()), &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: agentName}}
	s.Expect(s.workload.Client.Patch(s.Context(), agents, client.RawPatch(types.MergePatchType, []byte(`{"spec":{
		"updateStrategy":{"rollingUpdate":{"maxSurge":1,"maxUnavailable":0}},"template":{"metadata":{"annotations":{"replaced":"yes"}}}}}`)))).To(Succeed())
	s.Eventually(func() error { return s.workload.Client.Get(s.Context(), client.ObjectKeyFromObject(before), before) }, eventually, pace).
		Should(Satisfy(apierrors.IsNotFound))
	s.awaitAgent(node)
	s.Expect(node.Locks()).To(Equal([]string{"node-agent", "node-agent-lock"}))
}

// setNodeAgent enables or disables the agent in the policy.
func (s *scene) setNodeAgent(mode v1alpha1.NodeAgentPolicy) {
	s.Helper()
	policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "all"}}
	s.Expect(s.fleet.Client.Get(s.Context(), client.ObjectKeyFromObject(policy), policy)).To(Succeed())
	before := policy.DeepCopy()
	policy.Spec.NodeAgent = mode
	s.Expect(s.fleet.Client.Patch(s.Context(), policy, client.MergeFrom(before))).To(Succeed())
}

func (s *scene) unschedulable(name string) bool {
	s.Helper()
	return s.nodeObject(name).Spec.Unschedulable
}

// excluded returns whether the Node is excluded from load balancers.
func (s *scene) excluded(name string) bool {
	s.Helper()
	_, labelled := s.nodeObject(name).Labels[corev1.LabelNodeExcludeBalancers]
	return labelled
}

func (s *scene) nodeObject(name string) *corev1.Node {
	s.Helper()
	node := &corev1.Node{}
	s.Expect(s.workload.Client.Get(s.Context(), types.NamespacedName{Name: name}, node)).To(Succeed())
	return node
}

// expectDrained expects that the NodeMaintenance reports its Nodes as drained.
func (s *scene) expectDrained(name string) {
	s.Helper()
	s.Expect(s.maintenance(s, name).Status.Conditions).To(ContainElement(And(
		HaveField("Type", v1alpha1.NodeMaintenanceDrained), HaveField("Status", metav1.ConditionTrue))))
}

// expectExcludedBeforeEviction expects that the Node is excluded from load balancers, and was before the Pod's eviction.
func (s *scene) expectExcludedBeforeEviction(begin controlplane.Mark, node, pod string) {
	s.Helper()
	s.Expect(s.excluded(node)).To(BeTrue())
	events, err := s.workload.Audit().Since(begin)
	s.Expect(err).NotTo(HaveOccurred())
	label := path.Base(corev1.LabelNodeExcludeBalancers) // the path of a JSON patch escapes the slash before it
	excluded := slices.IndexFunc(events, func(e controlplane.Event) bool {
		return e.Resource == "nodes" && e.Name == node && strings.Contains(string(e.RequestObject), label)
	})
	evicted := slices.IndexFunc(events, func(e controlplane.Event) bool { return e.Subresource == "eviction" && e.Name == pod })
	s.Expect(excluded).To(BeNumerically(">=", 0), "the Node was never excluded")
	s.Expect(evicted).To(BeNumerically(">", excluded), "Pod %s was evicted before its Node was excluded", pod)
}

// daemonSet returns a DaemonSet with one Pod on a node, whose journal has entries under the name of the DaemonSet.
func daemonSet(name, node string, changes ...func(*corev1.Pod)) *appsv1.DaemonSet {
	pod := realnode.NewPod(name, "500ms", append(changes, realnode.On(node))...)
	pod.Labels = map[string]string{"app": name}
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name}}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: pod.Labels}
	set.Spec.Template = corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec}
	return set
}

// tolerateAll adds a toleration for every taint, as network plugins and log shippers have it.
func tolerateAll(set *appsv1.DaemonSet) *appsv1.DaemonSet {
	set.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	return set
}

// awaitPod waits until a Pod is Running in the API. The kubelet creates a mirror Pod after it has started the static Pod.
func (s *scene) awaitPod(name string) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		pod := &corev1.Pod{}
		g.Expect(s.workload.Client.Get(s.Context(), types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: name}, pod)).To(Succeed())
		g.Expect(pod.Status.Phase).To(Equal(corev1.PodRunning))
	}, eventually, pace).Should(Succeed())
}

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

var _ = Describe("The node agent", Ordered, Label("agent"), func() {
	var w *workloadCluster

	BeforeAll(func(ctx context.Context) {
		w = newWorkloadCluster(ctx, "agent", 1, 2)
		for _, machine := range w.machines(ctx, Default) {
			node := machine.Status.NodeRef.Name
			archive := read(filepath.Join(root, "out", "release", "node-agent-image.oci.tar"))
			command := exec.CommandContext(ctx, "docker", "exec", "-i", node, "ctr", "--namespace=k8s.io", "images", "import", "--local", "-")
			command.Stdin = strings.NewReader(archive)
			runCommand(command)
		}
		management.apply(ctx, w.name, read("testdata/rules.yaml"))
		w.apply(ctx, budgeted)
		w.apply(ctx, agentConfiguration)
		management.apply(ctx, w.name, "{apiVersion: maintenance.cluster.x-k8s.io/v1alpha1, kind: MachineDrainPolicy, metadata: {name: all}, spec: {surge: "+
			"IfSingleReplica, nodeAgent: Enabled}}")
		for _, machine := range w.machines(ctx, Default) {
			w.waitAgent(ctx, machine.Status.NodeRef.Name)
		}
		w.waitReady(ctx)
	})

	It("S2: has logind allow the delay that the agents' configuration requests", func(ctx context.Context) {
		for _, machine := range w.machines(ctx, Default) {
			node := machine.Status.NodeRef.Name
			Expect(run(ctx, "docker", "exec", node, "cat", "/run/systemd/logind.conf.d/90-node-maintenance.conf")).To(ContainSubstring("InhibitDelayMaxSec=501\n"))
			Expect(run(ctx, "docker", "exec", node, "busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1",
				"org.freedesktop.login1.Manager", "InhibitDelayMaxUSec")).To(HavePrefix("t 501000000"))
		}
	})

	It("S3: drains a Node that systemd powers off, before it powers off", func(ctx context.Context) {
		name := w.workers(ctx, Default)[0].Status.NodeRef.Name
		mirror := w.runStatic(ctx, name, fmt.Sprintf(pod, "static", "static", "", "", ""))
		w.apply(ctx, fmt.Sprintf(pod, "critical", "critical", "", "system-cluster-critical", name))
		critical := w.waitRunning(ctx, "critical")
		var pods []corev1.Pod
		for _, pod := range w.podsOn(ctx, Default, name) {
			if pod.Labels["app"] == "web" {
				pods = append(pods, pod)
			}
		}
		Expect(pods).NotTo(BeEmpty())
		begin, started := len(w.events()), startOf(ctx, name)
		run(ctx, "docker", "exec", name, "systemctl", "poweroff")
		Eventually(func(g Gomega) { g.Expect(startOf(ctx, name)).NotTo(Equal(started)) }, eventually, pace).Should(Succeed())

		maintenance := get(ctx, Default, w.Client, &v1alpha1.NodeMaintenance{ObjectMeta: named("", "shutdown-"+name)})
		Expect(maintenance.Spec.Stage).To(Equal(v1alpha1.StageDrain))
		Expect(maintenance.Status.Conditions).To(ContainElement(And(HaveField("Type", "Drained"), HaveField("Status", metav1.ConditionTrue))))
		events := w.events()[begin:]
		Expect(events.By(agentUser).Verb("create").Resource("nodemaintenances.maintenance.cluster.x-k8s.io").Succeeded()).
			To(HaveLen(1))
		evictions := w.expectEvictions(events, append(pods, *critical), map[string]int{"web": len(pods), "critical": 1})
		for _, pod := range pods {
			Expect(ended(events, pod)).To(BeTemporally("<", evictionsOf(evictions, "critical")[0].Requested), "%s had terminated before the critical Pod was evicted",
				pod.Name)
		}
		Expect(ended(events, *critical)).To(BeTemporally("<", ended(events, *mirror)), "the static Pod was last")
		Expect(ended(events, *mirror)).To(BeTemporally("<", endOf(ctx, name)), "it had terminated before the Node powered off")
	})

	It("S4, S10, S16: keeps the Node cordoned and its static Pod stopped after the boot, until a user completes the NodeMaintenance", func(ctx context.Context) {
		maintenances := &v1alpha1.NodeMaintenanceList{}
		Expect(w.List(ctx, maintenances)).To(Succeed())
		Expect(maintenances.Items).To(HaveLen(1))
		maintenance := &maintenances.Items[0]
		name := strings.TrimPrefix(maintenance.Name, "shutdown-")
		w.waitAgent(ctx, name)
		node := get(ctx, Default, w.Client, &corev1.Node{ObjectMeta: named("", name)})
		Expect(node.Spec.Unschedulable).To(BeTrue())
		Expect(node.Labels).To(HaveKey(corev1.LabelNodeExcludeBalancers))
		Expect(run(ctx, "docker", "exec", name, "ls", "/etc/kubernetes/manifests")).NotTo(ContainSubstring("static.yaml"))

		before := client.MergeFrom(maintenance.DeepCopy())
		maintenance.Spec.Stage = v1alpha1.StageComplete
		Expect(w.Patch(ctx, maintenance, before)).To(Succeed())
		Eventually(func(g Gomega) {
			node := get(ctx, g, w.Client, &corev1.Node{ObjectMeta: named("", name)})
			g.Expect(node.Spec.Unschedulable).To(BeFalse())
			g.Expect(node.Labels).NotTo(HaveKey(corev1.LabelNodeExcludeBalancers))
			mirror := get(ctx, g, w.Client, &corev1.Pod{ObjectMeta: named("default", "static-"+name)})
			g.Expect(mirror.Status.Phase).To(Equal(corev1.PodRunning))
			g.Expect(mirror.CreationTimestamp.Time).To(BeTemporally(">", maintenance.CreationTimestamp.Time))
		}, eventually, pace).Should(Succeed())
		w.waitReady(ctx)
	})

	It("leaves a shutdown to the kubelet where the kubelet's graceful shutdown is enabled", func(ctx context.Context) {
		name := w.workers(ctx, Default)[1].Status.NodeRef.Name
		run(ctx, "docker", "exec", name, "sh", "-c", "sed -i '/^shutdownGracePeriod/d' /var/lib/kubelet/config.yaml && "+
			"printf 'shutdownGracePeriod: 60s\nshutdownGracePeriodCriticalPods: 30s\n' >>/var/lib/kubelet/config.yaml && systemctl restart kubelet")
		Eventually(func(g Gomega) {
			g.Expect(get(ctx, g, w.Client, &corev1.Node{ObjectMeta: named("", name)}).Status.Conditions).To(ContainElement(
				And(HaveField("Type", corev1.NodeConditionType(v1alpha1.NodeAgentReady)), HaveField("Status", corev1.ConditionFalse),
					HaveField("Reason", v1alpha1.ReasonKubeletGracefulShutdown))))
			g.Expect(locksOf(ctx, g, name)).To(And(ContainSubstring("kubelet "), ContainSubstring("node-agent ")))
		}, eventually, pace).Should(Succeed())
		// The drain skips these Pods, so that only the kubelet terminates them.
		const skip = "cluster.x-k8s.io/drain: skip"
		w.apply(ctx, fmt.Sprintf(pod, "regular", "regular", skip, "", name)+"---"+fmt.Sprintf(pod, "urgent", "urgent", skip, "system-cluster-critical", name))
		w.waitRunning(ctx, "regular")
		w.waitRunning(ctx, "urgent")

		begin, started := len(w.events()), startOf(ctx, name)
		run(ctx, "docker", "exec", name, "systemctl", "poweroff")
		Eventually(func(g Gomega) { g.Expect(startOf(ctx, name)).NotTo(Equal(started)) }, eventually, pace).Should(Succeed())
		Expect(w.finished(ctx, "urgent")).To(BeTemporally(">", w.finished(ctx, "regular")))
		events := w.events()[begin:]
		Expect(events.By(agentUser).Verb("create").Resource("nodemaintenances.maintenance.cluster.x-k8s.io").Succeeded()).
			To(HaveLen(1))
		for _, eviction := range events.Verb("create").Resource("pods", "eviction") {
			Expect(eviction.Name).NotTo(BeElementOf("regular", "urgent"))
		}
	})

	It("is removed with its Cluster", func(ctx context.Context) { w.delete(ctx) })
})

const agentUser = "system:serviceaccount:capnm-node-agent:capnm-node-agent"

// agentConfiguration is a time that a busy machine does not exceed, and that logind does not allow by default.
const agentConfiguration = `
apiVersion: v1
kind: Namespace
metadata: {name: capnm-node-agent}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: capnm-node-agent, namespace: capnm-node-agent}
data:
  config.yaml: |
    shutdownGracePeriod: 500s
    shutdownGracePeriodCriticalPods: 20s
    logindDropInDir: /run/systemd/logind.conf.d
`

// pod is a Pod with a name, a value of the label app, another label, a priority class and a Node.
const pod = `
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default, labels: {app: %s, %s}}
spec:
  priorityClassName: "%s"
  nodeName: "%s"
  containers: [{name: app, image: "capnm.dev/app:e2e", imagePullPolicy: Never, args: ["-grace=2s"]}]
`

// runStatic runs a static Pod on a Node and returns its mirror Pod.
func (w *workloadCluster) runStatic(ctx context.Context, node, manifest string) *corev1.Pod {
	GinkgoHelper()
	pod := &corev1.Pod{}
	Expect(yaml.Unmarshal([]byte(manifest), pod)).To(Succeed())
	run(ctx, "docker", "exec", node, "sh", "-c", "cat >/etc/kubernetes/manifests/"+pod.Name+".yaml <<'POD'\n"+manifest+"POD")
	return w.waitRunning(ctx, pod.Name+"-"+node)
}

func (w *workloadCluster) waitRunning(ctx context.Context, name string) *corev1.Pod {
	GinkgoHelper()
	pod := &corev1.Pod{ObjectMeta: named("default", name)}
	Eventually(func(g Gomega) { g.Expect(get(ctx, g, w.Client, pod).Status.Phase).To(Equal(corev1.PodRunning)) }, eventually, pace).Should(Succeed())
	return pod
}

// finished returns when the container of a Pod terminated last.
func (w *workloadCluster) finished(ctx context.Context, name string) (at time.Time) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		pod := get(ctx, g, w.Client, &corev1.Pod{ObjectMeta: named("default", name)})
		g.Expect(pod.Status.ContainerStatuses).To(HaveLen(1))
		terminated := cmp.Or(pod.Status.ContainerStatuses[0].State.Terminated, pod.Status.ContainerStatuses[0].LastTerminationState.Terminated)
		g.Expect(terminated).NotTo(BeNil(), name)
		at = terminated.FinishedAt.Time
	}, eventually, pace).Should(Succeed())
	return at
}

// waitAgent waits until the agent delays shutdowns of the Node.
func (w *workloadCluster) waitAgent(ctx context.Context, node string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(get(ctx, g, w.Client, &corev1.Node{ObjectMeta: named("", node)}).Status.Conditions).To(ContainElements(
			And(HaveField("Type", corev1.NodeReady), HaveField("Status", corev1.ConditionTrue)),
			And(HaveField("Type", corev1.NodeConditionType(v1alpha1.NodeAgentReady)), HaveField("Status", corev1.ConditionTrue),
				HaveField("Reason", v1alpha1.ReasonShutdownDelayed)),
		))
		g.Expect(locksOf(ctx, g, node)).To(And(ContainSubstring("node-agent "), ContainSubstring("node-agent-lock")))
	}, eventually, pace).Should(Succeed())
}

// locksOf returns the locks that delay a shutdown of a Node.
func locksOf(ctx context.Context, g Gomega, node string) string {
	locks, err := exec.CommandContext(ctx, "docker", "exec", node, "systemd-inhibit", "--list", "--no-legend").CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(locks))
	return string(locks)
}

// startOf returns when the container of a Node was started last.
func startOf(ctx context.Context, node string) time.Time { return stateOf(ctx, node).StartedAt }

// endOf returns when the container of a Node ended last.
func endOf(ctx context.Context, node string) time.Time { return stateOf(ctx, node).FinishedAt }

func stateOf(ctx context.Context, node string) (state struct{ StartedAt, FinishedAt time.Time }) {
	GinkgoHelper()
	Expect(json.Unmarshal([]byte(run(ctx, "docker", "inspect", "--format={{json .State}}", node)), &state)).To(Succeed())
	return state
}

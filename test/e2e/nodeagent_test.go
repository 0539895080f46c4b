package e2e

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

var _ = Describe("The node agent", Ordered, func() {
	var w *workloadCluster

	BeforeAll(func(ctx context.Context) {
		w = newWorkloadCluster(ctx, "agent", 1, 2)
		for _, machine := range w.machines(ctx, Default) {
			node := machine.Status.NodeRef.Name
			archive := read(filepath.Join(root, "out", "release", "node-agent-image.oci.tar"))
			command := exec.CommandContext(ctx, "docker", "exec", "-i", node, "ctr", "--namespace=k8s.io", "images", "import", "--local", "-")
			command.Stdin = strings.NewReader(archive)
			runCommand(command)
			run(ctx, "docker", "exec", node, "sh", "-c", "mkdir -p /etc/systemd/logind.conf.d && printf '[Login]\nInhibitDelayMaxSec=600\n' >/etc/systemd/logind.conf.d/delay.conf && systemctl restart systemd-logind")
		}
		management.apply(ctx, w.name, read("testdata/rules.yaml"))
		w.apply(ctx, budgeted)
		w.apply(ctx, agentConfiguration)
		management.apply(ctx, w.name, "{apiVersion: maintenance.cluster.x-k8s.io/v1alpha1, kind: MachineDrainPolicy, metadata: {name: all}, spec: {surge: IfSingleReplica, nodeAgent: Enabled}}")
		for _, machine := range w.machines(ctx, Default) {
			w.waitAgent(ctx, machine.Status.NodeRef.Name)
		}
		w.waitReady(ctx)
	})

	It("S3: drains a Node that systemd powers off, before it powers off", func(ctx context.Context) {
		name := w.workers(ctx, Default)[0].Status.NodeRef.Name
		run(ctx, "docker", "exec", name, "sh", "-c", "cat >/etc/kubernetes/manifests/static.yaml <<'POD'\n"+staticPod+"POD")
		mirror := &corev1.Pod{ObjectMeta: named("default", "static-"+name)}
		Eventually(func(g Gomega) { g.Expect(get(ctx, g, w.Client, mirror).Status.Phase).To(Equal(corev1.PodRunning)) }, eventually, pace).Should(Succeed())
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
		Expect(events.By("system:serviceaccount:capnm-system:capnm-node-agent").Verb("create").Resource("nodemaintenances.maintenance.cluster.x-k8s.io").Succeeded()).To(HaveLen(1))
		w.expectEvictions(events, pods, map[string]int{"web": len(pods)})
		off := endOf(ctx, name)
		for _, pod := range pods {
			Expect(ended(events, pod)).To(BeTemporally("<", off), "%s had terminated before the Node powered off", pod.Name)
		}
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

	It("is removed with its Cluster", func(ctx context.Context) { w.delete(ctx) })
})

// agentConfiguration is a time that a busy machine does not exceed.
const agentConfiguration = `
apiVersion: v1
kind: Namespace
metadata: {name: capnm-system}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: capnm-node-agent, namespace: capnm-system}
data:
  config.yaml: |
    shutdownGracePeriod: 500s
    shutdownGracePeriodCriticalPods: 20s
`

const staticPod = `
apiVersion: v1
kind: Pod
metadata: {name: static, namespace: default}
spec:
  containers: [{name: app, image: "capnm.dev/app:e2e", imagePullPolicy: Never}]
`

// waitAgent waits until the agent delays shutdowns of the Node.
func (w *workloadCluster) waitAgent(ctx context.Context, node string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(get(ctx, g, w.Client, &corev1.Node{ObjectMeta: named("", node)}).Status.Conditions).To(ContainElements(
			And(HaveField("Type", corev1.NodeReady), HaveField("Status", corev1.ConditionTrue)),
			And(HaveField("Type", corev1.NodeConditionType(v1alpha1.NodeAgentReady)), HaveField("Status", corev1.ConditionTrue),
				HaveField("Reason", v1alpha1.ReasonShutdownDelayed)),
		))
		locks, err := exec.CommandContext(ctx, "docker", "exec", node, "systemd-inhibit", "--list", "--no-legend").CombinedOutput()
		g.Expect(err).NotTo(HaveOccurred(), string(locks))
		g.Expect(string(locks)).To(And(ContainSubstring("node-agent "), ContainSubstring("node-agent-lock")))
	}, eventually, pace).Should(Succeed())
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

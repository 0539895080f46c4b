package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// testPluginDrains is the part of TestPlugin that drains Nodes and Machines with the kubectl plugin.
func (s *scene) testPluginDrains() {
	t, all := s.T, s
	all.withMachines("m1", "m2")
	for _, each := range []act{
		{"K13: cordon, drain and complete maintain a Node to the end", (*scene).pluginDrainsNode},
		{"K45, K46: drain makes the settings of --spec, and --together maintains all Nodes by one NodeMaintenance", (*scene).pluginDrainsTogether},
		{"K14: cordon, drain and complete maintain the Node of a Machine to the end", (*scene).pluginDrainsMachine},
		{"K15: drain prints the plan and asks, and needs --yes where no terminal is", (*scene).pluginAsks},
		{"K16: drain drains at most as many Nodes at the same time as --max-parallel allows", (*scene).pluginDrainsInParallel},
		{"K17: the drain continues after Ctrl-C and after the time limit", (*scene).pluginIsInterrupted},
		{"K19: kubectl completes kinds and names for the plugin", (*scene).pluginCompletes},
		{"K18: the roles for draining suffice, and a missing right is named", (*scene).pluginDrainsWithRoles},
	} {
		t.Run(each.name, func(t *testing.T) {
			s := all.sub(t)
			defer s.cleanUp()
			each.play(s)
		})
	}
}

// pluginSucceeds runs the plugin and expects exit code 0. It returns the lines of the output.
func (s *scene) pluginSucceeds(config *rest.Config, args ...string) []string {
	s.Helper()
	stdout, stderr, code := s.plugin(config, args...)
	s.Expect(code).To(BeZero(), stderr)
	return strings.Split(strings.TrimSpace(stdout), "\n")
}

func (s *scene) pluginDrainsNode() {
	s.Helper()
	s.withNodes("k13")
	s.run(bare("on-k13", "k13"), bare("kept", "k13", func(pod *corev1.Pod) { pod.Labels["cluster.x-k8s.io/drain"] = "skip" }))
	admin := s.workload.AdminConfig()

	const object = "nodemaintenance.maintenance.cluster.x-k8s.io/kubectl-k13"
	s.Expect(s.pluginSucceeds(admin, "cordon", "node", "k13", "--reason", "new disk")).To(Equal([]string{object + " created", "node/k13 cordoned"}))
	s.expectCordoned("k13")
	s.Expect(s.stored("kubectl-k13").Spec.Reason).To(Equal("new disk"))
	s.Expect(s.evictions()).To(BeEmpty())

	s.Expect(s.pluginSucceeds(admin, "drain", "node", "k13", "--yes")).To(Equal([]string{object + " configured", "node/k13 drained"}))
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("on-k13"))
	s.Expect(s.pod("kept").DeletionTimestamp).To(BeNil())
	s.Expect(s.stored("kubectl-k13").Spec.Reason).To(Equal("new disk"))
	s.Expect(s.pluginSucceeds(admin, "drain", "node", "k13", "--yes")).To(Equal([]string{object + " unchanged", "node/k13 drained"}))
	_, stderr, code := s.plugin(admin, "cordon", "node", "k13")
	s.Expect(code).To(Equal(1))
	s.Expect(stderr).To(ContainSubstring("stages only move forward"))

	s.Expect(s.pluginSucceeds(admin, "complete", "node", "k13")).To(Equal([]string{object + " deleted", "node/k13 completed"}))
	s.expectReleased("k13")
	_, stderr, code = s.plugin(admin, "complete", "node", "k13")
	s.Expect(code).To(Equal(1))
	s.Expect(stderr).To(ContainSubstring("there is no NodeMaintenance kubectl-k13"))
	s.expectInvariants()
}

func (s *scene) pluginDrainsTogether() {
	s.Helper()
	s.withNodes("k46-1", "k46-2")
	s.run(bare("on-k46-1", "k46-1"), bare("on-k46-2", "k46-2"))
	admin := s.workload.AdminConfig()
	settings := func(content string) string {
		file := filepath.Join(s.TempDir(), "settings.yaml")
		s.Expect(os.WriteFile(file, []byte(content), 0o600)).To(Succeed())
		return file
	}
	for content, says := range map[string]string{"surge: Always": `unknown field "surge"`, "stage: Idle": "must not have the field stage"} {
		_, stderr, code := s.plugin(admin, "drain", "node", "k46-1", "--yes", "--spec", settings(content))
		s.Expect(code).To(Equal(2))
		s.Expect(stderr).To(ContainSubstring(says))
	}
	_, stderr, code := s.plugin(s.fleet.Management.AdminConfig(), "drain", "machine", "m1", "--yes", "--together", "rack")
	s.Expect(code).To(Equal(2), stderr)

	const object = "nodemaintenance.maintenance.cluster.x-k8s.io/rack"
	drain := []string{"drain", "node", "k46-1", "k46-2", "--together", "rack", "--max-parallel", "1", "--yes", "--spec", settings(`
evacuation: {surge: IfSingleReplica}
drainRules: []
drainPlan: [{podType: Default, podPriority: 1000}]
excludeFromLoadBalancers: true
`)}
	s.Expect(s.pluginSucceeds(admin, drain...)).To(Equal([]string{object + " created", "nodemaintenance/rack drained"}))
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("on-k46-1", "on-k46-2"))
	spec := s.stored("rack").Spec
	s.Expect(spec.NodeSelector).To(Equal(v1alpha1.SelectNodes("k46-1", "k46-2")))
	s.Expect(spec.MaxParallelNodes.IntValue()).To(Equal(1))
	s.Expect(spec.Evacuation.Surge).To(Equal(v1alpha1.SurgeIfSingleReplica))
	s.Expect(spec.DrainRules).To(BeEmpty())
	s.Expect(spec.DrainPlan).To(HaveLen(1))
	s.Expect(spec.ExcludeFromLoadBalancers).To(BeTrue())
	s.Expect(s.pluginSucceeds(admin, drain...)).To(Equal([]string{object + " unchanged", "nodemaintenance/rack drained"}))
	s.Expect(s.pluginSucceeds(admin, "drain", "node", "k46-1", "k46-2", "--together", "rack", "--yes", "--spec", settings("excludeFromLoadBalancers: false"))[0]).
		To(Equal(object + " configured"))
	s.Expect(s.stored("rack").Spec.Evacuation.Surge).To(Equal(v1alpha1.SurgeIfSingleReplica), "what the file does not name stays")
	_, stderr, code = s.plugin(admin, "drain", "node", "k46-1", "--together", "rack", "--yes")
	s.Expect(code).To(Equal(1))
	s.Expect(stderr).To(ContainSubstring("NodeMaintenance rack does not select exactly Node k46-1"))
	s.Expect(s.pluginSucceeds(admin, "complete", "node", "k46-1", "--together", "rack")).To(Equal([]string{object + " deleted", "nodemaintenance/rack completed"}))
	s.expectReleased("k46-1")
	s.expectReleased("k46-2")
	s.expectInvariants()
}

func (s *scene) pluginDrainsMachine() {
	s.Helper()
	s.run(bare("on-m1", "m1"))
	admin := s.fleet.Management.AdminConfig()
	const object = "machine.cluster.x-k8s.io/m1"
	s.Expect(s.pluginSucceeds(admin, "cordon", "machine", "m1")).To(Equal([]string{object + " annotated", "machine/m1 cordoned"}))
	s.expectCordoned("m1")
	s.Expect(s.pluginSucceeds(admin, "drain", "node", "m1", "--yes", "--reason", "new disk")).To(Equal([]string{object + " annotated", "machine/m1 drained"}))
	s.Expect(s.evictions().Succeeded().Names()).To(ConsistOf("on-m1"))
	s.Expect(s.maintenanceOf("m1").Spec.Reason).To(HaveSuffix(": new disk"))
	_, stderr, code := s.plugin(admin, "cordon", "machine", "m1")
	s.Expect(code).To(Equal(1))
	s.Expect(stderr).To(ContainSubstring("stages only move forward"))
	s.Expect(s.pluginSucceeds(admin, "complete", "machine", "m1")).To(Equal([]string{object + " annotated", "machine/m1 completed"}))
	s.expectReleased("m1")
	s.Expect(s.maintenanceOf("m1")).To(BeNil())
	for annotation := range s.machine("m1").Annotations {
		s.Expect(annotation).NotTo(HavePrefix(v1alpha1.MachineStageAnnotation))
	}

	s.setPolicy(func(policy *v1alpha1.MachineDrainPolicy) {
		policy.Spec.MachineSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"managed": "yes"}}
	})
	_, stderr, code = s.plugin(admin, "drain", "machine", "m2", "--yes")
	s.Expect(code).To(Equal(1))
	s.Expect(stderr).To(ContainSubstring("No MachineDrainPolicy selects the Machine"))
	s.setPolicy(func(policy *v1alpha1.MachineDrainPolicy) { policy.Spec.MachineSelector = nil })
	s.pluginSucceeds(admin, "complete", "machine", "m2")
	s.expectInvariants()
}

func (s *scene) pluginAsks() {
	s.Helper()
	s.withNodes("k15")
	_, stderr, code := s.plugin(s.workload.AdminConfig(), "drain", "node", "k15")
	s.Expect(code).To(Equal(2))
	s.Expect(stderr).To(ContainSubstring("--yes"))
	_, stderr, code = s.plugin(s.workload.AdminConfig(), "drain", "node", "k15", "--yes", "--max-parallel", "1", "--wait=false")
	s.Expect(code).To(Equal(2))
	s.Expect(stderr).To(ContainSubstring("--max-parallel needs --wait"))
	_, stderr, code = s.plugin(s.workload.AdminConfig(), "drain", "node", "absent", "--yes")
	s.Expect(code).To(Equal(3))
	s.Expect(stderr).To(ContainSubstring("there is no Node absent"))

	s.Expect(s.answers("n\n", "drain", "node", "k15")).To(Equal(1))
	s.Expect(s.answers("\x03", "drain", "node", "k15")).To(Equal(130), "Ctrl-C at the question")
	s.Expect(s.audited().WithUserAgent(pluginAgent).Writes()).To(BeEmpty())
	s.Expect(s.answers("y\n", "drain", "node", "k15")).To(BeZero())
	s.Expect(s.stored("kubectl-k15").Spec.Stage).To(Equal(v1alpha1.StageDrain))
}

// answers runs the plugin on a terminal and types an answer when it asks. The plan must come before the question. It returns the exit code.
func (s *scene) answers(answer string, args ...string) int {
	s.Helper()
	path, err := pluginBinary()
	s.Expect(err).NotTo(HaveOccurred())
	command := exec.CommandContext(s.Context(), path, append(args, "--kubeconfig", s.kubeconfigFile(s.workload.AdminConfig()), "--cache-dir", s.TempDir())...)
	terminal, err := pty.Start(command)
	s.Expect(err).NotTo(HaveOccurred())
	screen := gbytes.BufferReader(terminal)
	s.Eventually(screen, soon, pace).Should(gbytes.Say(`(?s)Node k15.*Drain this Node\? \(y/N\): `))
	_, err = terminal.WriteString(answer)
	s.Expect(err).NotTo(HaveOccurred())
	_ = command.Wait() // the exit code is what counts
	s.Expect(terminal.Close()).To(Succeed())
	return command.ProcessState.ExitCode()
}

func (s *scene) pluginCompletes() {
	s.Helper()
	s.withNodes("n1", "n2")
	s.run(bare("on-n1", "n1"))
	tool, err := controlplane.Tool("kubectl")
	s.Expect(err).NotTo(HaveOccurred())
	plugin, err := pluginBinary()
	s.Expect(err).NotTo(HaveOccurred())
	bin := s.TempDir()
	for name, target := range map[string]string{"kubectl": tool, "kubectl-node_maintenance": plugin, "kubectl_complete-node_maintenance": plugin} {
		s.Expect(os.Symlink(target, filepath.Join(bin, name))).To(Succeed())
	}
	// completes waits for completions, which the plugin omits if it cannot read them within three seconds.
	completes := func(config *rest.Config, expected string, args ...string) {
		s.Helper()
		s.Eventually(func() (string, error) { // as the scripts of kubectl for bash, zsh and fish do
			command := exec.CommandContext(s.Context(), filepath.Join(bin, "kubectl"), append([]string{"__complete", "node-maintenance"}, args...)...)
			command.Env = append(os.Environ(), "PATH="+bin, "HOME="+bin, "KUBECONFIG="+s.kubeconfigFile(config))
			output, err := command.Output()
			return string(output), err
		}, soon, pace).Should(Equal(expected+":4\n"), "%q, and no files", args)
	}
	workload, management := s.workload.AdminConfig(), s.fleet.Management.AdminConfig()
	completes(workload, "machine\nnode\nmachinedeployment\n", "drain", "")
	completes(workload, "n1\nn2\n", "drain", "node", "n")
	completes(workload, "n2\n", "drain", "node", "n1", "n")
	completes(workload, "on-n1\n", "why", "pod", "-n", namespace, "on")
	completes(workload, "json\nyaml\nwide\nname\n", "plan", "-o", "")
	completes(management, "m1\nm2\n", "plan", "machine", "m")
	completes(management, "m1\nm2\n", "why", "node", "m")
	completes(management, "c1\n", "status", "cluster", "")
	completes(management, "kube-system\n", "status", "-n", "kube-s")
}

func (s *scene) pluginDrainsInParallel() {
	s.Helper()
	nodes := []string{"p1", "p2", "p3", "p4", "p5"} // kwok may ignore the Pods on a Node with the name of one that was deleted a moment before
	for _, node := range nodes {
		s.withNodes(node + " rack=7")
		s.run(bare("on-"+node, node))
	}
	output := s.pluginSucceeds(s.workload.AdminConfig(), "drain", "node", "-l", "rack=7", "--max-parallel", "2", "--yes")
	for _, node := range nodes {
		s.Expect(output).To(ContainElement("node/" + node + " drained"))
	}
	begun, ended := map[string]controlplane.Event{}, map[string]controlplane.Event{}
	events := s.audited()
	plugin := events.WithUserAgent(pluginAgent).Resource("nodemaintenances").Succeeded()
	s.Expect(plugin.Verb("create").Names()).To(HaveLen(len(nodes)))
	for _, event := range plugin.Verb("patch") {
		begun[strings.TrimPrefix(event.Name, "kubectl-")] = event
	}
	for _, event := range events.Verb("delete").Resource("pods").Succeeded() {
		ended[strings.TrimPrefix(event.Name, "on-")] = event
	}
	for _, node := range nodes {
		s.Expect(begun).To(HaveKey(node))
		s.Expect(ended).To(HaveKey(node))
		parallel := 0
		for _, other := range nodes {
			s.Expect(begun[node].Requested).To(BeTemporally(">", s.first(plugin.Verb("create").Named("", "kubectl-"+other)).Requested), "all Nodes are cordoned first")
			if !begun[other].Requested.After(begun[node].Requested) && ended[other].Requested.After(begun[node].Requested) {
				parallel++
			}
		}
		s.Expect(parallel).To(BeNumerically("<=", 2), "drains when that of %s began", node)
	}
	s.pluginSucceeds(s.workload.AdminConfig(), "complete", "node", "-l", "rack=7")
	s.expectReleased(nodes...)
	s.expectInvariants()
}

func (s *scene) pluginIsInterrupted() {
	s.Helper()
	s.withNodes("n4")
	s.run(bare("held", "n4", withApp("held")))
	s.create(s.workload.Client, budget("held", 0))
	admin := s.workload.AdminConfig()
	_, stderr, code := s.plugin(admin, "drain", "node", "n4", "--yes", "--timeout", "3s")
	s.Expect(code).To(Equal(1))
	s.Expect(stderr).To(ContainSubstring("The drain of node/n4 continues"))

	path, err := pluginBinary()
	s.Expect(err).NotTo(HaveOccurred())
	command := exec.CommandContext(s.Context(), path, "drain", "node", "n4", "--yes", "--kubeconfig", s.kubeconfigFile(admin), "--cache-dir", s.TempDir())
	said := gbytes.NewBuffer()
	command.Stderr = said
	s.Expect(command.Start()).To(Succeed())
	s.Eventually(said, soon, pace).Should(gbytes.Say("node/n4: .*PodDisruptionBudget default/held"))
	s.Expect(command.Process.Signal(os.Interrupt)).To(Succeed())
	s.Expect(command.Wait()).NotTo(Succeed())
	s.Expect(command.ProcessState.ExitCode()).To(Equal(130))
	s.Expect(string(said.Contents())).To(And(ContainSubstring("The drain of node/n4 continues"), ContainSubstring("complete node n4")))
	s.Expect(s.stored("kubectl-n4").Spec.Stage).To(Equal(v1alpha1.StageDrain))

	s.Expect(s.workload.Client.Delete(s.Context(), budget("held", 0))).To(Succeed())
	s.Eventually(func() error { return s.workload.Client.Get(s.Context(), keyOf("held"), &corev1.Pod{}) }, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
	s.expectInvariants()
}

func (s *scene) pluginDrainsWithRoles() {
	s.Helper()
	s.withNodes("n3") // kwok deletes a Pod that has the name of one that was deleted a moment before
	s.run(bare("on-n3", "n3"))
	management, workload := s.pluginUser("drainer", "management-drainer", "workload-drainer")
	s.pluginSucceeds(workload, "drain", "node", "n3", "--yes")
	s.pluginSucceeds(workload, "complete", "node", "n3")
	s.pluginSucceeds(management, "cordon", "machine", "m1")
	s.pluginSucceeds(management, "complete", "machine", "m1")

	s.grant(s.workload.Client, "workload-reader", "watcher")
	watcher, err := s.workload.ConfigFor("watcher")
	s.Expect(err).NotTo(HaveOccurred())
	_, stderr, code := s.plugin(watcher, "cordon", "node", "n3")
	s.Expect(code).To(Equal(1))
	s.Expect(stderr).To(MatchRegexp(`cannot (get|create) resource "nodemaintenances"`))
	s.Expect(apierrors.IsNotFound(s.workload.Client.Get(s.Context(), client.ObjectKey{Name: "kubectl-n3"}, &v1alpha1.NodeMaintenance{}))).To(BeTrue())
}

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"k8s.io/client-go/rest"

	"github.com/capnm/cluster-api-node-maintenance/drain/recording"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/terminal"
)

// atRest is how long the live view must send nothing. Watches are renewed after five to ten minutes.
const atRest = 10 * time.Second

// testPluginWatches is the part of TestPlugin that shows drains with the live view of the kubectl plugin, in a terminal and without one.
// There are no other Machines than watched and spare.
func (s *scene) testPluginWatches() {
	t := s.T
	defer s.cleanUp()
	s.runOn("watched", "web", 2, deployment("web", 2), budget("web", 0))

	view := s.watchInTerminal(s.fleet.Management.AdminConfig(), "status", "--watch")
	file := filepath.Join(s.TempDir(), "recording.jsonl")
	lines := s.watchLines(s.fleet.Management.AdminConfig(), "status", "--watch", "--record", file)
	shows := func(text string) {
		s.Helper()
		s.Eventually(view.Frame, soon, pace).Should(ContainSubstring(text))
	}
	shows("0 of 2 maintained")

	t.Run("K12: a workload cluster without maintained Machines is not contacted", func(t *testing.T) {
		s.part(t).Expect(s.pluginRequests()).To(BeEmpty())
	})

	s.deleteMachine("watched")
	web := s.podsOf("web")[0]
	shows("Waiting for PodDisruptionBudget")

	t.Run("K8: a blocked drain is shown with its Pods and what they wait for", func(t *testing.T) {
		s := s.part(t)
		s.Eventually(func(g Gomega) {
			e := s.evacuation(&web)
			g.Expect(e).NotTo(BeNil())
			g.Expect(view.Frame()).To(And(
				ContainSubstring("Pod "+namespace+"/"+web.Name), ContainSubstring(e.Status.Message), ContainSubstring("░░░░░░░░ 0/2")))
			g.Expect(lines()).To(And(ContainSubstring("Machine watched: Draining"), ContainSubstring(": "+e.Status.Message)))
		}, soon, pace).Should(Succeed())
	})

	t.Run("K11: at rest, the view sends nothing", func(t *testing.T) {
		s := s.part(t)
		s.expectWritesNothing()
		before := controlplane.Events{}
		s.Eventually(func() int { // it may still begin to watch when it shows the Pods
			requests := s.pluginRequests()
			sent := len(requests) - len(before)
			before = requests
			return sent
		}, eventually, atRest).Should(BeZero())
		s.Expect(before.Verb("watch")).NotTo(BeEmpty())
		s.Expect(view.Frame()).To(MatchRegexp(`Machine watched +░+ 0/2 +[1-9]`), "the elapsed time is known")
	})

	t.Run("K9: Enter explains the selected Pod", func(t *testing.T) {
		s := s.part(t)
		s.Expect(view.Press("/" + web.Name + "\rG\r")).To(Succeed())
		s.Eventually(view.Frame, soon, pace).Should(ContainSubstring("PLACE IN THE PLAN"))
		s.Expect(view.Press("\x1b")).To(Succeed())
		s.Eventually(view.Frame, soon, pace).Should(ContainSubstring("filter: " + web.Name))
		s.Expect(view.Press("\x1b")).To(Succeed())
	})

	t.Run("K8, K10, K75: the view shows the drain to its end, and what became of the evicted Pods", func(t *testing.T) {
		s := s.part(t)
		s.setBudget("web", 1)
		s.expectGone("watched")
		s.Eventually(view.Frame, soon, pace).Should(MatchRegexp(`Machine watched .* Deleted`))
		s.Eventually(lines, soon, pace).Should(And(ContainSubstring("Machine watched: Deleted"), ContainSubstring(": Evacuation ended")))
		s.Eventually(view.Frame, soon, pace).Should(MatchRegexp(`Machine watched +ended \d+s ago: 2 evicted: .*; read \d+s after the drain`))
		s.Eventually(lines, soon, pace).Should(ContainSubstring("After the drain of Machine watched: 2 evicted: "))
		s.Expect(view.Press("q")).To(Succeed())
		s.Eventually(view.Ended, soon, pace).Should(BeClosed())
		s.expectWritesNothing()
	})

	t.Run("K25, K26, K61, K65, K66: the recording tells what the audit log tells", func(t *testing.T) {
		s.part(t).recordingAgrees(file)
	})

	t.Run("K4, K12: the roles of the plugin suffice for the view, and a cluster that cannot be read is named", func(t *testing.T) {
		s.part(t).watchesWithRoles()
	})
}

// recordingAgrees compares the recording of the drain of Machine watched with the audit log.
func (s *scene) recordingAgrees(name string) {
	s.Helper()
	var h *recording.History
	s.Eventually(func() []recording.Drain { // the view may show a state before it is recorded
		h = s.recordingIn(name)
		return h.Drains
	}, soon, pace).Should(ConsistOf(And(HaveField("Gone", Not(BeZero())), HaveField("Pods", HaveEach(HaveField("Ended", BeTrue()))))))
	drain := h.Drains[0]
	s.Expect(drain.Machine).To(Equal(namespace + "/watched"))
	s.Expect(drain.End).NotTo(BeZero())

	var evicted []string
	for _, eviction := range s.evictions().Succeeded() {
		evicted = append(evicted, namespace+"/"+eviction.Name)
	}
	var ended []string
	for _, pod := range drain.Pods {
		ended = append(ended, pod.Name)
		eviction := s.first(s.evictions().Succeeded().Named(namespace, strings.TrimPrefix(pod.Name, namespace+"/")))
		s.Expect(pod.Ended).To(BeTrue())
		s.Expect(pod.End).To(BeTemporally(">", eviction.Requested))
		s.Expect(pod.Waits).To(ContainElement(HaveField("Object", "PodDisruptionBudget "+namespace+"/web")))
		s.Expect(pod.Start).To(BeTemporally("<=", eviction.Requested))
	}
	s.Eventually(func() []recording.Outcome { return s.recordingIn(name).Outcomes }, soon, pace).Should(ContainElement(And(
		HaveField("Machine", drain.Machine), HaveField("Read", Not(BeNil())), HaveField("Pods.Evicted", BeEquivalentTo(len(evicted))))))
	s.Expect(ended).To(ConsistOf(evicted)) // in any order: the garbage collector may delete several Evacuations at once
	s.Expect(h.Budgets).To(HaveLen(1))
	s.Expect(h.Effects).To(HaveLen(1))
	effect := &h.Effects[0]
	s.Expect(effect.Title()).To(Equal("Deployment " + namespace + "/web"))
	s.Expect(effect.Sentence()).To(Equal("1 of 2 ready at least, budget 1"), "the budget allowed one disruption at a time")
	s.Expect(effect.Ready).To(And(HaveEach(HaveField("Value", BeNumerically(">=", 1))), ContainElement(HaveField("Value", BeEquivalentTo(2)))))

	path, err := pluginBinary()
	s.Expect(err).NotTo(HaveOccurred())
	report, err := exec.CommandContext(s.Context(), path, "report", name, "-o", "md").Output()
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(string(report)).To(MatchRegexp(`Machine default/watched\*\*: Drained in .* waiting for PodDisruptionBudget default/web`))
	s.Expect(string(report)).To(ContainSubstring("- **Deployment default/web**: " + effect.Sentence() + "\n"))
}

// recordingIn reads a recording that has no gaps.
func (s *scene) recordingIn(name string) *recording.History {
	s.Helper()
	file, err := os.Open(name)
	s.Expect(err).NotTo(HaveOccurred())
	defer file.Close() //nolint:errcheck // it is only read
	h, err := recording.Read(file)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(h.Gaps).To(BeEmpty())
	return h
}

// watchesWithRoles runs on a Machine that exists.
func (s *scene) watchesWithRoles() {
	s.Helper()
	management, workload := s.pluginUser("watcher", "management-reader", "workload-reader")
	s.requestStage("spare", "Cordon")
	withoutSecret := s.watchLines(management, "status", "-w")
	s.Eventually(withoutSecret, soon, pace).Should(And(
		ContainSubstring("Not read: getting the kubeconfig"), ContainSubstring("Machine spare: "), ContainSubstring("After the drain of Machine watched: ")))
	recorded := filepath.Join(s.TempDir(), "recording.jsonl")
	withFile := s.watchLines(management, "status", "-w", "--record", recorded, "--workload-kubeconfig", s.kubeconfigFile(workload))
	s.Eventually(withFile, soon, pace).Should(MatchRegexp("NodeMaintenance spare-[0-9a-f]+: stage Cordon"))
	ofWorkload := s.watchLines(workload, "status", "-w", "node", "spare")
	s.Eventually(ofWorkload, soon, pace).Should(MatchRegexp("NodeMaintenance spare-[0-9a-f]+: stage Cordon"))
	s.Expect(withFile()).NotTo(ContainSubstring("Not read"))
	s.Eventually(func() ([]byte, error) { return os.ReadFile(recorded) }, soon, pace).Should(ContainSubstring(`"nodeMaintenance":`))
	s.Expect(ofWorkload()).NotTo(ContainSubstring("Not read"))
	s.requestStage("spare", "")
	s.expectReleased("spare")
}

// pluginRequests returns the requests of the plugin to the workload cluster.
func (s *scene) pluginRequests() controlplane.Events {
	s.Helper()
	return s.audited().WithUserAgent(pluginAgent)
}

// pluginCommand returns a command that runs the kubectl plugin until the end of the test.
func (s *scene) pluginCommand(config *rest.Config, args ...string) *exec.Cmd {
	s.Helper()
	path, err := pluginBinary()
	s.Expect(err).NotTo(HaveOccurred())
	return exec.CommandContext(s.Context(), path, append(args, "--kubeconfig", s.kubeconfigFile(config), "--cache-dir", s.TempDir())...)
}

func (s *scene) watchInTerminal(config *rest.Config, args ...string) *terminal.Terminal {
	s.Helper()
	view, err := terminal.Start(s.T, s.pluginCommand(config, args...), 240, 40, terminal.Dark)
	s.Expect(err).NotTo(HaveOccurred())
	s.Cleanup(func() {
		if s.Failed() {
			s.Logf("the last frame:\n%s", view.Frame())
		}
	})
	return view
}

// watchLines runs the plugin without a terminal until the end of the test, and returns a function that returns its output.
func (s *scene) watchLines(config *rest.Config, args ...string) func() string {
	s.Helper()
	command, output := s.pluginCommand(config, args...), gbytes.NewBuffer()
	command.Stdout, command.Stderr = output, output
	s.Expect(command.Start()).To(Succeed())
	s.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if s.Failed() {
			s.Logf("%s", output.Contents())
		}
	})
	return func() string { return string(output.Contents()) }
}

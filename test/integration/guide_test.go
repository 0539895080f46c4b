package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// guides is where the guides are.
const guides = "../../docs/guide/"

// block is a fenced block of a Markdown file that contains YAML to apply or commands to run.
var block = regexp.MustCompile("(?s)\n```(yaml|sh)\n(.*?\n)```\n")

// followGuide applies the YAML and runs the commands of the guide, block by block. It proves R42, the three stories with kubectl alone.
func followGuide(s *scene) {
	s.withNodes("worker-1", "worker-2", "worker-7 pool=general", "worker-9")
	s.run(bare("guide-batch", "worker-1"), bare("guide-web", "worker-2"), bare("guide-rest", "worker-9"))
	kubectl := s.newKubectl()
	said := kubectl.follow("nodemaintenance.md", func(done string) string {
		if !strings.Contains(done, "rollout status") {
			return ""
		}
		s.withNodes("worker-8 pool=general") // adds a second Node for the Pods
		return kubectl.run("kubectl get pods -l 'app in (ledger, index)' -o wide", "")
	})
	for _, expected := range []string{
		`NAME +STAGE +DRAINED +NODES +PENDING +EVACUATING +BLOCKING +AGE`,              // Story 1
		`SurgedForMaintenance +Deployment/ledger`, `SurgeCompleted +Deployment/ledger`, // Story 2
		`index-\S+ +migrator.example.com`,
		`nodemaintenance.maintenance.cluster.x-k8s.io/scale-down-worker-9 condition met`, // Story 3
	} {
		s.Expect(said).To(MatchRegexp(expected))
	}
	s.expectReleased("worker-1", "worker-2", "worker-7")
	s.Expect(s.evictions().Succeeded().Names()).To(ContainElements("guide-batch", "guide-web", "guide-rest"))
	s.expectInvariants()
	s.removeWorkloads()
}

// followAuthorsGuide runs the commands of the guide for authors of evacuators.
func followAuthorsGuide(s *scene) {
	s.withNodes("worker-3 pool=archive")
	said := s.newKubectl().follow("evacuators.md", nil)
	for _, expected := range []string{
		`archive +migrator.example.com .*Forbid +Copied 1 of 2 parts`,
		`nodemaintenance.maintenance.cluster.x-k8s.io "move-archive" deleted`,
	} {
		s.Expect(said).To(MatchRegexp(expected))
	}
	s.Expect(s.evictions()).To(BeEmpty())
	s.expectReleased("worker-3")
}

// TestAuthorsGuideQuotes checks that the guide quotes the code of test/evacuator (E17).
func TestAuthorsGuideQuotes(t *testing.T) {
	g := NewWithT(t)
	program, err := os.ReadFile("../evacuator/evacuator.go")
	g.Expect(err).NotTo(HaveOccurred())
	text, err := os.ReadFile(guides + "evacuators.md")
	g.Expect(err).NotTo(HaveOccurred())
	quotes := regexp.MustCompile("(?s)\n```go\n(.*?\n)```\n").FindAllStringSubmatch(string(text), -1)
	g.Expect(quotes).To(HaveLen(3))
	for _, quote := range quotes {
		g.Expect(string(program)).To(ContainSubstring(quote[1]))
	}
}

// kubectl runs commands as an administrator of the workload cluster.
type kubectl struct {
	*scene
	env []string
}

func (s *scene) newKubectl() kubectl {
	s.Helper()
	tool, err := controlplane.Tool("kubectl")
	s.Expect(err).NotTo(HaveOccurred())
	bin := s.TempDir()
	s.Expect(os.Symlink(tool, filepath.Join(bin, "kubectl"))).To(Succeed())
	return kubectl{scene: s, env: append(os.Environ(),
		"PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"),
		"KUBECONFIG="+filepath.Join(s.workload.Dir(), "admin.kubeconfig"), "HOME="+bin)}
}

// follow applies and runs the blocks of a guide. If then is not nil, follow calls it after each command. It returns the output.
func (k kubectl) follow(guide string, then func(done string) string) string {
	k.Helper()
	text, err := os.ReadFile(guides + guide)
	k.Expect(err).NotTo(HaveOccurred())
	blocks := block.FindAllStringSubmatch(string(text), -1)
	k.Expect(len(blocks)).To(BeNumerically(">=", 8))
	said := ""
	for _, each := range blocks {
		language, content := each[1], each[2]
		if language == "yaml" {
			said += k.run("kubectl apply --validate=strict -f -", content)
			continue
		}
		said += k.run(strings.ReplaceAll(content, "--timeout=1m", "--timeout="+soon.String()), "")
		if then != nil {
			said += then(content)
		}
	}
	return said
}

// run runs a script in a shell and returns its output. The script must succeed.
func (k kubectl) run(script, input string) string {
	k.Helper()
	ctx, cancel := context.WithTimeout(k.Context(), eventually)
	defer cancel()
	command := exec.CommandContext(ctx, "sh", "-euc", script)
	command.Env, command.Stdin, command.WaitDelay = k.env, strings.NewReader(input), time.Second
	output, err := command.CombinedOutput()
	k.Expect(err).NotTo(HaveOccurred(), "%s\n%s", script, output)
	k.Logf("%s\n%s", script, output)
	return string(output)
}

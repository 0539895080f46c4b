package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

const guide = "../../docs/guide/nodemaintenance.md"

// block is a fenced block of a Markdown file that somebody is to apply or to run.
var block = regexp.MustCompile("(?s)\n```(yaml|sh)\n(.*?\n)```\n")

// followGuide does what the guide says, block by block: YAML is applied, commands are run by a shell. It is R42, the three
// stories with kubectl alone.
func followGuide(s *scene) {
	s.withNodes("worker-1", "worker-2", "worker-7 pool=general", "worker-9")
	s.run(bare("guide-batch", "worker-1"), bare("guide-web", "worker-2"), bare("guide-rest", "worker-9"))
	kubectl := s.newKubectl()
	text, err := os.ReadFile(guide)
	s.Expect(err).NotTo(HaveOccurred())
	blocks := block.FindAllStringSubmatch(string(text), -1)
	s.Expect(len(blocks)).To(BeNumerically(">=", 10))
	said := ""
	for _, each := range blocks {
		language, content := each[1], each[2]
		if language == "yaml" {
			said += kubectl.run("kubectl apply --validate=strict -f -", content)
			continue
		}
		said += kubectl.run(content, "")
		if strings.Contains(content, "rollout status") { // from here on there is a second Node for the Pods
			s.withNodes("worker-8 pool=general")
			said += kubectl.run("kubectl get pods -l 'app in (ledger, index)' -o wide", "")
		}
	}
	for _, expected := range []string{
		`NAME +STAGE +DRAINED +NODES +PENDING +EVACUATING +BLOCKING +AGE`, // Story 1, in a glance
		`ledger-\S+ .*waiting for disruption budget default/ledger`,       // Story 2, who waits for what
		`index-\S+ +migrator.example.com`,
		`nodemaintenance.maintenance.cluster.x-k8s.io/scale-down-worker-9 condition met`, // Story 3
	} {
		s.Expect(said).To(MatchRegexp(expected))
	}
	s.expectReleased("worker-1", "worker-2", "worker-7")
	s.Expect(s.evictions().Succeeded().Names()).To(ContainElements("guide-batch", "guide-web", "guide-rest"))
	s.expectInvariants()
	s.clear()
}

// kubectl runs commands as an administrator of the workload cluster does.
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

// run has a shell run a script, which must succeed, and returns what it says.
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

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// plugin is the kubectl plugin, with flags that select a cluster.
type plugin struct {
	path  string
	flags []string
}

// buildPlugin builds the kubectl plugin.
func buildPlugin(ctx context.Context, flags ...string) plugin {
	GinkgoHelper()
	p := plugin{path: filepath.Join(artifacts, "kubectl-node_maintenance"), flags: flags}
	run(ctx, "go", "build", "-C", root, "-o", p.path, "./cmd/kubectl-node_maintenance")
	return p
}

func (p plugin) command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, p.path, append(args, p.flags...)...)
}

// output runs a command and returns what it writes. The exit code of a report is not zero if something blocks a drain.
func (p plugin) output(ctx context.Context, args ...string) string {
	output, _ := p.command(ctx, args...).CombinedOutput()
	return string(output)
}

// run runs a command that must succeed and returns its standard output.
func (p plugin) run(ctx context.Context, name string, args ...string) string {
	GinkgoHelper()
	return runCommand(p.command(ctx, append([]string{name}, args...)...))
}

// recording is a command that records drains.
type recording struct {
	file    string
	command *exec.Cmd
}

// record starts to record drains.
func (p plugin) record(ctx context.Context) recording {
	GinkgoHelper()
	r := recording{file: filepath.Join(GinkgoT().TempDir(), "recording.jsonl")}
	r.command = p.command(ctx, "status", "--watch", "--record", r.file)
	Expect(r.command.Start()).To(Succeed())
	Eventually(r.file, eventually, pace).Should(BeAnExistingFile())
	return r
}

// stop ends the recording as Ctrl-C does and returns it.
func (r recording) stop() string {
	GinkgoHelper()
	Expect(r.command.Process.Signal(os.Interrupt)).To(Succeed())
	_ = r.command.Wait()
	Expect(r.command.ProcessState.ExitCode()).To(Equal(130), "the exit code after Ctrl-C")
	return read(r.file)
}

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// timeout is far more than the demo takes anywhere.
const timeout = 10 * time.Minute

// errInterrupted ends the demo when its audience leaves.
var errInterrupted = errors.New("interrupted")

func main() {
	os.Exit(run())
}

// run returns the exit status: 0 if all promises were kept, 1 if one wasn't or the demo failed, 130 after Ctrl-C.
func run() int {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		signal.Stop(signals) // the next one ends the process at once, and all it has started
		cancel(errInterrupted)
	}()

	p := &play{screen: newScreen(os.Stdout), observer: newObserver()}
	kept, err := p.perform(ctx)
	switch {
	case err == nil && kept:
		return p.end(ctx, 0)
	case errors.Is(err, errInterrupted):
		p.leave()
		p.say("\nInterrupted: cleaning up")
		return p.end(ctx, 130)
	case err != nil:
		p.leave()
		p.explain(err)
	}
	if !keepRunning() {
		p.keepLogs()
	}
	return p.end(ctx, 1)
}

// perform plays all acts, and says whether all promises were kept.
func (p *play) perform(ctx context.Context) (kept bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errors.Errorf("the demo takes longer than %s", timeout))
	defer cancel()
	// The watches outlive an act, and end with the process.
	p.title("Starting a management cluster and a workload cluster")
	if err := p.act(ctx, "starting control planes and managers", p.raise); err != nil {
		return false, err
	}
	p.title("Creating a Cluster of %d workers, a MachineDrainPolicy, two MachineDrainRules and applications", workers)
	if err := p.act(ctx, "creating Cluster and applications", p.populate); err != nil {
		return false, err
	}
	p.title("Act one: one Machine goes")
	if err := p.act(ctx, "deleting one Machine", p.drain); err != nil {
		return false, err
	}
	p.title("Act two: all Machines are replaced")
	if err := p.act(ctx, "rolling out the MachineDeployment", p.rollout); err != nil {
		return false, err
	}
	return p.judge()
}

// judge collects the evidence and reports.
func (p *play) judge() (kept bool, err error) {
	var e evidence
	p.look(func(w *world) { e = w.evidence() })
	if e.Workload, err = p.workload.Audit().Since(controlplane.Mark{}); err != nil {
		return false, err
	}
	if e.Management, err = p.fleet.Management.Audit().Since(controlplane.Mark{}); err != nil {
		return false, err
	}
	return summarize(p.screen, p.laps, e, checkAll(e)), nil
}

// explain says what went wrong, and where to look.
func (p *play) explain(err error) {
	p.say("\n%s the demo failed: %v", p.mark(false), err)
	if p.fleet != nil && p.fleet.Manager != nil {
		p.say("\nThe manager's log ends with:\n%s", p.fleet.Manager.LogTail(20))
	}
}

// keepRunning says whether all is to be left running for a look around.
func keepRunning() bool { return os.Getenv("KEEP") != "" }

// end leaves all running if it is asked to, until Ctrl-C, and then cleans up.
func (p *play) end(ctx context.Context, status int) int {
	if keepRunning() && p.fleet != nil && ctx.Err() == nil {
		p.invite()
		<-ctx.Done()
		p.say("\nCleaning up")
	}
	if err := p.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "demo: cleaning up:", err)
		status = max(status, 1)
	}
	return status
}

// stop ends all processes and removes all files.
func (p *play) stop() error {
	var err error
	if p.fleet != nil {
		err = p.fleet.Stop()
	}
	return err
}

// keepLogs leaves the logs behind when all ends.
func (p *play) keepLogs() {
	if p.fleet == nil {
		p.say("\nWith %s=1 the logs of control planes that don't start are kept, in %s", controlplane.KeepDirVariable, os.TempDir())
		return
	}
	p.fleet.Management.KeepLogs()
	p.workload.KeepLogs()
	p.say("\nLogs are kept in %s and %s", p.managementLogs(), p.workloadLogs())
}

func (p *play) managementLogs() string { return filepath.Join(p.fleet.Management.Dir(), "log") }
func (p *play) workloadLogs() string   { return filepath.Join(p.workload.Dir(), "log") }

// invite says how to look around in what is left running.
func (p *play) invite() {
	kubectl, err := controlplane.Tool("kubectl")
	if err != nil {
		kubectl = "kubectl"
	}
	p.title("All of it is still running. To look around, in another terminal:")
	p.say(`
  alias management="%[1]s --kubeconfig %[2]s"
  alias workload="%[1]s --kubeconfig %[3]s"

  management get machines,machinedrainpolicies,machinedrainrules
  workload get nodes,nodemaintenances
  workload get pods -A -o wide

  # drain one more: watch it in the one terminal, delete it in the other
  workload get nodemaintenances -w
  management delete machine $(management get machines -o name -l %[4]s | head -1 | cut -d/ -f2)

  # or without Cluster API: what is the intent, and what does it wait for
  workload explain nodemaintenance.spec
  workload get nodemaintenances -o yaml

Logs are in %[5]s and %[6]s.
Ctrl-C ends all of it.`, kubectl, filepath.Join(p.fleet.Management.Dir(), "admin.kubeconfig"), filepath.Join(p.workload.Dir(), "admin.kubeconfig"),
		"cluster.x-k8s.io/deployment-name="+pool, p.managementLogs(), p.workloadLogs())
}

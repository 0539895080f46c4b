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

	"github.com/capnm/cluster-api-node-maintenance/test/chaos"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// timeout is much longer than the demo takes on a slow machine.
const timeout = 10 * time.Minute

// errInterrupted stops the demo on Ctrl-C.
var errInterrupted = errors.New("interrupted")

func main() {
	switch {
	case len(os.Args) == 1:
		os.Exit(run((*play).perform))
	case len(os.Args) == 2 && os.Args[1] == "sandbox":
		os.Exit(run(func(p *play, ctx context.Context) (bool, error) { return true, p.sandbox(ctx) }))
	default:
		fmt.Fprintln(os.Stderr, "usage: demo [sandbox]")
		os.Exit(2)
	}
}

// run returns the exit status: 0 if all checks passed, 1 if one or the demo failed, 130 after Ctrl-C.
func run(perform func(*play, context.Context) (bool, error)) int {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		signal.Stop(signals) // the next one kills the process and its children
		cancel(errInterrupted)
	}()

	p := &play{screen: newScreen(os.Stdin, os.Stdout), observer: newObserver(), interrupt: func() { cancel(errInterrupted) }}
	kept, err := perform(p, ctx)
	switch {
	case err == nil && kept:
		return p.end(ctx, 0)
	case errors.Is(err, errInterrupted):
		p.say("\nInterrupted: cleaning up")
		return p.end(ctx, 130)
	case err != nil:
		p.explain(err)
	}
	if !keepRunning() {
		p.keepLogs()
	}
	return p.end(ctx, 1)
}

// perform runs all acts, and returns whether all checks passed.
func (p *play) perform(ctx context.Context) (kept bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errors.Errorf("the demo took longer than %s", timeout))
	defer cancel()
	// The watches run until the process exits, not only for an act.
	p.title("Starting a management cluster and a workload cluster")
	if err := p.act(ctx, "starting control planes and managers", p.raise); err != nil {
		return false, err
	}
	if err := p.act(ctx, "building the kubectl plugin", p.equip); err != nil {
		return false, err
	}
	p.title("Creating a Cluster of %d workers, a MachineDrainPolicy, two MachineDrainRules and applications", workers)
	if err := p.act(ctx, "creating Cluster and applications", p.populate); err != nil {
		return false, err
	}
	report, err := p.record(ctx)
	if err != nil {
		return false, err
	}
	recording, err := chaos.Record(ctx, p.fleet, p.workload)
	if err != nil {
		return false, err
	}
	p.title("Act one: one Machine is deleted")
	if err := p.act(ctx, "deleting one Machine", p.drain); err != nil {
		return false, err
	}
	p.title("Act two: all Machines are replaced")
	if err := p.act(ctx, "rolling out the MachineDeployment", p.rollout); err != nil {
		return false, err
	}
	if err := report(); err != nil {
		return false, err
	}
	history, err := recording.Stop(ctx)
	if err != nil {
		return false, err
	}
	p.look(func(w *world) { kept = summarize(p.screen, p.laps, history, w) })
	return kept, nil
}

// explain prints an error and the end of the manager's log.
func (p *play) explain(err error) {
	p.say("\n%s the demo failed: %v", p.mark(false), err)
	if p.fleet != nil && p.fleet.Manager != nil {
		p.say("\nThe manager's log ends with:\n%s", p.fleet.Manager.LogTail(20))
	}
}

// keepRunning returns whether the clusters are kept running.
func keepRunning() bool { return os.Getenv("KEEP") != "" }

// end keeps the clusters running until Ctrl-C if KEEP is set, and then cleans up.
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

// stop stops all processes and removes all files.
func (p *play) stop() error {
	var err error
	if p.fleet != nil {
		err = p.fleet.Stop()
	}
	return err
}

// keepLogs keeps the logs of the control planes.
func (p *play) keepLogs() {
	if p.fleet == nil {
		p.say("\nSet %s=1 to keep the logs of control planes that do not start, in %s", controlplane.KeepDirVariable, os.TempDir())
		return
	}
	p.fleet.Management.KeepLogs()
	p.workload.KeepLogs()
	p.say("\nLogs are kept in %s and %s", p.managementLogs(), p.workloadLogs())
}

func (p *play) managementLogs() string { return filepath.Join(p.fleet.Management.Dir(), "log") }
func (p *play) workloadLogs() string   { return filepath.Join(p.workload.Dir(), "log") }

// invite prints commands to inspect the running clusters.
func (p *play) invite() {
	kubectl, err := controlplane.Tool("kubectl")
	if err != nil {
		kubectl = "kubectl"
	}
	p.title("The clusters are still running. To inspect them, in another terminal:")
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

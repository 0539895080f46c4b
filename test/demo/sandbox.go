package main

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"

	"github.com/pkg/errors"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// thingsToTry is shown in the sandbox.
const thingsToTry = `
kubectl, the plugin and two contexts are set up: management (current) and workload. Everything ends with this shell. Things to try:

  kubectl get machines
  MACHINE=$(kubectl get machines -o name -l cluster.x-k8s.io/deployment-name=workers | head -1 | cut -d/ -f2)

  # What would a deletion do? See the warnings: no other Node suits the Pods of ledger (local volumes) and render (nodeSelector), and no
  # controller recreates console
  kubectl node-maintenance plan machine $MACHINE

  # Make the budget of web unsatisfiable, and predict again
  kubectl --context workload -n web patch pdb web --type merge -p '{"spec":{"maxUnavailable":0}}'
  kubectl node-maintenance plan machine $MACHINE

  # Delete the Machine, watch its drain until Ctrl-C, and ask why it is still there
  RECORDING=$(mktemp -u)
  kubectl delete machine $MACHINE --wait=false
  kubectl node-maintenance status --watch --record $RECORDING
  kubectl node-maintenance why machine $MACHINE

  # Let the drain continue
  kubectl --context workload -n web patch pdb web --type merge -p '{"spec":{"maxUnavailable":2}}'
  kubectl node-maintenance status

  # What did it wait for while you watched?
  kubectl node-maintenance report $RECORDING -o md

  # What became of the Pods of which plan warned? Those of ledger and render stay Pending, and console is gone
  kubectl --context workload get pods -A --field-selector status.phase=Pending
`

// sandbox starts the clusters of the demo and a shell with kubectl and the plugin. It returns when the shell ends.
func (p *play) sandbox(ctx context.Context) error {
	p.title("Starting a management cluster and a workload cluster")
	if err := p.act(ctx, "starting control planes and managers", p.raise); err != nil {
		return err
	}
	p.title("Creating a Cluster of %d workers, a MachineDrainPolicy, two MachineDrainRules and applications", workers)
	if err := p.act(ctx, "creating Cluster and applications", p.populate); err != nil {
		return err
	}
	if err := p.act(ctx, "creating applications that a drain hurts", p.addHurt); err != nil {
		return err
	}
	if err := p.equip(ctx); err != nil {
		return err
	}
	p.say("%s", thingsToTry)
	shell := os.Getenv("SHELL")
	if shell == "" {
		shell = "/bin/sh"
	}
	command := exec.CommandContext(ctx, shell)
	command.Env, command.Stdin, command.Stdout, command.Stderr = p.tools.environment, os.Stdin, os.Stdout, os.Stderr
	// Ctrl-C is for the programs in the shell. They would inherit that it is ignored, but not that it is caught here, without effect.
	signal.Reset(os.Interrupt)
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	_ = command.Run() // the status is that of the last command in the shell
	p.title("Cleaning up")
	return nil
}

// tools are a directory with kubectl, the plugin and a kubeconfig of both clusters.
type tools struct {
	plugin      string   // its path
	environment []string // of programs that use them
}

// pluginBinary builds the kubectl plugin once.
var pluginBinary = sync.OnceValues(func() (string, error) { return fleet.Build("./cmd/kubectl-node_maintenance") })

// equip writes the tools.
func (p *play) equip(context.Context) error {
	directory := p.fleet.Management.Dir()
	bin := filepath.Join(directory, "bin")
	if err := os.MkdirAll(bin, 0o700); err != nil {
		return errors.Wrap(err, "creating a directory for programs")
	}
	kubectl, err := controlplane.Tool("kubectl")
	if err != nil {
		return err
	}
	if err := os.Symlink(kubectl, filepath.Join(bin, "kubectl")); err != nil {
		return errors.Wrap(err, "linking kubectl")
	}
	built, err := pluginBinary()
	if err != nil {
		return err
	}
	p.tools.plugin = filepath.Join(bin, "kubectl-node_maintenance")
	if err := os.Symlink(built, p.tools.plugin); err != nil {
		return errors.Wrap(err, "linking the plugin")
	}
	if err := os.Symlink("kubectl-node_maintenance", filepath.Join(bin, "kubectl_complete-node_maintenance")); err != nil {
		return errors.Wrap(err, "linking the completion of the plugin")
	}
	kubeconfig, err := p.kubeconfig()
	if err != nil {
		return err
	}
	file := filepath.Join(directory, "sandbox.kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig, file); err != nil {
		return errors.Wrap(err, "writing the kubeconfig")
	}
	p.tools.environment = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"), "KUBECONFIG="+file)
	return nil
}

// kubeconfig has the contexts management and workload.
func (p *play) kubeconfig() (*clientcmdapi.Config, error) {
	merged := clientcmdapi.NewConfig()
	for name, cluster := range map[string]*controlplane.ControlPlane{"management": p.fleet.Management, "workload": p.workload.ControlPlane} {
		one, err := clientcmd.LoadFromFile(filepath.Join(cluster.Dir(), "admin.kubeconfig"))
		if err != nil {
			return nil, errors.Wrapf(err, "reading the kubeconfig of the %s cluster", name)
		}
		current := one.Contexts[one.CurrentContext]
		merged.Clusters[name], merged.AuthInfos[name] = one.Clusters[current.Cluster], one.AuthInfos[current.AuthInfo]
		merged.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: namespace}
	}
	merged.CurrentContext = "management"
	return merged, nil
}

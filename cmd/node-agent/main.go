// Command node-agent is the agent that runs on each Node: see exp/nodeagent.
//
//	node-agent        # runs the agent
//	node-agent lock   # holds a second lock, in a separate container
//	node-agent ready  # succeeds if the agent can delay a shutdown and terminate Pods, as a readiness probe
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/pkg/errors"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/cluster"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/containers"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/kubelet"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/logind"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/manifests"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

const tokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token" //nolint:gosec // a path

type options struct{ config, dbus, cri, staticPods, state string }

func main() {
	var o options
	flag.StringVar(&o.config, "config", "/etc/node-agent/config.yaml",
		"Configuration of the shutdown. If the file does not exist, the defaults apply. A label of the Node can select another file in the same directory.")
	flag.StringVar(&o.dbus, "system-bus", "/run/dbus/system_bus_socket", "Socket of the system bus.")
	flag.StringVar(&o.cri, "container-runtime", "/run/containerd/containerd.sock,/run/crio/crio.sock",
		"Sockets of container runtimes, separated by commas. The agent uses the one that runs its own Pod.")
	flag.StringVar(&o.staticPods, "static-pod-path", "/etc/kubernetes/manifests", "Directory of the manifests of static Pods: the kubelet's staticPodPath.")
	flag.StringVar(&o.state, "state", "/run/node-agent", "Directory for state that outlives the process but not a reboot.")
	klog.InitFlags(nil)
	flag.Parse()
	if err := neverBlock(syscall.Stderr); err != nil {
		klog.Background().Error(err, "The agent may wait for the container runtime to read its output")
	}
	if err := run(o, flag.Arg(0)); err != nil {
		fmt.Fprintf(os.Stderr, "node-agent: %v\n", err)
		os.Exit(1)
	}
}

// neverBlock has writes to a pipe fail while it is full. The container runtime reads the agent's output. While it does not run, lines are
// lost instead of blocking an agent that has to carry out a shutdown.
func neverBlock(pipe int) error {
	return errors.Wrap(syscall.SetNonblock(pipe, true), "setting the output to non-blocking")
}

func run(o options, mode string) error {
	state := nodeagent.State{Dir: o.state, Process: mode}
	if mode == "ready" {
		if !state.Ready() {
			return errors.Errorf("the agent cannot delay a shutdown or terminate Pods: see condition %s of the Node", v1alpha1.NodeAgentReady)
		}
		return nil
	}
	configs := nodeagent.Configs{File: o.config}
	config := configs.For(nil, nodeagent.Settings{Config: shutdown.Defaults()}).Config
	if stored := state.Config(); stored != nil {
		config = *stored
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	keeper := &logind.Keeper{Socket: o.dbus, Who: "node-agent", Why: "the Node is drained and its Pods are terminated first"}
	keeper.DelayFor(shutdown.Total(config.Phases()), config.LogindDropInDir)
	agent := &nodeagent.Agent{Node: os.Getenv("NODE_NAME"), PodUID: os.Getenv("POD_UID"), Configs: configs, State: state, Keeper: keeper}
	if agent.Node == "" || agent.PodUID == "" {
		return errors.New("NODE_NAME or POD_UID is empty")
	}
	var err error
	if agent.Runtime, err = containers.Connect(agent.PodUID, strings.Split(o.cri, ",")...); err != nil {
		return err
	}
	switch mode {
	case "lock":
		keeper.Who = "node-agent-lock"
		var running sync.WaitGroup
		defer running.Wait()
		running.Go(func() { keeper.Run(ctx) })
		nodeagent.KeepLock(ctx, config, agent)
		return nil
	case "":
		return serve(ctx, o, config, agent)
	default:
		return errors.Errorf("unknown command %q: use lock, ready or none", mode)
	}
}

func serve(ctx context.Context, o options, config shutdown.Config, agent *nodeagent.Agent) error {
	if err := agent.State.SetRunning(); err != nil {
		klog.FromContext(ctx).Error(err, "If the process of the agent ends in a shutdown, the second container does not terminate the Pods that remain")
	}
	restConfig, err := rest.InClusterConfig()
	if err != nil {
		return errors.Wrap(err, "reading the configuration of the Pod's cluster")
	}
	if agent.Cluster, err = cluster.New(restConfig, agent.Node); err != nil {
		return err
	}
	agent.Kubelet, agent.Manifests = kubelet.New(tokenFile), manifests.Store{Dir: o.staticPods}
	agent.Run(ctx, config)
	return nil
}

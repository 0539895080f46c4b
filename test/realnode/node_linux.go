package realnode

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/realnode/spec"
)

// startTimeout is generous: a start takes seconds, but more on a small or busy machine.
const startTimeout = 3 * time.Minute

// Options of a node.
type Options struct {
	// Name of the Node.
	Name string
	// Labels are the labels with which the kubelet registers the Node.
	Labels map[string]string
	// ProviderID of the Node.
	ProviderID string
	// InhibitDelayMax is the maximum delay that logind allows, unless a drop-in overrides it. Default: 5 s, as in systemd.
	InhibitDelayMax time.Duration
	// ShutdownGracePeriod and ShutdownGracePeriodCriticalPods are those of the kubelet's own graceful shutdown. Default: off.
	ShutdownGracePeriod, ShutdownGracePeriodCriticalPods time.Duration
	// KubeletUnit is the name of the unit that runs the kubelet. Default: kubelet.service.
	KubeletUnit string
	// CRIO is true if the container runtime is CRI-O: see HasCRIO. Default: containerd.
	CRIO bool
	// Programs maps the names of further images to the path of a static program, which becomes the only file and the entrypoint.
	Programs map[string]string
}

// Node is a real node. The kernel kills it with the test process.
type Node struct {
	options Options
	cluster *controlplane.ControlPlane
	client  client.Client
	dir     string
	cgroups cgroups
	port    int
	release func()
	guest   string
	process *controlplane.Process
}

// Start starts a node and returns when it is Ready.
func Start(ctx context.Context, cluster *controlplane.ControlPlane, options Options) (_ *Node, err error) {
	if options.InhibitDelayMax == 0 {
		options.InhibitDelayMax = 5 * time.Second
	}
	options.KubeletUnit = cmp.Or(options.KubeletUnit, spec.Kubelet)
	n := &Node{options: options, cluster: cluster}
	defer func() {
		if err != nil {
			_ = n.Stop()
		}
	}()
	if n.client, err = client.New(cluster.AdminConfig(), client.Options{}); err != nil {
		return nil, errors.Wrap(err, "creating a client")
	}
	if n.dir, err = os.MkdirTemp("", "realnode-"+options.Name+"-"); err != nil {
		return nil, errors.Wrap(err, "creating the node's directory")
	}
	if n.port, n.release, err = controlplane.ReservePort(); err != nil {
		return nil, err
	}
	if n.cgroups, err = makeCgroups("capnm-" + filepath.Base(n.dir)); err != nil {
		return nil, err
	}
	if err := n.writeFiles(); err != nil {
		return nil, err
	}
	return n, n.Boot(ctx)
}

// ForTest starts a node and stops it at the end of the test. If the test fails, it keeps the logs of the node.
func ForTest(t testing.TB, cluster *controlplane.ControlPlane, options Options) *Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	n, err := Start(ctx, cluster, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("node %s: logs are kept in %s; its journal:\n%s", n.Name(), n.keepLogs(), n.Journal())
		}
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// Name returns the name of the Node.
func (n *Node) Name() string { return n.options.Name }

// Boot switches the node on, and returns when this boot has set the condition Ready of the Node to True.
func (n *Node) Boot(ctx context.Context) error {
	if err := n.resetReadyCondition(ctx); err != nil {
		return err
	}
	if err := n.SwitchOn(ctx); err != nil {
		return err
	}
	return errors.Wrapf(wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if n.Off() {
			return false, errors.Errorf("the node is off; its log ends:\n%s", n.process.Log())
		}
		node := &corev1.Node{}
		if err := n.client.Get(ctx, types.NamespacedName{Name: n.Name()}, node); err != nil {
			return false, client.IgnoreNotFound(err)
		}
		return util.IsNodeReady(node), nil
	}), "waiting for node %s to be ready", n.Name())
}

// resetReadyCondition sets the condition Ready of the Node to Unknown, so that Boot does not observe the one of an earlier boot.
func (n *Node) resetReadyCondition(ctx context.Context) error {
	node := &corev1.Node{}
	switch err := n.client.Get(ctx, types.NamespacedName{Name: n.Name()}, node); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return errors.Wrap(err, "getting the Node")
	}
	changed := node.DeepCopy()
	for i := range changed.Status.Conditions {
		if changed.Status.Conditions[i].Type == corev1.NodeReady {
			changed.Status.Conditions[i].Status = corev1.ConditionUnknown
		}
	}
	return errors.Wrap(n.client.Status().Patch(ctx, changed, client.MergeFrom(node)), "resetting the condition Ready of the Node")
}

// SwitchOn switches the node on without waiting.
func (n *Node) SwitchOn(ctx context.Context) error {
	if err := n.cgroups.clear(); err != nil {
		return err
	}
	config := spec.Node{
		Dir: n.dir, KubeletArgs: n.kubeletArgs(), KubeletUnit: n.options.KubeletUnit, InhibitDelayMax: n.options.InhibitDelayMax, CRIO: n.options.CRIO,
	}
	var err error
	if config.Images, err = n.images(); err != nil {
		return err
	}
	content, err := json.Marshal(config)
	if err != nil {
		return errors.Wrap(err, "describing the node")
	}
	file := filepath.Join(n.dir, "node.json")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		return errors.Wrap(err, "describing the node")
	}
	n.process, err = controlplane.RunProcess(ctx, controlplane.ProcessSpec{
		Name: "node " + n.Name(), Path: n.guest, Args: []string{"boot", file},
		LogFile: filepath.Join(n.dir, "log", "node.log"),
	})
	return err
}

// Off returns whether the node is off.
func (n *Node) Off() bool {
	select {
	case <-n.process.Done():
		return true
	default:
		return false
	}
}

// CutPower kills all processes of the node.
func (n *Node) CutPower() { n.process.Kill() }

// Stop cuts the power and removes the node's cgroups and directory.
func (n *Node) Stop() error {
	if n.process != nil {
		n.process.Kill()
	}
	if n.release != nil {
		n.release()
	}
	if err := n.cgroups.remove(); err != nil {
		return err
	}
	return errors.Wrap(os.RemoveAll(n.dir), "removing the node's directory")
}

// keepLogs moves the logs to a directory that outlives the node, and returns its path.
func (n *Node) keepLogs() string {
	kept := fmt.Sprintf("%s.log", n.dir)
	_ = os.Rename(filepath.Join(n.dir, "log"), kept)
	_ = os.Rename(filepath.Join(n.dir, "var-log", "pods"), filepath.Join(kept, "pods"))
	return kept
}

// init returns the process ID, on the host, of process 1 of the node.
func (n *Node) init() (int, error) {
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", n.process.PID(), n.process.PID()))
	if err != nil {
		return 0, errors.Wrap(err, "finding process 1 of the node")
	}
	var pid int
	if _, err := fmt.Sscan(string(children), &pid); err != nil {
		return 0, errors.Wrap(err, "finding process 1 of the node")
	}
	return pid, nil
}

// RestartDBus restarts the node's bus.
func (n *Node) RestartDBus() error { return n.signal(syscall.SIGUSR1) }

// RestartLogind restarts logind, which loses its locks.
func (n *Node) RestartLogind() error { return n.signal(syscall.SIGUSR2) }

func (n *Node) signal(s syscall.Signal) error {
	pid, err := n.init()
	if err != nil {
		return err
	}
	return errors.Wrap(syscall.Kill(pid, s), "signaling process 1 of the node")
}

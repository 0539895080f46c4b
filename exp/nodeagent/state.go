package nodeagent

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/logind"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

// State is what outlives the agent's process but not a reboot. It is a directory in memory that the containers of the agent's Pod share.
type State struct {
	Dir string
	// Process is the name of this process. Both containers write the same files, and have the same process ID.
	Process string
}

// Shutdown is a shutdown in progress, or one that was cancelled.
type Shutdown struct {
	// Since is when the agent first observed the shutdown, as uptime: the clock may be set before another process reads it.
	Since time.Duration `json:"since"`
	// Released is true when the agent has released its lock. The second lock is then released, too.
	Released bool `json:"released"`
	// Cancelled is true when the shutdown was cancelled and its NodeMaintenance has to be completed.
	Cancelled bool `json:"cancelled,omitempty"`
}

// continues reports whether this can be the shutdown in progress: the agent delays a shutdown for at most budget. Otherwise it is an
// earlier one that was cancelled, or the agent has already released its lock.
func (s *Shutdown) continues(budget time.Duration) bool {
	return s != nil && !s.Cancelled && uptime()-s.Since <= budget
}

// begin returns when the agent first observed the shutdown.
func (s *Shutdown) begin() time.Time { return time.Now().Add(s.Since - uptime()) }

// uptime returns the time since the boot, without that in which the machine was suspended. logind measures its delay with this clock, too.
func uptime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil { // not on Linux
		return 0
	}
	return time.Duration(now.Nano())
}

const (
	shutdownFile = "shutdown.json"
	podsFile     = "pods.json"
	kubeletFile  = "kubelet.json"
	configFile   = "config.json"
	readyFile    = "ready"
	stoppedFile  = "kubelet-stopped"
	runningFile  = "agent-runs"
)

// Shutdown returns the stored shutdown, or nil.
func (s State) Shutdown() *Shutdown {
	shutdown := &Shutdown{}
	if !s.read(shutdownFile, shutdown) {
		return nil
	}
	return shutdown
}

// SetShutdown stores a shutdown.
func (s State) SetShutdown(shutdown Shutdown) error { return s.write(shutdownFile, shutdown) }

// ClearShutdown removes the stored shutdown.
func (s State) ClearShutdown() error {
	if err := os.Remove(filepath.Join(s.Dir, shutdownFile)); err != nil && !os.IsNotExist(err) {
		return errors.Wrap(err, "removing the stored shutdown")
	}
	return nil
}

// Config returns the configuration that the agent uses, nil if none is stored.
func (s State) Config() *shutdown.Config {
	config := &shutdown.Config{}
	if !s.read(configFile, config) {
		return nil
	}
	return config
}

// SetConfig stores the configuration that the agent uses.
func (s State) SetConfig(config shutdown.Config) error { return s.write(configFile, config) }

// KnownPods returns what the kubelet has last reported about its Pods, by UID.
func (s State) KnownPods() map[string]shutdown.Known {
	pods := map[string]shutdown.Known{}
	s.read(podsFile, &pods)
	return pods
}

// SetKnownPods stores what the kubelet reports about its Pods, by UID.
func (s State) SetKnownPods(pods map[string]shutdown.Known) error { return s.write(podsFile, pods) }

// Kubelet returns the stored state of the kubelet.
func (s State) Kubelet() KubeletState {
	kubelet := KubeletState{}
	s.read(kubeletFile, &kubelet)
	return kubelet
}

// SetKubelet stores the state of the kubelet.
func (s State) SetKubelet(kubelet KubeletState) error { return s.write(kubeletFile, kubelet) }

// HasReadKubelet reports whether the agent has read the kubelet's configuration and Pods, in this process or in an earlier one.
func (s State) HasReadKubelet() bool {
	return s.read(kubeletFile, &KubeletState{}) && s.read(podsFile, &map[string]shutdown.Known{})
}

// Ready reports whether the agent would delay a shutdown and can terminate Pods. It is the readiness of the agent's Pod.
func (s State) Ready() bool {
	ready := false
	return s.read(readyFile, &ready) && ready
}

// SetReady stores whether the agent is ready.
func (s State) SetReady(ready bool) error { return s.write(readyFile, ready) }

// KubeletStopped reports whether the agent has stopped the kubelet, or tried to, and has not started it again.
func (s State) KubeletStopped() bool {
	stopped := false
	return s.read(stoppedFile, &stopped) && stopped
}

// SetKubeletStopped stores whether the agent has stopped the kubelet.
func (s State) SetKubeletStopped(stopped bool) error { return s.write(stoppedFile, stopped) }

// SetRunning records that the agent runs, until its process ends in whatever way: it locks a file.
func (s State) SetRunning() error {
	file, err := syscall.Open(filepath.Join(s.Dir, runningFile), syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err == nil {
		err = syscall.Flock(file, syscall.LOCK_EX)
	}
	return errors.Wrap(err, "locking the file that records that the agent runs")
}

// HasEnded reports whether the agent has run and its process has ended. It is false while that is not known.
func (s State) HasEnded() bool {
	file, err := os.Open(filepath.Join(s.Dir, runningFile))
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	return syscall.Flock(int(file.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil
}

// startKubelet starts the kubelet, and stores that it is not stopped.
func (s State) startKubelet(ctx context.Context, keeper *logind.Keeper) error {
	if err := keeper.StartKubelet(ctx); err != nil {
		return err
	}
	return s.SetKubeletStopped(false)
}

func (s State) read(name string, into any) bool {
	content, err := os.ReadFile(filepath.Join(s.Dir, name)) //nolint:gosec // the names are constants
	return err == nil && json.Unmarshal(content, into) == nil
}

func (s State) write(name string, value any) error {
	content, err := json.Marshal(value)
	if err != nil {
		return errors.Wrap(err, "writing state")
	}
	file := filepath.Join(s.Dir, name)
	unfinished := file + "." + s.Process + ".tmp"
	if err = os.WriteFile(unfinished, content, 0o600); err == nil {
		err = os.Rename(unfinished, file)
	}
	if err != nil {
		_ = os.Remove(unfinished) // it may fill the directory, in which both containers have to write more
	}
	return errors.Wrap(err, "writing state")
}

// KeepLock holds a second delay lock in a separate process. Without it, a node would power off at once if the agent's process ended
// during a shutdown, because logind grants no new locks then. KeepLock releases its lock after the agent has released its own, or at
// the deadline. Without the kubelet, nothing restarts an agent whose process has ended after it has stopped the kubelet: KeepLock then
// terminates the Pods that remain, or starts the kubelet if the shutdown is cancelled. The caller runs second.Keeper; second has no clients
// for the API server and the kubelet. config applies until the agent has stored the configuration of the Node.
func KeepLock(ctx context.Context, config shutdown.Config, second *Agent) {
	changed, termination := second.Keeper.Changed(), &podTermination{agent: second}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(configInterval):
		}
		if stored := second.State.Config(); stored != nil {
			config = *stored
			second.Keeper.DelayFor(shutdown.Total(config.Phases()), config.LogindDropInDir)
		}
		switch lock := second.Keeper.State(); {
		case lock.Preparing:
			second.keepLock(ctx, config, termination)
		case lock.Known:
			termination.stop(ctx)
		}
	}
}

// keepLock holds the second lock during a shutdown.
func (a *Agent) keepLock(ctx context.Context, config shutdown.Config, termination *podTermination) {
	a.mu.Lock()
	a.observed.Settings.Config, a.observed.Kubelet = config, a.State.Kubelet()
	a.mu.Unlock()
	for start := time.Now(); a.Keeper.State().Preparing && a.Keeper.Locked(); time.Sleep(decisionInterval) {
		stored, budget := a.State.Shutdown(), shutdown.Budget(config, a.Keeper.State().DelayMax)
		switch elapsed := time.Since(start); {
		case elapsed >= budget, stored.continues(budget) && stored.Released, termination.done():
			klog.FromContext(ctx).Info("Releasing the second lock", "after", elapsed)
			a.Keeper.Release()
		case !a.State.KubeletStopped() || !a.State.HasEnded():
			termination.cancelAndWait()
		default:
			termination.start(ctx, budget-elapsed)
		}
	}
}

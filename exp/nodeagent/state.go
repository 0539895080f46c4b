package nodeagent

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/pkg/errors"
	"k8s.io/klog/v2"

	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/logind"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

// State is what outlives the agent's process but not a reboot. It is a directory in memory that the containers of the agent's Pod share.
type State struct{ Dir string }

// Shutdown is a shutdown in progress, or one that was cancelled.
type Shutdown struct {
	// Since is when the agent first observed the shutdown.
	Since time.Time `json:"since"`
	// Released is true when the agent has released its lock. The second lock is then released, too.
	Released bool `json:"released"`
	// Cancelled is true when the shutdown was cancelled and its NodeMaintenance has to be completed.
	Cancelled bool `json:"cancelled,omitempty"`
}

// continues reports whether this is the shutdown in progress, and not one that was cancelled while the agent did not run.
func (s *Shutdown) continues(budget time.Duration) bool {
	return s != nil && !s.Cancelled && shutdown.Continues(s.Since, time.Now(), budget)
}

const (
	shutdownFile = "shutdown.json"
	podsFile     = "pods.json"
	kubeletFile  = "kubelet.json"
	configFile   = "config.json"
	readyFile    = "ready"
	stoppedFile  = "kubelet-stopped"
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
	if err := os.WriteFile(file+".tmp", content, 0o600); err != nil {
		return errors.Wrap(err, "writing state")
	}
	return errors.Wrap(os.Rename(file+".tmp", file), "writing state")
}

// KeepLock holds a second delay lock in a separate process. Without it, a node would power off at once if the agent's process ended
// during a shutdown, because logind grants no new locks then. KeepLock releases its lock after the agent has released its own, or at
// the deadline. If the shutdown is cancelled, KeepLock starts the kubelet if the agent has stopped it: without the kubelet, nothing
// restarts an agent whose process has ended. The caller runs keeper. config applies until the agent has stored the configuration of the
// Node.
func KeepLock(ctx context.Context, config shutdown.Config, state State, keeper *logind.Keeper) {
	changed, starting := keeper.Changed(), failureLog{}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(configInterval):
		}
		if stored := state.Config(); stored != nil {
			config = *stored
			keeper.DelayFor(shutdown.Total(config.Phases()), config.LogindDropInDir)
		}
		if lock := keeper.State(); !lock.Preparing {
			if lock.Known && state.KubeletStopped() {
				starting.log(ctx, state.startKubelet(ctx, keeper), "Failed to start the kubelet after a cancelled shutdown, retrying")
			}
			continue
		}
		start := time.Now()
		for keeper.State().Preparing && keeper.Locked() {
			stored, budget := state.Shutdown(), shutdown.Budget(config, keeper.State().DelayMax)
			if time.Since(start) >= budget || stored.continues(budget) && stored.Released {
				klog.FromContext(ctx).Info("Releasing the second lock", "after", time.Since(start))
				keeper.Release()
				break
			}
			time.Sleep(decisionInterval)
		}
	}
}

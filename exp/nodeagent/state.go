package nodeagent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

// State is what outlives the agent's process, and not its node: a directory in memory that the containers of its Pod share.
type State struct{ Dir string }

// Shutdown is one that is on its way.
type Shutdown struct {
	Since time.Time `json:"since"`
	// Released: nothing holds it up any more.
	Released bool `json:"released"`
}

const (
	shutdownFile   = "shutdown.json"
	prioritiesFile = "priorities.json"
	configFile     = "config.json"
	heldFile       = "held"
)

// Shutdown returns the one that is on its way, nil if there is none.
func (s State) Shutdown() *Shutdown {
	shutdown := &Shutdown{}
	if !s.read(shutdownFile, shutdown) {
		return nil
	}
	return shutdown
}

// SetShutdown notes it.
func (s State) SetShutdown(shutdown Shutdown) error { return s.write(shutdownFile, shutdown) }

// Clear notes that there is none.
func (s State) Clear() error {
	if err := os.Remove(filepath.Join(s.Dir, shutdownFile)); err != nil && !os.IsNotExist(err) {
		return errors.Wrap(err, "forgetting a shutdown")
	}
	return nil
}

// Config returns the configuration that the agent acts on, nil where it hasn't noted one.
func (s State) Config() *shutdown.Config {
	config := &shutdown.Config{}
	if !s.read(configFile, config) {
		return nil
	}
	return config
}

// SetConfig notes it.
func (s State) SetConfig(config shutdown.Config) error { return s.write(configFile, config) }

// Priorities of Pods by UID, as last seen.
func (s State) Priorities() map[string]int32 {
	priorities := map[string]int32{}
	s.read(prioritiesFile, &priorities)
	return priorities
}

// SetPriorities notes them.
func (s State) SetPriorities(priorities map[string]int32) error {
	return s.write(prioritiesFile, priorities)
}

// Held says whether a shutdown would be delayed; that is what readiness is.
func (s State) Held() bool {
	held := false
	return s.read(heldFile, &held) && held
}

// SetHeld notes it.
func (s State) SetHeld(held bool) error { return s.write(heldFile, held) }

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

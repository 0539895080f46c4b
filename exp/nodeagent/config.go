package nodeagent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/pkg/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

// configEvery is how often the configuration is read again. The kubelet updates its files when the ConfigMap changes.
const configEvery = 10 * time.Second

// Configs are the configurations in the agent's ConfigMap: File for all Nodes, and beside it <name>.yaml for the Nodes whose label
// v1alpha1.ShutdownConfigLabel has that name.
type Configs struct{ File string }

// Settings are the configuration that the agent acts on.
type Settings struct {
	shutdown.Config
	// Name of the configuration. Empty: the one for all Nodes.
	Name string
	// Problem is why it isn't the configuration that the Node asks for. Empty: it is.
	Problem string
}

// For returns the settings of a Node with these labels. Where its configuration can't be used, they are those for all Nodes; where
// these can't be used either, the present ones.
func (c Configs) For(labels map[string]string, present Settings) Settings {
	name := labels[v1alpha1.ShutdownConfigLabel]
	forAll, err := c.forAll()
	switch {
	case name == "" && err == nil:
		return Settings{Config: forAll}
	case name == "":
		return present.despite(fmt.Sprintf("Cannot use the configuration for all Nodes: %v.", err))
	}
	named, namedErr := read(filepath.Join(filepath.Dir(c.File), name+".yaml"))
	problem := fmt.Sprintf("Cannot use configuration %q, which label %s of the Node names: %v.", name, v1alpha1.ShutdownConfigLabel, namedErr)
	switch {
	case namedErr == nil:
		return Settings{Config: named, Name: name}
	case err == nil:
		return Settings{Config: forAll, Problem: problem + " The agent uses the configuration for all Nodes instead. Fix the ConfigMap or the label."}
	default:
		return present.despite(problem)
	}
}

// despite returns the same settings, with a problem.
func (s Settings) despite(problem string) Settings {
	s.Problem = problem + " The agent continues with the configuration that it has. Fix the ConfigMap."
	return s
}

// forAll returns the configuration for all Nodes. A file that doesn't exist is all defaults.
func (c Configs) forAll() (shutdown.Config, error) {
	config, err := read(c.File)
	if errors.Is(err, os.ErrNotExist) {
		return shutdown.Defaults(), nil
	}
	return config, err
}

func read(file string) (shutdown.Config, error) {
	config := shutdown.Defaults()
	content, err := os.ReadFile(file) //nolint:gosec // a label's value is no path, and the directory is the agent's ConfigMap
	if err != nil {
		return config, errors.Wrapf(err, "reading %s", filepath.Base(file))
	}
	if err := yaml.UnmarshalStrict(content, &config); err != nil {
		return config, errors.Wrapf(err, "parsing %s", filepath.Base(file))
	}
	return config, errors.Wrapf(config.Validate(), "in %s", filepath.Base(file))
}

// configured returns the configuration that the agent acts on. It doesn't change during a shutdown.
func (a *Agent) configured() Settings {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.settings
}

// keepConfigured follows the files of the ConfigMap; sawNode follows the Node's label.
func (a *Agent) keepConfigured(ctx context.Context) {
	for ctx.Err() == nil {
		a.mu.Lock()
		a.configure(ctx)
		a.mu.Unlock()
		pause(ctx, configEvery)
	}
}

// configure needs the lock. It notes the configuration for the second lock, and for an agent that is restarted in the middle of a
// shutdown.
func (a *Agent) configure(ctx context.Context) {
	if a.node == nil || a.Keeper.State().Preparing {
		return
	}
	a.settings = a.Configs.For(a.node.Labels, a.settings)
	if err := a.State.SetConfig(a.settings.Config); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to note the configuration")
	}
	a.Keeper.DelayFor(shutdown.Total(a.settings.Phases()), a.settings.LogindDropInDir)
}

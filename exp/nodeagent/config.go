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

// configInterval is the interval at which the agent reads its configuration. The kubelet updates the files when the ConfigMap changes.
const configInterval = 10 * time.Second

// Configs are the configurations in the agent's ConfigMap. File applies to all Nodes, except for those whose label
// v1alpha1.ShutdownConfigLabel has the value <name>: the file <name>.yaml in the same directory applies to them.
type Configs struct{ File string }

// Settings are the configuration that the agent uses.
type Settings struct {
	shutdown.Config
	// Name of the configuration. Empty for the configuration for all Nodes.
	Name string
	// Problem explains why the agent cannot use the configuration that the Node selects. Empty if it uses that one.
	Problem string
}

// For returns the settings of a Node with these labels. If the configuration that the Node selects is missing or invalid, For falls
// back to the configuration for all Nodes, and if that is invalid, to the present settings.
func (c Configs) For(labels map[string]string, present Settings) Settings {
	name := labels[v1alpha1.ShutdownConfigLabel]
	forAll, err := c.forAll()
	switch {
	case name == "" && err == nil:
		return Settings{Config: forAll}
	case name == "":
		return present.withProblem(fmt.Sprintf("Cannot use the configuration for all Nodes: %v.", err))
	}
	named, namedErr := read(filepath.Join(filepath.Dir(c.File), name+".yaml"))
	problem := fmt.Sprintf("Cannot use configuration %q, which label %s of the Node selects: %v.", name, v1alpha1.ShutdownConfigLabel, namedErr)
	switch {
	case namedErr == nil:
		return Settings{Config: named, Name: name}
	case err == nil:
		return Settings{Config: forAll, Problem: problem + " The agent uses the configuration for all Nodes instead. Fix the ConfigMap or the label."}
	default:
		return present.withProblem(problem)
	}
}

func (s Settings) withProblem(problem string) Settings {
	s.Problem = problem + " The agent continues with its present configuration. Fix the ConfigMap."
	return s
}

// forAll returns the configuration for all Nodes. It returns the defaults if the file does not exist.
func (c Configs) forAll() (shutdown.Config, error) {
	config, err := read(c.File)
	if errors.Is(err, os.ErrNotExist) {
		return shutdown.Defaults(), nil
	}
	return config, err
}

func read(file string) (shutdown.Config, error) {
	config := shutdown.Defaults()
	content, err := os.ReadFile(file) //nolint:gosec // a label value contains no slash, and the directory is the agent's ConfigMap
	if err != nil {
		return config, errors.Wrapf(err, "reading %s", filepath.Base(file))
	}
	if err := yaml.UnmarshalStrict(content, &config); err != nil {
		return config, errors.Wrapf(err, "parsing %s", filepath.Base(file))
	}
	return config, errors.Wrapf(config.Validate(), "in %s", filepath.Base(file))
}

// currentSettings returns the settings that the agent uses. They do not change during a shutdown.
func (a *Agent) currentSettings() Settings {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.observed.Settings
}

// followConfigMap applies changes of the ConfigMap. observeNode applies changes of the Node's label.
func (a *Agent) followConfigMap(ctx context.Context) {
	for ctx.Err() == nil {
		a.mu.Lock()
		a.configure(ctx)
		a.mu.Unlock()
		pause(ctx, configInterval)
	}
}

// configure determines the settings, and stores the configuration for the process that holds the second lock and for an agent that
// restarts during a shutdown. The caller must hold a.mu.
func (a *Agent) configure(ctx context.Context) {
	if a.node == nil || a.mayShutDown() {
		return
	}
	settings := a.Configs.For(a.node.Labels, a.observed.Settings)
	a.observed.Settings = settings
	if err := a.State.SetConfig(settings.Config); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to store the configuration")
	}
	a.Keeper.DelayFor(shutdown.Total(settings.Phases()), settings.LogindDropInDir)
}

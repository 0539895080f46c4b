package clusterapi

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// User is the user of the core manager in the management cluster.
const User = "capi-core"

// Options adjusts an installation; the zero value is a usable one.
type Options struct {
	// FeatureGates are set in addition to the defaults of the core manager.
	FeatureGates map[string]bool
	// Verbosity is the log verbosity. Zero is that of a release.
	Verbosity int
	// Args are appended to the flags, so they override the flags set here.
	Args []string
}

// Fast returns options that allow the core manager to reconcile an object more than once a
// second, unlike a release. The deletion of a Machine, where each step is a reconciliation,
// takes half the time. Do not use it for measurements that are compared with real installations.
func Fast() Options {
	return Options{FeatureGates: map[string]bool{"ReconcilerRateLimiting": false}}
}

// Core is the core manager of an installed Cluster API. It stops with its control plane, if not
// before.
type Core struct {
	controlPlane *controlplane.ControlPlane
	ports        ports
	spec         controlplane.ProcessSpec

	changing sync.Mutex
	process  *controlplane.Process
}

// Install installs Cluster API's CRDs and webhooks in a management cluster and starts the core
// manager. It returns when the manager is ready, webhooks included.
func Install(ctx context.Context, management *controlplane.ControlPlane, opts Options) (*Core, error) {
	core, err := install(ctx, management, opts)
	return core, errors.Wrapf(err, "installing Cluster API in %s", management.Name())
}

func install(ctx context.Context, management *controlplane.ControlPlane, opts Options) (*Core, error) {
	ports, err := reservePorts()
	if err != nil {
		return nil, err
	}
	manifests, err := readManifests(ctx, "capi-core", filepath.Join("core", "config"), "capi-")
	if err != nil {
		return nil, err
	}
	manifests.serveFrom("https://"+loopback(ports.webhook), management.CAData())
	if err := manifests.apply(ctx, management.AdminConfig()); err != nil {
		return nil, err
	}
	core := &Core{controlPlane: management, ports: ports}
	if core.spec, err = core.processSpec(opts); err != nil {
		return nil, err
	}
	return core, core.Start(ctx)
}

// Start starts the core manager again after Stop or Kill, with additional arguments, and waits until it is ready.
func (c *Core) Start(ctx context.Context, args ...string) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	spec := c.spec
	spec.Args = slices.Concat(spec.Args, args)
	process, err := c.controlPlane.RunProcess(ctx, spec)
	if err != nil {
		return errors.Wrap(err, "starting the core manager")
	}
	c.process = process
	return nil
}

// Stop terminates the core manager as a rollout of its Deployment would. CRDs and webhook
// configurations stay, so no Cluster API object can be written until it is started again.
func (c *Core) Stop() error {
	c.changing.Lock()
	defer c.changing.Unlock()
	if c.process == nil { // Start has failed
		return nil
	}
	return c.process.Stop()
}

// Kill sends SIGKILL to the core manager.
func (c *Core) Kill() {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.process.Kill()
}

// Log returns the log of the core manager, including that before restarts.
func (c *Core) Log() string {
	c.changing.Lock()
	defer c.changing.Unlock()
	return c.process.Log()
}

// PID returns the process ID of the core manager.
func (c *Core) PID() int {
	c.changing.Lock()
	defer c.changing.Unlock()
	return c.process.PID()
}

// MetricsURL returns the URL of the core manager's metrics, which need no authorization.
func (c *Core) MetricsURL() string { return "http://" + loopback(c.ports.diagnostics) + "/metrics" }

func (c *Core) processSpec(opts Options) (controlplane.ProcessSpec, error) {
	program, err := controlplane.Tool("capi-core")
	if err != nil {
		return controlplane.ProcessSpec{}, err
	}
	dir := filepath.Join(c.controlPlane.Dir(), User)
	if err := writeCredentials(c.controlPlane, User, dir); err != nil {
		return controlplane.ProcessSpec{}, err
	}
	args := []string{
		"--kubeconfig=" + filepath.Join(dir, "kubeconfig"),
		"--webhook-cert-dir=" + dir,
		fmt.Sprintf("--webhook-port=%d", c.ports.webhook),
		"--health-addr=" + loopback(c.ports.health),
		"--diagnostics-address=" + loopback(c.ports.diagnostics),
		"--insecure-diagnostics=true",
		"--leader-elect=false",
		"--feature-gates=" + featureGates(opts.FeatureGates),
	}
	if opts.Verbosity > 0 {
		args = append(args, fmt.Sprintf("--v=%d", opts.Verbosity))
	}
	return controlplane.ProcessSpec{
		Name: User, Path: program, Args: append(args, opts.Args...), Ready: c.ready,
		StopTimeout: time.Minute, // it waits up to 30 s for its reconciliations, for example while the network to a workload cluster is cut
	}, nil
}

// writeCredentials writes the kubeconfig of a manager and the serving certificate of its webhook
// server.
func writeCredentials(management *controlplane.ControlPlane, user, dir string) error {
	kubeconfig, err := management.KubeconfigFor(user, "system:masters")
	if err != nil {
		return errors.Wrapf(err, "issuing the kubeconfig of %s", user)
	}
	cert, key, err := management.SignServerCert("127.0.0.1", "localhost")
	if err != nil {
		return errors.Wrapf(err, "issuing the serving certificate of %s", user)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return errors.Wrapf(err, "creating the directory of %s", user)
	}
	for name, content := range map[string][]byte{"kubeconfig": kubeconfig, "tls.crt": cert, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return errors.Wrapf(err, "writing a file of %s", user)
		}
	}
	return nil
}

func featureGates(wanted map[string]bool) string {
	gates := map[string]bool{"MachinePool": true}
	maps.Copy(gates, wanted)
	var settings []string
	for _, gate := range slices.Sorted(maps.Keys(gates)) {
		settings = append(settings, fmt.Sprintf("%s=%t", gate, gates[gate]))
	}
	return strings.Join(settings, ",")
}

// ready calls the manager's readiness probe, which includes the webhook server.
func (c *Core) ready(ctx context.Context) error { return ready(ctx, User, c.ports) }

// ready calls the readiness probe of a manager.
func ready(ctx context.Context, user string, ports ports) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+loopback(ports.health)+"/readyz", nil)
	if err != nil {
		return errors.Wrapf(err, "asking %s whether it is ready", user)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return errors.Wrapf(err, "asking %s whether it is ready", user)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return errors.Errorf("%s is not ready: %s", user, response.Status)
	}
	return nil
}

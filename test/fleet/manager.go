package fleet

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

const (
	// ManagerUser is the user of our manager in the management cluster. It has the role of an installation.
	ManagerUser = "capnm-manager"
	// managerGroup has that role, so that concurrent managers can have different users.
	managerGroup = "capnm-managers"
	// ManagerAgent is the prefix of our manager's user agent. In the audit log of a workload cluster it distinguishes our requests
	// from those of Cluster API's core manager, which uses the same kubeconfig.
	ManagerAgent = "cluster-api-node-maintenance"
	// CoreAgent is the prefix of the user agent of Cluster API's core manager.
	CoreAgent = "capi-core"
)

// Manager is our manager, which runs as a separate process.
type Manager struct {
	*controlplane.Process
	metrics  string // the address that serves them
	profiler string // the address of pprof
}

// MetricsURL returns the URL of the manager's metrics, which need no authorization.
func (m *Manager) MetricsURL() string { return "http://" + m.metrics + "/metrics" }

// ProfilerURL returns the root of its profiles.
func (m *Manager) ProfilerURL() string { return "http://" + m.profiler + "/debug/pprof/" }

// LogTail returns the last lines of its log.
func (m *Manager) LogTail(lines int) string {
	all := strings.Split(strings.TrimRight(m.Log(), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// StartManager builds our manager from the current sources, starts it, and waits until it is ready.
func (f *Fleet) StartManager(ctx context.Context, args ...string) (err error) {
	f.Manager, err = f.RunManager(ctx, "manager", ManagerUser, args...)
	return err
}

// RunManager starts another manager of ours, with a separate user in the management cluster. It stops with the fleet.
func (f *Fleet) RunManager(ctx context.Context, name, user string, args ...string) (*Manager, error) {
	path, err := managerBinary()
	if err != nil {
		return nil, err
	}
	return f.runManager(ctx, path, nil, name, user, args...)
}

func (f *Fleet) runManager(ctx context.Context, path string, env []string, name, user string, args ...string) (*Manager, error) {
	kubeconfig, err := f.Management.KubeconfigFor(user, managerGroup)
	if err != nil {
		return nil, err
	}
	kubeconfigFile := filepath.Join(f.Management.Dir(), name+".kubeconfig")
	if err := os.WriteFile(kubeconfigFile, kubeconfig, 0o600); err != nil {
		return nil, errors.Wrap(err, "writing the manager's kubeconfig")
	}
	var addresses [3]string
	for i := range addresses {
		if addresses[i], err = FreeAddress(); err != nil {
			return nil, err
		}
	}
	health, diagnostics, profiler := addresses[0], addresses[1], addresses[2]
	flags := append([]string{
		"--kubeconfig=" + kubeconfigFile, "--health-addr=" + health, "--profiler-address=" + profiler,
		"--diagnostics-address=" + diagnostics, "--insecure-diagnostics=true", "--v=2",
	}, append(f.options.ManagerArgs, args...)...)
	process, err := f.Management.RunProcess(ctx, controlplane.ProcessSpec{
		Name: name, Path: path, Args: flags, Env: env,
		StopTimeout: time.Minute, // the manager has its own shutdown timeout and logs what did not stop; on a busy machine that is late
		Ready:       func(ctx context.Context) error { return get(ctx, "http://"+health+"/readyz") },
	})
	if err != nil {
		return nil, errors.Wrap(err, "starting the manager")
	}
	return &Manager{Process: process, metrics: diagnostics, profiler: profiler}, nil
}

// Stop terminates the manager. It returns an error if the manager exits with one, such as its shutdown timeout.
func (m *Manager) Stop() error {
	if err := m.Process.Stop(); err != nil {
		return err
	}
	return errors.Wrapf(m.Wait(), "the manager was terminated; its log ends with:\n%s", m.LogTail(20))
}

// KillManager kills our manager with SIGKILL.
func (f *Fleet) KillManager() {
	if f.Manager != nil {
		f.Manager.Kill()
		f.Manager = nil
	}
}

func get(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return errors.Wrapf(err, "asking %s", url)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return errors.Wrapf(err, "asking %s", url)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.Errorf("%s answers %s", url, response.Status)
	}
	return nil
}

// FreeAddress returns a loopback address that no other program of a test uses. Its port is outside the range for outgoing connections,
// one of which could otherwise take it before it is used.
func FreeAddress() (string, error) {
	port, _, err := controlplane.ReservePort() // never released: a restarted manager gets other ports
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), err
}

var managerBinary = sync.OnceValues(func() (string, error) { return buildManager() })

// BuildManager builds our manager, so that StartManager does not have to.
func BuildManager() error {
	_, err := managerBinary()
	return err
}

func buildManager(flags ...string) (path string, err error) {
	return Build("./cmd/manager", slices.Concat(managerBuildFlags, flags)...)
}

// Build builds a program of this module if its sources have changed, and returns its path. It uses `go run`, whose linked programs the Go
// build cache keeps, so that a fleet does not wait for the linker.
func Build(program string, flags ...string) (path string, err error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	// The first run after linking uses a temporary directory, the next one the cache.
	for _, runner := range []string{"true", "echo"} {
		command := exec.Command("go", slices.Concat([]string{"run", "-exec", runner}, flags, []string{program})...)
		command.Dir = root
		var said strings.Builder
		command.Stderr = &said
		output, err := command.Output()
		if err != nil {
			return "", errors.Wrapf(err, "building %s: %s", program, said.String())
		}
		path = strings.TrimSpace(string(output))
	}
	return path, nil
}

var moduleRoot = sync.OnceValues(func() (string, error) {
	output, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", modulePath).Output()
	if err != nil {
		return "", errors.Wrap(err, "finding the module's directory")
	}
	return strings.TrimSpace(string(output)), nil
})

const modulePath = "github.com/capnm/cluster-api-node-maintenance"

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
	// ManagerUser is whom our manager acts as in the management cluster. It has the role that an installation gives it.
	ManagerUser = "capnm-manager"
	// managerGroup is whom that role is given to, so that managers side by side can be told apart.
	managerGroup = "capnm-managers"
	// ManagerAgent starts the user agent by which the requests of our manager are told from those of Cluster API's core manager
	// in the audit log of a workload cluster: both use the Cluster's kubeconfig.
	ManagerAgent = "cluster-api-node-maintenance"
	// CoreAgent starts the user agent of Cluster API's core manager.
	CoreAgent = "capi-core"
)

// Manager is our manager, a process of its own.
type Manager struct {
	*controlplane.Process
	metrics  string // the address that serves them
	profiler string // the address of pprof
}

// MetricsURL is where the manager serves its metrics, to anybody.
func (m *Manager) MetricsURL() string { return "http://" + m.metrics + "/metrics" }

// ProfilerURL is the root of its profiles.
func (m *Manager) ProfilerURL() string { return "http://" + m.profiler + "/debug/pprof/" }

// LogTail returns the last lines of its log.
func (m *Manager) LogTail(lines int) string {
	all := strings.Split(strings.TrimRight(m.Log(), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// StartManager builds our manager from the sources as they are, starts it, and waits until it is ready.
func (f *Fleet) StartManager(ctx context.Context, args ...string) (err error) {
	f.Manager, err = f.RunManager(ctx, "manager", ManagerUser, args...)
	return err
}

// RunManager starts one more manager of ours, which acts as a user of its own in the management cluster. It ends with the fleet.
func (f *Fleet) RunManager(ctx context.Context, name, user string, args ...string) (*Manager, error) {
	path, err := managerBinary()
	if err != nil {
		return nil, err
	}
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
		Name: name, Path: path, Args: flags,
		StopTimeout: time.Minute, // it gives up by itself on what doesn't end, and says so, on a busy machine late
		Ready:       func(ctx context.Context) error { return get(ctx, "http://"+health+"/readyz") },
	})
	if err != nil {
		return nil, errors.Wrap(err, "starting the manager")
	}
	return &Manager{Process: process, metrics: diagnostics, profiler: profiler}, nil
}

// Stop asks the manager to end. It fails where the manager ends with an error: that it has given up on what doesn't end is one.
func (m *Manager) Stop() error {
	if err := m.Process.Stop(); err != nil {
		return err
	}
	return errors.Wrapf(m.Wait(), "the manager was asked to end; its log ends with:\n%s", m.LogTail(20))
}

// KillManager ends our manager with SIGKILL.
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

// FreeAddress is a loopback address that no other program of a test has. It isn't one that the kernel gives to outgoing
// connections, of which there are many here: one of those may take a port between its choice and its use.
func FreeAddress() (string, error) {
	port, _, err := controlplane.ReservePort() // kept: a manager that is killed and started again has others
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), err
}

// managerBinary builds our manager from the sources as they are, if they have changed: of what `go run` runs, the Go build cache
// keeps the program too, so that a fleet needn't wait for the linker.
var managerBinary = sync.OnceValues(func() (path string, err error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	// What has just been linked is run from a directory that doesn't last, and from the cache the next time.
	for _, runner := range []string{"true", "echo"} {
		command := exec.Command("go", slices.Concat([]string{"run", "-exec", runner}, managerBuildFlags, []string{"./cmd/manager"})...)
		command.Dir = root
		var said strings.Builder
		command.Stderr = &said
		output, err := command.Output()
		if err != nil {
			return "", errors.Wrapf(err, "building the manager: %s", said.String())
		}
		path = strings.TrimSpace(string(output))
	}
	return path, nil
})

var moduleRoot = sync.OnceValues(func() (string, error) {
	output, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", modulePath).Output()
	if err != nil {
		return "", errors.Wrap(err, "finding the module's directory")
	}
	return strings.TrimSpace(string(output)), nil
})

const modulePath = "github.com/capnm/cluster-api-node-maintenance"

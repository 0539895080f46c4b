package controlplane

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pkg/errors"
)

// StopComponent terminates a component, and kills it if that takes too long (an API server without
// etcd does not terminate). StartComponent starts it again with the same port and data.
func (c *ControlPlane) StopComponent(ctx context.Context, component Component) error {
	process, err := c.takeComponent(component)
	if err != nil {
		return err
	}
	// The process has exited in any case.
	_ = process.stop(ctx)
	return nil
}

// KillComponent kills a component with SIGKILL, as in a crash.
func (c *ControlPlane) KillComponent(_ context.Context, component Component) error {
	process, err := c.takeComponent(component)
	if err != nil {
		return err
	}
	process.Kill()
	return nil
}

// SignalComponent sends a signal to a running component: SIGSTOP freezes it until SIGCONT.
func (c *ControlPlane) SignalComponent(component Component, signal os.Signal) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	process := c.processes[component]
	if process == nil {
		return errors.Errorf("%s of %q is not running", component, c.Name())
	}
	return process.Signal(signal)
}

// ComponentPID returns the process ID of a running component.
func (c *ControlPlane) ComponentPID(component Component) (int, error) {
	c.changing.Lock()
	defer c.changing.Unlock()
	process := c.processes[component]
	if process == nil {
		return 0, errors.Errorf("%s of %q is not running", component, c.Name())
	}
	return process.PID(), nil
}

// StartComponent starts a stopped component and waits until it is ready. The extra flags apply until it is started again.
func (c *ControlPlane) StartComponent(ctx context.Context, component Component, extraArgs ...string) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	if process := c.processes[component]; process != nil && !process.hasExited() { // a crash counts as a stop
		return errors.Errorf("%s of %q is running", component, c.Name())
	}
	if err := c.launch(component, extraArgs...); err != nil {
		return err
	}
	return c.waitReady(ctx, component)
}

// StartExited starts the components that have exited, as a kubelet would, and returns their names. It does not start those that
// StopComponent or KillComponent has ended. A scheduler exits, for example, when the API server was killed while it bound a Pod: in its
// cache, the Pod may then be on another Node.
func (c *ControlPlane) StartExited(ctx context.Context) (started []Component, err error) {
	for _, component := range c.options.components() {
		if !c.hasExited(component) {
			continue
		}
		if err := c.StartComponent(ctx, component); err != nil {
			return started, err
		}
		started = append(started, component)
	}
	return started, nil
}

func (c *ControlPlane) hasExited(component Component) bool {
	c.changing.Lock()
	defer c.changing.Unlock()
	process := c.processes[component]
	return process != nil && process.hasExited()
}

func (c *ControlPlane) takeComponent(component Component) (*Process, error) {
	c.changing.Lock()
	defer c.changing.Unlock()
	process := c.processes[component]
	if process == nil {
		return nil, errors.Errorf("%s of %q is not running", component, c.Name())
	}
	delete(c.processes, component)
	return process, nil
}

func (c *ControlPlane) launch(component Component, extraArgs ...string) error {
	path, err := Tool(c.options.program(component))
	if err != nil {
		return err
	}
	args, ok := c.args()[component]
	if !ok {
		return errors.Errorf("%q is not a component of a control plane", component)
	}
	process, err := startProcess(ProcessSpec{
		Name:    string(component),
		Path:    path,
		Args:    slices.Concat(args, c.options.ExtraArgs[component], extraArgs),
		Dir:     c.dir,
		LogFile: c.logFile(string(component)),
		// The heaps are small here, so by default an API server under load spends almost half of its
		// time on garbage collection. With this setting, a control plane takes at most one and a half gigabytes.
		Env:         []string{"GOGC=400"},
		StopTimeout: 5 * time.Second,
	})
	if err != nil {
		return err
	}
	c.processes[component] = process
	return nil
}

func (c *ControlPlane) waitReady(ctx context.Context, component Component) error {
	return c.processes[component].waitUntil(ctx, func(ctx context.Context) error {
		return c.health.ready(ctx, component)
	})
}

// args returns the flags of each component. Paths are relative to the control plane's directory,
// which is the working directory of all components.
func (c *ControlPlane) args() map[Component][]string {
	return map[Component][]string{
		Etcd:              c.etcdArgs(),
		APIServer:         c.apiServerArgs(),
		ControllerManager: c.controllerManagerArgs(),
		Scheduler:         c.schedulerArgs(),
		Kwok:              c.kwokArgs(),
	}
}

func (c *ControlPlane) etcdArgs() []string {
	client, peer := "http://"+loopback(c.ports.etcd()), "http://"+loopback(c.ports.etcdPeer())
	return []string{
		"--name=etcd", "--data-dir=etcd", "--log-level=warn",
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=etcd=" + peer,
		// Without fsync, data survives a crash of etcd and is lost only with the machine.
		"--unsafe-no-fsync",
	}
}

func (c *ControlPlane) apiServerArgs() []string {
	return []string{
		"--etcd-servers=http://" + loopback(c.etcdPort()),
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.ports.of(APIServer)),
		// A loopback address is not allowed in the endpoints of the Service "kubernetes".
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=" + serviceCIDR,
		"--cert-dir=run", "--tls-cert-file=pki/server.crt", "--tls-private-key-file=pki/server.key",
		"--client-ca-file=pki/ca.crt",
		"--authorization-mode=Node,RBAC",
		"--allow-privileged=true",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=pki/service-accounts.pub",
		"--service-account-signing-key-file=pki/service-accounts.key",
		// By default, a terminating API server waits a minute for its watches.
		"--shutdown-watch-termination-grace-period=500ms",
		// No aggregated API server exists, but without these settings the other components cannot set
		// up their authentication and log that repeatedly.
		"--requestheader-client-ca-file=pki/ca.crt", "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--audit-policy-file=audit-policy.yaml", "--audit-log-path=" + filepath.Join("log", auditLogName),
		// An event is in the file before the client has the end of its response: see AuditLog.
		"--audit-log-mode=blocking",
		// In megabytes: the log never rotates, so that a Mark stays an offset.
		"--audit-log-maxsize=1000000",
	}
}

func (c *ControlPlane) controllerManagerArgs() []string {
	return append(c.commonArgs(ControllerManager),
		"--kubeconfig=kube-controller-manager.kubeconfig",
		// There is only one instance, and an election takes seconds.
		"--leader-elect=false",
		// The default of 20 requests a second would be the bottleneck of many tests.
		"--kube-api-qps=300", "--kube-api-burst=600",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=pki/service-accounts.key", "--root-ca-file=pki/ca.crt",
		"--cluster-signing-cert-file=pki/ca.crt", "--cluster-signing-key-file=pki/ca.key",
		"--flex-volume-plugin-dir=volume-plugins",
	)
}

func (c *ControlPlane) schedulerArgs() []string {
	return append(c.commonArgs(Scheduler), "--config=scheduler.yaml")
}

// commonArgs returns the flags that the controller manager and the scheduler share.
func (c *ControlPlane) commonArgs(component Component) []string {
	kubeconfig := string(component) + ".kubeconfig"
	return []string{
		"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.ports.of(component)),
		"--tls-cert-file=pki/server.crt", "--tls-private-key-file=pki/server.key",
	}
}

package controlplane

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pkg/errors"
	"k8s.io/client-go/rest"
)

// ControlPlane is a running control plane.
type ControlPlane struct {
	options   Options
	dir       string
	owner     *os.File
	ports     *portBlock
	authority *authority
	admin     *rest.Config
	health    *health
	link      *NetworkLink
	etcdLink  *NetworkLink // nil unless LinkEtcd was called
	// failed keeps the logs when the control plane stops.
	failed bool

	// changing serializes starting and stopping of components.
	changing  sync.Mutex
	processes map[Component]*Process

	extraLock sync.Mutex
	extra     []*Process
}

// Start starts a control plane and returns when it can be used: all components are ready, and a Pod
// can be created in the default namespace. The context limits only the start; a control plane
// runs until Stop or until this process exits.
func Start(ctx context.Context, options Options) (*ControlPlane, error) {
	const attempts = 3
	for attempt := 1; ; attempt++ {
		c, err := start(ctx, options)
		if err == nil {
			return c, nil
		}
		// Another program may have taken a port since it was found free.
		if attempt == attempts || !strings.Contains(err.Error(), "address already in use") {
			return nil, errors.Wrapf(err, "starting control plane %q", options.Name)
		}
	}
}

func start(ctx context.Context, options Options) (c *ControlPlane, err error) {
	if options.Name == "" {
		options.Name = "controlplane"
	}
	c = &ControlPlane{options: options, processes: map[Component]*Process{}}
	defer func() {
		if err != nil {
			_ = c.Stop()
		}
	}()
	removeLeftovers(os.TempDir(), time.Now())
	if c.dir, err = os.MkdirTemp("", dirPrefix+unfit.ReplaceAllString(options.Name, "-")+"-"); err != nil {
		return nil, errors.Wrap(err, "creating the control plane's directory")
	}
	if c.owner, err = own(c.dir); err != nil {
		return nil, err
	}
	if c.authority, err = newAuthority(options.Name); err != nil {
		return nil, err
	}
	if c.ports, err = reservePorts(); err != nil {
		return nil, err
	}
	if c.admin, err = c.ConfigFor(AdminUser, systemMasters); err != nil {
		return nil, err
	}
	if c.health, err = c.newHealth(); err != nil {
		return nil, err
	}
	if c.link, err = NewNetworkLink(loopback(c.ports.of(APIServer))); err != nil {
		return nil, err
	}
	if err := c.writeFiles(); err != nil {
		return nil, err
	}
	return c, c.startAll(ctx)
}

// unfit matches characters that file names should not contain.
var unfit = regexp.MustCompile(`[^a-zA-Z0-9.-]+`)

// startAll starts the API server together with its etcd, which it waits for, and all other
// components once the API server is ready: they exit if it is not.
func (c *ControlPlane) startAll(ctx context.Context) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	components := c.options.components()
	for _, wave := range [][]Component{components[:2], components[2:]} {
		for _, component := range wave {
			if err := c.launch(component); err != nil {
				return err
			}
		}
		for _, component := range wave {
			if err := c.waitReady(ctx, component); err != nil {
				return err
			}
		}
	}
	// Pods are rejected in a namespace without a default ServiceAccount.
	return c.processes[ControllerManager].waitUntil(ctx, c.health.defaultServiceAccount)
}

// Stop stops all processes and removes the directory, unless it is kept. An error means that
// something is left behind. A process that had to be killed is not an error.
func (c *ControlPlane) Stop() error {
	c.extraLock.Lock()
	for _, process := range slices.Backward(c.extra) {
		_ = process.Stop()
	}
	c.extra = nil
	c.extraLock.Unlock()

	c.changing.Lock()
	defer c.changing.Unlock()
	for _, together := range stopOrder {
		var stopping sync.WaitGroup
		for _, component := range together {
			if process := c.processes[component]; process != nil {
				stopping.Go(func() { _ = process.Stop() })
				delete(c.processes, component)
			}
		}
		stopping.Wait()
	}
	if c.link != nil {
		c.link.Close()
	}
	if c.etcdLink != nil {
		c.etcdLink.Close()
	}
	if c.health != nil {
		c.health.close()
	}
	if c.ports != nil {
		c.ports.release()
	}
	return c.cleanUp()
}

func (c *ControlPlane) cleanUp() error {
	if c.owner == nil {
		return nil
	}
	err := disown(c.owner)
	c.owner = nil
	switch {
	case err != nil || c.options.keepDir():
		return err
	case c.failed:
		// Only the logs are useful; etcd's preallocated files are large.
		return errors.Wrap(os.RemoveAll(c.path("etcd")), "removing the control plane's data")
	default:
		return errors.Wrap(os.RemoveAll(c.dir), "removing the control plane's directory")
	}
}

// Name returns the name of the cluster.
func (c *ControlPlane) Name() string { return c.options.Name }

// Dir returns the directory of certificates, data and logs (in log/). It also has
// admin.kubeconfig, to inspect a running cluster.
func (c *ControlPlane) Dir() string { return c.dir }

// RunProcess runs another program with the control plane, such as a controller under test. It is
// stopped first when the control plane stops. Its log is in Dir()/log unless the spec names another
// file.
func (c *ControlPlane) RunProcess(ctx context.Context, spec ProcessSpec) (*Process, error) {
	if spec.LogFile == "" {
		spec.LogFile = filepath.Join(c.dir, "log", spec.Name+".log")
	}
	process, err := RunProcess(ctx, spec)
	if err != nil {
		return nil, err
	}
	c.extraLock.Lock()
	defer c.extraLock.Unlock()
	c.extra = append(c.extra, process)
	return process, nil
}

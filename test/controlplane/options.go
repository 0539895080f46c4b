package controlplane

import (
	"os"
	"time"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/hack/tools/toolchain"
)

// Component is a process of a control plane. Its name is that of the program.
type Component string

// The components of a control plane.
const (
	Etcd              Component = "etcd"
	APIServer         Component = "kube-apiserver"
	ControllerManager Component = "kube-controller-manager"
	Scheduler         Component = "kube-scheduler"
	Kwok              Component = "kwok"
)

// stopOrder stops every component before those that it depends on: an API server without etcd hangs
// in its graceful shutdown. Components in a row are stopped together.
var stopOrder = [][]Component{{Kwok, Scheduler, ControllerManager}, {APIServer}, {Etcd}}

// Options selects the components of a control plane. The zero value is a management cluster: etcd,
// kube-apiserver and kube-controller-manager.
type Options struct {
	// Name of the cluster in logs, kubeconfigs and errors.
	Name string
	// Scheduler starts kube-scheduler.
	Scheduler bool
	// Kwok starts kwok, which simulates the kubelet of every Node with KubeletLabel.
	Kwok bool
	// PodReadyDelay is the time from a Pod's binding until it is ready.
	PodReadyDelay time.Duration
	// PodDeletionDelay is the time from a Pod's deletion until it is removed.
	PodDeletionDelay time.Duration
	// OldestAPIServer runs the oldest API server version that is tested. The other components are unchanged.
	OldestAPIServer bool
	// ExtraArgs are appended to a component's flags, so they override the flags set here.
	ExtraArgs map[Component][]string
	// KeepDir keeps certificates, data and logs when the control plane stops.
	KeepDir bool
}

func (o Options) components() []Component {
	components := []Component{Etcd, APIServer, ControllerManager}
	if o.Scheduler {
		components = append(components, Scheduler)
	}
	if o.Kwok {
		components = append(components, Kwok)
	}
	return components
}

// oldestAPIServer is the program of Options.OldestAPIServer.
const oldestAPIServer = "kube-apiserver-oldest"

func (o Options) program(component Component) string {
	if component == APIServer && o.OldestAPIServer {
		return oldestAPIServer
	}
	return string(component)
}

// OldestVersion returns the version of Options.OldestAPIServer, and whether its program has been built: `make tools-oldest`.
func OldestVersion() (version string, built bool, err error) {
	if _, built, err = toolchain.Path(oldestAPIServer); err != nil {
		return "", false, errors.Wrap(err, "looking up the oldest API server")
	}
	version, err = toolchain.Version(oldestAPIServer)
	return version, built, errors.Wrap(err, "looking up the version of the oldest API server")
}

// Tool returns the path of a program that hack/tools pins, such as "kube-apiserver",
// "kubectl" or "capi-core".
func Tool(name string) (string, error) {
	path, built, err := toolchain.Path(name)
	if err != nil {
		return "", errors.Wrapf(err, "looking up the program %s", name)
	}
	if !built {
		return "", errors.Errorf("%s is not built (no %s): run `make tools`", name, path)
	}
	return path, nil
}

// KubernetesVersion returns the version of the control planes, such as "v1.36.3".
func KubernetesVersion() (string, error) {
	return toolchain.Version(string(APIServer))
}

// KeepDirVariable names an environment variable that, if set, makes every control plane keep
// its directory.
const KeepDirVariable = "CAPNM_KEEP_CONTROL_PLANES"

func (o Options) keepDir() bool {
	return o.KeepDir || os.Getenv(KeepDirVariable) != ""
}

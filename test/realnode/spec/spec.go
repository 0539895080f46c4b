// Package spec is what the harness of real nodes and what runs inside them have to agree about.
package spec

import "time"

// Node is what process 1 of a node is told.
type Node struct {
	// Dir has all that lasts, on the host and in the node.
	Dir string
	// KubeletArgs are the flags of the kubelet.
	KubeletArgs []string
	// Images are the tarballs to import.
	Images []string
	// InhibitDelayMax is for how long logind lets itself be delayed, if no drop-in says otherwise.
	InhibitDelayMax time.Duration
}

// The services of a node, by the name of their units.
const (
	DBus       = "dbus.service"
	Containerd = "containerd.service"
	Kubelet    = "kubelet.service"
	Logind     = "systemd-logind.service"
)

// Where things are in a node.
const (
	ContainerdSocket = "/run/containerd/containerd.sock"
	DBusSocket       = "/run/dbus/system_bus_socket"
	StaticPodPath    = "/etc/kubernetes/manifests"
	LogindDropIns    = "/etc/systemd/logind.conf.d"
	// Journal is the file into which the workload and logind write what happens, each a line: when (Unix time in
	// nanoseconds), who, what. It lasts.
	Journal = "/var/lib/journal/journal"
)

// What logind writes into the journal, as Who.
const (
	Who = "logind"

	Booted       = "booted"
	LockTaken    = "lock taken by "
	LockReleased = "lock released by "
	Preparing    = "PrepareForShutdown true"
	Cancelled    = "PrepareForShutdown false"
	PowerOff     = "power off: all locks are gone"
	PowerOffLate = "power off: the time is up"
)

// Package spec has the types and constants that the harness of real nodes shares with the program inside them.
package spec

import "time"

// UntilReleased is the duration of a workload that ends after SIGTERM when the file Released exists.
const UntilReleased = "until released"

// Released returns the path of the file that releases a Pod, beside the journal.
func Released(journal, pod string) string { return journal + ".released." + pod }

// Node is the configuration of process 1 of a node.
type Node struct {
	// Dir is the directory of the node's files. It has the same path on the host and in the node.
	Dir string
	// KubeletArgs are the flags of the kubelet.
	KubeletArgs []string
	// KubeletUnit is the name of the unit that runs the kubelet.
	KubeletUnit string
	// CRIO is true if the container runtime is CRI-O, and false if it is containerd.
	CRIO bool
	// Images are the tarballs that containerd imports.
	Images []string
	// InhibitDelayMax is the maximum delay that logind allows, unless a drop-in overrides it.
	InhibitDelayMax time.Duration
}

// Names of the units of a node's services.
const (
	DBus       = "dbus.service"
	Containerd = "containerd.service"
	CRIO       = "crio.service"
	Kubelet    = "kubelet.service"
	Logind     = "systemd-logind.service"
)

// Paths in a node.
const (
	ContainerdSocket = "/run/containerd/containerd.sock"
	CRIOSocket       = "/run/crio/crio.sock"
	DBusSocket       = "/run/dbus/system_bus_socket"
	StaticPodPath    = "/etc/kubernetes/manifests"
	LogindDropIns    = "/run/systemd/logind.conf.d"
	// Journal is the file to which the workload and logind append one line for each thing that happens: the Unix time in nanoseconds,
	// who, and what. It outlives reboots.
	Journal = "/var/lib/journal/journal"
)

// Entries that logind writes into the journal as Who.
const (
	Who = "logind"

	Booted       = "booted"
	LockTaken    = "lock taken by "
	LockReleased = "lock released by "
	Allows       = "reads its configuration and allows a delay of "
	Preparing    = "PrepareForShutdown true"
	Cancelled    = "PrepareForShutdown false"
	PowerOff     = "power off: all locks are released"
	PowerOffLate = "power off: the maximum delay is exceeded"
)

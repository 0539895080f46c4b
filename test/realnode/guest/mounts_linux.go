package main

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/uuid"
	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/test/realnode/spec"
)

// sysctls are the values that a kubelet requires. Without the mounts below, the kubelet would set them for the whole machine.
var sysctls = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// mount mounts the node's own /run, which is empty at each boot, and its own /etc, /var/lib and /var/log, which outlive a reboot.
func (n *node) mount() error {
	steps := []struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}{
		{"", "/", "", syscall.MS_REC | syscall.MS_PRIVATE, ""},
		{"proc", "/proc", "proc", 0, ""},
		{filepath.Join(n.Dir, "var-lib"), "/var/lib", "", syscall.MS_BIND, ""},
		{filepath.Join(n.Dir, "var-log"), "/var/log", "", syscall.MS_BIND, ""},
		{"overlay", "/etc", "overlay", 0, "lowerdir=/etc,upperdir=" + filepath.Join(n.Dir, "etc") + ",workdir=" + filepath.Join(n.Dir, "etc-work")},
		{"tmpfs", "/run", "tmpfs", 0, "mode=755"},
	}
	for _, step := range steps {
		if err := syscall.Mount(step.source, step.target, step.kind, step.flags, step.data); err != nil {
			return errors.Wrapf(err, "mounting %s", step.target)
		}
	}
	hidden := maps.Clone(sysctls)
	hidden["kernel/random/boot_id"] = uuid.NewString() // without it, all nodes have the boot ID of the machine
	for name, value := range hidden {
		file := "/run/sysctl-" + strings.ReplaceAll(name, "/", "-")
		if err := os.WriteFile(file, []byte(value+"\n"), 0o600); err != nil {
			return errors.Wrap(err, "writing a sysctl")
		}
		if err := syscall.Mount(file, "/proc/sys/"+name, "", syscall.MS_BIND, ""); err != nil {
			return errors.Wrapf(err, "hiding the machine's %s", name)
		}
	}
	for _, dir := range []string{"/run/containerd", "/run/crio", "/run/dbus", "/run/lock", "/var/log/pods", "/var/log/containers", spec.StaticPodPath} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return errors.Wrap(err, "creating a directory of the node")
		}
	}
	// Mount propagation between containers needs shared mounts.
	return errors.Wrap(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED, ""), "sharing mounts within the node")
}

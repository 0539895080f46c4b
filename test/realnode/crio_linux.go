package realnode

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/test/realnode/spec"
)

// crioPrograms are CRI-O and the programs that it executes. This repository does not build them: CRI-O is not a module of the Go module
// proxy, and the others are written in C.
var crioPrograms = []string{"crio", "conmon", "pinns"}

// HasCRIO returns whether this machine has the programs that a node with CRI-O needs.
func HasCRIO() bool {
	for _, name := range crioPrograms {
		if _, err := exec.LookPath(name); err != nil {
			return false
		}
	}
	return true
}

// linkCRIO links the programs into bin/. CRI-O requires that the CNI plugin of its configuration exists; Pods use the network of the host.
func (n *Node) linkCRIO() error {
	for _, name := range crioPrograms {
		file, err := exec.LookPath(name)
		if err != nil {
			return errors.Wrapf(err, "looking for %s", name)
		}
		if err := os.Symlink(file, n.path("bin", name)); err != nil {
			return errors.Wrap(err, "linking a program")
		}
	}
	const plugin = `#!/bin/sh
echo '{"cniVersion":"0.4.0","supportedVersions":["0.4.0"]}'
`
	return errors.Wrap(os.WriteFile(n.path("bin", "none"), []byte(plugin), 0o700), "writing a CNI plugin")
}

func (n *Node) runtimeSocket() string {
	if n.options.CRIO {
		return spec.CRIOSocket
	}
	return spec.ContainerdSocket
}

// crioConfig returns the configuration of CRI-O. Its default transport pulls images from the layouts that unpackImage writes.
func (n *Node) crioConfig() string {
	return fmt.Sprintf(`
[crio]
storage_driver = "overlay"
[crio.api]
listen = %q
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
disable_hostport_mapping = true
default_runtime = "runc"
pinns_path = %q
[crio.runtime.runtimes.runc]
runtime_path = %q
runtime_root = "/run/runc"
monitor_path = %q
monitor_cgroup = "pod"
[crio.image]
default_transport = "oci:%s/"
pause_image = %q
pause_command = ""
signature_policy = %q
[crio.network]
network_dir = %q
plugin_dirs = [%q]
`, spec.CRIOSocket, n.path("bin", "pinns"), n.path("bin", "runc"), n.path("bin", "conmon"), n.path("layouts"), Image, n.path("policy.json"), n.path("cni"),
		n.path("bin"))
}

// unpackImage writes the files of an image layout into the directory in which CRI-O looks for the image of this name.
func (n *Node) unpackImage(name string, files map[string][]byte) error {
	repository, _, _ := strings.Cut(name, ":")
	for file, content := range files {
		target := n.path("layouts", repository, file)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return errors.Wrap(err, "writing an image")
		}
		if err := os.WriteFile(target, content, 0o600); err != nil {
			return errors.Wrap(err, "writing an image")
		}
	}
	return nil
}

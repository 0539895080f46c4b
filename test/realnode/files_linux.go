package realnode

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/realnode/spec"
)

// path returns a file in the node's directory.
func (n *Node) path(elements ...string) string {
	return filepath.Join(append([]string{n.dir}, elements...)...)
}

// Disk returns the path on the host of a file of the node under /etc, /var/lib or /var/log, also while the node is off. Under /etc there
// are only the files that were written on the node.
func (n *Node) Disk(file string) string {
	for prefix, dir := range map[string]string{"/etc/": "etc", "/var/lib/": "var-lib", "/var/log/": "var-log"} {
		if rest, found := strings.CutPrefix(file, prefix); found {
			return n.path(dir, rest)
		}
	}
	panic(file + " is not on the node's disk")
}

func (n *Node) writeFiles() error {
	for _, dir := range []string{"bin", "log", "images", "cni", "etc", "etc-work", "var-lib/kubelet", "var-lib/journal", "var-log"} {
		if err := os.MkdirAll(n.path(dir), 0o755); err != nil {
			return errors.Wrap(err, "creating a directory of the node")
		}
	}
	if err := n.linkPrograms(); err != nil {
		return err
	}
	kubeconfig, err := n.cluster.ProxiedKubeconfigFor("system:node:"+n.Name(), "system:nodes")
	if err != nil {
		return err
	}
	kubelet, err := n.kubeletConfig()
	if err != nil {
		return err
	}
	for file, content := range map[string]string{
		"kubelet.kubeconfig":      string(kubeconfig),
		"kubelet.json":            kubelet,
		"ca.crt":                  string(n.cluster.CAData()),
		"dbus.conf":               dbusConfig,
		"containerd.toml":         n.containerdConfig(),
		"crio.conf":               n.crioConfig(),
		"policy.json":             `{"default":[{"type":"insecureAcceptAnything"}]}`,
		"cni/10-none.conflist":    `{"cniVersion":"0.4.0","name":"none","plugins":[{"type":"none"}]}`,
		"var-lib/journal/journal": "",
	} {
		if err := os.WriteFile(n.path(file), []byte(content), 0o600); err != nil {
			return errors.Wrap(err, "writing a file of the node")
		}
	}
	return nil
}

// linkPrograms builds the guest and links all programs into bin/. The guest takes the place of runc, unless RuncWithSeccomp returns one:
// see execRunc.
func (n *Node) linkPrograms() error {
	n.guest = n.path("bin", "guest")
	if err := Build(n.guest, "./test/realnode/guest"); err != nil {
		return err
	}
	for link, tool := range map[string]string{
		"kubelet": "kubelet", "containerd": "containerd", "containerd-shim-runc-v2": "containerd-shim-runc-v2", "ctr": "ctr", "real-runc": "runc",
	} {
		path, err := controlplane.Tool(tool)
		if err != nil {
			return err
		}
		if err := os.Symlink(path, n.path("bin", link)); err != nil {
			return errors.Wrap(err, "linking a program")
		}
	}
	if n.options.CRIO {
		if err := n.linkCRIO(); err != nil {
			return err
		}
	}
	runc := cmp.Or(RuncWithSeccomp(), "guest")
	if n.options.CRIO {
		runc = "guest" // CRI-O sets the OOM score that root of a container or a small VM may not set
	}
	return errors.Wrap(os.Symlink(runc, n.path("bin", "runc")), "linking runc")
}

// RuncWithSeccomp returns the path of the runc of this machine if it supports seccomp, and "" otherwise. The one that this repository
// builds does not, because it would need a C library: containers then run without their seccomp profiles.
func RuncWithSeccomp() string {
	file, err := exec.LookPath("runc")
	if err != nil {
		return ""
	}
	if version, err := exec.Command(file, "--version").Output(); err != nil || !strings.Contains(string(version), "libseccomp:") {
		return ""
	}
	return file
}

const dbusConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path=` + spec.DBusSocket + `</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/> <allow own="*"/>
    <allow send_type="method_call"/> <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/> <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/> <allow receive_type="signal"/> <allow receive_type="method_return"/> <allow receive_type="error"/>
  </policy>
</busconfig>
`

func (n *Node) containerdConfig() string {
	return fmt.Sprintf(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs", "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = %[1]q
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd-opt"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = %[2]q
[plugins."io.containerd.cri.v1.runtime"]
  # Root of a container or a small VM may not make processes more important than they are.
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      runtime_path = %[3]q
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = %[4]q
        SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [%[5]q]
    conf_dir = %[5]q
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
`, spec.ContainerdSocket, Image, n.path("bin", "containerd-shim-runc-v2"), n.path("bin", "runc"), n.path("cni"))
}

// kubeletConfig returns the kubelet's configuration as JSON.
func (n *Node) kubeletConfig() (string, error) {
	config := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address": "127.0.0.1", "port": n.port, "healthzPort": 0, "readOnlyPort": 0,
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": true},
			"x509": map[string]any{"clientCAFile": n.path("ca.crt")},
		},
		"authorization": map[string]any{"mode": "Webhook"},
		"failCgroupV1":  false, "cgroupDriver": "cgroupfs", "cgroupRoot": n.cgroups.name(), "failSwapOn": false,
		"containerRuntimeEndpoint": "unix://" + n.runtimeSocket(),
		"staticPodPath":            spec.StaticPodPath,
		// The kubelet uses inotify; the interval, by default 20 s, is for changes that inotify misses.
		"fileCheckFrequency": "2s",
		"volumePluginDir":    "/var/lib/kubelet/volume-plugins", "makeIPTablesUtilChains": false,
		"imageGCHighThresholdPercent": 100,
		"evictionHard": map[string]string{
			"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%", "imagefs.inodesFree": "1%",
		},
		"nodeStatusUpdateFrequency": "2s",
		"shutdownGracePeriod":       n.options.ShutdownGracePeriod.String(), "shutdownGracePeriodCriticalPods": n.options.ShutdownGracePeriodCriticalPods.String(),
		"logging": map[string]any{"verbosity": 2},
	}
	if n.options.ProviderID != "" {
		config["providerID"] = n.options.ProviderID
	}
	content, err := json.MarshalIndent(config, "", "  ")
	return string(content), errors.Wrap(err, "writing the kubelet's configuration")
}

func (n *Node) kubeletArgs() []string {
	args := []string{
		"--config=" + n.path("kubelet.json"), "--kubeconfig=" + n.path("kubelet.kubeconfig"),
		"--hostname-override=" + n.Name(), "--root-dir=/var/lib/kubelet", "--cert-dir=/var/lib/kubelet/pki",
	}
	if address := hostAddress(); address != "" {
		args = append(args, "--node-ip="+address)
	}
	var labels []string
	for key, value := range n.options.Labels {
		labels = append(labels, key+"="+value)
	}
	if len(labels) > 0 {
		slices.Sort(labels)
		args = append(args, "--node-labels="+strings.Join(labels, ","))
	}
	return args
}

// hostAddress returns an address of the machine that a kubelet accepts as the Node's, which must not be loopback. It is not used for
// connections.
func hostAddress() string {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && network.IP.To4() != nil && network.IP.IsGlobalUnicast() {
			return network.IP.String()
		}
	}
	return ""
}

package realnode

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/godbus/dbus/v5"
	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/test/realnode/spec"
)

// PowerButton has logind shut the node down: logind signals the shutdown, waits until all locks are released, and powers off.
func (n *Node) PowerButton() error { return ignoreLostReply(n.logind("PowerOff", false)) }

// CancelShutdown cancels the shutdown.
func (n *Node) CancelShutdown() error { return n.logind("CancelScheduledShutdown") }

func (n *Node) logind(method string, args ...any) error {
	return n.call("org.freedesktop.login1", "/org/freedesktop/login1", method, args...)
}

// StopKubelet stops the kubelet. Its Pods keep running.
func (n *Node) StopKubelet() error { return n.systemd("StopUnit", spec.Kubelet) }

// StartKubelet starts the kubelet after StopKubelet.
func (n *Node) StartKubelet() error { return n.systemd("StartUnit", spec.Kubelet) }

// StopContainerd stops the container runtime. Its containers keep running.
func (n *Node) StopContainerd() error { return n.systemd("StopUnit", spec.Containerd) }

// StartContainerd starts the container runtime after StopContainerd.
func (n *Node) StartContainerd() error { return n.systemd("StartUnit", spec.Containerd) }

// StopDBus stops the bus. Only a boot can start it again, because systemd is reached through the bus.
func (n *Node) StopDBus() error { return ignoreLostReply(n.systemd("StopUnit", spec.DBus)) }

// ignoreLostReply returns nil for the error of a call that has stopped the bus before its reply was sent. The caller checks the effect.
func ignoreLostReply(err error) error {
	if errors.Is(err, dbus.ErrClosed) || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (n *Node) systemd(method, unit string) error {
	return n.call("org.freedesktop.systemd1", "/org/freedesktop/systemd1", method, unit, "replace")
}

func (n *Node) call(name string, path dbus.ObjectPath, method string, args ...any) error {
	root, err := n.root()
	if err != nil {
		return err
	}
	conn, err := dbus.Connect("unix:path=" + filepath.Join(root, spec.DBusSocket))
	if err != nil {
		return errors.Wrap(err, "connecting to the node's bus")
	}
	defer func() { _ = conn.Close() }()
	return errors.Wrapf(conn.Object(name, path).Call(name+".Manager."+method, 0, args...).Err, "calling %s", method)
}

// root returns the root directory of the running node.
func (n *Node) root() (string, error) {
	pid, err := n.init()
	return fmt.Sprintf("/proc/%d/root", pid), err
}

// ReadFile reads the one file on the running node that matches the pattern.
func (n *Node) ReadFile(pattern string) (string, error) {
	root, err := n.root()
	if err != nil {
		return "", err
	}
	files, err := filepath.Glob(root + pattern)
	if err != nil || len(files) != 1 {
		return "", errors.Errorf("%d files match %s", len(files), pattern)
	}
	content, err := os.ReadFile(files[0])
	return string(content), errors.Wrap(err, "reading a file of the node")
}

// Journal returns what the workload and logind have done on the node so far, in all of its boots.
func (n *Node) Journal() Journal {
	content, err := os.ReadFile(n.Disk(spec.Journal))
	if err != nil {
		return nil
	}
	return parseJournal(string(content))
}

// Locks returns the present holders of logind's locks.
func (n *Node) Locks() []string { return n.Journal().Locks() }

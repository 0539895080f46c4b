package realnode

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// Processes returns the process IDs, on the host, of the processes in the node's containers whose command line begins with these arguments.
func (n *Node) Processes(args ...string) []int {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var found []int
	for _, dir := range dirs {
		cgroup, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil || !strings.Contains(string(cgroup), n.cgroups.name()+"/") {
			continue
		}
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue
		}
		words := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
		if len(words) < len(args) || !slices.Equal(words[:len(args)], args) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			found = append(found, pid)
		}
	}
	return found
}

// Kill sends SIGKILL to the processes that Processes returns.
func (n *Node) Kill(args ...string) error { return n.signalAll(syscall.SIGKILL, args) }

// Terminate sends SIGTERM to the processes that Processes returns.
func (n *Node) Terminate(args ...string) error { return n.signalAll(syscall.SIGTERM, args) }

func (n *Node) signalAll(signal syscall.Signal, args []string) error {
	pids := n.Processes(args...)
	if len(pids) == 0 {
		return errors.Errorf("no process on node %s runs %v", n.Name(), args)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return errors.Wrapf(err, "sending %s to %v", signal, args)
		}
	}
	return nil
}

// Hide hides a directory from a container: it mounts an empty file system over the directory in the mount namespace of a process. show
// removes that file system.
func Hide(pid int, dir string) (show func() error, err error) {
	err = inMountNamespace(pid, func() error { return unix.Mount("hidden", dir, "tmpfs", 0, "") })
	return func() error {
		err := inMountNamespace(pid, func() error { return unix.Unmount(dir, 0) })
		return errors.Wrapf(err, "showing %s to process %d", dir, pid)
	}, errors.Wrapf(err, "hiding %s from process %d", dir, pid)
}

// inMountNamespace calls f in the mount namespace of a process.
func inMountNamespace(pid int, f func() error) error {
	called := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine: it stays in the namespace
		called <- func() error {
			namespace, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/mnt")
			if err != nil {
				return err
			}
			defer func() { _ = namespace.Close() }()
			if err := unix.Unshare(unix.CLONE_FS); err != nil { // a thread that shares its root directory cannot enter
				return err
			}
			if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS); err != nil {
				return err
			}
			return f()
		}()
	}()
	return <-called
}

// Usage is the resource usage of a process.
type Usage struct {
	// Memory is the proportional set size in bytes.
	Memory int64
	// CPUTicks is the CPU time since the start of the process, in hundredths of a second.
	CPUTicks int64
}

// UsageOf returns the present resource usage of a process.
func UsageOf(pid int) (Usage, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	sizes, err := os.ReadFile(filepath.Join(dir, "smaps_rollup"))
	if err != nil {
		return Usage{}, errors.Wrap(err, "reading the memory of a process")
	}
	usage := Usage{}
	for line := range strings.Lines(string(sizes)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Pss:" {
			kilobytes, _ := strconv.ParseInt(fields[1], 10, 64)
			usage.Memory = kilobytes << 10
		}
	}
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return Usage{}, errors.Wrap(err, "reading the CPU time of a process")
	}
	// The fields after the name, which may contain blanks: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	for _, field := range fields[11:13] {
		ticks, _ := strconv.ParseInt(field, 10, 64)
		usage.CPUTicks += ticks
	}
	return usage, nil
}

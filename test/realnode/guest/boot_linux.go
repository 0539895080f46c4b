package main

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/pkg/errors"
)

// boot runs init in a PID and a mount namespace of its own. When this process dies, in whatever way, the kernel kills init,
// and with process 1 all of the node: that is how a test cuts the power.
func boot(configFile string) error {
	// The parent death signal is about the thread that forked.
	runtime.LockOSThread()
	command := exec.Command("/proc/self/exe", "init", configFile)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	return errors.Wrap(command.Run(), "running the node")
}

package main

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/pkg/errors"
)

// boot runs init in a new PID and mount namespace. When this process exits for any reason, the kernel kills init, and with process 1 all
// processes of the node. A test cuts the power in this way.
func boot(configFile string) error {
	// The kernel sends the parent death signal when the thread that forked exits.
	runtime.LockOSThread()
	command := exec.Command("/proc/self/exe", "init", configFile)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	return errors.Wrap(command.Run(), "running the node")
}

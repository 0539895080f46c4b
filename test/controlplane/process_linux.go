package controlplane

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// startBound starts a child that the kernel kills when this process exits for any reason: a panic, a
// `go test` timeout or SIGKILL leave no control plane behind, without any cleanup code.
//
// The mechanism is the parent death signal. "Parent" means the thread that forked, not the process.
// Go moves goroutines between threads, and terminates a thread whose goroutine exits while locked to
// it, so a child started from an arbitrary goroutine could be killed during a test. One goroutine that
// is locked to its thread and never returns therefore starts all children.
//
// Each child leads a process group, so that Ctrl-C in the terminal reaches only the test process,
// which then stops the children in order.
func startBound(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	starter() <- startRequest{cmd, started}
	return <-started
}

type startRequest struct {
	cmd     *exec.Cmd
	started chan<- error
}

var starter = sync.OnceValue(func() chan<- startRequest {
	requests := make(chan startRequest)
	go func() {
		runtime.LockOSThread()
		for request := range requests {
			request.started <- request.cmd.Start()
		}
	}()
	return requests
})

package controlplane

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// startBound starts a child that the kernel kills when this process ends, in whatever way:
// a panic, a `go test` timeout or SIGKILL leave no control plane behind, and no cleanup code
// has to run for it.
//
// The mechanism is the parent death signal, and it has a trap: "parent" means the thread that
// forked, not the process. Go moves goroutines between threads, and ends a thread whose
// goroutine exits while locked to it, so a child started from any goroutine could be killed
// in the middle of a test. All children are therefore started by one goroutine that is locked
// to its thread and never returns.
//
// Each child leads a process group, so that a Ctrl-C in the terminal reaches only the test
// process, and the children end in order if the test process cleans up.
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

package main

import (
	"log"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/pkg/errors"
)

// reaper waits for all children of process 1: those that it has started, and orphaned ones such as the shims of containers.
type reaper struct {
	lock   sync.Mutex
	waiter map[int]chan syscall.WaitStatus
}

func newReaper() *reaper {
	r := &reaper{waiter: map[int]chan syscall.WaitStatus{}}
	go func() {
		for {
			var status syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &status, 0, nil)
			if err != nil { // there is no child yet
				time.Sleep(20 * time.Millisecond)
				continue
			}
			r.lock.Lock()
			if waiter := r.waiter[pid]; waiter != nil {
				waiter <- status
				delete(r.waiter, pid)
			}
			r.lock.Unlock()
		}
	}()
	return r
}

// start starts a program whose output is appended to a file. It returns the process ID and a channel that receives the exit status.
func (r *reaper) start(logFile, path string, args ...string) (int, <-chan syscall.WaitStatus, error) {
	output, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, nil, errors.Wrap(err, "opening a log")
	}
	defer func() { _ = output.Close() }()
	r.lock.Lock() // the program may exit before its waiter is registered
	defer r.lock.Unlock()
	pid, err := syscall.ForkExec(path, append([]string{path}, args...), &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{0, output.Fd(), output.Fd()},
	})
	if err != nil {
		return 0, nil, errors.Wrapf(err, "starting %s", path)
	}
	ended := make(chan syscall.WaitStatus, 1)
	r.waiter[pid] = ended
	return pid, ended, nil
}

func (r *reaper) run(path string, args ...string) error {
	_, ended, err := r.start("/dev/stderr", path, args...)
	if err != nil {
		return err
	}
	if status := <-ended; status.ExitStatus() != 0 {
		return errors.Errorf("%s exited with status %d", filepath.Base(path), status.ExitStatus())
	}
	return nil
}

// unit is a service as in systemd: it is restarted when its process exits, unless it was stopped.
type unit struct {
	name, path, log string
	args            []string
	reaper          *reaper

	changing sync.Mutex // serializes start and stop
	lock     sync.Mutex
	pid      int
	gone     chan struct{}
	wanted   bool
}

func (n *node) unit(name, program string, args ...string) *unit {
	path := program
	if !filepath.IsAbs(path) {
		path = "/usr/bin/" + program
	}
	return &unit{name: name, path: path, args: args, reaper: n.reaper, log: filepath.Join(n.Dir, "log", name+".log")}
}

func (u *unit) start() error {
	u.changing.Lock()
	defer u.changing.Unlock()
	u.lock.Lock()
	defer u.lock.Unlock()
	if u.wanted {
		return nil
	}
	u.wanted = true
	return u.launch()
}

// launch starts the process. The caller must hold u.lock.
func (u *unit) launch() error {
	pid, ended, err := u.reaper.start(u.log, u.path, u.args...)
	if err != nil {
		return err
	}
	log.Printf("started %s", u.name)
	u.pid, u.gone = pid, make(chan struct{})
	go u.await(ended, u.gone)
	return nil
}

func (u *unit) await(ended <-chan syscall.WaitStatus, gone chan struct{}) {
	status := <-ended
	close(gone)
	log.Printf("%s exited: %v", u.name, status)
	time.Sleep(200 * time.Millisecond)
	u.lock.Lock()
	defer u.lock.Unlock()
	if u.wanted && u.gone == gone {
		if err := u.launch(); err != nil {
			log.Print(err)
		}
	}
}

// isWanted returns whether the service was started and not stopped since.
func (u *unit) isWanted() bool {
	u.lock.Lock()
	defer u.lock.Unlock()
	return u.wanted
}

// stop stops the service, and returns when its process has exited.
func (u *unit) stop() {
	u.changing.Lock()
	defer u.changing.Unlock()
	u.lock.Lock()
	wanted, pid, gone := u.wanted, u.pid, u.gone
	u.wanted = false
	u.lock.Unlock()
	if !wanted {
		return
	}
	_ = syscall.Kill(pid, syscall.SIGTERM)
	<-gone
}

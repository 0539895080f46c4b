package controlplane

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/pkg/errors"
)

// ProcessSpec describes how to run a program.
type ProcessSpec struct {
	// Name is used in errors, and for the log file unless LogFile is set.
	Name string
	// Path of the program.
	Path string
	Args []string
	// Env is added to the environment of this process.
	Env []string
	// Dir is the working directory.
	Dir string
	// LogFile receives standard output and error. Output is appended.
	LogFile string
	// Ready, if set, is called until it returns nil; RunProcess returns only then.
	Ready func(context.Context) error
	// StopTimeout is how long the program may take to terminate before it is killed. Zero is ten seconds.
	StopTimeout time.Duration
}

// Process is a running program. It dies with the test process, however that exits.
type Process struct {
	spec ProcessSpec
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// RunProcess starts a program that belongs to no control plane. The context limits only the wait for
// the program to be ready.
func RunProcess(ctx context.Context, spec ProcessSpec) (*Process, error) {
	process, err := startProcess(spec)
	if err != nil {
		return nil, err
	}
	if spec.Ready == nil {
		return process, nil
	}
	if err := process.waitUntil(ctx, spec.Ready); err != nil {
		process.Kill()
		return nil, err
	}
	return process, nil
}

func startProcess(spec ProcessSpec) (*Process, error) {
	if spec.StopTimeout == 0 {
		spec.StopTimeout = 10 * time.Second
	}
	if spec.LogFile == "" {
		spec.LogFile = filepath.Join(os.TempDir(), fmt.Sprintf("%s-%d.log", spec.Name, os.Getpid()))
	}
	log, err := os.OpenFile(spec.LogFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, errors.Wrapf(err, "opening the log file of %s", spec.Name)
	}
	// A started child has its own descriptor.
	defer func() { _ = log.Close() }()

	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Dir = spec.Dir
	cmd.Env = append(os.Environ(), spec.Env...)
	// With a file instead of a writer, Wait returns when the process exits, not when the last copy
	// of its output pipe is closed.
	cmd.Stdout, cmd.Stderr = log, log
	if err := startBound(cmd); err != nil {
		return nil, errors.Wrapf(err, "starting %s", spec.Name)
	}
	process := &Process{spec: spec, cmd: cmd, done: make(chan struct{})}
	go func() {
		process.err = cmd.Wait()
		close(process.done)
	}()
	return process, nil
}

// Name returns the name given in the spec.
func (p *Process) Name() string { return p.spec.Name }

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has exited.
func (p *Process) Done() <-chan struct{} { return p.done }

func (p *Process) hasExited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Wait blocks until the process has exited. It returns nil for status 0.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// Signal sends a signal. It is not an error if the process has exited.
func (p *Process) Signal(signal os.Signal) error {
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return errors.Wrapf(err, "sending %s to %s", signal, p.spec.Name)
	}
	return nil
}

// Stop terminates the process and kills it if that takes too long, which is an error with the end of
// its log; the log of a Go program has its goroutines. The process has exited when Stop returns. Wait
// returns the exit status.
func (p *Process) Stop() error { return p.stop(context.Background()) }

// stop is Stop with a context: it also kills the process when the context is done.
func (p *Process) stop(ctx context.Context) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, p.spec.StopTimeout)
	defer cancel()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		p.dump()
		p.Kill()
		return errors.Errorf("%s did not exit within %s of SIGTERM and was killed; its log %s ends:\n%s", p.spec.Name, p.spec.StopTimeout, p.spec.LogFile,
			p.tail(1000))
	}
}

// dump makes a Go program write the stacks of its goroutines and exit.
func (p *Process) dump() {
	if p.Signal(syscall.SIGQUIT) != nil {
		return
	}
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
	}
}

// Kill kills the process and returns when it has exited.
func (p *Process) Kill() {
	// The only possible error is that the process has exited already.
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Log returns the output of the process.
func (p *Process) Log() string {
	content, err := os.ReadFile(p.spec.LogFile)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	return string(content)
}

// tail returns the last lines of the log, for an error message.
func (p *Process) tail(lines int) string {
	content := bytes.TrimRight([]byte(p.Log()), "\n")
	start := len(content)
	for range lines {
		at := bytes.LastIndexByte(content[:start], '\n')
		if at < 0 {
			return string(content)
		}
		start = at
	}
	return string(content[start+1:])
}

// waitUntil calls ready until it returns nil, the process exits, or the context is done. The error has
// the end of the process's log.
func (p *Process) waitUntil(ctx context.Context, ready func(context.Context) error) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ticker.C:
		case <-p.done:
			return errors.Errorf("%s exited before it was ready: %v; its log %s ends:\n%s", p.spec.Name, p.err, p.spec.LogFile, p.tail(25))
		case <-ctx.Done():
			return errors.Wrapf(ctx.Err(), "waiting for %s to be ready: %v; its log %s ends:\n%s", p.spec.Name, err, p.spec.LogFile, p.tail(25))
		}
	}
}

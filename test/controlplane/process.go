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

// ProcessSpec says how to run a program.
type ProcessSpec struct {
	// Name in errors, and of the log file unless LogFile is given.
	Name string
	// Path of the program.
	Path string
	Args []string
	// Env is added to the environment of this process.
	Env []string
	// Dir is the working directory.
	Dir string
	// LogFile receives standard output and error. It is appended to.
	LogFile string
	// Ready, if given, is asked until it returns nil; RunProcess returns only then.
	Ready func(context.Context) error
	// StopTimeout is how long the program may take to end by itself. Zero is ten seconds.
	StopTimeout time.Duration
}

// Process is a running program. It dies with the test process, however that ends.
type Process struct {
	spec ProcessSpec
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// RunProcess starts a program that belongs to no control plane. The context bounds only the
// wait for the program to be ready.
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
	// The child has its own descriptor once it is started.
	defer func() { _ = log.Close() }()

	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Dir = spec.Dir
	cmd.Env = append(os.Environ(), spec.Env...)
	// A file, not a writer: Wait then returns when the process ends, instead of when the
	// last copy of its output pipe closes.
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

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait blocks until the process has ended; nil means that it exited with status 0.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// Signal sends a signal. A process that has ended already is no error.
func (p *Process) Signal(signal os.Signal) error {
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return errors.Wrapf(err, "sending %s to %s", signal, p.spec.Name)
	}
	return nil
}

// Stop asks the process to end and kills it if it takes too long, which is an error that has the
// end of its log; a Go program's says where its goroutines are. In either case the process is gone
// when Stop returns. The exit status is Wait's to tell.
func (p *Process) Stop() error { return p.stop(context.Background()) }

// stop is Stop with less patience: a process that is still there when the context ends is
// killed, too.
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
		return errors.Errorf("%s didn't end within %s of SIGTERM and was killed; its log %s ends:\n%s", p.spec.Name, p.spec.StopTimeout, p.spec.LogFile, p.tail(1000))
	}
}

// dump has a Go program write where its goroutines are, of which it dies.
func (p *Process) dump() {
	if p.Signal(syscall.SIGQUIT) != nil {
		return
	}
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
	}
}

// Kill ends the process at once and returns when it is gone.
func (p *Process) Kill() {
	// The only errors are that it is gone already and that it never was.
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Log returns what the process has written so far.
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

// waitUntil asks ready again and again until it returns nil, the process ends, or the context
// does. A failure carries the end of the process's log.
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
			return errors.Errorf("%s ended before it was ready: %v; its log %s ends:\n%s", p.spec.Name, p.err, p.spec.LogFile, p.tail(25))
		case <-ctx.Done():
			return errors.Wrapf(ctx.Err(), "waiting for %s to be ready: %v; its log %s ends:\n%s", p.spec.Name, err, p.spec.LogFile, p.tail(25))
		}
	}
}

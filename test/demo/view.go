package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pkg/errors"
)

const (
	// exitInterrupted is the exit code of the plugin's live view after Ctrl-C.
	exitInterrupted = 130
	// viewDelay is how long the view continues after the end of an act, to show that end.
	viewDelay = 2 * time.Second
)

// plugin returns a command that runs the kubectl plugin in the management cluster. Its terminal is restored when the context is done.
func (p *play) plugin(ctx context.Context, args ...string) *exec.Cmd {
	p.say("kubectl node-maintenance %s", strings.Join(args, " "))
	command := exec.CommandContext(ctx, p.tools.plugin, args...)
	command.Env = p.tools.environment
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = viewDelay
	return command
}

// predict prints what the kubectl plugin predicts for the drain of a Machine.
func (p *play) predict(ctx context.Context, machine string) error {
	output, err := p.plugin(ctx, "plan", "machine", machine).Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) { // 1 means that something blocks at present
		return errors.Wrap(err, "predicting the drain")
	}
	p.say("\n%s", output)
	return nil
}

// watch shows the live view of the kubectl plugin until the returned function is called. In a terminal, it has the whole screen.
func (p *play) watch(ctx context.Context, args ...string) (end func(), err error) {
	command := p.plugin(ctx, append([]string{"status", "--watch"}, args...)...)
	command.Stdin, command.Stdout = os.Stdin, os.Stdout
	if !p.live {
		lines := &lineWriter{write: func(line string) { p.say("  %s", line) }}
		command.Stdin, command.Stdout = nil, lines
	}
	if err := command.Start(); err != nil {
		return nil, errors.Wrap(err, "starting the live view")
	}
	ended := make(chan struct{})
	var ending atomic.Bool
	go func() {
		defer close(ended)
		_ = command.Wait()
		if command.ProcessState.ExitCode() == exitInterrupted && !ending.Load() {
			p.interrupt() // the view reads the keys of the terminal
		}
	}()
	return func() {
		select {
		case <-time.After(viewDelay):
		case <-ctx.Done():
		case <-ended:
		}
		ending.Store(true)
		_ = command.Process.Signal(syscall.SIGTERM)
		<-ended
	}, nil
}

// lineWriter passes on what is written line by line.
type lineWriter struct {
	write func(line string)

	mu   sync.Mutex
	rest []byte
}

func (w *lineWriter) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rest = append(w.rest, text...)
	for {
		line, rest, found := bytes.Cut(w.rest, []byte("\n"))
		if !found {
			return len(text), nil
		}
		w.write(string(line))
		w.rest = rest
	}
}

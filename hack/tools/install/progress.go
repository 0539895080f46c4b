//go:build unix

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// progress counts the packages that `go build -v` reports on its standard error, and shows the number on a terminal.
type progress struct {
	out        io.Writer
	isTerminal bool
	what       string
	packages   int // an upper limit, since packages in Go's build cache are not reported. 0 means that it is unknown
	compiled   int
	start      time.Time
	incomplete []byte   // a line without its end
	last       []string // the last lines, which explain a failure

	mutex sync.Mutex
	shown bool // the line on the terminal has no end
	ended bool
}

// secondsPerPackage is the CPU time of a package in a first build of the control plane programs, linking included. It serves estimates
// only.
const secondsPerPackage = 0.28

func newProgress(out *os.File, what, dir string, environment, packages []string) *progress {
	p := &progress{out: out, what: what, start: time.Now()}
	if info, err := out.Stat(); err == nil {
		p.isTerminal = info.Mode()&os.ModeCharDevice != 0
	}
	list := exec.Command("go", append([]string{"list", "-deps"}, packages...)...)
	list.Dir, list.Env = dir, environment
	if output, err := list.Output(); err == nil {
		p.packages = bytes.Count(output, []byte("\n"))
	}
	cpus := runtime.NumCPU()
	minutes := int(float64(p.packages)*secondsPerPackage/float64(min(cpus, 8))/60) + 1
	fmt.Fprintf(out, "building %s: %d packages, at most about %d minutes on %d CPUs, once\n", what, p.packages, minutes, cpus)
	if p.isTerminal {
		go p.tick()
	}
	return p
}

// tick shows each second that the build continues: no package is reported while a program is linked.
func (p *progress) tick() {
	for range time.Tick(time.Second) {
		if !p.show() {
			return
		}
	}
}

// show shows the number of packages on a terminal, until the build has ended.
func (p *progress) show() bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.isTerminal && !p.ended {
		p.shown = true
		fmt.Fprintf(p.out, "\r  %d of at most %d packages compiled, %s ", p.compiled, p.packages, time.Since(p.start).Round(time.Second))
	}
	return !p.ended
}

// Write implements io.Writer for the standard error of `go build -v`.
func (p *progress) Write(content []byte) (int, error) {
	p.count(content)
	p.show()
	return len(content), nil
}

func (p *progress) count(content []byte) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.incomplete = append(p.incomplete, content...)
	for {
		end := bytes.IndexByte(p.incomplete, '\n')
		if end < 0 {
			break
		}
		p.last = append(p.last, string(p.incomplete[:end]))
		p.last = slices.Delete(p.last, 0, max(0, len(p.last)-keptLines))
		p.incomplete = p.incomplete[end+1:]
		p.compiled++
	}
}

// keptLines is how many of the last lines of a build are in the message of its failure.
const keptLines = 40

func (p *progress) messages() string {
	return strings.Join(append(p.last, string(p.incomplete)), "\n")
}

// end ends the line that shows the number of packages, and reports a successful build in its place.
func (p *progress) end(successful bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.ended = true
	switch {
	case p.shown && successful:
		fmt.Fprint(p.out, "\r\x1b[K")
	case p.shown:
		fmt.Fprintln(p.out)
	}
	if successful {
		fmt.Fprintf(p.out, "built %s in %s (%d packages compiled)\n", p.what, time.Since(p.start).Round(time.Second), p.compiled)
	}
}

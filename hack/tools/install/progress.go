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
}

// secondsPerPackage is the CPU time of a package in a first build of the control plane programs, linking included. It serves estimates only.
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
	return p
}

// Write implements io.Writer for the standard error of `go build -v`.
func (p *progress) Write(content []byte) (int, error) {
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
	if p.isTerminal {
		fmt.Fprintf(p.out, "\r  %d of at most %d packages compiled, %s ", p.compiled, p.packages, time.Since(p.start).Round(time.Second))
	}
	return len(content), nil
}

// keptLines is how many of the last lines of a build are in the message of its failure.
const keptLines = 40

func (p *progress) messages() string {
	return strings.Join(append(p.last, string(p.incomplete)), "\n")
}

// end ends the line that shows the number of packages.
func (p *progress) end() {
	if p.isTerminal && p.compiled > 0 {
		fmt.Fprintln(p.out)
	}
}

func (p *progress) done() {
	if p.isTerminal && p.compiled > 0 {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
	fmt.Fprintf(p.out, "built %s in %s (%d packages compiled)", p.what, time.Since(p.start).Round(time.Second), p.compiled)
	if !p.isTerminal || p.compiled == 0 {
		fmt.Fprintln(p.out)
	}
}

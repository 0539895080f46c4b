package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// program is a running manager that is measured.
type program struct {
	pid                 int
	metrics, profileURL string
}

// ticksPerSecond is USER_HZ, the unit of CPU time in /proc, on all architectures that Go supports.
const ticksPerSecond = 100

// rss returns the resident memory, in MB.
func (p program) rss() (float64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		return 0, errors.Wrap(err, "reading the memory of a manager")
	}
	return residentMemory(string(content))
}

func residentMemory(status string) (float64, error) {
	for line := range strings.Lines(status) {
		if value, found := strings.CutPrefix(line, "VmRSS:"); found {
			kilobytes, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			return kilobytes / 1024, errors.Wrapf(err, "reading %q", line)
		}
	}
	return 0, errors.New("VmRSS is missing")
}

// cpu returns the CPU time used so far.
func (p program) cpu() (time.Duration, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		return 0, errors.Wrap(err, "reading the CPU time of a manager")
	}
	return cpuTime(string(content))
}

// cpuTime reads the 14th and 15th field: user and system time. The second field, the name in brackets, may contain any character.
func cpuTime(stat string) (time.Duration, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, errors.Errorf("%q is not the content of /proc/<pid>/stat", stat)
	}
	var ticks int64
	for _, field := range fields[11:13] {
		value, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, errors.Wrapf(err, "reading %q", stat)
		}
		ticks += value
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// live returns heap and stacks after a garbage collection, in MB. Unlike the resident memory, it does not depend on when the collector
// last ran.
func (p program) live(ctx context.Context) (float64, error) {
	if err := p.profile(ctx, "heap?gc=1", io.Discard); err != nil {
		return 0, err
	}
	metrics, err := fleet.Scrape(ctx, p.metrics)
	if err != nil {
		return 0, err
	}
	return (metrics.Sum("go_memstats_heap_alloc_bytes", nil) + metrics.Sum("go_memstats_stack_inuse_bytes", nil)) / (1 << 20), nil
}

// profile reads one of the program's profiles.
func (p program) profile(ctx context.Context, name string, to io.Writer) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.profileURL+name, nil)
	if err != nil {
		return errors.Wrapf(err, "asking for the profile %s", name)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return errors.Wrapf(err, "asking for the profile %s", name)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return errors.Errorf("asking for the profile %s: %s", name, response.Status)
	}
	_, err = io.Copy(to, response.Body)
	return errors.Wrapf(err, "reading the profile %s", name)
}

// saveProfiles writes profiles to a directory, unless it is "".
func (p program) saveProfiles(ctx context.Context, dir string, names ...string) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return errors.Wrap(err, "creating the directory of profiles")
	}
	for _, name := range names {
		content := &bytes.Buffer{}
		if err := p.profile(ctx, name, content); err != nil {
			return err
		}
		file := filepath.Join(dir, strings.ReplaceAll(name, "?", "-")+".pprof")
		if err := os.WriteFile(file, content.Bytes(), 0o600); err != nil {
			return errors.Wrap(err, "writing a profile")
		}
	}
	return nil
}

// memory is the memory of a program at one point in time, in MB.
type memory struct{ rss, live float64 }

const (
	// steadyInterval is the time between two measurements of live memory, which is steady if they differ by less than steadyShare. A manager
	// that has just become ready still starts controllers, and memory in pools is only released by a second garbage collection.
	steadyInterval, steadyShare = time.Second, 0.01
	steadyAttempts              = 30
)

// memory returns the memory of a program as soon as its live memory is steady.
func (p program) memory(ctx context.Context) (m memory, err error) {
	steady := false
	for attempt := 0; attempt < steadyAttempts && !steady; attempt++ {
		before := m.live
		if m.live, err = p.live(ctx); err != nil {
			return m, err
		}
		if steady = math.Abs(m.live-before) < steadyShare*before; !steady {
			if err := pause(ctx, steadyInterval); err != nil {
				return m, err
			}
		}
	}
	m.rss, err = p.rss()
	return m, err
}

// peakWatch records the highest resident memory.
type peakWatch struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	peak   float64
}

const peakInterval = 200 * time.Millisecond

func (p program) watchPeak(ctx context.Context) *peakWatch {
	ctx, cancel := context.WithCancel(ctx)
	w := &peakWatch{cancel: cancel}
	w.done.Go(func() {
		for pause(ctx, peakInterval) == nil {
			if now, err := p.rss(); err == nil {
				w.peak = max(w.peak, now)
			}
		}
	})
	return w
}

// stop returns the peak, in MB.
func (w *peakWatch) stop() float64 {
	w.cancel()
	w.done.Wait()
	return w.peak
}

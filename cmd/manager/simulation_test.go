package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/capnm/cluster-api-node-maintenance/test/chaos"
	"github.com/capnm/cluster-api-node-maintenance/test/simulation/choice"
)

var (
	simulationSeed    = flag.Uint64("simulation.seed", 1, "the seed of the first simulated run; each following run adds one")
	simulationRuns    = flag.Uint64("simulation.runs", 20, "the number of simulated runs")
	simulationTwice   = flag.Uint64("simulation.twice", 0, "of how many runs a second one must make the same requests at the same times")
	simulationShrink  = flag.Int("simulation.shrink", 60, "the number of runs that look for a smaller schedule after a violation")
	simulationParts   = flag.String("simulation.parts", "", "only these parts of the schedule, as a shrunk run prints them")
	simulationChoices = flag.Uint64("simulation.choices", 0, "another number is another order of goroutines and maps, with the same schedule")
	simulationLog     = flag.Bool("simulation.log", false, "print the log of the manager")
)

// outcome is a simulated run, as its process prints it.
type outcome struct {
	Report     string
	Parts      int
	Violations []string
	Error      string
	Requests   []string
}

func (o *outcome) failed() bool { return len(o.Violations) > 0 || o.Error != "" }

// kinds returns which invariants are violated.
func (o *outcome) kinds() []string {
	var kinds []string
	for _, violation := range o.Violations {
		kind, _, _ := strings.Cut(violation, ":")
		kinds = append(kinds, strings.Trim(kind, "0123456789"))
	}
	return kinds
}

const outcomePrefix = "SIMULATED "

// TestSimulation runs the whole manager under virtual time, each run in a separate process. The same seed is the same run, if the test
// binary was built by test/simulation/build.
func TestSimulation(t *testing.T) {
	if os.Getenv("CAPNM_SIMULATION_WORKER") != "" {
		simulateOnce(t)
		return
	}
	if os.Getenv("CAPNM_TEST_SIMULATION") == "" {
		t.Skip("SKIPPED: make test-simulation runs this test")
	}
	runtime.GOMAXPROCS(max(2, runtime.NumCPU())) // with one, the wait for a process would prevent that its output is read
	seeds := make(chan uint64, *simulationRuns)
	for seed := *simulationSeed; seed < *simulationSeed+*simulationRuns; seed++ {
		seeds <- seed
	}
	close(seeds)
	var all sync.WaitGroup
	for range runtime.NumCPU() {
		all.Go(func() {
			for seed := range seeds {
				runSeed(t, seed, seed < *simulationSeed+*simulationTwice)
			}
		})
	}
	all.Wait()
}

// runSeed runs a seed, and shrinks its schedule if it violates an invariant. With twice, a second run must do the same.
func runSeed(t *testing.T, seed uint64, twice bool) {
	t.Helper()
	parts := wantedParts()
	first := runProcess(t, seed, parts)
	if twice {
		if second := runProcess(t, seed, parts); !slices.Equal(first.Requests, second.Requests) {
			t.Errorf("seed %d: two runs differ: %s", seed, firstDifference(first.Requests, second.Requests))
		}
	}
	if !first.failed() {
		return
	}
	if len(first.Violations) > 0 && parts == nil && *simulationShrink > 0 {
		for i := range first.Parts {
			parts = append(parts, i)
		}
		parts = chaos.Shrink(parts, *simulationShrink, func(fewer []int) bool {
			smaller := runProcess(t, seed, fewer)
			return slices.ContainsFunc(smaller.kinds(), func(kind string) bool { return slices.Contains(first.kinds(), kind) })
		})
		t.Logf("seed %d: the run below has %d of %d parts of the schedule. The whole run violates: %s", seed, len(parts), first.Parts,
			strings.Join(first.Violations, "\n"))
		first = runProcess(t, seed, parts)
	}
	t.Errorf("seed %d: %s\n%s\n%s\nTo repeat this run: make test-simulation RUNS=1 SEED=%d SIMULATION_FLAGS='-simulation.parts=%s'", seed, first.Report,
		strings.Join(first.Violations, "\n"), first.Error, seed, joined(parts))
}

// wantedParts returns the parts of the schedule that the flag has, or nil for all. It has "none" for none.
func wantedParts() (parts []int) {
	if *simulationParts == "" {
		return nil
	}
	parts = []int{}
	for part := range strings.SplitSeq(*simulationParts, ",") {
		if i, err := strconv.Atoi(part); err == nil {
			parts = append(parts, i)
		}
	}
	return parts
}

// joined returns the value of the flag.
func joined(parts []int) string {
	if parts != nil && len(parts) == 0 {
		return "none"
	}
	var all []string
	for _, part := range parts {
		all = append(all, strconv.Itoa(part))
	}
	return strings.Join(all, ",")
}

func firstDifference(a, b []string) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("request %d is\n%s\nor\n%s", i, a[i], b[i])
		}
	}
	return fmt.Sprintf("one makes %d requests, and the other %d", len(a), len(b))
}

// runProcess runs a seed in a process. A run in which virtual time stands still, see stuck, is repeated twice with other choices.
func runProcess(t *testing.T, seed uint64, parts []int) (o outcome) {
	t.Helper()
	for attempt := range uint64(3) {
		command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSimulation$", "-test.timeout=0", fmt.Sprintf("-simulation.seed=%d", seed),
			"-simulation.parts="+joined(parts), fmt.Sprintf("-simulation.choices=%d", *simulationChoices+attempt), fmt.Sprintf("-simulation.log=%t", *simulationLog))
		// Nothing but the goroutines themselves decides when another one runs: neither threads, nor a garbage collection.
		command.Env = append(os.Environ(), "CAPNM_SIMULATION_WORKER=1", "GOMAXPROCS=1", "GOGC=off", "GOMEMLIMIT=3GiB", "GODEBUG=asyncpreemptoff=1",
			"GOTRACEBACK=all")
		var output, errorOutput bytes.Buffer
		command.Stdout, command.Stderr = &output, &errorOutput
		if *simulationLog {
			command.Stderr = os.Stderr
		}
		stoodStill, err := runWatched(command)
		for line := range bytes.Lines(output.Bytes()) {
			if text, is := bytes.CutPrefix(line, []byte(outcomePrefix)); is {
				o = outcome{}
				if err := json.Unmarshal(text, &o); err != nil {
					t.Error(err)
				}
				return o
			}
		}
		printed := output.String() + errorOutput.String()
		o.Error = fmt.Sprintf("the process has ended, virtual time stood still: %t: %v: %s", stoodStill, err, printed[:min(len(printed), 20_000)])
		if !stoodStill {
			break
		}
	}
	return o
}

const (
	// stuck is the time in which a process that computes uses more of the CPU than idle, also beside many others.
	stuck = 20 * time.Second
	// idle is in the unit of /proc/PID/stat, 10 ms.
	idle = 2
)

// runWatched runs a process. If virtual time stands still, because a goroutine waits for a mutex, and its holder for time, the process is
// told to print its stacks and to end. A watch inside the process would wake up at real times, and change the order of its goroutines.
func runWatched(command *exec.Cmd) (stoodStill bool, err error) {
	if err := command.Start(); err != nil {
		return false, err
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	ticker := time.NewTicker(stuck)
	defer ticker.Stop()
	for last := 0; ; {
		select {
		case err := <-ended:
			return stoodStill, err
		case <-ticker.C:
		}
		now, known := cpuTime(command.Process.Pid)
		if known && now-last < idle {
			stoodStill = true
			_ = command.Process.Signal(syscall.SIGQUIT) // it may have ended
		}
		last = now
	}
}

// cpuTime returns how long a process has computed. It is known on Linux only.
func cpuTime(pid int) (ticks int, known bool) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:])) // the name of the program may have spaces
	if err != nil || len(fields) < 13 {
		return 0, false
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return user + system, true
}

// simulateOnce plays the schedule of a seed in a bubble, and prints the outcome. The bubble is left with all its goroutines: those of
// killed managers never end.
func simulateOnce(t *testing.T) {
	t.Helper()
	if !*simulationLog {
		klog.SetLogger(logr.Discard())
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
	}
	ctrl.SetLogger(klog.Background())
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1] //nolint:reassign // the second one sleeps until a time that it has read outside of the bubble
	cryptotest.SetGlobalRandom(t, *simulationSeed)
	utilrand.Seed(int64(*simulationSeed))
	choice.Seed(*simulationSeed + *simulationChoices<<32)
	ended, never := make(chan outcome), make(chan struct{})
	go synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		run, err := chaos.Simulate(t.Context(), *simulationSeed, wantedParts(), simulatedManager)
		report := fmt.Sprintf("%s\nwhat happened:\n%s\ntook %s of virtual time\n", run.Schedule, strings.Join(run.Log, "\n"), time.Since(begin))
		o := outcome{Report: report, Parts: run.Schedule.Parts(), Violations: run.Violations, Requests: run.Requests}
		if err != nil {
			o.Error = err.Error()
		}
		ended <- o
		<-never // not of the bubble: time stands still
	})
	o := <-ended
	if !choice.Asked() {
		o.Error = "the runtime of Go chooses at random: make test-simulation builds another one"
	}
	line, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(outcomePrefix + string(line))
}

// simulatedManager runs the manager, which serves nothing over the network.
func simulatedManager(ctx context.Context, management *rest.Config, added func(component any)) error {
	o := newOptions()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.addFlags(fs)
	if err := fs.Parse([]string{"--health-addr=0", "--diagnostics-address=0"}); err != nil {
		return err
	}
	o.severalInProcess, o.wrap = true, func(mgr ctrl.Manager) ctrl.Manager { return toldManager{mgr, added} }
	return run(ctx, o, management)
}

// toldManager is a manager that tells what is added to it.
type toldManager struct {
	ctrl.Manager

	added func(component any)
}

// Add implements ctrl.Manager.
func (m toldManager) Add(runnable manager.Runnable) error {
	m.added(runnable)
	return m.Manager.Add(runnable)
}

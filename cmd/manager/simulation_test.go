package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capnm/cluster-api-node-maintenance/test/chaos"
)

var (
	simulationSeed  = flag.Uint64("simulation.seed", 1, "the seed of the first simulated run; each following run adds one")
	simulationRuns  = flag.Uint64("simulation.runs", 20, "the number of simulated runs")
	simulationBatch = flag.Uint64("simulation.batch", 10, "the number of simulated runs of a process")
	simulationLog   = flag.Bool("simulation.log", false, "print the log of the manager")
)

// outcome is a simulated run.
type outcome struct {
	Seed       uint64
	Report     string
	Violations []string
	Error      string
}

const outcomePrefix = "SIMULATED "

// TestSimulation runs the whole manager under virtual time. Goroutines of a manager that was killed remain in their process, so that each
// batch of runs has its own one.
func TestSimulation(t *testing.T) {
	if os.Getenv("CAPNM_SIMULATION_WORKER") != "" {
		go expectProgress()
		synctest.Test(t, func(t *testing.T) { simulate(t.Context()) })
		return
	}
	if os.Getenv("CAPNM_TEST_SIMULATION") == "" {
		t.Skip("SKIPPED: make test-simulation runs this test")
	}
	batches := make(chan uint64, *simulationRuns)
	for first := *simulationSeed; first < *simulationSeed+*simulationRuns; first += *simulationBatch {
		batches <- first
	}
	close(batches)
	var all sync.WaitGroup
	for range runtime.NumCPU() {
		all.Go(func() {
			for first := range batches {
				runBatch(t, first, min(*simulationBatch, *simulationSeed+*simulationRuns-first))
			}
		})
	}
	all.Wait()
}

// runBatch runs consecutive seeds. A run in which virtual time stands still, see stuck, is repeated twice.
func runBatch(t *testing.T, first, runs uint64) {
	t.Helper()
	end, attempts := first+runs, 0
	for first < end {
		ended, output := runProcess(t, first, end-first)
		if ended > 0 {
			attempts = 0
		}
		if first += ended; first == end {
			return
		}
		if attempts++; attempts > 2 || !strings.Contains(output, stoodStill) {
			t.Errorf("the process has ended in the run of seed %d: %s", first, output[:min(len(output), 20_000)])
			return
		}
	}
}

// runProcess runs consecutive seeds in a process. It returns how many have ended, and what the process has printed.
func runProcess(t *testing.T, first, runs uint64) (ended uint64, printed string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSimulation$", "-test.timeout=0", fmt.Sprintf("-simulation.seed=%d", first),
		fmt.Sprintf("-simulation.runs=%d", runs), fmt.Sprintf("-simulation.log=%t", *simulationLog))
	command.Env = append(os.Environ(), "CAPNM_SIMULATION_WORKER=1", "GOMAXPROCS=1", "GOGC=400")
	var others, errorOutput bytes.Buffer
	command.Stderr = &errorOutput
	if *simulationLog {
		command.Stderr = os.Stderr
	}
	output, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	lines := bufio.NewReader(output)
	for err == nil {
		var line string
		line, err = lines.ReadString('\n')
		text, is := strings.CutPrefix(line, outcomePrefix)
		if !is {
			others.WriteString(line)
			continue
		}
		var o outcome
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			t.Error(err)
			continue
		}
		ended++
		if len(o.Violations) > 0 || o.Error != "" {
			t.Errorf("seed %d: %s\n%s\n%s", o.Seed, o.Report, strings.Join(o.Violations, "\n"), o.Error)
		}
	}
	if err := command.Wait(); err != nil {
		others.WriteString(err.Error() + "\n")
	}
	return ended, others.String() + errorOutput.String()
}

const (
	// stuck is the time in which a process that computes uses more of the CPU than idle, also beside many others.
	stuck = 20 * time.Second
	idle  = 20 * time.Millisecond
	// stoodStill is in the output of a process in which virtual time stands still: a goroutine waits for a mutex, and its holder for time.
	stoodStill = "virtual time stands still"
)

// expectProgress ends the process if virtual time stands still. It runs outside of the bubble, in real time.
func expectProgress() {
	for last := cpuTime(); ; {
		time.Sleep(stuck)
		now := cpuTime()
		if now-last < idle {
			debug.SetTraceback("all")
			panic(stoodStill)
		}
		last = now
	}
}

// cpuTime returns how long the process has computed.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// simulate plays the schedules in the bubble, and ends the process.
func simulate(ctx context.Context) {
	if !*simulationLog {
		klog.SetLogger(logr.Discard())
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
	}
	ctrl.SetLogger(klog.Background())
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1] //nolint:reassign // the second one sleeps until a time that it has read outside of the bubble
	for seed := *simulationSeed; seed < *simulationSeed+*simulationRuns; seed++ {
		begin := time.Now()
		report, violations, err := chaos.Simulate(ctx, seed, simulatedManager)
		o := outcome{Seed: seed, Report: report + fmt.Sprintf("\ntook %s of virtual time", time.Since(begin)), Violations: violations}
		if err != nil {
			o.Error = err.Error()
		}
		line, _ := json.Marshal(o)
		fmt.Println(outcomePrefix + string(line))
	}
	os.Exit(0)
}

// simulatedManager runs the manager, which serves nothing over the network.
func simulatedManager(ctx context.Context, management *rest.Config) error {
	o := newOptions()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.addFlags(fs)
	if err := fs.Parse([]string{"--health-addr=0", "--diagnostics-address=0"}); err != nil {
		return err
	}
	o.severalInProcess = true
	return run(ctx, o, management)
}

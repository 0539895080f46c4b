// Package main measures this product against its peers and against the limit of what is possible, on real control planes:
//
//	go run ./test/bench [scenario] [-runs 3] [-out out/bench]
//
// What was done is taken from the API servers' audit logs, not from what candidates say about themselves. The results go to a
// table and to <out>/<scenario>.json. The exit status is 1 if the product has broken a promise that doesn't depend on the
// machine: an eviction that was refused, made twice, or made without the pod's UID as its precondition; a write by an idle
// fleet. Times are reported, and fail nothing unless -max-ratio says so.
//
// There are two kinds of scenarios (scenario.go lists them):
//
//   - Comparisons (comparison.go): a load, and candidates that take turns on it. They all run on one fleet, one after the
//     other, so that what else the machine does hits all of them. The fleet with its nodes and pods is an arena (arena.go).
//   - Scenarios of scale, in which the product is alone or has one peer.
//
// Flags make each of them smaller or larger.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	ctrl "sigs.k8s.io/controller-runtime"
)

// options are the command line.
type options struct {
	scenario string
	runs     int
	capiRuns int
	only     string
	out      string
	maxRatio float64
	keep     bool
	verbose  bool
	profiles string
	// managerFlags are added to those of our manager.
	managerFlags string

	// maxSurge of a rollout; empty: the scenario's own.
	maxSurge string

	// The size of a scenario; 0: its own.
	nodes, podsPerNode, drained, apps int
	clusters, hosts                   int
	unreachable                       int // negative: the scenario's own
	rest                              time.Duration
}

// managerArgs are flags of our manager.
func (o options) managerArgs() []string {
	args := strings.Fields(o.managerFlags)
	if o.verbose {
		args = append(args, "--v=4")
	}
	return args
}

func main() {
	ctrl.SetLogger(logr.Discard()) // what runs in this process, such as the infrastructure provider, isn't what is measured
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	chosen := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == o.scenario })
	if chosen < 0 {
		return errors.Errorf("there is no scenario %q; there are: %s", o.scenario, strings.Join(names(), ", "))
	}
	s := scenarios[chosen]
	outcomes, err := s.measure(ctx, s, o)
	var failures []string
	for _, out := range outcomes { // also of those that were measured before an error
		if err := out.print(os.Stdout); err != nil {
			return err
		}
		if err := save(o.out, out); err != nil {
			return err
		}
		failures = append(failures, out.failures()...)
	}
	if err != nil {
		return errors.Wrapf(err, "measuring %s", s.name)
	}
	if len(failures) > 0 {
		return errors.Errorf("%s has failed:\n  %s", s.name, strings.Join(failures, "\n  "))
	}
	return nil
}

func parse(args []string) (options, error) {
	o := options{scenario: scenarios[0].name}
	// The scenario may come first, where the flag package would take it for the end of the flags.
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		o.scenario, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	flags.StringVar(&o.scenario, "scenario", o.scenario, "what to measure: "+strings.Join(names(), ", "))
	flags.IntVar(&o.runs, "runs", 3, "runs of each candidate; the medians count")
	flags.IntVar(&o.capiRuns, "capi-runs", 1, "runs of Cluster API's own drain, which takes minutes; 0 leaves it out")
	flags.StringVar(&o.only, "only", "", "run only these candidates, separated by commas")
	flags.StringVar(&o.out, "out", "out/bench", "directory for the results")
	flags.Float64Var(&o.maxRatio, "max-ratio", 0, "fail if ours takes more than this many times the limit; 0 reports only")
	flags.IntVar(&o.nodes, "nodes", 0, "nodes with pods; 0: as many as the scenario has")
	flags.IntVar(&o.podsPerNode, "pods-per-node", 0, "pods on each node; 0: as many as the scenario has")
	flags.IntVar(&o.drained, "drained", 0, "nodes, or clusters, that are drained at once; 0: as many as the scenario drains")
	flags.IntVar(&o.apps, "apps", 0, "Deployments that the pods are divided among; 0: as many as the scenario has")
	flags.StringVar(&o.maxSurge, "max-surge", "", "new Machines, or a percentage, that a rollout is ahead; empty: as many as the scenario has")
	flags.IntVar(&o.clusters, "clusters", 0, "Clusters in the management cluster; 0: as many as the scenario has")
	flags.IntVar(&o.hosts, "hosts", 0, "API servers that the Clusters share; 0: as many as the scenario has")
	flags.IntVar(&o.unreachable, "unreachable", -1, "Clusters to which the network is lost; negative: as many as the scenario has")
	flags.DurationVar(&o.rest, "rest", 0, "how long to watch an idle fleet; 0: as long as the scenario does")
	flags.StringVar(&o.managerFlags, "manager-flags", "", "flags of our manager, separated by spaces, such as --clustercache-client-qps=500")
	flags.StringVar(&o.profiles, "profiles", "", "directory for profiles of our manager; empty: none")
	flags.BoolVar(&o.verbose, "verbose", false, "have our manager log more")
	flags.BoolVar(&o.keep, "keep", false, "keep data and logs of the control planes")
	if err := flags.Parse(args); err != nil {
		return o, errors.Wrap(err, "reading the command line")
	}
	if flags.NArg() > 0 {
		return o, errors.Errorf("what is %q?", flags.Arg(0))
	}
	if o.runs < 1 || o.capiRuns < 0 {
		return o, errors.New("there must be a run, and not less than no run of Cluster API's drain")
	}
	return o, nil
}

func names() []string {
	var all []string
	for _, s := range scenarios {
		all = append(all, s.name)
	}
	return all
}

// began is when the program did, for the progress lines.
var began = time.Now()

// progress tells what is going on. It goes to standard error, the results to standard output.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%6.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
}

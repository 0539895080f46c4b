// Command bench compares this provider with others and with the possible limit, on real control planes:
//
//	go run ./test/bench [scenario] [-runs 3] [-out out/bench]
//
// Counts are taken from the API servers' audit logs, not from the candidates. The results go to a table and to
// <out>/<scenario>.json. The exit status is 1 if this provider violates an expectation that does not depend on the machine: an eviction
// was refused, repeated, or had no UID precondition, or an idle fleet was written to. Times are reported, and are a failure
// only with -max-ratio.
//
// There are two kinds of scenarios (scenario.go lists them):
//
//   - Comparisons (comparison.go): a load, and candidates that run it in turn on one fleet, so that other activity of the
//     machine affects all of them. The fleet with its Nodes and Pods is an arena (arena.go).
//   - Scenarios of scale, for this provider alone or beside Cluster API's core manager.
//
// Flags change the size of each.
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

	"github.com/capnm/cluster-api-node-maintenance/hack/tools/toolchain"
)

// options are the command line.
type options struct {
	scenario string
	runs     int
	capiRuns int
	only     string
	out      string
	docs     string
	maxRatio float64
	keep     bool
	verbose  bool
	profiles string
	// managerFlags are added to the flags of our manager.
	managerFlags string

	// maxSurge of a rollout; empty: that of the scenario.
	maxSurge string

	// The size of a scenario; 0: the default of the scenario.
	nodes, podsPerNode, drained, apps int
	namespaces                        int
	idleNodes                         int
	clusters, hosts                   int
	unreachable                       int // negative: the default of the scenario
	rest                              time.Duration
}

// managerArgs returns the flags of our manager.
func (o options) managerArgs() []string {
	args := strings.Fields(o.managerFlags)
	if o.verbose {
		args = append(args, "--v=4")
	}
	return args
}

func main() {
	_ = os.Unsetenv(toolchain.InstalledVariable) // benchmarks run the pinned programs
	ctrl.SetLogger(logr.Discard())               // of the infrastructure provider, which runs in this process
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
		return errors.Errorf("unknown scenario %q; scenarios: %s", o.scenario, strings.Join(names(), ", "))
	}
	s := scenarios[chosen]
	outcomes, err := s.measure(ctx, s, o)
	var failures []string
	for _, out := range outcomes { // also those that were measured before an error
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
		return errors.Errorf("%s failed:\n  %s", s.name, strings.Join(failures, "\n  "))
	}
	return nil
}

func parse(args []string) (options, error) {
	o := options{scenario: scenarios[0].name}
	// The scenario may come first, where the flag package would take it as the end of the flags.
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		o.scenario, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	flags.StringVar(&o.scenario, "scenario", o.scenario, "scenario to run: "+strings.Join(names(), ", "))
	flags.IntVar(&o.runs, "runs", 3, "runs of each candidate, whose median is reported")
	flags.IntVar(&o.capiRuns, "capi-runs", 1, "runs of Cluster API's own drain, which takes minutes; 0: none")
	flags.StringVar(&o.only, "only", "", "run only these candidates, separated by commas")
	flags.StringVar(&o.out, "out", "out/bench", "directory for the results")
	flags.StringVar(&o.docs, "docs", "", "page whose table is replaced by that of all or summary; empty: none")
	flags.Float64Var(&o.maxRatio, "max-ratio", 0, "fail if we take more than this multiple of the limit; 0: never")
	flags.IntVar(&o.nodes, "nodes", 0, "Nodes with Pods; 0: default of the scenario")
	flags.IntVar(&o.idleNodes, "idle-nodes", 0, "additional Nodes without Pods, in each workload cluster")
	flags.IntVar(&o.podsPerNode, "pods-per-node", 0, "Pods on each Node; 0: default of the scenario")
	flags.IntVar(&o.drained, "drained", 0, "nodes, or clusters, that are drained at once; 0: as many as the scenario drains")
	flags.IntVar(&o.apps, "apps", 0, "Deployments that the Pods belong to; 0: default of the scenario")
	flags.IntVar(&o.namespaces, "namespaces", 0, "Namespaces without Pods in the workload cluster; 0: default of the scenario")
	flags.StringVar(&o.maxSurge, "max-surge", "", "maxSurge of a rollout, a number or percentage; empty: default of the scenario")
	flags.IntVar(&o.clusters, "clusters", 0, "Clusters in the management cluster; 0: default of the scenario")
	flags.IntVar(&o.hosts, "hosts", 0, "API servers that the Clusters share; 0: as many as the scenario has")
	flags.IntVar(&o.unreachable, "unreachable", -1, "Clusters whose network is cut; negative: default of the scenario")
	flags.DurationVar(&o.rest, "rest", 0, "how long to observe an idle fleet; 0: default of the scenario")
	flags.StringVar(&o.managerFlags, "manager-flags", "", "flags of our manager, separated by spaces, such as --clustercache-client-qps=500")
	flags.StringVar(&o.profiles, "profiles", "", "directory for profiles of our manager; empty: none")
	flags.BoolVar(&o.verbose, "verbose", false, "verbose log of our manager")
	flags.BoolVar(&o.keep, "keep", false, "keep data and logs of the control planes")
	if err := flags.Parse(args); err != nil {
		return o, errors.Wrap(err, "reading the command line")
	}
	if flags.NArg() > 0 {
		return o, errors.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.runs < 1 || o.capiRuns < 0 {
		return o, errors.New("-runs must be at least 1, and -capi-runs at least 0")
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

// began is the start of the program, for the progress lines.
var began = time.Now()

// progress prints a progress line to standard error. Results go to standard output.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%6.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
}

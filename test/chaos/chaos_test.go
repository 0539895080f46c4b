package chaos

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

var (
	seed     = flag.Uint64("seed", 1, "the seed of the first run; each following run adds one")
	runs     = flag.Int("runs", 1, "the number of runs")
	only     = flag.String("faults", "", "inject only these faults of the schedule, separated by commas; none: no fault")
	replicas = flag.Int("replicas", 0, "the number of managers; 0: two for every fourth fleet, else one")
	fleets   = flag.Int("fleets", 1, "the number of fleets that run at the same time")
	shrink   = flag.Int("shrink", 0, "the number of runs that look for a schedule with fewer faults that violates an invariant too, after one that does")
	fresh    = flag.Int("fresh", 10, "the number of runs after which a new fleet is started")
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(klog.Background())
	os.Exit(m.Run())
}

// TestChaos runs the schedules of consecutive seeds.
func TestChaos(t *testing.T) {
	if os.Getenv("CAPNM_TEST_CHAOS") == "" {
		t.Skip("SKIPPED: make test-chaos runs this test")
	}
	seeds := make(chan uint64, *runs)
	for i := range *runs {
		seeds <- *seed + uint64(i)
	}
	close(seeds)
	var all sync.WaitGroup
	for range min(*fleets, *runs) {
		all.Go(func() { playSeeds(t, seeds) })
	}
	all.Wait()
}

// playSeeds runs one schedule after the other in a fleet. A run that fails leaves the fleet in an unknown state, so the next one gets a new
// fleet.
func playSeeds(t *testing.T, seeds <-chan uint64) {
	t.Helper()
	var w *world
	stop := func() {
		if w != nil {
			if err := w.stop(); err != nil {
				t.Log(err)
			}
		}
		w = nil
	}
	defer stop()
	played := 0
	for current := range seeds {
		if played%*fresh == 0 || w != nil && (w.ended || len(w.managers) != replicasOf(current)) {
			stop()
		}
		played++
		if !t.Run("seed "+strconv.FormatUint(current, 10), func(t *testing.T) {
			if w == nil {
				begin := time.Now()
				var err error
				if w, err = newWorld(t.Context(), replicasOf(current)); err != nil {
					t.Fatal(err)
				}
				t.Logf("the fleet with %d managers started in %s", len(w.managers), time.Since(begin).Round(time.Second))
			}
			schedule := NewSchedule(current, faults())
			if *only != "" {
				schedule = schedule.Keep(strings.Split(*only, ",")...)
			}
			if violated := playSchedule(t, w, schedule); violated && *shrink > 0 {
				stop()
				shrinkSchedule(t, schedule)
			}
		}) {
			stop()
		}
	}
}

func replicasOf(seed uint64) int {
	if *replicas > 0 {
		return *replicas
	}
	if seed/10%4 == 3 {
		return 2
	}
	return 1
}

// shrinkSchedule logs a schedule with fewer faults that violates an invariant too.
func shrinkSchedule(t *testing.T, schedule Schedule) {
	t.Helper()
	shrunk := schedule.Shrink(*shrink, func(smaller Schedule) bool {
		w, err := newWorld(t.Context(), replicasOf(schedule.Seed))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = w.stop() }()
		_, violations, err := w.play(t.Context(), smaller, faults())
		t.Logf("with %d faults: %d violations, error %v", len(smaller.Faults), len(violations), err)
		return len(violations) > 0
	})
	t.Logf("shrunk to:\n%s", shrunk)
}

// playSchedule runs a schedule, and returns whether an invariant is violated.
func playSchedule(t *testing.T, w *world, schedule Schedule) bool {
	t.Helper()
	if schedule.Has(clockWrong) {
		if err := fleet.BuildManagerWithWrongClock(); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Now()
	log, violations, err := w.play(t.Context(), schedule, faults())
	report := schedule.String() + "\nwhat happened:\n" + strings.Join(log, "\n") + "\n"
	for _, violation := range violations {
		report += "\nVIOLATED: " + violation
		t.Error(violation)
	}
	if err != nil {
		report += "\nERROR: " + err.Error()
		t.Error(err)
	}
	t.Logf("%s\ntook %s", report, time.Since(begin).Round(time.Second))
	if !t.Failed() {
		return false
	}
	dirs := w.keepLogs()
	file := filepath.Join(dirs[0], "chaos.txt")
	if err := os.WriteFile(file, []byte(report), 0o600); err != nil {
		t.Log(err)
	}
	t.Logf("logs and audit logs are kept in log/ of %s, and the schedule in %s. To repeat the run: make test-chaos SEED=%d", strings.Join(dirs, " and "), file,
		schedule.Seed)
	return len(violations) > 0
}

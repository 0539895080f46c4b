package chaos

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

var (
	seed     = flag.Uint64("seed", 1, "the seed of the first run; each following run adds one")
	runs     = flag.Int("runs", 1, "the number of runs")
	only     = flag.String("faults", "", "inject only these faults of the schedule, separated by commas; none: no fault")
	pending  = flag.Bool("pending", false, "also inject the faults that the manager does not survive yet")
	replicas = flag.Int("replicas", 0, "the number of managers; 0: two for every fourth fleet, else one")
	fresh    = flag.Int("fresh", 10, "the number of runs after which a new fleet is started")
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(klog.Background())
	os.Exit(m.Run())
}

// TestChaos runs the schedules of consecutive seeds. A run that fails leaves a fleet in an unknown state, so the next one gets a new fleet.
func TestChaos(t *testing.T) {
	if os.Getenv("CAPNM_TEST_CHAOS") == "" {
		t.Skip("SKIPPED: make test-chaos runs this test")
	}
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
	for i := range *runs {
		current := *seed + uint64(i)
		if i%*fresh == 0 || w != nil && len(w.managers) != replicasOf(current) {
			stop()
		}
		if !t.Run("seed "+strconv.FormatUint(current, 10), func(t *testing.T) {
			if w == nil {
				begin := time.Now()
				var err error
				if w, err = newWorld(t.Context(), replicasOf(current)); err != nil {
					t.Fatal(err)
				}
				t.Logf("the fleet with %d managers started in %s", len(w.managers), time.Since(begin).Round(time.Second))
			}
			playSeed(t, w, current)
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

func playSeed(t *testing.T, w *world, seed uint64) {
	t.Helper()
	table := faults()
	if *pending {
		table = append(table, pendingFaults()...)
	}
	schedule := NewSchedule(seed, table)
	if *only != "" {
		schedule = schedule.Keep(strings.Split(*only, ",")...)
	}
	begin := time.Now()
	log, violations, err := w.play(t.Context(), schedule, table)
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
		return
	}
	dirs := w.keepLogs()
	file := filepath.Join(dirs[0], "chaos.txt")
	if err := os.WriteFile(file, []byte(report), 0o600); err != nil {
		t.Log(err)
	}
	t.Logf("logs and audit logs are kept in log/ of %s, and the schedule in %s. To repeat the run: make test-chaos SEED=%d", strings.Join(dirs, " and "), file, seed)
}

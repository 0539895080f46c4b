package live

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
)

// start is the time of the first status of a scene.
var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func before(ago time.Duration) string { return start.Add(-ago).Format(time.RFC3339) }

const waitsForBudget = "Waiting for PodDisruptionBudget shop/web: 58 healthy Pods required, 58 available"

// sceneAt returns the status of two drains and one wait at a step.
func sceneAt(step int) *report.Status {
	maintenance := report.MaintenanceStatus{
		Name: "workers-659b9-44cf8-1a9da24f", Stage: "Drain", Since: before(time.Minute), Nodes: 1, Evacuating: int32(6 - step), Pending: 2, Skipped: 2,
		Evacuated: int32(step),
		Blocking:  "shop/web-0: " + waitsForBudget,
		Blocked:   []report.BlockedPod{{Pod: "shop/web-0", Reason: "BudgetExhausted", Why: waitsForBudget, Since: before(50 * time.Second)}},
	}
	for i := range 6 - step {
		maintenance.Pods = append(maintenance.Pods, report.BlockedPod{
			Pod: fmt.Sprintf("shop/web-%d", i), Why: waitsForBudget, Since: before(50 * time.Second), HasEvacuation: true,
		})
	}
	maintenance.Pods = append(maintenance.Pods, report.BlockedPod{
		Pod: "db/evil\x1b]0;title\a-\u202e0", Why: "Evacuator operator.example.com is active.", Since: before(20 * time.Second), Expected: before(-4 * time.Minute),
		HasEvacuation: true,
	})
	workers := report.GroupStatus{Kind: "MachineDeployment", Name: "workers", Machines: 6, Drains: []report.MachineStatus{
		{
			Machine: "default/workers-659b9-44cf8", Node: "workers-659b9-44cf8", Deleted: before(5 * time.Minute), Since: before(time.Minute),
			Reason: "Draining", Message: "Drain not completed yet", Maintenances: []report.MaintenanceStatus{maintenance},
		},
		{
			Machine: "default/workers-659b9-x2x9q", Node: "workers-659b9-x2x9q", Deleted: before(2 * time.Minute), Since: before(2 * time.Minute),
			Reason: "WaitingForTurn", Message: "Waiting for 1 of 1 drains to complete: workers-659b9-44cf8",
		},
	}}
	if step >= 5 {
		workers.Drains = workers.Drains[1:]
	}
	return &report.Status{
		Context: "management cluster, context prod",
		Clusters: []report.ClusterStatus{
			{Name: "default/eu", Machines: 7, Groups: []report.GroupStatus{{Kind: "ControlPlane", Name: "eu", Machines: 1}, workers}},
			{Name: "default/us", Machines: 1, Groups: []report.GroupStatus{{Kind: "ControlPlane", Name: "us", Machines: 1}}},
		},
		Gaps: []string{"Cluster default/asia: connection refused"},
	}
}

// sceneVariable makes the test binary show the scene in its terminal instead of running tests. SIGUSR1 shows the next step.
const sceneVariable = "LIVE_SCENE"

func TestMain(m *testing.M) {
	if os.Getenv(sceneVariable) == "" {
		os.Exit(m.Run())
	}
	if err := showScene(); err != nil {
		fmt.Println("ended:", err)
		os.Exit(1)
	}
	fmt.Println("ended")
}

func showScene() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	time.Local = time.UTC
	clock, changed, step := clocktesting.NewFakeClock(start), make(chan struct{}, 1), make(chan int, 1)
	changed <- struct{}{}
	step <- 0
	next := make(chan os.Signal, 1)
	signal.Notify(next, syscall.SIGUSR1)
	go func() {
		for range next {
			step <- <-step + 1
			clock.Step(10 * time.Second)
			changed <- struct{}{}
		}
	}()
	return Run(ctx, Source{
		Changed: changed,
		Status: func() (*report.Status, bool) {
			now := <-step
			step <- now
			return sceneAt(now), true
		},
		Explain: func(_ context.Context, target Target) (string, error) {
			return fmt.Sprintf("%+v\n", target) + strings.Repeat("A line of the report\n", 100), nil
		},
		NoColor: os.Getenv("NO_COLOR") != "", Clock: clock,
	}, os.Stdin, os.Stdout)
}

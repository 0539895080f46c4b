package chaos

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Outcome is what a simulated run has done.
type Outcome struct {
	Schedule Schedule
	// Log is what happened, a line for each thing.
	Log        []string
	Violations []string
	// Requests are those that the API servers have carried out, with their virtual times: a line for each.
	Requests []string
}

// Simulate plays the schedule of a seed in a simulation, with the manager that start runs. It is called in a bubble of testing/synctest.
// With parts, the schedule has only these, see Schedule.Only. An error means that the run could not be carried out.
func Simulate(ctx context.Context, seed uint64, parts []int, start StartManager) (Outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	schedule := newSimulatedSchedule(seed)
	if parts != nil {
		schedule = schedule.Only(parts)
	}
	schedules, namespaces := []Schedule{schedule}, []string{metav1.NamespaceDefault}
	if schedule.Other != nil {
		schedules, namespaces = append(schedules, *schedule.Other), append(namespaces, otherNamespace)
	}
	worlds, err := newSimulated(ctx, seed, start, namespaces...)
	if err != nil {
		return Outcome{Schedule: schedule}, errors.Wrap(err, "starting the simulation")
	}
	outcome := Outcome{Schedule: schedule}
	err = playTogether(ctx, worlds, schedules, &outcome)
	if manager, runs := worlds[0].managers[0].current.(*simulatedProcess); runs && err == nil && len(outcome.Violations) == 0 && seed%remembering == 0 {
		outcome.Violations = worlds[0].simulated.expectForgotten(ctx, manager.components)
	}
	worlds[0].managers[0].kill()
	outcome.Requests = worlds[0].simulated.requests()
	return outcome, err
}

// otherNamespace is the namespace of the second Cluster. It has the name of the first one, and so have its Machines.
const otherNamespace = "other"

// playTogether plays a schedule for each Cluster at the same time.
func playTogether(ctx context.Context, worlds []*world, schedules []Schedule, outcome *Outcome) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if len(worlds) > 1 {
		prepared, healed := newMeeting(len(worlds)), newMeeting(len(worlds))
		for _, w := range worlds {
			w.prepared, w.healed = prepared, healed
		}
	}
	logs, violations, failures := make([][]string, len(worlds)), make([][]string, len(worlds)), make([]error, len(worlds))
	var all sync.WaitGroup
	for i, w := range worlds {
		all.Go(func() {
			if logs[i], violations[i], failures[i] = w.play(ctx, schedules[i], slices.Concat(simulatedFaults(), addedFaults())); failures[i] != nil {
				cancel() // the other ones await this one
			}
		})
	}
	all.Wait()
	for i := range worlds {
		if i > 0 {
			outcome.Log = append(outcome.Log, "and in namespace "+otherNamespace+":")
		}
		outcome.Log, outcome.Violations = append(outcome.Log, logs[i]...), append(outcome.Violations, violations[i]...)
	}
	return cmp.Or(failures...)
}

// newSimulatedSchedule generates the schedule of a seed. Since time costs nothing, half of them take three or ten times as long. A quarter
// has a second Cluster.
func newSimulatedSchedule(seed uint64) Schedule {
	s := NewSchedule(seed, simulatedFaults())
	random := rand.New(rand.NewPCG(seed, 8))
	factor := []int32{1, 1, 3, 10}[random.IntN(4)]
	s.stretch(factor)
	s.addFault(rand.New(rand.NewPCG(seed, 9)), factor)
	if random.IntN(4) == 0 {
		other := NewSchedule(seed+1<<60, simulatedFaults())
		other.Seed = seed
		other.Faults = slices.DeleteFunc(other.Faults, func(step Step) bool { return isShared(step.Fault) })
		for i := range other.Drains {
			other.Drains[i].Machine = fmt.Sprintf("s%d-%d", seed, i)
		}
		other.stretch(factor)
		s.Other = &other
	}
	return s
}

// addFault adds one of addedFaults to a quarter of the schedules. The others stay as they are.
func (s *Schedule) addFault(random *rand.Rand, factor int32) {
	if random.IntN(4) > 0 {
		return
	}
	added, window := pick(random, addedFaults()), time.Duration(factor)*s.window()
	step := Step{At: seconds(random, 0, window/2), For: seconds(random, time.Second, window/2), Fault: added.name, Pick: random.Uint64()}
	if added.name == drainCancelled {
		step.For = seconds(random, 300*time.Millisecond, 5*time.Second)
	}
	s.Faults = append(s.Faults, step)
}

// stretch lets a schedule take longer. The simulation has no clusterctl.
func (s *Schedule) stretch(factor int32) {
	s.Move = false
	stretch := func(d *time.Duration) { *d = time.Duration(factor) * *d }
	stretch(&s.UserDrain)
	for i := range s.Drains {
		stretch(&s.Drains[i].At)
		s.Drains[i].Timeout *= factor
	}
	for i := range s.Faults {
		step := &s.Faults[i]
		stretch(&step.At)
		stretch(&step.For)
		if isOutage(step.Fault) { // the invariants consider requests up to lag after their cause
			step.For = min(step.For, lag-appearance)
		}
		if step.Fault == evictionsRefused { // then the backoff exceeds the 30 s for which a release waits for final eviction attempts (M96)
			step.For += 2 * time.Minute
		}
	}
}

// isShared returns whether a fault concerns all Clusters.
func isShared(name string) bool {
	return slices.ContainsFunc(simulatedFaults(), func(f fault) bool {
		return f.name == name && slices.Contains([]string{"manager", "management", "roles", "watches", "writes"}, f.on)
	})
}

// addShared records a fault if it concerns all Clusters.
func (s *simulated) addShared(fault InjectedFault) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	shared := isShared(fault.Name)
	if shared {
		s.faults = append(s.faults, fault)
	}
	return shared
}

// meeting is where goroutines await each other.
type meeting struct {
	mu      sync.Mutex
	missing int
	met     chan struct{}
}

func newMeeting(size int) *meeting { return &meeting{missing: size, met: make(chan struct{})} }

// await waits until as many goroutines have called it as the meeting has members. A meeting that is nil has one.
func (m *meeting) await(ctx context.Context) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	if m.missing--; m.missing == 0 {
		close(m.met)
	}
	m.mu.Unlock()
	select {
	case <-m.met:
		return nil
	case <-ctx.Done():
		return errors.Wrap(context.Cause(ctx), "awaiting the run on the other Cluster")
	}
}

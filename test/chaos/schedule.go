package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Schedule is what happens in a run. It follows from its seed.
type Schedule struct {
	Seed   uint64
	Policy v1alpha1.MachineDrainPolicySpec
	Apps   []App
	// Drains are the Machines to delete.
	Drains []Drain
	// Turns says that the Machines wait for turns for longer than their short drain timeouts: each drain is blocked until it times out.
	Turns bool
	// Rollout says that the Machines belong to a MachineDeployment, which replaces all of them from the first deletion on. Their names are
	// known only then. All have the drain timeout of the first one.
	Rollout bool
	// UserDrain is when a user drains the first Node that stays, with a NodeMaintenance.
	UserDrain time.Duration
	// CordonedBefore says that the user had cordoned this Node before.
	CordonedBefore bool
	Faults         []Step
	// Move says that clusterctl moves the Cluster to another management cluster after the faults, during the drains. A move preserves neither
	// the deletion of a Machine, so a user repeats it there, nor its nodeRef. Cluster API v1.14.2 ignores the hook of a deleted Machine whose
	// Node it does not know. The user waits for the nodeRef, but a rollout would not.
	Move bool
	// Other is what happens in a second Cluster of a simulation, or nil.
	Other *Schedule
}

// Drain is the deletion of a Machine.
type Drain struct {
	At      time.Duration
	Machine string
	// Timeout is nodeDrainTimeoutSeconds and nodeVolumeDetachTimeoutSeconds, or 0. Cluster API waits for the volumes of a Node whose drain has
	// timed out.
	Timeout int32
}

// Step injects a fault and heals it later.
type Step struct {
	At, For time.Duration
	Fault   string
	// Pick chooses the object, among those that exist at that time.
	Pick uint64
}

const (
	longestFault = 7 * time.Second
	// longestOutage is longer than the time after which the manager considers the contact with a workload cluster as lost.
	longestOutage = 22 * time.Second
	// longestRefusal is longer than the time for which the manager repeats a failed step, and uses what it has read.
	longestRefusal = 32 * time.Second
)

// window is the time from the start of a run in which its faults are injected and healed.
func (s Schedule) window() time.Duration {
	if s.Turns {
		return 45 * time.Second
	}
	return 18 * time.Second
}

// NewSchedule generates the schedule of a seed from the faults of a table. Faults on the same resource do not overlap.
func NewSchedule(seed uint64, table []fault) Schedule {
	random := rand.New(rand.NewPCG(seed, 0))
	s := Schedule{Seed: seed, Policy: NewPolicy(random), Apps: NewApps(random)}
	s.Turns = random.IntN(3) == 0
	s.Rollout = random.IntN(5) == 0 && !s.Turns
	s.addDrains(random)
	s.UserDrain, s.CordonedBefore = seconds(random, 0, 8*time.Second), random.IntN(2) == 0
	s.addFaults(random, table)
	s.Move = random.IntN(6) == 0 && !s.Rollout && !s.Has(clusterDeleted)
	slices.SortStableFunc(s.Faults, func(a, b Step) int { return int(a.At - b.At) })
	return s
}

// blocking is the workload that blocks each drain.
const blocking = "blocking"

// addDrains adds three Machines to delete, or five that wait for turns.
func (s *Schedule) addDrains(random *rand.Rand) {
	number, until := 3, 10*time.Second
	if s.Turns {
		number, until = 5, 3*time.Second
		s.Policy.MaxParallelDrains = ptr.To(intstr.FromInt32(1))
		s.Apps = append(s.Apps, App{Name: blocking, Kind: "Pod", Replicas: int32(number), Budget: "all"})
	}
	for i := range number {
		drain := Drain{At: seconds(random, 0, until), Machine: fmt.Sprintf("s%d-%d", s.Seed, i)}
		switch rare := random.IntN(5) == 0; {
		case s.Turns && !rare:
			drain.Timeout = 8 + random.Int32N(6)
		case !s.Turns && rare:
			drain.Timeout = 40
		}
		s.Drains = append(s.Drains, drain)
	}
}

// whileWaiting are faults that hide from the manager that Machines wait for turns, or what their Pods wait for.
var whileWaiting = []string{
	"manager-killed", "manager-killed", "manager-terminated", "manager-frozen", "network-cut", "network-responses-cut",
	"workload-apiserver-killed", "workload-apiserver-frozen", "crd-deleted", admitFailing, withoutManager, withoutManager, hookAdded,
}

// addFaults adds four to eight faults. While Machines wait for turns, half of them are of whileWaiting.
func (s *Schedule) addFaults(random *rand.Rand, table []fault) {
	busyUntil := map[string]time.Duration{}
	for range 4 + random.IntN(5) {
		f, shortest, longest := pick(random, table), time.Second, longestFault
		if s.Turns && random.IntN(2) == 0 {
			name := pick(random, whileWaiting)
			f = table[slices.IndexFunc(table, func(f fault) bool { return f.name == name })]
			switch f.on {
			case "network", "workload":
				shortest, longest = longestOutage-longestFault, longestOutage
			case "roles":
				shortest, longest = longestRefusal-longestFault, longestRefusal
			}
		}
		if s.Turns && f.name == clusterDeleted { // no Machine of a deleted Cluster waits
			continue
		}
		step := Step{At: seconds(random, time.Second, s.window()-longest), For: seconds(random, shortest, longest), Fault: f.name, Pick: random.Uint64()}
		step.At = max(step.At, busyUntil[f.on])
		if step.At+step.For > s.window() {
			continue
		}
		busyUntil[f.on] = step.At + step.For + 2*time.Second
		s.Faults = append(s.Faults, step)
	}
}

func seconds(random *rand.Rand, from, until time.Duration) time.Duration {
	return (from + time.Duration(random.Int64N(int64(until-from)))).Round(10 * time.Millisecond)
}

// Has returns whether the schedule has a fault of this name.
func (s Schedule) Has(fault string) bool {
	return slices.ContainsFunc(s.Faults, func(step Step) bool { return step.Fault == fault })
}

// Keep returns the schedule with the faults that have one of these names only. The name of a move is "move".
func (s Schedule) Keep(names ...string) Schedule {
	s.Move = s.Move && slices.Contains(names, "move")
	s.Faults = slices.DeleteFunc(slices.Clone(s.Faults), func(step Step) bool { return !slices.Contains(names, step.Fault) })
	return s
}

// Parts returns how many faults, deletions and workloads the schedule has: what Only can leave out.
func (s Schedule) Parts() int {
	parts := len(s.Faults) + len(s.Drains) + len(s.Apps)
	if s.Other != nil {
		parts += s.Other.Parts()
	}
	return parts
}

// Only returns the schedule with some of its parts, by their index: the faults, then the deletions, of which one must stay, then the
// workloads, then the parts of the second Cluster, which exists if it has any.
func (s Schedule) Only(parts []int) Schedule {
	only := s
	only.Faults, only.Drains, only.Apps, only.Other = nil, nil, nil, nil
	own := len(s.Faults) + len(s.Drains) + len(s.Apps)
	var others []int
	for _, i := range parts {
		if i >= own {
			others = append(others, i-own)
			continue
		}
		switch drain, app := i-len(s.Faults), i-len(s.Faults)-len(s.Drains); {
		case drain < 0:
			only.Faults = append(only.Faults, s.Faults[i])
		case app < 0:
			only.Drains = append(only.Drains, s.Drains[drain])
		default:
			only.Apps = append(only.Apps, s.Apps[app])
		}
	}
	if only.Drains == nil {
		only.Drains = s.Drains[:1]
	}
	if others != nil {
		other := s.Other.Only(others)
		only.Other = &other
	}
	return only
}

// Shrink returns a schedule with fewer faults that still fails. It makes a limited number of attempts, first without half of the faults.
func (s Schedule) Shrink(attempts int, fails func(Schedule) bool) Schedule {
	all := make([]int, len(s.Faults))
	for i := range all {
		all[i] = i
	}
	with := func(faults []int) Schedule {
		smaller := s
		smaller.Faults = make([]Step, len(faults))
		for i, fault := range faults {
			smaller.Faults[i] = s.Faults[fault]
		}
		return smaller
	}
	return with(Shrink(all, attempts, func(faults []int) bool { return fails(with(faults)) }))
}

// Shrink returns fewer parts of a schedule that still fails. It makes a limited number of attempts, first without half of the parts.
func Shrink(parts []int, attempts int, fails func([]int) bool) []int {
	for size := (len(parts) + 1) / 2; size > 0; {
		shrunk := false
		for from := 0; from < len(parts) && attempts > 0 && !shrunk; from += size {
			fewer := slices.Delete(slices.Clone(parts), from, min(from+size, len(parts)))
			attempts--
			if shrunk = fails(fewer); shrunk {
				parts = fewer
			}
		}
		if !shrunk {
			size /= 2
		}
		size = min(size, len(parts))
	}
	return parts
}

// String describes the schedule for people, a line for each thing.
func (s Schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d\n", s.Seed)
	parallel := "unlimited"
	if s.Policy.MaxParallelDrains != nil {
		parallel = s.Policy.MaxParallelDrains.String()
	}
	fmt.Fprintf(&b, "policy: surge %s, daemonSetPods %s, statefulSetPods %s, onTimeout %s, maxParallelDrains %s, unhealthyBudget %s, outdatedNodes %s\n",
		s.Policy.Surge, s.Policy.DaemonSetPods, s.Policy.StatefulSetPods, s.Policy.OnTimeout, parallel, s.Policy.UnhealthyBudget, s.Policy.Rollout.OutdatedNodes)
	for _, app := range s.Apps {
		order := "none"
		if app.Order != nil {
			order = fmt.Sprint(*app.Order)
		}
		fmt.Fprintf(&b, "%s: %d replicas, budget %q, protection %q, drain order %s, ready after %s, deleted after %s, critical %t, volume %t\n", app.Name,
			app.Replicas, app.Budget, app.Protection, order, app.Ready, app.Deletion, app.Critical, app.Volume)
	}
	if s.Rollout {
		b.WriteString("The Machines are replaced by the rollout of their MachineDeployment.\n")
	}
	for _, drain := range s.Drains {
		fmt.Fprintf(&b, "%6s delete Machine %s (drain timeout %d s)\n", drain.At, drain.Machine, drain.Timeout)
	}
	fmt.Fprintf(&b, "%6s a user drains Node %s (cordoned before: %t)\n", s.UserDrain, keepers[0], s.CordonedBefore)
	for _, step := range s.Faults {
		fmt.Fprintf(&b, "%6s %s for %s (object %d)\n", step.At, step.Fault, step.For, step.Pick)
	}
	if s.Move {
		b.WriteString("After the faults the Cluster is moved to another management cluster.\n")
	}
	if s.Other != nil {
		b.WriteString("A second Cluster with the same name, in another namespace:\n" + s.Other.String())
	}
	return b.String()
}

package machinedrain

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
)

// Contender is a Machine of a Cluster that drains, or waits to: it is being deleted, held by our hook, and to be drained. Those
// of the control plane and those whose Nodes are unreachable are none: a rollout of the control plane never waits for workers,
// and what is lost drains nothing.
type Contender struct {
	Name    string
	Deleted time.Time
	// IsDraining: its NodeMaintenance has reached stage Drain. It keeps its turn, whatever comes.
	Draining bool
	// Began is when the drain began, where the Machine is draining.
	Began time.Time
	// Timeout is the drain timeout of the Machine, 0 for none.
	Timeout time.Duration
}

// latest is when the turn of a Machine with a drain timeout comes, whatever the limit says: the timeout after its deletion, and after
// the last drain of the Cluster began. While drains end and begin, the limit holds; where none does, it does not hold a Machine longer
// than its drain timeout would. Zero: the Machine has no timeout.
func (c Contender) latest(lastBegan time.Time) time.Time {
	switch {
	case c.Timeout <= 0:
		return time.Time{}
	case lastBegan.After(c.Deleted):
		return lastBegan.Add(c.Timeout)
	default:
		return c.Deleted.Add(c.Timeout)
	}
}

// settling is how long nobody begins after a deletion, which is told in whole seconds: until that second is over, and another one for
// watches that lag. Then all that come before, by name, are known.
const settling = 2 * time.Second

// Turn says whether a Machine may drain now.
type Turn struct {
	// IsDraining is how many others drain, Before how many have waited longer; together they may not reach Limit.
	Draining, Before, Limit int
	// Settles is when all that were deleted in the same second are known. Zero: they are.
	Settles time.Time
	// Latest is when the turn comes, whatever the limit says, unless another drain begins before. Zero: the Machine has no drain timeout.
	Latest time.Time
	// Overdue: it has come for this reason.
	Overdue bool
}

// Now says whether it is the Machine's turn.
func (t Turn) Now() bool { return t.Limit == 0 || t.place() && t.Settles.IsZero() || t.Overdue }

func (t Turn) place() bool { return t.Draining+t.Before < t.Limit }

func (t Turn) String() string {
	if t.place() {
		return "Waiting for its turn: Machines that were deleted in the same second may come before it (maxParallelDrains). The Node is cordoned meanwhile"
	}
	// How many have waited longer isn't said: with each drain that ends the message of every other would change.
	return fmt.Sprintf("Waiting for its turn: %d Nodes of the Cluster are drained at once (maxParallelDrains), %d are being drained now. The Node is cordoned meanwhile", t.Limit, t.Draining)
}

// TurnOf finds out whether it is a Machine's turn among all contenders of its Cluster: the oldest deletion first. Who is older is
// the same for all that ask, so that they come to the same answer even where some haven't seen yet that another one has begun. A
// limit of 0 is none. Of Machines that are overdue one begins, the oldest deletion first, and the others wait for the next time.
func TurnOf(self Contender, all []Contender, limit int, now time.Time) Turn {
	if limit == 0 || self.Draining {
		return Turn{}
	}
	turn := Turn{Limit: limit}
	if settles := self.Deleted.Add(settling); now.Before(settles) {
		turn.Settles = settles
	}
	var lastBegan time.Time
	for _, other := range all {
		if other.Name != self.Name && other.Draining && other.Began.After(lastBegan) {
			lastBegan = other.Began
		}
	}
	overdue := func(c Contender) bool {
		latest := c.latest(lastBegan)
		return !latest.IsZero() && !now.Before(latest)
	}
	turn.Latest, turn.Overdue = self.latest(lastBegan), overdue(self)
	for _, other := range all {
		switch {
		case other.Name == self.Name:
		case other.Draining:
			turn.Draining++
		case compareContenders(other, self) < 0:
			turn.Before++
			turn.Overdue = turn.Overdue && !overdue(other)
		}
	}
	return turn
}

func compareContenders(a, b Contender) int {
	return cmp.Or(a.Deleted.Compare(b.Deleted), cmp.Compare(a.Name, b.Name))
}

// ParallelDrains is how many of a Cluster's workers may drain at once: a number, or a percentage, rounded down, but at least one.
// Nil or unreadable is no limit, which is 0.
func ParallelDrains(maxParallelDrains *intstr.IntOrString, workers int) int {
	if maxParallelDrains == nil {
		return 0
	}
	limit, err := intstr.GetScaledValueFromIntOrPercent(maxParallelDrains, workers, false)
	if err != nil {
		return 0
	}
	return max(limit, 1)
}

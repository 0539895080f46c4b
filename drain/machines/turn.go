package machines

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
	// Draining: its NodeMaintenance has reached stage Drain. It keeps its turn, whatever comes.
	Draining bool
}

// settling is how long nobody begins after a deletion, which is told in whole seconds: until that second is over, and another one for
// watches that lag. Then all that come before, by name, are known.
const settling = 2 * time.Second

// Turn says whether a Machine may drain now.
type Turn struct {
	// Draining is how many others drain, Before how many have waited longer; together they may not reach Limit.
	Draining, Before, Limit int
	// Settles is when all that were deleted in the same second are known. Zero: they are.
	Settles time.Time
}

// Now says whether it is the Machine's turn.
func (t Turn) Now() bool { return t.Limit == 0 || t.place() && t.Settles.IsZero() }

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
// limit of 0 is none.
func TurnOf(self Contender, all []Contender, limit int, now time.Time) Turn {
	if limit == 0 || self.Draining {
		return Turn{}
	}
	turn := Turn{Limit: limit}
	if settles := self.Deleted.Add(settling); now.Before(settles) {
		turn.Settles = settles
	}
	for _, other := range all {
		switch {
		case other.Name == self.Name:
		case other.Draining:
			turn.Draining++
		case compareContenders(other, self) < 0:
			turn.Before++
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

package machinedrain_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// simulated is a deleted Machine and the state of its drain.
type simulated struct {
	clusterv1.Machine
	maintenance *v1alpha1.NodeMaintenance // in stage Drain, or nil
	// invalid means that an invalid rule selects the Machine, and held is IsHeld of ObservedDrain.
	invalid, held bool
	// fails means that a step before the turn fails, and failing is since when.
	fails   bool
	failing int
	// refused means that the step after the turn fails, and frozen that the API server refuses each change of the Machine.
	refused, frozen bool
	// pool is the name of its policy, and waited means that the Machine has waited for a turn.
	pool       string
	waited     bool
	remediated bool
	progressed time.Time // when its drain last made progress, zero if that is not known
	blocked    time.Time // since when invalid rules or a refusal have prevented the drain although the Machine has the turn
}

// isBlocked reports whether a step has failed for some seconds.
func (m *simulated) isBlocked(now, seconds int) bool {
	return m.failing > 0 && now-m.failing >= seconds || m.refused && !m.blocked.IsZero() && after(now).Sub(m.blocked) >= time.Duration(seconds)*time.Second
}

func (m *simulated) hasBegun() bool {
	return m.maintenance != nil || m.Annotations[v1alpha1.DrainStartedAnnotation] != "" && m.timeout() > 0
}

func (m *simulated) timeout() time.Duration { return machinedrain.DrainTimeout(&m.Machine) }

// simulation has the Machines of a Cluster, and two policies with maxParallelDrains.
type simulation struct {
	limit    int
	patience int  // in seconds
	gone     bool // the policies
	now      int  // in seconds
	machines []*simulated
}

// lastBegan returns how many other drains of the pool of a Machine have begun, and when the last of them did.
func (s *simulation) lastBegan(self *simulated) (count int, last time.Time) {
	for _, m := range s.machines {
		if m == self || m.pool != self.pool || m.remediated || !m.hasBegun() {
			continue
		}
		began := *machinedrain.ClockOf(&m.Machine, read(m.maintenance), after(s.now)).Drain
		if count++; began.After(last) {
			last = began
		}
	}
	return count, last
}

// mayExceed reports whether the drain of a Machine may exceed the limit of its pool: another one has made no progress for the patience, and
// no limit is exceeded.
func (s *simulation) mayExceed(self *simulated) (may bool) {
	draining := map[string]int{}
	for _, m := range s.machines {
		if m.hasBegun() && !m.remediated {
			draining[m.pool]++
		}
		may = may || m != self && m.pool == self.pool && m.maintenance != nil && !m.progressed.IsZero() && !m.remediated &&
			after(s.now).Sub(m.progressed) >= time.Duration(s.patience)*time.Second
	}
	return may && s.patience > 0 && !s.gone && draining["a"] <= s.limit && draining["b"] <= s.limit
}

// policyOf returns the policy that a Machine follows.
func (s *simulation) policyOf(m *simulated) *v1alpha1.MachineDrainPolicy {
	if s.gone {
		return nil
	}
	policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Name: m.pool}}
	policy.Spec.MaxParallelDrains, policy.Spec.TurnPatienceSeconds = ptr.To(intstr.FromInt(s.limit)), int32(s.patience)
	return policy
}

// turn returns the turn of a Machine with an obstacle.
func (s *simulation) turn(m *simulated, obstacle machinedrain.Standing) machinedrain.Turn {
	node := &corev1.Node{}
	if !machinedrain.NeedsTurn(&m.Machine, s.policyOf(m), node, m.maintenance, time.Now()) {
		return machinedrain.Turn{}
	}
	var machines []clusterv1.Machine
	byName := map[string]*simulated{}
	for _, each := range s.machines {
		machines, byName[each.Name] = append(machines, each.Machine), each
	}
	contenders, _, _ := machinedrain.Contenders(machines, time.Now(), func(each *clusterv1.Machine) (machinedrain.ObservedDrain, error) {
		other := byName[each.Name]
		return machinedrain.ObservedDrain{
			Node: node, Maintenance: other.maintenance, Progress: machinedrain.Progress{Last: other.progressed, Observed: after(0)}, Policy: s.policyOf(other),
			HasInvalidRules: other.invalid, IsHeld: other.held,
			IsBlocked: other.isBlocked(s.now, 5), IsBlockedAlone: other.isBlocked(s.now, int(machinedrain.BlockedAloneAfter.Seconds())),
		}, nil
	})
	self, under := machinedrain.ContenderOf(&m.Machine), machinedrain.LimitOf(&m.Machine, s.policyOf(m))
	self.Policy, self.Patience = under.Policy, under.Patience
	if self.Standing = obstacle; m.invalid {
		self.Standing = machinedrain.AwaitsRules
	}
	turn := machinedrain.TurnOf(self, contenders, s.limit, after(s.now))
	m.waited = m.waited || !turn.Now()
	return turn
}

// reconcile does for a Machine what the manager does, and returns whether the Machine is released because its drain has timed out.
func (s *simulation) reconcile(m *simulated) (released bool) {
	if m.held {
		return false
	}
	obstacle, situation := machinedrain.Waits, machinedrain.Situation{}
	isOver := func() bool {
		clock := machinedrain.ClockIn(situation, &m.Machine, after(s.now))
		clock.Record(&m.Machine)
		clock.RecordLimit(&m.Machine, s.policyOf(m))
		deadline := clock.DrainDeadline(&m.Machine)
		return deadline != nil && !after(s.now).Before(*deadline)
	}
	if m.frozen && m.maintenance == nil { // it records no turn, and cannot be released
		m.failing = cmp.Or(m.failing, s.now)
		return false
	}
	if m.fails && m.maintenance == nil { // its drain timeout counts, from the turn if it waits for one
		if obstacle = machinedrain.BlockedAlone; m.failing == 0 {
			obstacle, m.failing = machinedrain.Waits, s.now
		}
		situation.BlockedSince = after(m.failing)
		if m.timeout() > 0 && machinedrain.ClockIn(situation, &m.Machine, after(s.now)).Waiting != nil {
			situation.TurnGranted = s.turn(m, obstacle).Now()
		}
		return isOver()
	}
	switch {
	case m.refused && m.isBlocked(s.now, 5):
		obstacle = machinedrain.BlockedAlone
	case m.isBlocked(s.now, 5):
		obstacle = machinedrain.Blocked
	}
	m.failing = 0
	turn, isPrevented := s.turn(m, obstacle), m.invalid || m.refused
	switch {
	case !isPrevented || !turn.Now():
		m.blocked = time.Time{}
	case m.blocked.IsZero():
		m.blocked = after(s.now)
	}
	situation = machinedrain.Situation{Maintenance: read(m.maintenance), Turn: &turn, BlockedSince: m.blocked}
	if over := isOver(); isPrevented && m.maintenance == nil {
		return over
	}
	if turn.Now() && m.maintenance == nil {
		m.maintenance, m.progressed = draining(s.now), after(s.now)
	}
	return false
}

// step reconciles a Machine, and fails if its drain begins beside as many others as the limit allows, and sooner than its drain timeout
// after the last of them.
func (s *simulation) step(t *rapid.T, m *simulated) {
	count, last := s.lastBegan(m)
	had, isLimited := m.hasBegun(), (!s.gone || m.waited) && !m.remediated && !s.mayExceed(m)
	released := s.reconcile(m)
	if !had && isLimited && m.hasBegun() && count >= s.limit && (m.timeout() == 0 || after(s.now).Before(last.Add(m.timeout()))) {
		t.Fatalf("at %d, the drain of Machine %s begins beside %d others, the limit is %d, and the last began at %s", s.now, m.Name, count, s.limit, last)
	}
	if released {
		s.remove(m)
	}
}

func (s *simulation) remove(m *simulated) {
	s.machines = slices.DeleteFunc(s.machines, func(each *simulated) bool { return each == m })
}

// TestTurnsOfBlockedMachines deletes Machines, of which some are held, some fail before or after the turn, and some are selected by invalid
// rules. A drain begins beside others within the limit of its policy, or alone when no other has begun for its drain timeout, also while
// the policies are gone. No Machine waits for one that does not begin, unless more Machines than the limit fail after the turn: the timeout
// of either ends the wait, or none has one, and the wait has a limit. A Machine whose drain timeout is removed keeps no turn that it has
// not used. A Machine that is remediated waits for no other, and none waits for it. If a drain makes no progress for the patience of its
// policy, another one begins, but only one in the Cluster at a time. A Machine that the API server refuses to change delays other
// overdue ones by at most five minutes.
func TestTurnsOfBlockedMachines(t *testing.T) { // M26, M37, M39, M121, M126, M127, M131, M133
	rapid.Check(t, func(t *rapid.T) {
		s := &simulation{limit: rapid.IntRange(1, 2).Draw(t, "limit"), patience: rapid.SampledFrom([]int{0, 60}).Draw(t, "patience")}
		for i := range rapid.IntRange(20, 50).Draw(t, "steps") {
			step := rapid.IntRange(0, 14).Draw(t, "step")
			if step == 0 {
				m := &simulated{Machine: inDeletion(fmt.Sprintf("%c%02d", rapid.ByteRange('a', 'z').Draw(t, "name"), i))}
				m.DeletionTimestamp = ptr.To(metav1.NewTime(after(s.now)))
				m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To(rapid.SampledFrom([]int32{0, 10, 30}).Draw(t, "timeout"))
				m.pool = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "pool")
				m.invalid, m.held = rapid.Bool().Draw(t, "invalid"), rapid.IntRange(0, 3).Draw(t, "held") == 0
				s.machines = append(s.machines, m)
				continue
			}
			if len(s.machines) == 0 {
				continue
			}
			m := rapid.SampledFrom(s.machines).Draw(t, "machine")
			switch step {
			case 1:
				s.step(t, m)
			case 2, 3:
				s.now += rapid.SampledFrom([]int{1, 2, 10, 30}).Draw(t, "seconds")
				for _, each := range slices.Clone(s.machines) {
					s.step(t, each)
				}
			case 4:
				m.invalid = !m.invalid
			case 5:
				m.held = !m.held
			case 7:
				m.fails = !m.fails
			case 14:
				m.frozen = m.maintenance == nil && !m.waited && !m.hasBegun()
			case 8:
				m.Spec.Deletion.NodeDrainTimeoutSeconds = nil
			case 9:
				m.refused = !m.refused
			case 10:
				s.gone = !s.gone
			case 12:
				m.progressed = after(s.now)
			case 13:
				m.progressed = time.Time{}
			case 11:
				m.remediated = true
				m.Annotations[clusterv1.RemediateMachineAnnotation] = ""
			case 6:
				if m.maintenance != nil { // it is drained, and its hook is removed
					s.remove(m)
				}
			}
		}
		s.gone = false
		end := rapid.Bool().Draw(t, "drains end")
		// A drain that begins delays the next one by at most 30 s, and Machines that fail, or frozen ones that are overdue, by at most 5 min.
		perDrain := 4
		if slices.ContainsFunc(s.machines, func(m *simulated) bool { return m.frozen }) {
			perDrain += 30
		}
		for range (len(s.machines)+2)*perDrain + 100 {
			s.now += 10
			for _, each := range slices.Clone(s.machines) {
				if s.step(t, each); end && each.maintenance != nil {
					s.remove(each)
				}
			}
		}
		refused := map[string]int{}
		for _, m := range s.machines {
			if m.refused && !m.held && !m.remediated && !m.hasBegun() {
				refused[m.pool]++
			}
		}
		for _, m := range s.machines {
			isPrevented := m.invalid || m.fails || m.refused || perDrain > 4 || refused[m.pool] > s.limit && !m.remediated
			if count, _ := s.lastBegan(m); !m.held && !m.frozen && !m.hasBegun() && (m.timeout() > 0 || !isPrevented && (count < s.limit || m.remediated)) {
				t.Fatalf("%d drains have begun, the limit is %d, and Machine %s still waits", count, s.limit, m.Name)
			}
		}
	})
}

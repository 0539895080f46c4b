package machinedrain_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func contender(name string, second int) machinedrain.Contender {
	return machinedrain.Contender{Name: name, Requested: time.Unix(int64(second), 0)}
}

func inDrain(c machinedrain.Contender) machinedrain.Contender {
	c.Standing = machinedrain.HasTurn
	return c
}

func began(c machinedrain.Contender, second int) machinedrain.Contender {
	c.Standing, c.Began = machinedrain.HasTurn, time.Unix(int64(second), 0)
	return c
}

// within returns the contender with a drain timeout.
func within(seconds int, c machinedrain.Contender) machinedrain.Contender {
	c.Timeout = time.Duration(seconds) * time.Second
	return c
}

// of returns the contender that follows a policy.
func of(policy string, c machinedrain.Contender) machinedrain.Contender {
	c.Policy = policy
	return c
}

func blocked(c machinedrain.Contender) machinedrain.Contender {
	c.Standing = machinedrain.Blocked
	return c
}

func blockedAlone(c machinedrain.Contender) machinedrain.Contender {
	c.Standing = machinedrain.BlockedAlone
	return c
}

func awaitsRules(c machinedrain.Contender) machinedrain.Contender {
	c.Standing = machinedrain.AwaitsRules
	return c
}

func TestTurnOf(t *testing.T) {
	for _, test := range []struct {
		name  string
		self  machinedrain.Contender
		all   []machinedrain.Contender
		limit int
		at    int
		now   bool
	}{
		{
			"M26: permits every drain at once without a limit",
			contender("c", 3), []machinedrain.Contender{inDrain(contender("a", 1)), inDrain(contender("b", 2))}, 0, 3, true,
		},
		{"M26: drains the oldest deletion first", contender("b", 2), []machinedrain.Contender{contender("a", 1), contender("b", 2)}, 1, 9, false},
		{"M26: does not wait for later deletions", contender("a", 1), []machinedrain.Contender{contender("a", 1), contender("b", 2)}, 1, 9, true},
		{
			"M26: drains the first by name of two that were deleted at the same time",
			contender("b", 1), []machinedrain.Contender{contender("a", 1), contender("b", 1)}, 1, 9, false,
		},
		{"M26: waits while a Machine that precedes it may not have been observed", contender("b", 1), []machinedrain.Contender{contender("b", 1)}, 1, 2, false},
		{
			"M66: does not wait for Machines of the same second if the manager's clock is behind",
			contender("b", 3600), []machinedrain.Contender{contender("b", 3600)}, 1, 1, true,
		},
		{"M26: starts after that", contender("b", 1), []machinedrain.Contender{contender("b", 1)}, 1, 3, true},
		{
			"M26: does not stop a running drain for an older deletion",
			inDrain(contender("b", 2)), []machinedrain.Contender{contender("a", 1), inDrain(contender("b", 2))}, 1, 2, true,
		},
		{
			"M26: makes an older deletion wait for a running drain",
			contender("a", 1), []machinedrain.Contender{contender("a", 1), inDrain(contender("b", 2))}, 1, 9, false,
		},
		{"M37: waits while others drain if there is no drain timeout", contender("b", 2), []machinedrain.Contender{began(contender("a", 1), 1)}, 1, 1000, false},
		{"M37: waits for the drain timeout after the deletion", within(10, contender("b", 20)), []machinedrain.Contender{began(contender("a", 1), 1)}, 1, 29, false},
		{"M37: waits no longer than the drain timeout", within(10, contender("b", 20)), []machinedrain.Contender{began(contender("a", 1), 1)}, 1, 30, true},
		{
			"M37: restarts the wait when another drain starts",
			within(10, contender("c", 3)), []machinedrain.Contender{began(contender("a", 1), 1), began(contender("b", 2), 25)}, 2, 34, false,
		},
		{
			"M37: starts when no drain has started for the drain timeout",
			within(10, contender("c", 3)), []machinedrain.Contender{began(contender("a", 1), 1), began(contender("b", 2), 25)}, 2, 35, true,
		},
		{
			"M37: starts the older deletion of two that are overdue",
			within(10, contender("b", 2)), []machinedrain.Contender{began(contender("a", 1), 1), within(10, contender("c", 3))}, 1, 50, true,
		},
		{
			"M37: makes the later deletion of two that are overdue wait",
			within(10, contender("c", 3)), []machinedrain.Contender{began(contender("a", 1), 1), within(10, contender("b", 2))}, 1, 50, false,
		},
		{
			"M37: does not wait for an older deletion without a drain timeout",
			within(10, contender("c", 3)), []machinedrain.Contender{began(contender("a", 1), 1), contender("b", 2)}, 1, 50, true,
		},
		{
			"M37: waits for an older deletion that begins now, after a drain has ended",
			within(10, contender("c", 3)), []machinedrain.Contender{contender("b", 2)}, 1, 50, false,
		},
		{
			"M37: waits for an older deletion that is blocked no longer than the drain timeout",
			within(10, contender("c", 3)), []machinedrain.Contender{blocked(contender("b", 2))}, 1, 50, true,
		},
		{
			"M37: waits for it until then: what blocks it may be over",
			within(10, contender("c", 3)), []machinedrain.Contender{blocked(contender("b", 2))}, 1, 12, false,
		},
		{
			"M37: waits for it once more if both were blocked, as by an outage that is over",
			within(10, blocked(contender("c", 3))), []machinedrain.Contender{blocked(contender("b", 2))}, 1, 50, false,
		},
		{
			"M121: waits for an older deletion that is blocked, because what blocks it may block all",
			contender("c", 3), []machinedrain.Contender{blocked(contender("b", 2))}, 1, 1000, false,
		},
		{
			"M121: does not wait for one that has been blocked alone for a time, if neither has a drain timeout",
			contender("c", 3), []machinedrain.Contender{blockedAlone(contender("b", 2))}, 1, 1000, true,
		},
		{
			"M121: waits for it while the limit is reached",
			contender("c", 3), []machinedrain.Contender{began(contender("a", 1), 1), blockedAlone(contender("b", 2))}, 1, 1000, false,
		},
		{
			"M121: waits for it if that Machine has a drain timeout, which limits the wait",
			contender("c", 3), []machinedrain.Contender{within(10, blockedAlone(contender("b", 2)))}, 1, 1000, false,
		},
		{
			"M121: waits for it until its own drain timeout has passed",
			within(100, contender("c", 3)), []machinedrain.Contender{blockedAlone(contender("b", 2))}, 1, 50, false,
		},
		{"M37: no longer", within(100, contender("c", 3)), []machinedrain.Contender{blockedAlone(contender("b", 2))}, 1, 103, true},
		{
			"M121: waits for it if it is blocked itself, so that not all begin together when what blocks them ends",
			blockedAlone(contender("c", 3)), []machinedrain.Contender{blockedAlone(contender("b", 2))}, 1, 1000, false,
		},
		{
			"M121: waits for it if it was blocked itself a moment ago",
			blocked(contender("c", 3)), []machinedrain.Contender{blockedAlone(contender("b", 2))}, 1, 1000, false,
		},
		{
			"M37, M39: is overdue behind it although it is blocked itself",
			within(10, blockedAlone(contender("c", 3))), []machinedrain.Contender{blockedAlone(contender("b", 2))}, 1, 50, true,
		},
		{
			"M37, M39: makes the later of two overdue deletions wait for an older one that is blocked, which gets the turn first",
			within(10, contender("c", 3)), []machinedrain.Contender{within(10, blocked(contender("b", 2)))}, 1, 311, false,
		},
		{
			"M37, M39: for five minutes: what blocks the older one may keep it from recording the turn",
			within(10, contender("c", 3)), []machinedrain.Contender{within(10, blocked(contender("b", 2)))}, 1, 312, true,
		},
		{
			"M37, M39: after the last drain has begun, the older one gets five minutes again",
			within(10, contender("c", 3)), []machinedrain.Contender{began(contender("a", 1), 302), within(10, blockedAlone(contender("b", 2)))}, 1, 611, false,
		},
		{
			"M37: makes the third of three overdue deletions wait for the second one, if the oldest is blocked",
			within(10, contender("d", 4)), []machinedrain.Contender{within(10, blocked(contender("b", 2))), within(10, contender("c", 3))}, 1, 400, false,
		},
		{
			"M37: makes the later of two overdue deletions wait if both were blocked, as by an outage that is over",
			within(10, blocked(contender("c", 3))), []machinedrain.Contender{within(10, blocked(contender("b", 2)))}, 1, 1000, false,
		},
		{
			"M37: makes the later of two overdue deletions wait behind a blocked one",
			within(10, contender("d", 4)), []machinedrain.Contender{blocked(contender("b", 2)), within(10, contender("c", 3))}, 1, 50, false,
		},
		{
			"M37: does not wait for an older deletion that is held",
			contender("c", 3), []machinedrain.Contender{{Name: "b", Requested: time.Unix(2, 0), Standing: machinedrain.Held}}, 1, 9, true,
		},
		{
			"M6: does not wait for an older deletion that waits for invalid rules",
			contender("c", 3), []machinedrain.Contender{awaitsRules(contender("b", 2))}, 1, 9, true,
		},
		{
			"M26: waits for an older deletion whose rules are invalid as well",
			awaitsRules(contender("c", 3)), []machinedrain.Contender{awaitsRules(contender("b", 2))}, 1, 9, false,
		},
		{
			"M37: starts the older deletion of two that are overdue and wait for invalid rules",
			within(10, awaitsRules(contender("b", 2))), []machinedrain.Contender{began(contender("a", 1), 1), within(10, awaitsRules(contender("c", 3)))}, 1, 50, true,
		},
		{
			"M37: makes the later one wait", within(10, awaitsRules(contender("c", 3))),
			[]machinedrain.Contender{began(contender("a", 1), 1), within(10, awaitsRules(contender("b", 2)))}, 1, 50, false,
		},
		{
			"M37: makes the later deletion of two that are overdue wait, also if the other one waits for invalid rules",
			within(10, contender("c", 3)), []machinedrain.Contender{began(contender("a", 1), 1), within(10, awaitsRules(contender("b", 2)))}, 1, 50, false,
		},
		{
			"M37: for five minutes: the older one may not be able to record the turn",
			within(10, contender("c", 3)), []machinedrain.Contender{began(contender("a", 1), 1), within(10, awaitsRules(contender("b", 2)))}, 1, 312, true,
		},
		{
			"M6: waits for invalid rules no longer than the drain timeout behind an older deletion that has none",
			within(10, awaitsRules(contender("c", 3))), []machinedrain.Contender{awaitsRules(contender("b", 2))}, 1, 50, true,
		},
		{
			"M127: is not counted for Machines of another policy, however old",
			of("storage", contender("c", 3)), []machinedrain.Contender{of("web", began(contender("a", 1), 1)), of("web", contender("b", 2))}, 1, 9, true,
		},
		{
			"M127: waits for an older deletion of its policy", of("storage", contender("c", 3)), []machinedrain.Contender{of("storage", contender("b", 2))}, 1, 9, false,
		},
		{"M127: waits for one whose policy is not known", of("storage", contender("c", 3)), []machinedrain.Contender{inDrain(contender("a", 1))}, 1, 9, false},
		{
			"M127: is overdue although drains of another policy begin", within(10, of("storage", contender("c", 3))),
			[]machinedrain.Contender{of("storage", began(contender("a", 1), 1)), of("web", began(contender("b", 2), 15))}, 1, 20, true,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := machinedrain.TurnOf(test.self, test.all, test.limit, time.Unix(int64(test.at), 0)); got.Now() != test.now {
				t.Errorf("got %+v", got)
			}
		})
	}
	t.Run("M26: says how many Machines drain and how many have waited longer", func(t *testing.T) {
		all := []machinedrain.Contender{inDrain(contender("a", 1)), contender("b", 2), contender("c", 3)}
		for limit, want := range map[int]string{
			1: "Waiting for other Machines of Cluster c1 to be drained: 1 draining (maxParallelDrains allows 1), 1 waiting longer. Machine a has been draining for " +
				"the longest time: see its condition",
			3: "Waiting for Machines of Cluster c1 whose drains were requested, or no longer held by hooks, in the same second and that precede this one " +
				"(maxParallelDrains)",
		} {
			if got := machinedrain.TurnOf(all[2], all, limit, time.Unix(3, 0)).Message("c1"); got != want {
				t.Errorf("got %q", got)
			}
		}
	})
	t.Run("M120: names the Machine that has waited for the longest time and cannot begin, or else, for those next in line, the one that has been draining for "+
		"the longest time", func(t *testing.T) {
		many := []machinedrain.Contender{began(contender("a", 1), 1)}
		for i := range 12 {
			many = append(many, contender(fmt.Sprintf("m%02d", i), 10+i))
		}
		for _, test := range []struct {
			self machinedrain.Contender
			all  []machinedrain.Contender
			want string
		}{
			{
				contender("d", 4), []machinedrain.Contender{began(contender("a", 1), 60), began(contender("b", 2), 50), contender("c", 3)},
				". Machine b has been draining for the longest time: see its condition",
			},
			{
				contender("d", 4), []machinedrain.Contender{began(contender("a", 1), 60), blocked(contender("c", 3)), blockedAlone(within(10, contender("b", 2)))},
				". Machine b has waited longer, and its drain cannot begin: see its condition",
			},
			{
				awaitsRules(contender("d", 4)), []machinedrain.Contender{awaitsRules(contender("c", 3))},
				". Machine c has waited longer, and its drain cannot begin: see its condition",
			},
			{
				contender("d", 4), []machinedrain.Contender{began(contender("a", 1), 60), awaitsRules(contender("b", 2)), blocked(contender("e", 5))},
				". Machine a has been draining for the longest time: see its condition",
			},
			{contender("z", 60), many, " waiting longer"},
		} {
			if got := machinedrain.TurnOf(test.self, test.all, 1, time.Unix(1000, 0)).Message("c1"); !strings.HasSuffix(got, test.want) {
				t.Errorf("got %q", got)
			}
		}
	})
	t.Run("M26: rounds the number of Machines that have waited longer, so that the message rarely changes", func(t *testing.T) {
		for before, want := range map[int]string{
			0: ", 0 waiting longer", 9: ", 9 waiting longer", 10: ", at least 10 waiting longer", 19: ", at least 10 waiting longer",
			423: ", at least 400 waiting longer",
		} {
			if got := (machinedrain.Turn{Limit: 1, Draining: 1, Before: before}).Message("c1"); !strings.Contains(got, want) {
				t.Errorf("%d: got %q", before, got)
			}
		}
	})
}

// lagging is a Machine that the watch shows late.
type lagging struct {
	machinedrain.Contender
	observed time.Time // when the watch shows it
	started  time.Time // when its drain started
}

// TestTurnsKeepTheLimit deletes Machines, starts their drains and removes them in any order. Never more Machines drain than the limit
// allows, and while fewer do, another one may start. A Machine observes the others with a lag of up to a second.
func TestTurnsKeepTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const lag = 1000 // ms
		limit := rapid.IntRange(1, 2).Draw(t, "limit")
		now := time.Unix(1000, 0)
		var all []*lagging
		contenders := func(at time.Time) (seen []machinedrain.Contender) {
			for _, m := range all {
				c := m.Contender
				if !m.started.IsZero() && !at.Before(m.started) {
					c.Standing = machinedrain.HasTurn
				}
				if !now.Before(m.observed) {
					seen = append(seen, c)
				}
			}
			return seen
		}
		for i := range rapid.IntRange(100, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				all = append(all, &lagging{
					Contender: machinedrain.Contender{Name: fmt.Sprintf("%c%02d", rapid.ByteRange('a', 'z').Draw(t, "name"), i), Requested: now.Truncate(time.Second)},
					observed:  now.Add(time.Duration(rapid.SampledFrom([]int{0, lag}).Draw(t, "lag")) * time.Millisecond),
				})
			case 1: // every observed Machine starts if it may
				for _, m := range all {
					if m.started.IsZero() && !now.Before(m.observed) {
						view := contenders(now.Add(-time.Duration(rapid.SampledFrom([]int{1, lag}).Draw(t, "lag")) * time.Millisecond))
						if machinedrain.TurnOf(m.Contender, view, limit, now).Now() {
							m.started = now
						}
					}
				}
			case 2:
				if len(all) > 0 {
					gone := rapid.IntRange(0, len(all)-1).Draw(t, "deleted")
					all = slices.Delete(all, gone, gone+1)
				}
			case 3:
				now = now.Add(time.Duration(rapid.SampledFrom([]int{1, 100, 900, 1000, 1100, 2000}).Draw(t, "passes")) * time.Millisecond)
			}
			count := 0
			for _, m := range all {
				if !m.started.IsZero() {
					count++
				}
			}
			if count > limit {
				t.Fatalf("%d Machines drain, the limit is %d", count, limit)
			}
		}
		now = now.Add(time.Minute)
		settled := contenders(now)
		draining := len(slices.DeleteFunc(slices.Clone(settled), func(c machinedrain.Contender) bool { return c.Standing != machinedrain.HasTurn }))
		mayStart := func(c machinedrain.Contender) bool {
			return c.Standing != machinedrain.HasTurn && machinedrain.TurnOf(c, settled, limit, now).Now()
		}
		if draining < min(limit, len(settled)) && !slices.ContainsFunc(settled, mayStart) {
			t.Fatalf("%d Machines drain, the limit is %d, and no other may start", draining, limit)
		}
	})
}

func TestNeedsTurn(t *testing.T) {
	limited := func(p *v1alpha1.MachineDrainPolicy) { p.Spec.MaxParallelDrains = ptr.To(intstr.FromInt32(1)) }
	for _, test := range []struct {
		name              string
		unlimited, drains bool
		controlPlane      bool
		gone              bool   // no policy selects the Machine
		recorded          string // the limit
		want              bool
	}{
		{name: "M26: limits workers", want: true},
		{name: "M26: limits none without maxParallelDrains", unlimited: true},
		{name: "M26: does not limit those that take no turns", controlPlane: true},
		{name: "M26: does not stop a drain", drains: true},
		{name: "M126: limits a Machine that waited, and whose policy is gone", gone: true, recorded: "25%,all/", want: true},
		{name: "M126: limits none by the copied record of another Machine", gone: true, recorded: "1,all/other"},
		{name: "M126: limits none whose policy has no limit any more", unlimited: true, recorded: "1,workers/"},
		{name: "M126: limits one that waited under another policy, which may be replaced", unlimited: true, recorded: "1,all/", want: true},
		{name: "M126: does not stop its drain", unlimited: true, recorded: "1,all/", drains: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, policy, present := inDeletion("one"), &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Name: "workers"}}, &v1alpha1.NodeMaintenance{}
			if !test.unlimited {
				limited(policy)
			}
			if test.gone {
				policy = nil
			}
			if test.recorded != "" {
				m.Annotations[v1alpha1.TurnLimitAnnotation] = test.recorded
			}
			if test.controlPlane {
				m.Labels = map[string]string{clusterv1.MachineControlPlaneLabel: ""}
			}
			if test.drains {
				present.Spec.Stage = v1alpha1.StageDrain
			}
			if got := machinedrain.NeedsTurn(&m, policy, &corev1.Node{}, present, time.Now()); got != test.want {
				t.Errorf("NeedsTurn() = %t", got)
			}
		})
	}
}

// inDeletion returns a Machine that is being deleted and has the hook.
func inDeletion(name string) clusterv1.Machine {
	m := clusterv1.Machine{}
	m.Name, m.DeletionTimestamp, m.Annotations = name, ptr.To(metav1.Unix(1, 0)), map[string]string{v1alpha1.PreDrainHookAnnotation: ""}
	m.Status.NodeRef.Name = name
	return m
}

// unreachableSince returns a Node that has been unreachable for a time, 0 if it is reachable.
func unreachableSince(now time.Time, ago time.Duration) *corev1.Node {
	node := &corev1.Node{}
	if ago > 0 {
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: metav1.NewTime(now.Add(-ago))}}
	}
	return node
}

func TestParallelDrains(t *testing.T) {
	for _, test := range []struct {
		value   *intstr.IntOrString
		workers int
		want    int
	}{
		{nil, 10, 0},
		{ptr.To(intstr.FromInt32(3)), 10, 3},
		{ptr.To(intstr.FromString("25%")), 10, 2},
		{ptr.To(intstr.FromString("1%")), 10, 1},
		{ptr.To(intstr.FromString("100%")), 10, 10},
		{ptr.To(intstr.FromString("odd")), 10, 0},
	} {
		if got := machinedrain.ParallelDrains(test.value, test.workers); got != test.want {
			t.Errorf("%v of %d: %d, want %d", test.value, test.workers, got, test.want)
		}
	}
}

func TestGrantedTurns(t *testing.T) {
	cluster, other := types.NamespacedName{Name: "c"}, types.NamespacedName{Name: "other"}
	t.Run("M93: a turn is reserved for one Machine of a Cluster at a time", func(t *testing.T) {
		g, turns := NewWithT(t), machinedrain.GrantedTurns{}
		g.Expect(turns.Reserve(cluster, "a", after(0))).To(BeTrue())
		g.Expect(turns.Reserve(cluster, "b", after(600))).To(BeFalse(), "the reconciliation of the other one takes long")
		g.Expect(turns.Reserve(other, "b", after(600))).To(BeTrue())
		turns.Release(cluster, "b")
		g.Expect(turns.Reserve(cluster, "b", after(600))).To(BeFalse(), "it has none to release")
		turns.Release(cluster, "a")
		g.Expect(turns.Reserve(cluster, "b", after(600))).To(BeTrue(), "the other one has recorded nothing")
	})
	t.Run("M93: the five seconds after the record of a turn also count if a later reconciliation of the Machine records nothing", func(t *testing.T) {
		g, turns := NewWithT(t), machinedrain.GrantedTurns{}
		g.Expect(turns.Reserve(cluster, "a", after(0))).To(BeTrue())
		turns.Recorded(cluster, "a", after(0))
		turns.Release(cluster, "a")
		g.Expect(turns.Reserve(cluster, "a", after(1))).To(BeTrue())
		turns.Release(cluster, "a")
		g.Expect(turns.Reserve(cluster, "b", after(1))).To(BeFalse(), "the record is one second old")
		g.Expect(turns.Reserve(cluster, "b", after(5))).To(BeTrue())
		turns.Release(cluster, "b")
		g.Expect(turns.Reserve(cluster, "a", after(5))).To(BeTrue(), "the other one has recorded nothing")
	})
	t.Run("M93: only a turn that was reserved is recorded", func(t *testing.T) {
		g, turns := NewWithT(t), machinedrain.GrantedTurns{}
		turns.Recorded(cluster, "a", after(0))
		g.Expect(turns.Reserve(cluster, "b", after(1))).To(BeTrue())
	})
}

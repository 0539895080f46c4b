package machinedrain_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestTurnsOfHeldMachines(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	named := func(name string, records ...string) clusterv1.Machine {
		m := *machine(isDeleted, timeouts(60, 0), annotated(append(records, v1alpha1.PreDrainHookAnnotation, v1alpha1.HookOwner)...))
		m.Name = name
		return m
	}
	held := []string{v1alpha1.DrainHeldAnnotation, after(5).Format(time.RFC3339)}
	waits := append([]string{v1alpha1.WaitingForTurnAnnotation, after(500).Format(time.RFC3339)}, held...)
	continues := append([]string{v1alpha1.DrainStartedAnnotation, after(500).Format(time.RFC3339)}, held...)
	paused := append([]string{clusterv1.PausedAnnotation, ""}, waits...)
	for _, tc := range []struct {
		name    string
		other   clusterv1.Machine
		drains  *v1alpha1.NodeMaintenance // of the other Machine
		at      int
		self    clusterv1.Machine
		isHeld  bool // by another reason, see ObservedDrain
		now     bool
		overdue bool
	}{
		{name: "M117: a Machine that is held before its drain has no place in the queue", other: named("a", held...), at: 10, self: named("b"), now: true},
		{name: "M117: a Machine that is held during its drain does not count", other: named("a", held...), drains: draining(1), at: 10, self: named("b"), now: true},
		{name: "M117: the oldest deletion is first after the hold", other: named("a", waits...), drains: draining(1), at: 510, self: named("b")},
		{name: "M117: a Machine whose drain continues counts", other: named("a", continues...), drains: draining(1), at: 510, self: named("b")},
		{name: "M117: a Machine waits after its hold while another one drains", other: named("b"), drains: draining(1), at: 500, self: named("a", held...)},
		{
			name: "M117: a Machine that is paused after its hold does not count", other: named("a", paused...), drains: draining(1), at: 510, self: named("b"),
			now: true,
		},
		{
			name: "M117: one whose policy cannot be decoded after its hold does not count", other: named("a", waits...), drains: draining(1), isHeld: true, at: 510,
			self: named("b"), now: true,
		},
		{
			name: "M117: a Machine whose drain continues counts also while it is paused", other: named("a", append(paused, continues...)...), drains: draining(1),
			at: 510, self: named("b"),
		},
		{
			name: "M117: the first Machine after a hold waits for others whose hooks are removed together", other: named("b", held...), drains: draining(1), at: 500,
			self: named("a", held...),
		},
		{name: "M117: it waits until they must have recorded that they wait", other: named("b", held...), drains: draining(1), at: 501, self: named("a", waits...)},
		{name: "M117: then it begins", other: named("b", waits...), drains: draining(1), at: 502, self: named("a", waits...), now: true},
		{name: "M117: its wait is limited from the end of the hold", other: named("b"), drains: draining(1), at: 559, self: named("a", waits...)},
		{
			name: "M117: its wait for a turn is limited as that of others", other: named("b"), drains: draining(1), at: 560, self: named("a", waits...), now: true,
			overdue: true,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all, _, err := machinedrain.Contenders([]clusterv1.Machine{tc.other, tc.self}, time.Now(), func(m *clusterv1.Machine) (machinedrain.ObservedDrain, error) {
				observed := machinedrain.ObservedDrain{Node: node}
				if m.Name == tc.other.Name {
					observed.Maintenance, observed.IsHeld = tc.drains, tc.isHeld
				}
				return observed, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			turn := machinedrain.TurnOf(machinedrain.ContenderOf(&tc.self), all, 1, after(tc.at))
			if turn.Now() != tc.now || turn.Overdue != tc.overdue {
				t.Errorf("got %+v", turn)
			}
		})
	}
	t.Run("M117: of drains whose hooks are removed together, as many begin as the limit allows, whether they had begun or not", func(t *testing.T) {
		for _, had := range []*v1alpha1.NodeMaintenance{nil, draining(1)} {
			var all []clusterv1.Machine
			for _, name := range []string{"a", "b", "c", "d", "e"} {
				all = append(all, named(name, held...))
			}
			limit, began := 2, map[string]bool{}
			for second := 500; second < 510; second++ {
				contenders, _, err := machinedrain.Contenders(all, time.Now(), func(*clusterv1.Machine) (machinedrain.ObservedDrain, error) {
					return machinedrain.ObservedDrain{Node: node, Maintenance: had}, nil
				})
				if err != nil {
					t.Fatal(err)
				}
				for i := range all { // all decide from the same cache
					m := &all[i]
					turn := machinedrain.TurnOf(machinedrain.ContenderOf(m), contenders, limit, after(second))
					machinedrain.ClockIn(machinedrain.Situation{Maintenance: read(had), Turn: &turn}, m, after(second)).Record(m)
					if turn.Now() {
						began[m.Name] = true
						metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.DrainStartedAnnotation, after(second).Format(time.RFC3339))
					}
				}
			}
			if len(began) != limit || !began["a"] || !began["b"] {
				t.Errorf("had begun: %t; begin: %v", had != nil, began)
			}
		}
	})
	limited := policy("all", func(p *v1alpha1.MachineDrainPolicy) { p.Spec.MaxParallelDrains = ptr.To(intstr.FromInt32(1)) })
	for name, tc := range map[string]struct {
		machine clusterv1.Machine
		want    bool
	}{
		"M117: a drain that has begun needs no turn":               {named("a"), false},
		"M117: it needs one again when it was held":                {named("a", held...), true},
		"M117: it keeps the turn that it has got since":            {named("a", continues...), false},
		"M117: it needs a turn until then, also after the restart": {named("a", waits...), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := machinedrain.NeedsTurn(&tc.machine, &limited, node, draining(1), time.Now()); got != tc.want {
				t.Errorf("got %t", got)
			}
		})
	}
	t.Run("M117: a Machine that is held gets no turn in an outage, and delays no other one", func(t *testing.T) {
		blocked := []string{v1alpha1.WaitingForTurnAnnotation, after(10).Format(time.RFC3339), v1alpha1.DrainBlockedAnnotation, after(20).Format(time.RFC3339)}
		self := named("b", blocked...)
		clock := machinedrain.ClockOf(&self, unread, after(80))
		others := func(*clusterv1.Machine) (bool, error) { return false, nil }
		if at, granted, err := machinedrain.BlindTurn(&self, clock, []clusterv1.Machine{named("a", held...), self}, others, after(80)); !granted || err != nil {
			t.Errorf("not granted, but at %s: %v", at, err)
		}
	})
	t.Run("M117: a Machine whose hold ends in an outage waits for a turn, whether it waited before the hold or not, and is not released", func(t *testing.T) {
		for _, records := range [][]string{nil, {v1alpha1.WaitingForTurnAnnotation, after(10).Format(time.RFC3339)}} {
			m := named("a", records...)
			machinedrain.ClockIn(machinedrain.Situation{HeldByHooks: true}, &m, after(100)).Record(&m)
			if !machinedrain.NeedsTurnAgain(&m, &limited) {
				t.Error("needs no turn")
			}
			blind := machinedrain.Situation{BlockedSince: after(200), NeedsTurn: true}
			for _, second := range []int{200, 300, 3600} {
				clock := machinedrain.ClockIn(blind, &m, after(second))
				if at, _ := clock.BlindDeadline(&m, after(200), time.Time{}); at != nil {
					t.Errorf("released at %s", at)
				}
				expectTime(t, ptr.To(clock.EarliestBlindTurn(&m, time.Time{})), ptr.To(after(260)))
				clock.Record(&m)
			}
			blind.TurnGranted = true
			machinedrain.ClockIn(blind, &m, after(3600)).Record(&m)
			if machinedrain.NeedsTurnAgain(&m, &limited) {
				t.Errorf("has not got the turn: %v", m.Annotations)
			}
			blind.TurnGranted, blind.NeedsTurn = false, false
			at, _ := machinedrain.ClockIn(blind, &m, after(3601)).BlindDeadline(&m, after(200), time.Time{})
			expectTime(t, at, ptr.To(after(3660)))
		}
		unlimited, neverHeld := policy("all"), named("a")
		heldNow := named("a", held...)
		if machinedrain.NeedsTurnAgain(&heldNow, &unlimited) || machinedrain.NeedsTurnAgain(&heldNow, nil) || machinedrain.NeedsTurnAgain(&neverHeld, &limited) {
			t.Error("needs a turn without a limit, or without a hold")
		}
	})
	t.Run("M113: evictions do not wait for the cordon of a Node whose Machine is held", func(t *testing.T) {
		m := named("a", held...)
		if node, _ := machinedrain.ImminentCordon(&m, nil, after(0)); node != "" {
			t.Errorf("wait for %s", node)
		}
	})
}

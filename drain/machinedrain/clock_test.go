package machinedrain_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/lookup"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

var deleted = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// after returns the time so many seconds after the Machine's deletion.
func after(seconds int) time.Time { return deleted.Add(time.Duration(seconds) * time.Second) }

func isDeleted(m *clusterv1.Machine) { m.DeletionTimestamp = ptr.To(metav1.NewTime(deleted)) }

func timeouts(drain, volumes int32) func(*clusterv1.Machine) {
	return func(m *clusterv1.Machine) {
		m.Spec.Deletion.NodeDrainTimeoutSeconds, m.Spec.Deletion.NodeVolumeDetachTimeoutSeconds = &drain, &volumes
	}
}

func annotated(annotations ...string) func(*clusterv1.Machine) {
	return func(m *clusterv1.Machine) {
		m.Annotations = map[string]string{}
		for i := 0; i < len(annotations); i += 2 {
			m.Annotations[annotations[i]] = annotations[i+1]
		}
	}
}

// draining returns a NodeMaintenance in stage Drain with the times of its start and end, in seconds after the Machine's deletion.
func draining(started int, drained ...int) *v1alpha1.NodeMaintenance {
	m := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
	m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(after(started))}}
	for _, at := range drained {
		m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceDrained, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(after(at))}}
	}
	return m
}

// read returns the Result of reading a NodeMaintenance, nil if it does not exist.
func read(m *v1alpha1.NodeMaintenance) lookup.Result[v1alpha1.NodeMaintenance] { return lookup.Of(m) }

// unread is the Result before a NodeMaintenance has been read.
var unread lookup.Result[v1alpha1.NodeMaintenance]

func TestClockBeforeTheDrain(t *testing.T) {
	m, now := machine(isDeleted, timeouts(60, 0)), after(100)
	waiting := machine(isDeleted, timeouts(60, 0), annotated(v1alpha1.WaitingForTurnAnnotation, "2026-01-01T00:00:10Z"))
	ended := machine(isDeleted, timeouts(60, 0), annotated(v1alpha1.DrainStartedAnnotation, "2026-01-01T00:00:10Z",
		v1alpha1.DrainEndedAnnotation, "2026-01-01T00:00:20Z"))
	upgraded := machine(isDeleted, timeouts(60, 0))
	conditions.Set(upgraded, metav1.Condition{Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonWaitingForTurn})
	pending := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageCordon}}
	hasTurn, awaitsTurn := machinedrain.Turn{}, machinedrain.Turn{Limit: 1, Draining: 1}
	for _, tc := range []struct {
		name  string
		clock machinedrain.Clock
		want  *time.Time
	}{
		{"M26: does not count the wait for maxParallelDrains as drain time", machinedrain.ClockOf(m, read(pending), now).WithTurn(awaitsTurn, m, now), nil},
		{"M92: does not count it while the NodeMaintenance is unread", machinedrain.ClockOf(waiting, unread, now).WithBlock(waiting, after(20)), nil},
		{"M92: does not count it if only the condition says that the Machine waits", machinedrain.ClockOf(upgraded, unread, now).WithBlock(upgraded, after(20)), nil},
		{"M92: decides nothing about a Machine of which nothing is known", machinedrain.ClockOf(m, unread, now), nil},
		{"M92: counts from what has prevented the drain, if nothing else is known", machinedrain.ClockOf(m, unread, now).WithBlock(m, after(80)), ptr.To(after(140))},
		{
			"M65: does not start before the Machine's deletion if the manager's clock is behind",
			machinedrain.ClockOf(m, unread, now).WithBlock(m, after(-3600)), ptr.To(after(60)),
		},
		{
			"M37: counts what prevents the drain from when maxParallelDrains permits it",
			machinedrain.ClockOf(waiting, read(pending), now).WithTurn(hasTurn, waiting, now).WithBlock(waiting, now), ptr.To(after(160)),
		},
		{
			"M37: counts from the start of a running drain",
			machinedrain.ClockOf(m, read(draining(30)), now).WithTurn(hasTurn, m, now).WithBlock(m, now), ptr.To(after(90)),
		},
		{
			"M39: counts what prevents a drain that had ended from beginning again, if its NodeMaintenance is gone",
			machinedrain.ClockOf(ended, read(nil), now).WithBlock(ended, after(80)), ptr.To(after(140)),
		},
		{"M94: a drain that has ended does not time out in an outage", machinedrain.ClockOf(ended, unread, now).WithBlock(ended, after(80)), nil},
		{"M92: counts from the granted turn", machinedrain.ClockOf(waiting, unread, now).WithBlock(waiting, after(20)).WithGrantedTurn(now), ptr.To(after(160))},
	} {
		t.Run(tc.name, func(t *testing.T) { expectTime(t, tc.clock.DrainDeadline(m), tc.want) })
	}
}

// attempting returns a NodeMaintenance of generation 2 that began the final eviction attempts at a time and reports them for a generation.
func attempting(status metav1.ConditionStatus, generation int64, began, end int, changes ...func(*v1alpha1.NodeMaintenance)) *v1alpha1.NodeMaintenance {
	m := draining(60)
	m.Generation, m.Status.ObservedGeneration = 2, generation
	m.Status.DrainTimeout = &v1alpha1.DrainTimeoutStatus{
		FinalAttemptTime: ptr.To(metav1.NewTime(after(began))), FinalAttemptEndTime: ptr.To(metav1.NewTime(after(end))),
	}
	reason := v1alpha1.ReasonAttemptingPods
	if status == metav1.ConditionTrue {
		reason = v1alpha1.ReasonAllPodsAttempted
	}
	m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceFinalEvictionAttempt, Status: status, Reason: reason, ObservedGeneration: generation}}
	for _, change := range changes {
		change(m)
	}
	return m
}

func TestDrainDeadline(t *testing.T) {
	requested := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
	recorded := annotated(v1alpha1.DrainStartedAnnotation, "2026-01-01T00:01:00Z")
	for _, tc := range []struct {
		name        string
		machine     *clusterv1.Machine
		maintenance lookup.Result[v1alpha1.NodeMaintenance]
		want        *time.Time
	}{
		{"M13: has no deadline without a timeout", machine(isDeleted), read(draining(60)), nil},
		{"M13: has no deadline with a timeout of 0", machine(isDeleted, timeouts(0, 0)), read(draining(60)), nil},
		{"M13: counts from the start of stage Drain", machine(isDeleted, timeouts(30, 0)), read(draining(60)), ptr.To(after(90))},
		{"M13: has no deadline before the drain has started", machine(isDeleted, timeouts(30, 0)), read(requested), nil},
		{"M13: has no deadline for a running Machine", machine(timeouts(30, 0)), read(nil), nil},
		{"M15: counts from the recorded start if the workload cluster is unreachable", machine(isDeleted, timeouts(30, 0), recorded), unread, ptr.To(after(90))},
		{"M17: keeps the recorded start if the NodeMaintenance is recreated", machine(isDeleted, timeouts(30, 0), recorded), read(draining(300)), ptr.To(after(90))},
		{
			"M92: counts from the recorded block", machine(isDeleted, timeouts(30, 0), annotated(v1alpha1.DrainBlockedAnnotation, "2026-01-01T00:01:00Z")), unread,
			ptr.To(after(90)),
		},
		{
			"M107: does not count from a record that precedes the deletion",
			machine(isDeleted, timeouts(30, 0), annotated(v1alpha1.DrainBlockedAnnotation, "2025-01-01T00:01:00Z")), unread, nil,
		},
		{
			"M94: a NodeMaintenance that drains for longer than the Machine is being deleted counts from the deletion",
			machine(isDeleted, timeouts(30, 0)), read(draining(-60)), ptr.To(after(30)),
		},
		{
			"M13: ignores an invalid record", machine(isDeleted, timeouts(30, 0), annotated(v1alpha1.DrainStartedAnnotation, "soon")), read(draining(60)),
			ptr.To(after(90)),
		},
		{
			"M92: ignores a record in the future", machine(isDeleted, timeouts(30, 0), annotated(v1alpha1.DrainStartedAnnotation, "2027-01-01T00:01:00Z")),
			read(draining(60)), ptr.To(after(90)),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			expectTime(t, machinedrain.ClockOf(tc.machine, tc.maintenance, after(1000)).DrainDeadline(tc.machine), tc.want)
		})
	}
}

func TestVolumeWait(t *testing.T) {
	recorded := annotated(v1alpha1.VolumeWaitStartedAnnotation, "2026-01-01T00:00:40Z")
	for _, tc := range []struct {
		name        string
		machine     *clusterv1.Machine
		maintenance *v1alpha1.NodeMaintenance
		overdue     *time.Time
		start       time.Time
		deadline    *time.Time
	}{
		{"M13: starts when the drain ends", machine(isDeleted, timeouts(0, 30)), draining(10, 50), nil, after(50), ptr.To(after(80))},
		{"M13: has no deadline without a timeout", machine(isDeleted), draining(10, 50), nil, after(50), nil},
		{"M96: starts when the drain ends if the Pods had their final eviction attempts after the drain timeout", machine(isDeleted, timeouts(20, 30)), draining(10),
			ptr.To(after(60)), after(100), ptr.To(after(130))},
		{"M21: starts when the drain times out", machine(isDeleted, timeouts(20, 30)), draining(10), nil, after(30), ptr.To(after(60))},
		{
			"M65: does not start before the drain if the clock of a manager was behind",
			machine(isDeleted, timeouts(0, 30)), draining(10, -3600), nil, after(10), ptr.To(after(40)),
		},
		{"M13: keeps the recorded start", machine(isDeleted, timeouts(0, 30), recorded), draining(10, 50), nil, after(40), ptr.To(after(70))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clock := machinedrain.ClockOf(tc.machine, read(tc.maintenance), after(1000))
			clock.Overdue = tc.overdue
			start := clock.VolumeWaitStart(tc.machine, tc.maintenance, after(100))
			expectTime(t, &start, &tc.start)
			clock.Volumes = &start
			expectTime(t, clock.VolumeDeadline(tc.machine), tc.deadline)
		})
	}
}

func expectTime(t *testing.T, got, want *time.Time) {
	t.Helper()
	if (got == nil) != (want == nil) || got != nil && !got.Equal(*want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestBlindTurn(t *testing.T) {
	now := after(1000)
	at := func(seconds int) string { return after(seconds).Format(time.RFC3339) }
	member := func(name string, records ...string) clusterv1.Machine {
		m := machine(isDeleted, timeouts(60, 0), annotated(append([]string{v1alpha1.PreDrainHookAnnotation, ""}, records...)...))
		m.Name = name
		return *m
	}
	waiting := func(name string, since, blocked int) clusterv1.Machine {
		return member(name, v1alpha1.WaitingForTurnAnnotation, at(since), v1alpha1.DrainBlockedAnnotation, at(blocked))
	}
	started := func(name string, since int) clusterv1.Machine {
		return member(name, v1alpha1.DrainStartedAnnotation, at(since))
	}
	remediated := func(m clusterv1.Machine) clusterv1.Machine {
		m.Annotations[clusterv1.RemediateMachineAnnotation] = ""
		return m
	}
	heldByHooks := member("a", v1alpha1.DrainHeldAnnotation, at(500), v1alpha1.DrainBlockedAnnotation, at(500))
	heldByHooks.Status.Conditions = []metav1.Condition{{Type: v1alpha1.MachineNodeMaintenance, Reason: v1alpha1.ReasonWaitingForTurn}} // not updated yet
	for _, tc := range []struct {
		name    string
		all     []clusterv1.Machine // the first decides
		at      time.Time
		granted bool
	}{
		{"M93: grants the turn a drain timeout after the turn could not be observed", []clusterv1.Machine{waiting("b", 100, 940)}, after(1000), true},
		{"M93: not before", []clusterv1.Machine{waiting("b", 100, 941)}, after(1001), false},
		{
			"M93: not before a drain timeout after the last drain of the Cluster began",
			[]clusterv1.Machine{waiting("b", 100, 500), started("a", 970)}, after(1030), false,
		},
		{"M93: regardless of an older drain", []clusterv1.Machine{waiting("b", 100, 500), started("a", 600)}, after(660), true},
		{"M93: only to the oldest request", []clusterv1.Machine{waiting("b", 100, 500), waiting("a", 100, 500)}, after(560), false},
		{
			"M93: only to the oldest request, also if that Machine has not recorded yet that it cannot observe turns",
			[]clusterv1.Machine{waiting("b", 100, 500), member("a", v1alpha1.WaitingForTurnAnnotation, at(100))}, after(560), false,
		},
		{
			"M93: only to the oldest request, also if it lost the connection some milliseconds later",
			[]clusterv1.Machine{
				waiting("b", 100, 940),
				member("a", v1alpha1.WaitingForTurnAnnotation, at(100), v1alpha1.DrainBlockedAnnotation, after(940).Add(200*time.Millisecond).Format(time.RFC3339Nano)),
			}, after(1000), false,
		},
		{"M93: regardless of younger requests", []clusterv1.Machine{waiting("a", 100, 500), waiting("b", 100, 500)}, after(560), true},
		{"M93: regardless of a Machine that has not waited long enough", []clusterv1.Machine{waiting("b", 100, 500), waiting("a", 100, 990)}, after(560), true},
		{"M93: regardless of an older request that is held", []clusterv1.Machine{waiting("b", 100, 500), waiting("a-held", 100, 500)}, after(560), true},
		{"M93: regardless of an older request that hooks hold", []clusterv1.Machine{waiting("b", 100, 500), heldByHooks}, after(560), true},
		{
			"M131: regardless of an older request that is remediated", []clusterv1.Machine{waiting("b", 100, 500), remediated(waiting("a", 100, 500))}, after(560), true,
		},
		{"M131: regardless of the drain of a remediated Machine", []clusterv1.Machine{waiting("b", 100, 500), remediated(started("a", 970))}, after(560), true},
		{
			"M131: to a remediated Machine regardless of others",
			[]clusterv1.Machine{remediated(waiting("c", 100, 940)), waiting("b", 100, 940), started("a", 970)}, after(1000), true,
		},
		{"M93: never to a Machine that does not wait", []clusterv1.Machine{started("b", 100)}, time.Time{}, false},
		{
			"M93: never to a Machine that was observed to wait a moment ago",
			[]clusterv1.Machine{member("b", v1alpha1.WaitingForTurnAnnotation, at(100))}, time.Time{}, false,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			self := tc.all[0]
			isHeld := func(m *clusterv1.Machine) (bool, error) { return m.Name == "a-held", nil }
			when, granted, err := machinedrain.BlindTurn(&self, machinedrain.ClockOf(&self, unread, now), tc.all, isHeld, now)
			if !when.Equal(tc.at) || granted != tc.granted || err != nil {
				t.Errorf("at %v, granted %t, error %v", when, granted, err)
			}
		})
	}
}

func TestWaitsForVolumes(t *testing.T) {
	node := func(ready corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
	}
	for name, tc := range map[string]struct {
		machine *clusterv1.Machine
		node    *corev1.Node
		want    bool
	}{
		"M19: waits for the volumes of a drained Node":          {machine(), node(corev1.ConditionTrue), true},
		"M14: does not wait for volumes of an unreachable Node": {machine(), node(corev1.ConditionUnknown), false},
		"M14: waits for volumes of a Node that is not ready":    {machine(), node(corev1.ConditionFalse), true},
		"M10: does not wait for volumes of a Machine with the exclude annotation": {
			machine(annotated(clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation, "")), node(corev1.ConditionTrue), false,
		},
		"M107: waits for volumes of a Machine with the hook to which the exclude annotation of a release was copied": {
			machine(isDeleted, annotated(v1alpha1.PreDrainHookAnnotation, v1alpha1.HookOwner, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation, v1alpha1.HookOwner)),
			node(corev1.ConditionTrue), true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := machinedrain.WaitsForVolumes(tc.machine, tc.node); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

func TestDaemonSetPods(t *testing.T) {
	drains := policy("p", func(p *v1alpha1.MachineDrainPolicy) { p.Spec.DaemonSetPods = v1alpha1.DaemonSetPodsDrain })
	skips := policy("p")
	compiled := func(pods v1alpha1.DaemonSetPodsPolicy) *v1alpha1.NodeMaintenance {
		m := draining(0)
		m.Spec.DrainRules = rules.Compile(rules.Input{DaemonSetPods: pods}).Rules
		return m
	}
	lifted := compiled(v1alpha1.DaemonSetPodsSkip)
	machinedrain.Update(lifted, machinedrain.Maintenance(machinedrain.Request{
		Machine: machine(), Node: &corev1.Node{}, Policy: &drains, Rules: compiled(v1alpha1.DaemonSetPodsDrain).Spec.DrainRules,
	}))
	restored := lifted.DeepCopy()
	machinedrain.Update(restored, machinedrain.Maintenance(machinedrain.Request{
		Machine: machine(), Node: &corev1.Node{}, Policy: &skips, Rules: compiled(v1alpha1.DaemonSetPodsSkip).Spec.DrainRules,
	}))
	restored.Spec.DrainRules = nil
	for name, tc := range map[string]struct {
		policy  *v1alpha1.MachineDrainPolicy
		present *v1alpha1.NodeMaintenance
		want    v1alpha1.DaemonSetPodsPolicy
	}{
		"R40: skips the Pods of DaemonSets at first":                 {&drains, nil, v1alpha1.DaemonSetPodsSkip},
		"R40: skips them until the rule is lifted":                   {&drains, compiled(v1alpha1.DaemonSetPodsSkip), v1alpha1.DaemonSetPodsSkip},
		"R40: drains them after the rule is lifted":                  {&drains, lifted, v1alpha1.DaemonSetPodsDrain},
		"R40: restores the rule if the policy no longer drains them": {&skips, lifted, v1alpha1.DaemonSetPodsSkip},
		"M135: restores a rule that another actor has removed":       {&drains, compiled(v1alpha1.DaemonSetPodsDrain), v1alpha1.DaemonSetPodsSkip},
		"M135: also if the manager had lifted and restored it":       {&drains, restored, v1alpha1.DaemonSetPodsSkip},
		"R40: skips them without a policy":                           {nil, nil, v1alpha1.DaemonSetPodsSkip},
	} {
		t.Run(name, func(t *testing.T) {
			if got := machinedrain.DaemonSetPods(tc.policy, tc.present); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

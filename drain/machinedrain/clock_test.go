package machinedrain_test

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
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

func TestWithTurn(t *testing.T) {
	m, now := machine(isDeleted, timeouts(60, 0)), after(100)
	pending := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageCordon}}
	for _, tc := range []struct {
		name  string
		clock machinedrain.Clock
		want  *time.Time
	}{
		{"M26: does not count the wait for maxParallelDrains as drain time", machinedrain.ClockOf(m, pending), nil},
		{"M37: counts from when maxParallelDrains permits the drain, even if the NodeMaintenance does not drain yet", machinedrain.ClockOf(m, pending).WithTurn(m, now), ptr.To(after(160))},
		{"M65: does not start before the Machine's deletion if the manager's clock is behind", machinedrain.ClockOf(m, pending).WithTurn(m, after(-3600)), ptr.To(after(60))},
		{"M37: counts from the start of a running drain", machinedrain.ClockOf(m, draining(30)).WithTurn(m, now), ptr.To(after(90))},
		{"M13: counts from the Machine's deletion if no NodeMaintenance was created", machinedrain.ClockOf(m, nil).WithTurn(m, now), ptr.To(after(60))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.clock.DrainDeadline(m); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestReleaseAt(t *testing.T) {
	attempted := func(status metav1.ConditionStatus, generation int64) *v1alpha1.NodeMaintenance {
		m := draining(60)
		m.Generation = 2
		m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceFinalEvictionAttempt, Status: status, ObservedGeneration: generation}}
		return m
	}
	for _, tc := range []struct {
		name        string
		timeout     int32
		maintenance *v1alpha1.NodeMaintenance
		want        *time.Time
	}{
		{"M13: waits without limit if there is no timeout", 0, attempted(metav1.ConditionTrue, 2), nil},
		{"M13: releases at the deadline if every Pod has had its final eviction attempt", 30, attempted(metav1.ConditionTrue, 2), ptr.To(after(90))},
		{"M13: releases ten seconds later if some Pods have not", 30, attempted(metav1.ConditionFalse, 2), ptr.To(after(100))},
		{"M13: releases ten seconds later if the attempts are unknown", 30, draining(60), ptr.To(after(100))},
		{"M13: releases ten seconds later if the attempts were for an earlier generation", 30, attempted(metav1.ConditionTrue, 1), ptr.To(after(100))},
		{"M13: releases at the deadline if there is no NodeMaintenance", 30, nil, ptr.To(after(30))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := machine(isDeleted, timeouts(tc.timeout, 0))
			expectTime(t, machinedrain.ClockOf(m, tc.maintenance).ReleaseAt(m, tc.maintenance), tc.want)
		})
	}
}

func TestDrainDeadline(t *testing.T) {
	waiting := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageCordon}}
	requested := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
	recorded := annotated(v1alpha1.DrainStartedAnnotation, "2026-01-01T00:01:00Z")
	for _, tc := range []struct {
		name        string
		machine     *clusterv1.Machine
		maintenance *v1alpha1.NodeMaintenance
		want        *time.Time
	}{
		{"M13: has no deadline without a timeout", machine(isDeleted), draining(60), nil},
		{"M13: has no deadline with a timeout of 0", machine(isDeleted, timeouts(0, 0)), draining(60), nil},
		{"M13: counts from the start of stage Drain", machine(isDeleted, timeouts(30, 0)), draining(60), ptr.To(after(90))},
		{"M13: does not count while maxParallelDrains delays the drain", machine(isDeleted, timeouts(30, 0)), waiting, nil},
		{"M13: counts from the deletion if the workload cluster was never reached", machine(isDeleted, timeouts(30, 0)), nil, ptr.To(after(30))},
		{"M13: has no deadline before the drain has started", machine(isDeleted, timeouts(30, 0)), requested, nil},
		{"M13: has no deadline for a running Machine", machine(timeouts(30, 0)), nil, nil},
		{"M15: counts from the recorded start if the workload cluster is unreachable", machine(isDeleted, timeouts(30, 0), recorded), nil, ptr.To(after(90))},
		{"M17: keeps the recorded start if the NodeMaintenance is recreated", machine(isDeleted, timeouts(30, 0), recorded), draining(300), ptr.To(after(90))},
		{"M13: ignores an invalid record", machine(isDeleted, timeouts(30, 0), annotated(v1alpha1.DrainStartedAnnotation, "soon")), draining(60), ptr.To(after(90))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			expectTime(t, machinedrain.ClockOf(tc.machine, tc.maintenance).DrainDeadline(tc.machine), tc.want)
		})
	}
}

func TestVolumeWait(t *testing.T) {
	recorded := annotated(v1alpha1.VolumeWaitStartedAnnotation, "2026-01-01T00:00:40Z")
	for _, tc := range []struct {
		name        string
		machine     *clusterv1.Machine
		maintenance *v1alpha1.NodeMaintenance
		start       time.Time
		deadline    *time.Time
	}{
		{"M13: starts when the drain ends", machine(isDeleted, timeouts(0, 30)), draining(10, 50), after(50), ptr.To(after(80))},
		{"M13: has no deadline without a timeout", machine(isDeleted), draining(10, 50), after(50), nil},
		{"M21: starts when the drain times out", machine(isDeleted, timeouts(20, 30)), draining(10), after(30), ptr.To(after(60))},
		{"M65: does not start before the drain if the clock of a manager was behind", machine(isDeleted, timeouts(0, 30)), draining(10, -3600), after(10), ptr.To(after(40))},
		{"M13: keeps the recorded start", machine(isDeleted, timeouts(0, 30), recorded), draining(10, 50), after(40), ptr.To(after(70))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clock := machinedrain.ClockOf(tc.machine, tc.maintenance)
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

func TestMissingAnnotations(t *testing.T) {
	t.Run("M15: records the clock on the Machine once, if there is a timeout", func(t *testing.T) {
		m := machine(isDeleted, timeouts(30, 0))
		clock := machinedrain.ClockOf(m, draining(60))
		clock.Volumes = ptr.To(after(70))
		missing := clock.MissingAnnotations(m)
		if want := map[string]string{v1alpha1.DrainStartedAnnotation: "2026-01-01T00:01:00Z"}; !reflect.DeepEqual(missing, want) {
			t.Errorf("got %v, want %v", missing, want)
		}
		m.Annotations = missing
		if again := machinedrain.ClockOf(m, draining(300)).MissingAnnotations(m); len(again) > 0 {
			t.Errorf("records it again: %v", again)
		}
	})
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
		"M19: waits for the volumes of a drained Node":                            {machine(), node(corev1.ConditionTrue), true},
		"M14: does not wait for volumes of an unreachable Node":                   {machine(), node(corev1.ConditionUnknown), false},
		"M14: waits for volumes of a Node that is not ready":                      {machine(), node(corev1.ConditionFalse), true},
		"M10: does not wait for volumes of a Machine with the exclude annotation": {machine(annotated(clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation, "")), node(corev1.ConditionTrue), false},
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
	for name, tc := range map[string]struct {
		policy  *v1alpha1.MachineDrainPolicy
		present *v1alpha1.NodeMaintenance
		want    v1alpha1.DaemonSetPodsPolicy
	}{
		"R40: skips the Pods of DaemonSets at first":                 {&drains, nil, v1alpha1.DaemonSetPodsSkip},
		"R40: skips them until the rule is lifted":                   {&drains, compiled(v1alpha1.DaemonSetPodsSkip), v1alpha1.DaemonSetPodsSkip},
		"R40: drains them after the rule is lifted":                  {&drains, compiled(v1alpha1.DaemonSetPodsDrain), v1alpha1.DaemonSetPodsDrain},
		"R40: restores the rule if the policy no longer drains them": {&skips, compiled(v1alpha1.DaemonSetPodsDrain), v1alpha1.DaemonSetPodsSkip},
		"R40: skips them without a policy":                           {nil, nil, v1alpha1.DaemonSetPodsSkip},
	} {
		t.Run(name, func(t *testing.T) {
			if got := machinedrain.DaemonSetPods(tc.policy, tc.present); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

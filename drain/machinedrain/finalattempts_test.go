package machinedrain_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/draintimeout"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestReleaseAt(t *testing.T) {
	stage := func(stage v1alpha1.NodeMaintenanceStage) func(*v1alpha1.NodeMaintenance) {
		return func(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = stage }
	}
	done, missing := attempting(metav1.ConditionTrue, 2, 75, 105), attempting(metav1.ConditionFalse, 2, 75, 105)
	waits := machinedrain.Situation{OverdueSince: after(95)}
	for _, tc := range []struct {
		name        string
		machine     *clusterv1.Machine // with a drain timeout of 30 s
		maintenance *v1alpha1.NodeMaintenance
		situation   machinedrain.Situation
		now         int
		want        *time.Time
	}{
		{"M13: waits without limit if there is no timeout", machine(isDeleted), done, machinedrain.Situation{IsAttempted: true}, 1000, nil},
		{"M13: waits until the deadline", machine(isDeleted, timeouts(30, 0)), missing, machinedrain.Situation{}, 89, ptr.To(after(90))},
		{"M13: releases at the deadline if every Pod has had its final eviction attempt", machine(isDeleted, timeouts(30, 0)), done,
			machinedrain.Situation{IsAttempted: true}, 95, ptr.To(after(90))},
		{"M96: waits if an earlier process has found that: Pods may have started since", machine(isDeleted, timeouts(30, 0)), done, waits, 100, ptr.To(after(125))},
		{"M96: waits for the NodeMaintenance to observe a timeout that is set late", machine(isDeleted, timeouts(30, 0)), draining(60),
			machinedrain.Situation{}, 1000, ptr.To(after(1030))},
		{
			"M96: counts this wait from its start", machine(isDeleted, timeouts(30, 0)), draining(60), machinedrain.Situation{OverdueSince: after(990)}, 1000,
			ptr.To(after(1020)),
		},
		{"M96: waits for attempts that have not been made", machine(isDeleted, timeouts(30, 0)), missing, waits, 100, ptr.To(after(125))},
		{"M96: waits until the grace periods of the Pods have passed", machine(isDeleted, timeouts(30, 0)), attempting(metav1.ConditionFalse, 2, 96, 300), waits, 100,
			ptr.To(after(300))},
		{"M96: waits for long grace periods for ten minutes only", machine(isDeleted, timeouts(30, 0)), attempting(metav1.ConditionFalse, 2, 96, 9999), waits, 100,
			ptr.To(after(725))},
		{"M96: also if the NodeMaintenance is edited meanwhile", machine(isDeleted, timeouts(30, 0)), attempting(metav1.ConditionFalse, 1, 96, 300), waits, 100,
			ptr.To(after(300))},
		{"M13: releases at the deadline if there is no NodeMaintenance",
			machine(isDeleted, timeouts(30, 0), annotated(v1alpha1.DrainStartedAnnotation, after(60).Format(time.RFC3339))), nil, machinedrain.Situation{}, 1000,
			ptr.To(after(90))},
		{"M13: releases at the deadline if the NodeMaintenance does not drain", machine(isDeleted, timeouts(30, 0)),
			attempting(metav1.ConditionFalse, 2, 75, 105, stage(v1alpha1.StageCordon)), machinedrain.Situation{}, 1000, ptr.To(after(90))},
		{"M21: does not wait again after the wait for volumes has begun",
			machine(isDeleted, timeouts(30, 60), annotated(v1alpha1.VolumeWaitStartedAnnotation, after(95).Format(time.RFC3339))),
			attempting(metav1.ConditionFalse, 2, 96, 300), machinedrain.Situation{}, 100, ptr.To(after(90))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.situation.Maintenance = read(tc.maintenance)
			clock := machinedrain.ClockIn(tc.situation, tc.machine, after(tc.now))
			expectTime(t, clock.ReleaseAt(tc.machine, tc.maintenance, after(tc.now)), tc.want)
		})
	}
}

func TestFinalAttemptsMessage(t *testing.T) {
	m := machine(isDeleted, timeouts(30, 0))
	terminating := attempting(metav1.ConditionFalse, 2, 96, 300, func(m *v1alpha1.NodeMaintenance) {
		m.Status.Conditions[0].Reason = v1alpha1.ReasonPodsTerminating
	})
	for _, tc := range []struct {
		name        string
		maintenance *v1alpha1.NodeMaintenance
		isAttempted bool
		now         int
		want        string
	}{
		{"M96: says nothing before the deadline", draining(60), false, 80, ""},
		{"M96: says nothing after the attempts", attempting(metav1.ConditionTrue, 2, 75, 105), true, 100, ""},
		{"M96: names the final eviction attempts", draining(60), false, 100,
			"nodeDrainTimeoutSeconds is exceeded; waiting until 2026-01-01T00:02:05Z at the latest for the final eviction attempts. "},
		{"M96: names the grace periods", terminating, false, 100,
			"nodeDrainTimeoutSeconds is exceeded; waiting until 2026-01-01T00:05:00Z at the latest for the grace periods of the Pods that terminate. "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clock := machinedrain.ClockIn(machinedrain.Situation{Maintenance: read(tc.maintenance), OverdueSince: after(95), IsAttempted: tc.isAttempted}, m,
				after(tc.now))
			if got := clock.FinalAttemptsMessage(m, tc.maintenance, after(tc.now)); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// drainWorld is a Machine whose timeout may be set at any time, its NodeMaintenance with Pods, and a manager that may be stopped.
type drainWorld struct {
	machine     *clusterv1.Machine
	maintenance *v1alpha1.NodeMaintenance
	pods        []*drainPod
	now         time.Time
	memory      machinedrain.Situation // of the present process
}

type drainPod struct {
	gracePeriod time.Duration
	evictable   bool
	attempted   time.Time // zero: it had no final eviction attempt
	deletion    time.Time // its deletionTimestamp, zero: it does not terminate
	gone        bool
}

// reconcileMaintenance does what the controller of NodeMaintenances does. Attempts are observed in the next reconciliation.
func (w *drainWorld) reconcileMaintenance() {
	m := w.maintenance
	m.Generation = w.machine.Generation
	m.Spec.Evacuation.DrainTimeoutSeconds = w.machine.Spec.Deletion.NodeDrainTimeoutSeconds
	status := draintimeout.Observe(m, w.now)
	m.Status.DrainTimeout, m.Status.ObservedGeneration = status, m.Generation
	if status == nil {
		return
	}
	drain, progress := draintimeout.DrainOf(m, nil, w.now), draintimeout.Progress{AllDue: true}
	for _, pod := range w.pods {
		if !pod.deletion.IsZero() {
			if pod.gone = pod.gone || !w.now.Before(pod.deletion); !pod.gone {
				progress.AddTerminating(pod.deletion, w.now)
			}
			continue
		}
		switch at := drain.FinalAttemptAt(pod.gracePeriod); {
		case w.now.Before(at):
			progress.AllDue = false
		case pod.attempted.Before(at):
			progress.Missing++
			if pod.attempted = w.now; pod.evictable {
				pod.deletion = w.now.Add(pod.gracePeriod)
			}
		}
	}
	draintimeout.Record(status, progress, w.now)
	condition := metav1.Condition{Type: v1alpha1.NodeMaintenanceFinalEvictionAttempt, Status: metav1.ConditionFalse, Reason: "x", ObservedGeneration: m.Generation}
	if w.memory.IsAttempted = progress.Done(); w.memory.IsAttempted {
		condition.Status = metav1.ConditionTrue
	}
	if m.Status.Conditions = nil; progress.AllDue {
		m.Status.Conditions = []metav1.Condition{condition}
	}
}

// TestFinalAttempts: whenever the timeout is set, and whenever no manager runs, every Pod has had its final eviction attempt and its grace
// period when the Machine is released, also one that has started while no manager ran, and the Machine is released in a limited time.
func TestFinalAttempts(t *testing.T) { // M13, M96
	rapid.Check(t, func(t *rapid.T) {
		w := &drainWorld{machine: machine(isDeleted), maintenance: draining(0), now: after(0)}
		for range rapid.IntRange(0, 4).Draw(t, "pods") {
			w.pods = append(w.pods, &drainPod{
				gracePeriod: time.Duration(rapid.IntRange(0, 700).Draw(t, "grace period")) * time.Second, evictable: rapid.Bool().Draw(t, "evictable"),
			})
		}
		timeout, set := rapid.Int32Range(1, 900).Draw(t, "timeout"), rapid.IntRange(0, 900).Draw(t, "set")
		stops, starts := after(rapid.IntRange(0, 900).Draw(t, "stops")), after(rapid.IntRange(0, 1800).Draw(t, "starts"))
		late := &drainPod{
			gracePeriod: time.Duration(rapid.IntRange(0, 500).Draw(t, "late grace period")) * time.Second, evictable: rapid.Bool().Draw(t, "late evictable"),
		}
		deadline, known := after(int(timeout)), after(max(set, int(timeout)))
		for !w.now.After(after(4000)) {
			if w.now.Equal(after(set)) {
				w.machine.Spec.Deletion.NodeDrainTimeoutSeconds = &timeout
				w.machine.Generation++
			}
			if stops.Before(starts) && w.now.Equal(starts) {
				w.memory, w.pods = machinedrain.Situation{}, append(w.pods, late)
			}
			if w.now.Before(stops) || !w.now.Before(starts) {
				w.maintenance.Generation = w.machine.Generation // the Machine's controller patches it
				w.memory.Maintenance = read(w.maintenance)
				clock := machinedrain.ClockIn(w.memory, w.machine, w.now)
				if at := clock.ReleaseAt(w.machine, w.maintenance, w.now); at != nil && !w.now.Before(*at) {
					break
				}
				if w.memory.OverdueSince.IsZero() && clock.AwaitsFinalAttempts(w.machine, w.maintenance, w.now) {
					w.memory.OverdueSince = w.now
				}
				w.reconcileMaintenance()
			}
			w.now = w.now.Add(time.Second)
		}
		latest := known
		if stops.Before(starts) && known.Before(starts) {
			latest = starts
		}
		if w.now.Before(deadline) || w.now.After(latest.Add(time.Minute+draintimeout.MaxGracePeriod)) {
			t.Fatalf("released %s after the start", w.now.Sub(after(0)))
		}
		for _, pod := range w.pods {
			if pod.attempted.IsZero() {
				t.Fatalf("released %s after the start without a final eviction attempt", w.now.Sub(after(0)))
			}
			granted := pod.deletion.Add(min(0, draintimeout.MaxGracePeriod-pod.gracePeriod))
			if !pod.deletion.IsZero() && w.now.Before(granted) {
				t.Fatalf("released %s after the start, %s before the end of a grace period", w.now.Sub(after(0)), pod.deletion.Sub(w.now))
			}
		}
	})
}

// TestUncountedAttempt: a Pod whose final eviction attempt can never be counted, because its Evacuation is refused for example, holds the
// Machine for 30 s after its drain timeout.
func TestUncountedAttempt(t *testing.T) { // M96
	for period := 0; period <= 60; period += 5 {
		m, maintenance := machine(isDeleted, timeouts(300, 0)), draining(0)
		maintenance.Spec.Evacuation.DrainTimeoutSeconds = m.Spec.Deletion.NodeDrainTimeoutSeconds
		memory, now, promised := machinedrain.Situation{}, after(0), time.Time{}
		for ; now.Before(after(2000)); now = now.Add(time.Second) {
			memory.Maintenance = read(maintenance)
			clock := machinedrain.ClockIn(memory, m, now)
			if memory.OverdueSince.IsZero() && clock.AwaitsFinalAttempts(m, maintenance, now) {
				memory.OverdueSince = now
				clock = machinedrain.ClockIn(memory, m, now)
				promised = *clock.ReleaseAt(m, maintenance, now)
			}
			if at := clock.ReleaseAt(m, maintenance, now); at != nil && !now.Before(*at) {
				break
			}
			status := draintimeout.Observe(maintenance, now)
			drain, progress := draintimeout.DrainOf(maintenance, nil, now), draintimeout.Progress{AllDue: true}
			if now.Before(drain.FinalAttemptAt(time.Duration(period) * time.Second)) {
				progress.AllDue = false
			} else {
				progress.Missing = 1
			}
			draintimeout.Record(status, progress, now)
			maintenance.Status.DrainTimeout = status
		}
		if wait := now.Sub(after(300)); wait > 30*time.Second {
			t.Errorf("grace period %ds: released %s after the drain timeout, the condition had said %s at the latest", period, wait, promised.Sub(after(300)))
		}
	}
}

// TestUnusedTurnWhoseDrainBeginsUnrecorded: a Machine got the turn of its drain in place, which could not begin. It was deleted, and the
// request that creates its NodeMaintenance succeeded, but the response was lost, or the manager ended before it recorded the new start.
func TestUnusedTurnWhoseDrainBeginsUnrecorded(t *testing.T) { // M122, M97
	at := func(second int) string { return after(second).Format(time.RFC3339) }
	g := NewWithT(t)
	owner := machine(isDeleted, timeouts(3600, 0), annotated(v1alpha1.MachineStageAnnotation, string(v1alpha1.StageDrain),
		v1alpha1.DrainStartedAnnotation, at(-170000), v1alpha1.DrainBlockedAnnotation, at(-170000)))
	owner.Annotations[v1alpha1.DrainRequestedAnnotation] = at(-172800) + "/" + string(owner.UID)
	clock := machinedrain.ClockIn(machinedrain.Situation{}, owner, after(5))
	g.Expect(clock.IsGranted()).To(BeTrue())
	g.Expect(*clock.DrainDeadline(owner)).To(BeTemporally("==", after(3600)))

	present := draining(10)
	present.CreationTimestamp = metav1.NewTime(after(9))
	present.Spec.Evacuation.DrainTimeoutSeconds = owner.Spec.Deletion.NodeDrainTimeoutSeconds
	clock = machinedrain.ClockIn(machinedrain.Situation{Maintenance: read(present), Turn: &machinedrain.Turn{}}, owner, after(11))
	g.Expect(clock.UsesTurn(present, machinedrain.Maintenance(machinedrain.Request{Machine: owner, Node: &corev1.Node{}}))).
		To(BeFalse(), "nothing renews the start")
	machinedrain.Update(present, machinedrain.Maintenance(machinedrain.Request{Machine: owner, Node: &corev1.Node{}, Present: present}))
	g.Expect(*clock.DrainDeadline(owner)).To(BeTemporally(">=", after(3600)), "the turn in place releases no Machine that is deleted later")
	g.Expect(*present.DrainStart()).To(BeTemporally(">=", after(0)), "no Pod is deleted because of a turn before the deletion")
}

// TestResumedAfterTimeout: the last Pods were gone 5 s after the drain timeout, in the time for final attempts. Two hours later, the rules
// are edited, and Pods that they had skipped must be drained.
func TestResumedAfterTimeout(t *testing.T) { // M13, M94
	at := func(second int) string { return after(second).Format(time.RFC3339) }
	g := NewWithT(t)
	owner := machine(isDeleted, timeouts(600, 0), annotated(v1alpha1.DrainStartedAnnotation, at(0), v1alpha1.DrainEndedAnnotation, at(605)))
	present := draining(0)
	present.Spec.Evacuation.OnTimeout, present.Spec.Evacuation.DrainTimeoutSeconds = v1alpha1.OnTimeoutDelete, ptr.To[int32](600)
	present.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.NodeMaintenanceDrained, Status: metav1.ConditionFalse, LastTransitionTime: metav1.NewTime(after(7800)),
	}}
	machinedrain.ClockIn(machinedrain.Situation{Maintenance: read(present), IsResumed: true}, owner, after(7800)).Record(owner)
	machinedrain.Update(present, machinedrain.Maintenance(machinedrain.Request{Machine: owner, Node: &corev1.Node{}, Present: present}))
	drain := draintimeout.DrainOf(present, nil, after(7800))
	period := 30 * time.Second
	g.Expect(drain.DeleteAt(period, nil)).To(BeTemporally(">=", drain.FinalAttemptAt(period).Add(10*time.Second)),
		"a Pod is evicted, as its budget allows, before it is deleted")
}

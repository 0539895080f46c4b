package machinedrain_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/lookup"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// The values of the matrix. Times are in seconds after the request for the drain; the present is second 1000.
const (
	present = 1000
	limit   = 60
)

// matrixRecords are the states of the records of a Machine.
var matrixRecords = map[string]map[string]string{
	"none":                      {},
	"waiting":                   {v1alpha1.WaitingForTurnAnnotation: "100"},
	"waiting, not observed":     {v1alpha1.WaitingForTurnAnnotation: "100", v1alpha1.DrainBlockedAnnotation: "200"},
	"waiting, without a time":   {v1alpha1.WaitingForTurnAnnotation: "invalid"},
	"waiting since the future":  {v1alpha1.WaitingForTurnAnnotation: "5000"},
	"blocked":                   {v1alpha1.DrainBlockedAnnotation: "200"},
	"blocked in the future":     {v1alpha1.DrainBlockedAnnotation: "5000"},
	"blocked before":            {v1alpha1.DrainBlockedAnnotation: "-500"},
	"started":                   {v1alpha1.DrainStartedAnnotation: "300"},
	"started a moment ago":      {v1alpha1.DrainStartedAnnotation: "990"},
	"started in the future":     {v1alpha1.DrainStartedAnnotation: "5000"},
	"started, without a time":   {v1alpha1.DrainStartedAnnotation: "invalid"},
	"timed out, with volumes":   {v1alpha1.DrainStartedAnnotation: "300", v1alpha1.VolumeWaitStartedAnnotation: "360"},
	"drained, with volumes":     {v1alpha1.DrainStartedAnnotation: "300", v1alpha1.DrainEndedAnnotation: "320", v1alpha1.VolumeWaitStartedAnnotation: "320"},
	"drained":                   {v1alpha1.DrainStartedAnnotation: "300", v1alpha1.DrainEndedAnnotation: "320"},
	"drained and blocked":       {v1alpha1.DrainStartedAnnotation: "300", v1alpha1.DrainEndedAnnotation: "320", v1alpha1.DrainBlockedAnnotation: "400"},
	"drained, waiting":          {v1alpha1.DrainEndedAnnotation: "320", v1alpha1.WaitingForTurnAnnotation: "400"},
	"drained, without a start":  {v1alpha1.DrainEndedAnnotation: "320"},
	"volumes, without a start":  {v1alpha1.DrainEndedAnnotation: "320", v1alpha1.VolumeWaitStartedAnnotation: "320"},
	"volumes, waiting":          {v1alpha1.DrainEndedAnnotation: "320", v1alpha1.VolumeWaitStartedAnnotation: "320", v1alpha1.WaitingForTurnAnnotation: "400"},
	"extended, with volumes":    {v1alpha1.DrainStartedAnnotation: "970", v1alpha1.VolumeWaitStartedAnnotation: "980"},
	"held":                      {v1alpha1.DrainHeldAnnotation: "400"},
	"held since the future":     {v1alpha1.DrainHeldAnnotation: "5000"},
	"held, then waiting":        {v1alpha1.DrainHeldAnnotation: "400", v1alpha1.WaitingForTurnAnnotation: "700"},
	"held, then blocked":        {v1alpha1.DrainHeldAnnotation: "400", v1alpha1.DrainBlockedAnnotation: "700"},
	"held, then started":        {v1alpha1.DrainHeldAnnotation: "400", v1alpha1.DrainStartedAnnotation: "700"},
	"drained before the future": {v1alpha1.DrainStartedAnnotation: "300", v1alpha1.DrainEndedAnnotation: "5000"},
	"volumes before the future": {v1alpha1.DrainStartedAnnotation: "300", v1alpha1.DrainEndedAnnotation: "5000", v1alpha1.VolumeWaitStartedAnnotation: "320"},
}

// inPlaceRecords are states of the records of a Machine that was drained in place and is deleted then.
var inPlaceRecords = map[string]map[string]string{
	"drained, with volumes":   {v1alpha1.DrainStartedAnnotation: "-400", v1alpha1.DrainEndedAnnotation: "-300", v1alpha1.VolumeWaitStartedAnnotation: "-300"},
	"timed out, with volumes": {v1alpha1.DrainStartedAnnotation: "-400", v1alpha1.VolumeWaitStartedAnnotation: "-300"},
	"drained":                 {v1alpha1.DrainStartedAnnotation: "-400", v1alpha1.DrainEndedAnnotation: "-300"},
	"drained and blocked":     {v1alpha1.DrainStartedAnnotation: "-400", v1alpha1.DrainEndedAnnotation: "-300", v1alpha1.DrainBlockedAnnotation: "400"},
	"drained with the deletion": {
		v1alpha1.DrainStartedAnnotation: "-400", v1alpha1.DrainEndedAnnotation: "0", v1alpha1.DrainBlockedAnnotation: "400",
	},
}

// matrixMachine returns a Machine with records, whose drain was requested by its deletion or in place.
func matrixMachine(records map[string]string, request string, drainTimeout, volumeTimeout int32) *clusterv1.Machine {
	m := machine(timeouts(drainTimeout, volumeTimeout), annotated())
	switch request {
	case "deletion":
		isDeleted(m)
		m.Annotations[v1alpha1.PreDrainHookAnnotation] = v1alpha1.HookOwner
	case "deletion after a drain in place":
		isDeleted(m)
		m.Annotations[v1alpha1.PreDrainHookAnnotation] = v1alpha1.HookOwner
		m.Annotations[v1alpha1.MachineStageAnnotation] = string(v1alpha1.StageDrain)
		m.Annotations[v1alpha1.DrainRequestedAnnotation] = after(-600).Format(time.RFC3339) + "/" + string(m.UID)
	case "stage":
		m.Annotations[v1alpha1.MachineStageAnnotation] = string(v1alpha1.StageDrain)
		m.Annotations[v1alpha1.DrainRequestedAnnotation] = deleted.Format(time.RFC3339)
	case "update in place":
		m.Annotations[clusterv1.UpdateInProgressAnnotation] = ""
		m.Annotations[v1alpha1.DrainRequestedAnnotation] = deleted.Format(time.RFC3339)
	}
	for annotation, second := range records {
		m.Annotations[annotation] = second
		var at int
		if _, err := fmt.Sscanf(second, "%d", &at); err == nil {
			m.Annotations[annotation] = after(at).Format(time.RFC3339)
		}
	}
	return m
}

// matrixCase is one combination. Cases share Machines, which must not be modified.
type matrixCase struct {
	name      string
	machine   *clusterv1.Machine
	request   string
	situation machinedrain.Situation
}

// matrix returns all combinations of records, NodeMaintenance, turn, part of the drain, timeouts and request.
func matrix() []matrixCase {
	pending := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageCordon}}
	requested := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
	lookups := map[string]lookup.Result[v1alpha1.NodeMaintenance]{
		"unread": unread, "absent": read(nil), "pending": read(pending), "requested": read(requested), "draining": read(draining(310)),
	}
	turns := map[string]*machinedrain.Turn{"unknown": nil, "has come": {}, "awaited": {Limit: 1, Draining: 1}}
	volumeWait := after(950)
	parts := map[string]machinedrain.Situation{
		"nothing": {}, "blocked": {BlockedSince: after(980)}, "blocked again": {BlockedSince: after(980), BlockEnded: true},
		"granted": {TurnGranted: true}, "held": {HeldByHooks: true, BlockedSince: after(980), IsDrained: true, VolumeWaitStart: &volumeWait},
		"drained": {IsDrained: true}, "resumed": {IsResumed: true}, "waits for volumes": {IsDrained: true, VolumeWaitStart: &volumeWait},
	}
	var all []matrixCase
	for _, request := range []string{"deletion", "deletion after a drain in place", "stage", "update in place"} {
		allRecords := matrixRecords
		if request == "deletion after a drain in place" {
			allRecords = inPlaceRecords
		}
		for recordsName, records := range allRecords {
			for _, timeout := range [][2]int32{{0, 0}, {limit, 0}, {0, limit}, {limit, limit}} {
				m := matrixMachine(records, request, timeout[0], timeout[1])
				for lookupName, maintenance := range lookups {
					for turnName, turn := range turns {
						for partName, situation := range parts {
							situation.Maintenance, situation.Turn = maintenance, turn
							name := strings.Join([]string{recordsName, request, fmt.Sprint(timeout), lookupName, turnName, partName}, "; ")
							all = append(all, matrixCase{name, m, request, situation})
						}
					}
				}
			}
		}
	}
	return all
}

func (tc matrixCase) deadline() (*time.Time, machinedrain.Part) {
	return machinedrain.ClockIn(tc.situation, tc.machine, after(present)).Deadline(tc.machine)
}

// recorded reports whether the Machine has recorded a time that is not in the future.
func (tc matrixCase) recorded(annotation string) (time.Time, bool) {
	at, err := time.Parse(time.RFC3339, tc.machine.Annotations[annotation])
	return at, err == nil && !at.After(after(present))
}

func (tc matrixCase) has(annotation string) bool {
	_, found := tc.recorded(annotation)
	return found
}

// hasEnded reports whether the Machine has recorded the end of its drain, also one in the future: the clock of another manager was ahead.
func (tc matrixCase) hasEnded() bool {
	_, found := tc.machine.Annotations[v1alpha1.DrainEndedAnnotation]
	return found
}

// wasHeld reports whether hooks of other owners hold or have held the drain, so that what began before does not count.
func (tc matrixCase) wasHeld() bool {
	return machinedrain.WasHeldByHooks(tc.machine) || tc.situation.HeldByHooks
}

// isDraining reports whether a record of the start or the NodeMaintenance shows that the drain has begun.
func (tc matrixCase) isDraining() bool {
	m, found := tc.situation.Maintenance.Get()
	if tc.wasHeld() { // then it continues with the turn
		hasTurn := tc.situation.Turn != nil && tc.situation.Turn.Now() && !tc.situation.HeldByHooks
		mayDrain := found && m.Spec.Stage == v1alpha1.StageDrain || !tc.situation.Maintenance.IsKnown()
		return hasTurn && (mayDrain || tc.situation.IsDrained) || tc.has(v1alpha1.DrainStartedAnnotation) || tc.situation.TurnGranted || tc.situation.IsResumed
	}
	return tc.has(v1alpha1.DrainStartedAnnotation) ||
		found && m.StageStart(v1alpha1.StageDrain) != nil || tc.situation.TurnGranted || tc.situation.IsDrained || tc.situation.IsResumed
}

// resumed returns from when the drain timeout counts if Pods must be drained again now: the present, without the time of the drain before.
func (tc matrixCase) resumed() time.Time {
	clock := machinedrain.ClockOf(tc.machine, tc.situation.Maintenance, after(present))
	ended, found := tc.recorded(v1alpha1.DrainEndedAnnotation)
	if clock.Drain == nil || clock.Drained == nil || !found || ended.After(after(present)) || ended.Before(deleted) {
		return after(present)
	}
	if clock.Drain.Before(deleted) {
		return after(present).Add(-ended.Sub(deleted))
	}
	return after(present).Add(-ended.Sub(*clock.Drain))
}

// isGone reports whether the NodeMaintenance of a drain that had begun does not exist, or does not drain the Node.
func isGone(maintenance lookup.Result[v1alpha1.NodeMaintenance]) bool {
	m, found := maintenance.Get()
	return maintenance.IsKnown() && (!found || m.Spec.Stage != v1alpha1.StageDrain)
}

// hasBegun reports whether the drain has begun, in this or in an earlier maintenance of the Node.
func (tc matrixCase) hasBegun() bool {
	return tc.isDraining() || tc.has(v1alpha1.DrainEndedAnnotation) || tc.has(v1alpha1.VolumeWaitStartedAnnotation)
}

func TestDeadlines(t *testing.T) {
	now, all := after(present), matrix()
	eachCase := func(t *testing.T, check func(*testing.T, matrixCase)) {
		t.Helper()
		for _, tc := range all {
			if check(t, tc); t.Failed() {
				t.Fatalf("case %s; clock: %+v", tc.name, machinedrain.ClockIn(tc.situation, tc.machine, now))
			}
		}
	}
	t.Run("M92: a deadline counts from a recorded or observed start of the wait that it limits", func(t *testing.T) {
		eachCase(t, func(t *testing.T, tc matrixCase) {
			t.Helper()
			at, part := tc.deadline()
			if at == nil {
				return
			}
			annotations, others := []string{v1alpha1.DrainStartedAnnotation, v1alpha1.DrainBlockedAnnotation},
				[]time.Time{now, tc.situation.BlockedSince, deleted, tc.resumed()}
			if part == machinedrain.PartVolumes {
				annotations, others = []string{v1alpha1.VolumeWaitStartedAnnotation}, []time.Time{deleted}
				if tc.situation.VolumeWaitStart != nil {
					others = append(others, *tc.situation.VolumeWaitStart)
				}
			} else if m, found := tc.situation.Maintenance.Get(); found && m.StageStart(v1alpha1.StageDrain) != nil {
				others = append(others, *m.StageStart(v1alpha1.StageDrain))
			}
			start := at.Add(-limit * time.Second)
			if slices.ContainsFunc(others, start.Equal) {
				return
			}
			for _, annotation := range annotations {
				if recorded, found := tc.recorded(annotation); found && recorded.Equal(start) {
					return
				}
			}
			t.Errorf("the deadline of part %s counts from %s", part, start)
		})
	})
	t.Run("M92: nothing times out of which nothing is known", func(t *testing.T) {
		eachCase(t, func(t *testing.T, tc matrixCase) {
			t.Helper()
			known := tc.hasBegun() || tc.has(v1alpha1.DrainBlockedAnnotation) || !tc.situation.BlockedSince.IsZero()
			if at, _ := tc.deadline(); at != nil && !known {
				t.Errorf("times out at %s", at)
			}
		})
	})
	t.Run("M93: a Machine that waits for a turn never times out", func(t *testing.T) {
		eachCase(t, func(t *testing.T, tc matrixCase) {
			t.Helper()
			_, isRecorded := tc.machine.Annotations[v1alpha1.WaitingForTurnAnnotation]
			waits := isRecorded && tc.situation.Turn == nil || tc.situation.Turn != nil && !tc.situation.Turn.Now()
			if at, _ := tc.deadline(); at != nil && waits && !tc.isDraining() {
				t.Errorf("times out at %s", at)
			}
		})
	})
	t.Run("M106: the wait for volumes does not end a drain whose timeout was extended or removed", func(t *testing.T) {
		eachCase(t, func(t *testing.T, tc matrixCase) {
			t.Helper()
			started, isRecorded := tc.recorded(v1alpha1.DrainStartedAnnotation)
			ended := tc.hasEnded() || tc.situation.IsDrained || tc.situation.VolumeWaitStart != nil
			timeout := time.Duration(*tc.machine.Spec.Deletion.NodeDrainTimeoutSeconds) * time.Second
			timesOutLater := timeout == 0 || now.Before(started.Add(timeout))
			if at, part := tc.deadline(); at != nil && part == machinedrain.PartVolumes && isRecorded && !ended && timesOutLater {
				t.Errorf("times out at %s", at)
			}
		})
	})
	t.Run("M119: the wait for volumes ends the drain, too, only if the drain had begun, has not ended, and its timeout has passed", func(t *testing.T) {
		eachCase(t, func(t *testing.T, tc matrixCase) {
			t.Helper()
			clock := machinedrain.ClockIn(tc.situation, tc.machine, now)
			if _, part := clock.Deadline(tc.machine); part != machinedrain.PartVolumes || !clock.HasTimedOut() {
				return
			}
			hasEnded := tc.hasEnded() || tc.situation.IsDrained
			if at := clock.DrainDeadline(tc.machine); at == nil || now.Before(*at) || hasEnded || !tc.isDraining() {
				t.Errorf("the deadline of the drain is %s", at)
			}
		})
	})
	t.Run("M94: a drain that has ended does not time out, unless the Node of a deleted Machine must be drained again and that is blocked", func(t *testing.T) {
		eachCase(t, func(t *testing.T, tc matrixCase) {
			t.Helper()
			at, part := tc.deadline()
			waited := tc.has(v1alpha1.WaitingForTurnAnnotation) && !tc.has(v1alpha1.DrainStartedAnnotation) // for the turn to drain it again
			ended := (tc.hasEnded() && !waited || tc.situation.IsDrained && !tc.wasHeld()) && !tc.situation.IsResumed && !tc.situation.TurnGranted
			isBlocked := tc.has(v1alpha1.DrainBlockedAnnotation) || !tc.situation.BlockedSince.IsZero()
			recorded, _ := tc.recorded(v1alpha1.DrainEndedAnnotation)
			isFormer := !recorded.IsZero() && recorded.Before(deleted) || isGone(tc.situation.Maintenance)
			if at != nil && part == machinedrain.PartDrain && ended && (tc.machine.DeletionTimestamp.IsZero() || !isBlocked || !isFormer) {
				t.Errorf("times out at %s", at)
			}
			if at != nil && part == machinedrain.PartDrain && ended && at.Before(after(limit)) {
				t.Errorf("times out at %s, which counts from before the deletion", at)
			}
		})
	})
	t.Run("M94: the wait for volumes of a drain in place does not count after the deletion", func(t *testing.T) {
		eachCase(t, func(t *testing.T, tc matrixCase) {
			t.Helper()
			if at, part := tc.deadline(); at != nil && part == machinedrain.PartVolumes && !tc.machine.DeletionTimestamp.IsZero() && at.Before(after(limit)) {
				t.Errorf("times out at %s, which counts from before the deletion", at)
			}
		})
	})
	t.Run("M94: a drain that is resumed gets what the drain before has left of the drain timeout", func(t *testing.T) {
		eachCase(t, func(t *testing.T, tc matrixCase) {
			t.Helper()
			if at, _ := tc.deadline(); tc.situation.IsResumed && at != nil && !at.Equal(tc.resumed().Add(limit*time.Second)) {
				t.Errorf("times out at %s", at)
			}
		})
	})
	t.Run("M92: a restart makes no deadline earlier", func(t *testing.T) {
		eachCase(t, func(t *testing.T, tc matrixCase) {
			t.Helper()
			before, _ := tc.deadline()
			restarted := tc
			restarted.machine = tc.machine.DeepCopy()
			machinedrain.ClockIn(tc.situation, tc.machine, now).Record(restarted.machine)
			restarted.situation = machinedrain.Situation{}
			if got, part := restarted.deadline(); got != nil && (before == nil || got.Before(before.Add(-time.Second))) {
				t.Errorf("part %s times out at %s instead of %s, with %v", part, got, before, restarted.machine.Annotations)
			}
		})
	})
	t.Run("M92: no timeout without a limit", func(t *testing.T) {
		eachCase(t, func(t *testing.T, tc matrixCase) {
			t.Helper()
			deletion := tc.machine.Spec.Deletion
			if at, part := tc.deadline(); at != nil && (part == machinedrain.PartDrain && *deletion.NodeDrainTimeoutSeconds == 0 ||
				part == machinedrain.PartVolumes && *deletion.NodeVolumeDetachTimeoutSeconds == 0) {
				t.Errorf("part %s times out at %s", part, at)
			}
		})
	})
	t.Run("M92, M113: without a timeout, only the wait for a turn and a hold are recorded", func(t *testing.T) {
		eachCase(t, func(t *testing.T, tc matrixCase) {
			t.Helper()
			deletion, m := tc.machine.Spec.Deletion, matrixMachine(nil, tc.request, 0, 0)
			before := len(m.Annotations)
			machinedrain.ClockIn(tc.situation, m, now).Record(m)
			delete(m.Annotations, v1alpha1.WaitingForTurnAnnotation)
			delete(m.Annotations, v1alpha1.DrainHeldAnnotation)
			if *deletion.NodeDrainTimeoutSeconds == 0 && *deletion.NodeVolumeDetachTimeoutSeconds == 0 && len(m.Annotations) > before {
				t.Errorf("records %v", m.Annotations)
			}
		})
	})
}

func TestVolumeWaitAfterADrainInPlace(t *testing.T) {
	t.Run("M94: the wait for volumes of a Machine that was drained in place starts with the deletion", func(t *testing.T) {
		m := matrixMachine(map[string]string{v1alpha1.DrainStartedAnnotation: "-900", v1alpha1.DrainEndedAnnotation: "-800"}, "deletion", limit, limit)
		maintenance := draining(-900, -800)
		start := machinedrain.ClockIn(machinedrain.Situation{Maintenance: read(maintenance), IsDrained: true}, m, after(10)).
			VolumeWaitStart(m, maintenance, after(10))
		if !start.Equal(deleted) {
			t.Errorf("starts at %s", start)
		}
	})
	t.Run("M94: a running Machine was drained if its condition or its record says so", func(t *testing.T) {
		reported := machine(annotated())
		reported.Status.Conditions = []metav1.Condition{machinedrain.ResultCondition(v1alpha1.ReasonMachineDrained, "")}
		for name, tc := range map[string]struct {
			m    *clusterv1.Machine
			want bool
		}{
			"condition": {reported, true},
			"record":    {matrixMachine(map[string]string{v1alpha1.DrainEndedAnnotation: "1"}, "stage", limit, 0), true},
			"waits for volumes": {
				matrixMachine(map[string]string{v1alpha1.DrainEndedAnnotation: "1", v1alpha1.VolumeWaitStartedAnnotation: "1"}, "stage", limit, 0), false,
			},
			"deleted": {matrixMachine(map[string]string{v1alpha1.DrainEndedAnnotation: "1"}, "deletion", limit, 0), false},
			"nothing": {matrixMachine(nil, "stage", limit, 0), false},
		} {
			if got := machinedrain.WasDrained(tc.m); got != tc.want {
				t.Errorf("%s: got %t", name, got)
			}
		}
	})
}

func TestDrainInPlaceThatIsConfirmedAfterTheDeletion(t *testing.T) {
	drained := draining(-400, -300)
	m := matrixMachine(inPlaceRecords["drained"], "deletion after a drain in place", limit, 0)
	machinedrain.ClockIn(machinedrain.Situation{Maintenance: read(drained), IsDrained: true}, m, after(50)).Record(m)
	t.Run("M94: does not time out in an outage", func(t *testing.T) {
		clock := machinedrain.ClockIn(machinedrain.Situation{BlockedSince: after(100)}, m, after(present))
		if at, part := clock.Deadline(m); at != nil {
			t.Errorf("part %s times out at %s", part, at)
		}
	})
	t.Run("M94: has the whole drain timeout if Pods must be drained again: none was drained since the deletion", func(t *testing.T) {
		clock := machinedrain.ClockIn(machinedrain.Situation{Maintenance: read(drained), IsResumed: true}, m, after(present))
		expectTime(t, clock.DrainDeadline(m), ptr.To(after(present+limit)))
	})
}

func TestBlindDeadline(t *testing.T) {
	started := func(second int) func(*clusterv1.Machine) {
		return annotated(v1alpha1.DrainStartedAnnotation, after(second).Format(time.RFC3339))
	}
	waits := annotated(v1alpha1.VolumeWaitStartedAnnotation, after(100).Format(time.RFC3339))
	for _, tc := range []struct {
		name    string
		machine *clusterv1.Machine
		since   int
		failed  time.Time
		want    *time.Time
	}{
		{
			"M92: is a minute after the first failed attempt to connect, if the drain timeout has passed before",
			machine(isDeleted, timeouts(300, 0), started(100)), 900, time.Time{}, ptr.To(after(960)),
		},
		{
			"M92: is the drain timeout if this process has failed for a minute by then",
			machine(isDeleted, timeouts(300, 0), started(700)), 930, time.Time{}, ptr.To(after(1000)),
		},
		{
			"M92: is a minute after the first failed attempt, also if the timeout is shorter",
			machine(isDeleted, timeouts(20, 0), started(100)), 900, time.Time{}, ptr.To(after(960)),
		},
		{
			"M92: is a minute after the first failed attempt, if the volume detach timeout has passed before",
			machine(isDeleted, timeouts(0, 300), waits), 900, time.Time{}, ptr.To(after(960)),
		},
		{
			"M92: is after the next attempt to reach the workload cluster, if the last one failed before", machine(isDeleted, timeouts(300, 0), started(100)),
			900, after(935), ptr.To(after(980)),
		},
		{"M92: is not postponed again if that attempt fails, too", machine(isDeleted, timeouts(300, 0), started(100)), 900, after(970), ptr.To(after(960))},
		{"M92: is postponed for a limited time only: no attempt may follow", machine(isDeleted, timeouts(300, 0), started(100)), 900, after(900), ptr.To(after(960))},
		{"M92: does not exist without a timeout", machine(isDeleted, started(100)), 900, time.Time{}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			at, _ := machinedrain.ClockOf(tc.machine, unread, after(present)).BlindDeadline(tc.machine, after(tc.since), tc.failed)
			expectTime(t, at, tc.want)
		})
	}
}

func TestNodeLookupDeadline(t *testing.T) {
	m := machine(isDeleted)
	for _, tc := range []struct {
		name                string
		since, failed, want int
	}{
		{"M87: is a minute after the deletion", -100, -100, 60},
		{"M87: is a minute after the first failed attempt to connect of this process", 500, 500, 560},
		{"M87: is after the next attempt, if the last one failed before", 500, 535, 580},
		{"M87: is not postponed again if that attempt fails, too", 500, 570, 560},
	} {
		t.Run(tc.name, func(t *testing.T) {
			at := machinedrain.NodeLookupDeadline(m, after(tc.since), after(tc.failed))
			expectTime(t, &at, ptr.To(after(tc.want)))
		})
	}
}

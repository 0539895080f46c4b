package machinedrain_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/draintimeout"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

const hookDomain = clusterv1.PreDrainDeleteHookAnnotationPrefix

func TestHoldingHooks(t *testing.T) {
	ignores := func(hooks ...string) *v1alpha1.MachineDrainPolicy {
		return ptr.To(policy("all", func(p *v1alpha1.MachineDrainPolicy) { p.Spec.IgnoredPreDrainHooks = hooks }))
	}
	ours := []string{v1alpha1.PreDrainHookAnnotation, v1alpha1.HookOwner}
	for _, tc := range []struct {
		name    string
		machine *clusterv1.Machine
		policy  *v1alpha1.MachineDrainPolicy
		want    string
	}{
		{"M113: the hook of this provider holds no drain", machine(isDeleted, annotated(ours...)), nil, ""},
		{"M113: the hook of another owner does", machine(isDeleted, annotated(append(ours, hookDomain+"/approval", "sre")...)), nil, "approval (owner sre)"},
		{"M113: its owner may be unknown", machine(isDeleted, annotated(hookDomain+"/approval", "")), nil, "approval"},
		{"M113: several do, by name", machine(isDeleted, annotated(hookDomain+"/b", "x", hookDomain+"/a", "y")), nil, "a (owner y), b (owner x)"},
		{"M113: as in Cluster API, every annotation with the prefix is a hook", machine(isDeleted, annotated(hookDomain, "x", hookDomain+"-too/a", "y")), nil,
			hookDomain + " (owner x), " + hookDomain + "-too/a (owner y)"},
		{"M113: a pre-terminate hook holds no drain", machine(isDeleted, annotated(clusterv1.PreTerminateDeleteHookAnnotationPrefix+"/a", "")), nil, ""},
		{"M113: no hook holds the drain of a Machine that is not deleted", machine(annotated(hookDomain+"/approval", "sre")), nil, ""},
		{
			"M114: the owner is shortened, and cannot control a terminal",
			machine(isDeleted, annotated(hookDomain+"/a", "\x1b[31m red\n"+strings.Repeat("x", 1000))), nil,
			"a (owner [31m red " + strings.Repeat("x", 89) + "…)",
		},
		{"M116: a policy ignores hooks by name", machine(isDeleted, annotated(hookDomain+"/a", "x", hookDomain+"/b", "y")), ignores("b", "c"), "a (owner x)"},
		{"M116: a policy that names all hooks", machine(isDeleted, annotated(hookDomain+"/a", "x", hookDomain+"/b", "y")), ignores("b", "a"), ""},
		{"M116: without a policy, no hook is ignored", machine(isDeleted, annotated(hookDomain+"/a", "x")), nil, "a (owner x)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := machinedrain.HooksText(machinedrain.HoldingHooks(tc.machine, tc.policy)); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	t.Run("M114: at most five hooks are named", func(t *testing.T) {
		all := annotated(hookDomain+"/a", "", hookDomain+"/b", "", hookDomain+"/c", "", hookDomain+"/d", "", hookDomain+"/e", "", hookDomain+"/f", "",
			hookDomain+"/g", "")
		if got, want := machinedrain.HooksText(machinedrain.HoldingHooks(machine(isDeleted, all), nil)), "a, b, c, d, e and 2 more"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestHold tests the clock of Machines whose drains hooks hold, or have held, in all combinations of the matrix.
func TestHold(t *testing.T) {
	now, all := after(present), matrix()
	ofDeleted := func(t *testing.T, check func(*testing.T, matrixCase)) {
		t.Helper()
		for _, tc := range all {
			if tc.request != "deletion" {
				continue
			}
			if check(t, tc); t.Failed() {
				t.Fatalf("case %s; clock: %+v", tc.name, machinedrain.ClockIn(tc.situation, tc.machine, now))
			}
		}
	}
	t.Run("M113: nothing times out while hooks hold the drain, and only the hold is recorded", func(t *testing.T) {
		ofDeleted(t, func(t *testing.T, tc matrixCase) {
			t.Helper()
			tc.situation.HeldByHooks = true
			if at, part := tc.deadline(); at != nil {
				t.Errorf("part %s times out at %s", part, at)
			}
			held := tc.machine.DeepCopy()
			machinedrain.ClockIn(tc.situation, held, now).Record(held)
			if !machinedrain.IsHeldByHooks(held) || len(held.Annotations) != 2 {
				t.Errorf("records %v", held.Annotations)
			}
		})
	})
	t.Run("M115: the whole drain timeout counts after the hold, whatever was known or recorded before, also after restarts", func(t *testing.T) {
		ofDeleted(t, func(t *testing.T, tc matrixCase) {
			t.Helper()
			held := tc.machine.DeepCopy()
			machinedrain.ClockIn(machinedrain.Situation{HeldByHooks: true, Maintenance: tc.situation.Maintenance}, held, now).Record(held)
			s, later := tc.situation, now.Add(10*time.Second)
			s.HeldByHooks = false
			if !s.BlockedSince.IsZero() { // the hold ended the former block
				s.BlockedSince = later
			}
			for range 3 {
				at, part := machinedrain.ClockIn(s, held, later).Deadline(held)
				if part == machinedrain.PartDrain && at != nil && at.Before(now.Add((10+limit)*time.Second)) {
					t.Errorf("times out at %s", at)
				}
				machinedrain.ClockIn(s, held, later).Record(held)
				later = later.Add(time.Second)
			}
		})
	})
	t.Run("M115: a NodeMaintenance that drains is suspended until it counts the drain timeout from the end of the hold", func(t *testing.T) {
		ofDeleted(t, func(t *testing.T, tc matrixCase) {
			t.Helper()
			m, found := tc.situation.Maintenance.Get()
			if !found {
				return
			}
			m = m.DeepCopy()
			m.Spec.Evacuation.DrainTimeoutSeconds = tc.machine.Spec.Deletion.NodeDrainTimeoutSeconds
			held, s := tc.machine.DeepCopy(), tc.situation
			s.Maintenance = read(m)
			machinedrain.ClockIn(machinedrain.Situation{HeldByHooks: true, Maintenance: s.Maintenance}, held, now).Record(held)
			s.HeldByHooks = false
			machinedrain.ClockIn(s, held, now).Record(held)
			start := m.DrainStart()
			counts := m.Spec.Stage == v1alpha1.StageDrain && start != nil && *m.Spec.Evacuation.DrainTimeoutSeconds > 0
			if counts && start.Before(now) && !machinedrain.IsSuspended(m, held, nil, "") {
				t.Errorf("not suspended; counts from %s, records %v", start, held.Annotations)
			}
		})
	})
}

func TestEndOfHold(t *testing.T) {
	at := func(second int) string { return after(second).Format(time.RFC3339) }
	held := func(more ...string) *clusterv1.Machine {
		return machine(isDeleted, timeouts(60, 0), annotated(append([]string{
			v1alpha1.PreDrainHookAnnotation, v1alpha1.HookOwner, v1alpha1.DrainHeldAnnotation, at(5),
		}, more...)...))
	}
	inStage := func(stage v1alpha1.NodeMaintenanceStage) *v1alpha1.NodeMaintenance {
		return &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: stage}}
	}
	begun := func(annotation string) *v1alpha1.NodeMaintenance {
		m := draining(1)
		m.Spec.Evacuation.DrainTimeoutSeconds = ptr.To[int32](60)
		if annotation != "" {
			m.Annotations = map[string]string{v1alpha1.DrainStartedAnnotation: annotation}
		}
		return m
	}
	withoutTimeout := draining(1)
	come, awaited := &machinedrain.Turn{}, &machinedrain.Turn{Limit: 1, Draining: 1}
	for _, tc := range []struct {
		name        string
		machine     *clusterv1.Machine
		maintenance *v1alpha1.NodeMaintenance
		turn        *machinedrain.Turn
		// The records afterwards: continues is since when the drain timeout counts, waits whether the Machine waits for a turn.
		held, waits bool
		continues   string
	}{
		{"M113: a drain begins when the hooks are gone", held(), nil, come, false, false, ""},
		{"M113: a drain begins on a Node that a rollout had cordoned", held(), inStage(v1alpha1.StageCordon), come, false, false, ""},
		{"M117: it waits for a turn first", held(), inStage(v1alpha1.StageCordon), awaited, true, true, ""},
		{"M117: it begins with the turn", held(v1alpha1.WaitingForTurnAnnotation, at(90)), inStage(v1alpha1.StageCordon), come, false, false, ""},
		{"M115: a drain that had begun continues, and stays suspended until its NodeMaintenance has observed that", held(), begun(""), come, true, false, at(100)},
		{"M117: a drain that had begun waits for a turn, and stays suspended", held(), begun(""), awaited, true, true, ""},
		{"M117: it continues with the turn", held(v1alpha1.WaitingForTurnAnnotation, at(90)), begun(""), come, true, false, at(100)},
		{"M115: its NodeMaintenance has not observed the new start yet", held(v1alpha1.DrainStartedAnnotation, at(95)), begun(at(50)), come, true, false, at(95)},
		{"M115: its NodeMaintenance has observed the new start", held(v1alpha1.DrainStartedAnnotation, at(95)), begun(at(95)), come, false, false, at(95)},
		{"M115: its NodeMaintenance has no timeout yet", held(v1alpha1.DrainStartedAnnotation, at(95)), withoutTimeout, come, false, false, at(95)},
		{"M115: it has vanished meanwhile", held(v1alpha1.DrainStartedAnnotation, at(95)), nil, come, false, false, at(95)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := tc.machine
			machinedrain.ClockIn(machinedrain.Situation{Maintenance: read(tc.maintenance), Turn: tc.turn}, m, after(100)).Record(m)
			_, waits := m.Annotations[v1alpha1.WaitingForTurnAnnotation]
			if machinedrain.WasHeldByHooks(m) != tc.held || waits != tc.waits || m.Annotations[v1alpha1.DrainStartedAnnotation] != tc.continues {
				t.Errorf("records %v", m.Annotations)
			}
			isSuspended := tc.maintenance != nil && machinedrain.IsSuspended(tc.maintenance, m, nil, "")
			if want := tc.held && tc.maintenance.Spec.Stage == v1alpha1.StageDrain; isSuspended != want {
				t.Errorf("suspended: %t", isSuspended)
			}
		})
	}
	t.Run("M115: the new start counts although the clock of the manager is behind", func(t *testing.T) {
		m := held(v1alpha1.DrainStartedAnnotation, at(500))
		delete(m.Annotations, v1alpha1.DrainHeldAnnotation)
		deadline := machinedrain.ClockOf(m, read(begun(at(500))), after(100)).DrainDeadline(m)
		expectTime(t, deadline, ptr.To(after(160)))
	})
	t.Run("M94, M115: a drain timeout that is set when Pods must be drained again does not count from the hold before", func(t *testing.T) {
		for _, volumeTimeout := range []int32{0, 60} {
			m, turn := machine(isDeleted, timeouts(0, volumeTimeout),
				annotated(v1alpha1.PreDrainHookAnnotation, v1alpha1.HookOwner, v1alpha1.DrainHeldAnnotation, at(5))), come
			for second := range 3 {
				machinedrain.ClockIn(machinedrain.Situation{Maintenance: read(withoutTimeout), Turn: turn}, m, after(100+second)).Record(m)
			}
			if m.Annotations[v1alpha1.DrainStartedAnnotation] != at(100) || machinedrain.WasHeldByHooks(m) {
				t.Errorf("has not continued: %v", m.Annotations)
			}
			drains := draining(1, 200)
			drains.Annotations = map[string]string{v1alpha1.DrainStartedAnnotation: at(100)}
			machinedrain.ClockIn(machinedrain.Situation{Maintenance: read(drains), Turn: turn, IsDrained: true}, m, after(200)).Record(m)
			drains.Status.Conditions[0].Status, drains.Status.Conditions[0].LastTransitionTime = metav1.ConditionFalse, metav1.NewTime(after(5000))
			again := machinedrain.Situation{Maintenance: read(drains), Turn: turn}
			again.IsResumed = machinedrain.ClockIn(again, m, after(5000)).Drained != nil
			machinedrain.ClockIn(again, m, after(5000)).Record(m)
			again.IsResumed, m.Spec.Deletion.NodeDrainTimeoutSeconds = false, ptr.To[int32](600)
			expectTime(t, machinedrain.ClockIn(again, m, after(5010)).DrainDeadline(m), ptr.To(after(5600)))
			machinedrain.Update(drains, machinedrain.Maintenance(machinedrain.Request{Machine: m, Node: &corev1.Node{}}))
			expectTime(t, drains.DrainStart(), ptr.To(after(5000)))
		}
	})
	t.Run("M39, M107: a record of a hold that another actor has copied to a Machine whose drain had ended holds no drain for ever", func(t *testing.T) {
		m := held(v1alpha1.DrainHeldAnnotation, "2020-01-01T00:00:00Z", v1alpha1.MachineStageAnnotation, "Drain", v1alpha1.DrainRequestedAnnotation, at(-1000),
			v1alpha1.DrainStartedAnnotation, at(-500), v1alpha1.DrainEndedAnnotation, at(-400))
		drained := draining(-1000, -400)
		drained.Spec.Evacuation.DrainTimeoutSeconds = ptr.To[int32](60)
		for second := 1; second <= 10 && machinedrain.WasHeldByHooks(m); second++ {
			machinedrain.ClockIn(machinedrain.Situation{Maintenance: read(drained), Turn: come}, m, after(second)).Record(m)
			machinedrain.Update(drained, machinedrain.Maintenance(machinedrain.Request{Machine: m, Node: &corev1.Node{}}))
		}
		if machinedrain.WasHeldByHooks(m) {
			t.Errorf("held: %v; NodeMaintenance %v", m.Annotations, drained.Annotations)
		}
	})
	t.Run("M113: a timeout that is set after the hold counts from its end", func(t *testing.T) {
		m := held()
		m.Spec.Deletion.NodeDrainTimeoutSeconds = nil
		for range 2 {
			machinedrain.ClockIn(machinedrain.Situation{Maintenance: read(withoutTimeout), Turn: come}, m, after(100)).Record(m)
		}
		m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](60)
		expectTime(t, machinedrain.ClockOf(m, read(withoutTimeout), after(120)).DrainDeadline(m), ptr.To(after(160)))
	})
	t.Run("M113: a drain that was held stays suspended when the Machine is released, whether the hooks are still there or not", func(t *testing.T) {
		for _, hook := range []string{"", hookDomain + "/approval"} {
			m := held(clusterv1.ExcludeNodeDrainingAnnotation, "")
			if hook != "" {
				m.Annotations[hook] = "sre"
			}
			if skip := machinedrain.Skip(machinedrain.Facts{Machine: m, ControlPlaneMachines: 1}); skip == machinedrain.NotSkipped {
				t.Error("not skipped")
			}
			machinedrain.Release(m, false, false)
			if machinedrain.HasHook(m) || !machinedrain.IsSuspended(begun(""), m, machinedrain.HoldingHooks(m, nil), "") ||
				machinedrain.IsSuspended(inStage(v1alpha1.StageComplete), m, nil, "") {
				t.Errorf("hook %q: annotations %v", hook, m.Annotations)
			}
		}
		m := held()
		delete(m.Annotations, v1alpha1.DrainHeldAnnotation)
		if machinedrain.Release(m, true, true); m.Annotations[v1alpha1.DrainHeldAnnotation] != "" || machinedrain.IsSuspended(begun(""), m, nil, "") {
			t.Errorf("never held, annotations %v", m.Annotations)
		}
	})
	t.Run("M113: the record has no effect on a Machine that is not deleted, and is removed there", func(t *testing.T) {
		m := held()
		m.DeletionTimestamp = nil
		if machinedrain.WasHeldByHooks(m) || machinedrain.IsSuspended(begun(""), m, nil, "") {
			t.Error("held")
		}
		if machinedrain.SetHook(m); m.Annotations[v1alpha1.DrainHeldAnnotation] != "" {
			t.Error("not removed")
		}
	})
	t.Run("M113, M115: hooks suspend a drain in progress before the hold is recorded, whatever deadline has passed, and hold no other stage", func(t *testing.T) {
		m := machine(isDeleted, timeouts(60, 0), annotated(v1alpha1.PreDrainHookAnnotation, v1alpha1.HookOwner, hookDomain+"/approval", "sre",
			v1alpha1.DrainStartedAnnotation, at(1)))
		drains := begun("")
		drains.Spec.Evacuation.OnTimeout = v1alpha1.OnTimeoutDelete
		holding := machinedrain.HoldingHooks(m, nil)
		if deadline := draintimeout.DrainOf(drains, nil, after(3600)).DeleteAt(0, nil); deadline.After(after(3600)) {
			t.Errorf("the Pods would not be deleted before %s", deadline)
		}
		if !machinedrain.IsSuspended(drains, m, holding, "") {
			t.Error("not suspended")
		}
		if machinedrain.IsSuspended(inStage(v1alpha1.StageCordon), m, holding, "") || machinedrain.IsSuspended(inStage(v1alpha1.StageComplete), m, holding, "") {
			t.Error("another stage is suspended")
		}
		deleted := drains.DeepCopy()
		if deleted.DeletionTimestamp = m.DeletionTimestamp; machinedrain.IsSuspended(deleted, m, holding, "") {
			t.Error("one that another actor has deleted is suspended")
		}
	})
	t.Run("M115, M158: the end of the suspension is an event, and its beginning", func(t *testing.T) {
		continued := held(v1alpha1.DrainStartedAnnotation, at(95))
		delete(continued.Annotations, v1alpha1.DrainHeldAnnotation)
		begins := held()
		delete(begins.Annotations, v1alpha1.DrainHeldAnnotation)
		paused, released := machine(annotated(clusterv1.PausedAnnotation, "")), machine(isDeleted)
		hooked := func(m *clusterv1.Machine) *clusterv1.Machine {
			m.Annotations[hookDomain+"/approval"] = "sre"
			return m
		}
		reported := hooked(begins.DeepCopy())
		reported.Annotations[hookDomain+"/approval"] = "sre, for 5 s"
		rehooked := begins.DeepCopy()
		rehooked.Annotations[hookDomain+"/that-may-be-ignored"] = "sre"
		relabeled := func(m *clusterv1.Machine) *clusterv1.Machine {
			m.Labels = map[string]string{"pool": "other"}
			return m
		}
		for name, tc := range map[string]struct {
			before, after *clusterv1.Machine
			want          bool
		}{
			"the labels change, so that a policy may ignore the hook": {hooked(begins.DeepCopy()), relabeled(hooked(begins.DeepCopy())), true},
			"the labels change, and the hold is recorded":             {hooked(held()), relabeled(hooked(held())), false},
			"the labels change, and there is no hook":                 {begins, relabeled(begins.DeepCopy()), false},
			"the hook is replaced":                                    {hooked(begins.DeepCopy()), rehooked, true},
			"continues":                                               {held(v1alpha1.DrainStartedAnnotation, at(95)), continued, true},
			"begins":                                                  {held(), begins, false}, // no NodeMaintenance is suspended
			"is held":                                                 {held(), held(), false},
			"the hook is removed before the hold is recorded":         {hooked(begins.DeepCopy()), begins, true},
			"the hook is removed, the record is not":                  {hooked(held()), held(), false},
			"the hook is added":                                       {begins, hooked(begins.DeepCopy()), false},
			"the owner changes the value of the hook":                 {hooked(begins.DeepCopy()), reported, false},
			"resumed":                          {paused, machine(), true},
			"is paused":                        {paused, paused, false},
			"no longer exists, and was paused": {paused, nil, true},
			"no longer exists, and was held":   {held(), nil, true},
			"no longer exists, and a hook was not recorded": {hooked(begins.DeepCopy()), nil, true},
			"no longer exists, and its drain had not ended": {continued, nil, true},
			"no longer exists, and was released":            {released, nil, false},
		} {
			if got := machinedrain.DrainContinues(tc.before, tc.after); got != tc.want {
				t.Errorf("%s: got %t", name, got)
			}
		}
		running, deleted := machine(annotated(hookDomain+"/approval", "sre")), hooked(begins.DeepCopy())
		for name, tc := range map[string]struct {
			before, after *clusterv1.Machine
			want          bool
		}{
			"is paused":          {machine(), paused, true},
			"was paused before":  {paused, paused, false},
			"resumed":            {paused, machine(), false},
			"a hook is added":    {begins, deleted, true},
			"a hook is replaced": {deleted, rehooked, true},
			"a hook is removed":  {deleted, begins, false},
			"the owner changes the value of the hook": {deleted, reported, false},
			"is deleted with the hook":                {running, deleted, true},
			"a hook is added before the deletion":     {machine(), running, false},
		} {
			if got := machinedrain.DrainStops(tc.before, tc.after); got != tc.want {
				t.Errorf("%s: the suspension begins: %t", name, got)
			}
		}
	})
}

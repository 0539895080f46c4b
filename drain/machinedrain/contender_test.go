package machinedrain_test

import (
	"maps"
	"slices"
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

// TestStandingOf has a row for each reason for which a Machine waits for a turn, counts for maxParallelDrains, or does neither.
func TestStandingOf(t *testing.T) {
	now := time.Now()
	recently, earlier := now.UTC().Format(time.RFC3339), now.Add(-time.Hour).UTC().Format(time.RFC3339)
	type observed = *machinedrain.ObservedDrain
	type change func(*clusterv1.Machine, observed)
	annotated := func(annotation, value string) change {
		return func(m *clusterv1.Machine, _ observed) { m.Annotations[annotation] = value }
	}
	paused, holds := annotated(clusterv1.PausedAnnotation, ""), annotated(v1alpha1.DrainHeldAnnotation, earlier)
	hasWaited, recordedTurn := annotated(v1alpha1.WaitingForTurnAnnotation, recently), annotated(v1alpha1.DrainStartedAnnotation, recently)
	inStage := func(stage v1alpha1.NodeMaintenanceStage) change {
		return func(_ *clusterv1.Machine, o observed) {
			o.Maintenance = &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: stage}}
		}
	}
	drains, unreadPolicy := inStage(v1alpha1.StageDrain), func(_ *clusterv1.Machine, o observed) { o.IsHeld = true }
	invalidRules := func(_ *clusterv1.Machine, o observed) { o.HasInvalidRules = true }
	blocks := func(_ *clusterv1.Machine, o observed) { o.IsBlocked = true }
	blocksAlone := func(_ *clusterv1.Machine, o observed) { o.IsBlocked, o.IsBlockedAlone = true, true }
	node := func(ready corev1.ConditionStatus, ago time.Duration) change {
		return func(_ *clusterv1.Machine, o observed) {
			changed := metav1.NewTime(now.Add(-ago))
			o.Node = &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, LastTransitionTime: changed}}}}
		}
	}
	isLost, isUnreachable, isNotReady := node(corev1.ConditionUnknown, 5*time.Minute), node(corev1.ConditionUnknown, 299*time.Second),
		node(corev1.ConditionFalse, time.Minute)
	terminates := func(last time.Duration, all bool) change {
		return func(_ *clusterv1.Machine, o observed) {
			o.Progress = machinedrain.Progress{Last: now.Add(-last), Observed: now.Add(-time.Hour), OnlyTerminates: all}
		}
	}
	onlyTerminates := terminates(time.Minute, true)
	isControlPlane := func(m *clusterv1.Machine, _ observed) {
		m.Labels = map[string]string{clusterv1.MachineControlPlaneLabel: ""}
	}
	unhealthy := func(reason string) change {
		return func(m *clusterv1.Machine, _ observed) {
			m.Status.Conditions = []metav1.Condition{{Type: clusterv1.MachineOwnerRemediatedCondition, Status: metav1.ConditionFalse, Reason: reason}}
		}
	}
	isRemediated, isRequested := unhealthy(clusterv1.MachineSetMachineRemediationMachineDeletingReason), annotated(clusterv1.RemediateMachineAnnotation, "")
	inPlace := func(m *clusterv1.Machine, _ observed) {
		m.DeletionTimestamp, m.Annotations[v1alpha1.MachineStageAnnotation] = nil, string(v1alpha1.StageDrain)
		machinedrain.RequestDrain(now)(m)
	}
	for _, test := range []struct {
		name string
		is   []change
		want machinedrain.Standing
	}{
		{"M26: waits", nil, machinedrain.Waits},
		{"M26: waits while its Node is cordoned", []change{inStage(v1alpha1.StageCordon)}, machinedrain.Waits},
		{"M26: counts during its drain", []change{drains}, machinedrain.HasTurn},
		{"M37: counts after it got a turn, while its NodeMaintenance is recreated", []change{recordedTurn}, machinedrain.HasTurn},
		{"M26: neither if its Node does not exist", []change{drains, func(_ *clusterv1.Machine, o observed) { o.Node = nil }}, machinedrain.TakesNoTurn},
		{"M26: neither in the control plane", []change{drains, isControlPlane}, machinedrain.TakesNoTurn},
		{"M26: does not count if its Node has been unreachable for five minutes", []change{drains, isLost}, machinedrain.TakesNoTurn},
		{"M26: nor waits", []change{isLost}, machinedrain.TakesNoTurn},
		{"M26: counts if its Node is unreachable, maybe for a moment", []change{drains, isUnreachable}, machinedrain.HasTurn},
		{"M26: waits if its Node is unreachable, maybe for a moment", []change{isUnreachable}, machinedrain.Waits},
		{"M131: does not wait if its MachineSet has deleted it for a MachineHealthCheck", []change{isRemediated}, machinedrain.TakesNoTurn},
		{"M131: nor counts", []change{isRemediated, drains}, machinedrain.TakesNoTurn},
		{"M131: waits while its Node is unreachable, maybe with all others", []change{isRemediated, isUnreachable}, machinedrain.Waits},
		{"M131: waits still when the network is back", []change{isRemediated, hasWaited}, machinedrain.Waits},
		{"M131: neither if a user has requested its remediation", []change{isRequested, hasWaited, isUnreachable}, machinedrain.TakesNoTurn},
		{"M131: waits for its drain in place all the same", []change{isRequested, inPlace}, machinedrain.Waits},
		{"M131: waits if its remediation is deferred", []change{unhealthy(clusterv1.MachineSetMachineRemediationDeferredReason)}, machinedrain.Waits},
		{"M131: waits if it is unhealthy, and a rollout replaces it", []change{unhealthy(clusterv1.MachineSetMachineCannotBeRemediatedReason)}, machinedrain.Waits},
		{
			"M143: does not count if its Node is not ready, and all Pods that are left fail to terminate",
			[]change{drains, isNotReady, onlyTerminates}, machinedrain.TakesNoTurn,
		},
		{"M143: counts if its Node is ready", []change{drains, onlyTerminates}, machinedrain.HasTurn},
		{"M143: counts if its Node has just become not ready", []change{drains, node(corev1.ConditionFalse, time.Second), onlyTerminates}, machinedrain.HasTurn},
		{"M143: counts if other Pods are left", []change{drains, isNotReady, terminates(time.Minute, false)}, machinedrain.HasTurn},
		{"M143: counts if one of them has terminated a moment ago", []change{drains, isNotReady, terminates(0, true)}, machinedrain.HasTurn},
		{"M37: is held while it is paused", []change{paused}, machinedrain.Held},
		{"M37: counts if it was paused during its drain", []change{paused, drains}, machinedrain.HasTurn},
		{"M37: counts if it was paused after it got a turn", []change{paused, recordedTurn}, machinedrain.HasTurn},
		{"M37: is held if its policy cannot be decoded, or another manager must drain it", []change{unreadPolicy}, machinedrain.Held},
		{"M37: counts if that is so since its drain began", []change{unreadPolicy, drains}, machinedrain.HasTurn},
		{"M37: counts if that is so since it got a turn", []change{unreadPolicy, recordedTurn}, machinedrain.HasTurn},
		{"M117: is held by hooks of other owners", []change{holds}, machinedrain.Held},
		{"M117: is held if its drain had begun", []change{holds, drains}, machinedrain.Held},
		{"M117: waits for another turn after the hold", []change{holds, drains, hasWaited}, machinedrain.Waits},
		{"M117: counts when it has that turn", []change{holds, drains, recordedTurn}, machinedrain.HasTurn},
		{"M37: waits for its rules to be fixed", []change{invalidRules, blocksAlone}, machinedrain.AwaitsRules},
		{"M37: counts if its rules are invalid since its drain began", []change{invalidRules, drains}, machinedrain.HasTurn},
		{"M37: waits while a step fails", []change{blocks}, machinedrain.Blocked},
		{"M121: waits while one has failed for five minutes", []change{blocksAlone}, machinedrain.BlockedAlone},
		{"M121: counts if one fails after its drain has begun", []change{blocksAlone, drains}, machinedrain.HasTurn},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, o := inDeletion("one"), machinedrain.ObservedDrain{Node: &corev1.Node{}}
			m.DeletionTimestamp, m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To(metav1.NewTime(now.Add(-2*time.Hour))), ptr.To[int32](60)
			for _, change := range test.is {
				change(&m, &o)
			}
			if got := machinedrain.StandingOf(&m, o, now); got != test.want {
				t.Errorf("StandingOf() = %d, want %d", got, test.want)
			}
			contenders, _, err := machinedrain.Contenders([]clusterv1.Machine{m}, now, func(*clusterv1.Machine) (machinedrain.ObservedDrain, error) { return o, nil })
			isContender := test.want != machinedrain.Held && test.want != machinedrain.TakesNoTurn
			if err != nil || len(contenders) == 1 != isContender || isContender && contenders[0].Standing != test.want {
				t.Errorf("Contenders() = %+v, %v", contenders, err)
			}
			policy := &v1alpha1.MachineDrainPolicy{Spec: v1alpha1.MachineDrainPolicySpec{MaxParallelDrains: ptr.To(intstr.FromInt32(1))}}
			if waits := test.want != machinedrain.HasTurn && test.want != machinedrain.TakesNoTurn; o.Node != nil && o.Progress == (machinedrain.Progress{}) &&
				machinedrain.NeedsTurn(&m, policy, o.Node, o.Maintenance, now) != waits {
				t.Errorf("NeedsTurn() = %t", !waits)
			}
		})
	}
}

func TestContenders(t *testing.T) {
	t.Run("M26: all workers count for a percentage, and only those that drain or wait are observed", func(t *testing.T) {
		controlPlane, running, withoutNode := inDeletion("cp"), inDeletion("running"), inDeletion("new")
		controlPlane.Labels = map[string]string{clusterv1.MachineControlPlaneLabel: ""}
		running.DeletionTimestamp, withoutNode.Status.NodeRef.Name = nil, "" // it may be known by its provider ID
		var observed []string
		_, workers, err := machinedrain.Contenders([]clusterv1.Machine{controlPlane, running, withoutNode, inDeletion("one")}, time.Now(),
			func(m *clusterv1.Machine) (machinedrain.ObservedDrain, error) {
				observed = append(observed, m.Name)
				return machinedrain.ObservedDrain{}, nil
			})
		if err != nil || workers != 3 || !slices.Equal(observed, []string{"new", "one"}) {
			t.Errorf("%d workers, observed %v, error %v", workers, observed, err)
		}
	})
}

func TestDrainThatNothingRequests(t *testing.T) {
	staged := func(stage, reason string) clusterv1.Machine {
		m := inDeletion("one")
		m.DeletionTimestamp, m.Annotations[v1alpha1.MachineStageAnnotation] = nil, stage
		m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: reason}}
		machinedrain.RequestDrain(after(1))(&m)
		return m
	}
	unstaged := staged("", v1alpha1.ReasonMachineDraining)
	delete(unstaged.Annotations, v1alpha1.MachineStageAnnotation)
	overdue := staged("Cordon", v1alpha1.ReasonInvalidStage)
	overdue.Annotations[v1alpha1.DrainStartedAnnotation] = after(2).UTC().Format(time.RFC3339)
	overdue.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](60)
	timedOut := staged("drain", v1alpha1.ReasonInvalidStage)
	timedOut.Annotations[v1alpha1.DrainStartedAnnotation] = after(40).UTC().Format(time.RFC3339)
	timesOut := *timedOut.DeepCopy()
	timedOut.Spec.Deletion.NodeDrainTimeoutSeconds, timesOut.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](60), ptr.To[int32](61)
	drains, isDrained, waits := &v1alpha1.NodeMaintenance{}, &v1alpha1.NodeMaintenance{}, (*v1alpha1.NodeMaintenance)(nil)
	drains.Spec.Stage, isDrained.Spec.Stage = v1alpha1.StageDrain, v1alpha1.StageDrain
	isDrained.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceDrained, Status: metav1.ConditionTrue}}
	for name, tc := range map[string]struct {
		m      clusterv1.Machine
		drain  *v1alpha1.NodeMaintenance
		counts bool
	}{
		"counts after the stage annotation was changed to an earlier stage": {staged("Cordon", v1alpha1.ReasonMachineDraining), drains, true},
		"counts while the condition names an earlier stage as invalid":      {staged("Cordon", v1alpha1.ReasonInvalidStage), drains, true},
		"counts while the stage annotation is invalid":                      {staged("drain", v1alpha1.ReasonInvalidStage), drains, true},
		"counts while no policy selects the Machine":                        {staged("Drain", v1alpha1.ReasonNotManaged), drains, true},
		"counts after the stage annotation was removed, until it ends":      {unstaged, drains, true},
		"does not count when no Pod must be drained any more":               {staged("drain", v1alpha1.ReasonInvalidStage), isDrained, false},
		"does not count after a timeout":                                    {staged("Drain", v1alpha1.ReasonTimedOut), drains, false},
		"counts until its drain timeout":                                    {timesOut, drains, true},
		"does not count after its drain timeout":                            {timedOut, drains, false},
		"does not count while it has not begun":                             {staged("drain", v1alpha1.ReasonInvalidStage), waits, false},
		"does not count while it has not begun, also in an overdue turn":    {overdue, waits, false},
	} {
		t.Run("M145: a drain in place "+name, func(t *testing.T) {
			next := inDeletion("two")
			next.DeletionTimestamp = ptr.To(metav1.NewTime(after(10)))
			all, _, err := machinedrain.Contenders([]clusterv1.Machine{tc.m, next}, after(100), func(m *clusterv1.Machine) (machinedrain.ObservedDrain, error) {
				observed := machinedrain.ObservedDrain{Node: &corev1.Node{}, IsHeld: !machinedrain.WantsDrain(m, nil)}
				if m.Name == "one" {
					observed.Maintenance = tc.drain
				}
				return observed, nil
			})
			if turn := machinedrain.TurnOf(machinedrain.ContenderOf(&next), all, 1, after(100)); err != nil || turn.Now() == tc.counts {
				t.Errorf("the next Machine has the turn %+v, %v", turn, err)
			}
		})
	}
}

func TestTurnAfterDrainInPlace(t *testing.T) {
	at := func(second int) string { return after(second).UTC().Format(time.RFC3339) }
	policy := &v1alpha1.MachineDrainPolicy{Spec: v1alpha1.MachineDrainPolicySpec{MaxParallelDrains: ptr.To(intstr.FromInt32(1))}}
	for result, records := range map[string]map[string]string{
		v1alpha1.ReasonMachineDrained: {v1alpha1.DrainStartedAnnotation: at(2), v1alpha1.DrainEndedAnnotation: at(3)},
		v1alpha1.ReasonTimedOut:       {v1alpha1.DrainStartedAnnotation: at(2), v1alpha1.VolumeWaitStartedAnnotation: at(62)},
	} {
		t.Run("M147: a Machine whose drain in place has ended waits for another turn if its Node was replaced, and otherwise for none: "+result, func(t *testing.T) {
			m := inDeletion("one")
			m.DeletionTimestamp, m.Spec.Deletion.NodeDrainTimeoutSeconds = nil, ptr.To[int32](60)
			m.Annotations[v1alpha1.MachineStageAnnotation], m.Annotations[v1alpha1.DrainRequestedAnnotation] = "Drain", at(1)+"/"
			maps.Copy(m.Annotations, records)
			m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.MachineNodeMaintenance, Reason: result}}
			cordoned, waits := &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}, &v1alpha1.NodeMaintenance{}
			waits.Spec.Stage = v1alpha1.StageCordon
			if machinedrain.NeedsTurn(m.DeepCopy(), policy, cordoned, nil, after(1000)) {
				t.Error("the Node would not stay cordoned with waitingNodes Schedulable, although a user may work on it")
			}
			replaced := cordoned.DeepCopy()
			replaced.CreationTimestamp = metav1.NewTime(after(500))
			if !machinedrain.NeedsTurn(m.DeepCopy(), policy, replaced, nil, after(1000)) {
				t.Error("a Node that registers as unschedulable was not drained")
			}
			if !machinedrain.NeedsTurn(m.DeepCopy(), policy, cordoned, waits, after(1000)) {
				t.Error("when the new Node is cordoned, the drain would begin if the watch has not delivered yet that the Machine waits")
			}
			for _, turn := range []machinedrain.Turn{{Limit: 1, Draining: 1}, {Limit: 1, Draining: 1}, {Limit: 1}} {
				if !machinedrain.NeedsTurn(&m, policy, &corev1.Node{}, nil, after(1000)) {
					t.Fatalf("the drain would begin beside another one: %v", m.Annotations)
				}
				clock := machinedrain.ClockIn(machinedrain.Situation{Maintenance: read(nil), Turn: &turn}, &m, after(1000))
				if clock.Drain != nil || (clock.Waiting == nil) != turn.Now() {
					t.Errorf("got %+v", clock)
				}
				clock.Record(&m)
				m.Status.Conditions[0].Reason = v1alpha1.ReasonWaitingForTurn
			}
		})
	}
}

func TestPlaceOfDrainInPlace(t *testing.T) {
	requested, waits := metav1.Unix(100, 0).UTC().Format(time.RFC3339), metav1.Unix(101, 0).UTC().Format(time.RFC3339)
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        int64
	}{
		"M127: a Machine that waits for the turn of its drain in place keeps its place when it is deleted": {
			map[string]string{v1alpha1.MachineStageAnnotation: "Drain", v1alpha1.DrainRequestedAnnotation: requested + "/", v1alpha1.WaitingForTurnAnnotation: waits},
			100,
		},
		"M127: one that was drained in place before has that of its deletion": {
			map[string]string{v1alpha1.MachineStageAnnotation: "Drain", v1alpha1.DrainRequestedAnnotation: requested + "/"}, 1000,
		},
		"M107: a copied request of another Machine does not count": {
			map[string]string{
				v1alpha1.MachineStageAnnotation: "Drain", v1alpha1.DrainRequestedAnnotation: requested + "/other", v1alpha1.WaitingForTurnAnnotation: waits,
			}, 1000,
		},
		"M107: nor does one that nothing explains any more": {
			map[string]string{v1alpha1.DrainRequestedAnnotation: requested + "/", v1alpha1.WaitingForTurnAnnotation: waits}, 1000,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := inDeletion("one")
			m.DeletionTimestamp = ptr.To(metav1.Unix(1000, 0))
			maps.Copy(m.Annotations, tc.annotations)
			if got := machinedrain.ContenderOf(&m).Requested.Unix(); got != tc.want {
				t.Errorf("the place of its request at %d", got)
			}
		})
	}
}

func TestMostUnreachable(t *testing.T) {
	now := time.Now()
	node := func(ready corev1.ConditionStatus, ago time.Duration) corev1.Node {
		n := unreachableSince(now, ago)
		n.CreationTimestamp, n.Status.Conditions[0].Status = metav1.NewTime(now.Add(-time.Hour)), ready
		return *n
	}
	lost, reachable, returned := node(corev1.ConditionUnknown, time.Hour), node(corev1.ConditionTrue, time.Hour), node(corev1.ConditionTrue, 299*time.Second)
	created, controlPlane := *returned.DeepCopy(), *reachable.DeepCopy()
	created.CreationTimestamp, controlPlane.Labels = metav1.NewTime(now.Add(-5*time.Minute)), map[string]string{"node-role.kubernetes.io/control-plane": ""}
	for name, tc := range map[string]struct {
		nodes []corev1.Node
		want  bool
	}{
		"one of two is":                               {[]corev1.Node{lost, reachable}, false},
		"two of three are":                            {[]corev1.Node{lost, lost, reachable}, true},
		"the control plane does not count":            {[]corev1.Node{lost, controlPlane}, true},
		"some have just come back, others may follow": {[]corev1.Node{lost, returned, reachable}, true},
		"some were just created":                      {[]corev1.Node{lost, created, reachable}, false},
	} {
		t.Run("M26: "+name, func(t *testing.T) {
			if got := machinedrain.MostUnreachable(tc.nodes, now); got != tc.want {
				t.Errorf("MostUnreachable() = %t", got)
			}
		})
	}
}

package daemonset_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/daemonset"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

func TestTolerated(t *testing.T) { // R40
	const key = v1alpha1.NoDaemonSetPodsTaint
	for name, test := range map[string]struct {
		toleration corev1.Toleration
		want       bool
	}{
		"everything":                        {corev1.Toleration{Operator: "Exists"}, true},
		"every taint that keeps Pods away":  {corev1.Toleration{Operator: "Exists", Effect: "NoSchedule"}, true},
		"every taint that drives Pods away": {corev1.Toleration{Operator: "Exists", Effect: "NoExecute"}, false},
		"ours":                              {corev1.Toleration{Key: key, Operator: "Exists"}, true},
		"ours, of no value":                 {corev1.Toleration{Key: key}, true},
		"ours, of no value, spelled out":    {corev1.Toleration{Key: key, Operator: "Equal", Effect: "NoSchedule"}, true},
		"ours, of a value":                  {corev1.Toleration{Key: key, Operator: "Equal", Value: "x"}, false},
		"ours, of a number":                 {corev1.Toleration{Key: key, Operator: "Gt", Value: "-1"}, false},
		"unschedulable, as DaemonSets do":   {corev1.Toleration{Key: corev1.TaintNodeUnschedulable, Operator: "Exists", Effect: "NoSchedule"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := daemonset.Tolerated([]corev1.Toleration{{Key: "other", Operator: "Exists"}, test.toleration}); got != test.want {
				t.Errorf("tolerated: %t", got)
			}
		})
	}
	if daemonset.Tolerated(nil) {
		t.Error("nothing tolerates it")
	}
}

func TestSetTaint(t *testing.T) { // R40: the taints of others stay
	node := &corev1.Node{}
	theirs := corev1.Taint{Key: v1alpha1.NoDaemonSetPodsTaint, Effect: corev1.TaintEffectNoExecute} // the effect is part of a taint's identity
	node.Spec.Taints = []corev1.Taint{theirs}
	if daemonset.Tainted(node) || daemonset.SetTaint(node, false) {
		t.Error("it isn't there")
	}
	if !daemonset.SetTaint(node, true) || daemonset.SetTaint(node, true) || !daemonset.Tainted(node) {
		t.Error("it is put there once")
	}
	if !daemonset.SetTaint(node, false) || len(node.Spec.Taints) != 1 || node.Spec.Taints[0] != theirs {
		t.Errorf("only ours is taken off: %v", node.Spec.Taints)
	}
}

// draining returns a maintenance in stage Drain that has reached DaemonSet Pods up to priority 5000 on Node n1.
func draining(name string, changes ...func(*v1alpha1.NodeMaintenance)) v1alpha1.NodeMaintenance {
	m := v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1}}
	m.Spec.Stage, m.Spec.Reason, m.Spec.NodeSelector = v1alpha1.StageDrain, "new kernel", v1alpha1.SelectNodes("n1")
	m.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{
		NodeRef:      v1alpha1.NodeReference{Name: "n1"},
		DrainTargets: []v1alpha1.DrainTarget{{PodType: "Default", PodPriority: 2147483647}, {PodType: "DaemonSet", PodPriority: 5000}},
	}}
	for _, change := range changes {
		change(&m)
	}
	return m
}

func stage(s v1alpha1.NodeMaintenanceStage) func(*v1alpha1.NodeMaintenance) {
	return func(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = s }
}

func forNode(uid string) func(*v1alpha1.NodeMaintenance) {
	return func(m *v1alpha1.NodeMaintenance) {
		m.Annotations = map[string]string{v1alpha1.NodeUIDAnnotation: uid}
	}
}

func defaultPodsOnly(m *v1alpha1.NodeMaintenance) {
	m.Status.NodeStatuses[0].DrainTargets = m.Status.NodeStatuses[0].DrainTargets[:1]
}

func shared(m *v1alpha1.NodeMaintenance) {
	m.Status.DrainTargetSets = []v1alpha1.DrainTargetSet{{}, {DrainTargets: m.Status.NodeStatuses[0].DrainTargets}}
	m.Status.NodeStatuses[0].DrainTargets, m.Status.NodeStatuses[0].DrainTargetsIndex = nil, ptr.To[int32](1)
}

func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-" + "1"}}
}

func TestTaintWanted(t *testing.T) { // R40
	for name, test := range map[string]struct {
		node         string
		maintenances []v1alpha1.NodeMaintenance
		want         bool
	}{
		"no maintenance":                           {"n1", nil, false},
		"a drain has reached DaemonSets":           {"n1", []v1alpha1.NodeMaintenance{draining("m")}, true},
		"in the shared table of targets":           {"n1", []v1alpha1.NodeMaintenance{draining("m", shared)}, true},
		"on another Node":                          {"n2", []v1alpha1.NodeMaintenance{draining("m")}, false},
		"a drain has not reached them":             {"n1", []v1alpha1.NodeMaintenance{draining("m", defaultPodsOnly)}, false},
		"complete":                                 {"n1", []v1alpha1.NodeMaintenance{draining("m", stage(v1alpha1.StageComplete))}, false},
		"one is complete, another one isn't":       {"n1", []v1alpha1.NodeMaintenance{draining("a", stage(v1alpha1.StageComplete)), draining("b")}, true},
		"created for this Node":                    {"n1", []v1alpha1.NodeMaintenance{draining("m", forNode("uid-1"))}, true},
		"created for an earlier Node of this name": {"n1", []v1alpha1.NodeMaintenance{draining("m", forNode("uid-0"))}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := daemonset.TaintWanted(daemonset.On(node(test.node), test.maintenances, nil)); got != test.want {
				t.Errorf("wanted: %t", got)
			}
		})
	}
}

func TestAffected(t *testing.T) {
	m, same := draining("m"), draining("m", func(m *v1alpha1.NodeMaintenance) { m.Status.NodeStatuses[0].PodsEvacuating = 7 })
	defaults, complete := draining("m", defaultPodsOnly), draining("m", stage(v1alpha1.StageComplete))
	table := draining("m", shared)
	edited := draining("m", func(m *v1alpha1.NodeMaintenance) { m.Generation = 2 })
	adopted := draining("m", func(m *v1alpha1.NodeMaintenance) {
		m.Annotations = map[string]string{v1alpha1.OwnerManagementClusterAnnotation: "another"}
	})
	for name, test := range map[string]struct {
		before, after *v1alpha1.NodeMaintenance
		want          []string
	}{
		"new":                             {nil, &m, []string{"n1"}},
		"deleted":                         {&m, nil, []string{"n1"}},
		"complete":                        {&m, &complete, []string{"n1"}},
		"reaches DaemonSets":              {&defaults, &m, []string{"n1"}},
		"its rules are edited":            {&m, &edited, []string{"n1"}},
		"E58: continued after a move":     {&m, &adopted, []string{"n1"}},
		"progress of other Pods":          {&m, &same, nil},
		"the same, in the shared table":   {&m, &table, nil},
		"has not reached DaemonSets":      {&defaults, nil, nil},
		"new, has not reached DaemonSets": {nil, &defaults, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := daemonset.Affected(test.before, test.after); !slices.Equal(got, test.want) {
				t.Errorf("affected: %v", got)
			}
		})
	}
}

// subject returns a Pod of a DaemonSet in whose Evacuation this evacuator is active, for a maintenance that has reached the Pod.
func subject(changes ...func(*daemonset.Input)) daemonset.Input {
	m := draining("m")
	in := daemonset.Input{
		Evacuation: &v1alpha1.Evacuation{
			ObjectMeta: metav1.ObjectMeta{Finalizers: []string{v1alpha1.NodeMaintenanceInstigatorFinalizer}},
			Status:     v1alpha1.EvacuationStatus{ActiveEvacuatorClass: ptr.To(v1alpha1.EvacuatorClassDaemonSet)},
		},
		Pod:  &corev1.Pod{Spec: corev1.PodSpec{Priority: ptr.To[int32](5000)}},
		Type: v1alpha1.PodTypeDaemonSet, TypeKnown: true,
		Draining: daemonset.On(node("n1"), []v1alpha1.NodeMaintenance{m}, nil),
		Verdicts: []rules.Verdict{{Behavior: v1alpha1.DrainBehaviorDrain}},
	}
	for _, change := range changes {
		change(&in)
	}
	return in
}

func TestDecide(t *testing.T) { // R38
	verdict := func(v rules.Verdict) func(*daemonset.Input) {
		return func(in *daemonset.Input) { in.Verdicts[0] = v }
	}
	other := func(v rules.Verdict) func(*daemonset.Input) {
		return func(in *daemonset.Input) {
			m := draining("other")
			in.Draining = append(in.Draining, daemonset.Draining{Maintenance: &m})
			in.Verdicts = append(in.Verdicts, v)
		}
	}
	for name, test := range map[string]struct {
		change func(*daemonset.Input)
		want   daemonset.Refusal
	}{
		"targeted":               {func(*daemonset.Input) {}, daemonset.NotRefused},
		"no evacuator is active": {func(in *daemonset.Input) { in.Evacuation.Status.ActiveEvacuatorClass = nil }, daemonset.EvacuatorNotActive},
		"another evacuator is active": {
			func(in *daemonset.Input) { in.Evacuation.Status.ActiveEvacuatorClass = ptr.To("example.com") }, daemonset.EvacuatorNotActive,
		},
		"the evacuator has completed": {func(in *daemonset.Input) { in.Evacuation.Status.ActiveEvacuatorCompleted = true }, daemonset.EvacuatorNotActive},
		"another instigator requests it": {func(in *daemonset.Input) {
			in.Evacuation.Finalizers = []string{v1alpha1.InstigatorFinalizerPrefix + "x"}
		}, daemonset.NotRequested},
		"the DaemonSet does not exist": {func(in *daemonset.Input) { in.Type = v1alpha1.PodTypeDefault }, daemonset.NotOfDaemonSet},
		"unknown type":                 {func(in *daemonset.Input) { in.TypeKnown = false }, daemonset.NotOfDaemonSet},
		"terminating":                  {func(in *daemonset.Input) { in.Pod.DeletionTimestamp = &metav1.Time{} }, daemonset.NotRunning},
		"finished":                     {func(in *daemonset.Input) { in.Pod.Status.Phase = corev1.PodSucceeded }, daemonset.NotRunning},
		"the Pod tolerates the taint": {
			func(in *daemonset.Input) { in.Pod.Spec.Tolerations = []corev1.Toleration{{Operator: "Exists"}} }, daemonset.IsRecreated,
		},
		"of a higher priority":              {func(in *daemonset.Input) { in.Pod.Spec.Priority = ptr.To[int32](5001) }, daemonset.NotTargeted},
		"of a later order":                  {verdict(rules.Verdict{Behavior: v1alpha1.DrainBehaviorDrain, Order: 1}), daemonset.NotTargeted},
		"skipped":                           {verdict(rules.Verdict{Behavior: v1alpha1.DrainBehaviorSkip}), daemonset.NotTargeted},
		"undecided":                         {verdict(rules.Verdict{Undecided: "why"}), daemonset.NotTargeted},
		"another maintenance skips it":      {other(rules.Verdict{Behavior: v1alpha1.DrainBehaviorSkip}), daemonset.NotRefused},
		"another maintenance waits for it":  {other(rules.Verdict{Behavior: v1alpha1.DrainBehaviorWaitCompleted}), daemonset.NotTargeted},
		"another maintenance cannot decide": {other(rules.Verdict{Undecided: "why"}), daemonset.NotTargeted},
		"no drain on the Node":              {func(in *daemonset.Input) { in.Draining, in.Verdicts = nil, nil }, daemonset.NotTargeted},
	} {
		t.Run(name, func(t *testing.T) {
			by, refusal := daemonset.Decide(subject(test.change))
			if refusal != test.want || (by != nil) != (test.want == daemonset.NotRefused) {
				t.Errorf("refusal: %q, by %v", refusal, by)
			}
		})
	}
}

func TestSuspended(t *testing.T) {
	deleted := func(m *v1alpha1.NodeMaintenance) { m.DeletionTimestamp = &metav1.Time{Time: time.Now()} }
	selectsAnother := func(m *v1alpha1.NodeMaintenance) { m.Spec.NodeSelector = v1alpha1.SelectNodes("n2") }
	paused := func(m *v1alpha1.NodeMaintenance) bool { return m.Name == "paused" }
	waits := rules.Verdict{Behavior: v1alpha1.DrainBehaviorWaitCompleted}
	for name, test := range map[string]struct {
		maintenances []v1alpha1.NodeMaintenance
		verdict      rules.Verdict // of the first one
		want         daemonset.Refusal
	}{
		"E58: a suspended maintenance deletes no Pod": {[]v1alpha1.NodeMaintenance{draining("paused")}, rules.Verdict{Behavior: "Drain"}, daemonset.NotTargeted},
		"E57: one that is being deleted does not":     {[]v1alpha1.NodeMaintenance{draining("m", deleted)}, rules.Verdict{Behavior: "Drain"}, daemonset.NotTargeted},
		"E57: one that no longer selects the Node does not": {
			[]v1alpha1.NodeMaintenance{draining("m", selectsAnother)}, rules.Verdict{Behavior: "Drain"}, daemonset.NotTargeted,
		},
		"E58: another one deletes it": {
			[]v1alpha1.NodeMaintenance{draining("paused"), draining("m")}, rules.Verdict{Behavior: "Drain"}, daemonset.NotRefused,
		},
		"E58: a suspended one still forbids it": {[]v1alpha1.NodeMaintenance{draining("paused"), draining("m")}, waits, daemonset.NotTargeted},
	} {
		t.Run(name, func(t *testing.T) {
			in := subject()
			in.Draining, in.Verdicts = daemonset.On(node("n1"), test.maintenances, paused), []rules.Verdict{test.verdict}
			for range test.maintenances[1:] {
				in.Verdicts = append(in.Verdicts, rules.Verdict{Behavior: v1alpha1.DrainBehaviorDrain})
			}
			if _, refusal := daemonset.Decide(in); refusal != test.want {
				t.Errorf("refusal: %q", refusal)
			}
			if !daemonset.TaintWanted(in.Draining) {
				t.Error("the Node keeps the taint until the maintenance has withdrawn")
			}
		})
	}
}

func TestReport(t *testing.T) {
	t.Run("R39: reports once the progress, the end of the Pod's grace period and the reason, and does not complete", func(t *testing.T) {
		in, m := subject(), draining("m")
		now := time.Date(2026, 1, 1, 12, 0, 0, 500, time.UTC)
		period, seconds := rules.RequestedGracePeriod(&corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: ptr.To[int64](60)}}, false)
		if !daemonset.Report(in.Evacuation, &m, period, now) || seconds != nil {
			t.Fatal("the status must change, and the Pod keeps its own grace period")
		}
		status := in.Evacuation.Status
		switch {
		case status.ActiveEvacuatorCompleted:
			t.Error("the evacuator must not complete: no other evacuator may be activated")
		case !status.EvacuationProgressTimestamp.Time.Equal(now.Truncate(time.Second)):
			t.Errorf("progress: %s", status.EvacuationProgressTimestamp)
		case !status.ExpectedEvacuationFinishTime.Time.Equal(now.Truncate(time.Second).Add(time.Minute)):
			t.Errorf("finish: %s", status.ExpectedEvacuationFinishTime)
		case !strings.Contains(status.Message, "NodeMaintenance m ") || !strings.Contains(status.Message, "new kernel"):
			t.Errorf("message: %s", status.Message)
		case daemonset.Report(in.Evacuation, &m, period, now.Add(time.Hour)):
			t.Error("reported twice")
		}
	})
	t.Run("E48: reports the error of the deletion once, and drops it when the Pod is deleted", func(t *testing.T) {
		in, m := subject(), draining("m")
		daemonset.Report(in.Evacuation, &m, time.Minute, time.Now())
		before := in.Evacuation.Status.Message
		switch {
		case daemonset.ReportResult(in.Evacuation, &m, ""):
			t.Error("nothing has failed")
		case !daemonset.ReportResult(in.Evacuation, &m, "refused"), daemonset.ReportResult(in.Evacuation, &m, "refused"):
			t.Error("the error must be reported once")
		case in.Evacuation.Status.Message != "Cannot delete the Pod: refused":
			t.Errorf("message: %s", in.Evacuation.Status.Message)
		case !daemonset.ReportResult(in.Evacuation, &m, ""), in.Evacuation.Status.Message != before:
			t.Errorf("message after the deletion: %s", in.Evacuation.Status.Message)
		}
	})
}

func TestMaintenanceOfOneNode(t *testing.T) {
	t.Run("E29: deletes Pods of DaemonSets and prevents new ones when the drain reaches them, and removes the taint when it is complete", func(t *testing.T) {
		n := node("n1")
		for _, step := range []struct {
			name              string
			maintenance       v1alpha1.NodeMaintenance
			keptAway, leaving bool
		}{
			{"before DaemonSets", draining("m", defaultPodsOnly), false, false},
			{"at DaemonSets", draining("m"), true, true},
			{"complete", draining("m", stage(v1alpha1.StageComplete)), false, false},
		} {
			in := subject(func(in *daemonset.Input) {
				in.Draining = daemonset.On(n, []v1alpha1.NodeMaintenance{step.maintenance}, nil)
			})
			in.Verdicts = in.Verdicts[:len(in.Draining)]
			daemonset.SetTaint(n, daemonset.TaintWanted(in.Draining))
			by, refusal := daemonset.Decide(in)
			if daemonset.Tainted(n) != step.keptAway || (by != nil) != step.leaving {
				t.Errorf("%s: tainted %t, refused because of %q", step.name, daemonset.Tainted(n), refusal)
			}
		}
	})
}

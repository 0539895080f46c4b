package machinedrain_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// updated returns a Machine that Cluster API updates in place. annotations are pairs of keys and values.
func updated(annotations ...string) *clusterv1.Machine {
	m := annotatedMachine(clusterv1.UpdateInProgressAnnotation, "")
	for i := 0; i < len(annotations); i += 2 {
		m.Annotations[annotations[i]] = annotations[i+1]
	}
	return m
}

func inPlace(updates v1alpha1.InPlaceUpdatesPolicy) *v1alpha1.MachineDrainPolicy {
	return &v1alpha1.MachineDrainPolicy{Spec: v1alpha1.MachineDrainPolicySpec{InPlaceUpdates: updates}}
}

func TestRequestedStage(t *testing.T) {
	const staged = v1alpha1.MachineStageAnnotation
	drain, cordon := inPlace(v1alpha1.InPlaceUpdatesDrain), inPlace(v1alpha1.InPlaceUpdatesCordon)
	for name, test := range map[string]struct {
		machine *clusterv1.Machine
		policy  *v1alpha1.MachineDrainPolicy
		want    v1alpha1.NodeMaintenanceStage
	}{
		"M83: drains before an in-place update":                      {updated(), drain, v1alpha1.StageDrain},
		"M83: cordons before an in-place update":                     {updated(), cordon, v1alpha1.StageCordon},
		"M83: ignores an in-place update":                            {updated(), inPlace(v1alpha1.InPlaceUpdatesIgnore), ""},
		"M83: ignores an in-place update by default":                 {updated(), inPlace(""), ""},
		"M83: ignores an in-place update without a policy":           {updated(), nil, ""},
		"M83: requests nothing without an in-place update":           {&clusterv1.Machine{}, drain, ""},
		"M83: does not drain a Machine that is excluded from drains": {updated(clusterv1.ExcludeNodeDrainingAnnotation, ""), drain, ""},
		"M83: ignores the exclusion that an earlier release has left behind": {
			updated(clusterv1.ExcludeNodeDrainingAnnotation, v1alpha1.HookOwner), drain, v1alpha1.StageDrain,
		},
		"M83: a stage annotation takes precedence over the policy":       {updated(staged, "Cordon"), drain, v1alpha1.StageCordon},
		"M83: a stage annotation with an invalid value takes precedence": {updated(staged, "Reboot"), drain, ""},
		"M83: a stage annotation drains a Machine that is excluded from drains by request": {
			updated(staged, "Drain", clusterv1.ExcludeNodeDrainingAnnotation, ""), nil, v1alpha1.StageDrain,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			stage, _ := machinedrain.RequestedStage(test.machine, test.policy)
			g.Expect(stage).To(Equal(test.want))
		})
	}
	t.Run("M83: continues a drain when the policy requires only a cordon", func(t *testing.T) {
		g := NewWithT(t)
		m := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
		g.Expect(machinedrain.ContinuedStage(updated(), v1alpha1.StageCordon, m)).To(Equal(v1alpha1.StageDrain))
		g.Expect(machinedrain.ContinuedStage(updated(), v1alpha1.StageCordon, nil)).To(Equal(v1alpha1.StageCordon))
		g.Expect(machinedrain.ContinuedStage(updated(), "", m)).To(BeEmpty())
		g.Expect(machinedrain.ContinuedStage(updated(staged, "Cordon"), v1alpha1.StageCordon, m)).To(Equal(v1alpha1.StageCordon), "which is reported as invalid")
	})
}

func TestAllowUpdate(t *testing.T) {
	const allowed = v1alpha1.UpdateAllowedAnnotation
	drain, cordon := inPlace(v1alpha1.InPlaceUpdatesDrain), inPlace(v1alpha1.InPlaceUpdatesCordon)
	for name, test := range map[string]struct {
		machine *clusterv1.Machine
		policy  *v1alpha1.MachineDrainPolicy
		reason  string
		want    string
	}{
		"M84: allows the update of a drained Node":                       {updated(), drain, v1alpha1.ReasonMachineDrained, "Drained"},
		"M84: allows the update after a timeout":                         {updated(), drain, v1alpha1.ReasonTimedOut, "TimedOut"},
		"M84: allows the update of a Node that is out of service":        {updated(), drain, v1alpha1.ReasonSkipped, "Skipped"},
		"M84: does not allow the update during the drain":                {updated(), drain, v1alpha1.ReasonMachineDraining, ""},
		"M84: does not allow the update while the Machine waits":         {updated(), drain, v1alpha1.ReasonWaitingForTurn, ""},
		"M84: does not allow the update of a Node that is only cordoned": {updated(), drain, v1alpha1.ReasonMachineCordoned, ""},
		"M84: allows the update of a cordoned Node":                      {updated(), cordon, v1alpha1.ReasonMachineCordoned, "Cordoned"},
		"M84: does not allow the update before the Node is cordoned":     {updated(), cordon, v1alpha1.ReasonMachineCordoning, ""},
		"M84: allows nothing where the policy requires nothing":          {updated(), inPlace(""), v1alpha1.ReasonMachineDrained, ""},
		"M84: allows nothing without an update":                          {&clusterv1.Machine{}, drain, v1alpha1.ReasonMachineDrained, ""},
		"M84: keeps the permission until the update has completed":       {updated(allowed, "Drained"), drain, v1alpha1.ReasonMachineDraining, "Drained"},
		"M84: replaces a copy of the permission of another Machine": {
			updated(allowed, "Drained/other"), drain, v1alpha1.ReasonMachineDrained, "Drained",
		},
		"M84: withdraws the permission when the update has completed": {annotatedMachine(allowed, "Drained"), drain, v1alpha1.ReasonMachineDrained, ""},
		"M84: keeps the permission when the policy requires nothing any more": {
			updated(allowed, "Drained"), inPlace(v1alpha1.InPlaceUpdatesIgnore), v1alpha1.ReasonMachineDrained, "Drained",
		},
		"M84: keeps the permission when no policy selects the Machine any more": {updated(allowed, "Drained"), nil, v1alpha1.ReasonMachineDrained, "Drained"},
		"M84: withdraws it without a policy when the update has completed":      {annotatedMachine(allowed, "Drained"), nil, v1alpha1.ReasonMachineDrained, ""},
		"M84: withdraws a copy of another Machine when the policy requires nothing": {
			updated(allowed, "Drained/other"), inPlace(v1alpha1.InPlaceUpdatesIgnore), v1alpha1.ReasonMachineDrained, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			test.machine.UID = "uid"
			if before := test.machine.Annotations[allowed]; before != "" && !strings.Contains(before, "/") {
				test.machine.Annotations[allowed] += "/uid"
			}
			if test.want != "" {
				test.want += "/uid"
			}
			before := test.machine.Annotations[allowed]
			g.Expect(machinedrain.AllowUpdate(test.policy, test.reason)(test.machine)).To(Equal(before != test.want))
			g.Expect(test.machine.Annotations[allowed]).To(Equal(test.want))
			g.Expect(machinedrain.AllowUpdate(test.policy, test.reason)(test.machine)).To(BeFalse())
		})
	}
	t.Run("M84: withdraws the permission and the clock before the Node is restored", func(t *testing.T) {
		g := NewWithT(t)
		m := updated(allowed, "Drained", v1alpha1.DrainStartedAnnotation, "x", v1alpha1.DrainRequestedAnnotation, "x")
		g.Expect(machinedrain.EndDrain(m)).To(BeTrue())
		g.Expect(m.Annotations).To(And(HaveLen(1), HaveKey(clusterv1.UpdateInProgressAnnotation)))
	})
	t.Run("M84: does not trust a NodeMaintenance that has been completed or recreated since it was cached", func(t *testing.T) {
		g := NewWithT(t)
		cached := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{UID: "1", Generation: 2, ResourceVersion: "5"}}
		stored := cached.DeepCopy()
		stored.ResourceVersion = "6"
		g.Expect(machinedrain.IsUnchanged(stored, cached)).To(BeTrue(), "only its status has changed")
		stored.Generation = 3
		g.Expect(machinedrain.IsUnchanged(stored, cached)).To(BeFalse())
		stored.UID, stored.Generation = "2", 2
		g.Expect(machinedrain.IsUnchanged(stored, cached)).To(BeFalse())
	})
}

func TestUpdateInPlace(t *testing.T) {
	t.Run("M83: drains in place as the stage annotation does, and leaves remediation enabled", func(t *testing.T) {
		g := NewWithT(t)
		now := time.Unix(1_800_000_000, 0)
		m := updated()
		g.Expect(machinedrain.IsDraining(m)).To(BeFalse(), "the manager has not observed the update")
		g.Expect(machinedrain.RequestDrain(now)(m)).To(BeTrue())
		g.Expect(machinedrain.IsDraining(m)).To(BeTrue())
		g.Expect(*machinedrain.RequestedAt(m)).To(BeTemporally("==", now))
		g.Expect(m.Annotations).NotTo(HaveKey(clusterv1.MachineSkipRemediationAnnotation))
		m.Annotations[v1alpha1.MachineStageAnnotation] = "Drain"
		g.Expect(machinedrain.RequestDrain(now)(m)).To(BeTrue())
		g.Expect(m.Annotations).To(HaveKey(clusterv1.MachineSkipRemediationAnnotation))
		m.Annotations[v1alpha1.MachineStageAnnotation] = "Cordon"
		g.Expect(machinedrain.IsDraining(m)).To(BeFalse(), "the stage annotation takes precedence")
		delete(m.Annotations, v1alpha1.MachineStageAnnotation)
		g.Expect(machinedrain.RequestDrain(now)(m)).To(BeTrue())
		g.Expect(m.Annotations).NotTo(HaveKey(clusterv1.MachineSkipRemediationAnnotation))
		delete(m.Annotations, clusterv1.UpdateInProgressAnnotation)
		g.Expect(machinedrain.IsDraining(m)).To(BeFalse(), "the update has completed")
	})
	t.Run("M83: a NodeMaintenance says that the Machine is updated in place", func(t *testing.T) {
		g := NewWithT(t)
		reason := func(m *clusterv1.Machine) string {
			m.Namespace, m.Name = "default", "m"
			return machinedrain.Maintenance(machinedrain.Request{Machine: m, Node: &corev1.Node{}, For: v1alpha1.RequestedForStage}).Spec.Reason
		}
		g.Expect(reason(updated())).To(Equal("Cluster API updates Machine default/m in place"))
		g.Expect(reason(updated(v1alpha1.MachineStageAnnotation, "Drain"))).To(ContainSubstring("requests it with the annotation"))
	})
}

func TestMayUpdate(t *testing.T) {
	const staged, allowed = v1alpha1.MachineStageAnnotation, v1alpha1.UpdateAllowedAnnotation
	drain, cordon := inPlace(v1alpha1.InPlaceUpdatesDrain), inPlace(v1alpha1.InPlaceUpdatesCordon)
	with := func(m *clusterv1.Machine, status metav1.ConditionStatus, reason, message string) *clusterv1.Machine {
		m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.MachineNodeMaintenance, Status: status, Reason: reason, Message: message}}
		return m
	}
	deleted := updated(allowed, "Drained")
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1_800_000_000, 0)}
	requested, stagedBefore := updated(), updated(staged, "Drain")
	machinedrain.RequestDrain(time.Unix(1_800_000_000, 0))(requested)
	machinedrain.RequestDrain(time.Unix(1_800_000_000, 0))(stagedBefore)
	selected := updated()
	machinedrain.SetHook(selected)
	for name, test := range map[string]struct {
		machine *clusterv1.Machine
		policy  *v1alpha1.MachineDrainPolicy
		want    string // the message; empty if the update may begin
	}{
		"M85: allows an update without a policy":                          {updated(), nil, ""},
		"M85: waits until a drain whose policy is gone was withdrawn":     {requested, nil, "the drain that was requested for the update"},
		"M85: allows an update after a user's drain without a policy":     {stagedBefore, nil, ""},
		"M166: waits until a drain that no policy requires was withdrawn": {requested, inPlace(v1alpha1.InPlaceUpdatesIgnore), "the drain that was requested"},
		"M166: waits without a policy until the hook is removed":          {selected, nil, "the removal of the hook"},
		"M85: allows an update that the policy ignores":                   {updated(), inPlace(v1alpha1.InPlaceUpdatesIgnore), ""},
		"M85: allows an update after the drain":                           {updated(allowed, "Drained"), nil, ""},
		"M85: does not trust a copy of the permission of another Machine": {updated(allowed, "Drained/other"), drain, "to begin stage Drain"},
		"M85: allows an update of an excluded Machine":                    {updated(clusterv1.ExcludeNodeDrainingAnnotation, ""), drain, ""},
		"M85: waits until the manager has observed the update":            {updated(), drain, "to begin stage Drain"},
		"M85: does not trust the condition of an earlier drain": {
			with(updated(), metav1.ConditionTrue, "Drained", "The Node is drained"), drain, "to begin stage Drain",
		},
		"M85: says what the drain waits for": {
			with(updated(), metav1.ConditionFalse, "Draining", "Pod a/b: waits\n* for\x1b[2J it"), drain,
			"stage Drain of the Node (Draining): Pod a/b: waits\n* for [2J it",
		},
		"M85: waits for a cordon": {
			with(updated(), metav1.ConditionFalse, "Cordoning", "x"), cordon, "stage Cordon of the Node (Cordoning): x",
		},
		"M85: names a stage annotation that takes precedence": {updated(staged, "Cordon"), drain, "the annotation maintenance.cluster.x-k8s.io/stage: Cordon"},
		"M85: names a stage annotation that completes":        {updated(staged, "Complete"), cordon, "stage: Complete of the Machine takes precedence"},
		"M85: waits for the drain that a stage annotation requests": {
			with(updated(staged, "Drain"), metav1.ConditionFalse, "Draining", "x"), cordon, "(Draining): x",
		},
		"M85: does not update a Machine that is being deleted": {deleted, drain, "being deleted"},
		"M85: does not repeat an update that has completed":    {annotatedMachine(allowed, "Drained"), drain, "has completed"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			may, message := machinedrain.MayUpdate(test.machine, test.policy)
			g.Expect(may).To(Equal(test.want == ""))
			g.Expect(message).To(ContainSubstring(test.want))
		})
	}
	t.Run("M85: cuts what the drain waits for", func(t *testing.T) {
		g := NewWithT(t)
		_, message := machinedrain.MayUpdate(with(updated(), metav1.ConditionFalse, "Draining", strings.Repeat("ü", 5000)), drain)
		g.Expect([]rune(message)).To(HaveLen(machinedrain.MaxUpdateMessage))
	})
}

package report_test

import (
	"bytes"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestMachineWhy(t *testing.T) {
	for name, test := range map[string]struct {
		deleted, paused, clusterPaused, clusterAnnotated bool
		want                                             []string
	}{
		"says that a deleted Machine is paused":            {true, true, false, false, []string{"The Machine is paused"}},
		"says that the Cluster of the Machine is paused":   {true, false, true, false, []string{"The Cluster is paused"}},
		"says nothing of a paused Machine without a drain": {false, true, true, false, nil},
		"says nothing of the annotation on the Cluster":    {true, false, false, true, nil},
	} {
		t.Run("K5: why "+name, func(t *testing.T) {
			w1 := machine("w1", nil)
			m := &observe.Machine{Machine: &w1, Cluster: &clusterv1.Cluster{Spec: clusterv1.ClusterSpec{Paused: &test.clusterPaused}}}
			if test.clusterAnnotated {
				m.Cluster.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
			}
			if test.deleted {
				w1.DeletionTimestamp = ptr.To(metav1.NewTime(now))
			}
			if test.paused {
				w1.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
			}
			var messages []string
			for _, problem := range report.MachineWhy(m, report.Seen{}).Problems {
				messages = append(messages, problem.Message)
			}
			NewWithT(t).Expect(messages).To(Equal(test.want))
		})
	}
}

func TestSkippedMachineWhy(t *testing.T) {
	const released = "The hook is released: Cluster API completes the deletion. Its condition Deleting says what it waits for."
	const skips = "The manager skips the drain: "
	draining := asked(metav1.ConditionFalse, v1alpha1.ReasonMachineDraining, isHooked)
	drained := asked(metav1.ConditionFalse, v1alpha1.ReasonWaitingForVolumeDetach, isHooked)
	for name, test := range map[string]struct {
		machine *observe.Machine
		skip    machinedrain.SkipReason
		want    string
	}{
		"that the manager skips the drain":                {draining, machinedrain.SkipClusterDeleting, skips + "the Cluster is being deleted."},
		"the same of a Machine whose Node may be drained": {drained, machinedrain.SkipClusterDeleting, skips + "the Cluster is being deleted."},
		"the same of a Machine without a Node":            {asked("", "", isDeleted), machinedrain.SkipNoNode, skips + "the Machine has no Node."},
		"that the hook is released, also if the Node is gone": {
			asked(metav1.ConditionTrue, v1alpha1.ReasonMachineDrained, isDeleted), machinedrain.SkipNodeGone, released,
		},
	} {
		t.Run("K5: why says "+name, func(t *testing.T) {
			NewWithT(t).Expect(report.MachineWhy(test.machine, report.Seen{Skip: test.skip}).Answer).To(Equal(test.want))
		})
	}
}

func TestOtherHooks(t *testing.T) {
	const hook = clusterv1.PreDrainDeleteHookAnnotationPrefix + "/approval"
	hooked := func(m *clusterv1.Machine) { metav1.SetMetaDataAnnotation(&m.ObjectMeta, hook, "sre") }
	messages := func(problems []report.Problem) (messages []string) {
		for _, problem := range problems {
			messages = append(messages, problem.Message)
		}
		return messages
	}
	held := "Waiting for other pre-drain hooks to be removed: approval (owner sre). Until then, no Pod of the Node is evicted and no drain timeout counts"
	later := "The drain of the Machine, when it is deleted, waits for other pre-drain hooks to be removed: approval (owner sre)"
	for name, test := range map[string]struct {
		machine   *observe.Machine
		ignored   []string
		why, plan []string
	}{
		"name the hook that holds the drain": {
			asked(metav1.ConditionFalse, v1alpha1.ReasonWaitingForPreDrainHook, isHooked, hooked), nil, []string{held}, []string{held},
		},
		"name the hook before the deletion":      {asked("", "", hooked), nil, nil, []string{later}},
		"do not name a hook that is ignored":     {asked("", "", hooked), []string{"approval"}, nil, nil},
		"name nothing if there is no other hook": {asked("", "", isHooked), nil, nil, nil},
	} {
		t.Run("M118: why and plan "+name, func(t *testing.T) {
			g, m := NewWithT(t), test.machine
			policy := v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: "all"}}
			policy.Spec.IgnoredPreDrainHooks = test.ignored
			m.Policies = []v1alpha1.MachineDrainPolicy{policy}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1", UID: "w1"}}
			g.Expect(messages(report.MachineWhy(m, report.Seen{}).Problems)).To(Equal(test.why))
			intent := report.IntentOf(m, node, nil, nil, now)
			drain := report.MachineDrain(m, node, intent, forecast.Observation{Maintenance: intent.Maintenance, Node: node, Surroundings: surroundings{}, Now: now}, nil)
			g.Expect(messages(drain.Blockers)).To(Equal(test.plan))
		})
	}
}

// asked returns a Machine with a condition of the reason, if that is not empty.
func asked(status metav1.ConditionStatus, reason string, changes ...func(*clusterv1.Machine)) *observe.Machine {
	w1 := machine("w1", nil)
	if reason != "" {
		w1.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.MachineNodeMaintenance, Status: status, Reason: reason, Message: "The condition says why", LastTransitionTime: metav1.NewTime(now),
		}}
	}
	for _, change := range changes {
		change(&w1)
	}
	return &observe.Machine{
		Machine: &w1, Cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "prod"}},
		Facts: machinedrain.Facts{Machine: &w1, ControlPlaneMachines: 1},
	}
}

func isDeleted(m *clusterv1.Machine) { m.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }

func isHooked(m *clusterv1.Machine) {
	isDeleted(m)
	m.Annotations = map[string]string{v1alpha1.PreDrainHookAnnotation: ""}
}

func paused(m *clusterv1.Machine) { m.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} }

func TestAnswers(t *testing.T) {
	const nothing = "The Machine is not being deleted, and nothing drains its Node. The command plan predicts what a deletion would do."
	const condition = "The condition says why"
	unread := report.Seen{Unread: true}
	for name, test := range map[string]struct {
		machine *observe.Machine
		seen    report.Seen
		want    string
	}{
		"the condition of a deleted Machine whose workload cluster cannot be reached": {
			asked(metav1.ConditionFalse, v1alpha1.ReasonWaitingForWorkloadCluster, isHooked), unread, condition,
		},
		"the condition of a Machine whose workload cluster cannot be reached": {asked(metav1.ConditionTrue, v1alpha1.ReasonMachineCordoned), unread, condition},
		"that a stage is invalid":                          {asked(metav1.ConditionFalse, v1alpha1.ReasonInvalidStage), report.Seen{}, condition},
		"that no policy selects a Machine with a stage":    {asked(metav1.ConditionFalse, v1alpha1.ReasonNotManaged), report.Seen{}, condition},
		"that nothing drains the Node of a Machine":        {asked("", ""), report.Seen{}, nothing},
		"that nothing drains the Node after a maintenance": {asked(metav1.ConditionTrue, v1alpha1.ReasonMachineCompleted), report.Seen{}, nothing},
		"that it is not known what drains the Node of a Machine": {
			asked("", ""), unread, "The Machine is not being deleted. Whether a NodeMaintenance drains its Node is not known: the NodeMaintenances could not be read.",
		},
		"that the manager has not reported on a deleted Machine": {asked("", "", isHooked), unread, "The manager has not reported on the Machine yet."},
		"that Cluster API drains the Node of an unmanaged Machine": {
			asked("", "", isDeleted), unread,
			"The Machine is being deleted without the hook of this provider: Cluster API drains the Node. Its condition Deleting says what it waits for.",
		},
	} {
		t.Run("K36: why machine answers "+name, func(t *testing.T) {
			NewWithT(t).Expect(report.MachineWhy(test.machine, test.seen).Answer).To(Equal(test.want))
		})
	}

	idle := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "w1-1"}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageIdle}}
	announced := report.Seen{Intent: &report.Intent{Present: idle}}
	excluded := func(m *clusterv1.Machine) {
		m.Annotations = map[string]string{v1alpha1.PreDrainHookAnnotation: "", clusterv1.ExcludeNodeDrainingAnnotation: ""}
	}
	const inIdle = "NodeMaintenance w1-1 in stage Idle selects the Node, and does not drain it in this stage."

	t.Run("K69: why machine says that a rollout announces the maintenance of a Node that will be replaced", func(t *testing.T) {
		g := NewWithT(t)
		why := report.MachineWhy(asked("", "", paused), announced)
		g.Expect(why.Answer).To(Equal("The Machine is not being deleted. " + inIdle))
		g.Expect(why.Problems).To(BeEmpty())
		g.Expect(why.Guide).To(BeEmpty(), "the manager reports nothing on such a Machine")
	})

	t.Run("K69: what skips the drain of a deletion does not skip the maintenance of a Machine that is not being deleted", func(t *testing.T) {
		g := NewWithT(t)
		node, m := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1", UID: "w1"}}, asked(metav1.ConditionTrue, v1alpha1.ReasonMachineCordoned, excluded)
		seen := report.Seen{Intent: &report.Intent{Present: idle}, Skip: machinedrain.SkipExcluded}
		g.Expect(report.MachineWhy(m, seen).Answer).To(Equal(condition))
		g.Expect(report.IntentOf(m, node, nil, nil, now).Waits).To(BeEmpty())
		isDeleted(m.Machine)
		g.Expect(report.IntentOf(m, node, nil, nil, now).Waits).To(Equal("The manager skips the drain: " + string(machinedrain.SkipExcluded) + "."))
	})

	t.Run("K36: why machine says what to do about a workload cluster that cannot be reached, and prints the condition beside another answer", func(t *testing.T) {
		g := NewWithT(t)
		why := report.MachineWhy(asked(metav1.ConditionFalse, v1alpha1.ReasonWaitingForWorkloadCluster, isHooked), unread)
		g.Expect(why.Problems).To(ConsistOf(And(
			HaveField("Fix", "Check the API server and the kubeconfig Secret of the Cluster."), HaveField("Guide", HaveSuffix("#the-workload-cluster-cant-be-reached")),
		)))
		var out bytes.Buffer
		report.WriteWhy(&out, report.MachineWhy(asked(metav1.ConditionFalse, v1alpha1.ReasonHookRemoved, isDeleted), report.Seen{}), now, terminal.Style{})
		g.Expect(out.String()).To(ContainSubstring("The hook is released"))
		g.Expect(out.String()).To(ContainSubstring("\n  The condition says why\n"))
	})

	t.Run("K37: why gives the age of the status of a condition, and not of its reason", func(t *testing.T) {
		var out bytes.Buffer
		report.WriteWhy(&out, report.MachineWhy(asked(metav1.ConditionFalse, v1alpha1.ReasonWaitingForVolumeDetach, isHooked), unread), now.Add(52*time.Minute),
			terminal.Style{})
		NewWithT(t).Expect(out.String()).To(ContainSubstring("  False for 52m, now WaitingForVolumeDetach\n"))
	})

	t.Run("K4: why node claims nothing of a Node and of NodeMaintenances that could not be read", func(t *testing.T) {
		g := NewWithT(t)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
		g.Expect(report.NodeWhy(report.Seen{Node: node, Unread: true}).Answer).To(HavePrefix("Whether a NodeMaintenance selects the Node is not known"))
		g.Expect(report.NodeWhy(report.Seen{Node: node}).Answer).To(Equal("No NodeMaintenance selects the Node. The Node could not be read."))
	})
}

func TestPodsThatWait(t *testing.T) {
	const nothing = "No NodeMaintenance drains the Node. In a drain, the Pod would be handled as described below."
	const waiting = "No NodeMaintenance drains the Node. The condition says why"
	for name, test := range map[string]struct {
		machine *observe.Machine
		unread  bool
		want    string
	}{
		"that a deleted Machine waits for other Machines": {asked(metav1.ConditionFalse, v1alpha1.ReasonWaitingForTurn, isHooked), false, waiting},
		"that a MachineDrainRule is invalid":              {asked(metav1.ConditionFalse, v1alpha1.ReasonInvalidDrainRule, isHooked), false, waiting},
		"that Cluster API drains the Node": {
			asked("", "", isDeleted), false,
			"No NodeMaintenance drains the Node. The Machine is being deleted without the hook of this provider: Cluster API drains the Node. Its condition Deleting " +
				"says what it waits for.",
		},
		"that nothing drains the Node":                   {asked("", ""), false, nothing},
		"what the Machine says without NodeMaintenances": {asked(metav1.ConditionFalse, v1alpha1.ReasonMachineDraining, isHooked), true, "The condition says why"},
		"that it is not known what drains the Node": {
			asked("", ""), true,
			"Whether a NodeMaintenance drains the Node is not known: the NodeMaintenances could not be read. A drain with these rules would handle the Pod as " +
				"described below.",
		},
	} {
		t.Run("K36: why pod answers "+name, func(t *testing.T) {
			g := NewWithT(t)
			node, _, observed := surging(2)
			intent := report.IntentOf(test.machine, node, nil, nil, now)
			observed.Maintenance = intent.Maintenance
			why, found := report.ExplainPod("shop", "web-abc-0", report.Seen{Intent: &intent, Observed: &observed, Unread: test.unread})
			g.Expect(found).To(BeTrue())
			g.Expect(why.Answer).To(Equal(test.want))
		})
	}

	t.Run("K36: why pod names a NodeMaintenance that does not drain the Node yet", func(t *testing.T) {
		g := NewWithT(t)
		node, _, observed := surging(2)
		cordons := v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "cordons"}}
		cordons.Spec.Stage, cordons.Spec.NodeSelector = v1alpha1.StageCordon, v1alpha1.SelectNodes(node.Name)
		intent := report.NodeIntentOf(node, []v1alpha1.NodeMaintenance{cordons})
		why, _ := report.ExplainPod("shop", "web-abc-0", report.Seen{Intent: &intent, Observed: &observed})
		g.Expect(why.Answer).To(Equal("No NodeMaintenance drains the Node. NodeMaintenance cordons in stage Cordon selects the Node, and " +
			"does not drain it in this stage."))
	})
}

func TestExplainPod(t *testing.T) {
	for name, test := range map[string]struct {
		paused  []report.Problem
		limit   int
		want    string
		problem string
	}{
		"says that the Pod is to be evacuated": {nil, 2, "The Pod is to be evacuated now.", ""},
		"says that the drain is suspended": {
			[]report.Problem{{Message: "The Machine is paused"}}, 2, "The drain is suspended: The Machine is paused.", "The Machine is paused",
		},
		"says for which Nodes the drain waits until it starts": {
			nil, 1, "The drain of the Node has not started. Waiting for Node first to be drained (maxParallelNodes allows 1).",
			"Waiting for Node first to be drained (maxParallelNodes allows 1)",
		},
	} {
		t.Run("K34: why "+name, func(t *testing.T) {
			node, intent, observed := surging(2)
			other := observed.Pods[0].DeepCopy()
			other.Name, other.UID, other.Spec.NodeName = "web-abc-1", "other", "first"
			observed.Pods = append(observed.Pods, *other)
			observed.Nodes = []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "first"}}, node}
			intent.Maintenance.Spec.MaxParallelNodes = ptr.To(intstr.FromInt(test.limit))
			intent.Present, intent.Paused = intent.Maintenance, test.paused
			g := NewWithT(t)
			why, found := report.ExplainPod("shop", "web-abc-0", report.Seen{Intent: &intent, Observed: &observed})
			g.Expect(found).To(BeTrue())
			g.Expect(why.Answer).To(Equal(test.want))
			if test.problem != "" {
				g.Expect(why.Problems).To(ContainElement(HaveField("Message", test.problem)))
			} else {
				g.Expect(why.Problems).To(BeEmpty())
			}
		})
	}

	t.Run("K56, K58, K59, K64: plan and why warn of what the drain costs, why pod only about the Pod", func(t *testing.T) {
		g := NewWithT(t)
		node, intent, observed := surging(2)
		observed.Pods[0].Annotations = map[string]string{"karpenter.sh/do-not-disrupt": "true"}
		bare := observed.Pods[0].DeepCopy()
		bare.Name, bare.UID, bare.OwnerReferences, bare.Annotations = "bare", "bare", nil, nil
		observed.Pods = append(observed.Pods, *bare)
		intent.Present = intent.Maintenance
		pod, found := report.ExplainPod("shop", "web-abc-0", report.Seen{Intent: &intent, Observed: &observed})
		g.Expect(found).To(BeTrue())
		notRecreated, refused := HaveField("Pods", []string{"shop/bare"}), And(HaveField("Object", "Deployment shop/web"), HaveField("Fix", Not(BeEmpty())))
		g.Expect(pod.Warnings).To(ConsistOf(refused))
		g.Expect(report.NodeDrain(node, intent, observed).Warnings).To(ConsistOf(notRecreated, refused))
		why := report.NodeWhy(report.Seen{Node: node, Intent: &intent, Observed: &observed})
		g.Expect(why.Warnings).To(ConsistOf(notRecreated, refused))
		cluster := forecast.NewCluster(nil, nil)
		cluster.Add(&observed.Pods[0])
		noPlace, last := HaveField("Kind", forecast.MayFindNoNode), HaveField("Kind", forecast.LastReady)
		read := report.Seen{Node: node, Intent: &intent, Observed: &observed, Cluster: cluster}
		g.Expect(report.NodeWhy(read).Warnings).To(ConsistOf(noPlace, last, notRecreated, refused))
		pod, _ = report.ExplainPod("shop", "web-abc-0", read)
		g.Expect(pod.Warnings).To(ConsistOf(noPlace, last, refused))
		var out bytes.Buffer
		why.WarningGaps = []string{"No right to list pods in c"}
		report.WriteWhy(&out, why, observed.Now, terminal.Style{})
		g.Expect(out.String()).To(ContainSubstring("\nNOT READ: warnings may be missing\n  No right to list pods in c\n"))
		g.Expect(out.String()).To(ContainSubstring("\n  Pod shop/bare: not recreated: there is no controller\n"))
	})
}

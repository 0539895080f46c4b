// Package report turns observations into reports, and reports into text. It reads nothing and decides nothing: decisions are those of
// drain/.
package report

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Intent is the NodeMaintenance that the deletion of a Machine, or a manual drain, leads to.
type Intent struct {
	// Maintenance is in stage Drain. Then is the update that drains the Pods of DaemonSets after all others, or nil.
	Maintenance, Then *v1alpha1.NodeMaintenance
	// Present is the one that exists, or nil.
	Present *v1alpha1.NodeMaintenance
	// Policy is nil if the manager does not drain the Machine.
	Policy *v1alpha1.MachineDrainPolicy
	// Problems are invalid MachineDrainRules that select the Machine.
	Problems []rules.Problem
	// Taken is the message that another NodeMaintenance has the name. It is empty if none has.
	Taken string
	// Turn is the place of the Machine among those that drain or wait.
	Turn machinedrain.Turn
	// Paused are what keeps the manager from reconciling the Machine.
	Paused []Problem
	// InPlace means that the drain is one without the deletion of the Machine.
	InPlace bool
	// Waits says why no NodeMaintenance drains the Node yet. It is empty if nothing requests a maintenance.
	Waits string
}

// Drains reports whether the NodeMaintenance exists and drains the Node.
func (i Intent) Drains() bool { return i.Present != nil && i.Present.Drains() }

// IntentOf returns what the manager would request for a deleted Machine. nodes are those of TurnNodes that were read, nil for one that does
// not exist.
func IntentOf(m *observe.Machine, node *corev1.Node, maintenances []v1alpha1.NodeMaintenance, nodes map[string]*corev1.Node, now time.Time) Intent {
	intent := Intent{Policy: m.Policy(), Paused: pauses(m)}
	node = withUID(m, node, maintenances)
	named := map[string]*v1alpha1.NodeMaintenance{}
	for i := range maintenances {
		named[maintenances[i].Name] = &maintenances[i]
	}
	id := machinedrain.Identity{Cluster: m.ClusterKey(), Machine: m.Machine, Node: node}
	found := id.Find(named)
	if found.Maintenance == nil {
		found = id.FindAmong(maintenances, found)
	}
	intent.Taken, intent.Present = found.TakenMessage(), found.Maintenance
	if intent.Present != nil && intent.Present.Spec.Stage == v1alpha1.StageComplete {
		intent.Present = nil // it is deleted and recreated
	}
	request := machinedrain.Request{Cluster: m.ClusterKey(), Machine: m.Machine, Node: node, Policy: intent.Policy, Name: found.Name, Stage: v1alpha1.StageDrain}
	if intent.isOfClusterAPI(m) {
		request.Policy = drainOfClusterAPI
	}
	compiled := machinedrain.CompileRules(m.Cluster, m.Machine, machinedrain.DaemonSetPods(intent.Policy, intent.Present), m.Rules)
	request.Rules, intent.Problems = compiled.Rules, compiled.Problems
	intent.Maintenance = desired(intent.Present, request, len(intent.Problems) > 0)
	if machinedrain.DrainsDaemonSets(intent.Policy) && !machinedrain.DaemonSetRuleLifted(intent.Maintenance) && !rules.Unreachable(node) {
		request.Rules = machinedrain.CompileRules(m.Cluster, m.Machine, v1alpha1.DaemonSetPodsDrain, m.Rules).Rules
		intent.Then = desired(intent.Maintenance, request, len(intent.Problems) > 0)
	}
	intent.Turn = turnOf(m, node, intent, maintenances, nodes, now)
	intent.Waits = waits(m, node, intent)
	return intent
}

// isOfClusterAPI reports whether Cluster API drains the Node, and not this provider.
func (i Intent) isOfClusterAPI(m *observe.Machine) bool {
	return i.Policy == nil && i.Present == nil && !machinedrain.HasHook(m.Machine)
}

// drainOfClusterAPI makes the drain of this provider one that decides as Cluster API's about each Pod: no evacuator delays it.
var drainOfClusterAPI = &v1alpha1.MachineDrainPolicy{
	Spec: v1alpha1.MachineDrainPolicySpec{SharedEvacuationPolicy: v1alpha1.SharedEvacuationPolicy{
		StatefulSetPods: v1alpha1.StatefulSetPodsUnordered, Evacuators: v1alpha1.EvacuatorsBuiltIn,
	}},
}

// withUID returns a Node that was not read with the UID in the NodeMaintenance of its Machine, if there is one.
func withUID(m *observe.Machine, node *corev1.Node, maintenances []v1alpha1.NodeMaintenance) *corev1.Node {
	if !observe.IsUnread(node) {
		return node
	}
	for i := range maintenances {
		machine, served := machinedrain.OwnerMachineOfAnyManager(&maintenances[i], m.ClusterKey())
		if served && machine.Name == m.Name && observe.Selects(&maintenances[i], node) {
			node = node.DeepCopy()
			node.UID = types.UID(maintenances[i].Annotations[v1alpha1.NodeUIDAnnotation])
		}
	}
	return node
}

// waits says why no NodeMaintenance drains the Node of a Machine whose maintenance is requested. It is empty if none is.
func waits(m *observe.Machine, node *corev1.Node, intent Intent) string {
	if intent.Drains() {
		return ""
	}
	seen := Seen{Node: node, Intent: &intent, Skip: machinedrain.SkipNode(node)}
	if machinedrain.HasHook(m.Machine) {
		seen.Skip = cmp.Or(machinedrain.Skip(m.Facts), seen.Skip)
	}
	if answer, requested := machineAnswer(m, seen); requested {
		return answer
	}
	if intent.Present != nil {
		return notDraining(intent.Present)
	}
	return ""
}

// notDraining says that a NodeMaintenance of a Node is in a stage that does not drain it.
func notDraining(m *v1alpha1.NodeMaintenance) string {
	return "NodeMaintenance " + m.Name + " in stage " + string(m.Spec.Stage) + " selects the Node, and does not drain it in this stage."
}

// desired returns the present NodeMaintenance with the updates that the manager would make, or a new one. With invalid rules, a drain
// continues with the present ones.
func desired(present *v1alpha1.NodeMaintenance, request machinedrain.Request, invalid bool) *v1alpha1.NodeMaintenance {
	wanted := machinedrain.Maintenance(request)
	if present == nil {
		return wanted
	}
	updated := present.DeepCopy()
	if invalid {
		wanted.Spec.DrainRules = present.Spec.DrainRules
	}
	machinedrain.Update(updated, wanted)
	return updated
}

// TurnNodes returns the names of the Nodes that decide when maxParallelDrains permits the drain of a Machine: those of the Machines of the
// Cluster whose drains were requested, the oldest requests first.
func TurnNodes(m *observe.Machine, node *corev1.Node, now time.Time) []string {
	if !machinedrain.NeedsTurn(m.Machine, m.Policy(), node, nil, now) {
		return nil
	}
	requested := machinedrain.RequestedDrains(m.Siblings)
	slices.SortFunc(requested, machinedrain.OldestRequestFirst)
	var names []string
	for _, sibling := range requested {
		if sibling.Name != m.Name && sibling.Status.NodeRef.IsDefined() {
			names = append(names, sibling.Status.NodeRef.Name)
		}
	}
	return names
}

// turnOf returns the place of a Machine, as if it was deleted now. nodes are those of TurnNodes that were read, nil for one that does not
// exist.
func turnOf(m *observe.Machine, node *corev1.Node, intent Intent, maintenances []v1alpha1.NodeMaintenance, nodes map[string]*corev1.Node,
	now time.Time,
) machinedrain.Turn {
	if !machinedrain.NeedsTurn(m.Machine, intent.Policy, node, intent.Present, now) {
		return machinedrain.Turn{}
	}
	draining, isServed := map[types.NamespacedName]*v1alpha1.NodeMaintenance{}, map[types.NamespacedName]bool{}
	for i := range maintenances {
		machine, ok := machinedrain.OwnerMachineOfAnyManager(&maintenances[i], m.ClusterKey())
		if isServed[machine] = isServed[machine] || ok; ok && maintenances[i].Spec.Stage == v1alpha1.StageDrain {
			draining[machine] = &maintenances[i]
		}
	}
	hasInvalidRules := func(machine *clusterv1.Machine) bool {
		return len(machinedrain.CompileRules(m.Cluster, machine, v1alpha1.DaemonSetPodsSkip, m.Rules).Problems) > 0
	}
	self := machinedrain.ContenderOf(m.Machine).On(node)
	if hasInvalidRules(m.Machine) {
		self.Standing = machinedrain.AwaitsRules
	}
	if self.Requested.IsZero() {
		self.Requested = now
	}
	all, workers, _ := machinedrain.Contenders(m.Siblings, now, func(sibling *clusterv1.Machine) (machinedrain.ObservedDrain, error) {
		key := types.NamespacedName{Namespace: sibling.Namespace, Name: sibling.Name}
		observed := machinedrain.ObservedDrain{Maintenance: draining[key]}
		if drain := observed.Maintenance; drain != nil && !drain.IsDrained() { // the rest of the progress is not known
			last := ptr.Deref(drain.Status.Summary.LastProgressTime, metav1.Time{}).Time
			observed.Progress = machinedrain.Progress{Last: last, Observed: last}
		}
		var known bool
		if observed.Node, known = nodes[sibling.Status.NodeRef.Name]; !known && (isServed[key] || mayHaveNode(sibling)) {
			observed.Node = &corev1.Node{} // assumed to be reachable
		}
		observed.Policy = machinedrain.PolicyFor(sibling, m.Cluster.Labels, m.Policies).Settings(sibling)
		observed.HasInvalidRules, observed.IsBlocked = hasInvalidRules(sibling), machinedrain.IsReportedBlocked(sibling)
		observed.IsHeld = machinedrain.IsReportedHeld(sibling) || !machinedrain.WantsDrain(sibling, observed.Policy)
		return observed, nil
	})
	self = self.Under(machinedrain.LimitOf(m.Machine, intent.Policy), workers)
	all = append(all, machinedrain.Replacing(intent.Policy, m.Cluster.Name, nil, all, now)...)
	turn := machinedrain.TurnOf(self, all, self.Limit, now)
	turn.Settles = time.Time{} // for others that are deleted, or whose hooks are removed, in the same second
	return turn
}

// mayHaveNode reports whether a Machine names its Node, or has been deleted and has a provider ID, which may name one.
func mayHaveNode(m *clusterv1.Machine) bool {
	return m.Status.NodeRef.IsDefined() || !m.DeletionTimestamp.IsZero() && m.Spec.ProviderID != ""
}

// NodeIntentOf returns the present intent to drain a Node, where a NodeMaintenance in stage Drain selects it, or else that of a manual
// drain.
func NodeIntentOf(node *corev1.Node, maintenances []v1alpha1.NodeMaintenance) Intent {
	for i := range maintenances {
		if m := &maintenances[i]; m.Drains() && observe.Selects(m, node) {
			return Intent{Maintenance: m, Present: m}
		}
	}
	intent := ManualIntent(node, maintenances)
	for i := range maintenances {
		if m := &maintenances[i]; m.Spec.Stage != v1alpha1.StageComplete && observe.Selects(m, node) {
			intent.Waits = notDraining(m)
		}
	}
	return intent
}

// ManualIntent returns the NodeMaintenance that the command drain creates for a Node, or the present one of that name. Its rules are the
// built-in ones.
func ManualIntent(node *corev1.Node, maintenances []v1alpha1.NodeMaintenance) Intent {
	name := ManualName(node)
	for i := range maintenances {
		if maintenances[i].Name == name && maintenances[i].Spec.Stage != v1alpha1.StageComplete {
			present := maintenances[i].DeepCopy()
			updated := present.DeepCopy()
			updated.Spec.Stage = v1alpha1.StageDrain
			return Intent{Maintenance: updated, Present: present}
		}
	}
	m := &v1alpha1.NodeMaintenance{}
	m.Name = name
	m.Spec.NodeSelector = v1alpha1.SelectNodes(node.Name)
	m.Spec.Stage = v1alpha1.StageDrain
	m.Spec.DrainRules = rules.Compile(rules.Input{}).Rules
	m.Spec.DrainPlanDefaults = v1alpha1.DrainPlanDefaultsPriorityTiers
	return Intent{Maintenance: m}
}

// ManualName returns the name of the NodeMaintenance that the plugin creates for a Node. The name of the Node may be as long as that of any
// object, and others may begin with the same characters.
func ManualName(node *corev1.Node) string {
	const prefix = "kubectl-"
	name := prefix + cmp.Or(node.Name, "node")
	if len(name) > validation.DNS1123SubdomainMaxLength {
		hash := fmt.Sprintf("-%x", sha256.Sum256([]byte(node.Name)))[:9]
		name = strings.TrimRight(name[:validation.DNS1123SubdomainMaxLength-len(hash)], ".-") + hash
	}
	return name
}

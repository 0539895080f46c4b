package machinedrain

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/labels/format"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// PolicySelection says which policy selects a Machine. At most one field is set. If none is, no policy does, and Cluster API drains the
// Machine.
type PolicySelection struct {
	// Policy is the policy that the Machine follows.
	Policy *v1alpha1.MachineDrainPolicy
	// Undecided is set instead of Policy if it is not known whether this policy selects the Machine, because one of its selectors is invalid.
	// The Machine then keeps the hook if it has it, and does not get it otherwise.
	Undecided *v1alpha1.MachineDrainPolicy
	// Unread is the name of a policy that may select the Machine and cannot be read. Not even its settings are known, so the Machine waits.
	Unread string
}

// PolicyFor is Policies.For, for one Machine.
func PolicyFor(machine *clusterv1.Machine, clusterLabels map[string]string, policies []v1alpha1.MachineDrainPolicy, unread ...string) PolicySelection {
	return ParsePolicies(policies).For(machine, clusterLabels, unread...)
}

// Policies are the policies of a namespace with parsed selectors. To parse them takes much longer than the decision about a Machine.
type Policies []parsedPolicy

type parsedPolicy struct {
	*v1alpha1.MachineDrainPolicy
	clusters, machines func(labels map[string]string) match
}

// ParsePolicies parses the selectors of policies, which must not change afterwards.
func ParsePolicies(policies []v1alpha1.MachineDrainPolicy) Policies {
	parsed := make(Policies, 0, len(policies))
	for i := range policies {
		spec := &policies[i].Spec
		parsed = append(parsed, parsedPolicy{&policies[i], parseSelector(spec.ClusterSelector), parseSelector(spec.MachineSelector)})
	}
	return parsed
}

// For returns the policy that a Machine follows: the first by name, in the Machine's namespace, that selects its Cluster and the
// Machine. A policy with an invalid selector selects no Machine. If no other policy selects the Machine, the first one by name that might
// is undecided. unread are the names of the policies of the namespace that cannot be read. Each may select the Machine, unless the policy
// that it follows comes first by name.
func (p Policies) For(machine *clusterv1.Machine, clusterLabels map[string]string, unread ...string) PolicySelection {
	var selection PolicySelection
	mayPrecede := sets.New(unread...)
	for _, policy := range p {
		if policy.Namespace != machine.Namespace || !policy.DeletionTimestamp.IsZero() {
			continue
		}
		mayPrecede.Delete(policy.Name) // it has just been fixed
		switch min(policy.clusters(clusterLabels), policy.machines(machine.Labels)) {
		case matches:
			selection.Policy = firstByName(selection.Policy, policy.MachineDrainPolicy)
		case mayMatch:
			selection.Undecided = firstByName(selection.Undecided, policy.MachineDrainPolicy)
		case matchesNot:
		}
	}
	for _, name := range sets.List(mayPrecede) {
		if selection.Policy == nil || name < selection.Policy.Name {
			return PolicySelection{Unread: name}
		}
	}
	if selection.Policy != nil {
		selection.Undecided = nil
	}
	return selection
}

// Settings returns the policy whose settings apply to the maintenance of a Machine's Node, or nil. A Machine that has the hook has been
// selected before. By which policy is not recorded, so an undecided policy applies to it.
func (s PolicySelection) Settings(machine *clusterv1.Machine) *v1alpha1.MachineDrainPolicy {
	if s.Policy == nil && HasHook(machine) {
		return s.Undecided
	}
	return s.Policy
}

func firstByName(a, b *v1alpha1.MachineDrainPolicy) *v1alpha1.MachineDrainPolicy {
	if a != nil && a.Name < b.Name {
		return a
	}
	return b
}

// UndecidedMessage says that the settings of an undecided policy apply.
func UndecidedMessage(policy *v1alpha1.MachineDrainPolicy) string {
	return "It is not known whether MachineDrainPolicy " + policy.Name +
		" selects the Machine, because a selector of the policy is invalid. Its settings apply until it is fixed"
}

// PolicySelectsCluster reports whether Machines of a Cluster with these labels may follow the policy. An invalid clusterSelector selects
// none.
func PolicySelectsCluster(policy *v1alpha1.MachineDrainPolicy, clusterLabels map[string]string) bool {
	return matchOf(policy.Spec.ClusterSelector, clusterLabels) == matches
}

// PolicyMaySelectCluster is like PolicySelectsCluster, and also true if that is not known, because the clusterSelector is invalid.
func PolicyMaySelectCluster(policy *v1alpha1.MachineDrainPolicy, clusterLabels map[string]string) bool {
	return matchOf(policy.Spec.ClusterSelector, clusterLabels) != matchesNot
}

// WantsNodeAgent reports whether one of the policies of a namespace enables the node agent in a Cluster. If that is not known, undecided
// says why; otherwise it is empty. unread are the names of the policies of the namespace that cannot be read, each of which may enable it.
// A policy that is being deleted does not count.
func WantsNodeAgent(policies []v1alpha1.MachineDrainPolicy, clusterLabels map[string]string, unread ...string) (wanted bool, undecided string) {
	var invalid []string
	for i := range policies {
		policy := &policies[i]
		switch matched := matchOf(policy.Spec.ClusterSelector, clusterLabels); {
		case policy.Spec.NodeAgent != v1alpha1.NodeAgentEnabled, policy.DeletionTimestamp != nil:
		case matched == matches:
			return true, ""
		case matched == mayMatch:
			invalid = append(invalid, policy.Name)
		}
	}
	unread = slices.DeleteFunc(slices.Clone(unread), func(name string) bool { // it was just fixed
		return slices.ContainsFunc(policies, func(policy v1alpha1.MachineDrainPolicy) bool { return policy.Name == name })
	})
	switch {
	case len(invalid) > 0:
		return false, fmt.Sprintf("the clusterSelector of MachineDrainPolicy %s is invalid", slices.Min(invalid))
	case len(unread) > 0:
		return false, fmt.Sprintf("MachineDrainPolicy %s cannot be decoded", slices.Min(unread))
	default:
		return false, ""
	}
}

// match says whether a selector matches. The values are ordered: the minimum decides for several requirements, all of which must match.
type match int

const (
	matchesNot match = iota
	mayMatch         // the selector is invalid
	matches
)

// matchOf evaluates a selector, see parseSelector.
func matchOf(selector *v1alpha1.LabelSelector, set map[string]string) match {
	return parseSelector(selector)(set)
}

// parseSelector returns a function that evaluates a selector. An absent or empty selector matches everything. Of an invalid one, it
// evaluates the requirements that are valid.
func parseSelector(selector *v1alpha1.LabelSelector) func(map[string]string) match {
	if selector == nil {
		return func(map[string]string) match { return matches }
	}
	core := selector.Core()
	if parsed, err := metav1.LabelSelectorAsSelector(core); err == nil {
		return func(set map[string]string) match { return known(parsed.Matches(labels.Set(set))) }
	}
	requirements := core.MatchExpressions
	for key, value := range core.MatchLabels {
		requirements = append(requirements, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{value}})
	}
	var valid []labels.Selector
	for _, requirement := range requirements {
		single := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{requirement}}
		if parsed, err := metav1.LabelSelectorAsSelector(single); err == nil {
			valid = append(valid, parsed)
		}
	}
	return func(set map[string]string) match {
		if slices.ContainsFunc(valid, func(each labels.Selector) bool { return !each.Matches(labels.Set(set)) }) {
			return matchesNot
		}
		return mayMatch
	}
}

func known(isMatch bool) match {
	if isMatch {
		return matches
	}
	return matchesNot
}

// SelectorsCondition returns the condition of a policy about invalid selectors, nil if all of them are valid.
func SelectorsCondition(policy *v1alpha1.MachineDrainPolicy) *metav1.Condition {
	var problems []string
	check := func(selector *v1alpha1.LabelSelector, effect, field string, args ...any) {
		if _, err := metav1.LabelSelectorAsSelector(selector.Core()); err != nil {
			problems = append(problems, fmt.Sprintf(field, args...)+" is invalid, "+effect+": "+text.Cut(err.Error(), text.MaxMessage))
		}
	}
	const undecided = "so hooks are neither set nor removed for the Machines that it may select"
	check(policy.Spec.ClusterSelector, undecided, "clusterSelector")
	check(policy.Spec.MachineSelector, undecided, "machineSelector")
	for i := range policy.Spec.DrainPlan {
		check(policy.Spec.DrainPlan[i].PodSelector, "so the entry selects no Pod", "drainPlan[%d].podSelector", i)
	}
	if len(problems) == 0 {
		return nil
	}
	return &metav1.Condition{
		Type: v1alpha1.MachineDrainPolicySelectorsValid, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonInvalidSelector, ObservedGeneration: policy.Generation,
		Message: strings.Join(problems[:min(len(problems), maxSelectorProblems)], "\n"),
	}
}

// StalledCondition returns the condition Stalled of a policy, nil if its selectors are valid.
func StalledCondition(policy *v1alpha1.MachineDrainPolicy) *metav1.Condition {
	condition := SelectorsCondition(policy)
	if condition != nil {
		condition.Type, condition.Status = v1alpha1.MachineDrainPolicyStalled, metav1.ConditionTrue
	}
	return condition
}

// maxSelectorProblems is the maximum number of invalid selectors that a condition names.
const maxSelectorProblems = 5

// Tally counts what follows a policy.
type Tally struct {
	Clusters, Machines int32
	// Draining are the Machines that are being drained, the oldest deletion first.
	Draining []*clusterv1.Machine
}

// TallyOf counts the Machines that follow a policy. policies are all policies of its namespace, because a Machine follows the first by
// name; clusters are the labels of the namespace's Clusters, by name.
func TallyOf(policy *v1alpha1.MachineDrainPolicy, policies []v1alpha1.MachineDrainPolicy, all []clusterv1.Machine,
	clusters map[string]map[string]string,
) Tally {
	tally, seen, parsed := Tally{}, sets.New[string](), ParsePolicies(policies)
	for i := range all {
		machine := &all[i]
		labels, known := clusters[machine.Spec.ClusterName]
		if !known {
			continue
		}
		if follows := parsed.For(machine, labels).Settings(machine); follows == nil || follows.Name != policy.Name {
			continue
		}
		seen.Insert(machine.Spec.ClusterName)
		tally.Machines++
		if IsDraining(machine) {
			tally.Draining = append(tally.Draining, machine)
		}
	}
	slices.SortFunc(tally.Draining, OldestRequestFirst)
	tally.Clusters = int32(seen.Len()) //nolint:gosec // bounded by the number of Clusters
	return tally
}

// maxPools is the maximum number of MachinePools that a condition names.
const maxPools = 5

// PoolsCondition returns the condition of a policy about MachinePools that have Nodes and no Machines, nil if no Cluster
// that it selects has one. clusters are the labels of the namespace's Clusters, by name.
func PoolsCondition(policy *v1alpha1.MachineDrainPolicy, pools []clusterv1.MachinePool, all []clusterv1.Machine,
	clusters map[string]map[string]string,
) *metav1.Condition {
	withMachines := sets.New[string]()
	for i := range all {
		withMachines.Insert(all[i].Labels[clusterv1.MachinePoolNameLabel])
	}
	var without []string
	for i := range pools {
		pool := &pools[i]
		labels, known := clusters[pool.Spec.ClusterName]
		if known && PolicySelectsCluster(policy, labels) && len(pool.Status.NodeRefs) > 0 && !withMachines.Has(format.MustFormatValue(pool.Name)) {
			without = append(without, pool.Name)
		}
	}
	if len(without) == 0 {
		return nil
	}
	slices.Sort(without)
	return &metav1.Condition{
		Type: v1alpha1.MachineDrainPolicyMachinePoolsManaged, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoMachines, ObservedGeneration: policy.Generation,
		Message: "The infrastructure provider creates no Machines for MachinePools: " + text.List(without, maxPools) +
			". Their Nodes are not drained when the provider deletes them",
	}
}

const (
	// MaxWaits is the maximum number of blocked drains in the status of a policy.
	MaxWaits = 5
	// maxWaitLines is the maximum number of blockers of each, and maxWaitText the maximum length of their text, in characters.
	maxWaitLines = 3
	maxWaitText  = 1024
)

// NeedsBlockers reports whether WaitOf needs the blockers of a Machine's NodeMaintenance.
func NeedsBlockers(machine *clusterv1.Machine) bool {
	condition := meta.FindStatusCondition(machine.Status.Conditions, v1alpha1.MachineNodeMaintenance)
	return condition != nil && (condition.Reason == v1alpha1.ReasonMachineDraining || condition.Reason == v1alpha1.ReasonCordonFailed ||
		condition.Reason == v1alpha1.ReasonReconcileFailed)
}

// WaitOf returns what the drain of a Machine waits for: the blockers of its NodeMaintenance, or the condition of the Machine if the drain
// waits for something else. It returns nil if nothing blocks the drain. The progress of the drain is left out, because it changes often.
func WaitOf(machine *clusterv1.Machine, blockers []string) *v1alpha1.DrainWait {
	condition := meta.FindStatusCondition(machine.Status.Conditions, v1alpha1.MachineNodeMaintenance)
	if condition == nil || condition.Status != metav1.ConditionFalse || RequestedAt(machine) == nil {
		return nil
	}
	message := condition.Message
	switch {
	case len(blockers) > 0:
		message = strings.Join(blockers[:min(len(blockers), maxWaitLines)], "\n")
	case condition.Reason == v1alpha1.ReasonMachineDraining || message == "":
		return nil
	}
	return &v1alpha1.DrainWait{
		Machine: machine.Name, Cluster: machine.Spec.ClusterName, Since: metav1.NewTime(*RequestedAt(machine)), Reason: condition.Reason,
		Message: text.Cut(message, maxWaitText),
	}
}

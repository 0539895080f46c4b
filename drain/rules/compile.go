package rules

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Names of the rules that are built in, and the prefix of those that come from MachineDrainRules.
const (
	RuleStaticPods              = "static-pods"
	RuleDaemonSetPods           = "daemonset-pods"
	RuleNodeAgent               = "node-agent"
	RuleDrainLabelSkip          = "drain-label-skip"
	RuleDrainLabelWaitCompleted = "drain-label-wait-completed"
	MachineDrainRulePrefix      = "machine-drain-rule/"

	// RuleTooManyRules and RuleTooLarge name the Problems that are about the list as a whole.
	RuleTooManyRules = "too-many-rules"
	RuleTooLarge     = "too-large"
)

// Limits of NodeMaintenance.spec.drainRules. The first three are in its schema.
const (
	MaxRules    = 256
	MaxEntries  = 32
	MaxRuleName = 320

	// MaxRulesBytes is what the compiled rules may take as JSON. An object in etcd has 1.5 MB; most of that is for the
	// status. Without the limit a large list of rules would make every write of the NodeMaintenance fail, with an error
	// that names no rule.
	MaxRulesBytes = 256 * 1024
)

// How the pods of the node agent are recognized.
const (
	nodeAgentLabel     = "app.kubernetes.io/name"
	nodeAgentName      = "capnm-node-agent"
	nodeAgentNamespace = "capnm-system"
)

// ClusterFacts is what rules look at in a Cluster.
type ClusterFacts struct {
	Labels map[string]string
}

// MachineFacts is what rules look at in a Machine.
type MachineFacts struct {
	Namespace string
	Labels    map[string]string
}

// Input is all that decides about the rules of one Machine's drain.
type Input struct {
	Cluster       ClusterFacts
	Machine       MachineFacts
	DaemonSetPods v1alpha1.DaemonSetPodsPolicy // anything but Drain means Skip

	// MachineDrainRules of any namespace, in any order.
	MachineDrainRules []clusterv1.MachineDrainRule
}

// Problem is a rule that can't be used, and why.
type Problem struct {
	Rule    string
	Message string
}

func (p Problem) String() string { return p.Rule + ": " + p.Message }

// Compiled is the answer of Compile. It shares no memory with the input.
type Compiled struct {
	// Rules fit into NodeMaintenance.spec.drainRules. While there are Problems they are incomplete: a drain that goes by
	// them could evict what a broken rule protects.
	Rules []v1alpha1.DrainRule

	// Problems are rules that select the Machine, or may select it, and can't be compiled. The drain waits until they
	// are mended (M6). Sorted by rule.
	Problems []Problem
}

// Compile writes the ordered list of rules for the drain of one Machine (M1). It takes time proportional to the size of
// its input, plus sorting.
func Compile(in Input) Compiled {
	compiled := Compiled{Rules: builtInRules(in.DaemonSetPods)}
	for _, mdr := range sortedByName(in.MachineDrainRules, in.Machine.Namespace) {
		selects := selectsMachine(mdr, in.Machine, in.Cluster)
		if selects.truth == no {
			continue // whatever is wrong with it is not this Machine's business (M6)
		}
		rule, err := compileMachineDrainRule(mdr)
		switch {
		case selects.truth == unknown:
			compiled.addProblem(mdr.Name, "it may select this Machine: "+selects.missing)
		case err != nil:
			compiled.addProblem(mdr.Name, err.Error())
		default:
			compiled.Rules = append(compiled.Rules, rule)
		}
	}
	compiled.limit()
	return compiled
}

// builtInRules are the rules that come before all MachineDrainRules.
func builtInRules(daemonSetPods v1alpha1.DaemonSetPodsPolicy) []v1alpha1.DrainRule {
	rules := []v1alpha1.DrainRule{skip(RuleStaticPods, v1alpha1.DrainRulePodSelector{PodType: v1alpha1.PodTypeStatic})}
	if daemonSetPods != v1alpha1.DaemonSetPodsDrain {
		rules = append(rules, skip(RuleDaemonSetPods, v1alpha1.DrainRulePodSelector{PodType: v1alpha1.PodTypeDaemonSet}))
	}
	return append(append(rules, SkipNodeAgent()), drainLabelRules()...)
}

// drainLabelRules do what the drain label of a Pod asks for. Pods of DaemonSets and static Pods never complete, so wait-completed
// has no effect on them: waiting for one would never end.
func drainLabelRules() []v1alpha1.DrainRule {
	return []v1alpha1.DrainRule{
		skip(RuleDrainLabelSkip, v1alpha1.DrainRulePodSelector{DrainLabel: v1alpha1.DrainBehaviorSkip}),
		{
			Name:     RuleDrainLabelWaitCompleted,
			Behavior: v1alpha1.DrainBehaviorWaitCompleted,
			Pods:     []v1alpha1.DrainRulePodSelector{{DrainLabel: v1alpha1.DrainBehaviorWaitCompleted, PodType: v1alpha1.PodTypeDefault}},
		},
	}
}

// InEffect returns the rules by which a NodeMaintenance decides: those of its spec and, where it honors drain labels, before them
// the built-in rules for drain labels that the spec does not have. The compiled rules of a Machine have them.
func InEffect(spec *v1alpha1.NodeMaintenanceSpec) []v1alpha1.DrainRule {
	if spec.DrainLabelPolicy == v1alpha1.DrainLabelPolicyIgnore {
		return spec.DrainRules
	}
	missing := slices.DeleteFunc(drainLabelRules(), func(builtIn v1alpha1.DrainRule) bool {
		return slices.ContainsFunc(spec.DrainRules, func(rule v1alpha1.DrainRule) bool { return rule.Name == builtIn.Name })
	})
	return append(missing, spec.DrainRules...)
}

// IsNodeAgent says whether a Pod is that of a node agent.
func IsNodeAgent(pod *corev1.Pod) bool {
	return pod.Namespace == nodeAgentNamespace && pod.Labels[nodeAgentLabel] == nodeAgentName
}

// SkipNodeAgent leaves the node agent on its Node: it must outlive the drain.
func SkipNodeAgent() v1alpha1.DrainRule {
	return skip(RuleNodeAgent, v1alpha1.DrainRulePodSelector{
		Selector:          &metav1.LabelSelector{MatchLabels: map[string]string{nodeAgentLabel: nodeAgentName}},
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: nodeAgentNamespace}},
	})
}

func skip(name string, pods v1alpha1.DrainRulePodSelector) v1alpha1.DrainRule {
	return v1alpha1.DrainRule{Name: name, Behavior: v1alpha1.DrainBehaviorSkip, Pods: []v1alpha1.DrainRulePodSelector{pods}}
}

// sortedByName returns the rules of one namespace in alphabetical order, which is the order of precedence (M3).
func sortedByName(all []clusterv1.MachineDrainRule, namespace string) []*clusterv1.MachineDrainRule {
	var rules []*clusterv1.MachineDrainRule
	for i := range all {
		if all[i].Namespace == namespace {
			rules = append(rules, &all[i])
		}
	}
	slices.SortStableFunc(rules, func(a, b *clusterv1.MachineDrainRule) int { return strings.Compare(a.Name, b.Name) })
	return rules
}

func (c *Compiled) addProblem(machineDrainRule, message string) {
	c.Problems = append(c.Problems, Problem{Rule: MachineDrainRulePrefix + machineDrainRule, Message: text.Cut(message, text.MaxMessage)})
}

// limit cuts the list to what a NodeMaintenance holds, and says so (M6).
func (c *Compiled) limit() {
	if n := len(c.Rules); n > MaxRules {
		c.Rules = c.Rules[:MaxRules]
		c.Problems = append(c.Problems, Problem{Rule: RuleTooManyRules, Message: fmt.Sprintf(
			"%d drain rules apply to this Machine, %d of them built in; a NodeMaintenance holds %d",
			n, countBuiltIn(c.Rules), MaxRules)})
	}
	total, fit := 0, len(c.Rules)
	for i := range c.Rules {
		total += jsonSize(c.Rules[i])
		if total > MaxRulesBytes {
			fit = min(fit, i)
		}
	}
	if fit < len(c.Rules) {
		c.Rules = c.Rules[:fit]
		c.Problems = append(c.Problems, Problem{Rule: RuleTooLarge, Message: fmt.Sprintf(
			"the drain rules that apply to this Machine take %d bytes; a NodeMaintenance holds %d", total, MaxRulesBytes)})
	}
}

func countBuiltIn(rules []v1alpha1.DrainRule) int {
	n := slices.IndexFunc(rules, func(r v1alpha1.DrainRule) bool { return strings.HasPrefix(r.Name, MachineDrainRulePrefix) })
	if n < 0 {
		return len(rules)
	}
	return n
}

func jsonSize(rule v1alpha1.DrainRule) int {
	data, err := json.Marshal(rule)
	if err != nil { // strings, numbers and slices of them always marshal
		return MaxRulesBytes + 1
	}
	return len(data)
}

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

// Names of the built-in rules, and the prefix of the rules of MachineDrainRules.
const (
	RuleStaticPods              = "static-pods"
	RuleDaemonSetPods           = "daemonset-pods"
	RuleNodeAgent               = "node-agent"
	RuleDrainLabelSkip          = "drain-label-skip"
	RuleDrainLabelWaitCompleted = "drain-label-wait-completed"
	MachineDrainRulePrefix      = "machine-drain-rule/"

	// RuleTooManyRules and RuleTooLarge name the Problems of the list as a whole.
	RuleTooManyRules = "too-many-rules"
	RuleTooLarge     = "too-large"
)

// Limits of NodeMaintenance.spec.drainRules. The first three are in its schema.
const (
	MaxRules    = 256
	MaxEntries  = 32
	MaxRuleName = 320

	// MaxRulesBytes is the maximum size of the compiled rules as JSON. An object in etcd has at most 1.5 MB, most of which the status
	// needs. Without this limit, a large list of rules would make each write of the NodeMaintenance fail with an error that names no rule.
	MaxRulesBytes = 256 * 1024
)

// NodeAgentNamespace is the Namespace of the node agent. It contains no other Pods.
const NodeAgentNamespace = "capnm-node-agent"

// Label of the Pods of the node agent.
const (
	nodeAgentLabel = "app.kubernetes.io/name"
	nodeAgentName  = "capnm-node-agent"
)

// ClusterFacts are the properties of a Cluster that rules match.
type ClusterFacts struct {
	Labels map[string]string
}

// MachineFacts are the properties of a Machine that rules match.
type MachineFacts struct {
	Namespace string
	Labels    map[string]string
}

// Input is the input of Compile.
type Input struct {
	Cluster       ClusterFacts
	Machine       MachineFacts
	DaemonSetPods v1alpha1.DaemonSetPodsPolicy // anything but Drain means Skip

	// MachineDrainRules of any namespace, in any order.
	MachineDrainRules []clusterv1.MachineDrainRule
}

// Problem is an invalid rule, and why it is invalid.
type Problem struct {
	Rule    string
	Message string
}

func (p Problem) String() string { return p.Rule + ": " + p.Message }

// Compiled is the result of Compile. It shares no memory with the input.
type Compiled struct {
	// Rules fit into NodeMaintenance.spec.drainRules. If there are Problems, they are incomplete: a drain that uses them could evict Pods
	// that an invalid rule protects.
	Rules []v1alpha1.DrainRule

	// Problems are invalid rules that select the Machine, or may select it, sorted by rule. The drain waits until they are fixed (M6).
	Problems []Problem
}

// Compile returns the ordered list of rules for the drain of one Machine (M1).
func Compile(in Input) Compiled {
	compiled := Compiled{Rules: builtInRules(in.DaemonSetPods)}
	for _, mdr := range sortedByName(in.MachineDrainRules, in.Machine.Namespace) {
		selects := selectsMachine(mdr, in.Machine, in.Cluster)
		if selects.truth == no {
			continue // the drain does not wait for it, even if it is invalid (M6)
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

// builtInRules returns the rules that precede all MachineDrainRules.
func builtInRules(daemonSetPods v1alpha1.DaemonSetPodsPolicy) []v1alpha1.DrainRule {
	rules := []v1alpha1.DrainRule{skip(RuleStaticPods, v1alpha1.DrainRulePodSelector{PodType: v1alpha1.PodTypeStatic})}
	if daemonSetPods != v1alpha1.DaemonSetPodsDrain {
		rules = append(rules, skip(RuleDaemonSetPods, v1alpha1.DrainRulePodSelector{PodType: v1alpha1.PodTypeDaemonSet}))
	}
	return append(append(rules, SkipNodeAgent()), drainLabelRules()...)
}

// drainLabelRules returns the rules for the drain label of Pods. Pods of DaemonSets and static Pods never complete, so wait-completed has
// no effect on them.
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

// InEffect returns the rules of a NodeMaintenance: those of its spec, preceded by the built-in rules for drain labels if it honors drain
// labels and its spec does not contain these rules. The compiled rules of a Machine contain them.
func InEffect(spec *v1alpha1.NodeMaintenanceSpec) []v1alpha1.DrainRule {
	if spec.DrainLabelPolicy == v1alpha1.DrainLabelPolicyIgnore {
		return spec.DrainRules
	}
	missing := slices.DeleteFunc(drainLabelRules(), func(builtIn v1alpha1.DrainRule) bool {
		return slices.ContainsFunc(spec.DrainRules, func(rule v1alpha1.DrainRule) bool { return rule.Name == builtIn.Name })
	})
	return append(missing, spec.DrainRules...)
}

// IsNodeAgent reports whether a Pod is one of the node agent.
func IsNodeAgent(pod *corev1.Pod) bool {
	return pod.Namespace == NodeAgentNamespace && pod.Labels[nodeAgentLabel] == nodeAgentName
}

// SkipNodeAgent returns the rule that skips the node agent, which must run until the drain has ended.
func SkipNodeAgent() v1alpha1.DrainRule {
	return skip(RuleNodeAgent, v1alpha1.DrainRulePodSelector{
		Selector:          &metav1.LabelSelector{MatchLabels: map[string]string{nodeAgentLabel: nodeAgentName}},
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: NodeAgentNamespace}},
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

// limit truncates the list to the limits of a NodeMaintenance, and adds a Problem if it does (M6).
func (c *Compiled) limit() {
	if n := len(c.Rules); n > MaxRules {
		c.Rules = c.Rules[:MaxRules]
		c.Problems = append(c.Problems, Problem{Rule: RuleTooManyRules, Message: fmt.Sprintf(
			"%d drain rules apply to this Machine, %d of them built in; a NodeMaintenance can contain %d",
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
			"the drain rules that apply to this Machine have %d bytes; a NodeMaintenance can contain %d", total, MaxRulesBytes)})
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

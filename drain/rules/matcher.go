package rules

import (
	"slices"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Pod is what rules look at in a pod.
type Pod struct {
	Namespace, Name string
	Labels          map[string]string

	// NamespaceLabels count only while NamespaceKnown.
	NamespaceLabels map[string]string
	NamespaceKnown  bool

	// Type and TypeKnown are the results of PodTypeOf.
	Type      v1alpha1.PodType
	TypeKnown bool

	// Finished is the result of the function of that name.
	Finished bool
}

// Verdict is what a drain does with a pod, and why.
type Verdict struct {
	// Behavior is empty exactly when Undecided is not.
	Behavior v1alpha1.DrainBehavior

	// Order is 0 unless Behavior is Drain.
	Order int32

	// Rule is the name of the rule that decides, or that could not be decided upon. Empty: none matches.
	Rule string

	// Reason is for people: "rule machine-drain-rule/monitoring", "label cluster.x-k8s.io/drain: skip", "no rule matches".
	Reason string

	// Undecided, when not empty, says what is missing for a decision. The pod is then neither evicted nor ignored.
	Undecided string
}

// Matcher decides about pods by a list of rules. It is immutable; any number of goroutines may use it.
type Matcher struct {
	rules []parsedRule
}

// NewMatcher parses the rules once. Without rules every pod drains at order 0. A rule that can't be parsed makes only
// those pods Undecided whose verdict depends on it (M6).
func NewMatcher(rules []v1alpha1.DrainRule) *Matcher {
	m := &Matcher{rules: make([]parsedRule, 0, len(rules))}
	for i := range rules {
		m.rules = append(m.rules, parseRule(&rules[i]))
	}
	return m
}

// SkippedTypes are the Pod types that the rules skip as a whole: the first rule for all Pods of the type says Skip.
func (m *Matcher) SkippedTypes() []v1alpha1.PodType {
	var skipped []v1alpha1.PodType
	for _, podType := range []v1alpha1.PodType{v1alpha1.PodTypeDefault, v1alpha1.PodTypeDaemonSet, v1alpha1.PodTypeStatic} {
		i := slices.IndexFunc(m.rules, func(rule parsedRule) bool { return rule.selectsType(podType) })
		if i >= 0 && m.rules[i].behavior == v1alpha1.DrainBehaviorSkip {
			skipped = append(skipped, podType)
		}
	}
	return skipped
}

// Problems are the rules that can't be parsed, in their order.
func (m *Matcher) Problems() []Problem {
	var problems []Problem
	for _, rule := range m.rules {
		if err := rule.err(); err != nil {
			problems = append(problems, Problem{Rule: rule.name, Message: text.Cut(err.Error(), text.MaxMessage)})
		}
	}
	return problems
}

// Decide finds the first rule that matches the pod (M1). It looks at each requirement of each rule at most once, and
// at a pod's namespace or type only when the rule depends on it. Where it isn't known whether a rule matches, that matters
// only if the rules after it come to another decision.
func (m *Matcher) Decide(p Pod) Verdict {
	var open *parsedRule // the first of the rules of which it isn't known whether they match; they decide alike
	var missing string
	for i := range m.rules {
		rule := &m.rules[i]
		matches, reason := rule.matches(&p)
		if matches.truth == no {
			continue
		}
		if open != nil && !rule.decidesLike(open) {
			return undecided(&p, open, missing)
		}
		switch {
		case rule.broken != nil && matches.truth == yes:
			return undecided(&p, rule, "it can't be parsed: "+rule.broken.Error())
		case rule.broken != nil:
			return undecided(&p, rule, matches.missing)
		case matches.truth == yes:
			return Verdict{Behavior: rule.behavior, Order: rule.order, Rule: rule.name, Reason: reason}
		case open == nil:
			open, missing = rule, matches.missing
		}
	}
	if open != nil && !open.decidesLike(&parsedRule{behavior: v1alpha1.DrainBehaviorDrain}) {
		return undecided(&p, open, missing)
	}
	return Verdict{Behavior: v1alpha1.DrainBehaviorDrain, Reason: "no rule matches"}
}

// undecided is the verdict on a pod for which it is not known whether, or how, the rule applies. A finished pod is left
// alone instead: no answer could make it hold anything back (M8), and the rule may be one that protects it.
func undecided(p *Pod, rule *parsedRule, missing string) Verdict {
	if p.Finished {
		return Verdict{Behavior: v1alpha1.DrainBehaviorSkip, Rule: rule.name, Reason: "the pod has finished"}
	}
	return Verdict{
		Rule:      rule.name,
		Reason:    rule.reason,
		Undecided: text.Cut("can't decide on "+rule.reason+": "+missing, text.MaxMessage),
	}
}

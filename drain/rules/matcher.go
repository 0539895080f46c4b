package rules

import (
	"slices"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Pod contains the properties of a Pod that rules match.
type Pod struct {
	Namespace, Name string
	Labels          map[string]string

	// NamespaceLabels are set only if NamespaceKnown is true.
	NamespaceLabels map[string]string
	NamespaceKnown  bool

	// Type and TypeKnown are the results of PodTypeOf.
	Type      v1alpha1.PodType
	TypeKnown bool

	// Finished is the result of the function of that name.
	Finished bool
}

// Verdict is what a drain does with a Pod, and why.
type Verdict struct {
	// Behavior is empty if and only if Undecided is not.
	Behavior v1alpha1.DrainBehavior

	// Order is 0 unless Behavior is Drain.
	Order int32

	// Rule is the name of the rule that decides, or that cannot be evaluated. It is empty if no rule matches.
	Rule string

	// Reason is the reason for messages: "rule machine-drain-rule/monitoring", "label cluster.x-k8s.io/drain: skip", "no rule matches".
	Reason string

	// Undecided, if not empty, says what is missing for a decision. The Pod is then neither evicted nor ignored.
	Undecided string

	// Unread means that it is undecided only because an object has not been read yet, or cannot be read. An Evacuation that the rules have
	// caused before stays then.
	Unread bool
}

// Vetoes reports whether no other drain may evacuate or delete the Pod either: it must complete, or this drain is undecided.
func (v Verdict) Vetoes() bool {
	return v.Behavior != v1alpha1.DrainBehaviorDrain && v.Behavior != v1alpha1.DrainBehaviorSkip
}

// Matcher applies a list of rules to Pods. It is immutable and safe for concurrent use.
type Matcher struct {
	rules []parsedRule
}

// NewMatcher parses the rules. Without rules, each Pod drains with order 0. An invalid rule makes only those Pods undecided whose verdict
// depends on it (M6).
func NewMatcher(rules []v1alpha1.DrainRule) *Matcher {
	m := &Matcher{rules: make([]parsedRule, 0, len(rules))}
	for i := range rules {
		m.rules = append(m.rules, parseRule(&rules[i]))
	}
	return m
}

// SkippedTypes returns the Pod types of which the rules skip all Pods, except those that an earlier rule for some Pods of the type selects:
// the first rule for all Pods of the type says Skip.
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

// Problems returns the invalid rules, in their order.
func (m *Matcher) Problems() []Problem {
	var problems []Problem
	for _, rule := range m.rules {
		if err := rule.err(); err != nil {
			problems = append(problems, Problem{Rule: rule.name, Message: text.Cut(err.Error(), text.MaxMessage)})
		}
	}
	return problems
}

// Decide returns the verdict of the first rule that matches the Pod (M1). A rule of which it is unknown whether it matches makes the Pod
// undecided only if the rules after it lead to another verdict.
func (m *Matcher) Decide(p Pod) Verdict {
	var open *parsedRule // the first rule of which it is unknown whether it matches
	var missing answer
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
		case rule.invalid != nil && matches.truth == yes:
			return undecided(&p, rule, notKnown(rule.invalid.Error()))
		case rule.invalid != nil:
			return undecided(&p, rule, notKnown(matches.missing))
		case matches.truth == yes:
			return Verdict{Behavior: rule.behavior, Order: rule.order, Rule: rule.name, Reason: reason}
		case open == nil:
			open, missing = rule, matches
		}
	}
	if open != nil && !open.decidesLike(&parsedRule{behavior: v1alpha1.DrainBehaviorDrain}) {
		return undecided(&p, open, missing)
	}
	return Verdict{Behavior: v1alpha1.DrainBehaviorDrain, Reason: "no rule matches"}
}

// Skips reports whether the rules say Skip for a Pod, so that its volumes stay attached. It is false for a finished Pod that Decide returns
// Skip for only because the rules cannot be evaluated: the volumes of such a Pod detach.
func (m *Matcher) Skips(p Pod) bool {
	p.Finished = false
	return m.Decide(p).Behavior == v1alpha1.DrainBehaviorSkip
}

// undecided returns the verdict on a Pod for which it is unknown whether, or how, the rule applies. A finished Pod is skipped instead: it
// blocks nothing (M8), and the rule may protect it.
func undecided(p *Pod, rule *parsedRule, missing answer) Verdict {
	if p.Finished {
		return Verdict{Behavior: v1alpha1.DrainBehaviorSkip, Rule: rule.name, Reason: "the Pod has finished"}
	}
	return Verdict{
		Rule:      rule.name,
		Reason:    rule.reason,
		Undecided: text.Cut("cannot evaluate "+rule.reason+": "+missing.missing, text.MaxMessage),
		Unread:    missing.unread,
	}
}

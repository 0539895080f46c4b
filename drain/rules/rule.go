package rules

import (
	"fmt"
	"slices"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// parsedRule is a DrainRule with parsed selectors.
type parsedRule struct {
	name     string
	behavior v1alpha1.DrainBehavior
	order    int32
	reason   string
	entries  []parsedEntry // empty: all Pods
	invalid  error         // the behavior is unknown; the selectors have their own errors
}

// parsedEntry is one alternative of a rule. All its fields must match.
type parsedEntry struct {
	podType    v1alpha1.PodType
	drainLabel v1alpha1.DrainBehavior
	pods       selector
	namespaces selector
	invalid    error // podType or drainLabel is unknown
}

// parseRule parses a rule. It keeps the errors of invalid fields, which make the Pods undecided whose verdict depends on them.
func parseRule(rule *v1alpha1.DrainRule) parsedRule {
	parsed := parsedRule{name: rule.Name, behavior: rule.Behavior, reason: text.Cut("rule "+rule.Name, text.MaxMessage)}
	switch rule.Behavior {
	case v1alpha1.DrainBehaviorDrain:
		if rule.Order != nil {
			parsed.order = *rule.Order
		}
	case v1alpha1.DrainBehaviorSkip, v1alpha1.DrainBehaviorWaitCompleted: // the order is ignored
	default:
		parsed.invalid = errors.Errorf("behavior %q is unknown", text.Cut(string(rule.Behavior), text.MaxMessage))
	}
	for i := range rule.Pods {
		parsed.entries = append(parsed.entries, parseEntry(&rule.Pods[i]))
	}
	return parsed
}

func parseEntry(entry *v1alpha1.DrainRulePodSelector) parsedEntry {
	parsed := parsedEntry{
		podType:    entry.PodType,
		drainLabel: entry.DrainLabel,
		pods:       parseSelector(entry.Selector),
		namespaces: parseSelector(entry.NamespaceSelector),
	}
	switch entry.PodType {
	case "", v1alpha1.PodTypeDefault, v1alpha1.PodTypeDaemonSet, v1alpha1.PodTypeStatic:
	default:
		parsed.invalid = errors.Errorf("podType %q is unknown", text.Cut(string(entry.PodType), text.MaxMessage))
	}
	switch entry.DrainLabel {
	case "", v1alpha1.DrainBehaviorSkip, v1alpha1.DrainBehaviorWaitCompleted:
	default:
		parsed.invalid = errors.Errorf("drainLabel %q is unknown", text.Cut(string(entry.DrainLabel), text.MaxMessage))
	}
	return parsed
}

// err returns the first error of the rule.
func (r parsedRule) err() error {
	if r.invalid != nil {
		return r.invalid
	}
	for i, e := range r.entries {
		switch {
		case e.invalid != nil:
			return errors.Wrapf(e.invalid, "pods[%d]", i)
		case e.pods.err != nil:
			return e.pods.problem("pods[%d].selector is invalid", i)
		case e.namespaces.err != nil:
			return e.namespaces.problem("pods[%d].namespaceSelector is invalid", i)
		}
	}
	return nil
}

func (r *parsedRule) selectsType(podType v1alpha1.PodType) bool {
	all := func(e parsedEntry) bool {
		return (e.podType == "" || e.podType == podType) && e.drainLabel == "" && e.invalid == nil && e.pods.selectsAll() && e.namespaces.selectsAll()
	}
	return r.invalid == nil && (len(r.entries) == 0 || slices.ContainsFunc(r.entries, all))
}

// decidesLike reports whether two rules lead to the same verdict.
func (r *parsedRule) decidesLike(other *parsedRule) bool {
	return r.invalid == nil && other.invalid == nil && r.behavior == other.behavior && r.order == other.order
}

// matches returns whether the rule matches the Pod, and the reason for messages.
func (r parsedRule) matches(p *Pod) (matches answer, reason string) {
	if len(r.entries) == 0 {
		return answer{truth: yes}, r.reason
	}
	matches = answer{truth: no}
	for i := range r.entries {
		matches = matches.or(r.entries[i].matches(p))
		if matches.truth == yes {
			if behavior := r.entries[i].drainLabel; behavior != "" {
				return matches, labelText(behavior) // more helpful to the owner of the Pod than the name of the rule
			}
			return matches, r.reason
		}
	}
	return matches, r.reason
}

// matches evaluates first what is always known, so that the type and the Namespace are needed only if that matches.
func (e parsedEntry) matches(p *Pod) answer {
	if e.invalid != nil {
		return notKnown(text.Cut(e.invalid.Error(), text.MaxMessage))
	}
	return e.matchesDrainLabel(p).
		and(e.pods.matches(p.Labels)).
		and(e.matchesType(p)).
		and(e.matchesNamespace(p))
}

func (e parsedEntry) matchesDrainLabel(p *Pod) answer {
	if e.drainLabel == "" {
		return answer{truth: yes}
	}
	behavior, _ := DrainLabel(p.Labels)
	return known(behavior == e.drainLabel)
}

// matchesType compares the types. A type that is not known is DaemonSet or Default, see PodTypeOf.
func (e parsedEntry) matchesType(p *Pod) answer {
	switch {
	case e.podType == "":
		return answer{truth: yes}
	case p.TypeKnown:
		return known(p.Type == e.podType)
	case e.podType == v1alpha1.PodTypeStatic:
		return answer{truth: no}
	default:
		return notRead("whether the DaemonSet of the Pod exists is not known yet")
	}
}

func (e parsedEntry) matchesNamespace(p *Pod) answer {
	if !p.NamespaceKnown && e.namespaces.err == nil && !e.namespaces.selectsAll() {
		return notRead(fmt.Sprintf("the labels of Namespace %q are not known yet", text.Cut(p.Namespace, text.MaxMessage)))
	}
	return e.namespaces.matches(p.NamespaceLabels)
}

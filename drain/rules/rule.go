package rules

import (
	"fmt"
	"slices"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// parsedRule is a DrainRule with its selectors parsed, and its texts made, once.
type parsedRule struct {
	name     string
	behavior v1alpha1.DrainBehavior
	order    int32
	reason   string
	entries  []parsedEntry // empty: all pods
	broken   error         // the behavior isn't one; the selectors keep their own errors
}

// parsedEntry is one alternative of a rule; all that it names must match.
type parsedEntry struct {
	podType    v1alpha1.PodType
	drainLabel v1alpha1.DrainBehavior
	pods       selector
	namespaces selector
	broken     error // podType or drainLabel has a value that isn't one
}

// parseRule never fails: what can't be parsed is kept as such, and makes Undecided the pods whose verdict hangs on it.
func parseRule(rule *v1alpha1.DrainRule) parsedRule {
	parsed := parsedRule{name: rule.Name, behavior: rule.Behavior, reason: text.Cut("rule "+rule.Name, text.MaxMessage)}
	switch rule.Behavior {
	case v1alpha1.DrainBehaviorDrain:
		if rule.Order != nil {
			parsed.order = *rule.Order
		}
	case v1alpha1.DrainBehaviorSkip, v1alpha1.DrainBehaviorWaitCompleted: // order 0, whatever is written
	default:
		parsed.broken = errors.Errorf("%q is not a behavior", text.Cut(string(rule.Behavior), text.MaxMessage))
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
		parsed.broken = errors.Errorf("%q is not a podType", text.Cut(string(entry.PodType), text.MaxMessage))
	}
	switch entry.DrainLabel {
	case "", v1alpha1.DrainBehaviorSkip, v1alpha1.DrainBehaviorWaitCompleted:
	default:
		parsed.broken = errors.Errorf("%q is not a drainLabel", text.Cut(string(entry.DrainLabel), text.MaxMessage))
	}
	return parsed
}

// err is the first thing that is wrong with the rule.
func (r parsedRule) err() error {
	if r.broken != nil {
		return r.broken
	}
	for i, e := range r.entries {
		switch {
		case e.broken != nil:
			return errors.Wrapf(e.broken, "pods[%d]", i)
		case e.pods.err != nil:
			return e.pods.problem("pods[%d].selector can't be parsed", i)
		case e.namespaces.err != nil:
			return e.namespaces.problem("pods[%d].namespaceSelector can't be parsed", i)
		}
	}
	return nil
}

// selectsType says whether the rule is for all Pods of a type.
func (r *parsedRule) selectsType(podType v1alpha1.PodType) bool {
	all := func(e parsedEntry) bool {
		return (e.podType == "" || e.podType == podType) && e.drainLabel == "" && e.broken == nil && e.pods.selectsAll() && e.namespaces.selectsAll()
	}
	return r.broken == nil && (len(r.entries) == 0 || slices.ContainsFunc(r.entries, all))
}

// decidesLike says whether it makes no difference which of two rules matches.
func (r *parsedRule) decidesLike(other *parsedRule) bool {
	return r.broken == nil && other.broken == nil && r.behavior == other.behavior && r.order == other.order
}

// matches says whether the rule is for this pod, and by which text to explain it.
func (r parsedRule) matches(p *Pod) (matches answer, reason string) {
	if len(r.entries) == 0 {
		return answer{truth: yes}, r.reason
	}
	matches = answer{truth: no}
	for i := range r.entries {
		matches = matches.or(r.entries[i].matches(p))
		if matches.truth == yes {
			if behavior := r.entries[i].drainLabel; behavior != "" {
				return matches, labelText(behavior) // what the pod's owner wrote says more than our rule's name
			}
			return matches, r.reason
		}
	}
	return matches, r.reason
}

// matches looks at what is always known first: only a pod that passes it needs its type or its namespace.
func (e parsedEntry) matches(p *Pod) answer {
	if e.broken != nil {
		return notKnown("it can't be parsed: " + text.Cut(e.broken.Error(), text.MaxMessage))
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

// matchesType: a type that isn't known is DaemonSet or Default, see PodTypeOf.
func (e parsedEntry) matchesType(p *Pod) answer {
	switch {
	case e.podType == "":
		return answer{truth: yes}
	case p.TypeKnown:
		return known(p.Type == e.podType)
	case e.podType == v1alpha1.PodTypeStatic:
		return answer{truth: no}
	default:
		return notKnown("it can't be read whether the pod's DaemonSet exists")
	}
}

func (e parsedEntry) matchesNamespace(p *Pod) answer {
	if !p.NamespaceKnown && e.namespaces.err == nil && !e.namespaces.selectsAll() {
		return notKnown(fmt.Sprintf("the labels of namespace %q are not known", text.Cut(p.Namespace, text.MaxMessage)))
	}
	return e.namespaces.matches(p.NamespaceLabels)
}

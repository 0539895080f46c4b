package rules

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Match is the result of one rule for one Pod.
type Match struct {
	Rule     string
	Behavior v1alpha1.DrainBehavior
	Order    int32
	// Matches and Unknown are both false if the rule does not match.
	Matches, Unknown bool
	// Decides means that the verdict is that of this rule, or cannot be reached because of it.
	Decides bool
	// Why names the part of the rule that decided about the match.
	Why string
}

// Explain returns the result of every rule for a Pod, in order. Decide stops at the first rule that matches; Explain does not, so that
// the later rules show what would apply without it.
func (m *Matcher) Explain(p Pod) []Match {
	matches := make([]Match, 0, len(m.rules))
	verdict := m.Decide(p)
	for i := range m.rules {
		rule := &m.rules[i]
		answer, _ := rule.matches(&p)
		matches = append(matches, Match{
			Rule: rule.name, Behavior: rule.behavior, Order: rule.order,
			Matches: answer.truth == yes, Unknown: answer.truth == unknown,
			Decides: verdict.Rule != "" && verdict.Rule == rule.name && answer.truth != no,
			Why:     text.Cut(rule.explain(&p), text.MaxMessage),
		})
	}
	return matches
}

// maxExplained is the maximum number of alternatives of a rule that explain names.
const maxExplained = 4

func (r *parsedRule) explain(p *Pod) string {
	if len(r.entries) == 0 {
		return "selects all Pods"
	}
	var mismatches []string
	for i := range r.entries {
		matches, why := r.entries[i].explain(p)
		if matches.truth == yes {
			return why
		}
		mismatches = append(mismatches, why)
	}
	if more := len(mismatches) - maxExplained; more > 0 {
		mismatches = append(mismatches[:maxExplained], fmt.Sprintf("%d more", more))
	}
	return strings.Join(mismatches, "; ")
}

// explain names the part of the entry that is responsible for the answer of matches: the first one with this answer.
func (e parsedEntry) explain(p *Pod) (answer, string) {
	result := e.matches(p)
	switch result.truth {
	case yes:
		return result, e.describe()
	case unknown:
		return result, result.missing
	default:
	}
	switch {
	case e.matchesDrainLabel(p).truth == no:
		return result, "requires " + labelText(e.drainLabel)
	case e.pods.matches(p.Labels).truth == no:
		return result, "selector requires " + e.pods.mismatch(p.Labels)
	case e.matchesType(p).truth == no && !p.TypeKnown:
		return result, fmt.Sprintf("podType is %s; the Pod is not", e.podType)
	case e.matchesType(p).truth == no:
		return result, fmt.Sprintf("podType is %s; the Pod is %s", e.podType, p.Type)
	default:
		return result, "namespaceSelector requires " + e.namespaces.mismatch(p.NamespaceLabels)
	}
}

// describe names all conditions of an entry that matches.
func (e parsedEntry) describe() string {
	var parts []string
	if e.drainLabel != "" {
		parts = append(parts, labelText(e.drainLabel))
	}
	if !e.pods.selectsAll() {
		parts = append(parts, "selector "+e.pods.parsed.String())
	}
	if e.podType != "" {
		parts = append(parts, "podType "+string(e.podType))
	}
	if !e.namespaces.selectsAll() {
		parts = append(parts, "namespaceSelector "+e.namespaces.parsed.String())
	}
	if len(parts) == 0 {
		return "selects all Pods"
	}
	return strings.Join(parts, ", ")
}

// mismatch names the first requirement that labels do not satisfy, and their value for its key.
func (s selector) mismatch(set map[string]string) string {
	requirements, _ := s.parsed.Requirements()
	for _, requirement := range requirements {
		if requirement.Matches(labels.Set(set)) {
			continue
		}
		if value, found := set[requirement.Key()]; found {
			return fmt.Sprintf("%s; the label is %q", requirement.String(), value)
		}
		return requirement.String() + "; there is no such label"
	}
	return s.parsed.String()
}

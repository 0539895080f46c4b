package plan

import (
	"maps"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// selector is a parsed Pod selector.
type selector struct {
	// key is equal for equal selectors, and empty for the selector of all Pods.
	key     string
	spec    *metav1.LabelSelector
	matcher labels.Selector
}

var everything = &selector{matcher: labels.Everything()}

func (s *selector) matches(podLabels map[string]string) bool {
	return s == everything || s.matcher.Matches(labels.Set(podLabels))
}

// selectors parses each distinct selector of an Observation once.
type selectors map[string]*selector

// parse parses a selector of a user. An invalid selector selects nothing.
func (s selectors) parse(spec *metav1.LabelSelector) *selector {
	if selectsAll(spec) {
		return everything
	}
	key := keyOf(spec)
	if known, ok := s[key]; ok {
		return known
	}
	matcher, err := metav1.LabelSelectorAsSelector(spec)
	if err != nil {
		matcher = labels.Nothing()
	}
	parsed := &selector{key: key, spec: spec, matcher: matcher}
	s[key] = parsed
	return parsed
}

func selectsAll(spec *metav1.LabelSelector) bool {
	return spec == nil || len(spec.MatchLabels) == 0 && len(spec.MatchExpressions) == 0
}

// keyOf returns a key that differs for different selectors. Quotes separate the values of users.
func keyOf(spec *metav1.LabelSelector) string {
	var key []byte
	for _, label := range slices.Sorted(maps.Keys(spec.MatchLabels)) {
		key = strconv.AppendQuote(key, label)
		key = append(key, '=')
		key = strconv.AppendQuote(key, spec.MatchLabels[label])
		key = append(key, ';')
	}
	for _, requirement := range spec.MatchExpressions {
		key = strconv.AppendQuote(key, requirement.Key)
		key = append(key, ' ')
		key = strconv.AppendQuote(key, string(requirement.Operator))
		for _, value := range requirement.Values {
			key = append(key, ' ')
			key = strconv.AppendQuote(key, value)
		}
		key = append(key, ';')
	}
	return string(key)
}

package rules

import (
	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// selector is a parsed label selector. An invalid selector keeps its error: whether it matches is unknown.
type selector struct {
	parsed labels.Selector
	err    error
}

// parseSelector parses a selector of a rule. Nil and empty select everything, as in MachineDrainRules, unlike in other uses of LabelSelector.
func parseSelector(s *metav1.LabelSelector) selector {
	if s == nil {
		return selector{parsed: labels.Everything()}
	}
	parsed, err := metav1.LabelSelectorAsSelector(s)
	return selector{parsed: parsed, err: err}
}

// selectsAll reports whether the selector matches regardless of the labels.
func (s selector) selectsAll() bool {
	return s.err == nil && s.parsed.Empty()
}

// matches returns whether the selector matches the labels.
func (s selector) matches(set map[string]string) answer {
	if s.err != nil {
		return notKnown("the selector is invalid: " + text.Cut(s.err.Error(), text.MaxMessage))
	}
	return known(s.parsed.Matches(labels.Set(set)))
}

// problem returns the error of the selector with its field in the rule.
func (s selector) problem(format string, args ...any) error {
	return errors.Wrapf(s.err, format, args...)
}

package rules

import (
	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// selector is a label selector that has been parsed once. One that could not be parsed keeps the error: whether it
// matches is not known.
type selector struct {
	parsed labels.Selector
	err    error
}

// parseSelector parses a selector of a rule. Nil and empty select everything, as in MachineDrainRules; for a
// metav1.LabelSelector alone nil would mean nothing.
func parseSelector(s *metav1.LabelSelector) selector {
	if s == nil {
		return selector{parsed: labels.Everything()}
	}
	parsed, err := metav1.LabelSelectorAsSelector(s)
	return selector{parsed: parsed, err: err}
}

// selectsAll says that the answer doesn't depend on the labels: they need not be known.
func (s selector) selectsAll() bool {
	return s.err == nil && s.parsed.Empty()
}

// matches takes time proportional to the values that the selector lists.
func (s selector) matches(set map[string]string) answer {
	if s.err != nil {
		return notKnown("it can't be parsed: " + text.Cut(s.err.Error(), text.MaxMessage))
	}
	return known(s.parsed.Matches(labels.Set(set)))
}

// problem is the parse error, with the place of the selector in its rule.
func (s selector) problem(format string, args ...any) error {
	return errors.Wrapf(s.err, format, args...)
}

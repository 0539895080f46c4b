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

// parseSelector parses a selector of a rule. Nil and empty select everything, as in MachineDrainRules, unlike in other uses of
// LabelSelector.
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

// truth is a value of Kleene's three-valued logic. The values are ordered: "and" is the minimum, "or" the maximum of two values. So an
// unknown value matters only if the known values do not determine the result.
type truth uint8

const (
	no truth = iota
	unknown
	yes
)

// answer is a truth. missing says why it is unknown, and is empty otherwise.
type answer struct {
	truth
	missing string
	// unread means that it is unknown only because an object has not been read yet, or cannot be read.
	unread bool
}

// and returns the conjunction. Of two unknown answers it returns the message of the first one.
func (a answer) and(b answer) answer {
	if b.truth < a.truth {
		return b
	}
	a.unread = a.unread && (b.truth != unknown || b.unread)
	return a
}

// or returns the disjunction. Of two unknown answers it returns the message of the first one.
func (a answer) or(b answer) answer {
	if b.truth > a.truth {
		return b
	}
	a.unread = a.unread && (b.truth != unknown || b.unread)
	return a
}

func known(matches bool) answer {
	if matches {
		return answer{truth: yes}
	}
	return answer{truth: no}
}

// notKnown is the answer of an invalid rule.
func notKnown(missing string) answer {
	return answer{truth: unknown, missing: missing}
}

// notRead is the answer of a rule that depends on an object which has not been read yet, or cannot be read.
func notRead(missing string) answer {
	return answer{truth: unknown, missing: missing, unread: true}
}

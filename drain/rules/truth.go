package rules

// truth is a value of Kleene's three-valued logic. The values are ordered: "and" is the minimum, "or" the maximum of two values. So an unknown
// value matters only if the known values do not determine the result.
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
}

// and returns the conjunction. Of two unknown answers it returns the first one.
func (a answer) and(b answer) answer {
	if b.truth < a.truth {
		return b
	}
	return a
}

// or returns the disjunction. Of two unknown answers it returns the first one.
func (a answer) or(b answer) answer {
	if b.truth > a.truth {
		return b
	}
	return a
}

func known(matches bool) answer {
	if matches {
		return answer{truth: yes}
	}
	return answer{truth: no}
}

func notKnown(missing string) answer {
	return answer{truth: unknown, missing: missing}
}

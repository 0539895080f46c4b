package rules

// truth is the answer to "does this match?". Its values are ordered so that Kleene's logic of three values is plain
// comparison: "and" is the smallest, "or" the greatest of the answers. An unknown thus matters only where the answers
// that are known don't settle the question by themselves.
type truth uint8

const (
	no truth = iota
	unknown
	yes
)

// answer is a truth with what is missing to know it; missing is empty unless the truth is unknown.
type answer struct {
	truth
	missing string
}

// and tells whether both hold. Of two unknowns the first one is named.
func (a answer) and(b answer) answer {
	if b.truth < a.truth {
		return b
	}
	return a
}

// or tells whether one of them holds. Of two unknowns the first one is named.
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

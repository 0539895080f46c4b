package main

import (
	"testing"

	. "github.com/onsi/gomega"
)

const stated = `- <a id="r1"></a>[R1](reference/requirements.md#r1): A NodeMaintenance is cluster-scoped.` + "\n"

func TestParseStatements(t *testing.T) {
	for name, test := range map[string]struct {
		content  string
		numbers  []number
		problems []string
	}{
		"a statement":                {content: stated, numbers: []number{{"R", 1}}},
		"text is not a statement":    {content: "R2 is explained below.\n- A list item without number"},
		"another number in the text": {content: `- <a id="e2"></a>[E2](reference/requirements.md#e2): As R1 states.`, numbers: []number{{"E", 2}}},
		"a statement without an anchor": {
			content: "- **R2** Text", problems: []string{`docs/requirements.md:1: start the line with - <a id="r2"></a>[R2](reference/requirements.md#r2): `},
		},
		"an anchor without a statement": {
			content:  `- <a id="r2"></a>[R2](reference/requirements.md#r2): `,
			problems: []string{`docs/requirements.md:1: start the line with - <a id="r2"></a>[R2](reference/requirements.md#r2): `},
		},
		"two statements of one number": {content: stated + stated, numbers: []number{{"R", 1}}, problems: []string{"docs/requirements.md:2: R1 has two statements"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			numbers, problems := parseStatements(test.content)
			g.Expect(numbers).To(Equal(test.numbers))
			g.Expect(problems).To(Equal(test.problems))
		})
	}
}

func TestMissing(t *testing.T) {
	g := NewWithT(t)
	problems := missing([]number{{"R", 1}}, map[string]string{
		"a.go": "package a\n// As R1 and R2 state, with E2E and abcR3.",
		"b.md": "R2 is reported once.",
		page:   "R3",
	})
	g.Expect(problems).To(ConsistOf("a.go:2: R2 has no statement in docs/requirements.md"))
}

func TestUntested(t *testing.T) {
	g := NewWithT(t)
	g.Expect(untested([]number{{"R", 1}, {"R", 2}}, []proof{{number: number{"R", 1}}})).To(ConsistOf("docs/requirements.md: no test has R2 in its name"))
}

func TestProofs(t *testing.T) {
	g := NewWithT(t)
	name := `"R1, E2` + `: dra" +` + "\n\t" + `"ins"`
	found := proofs(map[string]string{"a_test.go": "t.Run(" + name + ")", "a.go": name})
	g.Expect(found).To(Equal([]proof{{number{"E", 2}, "drains", "a_test.go"}, {number{"R", 1}, "drains", "a_test.go"}}))
}

package main

import (
	"strings"
	"testing"
	"testing/fstest"

	. "github.com/onsi/gomega"
)

func TestCheck(t *testing.T) {
	for name, test := range map[string]struct {
		file     string
		content  string
		problems []string
	}{
		"a comment of a Go file": {file: "a.go", content: "package a\n\n// A is mended.\nvar A int", problems: []string{`a.go:3: "mended": say fix`}},
		"a phrase over two lines of a comment": {
			file: "a.go", content: "package a\n\n// A runs side\n// by side.\nvar A int", problems: []string{`a.go:3: "side by side": say concurrent, in parallel`},
		},
		"a string literal": {file: "a.go", content: "package a\n\nvar A = \"likewise\"", problems: []string{`a.go:3: "likewise": say also, so is`}},
		"a wide comment": {
			file: "a.go", content: "package a\n\n// " + strings.Repeat("ä ", 68) + "b\nvar A int\n\n\t// " + strings.Repeat("ä ", 68) + "b",
			problems: []string{"a.go:6: a comment of 141 columns: wrap it at 140"},
		},
		"a wide marker and a wide word": {
			file: "a.go", content: "package a\n\n// +kubebuilder:rule" + strings.Repeat(" x", 99) + "\n// " + strings.Repeat("x", 199),
		},
		"identifiers and import paths":     {file: "a.go", content: "package a\n\nimport mend \"broken\"\n\nvar anew = mend.Flight", problems: nil},
		"Markdown":                         {file: "a.md", content: "Made\nanew.", problems: []string{`a.md:2: "anew": say again, recreate`}},
		"code in Markdown":                 {file: "a.md", content: "The reason `broken`.", problems: nil},
		"what programs print, in Markdown": {file: "a.md", content: "```text\nbroken\n```", problems: []string{`a.md:2: "broken": say invalid`}},
		"a script": {
			file: "a.sh", content: "# Runs side\n# by side.", problems: []string{`a.sh:1: "side by side": say concurrent, in parallel`},
		},
		"a Makefile":    {file: "Makefile", content: "lint: ## Mend it.", problems: []string{`Makefile:1: "Mend": say fix`}},
		"words between": {file: "a.md", content: "It takes all of it back.", problems: nil},
		"up to two words between": {
			file: "a.md", content: "It takes the cordon back.", problems: []string{`a.md:1: "takes the cordon back": say restore, revert, clean up, remove`},
		},
		"an allowed phrase": {file: "a.md", content: "An in-flight eviction, a rollout in flight.", problems: nil},
		"other files":       {file: "a.json", content: "broken", problems: nil},
		"what is generated": {file: "docs/reference/a.md", content: "broken", problems: nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			problems, err := check(fstest.MapFS{test.file: {Data: []byte(test.content)}})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(problems).To(Equal(test.problems))
		})
	}
}

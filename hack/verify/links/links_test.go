package main

import (
	"testing"
	"testing/fstest"

	. "github.com/onsi/gomega"
)

func TestLinks(t *testing.T) {
	for name, test := range map[string]struct {
		readme string
		rules  string
		broken []string
	}{
		"a file":                     {readme: "[a](docs/guide.md)"},
		"a directory":                {readme: "[a](docs/) and [b](docs)"},
		"an image in a link":         {readme: "[![a](docs/guide.md)](nowhere.md)", broken: []string{"README.md:1: nowhere.md: there is no such file"}},
		"a title":                    {readme: `[a](docs/guide.md "The guide")`},
		"a heading":                  {readme: "[a](docs/guide.md#what-it-is)"},
		"a heading with marks":       {readme: "[a](docs/guide.md#the-machinedrainpolicys-specsurge)"},
		"the second of two headings": {readme: "[a](docs/guide.md#what-it-is-1)"},
		"a heading of the same file": {readme: "[a](#here)\n# Here"},
		"a definition":               {readme: "[a]: docs/nowhere.md", broken: []string{"README.md:1: docs/nowhere.md: there is no such file"}},
		"elsewhere":                  {readme: "[a](https://example.com/nowhere) [b](mailto:user@example.com)"},
		"no file":                    {readme: "\n[a](nowhere.md)", broken: []string{"README.md:2: nowhere.md: there is no such file"}},
		"out of the repository":      {readme: "[a](../README.md)", broken: []string{"README.md:1: ../README.md: there is no such file"}},
		"from the top":               {readme: "[a](/docs/guide.md)", broken: []string{"README.md:1: /docs/guide.md: make it relative to the file that it is in"}},
		"no heading":                 {readme: "[a](docs/guide.md#nothing)", broken: []string{"README.md:1: docs/guide.md#nothing: there is no such heading"}},
		"a heading in code":          {readme: "[a](docs/guide.md#a-comment)", broken: []string{"README.md:1: docs/guide.md#a-comment: there is no such heading"}},
		"code":                       {readme: "`[a](nowhere.md)`\n```\n[a](nowhere.md)\n```"},
		"a fence in a longer fence":  {readme: "````\n```\n[a](nowhere.md)\n````\n[b](docs)"},
		"a line of a Go file":        {readme: "[a](main.go#L3)"},
		"a heading in a runbook":     {rules: "runbook_url: " + repository + "docs/guide.md#what-it-is"},
		"no heading in a runbook": {
			rules:  "rules:\n- runbook_url: " + repository + "docs/guide.md#nothing",
			broken: []string{"rules.yaml:2: " + repository + "docs/guide.md#nothing: there is no such heading"},
		},
		"no file in the repository": {
			readme: "[a](" + repository + "nowhere.md)", broken: []string{"README.md:1: " + repository + "nowhere.md: there is no such file"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			broken, err := check(fstest.MapFS{
				"README.md":  {Data: []byte(test.readme)},
				"rules.yaml": {Data: []byte(test.rules)},
				"main.go":    {},
				"docs/guide.md": {Data: []byte("# What it *is*\n## What it is\n" +
					"## The [`MachineDrainPolicy`](guide.md)'s `spec.surge`\n```sh\n# A comment\n```\n")},
				"bin/tool/README.md": {Data: []byte("[a](nowhere.md)")},
			})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(broken).To(Equal(test.broken))
		})
	}
}

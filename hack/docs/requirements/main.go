// Package main writes docs/reference/requirements.md: what each numbered test of this repository proves, in the words of the
// test. The numbers come from names of tests: t.Run("R24: …").
package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pkg/errors"
)

const page = "docs/reference/requirements.md"

const head = `<!-- Made by make generate from the names of tests. -->
# What tests prove

Requirements have numbers: **R** NodeMaintenance, **E** Evacuation, **M** Machines, **S** the node agent. A test that proves one has the number in its
name. This page is made from those names; [the design](../design.md) tells the same as a story.
`

// areas are the letters, and what they stand for.
var areas = []struct{ letter, title string }{{"R", "NodeMaintenance"}, {"E", "Evacuation"}, {"M", "Machines"}, {"S", "Node agent (experimental)"}}

// named finds the numbers and the words of a test's name: "R24: …", or "E24, E25: …". A text with verbs of package fmt is what a
// property test says when it fails, and no name.
var (
	named  = regexp.MustCompile("\"([REMS][0-9]+(?:, [REMS][0-9]+)*): ([^\"\\n%]+)\"")
	number = regexp.MustCompile("([REMS])([0-9]+)")
)

type proof struct {
	letter string
	number int
	text   string
	file   string
}

func main() {
	if err := write(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write() error {
	proofs, err := collect(".")
	if err != nil {
		return err
	}
	return errors.Wrapf(os.WriteFile(page, render(proofs), 0o600), "writing %s", page)
}

// collect finds the numbered names of all tests.
func collect(root string) ([]proof, error) {
	var proofs []proof
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, match := range named.FindAllSubmatch(content, -1) {
			for _, each := range number.FindAllSubmatch(match[1], -1) {
				n, err := strconv.Atoi(string(each[2]))
				if err != nil {
					return err
				}
				proofs = append(proofs, proof{letter: string(each[1]), number: n, text: string(match[2]), file: filepath.ToSlash(path)})
			}
		}
		return nil
	})
	slices.SortFunc(proofs, func(a, b proof) int {
		return cmp.Or(cmp.Compare(a.letter, b.letter), cmp.Compare(a.number, b.number), cmp.Compare(a.file, b.file), cmp.Compare(a.text, b.text))
	})
	return slices.Compact(proofs), errors.Wrap(err, "reading tests")
}

func render(proofs []proof) []byte {
	var b bytes.Buffer
	b.WriteString(head)
	for _, area := range areas {
		fmt.Fprintf(&b, "\n## %s\n\n| | proved | by |\n|---|---|---|\n", area.title)
		for _, p := range proofs {
			if p.letter == area.letter {
				text := strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(p.text)
				fmt.Fprintf(&b, "| %s%d | %s | [%s](../../%s) |\n", p.letter, p.number, text, filepath.Base(p.file), p.file)
			}
		}
	}
	return b.Bytes()
}

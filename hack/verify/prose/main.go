// Command prose checks the English of this repository against the vocabulary in vocabulary.go: Markdown, comments and string
// literals of Go files, and the text of YAML files, shell scripts and Makefiles. Words in `backquotes` are code and not checked,
// except in fenced blocks of Markdown, which show what the programs print. It also checks how wide comments of Go files are.
//
//	go run ./hack/verify/prose [directory]
package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pkg/errors"
)

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	problems, err := check(os.DirFS(root))
	if err != nil {
		fmt.Fprintf(os.Stderr, "prose: %v\n", err)
		os.Exit(1)
	}
	for _, problem := range problems {
		fmt.Fprintln(os.Stderr, problem)
	}
	if len(problems) > 0 {
		fmt.Fprintf(os.Stderr, "prose: %d problems\n", len(problems))
		os.Exit(1)
	}
}

// check returns the findings as "file:line: why".
func check(files fs.FS) ([]string, error) {
	var problems []string
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && isForeign(name):
			return fs.SkipDir
		case entry.IsDir():
			return nil
		}
		found, err := checkFile(files, name)
		problems = append(problems, found...)
		return err
	})
	return problems, errors.Wrap(err, "reading files")
}

// isForeign is true for what is built, generated from files that are checked, or lists the vocabulary itself.
func isForeign(directory string) bool {
	return slices.Contains([]string{".git", "bin", "out", "testdata"}, path.Base(directory)) ||
		slices.Contains([]string{"config/crd", "config/workload/crd", "docs/reference", "hack/verify/prose"}, directory)
}

func checkFile(files fs.FS, name string) ([]string, error) {
	extract := extractorFor(name)
	if extract == nil {
		return nil, nil
	}
	content, err := fs.ReadFile(files, name)
	if err != nil {
		return nil, err
	}
	passages, err := extract(content)
	if err != nil {
		return nil, errors.Wrapf(err, "parsing %s", name)
	}
	var found []string
	if path.Ext(name) == ".go" {
		found = wideComments(name, string(content))
	}
	for _, p := range passages {
		for _, f := range findings(p.text) {
			line := 1 + strings.Count(string(content[:p.offset+f.offset]), "\n")
			found = append(found, fmt.Sprintf("%s:%d: %q: say %s", name, line, strings.Join(strings.Fields(f.text), " "), f.say))
		}
	}
	return found, nil
}

// maxColumns is how wide a comment may be. A tab counts as one column, as golangci-lint counts in lines of code.
const maxColumns = 140

// wideComments returns the lines of comments that are too wide, without markers and lines of one word, which cannot be wrapped.
func wideComments(name, content string) (found []string) {
	for i, line := range strings.Split(content, "\n") {
		text, isComment := strings.CutPrefix(strings.TrimLeft(line, "\t"), "// ")
		if columns := utf8.RuneCountInString(line); isComment && columns > maxColumns && !strings.HasPrefix(text, "+") && strings.Contains(text, " ") {
			found = append(found, fmt.Sprintf("%s:%d: a comment of %d columns: wrap it at %d", name, i+1, columns, maxColumns))
		}
	}
	return found
}

// Command requirements writes docs/reference/requirements.md: the tests that prove each requirement, from the names of the tests
// (t.Run("R24: …")). It fails when a file names a requirement that has no statement in docs/requirements.md, and when a statement has no
// test.
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/pkg/errors"
)

const page = "docs/reference/requirements.md"

func main() {
	if err := run("."); err != nil {
		fmt.Fprintf(os.Stderr, "requirements: %v\n", err)
		os.Exit(1)
	}
}

func run(root string) error {
	content, err := os.ReadFile(statementsPage)
	if err != nil {
		return errors.Wrap(err, "reading statements")
	}
	stated, problems := parseStatements(string(content))
	files, err := readFiles(root)
	if err != nil {
		return err
	}
	found := proofs(files)
	if err := os.WriteFile(page, render(stated, found), 0o600); err != nil {
		return errors.Wrapf(err, "writing %s", page)
	}
	problems = slices.Concat(problems, untested(stated, found), missing(stated, files))
	if len(problems) > 0 {
		return errors.Errorf("%d problems:\n%s", len(problems), strings.Join(problems, "\n"))
	}
	return nil
}

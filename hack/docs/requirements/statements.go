package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pkg/errors"
)

const statementsPage = "docs/requirements.md"

// areas are the letters of requirements, in the order of the pages.
var areas = []struct{ letter, title string }{
	{"R", "NodeMaintenance"}, {"E", "Evacuation"}, {"M", "Machines"}, {"S", "Node agent (experimental)"}, {"K", "kubectl plugin"},
}

// number is the number of a requirement, such as R24.
type number struct {
	letter string
	n      int
}

func (n number) String() string { return fmt.Sprintf("%s%d", n.letter, n.n) }

// anchor is the fragment of links to the requirement, on both pages.
func (n number) anchor() string { return strings.ToLower(n.String()) }

func compare(a, b number) int { return cmp.Or(cmp.Compare(a.letter, b.letter), cmp.Compare(a.n, b.n)) }

var (
	numberPattern = regexp.MustCompile(`\b([REMSK])([0-9]{1,3})\b`)
	statementLine = regexp.MustCompile(`^- .*?\b[REMSK][0-9]{1,3}\b`)
)

// parseNumbers returns the numbers in text, in order of appearance.
func parseNumbers(text string) []number {
	var numbers []number
	for _, match := range numberPattern.FindAllStringSubmatch(text, -1) {
		n, err := strconv.Atoi(match[2])
		if err != nil {
			continue // not reached: the pattern admits digits only
		}
		numbers = append(numbers, number{letter: match[1], n: n})
	}
	return numbers
}

// parseStatements returns the numbers that have a statement, sorted, and what is wrong with the page as "file:line: why".
func parseStatements(content string) (stated []number, problems []string) {
	for i, line := range strings.Split(content, "\n") {
		if !statementLine.MatchString(line) {
			continue
		}
		n, err := parseStatement(line)
		switch {
		case err != nil:
			problems = append(problems, fmt.Sprintf("%s:%d: %v", statementsPage, i+1, err))
		case slices.Contains(stated, n):
			problems = append(problems, fmt.Sprintf("%s:%d: %s has two statements", statementsPage, i+1, n))
		default:
			stated = append(stated, n)
		}
	}
	slices.SortFunc(stated, compare)
	return stated, problems
}

// parseStatement requires the exact form, so that links to the statement and from it lead somewhere.
func parseStatement(line string) (number, error) {
	n := parseNumbers(line)[0]
	prefix := fmt.Sprintf(`- <a id=%q></a>[%s](reference/requirements.md#%s): `, n.anchor(), n, n.anchor())
	if !strings.HasPrefix(line, prefix) || len(line) == len(prefix) {
		return number{}, errors.Errorf("start the line with %s", prefix)
	}
	return n, nil
}

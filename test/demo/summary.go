package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// lap is a part of the demo and its duration.
type lap struct {
	name string
	took time.Duration
}

// maxProblems is the number of problems that are shown for each check.
const maxProblems = 5

// summarize writes a summary and the result of each check. It returns whether all checks passed.
func summarize(s *screen, laps []lap, e evidence, checks []check) bool {
	s.title("Summary")
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	var total time.Duration
	for _, lap := range laps {
		fmt.Fprintf(table, "  %s\t%s\n", lap.name, seconds(lap.took))
		total += lap.took
	}
	fmt.Fprintf(table, "  total\t%s\n", seconds(total))
	fmt.Fprintf(table, "  Machines drained\t%d\n", len(e.Drains))
	fmt.Fprintf(table, "  Pods evicted\t%d\n", len(e.accepted()))
	fmt.Fprintf(table, "  evictions refused\t%d\n", e.refused())
	_ = table.Flush()
	s.say("%s", strings.TrimRight(text.String(), "\n"))

	s.title("Checks of the audit logs of both API servers and of a watch of the whole run")
	kept := true
	for _, c := range checks {
		s.say("%s %s (%s)", s.mark(c.ok()), c.Promise, c.Basis)
		for i, problem := range c.Problems {
			if i == maxProblems {
				s.say("       and %d more", len(c.Problems)-maxProblems)
				break
			}
			s.say("       %s", problem)
		}
		kept = kept && c.ok()
	}
	return kept
}

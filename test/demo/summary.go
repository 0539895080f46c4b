package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// lap is a part of the demo and how long it took.
type lap struct {
	name string
	took time.Duration
}

// maxProblems is how many problems are shown of each check.
const maxProblems = 5

// summarize writes what has happened, and how each check has come out. It says whether all promises were kept.
func summarize(s *screen, laps []lap, e evidence, checks []check) bool {
	s.title("Summary")
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	var total time.Duration
	for _, lap := range laps {
		fmt.Fprintf(table, "  %s\t%s\n", lap.name, seconds(lap.took))
		total += lap.took
	}
	fmt.Fprintf(table, "  all together\t%s\n", seconds(total))
	fmt.Fprintf(table, "  Machines drained\t%d\n", len(e.Drains))
	fmt.Fprintf(table, "  Pods evicted\t%d\n", len(e.accepted()))
	fmt.Fprintf(table, "  evictions refused\t%d\n", e.refused())
	_ = table.Flush()
	s.say("%s", strings.TrimRight(text.String(), "\n"))

	s.title("Checks, against the audit logs of both API servers and a watch from beginning to end")
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

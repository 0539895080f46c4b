package main

import (
	"fmt"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/capnm/cluster-api-node-maintenance/test/chaos"
)

// lap is a part of the demo and its duration.
type lap struct {
	name string
	took time.Duration
}

// maxProblems is the number of problems that are shown for each check.
const maxProblems = 5

// summarize writes a summary and the result of each check. It returns whether all checks passed.
func summarize(s *screen, laps []lap, h *chaos.History, w *world) bool {
	s.title("Summary")
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	var total time.Duration
	for _, lap := range laps {
		fmt.Fprintf(table, "  %s\t%s\n", lap.name, seconds(lap.took))
		total += lap.took
	}
	fmt.Fprintf(table, "  total\t%s\n", seconds(total))
	fmt.Fprintf(table, "  Machines drained\t%d\n", len(w.deletedMachines()))
	fmt.Fprintf(table, "  Pods evicted\t%d\n", evictions(h).Succeeded().Len())
	fmt.Fprintf(table, "  evictions refused\t%d\n", evictions(h).Failed(http.StatusTooManyRequests).Len())
	_ = table.Flush()
	s.say("%s", strings.TrimRight(text.String(), "\n"))

	s.title("Checks of the audit logs and of all versions of all objects of both clusters")
	kept := true
	for _, c := range checkAll(h, w) {
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

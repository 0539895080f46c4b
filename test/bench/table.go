package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/pkg/errors"
)

// print writes the result as a table.
func (r *result) print(w io.Writer) error {
	text := &strings.Builder{}
	fmt.Fprintf(text, "\n%s: %s\n\n", r.Scenario, r.About)
	r.tellResults(text)
	r.tellBreakdown(text)
	for _, c := range r.Candidates {
		if c.steps != nil && r.runsOf(c) > 0 {
			r.tellSteps(text, c)
			r.tellWrites(text, c)
		}
	}
	if r.Ratio > 0 {
		fmt.Fprintf(text, "\nWe took %.2f times the limit.\n", r.Ratio)
	}
	if r.Evacuating > 0 {
		fmt.Fprintf(text, "We took %.2f times the limit of a drain by Evacuations.\n", r.Evacuating)
	}
	_, err := io.WriteString(w, text.String())
	return errors.Wrap(err, "writing the table")
}

func (r *result) runsOf(c candidate) int {
	return len(values(r.Samples, c.name, func(sample) float64 { return 0 }))
}

func (r *result) tellResults(text *strings.Builder) {
	rows := &strings.Builder{}
	rows.WriteString("candidate\truns\tseconds (median, least to most)\tevictions\trefused\tevicted per pod\twrites per pod\tof all users\tCPU ms per pod\t\n")
	for _, c := range r.Candidates {
		seconds := values(r.Samples, c.name, func(s sample) float64 { return s.Seconds })
		if len(seconds) == 0 {
			fmt.Fprintf(rows, "%s\t0\tnot run\t\t\t\t\t\t\t\n", c.name)
			continue
		}
		fmt.Fprintf(rows, "%s\t%d\t%.2f (%.2f to %.2f)\t%g\t%g\t%.2f\t%.2f\t%.2f\t%.1f\t%s\n", c.name, len(seconds), median(seconds), slices.Min(seconds),
			slices.Max(seconds),
			median(values(r.Samples, c.name, func(s sample) float64 { return float64(s.Evictions) })),
			median(values(r.Samples, c.name, func(s sample) float64 { return float64(s.Refused) })),
			median(values(r.Samples, c.name, func(s sample) float64 { return s.EvictedPerPod })),
			median(values(r.Samples, c.name, func(s sample) float64 { return s.WritesPerPod })),
			median(values(r.Samples, c.name, func(s sample) float64 { return s.AllWritesPerPod })),
			median(values(r.Samples, c.name, func(s sample) float64 { return s.CPUPerPod })), c.about)
	}
	text.WriteString(align(rows.String(), 0))
}

func (r *result) tellBreakdown(text *strings.Builder) {
	text.WriteString("\nTime (medians, in seconds): until the first eviction (start); from an allowed disruption to the next eviction, each and in\n" +
		"total (idle); in eviction calls; from the end of the last Pod to the end of the run. Own is start, idle and end, for which only the\n" +
		"candidate is responsible.\n\n")
	rows := &strings.Builder{}
	rows.WriteString("candidate\tstart\trounds\teach\tlongest\tidle\tcalls\tend\town\t\n")
	for _, c := range r.Candidates {
		if r.runsOf(c) == 0 {
			continue
		}
		b := r.breakdownOf(c.name)
		fmt.Fprintf(rows, "%s\t%.3f\t%d\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t\n", c.name, b.Start, b.Rounds, b.RoundMedian, b.RoundMax, b.Idle, b.Calls, b.End, b.Own)
	}
	text.WriteString(align(rows.String(), tabwriter.AlignRight))
}

// tellSteps writes the steps of a run.
func (r *result) tellSteps(text *strings.Builder, c candidate) {
	at := map[string][]float64{}
	for _, s := range r.Samples {
		if s.Candidate != c.name {
			continue
		}
		for _, each := range s.Steps {
			at[each.Name] = append(at[each.Name], each.Seconds)
		}
	}
	fmt.Fprintf(text, "\nSteps of %s (medians, in seconds from the start):\n\n", c.name)
	inOrder := func(a, b string) int { return cmp.Compare(median(at[a]), median(at[b])) }
	for _, name := range slices.SortedFunc(maps.Keys(at), inOrder) {
		fmt.Fprintf(text, "  %8.3f  %s\n", median(at[name]), name)
	}
}

// tellWrites writes the number of writes of a run to the workload cluster.
func (r *result) tellWrites(text *strings.Builder, c candidate) {
	kinds := map[string]int{}
	for _, s := range r.Samples {
		if s.Candidate != c.name {
			continue
		}
		for kind, count := range s.Writes {
			kinds[kind] += count
		}
	}
	fmt.Fprintf(text, "\nWrites of %s to the workload cluster in a run (means, without events):\n\n", c.name)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		fmt.Fprintf(text, "  %7.1f  %s\n", float64(kinds[kind])/float64(r.runsOf(c)), kind)
	}
}

// align formats lines of cells that end with tabs as columns. Writing to a strings.Builder does not fail.
func align(rows string, flags uint) string {
	aligned := &strings.Builder{}
	table := tabwriter.NewWriter(aligned, 0, 0, 2, ' ', flags)
	_, _ = io.WriteString(table, rows)
	_ = table.Flush()
	return aligned.String()
}

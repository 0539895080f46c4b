package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pkg/errors"
)

// allScenario runs all scenarios that do not contain each other. A scenario that fails does not end the run.
var allScenario = scenario{name: "all", about: "all scenarios, summarized in one table", measure: func(
	ctx context.Context, _ scenario, o options,
) (all []outcome, err error) {
	var failed []string
	for _, s := range scenarios {
		if slices.Contains([]string{"all", "summary", "smoke", "fleet", "idle", "restart"}, s.name) { // scale has the last three
			continue
		}
		outcomes, err := s.measure(ctx, s, o)
		if err != nil {
			failed = append(failed, fmt.Sprintf("%s: %v", s.name, err))
		}
		for _, out := range outcomes {
			if err := save(o.out, out); err != nil {
				return nil, err
			}
		}
		all = append(all, outcomes...)
	}
	if len(failed) > 0 {
		err = errors.Errorf("scenarios failed:\n  %s", strings.Join(failed, "\n  "))
	}
	return append(all, &summary{dir: o.out, docs: o.docs}), err
}}

// summaryScenario runs nothing: it summarizes the results that earlier runs have saved.
var summaryScenario = scenario{name: "summary", about: "a table of the saved results", measure: func(
	_ context.Context, _ scenario, o options,
) ([]outcome, error) {
	return []outcome{&summary{dir: o.out, docs: o.docs}}, nil
}}

// summary is a table of the results in a directory. Its file is Markdown; with docs, it replaces the table between two marks of that page.
type summary struct{ dir, docs string }

func (s *summary) title() string { return "all" }

func (s *summary) flat() map[string]any { return map[string]any{"about": allScenario.about} }

func (s *summary) failures() []string { return nil }

// summarized lists the figures of the table: those of comparisons are measured for each candidate, the others for our manager and, where
// there is a second key, for Cluster API's core manager.
var summarized = []struct {
	figure, key, capi string
}{
	{figure: "seconds", key: "seconds"},
	{figure: "eviction calls", key: "evictions"},
	{figure: "of them refused", key: "refused"},
	{figure: "evictions for each Pod", key: "evicted_per_pod"},
	{figure: "writes by all users for each Pod", key: "all_writes_per_pod"},
	{figure: "CPU of API server and etcd for each Pod, ms", key: "cpu_milliseconds_per_pod"},
	{figure: "evictions a second", key: "evictions_per_second"},
	{figure: "slowest Node, of the median one", key: "slowest_over_median"},
	{figure: "resident MB for each idle Cluster", key: "rss_mb_per_idle_cluster", capi: "capi_rss_mb_per_idle_cluster"},
	{figure: "live MB for each idle Cluster", key: "live_mb_per_idle_cluster", capi: "capi_live_mb_per_idle_cluster"},
	{figure: "watches for each idle Cluster", key: "watches_per_idle_cluster"},
	{figure: "lists of Nodes of an idle fleet", key: "lists_of_nodes"},
	{figure: "writes at rest", key: "writes", capi: "capi_writes"},
	{figure: "reads at rest", key: "reads"},
	{figure: "from an allowed disruption to the eviction, median, ms", key: "p50_room_to_eviction_ms"},
	{figure: "99th percentile, ms", key: "p99_room_to_eviction_ms"},
	{figure: "share of the reactions to a budget within 50 ms", key: "share_of_reactions_within_50_ms"},
	{figure: "half of the drains continue after a kill, s", key: "seconds_until_half_move"},
	{figure: "all drains continue, s", key: "seconds_until_all_move"},
}

func (s *summary) table() (string, error) {
	text := &strings.Builder{}
	text.WriteString("| scenario | | limit | this provider | kubectl | Cluster API |\n|---|---|---|---|---|---|\n")
	for _, each := range scenarios {
		content, err := os.ReadFile(filepath.Join(s.dir, each.name+".json"))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return "", errors.Wrap(err, "reading results")
		}
		result := map[string]any{}
		if err := json.Unmarshal(content, &result); err != nil {
			return "", errors.Wrapf(err, "reading the results of %s", each.name)
		}
		name := each.name
		for _, row := range summarized {
			_, compares := result["samples"]
			cells := []any{result["limit_"+row.key], result["capnm_"+row.key], result["kubectl_"+row.key], result["capi_"+row.key]}
			if !compares {
				cells = []any{result["limit_"+row.key], cmp.Or(result["capnm_"+row.key], result[row.key]), nil, result[row.capi]}
			}
			if cells[1] == nil {
				continue
			}
			fmt.Fprintf(text, "| %s | %s |", name, row.figure)
			for _, cell := range cells {
				fmt.Fprintf(text, " %s |", cellOf(cell))
			}
			text.WriteString("\n")
			name = ""
		}
	}
	return text.String(), nil
}

func cellOf(value any) string {
	number, is := value.(float64)
	if !is {
		return ""
	}
	return fmt.Sprintf("%.4g", number)
}

// The marks of the table in a page.
const beginMark, endMark = "<!-- table of make bench SCENARIO=all -->\n", "<!-- end of the table -->\n"

func (s *summary) print(w io.Writer) error {
	table, err := s.table()
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "\n%s", table); err != nil {
		return errors.Wrap(err, "writing the table")
	}
	if err := os.WriteFile(filepath.Join(s.dir, "all.md"), []byte(table), 0o600); err != nil {
		return errors.Wrap(err, "writing the table")
	}
	if s.docs == "" {
		return nil
	}
	page, err := os.ReadFile(s.docs)
	if err != nil {
		return errors.Wrap(err, "reading the page of the table")
	}
	replaced, err := replaceTable(page, table)
	if err != nil {
		return errors.Wrapf(err, "writing the table to %s", s.docs)
	}
	return errors.Wrap(os.WriteFile(s.docs, replaced, 0o600), "writing the page of the table")
}

// replaceTable replaces what is between the marks of a page.
func replaceTable(page []byte, table string) ([]byte, error) {
	before, rest, began := bytes.Cut(page, []byte(beginMark))
	_, after, ended := bytes.Cut(rest, []byte(endMark))
	if !began || !ended {
		return nil, errors.New("the page has no marks of the table")
	}
	return slices.Concat(before, []byte(beginMark+"\n"+table+"\n"+endMark), after), nil
}

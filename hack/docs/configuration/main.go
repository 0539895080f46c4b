// Command configuration writes docs/reference/configuration.md from the code: the flags that the manager prints, the variables of the
// manifests, and the metrics, events and conditions that are declared.
package main

import (
	"bytes"
	"fmt"
	"os"

	"github.com/pkg/errors"
)

const page = "docs/reference/configuration.md"

const head = `<!-- Made by make generate from the code. -->
# Configuration reference

What can be set, and what can be seen. [Installation](../guide/installation.md) says how to set it.
`

func main() {
	if err := write(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// section is one part of the page.
type section struct {
	title, text string
	columns     []string
	rows        func() ([][]string, error)
}

var sections = []section{
	{
		title: "Variables", text: "clusterctl fills them into the manifests, from the environment or from its configuration file.",
		columns: []string{"variable", "default", "sets"}, rows: variables,
	},
	{
		title: "Flags", text: "Of the manager. Those that no variable sets are set by a patch of the Deployment.",
		columns: []string{"flag", "default", ""}, rows: flags,
	},
	{
		title: "Metrics", text: "At the diagnostics address, beside those of controller-runtime and of Cluster API's ClusterCache.",
		columns: []string{"metric", "kind", "labels", ""}, rows: metrics,
	},
	{
		title: "Events", text: "Each is on the object that it is about, in the cluster of that object.",
		columns: []string{"reason", "written by", ""}, rows: events,
	},
	{
		title: "Conditions and their reasons", text: "",
		columns: []string{"", "", "of", ""}, rows: conditions,
	},
}

func write() error {
	var b bytes.Buffer
	b.WriteString(head)
	for _, s := range sections {
		rows, err := s.rows()
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return errors.Errorf("found no %s", s.title)
		}
		fmt.Fprintf(&b, "\n## %s\n\n", s.title)
		if s.text != "" {
			fmt.Fprintf(&b, "%s\n\n", s.text)
		}
		table(&b, s.columns, rows)
	}
	return errors.Wrapf(os.WriteFile(page, b.Bytes(), 0o600), "writing %s", page)
}

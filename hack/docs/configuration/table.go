package main

import (
	"bytes"
	"strings"
)

var cell = strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ")

// table writes a Markdown table.
func table(b *bytes.Buffer, columns []string, rows [][]string) {
	line := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(columns)
	b.WriteString("|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, row := range rows {
		escaped := make([]string, len(row))
		for i := range row {
			escaped[i] = cell.Replace(row[i])
		}
		line(escaped)
	}
}

func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

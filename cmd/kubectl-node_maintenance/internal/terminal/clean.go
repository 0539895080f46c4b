// Package terminal makes text from clusters safe to print, and styles it.
//
// Tenants of workload clusters choose names, labels and messages. Printed as they are, control characters in them could move the cursor,
// change the title of a terminal or write to its clipboard, and characters that change the direction of text could hide a part of it.
package terminal

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Clean returns a text on one line, without characters that control a terminal or are invisible, with at most limit characters. It replaces
// each of these characters by U+FFFD, and each sequence of white space by one space.
func Clean(untrusted string, limit int) string {
	var b strings.Builder
	count := 0
	space := false
	for _, r := range untrusted {
		if count >= limit {
			return cut(b.String())
		}
		switch {
		case r == utf8.RuneError:
			r = unicode.ReplacementChar
		case unicode.IsSpace(r):
			if space || count == 0 {
				continue
			}
			r = ' '
		case !text.Printable(r):
			r = unicode.ReplacementChar
		}
		space = r == ' '
		b.WriteRune(r)
		count++
	}
	return strings.TrimRight(b.String(), " ")
}

// Lines returns the lines of a text that are not empty, each as by Clean. It returns at most maxLines, and then a line with an ellipsis.
func Lines(untrusted string, maxLines, limit int) []string {
	var lines []string
	for line := range strings.SplitSeq(untrusted, "\n") {
		if line = Clean(line, limit); line == "" {
			continue
		}
		if len(lines) == maxLines {
			return append(lines, "…")
		}
		lines = append(lines, line)
	}
	return lines
}

// cut replaces the last character by an ellipsis.
func cut(s string) string {
	_, size := utf8.DecodeLastRuneInString(s)
	return s[:len(s)-size] + "…"
}

// Escape replaces the characters of JSON or YAML that are not printable, other than the line breaks of its layout.
func Escape(document string, escape func(r rune) string) string {
	var b strings.Builder
	for _, r := range document {
		if r == '\n' || text.Printable(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(escape(r))
		}
	}
	return b.String()
}

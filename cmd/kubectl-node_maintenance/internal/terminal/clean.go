// Package terminal makes text from clusters safe to print, and styles it.
//
// Tenants of workload clusters choose names, labels and messages. Printed as they are, control characters in them could move the cursor,
// change the title of a terminal or write to its clipboard, and characters that change the direction of text could hide a part of it.
package terminal

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean returns text on one line, without characters that control a terminal or are invisible, with at most limit characters. White
// space of every kind becomes a space, and what is removed leaves no trace but a replacement character.
func Clean(text string, limit int) string {
	var b strings.Builder
	count := 0
	space := false
	for _, r := range text {
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
		case !Printable(r):
			r = unicode.ReplacementChar
		}
		space = r == ' '
		b.WriteRune(r)
		count++
	}
	return strings.TrimRight(b.String(), " ")
}

// Lines is Clean for text of several lines, of which it returns at most maxLines.
func Lines(text string, maxLines, limit int) []string {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
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
func cut(text string) string {
	_, size := utf8.DecodeLastRuneInString(text)
	return text[:len(text)-size] + "…"
}

// Printable returns whether a character is visible, is no part of a control sequence, and does not change the direction of text.
func Printable(r rune) bool {
	switch {
	case r == ' ':
		return true
	case unicode.Is(unicode.C, r), unicode.Is(unicode.Zl, r), unicode.Is(unicode.Zp, r): // control, format, surrogate, private use
		return false
	case unicode.Is(unicode.Mn, r), unicode.Is(unicode.Me, r): // marks stack on a character without limit
		return false
	default:
		return unicode.IsPrint(r)
	}
}

// Escape replaces the characters of JSON or YAML that are not printable, other than the line breaks of its layout.
func Escape(document string, escape func(r rune) string) string {
	var b strings.Builder
	for _, r := range document {
		if r == '\n' || Printable(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(escape(r))
		}
	}
	return b.String()
}

// Package text fits text and lists of names into fields, conditions and events, which have limited lengths.
package text

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// MaxMessage is the length of a message about one object, in runes: BlockedPod.why and similar status fields.
const MaxMessage = 512

// Cut returns at most limit runes of a text. A text that is longer ends in an ellipsis. API servers count the length of a field in runes.
func Cut(text string, limit int) string {
	if len(text) <= limit { // a rune has at least one byte
		return text
	}
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:limit-1]) + "…"
	}
	return text
}

// List joins at most limit names with commas, and says how many more there are: "a, b and 3 more".
func List(names []string, limit int) string {
	if more := len(names) - limit; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:limit], ", "), more)
	}
	return strings.Join(names, ", ")
}

// Count returns a number with a noun: "1 Pod", "2 Pods".
func Count[N ~int | ~int32](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(int(n)) + " " + noun + "s"
}

// Named returns at most limit names, see List, after their noun: "Pod a", "Pods a, b and 3 more".
func Named(noun string, names []string, limit int) string {
	if len(names) != 1 {
		noun += "s"
	}
	return noun + " " + List(names, limit)
}

// Plain replaces the characters of a text that are not printable with spaces, except line feeds.
func Plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && !Printable(r) {
			return ' '
		}
		return r
	}, text)
}

// Line returns a text of another actor as one line of at most limit printable characters.
func Line(text string, limit int) string {
	return strings.Join(strings.Fields(Plain(Cut(text, limit))), " ")
}

// Printable reports whether a character is visible, is no part of a control sequence, and does not change the direction of text.
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

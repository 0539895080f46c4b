package terminal

import (
	"io"
	"os"

	"golang.org/x/term"
)

// Style adds colors to text that is already clean. The zero value adds none.
type Style struct {
	colors bool
}

// StyleFor returns a style with colors if w is a terminal that has them, and the user has not disabled colors.
func StyleFor(w io.Writer, disabled bool) Style {
	file, ok := w.(*os.File)
	return Style{colors: ok && !disabled && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd()))}
}

// The colors are those of the terminal's palette, which fits light and dark backgrounds.
const (
	bold  = "\x1b[1m"
	faint = "\x1b[2m"
	red   = "\x1b[1;31m"
	amber = "\x1b[1;33m"
	reset = "\x1b[0m"
)

func (s Style) apply(sequence, text string) string {
	if !s.colors {
		return text
	}
	return sequence + text + reset
}

// Title styles the subject of a report.
func (s Style) Title(text string) string { return s.apply(bold, text) }

// Faint styles text of less importance.
func (s Style) Faint(text string) string { return s.apply(faint, text) }

// Blocker styles a problem that a user must fix.
func (s Style) Blocker(text string) string { return s.apply(red, text) }

// Warning styles a problem that a user may have to fix.
func (s Style) Warning(text string) string { return s.apply(amber, text) }

package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// screen is the output of the demo.
type screen struct {
	out io.Writer
	// live means that input and output are a terminal, in which the kubectl plugin shows its live view.
	live   bool
	colors bool
}

// newScreen detects the capabilities of the terminal.
func newScreen(in, out *os.File) *screen {
	live := term.IsTerminal(int(in.Fd())) && term.IsTerminal(int(out.Fd())) && os.Getenv("TERM") != "dumb"
	return &screen{out: out, live: live, colors: live && os.Getenv("NO_COLOR") == ""}
}

// say writes a line.
func (s *screen) say(format string, args ...any) {
	fmt.Fprintf(s.out, format+"\n", args...)
}

// title writes the title of a part.
func (s *screen) title(format string, args ...any) {
	s.say("\n%s", s.colored(fmt.Sprintf(format, args...), bold))
}

// mark returns the prefix of a passed or failed check.
func (s *screen) mark(ok bool) string {
	switch {
	case ok && s.live:
		return s.colored("✓", green)
	case ok:
		return "ok  "
	case s.live:
		return s.colored("✗", red)
	default:
		return "FAIL"
	}
}

// Colors, as parameters of SGR.
const (
	bold  = "1"
	green = "32"
	red   = "31"
)

func (s *screen) colored(text, color string) string {
	if !s.colors {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

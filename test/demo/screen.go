package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// screen is the output of the demo. On a terminal, a block of lines is redrawn in place.
type screen struct {
	out   io.Writer
	live  bool
	style style
	size  func() (width, height int)
	drawn int // lines of the redrawn block
}

// newScreen detects the capabilities of the output.
func newScreen(out *os.File) *screen {
	live := term.IsTerminal(int(out.Fd())) && os.Getenv("TERM") != "dumb"
	return &screen{
		out: out, live: live,
		style: style{Unicode: live, Colors: live && os.Getenv("NO_COLOR") == ""},
		size: func() (int, int) {
			width, height, err := term.GetSize(int(out.Fd()))
			if err != nil || width <= 0 || height <= 0 {
				return 120, 40
			}
			return width, height
		},
	}
}

// say writes a permanent line.
func (s *screen) say(format string, args ...any) {
	s.erase()
	fmt.Fprintf(s.out, format+"\n", args...)
}

// title writes the title of a part.
func (s *screen) title(format string, args ...any) {
	s.say("\n%s", colored(fmt.Sprintf(format, args...), bold, s.style))
}

// draw redraws the block in one write, which avoids flicker. It requires a terminal.
func (s *screen) draw(lines []string) {
	var b strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r", s.drawn)
	}
	for _, line := range lines {
		b.WriteString(line + "\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	_, _ = io.WriteString(s.out, b.String())
	s.drawn = len(lines)
}

// leave keeps the current block and continues below it.
func (s *screen) leave() { s.drawn = 0 }

func (s *screen) erase() {
	if s.drawn > 0 {
		fmt.Fprintf(s.out, "\x1b[%dA\r\x1b[J", s.drawn)
		s.drawn = 0
	}
}

// mark returns the prefix of a passed or failed check.
func (s *screen) mark(ok bool) string {
	switch {
	case ok && s.style.Unicode:
		return colored("✓", green, s.style)
	case ok:
		return "ok  "
	case s.style.Unicode:
		return colored("✗", red, s.style)
	default:
		return "FAIL"
	}
}

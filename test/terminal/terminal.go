// Package terminal runs programs in a terminal and reads its screen.
package terminal

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/creack/pty"
	"github.com/hinshun/vt10x"
	"github.com/pkg/errors"
)

// The colors of a terminal's background.
const (
	Dark  = "0000/0000/0000"
	Light = "ffff/ffff/ffff"
)

// Terminal is a terminal in which a program runs.
type Terminal struct {
	// Ended is closed when the program has ended, and its output is complete.
	Ended chan struct{}

	background string
	file       *os.File

	mu     sync.Mutex
	screen vt10x.Terminal
	output bytes.Buffer
}

// Start starts a program in a terminal with this background. The program is killed at the end of the test.
func Start(t *testing.T, command *exec.Cmd, width, height int, background string) (*Terminal, error) {
	t.Helper()
	command.Env = append(command.Environ(), "TERM=xterm-256color", "COLORTERM=truecolor")
	file, err := pty.StartWithSize(command, size(width, height))
	if err != nil {
		return nil, errors.Wrapf(err, "starting %s in a terminal", command.Path)
	}
	term := &Terminal{file: file, background: background, screen: vt10x.New(vt10x.WithSize(width, height)), Ended: make(chan struct{})}
	go func() {
		defer close(term.Ended)
		term.show()
		_ = command.Wait()
	}()
	t.Cleanup(func() {
		_ = command.Process.Kill()
		<-term.Ended
		_ = file.Close()
	})
	return term, nil
}

func size(width, height int) *pty.Winsize {
	return &pty.Winsize{Cols: uint16(width), Rows: uint16(height)}
}

// show shows the output until it ends, and answers the question for the color of the background.
func (t *Terminal) show() {
	buffer, shown, answered := make([]byte, 32<<10), 0, false
	for {
		n, err := t.file.Read(buffer)
		t.mu.Lock()
		t.output.Write(buffer[:n])
		output := t.output.Bytes()
		whole := len(output) // the emulator cannot join a character that is read in two parts
		for whole > shown && !utf8.Valid(output[shown:whole]) {
			whole--
		}
		_, _ = t.screen.Write(output[shown:whole])
		shown = whole
		if !answered && bytes.Contains(output, []byte("\x1b]11;?")) {
			answered = true
			_, _ = fmt.Fprintf(t.file, "\x1b]11;rgb:%s\x1b\\", t.background)
		}
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Resize changes the size of the terminal, and tells the program.
func (t *Terminal) Resize(width, height int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.screen.Resize(width, height)
	return errors.Wrap(pty.Setsize(t.file, size(width, height)), "resizing the terminal")
}

// Press sends keys.
func (t *Terminal) Press(keys string) error {
	_, err := t.file.WriteString(keys)
	return errors.Wrap(err, "pressing keys")
}

// Frame returns the text on the screen.
func (t *Terminal) Frame() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(t.screen.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n") + "\n"
}

// Color returns the color of the first character of a text on the screen, as RRGGBB.
func (t *Terminal) Color(text string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for y, line := range strings.Split(t.screen.String(), "\n") {
		if before, _, found := strings.Cut(line, text); found {
			return fmt.Sprintf("%06x", uint32(t.screen.Cell(utf8.RuneCountInString(before), y).FG))
		}
	}
	return ""
}

// Output returns everything that the program has written.
func (t *Terminal) Output() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.output.String()
}

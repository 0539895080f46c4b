package live

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/creack/pty"
	"github.com/hinshun/vt10x"
	. "github.com/onsi/gomega"
)

const (
	eventually = "20s"
	pace       = "20ms"
)

// emulator is a terminal with a program that runs in it.
type emulator struct {
	*WithT
	vt10x.Terminal

	file    *os.File
	process *os.Process
	ended   chan struct{}

	mu  sync.Mutex
	raw bytes.Buffer // all output
}

// show starts the scene in a terminal. background is the color that the terminal reports.
func show(t *testing.T, width, height int, background string, environment ...string) *emulator {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0])
	command.Env = append([]string{sceneVariable + "=1", "TERM=xterm-256color", "COLORTERM=truecolor", "TZ=UTC"}, environment...)
	file, err := pty.StartWithSize(command, &pty.Winsize{Cols: uint16(width), Rows: uint16(height)}) //nolint:gosec // small
	g := NewWithT(t)
	g.Expect(err).NotTo(HaveOccurred())
	e := &emulator{WithT: g, Terminal: vt10x.New(vt10x.WithSize(width, height)), file: file, process: command.Process, ended: make(chan struct{})}
	go func() {
		defer close(e.ended)
		e.copy(background)
	}()
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		_ = file.Close()
		<-e.ended
	})
	return e
}

// copy shows the output, and answers the question for the color of the background.
func (e *emulator) copy(background string) {
	buffer, shown, answered := make([]byte, 32<<10), 0, false
	for {
		n, err := e.file.Read(buffer)
		e.mu.Lock()
		e.raw.Write(buffer[:n])
		output := e.raw.Bytes()
		whole := len(output) // the emulator cannot join a character that is read in two parts
		for whole > shown && !utf8.Valid(output[shown:whole]) {
			whole--
		}
		_, _ = e.Terminal.Write(output[shown:whole])
		shown = whole
		if !answered && bytes.Contains(output, []byte("\x1b]11;?")) {
			answered = true
			_, _ = fmt.Fprintf(e.file, "\x1b]11;rgb:%s\x1b\\", background)
		}
		e.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (e *emulator) resize(width, height int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.Terminal.Resize(width, height)
	e.Expect(pty.Setsize(e.file, &pty.Winsize{Cols: uint16(width), Rows: uint16(height)})).To(Succeed()) //nolint:gosec // small
}

func (e *emulator) press(keys string) {
	_, err := e.file.WriteString(keys)
	e.Expect(err).NotTo(HaveOccurred())
}

// next shows the next step of the scene.
func (e *emulator) next() { e.Expect(e.process.Signal(syscall.SIGUSR1)).To(Succeed()) }

// frame is the text on the screen.
func (e *emulator) frame() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	lines := strings.Split(e.Terminal.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n") + "\n"
}

func (e *emulator) output() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.raw.String()
}

// expect waits for the frame in a file of testdata. UPDATE=1 writes the file when the screen shows a text.
func (e *emulator) expect(name, text string) {
	file := filepath.Join("testdata", name+".txt")
	e.Eventually(e.frame, eventually, pace).Should(ContainSubstring(text))
	if os.Getenv("UPDATE") != "" {
		e.Consistently(e.frame, "1s", pace).Should(ContainSubstring(text))
		e.Expect(os.WriteFile(file, []byte(e.frame()), 0o600)).To(Succeed())
	}
	golden, err := os.ReadFile(file)
	e.Expect(err).NotTo(HaveOccurred())
	e.Eventually(e.frame, eventually, pace).Should(Equal(string(golden)))
}

// color is the color of the first character of a text on the screen.
func (e *emulator) color(text string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	for y, line := range strings.Split(e.Terminal.String(), "\n") {
		if before, _, found := strings.Cut(line, text); found {
			return fmt.Sprintf("%06x", uint32(e.Terminal.Cell(len([]rune(before)), y).FG))
		}
	}
	return "not found"
}

const (
	black = "0000/0000/0000"
	white = "ffff/ffff/ffff"
)

func TestTerminal(t *testing.T) {
	t.Parallel()
	t.Run("K8, K9: the tree fits a terminal of 80x24, is navigated with keys, and follows a resize", func(t *testing.T) {
		t.Parallel()
		e := show(t, 80, 24, black)
		e.expect("80x24", "▾ Cluster default/us")
		e.press("jjjjj")
		e.expect("80x24-pod", "Pod db/evil")
		e.press("/web-3\r")
		e.expect("80x24-filter", "filter: web-3")
		e.press("\x1b")
		e.Eventually(e.frame, eventually, pace).Should(ContainSubstring("/ filter "))
		e.press("\x1b[D\x1b[D") // left: to the NodeMaintenance, which is then closed
		e.expect("80x24-folded", "▸ NM")
		e.resize(40, 10)
		e.expect("40x10", "▸ NM")
		e.press("q")
		e.Eventually(e.ended, eventually).Should(BeClosed())
		e.Expect(e.output()).To(HaveSuffix("ended\r\n"))
	})

	t.Run("K8: a terminal of 200x50 shows everything, progress, and the end of a drain", func(t *testing.T) {
		t.Parallel()
		e := show(t, 200, 50, black)
		e.expect("200x50", "Cluster default/us")
		for step := 1; step <= 4; step++ {
			e.next()
			e.Eventually(e.frame, eventually, pace).Should(ContainSubstring(fmt.Sprintf("%d/8", step)))
		}
		e.expect("200x50-later", "4/8")
		e.next()
		e.expect("200x50-deleted", "Deleted")
	})

	t.Run("K9: Enter opens why for the selected Machine, and Esc closes it", func(t *testing.T) {
		t.Parallel()
		e := show(t, 80, 24, black)
		e.Eventually(e.frame, eventually, pace).Should(ContainSubstring("default/us"))
		e.press("jjj\r")
		e.expect("80x24-why", "A line of the report")
		e.press("\x1b")
		e.Eventually(e.frame, eventually, pace).Should(ContainSubstring("default/us"))
		e.press("\x03")
		e.Eventually(e.ended, eventually).Should(BeClosed())
		e.Expect(e.output()).To(HaveSuffix("ended: interrupted\r\n"))
	})

	t.Run("K9: colors fit the background, and NO_COLOR disables them", func(t *testing.T) {
		t.Parallel()
		dark, light, none := show(t, 80, 24, black), show(t, 80, 24, white), show(t, 80, 24, black, "NO_COLOR=1")
		dark.Eventually(func() string { return dark.color("Not read") }, eventually, pace).Should(Equal("ffaf00"))
		light.Eventually(func() string { return light.color("Not read") }, eventually, pace).Should(Equal("af5f00"))
		none.Eventually(none.frame, eventually, pace).Should(ContainSubstring("default/us"))
		none.Expect(none.output()).NotTo(MatchRegexp(`\x1b\[[0-9;]*[34]8[;:]`))
		none.Expect(dark.output()).To(MatchRegexp(`\x1b\[[0-9;]*38[;:]`))
	})

	t.Run("K6: text from clusters cannot control the terminal of the view", func(t *testing.T) {
		t.Parallel()
		e := show(t, 200, 50, black)
		e.Eventually(e.frame, eventually, pace).Should(ContainSubstring("db/evil"))
		e.Expect(e.output()).NotTo(ContainSubstring("title\a"))
		e.Expect(e.output()).NotTo(ContainSubstring("\u202e"))
	})

	t.Run("K10: without a terminal, each change is a line", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		command := exec.CommandContext(t.Context(), os.Args[0])
		command.Env = append(os.Environ(), sceneVariable+"=1")
		reader, err := command.StdoutPipe()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(command.Start()).To(Succeed())
		var output bytes.Buffer
		buffer := make([]byte, 32<<10)
		read := func(until string) {
			for !strings.Contains(output.String(), until) {
				n, err := reader.Read(buffer)
				g.Expect(err).NotTo(HaveOccurred())
				output.Write(buffer[:n])
			}
		}
		read("evil")
		for step := 1; step <= 5; step++ {
			g.Expect(command.Process.Signal(syscall.SIGUSR1)).To(Succeed())
			read([]string{"", "5 evacuating", "4 evacuating", "3 evacuating", "2 evacuating", "Deleted"}[step])
		}
		g.Expect(command.Process.Signal(syscall.SIGTERM)).To(Succeed())
		read("ended: interrupted\n")
		_ = command.Wait()
		file := filepath.Join("testdata", "lines.txt")
		if os.Getenv("UPDATE") != "" {
			g.Expect(os.WriteFile(file, output.Bytes(), 0o600)).To(Succeed())
		}
		golden, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(output.String()).To(Equal(string(golden)))
	})
}

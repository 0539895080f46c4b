package live

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capnm/cluster-api-node-maintenance/test/terminal"
)

const (
	eventually = "1m"
	pace       = "20ms"
)

// sceneTerminal is a terminal that shows the scene.
type sceneTerminal struct {
	*WithT
	*terminal.Terminal

	process *os.Process
}

func show(t *testing.T, width, height int, background string, environment ...string) *sceneTerminal {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0])
	command.Env = append(os.Environ(), append(environment, sceneVariable+"=1")...)
	g := NewWithT(t)
	started, err := terminal.Start(t, command, width, height, background)
	g.Expect(err).NotTo(HaveOccurred())
	return &sceneTerminal{g, started, command.Process}
}

func (s *sceneTerminal) press(keys string) { s.Expect(s.Press(keys)).To(Succeed()) }

// next shows the next step of the scene.
func (s *sceneTerminal) next() { s.Expect(s.process.Signal(syscall.SIGUSR1)).To(Succeed()) }

// shows waits until the screen shows a text.
func (s *sceneTerminal) shows(text string) {
	s.Eventually(s.Frame, eventually, pace).Should(ContainSubstring(text))
}

// ends waits until the program has ended.
func (s *sceneTerminal) ends(with string) {
	s.Eventually(s.Ended, eventually).Should(BeClosed())
	s.Expect(s.Output()).To(HaveSuffix(with + "\r\n"))
}

// expect waits for the frame in a file of testdata. UPDATE=1 writes the file when the screen shows a text.
func (s *sceneTerminal) expect(name, text string) {
	file := filepath.Join("testdata", name+".txt")
	s.shows(text)
	if os.Getenv("UPDATE") != "" {
		s.Consistently(s.Frame, "1s", pace).Should(ContainSubstring(text))
		s.Expect(os.WriteFile(file, []byte(s.Frame()), 0o600)).To(Succeed())
	}
	golden, err := os.ReadFile(file)
	s.Expect(err).NotTo(HaveOccurred())
	s.Eventually(s.Frame, eventually, pace).Should(Equal(string(golden)))
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	t.Run("K8, K9: the tree fits a terminal of 80x24, is navigated with keys, and follows a resize", func(t *testing.T) {
		t.Parallel()
		s := show(t, 80, 24, terminal.Dark)
		s.expect("80x24", "▾ Cluster default/us")
		s.press("jjjjj")
		s.expect("80x24-pod", "Pod db/evil")
		s.press("/web-3\r")
		s.expect("80x24-filter", "filter: web-3")
		s.press("\x1b")
		s.shows("/ filter ")
		s.press("\x1b[D\x1b[D") // left: to the NodeMaintenance, which is then closed
		s.expect("80x24-folded", "▸ NM")
		s.Expect(s.Resize(40, 10)).To(Succeed())
		s.expect("40x10", "▸ NM")
		s.press("q")
		s.ends("ended")
	})

	t.Run("K8: a terminal of 200x50 shows everything, progress, and the end of a drain", func(t *testing.T) {
		t.Parallel()
		s := show(t, 200, 50, terminal.Dark)
		s.expect("200x50", "Cluster default/us")
		for step := 1; step <= 4; step++ {
			s.next()
			s.shows(fmt.Sprintf("%d/8", step))
		}
		s.expect("200x50-later", "4/8")
		s.next()
		s.expect("200x50-deleted", "Deleted")
	})

	t.Run("K9: Enter opens why for the selected Machine, and Esc closes it", func(t *testing.T) {
		t.Parallel()
		s := show(t, 80, 24, terminal.Dark)
		s.shows("default/us")
		s.press("jjj\r")
		s.expect("80x24-why", "A line of the report")
		s.press("\x1b")
		s.shows("default/us")
		s.press("\x03")
		s.ends("ended: interrupted")
	})

	t.Run("K9: colors fit the background, and NO_COLOR disables them", func(t *testing.T) {
		t.Parallel()
		dark, light, none := show(t, 80, 24, terminal.Dark), show(t, 80, 24, terminal.Light), show(t, 80, 24, terminal.Dark, "NO_COLOR=1")
		dark.Eventually(func() string { return dark.Color("Not read") }, eventually, pace).Should(Equal("ffaf00"))
		light.Eventually(func() string { return light.Color("Not read") }, eventually, pace).Should(Equal("af5f00"))
		none.shows("default/us")
		none.Expect(none.Output()).NotTo(MatchRegexp(`\x1b\[[0-9;]*[34]8[;:]`))
		none.Expect(dark.Output()).To(MatchRegexp(`\x1b\[[0-9;]*38[;:]`))
	})

	t.Run("K6: text from clusters cannot control the terminal of the view", func(t *testing.T) {
		t.Parallel()
		s := show(t, 200, 50, terminal.Dark)
		s.shows("db/evil")
		s.Expect(s.Output()).NotTo(ContainSubstring("title\a"))
		s.Expect(s.Output()).NotTo(ContainSubstring("\u202e"))
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

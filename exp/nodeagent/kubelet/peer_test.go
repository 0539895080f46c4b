package kubelet

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
)

// listenVariable is set for a process that listens in the place of the kubelet.
const listenVariable = "CAPNM_TEST_LISTEN"

func TestMain(m *testing.M) {
	if os.Getenv(listenVariable) != "" {
		listen()
		return
	}
	os.Exit(m.Run())
}

// listen answers as a kubelet. It writes its address to the standard output, the token of each request, and when a connection ends. It ends
// with its standard input.
func listen() {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println("token " + r.Header.Get("Authorization"))
		_, _ = w.Write([]byte("{}"))
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			fmt.Println("closed")
		}
	}
	server.StartTLS()
	fmt.Println(server.URL)
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// received returns what a process of a user receives that listens in the place of the kubelet, and the error that the agent returns.
func received(t *testing.T, user uint32) (output []string, err error) {
	t.Helper()
	g := NewWithT(t)
	process := exec.CommandContext(t.Context(), "/proc/self/exe") // the other user may not read the directory of this program
	process.Env = append(os.Environ(), listenVariable+"=yes")
	process.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	process.Stderr = os.Stderr
	stdin, err := process.StdinPipe()
	g.Expect(err).NotTo(HaveOccurred())
	stdout, err := process.StdoutPipe()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(process.Start()).To(Succeed())
	defer func() {
		_ = stdin.Close()
		g.Expect(process.Wait()).To(Succeed())
	}()
	lines := bufio.NewScanner(stdout)
	g.Expect(lines.Scan()).To(BeTrue(), "the process must write its address")
	address, err := url.Parse(lines.Text())
	g.Expect(err).NotTo(HaveOccurred())
	port, err := strconv.ParseInt(address.Port(), 10, 32)
	g.Expect(err).NotTo(HaveOccurred())
	token := filepath.Join(t.TempDir(), "token")
	g.Expect(os.WriteFile(token, []byte("secret"), 0o600)).To(Succeed())
	_, err = New(token).Pods(t.Context(), int32(port))
	for lines.Scan() && lines.Text() != "closed" {
		output = append(output, lines.Text())
	}
	return output, err
}

func TestTokenOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: root is required, to run a process as another user")
	}
	t.Run("S93: a process of another user that listens in the place of the kubelet does not receive the token of the agent", func(t *testing.T) {
		g := NewWithT(t)
		output, err := received(t, 65534)
		g.Expect(err).To(MatchError(ContainSubstring("a process of user 65534")))
		g.Expect(output).To(BeEmpty())
	})
	t.Run("S93: a process of root receives it", func(t *testing.T) {
		g := NewWithT(t)
		output, err := received(t, 0)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(output).To(Equal([]string{"token Bearer secret"}))
	})
}

func TestRedirectedToken(t *testing.T) {
	t.Run("S93: the agent does not send its token where the kubelet redirects it to", func(t *testing.T) {
		g, redirected := NewWithT(t), false
		other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { redirected = true }))
		defer other.Close()
		server := httptest.NewTLSServer(http.RedirectHandler(other.URL, http.StatusFound))
		defer server.Close()
		address, err := url.Parse(server.URL)
		g.Expect(err).NotTo(HaveOccurred())
		port, err := strconv.ParseInt(address.Port(), 10, 32)
		g.Expect(err).NotTo(HaveOccurred())
		token := filepath.Join(t.TempDir(), "token")
		g.Expect(os.WriteFile(token, []byte("secret"), 0o600)).To(Succeed())
		_, err = New(token).Pods(t.Context(), int32(port))
		g.Expect(err).To(MatchError(ContainSubstring("302 Found")))
		g.Expect(redirected).To(BeFalse())
	})
}

func TestUserOf(t *testing.T) {
	const header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	line := func(local, remote, state, user, inode string) string {
		return fmt.Sprintf("   7: %s %s %s 00000000:00000000 00:00000000 00000000 %5s        0 %s 1 00000000d43407d8 100 0 0 10 0\n",
			local, remote, state, user, inode)
	}
	const any4, server4, client4, other4 = "00000000:0000", "0100007F:280A", "0100007F:C350", "0200007F:280A"
	const mapped = "0000000000000000FFFF0000"
	for name, tc := range map[string]struct {
		table4, table6 string
		want           int
		err            string
	}{
		"S93: of a kubelet that listens on an IPv4 address": {
			table4: line(any4, any4, "0A", "8", "11") + line(client4, server4, "01", "9", "12") + line(server4, client4, "01", "7", "13"), want: 7,
		},
		"S93: of a kubelet that listens on all addresses": {table6: line(mapped+server4, mapped+client4, "01", "7", "13"), want: 7},
		"S93: of none, if no process has accepted the connection": {
			table4: line(server4, any4, "0A", "0", "11") + line(server4, client4, "01", "0", "0"), err: "no process of this node has accepted",
		},
		"S93: of none, if the connection was redirected to another address": {
			table4: line(server4, any4, "0A", "0", "11") + line(other4, client4, "01", "0", "13"), err: "no process of this node has accepted",
		},
		"S93: of none, if the table cannot be understood": {table4: " " + server4 + " " + client4 + " \n", err: "no process of this node has accepted"},
		"S93: of none, if the ID is not a number":         {table4: line(server4, client4, "01", "x", "13"), err: "parsing the ID"},
	} {
		t.Run(name, func(t *testing.T) {
			g, dir := NewWithT(t), t.TempDir()
			var files []string
			for i, table := range []string{tc.table4, tc.table6} {
				files = append(files, filepath.Join(dir, strconv.Itoa(i)))
				if table != "" {
					g.Expect(os.WriteFile(files[i], []byte(header+table), 0o600)).To(Succeed())
				}
			}
			user, err := userOf("127.0.0.1:10250", "127.0.0.1:50000", files[0], files[1])
			if tc.err != "" {
				g.Expect(err).To(MatchError(ContainSubstring(tc.err)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(user).To(Equal(tc.want))
		})
	}
}

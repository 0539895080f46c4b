package realnode_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"runtime"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// listenAs listens on a loopback port with TLS, and accepts two connections as this user. It returns what each of them sends.
func (s *scene) listenAs(user uintptr, port int32) <-chan string {
	s.Helper()
	server := httptest.NewTLSServer(nil)
	config := &tls.Config{Certificates: server.TLS.Certificates}
	server.Close()
	var listener net.Listener
	s.Eventually(func() (err error) { // the kubelet may still listen
		listener, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		return err
	}, eventually, pace).Should(Succeed())
	received := make(chan string, 2)
	go func() {
		defer func() { _ = listener.Close() }()
		runtime.LockOSThread() // the thread ends with the goroutine: the process that accepts a connection owns it
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, user, 0, 0)
		for range cap(received) {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			content, _ := io.ReadAll(tls.Server(conn, config))
			_ = conn.Close()
			received <- string(content)
		}
	}()
	return received
}

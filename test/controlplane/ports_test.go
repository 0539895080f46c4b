package controlplane

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	. "github.com/onsi/gomega"
)

func TestPortBlocksAreExclusive(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	block, err := reservePorts()
	g.Expect(err).NotTo(HaveOccurred())
	dir := t.TempDir()

	free, err := tryBlock(dir, block.first)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(free).NotTo(BeNil())
	held, err := tryBlock(dir, block.first)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(held).To(BeNil(), "another owner holds it")
	free.release()

	listener, err := net.Listen("tcp", loopback(block.of(Kwok)))
	g.Expect(err).NotTo(HaveOccurred())
	busy, err := tryBlock(dir, block.first)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(busy).To(BeNil(), "another program listens there")
	g.Expect(listener.Close()).To(Succeed())
	block.release()
}

func TestPortsStayReserved(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	port, _, err := ReservePort()
	g.Expect(err).NotTo(HaveOccurred())
	g.Consistently(func() (*portBlock, error) {
		runtime.GC() // it closes files that nothing refers to
		return tryBlock(filepath.Join(os.TempDir(), fmt.Sprintf("capnm-ports-%d", os.Getuid())), port)
	}).Should(BeNil())
}

package controlplane

import (
	"net"
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

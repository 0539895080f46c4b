package main

import (
	"os"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestOutput(t *testing.T) {
	t.Run("S60: output that no container runtime reads does not block the agent", func(t *testing.T) {
		g := NewWithT(t)
		var pipe [2]int
		g.Expect(syscall.Pipe(pipe[:])).To(Succeed())
		output := os.NewFile(uintptr(pipe[1]), "stderr")
		defer func() { _ = output.Close() }()
		defer func() { _ = syscall.Close(pipe[0]) }()
		g.Expect(neverBlock(pipe[1])).To(Succeed())
		written := make(chan error, 1)
		go func() {
			for {
				if _, err := output.WriteString("a line of the log\n"); err != nil {
					written <- err
					return
				}
			}
		}()
		g.Eventually(written).WithTimeout(time.Minute).Should(Receive(MatchError(syscall.EAGAIN)))
	})
}

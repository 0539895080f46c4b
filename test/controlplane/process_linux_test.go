package controlplane

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// inChild makes the test binary run TestKilledProcessLeavesNothing as the killed process.
const inChild = "CONTROLPLANE_TEST_CHILD"

func TestKilledProcessLeavesNothing(t *testing.T) {
	if os.Getenv(inChild) != "" {
		startAndHang(t)
		return
	}
	t.Parallel()
	g := NewWithT(t)
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), inChild+"=1")
	child.Stderr = os.Stderr
	output, err := child.StdoutPipe()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(startBound(child)).To(Succeed())
	pids, dir := startedBy(bufio.NewScanner(output))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	g.Expect(pids).To(HaveLen(5))
	for _, pid := range pids {
		g.Expect(alive(pid)).To(BeTrue())
	}

	g.Expect(child.Process.Kill()).To(Succeed())
	g.Expect(child.Wait()).NotTo(Succeed())
	for _, pid := range pids {
		g.Eventually(func() bool { return alive(pid) }, patience).Should(BeFalse())
	}
}

// startAndHang is the child: it reports what it has started and never exits.
func startAndHang(t *testing.T) {
	t.Helper()
	cluster, err := Start(t.Context(), Options{Name: "orphan", Scheduler: true, Kwok: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range cluster.processes {
		fmt.Println("\npid", process.PID())
	}
	fmt.Println("\nstarted", cluster.Dir())
	select {}
}

func startedBy(lines *bufio.Scanner) (pids []int, dir string) {
	for lines.Scan() {
		var pid int
		if _, err := fmt.Sscanf(lines.Text(), "pid %d", &pid); err == nil {
			pids = append(pids, pid)
		}
		if dir, found := strings.CutPrefix(lines.Text(), "started "); found {
			return pids, dir
		}
	}
	return pids, ""
}

// alive returns whether a process exists and is not a zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// pid (command) state ...
	after := string(stat[bytes.LastIndexByte(stat, ')')+1:])
	return !strings.HasPrefix(after, " Z")
}

package nodeagent

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	. "github.com/onsi/gomega"

	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/logind"
)

func TestDropInIsRemoved(t *testing.T) {
	for name, preparing := range map[string]bool{
		"S90: the drop-in of logind is removed when the agent's Pod is deleted": false,
		"S90: the drop-in of logind stays when the node shuts down":             true,
	} {
		t.Run(name, func(t *testing.T) {
			g, dir := NewWithT(t), t.TempDir()
			bus := &systemBus{answers: map[string]any{
				"PreparingForShutdown": false, "InhibitDelayMaxUSec": uint64(5_000_000), "Inhibit": lock(t), "KillUnit": dbus.ObjectPath("/"),
			}}
			keeper := busKeeper(t, bus)
			keeper.DelayFor(time.Minute, dir)
			ctx, end := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				keeper.Run(ctx)
			}()
			g.Eventually(keeper.State).WithTimeout(time.Minute).Should(HaveField("Held", true))
			g.Expect(os.ReadDir(dir)).To(HaveLen(1))
			if preparing {
				bus.prepare(true)
				g.Eventually(keeper.State).WithTimeout(time.Minute).Should(HaveField("Preparing", true))
			}
			before := bus.calls("KillUnit")
			end()
			g.Eventually(ended).WithTimeout(time.Minute).Should(BeClosed())
			if preparing {
				g.Expect(os.ReadDir(dir)).To(HaveLen(1))
				g.Expect(keeper.Locked()).To(BeTrue())
				return
			}
			g.Expect(os.ReadDir(dir)).To(BeEmpty())
			g.Expect(bus.calls("KillUnit")).To(Equal(before+1), "logind reads its configuration")
			g.Expect(keeper.Locked()).To(BeFalse())
		})
	}
}

func TestDropInIsUsedByAnother(t *testing.T) {
	// delayed starts a Keeper that wants the drop-in, and returns a function that ends it as SIGTERM does.
	delayed := func(t *testing.T, dir string) (bus *systemBus, keeper *logind.Keeper, end func()) {
		t.Helper()
		g := NewWithT(t)
		bus = &systemBus{answers: map[string]any{
			"PreparingForShutdown": false, "InhibitDelayMaxUSec": uint64(5_000_000), "Inhibit": lock(t), "KillUnit": dbus.ObjectPath("/"),
		}}
		keeper = busKeeper(t, bus)
		keeper.DelayFor(time.Minute, dir)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { keeper.Run(ctx) })
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(HaveField("Held", true))
		return bus, keeper, func() { cancel(); running.Wait() }
	}
	t.Run("S90: the drop-in of logind stays until the last container of the agent on the node ends", func(t *testing.T) {
		t.Parallel()
		g, dir := NewWithT(t), t.TempDir()
		bus, first, endFirst := delayed(t, dir)
		_, _, endSecond := delayed(t, dir)
		before := bus.calls("KillUnit")
		endFirst()
		g.Expect(first.Locked()).To(BeFalse())
		g.Expect(os.ReadDir(dir)).To(HaveLen(1))
		g.Expect(bus.calls("KillUnit")).To(Equal(before), "logind need not read its configuration")
		_, _, endRestarted := delayed(t, dir)
		endSecond()
		g.Expect(os.ReadDir(dir)).To(HaveLen(1))
		endRestarted()
		g.Expect(os.ReadDir(dir)).To(BeEmpty())
	})
	t.Run("S90: a container that ends before it has connected to the bus does not remove the drop-in of another", func(t *testing.T) {
		t.Parallel()
		g, dir := NewWithT(t), t.TempDir()
		_, _, end := delayed(t, dir)
		starting := busKeeper(t, &systemBus{answers: map[string]any{"KillUnit": dbus.ObjectPath("/")}})
		starting.DelayFor(time.Minute, dir)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		starting.Run(ended)
		g.Expect(os.ReadDir(dir)).To(HaveLen(1))
		end()
		g.Expect(os.ReadDir(dir)).To(BeEmpty())
	})
	t.Run("S2: the drop-in of logind stays while another container uses it, and is removed when that has ended without removing it", func(t *testing.T) {
		t.Parallel()
		g, dir := NewWithT(t), t.TempDir()
		bus, keeper, _ := delayed(t, dir)
		another, err := os.Open(dir)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(syscall.Flock(int(another.Fd()), syscall.LOCK_SH)).To(Succeed())
		keeper.DelayFor(0, dir)
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(HaveField("Held", false))
		g.Expect(os.ReadDir(dir)).To(HaveLen(1))
		before := bus.calls("KillUnit")
		g.Expect(another.Close()).To(Succeed())
		g.Eventually(func() int { return bus.calls("KillUnit") }).WithTimeout(time.Minute).Should(Equal(before + 1))
		g.Expect(os.ReadDir(dir)).To(BeEmpty())
	})
	t.Run("S90: an agent that starts while the last one removes the drop-in writes it again", func(t *testing.T) {
		t.Parallel()
		g, dir := NewWithT(t), t.TempDir()
		leaving, err := os.Open(dir)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(syscall.Flock(int(leaving.Fd()), syscall.LOCK_EX)).To(Succeed())
		bus, keeper, _ := delayed(t, dir)
		g.Expect(os.Remove(filepath.Join(dir, "90-node-maintenance.conf"))).To(Succeed())
		before := bus.calls("KillUnit")
		g.Expect(leaving.Close()).To(Succeed())
		g.Eventually(func() int { return bus.calls("KillUnit") }).WithTimeout(time.Minute).Should(BeNumerically(">", before))
		g.Expect(os.ReadDir(dir)).To(HaveLen(1))
		g.Expect(keeper.State().Held).To(BeTrue())
	})
}

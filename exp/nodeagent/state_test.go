package nodeagent

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	. "github.com/onsi/gomega"

	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

func TestKubeletIsStartedByTheSecondContainer(t *testing.T) {
	t.Run("S80: the kubelet is started when a shutdown is cancelled in which the agent has stopped it and ended, and only once", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		agent, bus := agentOf(t, &apiServer{hangs: true}), &systemBus{answers: map[string]any{
			"PreparingForShutdown": true, "StopUnit": dbus.ObjectPath("/job"), "StartUnit": dbus.ObjectPath("/job"),
		}}
		agent.Keeper = keeperOn(t, bus)
		withoutRuntime(t, agent)
		g.Eventually(agent.Keeper.State).WithTimeout(time.Minute).Should(HaveField("Known", true))
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			agent.terminatePods(ctx, time.Minute)
		}()
		g.Eventually(func() int { return bus.calls("StopUnit") }).WithTimeout(time.Minute).Should(BeNumerically(">", 0))
		end()
		g.Eventually(ended).WithTimeout(time.Minute).Should(BeClosed())

		second := &systemBus{answers: map[string]any{"PreparingForShutdown": true, "StartUnit": dbus.ObjectPath("/job")}}
		keeper := keeperOn(t, second)
		go KeepLock(t.Context(), shutdown.Defaults(), &Agent{State: agent.State, Keeper: keeper})
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(HaveField("Preparing", true))
		g.Consistently(func() int { return second.calls("StartUnit") }, time.Second).Should(BeZero())
		second.prepare(false)
		g.Eventually(agent.State.KubeletStopped).WithTimeout(time.Minute).Should(BeFalse())
		second.prepare(true)
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(HaveField("Preparing", true))
		second.prepare(false)
		g.Consistently(func() int { return second.calls("StartUnit") }, time.Second).Should(Equal(1))
	})
}

func TestSecondContainerTerminatesPods(t *testing.T) {
	t.Run("S88: the second container terminates the Pods that remain when an agent that has stopped the kubelet ends, and releases its lock", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		bus := &systemBus{answers: map[string]any{
			"PreparingForShutdown": false, "InhibitDelayMaxUSec": uint64(61_000_000), "Inhibit": lock(t), "StopUnit": dbus.ObjectPath("/job"),
		}}
		second := agentOf(t, &apiServer{hangs: true})
		second.Keeper, second.PodUID = keeperOn(t, bus), "agent"
		second.Keeper.DelayFor(time.Minute, "")
		terminated, remains := make(chan string, 10), atomic.Bool{}
		remains.Store(true)
		withRuntime(t, second, runtimeServer{
			running: func() []string {
				if remains.Load() {
					return []string{"agent", "remains"}
				}
				return []string{"agent"}
			},
			stop: func(_ context.Context, id string) error {
				remains.Store(false)
				terminated <- id
				return nil
			},
		})
		g.Eventually(second.Keeper.State).WithTimeout(time.Minute).Should(HaveField("Held", true))
		var running sync.WaitGroup
		t.Cleanup(running.Wait) // it may still write its state
		running.Go(func() { KeepLock(t.Context(), shutdown.Defaults(), second) })
		bus.prepare(true)

		g.Expect(runningAgent(t, second.State).Close()).To(Succeed())
		g.Consistently(terminated, time.Second).ShouldNot(Receive(), "the kubelet restarts the agent")
		agent := runningAgent(t, second.State)
		g.Expect(second.State.SetKubeletStopped(true)).To(Succeed())
		g.Consistently(terminated, time.Second).ShouldNot(Receive(), "the agent terminates them")
		g.Expect(agent.Close()).To(Succeed())
		g.Eventually(terminated).WithTimeout(20 * time.Second).Should(Receive(Equal("remains")))
		g.Eventually(second.Keeper.Locked).WithTimeout(20*time.Second).Should(BeFalse(), "the deadline is after 30 s")
	})
}

// runningAgent returns the file that a running agent locks. To close it ends the agent.
func runningAgent(t *testing.T, state State) *os.File {
	t.Helper()
	g := NewWithT(t)
	file, err := os.OpenFile(filepath.Join(state.Dir, runningFile), os.O_CREATE|os.O_RDWR, 0o600)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(syscall.Flock(int(file.Fd()), syscall.LOCK_EX)).To(Succeed())
	return file
}

func TestRunningAgent(t *testing.T) {
	t.Run("S88: it is known that the agent has ended only after it has run", func(t *testing.T) {
		g, state := NewWithT(t), State{Dir: t.TempDir()}
		g.Expect(state.HasEnded()).To(BeFalse())
		g.Expect(runningAgent(t, state).Close()).To(Succeed())
		g.Expect(state.HasEnded()).To(BeTrue())
		g.Expect(state.SetRunning()).To(Succeed())
		g.Expect(state.HasEnded()).To(BeFalse())
	})
}

func TestStateIsFull(t *testing.T) {
	t.Run("S83: a state that cannot be written takes no memory from the others", func(t *testing.T) {
		g, state := NewWithT(t), State{Dir: t.TempDir()}
		g.Expect(os.Mkdir(filepath.Join(state.Dir, podsFile), 0o700)).To(Succeed()) // nothing can replace it
		g.Expect(state.SetKnownPods(map[string]shutdown.Known{"u1": {}})).NotTo(Succeed())
		g.Expect(os.ReadDir(state.Dir)).To(ConsistOf(HaveField("Name()", podsFile)))
	})
}

func TestStateOfBothContainers(t *testing.T) {
	t.Run("S80: both containers can record at the same time whether the kubelet is stopped", func(t *testing.T) {
		g, dir := NewWithT(t), t.TempDir()
		var writing sync.WaitGroup
		failures := make(chan error, 400)
		for _, process := range []string{"", "lock"} {
			writing.Go(func() {
				for range 200 {
					failures <- State{Dir: dir, Process: process}.SetKubeletStopped(true)
				}
			})
		}
		writing.Wait()
		close(failures)
		for failure := range failures {
			g.Expect(failure).NotTo(HaveOccurred())
		}
		g.Expect(State{Dir: dir}.KubeletStopped()).To(BeTrue())
	})
}

package nodeagent

import (
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/godbus/dbus/v5"
	. "github.com/onsi/gomega"

	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/containers"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/kubelet"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/logind"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/manifests"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

// withoutRuntime gives the agent a container runtime that does not answer.
func withoutRuntime(t *testing.T, agent *Agent) {
	t.Helper()
	var err error
	agent.Runtime, err = containers.Connect("agent", "/does/not/exist")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
}

// withKubelet gives the agent a Node whose kubelet is this server.
func withKubelet(t *testing.T, agent *Agent, server *httptest.Server) {
	t.Helper()
	g := NewWithT(t)
	address, err := url.Parse(server.URL)
	g.Expect(err).NotTo(HaveOccurred())
	port, err := strconv.ParseInt(address.Port(), 10, 32)
	g.Expect(err).NotTo(HaveOccurred())
	token := filepath.Join(t.TempDir(), "token")
	g.Expect(os.WriteFile(token, []byte("token"), 0o600)).To(Succeed())
	agent.node, agent.Kubelet = nodeOf("u1"), kubelet.New(token)
	agent.node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
}

func TestKubeletIsUnread(t *testing.T) {
	t.Run("S82: the agent reports a kubelet that refuses its requests, until it answers them", func(t *testing.T) {
		t.Parallel()
		g, answers := NewWithT(t), atomic.Bool{}
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/pods" && !answers.Load() {
				w.WriteHeader(http.StatusForbidden)
			}
			_, _ = w.Write([]byte("{}"))
		}))
		t.Cleanup(server.Close)
		agent := agentOf(t, &apiServer{})
		withKubelet(t, agent, server)
		withoutRuntime(t, agent)
		unread := func() string {
			agent.mu.Lock()
			defer agent.mu.Unlock()
			return agent.observed.Unread
		}
		go agent.pollKubelet(t.Context())
		g.Eventually(unread).WithTimeout(time.Minute).Should(ContainSubstring("requesting /pods from the kubelet: 403 Forbidden"))
		answers.Store(true)
		g.Eventually(unread).WithTimeout(time.Minute).Should(BeEmpty())
	})
	t.Run("S82: an agent that restarts in an outage of the API server does not report its kubelet, which refuses its requests", func(t *testing.T) {
		t.Parallel()
		g, refusals := NewWithT(t), atomic.Int32{}
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			refusals.Add(1)
			w.WriteHeader(http.StatusForbidden)
		}))
		t.Cleanup(server.Close)
		agent := agentOf(t, &apiServer{})
		withKubelet(t, agent, server)
		withoutRuntime(t, agent)
		g.Expect(agent.State.SetKubelet(KubeletState{})).To(Succeed())
		g.Expect(agent.State.SetKnownPods(map[string]shutdown.Known{"agent": {}})).To(Succeed())
		go agent.pollKubelet(t.Context())
		g.Eventually(refusals.Load).WithTimeout(time.Minute).Should(BeNumerically(">", 2), "those of the first attempt, and one more")
		agent.mu.Lock()
		defer agent.mu.Unlock()
		g.Expect(agent.observed.Unread).To(BeEmpty())
	})
}

func TestKubeletIsReadTwiceAtOnce(t *testing.T) {
	t.Run("S67: what the kubelet reports can be read when the agent requests it for a shutdown and once a minute at the same time", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"items":[{"metadata":{"uid":"u1"}}]}`))
		}))
		t.Cleanup(server.Close)
		agent := agentOf(t, &apiServer{})
		withKubelet(t, agent, server)
		withoutRuntime(t, agent)
		var running sync.WaitGroup
		failures := make(chan error, 80)
		for range 8 {
			running.Go(func() {
				for range 10 {
					failures <- agent.refreshPods(t.Context(), agent.port())
				}
			})
		}
		running.Wait()
		close(failures)
		for failure := range failures {
			g.Expect(failure).NotTo(HaveOccurred())
		}
		g.Expect(agent.State.KnownPods()).To(HaveKey("u1"))
	})
}

func TestKubeletIsStopping(t *testing.T) {
	for name, tc := range map[string]struct {
		before, after string
		want          bool
	}{
		"S62: a kubelet that is being stopped runs in its unit":                      {"deactivating", "deactivating", false},
		"S62: a kubelet that stops when it has answered runs in its unit":            {"active", "inactive", false},
		"S62: a kubelet that answers while its unit does not run is in another unit": {"inactive", "inactive", true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			bus := &systemBus{answers: map[string]any{"PreparingForShutdown": false, "GetUnit": dbus.ObjectPath("/kubelet"), "ActiveState": tc.before}}
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				bus.set("ActiveState", tc.after)
				_, _ = w.Write([]byte("{}"))
			}))
			t.Cleanup(server.Close)
			agent := agentOf(t, &apiServer{})
			agent.Keeper = keeperOn(t, bus)
			withKubelet(t, agent, server)
			withoutRuntime(t, agent)
			g.Eventually(agent.Keeper.State).WithTimeout(time.Minute).Should(HaveField("Known", true))
			g.Expect(agent.refresh(t.Context(), agent.port())).To(Succeed())
			g.Expect(agent.State.Kubelet().Elsewhere).To(Equal(tc.want))
		})
	}
}

func TestSystemdHangs(t *testing.T) {
	for name, ask := range map[string]func(context.Context, *logind.Keeper) error{
		"whether it runs the kubelet": func(ctx context.Context, keeper *logind.Keeper) error {
			_, err := keeper.RunsKubelet(ctx)
			return err
		},
		"to stop the kubelet": func(ctx context.Context, keeper *logind.Keeper) error { return keeper.StopKubelet(ctx) },
	} {
		t.Run("S62: the agent does not wait for a systemd that does not answer when it is asked "+name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			keeper := keeperOn(t, &systemBus{answers: map[string]any{
				"PreparingForShutdown": true, "GetUnit": dbus.ObjectPath("/kubelet"), "ActiveState": hangs{}, "StopUnit": hangs{},
			}})
			g.Eventually(keeper.State).WithTimeout(time.Minute).Should(HaveField("Known", true))
			asked := make(chan error, 1)
			go func() { asked <- ask(t.Context(), keeper) }()
			g.Eventually(asked).WithTimeout(time.Minute).Should(Receive(HaveOccurred()))
		})
	}
}

func TestSystemdHangsBeforeTheLock(t *testing.T) {
	t.Run("S1: the agent takes its lock although systemd does not answer when logind has to read a drop-in", func(t *testing.T) {
		t.Parallel()
		g, bus := NewWithT(t), &systemBus{answers: map[string]any{
			"PreparingForShutdown": false, "InhibitDelayMaxUSec": uint64(5_000_000), "KillUnit": hangs{},
		}}
		keeper := keeperOn(t, bus)
		keeper.DelayFor(time.Minute, t.TempDir())
		g.Eventually(func() int { return bus.calls("Inhibit") }).WithTimeout(time.Minute).Should(BeNumerically(">", 0))
	})
	t.Run("S2: the agent uses the time of a drop-in that logind reads after the agent has taken its lock", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		bus := &systemBus{answers: map[string]any{
			"PreparingForShutdown": false, "InhibitDelayMaxUSec": uint64(5_000_000), "KillUnit": hangs{}, "Inhibit": lock(t),
		}}
		keeper := keeperOn(t, bus)
		keeper.DelayFor(time.Minute, t.TempDir())
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(And(HaveField("DelayMax", 5*time.Second), HaveField("Held", true)))
		bus.set("InhibitDelayMaxUSec", uint64(30_000_000))
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(HaveField("DelayMax", 30*time.Second), "a file with a later name sets a shorter delay")
		bus.set("InhibitDelayMaxUSec", uint64(61_000_000))
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(And(HaveField("DelayMax", 61*time.Second), HaveField("Problem", "")))
	})
	t.Run("S2: an agent that could not read the delay when it took its lock reads it later", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		bus := &systemBus{answers: map[string]any{"PreparingForShutdown": false, "Inhibit": lock(t)}}
		keeper := keeperOn(t, bus)
		keeper.DelayFor(time.Minute, "")
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(And(HaveField("Held", true), HaveField("Delays()", false)))
		bus.set("InhibitDelayMaxUSec", uint64(61_000_000))
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(And(HaveField("Delays()", true), HaveField("Problem", "")))
	})
	t.Run("S78: a logind that allows any delay shortens none", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		keeper := keeperOn(t, &systemBus{answers: map[string]any{
			"PreparingForShutdown": false, "InhibitDelayMaxUSec": uint64(math.MaxUint64), "Inhibit": lock(t),
		}})
		keeper.DelayFor(time.Minute, "")
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(And(HaveField("Held", true), HaveField("Problem", "")))
		g.Expect(shutdown.Budget(shutdown.Defaults(), keeper.State().DelayMax)).To(Equal(30 * time.Second))
	})
	t.Run("S6: during a shutdown, the agent ignores a drop-in that logind reads then: it applies to the next one", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		bus := &systemBus{answers: map[string]any{
			"PreparingForShutdown": false, "InhibitDelayMaxUSec": uint64(5_000_000), "Inhibit": lock(t),
		}}
		keeper := keeperOn(t, bus)
		keeper.DelayFor(time.Minute, t.TempDir())
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(HaveField("Held", true))
		asked := 0
		bus.set("InhibitDelayMaxUSec", func() any {
			if keeper.State().Preparing {
				asked++
			}
			if asked > 1 { // the Keeper has asked when the shutdown began
				return uint64(61_000_000)
			}
			return uint64(5_000_000)
		})
		bus.prepare(true)
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(HaveField("Preparing", true))
		g.Consistently(keeper.State, 2*time.Second).Should(HaveField("DelayMax", 5*time.Second))
	})
}

func TestDelayThatWasShortened(t *testing.T) {
	t.Run("S69: a shutdown is delayed for less than logind allows when it begins, also if it allowed more when the lock was taken", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		bus := &systemBus{answers: map[string]any{
			"PreparingForShutdown": false, "InhibitDelayMaxUSec": uint64(61_000_000), "Inhibit": lock(t),
		}}
		keeper := keeperOn(t, bus)
		keeper.DelayFor(time.Minute, "")
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(And(HaveField("Held", true), HaveField("DelayMax", 61*time.Second)))
		bus.set("InhibitDelayMaxUSec", uint64(10_000_000))
		bus.prepare(true)
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(And(HaveField("Preparing", true), HaveField("DelayMax", 10*time.Second)))
	})
	t.Run("S69: the agent acts on a shutdown before logind answers which delay it allows", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		bus := &systemBus{answers: map[string]any{"PreparingForShutdown": false, "InhibitDelayMaxUSec": uint64(61_000_000)}}
		keeper := keeperOn(t, bus)
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(HaveField("Known", true))
		asked := make(chan logind.State, 10)
		bus.set("InhibitDelayMaxUSec", func() any { asked <- keeper.State(); return hangs{} })
		bus.prepare(true)
		g.Eventually(asked).WithTimeout(time.Minute).Should(Receive(HaveField("Preparing", true)))
	})
	for name, delay := range map[string]func(context.Context, *Agent){
		"the agent": func(ctx context.Context, agent *Agent) { agent.followShutdowns(ctx) },
		"the second container": func(ctx context.Context, agent *Agent) {
			KeepLock(ctx, shutdown.Defaults(), agent)
		},
	} {
		t.Run("S69: "+name+" delays a shutdown for less than logind allows, also if logind answers late", func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			bus := &systemBus{answers: map[string]any{
				"PreparingForShutdown": false, "InhibitDelayMaxUSec": uint64(61_000_000), "Inhibit": lock(t),
			}}
			agent := agentOf(t, &apiServer{hangs: true})
			agent.Keeper = keeperOn(t, bus)
			agent.Keeper.DelayFor(time.Minute, "")
			withoutRuntime(t, agent)
			g.Eventually(agent.Keeper.State).WithTimeout(time.Minute).Should(HaveField("Held", true))
			bus.prepare(true)
			g.Eventually(agent.Keeper.State).WithTimeout(time.Minute).Should(HaveField("Preparing", true))
			var running sync.WaitGroup
			t.Cleanup(running.Wait) // it may still write its state
			running.Go(func() { delay(t.Context(), agent) })
			begin := time.Now()
			g.Consistently(agent.Keeper.Locked, time.Second).Should(BeTrue())
			bus.set("InhibitDelayMaxUSec", uint64(1_000_000))
			bus.prepare(true)
			g.Eventually(agent.Keeper.Locked).WithTimeout(time.Minute).Should(BeFalse())
			g.Expect(time.Since(begin)).To(BeNumerically("<", 25*time.Second), "30 s are configured")
		})
	}
}

func TestKubeletIsStartedAgain(t *testing.T) {
	t.Run("S61: the kubelet is started again after a cancelled shutdown, also without the API server, and if systemd refuses that at first", func(t *testing.T) {
		g, server := NewWithT(t), &apiServer{maintenance: maintenanceOf(nodeOf("u1")), proxy: http.StatusBadGateway}
		agent, bus := agentOf(t, server), &systemBus{answers: map[string]any{"PreparingForShutdown": false}}
		g.Expect(agent.State.SetKubeletStopped(true)).To(Succeed())
		agent.Keeper = keeperOn(t, bus)
		g.Eventually(agent.Keeper.State).WithTimeout(time.Minute).Should(HaveField("Known", true))
		done := make(chan struct{})
		go func() {
			defer close(done)
			agent.revert(t.Context(), &podTermination{agent: agent})
		}()
		g.Eventually(func() int { return bus.calls("StartUnit") }).WithTimeout(time.Minute).
			Should(BeNumerically(">", 1), "this kubelet may have to run the API server")
		server.setProxy(0)
		g.Eventually(agent.State.Shutdown).WithTimeout(time.Minute).Should(BeNil(), "the NodeMaintenance is complete")
		g.Expect(done).NotTo(BeClosed())
		bus.set("StartUnit", dbus.ObjectPath("/job"))
		g.Eventually(done).WithTimeout(time.Minute).Should(BeClosed())
	})
	t.Run("S61: the agent does not repeat the start of a kubelet.service that does not exist", func(t *testing.T) {
		t.Parallel()
		g, server := NewWithT(t), &apiServer{maintenance: maintenanceOf(nodeOf("u1"))}
		noSuchUnit := refused("org.freedesktop.systemd1.NoSuchUnit")
		agent, bus := agentOf(t, server), &systemBus{answers: map[string]any{
			"PreparingForShutdown": false, "StopUnit": noSuchUnit, "StartUnit": noSuchUnit,
		}}
		agent.Keeper = keeperOn(t, bus)
		g.Eventually(agent.Keeper.State).WithTimeout(time.Minute).Should(HaveField("Known", true))
		g.Expect(agent.stopKubelet(t.Context())).NotTo(Succeed())
		go agent.revert(t.Context(), &podTermination{agent: agent})
		g.Eventually(agent.kubeletStopped).WithTimeout(time.Minute).Should(BeFalse())
		g.Expect(bus.calls("StartUnit")).To(Equal(1))
		g.Eventually(agent.State.Shutdown).WithTimeout(time.Minute).Should(BeNil(), "the NodeMaintenance is complete")
	})
	t.Run("S61: a kubelet that could not be started after a cancelled shutdown is started in the next one, before Pods are terminated", func(t *testing.T) {
		g, server := NewWithT(t), &apiServer{maintenance: maintenanceOf(nodeOf("u1")), proxy: http.StatusBadGateway}
		agent, bus := agentOf(t, server), &systemBus{answers: map[string]any{"PreparingForShutdown": true, "StopUnit": dbus.ObjectPath("/job")}}
		agent.Keeper = keeperOn(t, bus)
		withoutRuntime(t, agent)
		starts := func() int { return bus.calls("StartUnit") }
		go agent.followShutdowns(t.Context())
		g.Eventually(func() int { return bus.calls("StopUnit") }).WithTimeout(time.Minute).Should(BeNumerically(">", 0))
		bus.prepare(false)
		g.Eventually(starts).WithTimeout(time.Minute).Should(BeNumerically(">", 0), "systemd refuses it")
		bus.prepare(true)
		g.Eventually(agent.State.Shutdown).WithTimeout(time.Minute).Should(HaveField("Cancelled", false))
		before := starts()
		g.Eventually(starts).WithTimeout(time.Minute).Should(BeNumerically(">", before))
	})
}

func TestKubeletIsStoppedWhenTheSecondContainerStartsIt(t *testing.T) {
	t.Run("S80: the agent starts the kubelet if it has stopped it just after the second container has started it", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		agent, bus := agentOf(t, &apiServer{hangs: true}), &systemBus{answers: map[string]any{
			"PreparingForShutdown": true, "StopUnit": dbus.ObjectPath("/job"), "StartUnit": dbus.ObjectPath("/job"),
		}}
		agent.Keeper = keeperOn(t, bus)
		g.Eventually(agent.Keeper.State).WithTimeout(time.Minute).Should(HaveField("Known", true))
		g.Expect(agent.stopKubelet(t.Context())).To(Succeed())
		g.Expect(agent.State.SetKubeletStopped(false)).To(Succeed(), "by the second container")
		for range 2 {
			(&podTermination{agent: agent}).stop(t.Context())
			g.Expect(bus.calls("StartUnit")).To(Equal(1))
		}
	})
}

func TestKubeletIsStartedAfterItWasStopped(t *testing.T) {
	t.Run("S80: a shutdown that is cancelled while systemd stops the kubelet does not have it started before it was stopped", func(t *testing.T) {
		t.Parallel()
		g, asked, answer := NewWithT(t), make(chan struct{}), make(chan struct{})
		keeper := keeperOn(t, &systemBus{answers: map[string]any{"PreparingForShutdown": true, "StopUnit": func() any {
			close(asked)
			<-answer
			return dbus.ObjectPath("/job")
		}}})
		g.Eventually(keeper.State).WithTimeout(time.Minute).Should(HaveField("Known", true))
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- keeper.StopKubelet(ctx) }()
		g.Eventually(asked).WithTimeout(time.Minute).Should(BeClosed())
		cancel()
		g.Consistently(stopped, 300*time.Millisecond).ShouldNot(Receive())
		close(answer)
		g.Eventually(stopped).WithTimeout(time.Minute).Should(Receive(BeNil()))
	})
}

func TestKubeletIsStoppedAgain(t *testing.T) {
	t.Run("S86: the agent stops the kubelet again while it terminates Pods: another actor may have started it", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		agent, bus := agentOf(t, &apiServer{hangs: true}), &systemBus{answers: map[string]any{"PreparingForShutdown": true, "StopUnit": dbus.ObjectPath("/job")}}
		agent.Keeper = keeperOn(t, bus)
		withoutRuntime(t, agent)
		g.Eventually(agent.Keeper.State).WithTimeout(time.Minute).Should(HaveField("Known", true))
		var terminating sync.WaitGroup
		t.Cleanup(terminating.Wait) // it may still write its state
		terminating.Go(func() { agent.terminatePods(t.Context(), time.Minute) })
		g.Eventually(func() int { return bus.calls("StopUnit") }).WithTimeout(30 * time.Second).Should(BeNumerically(">", 2))
	})
}

func TestKubeletIsStoppedOnADrainedNode(t *testing.T) {
	t.Run("S87: the agent stops the kubelet also if no Pod remains, and waits until it has ended: the kubelet would start new Pods", func(t *testing.T) {
		t.Parallel()
		g, asked := NewWithT(t), atomic.Int32{}
		agent, bus := agentOf(t, &apiServer{hangs: true}), &systemBus{answers: map[string]any{
			"PreparingForShutdown": true, "StopUnit": dbus.ObjectPath("/job"), "GetUnit": dbus.ObjectPath("/kubelet"),
			"ActiveState": func() any {
				if asked.Add(1) < 3 {
					return "deactivating"
				}
				return "inactive"
			},
		}}
		agent.Keeper, agent.PodUID = keeperOn(t, bus), "agent"
		withRuntime(t, agent, runtimeServer{running: func() []string { return []string{"agent"} }})
		g.Eventually(agent.Keeper.State).WithTimeout(time.Minute).Should(HaveField("Known", true))
		agent.terminatePods(t.Context(), time.Minute)
		g.Expect(bus.calls("StopUnit")).To(BeNumerically(">", 0))
		g.Expect(asked.Load()).To(BeEquivalentTo(3))
	})
	t.Run("S87: the agent does not wait until the deadline for a kubelet that does not end", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		agent, bus := agentOf(t, &apiServer{hangs: true}), &systemBus{answers: map[string]any{
			"PreparingForShutdown": true, "StopUnit": dbus.ObjectPath("/job"), "GetUnit": dbus.ObjectPath("/kubelet"), "ActiveState": "deactivating",
		}}
		agent.Keeper, agent.PodUID = keeperOn(t, bus), "agent"
		withRuntime(t, agent, runtimeServer{running: func() []string { return []string{"agent"} }})
		g.Eventually(agent.Keeper.State).WithTimeout(time.Minute).Should(HaveField("Known", true))
		start := time.Now()
		agent.terminatePods(t.Context(), time.Hour)
		g.Expect(time.Since(start)).To(BeNumerically("<", time.Minute))
	})
}

func TestRestartInShutdown(t *testing.T) {
	t.Run("S61: an agent that restarts in a shutdown does not take it for an earlier one that was cancelled, also if logind allows more time", func(t *testing.T) {
		g := NewWithT(t)
		agent := agentOf(t, &apiServer{hangs: true})
		g.Expect(agent.State.SetShutdown(Shutdown{Since: uptime() - 2*time.Minute})).To(Succeed())
		agent.Keeper = keeperOn(t, &systemBus{answers: map[string]any{"PreparingForShutdown": true, "InhibitDelayMaxUSec": uint64(600_000_000)}})
		agent.Keeper.DelayFor(time.Minute, "")
		withoutRuntime(t, agent)
		g.Eventually(agent.Keeper.State).WithTimeout(time.Minute).Should(And(HaveField("Known", true), HaveField("DelayMax", 10*time.Minute)))
		go agent.followShutdowns(t.Context())
		g.Eventually(agent.State.Shutdown).WithTimeout(time.Minute).Should(HaveField("Since", BeNumerically(">", uptime()-time.Minute)))
		g.Expect(agent.State.Shutdown().Released).To(BeFalse())
	})
	t.Run("S89: an agent that restarts in a shutdown continues it, also if the clock was set meanwhile", func(t *testing.T) {
		g, agent, before := NewWithT(t), agentOf(t, &apiServer{}), Shutdown{}
		g.Expect(agent.State.ClearShutdown()).To(Succeed())
		synctest.Test(t, func(t *testing.T) { before = agent.begin(t.Context(), time.Minute) }) // in here, it is the year 2000
		after := agent.begin(t.Context(), time.Minute)
		g.Expect(after).To(Equal(before))
		g.Expect(after.begin()).To(BeTemporally("~", time.Now(), 30*time.Second))
	})
	t.Run("S7: without the API server, an agent that has restarted in a shutdown leaves the Pods to the kubelet that terminates them", func(t *testing.T) {
		g := NewWithT(t)
		agent := agentOf(t, &apiServer{hangs: true})
		g.Expect(agent.State.SetKubelet(KubeletState{TerminatesPods: true})).To(Succeed())
		bus := &systemBus{answers: map[string]any{"PreparingForShutdown": true}}
		agent.Keeper, agent.Manifests = keeperOn(t, bus), manifests.Store{Dir: t.TempDir()}
		withoutRuntime(t, agent)
		go agent.Run(t.Context(), shutdown.Defaults())
		g.Eventually(agent.State.Shutdown).WithTimeout(time.Minute).Should(HaveField("Released", true))
		g.Expect(bus.calls("StopUnit")).To(BeZero())
	})
}

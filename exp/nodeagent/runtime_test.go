package nodeagent

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/containers"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

// runtimeServer is a container runtime in which each Pod has one container, whose ID is the UID of the Pod. The Pods whose UIDs begin with
// agent are those of the agent.
type runtimeServer struct {
	runtimev1.UnimplementedRuntimeServiceServer

	// running returns the UIDs of the Pods that run.
	running func() []string
	// stop stops a container.
	stop func(ctx context.Context, id string) error
}

// withRuntime gives the agent this container runtime.
func withRuntime(t *testing.T, agent *Agent, server runtimeServer) {
	t.Helper()
	g := NewWithT(t)
	dir, err := os.MkdirTemp("", "cri") //nolint:usetesting // the path of a socket has at most 108 characters
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "socket")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	g.Expect(err).NotTo(HaveOccurred())
	serving := grpc.NewServer()
	t.Cleanup(serving.Stop)
	runtimev1.RegisterRuntimeServiceServer(serving, server)
	go func() { _ = serving.Serve(listener) }()
	agent.Runtime, err = containers.Connect("agent", socket)
	g.Expect(err).NotTo(HaveOccurred())
}

func (r runtimeServer) ListContainers(_ context.Context, request *runtimev1.ListContainersRequest) (*runtimev1.ListContainersResponse, error) {
	const label = "io.kubernetes.pod.uid"
	uids := []string{request.GetFilter().GetLabelSelector()[label]}
	if uids[0] == "" {
		uids = r.running()
	}
	response := &runtimev1.ListContainersResponse{}
	for _, uid := range uids {
		labels := map[string]string{label: uid}
		if strings.HasPrefix(uid, "agent") {
			labels["io.kubernetes.pod.namespace"] = "capnm-node-agent"
		}
		response.Containers = append(response.Containers, &runtimev1.Container{Id: uid, Labels: labels})
	}
	return response, nil
}

func (r runtimeServer) StopContainer(ctx context.Context, request *runtimev1.StopContainerRequest) (*runtimev1.StopContainerResponse, error) {
	return &runtimev1.StopContainerResponse{}, r.stop(ctx, request.GetContainerId())
}

func TestPhases(t *testing.T) {
	t.Run("S6: Pods that have not terminated in the period of their phase take no time of the next phase", func(t *testing.T) {
		t.Parallel()
		g, agent := NewWithT(t), agentOf(t, &apiServer{})
		critical, late := make(chan struct{}), make(chan struct{})
		withRuntime(t, agent, runtimeServer{stop: func(ctx context.Context, id string) error {
			if id == "critical" {
				close(critical)
				return nil
			}
			select {
			case <-critical:
				return nil
			case <-ctx.Done():
				close(late)
				return ctx.Err()
			}
		}})
		agent.terminateByPhase(t.Context(), []shutdown.Pod{
			{UID: "regular", GracePeriod: time.Hour}, {UID: "critical", GracePeriod: time.Hour, Known: shutdown.Known{Priority: 2_000_000_000}},
		}, 3*time.Second)
		g.Expect(critical).To(BeClosed())
		g.Expect(late).NotTo(BeClosed(), "the critical Pod has received SIGTERM only after the regular one was given up")
	})
}

func TestConditionBeforeTheFirstAnswer(t *testing.T) {
	// reporting returns an agent that has everything for its condition but the state of logind, and the messages of its events.
	reporting := func(t *testing.T) (agent *Agent, events func() []string) {
		t.Helper()
		server := &apiServer{maintenance: maintenanceOf(nodeOf("u1"))}
		agent = agentOf(t, server)
		agent.node, agent.observed.Runtime.Known = nodeOf("u1"), true
		return agent, func() []string {
			server.mu.Lock()
			defer server.mu.Unlock()
			return server.events
		}
	}
	t.Run("S2: the agent does not report that it cannot delay a shutdown before logind has answered, or was found not to", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		agent, events := reporting(t)
		agent.Keeper = busKeeper(t, &systemBus{answers: map[string]any{}})
		agent.Keeper.DelayFor(time.Minute, "")
		go agent.reportCondition(t.Context())
		g.Consistently(events, 300*time.Millisecond).Should(BeEmpty())
		go agent.Keeper.Run(t.Context())
		g.Eventually(events).WithTimeout(time.Minute).Should(ContainElement(ContainSubstring("ServiceUnknown")))
	})
	t.Run("S2: nor when the Node selects a configuration that enables the delay, and the one for all Nodes does not", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		agent, events := reporting(t)
		agent.Keeper = keeperOn(t, &systemBus{answers: map[string]any{"PreparingForShutdown": false, "InhibitDelayMaxUSec": hangs{}}})
		g.Eventually(agent.Keeper.State).WithTimeout(time.Minute).Should(HaveField("Known", true))
		agent.Keeper.DelayFor(time.Minute, "")
		go agent.reportCondition(t.Context())
		g.Consistently(events, 300*time.Millisecond).Should(BeEmpty())
		g.Eventually(events).WithTimeout(time.Minute).Should(ContainElement(ContainSubstring("ServiceUnknown")))
	})
	t.Run("S2: the agent reports that it cannot delay a shutdown if logind or the system bus hangs when the agent starts", func(t *testing.T) {
		t.Parallel()
		for _, hung := range []string{"bus", "logind"} {
			agent, events := reporting(t)
			agent.Keeper = busKeeper(t, &systemBus{answers: map[string]any{"PreparingForShutdown": false, "InhibitDelayMaxUSec": hangs{}, "Inhibit": hangs{}}})
			if hung == "bus" {
				agent.Keeper.Socket = hungSocket(t)
			}
			agent.Keeper.DelayFor(time.Minute, "")
			go agent.Keeper.Run(t.Context())
			go agent.reportCondition(t.Context())
			NewWithT(t).Eventually(events).WithTimeout(30*time.Second).Should(ContainElement(ContainSubstring("does not answer")), hung)
		}
	})
}

// hungSocket returns a socket that accepts connections, and on which nothing answers.
func hungSocket(t *testing.T) string {
	t.Helper()
	g := NewWithT(t)
	dir, err := os.MkdirTemp("", "bus") //nolint:usetesting // the name of a test may be too long
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, "bus"))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

func TestTwoAgentsOnANode(t *testing.T) {
	t.Run("S96: the agent does not terminate a Pod of the agent that replaces its own, or that it replaces", func(t *testing.T) {
		t.Parallel()
		g, remains, terminated := NewWithT(t), atomic.Bool{}, make(chan string, 10)
		remains.Store(true)
		agent, bus := agentOf(t, &apiServer{hangs: true}), &systemBus{answers: map[string]any{
			"PreparingForShutdown": true, "StopUnit": dbus.ObjectPath("/job"), "GetUnit": dbus.ObjectPath("/kubelet"), "ActiveState": "inactive",
		}}
		agent.Keeper, agent.PodUID = keeperOn(t, bus), "agent"
		withRuntime(t, agent, runtimeServer{
			running: func() []string {
				if remains.Load() {
					return []string{"agent", "agent-2", "other"}
				}
				return []string{"agent", "agent-2"}
			},
			stop: func(_ context.Context, id string) error {
				remains.Store(false)
				terminated <- id
				return nil
			},
		})
		g.Eventually(agent.Keeper.State).WithTimeout(time.Minute).Should(HaveField("Known", true))
		agent.terminatePods(t.Context(), 10*time.Second)
		g.Expect(terminated).To(Receive(Equal("other")))
		g.Expect(terminated).NotTo(Receive())
	})
}

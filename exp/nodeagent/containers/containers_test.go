package containers_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/containers"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

// fakeRuntime is a container runtime. Each of its Pods has one container, whose ID is the UID of the Pod.
type fakeRuntime struct {
	runtimev1.UnimplementedRuntimeServiceServer

	mu      sync.Mutex
	pods    []string
	hangs   bool
	stopped []string
}

// serve serves a runtime with these Pods at a socket until stop is called. A runtime that stops removes its socket, as containerd does.
func serve(t *testing.T, socket string, pods ...string) (r *fakeRuntime, stop func()) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	r = &fakeRuntime{pods: pods}
	server := grpc.NewServer()
	runtimev1.RegisterRuntimeServiceServer(server, r)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return r, server.Stop
}

func (r *fakeRuntime) ListPodSandbox(ctx context.Context, _ *runtimev1.ListPodSandboxRequest) (*runtimev1.ListPodSandboxResponse, error) {
	r.mu.Lock()
	pods, hangs := r.pods, r.hangs
	r.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	response := &runtimev1.ListPodSandboxResponse{}
	for _, uid := range pods {
		response.Items = append(response.Items, &runtimev1.PodSandbox{
			Id: "sandbox-" + uid, Metadata: &runtimev1.PodSandboxMetadata{Namespace: "default", Name: "pod-" + uid, Uid: uid},
		})
	}
	return response, nil
}

func (r *fakeRuntime) ListContainers(ctx context.Context, request *runtimev1.ListContainersRequest) (*runtimev1.ListContainersResponse, error) {
	r.mu.Lock()
	pods, hangs := r.pods, r.hangs
	r.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	response := &runtimev1.ListContainersResponse{}
	for _, uid := range pods {
		labels := map[string]string{"io.kubernetes.pod.uid": uid}
		if wanted := request.GetFilter().GetLabelSelector()["io.kubernetes.pod.uid"]; wanted == "" || wanted == uid {
			response.Containers = append(response.Containers, &runtimev1.Container{
				Id: uid, PodSandboxId: "sandbox-" + uid, Labels: labels, Metadata: &runtimev1.ContainerMetadata{Name: "app"},
			})
		}
	}
	return response, nil
}

func (r *fakeRuntime) StopContainer(_ context.Context, request *runtimev1.StopContainerRequest) (*runtimev1.StopContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = append(r.stopped, request.GetContainerId())
	return &runtimev1.StopContainerResponse{}, nil
}

func (r *fakeRuntime) hang() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hangs = true
}

func (r *fakeRuntime) hasStopped() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stopped
}

func TestRuntime(t *testing.T) {
	// The path of a socket has at most 108 characters.
	sockets := func(t *testing.T) (containerd, crio string) {
		t.Helper()
		dir, err := os.MkdirTemp("", "cri") //nolint:usetesting // t.TempDir contains the name of the test
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		return filepath.Join(dir, "containerd.sock"), filepath.Join(dir, "crio.sock")
	}
	connect := func(g Gomega, sockets ...string) *containers.Runtime {
		runtime, err := containers.Connect("agent", sockets...)
		g.Expect(err).NotTo(HaveOccurred())
		return runtime
	}
	uids := func(pods []shutdown.Pod) (uids []string) {
		for _, pod := range pods {
			uids = append(uids, pod.UID)
		}
		return uids
	}
	web := shutdown.Termination{Pod: shutdown.Pod{UID: "web"}, GracePeriod: time.Minute}

	t.Run("S60: uses the runtime that runs the agent's own Pod", func(t *testing.T) {
		g := NewWithT(t)
		containerd, crio := sockets(t)
		unused, _ := serve(t, containerd, "other")
		used, _ := serve(t, crio, "agent", "web")
		runtime := connect(g, containerd, crio)
		pods, err := runtime.Pods(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(uids(pods)).To(Equal([]string{"agent", "web"}))
		g.Expect(runtime.Terminate(t.Context(), web)).To(Succeed())
		g.Expect(used.hasStopped()).To(Equal([]string{"web"}))
		g.Expect(unused.hasStopped()).To(BeEmpty())
	})

	t.Run("S60: a runtime without the agent's own Pod is an error, and not a node without Pods", func(t *testing.T) {
		g := NewWithT(t)
		containerd, crio := sockets(t)
		serve(t, containerd)
		_, err := connect(g, containerd, crio).Pods(t.Context())
		g.Expect(err).To(MatchError(And(ContainSubstring(containerd+": it does not run the agent's own Pod"), ContainSubstring(crio))))
	})

	t.Run("S60: returns the last list and an error while the runtime is away, and connects to its new socket", func(t *testing.T) {
		g := NewWithT(t)
		containerd, crio := sockets(t)
		_, stop := serve(t, containerd, "agent", "web")
		runtime := connect(g, containerd, crio)
		_, err := runtime.Pods(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		stop()
		pods, err := runtime.Pods(t.Context())
		g.Expect(err).To(HaveOccurred())
		g.Expect(uids(pods)).To(Equal([]string{"agent", "web"}))
		serve(t, containerd, "agent")
		g.Eventually(func(g Gomega) {
			pods, err := runtime.Pods(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(uids(pods)).To(Equal([]string{"agent"}))
		}, "10s").Should(Succeed())
	})

	t.Run("S60: terminates the Pods that were listed last while the runtime lists none", func(t *testing.T) {
		g := NewWithT(t)
		containerd, _ := sockets(t)
		server, _ := serve(t, containerd, "agent", "web")
		runtime := connect(g, containerd)
		_, err := runtime.Pods(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		server.hang()
		_, err = runtime.Pods(t.Context())
		g.Expect(err).To(HaveOccurred())
		g.Expect(runtime.Terminate(t.Context(), web)).To(Succeed())
		g.Expect(server.hasStopped()).To(Equal([]string{"web"}))
	})
}

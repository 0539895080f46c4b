package containers_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/containers"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

// fakeRuntime is a container runtime. Each of its Pods has one container, whose ID is the UID of the Pod, unless containers has others.
type fakeRuntime struct {
	runtimev1.UnimplementedRuntimeServiceServer

	mu         sync.Mutex
	pods       []string
	containers []*runtimev1.Container
	sandbox    *runtimev1.PodSandboxStatus
	hangs      bool
	// output is the output of commands.
	output []byte
	// did lists the commands that were run and the containers that were stopped. A container ends when ends receives a value, if it is set.
	did  []string
	ends chan struct{}
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

func (r *fakeRuntime) ListContainers(ctx context.Context, request *runtimev1.ListContainersRequest) (*runtimev1.ListContainersResponse, error) {
	r.mu.Lock()
	pods, hangs := r.pods, r.hangs
	response := &runtimev1.ListContainersResponse{Containers: r.containers}
	r.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if len(response.GetContainers()) > 0 {
		return response, nil
	}
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

func (r *fakeRuntime) StopContainer(ctx context.Context, request *runtimev1.StopContainerRequest) (*runtimev1.StopContainerResponse, error) {
	r.record("stop " + request.GetContainerId())
	if r.ends != nil {
		select {
		case <-r.ends:
		case <-ctx.Done():
		}
	}
	return &runtimev1.StopContainerResponse{}, nil
}

func (r *fakeRuntime) ExecSync(_ context.Context, request *runtimev1.ExecSyncRequest) (*runtimev1.ExecSyncResponse, error) {
	r.record(strings.Join(request.GetCmd(), " "))
	return &runtimev1.ExecSyncResponse{Stdout: r.output}, nil
}

func (r *fakeRuntime) PodSandboxStatus(context.Context, *runtimev1.PodSandboxStatusRequest) (*runtimev1.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &runtimev1.PodSandboxStatusResponse{Status: r.sandbox}, nil
}

func (r *fakeRuntime) record(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.did = append(r.did, what)
}

func (r *fakeRuntime) runs(sandbox *runtimev1.PodSandboxStatus, containers ...*runtimev1.Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sandbox, r.containers = sandbox, containers
}

func (r *fakeRuntime) hang() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hangs = true
}

func (r *fakeRuntime) hasDone() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.did)
}

// newSockets returns the paths of two sockets. The path of a socket has at most 108 characters, so it is not in t.TempDir, whose path has
// the name of the test.
func newSockets(t *testing.T) (containerd, crio string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cri") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "containerd.sock"), filepath.Join(dir, "crio.sock")
}

func connect(g Gomega, sockets ...string) *containers.Runtime {
	runtime, err := containers.Connect("agent", sockets...)
	g.Expect(err).NotTo(HaveOccurred())
	return runtime
}

func TestRuntime(t *testing.T) {
	uids := func(pods []shutdown.Pod) (uids []string) {
		for _, pod := range pods {
			uids = append(uids, pod.UID)
		}
		return uids
	}
	web := shutdown.Termination{Pod: shutdown.Pod{UID: "web"}, GracePeriod: time.Minute}

	t.Run("S60: uses the runtime that runs the agent's own Pod", func(t *testing.T) {
		g := NewWithT(t)
		containerd, crio := newSockets(t)
		unused, _ := serve(t, containerd, "other")
		used, _ := serve(t, crio, "agent", "web")
		runtime := connect(g, containerd, crio)
		pods, err := runtime.Pods(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(uids(pods)).To(ConsistOf("agent", "web"))
		g.Expect(runtime.Terminate(t.Context(), web)).To(Succeed())
		g.Expect(used.hasDone()).To(Equal([]string{"stop web"}))
		g.Expect(unused.hasDone()).To(BeEmpty())
	})

	t.Run("S84: lists the Pods of the kubelet, and not one that another client of the runtime has started", func(t *testing.T) {
		g := NewWithT(t)
		containerd, _ := newSockets(t)
		server, _ := serve(t, containerd, "agent", "web", "debug")
		of := func(uid, period string) *runtimev1.Container {
			return &runtimev1.Container{
				PodSandboxId: "sandbox-" + uid, Annotations: map[string]string{"io.kubernetes.pod.terminationGracePeriod": period},
				Labels: map[string]string{
					"io.kubernetes.pod.uid": uid, "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.name": "pod-" + uid,
				},
			}
		}
		server.runs(nil, of("agent", "5"), of("web", "60"), of("web", "20"), of("", ""), &runtimev1.Container{PodSandboxId: "sandbox-debug"})
		pods, err := connect(g, containerd).Pods(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pods).To(ConsistOf(
			shutdown.Pod{UID: "agent", Namespace: "default", Name: "pod-agent", GracePeriod: 5 * time.Second},
			shutdown.Pod{UID: "web", Namespace: "default", Name: "pod-web", GracePeriod: time.Minute},
		))
	})

	t.Run("S60: a runtime without the agent's own Pod is an error, and not a node without Pods", func(t *testing.T) {
		g := NewWithT(t)
		containerd, crio := newSockets(t)
		serve(t, containerd)
		_, err := connect(g, containerd, crio).Pods(t.Context())
		g.Expect(err).To(MatchError(And(ContainSubstring(containerd+": it does not run the agent's own Pod"), ContainSubstring(crio))))
	})

	t.Run("S60: returns the last list and an error while the runtime is away, and connects to its new socket", func(t *testing.T) {
		g := NewWithT(t)
		containerd, crio := newSockets(t)
		_, stop := serve(t, containerd, "agent", "web")
		runtime := connect(g, containerd, crio)
		_, err := runtime.Pods(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		stop()
		pods, err := runtime.Pods(t.Context())
		g.Expect(err).To(HaveOccurred())
		g.Expect(uids(pods)).To(ConsistOf("agent", "web"))
		serve(t, containerd, "agent")
		g.Eventually(func(g Gomega) {
			pods, err := runtime.Pods(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(uids(pods)).To(Equal([]string{"agent"}))
		}).WithTimeout(time.Minute).Should(Succeed())
	})

	t.Run("S60: terminates the Pods that were listed last while the runtime lists none", func(t *testing.T) {
		g := NewWithT(t)
		containerd, _ := newSockets(t)
		server, _ := serve(t, containerd, "agent", "web")
		runtime := connect(g, containerd)
		_, err := runtime.Pods(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		server.hang()
		_, err = runtime.Pods(t.Context())
		g.Expect(err).To(HaveOccurred())
		g.Expect(runtime.Terminate(t.Context(), web)).To(Succeed())
		g.Expect(server.hasDone()).To(Equal([]string{"stop web"}))
	})
}

// allocated returns how much memory a function allocates.
func allocated(do func()) uint64 {
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	do()
	goruntime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestTerminate(t *testing.T) {
	pod := func(sidecars ...string) shutdown.Termination {
		return shutdown.Termination{Pod: shutdown.Pod{UID: "web", Known: shutdown.Known{Sidecars: sidecars}}, GracePeriod: time.Minute}
	}
	container := func(name string, annotations map[string]string) *runtimev1.Container {
		return &runtimev1.Container{
			Id: name, PodSandboxId: "sandbox-web", Labels: map[string]string{"io.kubernetes.pod.uid": "web"}, Annotations: annotations,
			Metadata: &runtimev1.ContainerMetadata{Name: name},
		}
	}
	preStop := func(hook string) map[string]string {
		return map[string]string{
			"io.kubernetes.container.preStopHandler": hook, "io.kubernetes.container.ports": `[{"name":"admin","containerPort":PORT},{"name":"x","containerPort":1}]`,
		}
	}
	hostNetwork := &runtimev1.PodSandboxStatus{Linux: &runtimev1.LinuxPodSandboxStatus{
		Namespaces: &runtimev1.Namespace{Options: &runtimev1.NamespaceOption{Network: runtimev1.NamespaceMode_NODE}},
	}}
	podNetwork := &runtimev1.PodSandboxStatus{Network: &runtimev1.PodSandboxNetworkStatus{Ip: "127.0.0.1"}}
	for name, test := range map[string]struct {
		hook    string
		sandbox *runtimev1.PodSandboxStatus
		tls     bool
		want    []string
	}{
		"S64: runs a command": {`{"exec":{"command":["drain","now"]}}`, nil, false, []string{"drain now", "stop app"}},
		"S64: sends an HTTP request to the address of the Pod": {
			`{"httpGet":{"path":"/drain?now","port":"admin","httpHeaders":[{"name":"host","value":"web"},{"name":"X-Why","value":"stop"}]}}`, podNetwork, false,
			[]string{"GET web/drain?now X-Why=stop", "stop app"},
		},
		"S64: sends an HTTP request to a Pod in the network of the node": {
			`{"httpGet":{"path":"/","port":PORT}}`, hostNetwork, false, []string{"GET 127.0.0.1:PORT/ X-Why=", "stop app"},
		},
		"S64: sends an HTTPS request without verifying the certificate": {
			`{"httpGet":{"path":"/","port":PORT,"scheme":"HTTPS"}}`, podNetwork, true, []string{"GET 127.0.0.1:PORT/ X-Why=", "stop app"},
		},
		"S64: sends an HTTP request to the host of the hook": {
			`{"httpGet":{"path":"/","port":"PORT","host":"localhost"}}`, nil, false, []string{"GET localhost:PORT/ X-Why=", "stop app"},
		},
		"S64: terminates a container whose hook cannot run": {`{"httpGet":{"path":"/","port":"none"}}`, podNetwork, false, []string{"stop app"}},
		"S64: terminates a container whose Pod has no address": {
			`{"httpGet":{"path":"/","port":PORT}}`, &runtimev1.PodSandboxStatus{}, false, []string{"stop app"},
		},
		"S64: terminates a container without a hook": {``, nil, false, []string{"stop app"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			socket, _ := newSockets(t)
			server, _ := serve(t, socket)
			handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				server.record(r.Method + " " + r.Host + r.RequestURI + " X-Why=" + r.Header.Get("X-Why"))
			})
			var web *httptest.Server
			if test.tls {
				web = httptest.NewTLSServer(handler)
			} else {
				web = httptest.NewServer(handler)
			}
			defer web.Close()
			_, port, err := net.SplitHostPort(web.Listener.Addr().String())
			g.Expect(err).NotTo(HaveOccurred())
			withPort := func(s string) string { return strings.ReplaceAll(s, "PORT", port) }
			annotations := map[string]string{}
			for key, value := range preStop(test.hook) {
				if value != "" {
					annotations[key] = withPort(value)
				}
			}
			server.runs(test.sandbox, container("app", annotations))
			g.Expect(connect(g, socket).Terminate(t.Context(), pod())).To(Succeed())
			var want []string
			for _, each := range test.want {
				want = append(want, withPort(each))
			}
			g.Expect(server.hasDone()).To(Equal(want))
		})
	}

	t.Run("S64: a hook that sleeps uses up the grace period, and at least a second remains for SIGTERM", func(t *testing.T) {
		g := NewWithT(t)
		socket, _ := newSockets(t)
		server, _ := serve(t, socket)
		server.runs(nil, container("app", preStop(`{"sleep":{"seconds":60}}`)))
		short := pod()
		short.GracePeriod = 300 * time.Millisecond
		start := time.Now()
		g.Expect(connect(g, socket).Terminate(t.Context(), short)).To(Succeed())
		g.Expect(time.Since(start)).To(BeNumerically(">=", short.GracePeriod))
		g.Expect(server.hasDone()).To(Equal([]string{"stop app"}))
	})

	t.Run("S83: the output of a hook takes no memory", func(t *testing.T) {
		g := NewWithT(t)
		socket, _ := newSockets(t)
		server, _ := serve(t, socket)
		server.output = make([]byte, 15<<20)
		server.runs(nil, container("app", preStop(`{"exec":{"command":["drain"]}}`)))
		terminate := func() { g.Expect(connect(g, socket).Terminate(t.Context(), pod())).To(Succeed()) }
		g.Expect(allocated(terminate)).To(BeNumerically("<", 30<<20), "15 MB are those of the runtime")
		g.Expect(server.hasDone()).To(Equal([]string{"drain", "stop app"}))
	})

	t.Run("S83: the header of the response to a hook takes no memory", func(t *testing.T) {
		g := NewWithT(t)
		socket, _ := newSockets(t)
		server, _ := serve(t, socket)
		header := strings.Repeat("x", 8<<20)
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Large", header) }))
		defer web.Close()
		_, port, err := net.SplitHostPort(web.Listener.Addr().String())
		g.Expect(err).NotTo(HaveOccurred())
		server.runs(podNetwork, container("app", preStop(`{"httpGet":{"path":"/","port":`+port+`}}`)))
		terminate := func() { g.Expect(connect(g, socket).Terminate(t.Context(), pod())).To(Succeed()) }
		g.Expect(allocated(terminate)).To(BeNumerically("<", 8<<20))
		g.Expect(server.hasDone()).To(Equal([]string{"stop app"}))
	})

	t.Run("S65: sidecars receive SIGTERM when the other containers have ended, in the reverse order of their start", func(t *testing.T) {
		g := NewWithT(t)
		socket, _ := newSockets(t)
		server, _ := serve(t, socket)
		server.ends = make(chan struct{})
		server.runs(nil, container("proxy", nil), container("logs", nil), container("app", nil), container("job", nil))
		terminated := make(chan error, 1)
		go func() { terminated <- connect(g, socket).Terminate(t.Context(), pod("proxy", "logs")) }()
		g.Eventually(server.hasDone).WithTimeout(time.Minute).Should(ConsistOf("stop app", "stop job"))
		server.ends <- struct{}{} // one of the two ends
		g.Consistently(server.hasDone, "100ms").Should(HaveLen(2), "a sidecar must wait for all other containers")
		server.ends <- struct{}{}
		g.Eventually(server.hasDone).WithTimeout(time.Minute).Should(HaveExactElements(HavePrefix("stop"), HavePrefix("stop"), Equal("stop logs")))
		g.Consistently(server.hasDone, "100ms").Should(HaveLen(3), "a sidecar must wait for those that started later")
		server.ends <- struct{}{}
		g.Eventually(server.hasDone).WithTimeout(time.Minute).
			Should(HaveExactElements(HavePrefix("stop"), HavePrefix("stop"), Equal("stop logs"), Equal("stop proxy")))
		server.ends <- struct{}{}
		g.Eventually(terminated).WithTimeout(time.Minute).Should(Receive(BeNil()))
	})
}

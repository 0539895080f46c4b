// Package containers lists and terminates Pods through the container runtime, without the kubelet.
package containers

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pkg/errors"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

// Annotations that the kubelet sets on each container, so that it can terminate a container whose Pod it does not know after a restart.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/kubelet/kuberuntime/labels.go
const (
	gracePeriodAnnotation = "io.kubernetes.pod.terminationGracePeriod"
	preStopAnnotation     = "io.kubernetes.container.preStopHandler"
	portsAnnotation       = "io.kubernetes.container.ports"
	// The kubelet sets these labels on each container.
	podUIDLabel       = "io.kubernetes.pod.uid"
	podNamespaceLabel = "io.kubernetes.pod.namespace"
	podNameLabel      = "io.kubernetes.pod.name"
)

// listTimeout limits how long a runtime may take to list its Pods. A runtime that hangs must not use up the time of a shutdown.
const listTimeout = 2 * time.Second

// Runtime is the container runtime of the node: the first of several sockets behind which the agent's own Pod runs. A node may have a
// second runtime that the kubelet does not use, and an empty list from that one would mean that all Pods have terminated.
type Runtime struct {
	podUID    string
	endpoints []endpoint

	mu sync.Mutex // protects current and observed
	// current is the index of the endpoint that answered last.
	current int
	// observed are the Pods and their running containers that the runtime listed last.
	observed observation
}

type endpoint struct {
	socket string
	client runtimev1.RuntimeServiceClient
}

type observation struct {
	pods []shutdown.Pod
	// containers are the running containers by the UID of their Pod.
	containers map[string][]*runtimev1.Container
}

// Connect returns a client for the container runtime at one of these sockets that runs the Pod with this UID. The client connects when it
// is first used, and again when the runtime has restarted.
func Connect(podUID string, sockets ...string) (*Runtime, error) {
	if len(sockets) == 0 {
		return nil, errors.New("no socket of a container runtime")
	}
	r := &Runtime{podUID: podUID}
	for _, socket := range sockets {
		conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
			// By default, gRPC waits for up to two minutes before it connects again, and accepts 4 MB. 16 MB is the kubelet's limit.
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second}}),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
		if err != nil {
			return nil, errors.Wrap(err, "connecting to the container runtime")
		}
		r.endpoints = append(r.endpoints, endpoint{socket: socket, client: runtimev1.NewRuntimeServiceClient(conn)})
	}
	return r, nil
}

// Pods returns the Pods that run on the node, without priorities and sidecars, which the runtime does not know. If no runtime answers, Pods
// returns the last list that a runtime has answered, and an error.
func (r *Runtime) Pods(ctx context.Context) ([]shutdown.Pod, error) {
	r.mu.Lock()
	first := r.current
	r.mu.Unlock()
	var problems []string
	for i := range r.endpoints {
		i = (first + i) % len(r.endpoints)
		observed, err := r.endpoints[i].observe(ctx)
		if err == nil && len(observed.containers[r.podUID]) == 0 {
			err = errors.New("it does not run the agent's own Pod")
		}
		if err == nil {
			r.mu.Lock()
			r.current, r.observed = i, observed
			r.mu.Unlock()
			return observed.pods, nil
		}
		problems = append(problems, fmt.Sprintf("%s: %v", r.endpoints[i].socket, err))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.observed.pods, errors.New(strings.Join(problems, "; "))
}

func (e endpoint) observe(ctx context.Context) (observation, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	observed := observation{containers: map[string][]*runtimev1.Container{}}
	running, err := e.running(ctx, "")
	if err != nil {
		return observed, err
	}
	grace := map[string]time.Duration{}
	for _, c := range running {
		uid := c.GetLabels()[podUIDLabel]
		observed.containers[uid] = append(observed.containers[uid], c)
		seconds, err := strconv.ParseInt(c.GetAnnotations()[gracePeriodAnnotation], 10, 64)
		if err != nil {
			seconds = corev1.DefaultTerminationGracePeriodSeconds
		}
		grace[uid] = max(grace[uid], rules.GracePeriod(seconds))
	}
	delete(observed.containers, "") // another client of the runtime has started them
	for uid, containers := range observed.containers {
		of := containers[0].GetLabels()
		observed.pods = append(observed.pods, shutdown.Pod{UID: uid, Namespace: of[podNamespaceLabel], Name: of[podNameLabel], GracePeriod: grace[uid]})
	}
	return observed, nil
}

func (e endpoint) running(ctx context.Context, uid string) ([]*runtimev1.Container, error) {
	filter := &runtimev1.ContainerFilter{State: &runtimev1.ContainerStateValue{State: runtimev1.ContainerState_CONTAINER_RUNNING}}
	if uid != "" {
		filter.LabelSelector = map[string]string{podUIDLabel: uid}
	}
	containers, err := e.client.ListContainers(ctx, &runtimev1.ListContainersRequest{Filter: filter})
	return containers.GetContainers(), errors.Wrap(err, "listing containers")
}

// containersOf returns the running containers of a Pod, and the runtime that runs them. If the runtime does not answer, containersOf
// returns those that Pods has observed last.
func (r *Runtime) containersOf(ctx context.Context, uid string) (runtimev1.RuntimeServiceClient, []*runtimev1.Container) {
	r.mu.Lock()
	e, observed := r.endpoints[r.current], r.observed.containers[uid]
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	if running, err := e.running(ctx, uid); err == nil {
		return e.client, running
	}
	return e.client, observed
}

// Terminate terminates a Pod as the kubelet does: preStop hooks, SIGTERM, and SIGKILL at the end of the grace period. Sidecars receive
// SIGTERM when the other containers have ended, in the reverse order of their start. Terminate returns when all containers of the Pod have
// ended.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/kubelet/kuberuntime/kuberuntime_container.go
func (r *Runtime) Terminate(ctx context.Context, pod shutdown.Termination) error {
	client, containers := r.containersOf(ctx, pod.UID)
	failures, ended := make([]error, len(containers)), make([]chan struct{}, len(containers))
	for i := range containers {
		ended[i] = make(chan struct{})
	}
	var terminating sync.WaitGroup
	for i, c := range containers {
		var earlier []<-chan struct{}
		for j := range containers {
			if turn(pod.Pod, containers[j]) < turn(pod.Pod, c) {
				earlier = append(earlier, ended[j])
			}
		}
		terminating.Go(func() {
			defer close(ended[i])
			failures[i] = terminateContainer(ctx, client, c, pod.GracePeriod, earlier)
		})
	}
	terminating.Wait()
	for _, failure := range failures {
		if failure != nil {
			return errors.Wrapf(failure, "terminating Pod %s/%s", pod.Namespace, pod.Name)
		}
	}
	return nil
}

// turn returns when a container receives SIGTERM: those of turn 0 first. The sidecar that started last has turn 1.
func turn(pod shutdown.Pod, c *runtimev1.Container) int {
	if i := slices.Index(pod.Sidecars, c.GetMetadata().GetName()); i >= 0 {
		return len(pod.Sidecars) - i
	}
	return 0
}

// terminateContainer terminates a container after the earlier ones have ended, or when the period is over.
func terminateContainer(ctx context.Context, client runtimev1.RuntimeServiceClient, c *runtimev1.Container, period time.Duration,
	earlier []<-chan struct{},
) error {
	start := time.Now()
	within, cancel := context.WithTimeout(ctx, period)
	defer cancel()
	if period > 0 {
		if err := runPreStop(within, client, c, period); err != nil {
			klog.FromContext(ctx).Error(err, "A preStop hook failed", "container", c.GetMetadata().GetName())
		}
	}
	for _, ended := range earlier {
		select {
		case <-ended:
		case <-within.Done():
		}
	}
	// As in the kubelet, both use up the container's grace period. At least a second remains for SIGTERM: a timeout of 0 means SIGKILL.
	remaining := max(period-time.Since(start), time.Second)
	_, err := client.StopContainer(ctx, &runtimev1.StopContainerRequest{ContainerId: c.GetId(), Timeout: seconds(remaining)})
	return errors.Wrap(err, "stopping a container")
}

// seconds rounds down, so that a Pod does not take longer than its phase, but returns at least 1.
func seconds(period time.Duration) int64 { return max(int64(math.Floor(period.Seconds())), 1) }

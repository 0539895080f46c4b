// Package containers lists and terminates Pods through the container runtime, without the kubelet.
package containers

import (
	"context"
	"encoding/json"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/pkg/errors"
	"google.golang.org/grpc"
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
)

// Runtime is the container runtime of the node.
type Runtime struct {
	conn   *grpc.ClientConn
	client runtimev1.RuntimeServiceClient
}

// Connect returns a client for the container runtime at this socket. The client connects when it is first used.
func Connect(socket string) (*Runtime, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, errors.Wrap(err, "connecting to the container runtime")
	}
	return &Runtime{conn: conn, client: runtimev1.NewRuntimeServiceClient(conn)}, nil
}

// Pods returns the Pods that run on the node. Their priority is 0: the runtime does not know it.
func (r *Runtime) Pods(ctx context.Context) ([]shutdown.Pod, error) {
	sandboxes, err := r.client.ListPodSandbox(ctx, &runtimev1.ListPodSandboxRequest{Filter: &runtimev1.PodSandboxFilter{
		State: &runtimev1.PodSandboxStateValue{State: runtimev1.PodSandboxState_SANDBOX_READY},
	}})
	if err != nil {
		return nil, errors.Wrap(err, "listing Pods")
	}
	running, err := r.running(ctx, "")
	if err != nil {
		return nil, err
	}
	grace := map[string]time.Duration{}
	for _, c := range running {
		seconds, err := strconv.ParseInt(c.GetAnnotations()[gracePeriodAnnotation], 10, 64)
		if err != nil {
			seconds = corev1.DefaultTerminationGracePeriodSeconds
		}
		grace[c.GetPodSandboxId()] = max(grace[c.GetPodSandboxId()], rules.GracePeriod(seconds))
	}
	var pods []shutdown.Pod
	for _, sandbox := range sandboxes.GetItems() {
		if period, runs := grace[sandbox.GetId()]; runs {
			m := sandbox.GetMetadata()
			pods = append(pods, shutdown.Pod{UID: m.GetUid(), Namespace: m.GetNamespace(), Name: m.GetName(), GracePeriod: period})
		}
	}
	return pods, nil
}

func (r *Runtime) running(ctx context.Context, uid string) ([]*runtimev1.Container, error) {
	filter := &runtimev1.ContainerFilter{State: &runtimev1.ContainerStateValue{State: runtimev1.ContainerState_CONTAINER_RUNNING}}
	if uid != "" {
		filter.LabelSelector = map[string]string{"io.kubernetes.pod.uid": uid}
	}
	containers, err := r.client.ListContainers(ctx, &runtimev1.ListContainersRequest{Filter: filter})
	return containers.GetContainers(), errors.Wrap(err, "listing containers")
}

// Terminate terminates a Pod: preStop hooks that are commands, SIGTERM, and SIGKILL at the end of the grace period. Unlike the kubelet, it
// runs no other preStop hooks, and terminates sidecars together with the other containers. It returns when all containers of the Pod have
// terminated.
func (r *Runtime) Terminate(ctx context.Context, pod shutdown.Termination) error {
	containers, err := r.running(ctx, pod.UID)
	if err != nil {
		return err
	}
	failures := make([]error, len(containers))
	var terminating sync.WaitGroup
	for i, c := range containers {
		terminating.Go(func() { failures[i] = r.terminateContainer(ctx, c, pod.GracePeriod) })
	}
	terminating.Wait()
	for _, failure := range failures {
		if failure != nil {
			return errors.Wrapf(failure, "terminating Pod %s/%s", pod.Namespace, pod.Name)
		}
	}
	return nil
}

func (r *Runtime) terminateContainer(ctx context.Context, c *runtimev1.Container, period time.Duration) error {
	start := time.Now()
	if command := preStop(c); len(command) > 0 {
		_, err := r.client.ExecSync(ctx, &runtimev1.ExecSyncRequest{ContainerId: c.GetId(), Cmd: command, Timeout: seconds(period)})
		if err != nil {
			klog.FromContext(ctx).Error(err, "A preStop hook failed", "container", c.GetMetadata().GetName())
		}
	}
	// As in the kubelet, the hook uses up the container's grace period. At least a second remains for SIGTERM: a timeout of 0 means SIGKILL.
	remaining := max(period-time.Since(start), time.Second)
	_, err := r.client.StopContainer(ctx, &runtimev1.StopContainerRequest{ContainerId: c.GetId(), Timeout: seconds(remaining)})
	return errors.Wrap(err, "stopping a container")
}

// seconds rounds down, so that a Pod does not take longer than its phase, but returns at least 1.
func seconds(period time.Duration) int64 { return max(int64(math.Floor(period.Seconds())), 1) }

// preStop returns the command of the container's preStop hook. It returns nil for hooks of other kinds, which are not run.
func preStop(c *runtimev1.Container) []string {
	handler := &corev1.LifecycleHandler{}
	if err := json.Unmarshal([]byte(c.GetAnnotations()[preStopAnnotation]), handler); err != nil || handler.Exec == nil {
		return nil
	}
	return handler.Exec.Command
}

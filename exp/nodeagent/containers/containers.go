// Package containers ends Pods through the container runtime, without the kubelet.
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

	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

// What the kubelet notes on each container, for the case that it restarts and has to end one that it knows nothing else of.
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

// Connect to the socket of a container runtime. It connects when it is first used.
func Connect(socket string) (*Runtime, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, errors.Wrap(err, "connecting to the container runtime")
	}
	return &Runtime{conn: conn, client: runtimev1.NewRuntimeServiceClient(conn)}, nil
}

// Pods returns the Pods that run on the node. Their priorities, which the runtime doesn't know, are left at 0.
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
		grace[c.GetPodSandboxId()] = max(grace[c.GetPodSandboxId()], time.Duration(seconds)*time.Second)
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

// End ends a Pod as the kubelet does: preStop, SIGTERM, and SIGKILL when its time is over. It returns when the Pod has ended.
func (r *Runtime) End(ctx context.Context, pod shutdown.Ending) error {
	containers, err := r.running(ctx, pod.UID)
	if err != nil {
		return err
	}
	failures := make([]error, len(containers))
	var ending sync.WaitGroup
	for i, c := range containers {
		ending.Go(func() { failures[i] = r.endContainer(ctx, c, pod.GracePeriod) })
	}
	ending.Wait()
	for _, failure := range failures {
		if failure != nil {
			return errors.Wrapf(failure, "ending Pod %s/%s", pod.Namespace, pod.Name)
		}
	}
	return nil
}

func (r *Runtime) endContainer(ctx context.Context, c *runtimev1.Container, period time.Duration) error {
	start := time.Now()
	if command := preStop(c); len(command) > 0 {
		_, err := r.client.ExecSync(ctx, &runtimev1.ExecSyncRequest{ContainerId: c.GetId(), Cmd: command, Timeout: seconds(period)})
		if err != nil {
			klog.FromContext(ctx).V(2).Info("A preStop hook has failed", "container", c.GetMetadata().GetName(), "reason", err.Error())
		}
	}
	// As with the kubelet, the hook's time is the container's; it always gets a moment for SIGTERM. A timeout of 0 is SIGKILL.
	left := max(period-time.Since(start), time.Second)
	_, err := r.client.StopContainer(ctx, &runtimev1.StopContainerRequest{ContainerId: c.GetId(), Timeout: seconds(left)})
	return errors.Wrap(err, "stopping a container")
}

// seconds rounds down, so that a Pod doesn't take more than its phase has.
func seconds(period time.Duration) int64 { return max(int64(math.Floor(period.Seconds())), 1) }

// preStop returns the command of the container's preStop hook. One of another kind is left out: HTTP hooks need the Pod's
// address, which is the kubelet's to know.
func preStop(c *runtimev1.Container) []string {
	handler := &corev1.LifecycleHandler{}
	if err := json.Unmarshal([]byte(c.GetAnnotations()[preStopAnnotation]), handler); err != nil || handler.Exec == nil {
		return nil
	}
	return handler.Exec.Command
}

package models

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/controllers/noderefutil"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

const (
	// reasonStatusUnknown is the reason of a Ready condition that the node lifecycle controller has set. A kubelet that runs replaces it.
	reasonStatusUnknown = "NodeStatusUnknown"
	// nodeGrace is the time after which the Node of a stopped kubelet becomes unreachable.
	nodeGrace = 50 * time.Second
	// readyAgainDelay is how long a kubelet takes to notice that another actor has set a Pod to not ready.
	readyAgainDelay = time.Second
	// quarantine is how long Pods exist after the Node to which they are bound was deleted.
	quarantine = 30 * time.Second
)

// kubelets are the kubelets of all Nodes with controlplane.KubeletLabel. They report Nodes as ready, and start, complete and terminate
// Pods.
type kubelets struct {
	options WorkloadOptions
	stages  map[types.UID]stage
}

// stage is the part of the life of a Pod after which the kubelet acts.
type stage struct {
	name  string
	since time.Time
}

// kubeletRuns returns whether the kubelet of a Node runs.
func kubeletRuns(node *corev1.Node) bool {
	return node.Labels[controlplane.KubeletLabel] == controlplane.KubeletLabelValue
}

func (k *kubelets) run(ctx context.Context, c client.Client) (again time.Duration, failed error) {
	pods, nodes, err := podsAndNodes(ctx, c)
	if err != nil {
		return 0, err
	}
	served := map[string]*corev1.Node{}
	for _, node := range nodes {
		if !kubeletRuns(node) {
			continue
		}
		served[node.Name] = node
		if condition := noderefutil.GetReadyCondition(&node.Status); condition == nil || condition.Reason == reasonStatusUnknown {
			failed = cmp.Or(failed, setStatus(ctx, c, node, register))
		}
	}
	former := k.stages
	k.stages = map[types.UID]stage{}
	for _, pod := range pods {
		if known, ok := former[pod.UID]; ok {
			k.stages[pod.UID] = known
		}
		if node := served[pod.Spec.NodeName]; node != nil {
			rest, err := k.serve(ctx, c, pod, node)
			again, failed = sooner(again, rest), cmp.Or(failed, err)
		}
	}
	return again, failed
}

// register reports a Node as ready.
func register(node *corev1.Node) {
	ready := corev1.NodeCondition{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastTransitionTime: now(), LastHeartbeatTime: now(),
	}
	if present := noderefutil.GetReadyCondition(&node.Status); present != nil {
		*present = ready
	} else {
		node.Status.Conditions = append(node.Status.Conditions, ready)
	}
	if node.Status.Capacity == nil {
		node.Status.Capacity = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("1000"), corev1.ResourceMemory: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("10000"),
		}
		node.Status.Allocatable = node.Status.Capacity.DeepCopy()
	}
	info := &node.Status.NodeInfo
	info.OperatingSystem, info.Architecture, info.MachineID = "linux", "amd64", node.Name
}

// serve ends the present stage of a Pod if that is due. Otherwise it returns the time until then.
func (k *kubelets) serve(ctx context.Context, c client.Client, pod *corev1.Pod, node *corev1.Node) (time.Duration, error) {
	if pod.DeletionTimestamp != nil {
		return k.terminate(ctx, c, pod)
	}
	name, delay, change := k.next(pod, node)
	if change == nil {
		delete(k.stages, pod.UID)
		return 0, nil
	}
	if rest := k.rest(pod, name, delay); rest > 0 {
		return rest, nil
	}
	return 0, setStatus(ctx, c, pod, change)
}

// next returns the stage in which a Pod is, how long it lasts, and the change of the status at its end. The change is nil if there is none.
func (k *kubelets) next(pod *corev1.Pod, node *corev1.Node) (name string, delay time.Duration, change func(*corev1.Pod)) {
	after := completeAfter(pod)
	switch {
	case pod.Status.Phase == corev1.PodPending || pod.Status.Phase == "":
		return "start", duration(pod, controlplane.PodReadyDelayAnnotation, k.options.PodReadyDelay), start
	case pod.Status.Phase == corev1.PodRunning && after >= 0:
		return "complete", after, complete
	case pod.Status.Phase == corev1.PodRunning && !rules.Ready(pod) && noderefutil.IsNodeReady(node):
		return "ready", readyAgainDelay, setReady
	default:
		return "", 0, nil
	}
}

// completeAfter returns how long a Pod runs until it completes. It is negative if the Pod does not complete.
func completeAfter(pod *corev1.Pod) time.Duration {
	after := duration(pod, controlplane.PodCompleteAfterAnnotation, -1)
	if owner := metav1.GetControllerOfNoCopy(pod); after < 0 && owner != nil && owner.Kind == "Job" {
		return 0
	}
	return after
}

// terminate removes a Pod after its deletion delay, at the latest when its grace period has passed.
func (k *kubelets) terminate(ctx context.Context, c client.Client, pod *corev1.Pod) (time.Duration, error) {
	rest := k.rest(pod, "terminate", duration(pod, controlplane.PodDeletionDelayAnnotation, k.options.PodDeletionDelay))
	if rest = min(rest, time.Until(pod.DeletionTimestamp.Time)); rest > 0 {
		return rest, nil
	}
	if len(pod.Finalizers) > 0 && ptr.Deref(pod.DeletionGracePeriodSeconds, 0) == 0 {
		return 0, nil // another controller removes it
	}
	return 0, remove(ctx, c, pod, client.GracePeriodSeconds(0))
}

// rest returns how much of a delay is left. The delay begins when the Pod enters a stage.
func (k *kubelets) rest(pod *corev1.Pod, name string, delay time.Duration) time.Duration {
	if k.stages[pod.UID].name != name {
		k.stages[pod.UID] = stage{name, time.Now()}
	}
	return delay - time.Since(k.stages[pod.UID].since)
}

// duration returns the duration in an annotation of a Pod, or a default.
func duration(pod *corev1.Pod, annotation string, otherwise time.Duration) time.Duration {
	if parsed, err := time.ParseDuration(pod.Annotations[annotation]); err == nil {
		return parsed
	}
	return otherwise
}

// start sets the status of a Pod whose containers have become ready.
func start(pod *corev1.Pod) {
	status := &pod.Status
	status.Phase, status.StartTime, status.PodIP, status.HostIP = corev1.PodRunning, ptr.To(now()), "10.244.0.1", "127.0.0.1"
	status.PodIPs, status.HostIPs = []corev1.PodIP{{IP: status.PodIP}}, []corev1.HostIP{{IP: status.HostIP}}
	conditions := []corev1.PodConditionType{
		corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady, corev1.PodScheduled,
	}
	for _, gate := range pod.Spec.ReadinessGates {
		conditions = append(conditions, gate.ConditionType)
	}
	for _, condition := range conditions {
		setPodCondition(pod, corev1.PodCondition{Type: condition, Status: corev1.ConditionTrue})
	}
	status.ContainerStatuses = nil
	for i := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: pod.Spec.Containers[i].Name, Image: pod.Spec.Containers[i].Image, Ready: true, Started: ptr.To(true),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now()}},
		})
	}
}

// complete sets the status of a Pod whose containers have exited with success.
func complete(pod *corev1.Pod) {
	pod.Status.Phase = corev1.PodSucceeded
	for _, condition := range []corev1.PodConditionType{corev1.ContainersReady, corev1.PodReady} {
		setPodCondition(pod, corev1.PodCondition{Type: condition, Status: corev1.ConditionFalse, Reason: "PodCompleted"})
	}
	for i := range pod.Status.ContainerStatuses {
		container := &pod.Status.ContainerStatuses[i]
		container.Ready, container.Started = false, ptr.To(false)
		container.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: now()}}
	}
}

// setReady sets the status of a Pod that is ready again.
func setReady(pod *corev1.Pod) {
	setPodCondition(pod, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
}

// nodeLifecycle marks Nodes whose kubelet has stopped as unreachable, taints Nodes that are not ready, and marks their Pods as not ready.
type nodeLifecycle struct {
	silent map[types.UID]time.Time // since when the kubelet does not run
}

func (l *nodeLifecycle) run(ctx context.Context, c client.Client) (again time.Duration, failed error) {
	pods, nodes, err := podsAndNodes(ctx, c)
	if err != nil {
		return 0, err
	}
	unready := map[string]bool{}
	for _, node := range nodes {
		ready := noderefutil.GetReadyCondition(&node.Status)
		if ready == nil { // no kubelet has reported
			continue
		}
		if kubeletRuns(node) || ready.Status == corev1.ConditionUnknown {
			delete(l.silent, node.UID)
		} else if _, known := l.silent[node.UID]; !known {
			l.silent[node.UID] = time.Now()
		}
		if since, silent := l.silent[node.UID]; silent {
			rest := nodeGrace - time.Since(since)
			if rest <= 0 {
				failed = cmp.Or(failed, setStatus(ctx, c, node, setUnknown))
				continue
			}
			again = sooner(again, rest)
		}
		unready[node.Name] = ready.Status != corev1.ConditionTrue
		_, err := update(ctx, c, node, func(node *corev1.Node) { taintFor(node, ready.Status) })
		failed = cmp.Or(failed, err)
	}
	for _, pod := range pods {
		if unready[pod.Spec.NodeName] && rules.Ready(pod) {
			failed = cmp.Or(failed, setStatus(ctx, c, pod, func(pod *corev1.Pod) {
				setPodCondition(pod, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "NodeNotReady"})
			}))
		}
	}
	return again, failed
}

func setUnknown(node *corev1.Node) {
	*noderefutil.GetReadyCondition(&node.Status) = corev1.NodeCondition{
		Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: reasonStatusUnknown, Message: "Kubelet stopped posting node status.",
		LastTransitionTime: now(), LastHeartbeatTime: noderefutil.GetReadyCondition(&node.Status).LastHeartbeatTime,
	}
}

// taintFor sets the taints of a Node for the status of its Ready condition.
func taintFor(node *corev1.Node, status corev1.ConditionStatus) {
	wanted := map[corev1.ConditionStatus]string{corev1.ConditionFalse: corev1.TaintNodeNotReady, corev1.ConditionUnknown: corev1.TaintNodeUnreachable}[status]
	taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool {
		return t.Key != wanted && (t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable)
	})
	for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
		if wanted != "" && !slices.ContainsFunc(taints, func(t corev1.Taint) bool { return t.Key == wanted && t.Effect == effect }) {
			taints = append(taints, corev1.Taint{Key: wanted, Effect: effect, TimeAdded: ptr.To(now())})
		}
	}
	node.Spec.Taints = taints
}

// podGC deletes Pods whose Node does not exist, and Pods that were deleted before they were bound.
type podGC struct {
	orphaned map[types.UID]time.Time // since when the Node does not exist
}

func (g *podGC) run(ctx context.Context, c client.Client) (again time.Duration, failed error) {
	pods, nodes, err := podsAndNodes(ctx, c)
	if err != nil {
		return 0, err
	}
	exists := map[string]bool{}
	for _, node := range nodes {
		exists[node.Name] = true
	}
	former := g.orphaned
	g.orphaned = map[types.UID]time.Time{}
	for _, pod := range pods {
		if exists[pod.Spec.NodeName] || pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil {
			continue
		}
		since, known := former[pod.UID]
		if !known {
			since = time.Now()
		}
		g.orphaned[pod.UID] = since
		if rest := quarantine - time.Since(since); rest > 0 && pod.Spec.NodeName != "" {
			again = sooner(again, rest)
			continue
		}
		if pod.DeletionTimestamp != nil && ptr.Deref(pod.DeletionGracePeriodSeconds, 0) == 0 && len(pod.Finalizers) > 0 {
			continue
		}
		err := setStatus(ctx, c, pod, func(pod *corev1.Pod) {
			if !rules.Finished(pod) {
				pod.Status.Phase = corev1.PodFailed
				setPodCondition(pod, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC"})
			}
		})
		failed = cmp.Or(failed, err, remove(ctx, c, pod, client.GracePeriodSeconds(0)))
	}
	return again, failed
}

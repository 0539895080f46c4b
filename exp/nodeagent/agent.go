package nodeagent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/cluster"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/containers"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/kubelet"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/logind"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/manifests"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

const (
	// refreshInterval is the interval at which the agent requests the kubelet's configuration and the priorities of its Pods. The
	// kubelet caches the authorization for two minutes, so it also answers at the start of a shutdown without the API server.
	refreshInterval = time.Minute
	// podCheckInterval is the interval at which the agent checks the container runtime for Pods whose priority it does not know.
	podCheckInterval = 3 * time.Second
)

// Agent is the node agent of one Node.
type Agent struct {
	// Node is the name of the Node, PodUID the UID of the agent's own Pod.
	Node, PodUID string
	Configs      Configs
	State        State
	Keeper       *logind.Keeper
	Cluster      *cluster.Client
	Runtime      *containers.Runtime
	Kubelet      *kubelet.Client
	Manifests    manifests.Store

	mu                    sync.Mutex // protects node, settings and kubeletTerminatesPods
	node                  *corev1.Node
	settings              Settings
	kubeletTerminatesPods bool
	nodeChanged           chan struct{}
	staticPodsChanged     chan struct{}
}

// Run runs the agent until ctx is done. config applies until the agent has observed the Node.
func (a *Agent) Run(ctx context.Context, config shutdown.Config) {
	a.nodeChanged, a.staticPodsChanged = make(chan struct{}, 1), make(chan struct{}, 1)
	changed := a.Keeper.Changed()
	a.mu.Lock()
	a.settings.Config = config
	a.mu.Unlock()
	var running sync.WaitGroup
	defer running.Wait()
	for _, loop := range []func(context.Context){
		a.Keeper.Run,
		func(ctx context.Context) {
			a.Cluster.WatchNode(ctx, func(node *corev1.Node) { a.observeNode(ctx, node) })
		},
		a.followConfigMap,
		a.pollKubelet,
		a.serveStaticPods,
		a.reportCondition,
		a.completeAfterBoot,
	} {
		running.Go(func() { loop(ctx) })
	}
	for {
		if a.Keeper.State().Preparing {
			a.shutDown(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

func (a *Agent) observeNode(ctx context.Context, node *corev1.Node) {
	a.mu.Lock()
	a.node = node
	a.configure(ctx)
	a.mu.Unlock()
	notify(a.nodeChanged)
	notify(a.staticPodsChanged)
}

// notify sends to a channel with a buffer of one. It does nothing when the receiver has not yet handled the last notification.
func notify(changed chan struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}

func (a *Agent) lastNode() *corev1.Node {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.node
}

// port returns the port of the kubelet, 0 while it is unknown. The caller must hold a.mu.
func (a *Agent) port() int32 {
	if a.node == nil {
		return 0
	}
	return a.node.Status.DaemonEndpoints.KubeletEndpoint.Port
}

// pollKubelet stores what only the kubelet knows, because the kubelet may not answer during a shutdown.
func (a *Agent) pollKubelet(ctx context.Context) {
	for last := (time.Time{}); ctx.Err() == nil; pause(ctx, podCheckInterval) {
		if (time.Since(last) >= refreshInterval || a.hasUnknownPods(ctx)) && a.refresh(ctx) {
			last = time.Now()
		}
	}
}

func (a *Agent) hasUnknownPods(ctx context.Context) bool {
	pods, err := a.Runtime.Pods(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to list the Pods of the container runtime")
		return false
	}
	priorities := a.State.Priorities()
	return slices.ContainsFunc(pods, func(pod shutdown.Pod) bool {
		_, known := priorities[pod.UID]
		return !known
	})
}

// refresh stores the configuration of the kubelet and the priorities of its Pods. It returns false if it has failed.
func (a *Agent) refresh(ctx context.Context) bool {
	a.mu.Lock()
	port := a.port()
	a.mu.Unlock()
	if port == 0 {
		return false
	}
	graceful, err := a.Kubelet.HasGracefulShutdown(ctx, port)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to read the configuration of the kubelet")
		return false
	}
	a.mu.Lock()
	a.kubeletTerminatesPods = graceful
	a.mu.Unlock()
	notify(a.nodeChanged)
	return a.refreshPriorities(ctx, port)
}

func (a *Agent) refreshPriorities(ctx context.Context, port int32) bool {
	priorities, err := a.Kubelet.Priorities(ctx, port)
	if err == nil {
		err = a.State.SetPriorities(priorities)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to read the priorities of the Pods from the kubelet")
	}
	return err == nil
}

// reportCondition keeps the condition of the Node and the readiness of the agent's Pod up to date.
func (a *Agent) reportCondition(ctx context.Context) {
	retry := time.NewTicker(2 * time.Second)
	defer retry.Stop()
	for {
		a.mu.Lock()
		node, kubeletTerminatesPods, settings := a.node, a.kubeletTerminatesPods, a.settings
		a.mu.Unlock()
		state := a.Keeper.State()
		if err := a.State.SetHeld(state.Held); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to write the readiness of the agent")
		}
		if node != nil {
			a.setCondition(ctx, node, Condition(state, kubeletTerminatesPods, settings))
		}
		select {
		case <-ctx.Done():
			return
		case <-a.nodeChanged:
		case <-retry.C:
		}
	}
}

// Condition returns the condition that the agent reports on its Node.
func Condition(state logind.State, kubeletTerminatesPods bool, settings Settings) corev1.NodeCondition {
	condition := corev1.NodeCondition{Type: v1alpha1.NodeAgentReady, Status: corev1.ConditionTrue}
	switch {
	case !state.Held && !state.Preparing:
		condition.Status, condition.Reason = corev1.ConditionFalse, v1alpha1.ReasonNoSystemBus
		condition.Message = "The agent cannot delay a shutdown of the Node: " + state.Problem
	case kubeletTerminatesPods:
		condition.Status, condition.Reason = corev1.ConditionFalse, v1alpha1.ReasonShutdownByKubelet
		condition.Message = "The kubelet's graceful shutdown (shutdownGracePeriod) is enabled and terminates the Pods. The agent only creates a NodeMaintenance."
	case settings.Problem != "":
		condition.Reason, condition.Message = v1alpha1.ReasonShutdownConfigInvalid, settings.Problem
	case state.Problem != "":
		condition.Reason, condition.Message = v1alpha1.ReasonDelayedTooShort, state.Problem
	default:
		condition.Reason, condition.Message = v1alpha1.ReasonShutdownDelayed,
			fmt.Sprintf("The agent delays a shutdown until the Node is drained, for at most %s.", shutdown.Budget(settings.Config, state.DelayMax))
		if settings.Name != "" {
			condition.Message += fmt.Sprintf(" The Node uses configuration %q.", settings.Name)
		}
	}
	return condition
}

func (a *Agent) setCondition(ctx context.Context, node *corev1.Node, wanted corev1.NodeCondition) {
	now := metav1.Now()
	wanted.LastHeartbeatTime, wanted.LastTransitionTime = now, now
	for _, present := range node.Status.Conditions {
		if present.Type != wanted.Type || present.Status != wanted.Status {
			continue
		}
		if present.Reason == wanted.Reason && present.Message == wanted.Message {
			return
		}
		wanted.LastTransitionTime = present.LastTransitionTime
	}
	if a.Keeper.State().Preparing {
		return // during a shutdown, requests are reserved for the NodeMaintenance
	}
	if err := a.Cluster.SetCondition(ctx, wanted); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to set the condition of the Node")
		return
	}
	if wanted.Status != corev1.ConditionTrue || wanted.Reason == v1alpha1.ReasonShutdownConfigInvalid {
		a.recordEvent(ctx, corev1.EventTypeWarning, wanted.Reason, wanted.Message)
	}
}

func (a *Agent) recordEvent(ctx context.Context, eventType, reason, message string) {
	node := a.lastNode()
	if node == nil {
		return
	}
	if err := a.Cluster.CreateEvent(ctx, node, eventType, reason, message); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to create an event")
	}
}

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
	// refreshEvery is how often the kubelet is asked for its configuration and the priorities of its Pods. It remembers for two
	// minutes who may ask, so that it answers at the begin of a shutdown without the API server, too.
	refreshEvery = time.Minute
	// lookForPodsEvery is how often the container runtime is asked whether there are Pods whose priority isn't known.
	lookForPodsEvery = 3 * time.Second
)

// Agent serves one node.
type Agent struct {
	// Node is its name, PodUID that of the agent's own Pod.
	Node, PodUID string
	Configs      Configs
	State        State
	Keeper       *logind.Keeper
	Cluster      *cluster.Client
	Runtime      *containers.Runtime
	Kubelet      *kubelet.Client
	Manifests    manifests.Store

	mu          sync.Mutex
	node        *corev1.Node
	settings    Settings
	kubeletEnds bool
	nodeChanged chan struct{}
	staticWake  chan struct{}
}

// Run serves until the context ends. It begins with this configuration, until it knows the Node.
func (a *Agent) Run(ctx context.Context, config shutdown.Config) {
	a.nodeChanged, a.staticWake = make(chan struct{}, 1), make(chan struct{}, 1)
	changed := a.Keeper.Changed()
	a.mu.Lock()
	a.settings.Config = config
	a.mu.Unlock()
	var running sync.WaitGroup
	defer running.Wait()
	for _, loop := range []func(context.Context){
		a.Keeper.Run,
		func(ctx context.Context) { a.Cluster.WatchNode(ctx, func(node *corev1.Node) { a.sawNode(ctx, node) }) },
		a.keepConfigured,
		a.askKubelet,
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

func (a *Agent) sawNode(ctx context.Context, node *corev1.Node) {
	a.mu.Lock()
	a.node = node
	a.configure(ctx)
	a.mu.Unlock()
	for _, note := range []chan struct{}{a.nodeChanged, a.staticWake} {
		wake(note)
	}
}

func wake(note chan struct{}) {
	select {
	case note <- struct{}{}:
	default:
	}
}

func (a *Agent) lastNode() *corev1.Node {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.node
}

// port needs the lock.
func (a *Agent) port() int32 {
	if a.node == nil {
		return 0
	}
	return a.node.Status.DaemonEndpoints.KubeletEndpoint.Port
}

// askKubelet keeps what the kubelet knows at hand, for when it can't be asked.
func (a *Agent) askKubelet(ctx context.Context) {
	var last time.Time
	for {
		if time.Since(last) >= refreshEvery || a.hasUnknownPods(ctx) {
			if a.refresh(ctx) {
				last = time.Now()
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookForPodsEvery):
		}
	}
}

func (a *Agent) hasUnknownPods(ctx context.Context) bool {
	pods, err := a.Runtime.Pods(ctx)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("The container runtime doesn't answer", "reason", err.Error())
		return false
	}
	priorities := a.State.Priorities()
	return slices.ContainsFunc(pods, func(pod shutdown.Pod) bool {
		_, known := priorities[pod.UID]
		return !known
	})
}

func (a *Agent) refresh(ctx context.Context) bool {
	a.mu.Lock()
	port := a.port()
	a.mu.Unlock()
	if port == 0 {
		return false
	}
	ends, err := a.Kubelet.EndsPods(ctx, port)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("The kubelet doesn't answer", "reason", err.Error())
		return false
	}
	a.mu.Lock()
	a.kubeletEnds = ends
	a.mu.Unlock()
	wake(a.nodeChanged)
	return a.refreshPriorities(ctx, port)
}

func (a *Agent) refreshPriorities(ctx context.Context, port int32) bool {
	priorities, err := a.Kubelet.Priorities(ctx, port)
	if err == nil {
		err = a.State.SetPriorities(priorities)
	}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("The priorities of the Pods aren't known", "reason", err.Error())
	}
	return err == nil
}

// reportCondition keeps the Node's condition, and the readiness of the agent's Pod, what they should be.
func (a *Agent) reportCondition(ctx context.Context) {
	retry := time.NewTicker(2 * time.Second)
	defer retry.Stop()
	for {
		a.mu.Lock()
		node, ends, settings := a.node, a.kubeletEnds, a.settings
		a.mu.Unlock()
		state := a.Keeper.State()
		if err := a.State.SetHeld(state.Held); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to say whether the agent is ready")
		}
		if node != nil {
			a.setCondition(ctx, node, Condition(state, ends, settings))
		}
		select {
		case <-ctx.Done():
			return
		case <-a.nodeChanged:
		case <-retry.C:
		}
	}
}

// Condition is what the agent says about itself.
func Condition(state logind.State, kubeletEndsPods bool, settings Settings) corev1.NodeCondition {
	condition := corev1.NodeCondition{Type: v1alpha1.NodeAgentReady, Status: corev1.ConditionTrue}
	switch {
	case !state.Held && !state.Preparing:
		condition.Status, condition.Reason = corev1.ConditionFalse, v1alpha1.ReasonNoSystemBus
		condition.Message = "A shutdown of the Node isn't delayed: " + state.Problem
	case kubeletEndsPods:
		condition.Status, condition.Reason = corev1.ConditionFalse, v1alpha1.ReasonShutdownByKubelet
		condition.Message = "The kubelet has a graceful shutdown of its own (shutdownGracePeriod), which ends the Pods. The agent only creates a NodeMaintenance."
	case settings.Problem != "":
		condition.Reason, condition.Message = v1alpha1.ReasonShutdownConfigInvalid, settings.Problem
	case state.Problem != "":
		condition.Reason, condition.Message = v1alpha1.ReasonDelayedTooShort, state.Problem
	default:
		condition.Reason, condition.Message = v1alpha1.ReasonShutdownDelayed, fmt.Sprintf("A shutdown is delayed until the Node is drained, for %s at most.", shutdown.Budget(settings.Config, state.DelayMax))
		if settings.Name != "" {
			condition.Message += fmt.Sprintf(" The Node has configuration %q.", settings.Name)
		}
	}
	return condition
}

func (a *Agent) setCondition(ctx context.Context, node *corev1.Node, wanted corev1.NodeCondition) {
	for _, present := range node.Status.Conditions {
		if present.Type == wanted.Type && present.Status == wanted.Status && present.Reason == wanted.Reason && present.Message == wanted.Message {
			return
		}
	}
	if a.Keeper.State().Preparing {
		return // there are more important things to do
	}
	now := metav1.Now()
	wanted.LastHeartbeatTime, wanted.LastTransitionTime = now, now
	if err := a.Cluster.SetCondition(ctx, wanted); err != nil {
		klog.FromContext(ctx).V(2).Info("Failed to set the condition of the Node", "reason", err.Error())
		return
	}
	if wanted.Status != corev1.ConditionTrue || wanted.Reason == v1alpha1.ReasonShutdownConfigInvalid {
		a.event(ctx, corev1.EventTypeWarning, wanted.Reason, wanted.Message)
	}
}

func (a *Agent) event(ctx context.Context, eventType, reason, message string) {
	node := a.lastNode()
	if node == nil {
		return
	}
	if err := a.Cluster.Event(ctx, node, eventType, reason, message); err != nil {
		klog.FromContext(ctx).V(2).Info("Failed to create an event", "reason", err.Error())
	}
}

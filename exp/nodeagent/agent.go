package nodeagent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/wait"
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
	// refreshInterval is the interval at which the agent requests the kubelet's configuration and its Pods. The
	// kubelet caches the authorization for two minutes, so it also answers at the start of a shutdown without the API server.
	refreshInterval = time.Minute
	// podCheckInterval is the interval at which the agent checks the container runtime for Pods that the kubelet has not reported.
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

	mu                sync.Mutex // protects node and observed
	node              *corev1.Node
	observed          Observed
	nodeChanged       chan struct{}
	staticPodsChanged chan struct{}
	// stoppedKubelet is true if this process has stopped the kubelet, or tried to, and has not started it again. The second container may
	// remove the stored record of that, because it has started the kubelet a moment before.
	stoppedKubelet atomic.Bool
}

// Observed is what the agent has observed on its node.
type Observed struct {
	Settings Settings
	// Kubelet is the state of the kubelet.
	Kubelet KubeletState
	// Requested is true once the NodeMaintenance of the present or last shutdown exists.
	Requested bool
	// Runtime is the state of the container runtime.
	Runtime RuntimeState
	// Unread explains why no process of the agent's Pod has read the kubelet's configuration and Pods. Empty if one has.
	Unread string
}

// KubeletState is what the agent has observed when the kubelet answered last. It is stored, because a kubelet may not answer during a
// shutdown, and without the API server an agent that restarts does not know its port.
type KubeletState struct {
	// TerminatesPods is true if the kubelet's own graceful shutdown is enabled.
	TerminatesPods bool `json:"terminatesPods"`
	// Elsewhere is true if the kubelet runs, but not as kubelet.service of systemd.
	Elsewhere bool `json:"elsewhere"`
	// Problem explains why the agent cannot stop the kubelet, or may not be able to. Empty if it can.
	Problem string `json:"problem"`
}

// Observe returns the state when the kubelet has answered. inUnit and err are the answer of systemd to the question whether it runs the
// kubelet as kubelet.service.
func (k KubeletState) Observe(terminatesPods, inUnit bool, err error) KubeletState {
	k.TerminatesPods = terminatesPods
	switch {
	case errors.Is(err, logind.ErrDisconnected): // the condition reports this
	case err != nil:
		k.Problem = err.Error()
	case !inUnit:
		k.Elsewhere, k.Problem = true,
			"it runs, but not as kubelet.service of systemd. The agent does not support k3s, RKE2, k0s and MicroK8s, which run it in other units"
	default:
		k.Elsewhere, k.Problem = false, ""
	}
	return k
}

// RuntimeState is the state of the container runtime.
type RuntimeState struct {
	// Known is true once the runtime has answered or has failed to answer for the first time.
	Known bool
	// Problem explains why the runtime does not answer. Empty if it answers.
	Problem string
	// failed is true if the last request failed.
	failed bool
}

// Observe returns the state after a request that has returned err. A single failure is no problem yet: runtimes restart within seconds.
func (r RuntimeState) Observe(err error) RuntimeState {
	next := RuntimeState{Known: true, failed: err != nil}
	switch {
	case err == nil:
	case r.Problem != "": // the present one stays, because its text may change with each request
		next.Problem = r.Problem
	case r.failed || !r.Known:
		next.Problem = err.Error()
	}
	return next
}

// Run runs the agent until ctx is done. config applies until the agent has observed the Node.
func (a *Agent) Run(ctx context.Context, config shutdown.Config) {
	a.nodeChanged, a.staticPodsChanged = make(chan struct{}, 1), make(chan struct{}, 1)
	a.mu.Lock()
	a.observed.Settings.Config, a.observed.Kubelet = config, a.State.Kubelet()
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
	a.followShutdowns(ctx)
}

// followShutdowns carries out each shutdown, and completes the NodeMaintenance of one that was cancelled while the agent did not run.
func (a *Agent) followShutdowns(ctx context.Context) {
	termination := &podTermination{agent: a}
	for changed := a.Keeper.Changed(); ; {
		switch lock := a.Keeper.State(); {
		case lock.Preparing:
			a.shutDown(ctx, termination)
		case lock.Known && a.State.Shutdown() != nil:
			a.completeAfterCancellation(ctx)
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

// pollKubelet stores what the kubelet knows and the container runtime does not, because the kubelet may not answer during a shutdown. A
// failure is a problem only if no earlier attempt has succeeded: while the API server is unavailable, the kubelet cannot authorize
// requests, and refuses them.
func (a *Agent) pollKubelet(ctx context.Context) {
	failures := failureLog{}
	for last := (time.Time{}); ctx.Err() == nil; pause(ctx, podCheckInterval) {
		unknown := a.observeRuntime(ctx)
		a.mu.Lock()
		port := a.port()
		a.mu.Unlock()
		if port == 0 || !unknown && time.Since(last) < refreshInterval {
			continue
		}
		err := a.refresh(ctx, port)
		failures.log(ctx, err, "Failed to read the configuration or the Pods of the kubelet")
		if err == nil {
			last = time.Now()
		}
		a.mu.Lock()
		switch {
		case err == nil:
			a.observed.Unread = ""
		case a.observed.Unread == "" && !a.State.HasReadKubelet(): // the first text stays: it may differ for each request
			a.observed.Unread = err.Error()
		}
		a.mu.Unlock()
		notify(a.nodeChanged)
	}
}

// observeRuntime stores whether the container runtime answers. It returns whether the runtime runs Pods that the kubelet has not
// reported.
func (a *Agent) observeRuntime(ctx context.Context) (unknownPods bool) {
	pods, err := a.Runtime.Pods(ctx)
	if ctx.Err() != nil {
		return false
	}
	a.mu.Lock()
	before := a.observed.Runtime
	a.observed.Runtime = before.Observe(err)
	changed := a.observed.Runtime != before
	a.mu.Unlock()
	if changed {
		notify(a.nodeChanged)
	}
	if err != nil {
		if changed {
			klog.FromContext(ctx).Error(err, "Failed to list the Pods of the container runtime")
		}
		return false
	}
	reported := a.State.KnownPods()
	return slices.ContainsFunc(pods, func(pod shutdown.Pod) bool {
		_, known := reported[pod.UID]
		return !known
	})
}

// refresh stores the configuration of the kubelet and what it reports about its Pods.
func (a *Agent) refresh(ctx context.Context, port int32) error {
	// First, so that a kubelet that answers thereafter does not run in the unit that systemd says it does not run.
	inUnit, unitErr := a.Keeper.RunsKubelet(ctx)
	graceful, err := a.Kubelet.HasGracefulShutdown(ctx, port)
	if err == nil {
		a.mu.Lock()
		a.observed.Kubelet = a.observed.Kubelet.Observe(graceful, inUnit, unitErr)
		err = a.State.SetKubelet(a.observed.Kubelet)
		a.mu.Unlock()
	}
	return utilerrors.NewAggregate([]error{err, a.refreshPods(ctx, port)})
}

func (a *Agent) refreshPods(ctx context.Context, port int32) error {
	pods, err := a.Kubelet.Pods(ctx, port)
	if err != nil {
		return err
	}
	running, _ := a.Runtime.Pods(ctx) // if the runtime does not answer, those that it listed last
	a.mu.Lock()                       // pollKubelet and terminatePods write the same file
	defer a.mu.Unlock()
	shutdown.Remember(pods, a.State.KnownPods(), running)
	return a.State.SetKnownPods(pods)
}

// reportCondition keeps the condition of the Node and the readiness of the agent's Pod up to date.
func (a *Agent) reportCondition(ctx context.Context) {
	retry := time.NewTicker(2 * time.Second)
	defer retry.Stop()
	for writes := (conditionWrites{}); ; {
		a.mu.Lock()
		node, observed := a.node, a.observed
		a.mu.Unlock()
		lock := a.Keeper.State()
		if err := a.State.SetReady(observed.Ready(lock)); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to write the readiness of the agent")
		}
		if node != nil && observed.Runtime.Known && (!observed.Settings.Enabled() || lock.Answered()) {
			a.setCondition(ctx, node, observed.Condition(lock), &writes)
		}
		select {
		case <-ctx.Done():
			return
		case <-a.nodeChanged:
		case <-retry.C:
		}
	}
}

// Ready returns whether the agent can delay a shutdown and terminate Pods, or need not. It is the readiness of the agent's Pod.
func (o Observed) Ready(lock logind.State) bool {
	return !o.Settings.Enabled() || lock.Delays() && (o.Kubelet.TerminatesPods || o.Runtime.Known && o.Runtime.Problem == "")
}

// Condition returns the condition that the agent reports on its Node.
func (o Observed) Condition(lock logind.State) corev1.NodeCondition {
	condition := corev1.NodeCondition{Type: v1alpha1.NodeAgentReady, Status: corev1.ConditionTrue}
	switch {
	case !o.Settings.Enabled():
		condition.Status, condition.Reason = corev1.ConditionFalse, v1alpha1.ReasonShutdownDelayDisabled
		condition.Message = strings.TrimSpace("The configuration has a shutdownGracePeriod of 0: the agent does not delay a shutdown. " + o.Settings.Problem)
	case !lock.Delays() && !lock.Preparing:
		condition.Status, condition.Reason = corev1.ConditionFalse, v1alpha1.ReasonShutdownNotDelayed
		condition.Message = "The agent cannot delay a shutdown of the Node: " + lock.Problem
	case o.Kubelet.TerminatesPods:
		condition.Status, condition.Reason = corev1.ConditionFalse, v1alpha1.ReasonKubeletGracefulShutdown
		condition.Message = "The kubelet's graceful shutdown (shutdownGracePeriod) is enabled and terminates the Pods. The agent only creates a NodeMaintenance."
	case lock.Preparing && o.Requested:
		condition.Reason = v1alpha1.ReasonNodeShutdown
		condition.Message = fmt.Sprintf("The Node shuts down. The agent delays this until the Node is drained, for at most %s. "+
			"The kubelet still starts Pods that are bound to the Node. The agent terminates them before the Node powers off.",
			shutdown.Budget(o.Settings.Config, lock.DelayMax))
	case o.Runtime.Problem != "":
		condition.Status, condition.Reason = corev1.ConditionFalse, v1alpha1.ReasonContainerRuntimeUnavailable
		condition.Message = "The container runtime does not answer. In a shutdown, the Node is drained, but the agent cannot terminate the Pods that remain. " +
			"Start the runtime, or fix the agent's flag --container-runtime and its volumes: " + o.Runtime.Problem
	case o.Unread != "":
		condition.Status, condition.Reason = corev1.ConditionFalse, v1alpha1.ReasonKubeletUnavailable
		condition.Message = "The agent delays a shutdown until the Node is drained, but terminates the Pods that remain without regard to their priority, also " +
			"if the kubelet's graceful shutdown is enabled: it cannot read the kubelet's configuration and Pods. Nodes need kubelet v1.33 or later: " + o.Unread
	case o.Kubelet.Problem != "":
		condition.Status, condition.Reason = corev1.ConditionFalse, v1alpha1.ReasonKubeletCannotBeStopped
		condition.Message = "The agent delays a shutdown until the Node is drained, but cannot stop the kubelet, which restarts the Pods that the agent " +
			"terminates: " + o.Kubelet.Problem
	case o.Settings.Problem != "":
		condition.Reason, condition.Message = v1alpha1.ReasonInvalidConfiguration, o.Settings.Problem
	case lock.Problem != "":
		condition.Reason, condition.Message = v1alpha1.ReasonDelayTooShort, lock.Problem
	default:
		condition.Reason, condition.Message = v1alpha1.ReasonShutdownDelayed,
			fmt.Sprintf("The agent delays a shutdown until the Node is drained, for at most %s.", shutdown.Budget(o.Settings.Config, lock.DelayMax))
		if o.Settings.Name != "" {
			condition.Message += fmt.Sprintf(" The Node uses configuration %q.", o.Settings.Name)
		}
	}
	return condition
}

func (a *Agent) setCondition(ctx context.Context, node *corev1.Node, wanted corev1.NodeCondition, writes *conditionWrites) {
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
	if a.Keeper.State().Preparing && wanted.Reason != v1alpha1.ReasonNodeShutdown {
		return // during a shutdown, requests are reserved for the NodeMaintenance
	}
	if !writes.due(wanted) {
		return
	}
	if err := a.Cluster.SetCondition(ctx, wanted); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to set the condition of the Node")
		return
	}
	if writes.written {
		return
	}
	writes.written = true
	if wanted.Status != corev1.ConditionTrue && wanted.Reason != v1alpha1.ReasonShutdownDelayDisabled || wanted.Reason == v1alpha1.ReasonInvalidConfiguration {
		a.recordEvent(ctx, corev1.EventTypeWarning, wanted.Reason, wanted.Message)
	}
}

// conditionWrites limits how often the agent writes the same condition: the API server may refuse it, another actor may remove it, and the
// watch of the Node may not deliver it.
type conditionWrites struct {
	// last is the condition that was written last, or that the API server has refused, without its times.
	last string
	// written is true once the API server has accepted it.
	written bool
	// next is when the agent may write it again.
	next    time.Time
	backoff wait.Backoff
}

// due reports whether the agent may write a condition now, and expects that it does. It permits another condition at once.
func (w *conditionWrites) due(condition corev1.NodeCondition) bool {
	const longest = time.Minute
	wanted, now := string(condition.Status)+" "+condition.Reason+" "+condition.Message, time.Now()
	switch {
	case w.last != wanted || now.Sub(w.next) > longest:
		*w = conditionWrites{last: wanted, backoff: wait.Backoff{Duration: 2 * time.Second, Factor: 2, Jitter: 0.2, Steps: 10, Cap: longest}}
	case now.Before(w.next):
		return false
	}
	w.next = now.Add(w.backoff.Step())
	return true
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

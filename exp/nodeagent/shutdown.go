package nodeagent

import (
	"context"
	"sync"
	"time"

	"github.com/pkg/errors"
	"k8s.io/klog/v2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/cluster"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

const (
	// decisionInterval is the interval between decisions during a shutdown, pollInterval that between requests to the API server or
	// the container runtime.
	decisionInterval = 50 * time.Millisecond
	pollInterval     = 250 * time.Millisecond
	// killMargin is the time after the period of a phase in which the container runtime sends SIGKILL and reports that the Pods have ended.
	// The next phase has begun then.
	killMargin = 2 * time.Second
	// cleanupInterval is the retry interval after a shutdown, when the NodeMaintenance has to be completed.
	cleanupInterval = time.Second
	// kubeletPatience is how long the kubelet may take to end before the agent no longer waits for that.
	kubeletPatience = 2 * time.Second
	// lateCreation is how long after a cancellation the API server may still create the NodeMaintenance: it does not stop a request that the
	// agent no longer waits for.
	lateCreation = 10 * time.Second
)

// shutDown carries out a shutdown of the node. It returns when the shutdown is cancelled or ctx is done, or at once if the configuration
// disables the delay. termination also served earlier shutdowns: it may not have started the kubelet after the last one.
func (a *Agent) shutDown(ctx context.Context, termination *podTermination) {
	log := klog.FromContext(ctx)
	config := a.currentSettings().Config
	if !config.Enabled() {
		log.Info("The node shuts down. The configuration disables the delay")
		return
	}
	budget := shutdown.Budget(config, a.Keeper.State().DelayMax)
	begun := a.begin(ctx, budget)
	since := begun.begin()
	log.Info("The node shuts down", "since", since, "budget", budget)

	a.setRequested(false)
	followContext, stopFollowing := context.WithCancel(ctx)
	defer stopFollowing()
	maintenance := &observedMaintenance{}
	go a.followMaintenance(followContext, maintenance)
	var action shutdown.Action
	for a.Keeper.State().Preparing {
		now := time.Now()
		budget = shutdown.Budget(config, a.Keeper.State().DelayMax) // logind may have reported its delay since
		observed := maintenance.observed()
		observed.Now, observed.Since, observed.Budget, observed.PodsTerminated = now, since, budget, termination.done()
		a.mu.Lock()
		observed.KubeletTerminatesPods = a.observed.Kubelet.TerminatesPods
		a.mu.Unlock()
		next, why := shutdown.Decide(config, observed)
		if next != action {
			log.Info("Next action of the shutdown", "action", next, "reason", why)
			action = next
		}
		switch {
		case action == shutdown.Release && !begun.Released:
			begun.Released = true
			a.release(ctx, begun)
		case action == shutdown.TerminatePods:
			termination.start(ctx, budget-now.Sub(since))
		case action == shutdown.Request || action == shutdown.Await:
			termination.stop(ctx)
		}
		if pause(ctx, decisionInterval); ctx.Err() != nil {
			return
		}
	}
	log.Info("The shutdown was cancelled")
	stopFollowing()
	a.revert(ctx, termination)
}

// begin returns the stored shutdown if it is in progress, and stores a new one otherwise.
func (a *Agent) begin(ctx context.Context, budget time.Duration) Shutdown {
	if stored := a.State.Shutdown(); stored.continues(budget) {
		return *stored
	}
	begun := Shutdown{Since: uptime()}
	if err := a.State.SetShutdown(begun); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to store the shutdown")
	}
	return begun
}

// revert reverts what a cancelled shutdown has done: it starts the kubelet and completes the NodeMaintenance. It retries each until it
// succeeds or another shutdown begins. Neither waits for the other: this kubelet may have to run the API server.
func (a *Agent) revert(ctx context.Context, termination *podTermination) {
	var starting sync.WaitGroup
	defer starting.Wait()
	starting.Go(func() {
		for termination.stop(ctx); a.kubeletStopped(); termination.stop(ctx) {
			if pause(ctx, cleanupInterval); ctx.Err() != nil || a.Keeper.State().Preparing {
				return
			}
		}
	})
	a.completeAfterCancellation(ctx)
}

// mayShutDown reports whether a shutdown is in progress, or may be: one is stored, and logind has not said that it was cancelled.
func (a *Agent) mayShutDown() bool {
	lock := a.Keeper.State()
	return lock.Preparing || !lock.Known && a.State.Shutdown() != nil
}

// release releases the agent's lock, and stores that it has. The other container then releases the second lock.
func (a *Agent) release(ctx context.Context, begun Shutdown) {
	a.Keeper.Release()
	if err := a.State.SetShutdown(begun); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to store that the lock is released; the second lock stays until the deadline")
	}
}

// completeAfterCancellation completes the NodeMaintenance of a cancelled shutdown. It retries until it succeeds or another shutdown begins.
// The stored shutdown stays until then, so that the next process of the agent continues.
func (a *Agent) completeAfterCancellation(ctx context.Context) {
	if err := a.State.SetShutdown(Shutdown{Cancelled: true}); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to store that the shutdown was cancelled")
	}
	a.completeUnless(ctx, func() bool { return a.Keeper.State().Preparing })
}

// completeUnless completes the NodeMaintenance of a cancelled shutdown, unless another shutdown begins: it then returns at once, also if
// the API server does not answer, because logind counts the time of that shutdown. If there is no NodeMaintenance, one may still be
// created.
func (a *Agent) completeUnless(ctx context.Context, preparing func() bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for ctx.Err() == nil && !preparing() {
			pause(ctx, decisionInterval)
		}
		cancel()
	}()
	failures := failureLog{}
	for start := time.Now(); ctx.Err() == nil && !preparing(); {
		exists, err := a.Cluster.CompleteMaintenance(ctx, shutdown.NamePrefix+a.Node)
		if err == nil && !exists && time.Since(start) < lateCreation {
			pause(ctx, pollInterval)
			continue
		}
		if err == nil {
			err = a.State.ClearShutdown()
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		failures.log(ctx, err, "Failed to complete the NodeMaintenance of a cancelled shutdown, retrying")
		pause(ctx, cleanupInterval)
	}
}

// observedMaintenance is the last observed state of the NodeMaintenance of the shutdown.
type observedMaintenance struct {
	mu    sync.Mutex
	state shutdown.Observed
}

func (f *observedMaintenance) observed() shutdown.Observed {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

func (f *observedMaintenance) record(m *v1alpha1.NodeMaintenance, err error, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if cluster.Answered(err) {
		f.state.LastAnswer = at
	}
	if err != nil || m == nil {
		return
	}
	f.state.Created = m.Spec.Stage == v1alpha1.StageDrain
	acting, drained := shutdown.Progress(m)
	f.state.Acting, f.state.Drained = acting, drained || f.state.Drained
}

// followMaintenance creates the NodeMaintenance and records its progress until ctx is done.
func (a *Agent) followMaintenance(ctx context.Context, into *observedMaintenance) {
	for failures := (failureLog{}); ctx.Err() == nil; {
		m, err := a.Cluster.Maintenance(ctx, shutdown.NamePrefix+a.Node)
		if err == nil {
			m, err = a.ensureMaintenance(ctx, m)
		}
		failures.log(ctx, err, "Failed to get or create the NodeMaintenance")
		into.record(m, err, time.Now())
		if err == nil && m != nil {
			a.setRequested(true)
		}
		pause(ctx, pollInterval)
	}
}

// ensureMaintenance creates the NodeMaintenance. It first deletes a complete one of an earlier shutdown, or one of an earlier Node, which
// have the same name. It returns nil while there is no NodeMaintenance of this shutdown.
func (a *Agent) ensureMaintenance(ctx context.Context, m *v1alpha1.NodeMaintenance) (*v1alpha1.NodeMaintenance, error) {
	switch {
	case m == nil:
		node, err := a.Cluster.Node(ctx) // the observed one may have been deleted
		if err != nil || node == nil {
			return nil, err
		}
		return nil, a.Cluster.CreateMaintenance(ctx, shutdown.Maintenance(node, a.currentSettings().Config))
	case m.DeletionTimestamp != nil:
		return nil, nil
	case m.Spec.Stage == v1alpha1.StageComplete:
		return nil, a.Cluster.DeleteMaintenance(ctx, m.Name)
	}
	node := a.lastNode()
	if node == nil || shutdown.IsOfAnother(m, node) { // the watch may not have delivered the present one
		var err error
		if node, err = a.Cluster.Node(ctx); err != nil {
			return nil, err
		}
	}
	if shutdown.IsOfAnother(m, node) {
		return nil, a.Cluster.DeleteMaintenance(ctx, m.Name)
	}
	return m, nil
}

// setRequested stores whether the NodeMaintenance of the shutdown exists. If it does, the condition of the Node reports the shutdown.
func (a *Agent) setRequested(requested bool) {
	a.mu.Lock()
	changed := a.observed.Requested != requested
	a.observed.Requested = requested
	a.mu.Unlock()
	if changed {
		notify(a.nodeChanged)
	}
}

// failureLog logs an error of a retried request only when it changes: while the container runtime does not run, nothing reads the agent's
// output, and lines are lost when the pipe is full.
type failureLog struct{ last string }

func (l *failureLog) log(ctx context.Context, err error, message string) {
	text := ""
	if err != nil && ctx.Err() == nil {
		text = err.Error()
	}
	if text != "" && text != l.last {
		klog.FromContext(ctx).Error(err, message)
	}
	l.last = text
}

// podTermination terminates the Pods of the node without the kubelet.
type podTermination struct {
	agent    *Agent
	cancel   context.CancelFunc
	finished chan struct{}
	starting failureLog
}

func (e *podTermination) done() bool {
	if e.cancel == nil {
		return false
	}
	select {
	case <-e.finished:
		return true
	default:
		return false
	}
}

// start starts the termination. It does nothing if the termination has already started.
func (e *podTermination) start(ctx context.Context, remaining time.Duration) {
	if e.cancel != nil {
		return
	}
	ctx, e.cancel = context.WithCancel(ctx)
	finished := make(chan struct{})
	e.finished = finished
	go func() {
		defer close(finished)
		e.agent.terminatePods(ctx, remaining)
	}()
}

// stop stops the termination and starts the kubelet if the agent has stopped it. If it cannot start the kubelet, the next call tries again.
// Containers that have received SIGTERM still terminate.
func (e *podTermination) stop(ctx context.Context) {
	e.cancelAndWait()
	if e.agent.kubeletStopped() {
		e.starting.log(ctx, e.agent.startKubelet(ctx), "Failed to start the kubelet, retrying")
	}
}

// cancelAndWait cancels the termination, if it has started, and waits until it has ended. The kubelet stays stopped.
func (e *podTermination) cancelAndWait() {
	if e.cancel != nil {
		e.cancel()
		<-e.finished
		e.cancel = nil
	}
}

// terminatePods terminates the Pods that the container runtime lists, phase by phase, until only the agent's own Pod runs or the remaining
// time is used up. It first stops the kubelet, which would restart them, and start others that are bound to the Node meanwhile. It returns
// only after the kubelet has ended, unless that takes longer than kubeletPatience. While the runtime does not list its Pods, terminatePods
// tries once to terminate those that it listed last. A kubelet that cannot be stopped restarts the Pods, so terminatePods then terminates
// them only once.
func (a *Agent) terminatePods(ctx context.Context, remaining time.Duration) {
	deadline := time.Now().Add(remaining)
	a.mu.Lock()
	port, stoppable := a.port(), !a.observed.Kubelet.Elsewhere
	a.mu.Unlock()
	if port != 0 {
		refreshContext, cancel := context.WithTimeout(ctx, min(time.Second, remaining/10))
		if err := a.refreshPods(refreshContext, port); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to read the Pods of the kubelet")
		}
		cancel()
	}
	pods, err := a.otherPods(ctx)
	// List the Pods again: the kubelet may have started more before it stopped, and the runtime may have failed to terminate a Pod. Stop the
	// kubelet again: another actor may have started it.
	listing, stopping, patience := failureLog{}, failureLog{}, time.Now().Add(kubeletPatience)
	for attempted := false; ctx.Err() == nil && time.Now().Before(deadline); pause(ctx, pollInterval) {
		listing.log(ctx, err, "The container runtime does not list its Pods: terminating those that it listed last, and retrying until the deadline")
		if stoppable {
			stopping.log(ctx, a.stopKubelet(ctx), "Failed to stop the kubelet: it may restart the Pods that the agent terminates")
		}
		if err == nil || !attempted {
			a.terminateByPhase(ctx, pods, time.Until(deadline))
		}
		terminated := err == nil && !stoppable
		attempted = err != nil
		ended := !time.Now().Before(patience) || a.kubeletHasEnded(ctx) // first: the list may lack a Pod that the kubelet starts just now
		if pods, err = a.otherPods(ctx); terminated || err == nil && len(pods) == 0 && ended {
			break
		}
	}
}

// stopKubelet stores that the kubelet is stopped, and stops it. It stores this first: the process of the agent may end at any time.
func (a *Agent) stopKubelet(ctx context.Context) error {
	a.stoppedKubelet.Store(true)
	if err := a.State.SetKubeletStopped(true); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to store that the kubelet is stopped")
	}
	return a.Keeper.StopKubelet(ctx)
}

// kubeletHasEnded reports whether kubelet.service does not run, or systemd does not say.
func (a *Agent) kubeletHasEnded(ctx context.Context) bool {
	runs, err := a.Keeper.RunsKubelet(ctx)
	return err != nil || !runs
}

// kubeletStopped reports whether the agent has stopped the kubelet, in this process or in an earlier one.
func (a *Agent) kubeletStopped() bool { return a.stoppedKubelet.Load() || a.State.KubeletStopped() }

func (a *Agent) startKubelet(ctx context.Context) error {
	if err := a.State.startKubelet(ctx, a.Keeper); err != nil {
		return err
	}
	a.stoppedKubelet.Store(false)
	return nil
}

func (a *Agent) terminateByPhase(ctx context.Context, pods []shutdown.Pod, remaining time.Duration) {
	phases := shutdown.Within(shutdown.Occupied(a.currentSettings().Phases(), pods), remaining)
	var terminating sync.WaitGroup
	defer terminating.Wait()
	for i, phase := range shutdown.Terminations(phases, pods) {
		if len(phase) == 0 || ctx.Err() != nil {
			continue
		}
		klog.FromContext(ctx).Info("Terminating Pods", "fromPriority", phases[i].From, "count", len(phase), "period", phases[i].Period)
		// As in the kubelet, a Pod that does not terminate, or a runtime that hangs, must not take the time of the next phase.
		terminated := make(chan struct{})
		terminating.Go(func() {
			defer close(terminated)
			phaseContext, cancel := context.WithTimeout(ctx, phases[i].Period+killMargin)
			defer cancel()
			a.terminatePhase(phaseContext, phase)
		})
		select {
		case <-terminated:
		case <-time.After(phases[i].Period):
		}
	}
}

// otherPods returns the Pods that run on the node, except for the agent's own Pod and another of the agent, which holds locks, too, while a
// DaemonSet with maxSurge replaces one by the other. If the container runtime does not answer, otherPods returns those that it listed last,
// and an error.
func (a *Agent) otherPods(ctx context.Context) ([]shutdown.Pod, error) {
	known := a.State.KnownPods()
	pods, err := a.Runtime.Pods(ctx)
	var others []shutdown.Pod
	for _, pod := range pods {
		if pod.UID != a.PodUID && pod.Namespace != rules.NodeAgentNamespace {
			pod.Known = known[pod.UID]
			others = append(others, pod)
		}
	}
	return others, err
}

// pause waits for d, or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (a *Agent) terminatePhase(ctx context.Context, pods []shutdown.Termination) {
	var terminating sync.WaitGroup
	for _, pod := range pods {
		terminating.Go(func() {
			if err := a.Runtime.Terminate(ctx, pod); err != nil && !errors.Is(ctx.Err(), context.Canceled) {
				klog.FromContext(ctx).Error(err, "Failed to terminate a Pod", "pod", klog.KRef(pod.Namespace, pod.Name))
			}
		})
	}
	terminating.Wait()
}

// completeAfterBoot completes the NodeMaintenance of a shutdown once the node has booted, if completeOnBoot is set.
func (a *Agent) completeAfterBoot(ctx context.Context) {
	failures := failureLog{}
	for done := ""; ctx.Err() == nil; pause(ctx, cleanupInterval) {
		config := a.currentSettings().Config
		if node := a.lastNode(); config.CompleteOnBoot && node != nil && node.Status.NodeInfo.BootID != done && !a.mayShutDown() {
			m, err := a.Cluster.Maintenance(ctx, shutdown.NamePrefix+a.Node)
			if err == nil && m != nil && shutdown.Completes(m, node.Status.NodeInfo.BootID, config) {
				_, err = a.Cluster.CompleteMaintenance(ctx, m.Name)
			}
			if err == nil {
				done = node.Status.NodeInfo.BootID
			}
			failures.log(ctx, err, "Failed to complete the NodeMaintenance of the last shutdown, retrying")
		}
	}
}

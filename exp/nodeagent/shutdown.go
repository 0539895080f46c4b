package nodeagent

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/cluster"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

const (
	// lookEvery is how often the course is decided anew during a shutdown, and askEvery how often the API server is asked.
	lookEvery = 50 * time.Millisecond
	askEvery  = 250 * time.Millisecond
	// cleanUpEvery is how often what follows a shutdown is tried.
	cleanUpEvery = time.Second
)

// shutDown takes the node through a shutdown. It returns when that is called off, or the context ends.
func (a *Agent) shutDown(ctx context.Context) {
	log := klog.FromContext(ctx)
	begun := a.State.Shutdown()
	if begun == nil {
		begun = &Shutdown{Since: time.Now()}
		if err := a.State.SetShutdown(*begun); err != nil {
			log.Error(err, "Failed to note the shutdown")
		}
	}
	config := a.configured().Config
	budget := shutdown.Budget(config, a.Keeper.State().DelayMax)
	log.Info("The node shuts down", "since", begun.Since, "budget", budget)

	following, stop := context.WithCancel(ctx)
	defer stop()
	maintenance := &followed{}
	go a.follow(following, maintenance)
	ending := &ending{agent: a}
	var course shutdown.Course
	for a.Keeper.State().Preparing {
		now := time.Now()
		observed := maintenance.observed()
		observed.Now, observed.Since, observed.Budget, observed.Ended = now, begun.Since, budget, ending.done()
		a.mu.Lock()
		observed.KubeletEndsPods = a.kubeletEnds
		a.mu.Unlock()
		next, why := shutdown.Decide(config, observed)
		if next != course {
			log.Info("Course of the shutdown", "course", next, "reason", why)
			course = next
		}
		switch {
		case course == shutdown.Release && !begun.Released:
			begun.Released = true
			a.release(ctx, *begun)
		case course == shutdown.EndPods:
			ending.start(ctx, budget-now.Sub(begun.Since))
		case course == shutdown.Request || course == shutdown.Await:
			ending.stop(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookEvery):
		}
	}
	log.Info("The shutdown was called off")
	ending.stop(ctx)
	stop()
	a.calledOff(ctx)
}

// release lets the node go down: our lock first, and with the note the one that the other container holds.
func (a *Agent) release(ctx context.Context, begun Shutdown) {
	a.Keeper.Release()
	if err := a.State.SetShutdown(begun); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to have the second lock released")
	}
}

// calledOff completes the NodeMaintenance, as soon as that can be.
func (a *Agent) calledOff(ctx context.Context) {
	if err := a.State.Clear(); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to forget the shutdown")
	}
	for ctx.Err() == nil && !a.Keeper.State().Preparing {
		err := a.Cluster.CompleteMaintenance(ctx, shutdown.NamePrefix+a.Node)
		if err == nil {
			return
		}
		klog.FromContext(ctx).V(2).Info("Failed to complete the NodeMaintenance", "reason", err.Error())
		select {
		case <-ctx.Done():
		case <-time.After(cleanUpEvery):
		}
	}
}

// followed is the NodeMaintenance of the shutdown, as last seen.
type followed struct {
	mu    sync.Mutex
	state shutdown.Observed
}

func (f *followed) observed() shutdown.Observed {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

func (f *followed) saw(m *v1alpha1.NodeMaintenance, err error, at time.Time) {
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

// follow has the NodeMaintenance be there, and looks how it goes.
func (a *Agent) follow(ctx context.Context, into *followed) {
	for ctx.Err() == nil {
		m, err := a.Cluster.Maintenance(ctx, shutdown.NamePrefix+a.Node)
		if err == nil {
			m, err = a.ensure(ctx, m)
		}
		if err != nil {
			klog.FromContext(ctx).V(2).Info("The NodeMaintenance isn't to be had", "reason", err.Error())
		}
		into.saw(m, err, time.Now())
		select {
		case <-ctx.Done():
		case <-time.After(askEvery):
		}
	}
}

// ensure creates the NodeMaintenance. One of an earlier shutdown that is complete makes room first.
func (a *Agent) ensure(ctx context.Context, m *v1alpha1.NodeMaintenance) (*v1alpha1.NodeMaintenance, error) {
	switch {
	case m == nil:
		bootID := ""
		if node := a.lastNode(); node != nil {
			bootID = node.Status.NodeInfo.BootID
		}
		return nil, a.Cluster.CreateMaintenance(ctx, shutdown.Maintenance(a.Node, bootID, a.configured().Config))
	case m.Spec.Stage == v1alpha1.StageComplete && m.DeletionTimestamp == nil:
		return nil, a.Cluster.DeleteMaintenance(ctx, m.Name)
	case m.DeletionTimestamp != nil:
		return nil, nil
	default:
		return m, nil
	}
}

// ending ends the Pods of the node without the kubelet.
type ending struct {
	agent  *Agent
	cancel context.CancelFunc
	ended  chan struct{}
}

func (e *ending) done() bool {
	if e.cancel == nil {
		return false
	}
	select {
	case <-e.ended:
		return true
	default:
		return false
	}
}

// start does nothing when it has been started.
func (e *ending) start(ctx context.Context, left time.Duration) {
	if e.cancel != nil {
		return
	}
	ctx, e.cancel = context.WithCancel(ctx)
	ended := make(chan struct{})
	e.ended = ended
	go func() {
		defer close(ended)
		e.agent.endPods(ctx, left)
	}()
}

// stop has the kubelet take over again. What has got its SIGTERM goes on to its end.
func (e *ending) stop(ctx context.Context) {
	if e.cancel == nil {
		return
	}
	e.cancel()
	<-e.ended
	e.cancel = nil
	if err := e.agent.Keeper.StartKubelet(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to start the kubelet")
	}
}

// endPods ends the Pods that the container runtime lists, phase by phase, until none is left but the agent's own or the time is up.
// It stops the kubelet first, which would restart them. Where there is nothing to end, the kubelet runs on.
func (a *Agent) endPods(ctx context.Context, left time.Duration) {
	log := klog.FromContext(ctx)
	deadline := time.Now().Add(left)
	a.mu.Lock()
	port := a.port()
	a.mu.Unlock()
	if port != 0 {
		asking, cancel := context.WithTimeout(ctx, min(time.Second, left/10))
		a.refreshPriorities(asking, port)
		cancel()
	}
	pods := a.otherPods(ctx)
	if len(pods) == 0 {
		return
	}
	if err := a.Keeper.StopKubelet(ctx); err != nil {
		log.Error(err, "Failed to stop the kubelet: it may restart what is ended")
	}
	// The kubelet may have started more before it stopped, and the runtime may fail to end a Pod: list them again.
	for len(pods) > 0 && ctx.Err() == nil && time.Now().Before(deadline) {
		a.endPhases(ctx, pods, time.Until(deadline))
		if pods = a.otherPods(ctx); len(pods) > 0 {
			log.Info("Pods remain", "count", len(pods))
			pause(ctx, askEvery)
		}
	}
}

func (a *Agent) endPhases(ctx context.Context, pods []shutdown.Pod, left time.Duration) {
	phases := shutdown.Within(shutdown.Occupied(a.configured().Phases(), pods), left)
	for i, phase := range shutdown.Endings(phases, pods) {
		if len(phase) == 0 || ctx.Err() != nil {
			continue
		}
		klog.FromContext(ctx).Info("Ending Pods", "fromPriority", phases[i].From, "count", len(phase), "period", phases[i].Period)
		a.endPhase(ctx, phase)
	}
}

// otherPods returns the Pods that run on the node, with their priorities, without the agent's own.
func (a *Agent) otherPods(ctx context.Context) []shutdown.Pod {
	priorities := a.State.Priorities()
	var others []shutdown.Pod
	for _, pod := range a.runningPods(ctx) {
		if pod.UID != a.PodUID {
			pod.Priority = priorities[pod.UID]
			others = append(others, pod)
		}
	}
	return others
}

// runningPods asks until the container runtime answers: not to know the Pods must not look like there being none.
func (a *Agent) runningPods(ctx context.Context) []shutdown.Pod {
	for {
		pods, err := a.Runtime.Pods(ctx)
		if err == nil || ctx.Err() != nil {
			return pods
		}
		klog.FromContext(ctx).Error(err, "Failed to list the Pods of the node")
		pause(ctx, askEvery)
	}
}

// pause waits, or until the context ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (a *Agent) endPhase(ctx context.Context, pods []shutdown.Ending) {
	var ending sync.WaitGroup
	for _, pod := range pods {
		ending.Go(func() {
			if err := a.Runtime.End(ctx, pod); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Failed to end a Pod", "pod", klog.KRef(pod.Namespace, pod.Name))
			}
		})
	}
	ending.Wait()
}

// completeAfterBoot completes the NodeMaintenance of a shutdown once the node has booted, where the configuration says so.
func (a *Agent) completeAfterBoot(ctx context.Context) {
	for done := ""; ; {
		config := a.configured().Config
		if node := a.lastNode(); config.CompleteOnBoot && node != nil && node.Status.NodeInfo.BootID != done && !a.Keeper.State().Preparing {
			m, err := a.Cluster.Maintenance(ctx, shutdown.NamePrefix+a.Node)
			if err == nil && m != nil && shutdown.Completes(m, node.Status.NodeInfo.BootID, config) {
				err = a.Cluster.CompleteMaintenance(ctx, m.Name)
			}
			if err == nil {
				done = node.Status.NodeInfo.BootID
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(cleanUpEvery):
		}
	}
}

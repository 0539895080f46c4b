package nodeagent

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/klog/v2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/hold"
)

// Reasons of the agent's events about static Pods.
const (
	// eventHeld on a Node means that the agent holds the manifest of a static Pod for a maintenance.
	eventHeld = "StaticPodHeld"
	// eventReleased on a Node means that the agent has restored the manifest of a static Pod after a maintenance.
	eventReleased = "StaticPodReleased"
	// eventReappeared on a Node means that another actor has recreated a held manifest. The kubelet runs its Pod.
	eventReappeared = "StaticPodReappeared"
	// eventReplaced on a Node means that the agent keeps a recreated manifest after the maintenance, and has renamed the held one.
	eventReplaced = "StaticPodReplaced"
)

// staticPodsInterval is the interval at which the agent checks for held manifests that have reappeared, and the retry interval after
// an error.
const staticPodsInterval = 5 * time.Second

// staticPodEvacuations are the Evacuations of the Node's static Pods. The agent watches them only while static Pods are drain targets.
type staticPodEvacuations struct {
	mu       sync.Mutex
	stop     context.CancelFunc
	observed []v1alpha1.Evacuation
}

func (e *staticPodEvacuations) get() []v1alpha1.Evacuation {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.observed
}

// watchEvacuations starts the watch of Evacuations unless it runs.
func (a *Agent) watchEvacuations(ctx context.Context, e *staticPodEvacuations) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop != nil {
		return
	}
	ctx, e.stop = context.WithCancel(ctx)
	go a.Cluster.WatchEvacuations(ctx, func(observed []v1alpha1.Evacuation) {
		e.mu.Lock()
		e.observed = observed
		e.mu.Unlock()
		notify(a.staticPodsChanged)
	})
}

// stopWatch stops the watch of Evacuations if it runs, and drops what it has observed.
func (e *staticPodEvacuations) stopWatch() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop != nil {
		e.stop()
		e.stop, e.observed = nil, nil
	}
}

// serveStaticPods holds and releases the manifests of static Pods until ctx is done.
func (a *Agent) serveStaticPods(ctx context.Context) {
	evacuations, reported := &staticPodEvacuations{}, map[string]bool{}
	for {
		requeue, err := a.reconcileStaticPods(ctx, evacuations, reported)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Failed to hold or release the manifests of static Pods")
		}
		var after <-chan time.Time
		if requeue || err != nil {
			after = time.After(staticPodsInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-a.staticPodsChanged:
		case <-after:
		}
	}
}

// reconcileStaticPods holds and releases manifests once. It returns requeue if manifests are held: no event tells that a file reappears.
func (a *Agent) reconcileStaticPods(ctx context.Context, evacuations *staticPodEvacuations, reported map[string]bool) (requeue bool, err error) {
	o := hold.Observed{Node: a.Node}
	if o.Records, err = a.Manifests.Records(); err != nil {
		return false, err
	}
	if node := a.lastNode(); node != nil {
		o.Cause = node.Annotations[v1alpha1.StaticPodCauseAnnotation]
		if o.Targets, err = staticTargets(node); err != nil {
			return false, err
		}
		o.Known = true
	}
	if len(o.Targets) > 0 {
		a.watchEvacuations(ctx, evacuations)
	} else {
		evacuations.stopWatch()
	}
	if !o.Known || len(o.Targets) == 0 && len(o.Records) == 0 {
		return false, nil
	}
	o.Evacuations = evacuations.get()
	if o.Manifests, err = a.Manifests.Manifests(); err != nil {
		return false, err
	}
	return len(o.Records) > 0, a.applyActions(ctx, hold.Decide(o), reported)
}

// staticTargets returns the drain targets that the NodeMaintenance controller publishes for static Pods in an annotation of the Node.
func staticTargets(node *corev1.Node) ([]v1alpha1.DrainTarget, error) {
	annotation := node.Annotations[v1alpha1.StaticPodTargetsAnnotation]
	if annotation == "" {
		return nil, nil
	}
	var targets []v1alpha1.DrainTarget
	return targets, errors.Wrapf(json.Unmarshal([]byte(annotation), &targets), "parsing annotation %s of the Node", v1alpha1.StaticPodTargetsAnnotation)
}

// applyActions applies the actions. One that fails does not delay the others.
func (a *Agent) applyActions(ctx context.Context, actions hold.Actions, reported map[string]bool) error {
	var failures []error
	for _, r := range actions.Release {
		failures = append(failures, a.releaseManifest(ctx, r, reported))
	}
	for _, h := range actions.Finish {
		failures = append(failures, a.reportFailure(ctx, h, a.Manifests.Finish(hold.Record{File: h.Manifest.File})))
	}
	for _, h := range actions.Held {
		failures = append(failures, a.report(ctx, h))
	}
	for _, r := range actions.Reappeared {
		if !reported[r.File] {
			reported[r.File] = true
			a.recordEvent(ctx, corev1.EventTypeWarning, eventReappeared,
				"Manifest "+r.File+" was recreated while the agent holds it for a maintenance: the agent does not move it, and the kubelet runs its Pod")
		}
	}
	for _, h := range actions.Hold {
		failures = append(failures, a.holdManifest(ctx, h))
	}
	return utilerrors.NewAggregate(failures)
}

func (a *Agent) releaseManifest(ctx context.Context, r hold.Record, reported map[string]bool) error {
	replaced, err := a.Manifests.Release(r)
	if err != nil {
		return err
	}
	delete(reported, r.File)
	pod := "static Pod " + r.Namespace + "/" + r.Name
	if r.Name == "" {
		pod = "its static Pod, which the invalid record of the manifest does not name"
	}
	if replaced == "" {
		a.recordEvent(ctx, corev1.EventTypeNormal, eventReleased, "The maintenance is complete: released manifest "+r.File+"; the kubelet runs "+pod)
	} else {
		a.recordEvent(ctx, corev1.EventTypeWarning, eventReplaced,
			"The maintenance is complete: kept manifest "+r.File+", which was recreated during the maintenance, and saved the held manifest as "+replaced)
	}
	return nil
}

// holdManifest reports on the Evacuation first, because a manifest is held only if the report is possible. If it cannot hold the manifest,
// it reports that instead, until it can.
func (a *Agent) holdManifest(ctx context.Context, h hold.Hold) error {
	failedBefore := h.HasFailed()
	if !failedBefore {
		if err := a.report(ctx, h); err != nil {
			return err
		}
	}
	if err := a.Manifests.Hold(h.Manifest); err != nil {
		return a.reportFailure(ctx, h, err)
	}
	if failedBefore {
		if err := a.report(ctx, h); err != nil {
			return err
		}
	}
	klog.FromContext(ctx).Info("Held the manifest of a static Pod", "pod", klog.KRef(h.Manifest.Namespace, h.Manifest.Name), "manifest", h.Manifest.File)
	a.recordEvent(ctx, corev1.EventTypeNormal, eventHeld, "Holding manifest "+h.Manifest.File+": the kubelet terminates static Pod "+h.Manifest.Namespace+"/"+
		h.Manifest.Name+" and starts it again when the maintenance is complete")
	return nil
}

// report writes the report that the Pod terminates into the status of the Evacuation, unless it is there.
func (a *Agent) report(ctx context.Context, h hold.Hold) error {
	if !h.Report(time.Now()) {
		return nil
	}
	return a.Cluster.ReportEvacuation(ctx, h.Evacuation)
}

// reportFailure writes why the agent cannot hold a manifest into the status of the Evacuation, unless failure is nil. It returns failure.
func (a *Agent) reportFailure(ctx context.Context, h hold.Hold, failure error) error {
	if failure == nil || h.Evacuation == nil || !h.ReportFailure(failure) {
		return failure
	}
	return utilerrors.NewAggregate([]error{failure, a.Cluster.ReportEvacuation(ctx, h.Evacuation)})
}

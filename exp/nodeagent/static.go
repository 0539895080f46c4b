package nodeagent

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/hold"
)

// Reasons of the agent's events about static Pods.
const (
	eventHeld       = "StaticPodHeld"
	eventReleased   = "StaticPodReleased"
	eventReappeared = "StaticPodReappeared"
	eventReplaced   = "StaticPodReplaced"
)

// lookAgain is how often held manifests are looked at, for those that reappear; and how soon what has failed is tried again.
const lookAgain = 5 * time.Second

// evacuations are those of the node's static Pods, which are watched only while a drain has come to static Pods.
type evacuations struct {
	mu   sync.Mutex
	stop context.CancelFunc
	seen []v1alpha1.Evacuation
}

func (e *evacuations) get() []v1alpha1.Evacuation {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen
}

func (a *Agent) watchEvacuations(ctx context.Context, e *evacuations, wanted bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case wanted && e.stop == nil:
		ctx, e.stop = context.WithCancel(ctx)
		go a.Cluster.WatchEvacuations(ctx, func(seen []v1alpha1.Evacuation) {
			e.mu.Lock()
			e.seen = seen
			e.mu.Unlock()
			wake(a.staticWake)
		})
	case !wanted && e.stop != nil:
		e.stop()
		e.stop, e.seen = nil, nil
	}
}

// serveStaticPods holds and releases manifests.
func (a *Agent) serveStaticPods(ctx context.Context) {
	seen, reported := &evacuations{}, map[string]bool{}
	for {
		again, err := a.staticPods(ctx, seen, reported)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Failed to serve static Pods")
		}
		var later <-chan time.Time
		if again || err != nil {
			later = time.After(lookAgain)
		}
		select {
		case <-ctx.Done():
			return
		case <-a.staticWake:
		case <-later:
		}
	}
}

// staticPods does what is due now. again: something is held, and has to be looked at from time to time.
func (a *Agent) staticPods(ctx context.Context, seen *evacuations, reported map[string]bool) (again bool, err error) {
	o := hold.Observed{Node: a.Node}
	if o.Records, err = a.Manifests.Records(); err != nil {
		return false, err
	}
	if node := a.lastNode(); node != nil {
		if o.Targets, err = staticTargets(node); err != nil {
			return false, err
		}
		o.Known = true
	}
	a.watchEvacuations(ctx, seen, len(o.Targets) > 0)
	if !o.Known || len(o.Targets) == 0 && len(o.Records) == 0 {
		return false, nil
	}
	o.Evacuations = seen.get()
	if o.Manifests, err = a.Manifests.Manifests(); err != nil {
		return false, err
	}
	return len(o.Records) > 0, a.carryOut(ctx, hold.Decide(o), reported)
}

// staticTargets reads what the controller has noted on the Node.
func staticTargets(node *corev1.Node) ([]v1alpha1.DrainTarget, error) {
	noted := node.Annotations[v1alpha1.StaticPodTargetsAnnotation]
	if noted == "" {
		return nil, nil
	}
	var targets []v1alpha1.DrainTarget
	return targets, errors.Wrapf(json.Unmarshal([]byte(noted), &targets), "parsing annotation %s of the Node", v1alpha1.StaticPodTargetsAnnotation)
}

func (a *Agent) carryOut(ctx context.Context, actions hold.Actions, reported map[string]bool) error {
	for _, r := range actions.Release {
		restored, err := a.Manifests.Release(r)
		if err != nil {
			return err
		}
		delete(reported, r.File)
		if restored {
			a.event(ctx, corev1.EventTypeNormal, eventReleased, "The maintenance is over: the kubelet runs static Pod "+r.Namespace+"/"+r.Name+" again")
		} else {
			a.event(ctx, corev1.EventTypeWarning, eventReplaced, "Manifest "+r.File+" has been written anew during the maintenance; the one from before is kept aside")
		}
	}
	for _, r := range actions.Finish {
		if err := a.Manifests.Finish(r); err != nil {
			return err
		}
	}
	for _, r := range actions.Reappeared {
		if !reported[r.File] {
			reported[r.File] = true
			a.event(ctx, corev1.EventTypeWarning, eventReappeared, "Manifest "+r.File+" is held for a maintenance, and has been written anew: it is left alone")
		}
	}
	for _, h := range actions.Hold {
		e := h.Evacuation
		if hold.Report(e, h.Manifest, time.Now()) {
			if err := a.Cluster.ReportEvacuation(ctx, e); err != nil {
				return err
			}
		}
		if err := a.Manifests.Hold(h.Manifest); err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Holding a static Pod", "pod", klog.KRef(h.Manifest.Namespace, h.Manifest.Name), "manifest", h.Manifest.File)
		a.event(ctx, corev1.EventTypeNormal, eventHeld, "Static Pod "+h.Manifest.Namespace+"/"+h.Manifest.Name+" ends, and doesn't come back before the maintenance is over")
	}
	return nil
}

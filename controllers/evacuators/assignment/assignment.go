// Package assignment finds the Pods whose active evacuator is a built-in one, for evacuators that decide about all Pods of a workload
// together.
package assignment

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuators"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// UnknownInterval is the requeue interval while Pods are not observed yet. It is a safety net, since an event follows when they are.
const UnknownInterval = 5 * time.Second

// Assignment is a Pod that an evacuator is to evacuate now.
type Assignment struct {
	Evacuation *v1alpha1.Evacuation
	Pod        *corev1.Pod
	// Terms are those of the maintenances that drain the Node of the Pod.
	Terms evacuation.Terms
	// FirstDrain is when the first of the workload cluster's drains in progress began, or nil if no drain is in progress.
	FirstDrain *time.Time
	// Suspended means that no NodeMaintenance drains the Pod now, see evacuation.NodeTerms.For: the evacuator does nothing for the Pod.
	Suspended bool
	// Expired means that the evacuator has completed or missed its deadline, and that the Pod is to be evicted.
	Expired bool
	// Passed means that the evacuator has completed or missed its deadline, and that an evacuator with a lower priority is active now, or is
	// activated next.
	Passed bool
	// Progress is the time of the last report of the evacuator, Deadline its progress deadline.
	Progress, Deadline time.Time
}

// Finder finds Assignments in one workload cluster.
type Finder struct {
	// Watched reads Evacuations, NodeMaintenances and Nodes.
	Watched client.Client
	// Observation contains the Pods. It is nil while no Pods are watched.
	Observation workload.Observation
	Class       string
	// Suspension decides which NodeMaintenances are suspended.
	Suspension Suspension
	Now        time.Time

	// Maintenances are those that Find has read, and Drainers those of them that drain Nodes.
	Maintenances []v1alpha1.NodeMaintenance
	Drainers     *evacuation.Drainers
}

// Suspension decides which NodeMaintenances are suspended, see controllers/machinemaintenance.
type Suspension interface {
	Of(*v1alpha1.NodeMaintenance) bool
	Err() error
}

// HeldInterval is the requeue interval while Pods are suspended: no event follows when a NodeMaintenance is continued after clusterctl
// move.
const HeldInterval = surge.HeldInterval

// Find returns the Assignments of a Namespace whose Pods satisfy belongs, the oldest Evacuations first. It includes expired and passed ones
// whose Pods still exist. It returns known = false while a Pod that may be one of them is not observed yet. The Pods of an Evacuation that
// has ended are not observed any more, however long finalizers of other actors keep it, and neither are Pods whose Node does not exist.
func (f *Finder) Find(ctx context.Context, namespace string, belongs func(*corev1.Pod) bool) (found []Assignment, known bool, err error) {
	evacuations := &v1alpha1.EvacuationList{}
	if err := f.Watched.List(ctx, evacuations, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, false, errors.Wrapf(err, "listing the Evacuations of Namespace %s", namespace)
	}
	maintenances := &v1alpha1.NodeMaintenanceList{}
	if err := f.Watched.List(ctx, maintenances, client.UnsafeDisableDeepCopy); err != nil {
		return nil, false, errors.Wrap(err, "listing NodeMaintenances")
	}
	f.Maintenances, f.Drainers = maintenances.Items, evacuation.DrainersOf(maintenances.Items, f.Suspension.Of)
	if err := f.Suspension.Err(); err != nil {
		return nil, false, err
	}
	firstDrain := evacuation.FirstDrain(maintenances.Items)
	for i := range evacuations.Items {
		e := &evacuations.Items[i]
		if !evacuation.Reached(e, f.Class) {
			continue
		}
		pod, known := PodOf(f.Observation, e)
		switch {
		case !known && evacuation.Next(evacuation.Input{Evacuation: e, Now: f.Now}).Kind == evacuation.AwaitPod:
			if awaited, err := f.isAwaited(ctx, e); err != nil || awaited {
				return nil, false, err
			}
			continue
		case pod == nil || !belongs(pod):
			continue
		}
		terms, err := f.Terms(ctx, pod)
		if err != nil {
			return nil, false, err
		}
		if assigned, is := f.assignment(e, pod, terms); is {
			assigned.FirstDrain = firstDrain
			found = append(found, assigned)
		}
	}
	slices.SortFunc(found, func(a, b Assignment) int {
		return cmp.Or(a.Evacuation.CreationTimestamp.Compare(b.Evacuation.CreationTimestamp.Time), cmp.Compare(a.Pod.Name, b.Pod.Name))
	})
	return found, true, nil
}

// isAwaited reports whether the Pod of an Evacuation may be observed in a moment. The controller of Evacuations watches existing Nodes
// only.
func (f *Finder) isAwaited(ctx context.Context, e *v1alpha1.Evacuation) (bool, error) {
	name, recorded := e.Annotations[v1alpha1.EvacuationNodeAnnotation]
	if !recorded || name == "" {
		return !recorded, nil
	}
	node, err := workload.NodeNamed(ctx, f.Watched, name)
	return node != nil, err
}

// assignment returns the Assignment of an Evacuation. It returns is = false if nothing evacuates the Pod now, or the Pod is terminating.
func (f Finder) assignment(e *v1alpha1.Evacuation, pod *corev1.Pod, terms evacuation.Terms) (assigned Assignment, is bool) {
	action := evacuation.Next(evacuators.InputOf(e, pod, v1alpha1.PodTypeDefault, terms, f.Now))
	switch action.Kind {
	case evacuation.AwaitEvacuator, evacuation.Activate, evacuation.Evict, evacuation.AwaitResume:
	default:
		return Assignment{}, false
	}
	suspended := action.Kind == evacuation.AwaitResume && e.IsAssignedTo(f.Class)
	over := action.Kind == evacuation.Evict || action.Kind == evacuation.AwaitResume && !suspended
	passed := action.Kind == evacuation.Activate || e.ActiveEvacuator() != f.Class
	assigned = Assignment{
		Evacuation: e, Pod: pod, Terms: terms, Suspended: suspended, Expired: over, Passed: passed, Progress: e.CreationTimestamp.Time, Deadline: action.Deadline,
	}
	if e.Status.EvacuationProgressTimestamp != nil {
		assigned.Progress = e.Status.EvacuationProgressTimestamp.Time
	}
	return assigned, true
}

// Terms returns the terms for the evacuation of a Pod, by what Find has read.
func (f *Finder) Terms(ctx context.Context, pod *corev1.Pod) (evacuation.Terms, error) {
	node, err := workload.NodeNamed(ctx, f.Watched, pod.Spec.NodeName)
	return f.Drainers.On(node).For(planinput.RulePod(f.Observation, pod)), err
}

// PodOf returns the Pod of an Evacuation, nil if it does not exist. It returns known = false if that is not known yet.
func PodOf(observation workload.Observation, e *v1alpha1.Evacuation) (pod *corev1.Pod, known bool) {
	if observation == nil {
		return nil, false
	}
	if pod, found := workload.PodOf(observation, e); found {
		return pod, true
	}
	_, known = observation.PodsOn(e.Annotations[v1alpha1.EvacuationNodeAnnotation])
	return nil, known
}

// RefusedInterval is the requeue interval while the API server refuses reports: no event follows when it accepts them.
const RefusedInterval = 10 * time.Second

// slowRefusal is the duration from which on a refused report may be that of a webhook that hangs for each Evacuation of the Namespace.
const slowRefusal = time.Second

// StoreAll stores the reports of an evacuator on several Pods, in their order. If the API server refuses one, because of an admission
// webhook for example, it stores the others nevertheless: a Pod whose Evacuation cannot change must not delay other Pods. It returns the
// reports that were refused. After a refusal that took long, those that follow count as refused, and are not tried. After another error,
// such as a conflict, it stores no more: the next decision may succeed in a moment.
func StoreAll[R any](ctx context.Context, now clock.PassiveClock, reports []R, store func(R) error) (refused []R, err error) {
	for i, report := range reports {
		begun := now.Now()
		err := store(report)
		if err == nil {
			continue
		}
		if answers.IsConflict(err) || !answers.IsAnswer(err) {
			return refused, err
		}
		ctrl.LoggerFrom(ctx).Error(err, "The API server refuses a report on an Evacuation")
		if now.Since(begun) >= slowRefusal {
			return append(refused, reports[i:]...), nil
		}
		refused = append(refused, report)
	}
	return refused, nil
}

// Report stores the report of an evacuator in the status of an Evacuation. It fails with a conflict if the Evacuation has changed.
func (f Finder) Report(ctx context.Context, assigned Assignment, apply func(*v1alpha1.Evacuation, time.Time)) error {
	changed := assigned.Evacuation.DeepCopy()
	apply(changed, f.Now)
	err := f.Watched.Status().Patch(ctx, changed, client.MergeFromWithOptions(assigned.Evacuation, client.MergeFromWithOptimisticLock{}))
	return errors.Wrapf(answers.IgnoreDoesNotExist(err), "patching the status of Evacuation %s", klog.KObj(assigned.Evacuation))
}

package nodemaintenance

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/draintimeout"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// deleteRetry is the delay before retrying a deletion that the API server has refused, for example because of an admission webhook.
const deleteRetry = 5 * time.Second

// finalAttempts returns the Pods whose final eviction attempt is due, regardless of their step, with its time. It records the progress of
// the attempts. waiting are the Pods that the evictor has found waiting, see workload.Clusters.SetWaiting.
func finalAttempts(s *scope, waiting map[types.UID]string) map[types.UID]time.Time {
	due := map[types.UID]time.Time{}
	progress := draintimeout.Progress{AllDue: true}
	for _, node := range s.nodes {
		drain := drainOf(s, node)
		if drain == nil {
			return due
		}
		unreachable := rules.Unreachable(node)
		for _, pod := range s.drain.pods[node.Name] {
			attempts := draintimeout.GetsFinalAttempt(pod.Type, pod.verdict, pod.others)
			deletes := drain.Deletes && draintimeout.DeletedAtTimeout(pod.Type, pod.verdict, pod.others)
			if pod.Planned.Finished || !attempts && !deletes {
				continue
			}
			period, _ := rules.RequestedGracePeriod(pod.object, unreachable)
			if pod.object.DeletionTimestamp != nil {
				if !unreachable { // no kubelet would wait for the Pod to terminate
					s.requeueAfter(progress.AddTerminating(pod.object.DeletionTimestamp.Time, s.now))
				}
			} else if at := drain.DeleteAt(period, pod.evacuation); deletes && s.now.Before(at) { // deleteRemainingPods counts those that are due
				progress.AllDue = false
			}
			if !attempts {
				continue
			}
			at := drain.FinalAttemptAt(period)
			if s.now.Before(at) {
				s.requeueBy(at)
				progress.AllDue = false
				continue
			}
			due[pod.object.UID] = at
			_, foundWaiting := waiting[pod.object.UID]
			if !draintimeout.Attempted(pod.object.DeletionTimestamp != nil, pod.evacuation, at, foundWaiting) {
				progress.Missing++
			}
		}
	}
	s.drain.finalAttempt = progress
	return due
}

// deleteRemainingPods deletes the remaining Pods shortly before the drain timeout, if the policy says so. It ignores PodDisruptionBudgets.
// A Pod that cannot be deleted does not delay the others: the status names it.
func (r *Reconciler) deleteRemainingPods(ctx context.Context, s *scope) (bool, error) {
	if s.drain == nil { // the Pods are not observed yet
		return true, nil
	}
	var group errgroup.Group
	group.SetLimit(parallelWrites)
	var mu sync.Mutex // protects deleteErrors
	var changed atomic.Bool
	for _, node := range s.nodes {
		drain := drainOf(s, node)
		if drain == nil || !drain.Deletes || s.cordonErrors[node.Name] != nil { // replacements could be scheduled onto a Node that is not cordoned
			continue
		}
		for _, pod := range s.drain.pods[node.Name] {
			at, deletes := deleteAt(drain, node, pod)
			if !deletes {
				continue
			}
			if until := deferredUntil(s, node, pod, at); at.Before(until) {
				at = until
			}
			if s.now.Before(at) {
				s.requeueBy(at)
				continue
			}
			s.drain.finalAttempt.Missing++ // until the watch delivers the deletion
			_, seconds := rules.RequestedGracePeriod(pod.object, rules.Unreachable(node))
			group.Go(func() error {
				if !r.stillDeletes(ctx, s, node, pod) {
					changed.Store(true)
					return nil
				}
				if err := r.deletePod(ctx, s, pod.object, seconds); err != nil {
					ctrl.LoggerFrom(ctx).Error(err, "Failed to delete Pod before the drain timeout", "Pod", klog.KObj(pod.object))
					mu.Lock()
					defer mu.Unlock()
					s.drain.deleteErrors[pod.object.UID] = err
				}
				return nil
			})
		}
	}
	_ = group.Wait() // errors are in deleteErrors
	if len(s.drain.deleteErrors) > 0 || changed.Load() {
		s.requeueBy(s.now.Add(deleteRetry))
	}
	return true, nil
}

// stillDeletes decides again whether the drain deletes a Pod now, since earlier requests of the reconciliation may have taken long.
// Labels of the Pod or of its Namespace, or another NodeMaintenance, may protect the Pod by now, or the drain timeout counts again since a
// hold has ended. It returns false if that cannot be read.
func (r *Reconciler) stillDeletes(ctx context.Context, s *scope, node *corev1.Node, pod drainedPod) bool {
	object, found := s.observation.PodByUID(pod.object.UID)
	latest := r.stillDraining(ctx, s)
	if !found || latest == nil {
		return false
	}
	others, err := r.readOthers(ctx, s, node)
	if err != nil {
		return false
	}
	drains := []planinput.Drain{{Maintenance: latest, Nodes: []*corev1.Node{node}}}
	for _, other := range others {
		if other.Drains() {
			drains = append(drains, planinput.Drain{Maintenance: other, Nodes: []*corev1.Node{node}})
		}
	}
	now := r.Clock.Now()
	c := planinput.ComponentOf(latest.Name, drains, now)
	again := drainedPod{Pod: c.Pod(s.observation, object, pod.evacuation, false, now), object: object, evacuation: pod.evacuation}
	again.verdict, again.others = again.VerdictOf(latest.Name)
	at, deletes := deleteAt(draintimeout.DrainOf(latest, s.joinedAt()[node.Name], now), node, again)
	return deletes && !now.Before(at)
}

// stillDraining returns the NodeMaintenance as it is in the cache now, nil if it does not drain as it did when it was read: it was edited,
// completed, deleted or suspended since, or its Cluster was paused. If it returns nil, that may be because a Machine could not be read,
// after which no event follows.
func (r *Reconciler) stillDraining(ctx context.Context, s *scope) *v1alpha1.NodeMaintenance {
	cached, err := r.Clusters.Client(ctx, s.request.Cluster)
	if err != nil {
		return nil
	}
	latest := &v1alpha1.NodeMaintenance{}
	if err := cached.Get(ctx, client.ObjectKeyFromObject(s.maintenance), latest, client.UnsafeDisableDeepCopy); err != nil ||
		latest.UID != s.maintenance.UID || latest.Generation != s.maintenance.Generation || !latest.Drains() ||
		r.Maintenances.Suspension(ctx, s.request.Cluster).Of(latest) {
		return nil
	}
	return latest
}

// drainOf returns the time limits of the drain of a Node, nil if there are none.
func drainOf(s *scope, node *corev1.Node) *draintimeout.Drain {
	return draintimeout.DrainOf(s.maintenance, s.joinedAt()[node.Name], s.now)
}

// deleteAt returns the time at which a drain that deletes the remaining Pods before its timeout deletes this one. It returns false if the
// drain does not delete the Pod.
func deleteAt(drain *draintimeout.Drain, node *corev1.Node, pod drainedPod) (at time.Time, deletes bool) {
	if drain == nil || !drain.Deletes || pod.Planned.Finished || pod.object.DeletionTimestamp != nil ||
		!draintimeout.DeletedAtTimeout(pod.Type, pod.verdict, pod.others) {
		return time.Time{}, false
	}
	period, _ := rules.RequestedGracePeriod(pod.object, rules.Unreachable(node))
	return drain.DeleteAt(period, pod.evacuation), true
}

// shortage says that a drain deletes a Pod too late for its grace period, see draintimeout.Drain.Shortage.
func shortage(drain *draintimeout.Drain, node *corev1.Node, pod drainedPod) string {
	if _, deletes := deleteAt(drain, node, pod); !deletes {
		return ""
	}
	period, _ := rules.RequestedGracePeriod(pod.object, rules.Unreachable(node))
	return drain.Shortage(period)
}

func (r *Reconciler) deletePod(ctx context.Context, s *scope, pod *corev1.Pod, gracePeriodSeconds *int64) error {
	options := &client.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}, GracePeriodSeconds: gracePeriodSeconds}
	if err := s.client.Delete(ctx, pod.DeepCopy(), options); err != nil {
		return errors.Wrapf(answers.IgnoreDoesNotExist(err), "deleting Pod %s", klog.KObj(pod))
	}
	ctrl.LoggerFrom(ctx).Info("Deleted Pod before the drain timeout", "Pod", klog.KObj(pod))
	r.Clusters.Event(s.request.Cluster, pod, corev1.EventTypeWarning, eventDeletedAtTimeout,
		"Deleted before the drain timeout: "+evacuation.Cause(s.maintenance, pod.Spec.NodeName))
	return nil
}

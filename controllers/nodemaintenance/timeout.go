package nodemaintenance

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/daemonset"
	"github.com/capnm/cluster-api-node-maintenance/drain/draintimeout"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// deleteRetry is the delay before retrying a deletion that the API server has refused, for example because of an admission webhook.
const deleteRetry = 5 * time.Second

// deleteRemainingPods deletes the remaining Pods shortly before the drain timeout, if the policy says so. It ignores PodDisruptionBudgets. A Pod that
// cannot be deleted does not delay the others.
func (r *Reconciler) deleteRemainingPods(ctx context.Context, s *scope) (bool, error) {
	drain := draintimeout.DrainOf(s.maintenance)
	if drain == nil || !drain.Deletes || s.decision == nil { // without a decision, the Pods are not observed yet
		return true, nil
	}
	var group errgroup.Group
	group.SetLimit(parallelWrites)
	for _, node := range s.nodes {
		if s.refused[node.Name] != nil { // replacements could be scheduled onto a Node that is not cordoned
			continue
		}
		for _, view := range s.pods[node.Name] {
			at, left := deleteAt(drain, node, view)
			if !left {
				continue
			}
			if until := deferredUntil(s, node, view, at); at.Before(until) {
				at = until
			}
			if s.now.Before(at) {
				s.requeueBy(at)
				continue
			}
			_, seconds := daemonset.GracePeriod(view.pod, rules.Unreachable(node))
			group.Go(func() error { return r.deletePod(ctx, s, view.pod, seconds) })
		}
	}
	if err := group.Wait(); err != nil {
		ctrl.LoggerFrom(ctx).Info("Failed to delete a remaining Pod before the drain timeout", "error", err.Error())
		s.requeueBy(s.now.Add(deleteRetry))
	}
	return true, nil
}

// deleteAt returns the time at which a drain that deletes the remaining Pods before its timeout deletes this one. It returns false if the
// drain does not delete the Pod.
func deleteAt(drain *draintimeout.Drain, node *corev1.Node, view podView) (at time.Time, left bool) {
	if drain == nil || !drain.Deletes || view.Planned.Finished || view.pod.DeletionTimestamp != nil || !draintimeout.DeletedAtTimeout(view.Type, view.verdict, view.others) {
		return time.Time{}, false
	}
	period, _ := daemonset.GracePeriod(view.pod, rules.Unreachable(node))
	return drain.DeleteAt(period), true
}

func (r *Reconciler) deletePod(ctx context.Context, s *scope, pod *corev1.Pod, gracePeriodSeconds *int64) error {
	options := &client.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}, GracePeriodSeconds: gracePeriodSeconds}
	if err := s.client.Delete(ctx, pod.DeepCopy(), options); err != nil {
		return client.IgnoreNotFound(err)
	}
	ctrl.LoggerFrom(ctx).Info("Deleted a remaining Pod before the drain timeout", "Pod", klog.KObj(pod))
	r.Clusters.Event(s.request.Cluster, pod, corev1.EventTypeWarning, eventDeletedAtTimeout,
		"Deleted before the drain timeout: "+evacuation.Cause(s.maintenance, pod.Spec.NodeName))
	return nil
}

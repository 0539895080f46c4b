package nodemaintenance

import (
	"context"
	"slices"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/replacements"
)

// scheduleReplacements decides when to evict targets that were created after their Node was cordoned, and stores the decision, so that a
// restart of the manager does not evict them earlier. It returns the times of the deferred evictions.
func (r *Reconciler) scheduleReplacements(ctx context.Context, s *scope, targets sets.Set[types.UID]) (map[types.UID]time.Time, error) {
	decision := replacements.Decide(replacements.Observation{
		Records: s.maintenance.Status.Replacements, Others: othersReplacements(s), Nodes: sets.New(nodeNames(s.nodes)...),
		Pods: r.unscheduled(s, targets), Live: livePods(s), Now: s.now,
	})
	if !decision.Changed {
		return decision.After, nil
	}
	changed := s.before.DeepCopy()
	changed.Status.Replacements = decision.Records
	if err := s.client.Status().Patch(ctx, changed, client.MergeFromWithOptions(s.before, client.MergeFromWithOptimisticLock{})); err != nil {
		return nil, errors.Wrapf(err, "storing the replacements in the status of NodeMaintenance %s", s.maintenance.Name)
	}
	s.before = changed
	s.maintenance.ResourceVersion, s.maintenance.Status.Replacements = changed.ResourceVersion, decision.Records
	for _, record := range decision.Returned {
		r.Clusters.Event(s.request.Cluster, s.maintenance, corev1.EventTypeWarning, eventReplacementReturned, record.Controller+
			" recreates its evicted Pods on cordoned Node "+record.Node+"; evicting the replacements with a backoff")
	}
	return decision.After, nil
}

// unscheduled returns the possible replacements without an Evacuation that are due to be evicted, or to be deleted before the drain
// timeout.
func (r *Reconciler) unscheduled(s *scope, targets sets.Set[types.UID]) []replacements.Pod {
	var pods []replacements.Pod
	for _, node := range s.nodes {
		if s.cordonErrors[node.Name] != nil { // no Evacuation is created
			continue
		}
		for _, pod := range s.drain.pods[node.Name] {
			if pod.object.DeletionTimestamp != nil || pod.evacuation != nil || !mayReplace(s, node, pod) {
				continue
			}
			at, deletes := deleteAt(drainOf(s, node), node, pod)
			_, awaited := r.created.awaited(s.request, pod.object.UID, s.drain.finalAttempts[pod.object.UID], s.now)
			if targets.Has(pod.object.UID) && !awaited || deletes && !s.now.Before(at) {
				pods = append(pods, replacements.PodOf(pod.object))
			}
		}
	}
	return pods
}

// livePods returns the Pods on the Nodes that do not terminate.
func livePods(s *scope) sets.Set[types.UID] {
	live := sets.New[types.UID]()
	for _, pods := range s.drain.pods {
		for _, pod := range pods {
			if pod.object.DeletionTimestamp == nil {
				live.Insert(pod.object.UID)
			}
		}
	}
	return live
}

// mayReplace reports whether a Pod may be the replacement of a Pod that this drain has evicted. The mirror Pod of a static Pod is
// not, since the kubelet creates it.
func mayReplace(s *scope, node *corev1.Node, pod drainedPod) bool {
	start := s.maintenance.StageStart(v1alpha1.StageDrain)
	if start == nil || pod.Type == v1alpha1.PodTypeStatic {
		return false
	}
	since := *start
	if s.maintenance.Spec.WaitingNodes == v1alpha1.WaitingNodesSchedulable {
		since = replacements.CordonedAt(node, since)
	}
	return replacements.CreatedAfterCordon(pod.object, node, since)
}

// returnedSince returns the time of the first eviction of a Pod that this Pod replaces, nil if it is not a replacement.
func returnedSince(s *scope, pod drainedPod) *metav1.Time {
	e := pod.evacuation
	if e == nil || e.Annotations[v1alpha1.EvacuateAfterAnnotation] == "" {
		return nil
	}
	if record := replacements.Find(s.maintenance.Status.Replacements, replacements.PodOf(pod.object)); record != nil {
		return &record.FirstEvictionTime
	}
	return nil
}

// deferredUntil returns the time before which a replacement must not be deleted, zero if its deletion is not deferred. The argument at is
// the time to delete the remaining Pods. The deletion is deferred since the controller would replace the Pod on the Node again.
func deferredUntil(s *scope, node *corev1.Node, pod drainedPod, at time.Time) time.Time {
	if !mayReplace(s, node, pod) {
		return time.Time{}
	}
	records := slices.Concat(s.maintenance.Status.Replacements, othersReplacements(s))
	record := replacements.Find(records, replacements.PodOf(pod.object))
	if record == nil {
		return time.Time{}
	}
	return evacuation.AdvanceDeferral(record.EvictionTime.Time, pod.object.CreationTimestamp, at)
}

// othersReplacements returns the records of the other maintenances that drain Nodes.
func othersReplacements(s *scope) []v1alpha1.ReplacementStatus {
	var records []v1alpha1.ReplacementStatus
	for i := range s.others {
		if s.others[i].Drains() {
			records = append(records, s.others[i].Status.Replacements...)
		}
	}
	return records
}

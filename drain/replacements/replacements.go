// Package replacements decides when Pods are evicted that return to a cordoned Node.
//
// A Pod that tolerates the taint of a cordoned Node, or names the Node in spec.nodeName, is replaced on that Node as soon as it is
// evicted. Evicting its replacements at once never empties the Node: it only creates Pods, as fast as the API server allows. So the
// first Pod of a controller that was created after the cordon is evicted at once, and each eviction of the ones that follow it waits
// for a backoff: 20 s, doubling to 5 min.
//
// What was evicted before follows from the records in the status of the NodeMaintenance. A record is stored before its Pods are
// evicted. Creation times of Pods are only compared with one another: the clock of the workload cluster is not ours.
package replacements

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

const (
	firstBackoff = 20 * time.Second

	// maxRecords is the limit of v1alpha1.NodeMaintenanceStatus.Replacements. The last one counts for all controllers without a
	// separate record.
	maxRecords = 128
)

// Pod is a Pod that was created on a Node after the Node was cordoned, see CreatedAfterCordon.
type Pod struct {
	UID        types.UID
	Created    metav1.Time
	Node       string
	Controller string // see evacuation.ControllerOf
}

// PodOf describes a Pod.
func PodOf(pod *corev1.Pod) Pod {
	return Pod{UID: pod.UID, Created: pod.CreationTimestamp, Node: pod.Spec.NodeName, Controller: evacuation.ControllerOf(pod)}
}

// CreatedAfterCordon reports whether a Pod may have been created after its Node was cordoned or, if that was later, after the drain
// started. Then its controller gets a record, and its first eviction is not deferred.
func CreatedAfterCordon(pod *corev1.Pod, node *corev1.Node, drainStart time.Time) bool {
	since := drainStart
	for _, taint := range node.Spec.Taints {
		if taint.Key == corev1.TaintNodeUnschedulable && taint.TimeAdded != nil && taint.TimeAdded.Time.Before(since) {
			since = taint.TimeAdded.Time
		}
	}
	return !pod.CreationTimestamp.Time.Before(since.Truncate(time.Second))
}

// CordonedAt returns since when a Node is cordoned that may have waited schedulable for its drain: when the drain started or, if that was
// later, when it was cordoned. Until then, evicted Pods of other Nodes may be scheduled to it.
func CordonedAt(node *corev1.Node, drainStart time.Time) time.Time {
	since := drainStart
	for _, taint := range node.Spec.Taints {
		if taint.Key == corev1.TaintNodeUnschedulable && taint.TimeAdded != nil && taint.TimeAdded.After(since) {
			since = taint.TimeAdded.Time
		}
	}
	return since
}

// Observation is the input of Decide, which does not modify it.
type Observation struct {
	// Records are those of the NodeMaintenance that evicts the Pods.
	Records []v1alpha1.ReplacementStatus
	// Others are those of the other NodeMaintenances that drain the same Nodes.
	Others []v1alpha1.ReplacementStatus
	// Nodes that the NodeMaintenance selects. Records of other Nodes are dropped.
	Nodes sets.Set[string]
	// Pods are to be evicted and have no Evacuation yet.
	Pods []Pod
	// Live are the Pods on these Nodes that do not terminate, with or without an Evacuation.
	Live sets.Set[types.UID]
	Now  time.Time
}

// Decision is the result of Decide.
type Decision struct {
	// Records must be stored before the Evacuations of the Pods are created.
	Records []v1alpha1.ReplacementStatus
	// Changed means that Records must be stored.
	Changed bool
	// After are the times of the deferred evictions.
	After map[types.UID]time.Time
	// Returned are the records of controllers whose Pods are deferred for the first time.
	Returned []v1alpha1.ReplacementStatus
}

// Decide schedules the evictions of Pods that were created after the cordon of their Nodes. The Pods of a controller that exist at
// the same time are evicted at the same time.
func Decide(o Observation) Decision {
	s := &schedule{others: o.settled(o.Others), records: o.settled(o.Records)}
	pods := slices.SortedFunc(slices.Values(o.Pods), func(a, b Pod) int {
		return cmp.Or(a.Created.Compare(b.Created.Time), cmp.Compare(a.UID, b.UID))
	})
	d := Decision{After: map[types.UID]time.Time{}}
	scheduled := map[int]bool{} // the records that were scheduled for these Pods
	for _, pod := range pods {
		i := s.recordOf(pod)
		record := &s.records[i]
		switch {
		case record.FirstEvictionTime.IsZero() || !scheduled[i] && !o.Now.Before(record.EvictionTime.Time) && isNewer(pod, record):
			returns := record.Evictions == 1
			evictNext(record, o.Now)
			scheduled[i] = true
			if join(record, pod); returns {
				d.Returned = append(d.Returned, *record)
			}
		case scheduled[i] || o.Now.Before(record.EvictionTime.Time):
			join(record, pod)
		}
		if record.EvictionTime.After(o.Now) {
			d.After[pod.UID] = record.EvictionTime.Time
		}
	}
	d.Records, d.Changed = s.records, !slices.Equal(o.Records, s.records)
	return d
}

// settled returns the records of the selected Nodes, with the evictions that were made since they were stored: the newest Pod no longer
// exists, or terminates. If it had disappeared before its eviction was attempted, another actor has removed it.
func (o Observation) settled(records []v1alpha1.ReplacementStatus) []v1alpha1.ReplacementStatus {
	var settled []v1alpha1.ReplacementStatus
	for _, record := range records {
		if record.Node != "" && !o.Nodes.Has(record.Node) {
			continue
		}
		if record.NewestPodUID != "" && !o.Live.Has(types.UID(record.NewestPodUID)) {
			if record.NewestPodUID = ""; !o.Now.Before(record.EvictionTime.Time) {
				record.Evictions++
			}
		}
		settled = append(settled, record)
	}
	return settled
}

// evictNext schedules the next eviction of a controller's Pods.
func evictNext(record *v1alpha1.ReplacementStatus, now time.Time) {
	at := now.UTC().Truncate(time.Second)
	if record.FirstEvictionTime.IsZero() {
		record.FirstEvictionTime = metav1.NewTime(at)
	} else if earliest := record.EvictionTime.Add(evacuation.Doubling(firstBackoff, evacuation.MaxDeferral, max(1, record.Evictions))); at.Before(earliest) {
		at = earliest
	}
	record.EvictionTime = metav1.NewTime(at)
}

// join adds a Pod to those of its controller that are evicted at the same time.
func join(record *v1alpha1.ReplacementStatus, pod Pod) {
	if isNewer(pod, record) {
		record.NewestPodUID, record.NewestPodCreationTime = string(pod.UID), pod.Created
	}
}

// isNewer reports whether a Pod was created after those of the record. Creation times are in seconds. If they are equal, the Pod counts as
// newer, since it probably is a replacement.
func isNewer(pod Pod, record *v1alpha1.ReplacementStatus) bool {
	return string(pod.UID) != record.NewestPodUID && !pod.Created.Time.Before(record.NewestPodCreationTime.Time)
}

// schedule is the list of records while it is changed.
type schedule struct{ records, others []v1alpha1.ReplacementStatus }

// recordOf returns the position of the record of a Pod. It adds a missing record: without times, or a copy of the record of another
// NodeMaintenance.
func (s *schedule) recordOf(pod Pod) int {
	var elsewhere *v1alpha1.ReplacementStatus
	for i := range s.others {
		if covers(s.others[i], pod) && (elsewhere == nil || elsewhere.EvictionTime.Before(&s.others[i].EvictionTime)) {
			elsewhere = &s.others[i]
		}
	}
	i := find(s.records, pod)
	if i < 0 {
		if len(s.records) >= maxRecords-1 {
			return s.shared()
		}
		i = len(s.records)
		s.records = append(s.records, v1alpha1.ReplacementStatus{Node: pod.Node, Controller: pod.Controller})
	}
	if elsewhere != nil && s.records[i].EvictionTime.Before(&elsewhere.EvictionTime) {
		s.records[i] = *elsewhere
	}
	return i
}

// shared returns the position of the record that all controllers beyond maxRecords share.
func (s *schedule) shared() int {
	i := slices.IndexFunc(s.records, func(record v1alpha1.ReplacementStatus) bool { return record.Node == "" })
	if i < 0 {
		i = len(s.records)
		s.records = append(s.records, v1alpha1.ReplacementStatus{})
	}
	return i
}

// Find returns the record of a Pod, nil if it has none.
func Find(records []v1alpha1.ReplacementStatus, pod Pod) *v1alpha1.ReplacementStatus {
	for _, of := range []Pod{pod, {}} { // the shared record names no Node
		if i := find(records, of); i >= 0 {
			return &records[i]
		}
	}
	return nil
}

func find(records []v1alpha1.ReplacementStatus, pod Pod) int {
	return slices.IndexFunc(records, func(record v1alpha1.ReplacementStatus) bool { return covers(record, pod) })
}

func covers(record v1alpha1.ReplacementStatus, pod Pod) bool {
	return record.Node == pod.Node && record.Controller == pod.Controller
}

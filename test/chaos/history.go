package chaos

import (
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// History is what happened in a run.
type History struct {
	// Workload and Management are what the two API servers and their etcds have recorded.
	Workload, Management Side
	// Namespace is that of the Cluster and its Machines.
	Namespace string
	// Managers are the times at which a process of our manager was started.
	Managers []time.Time
	// Replicas is the number of managers, of which one is the leader.
	Replicas int
	// Unhooked are the Machines whose hook a fault removed: Cluster API drains them.
	Unhooked map[string]bool
	// Down are the periods in which a fault had stopped a manager, by the manager.
	Down [][]Period
	// Reconciliations are those that a simulation has counted.
	Reconciliations []Reconciliations
	// Faults are the faults that were injected.
	Faults []InjectedFault
	// MaxParallelDrains is that of the policy, 0 if it has none.
	MaxParallelDrains int
	// ClockOff is how far the clock of a manager or of an API server was wrong at most: timeouts may have ended that much early.
	ClockOff time.Duration
	// ClusterDeleted is when a fault deleted the Cluster, zero if none did. The Machines of a deleted Cluster are not drained.
	ClusterDeleted time.Time
	// DaemonSetPods says that Machines' drains remove Pods of DaemonSets.
	DaemonSetPods bool
	// DeletesOnTimeout says that Pods are deleted before a Machine's drain timeout.
	DeletesOnTimeout bool

	timeLimits *limits // see limits
}

// Period is a time during which something is true. Until is zero if it did not end.
type Period struct {
	From, Until time.Time
}

// InjectedFault is a fault that lasted for a period.
type InjectedFault struct {
	Period

	Name string
}

// hindering are the beginnings of the names of faults that keep a running manager from observing or changing a cluster at once.
var hindering = []string{
	"manager-frozen", clockWrong, "workload-", "management-", "network-", "watch", writesLost, "webhook-", "crd-",
	"evacuations-refused", admitFailing,
}

// recovery is how long after such a fault the manager may still connect again, or repeat a request, and recoveryOfCRD how long informers
// may repeat a list after a CRD was deleted: their backoff grows to half a minute.
const recovery, recoveryOfCRD = 15 * time.Second, 2 * time.Minute

// isHindered returns whether a fault kept the manager from acting at once at some time of a period.
func (h *History) isHindered(from, until time.Time) bool {
	return slices.ContainsFunc(h.Faults, func(f InjectedFault) bool {
		lasts := recovery
		if strings.HasPrefix(f.Name, "crd-") {
			lasts = recoveryOfCRD
		}
		return !f.From.After(until) && !f.Until.Add(lasts).Before(from) &&
			slices.ContainsFunc(hindering, func(prefix string) bool { return strings.HasPrefix(f.Name, prefix) })
	})
}

// reconnection is how long after an outage of its API server an informer may wait before it repeats its request: its backoff grows to half
// a minute, and is up to twice as long.
const reconnection = time.Minute

// observedSince returns from when an observation of the management cluster may be on which a request at a time is based, if it is usually
// not older than a lag: it may be from before an outage.
func (h *History) observedSince(at time.Time, lag time.Duration) time.Time {
	since := at.Add(-lag)
	for _, f := range h.Faults {
		if isOutage(f.Name) && !f.From.After(at) && !f.Until.Add(reconnection).Before(at) && f.From.Before(since) {
			since = f.From
		}
	}
	return since
}

// isOutage returns whether a fault keeps the manager from the management cluster.
func isOutage(fault string) bool {
	return strings.HasPrefix(fault, "management-") || strings.HasPrefix(fault, "manager-frozen")
}

// hadFault returns whether one of some faults lasted at some time of a period.
func (h *History) hadFault(from, until time.Time, names ...string) bool {
	return slices.ContainsFunc(h.Faults, func(f InjectedFault) bool {
		return slices.Contains(names, f.Name) && !f.From.After(until) && !f.Until.Before(from)
	})
}

// isDown returns whether no manager ran at a time.
func (h *History) isDown(at time.Time) bool {
	for _, periods := range h.Down {
		if !slices.ContainsFunc(periods, func(p Period) bool { return at.After(p.From) && (p.Until.IsZero() || at.Before(p.Until)) }) {
			return false
		}
	}
	return len(h.Down) > 0
}

// Side is the record of one cluster.
type Side struct {
	Audit    controlplane.Events
	Clock    Clock
	Versions []Version // in the order of their revisions

	ofManager controlplane.Events // see byManager
}

// byManager returns the requests of our manager: read only. The record does not change from then on.
func (s *Side) byManager() controlplane.Events {
	if s.ofManager == nil {
		s.ofManager = s.Audit.WithUserAgent(fleet.ManagerAgent)
	}
	return s.ofManager
}

// Version is one stored version of an object.
type Version struct {
	Revision int64
	Key      string        // as in etcd
	Object   client.Object // nil: deleted
}

// Clock relates times to revisions of etcd, which have no time.
type Clock []Sample

// Sample says that the revision was the current one at some time between From and Until.
type Sample struct {
	From, Until time.Time
	Revision    int64
}

// Then returns the record of a management cluster until the Cluster was moved to the next one, and that of the next one from then on. The
// revisions of the next one are greater, and an object that was moved has one timeline.
func (s Side) Then(next Side) Side {
	moved, offset := time.Time{}, int64(0)
	for _, sample := range s.Clock {
		moved, offset = sample.Until, sample.Revision
	}
	for _, version := range s.Versions {
		offset = max(offset, version.Revision)
	}
	joined := Side{Audit: slices.Concat(s.Audit, next.Audit), Clock: slices.Clone(s.Clock), Versions: slices.Clone(s.Versions)}
	for _, sample := range next.Clock {
		if !sample.From.Before(moved) {
			joined.Clock = append(joined.Clock, Sample{sample.From, sample.Until, sample.Revision + offset})
		}
	}
	for _, version := range next.Versions {
		version.Revision += offset
		joined.Versions = append(joined.Versions, version)
	}
	return joined
}

// Before returns a revision that had been stored by a time.
func (c Clock) Before(t time.Time) int64 {
	if next := sort.Search(len(c), func(i int) bool { return c[i].Until.After(t) }); next > 0 {
		return c[next-1].Revision
	}
	return 0
}

// After returns a revision that includes everything that had been stored by a time.
func (c Clock) After(t time.Time) int64 {
	if first := sort.Search(len(c), func(i int) bool { return !c[i].From.Before(t) }); first < len(c) {
		return c[first].Revision
	}
	return math.MaxInt64
}

// begin returns the time of the first sample that has one.
func (c Clock) begin() time.Time {
	for _, sample := range c {
		if !sample.From.IsZero() {
			return sample.From
		}
	}
	return time.Time{}
}

// period returns a time at or after which, and one at or before which, a revision was stored.
func (c Clock) period(revision int64) (from, until time.Time) {
	for _, sample := range c {
		if sample.Revision >= revision {
			return from, sample.Until
		}
		from = sample.From
	}
	return from, from
}

// Prefixes of keys in etcd.
const (
	podKeys         = "/registry/pods/"
	nodeKeys        = "/registry/minions/"
	budgetKeys      = "/registry/poddisruptionbudgets/"
	deploymentKeys  = "/registry/deployments/"
	attachmentKeys  = "/registry/volumeattachments/"
	maintenanceKeys = "/registry/maintenance.cluster.x-k8s.io/nodemaintenances/"
	evacuationKeys  = "/registry/maintenance.cluster.x-k8s.io/evacuations/"
	clusterKeys     = "/registry/cluster.x-k8s.io/clusters/"
	machineKeys     = "/registry/cluster.x-k8s.io/machines/"
	ruleKeys        = "/registry/cluster.x-k8s.io/machinedrainrules/"
)

// timeline has the versions of one object. An object that was deleted and created again under its name is one timeline.
type timeline[T client.Object] []stored[T]

type stored[T client.Object] struct {
	revision int64
	object   T
	exists   bool
}

// timelines returns the timelines of all objects of a kind by namespace and name.
func timelines[T client.Object](s *Side, prefix string) map[string]timeline[T] {
	all := map[string]timeline[T]{}
	for _, version := range s.Versions {
		name, ok := strings.CutPrefix(version.Key, prefix)
		if !ok {
			continue
		}
		object, exists := version.Object.(T)
		all[name] = append(all[name], stored[T]{version.Revision, object, exists})
	}
	return all
}

// at returns the object as of a revision.
func (t timeline[T]) at(revision int64) (object T, exists bool) {
	if next := t.after(revision); next > 0 {
		return t[next-1].object, t[next-1].exists
	}
	return object, false
}

// during returns the states of the object from one revision to another, both included.
func (t timeline[T]) during(from, until int64) []stored[T] {
	end := t.after(until)
	return t[max(min(t.after(from), end)-1, 0):end:end]
}

// after returns the index of the first version after a revision.
func (t timeline[T]) after(revision int64) int {
	return sort.Search(len(t), func(i int) bool { return t[i].revision > revision })
}

// podLife is the timeline of one Pod, by its UID.
type podLife struct {
	name     string // namespace/name
	uid      types.UID
	versions timeline[*corev1.Pod]
}

// lives splits the timelines of Pods into those of each UID.
func (s *Side) lives() map[types.UID]*podLife {
	all := map[types.UID]*podLife{}
	for name, versions := range timelines[*corev1.Pod](s, podKeys) {
		var current *podLife
		for _, version := range versions {
			if version.exists && (current == nil || current.uid != version.object.UID) {
				current = &podLife{name: name, uid: version.object.UID}
				all[current.uid] = current
			}
			if current != nil {
				current.versions = append(current.versions, version)
			}
		}
	}
	return all
}

// terminatingSince returns the revision at which the deletion of the Pod began, or math.MaxInt64.
func (p *podLife) terminatingSince() int64 {
	for _, version := range p.versions {
		if !version.exists || version.object.DeletionTimestamp != nil {
			return version.revision
		}
	}
	return math.MaxInt64
}

// isOverdueAt returns whether the deletion of the Pod should have completed: its grace period has elapsed.
func (p *podLife) isOverdueAt(revision int64, now time.Time) bool {
	pod, exists := p.versions.at(revision)
	return exists && pod.DeletionTimestamp != nil && !now.Before(pod.DeletionTimestamp.Time)
}

// goneSince returns the revision at which the Pod was removed, or math.MaxInt64.
func (p *podLife) goneSince() int64 {
	for _, version := range p.versions {
		if !version.exists {
			return version.revision
		}
	}
	return math.MaxInt64
}

// first returns the first version of the Pod.
func (p *podLife) first() *corev1.Pod { return p.versions[0].object }

// boundSince returns the Node of the Pod, and the revision since which it is known.
func (p *podLife) boundSince() (node string, revision int64) {
	for _, version := range p.versions {
		if version.exists && version.object.Spec.NodeName != "" {
			return version.object.Spec.NodeName, version.revision
		}
	}
	return "", math.MaxInt64
}

// removal is a request of our manager that removes a Pod.
type removal struct {
	controlplane.Event
	// pod is nil if the Pod is not known.
	pod *podLife
	// at is the revision at which the deletion of the Pod began.
	at int64
}

// isEviction returns whether it is an eviction, or else a deletion.
func (r removal) isEviction() bool { return r.Subresource == "eviction" }

// succeeded returns whether the API server has said that the request succeeded.
func (r removal) succeeded() bool { return r.Code >= 200 && r.Code < 300 }

// removals returns the evictions and deletions of Pods that our manager requested, except those that were cut off before the API server had
// read them.
func (h *History) removals() []removal {
	lives := h.Workload.lives()
	var all []removal
	for _, event := range h.Workload.byManager() {
		eviction := event.Verb == "create" && event.Subresource == "eviction"
		deletion := event.Verb == "delete" && event.Subresource == ""
		if event.Resource != "pods" || !eviction && !deletion || event.IsCutOff() {
			continue
		}
		each := removal{Event: event, pod: lives[event.UIDPrecondition()]}
		if each.pod == nil {
			each.pod = named(lives, event.Namespace+"/"+event.Name, h.Workload.Clock.Before(event.Requested))
		}
		if each.pod != nil {
			each.at = each.pod.terminatingSince()
		}
		all = append(all, each)
	}
	slices.SortStableFunc(all, func(a, b removal) int { return a.Requested.Compare(b.Requested) })
	return all
}

// carriedOut returns the removals that succeeded.
func (h *History) carriedOut() []removal {
	return slices.DeleteFunc(h.removals(), func(r removal) bool { return !r.succeeded() || r.pod == nil })
}

// named finds the Pod that had a name at a revision.
func named(lives map[types.UID]*podLife, name string, revision int64) *podLife {
	for _, life := range lives {
		if life.name == name && life.versions[0].revision <= revision && life.goneSince() > revision {
			return life
		}
	}
	return nil
}

package integration

import (
	"encoding/json"
	"strings"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// invariants are what holds of every drain, whatever happens to it. They are checked at the end of every test and subtest, from
// the audit log of the workload cluster:
//
//   - every eviction, and every deletion of a Pod, carries the UID of the Pod that it means;
//   - no Pod is evicted twice;
//   - no Pod of a DaemonSet, no mirror of a static Pod, and none that its label has left alone is evicted;
//   - no eviction is refused, while budgets stay as they are and nobody else evicts;
//   - Cluster API's core manager evicts nothing.
//
// A request that is cut off when the manager is killed is none.
//
// A test that provokes an exception says so, and why: mayBeRefused, leavesToCore.
type invariants struct {
	within  *invariants // of the test that this one is a part of
	history *history
	from    int // the first eviction in history that is looked at

	refusals, core string // why there may be some
}

// history is what is read in the audit log, each line once.
type history struct {
	read     controlplane.Mark
	pods     map[types.UID]corev1.Pod // as they were made
	removals controlplane.Events      // evictions and deletions of Pods by our manager, and evictions by Cluster API's
}

// holdInvariants checks the invariants when the test of this scene ends.
func (s *scene) holdInvariants() {
	s.Helper()
	within := s.invariants
	s.invariants = &invariants{within: within, history: &history{pods: map[types.UID]corev1.Pod{}}}
	if within != nil {
		s.invariants.history = within.history
	}
	s.readHistory()
	s.invariants.from = len(s.invariants.history.removals)
	s.Cleanup(s.checkInvariants)
}

// mayBeRefused says why evictions may be refused in this test.
func (s *scene) mayBeRefused(why string) {
	for i := s.invariants; i != nil; i = i.within {
		i.refusals = why
	}
}

// leavesToCore says why Cluster API's core manager may evict in this test.
func (s *scene) leavesToCore(why string) {
	for i := s.invariants; i != nil; i = i.within {
		i.core = why
	}
}

func (s *scene) checkInvariants() {
	s.Helper()
	s.readHistory()
	evicted := map[types.UID]bool{}
	for _, removal := range s.invariants.history.removals[s.invariants.from:] {
		if strings.HasPrefix(removal.UserAgent, fleet.CoreAgent) {
			s.Expect(s.invariants.core).NotTo(BeEmpty(), "Cluster API drains a second time: %s", removal)
			continue
		}
		uid := removal.UIDPrecondition()
		s.Expect(uid).NotTo(BeEmpty(), "%s has no UID", removal)
		if removal.Subresource != "eviction" {
			continue
		}
		s.Expect(whyNotEvicted(s.invariants.history.pods[uid])).To(BeEmpty(), "%s", removal)
		switch removal.Code {
		case 201:
			s.Expect(evicted).NotTo(HaveKey(uid), "%s is the second eviction of this Pod", removal)
			evicted[uid] = true
		case 403, 429, 500:
			s.Expect(s.invariants.refusals).NotTo(BeEmpty(), "%s is refused", removal)
		}
	}
}

// whyNotEvicted says why a Pod must not be evicted.
func whyNotEvicted(pod corev1.Pod) string {
	owner := metav1.GetControllerOf(&pod)
	behavior, _ := rules.DrainLabel(pod.Labels)
	switch {
	case owner != nil && owner.Kind == "DaemonSet":
		return "it is a Pod of a DaemonSet"
	case pod.Annotations[corev1.MirrorPodAnnotationKey] != "":
		return "it is a mirror of a static Pod"
	case behavior != "":
		return "its label says " + string(behavior)
	default:
		return ""
	}
}

// readHistory reads on in the audit log.
func (s *scene) readHistory() {
	s.Helper()
	h := s.invariants.history
	events, read, err := s.workload.Audit().Next(h.read)
	s.Expect(err).NotTo(HaveOccurred())
	h.read = read
	for _, made := range events.Verb("create").Resource("pods").Succeeded() {
		var pod corev1.Pod
		s.Expect(json.Unmarshal(made.ResponseObject, &pod)).To(Succeed(), "%s", made)
		h.pods[pod.UID] = corev1.Pod{ObjectMeta: pod.ObjectMeta}
	}
	h.removals = append(h.removals, events.Where(func(event controlplane.Event) bool {
		ours := strings.HasPrefix(event.UserAgent, fleet.ManagerAgent)
		eviction := event.Resource == "pods" && event.Subresource == "eviction" && event.Verb == "create"
		deletion := event.Resource == "pods" && event.Subresource == "" && event.Verb == "delete"
		core := strings.HasPrefix(event.UserAgent, fleet.CoreAgent)
		return !event.IsCutOff() && (eviction && (ours || core) || deletion && ours)
	})...)
}

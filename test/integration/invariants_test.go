package integration

import (
	"encoding/json"
	"net/http"
	"strings"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// invariants are the rules that every drain follows. They are checked in the audit log of the workload cluster at the end of every test and
// subtest:
//
//   - every eviction and every deletion of a Pod has the UID of the Pod as a precondition;
//   - no Pod is evicted twice;
//   - no Pod of a DaemonSet, no mirror Pod, and no Pod that its label skips is evicted;
//   - no eviction is refused, while PodDisruptionBudgets do not change and no other actor evicts;
//   - Cluster API's core manager evicts no Pod.
//
// Requests that are interrupted because the manager is killed do not count.
//
// A test that causes an exception declares it and why: mayBeRefused, leavesToCore.
type invariants struct {
	within  *invariants // of the parent test
	history *history
	from    int // the first eviction in history that is checked

	refusals, core string // why exceptions are allowed
}

// history is what was read from the audit log. Each line is read once.
type history struct {
	read     controlplane.Mark
	pods     map[types.UID]corev1.Pod // as they were created
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
		if len(removal.RequestObject) == 0 && removal.Code == http.StatusForbidden && s.invariants.refusals != "" { // the role refuses it: the audit log has no body
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

// readHistory reads new entries of the audit log.
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

package integration

import (
	"slices"
	"strings"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// audited returns what has happened in the workload cluster since the scene began.
func (s *scene) audited() controlplane.Events {
	s.Helper()
	events, err := s.workload.Audit().Since(s.begin)
	s.Expect(err).NotTo(HaveOccurred())
	return events
}

// evictions are the eviction calls of our manager.
func (s *scene) evictions() controlplane.Events {
	s.Helper()
	return s.audited().WithUserAgent(fleet.ManagerAgent).Verb("create").Resource("pods", "eviction")
}

// expectInvariants checks what must hold of every drain, whatever happens to it: every eviction carries the UID of the Pod that
// it means; no Pod is evicted twice; none that stays is evicted; and Cluster API's core manager evicts nothing.
func (s *scene) expectInvariants(staying ...corev1.Pod) {
	s.Helper()
	evictions := s.evictions()
	evicted := map[types.UID]string{}
	for _, eviction := range evictions {
		uid := eviction.UIDPrecondition()
		s.Expect(uid).NotTo(BeEmpty(), "%s has no UID", eviction)
		if eviction.Code == 201 {
			s.Expect(evicted).NotTo(HaveKey(uid), "%s is the second eviction of this Pod", eviction)
			evicted[uid] = eviction.Namespace + "/" + eviction.Name
		}
	}
	for _, pod := range staying {
		s.Expect(evicted).NotTo(HaveKey(pod.UID), "Pod %s stays, and was evicted", pod.Name)
	}
	s.Expect(s.audited().WithUserAgent(fleet.CoreAgent).Resource("pods", "eviction")).To(BeEmpty(), "Cluster API drains a second time")
}

// expectNoneRefused checks that no eviction was tried that a budget had no room for.
func (s *scene) expectNoneRefused() {
	s.Helper()
	s.Expect(s.evictions().Failed(429, 500)).To(BeEmpty())
}

// setsUnschedulable picks the writes that cordon a Node.
func setsUnschedulable(event controlplane.Event) bool {
	return strings.Contains(string(event.RequestObject), `"unschedulable":true`)
}

// expectGoneBefore checks that the last of the first Pods was gone before the first of the later ones was evicted. The kubelet's
// own DELETE is what makes a Pod go.
func (s *scene) expectGoneBefore(first, later []corev1.Pod) {
	s.Helper()
	events := s.audited()
	var lastGone, firstEvicted time.Time
	for _, event := range events.Verb("delete").Resource("pods").Succeeded() {
		if slices.Contains(names(first), event.Name) && event.Requested.After(lastGone) {
			lastGone = event.Requested
		}
	}
	for _, event := range events.Verb("create").Resource("pods", "eviction").Succeeded() {
		if slices.Contains(names(later), event.Name) && (firstEvicted.IsZero() || event.Requested.Before(firstEvicted)) {
			firstEvicted = event.Requested
		}
	}
	s.Expect(lastGone.IsZero()).To(BeFalse())
	s.Expect(firstEvicted).To(BeTemporally(">", lastGone))
}

// takesHookOff picks the write that releases a Machine.
func takesHookOff(event controlplane.Event) bool {
	return strings.Contains(string(event.RequestObject), `"`+v1alpha1.PreDrainHookAnnotation+`":null`)
}

// setsSchedulable picks the writes that uncordon a Node.
func setsSchedulable(event controlplane.Event) bool {
	body := string(event.RequestObject)
	return strings.Contains(body, `"unschedulable":null`) || strings.Contains(body, `"unschedulable":false`)
}

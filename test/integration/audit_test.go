package integration

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// audited returns the requests to the workload cluster since the scene began. Interrupted requests, such as those of a manager that was
// killed while it sent them, had no effect and are excluded.
func (s *scene) audited() controlplane.Events {
	s.Helper()
	events, err := s.workload.Audit().Since(s.begin)
	s.Expect(err).NotTo(HaveOccurred())
	return events.Where(func(event controlplane.Event) bool { return !event.IsCutOff() })
}

// managed returns the requests to the management cluster since the scene began.
func (s *scene) managed() controlplane.Events {
	s.Helper()
	events, err := s.fleet.Management.Audit().Since(s.managementBegin)
	s.Expect(err).NotTo(HaveOccurred())
	return events
}

// evictions returns the evictions of our manager.
func (s *scene) evictions() controlplane.Events {
	s.Helper()
	return s.audited().WithUserAgent(fleet.ManagerAgent).Verb("create").Resource("pods", "eviction")
}

// expectInvariants checks the invariants now, and that none of the staying Pods was evicted. The invariants are also checked at the end of
// the test.
func (s *scene) expectInvariants(staying ...corev1.Pod) {
	s.Helper()
	s.checkInvariants()
	for _, eviction := range s.evictions().Succeeded() {
		for _, pod := range staying {
			s.Expect(eviction.UIDPrecondition()).NotTo(Equal(pod.UID), "Pod %s stays, and was evicted: %s", pod.Name, eviction)
		}
	}
}

// expectNoneRefused checks that no eviction was attempted that a PodDisruptionBudget did not allow.
func (s *scene) expectNoneRefused() {
	s.Helper()
	s.Expect(s.evictions().Failed(429, 500)).To(BeEmpty())
}

// patches says whether a write is a JSON patch with this operation on a path, with a value that contains a text.
func patches(event controlplane.Event, op, path, value string) bool {
	var operations []struct {
		Op, Path string
		Value    json.RawMessage
	}
	if json.Unmarshal(event.RequestObject, &operations) != nil {
		return false
	}
	for _, operation := range operations {
		if operation.Op == op && operation.Path == path && strings.Contains(string(operation.Value), value) {
			return true
		}
	}
	return false
}

// setsUnschedulable matches writes that cordon a Node.
func setsUnschedulable(event controlplane.Event) bool {
	unschedulable, says := fleet.Unschedulable(event)
	return says && unschedulable
}

// setsSchedulable matches patches that uncordon a Node.
func setsSchedulable(event controlplane.Event) bool {
	unschedulable, says := fleet.Unschedulable(event)
	return says && !unschedulable && event.Verb == "patch"
}

// expectGoneBefore checks that the last of the first Pods had terminated before the first of the later Pods was evicted. A Pod has
// terminated when the kubelet deletes it.
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

// writesPerEvacuation is the number of writes by all users of the Evacuation of a Pod that waits for its budget: the creation, a status,
// the deletion by the garbage collector, and the removal of the finalizer.
const writesPerEvacuation = 4

// writesPerDrain is the maximum number of writes of a NodeMaintenance and its Node during the drain of one Node. Observed: 4 and 3.
const writesPerDrain = 10

// isOfOutcome reports whether a list of Pods finds out what became of evicted Pods: it lists a Namespace.
func isOfOutcome(e controlplane.Event) bool { return e.Namespace == namespace }

func isOfDrain(e controlplane.Event) bool { return !isOfOutcome(e) }

// expectCosts checks the requests that the drain of a Node with n Pods has sent to its workload cluster, failed ones included: one eviction
// for each Pod, at most writesPerEvacuation by all users for its Evacuation, a constant number for the Node and its NodeMaintenance, and no
// read of Pods beyond the first list of the Node's watch, the list before the hook is removed, and those that find out what became of the
// evicted Pods. Events do not count.
func (s *scene) expectCosts(n int) {
	s.Helper()
	ours := s.audited().WithUserAgent(fleet.ManagerAgent)
	writes := ours.Writes().Where(func(event controlplane.Event) bool { return event.Resource != "events" })
	s.Logf("the drain of %d Pods: %s", n, tally(writes))

	evictions, progress := writes.Resource("pods", "eviction"), writes.Resource("nodemaintenances", "status")
	s.Expect(evictions).To(HaveLen(n))
	others := len(writes) - len(evictions) - len(progress) - len(writes.Resource("evacuations", "", "status"))
	byEvacuation := map[string]controlplane.Events{}
	for _, write := range s.audited().Writes().Resource("evacuations", "", "status") {
		if write.Code >= 300 && !strings.HasPrefix(write.UserAgent, fleet.ManagerAgent) {
			continue // the garbage collector may try to delete what the manager deletes at the same time
		}
		if write.Verb == "delete" && s.isLate(write) {
			continue
		}
		byEvacuation[write.Name] = append(byEvacuation[write.Name], write)
	}
	s.Expect(byEvacuation).To(HaveLen(n))
	for name, writes := range byEvacuation {
		s.Expect(len(writes)).To(BeNumerically("<=", writesPerEvacuation), "Evacuation %s: %v", name, writes)
	}
	s.Expect(others).To(BeNumerically("<=", writesPerDrain), tally(writes))

	// The status of the NodeMaintenance is written at most every two seconds.
	lasted := writes[len(writes)-1].Answered.Sub(writes[0].Requested)
	s.Expect(len(progress)).To(BeNumerically("<=", int(lasted/(2*time.Second))+10), "in %s", lasted)

	s.Expect(ours.Verb("get").Resource("pods").Succeeded()).To(BeEmpty()) // the others have not found a Pod whose Evacuation isLate
	s.Expect(len(ours.Verb("list").Resource("pods").Where(isOfOutcome))).To(BeNumerically("<=", 6), "at the end of the drain, and 1 and 3 minutes later")
	ofDrain := ours.Verb("list", "watch").Resource("pods").Where(isOfDrain)
	s.Expect(len(ofDrain.Verb("list"))).To(BeNumerically("<=", 2))
	for _, read := range ofDrain {
		s.Expect(read.URI).To(ContainSubstring("fieldSelector=spec.nodeName"), "Pods of one Node only")
	}
}

// isLate returns whether our manager has deleted an Evacuation because the garbage collector took too long after the deletion of the Pod.
func (s *scene) isLate(deletion controlplane.Event) bool {
	s.Helper()
	removed := s.audited().Verb("delete").Resource("pods").Succeeded().Where(func(e controlplane.Event) bool {
		return strings.HasSuffix(deletion.Name, "-"+e.Name)
	})
	return strings.HasPrefix(deletion.UserAgent, fleet.ManagerAgent) && len(removed) > 0 &&
		deletion.Requested.Sub(removed[len(removed)-1].Requested) >= evacuation.AwaitCollectionFor
}

// tally counts requests by verb and resource.
func tally(events controlplane.Events) string {
	count := map[string]int{}
	for _, event := range events {
		count[fmt.Sprintf("%s %s/%s %d", event.Verb, event.Resource, event.Subresource, event.Code)]++
	}
	return fmt.Sprint(count)
}

func evictedAtOnce(s *scene) {
	s.withNodes("e40")
	pods := []*corev1.Pod{bare("e40-one", "e40"), bare("e40-two", "e40"), bare("e40-three", "e40")}
	s.run(pods...)
	s.maintain(nm("e40", draining, ofNodes("e40")))
	for _, pod := range pods {
		s.Eventually(func() *v1alpha1.Evacuation { return s.evacuation(pod) }, soon, pace).Should(BeNil())
		s.expectDeleted(pod)
		s.Eventually(func() []string {
			var verbs []string
			for _, write := range s.audited().Writes().Succeeded().Resource("evacuations", "", "status").Named(namespace, evacuation.Name(pod.UID, pod.Name)) {
				verbs = append(verbs, write.Verb)
			}
			return verbs
		}, soon, pace).Should(Equal([]string{"create", "delete"}), "by all users")
	}
	s.Expect(s.evictions()).To(HaveLen(len(pods)))
	s.deleteMaintenances("e40")
}

func nothingLeftBehind(s *scene) {
	slow := func(pod *corev1.Pod) { pod.Annotations[controlplane.PodDeletionDelayAnnotation] = "1h" }
	s.withNodes("e41")
	unmanaged, uncollected := bare("e41-unmanaged", "e41", slow), bare("e41-uncollected", "e41", slow)
	s.run(unmanaged, uncollected)
	s.maintain(nm("e41", draining, ofNodes("e41")))
	s.Eventually(func() controlplane.Events { return s.evictions().Succeeded() }, soon, pace).Should(HaveLen(2))
	for _, pod := range []*corev1.Pod{unmanaged, uncollected} {
		e := s.existing(pod)
		s.Expect(e.Finalizers).To(BeEmpty())
		s.Expect(evacuation.Instigators(e)).To(ConsistOf(v1alpha1.NodeMaintenanceInstigatorFinalizer))
	}

	s.fleet.KillManager()
	s.annotate(unmanaged, controlplane.PodDeletionDelayAnnotation, "10ms")
	s.Eventually(func() *v1alpha1.Evacuation { return s.evacuation(unmanaged) }, eventually, pace).Should(BeNil(), "the garbage collector deletes it")
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())

	s.Expect(s.workload.StopComponent(s.Context(), controlplane.ControllerManager)).To(Succeed())
	s.annotate(uncollected, controlplane.PodDeletionDelayAnnotation, "10ms")
	s.Eventually(func() *v1alpha1.Evacuation { return s.evacuation(uncollected) }, eventually, pace).Should(BeNil(), "the manager deletes it")
	s.Expect(s.workload.StartComponent(s.Context(), controlplane.ControllerManager)).To(Succeed())
	s.expectDeleted(unmanaged)
	s.expectDeleted(uncollected)
	s.expectInvariants()
	s.deleteMaintenances("e41")
}

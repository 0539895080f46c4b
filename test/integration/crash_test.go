package integration

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// crashPods is the number of Pods on the Node whose drain is interrupted, which is more than their PodDisruptionBudget allows at once.
const crashPods = 5

// TestCrashAfterEachWrite kills the manager with SIGKILL immediately after each distinct write of a drain, and restarts it. A first drain
// without a crash shows which writes there are.
func TestCrashAfterEachWrite(t *testing.T) {
	parallel(t, 150*time.Second)
	all := newScene(t, fleet.Options{PodReadyDelay: 200 * time.Millisecond, PodDeletionDelay: 400 * time.Millisecond})
	all.withMachines("spare")

	undisturbed := all.sub(t)
	undisturbed.prepareCrash("undisturbed")
	watched := undisturbed.watchWrites()
	undisturbed.deleteMachine("undisturbed")
	undisturbed.expectGone("undisturbed")
	points := watched.distinct()
	t.Logf("distinct writes of a drain: %v", points)
	undisturbed.Expect(len(points)).To(BeNumerically(">=", 10))
	undisturbed.expectInvariants()
	undisturbed.removeWorkloads()

	for i, point := range points {
		t.Run(fmt.Sprintf("killed after %s", point), func(t *testing.T) {
			s := all.sub(t)
			defer s.removeWorkloads()
			name := fmt.Sprintf("crash-%d", i)
			s.prepareCrash(name)
			writes := s.watchWrites()
			s.deleteMachine(name)
			s.Eventually(func() bool { // not every drain has all of the status writes
				return slices.Contains(writes.distinct(), point) || s.isGone(name)
			}, eventually, time.Millisecond).Should(BeTrue())
			s.fleet.KillManager()
			s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())

			s.expectGone(name)
			s.expectInvariants()
			s.Expect(uidsOf(s.evictions().Where(mayBeDone))).To(HaveLen(crashPods))
			s.expectHeldUntilDrained(name)
			s.Expect(s.node("spare").Spec.Unschedulable).To(BeFalse())
		})
	}
}

// prepareCrash adds a Machine on whose Node all Pods have a PodDisruptionBudget.
func (s *scene) prepareCrash(machine string) {
	s.Helper()
	s.withMachines(machine)
	s.runOn(machine, "web", crashPods, deployment("web", crashPods), budget("web", 2))
	s.expectDisruptionsAllowed("web", 2)
}

// writes are the writes of our manager to both clusters since a moment.
type writes struct {
	*scene
	management, workload controlplane.Mark
}

func (s *scene) watchWrites() *writes {
	s.Helper()
	w := &writes{scene: s}
	var err error
	w.management, err = s.fleet.Management.Audit().Mark()
	s.Expect(err).NotTo(HaveOccurred())
	w.workload, err = s.workload.Audit().Mark()
	s.Expect(err).NotTo(HaveOccurred())
	return w
}

// distinct returns the names of the distinct successful writes so far. Of repeated writes, it includes the first and the second.
func (w *writes) distinct() []string {
	w.Helper()
	management, err := w.fleet.Management.Audit().Since(w.management)
	w.Expect(err).NotTo(HaveOccurred())
	workload, err := w.scene.workload.Audit().Since(w.workload)
	w.Expect(err).NotTo(HaveOccurred())
	var points []string
	count := map[string]int{}
	add := func(where string, events controlplane.Events) {
		for _, event := range events.WithUserAgent(fleet.ManagerAgent).Writes().Succeeded() {
			if event.Resource == "events" {
				continue
			}
			point := where + " " + event.Verb + " " + event.Resource
			if event.Subresource != "" {
				point += "/" + event.Subresource
			}
			count[point]++
			switch count[point] {
			case 1:
				points = append(points, point)
			case 2:
				points = append(points, point+" (2nd)")
			}
		}
	}
	add("management:", management)
	add("workload:", workload)
	return points
}

// mayBeDone matches requests that the API server did not refuse. A request whose sender was killed before the response is recorded as a
// timeout, whether it was executed or not.
func mayBeDone(request controlplane.Event) bool {
	return request.Code == http.StatusOK || request.Code == http.StatusCreated || request.Code == http.StatusGatewayTimeout
}

// uidsOf returns the UIDs of the Pods of evictions or deletions.
func uidsOf(evictions controlplane.Events) sets.Set[types.UID] {
	uids := sets.New[types.UID]()
	for _, eviction := range evictions {
		uids.Insert(eviction.UIDPrecondition())
	}
	return uids
}

// expectHeldUntilDrained checks that the hook was removed after the last Pod of the drain was evicted and had terminated.
func (s *scene) expectHeldUntilDrained(machine string) {
	s.Helper()
	released := s.managed().WithUserAgent(fleet.ManagerAgent).Verb("patch").Resource("machines").Named(namespace, machine).Where(fleet.ReleasesHook).
		Where(mayBeDone)
	s.Expect(released).NotTo(BeEmpty())
	s.Expect(len(released.Succeeded())).To(BeNumerically("<=", 1))
	evicted := s.evictions().Where(mayBeDone)
	gone := s.audited().Verb("delete").Resource("pods").Succeeded().Where(func(event controlplane.Event) bool {
		for _, eviction := range evicted {
			if eviction.Name == event.Name {
				return true
			}
		}
		return false
	})
	s.Expect(gone).NotTo(BeEmpty())
	for _, event := range gone {
		s.Expect(event.Requested).To(BeTemporally("<", released[0].Requested), "Pod %s was still there", event.Name)
	}
}

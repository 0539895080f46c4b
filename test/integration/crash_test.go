package integration

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// crashPods is the number of Pods on the Node whose drain is interrupted, which is more than their PodDisruptionBudget allows at once.
const crashPods = 5

// TestCrashAfterEachWrite kills the manager with SIGKILL immediately after each distinct write of a drain, and restarts it. A first drain
// without a crash shows which writes there are.
func TestCrashAfterEachWrite(t *testing.T) {
	parallel(t, 170*time.Second)
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
	t.Run("M162: a manager that starts evicts no Pod of a drain in progress before the NodeMaintenance has a rule that was created while no manager ran",
		func(t *testing.T) { all.sub(t).protectedMeanwhile() })
}

// protectedMeanwhile kills the manager during a drain, and creates a rule that protects Pods. The workload cluster refuses the update of
// the NodeMaintenance for a while.
func (s *scene) protectedMeanwhile() {
	defer s.removeWorkloads()
	const machine = "protected"
	s.withMachines(machine)
	s.create(s.workload.Client, budgetRequiring("other", 1))
	s.run(bare("other", machine))
	s.blocked(machine)

	s.fleet.KillManager()
	s.create(s.fleet.Client, drainRule("protects", "web", clusterv1.MachineDrainRuleDrainBehaviorSkip, nil))
	permit := s.refuse("updates", `object.metadata.name == "`+s.maintenanceOf(machine).Name+`"`, admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{v1alpha1.GroupVersion.Group}, APIVersions: []string{"*"}, Resources: []string{"nodemaintenances"},
		},
	}, func() error {
		change := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"probe":""}}}`))
		return s.workload.Client.Patch(s.Context(), s.maintenanceOf(machine), change, client.DryRunAll)
	})
	s.openBudget()
	s.Expect(s.workload.Client.Delete(s.Context(), budgetRequiring("other", 1))).To(Succeed())
	s.Expect(s.fleet.StartManager(s.Context())).To(Succeed())
	s.expectHeld(machine, v1alpha1.ReasonReconcileFailed, "updating NodeMaintenance ", "ValidatingAdmissionPolicy 'updates'")
	s.Expect(s.evictions()).To(BeEmpty())

	permit()
	s.Eventually(func() []string { return s.evictions().Succeeded().Names() }, eventually, pace).Should(ConsistOf("other"))
	s.expectGoneWithPods(machine)
	s.Expect(s.evictions().Names()).To(ConsistOf("other"))
	s.expectInvariants()
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

package integration

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

const (
	// drainedBy is the label of Machines that says which drain they get, and byUs selects the Machines that the policy selects.
	drainedBy = "drained-by"
	byUs      = "capnm"
	byCore    = "capi"

	// longerThanCore is how much longer than Cluster API's drain ours may take.
	longerThanCore = 30 * time.Second
)

// TestPeers drains the same Machines with Cluster API's own drain and with this provider, beside other owners of their
// PodDisruptionBudgets. This provider must end, must not have fewer available Pods, and must take at most 30 s longer. `make test-peers`
// runs it.
func TestPeers(t *testing.T) {
	runs, _ := strconv.Atoi(os.Getenv("CAPNM_TEST_PEERS"))
	if runs == 0 {
		t.Skip("CAPNM_TEST_PEERS is not the number of runs")
	}
	all := newScene(t, fleet.Options{PodReadyDelay: time.Second, PodDeletionDelay: time.Second})
	all.setPolicy(func(p *v1alpha1.MachineDrainPolicy) {
		p.Spec.MachineSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{drainedBy: byUs}}
	})
	for _, each := range []peerScene{
		{"a budget is replaced after 20 ms", runsBudgeted, replacesAfter(20 * time.Millisecond)},
		{"a budget is replaced after 300 ms", runsBudgeted, replacesAfter(300 * time.Millisecond)},
		{"the budgets of two Nodes cross", runsQuorums(1), addsCapacity},
		{"the budgets of two Nodes cross, and both drains wait for them first", runsQuorums(2), opensBudgets},
		{"an owner deletes its budget when it does not need the Node any more, as Longhorn does", runsManagers, deletesUnused},
	} {
		for run := range runs {
			t.Run(fmt.Sprintf("%s, run %d", each.name, run+1), func(t *testing.T) {
				theirs, ours := all.drainAs(t, byCore, each), all.drainAs(t, byUs, each)
				t.Logf("Cluster API: %s; this provider: %s", theirs, ours)
				g := NewWithT(t)
				g.Expect(ours.locked).To(BeFalse())
				g.Expect(ours.least).To(BeNumerically(">=", theirs.least), "available Pods")
				g.Expect(ours.took).To(BeNumerically("<=", theirs.took+longerThanCore))
			})
		}
	}
}

// peerScene is what is on the Nodes of two Machines, and what other owners do while both are drained. It locks if neither drain ends
// without help.
type peerScene struct {
	name    string
	prepare func(*scene, peer)
	during  func(*scene, peer) (locks bool)
}

// peer has the names in one drain of a scene.
type peer struct {
	app   string // label of its Pods, and prefix of the other names
	nodes []string
}

type outcome struct {
	least  int // available Pods labelled app
	took   time.Duration
	locked bool
}

func (o outcome) String() string {
	return fmt.Sprintf("%s, at least %d Pods available, locked %t", o.took.Round(100*time.Millisecond), o.least, o.locked)
}

// drainAs plays the scene with two new Machines, and waits until they are gone.
func (s *scene) drainAs(t *testing.T, drain string, played peerScene) outcome {
	t.Helper()
	s = s.sub(t)
	s.mayBeRefused("operators change budgets")
	if drain == byCore {
		s.leavesToCore("no policy selects the Machines")
	}
	defer s.cleanUp()
	app := fmt.Sprintf("peer-%d", time.Now().UnixMilli())
	p := peer{app, []string{app + "-a", app + "-b"}}
	for _, name := range p.nodes {
		s.create(s.fleet.Client, s.cluster.Machine(name, kwok.With(func(m *clusterv1.Machine) { m.Labels[drainedBy] = drain }))...)
	}
	for _, name := range p.nodes {
		s.Eventually(func(g Gomega) {
			machine := s.machine(name)
			_, hooked := machine.Annotations[v1alpha1.PreDrainHookAnnotation]
			g.Expect(machine.Status.Phase).To(Equal(string(clusterv1.MachinePhaseRunning)))
			g.Expect(hooked).To(Equal(drain == byUs))
			g.Expect(isInitialized(s.node(name))).To(BeTrue())
		}, eventually, pace).Should(Succeed())
		s.relabel(name, "pool", app)
	}
	played.prepare(s, p)
	available, began := s.watchAvailable(app), time.Now()
	for _, name := range p.nodes {
		s.deleteMachine(name)
	}
	locked := played.during(s, p)
	for _, name := range p.nodes {
		s.Eventually(func() bool { return s.isGone(name) }, eventually, pace).Should(BeTrue(), "the drain of %s by %s does not end", name, drain)
	}
	took := time.Since(began)
	least, _ := available()
	return outcome{least, took, locked}
}

// runsBudgeted runs six Pods, one of which may be disrupted at a time.
func runsBudgeted(s *scene, p peer) {
	s.runSurging(deployment(p.app, 6, inPool(p.app)))
	s.create(s.workload.Client, budget(p.app, 1))
	s.expectDisruptionsAllowed(p.app, 1)
	addsNode(s, p)
}

// replacesAfter replaces the budget after the first eviction, with a gap between the old one and the new one.
func replacesAfter(gap time.Duration) func(*scene, peer) bool {
	return func(s *scene, p peer) bool {
		s.expectDisruptionsAllowed(p.app, 0)
		s.Expect(s.workload.Client.Delete(s.Context(), budget(p.app, 1))).To(Succeed())
		<-time.After(gap)
		s.create(s.workload.Client, budget(p.app, 1))
		return false
	}
}

const quorums = 3

// runsQuorums runs applications with a Pod on each Node, and a budget that requires some of the two.
func runsQuorums(required int) func(*scene, peer) {
	return func(s *scene, p peer) {
		for i := range quorums {
			app := fmt.Sprintf("%s-%d", p.app, i)
			apart := []corev1.PodAffinityTerm{{LabelSelector: labelSelector("app", app), TopologyKey: corev1.LabelHostname}}
			s.runSurging(deployment(app, 2, inPool(p.app), func(template *corev1.PodTemplateSpec) {
				template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: apart}}
			}))
			s.create(s.workload.Client, budgetRequiring(app, required))
			s.expectDisruptionsAllowed(app, int32(2-required))
		}
	}
}

// lockTime is how long two drains that wait for each other are given.
const lockTime = 2 * time.Minute

// addsCapacity adds a Node when the first Machine is gone: nothing else can run the replacements. If each Node holds a budget that the
// other one needs, it adds the Node after some time, and reports that.
func addsCapacity(s *scene, p peer) (locks bool) {
	drained := func() bool { return s.isGone(p.nodes[0]) || s.isGone(p.nodes[1]) }
	locks = !NewGomega(func(string, ...int) {}).Eventually(drained, lockTime, pace).Should(BeTrue())
	addsNode(s, p)
	return locks
}

// opensBudgets lets the budgets allow a disruption when both Nodes are cordoned.
func opensBudgets(s *scene, p peer) bool {
	for _, node := range p.nodes {
		s.Eventually(func() bool { return s.node(node).Spec.Unschedulable }, eventually, pace).Should(BeTrue())
	}
	for i := range quorums {
		s.editBudget(fmt.Sprintf("%s-%d", p.app, i), func(pdb *policyv1.PodDisruptionBudget) { pdb.Spec.MinAvailable = ptr.To(intstr.FromInt(1)) })
	}
	return addsCapacity(s, p)
}

// runsManagers runs a Pod on each Node with a budget that never allows its disruption, and Pods of an application that needs it.
func runsManagers(s *scene, p peer) {
	s.runSurging(deployment(p.app, 2, inPool(p.app)))
	for _, node := range p.nodes {
		s.create(s.workload.Client, budgetRequiring(node, 1))
		s.run(bare(node, node))
		s.expectHealthy(node, 1)
	}
	addsNode(s, p)
}

// deletesUnused deletes the budget of a Node when no Pod of the application is left there.
func deletesUnused(s *scene, p peer) bool {
	for _, node := range p.nodes {
		s.Eventually(func() []corev1.Pod { return s.podsOf(p.app) }, eventually, pace).ShouldNot(ContainElement(HaveField("Spec.NodeName", node)))
		s.Expect(s.workload.Client.Delete(s.Context(), budgetRequiring(node, 1))).To(Succeed())
	}
	return false
}

func addsNode(s *scene, p peer) { s.withNodes(p.app + "-c pool=" + p.app) }

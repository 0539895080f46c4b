package integration

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
	"github.com/capnm/cluster-api-node-maintenance/test/storage"
)

const (
	// drainedBy is the label of Machines that says which drain they get, and byUs selects the Machines that the policy selects.
	drainedBy = "drained-by"
	byUs      = "capnm"
	byCore    = "capi"

	// longerThanCore is how much longer than Cluster API's drain ours may take.
	longerThanCore = 30 * time.Second
)

// TestPeers drains the same Machines with Cluster API's own drain and with this provider, beside other owners of their Pods, budgets and
// hooks. The drains of this provider must end, keep at least as many Pods available, and take at most 30 s longer. `make test-peers` runs
// it.
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
		{"a budget is replaced after 20 ms", 2, nil, runsBudgeted, replacesAfter(20 * time.Millisecond)},
		{"a budget is replaced after 300 ms", 2, nil, runsBudgeted, replacesAfter(300 * time.Millisecond)},
		{"the budgets of two Nodes cross", 2, nil, runsQuorums(1), addsCapacity},
		{"the budgets of two Nodes cross, and both drains wait for them first", 2, nil, runsQuorums(2), opensBudgets},
		{"an owner deletes its budget when it does not need the Node any more, as Longhorn does", 2, nil, runsManagers, deletesUnused},
		{"the eviction request is the signal, and the webhook allows it", 2, nil, runsSignalled(), movesSignalled},
		{"the eviction request is the signal, and the webhook denies it", 2, nil, runsSignalled(0), movesSignalled},
		{"a hook of another owner is an approval", 2, nil, runsHooked, approves},
		{"an operator fails over to a schedulable Node only", 3, inTurns, runsPrimary, failsOver},
		{"a webhook denies evictions for 120 s", 2, nil, runsGated, opensGate},
		{"the volumes are on the Node", 2, nil, runsLocal, waits},
		{"the volumes are on the Node, and the policy requests an order", 2, ordered, runsLocal, waits},
		{"a Pod that never terminates holds the turn while a Machine is remediated", 3, inTurns, runsStuck, endsStuck},
		{"a grace period is almost as long as the drain timeout", 2, onTimeoutDelete, runsLongGrace, measuresGrace},
		{"a tool applies the manifest of a Deployment with one replica and a budget", 2, restarting, runsApplied, applies},
		{"a quota refuses the surge of a Deployment with one replica and a budget", 1, surgingSingle, runsLimited, opensBudget},
	} {
		for run := range runs {
			t.Run(fmt.Sprintf("%s, run %d", each.name, run+1), func(t *testing.T) {
				var theirs, ours outcome
				t.Run("Cluster API", func(t *testing.T) { theirs = all.drainAs(t, byCore, each) })
				t.Run("this provider", func(t *testing.T) { ours = all.drainAs(t, byUs, each) })
				t.Logf("Cluster API: %s; this provider: %s", theirs, ours)
				g := NewWithT(t)
				g.Expect(ours.locked).To(BeFalse())
				g.Expect(ours.least).To(BeNumerically(">=", theirs.least), "available Pods")
				g.Expect(ours.took).To(BeNumerically("<=", theirs.took+longerThanCore))
			})
		}
	}
}

// peerScene is what runs on the Nodes of Machines, and what other owners do while all are drained. It locks if the drains do not end before
// it helps them.
type peerScene struct {
	name     string
	machines int
	policy   func(*v1alpha1.MachineDrainPolicy) // changes the policy of this provider; nil if it does not
	prepare  func(*scene, *peer)
	during   func(*scene, *peer) (locks bool)
}

// peer is one drain of a scene.
type peer struct {
	drain string
	app   string // label of its Pods, and prefix of the other names
	nodes []string
	gate  *gate
}

type outcome struct {
	least  int // available Pods labelled app
	took   time.Duration
	locked bool
}

func (o outcome) String() string {
	return fmt.Sprintf("%s, at least %d Pods available, locked %t", o.took.Round(100*time.Millisecond), o.least, o.locked)
}

// drainAs plays the scene with new Machines, and waits until they are gone.
func (s *scene) drainAs(t *testing.T, drain string, played peerScene) outcome {
	t.Helper()
	s = s.sub(t)
	s.mayBeRefused("operators change budgets")
	if drain == byCore {
		s.leavesToCore("no policy selects the Machines")
	}
	if played.policy != nil {
		before := read(s, s.fleet.Client, keyOf("all"), &v1alpha1.MachineDrainPolicy{}).Spec
		s.setPolicy(played.policy)
		defer s.setPolicy(func(p *v1alpha1.MachineDrainPolicy) { p.Spec = before })
	}
	defer s.cleanUp()
	p := &peer{drain: drain, app: fmt.Sprintf("peer-%d", time.Now().UnixMilli())}
	for i := range played.machines {
		name := fmt.Sprintf("%s-%c", p.app, 'a'+i)
		p.nodes = append(p.nodes, name)
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
		s.relabel(name, "pool", p.app)
	}
	played.prepare(s, p)
	available, began := s.watchAvailable(p.app), time.Now()
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
func runsBudgeted(s *scene, p *peer) {
	s.runSurging(deployment(p.app, 6, inPool(p.app)))
	s.create(s.workload.Client, budget(p.app, 1))
	s.expectDisruptionsAllowed(p.app, 1)
	addsNode(s, p)
}

// replacesAfter replaces the budget after the first eviction, with a gap between the old one and the new one.
func replacesAfter(gap time.Duration) func(*scene, *peer) bool {
	return func(s *scene, p *peer) bool {
		s.expectDisruptionsAllowed(p.app, 0)
		s.Expect(s.workload.Client.Delete(s.Context(), budget(p.app, 1))).To(Succeed())
		<-time.After(gap)
		s.create(s.workload.Client, budget(p.app, 1))
		return false
	}
}

const quorums = 3

// runsQuorums runs applications with a Pod on each Node, and a budget that requires some of the two.
func runsQuorums(required int) func(*scene, *peer) {
	return func(s *scene, p *peer) {
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

// lockTime is how long drains may take before they count as locked.
const lockTime = 2 * time.Minute

// addsCapacity adds a Node when the first Machine is gone: nothing else can run the replacements. If each Node holds a budget that the
// other one needs, it adds the Node after some time, and reports that.
func addsCapacity(s *scene, p *peer) bool {
	locks := locksUntil(func() bool { return s.isGone(p.nodes[0]) || s.isGone(p.nodes[1]) })
	addsNode(s, p)
	return locks
}

func locksUntil(ends func() bool) (locks bool) {
	return !NewGomega(func(string, ...int) {}).Eventually(ends, lockTime, pace).Should(BeTrue())
}

func untilCordoned(s *scene, p *peer) {
	for _, node := range p.nodes {
		s.Eventually(func() bool { return s.node(node).Spec.Unschedulable }, eventually, pace).Should(BeTrue())
	}
}

// opensBudgets lets the budgets allow a disruption when both Nodes are cordoned.
func opensBudgets(s *scene, p *peer) bool {
	untilCordoned(s, p)
	for i := range quorums {
		s.editBudget(fmt.Sprintf("%s-%d", p.app, i), func(pdb *policyv1.PodDisruptionBudget) { pdb.Spec.MinAvailable = ptr.To(intstr.FromInt(1)) })
	}
	return addsCapacity(s, p)
}

// runsManagers runs a Pod on each Node with a budget that never allows its disruption, and Pods of an application that needs it.
func runsManagers(s *scene, p *peer) {
	s.runSurging(deployment(p.app, 2, inPool(p.app)))
	for _, node := range p.nodes {
		s.create(s.workload.Client, budgetRequiring(node, 1))
		s.run(bare(node, node))
		s.expectHealthy(node, 1)
	}
	addsNode(s, p)
}

// deletesUnused deletes the budget of a Node when no Pod of the application is left there.
func deletesUnused(s *scene, p *peer) bool {
	for _, node := range p.nodes {
		s.Eventually(func() []corev1.Pod { return s.podsOf(p.app) }, eventually, pace).ShouldNot(ContainElement(HaveField("Spec.NodeName", node)))
		s.Expect(s.workload.Client.Delete(s.Context(), budgetRequiring(node, 1))).To(Succeed())
	}
	return false
}

func addsNode(s *scene, p *peer) { s.withNodes(p.spare() + " pool=" + p.app) }

func (p *peer) spare() string { return p.app + "-spare" }

func waits(*scene, *peer) bool { return false }

// runsSignalled runs a StatefulSet of one Pod, whose budget never allows a disruption, and a webhook that receives the eviction requests
// and denies those for some ordinals.
func runsSignalled(denied ...int) func(*scene, *peer) {
	return func(s *scene, p *peer) {
		set := statefulSet(p.app, 1)
		set.Spec.Template.Spec.NodeSelector["pool"] = p.app
		s.create(s.workload.Client, set, budget(p.app, 0))
		s.expectHealthy(p.app, 1)
		addsNode(s, p)
		var pods []string
		for _, ordinal := range denied {
			pods = append(pods, fmt.Sprintf("%s-%d", p.app, ordinal))
		}
		p.gate = s.gateEvictions(denials(pods...))
	}
}

// denials returns answers of a webhook that deny the evictions of Pods.
func denials(pods ...string) map[string]*metav1.Status {
	answers := map[string]*metav1.Status{}
	for _, pod := range pods {
		answers[pod] = &metav1.Status{Code: http.StatusTooManyRequests, Message: "later"}
	}
	return answers
}

// movesSignalled moves the Pod 5 s after its eviction was requested.
func movesSignalled(s *scene, p *peer) bool {
	pod := p.app + "-0"
	s.Eventually(p.gate.notes(pod), eventually, pace).ShouldNot(BeZero())
	<-time.After(5 * time.Second)
	s.Expect(s.workload.Client.Delete(s.Context(), bare(pod, ""))).To(Succeed())
	return false
}

// runsHooked runs Pods on Nodes whose Machines have the hook of another owner.
func runsHooked(s *scene, p *peer) {
	s.runSurging(deployment(p.app, 4, inPool(p.app)))
	addsNode(s, p)
	for _, name := range p.nodes {
		s.change(name, func(m *clusterv1.Machine) { metav1.SetMetaDataAnnotation(&m.ObjectMeta, foreignHook, "another-actor") })
	}
}

// approves removes the hooks after a while in which nothing is drained.
func approves(s *scene, p *peer) bool {
	s.Consistently(func(g Gomega) {
		for _, name := range p.nodes {
			g.Expect(s.node(name).Spec.Unschedulable).To(BeFalse())
		}
		g.Expect(s.audited().Resource("pods", "eviction")).To(BeEmpty())
	}, 3*undisturbed, pace).Should(Succeed())
	for _, name := range p.nodes {
		s.change(name, func(m *clusterv1.Machine) { delete(m.Annotations, foreignHook) })
	}
	return false
}

func inTurns(p *v1alpha1.MachineDrainPolicy) { p.Spec.MaxParallelDrains = ptr.To(intstr.FromInt32(1)) }

// runsPrimary runs a primary on the first Node and a replica on each other one. Each role has a budget, as with CloudNativePG.
func runsPrimary(s *scene, p *peer) {
	addsNode(s, p)
	for i, node := range p.nodes {
		role := "replica"
		if i == 0 {
			role = "primary"
		}
		s.run(bare(node, node, withApp(p.app), withRole(role)))
	}
	s.create(s.workload.Client, budgetOf("primary"), budgetOf("replica"))
	s.expectHealthy("primary", 1)
	s.expectHealthy("replica", 2)
}

// failsOver is the operator of a primary, which acts when all Nodes are cordoned: while the Node of the primary is cordoned, it makes a
// ready replica on a schedulable Node the primary. It recreates evicted Pods on the additional Node.
func failsOver(s *scene, p *peer) bool {
	untilCordoned(s, p)
	return locksUntil(func() bool {
		nodes, pods, schedulable, present := &corev1.NodeList{}, s.podsOf(p.app), map[string]bool{}, map[string]bool{}
		s.Expect(s.workload.Client.List(s.Context(), nodes)).To(Succeed())
		for _, node := range nodes.Items {
			schedulable[node.Name] = !node.Spec.Unschedulable
		}
		primary, replica := "", ""
		for i := range pods {
			pod := &pods[i]
			present[pod.Name] = true
			switch isSchedulable := schedulable[pod.Spec.NodeName]; {
			case pod.Labels["role"] == "primary" && !isSchedulable:
				primary = pod.Name
			case pod.Labels["role"] == "replica" && isSchedulable && rules.Ready(pod) && pod.DeletionTimestamp == nil:
				replica = pod.Name
			}
		}
		if primary != "" && replica != "" {
			s.failOver(primary, replica)
		}
		drained := true
		for _, name := range p.nodes {
			if !present[name] {
				s.create(s.workload.Client, bare(name, p.spare(), withApp(p.app), withRole("replica")))
			}
			drained = drained && s.isGone(name)
		}
		return drained
	})
}

// runsGated runs Pods whose evictions a webhook denies.
func runsGated(s *scene, p *peer) {
	s.runSurging(deployment(p.app, 12, inPool(p.app)))
	addsNode(s, p)
	p.gate = s.gateEvictions(denials(names(s.podsOf(p.app))...))
}

func opensGate(s *scene, p *peer) bool {
	<-time.After(2 * time.Minute)
	for _, pod := range s.podsOf(p.app) {
		p.gate.open(pod.Name)
	}
	return false
}

func ordered(p *v1alpha1.MachineDrainPolicy) {
	p.Spec.StatefulSetPods = v1alpha1.StatefulSetPodsOrdered
}

// runsLocal runs a StatefulSet of six Pods, all of whose volumes are on the first Node.
func runsLocal(s *scene, p *peer) {
	set := statefulSet(p.app, 6)
	set.Spec.Template.Spec.NodeSelector = nil
	set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: storage.ClaimOf("")}}
	for i := range *set.Spec.Replicas {
		name := fmt.Sprintf("data-%s-%d", p.app, i)
		volume := storage.VolumeFor(name, namespace, name)
		volume.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/data"}}
		volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: p.nodes[:1]}},
		}}}}
		s.create(s.workload.Client, volume)
	}
	s.create(s.workload.Client, set)
	s.Eventually(func() []corev1.Pod { return s.podsOf(p.app) }, eventually, pace).
		Should(And(HaveLen(6), HaveEach(HaveField("Status.Phase", corev1.PodRunning))))
}

// runsStuck runs a Pod on each Node. That of the first one never terminates, and the last Machine is remediated.
func runsStuck(s *scene, p *peer) {
	for _, node := range p.nodes {
		s.run(bare(node, node, withApp(p.app)))
	}
	s.neverTerminates(p.nodes[0])
	s.change(p.nodes[2], func(m *clusterv1.Machine) {
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, clusterv1.RemediateMachineAnnotation, "")
	})
}

// endsStuck removes the Pod that never terminates after the remediated Machine is gone.
func endsStuck(s *scene, p *peer) bool {
	began := time.Now()
	locks := locksUntil(func() bool { return s.isGone(p.nodes[2]) })
	s.Logf("%s: the remediated Machine is gone after %s", p.drain, time.Since(began).Round(pace))
	s.terminate(p.nodes[0])
	return locks
}

func onTimeoutDelete(p *v1alpha1.MachineDrainPolicy) { p.Spec.OnTimeout = v1alpha1.OnTimeoutDelete }

const longGrace = 90 * time.Second

// runsLongGrace runs a Pod that needs almost all of its grace period, and whose budget never allows its disruption. It is not among the
// Pods that are counted: Cluster API deletes its Machine, and the Pod looks available until the garbage collector deletes it.
func runsLongGrace(s *scene, p *peer) {
	s.create(s.workload.Client, budgetRequiring(p.nodes[0], 1))
	s.run(bare(p.nodes[0], p.nodes[0], func(pod *corev1.Pod) {
		pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(longGrace.Seconds()))
		pod.Annotations[controlplane.PodDeletionDelayAnnotation] = (longGrace - 5*time.Second).String()
	}))
	s.expectHealthy(p.nodes[0], 1)
	s.change(p.nodes[0], func(m *clusterv1.Machine) { m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](120) })
}

// measuresGrace measures the time from the deletion of the Pod until it has terminated or its Machine is gone.
func measuresGrace(s *scene, p *peer) bool {
	var got time.Duration
	s.Eventually(func() bool {
		pod := &corev1.Pod{}
		err := s.workload.Client.Get(s.Context(), keyOf(p.nodes[0]), pod)
		if err == nil && pod.DeletionTimestamp != nil {
			got = longGrace - time.Until(pod.DeletionTimestamp.Time)
		}
		return apierrors.IsNotFound(err) || s.isGone(p.nodes[0])
	}, eventually, pace).Should(BeTrue())
	s.Logf("%s: the Pod gets %s of its grace period of %s", p.drain, got.Round(pace), longGrace)
	if p.drain == byUs {
		s.Expect(got).To(BeNumerically(">=", longGrace-10*time.Second))
	}
	return false
}

func restarting(p *v1alpha1.MachineDrainPolicy) {
	p.Spec.Surge, p.Spec.SurgeMethod = v1alpha1.SurgeIfSingleReplica, v1alpha1.SurgeMethodRestart
}

// runsApplied runs a Deployment with one replica, whose budget never allows its disruption.
func runsApplied(s *scene, p *peer) {
	s.applyAsGitOps(p.app, ptr.To[int32](1))
	s.expectRolledOut(p.app)
	s.create(s.workload.Client, budget(p.app, 0))
	addsNode(s, p)
}

// applies does what a GitOps tool does with the manifest of the Deployment. If the drain does not end, its budget is changed to allow a
// disruption.
func applies(s *scene, p *peer) bool {
	locks := locksUntil(func() bool {
		s.applyAsGitOps(p.app, ptr.To[int32](1))
		return s.isGone(p.nodes[0]) && s.isGone(p.nodes[1])
	})
	s.editBudget(p.app, func(pdb *policyv1.PodDisruptionBudget) { pdb.Spec.MaxUnavailable = ptr.To(intstr.FromInt(1)) })
	return locks
}

func surgingSingle(p *v1alpha1.MachineDrainPolicy) { p.Spec.Surge = v1alpha1.SurgeIfSingleReplica }

// runsLimited runs a Deployment with one replica, whose budget never allows its disruption, and whose quota allows no other Pod.
func runsLimited(s *scene, p *peer) {
	s.runSurging(deployment(p.app, 1, inPool(p.app), requesting("1m")))
	s.create(s.workload.Client, budget(p.app, 0))
	s.limitPods(p.app, 1)
	addsNode(s, p)
}

// opensBudget lets the budget allow a disruption after a while, in which neither drain evicts the Pod.
func opensBudget(s *scene, p *peer) bool {
	pod := s.podsOf(p.app)[0]
	if p.drain == byUs {
		s.Eventually(func() string { return s.condition(p.nodes[0]).Message }, soon, pace).Should(ContainSubstring(overQuota(p.app, 1)))
	}
	s.Consistently(func() []corev1.Pod { return s.podsOf(p.app) }, lockTime, pace).
		Should(ConsistOf(And(HaveField("UID", pod.UID), HaveField("DeletionTimestamp", BeNil()))))
	s.allowMore(p.app)
	s.setBudget(p.app, 1)
	return false
}

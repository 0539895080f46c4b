package integration

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// TestPlugin compares what the kubectl plugin shows, explains and predicts with what the manager does, and drains with it.
func TestPlugin(t *testing.T) {
	parallel(t, 150*time.Second)
	all := newScene(t, fleet.Options{PodReadyDelay: 200 * time.Millisecond, PodDeletionDelay: 300 * time.Millisecond})
	all.withMachines("watched", "spare")
	t.Run("live view", func(t *testing.T) { all.sub(t).testPluginWatches() })
	all.testPluginExplains()

	machines := []string{"planned-1", "planned-2", "planned-3", "planned-4"}
	all.withMachines(machines...)
	for _, machine := range machines {
		t.Run("K1: what plan predicts for each Pod of a random load is what the audit log shows", func(t *testing.T) {
			s := all.sub(t)
			defer s.cleanUp()
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			l := s.randomLoad(machine, rand.New(rand.NewPCG(seed, 0)))
			predicted, code := s.predict("machine", machine)
			s.Expect(predicted.Pods).To(HaveLen(l.pods))
			s.expectWritesNothing()

			s.deleteMachine(machine)
			s.expectBlockedAs(machine, predicted, code)
			l.unblock(s)
			s.expectGone(machine)
			s.expectEvacuatedAs(predicted)
			s.expectInvariants()
		})
	}
	all.testPluginDrains()
}

// load is what runs on a Node.
type load struct {
	pods  int
	jobs  []string // Pods that must complete
	tight []string // budgets that allow no disruptions
}

// randomLoad runs applications with random labels, drain rules and budgets on a Node.
func (s *scene) randomLoad(node string, random *rand.Rand) *load {
	s.Helper()
	s.create(s.workload.Client, daemonSetOn(node+"-logs", node))
	l := &load{pods: 1}
	for i := range 5 {
		app := fmt.Sprintf("%s-app%d", node, i)
		switch random.IntN(5) {
		case 0:
			s.create(s.fleet.Client, drainRule(app, app, clusterv1.MachineDrainRuleDrainBehaviorSkip, nil))
		case 1:
			s.create(s.fleet.Client, drainRule(app, app, clusterv1.MachineDrainRuleDrainBehaviorDrain, ptr.To([]int32{-5, 10, 20}[random.IntN(3)])))
		case 2:
			s.create(s.fleet.Client, drainRule(app, app, clusterv1.MachineDrainRuleDrainBehaviorWaitCompleted, nil))
			l.addJob(s, node, app)
			continue
		}
		replicas := 1 + random.IntN(3)
		changes := []func(*corev1.PodTemplateSpec){}
		if random.IntN(6) == 0 {
			changes = append(changes, labelled(clusterv1.PodDrainLabel, "Skip"))
		}
		objects := []client.Object{deployment(app, int32(replicas), changes...)}
		if allowed := random.IntN(4); allowed < 2 {
			objects = append(objects, budget(app, allowed))
			if allowed == 0 {
				l.tight = append(l.tight, app)
			}
		}
		s.runOn(node, app, replicas, objects...)
		l.pods += replicas
	}
	if random.IntN(2) == 0 {
		l.addJob(s, node, node+"-job", labelled(clusterv1.PodDrainLabel, "wait-completed"))
	}
	s.Eventually(func() []corev1.Pod { return s.podsOf(node + "-logs") }, eventually, pace).Should(HaveLen(1))
	s.Eventually(func(g Gomega) { // budgets are up to date
		list := &policyv1.PodDisruptionBudgetList{}
		g.Expect(s.workload.Client.List(s.Context(), list)).To(Succeed())
		for _, pdb := range list.Items {
			g.Expect(pdb.Status.ExpectedPods).To(BeNumerically(">", 0))
			g.Expect(pdb.Status.CurrentHealthy).To(Equal(pdb.Status.ExpectedPods))
		}
	}, eventually, pace).Should(Succeed())
	return l
}

func (l *load) addJob(s *scene, node, name string, changes ...func(*corev1.PodTemplateSpec)) {
	s.Helper()
	s.run(bare(name, node, func(pod *corev1.Pod) {
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		template := corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta}
		for _, change := range changes {
			change(&template)
		}
		pod.ObjectMeta = template.ObjectMeta
	}))
	l.jobs = append(l.jobs, name)
	l.pods++
}

// unblock completes the jobs and deletes the budgets that allow no disruptions.
func (l *load) unblock(s *scene) {
	s.Helper()
	for _, name := range l.jobs {
		s.annotate(s.pod(name), controlplane.PodCompleteAfterAnnotation, "10ms")
	}
	for _, name := range l.tight {
		s.Expect(s.workload.Client.Delete(s.Context(), budget(name, 0))).To(Succeed())
	}
}

// expectWritesNothing expects that the plugin has written nothing and has listed no Pods but those of single Nodes and, for warnings, those
// that use any Node.
func (s *scene) expectWritesNothing() {
	s.Helper()
	workload := s.audited().WithUserAgent(pluginAgent)
	s.Expect(s.managed().WithUserAgent(pluginAgent).Writes()).To(BeEmpty())
	s.Expect(workload.Writes()).To(BeEmpty())
	for _, list := range workload.Verb("list").Resource("pods") {
		s.Expect(list.URI).To(ContainSubstring("fieldSelector=spec.nodeName"))
	}
}

// expectBlockedAs waits until the drain is as far as predicted: each Pod of the first steps that nothing blocks is evicted, each blocked
// one says the predicted reason, and no Pod of a later step is touched.
func (s *scene) expectBlockedAs(machine string, predicted predictedDrain, code int) {
	s.Helper()
	held := func(p predictedPod) bool {
		return p.Outcome == string(forecast.Completes) || p.Outcome == string(forecast.Evacuated) && p.WaitsFor != ""
	}
	last := 1 << 10
	blocked := false
	for _, pod := range predicted.Pods {
		blocked = blocked || pod.WaitsFor != ""
		if held(pod) {
			last = min(last, pod.Step)
		}
	}
	s.Expect(code).To(Equal(map[bool]int{false: 0, true: 1}[blocked]))
	if blocked {
		s.Expect(predicted.Blockers).NotTo(BeEmpty())
	} else {
		s.Expect(predicted.Blockers).To(BeEmpty())
	}
	if last == 1<<10 {
		return
	}
	s.Eventually(func(g Gomega) {
		m := s.maintenanceOf(machine)
		g.Expect(m).NotTo(BeNil())
		rules, err := json.Marshal(m.Spec.DrainRules)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(rules).To(MatchJSON(predicted.DrainRules))
		evicted := s.evictions().Succeeded().Names()
		for _, pod := range predicted.Pods {
			switch {
			case pod.Step == 0 || pod.Step > last || pod.Outcome != string(forecast.Evacuated):
				g.Expect(evicted).NotTo(ContainElement(pod.Name))
			case pod.WaitsFor != "":
				e := read(g, s.workload.Client, client.ObjectKey{Namespace: pod.Namespace, Name: pod.UID + "-" + pod.Name}, &v1alpha1.Evacuation{})
				g.Expect(e.Status.Message).To(ContainSubstring(pod.WaitsFor))
				g.Expect(evicted).NotTo(ContainElement(pod.Name))
			default:
				g.Expect(evicted).To(ContainElement(pod.Name))
			}
		}
	}, eventually, pace).Should(Succeed())
}

// expectEvacuatedAs compares the audit log with the prediction: which Pods were evicted, and that the Evacuations of a step were created
// after the Pods of all earlier steps had been deleted or had completed.
func (s *scene) expectEvacuatedAs(predicted predictedDrain) {
	s.Helper()
	events := s.audited()
	evicted := s.evictions().Succeeded().Names()
	deleted, requested := map[string]time.Time{}, map[string]time.Time{}
	for _, event := range events.Verb("delete").Resource("pods").Succeeded() {
		deleted[event.Name] = event.Requested
	}
	for _, event := range events.WithUserAgent(fleet.ManagerAgent).Verb("create").Resource("evacuations").Succeeded() {
		requested[event.Name] = event.Requested
	}
	for _, pod := range predicted.Pods {
		leaves := pod.Outcome == string(forecast.Evacuated)
		s.Expect(slices.Contains(evicted, pod.Name)).To(Equal(leaves), "%s: predicted %s", pod.Name, pod.Outcome)
		if !leaves {
			s.Expect(requested).NotTo(HaveKey(pod.UID+"-"+pod.Name), "%s: predicted %s", pod.Name, pod.Outcome)
			continue
		}
		s.Expect(requested).To(HaveKey(pod.UID + "-" + pod.Name))
		for _, earlier := range predicted.Pods {
			if earlier.Step < pod.Step && earlier.Outcome == string(forecast.Evacuated) {
				s.Expect(deleted[earlier.Name]).To(BeTemporally("<", requested[pod.UID+"-"+pod.Name]), "%s in step %d, %s in step %d", earlier.Name, earlier.Step, pod.Name,
					pod.Step)
			}
		}
	}
}

// predictsDrainOfClusterAPI runs plan where no cluster has this provider: not even its CRDs.
func (s *scene) predictsDrainOfClusterAPI(machine string) {
	s.Helper()
	serve := s.unservePolicies()
	defer serve()
	s.Eventually(func(g Gomega) { // the discovery names the kind for some time after its CRD was deleted
		fresh, err := client.New(s.fleet.Management.AdminConfig(), client.Options{Scheme: clusterapi.Scheme()})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(meta.IsNoMatchError(fresh.List(s.Context(), &v1alpha1.MachineDrainPolicyList{}))).To(BeTrue())
	}, eventually, pace).Should(Succeed())
	s.Expect(meta.IsNoMatchError(s.workload.Client.List(s.Context(), &v1alpha1.NodeMaintenanceList{}))).To(BeTrue())
	s.Eventually(func(g Gomega) {
		g.Expect(s.machine(machine).Status.Phase).To(Equal(string(clusterv1.MachinePhaseRunning)))
		g.Expect(isInitialized(s.node(machine))).To(BeTrue())
	}, eventually, pace).Should(Succeed())
	set, annotated := statefulSet("set", 2), bare("annotated", machine, withApp("annotated"), withEvacuator)
	set.Spec.Template.Spec.NodeSelector, set.Spec.Template.Spec.NodeName = nil, machine
	s.create(s.workload.Client, set, budgetRequiring("annotated", 1))
	s.run(annotated)
	s.expectHealthy("annotated", 1)
	s.Eventually(func() []corev1.Pod { return s.podsOf("set") }, eventually, pace).Should(HaveLen(2))

	predicted, code := s.predict("machine", machine)
	s.Expect(code).To(Equal(1))
	s.Expect(predicted.Policy).To(BeEmpty())
	s.Expect(predicted.Blockers).To(ConsistOf(HaveField("Budget", namespace+"/annotated")))
	s.Expect(predicted.Delays).To(BeEmpty(), "Cluster API asks no evacuator")
	s.Expect(predicted.Pods).To(HaveLen(3))
	for _, pod := range predicted.Pods {
		s.Expect(pod.Step).To(Equal(1), "%s", pod.Name)
		s.Expect(pod.Evacuators).To(BeEmpty(), "%s", pod.Name)
	}
	s.expectWritesNothing()
}

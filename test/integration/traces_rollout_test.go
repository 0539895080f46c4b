package integration

import (
	"encoding/json"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	drainhistory "github.com/capnm/cluster-api-node-maintenance/drain/history"
	"github.com/capnm/cluster-api-node-maintenance/drain/recording"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
)

// precision is how far two accounts of a drain may be apart: the API records times in whole seconds, and watches take seconds on a busy
// machine.
const precision = 10 * time.Second

// tracedRollout replaces the Machines of a MachineDeployment while the plugin records, and compares three accounts of each drain with the
// audit logs: the trace, the report of the trace, and the report of the recording.
func tracedRollout(s *scene, jaeger *collector) {
	s.withMachineDeployment("pool", 2)
	defer func() { // no Pod of another test may be scheduled there
		s.scale("pool", 0)
		s.Eventually(func() []clusterv1.Machine { return s.allMachinesOf("pool") }, eventually, pace).Should(BeEmpty())
	}()
	old := s.allMachinesOf("pool")
	for _, machine := range old {
		s.runOn(machine.Name, machine.Name, 3, deployment(machine.Name, 3), budget(machine.Name, 0))
	}
	file := filepath.Join(s.TempDir(), "recording.jsonl")
	s.watchLines(s.fleet.Management.AdminConfig(), "status", "--watch", "--record", file)
	s.Eventually(func() ([]byte, error) { return os.ReadFile(file) }, soon, pace).ShouldNot(BeEmpty())

	s.create(s.fleet.Client, &infrav1.KwokMachineTemplate{ObjectMeta: metaNamed("pool-v2", "")})
	s.roll("pool", "pool-v2")
	var unblocked []string
	for len(unblocked) < len(old) { // each budget allows a disruption when the plugin watches the Pods of the Node, the first one much later
		var next []string
		s.Eventually(func() []string {
			next = without(s.watchedNodes(), unblocked)
			return next
		}, eventually, pace).ShouldNot(BeEmpty())
		seen := time.Now()
		s.Eventually(func() bool { return len(unblocked) > 0 || time.Since(seen) > 3*precision }, eventually, pace).Should(BeTrue())
		for _, node := range next {
			s.setBudget(node, 1)
		}
		unblocked = append(unblocked, next...)
	}
	s.expectRolled("pool", len(old))
	recorded := func() []recording.Drain { return s.recordingIn(file).Drains }
	s.expectNotHurt(file, old)
	for _, machine := range old {
		s.Eventually(recorded, soon, pace).Should(ContainElement(And(HaveField("Machine", namespace+"/"+machine.Name), HaveField("Gone", Not(BeZero())))))
	}

	var audited, traced, fromTraces, fromRecording []drainAccount
	for i := range old {
		trace := jaeger.traceOf(s, old[i].UID)
		s.Logf("the trace:\n%s", trace.tree())
		trace.expectWhole()
		audited = append(audited, s.auditedAccount(&old[i]))
		traced = append(traced, trace.account())
		fromTraces = append(fromTraces, accountOf(jaeger.report(s, old[i].UID)))
	}
	for _, d := range recorded() {
		fromRecording = append(fromRecording, accountOf(&d))
	}
	s.expectSameStory(traced, audited)
	s.expectSameStory(fromTraces, audited)
	s.expectSameStory(fromRecording, audited)
	for _, d := range recorded() {
		for _, pod := range d.Pods {
			s.Expect(pod.Waits[len(pod.Waits)-1].Reason).To(Equal(drainhistory.WaitTermination), "%v", pod)
		}
	}
}

// expectNotHurt expects that the applications of Machines, each with three replicas and a budget that allows one disruption, used their
// budgets and were never below.
func (s *scene) expectNotHurt(file string, machines []clusterv1.Machine) {
	s.Helper()
	var names []string
	for i := range machines {
		names = append(names, namespace+"/"+machines[i].Name)
	}
	var effects []recording.Effect
	s.Eventually(func(g Gomega) { // the last replacement may not be ready yet
		effects = s.recordingIn(file).Effects
		g.Expect(effects).To(HaveEach(HaveField("Missing", BeZero())))
	}, eventually, pace).Should(Succeed())
	var recorded []string
	for i := range effects {
		e := &effects[i]
		recorded = append(recorded, e.Name)
		s.Expect(e.Sentence()).To(Equal("2 of 3 ready at least, budget 2"), e.Title())
	}
	s.Expect(recorded).To(ConsistOf(names))
}

// watchedNodes returns the Nodes whose Pods the plugin watches.
func (s *scene) watchedNodes() []string {
	s.Helper()
	nodes := sets.New[string]()
	for _, watch := range s.pluginRequests().Verb("watch").Resource("pods") {
		uri, err := url.Parse(watch.URI)
		s.Expect(err).NotTo(HaveOccurred())
		nodes.Insert(strings.TrimPrefix(uri.Query().Get("fieldSelector"), "spec.nodeName="))
	}
	return sets.List(nodes)
}

// course is when something began and ended, and when the Pod began to terminate.
type course struct{ begin, terminates, end time.Time }

// drainAccount is what a source says about the drain of a Machine: from the request of its deletion to the release of the hook, and of each
// Pod from the creation of its Evacuation over its eviction to its deletion.
type drainAccount struct {
	machine string
	whole   course
	pods    map[string]course // by name
}

// auditedAccount returns what the audit logs say about the deletion of a Machine.
func (s *scene) auditedAccount(machine *clusterv1.Machine) drainAccount {
	s.Helper()
	ofMachine := s.managed().Resource("machines.cluster.x-k8s.io").Succeeded().Named(machine.Namespace, machine.Name)
	account := drainAccount{machine: machine.Name, pods: map[string]course{}}
	account.whole.begin = s.first(ofMachine.Verb("delete")).Answered
	for _, patch := range ofMachine.Verb("patch") {
		if fleet.ReleasesHook(patch) {
			account.whole.end = patch.Answered
		}
	}
	s.Expect(account.whole.end).NotTo(BeZero(), "the release of the hook of Machine %s", machine.Name)

	deletions := s.audited().Verb("delete").Resource("pods").Succeeded()
	for _, created := range s.audited().Verb("create").Resource("evacuations").Succeeded() {
		e := &v1alpha1.Evacuation{}
		s.Expect(json.Unmarshal(created.RequestObject, e)).To(Succeed())
		if e.Annotations[v1alpha1.EvacuationNodeAnnotation] == machine.Name {
			name := e.Spec.PodRef.Name
			evicted := s.first(s.evictions().Succeeded().Named(namespace, name))
			account.pods[name] = course{created.Answered, evicted.Answered, s.first(deletions.Named(namespace, name)).Answered}
		}
	}
	return account
}

// account returns what a trace says about the deletion of a Machine.
func (t *trace) account() drainAccount {
	t.Helper()
	root := t.one("delete Machine")
	account := drainAccount{whole: course{begin: root.Start, end: root.End}, pods: map[string]course{}}
	account.machine, _ = root.Tags["capnm.machine.name"].(string)
	for _, each := range t.named("evacuate Pod") {
		name, _ := each.Tags["k8s.pod.name"].(string)
		waits := t.childrenOf(each)
		account.pods[name] = course{each.Start, waits[len(waits)-1].Start, each.End}
	}
	return account
}

// accountOf returns what a report shows of a drain.
func accountOf(d *recording.Drain) drainAccount {
	account := drainAccount{machine: strings.TrimPrefix(d.Machine, namespace+"/"), whole: course{begin: d.Deleted, end: d.Gone}, pods: map[string]course{}}
	for _, pod := range d.Pods {
		account.pods[strings.TrimPrefix(pod.Name, namespace+"/")] = course{pod.Start, pod.Waits[len(pod.Waits)-1].Start, pod.End}
	}
	return account
}

// expectSameStory compares accounts of drains with those of the audit logs: the same Machines and Pods, the same durations, and the same
// order of ends that are far apart.
func (s *scene) expectSameStory(accounts, audited []drainAccount) {
	s.Helper()
	told, happened := courses(accounts), courses(audited)
	s.Expect(told).To(HaveLen(len(happened)))
	for name, want := range happened {
		s.Expect(told).To(HaveKey(name))
		got := told[name]
		s.Expect(got.begin).To(BeTemporally("~", want.begin, precision), "begin of %s", name)
		if !want.terminates.IsZero() {
			s.Expect(got.terminates).To(BeTemporally("~", want.terminates, precision), "eviction of %s", name)
		}
		s.Expect(got.end.Sub(got.begin)).To(BeNumerically("~", want.end.Sub(want.begin), precision), "duration of %s", name)
		for other, wantOther := range happened {
			if wantOther.end.Sub(want.end) > precision {
				s.Expect(got.end).To(BeTemporally("<", told[other].end), "%s ends before %s", name, other)
			}
		}
	}
}

// courses returns the courses of all Machines and Pods by name.
func courses(accounts []drainAccount) map[string]course {
	all := map[string]course{}
	for _, account := range accounts {
		all["Machine "+account.machine] = account.whole
		maps.Copy(all, account.pods)
	}
	return all
}

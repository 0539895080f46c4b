package integration

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/recording"
	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
)

// precision is how far two accounts of a drain may be apart: the API records times in whole seconds, and watches take time on a busy machine.
const precision = 2 * time.Second

// tracedRollout replaces the Machines of a MachineDeployment while the plugin records, and compares three accounts of each drain with the audit
// logs: the trace, the report of the trace, and the report of the recording.
func tracedRollout(s *scene, jaeger *collector) {
	s.withMachineDeployment("pool", 2)
	old := s.allMachinesOf("pool")
	for _, machine := range old {
		s.runOn(machine.Name, machine.Name, 3, deployment(machine.Name, 3), budget(machine.Name, 1))
		s.expectDisruptionsAllowed(machine.Name, 1)
	}
	file := filepath.Join(s.TempDir(), "recording.jsonl")
	s.watchLines(s.fleet.Management.AdminConfig(), "status", "--watch", "--record", file)
	s.Eventually(func() ([]byte, error) { return os.ReadFile(file) }, soon, pace).ShouldNot(BeEmpty())

	s.create(s.fleet.Client, &infrav1.KwokMachineTemplate{ObjectMeta: metaNamed("pool-v2", "")})
	s.roll("pool", "pool-v2")
	s.expectRolled("pool", len(old))
	recorded := func() []recording.Drain { return s.recordingIn(file).Drains }
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
}

// course is when something began and ended.
type course struct{ begin, end time.Time }

// drainAccount is what a source says about the drain of a Machine: from the request of its deletion to the release of the hook, and of each Pod from
// the creation of its Evacuation to its deletion.
type drainAccount struct {
	machine string
	whole   course
	pods    map[string]course // by name
}

// auditedAccount returns what the audit logs say about the deletion of a Machine.
func (s *scene) auditedAccount(machine *clusterv1.Machine) drainAccount {
	s.Helper()
	management, err := s.fleet.Management.Audit().Since(s.managementBegin)
	s.Expect(err).NotTo(HaveOccurred())
	ofMachine := management.Resource("machines.cluster.x-k8s.io").Succeeded().Named(machine.Namespace, machine.Name)
	account := drainAccount{machine: machine.Name, pods: map[string]course{}}
	account.whole.begin = s.first(ofMachine.Verb("delete")).Answered
	for _, patch := range ofMachine.Verb("patch") {
		if strings.Contains(string(patch.RequestObject), `"`+v1alpha1.PreDrainHookAnnotation+`":null`) {
			account.whole.end = patch.Answered
		}
	}
	s.Expect(account.whole.end).NotTo(BeZero(), "the release of the hook of Machine %s", machine.Name)

	deletions := s.audited().Verb("delete").Resource("pods").Succeeded()
	for _, created := range s.audited().Verb("create").Resource("evacuations").Succeeded() {
		e := &v1alpha1.Evacuation{}
		s.Expect(json.Unmarshal(created.RequestObject, e)).To(Succeed())
		if e.Annotations[v1alpha1.EvacuationNodeAnnotation] == machine.Name {
			account.pods[e.Spec.PodRef.Name] = course{created.Answered, s.first(deletions.Named(namespace, e.Spec.PodRef.Name)).Answered}
		}
	}
	return account
}

// account returns what a trace says about the deletion of a Machine.
func (t *trace) account() drainAccount {
	t.Helper()
	root := t.one("delete Machine")
	account := drainAccount{whole: course{root.Start, root.End}, pods: map[string]course{}}
	account.machine, _ = root.Tags["capnm.machine.name"].(string)
	for _, each := range t.named("evacuate Pod") {
		name, _ := each.Tags["k8s.pod.name"].(string)
		account.pods[name] = course{each.Start, each.End}
	}
	return account
}

// accountOf returns what a report shows of a drain.
func accountOf(d *recording.Drain) drainAccount {
	account := drainAccount{machine: strings.TrimPrefix(d.Machine, namespace+"/"), whole: course{d.Deleted, d.Gone}, pods: map[string]course{}}
	for _, pod := range d.Pods {
		account.pods[strings.TrimPrefix(pod.Name, namespace+"/")] = course{pod.Start, pod.End}
	}
	return account
}

// expectSameStory compares accounts of drains with those of the audit logs: the same Machines and Pods, the same durations, and the same order
// of ends that are more than a second apart.
func (s *scene) expectSameStory(accounts, audited []drainAccount) {
	s.Helper()
	told, happened := courses(accounts), courses(audited)
	s.Expect(told).To(HaveLen(len(happened)))
	for name, want := range happened {
		s.Expect(told).To(HaveKey(name))
		got := told[name]
		s.Expect(got.begin).To(BeTemporally("~", want.begin, precision), "begin of %s", name)
		s.Expect(got.end.Sub(got.begin)).To(BeNumerically("~", want.end.Sub(want.begin), precision), "duration of %s", name)
		for other, wantOther := range happened {
			if wantOther.end.Sub(want.end) > precision/2 {
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

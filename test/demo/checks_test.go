package main

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

var epoch = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// at returns the event with a duration of 10 ms, starting at the given millisecond.
func at(ms int, event controlplane.Event) controlplane.Event {
	event.Requested = epoch.Add(time.Duration(ms) * time.Millisecond)
	event.Answered = event.Requested.Add(10 * time.Millisecond)
	if event.Code == 0 {
		event.Code = 200
	}
	return event
}

func evict(ms int, namespace, name string, uid types.UID) controlplane.Event {
	body := "{}"
	if uid != "" {
		body = fmt.Sprintf(`{"deleteOptions":{"preconditions":{"uid":%q}}}`, uid)
	}
	return at(ms, controlplane.Event{
		User: "capi", UserAgent: fleet.ManagerAgent + "/v1", Verb: "create", Resource: "pods", Subresource: "eviction",
		Namespace: namespace, Name: name, RequestObject: []byte(body),
	})
}

func kubeletDoes(ms int, verb, subresource, namespace, name string) controlplane.Event {
	return at(ms, controlplane.Event{User: kubelet, Verb: verb, Resource: "pods", Subresource: subresource, Namespace: namespace, Name: name})
}

func patchNode(ms int, name, patch string) controlplane.Event {
	return at(ms, controlplane.Event{User: "capi", UserAgent: fleet.ManagerAgent + "/v1", Verb: "patch", Resource: "nodes", Name: name, RequestObject: []byte(patch)})
}

func patchMachine(ms int, name, patch string) controlplane.Event {
	return at(ms, controlplane.Event{User: fleet.ManagerUser, Verb: "patch", Group: "cluster.x-k8s.io", Resource: "machines", Namespace: namespace, Name: name, RequestObject: []byte(patch)})
}

const (
	cordonPatch  = `{"spec":{"unschedulable":true}}`
	releasePatch = `{"metadata":{"annotations":{"` + v1alpha1.PreDrainHookAnnotation + `":null}}}`
)

// flawless is the evidence of a correct drain: four web Pods, of which three are needed and one is on the Node, a Pod with the verdict
// WaitCompleted, a storage Pod, which is evicted last, and a skipped Pod.
func flawless() evidence {
	e := evidence{
		WebReplicas: 4, WebNeeded: 3, WebLeast: 3,
		Drains: []drainFact{{Machine: "m", Node: "n", Maintenance: "n-1234"}},
		Pods: map[types.UID]podFact{
			"u-web":     {Namespace: appWeb, Name: "web-0", Node: "n", App: appWeb, Behavior: v1alpha1.DrainBehaviorDrain},
			"u-report":  {Namespace: appReport, Name: "report", Node: "n", App: appReport, Behavior: v1alpha1.DrainBehaviorWaitCompleted},
			"u-storage": {Namespace: appStorage, Name: "storage-0", Node: "n", App: appStorage, Behavior: v1alpha1.DrainBehaviorDrain, Order: storageOrder},
			"u-monitor": {Namespace: appMonitoring, Name: "monitoring", Node: "n", App: appMonitoring, Behavior: v1alpha1.DrainBehaviorSkip},
			"u-away":    {Namespace: appStorage, Name: "storage-9", Node: "elsewhere", App: appStorage},
		},
	}
	for i := 1; i < 4; i++ {
		e.Pods[types.UID(fmt.Sprint("u-web-", i))] = podFact{Namespace: appWeb, Name: fmt.Sprint("web-", i), Node: "elsewhere", App: appWeb}
	}
	for i := range 4 {
		e.Workload = append(e.Workload, kubeletDoes(i, "patch", "status", appWeb, fmt.Sprint("web-", i)))
	}
	e.Workload = append(e.Workload,
		kubeletDoes(10, "patch", "status", appReport, "report"),
		at(50, controlplane.Event{User: "capi", UserAgent: fleet.CoreAgent + "/v1", Verb: "patch", Resource: "nodes", Name: "n", RequestObject: []byte(`{"metadata":{}}`)}),
		patchNode(100, "n", cordonPatch),
		evict(200, appWeb, "web-0", "u-web"),
		kubeletDoes(300, "delete", "", appWeb, "web-0"),
		kubeletDoes(400, "patch", "status", appReport, "report"),
		evict(500, appStorage, "storage-0", "u-storage"),
		kubeletDoes(600, "delete", "", appStorage, "storage-0"),
	)
	e.Management = controlplane.Events{
		patchMachine(1, "m", `{"metadata":{"annotations":{"`+v1alpha1.PreDrainHookAnnotation+`":"x"}}}`),
		patchMachine(700, "m", releasePatch),
	}
	return e
}

func TestFlawlessEvidencePassesEveryCheck(t *testing.T) {
	for _, c := range checkAll(flawless()) {
		if !c.ok() {
			t.Errorf("%s: %v", c.Promise, c.Problems)
		}
	}
}

// Empty evidence fails all checks.
func TestEveryCheckFailsWithoutEvidence(t *testing.T) {
	for _, c := range checkAll(evidence{}) {
		if c.ok() {
			t.Errorf("%s: passes", c.Promise)
		}
	}
}

// Modifications of flawless evidence.

func record(events ...controlplane.Event) func(*evidence) {
	return func(e *evidence) { e.Workload = append(e.Workload, events...) }
}

func drop(match func(controlplane.Event) bool) func(*evidence) {
	return func(e *evidence) {
		e.Workload = e.Workload.Where(func(v controlplane.Event) bool { return !match(v) })
	}
}

func move(match func(controlplane.Event) bool, ms int) func(*evidence) {
	return func(e *evidence) {
		for i := range e.Workload {
			if match(e.Workload[i]) {
				e.Workload[i] = at(ms, e.Workload[i])
			}
		}
	}
}

// Each case violates one expectation, and the check of that expectation reports it.
func TestEachCheckCanFail(t *testing.T) {
	refused := evict(250, appMonitoring, "monitoring", "u-monitor")
	refused.Code = 429
	byCore := func(event controlplane.Event) controlplane.Event {
		event.UserAgent = fleet.CoreAgent + "/v1"
		return event
	}
	storageGoes := func(v controlplane.Event) bool { return v.Subresource == "eviction" && v.Name == "storage-0" }
	deletion := at(250, controlplane.Event{UserAgent: fleet.ManagerAgent + "/v1", Verb: "delete", Resource: "pods", Namespace: appWeb, Name: "web-0"})
	for story, test := range map[string]struct {
		judge   func(evidence) check
		spoil   func(*evidence)
		problem string
	}{
		"a skipped Pod is evicted":                             {checkLeftAlone, record(evict(250, appMonitoring, "monitoring", "u-monitor")), "monitoring/monitoring is Skip"},
		"a skipped Pod's eviction is refused":                  {checkLeftAlone, record(refused), "monitoring/monitoring is Skip"},
		"a Pod that is waited for is evicted":                  {checkLeftAlone, record(evict(250, appReport, "report", "u-report")), "report/report is WaitCompleted"},
		"a Pod of another Node is evicted":                     {checkOnlyDrainedNodes, record(evict(250, appStorage, "storage-9", "u-away")), `Node "elsewhere"`},
		"a Machine is deleted without NodeMaintenance":         {checkOnlyDrainedNodes, func(e *evidence) { e.Drains[0].Maintenance = "" }, "without a NodeMaintenance"},
		"a Pod is evicted twice":                               {checkEvictedOnce, record(evict(250, appWeb, "web-0", "u-web")), "second eviction"},
		"an eviction has no precondition":                      {checkPrecondition, record(evict(250, appWeb, "web-1", "")), "without UID"},
		"an eviction has the UID of no Pod":                    {checkPrecondition, record(evict(250, appWeb, "web-1", "u-who")), "UID u-who is that of no Pod"},
		"an eviction has the UID of another Pod":               {checkPrecondition, record(evict(250, appWeb, "web-1", "u-away")), "is that of storage/storage-9"},
		"storage is evicted while web terminates":              {checkOrder, move(storageGoes, 290), "when web/web-0 (order 0) was still on the Node"},
		"storage is evicted while the report runs":             {checkOrder, move(storageGoes, 390), "when report/report (order 0) was still on the Node"},
		"storage is evicted although web never is":             {checkOrder, drop(func(v controlplane.Event) bool { return v.Name == "web-0" && v.Verb == "delete" }), "web/web-0"},
		"two web Pods are evicted at once":                     {checkBudget, record(evict(205, appWeb, "web-1", "u-web-1")), "2 were left"},
		"a web Pod is evicted before its replacement is ready": {checkBudget, record(evict(350, appWeb, "web-1", "u-web-1"), kubeletDoes(400, "patch", "status", appWeb, "web-4")), "2 were left"},
		"too few web Pods are ready":                           {checkReadyWeb, func(e *evidence) { e.WebLeast = 2 }, "the minimum was 2"},
		"Cluster API evicts":                                   {checkCore, record(byCore(evict(250, appWeb, "web-1", "u-web-1"))), "pods/eviction"},
		"Cluster API deletes":                                  {checkCore, record(byCore(deletion)), "delete pods"},
		"we delete a Pod":                                      {checkNoPlainDeletion, record(deletion), "delete pods"},
		"a Machine is released while storage runs":             {checkHooks, func(e *evidence) { e.Management[1] = at(550, e.Management[1]) }, "when storage/storage-0 was still on the Node"},
		"a Machine is released before an eviction":             {checkHooks, func(e *evidence) { e.Management[1] = at(450, e.Management[1]) }, "before 12:00:00.510"},
		"a Machine is released while the report runs": {checkHooks, move(func(v controlplane.Event) bool {
			return v.Name == "report" && v.Requested.After(epoch.Add(100*time.Millisecond))
		}, 900), "when report/report was still on the Node"},
		"a Machine is never released by us":        {checkHooks, func(e *evidence) { e.Management = e.Management[:1] }, "0 times"},
		"a Node is never cordoned":                 {checkCordon, drop(func(v controlplane.Event) bool { return string(v.RequestObject) == cordonPatch }), "never cordoned"},
		"a Node is uncordoned by a merge patch":    {checkCordon, record(patchNode(650, "n", `{"spec":{"unschedulable":null}}`)), "patch nodes n"},
		"a Node is uncordoned by a JSON patch":     {checkCordon, record(patchNode(650, "n", `[{"op":"test","path":"/spec/unschedulable","value":true},{"op":"remove","path":"/spec/unschedulable"}]`)), "patch nodes n"},
		"a Node is uncordoned by an update":        {checkCordon, record(at(650, controlplane.Event{Verb: "update", Resource: "nodes", Name: "n", RequestObject: []byte(`{"spec":{"providerID":"x"}}`)})), "update nodes n"},
		"a Node is schedulable again in the watch": {checkCordon, func(e *evidence) { e.Uncordoned = []string{"n"} }, "observed as schedulable again: n"},
	} {
		t.Run(story, func(t *testing.T) {
			g := NewWithT(t)
			e := flawless()
			test.spoil(&e)
			g.Expect(test.judge(e).Problems).To(ContainElement(ContainSubstring(test.problem)))
		})
	}
}

// A StatefulSet's Pods share a name: the deletion of one does not count for the other.
func TestPodsOfOneNameAreToldApart(t *testing.T) {
	g := NewWithT(t)
	e := flawless()
	e.Pods["u-next"] = podFact{Namespace: appStorage, Name: "storage-0", Node: "n2", App: appStorage, Behavior: v1alpha1.DrainBehaviorDrain, Order: storageOrder}
	e.Workload = append(e.Workload, evict(800, appStorage, "storage-0", "u-next"), kubeletDoes(900, "delete", "", appStorage, "storage-0"))
	left := e.left()
	g.Expect(left["u-storage"]).To(Equal(epoch.Add(600 * time.Millisecond)))
	g.Expect(left["u-next"]).To(Equal(epoch.Add(900 * time.Millisecond)))
}

package main

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(milliseconds int) time.Time {
	return begin.Add(time.Duration(milliseconds) * time.Millisecond)
}

func call(from, to int) controlplane.Event {
	return controlplane.Event{Verb: "create", Resource: "pods", Subresource: "eviction", Requested: at(from), Answered: at(to), Code: 201}
}

func TestUnusedRoom(t *testing.T) {
	for name, test := range map[string]struct {
		history   []roomAt
		evictions controlplane.Events
		want      []idle
	}{
		"no evictions": {history: []roomAt{{at(0), 2}}},
		"a disruption that is allowed before the first eviction belongs to the start": {
			history:   []roomAt{{at(0), 1}, {at(12), 0}},
			evictions: controlplane.Events{call(10, 15)},
		},
		"a round": {
			history:   []roomAt{{at(0), 1}, {at(12), 0}, {at(100), 1}, {at(108), 0}},
			evictions: controlplane.Events{call(10, 15), call(105, 110)},
			want:      []idle{{5 * time.Millisecond, true}},
		},
		"between two calls while disruptions stay allowed": {
			history:   []roomAt{{at(0), 2}, {at(12), 1}, {at(19), 0}},
			evictions: controlplane.Events{call(10, 15), call(18, 20)},
			want:      []idle{{3 * time.Millisecond, false}},
		},
		"a disruption that becomes allowed during a call is idle from the end of the call": {
			history:   []roomAt{{at(0), 1}, {at(11), 0}, {at(14), 1}},
			evictions: controlplane.Events{call(10, 20), call(30, 35)},
			want:      []idle{{10 * time.Millisecond, false}},
		},
		"a disruption that becomes allowed after the last eviction is not idle": {
			history:   []roomAt{{at(0), 1}, {at(12), 0}, {at(50), 2}},
			evictions: controlplane.Events{call(10, 15)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(unused(test.history, test.evictions)).To(Equal(test.want))
		})
	}
}

func eviction(name, uid string) controlplane.Event {
	event := call(0, 1)
	event.Name = name
	if uid != "" {
		event.RequestObject = json.RawMessage(fmt.Sprintf(`{"deleteOptions":{"preconditions":{"uid":%q}}}`, uid))
	}
	return event
}

func TestViolations(t *testing.T) {
	g := NewWithT(t)
	var to target
	for _, name := range []string{"a", "b"} {
		to.pods = append(to.pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}})
	}
	g.Expect(violations(load{drained: 1}, to, controlplane.Events{eviction("a", "uid-a"), eviction("b", "uid-b")})).To(BeEmpty())
	g.Expect(violations(load{drained: 1}, to, controlplane.Events{eviction("a", "")})).To(ConsistOf(ContainSubstring("without the precondition")))
	g.Expect(violations(load{drained: 1}, to, controlplane.Events{eviction("a", "uid-a"), eviction("a", "uid-a")})).To(ConsistOf(ContainSubstring("twice")))
	g.Expect(violations(load{drained: 1}, to, controlplane.Events{eviction("c", "uid-c")})).To(ConsistOf(ContainSubstring("did not have to be evicted")))
	g.Expect(violations(load{drained: 1}, to, controlplane.Events{eviction("a", "uid-b")})).To(ConsistOf(ContainSubstring("did not have to be evicted")))
	g.Expect(violations(load{drained: 3}, to, controlplane.Events{eviction("c", "uid-c")})).To(BeEmpty())
}

func TestJudge(t *testing.T) {
	g := NewWithT(t)
	good := sample{Candidate: "capnm", Pods: 20, Evictions: 20, Seconds: 11}
	limit := sample{Candidate: "limit", Pods: 20, Evictions: 20, Seconds: 10}
	g.Expect(judge(options{}, load{drained: 1}, []sample{limit, good})).To(BeEmpty())
	g.Expect(judge(options{maxRatio: 1.05}, load{drained: 1}, []sample{limit, good})).To(HaveLen(1))
	g.Expect(judge(options{maxRatio: 1.2}, load{drained: 1}, []sample{limit, good})).To(BeEmpty())
	refused := good
	refused.Evictions, refused.Refused = 21, 1
	g.Expect(judge(options{}, load{drained: 1}, []sample{good, refused})).To(HaveLen(2))
	again := good
	again.Evictions = 25
	g.Expect(judge(options{}, load{drained: 3}, []sample{again})).To(BeEmpty())
}

// A candidate that did not run has no figures.
func TestAbsentCandidates(t *testing.T) {
	g := NewWithT(t)
	r := &result{Candidates: []candidate{limitCandidate, capnmCandidate, kubectlCandidate, capiCandidate}, Samples: []sample{{Candidate: "limit", Seconds: 10}}}
	content := r.flat()
	g.Expect(content).To(HaveKeyWithValue("limit_seconds", 10.0))
	g.Expect(content).To(HaveKeyWithValue("absent", []string{"capnm", "kubectl", "capi"}))
	for _, key := range []string{"capi_seconds", "capi_evictions", "capi_refused", "ratio", "evacuating_ratio"} {
		g.Expect(content).NotTo(HaveKey(key))
	}
}

// Our time is compared with each limit that ran.
func TestRatios(t *testing.T) {
	g := NewWithT(t)
	samples := []sample{{Candidate: "limit", Seconds: 10}, {Candidate: "evacuating", Seconds: 12}, {Candidate: "capnm", Seconds: 15}}
	content := newResult(scenario{}, load{}, nil, options{}, samples).flat()
	g.Expect(content).To(HaveKeyWithValue("ratio", 1.5))
	g.Expect(content).To(HaveKeyWithValue("evacuating_ratio", 1.25))
}

func TestMedian(t *testing.T) {
	g := NewWithT(t)
	g.Expect(median(nil)).To(BeZero())
	g.Expect(median([]float64{3, 1, 2})).To(Equal(2.0))
	g.Expect(median([]float64{4, 1})).To(Equal(2.5))
}

func TestScaled(t *testing.T) {
	g := NewWithT(t)
	l, err := rolloutLoad.scaled(options{nodes: 4})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(l.drained).To(Equal(4), "a rollout replaces all nodes")
	l, err = drainLoad.scaled(options{nodes: 3, podsPerNode: 6})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect([]int{l.pods(), l.podsPerApp(), l.drained}).To(Equal([]int{18, 18, 1}))
	_, err = ordersLoad.scaled(options{podsPerNode: 6})
	g.Expect(err).To(MatchError(ContainSubstring("evenly")))
	_, err = nodesLoad.scaled(options{nodes: 4})
	g.Expect(err).To(MatchError(ContainSubstring("can't be drained")))
}

// Each budget is matched with the evictions of its Pods.
func TestUnusedIn(t *testing.T) {
	g := NewWithT(t)
	of := func(name string, from, to int) controlplane.Event {
		event := call(from, to)
		event.Namespace, event.Name = "default", name
		return event
	}
	seen := rooms{
		{Namespace: "default", Name: "web-000"}: {{at(0), 1}, {at(12), 0}, {at(100), 1}},
		{Namespace: "default", Name: "web-001"}: {{at(0), 1}, {at(12), 0}, {at(200), 1}},
	}
	evictions := controlplane.Events{of("web-000-x", 10, 15), of("web-001-x", 10, 15), of("web-000-y", 105, 110), of("web-001-y", 207, 210)}
	g.Expect(unusedIn(seen, evictions)).To(ConsistOf(idle{5 * time.Millisecond, true}, idle{7 * time.Millisecond, true}))
}

func TestQuantile(t *testing.T) {
	g := NewWithT(t)
	g.Expect(quantile(nil, 0.99)).To(BeZero())
	g.Expect(quantile([]float64{5, 1, 3}, 0.5)).To(Equal(3.0))
	g.Expect(quantile([]float64{5, 1, 3}, 0.99)).To(Equal(5.0))
	g.Expect(quantile([]float64{7}, 0)).To(Equal(7.0))
}

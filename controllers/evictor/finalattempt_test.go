package evictor

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/signals"
)

func TestFinalAttempt(t *testing.T) {
	at := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	pod := podNamed("web", "")
	pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](5)
	e := evacuation.New(pod, nil, 0)
	e.UID, e.CreationTimestamp = "evacuation", metav1.NewTime(now)
	evacuation.Request(e)
	drain := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "drain"}}
	drain.Spec.Stage, drain.Spec.Evacuation.DrainTimeoutSeconds = v1alpha1.StageDrain, ptr.To[int32](200)
	drain.Spec.NodeSelector = v1alpha1.SelectNodes("one")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: corev1.NodeSpec{Unschedulable: true}}
	drain.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(now)}}
	drain.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "one"}}}
	drain.Status.DrainTimeout = &v1alpha1.DrainTimeoutStatus{Deadline: metav1.NewTime(at(200)), ObservedTime: metav1.NewTime(now)}
	refused := func(b *backoffs, at time.Time) {
		b.refuse(pod, evacuation.Refusal{Reason: v1alpha1.ReasonDisruptionBudgetRefused}, 0, at)
		b.until["web"] = now.Add(260 * time.Second)
	}
	denied := func(b *backoffs, version string) {
		before := pod.DeepCopy()
		before.ResourceVersion = version
		b.refuse(before, evacuation.Refusal{Reason: v1alpha1.ReasonWebhookRefused, RetryAfter: time.Minute}, 0, at(20))
	}
	for _, tc := range []struct {
		name    string
		backOff func(*backoffs)
		now     int
		evicted bool
		next    int
	}{
		{"E36: waits for Nodes that are about to be cordoned", nil, 20, false, 30},
		{"E52: does not wait for Nodes that are about to be cordoned at the final eviction attempt", nil, 165, true, 0},
		{"E52: a backoff ends at the final eviction attempt", func(b *backoffs) { refused(b, at(127)) }, 164, false, 165},
		{"E52: makes the final eviction attempt regardless of the backoff", func(b *backoffs) { refused(b, at(127)) }, 165, true, 0},
		{"E52: makes it regardless of the backoff of requests without a response", func(b *backoffs) { b.fail("web", at(260), at(127)) }, 165, true, 0},
		{"E52: makes it once", func(b *backoffs) { refused(b, at(165)) }, 170, false, 260},
		{"E65: waits as long as a webhook asks for", func(b *backoffs) { denied(b, pod.ResourceVersion) }, 30, false, 80},
		{"E65: does not wait after a change of the Pod", func(b *backoffs) { denied(b, "earlier") }, 30, true, 0},
		{"E38: does not evict a Pod again whose eviction was accepted", func(b *backoffs) { b.backOff("web", at(190)) }, 170, false, 190},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			requested := e.DeepCopy()
			if tc.backOff == nil && tc.evicted {
				requested.CreationTimestamp = metav1.NewTime(at(tc.now - 1))
			}
			p := passOver(t, at(tc.now), onePod{pod: pod}, requested, drain.DeepCopy(), node.DeepCopy())
			if p.cordoning = tc.backOff == nil; !p.cordoning {
				tc.backOff(p.state.backoffs)
			}
			candidates, err := p.collect(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(candidates).To(HaveLen(map[bool]int{true: 1}[tc.evicted]))
			if !tc.evicted {
				g.Expect(p.nextTry).To(BeTemporally("==", at(tc.next)))
			}
		})
	}
}

func TestWaitingAtFinalAttempt(t *testing.T) {
	pod := podNamed("web", "")
	pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](10)
	drain := func(ends time.Duration) evacuation.Terms {
		return evacuation.Terms{Timeouts: []evacuation.Timeout{{Start: now.Add(-time.Hour), Ends: now.Add(ends), Observed: now.Add(-time.Hour)}}}
	}
	found := map[types.UID]string{pod.UID: "one"}
	for _, tc := range []struct {
		name     string
		terms    evacuation.Terms
		waiting  bool
		reserved bool
		stale    bool
		pass     func(*pass, *v1alpha1.Evacuation)
		want     map[types.UID]string
		next     time.Time
	}{
		{name: "a drain without a timeout has no Pods that wait at their final eviction attempt, and no pass for one", waiting: true},
		{
			name: "the next pass is at the final eviction attempt of a Pod that waits for its budget", terms: drain(time.Minute), waiting: true,
			next: now.Add(20 * time.Second),
		},
		{name: "finds a Pod waiting at its final eviction attempt", terms: drain(40 * time.Second), waiting: true, want: found},
		{name: "finds a Pod waiting after an outage of all managers", terms: drain(-time.Minute), waiting: true, want: found},
		{
			name: "does not find a Pod waiting whose budget allows a disruption that an eviction in flight uses", terms: drain(40 * time.Second), waiting: true,
			reserved: true,
		},
		{
			name: "does not find a Pod waiting while evictions of its budget run, or the watch has not delivered them", terms: drain(40 * time.Second),
			waiting: true, stale: true,
		},
		{name: "does not find a Pod waiting that it evicts", terms: drain(40 * time.Second)},
		{
			name: "does not find a Pod waiting whose eviction is in flight", terms: drain(40 * time.Second),
			pass: func(p *pass, _ *v1alpha1.Evacuation) { p.state.inFlight.begin(budgets.PodOf(pod), now) },
		},
		{
			name: "finds a Pod waiting whose signal is in flight", terms: drain(40 * time.Second), want: found,
			pass: func(p *pass, _ *v1alpha1.Evacuation) {
				p.state.inFlight.begin(budgets.PodOf(pod), now)
				p.state.signals.begin(signals.Pod{UID: pod.UID}, "BudgetExhausted", now)
			},
		},
		{
			name: "finds a Pod waiting whose replacements return", terms: drain(40 * time.Second), want: found,
			pass: func(_ *pass, e *v1alpha1.Evacuation) {
				e.Annotations = map[string]string{v1alpha1.EvacuateAfterAnnotation: now.Add(time.Minute).Format(time.RFC3339)}
			},
		},
	} {
		t.Run("M96: "+tc.name, func(t *testing.T) {
			g := NewWithT(t)
			e := evacuation.New(pod, nil, 0)
			e.CreationTimestamp = metav1.NewTime(now.Add(-time.Minute))
			evacuation.Request(e)
			p := passOver(t, now, onePod{pod: pod}, drainOf("one"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: corev1.NodeSpec{Unschedulable: true}})
			if tc.pass != nil {
				tc.pass(p, e)
			}
			g.Expect(p.client.Create(t.Context(), e)).To(Succeed())
			_, err := p.collect(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			p.terms, p.nextTry = map[string]evacuation.Terms{"one": tc.terms}, time.Time{}
			var waiting []budgets.Waiting
			if tc.waiting {
				waiting = []budgets.Waiting{{
					Candidate: budgets.Candidate{Pod: budgets.PodOf(pod)}, Reason: budgets.BudgetExhausted, Reserved: tc.reserved, Stale: tc.stale,
				}}
			}
			got := p.waitingAtFinalAttempt(t.Context(), waiting)
			g.Expect(got).To(HaveLen(len(tc.want)))
			for uid, node := range tc.want {
				g.Expect(got).To(HaveKeyWithValue(uid, node))
			}
			g.Expect(p.nextTry).To(Equal(tc.next))
		})
	}
}

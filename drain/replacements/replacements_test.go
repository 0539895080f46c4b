package replacements_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/replacements"
)

var start = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// drain is a drain of Node one that evicts each Pod when it may.
type drain struct {
	records, others []v1alpha1.ReplacementStatus
	now             time.Time
	skew            time.Duration // of the workload cluster's clock
	pods            int
	evicted         []time.Duration // since start
	returned        []string
}

// appear has the controllers create a Pod each. They return when all are evicted.
func (d *drain) appear(controllers ...string) {
	var pods []replacements.Pod
	for _, controller := range controllers {
		d.pods++
		pods = append(pods, replacements.Pod{
			UID: types.UID(fmt.Sprint(d.pods)), Created: metav1.NewTime(d.now.Add(d.skew).Truncate(time.Second)), Node: "one", Controller: controller,
		})
	}
	decision := d.decide(pods...)
	d.records = decision.Records
	for _, record := range decision.Returned {
		d.returned = append(d.returned, record.Controller)
	}
	if len(pods) == 1 { // the manager restarts before it has created the Evacuation
		if again := d.decide(pods...); again.Changed || !again.After[pods[0].UID].Equal(decision.After[pods[0].UID]) {
			panic("a restart changes the schedule")
		}
	}
	for _, pod := range pods {
		at := d.now
		if after, deferred := decision.After[pod.UID]; deferred {
			at = after
		}
		d.evicted = append(d.evicted, at.Sub(start))
		if d.now.Before(at) {
			d.now = at
		}
	}
}

func (d *drain) decide(pods ...replacements.Pod) replacements.Decision {
	live := sets.New[types.UID]()
	for _, pod := range pods {
		live.Insert(pod.UID)
	}
	return replacements.Decide(replacements.Observation{Records: d.records, Others: d.others, Nodes: sets.New("one"), Pods: pods, Live: live, Now: d.now})
}

func TestDecide(t *testing.T) {
	t.Run("R44: evicts the first replacement at once, the next ones after 20 s, doubling to 5 min", func(t *testing.T) {
		g := NewWithT(t)
		d := &drain{now: start}
		for range 8 {
			d.appear("web")
		}
		g.Expect(d.evicted).To(Equal([]time.Duration{
			0, 20 * time.Second, time.Minute, 140 * time.Second, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 20 * time.Minute,
		}))
		g.Expect(d.returned).To(Equal([]string{"web"}), "once")
		g.Expect(d.records).To(HaveLen(1))
		g.Expect(d.records[0].Evictions).To(BeEquivalentTo(7), "the last Pod still exists")
		g.Expect(d.decide().Records[0].Evictions).To(BeEquivalentTo(8))
		g.Expect(d.records[0].FirstEvictionTime.Time).To(Equal(start))
	})
	t.Run("R44: does not defer the first Pods of a controller, however many there are", func(t *testing.T) {
		g := NewWithT(t)
		d := &drain{now: start}
		d.appear("web", "web", "db", "web")
		g.Expect(d.evicted).To(Equal([]time.Duration{0, 0, 0, 0}))
		g.Expect(d.returned).To(BeEmpty())
	})
	t.Run("R44: evicts replacements that wait at the same time at the same time", func(t *testing.T) {
		g := NewWithT(t)
		d := &drain{now: start}
		d.appear("web", "web", "web")
		d.appear("web", "web", "web")
		g.Expect(d.evicted).To(Equal([]time.Duration{0, 0, 0, 20 * time.Second, 20 * time.Second, 20 * time.Second}))
		g.Expect(d.decide().Records[0].Evictions).To(BeEquivalentTo(2))
	})
	t.Run("R44: evicts a replacement at once that returns after the backoff", func(t *testing.T) {
		g := NewWithT(t)
		d := &drain{now: start}
		d.appear("web")
		d.now = start.Add(time.Hour)
		d.appear("web")
		g.Expect(d.evicted).To(Equal([]time.Duration{0, time.Hour}))
	})
	t.Run("R44: evicts older Pods of a controller with its newest one", func(t *testing.T) {
		g := NewWithT(t)
		d := &drain{now: start}
		d.appear("web")
		older := replacements.Pod{UID: "older", Created: metav1.NewTime(start.Add(-time.Second)), Node: "one", Controller: "web"}
		decision := d.decide(older)
		g.Expect(decision.After).To(BeEmpty())
		g.Expect(decision.Records[0].EvictionTime.Time).To(Equal(start))
	})
	t.Run("R44: counts only evictions that were made", func(t *testing.T) {
		g := NewWithT(t)
		d := &drain{now: start}
		pod := func(name string, after time.Duration) replacements.Pod {
			return replacements.Pod{UID: types.UID(name), Created: metav1.NewTime(start.Add(after)), Node: "one", Controller: "web"}
		}
		expect := func(evictions int, why string) {
			g.Expect(d.records[0].Evictions).To(BeEquivalentTo(evictions), why)
		}
		d.records = d.decide(pod("a", 0)).Records
		expect(0, "the Pod waits for its budget")
		d.now = start.Add(time.Hour)
		d.records = d.decide(pod("a", 0)).Records
		expect(0, "the Pod still waits")
		d.records = d.decide().Records
		expect(1, "the Pod is gone")
		d.records = d.decide().Records
		expect(1, "it counts once")
		decision := d.decide(pod("b", time.Hour))
		g.Expect(decision.Returned).To(HaveLen(1))
		g.Expect(decision.After).To(BeEmpty())
		d.records = decision.Records
		d.now = d.now.Add(time.Second)
		d.records = d.decide(pod("c", time.Hour+time.Second)).Records
		expect(2, "the next one is deferred")
		d.records = d.decide().Records
		expect(2, "another actor has deleted it before")
		decision = d.decide(pod("d", time.Hour+2*time.Second))
		g.Expect(decision.After).To(HaveKeyWithValue(types.UID("d"), start.Add(time.Hour+40*time.Second)))
		d.records = decision.Records
		d.now = start.Add(time.Hour + 41*time.Second)
		d.records = d.decide().Records
		expect(3, "it was evicted")
	})
	t.Run("R44: counts the evictions of other maintenances of the Node", func(t *testing.T) {
		g := NewWithT(t)
		other := &drain{now: start}
		other.appear("web")
		d := &drain{now: start, others: other.records, pods: other.pods}
		d.appear("web")
		g.Expect(d.evicted).To(Equal([]time.Duration{20 * time.Second}))
	})
	t.Run("R44: drops the records of Nodes that are not selected any more", func(t *testing.T) {
		g := NewWithT(t)
		d := &drain{now: start, records: []v1alpha1.ReplacementStatus{{Node: "two", Controller: "web", Evictions: 5}}}
		decision := d.decide()
		g.Expect(decision.Records).To(BeEmpty())
		g.Expect(decision.Changed).To(BeTrue())
	})
	t.Run("R44: controllers beyond the limit of records share one", func(t *testing.T) {
		g := NewWithT(t)
		d := &drain{now: start}
		for i := range 200 {
			d.appear(fmt.Sprintf("web-%d", i))
		}
		g.Expect(d.records).To(HaveLen(128))
		g.Expect(d.records[127].Node).To(BeEmpty())
		g.Expect(slices.Max(d.evicted)).To(BeNumerically(">", time.Hour))
		g.Expect(replacements.Find(d.records, replacements.Pod{Node: "one", Controller: "web-199"})).To(Equal(&d.records[127]))
		g.Expect(replacements.Find(d.records, replacements.Pod{Node: "one", Controller: "web-0"}).Controller).To(Equal("web-0"))
	})
}

func TestStorm(t *testing.T) {
	t.Run("R44: evicts a Pod that returns at once at most 3 times in 40 s, whatever the time in the workload cluster", func(t *testing.T) {
		rapid.Check(t, func(r *rapid.T) {
			d := &drain{now: start.Add(time.Duration(rapid.IntRange(0, 999).Draw(r, "ms")) * time.Millisecond)}
			d.skew = time.Duration(rapid.IntRange(-600_000, 600_000).Draw(r, "skew")) * time.Millisecond
			for range 20 {
				d.appear("web")
				d.now = d.now.Add(time.Duration(rapid.IntRange(0, 30_000).Draw(r, "later")) * time.Millisecond)
			}
			for i := range d.evicted[3:] {
				if d.evicted[i+3]-d.evicted[i] < 40*time.Second {
					r.Fatalf("%s", d.evicted)
				}
			}
		})
	})
}

func TestCordonedAt(t *testing.T) {
	t.Run("R44, R55: a Pod that was scheduled to a Node before the turn of the Node is not created after its cordon", func(t *testing.T) {
		g, node := NewWithT(t), &corev1.Node{}
		created := func(at time.Time) bool {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(at)}}
			return replacements.CreatedAfterCordon(pod, node, replacements.CordonedAt(node, start))
		}
		g.Expect(created(start)).To(BeTrue(), "it is not known yet when the Node was cordoned")
		node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, TimeAdded: &metav1.Time{Time: start.Add(time.Hour)}}}
		g.Expect(created(start.Add(time.Hour - time.Second))).To(BeFalse())
		g.Expect(created(start.Add(time.Hour))).To(BeTrue())
		node.Spec.Taints[0].TimeAdded.Time = start.Add(-time.Hour)
		g.Expect(created(start.Add(-time.Minute))).To(BeTrue(), "a user has cordoned the Node before")
	})
}

func TestCreatedAfterCordon(t *testing.T) {
	cordoned := func(at time.Time) []corev1.Taint {
		return []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule, TimeAdded: &metav1.Time{Time: at}}}
	}
	for _, tc := range []struct {
		name    string
		created time.Time
		taints  []corev1.Taint
		want    bool
	}{
		{name: "R44: a Pod from before the drain", created: start.Add(-time.Second)},
		{name: "R44: a Pod of the second in which the drain starts", created: start, want: true},
		{name: "R44: a Pod from between cordon and drain", created: start.Add(-time.Minute), taints: cordoned(start.Add(-time.Hour)), want: true},
		{name: "R44: a Pod from before the cordon", created: start.Add(-2 * time.Hour), taints: cordoned(start.Add(-time.Hour))},
		{name: "R44: a taint that is newer than the drain", created: start.Add(time.Minute), taints: cordoned(start.Add(time.Hour)), want: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(tc.created)}}
			node := &corev1.Node{Spec: corev1.NodeSpec{Taints: tc.taints}}
			NewWithT(t).Expect(replacements.CreatedAfterCordon(pod, node, start.Add(300*time.Millisecond))).To(Equal(tc.want))
		})
	}
}

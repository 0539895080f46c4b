package machinedrain_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// pacing returns a policy with nextDrain: WhenReplaced and a limit of 600 s, and its recent drains.
func pacing(recent ...v1alpha1.RecentDrain) *v1alpha1.MachineDrainPolicy {
	policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Name: "all"}}
	policy.Spec.NextDrain, policy.Spec.ReplacementTimeoutSeconds = v1alpha1.NextDrainWhenReplaced, ptr.To[int32](600)
	policy.Status.RecentDrains = recent
	return policy
}

// recent returns a drain of Machine a in Cluster c1 that has ended at a second, and what became of its Pods when they were last read.
func recent(end int, pods v1alpha1.EvictedPods, changes ...func(*v1alpha1.RecentDrain)) v1alpha1.RecentDrain {
	drain := v1alpha1.RecentDrain{MachineUID: "uid-a", Machine: "a", Cluster: "c1", DrainOutcome: v1alpha1.DrainOutcome{
		EndTime: metav1.NewTime(after(end)), ReadTime: ptr.To(metav1.NewTime(after(end + 1))), Pods: pods,
	}}
	if pods.Evicted > pods.Ready+pods.NotNeeded {
		drain.Applications = []v1alpha1.EvictedApplication{{Controller: "Deployment shop/web", Pods: pods}}
	}
	for _, change := range changes {
		change(&drain)
	}
	return drain
}

// released returns the drain of Machine a as this process remembers it, on a Node in a zone.
func released(end int, zone string) machinedrain.EndedDrain {
	m := inDeletion("a")
	m.UID = "uid-a"
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"zone": zone}}}
	return *machinedrain.ReleasedNow(&m, pacing(), node, v1alpha1.ReasonMachineDrained, after(end))
}

func TestReplacing(t *testing.T) {
	pending, ready := v1alpha1.EvictedPods{Evicted: 2, Ready: 1, Pending: 1}, v1alpha1.EvictedPods{Evicted: 2, Ready: 2}
	bare := func(drain *v1alpha1.RecentDrain) { drain.Applications[0].Controller = "Pod shop/bare" }
	for _, test := range []struct {
		name   string
		policy *v1alpha1.MachineDrainPolicy
		known  []machinedrain.EndedDrain
		all    []machinedrain.Contender
		at     int
		counts bool
	}{
		{name: "M155: counts while a Pod is Pending", policy: pacing(recent(100, pending)), at: 200, counts: true},
		{name: "M155: while a Pod is not ready", policy: pacing(recent(100, v1alpha1.EvictedPods{Evicted: 1, NotReady: 1})), at: 200, counts: true},
		{
			name: "M155: while a controller has not replaced a Pod", at: 200, counts: true,
			policy: pacing(recent(100, v1alpha1.EvictedPods{Evicted: 1, NotReplaced: 1})),
		},
		{name: "M155: while a Pod could not be read", policy: pacing(recent(100, v1alpha1.EvictedPods{Evicted: 1, Unknown: 1})), at: 200, counts: true},
		{
			name: "M155: while the outcome has not been read", at: 200, counts: true,
			policy: pacing(recent(100, pending, func(drain *v1alpha1.RecentDrain) { drain.ReadTime = nil })),
		},
		{name: "M155: not when all Pods are replaced by ready ones", policy: pacing(recent(100, ready)), at: 200},
		{name: "M155: not for Pods that are not wanted any more", policy: pacing(recent(100, v1alpha1.EvictedPods{Evicted: 1, NotNeeded: 1})), at: 200},
		{name: "M155: not for a Pod without a controller", policy: pacing(recent(100, v1alpha1.EvictedPods{Evicted: 1, NotReplaced: 1}, bare)), at: 200},
		{
			name: "M155: not for a drain that has evicted no Pod, before it is read", at: 200,
			policy: pacing(recent(100, v1alpha1.EvictedPods{}, func(drain *v1alpha1.RecentDrain) { drain.ReadTime = nil })),
		},
		{name: "M155: until the limit", policy: pacing(recent(100, pending)), at: 699, counts: true},
		{name: "M155: and no longer", policy: pacing(recent(100, pending)), at: 700},
		{name: "M66, M155: no longer if the clock was set back", policy: pacing(recent(1000, pending)), at: 100},
		{name: "M155: not in another Cluster", policy: pacing(recent(100, pending, func(drain *v1alpha1.RecentDrain) { drain.Cluster = "c2" })), at: 200},
		{
			name: "M155: counts once while its Machine has not been released", at: 200,
			policy: pacing(recent(100, pending)), all: []machinedrain.Contender{inDrain(contender("a", 1))},
		},
		{name: "M155: counts before the status has it", policy: pacing(), known: []machinedrain.EndedDrain{released(100, "x")}, at: 200, counts: true},
		{name: "M155: until the limit, too", policy: pacing(), known: []machinedrain.EndedDrain{released(100, "x")}, at: 700},
		{name: "M155: the status decides when it has it", policy: pacing(recent(100, ready)), known: []machinedrain.EndedDrain{released(100, "x")}, at: 200},
		{
			name: "M155: counts once if both have it", policy: pacing(recent(100, pending)), known: []machinedrain.EndedDrain{released(90, "x"), released(100, "x")},
			at: 200, counts: true,
		},
		{
			name: "M127, M155: not for another policy", known: []machinedrain.EndedDrain{released(100, "x")}, at: 200,
			policy: func() *v1alpha1.MachineDrainPolicy { p := pacing(); p.Name = "other"; return p }(),
		},
		{
			name: "M155: not with nextDrain Immediately", known: []machinedrain.EndedDrain{released(100, "x")}, at: 200,
			policy: func() *v1alpha1.MachineDrainPolicy {
				p := pacing(recent(100, pending))
				p.Spec.NextDrain = v1alpha1.NextDrainImmediately
				return p
			}(),
		},
		{name: "M155: not without a policy", known: []machinedrain.EndedDrain{released(100, "x")}, at: 200},
	} {
		t.Run(test.name, func(t *testing.T) {
			g, now := NewWithT(t), after(test.at)
			replacing := machinedrain.Replacing(test.policy, "c1", test.known, test.all, now)
			if !test.counts {
				g.Expect(replacing).To(BeEmpty())
				return
			}
			g.Expect(replacing).To(HaveLen(1))
			g.Expect(machinedrain.TurnOf(of("all", contender("z", 9)), replacing, 1, now).Now()).To(BeFalse())
			g.Expect(machinedrain.TurnOf(of("all", contender("z", 9)), replacing, 2, now).Now()).To(BeTrue())
		})
	}
	waits := func(timeout int) machinedrain.Contender {
		m := inDeletion("z")
		m.DeletionTimestamp, m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To(metav1.NewTime(after(0))), ptr.To(int32(timeout))
		return of("all", machinedrain.ContenderOf(&m))
	}
	t.Run("M37, M155: a Machine that waits is overdue when its drain timeout has passed since the end of the last drain", func(t *testing.T) {
		g, replacing := NewWithT(t), machinedrain.Replacing(pacing(recent(100, pending)), "c1", nil, nil, after(101))
		g.Expect(machinedrain.TurnOf(waits(60), replacing, 1, after(159)).Now()).To(BeFalse())
		g.Expect(machinedrain.TurnOf(waits(60), replacing, 1, after(160)).Now()).To(BeTrue())
	})
	t.Run("M132, M155: if the Pods are not replaced within a minute, the Nodes that wait become schedulable", func(t *testing.T) {
		g, replacing := NewWithT(t), machinedrain.Replacing(pacing(recent(100, pending)), "c1", nil, nil, after(101))
		g.Expect(machinedrain.TurnOf(waits(0), replacing, 1, after(159)).Stalled).To(BeFalse())
		g.Expect(machinedrain.TurnOf(waits(0), replacing, 1, after(160)).Stalled).To(BeTrue())
	})
	t.Run("M133, M155: turnPatienceSeconds does not end the wait", func(t *testing.T) {
		g, replacing := NewWithT(t), machinedrain.Replacing(pacing(recent(100, pending)), "c1", nil, nil, after(101))
		g.Expect(machinedrain.TurnOf(impatient(waits(0)), replacing, 1, after(650)).Now()).To(BeFalse())
	})
	t.Run("M154, M155: counts in the zone of its Node, or, after a restart of the manager, in a separate one", func(t *testing.T) {
		g, now := NewWithT(t), after(200)
		replacing := machinedrain.Replacing(pacing(recent(100, pending)), "c1", []machinedrain.EndedDrain{released(100, "x")}, nil, now)
		g.Expect(machinedrain.TurnOf(inZone("x", waits(0)), replacing, 0, now).Now()).To(BeTrue())
		g.Expect(machinedrain.TurnOf(inZone("y", waits(0)), replacing, 0, now).Now()).To(BeFalse())
		replacing = machinedrain.Replacing(pacing(recent(100, pending)), "c1", nil, nil, now)
		g.Expect(machinedrain.TurnOf(inZone("x", waits(0)), replacing, 0, now).Now()).To(BeFalse())
	})
	t.Run("M120, M155: the condition names the Machine and the end of the wait", func(t *testing.T) {
		g, now := NewWithT(t), after(200)
		replacing := machinedrain.Replacing(pacing(recent(100, pending)), "c1", []machinedrain.EndedDrain{released(100, "x")}, nil, now)
		suffix := "The drain of Machine a has ended, and counts until its Pods are replaced by ready ones, until " +
			after(700).UTC().Format(time.RFC3339) + " at the latest (nextDrain)"
		both := append(slices.Clone(replacing), began(contender("b", 1), 150))
		g.Expect(machinedrain.TurnOf(waits(0), replacing, 1, now).Message("c1")).To(HaveSuffix("allows 1), 0 waiting longer. " + suffix))
		g.Expect(machinedrain.TurnOf(waits(0), both, 2, now).Message("c1")).To(HaveSuffix(
			"allows 2), 0 waiting longer. Machine b has been draining for the longest time: see its condition. " + suffix))
		g.Expect(machinedrain.TurnOf(inZone("y", waits(0)), replacing, 0, now).Message("c1")).To(HaveSuffix(
			"to be drained: x. This Node is in y (maxParallelDrainsPerTopology allows 1). " + suffix))
	})
}

func TestReleased(t *testing.T) {
	drained := func(changes ...func(*clusterv1.Machine)) *clusterv1.Machine {
		m := inDeletion("a")
		m.Annotations, m.Status.Conditions = nil, []metav1.Condition{{
			Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonMachineDrained, LastTransitionTime: metav1.NewTime(after(100)),
		}}
		for _, change := range changes {
			change(&m)
		}
		return &m
	}
	for _, test := range []struct {
		name   string
		change func(*clusterv1.Machine)
		counts bool
	}{
		{"M155: after a restart, a Machine that was drained and still exists counts", func(*clusterv1.Machine) {}, true},
		{"M155: and one that timed out", func(m *clusterv1.Machine) { m.Status.Conditions[0].Reason = v1alpha1.ReasonTimedOut }, true},
		{"M155: not one that has the hook", func(m *clusterv1.Machine) { m.Annotations = map[string]string{v1alpha1.PreDrainHookAnnotation: ""} }, false},
		{"M155: not one that was not drained", func(m *clusterv1.Machine) { m.Status.Conditions[0].Reason = v1alpha1.ReasonSkipped }, false},
		{"M155: not one without a condition", func(m *clusterv1.Machine) { m.Status.Conditions = nil }, false},
		{"M155: not one that is not deleted", func(m *clusterv1.Machine) { m.DeletionTimestamp = nil }, false},
		{"M155: not one of the control plane", func(m *clusterv1.Machine) { m.Labels = map[string]string{clusterv1.MachineControlPlaneLabel: ""} }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := machinedrain.ReleasedBefore(drained(test.change)); (got != nil) != test.counts {
				t.Errorf("got %+v", got)
			}
		})
	}
	t.Run("M155: only what is drained or timed out under WhenReplaced is remembered", func(t *testing.T) {
		g, m, node := NewWithT(t), inDeletion("a"), &corev1.Node{}
		g.Expect(machinedrain.ReleasedNow(&m, pacing(), node, v1alpha1.ReasonTimedOut, after(0))).NotTo(BeNil())
		g.Expect(machinedrain.ReleasedNow(&m, pacing(), node, v1alpha1.ReasonSkipped, after(0))).To(BeNil())
		g.Expect(machinedrain.ReleasedNow(&m, nil, node, v1alpha1.ReasonMachineDrained, after(0))).To(BeNil())
		g.Expect(machinedrain.ReleasedNow(&m, &v1alpha1.MachineDrainPolicy{}, node, v1alpha1.ReasonMachineDrained, after(0))).To(BeNil())
		m.Labels = map[string]string{clusterv1.MachineControlPlaneLabel: ""}
		g.Expect(machinedrain.ReleasedNow(&m, pacing(), node, v1alpha1.ReasonMachineDrained, after(0))).To(BeNil())
	})
}

// TestPace drains Machines, whose Pods are replaced at last or never, while managers are restarted and the status of the policy has drains
// late or never. No more Machines drain or wait for replacements than the limit allows, and no Machine waits for a drain that has ended for
// longer than its limit.
func TestPace(t *testing.T) { // M155
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 2).Draw(t, "limit")
		type machine struct {
			machinedrain.Contender
			ended, replaced, recorded int // the seconds, 0 if that is not so
		}
		var all []*machine
		for i := range rapid.IntRange(2, 6).Draw(t, "machines") {
			all = append(all, &machine{Contender: of("all", contender(fmt.Sprint("m", i), int(after(i).Unix())))})
		}
		restarted := -1 // when the manager last was
		for now, idle := 10, 0; slices.ContainsFunc(all, func(m *machine) bool { return m.ended == 0 }); now += 10 {
			policy, known, counting := pacing(), []machinedrain.EndedDrain{}, 0
			var contenders []machinedrain.Contender
			for _, m := range all {
				isReplaced := m.replaced > 0 && now >= m.replaced
				switch {
				case m.ended == 0:
					contenders = append(contenders, m.Contender)
				case m.recorded > 0 && now >= m.recorded:
					pods := v1alpha1.EvictedPods{Evicted: 1, Pending: 1}
					if isReplaced {
						pods = v1alpha1.EvictedPods{Evicted: 1, Ready: 1}
					}
					policy.Status.RecentDrains = append(policy.Status.RecentDrains, recent(m.ended, pods, func(drain *v1alpha1.RecentDrain) {
						drain.MachineUID, drain.Machine = m.Name, m.Name
					}))
				case m.ended > restarted: // what became of its Pods is not known
					isReplaced, known = false, append(known, machinedrain.EndedDrain{UID: m.Name, Machine: m.Name, Policy: "all", End: after(m.ended)})
				default:
					isReplaced = true // lost: its Machine is gone, and the status does not have it
				}
				if m.ended > 0 && !isReplaced && now < m.ended+600 {
					counting++
				}
			}
			contenders = append(contenders, machinedrain.Replacing(policy, "c1", known, contenders, after(now))...)
			for _, m := range all {
				isDraining := m.Standing == machinedrain.HasTurn && m.ended == 0
				if isDraining {
					counting++
				}
			}
			before := counting
			for _, m := range all {
				if m.ended == 0 && m.Standing != machinedrain.HasTurn && machinedrain.TurnOf(m.Contender, contenders, limit, after(now)).Now() {
					m.Standing = machinedrain.HasTurn
					m.Began = after(now)
					counting++
				}
			}
			if counting > max(limit, before) {
				t.Fatalf("at %d, %d Machines have turns or wait for replacements, the limit is %d", now, counting, limit)
			}
			if idle++; counting > before || before > 0 {
				idle = 0
			}
			if idle > 1 {
				t.Fatalf("at %d, no Machine has a turn, and none begins", now)
			}
			for _, m := range all {
				if m.Standing == machinedrain.HasTurn && m.ended == 0 && rapid.Bool().Draw(t, "ends") {
					m.ended = now
					m.replaced = rapid.SampledFrom([]int{0, now, now + 50, now + 1000}).Draw(t, "replaced")
					m.recorded = rapid.SampledFrom([]int{0, now, now + 30}).Draw(t, "recorded")
				}
			}
			if rapid.IntRange(0, 9).Draw(t, "restart") == 0 {
				restarted = now
			}
		}
	})
}

func TestPaceMessage(t *testing.T) {
	t.Run("M155: Machines that are not next are not told, so that their conditions rarely change", func(t *testing.T) {
		all := machinedrain.Replacing(pacing(), "c1", []machinedrain.EndedDrain{released(100, "x")}, nil, after(101))
		for i := range 12 {
			all = append(all, of("all", contender(fmt.Sprint("m", i), i)))
		}
		if got := machinedrain.TurnOf(of("all", contender("z", 60)), all, 1, after(101)).Message("c1"); strings.Contains(got, "nextDrain") {
			t.Errorf("got %q: it changes whenever a drain ends", got)
		}
	})
}

package machinedrain_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// inZone returns the contender with a Node in a zone under a policy that limits zones to one. A Node in no zone does not have the label.
func inZone(zone string, c machinedrain.Contender) machinedrain.Contender {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"other": "label"}}}
	if zone != "" {
		node.Labels["zone"] = zone
	}
	c = c.On(node)
	c.Topology = v1alpha1.TopologyDrainLimit{Key: "zone", MaxDomains: 1}
	return c
}

// onUnreadNode returns the contender under this policy with a Node that was not read.
func onUnreadNode(c machinedrain.Contender) machinedrain.Contender {
	c = inZone("", c)
	return c.On(&corev1.Node{})
}

// inZones returns the contender under a policy that limits zones to a number.
func inZones(number int32, c machinedrain.Contender) machinedrain.Contender {
	c.Topology = v1alpha1.TopologyDrainLimit{Key: "zone", MaxDomains: number}
	return c
}

// impatient returns the contender under a policy with a patience of 100 s.
func impatient(c machinedrain.Contender) machinedrain.Contender {
	c.Patience = 100 * time.Second
	return c
}

func TestDomains(t *testing.T) {
	a, b, c, self := contender("a", 1), contender("b", 2), contender("c", 3), contender("z", 9)
	list := func(all ...machinedrain.Contender) []machinedrain.Contender { return all }
	for _, test := range []struct {
		name  string
		self  machinedrain.Contender
		all   []machinedrain.Contender
		limit int // maxParallelDrains
		at    int
		now   bool
	}{
		{"M154: permits a drain while no other one is in progress", inZone("x", self), nil, 0, 20, true},
		{"M154: permits it in the domain of the others", inZone("x", self), list(inZone("x", inDrain(a)), inZone("x", inDrain(b))), 0, 20, true},
		{"M154: does not permit it in another domain", inZone("y", self), list(inZone("x", inDrain(a))), 0, 20, false},
		{"M154: permits it in a second domain of two", inZones(2, inZone("y", self)), list(inZone("x", inDrain(a))), 0, 20, true},
		{
			"M154: and in none more", inZones(2, inZone("w", self)), list(inZone("x", inDrain(a)), inZone("y", inDrain(b))), 0, 20, false,
		},
		{
			"M154: makes a Machine in the domain of the others wait for an older one in another domain",
			inZone("x", self), list(inZone("x", inDrain(a)), inZone("y", b)), 0, 20, false,
		},
		{"M154: does not let it wait for a younger one", inZone("x", self), list(inZone("x", inDrain(a)), inZone("y", contender("b", 12))), 0, 20, true},
		{"M154: maxParallelDrains applies in the domain", inZone("x", self), list(inZone("x", inDrain(a)), inZone("x", inDrain(b))), 2, 20, false},
		{"M154: permits as many drains in the domain as maxParallelDrains does", inZone("x", self), list(inZone("x", inDrain(a))), 2, 20, true},
		{"M154: applies also while maxParallelDrains permits more", inZone("y", self), list(inZone("x", inDrain(a))), 2, 20, false},
		{"M154: a Node without the label shares its domain with no Node in one", inZone("", self), list(inZone("x", inDrain(a))), 0, 20, false},
		{"M154: nor with another one without the label", inZone("", self), list(inZone("", inDrain(a))), 0, 20, false},
		{"M154: a drained Node without the label counts as a domain", inZone("x", self), list(inZone("", inDrain(a))), 0, 20, false},
		{"M154: a Node without the label is drained when no other one is", inZone("", self), nil, 0, 20, true},
		{"M154: a Node that was not read shares its domain with none", onUnreadNode(self), list(onUnreadNode(inDrain(a))), 0, 20, false},
		{"M154: it is drained when no other one is", onUnreadNode(self), nil, 0, 20, true},
		{"M154: does not wait for a Machine that is held", inZone("x", self), list(inZone("x", inDrain(a)), inZone("y", held(b))), 0, 20, true},
		{"M154, M121: nor for one that has been blocked alone", inZone("x", self), list(inZone("x", inDrain(a)), inZone("y", blockedAlone(b))), 0, 20, true},
		{"M154: waits for one that has just been blocked", inZone("x", self), list(inZone("x", inDrain(a)), inZone("y", blocked(b))), 0, 20, false},
		{"M154, M37: gives an overdue Machine a turn in another domain", inZone("y", within(10, self)), list(inZone("x", began(a, 1))), 0, 20, true},
		{"M154, M37: not before", inZone("y", within(12, self)), list(inZone("x", began(a, 1))), 0, 20, false},
		{"M154, M37: not while another drain has just begun", inZone("y", within(10, self)), list(inZone("x", began(a, 15))), 0, 20, false},
		{
			"M154, M37: gives no overdue turn while an older one in a permitted domain begins now",
			inZone("y", within(10, self)), list(inZone("x", began(a, 1)), inZone("x", b)), 0, 20, false,
		},
		{
			"M154, M37: does, if the older one waits for its domain, too",
			inZone("y", within(10, self)), list(inZone("x", began(a, 1)), inZone("y", b)), 0, 20, true,
		},
		{"M154, M127: drains of another policy do not count", of("db", inZone("y", self)), list(of("web", inZone("x", inDrain(a)))), 0, 20, true},
		{"M154, M126: those of no policy do", of("db", inZone("y", self)), list(inZone("x", inDrain(a))), 0, 20, false},
		{
			"M154, M133: a drain that makes no progress for the patience does not count",
			impatient(inZone("y", self)), list(inZone("x", progressed(a, 100, 0))), 0, 200, true,
		},
		{"M154, M133: before, it does", impatient(inZone("y", self)), list(inZone("x", progressed(a, 100, 0))), 0, 199, false},
		{
			"M154, M133: its domain counts while another drain there makes progress",
			impatient(inZone("y", self)), list(inZone("x", progressed(a, 100, 0)), inZone("x", progressed(b, 190, 0))), 0, 200, false,
		},
		{
			"M154, M133: only one domain more at a time is permitted",
			impatient(inZone("w", self)), list(inZone("x", progressed(a, 100, 0)), inZone("y", progressed(b, 100, 0))), 0, 200, false,
		},
		{
			"M154, M133: none is, while the drains of another policy are in one more than it permits", impatient(of("db", inZone("y", self))),
			list(of("db", inZone("x", progressed(a, 100, 0))), of("web", inZone("x", inDrain(b))), of("web", inZone("y", inDrain(c)))), 0, 200, false,
		},
		{"M154: applies to no Machine of a policy without it", self, list(inZone("x", inDrain(a)), inZone("y", b)), 0, 20, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := machinedrain.TurnOf(test.self, test.all, test.limit, time.Unix(int64(test.at), 0)); got.Now() != test.now {
				t.Errorf("got %+v", got)
			}
		})
	}
	for _, test := range []struct {
		name string
		self machinedrain.Contender
		all  []machinedrain.Contender
		want string
	}{
		{
			"M120, M154: names the domains, and a Machine that drains in another domain", inZones(2, inZone("y", self)),
			list(inZone("y", began(a, 1)), inZone("x", began(b, 3)), inZone("w", began(c, 2))),
			"Waiting for Nodes of Cluster c1 in other domains of zone to be drained: w, x. This Node is in y (maxParallelDrainsPerTopology allows 2). " +
				"Machine c has been draining for the longest time: see its condition",
		},
		{
			"M120, M154: names a Machine ahead that cannot begin", inZone("y", self), list(inZone("x", blocked(a))),
			"Waiting for Nodes of Cluster c1 in other domains of zone to be drained: x. This Node is in y (maxParallelDrainsPerTopology allows 1). " +
				"Machine a has waited longer, and its drain cannot begin: see its condition",
		},
		{
			"M154: says that the Nodes do not have the label", inZone("", self), list(inZone("", began(a, 1))),
			"Waiting for Nodes of Cluster c1 in other domains of zone to be drained: Machine a. This Node does not have the label, and is a separate domain " +
				"(maxParallelDrainsPerTopology allows 1). Machine a has been draining for the longest time: see its condition",
		},
		{
			"M154: says that the Node could not be read", onUnreadNode(self), list(inZone("x", began(a, 1))),
			"Waiting for Nodes of Cluster c1 in other domains of zone to be drained: x. This Node could not be read, and counts as a separate domain " +
				"(maxParallelDrainsPerTopology allows 1). Machine a has been draining for the longest time: see its condition",
		},
		{
			"M154: names three domains", inZone("y", self),
			list(inZone("v", inDrain(a)), inZone("w", inDrain(a)), inZone("x", inDrain(a)), inZone("u", inDrain(a)), inZone("z", inDrain(a))),
			"in other domains of zone to be drained: u, v, w and 2 more. This Node is in y",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := machinedrain.TurnOf(test.self, test.all, 0, time.Unix(20, 0)).Message("c1"); !strings.Contains(got, test.want) {
				t.Errorf("got %q", got)
			}
		})
	}
}

func held(c machinedrain.Contender) machinedrain.Contender {
	c.Standing = machinedrain.Held
	return c
}

func TestRecordedDomains(t *testing.T) {
	zones := v1alpha1.TopologyDrainLimit{Key: "topology.kubernetes.io/zone", MaxDomains: 2}
	for name, spec := range map[string]v1alpha1.MachineDrainPolicySpec{
		"M126, M154: a Machine that waits records maxParallelDrainsPerTopology": {MaxParallelDrainsPerTopology: zones},
		"M126, M154: together with maxParallelDrains": {
			MaxParallelDrainsPerTopology: zones, MaxParallelDrains: ptr.To(intstr.FromString("25%")),
		},
		"M126, M154: or only the latter": {MaxParallelDrains: ptr.To(intstr.FromInt32(3))},
	} {
		t.Run(name, func(t *testing.T) {
			g, m, policy := NewWithT(t), inDeletion("one"), &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: spec}
			m.UID = "6a1ff5c1"
			clock := machinedrain.Clock{Waiting: ptr.To(after(0))}
			g.Expect(clock.RecordLimit(&m, policy)).To(BeTrue())
			g.Expect(clock.RecordLimit(&m, policy)).To(BeFalse())
			g.Expect(machinedrain.LimitOf(&m, nil)).To(Equal(machinedrain.LimitOf(&m, policy)))
			g.Expect(machinedrain.NeedsTurn(&m, policy, &corev1.Node{}, nil, time.Now())).To(BeTrue())
			g.Expect(machinedrain.NeedsTurn(&m, nil, &corev1.Node{}, nil, time.Now())).To(BeTrue())
			policy.Spec = v1alpha1.MachineDrainPolicySpec{}
			g.Expect(clock.RecordLimit(&m, policy)).To(BeTrue())
			g.Expect(machinedrain.NeedsTurn(&m, nil, &corev1.Node{}, nil, time.Now())).To(BeFalse())
		})
	}
	t.Run("M126, M154: an invalid record sets no limit", func(t *testing.T) {
		for _, record := range []string{"", "1", ",all,zone", ",all,zone=many"} {
			m := inDeletion("one")
			m.Annotations[v1alpha1.TurnLimitAnnotation] = record + "/"
			if limit := machinedrain.LimitOf(&m, nil); limit.IsSet() {
				t.Errorf("%q: got %+v", record, limit)
			}
		}
	})
}

// TestTurnsKeepTheDomains deletes Machines in zones, starts their drains, and removes them in any order. Their Nodes are never drained in
// more zones than the limit allows, nor more of them than maxParallelDrains allows, and while none is drained, another one may start. A
// Machine observes the others with a lag of up to a second. Each one starts at last if drains end, and none in the order of the requests
// passes another.
func TestTurnsKeepTheDomains(t *testing.T) { // M154
	rapid.Check(t, func(t *rapid.T) {
		zones, limit := rapid.Int32Range(1, 2).Draw(t, "zones"), rapid.IntRange(0, 3).Draw(t, "limit")
		now := time.Unix(1000, 0)
		var all []*lagging
		zoneOf := map[string]string{}
		view := func(lag time.Duration) (seen []machinedrain.Contender) {
			for _, m := range all {
				c := m.Contender
				if !m.started.IsZero() && !now.Add(-lag).Before(m.started) {
					c.Standing = machinedrain.HasTurn
				}
				if !now.Before(m.observed) {
					seen = append(seen, c)
				}
			}
			return seen
		}
		start := func(lag func() time.Duration) {
			for _, m := range all {
				if m.started.IsZero() && !now.Before(m.observed) && machinedrain.TurnOf(m.Contender, view(lag()), limit, now).Now() {
					m.started = now
				}
			}
		}
		check := func() {
			drained, count := map[string]bool{}, 0
			for _, m := range all {
				if !m.started.IsZero() {
					drained[zoneOf[m.Name]] = true
					count++
				}
			}
			if len(drained) > int(zones) || limit > 0 && count > limit {
				t.Fatalf("%d Nodes are drained in the zones %v, the limits are %d and %d", count, slices.Collect(maps.Keys(drained)), limit, zones)
			}
		}
		for i := range rapid.IntRange(100, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				zone := rapid.SampledFrom([]string{"x", "y", "w", ""}).Draw(t, "zone")
				c := inZones(zones, inZone(zone, machinedrain.Contender{
					Name: fmt.Sprintf("%c%03d", rapid.ByteRange('a', 'z').Draw(t, "name"), i), Requested: now.Truncate(time.Second),
				}))
				if zoneOf[c.Name] = zone; zone == "" {
					zoneOf[c.Name] = c.Name
				}
				all = append(all, &lagging{Contender: c, observed: now.Add(rapid.SampledFrom([]time.Duration{0, time.Second}).Draw(t, "lag"))})
			case 1:
				start(func() time.Duration {
					return rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second}).Draw(t, "lag")
				})
			case 2:
				if len(all) > 0 {
					gone := rapid.IntRange(0, len(all)-1).Draw(t, "deleted")
					all = slices.Delete(all, gone, gone+1)
				}
			case 3:
				now = now.Add(rapid.SampledFrom([]time.Duration{time.Millisecond, 100 * time.Millisecond, time.Second, 2 * time.Second}).Draw(t, "passes"))
			}
			check()
		}
		for now = now.Add(time.Minute); len(all) > 0; now = now.Add(time.Second) {
			start(func() time.Duration { return 0 })
			check()
			i := slices.IndexFunc(all, func(m *lagging) bool { return !m.started.IsZero() })
			if i < 0 {
				t.Fatalf("%d Machines wait, and none may start", len(all))
			}
			all = slices.Delete(all, i, i+1)
		}
	})
}

func TestDomainsOfNodes(t *testing.T) {
	t.Run("M154: the label of the Node decides, also while it is silent", func(t *testing.T) {
		m := inDeletion("one")
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"zone": "x"}}}
		policy := &v1alpha1.MachineDrainPolicy{Spec: v1alpha1.MachineDrainPolicySpec{MaxParallelDrainsPerTopology: v1alpha1.TopologyDrainLimit{Key: "zone"}}}
		all, _, err := machinedrain.Contenders([]clusterv1.Machine{m}, after(100), func(*clusterv1.Machine) (machinedrain.ObservedDrain, error) {
			return machinedrain.ObservedDrain{Node: node, Maintenance: draining(5), Policy: policy}, nil
		})
		g := NewWithT(t)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(machinedrain.TurnOf(inZone("x", contender("z", 1)), all, 0, after(1000)).Now()).To(BeTrue())
		g.Expect(machinedrain.TurnOf(inZone("y", contender("z", 1)), all, 0, after(1000)).Now()).To(BeFalse())
	})
}

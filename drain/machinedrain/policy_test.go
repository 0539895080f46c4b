package machinedrain_test

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// waiting returns a Machine of Cluster c that was deleted at a minute, and whose drain waits.
func waiting(name string, minute int, reason, message string) *clusterv1.Machine {
	m := machine(func(m *clusterv1.Machine) {
		m.Name, m.Spec.ClusterName = name, "c"
		m.Annotations = map[string]string{v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner}
		m.DeletionTimestamp = ptr.To(metav1.NewTime(deleted.Add(time.Duration(minute) * time.Minute)))
	})
	meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{
		Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: reason, Message: message,
	})
	return m
}

// blocking returns a NodeMaintenance that reports blocked Pods, with these reasons.
func blocking(why ...string) *v1alpha1.NodeMaintenance {
	m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "nm"}}
	node := v1alpha1.NodeMaintenanceNodeStatus{}
	for i, each := range why {
		node.Blocked = append(node.Blocked, v1alpha1.BlockedPod{Pod: fmt.Sprintf("shop/web-%d", i), Why: each})
	}
	m.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{node}
	return m
}

func TestWaitOf(t *testing.T) {
	const draining = v1alpha1.ReasonMachineDraining
	for _, tc := range []struct {
		name, reason, message string
		maintenance           *v1alpha1.NodeMaintenance
		want                  string
	}{
		{
			name: "M34: names the blocked Pods and the reason", reason: draining, message: "Drain not completed yet",
			maintenance: blocking("no disruptions allowed", "no disruptions allowed"), want: "Pods shop/web-0, shop/web-1: no disruptions allowed",
		},
		{
			name: "M34: leaves out the progress of the drain", reason: draining, message: "99 Pods evacuating", maintenance: blocking("no disruptions allowed"),
			want: "Pod shop/web-0: no disruptions allowed",
		},
		{
			name: "M34: names at most three reasons", reason: draining, maintenance: blocking("a", "b", "c", "d"),
			want: "Pod shop/web-0: a\nPod shop/web-1: b\nPod shop/web-2: c",
		},
		{name: "M34: leaves out a drain that nothing blocks", reason: draining, message: "7 Pods evacuating", maintenance: blocking()},
		{
			name: "M34: repeats the condition for other reasons", reason: v1alpha1.ReasonWaitingForWorkloadCluster, message: "Waiting for a connection",
			want: "Waiting for a connection",
		},
		{name: "M34: does not read text as blocked Pods", reason: v1alpha1.ReasonWaitingForTurn, message: "Waiting\n* shop/web", want: "Waiting\n* shop/web"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := waiting("m", 0, tc.reason, tc.message)
			var blockers []string
			if machinedrain.NeedsBlockers(m) {
				blockers = machinedrain.Blockers(tc.maintenance, nil)
			}
			got := machinedrain.WaitOf(m, blockers)
			if tc.want == "" {
				if got != nil {
					t.Errorf("got %v, want none", got)
				}
				return
			}
			if want := (&v1alpha1.DrainWait{Machine: "m", Cluster: "c", Since: *m.DeletionTimestamp, Reason: tc.reason, Message: tc.want}); !reflect.DeepEqual(got,
				want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
	t.Run("M34: lists the Machines by deletion", func(t *testing.T) {
		var all []clusterv1.Machine
		for i := range 3 {
			all = append(all, *waiting(fmt.Sprintf("m%d", i), 9-i, draining, "waiting"))
		}
		running := machine(func(m *clusterv1.Machine) { m.Spec.ClusterName = "c" })
		p := policy("p")
		var names []string
		for _, each := range machinedrain.TallyOf(&p, []v1alpha1.MachineDrainPolicy{p}, append(all, *running), map[string]map[string]string{"c": nil}).Draining {
			names = append(names, each.Name)
		}
		if got := strings.Join(names, " "); got != "m2 m1 m0" {
			t.Errorf("got %s", got)
		}
	})
	t.Run("M34: parses the selectors of policies once, and not for each Machine", func(t *testing.T) {
		policies := make([]v1alpha1.MachineDrainPolicy, 20)
		for i := range policies {
			policies[i] = policy(fmt.Sprintf("p%02d", i))
			policies[i].Spec.ClusterSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"policy": v1alpha1.LabelValue(policies[i].Name)}}
		}
		all := make([]clusterv1.Machine, 100)
		for i := range all {
			all[i] = *machine(func(m *clusterv1.Machine) { m.Spec.ClusterName = "c" })
		}
		clusters := map[string]map[string]string{"c": {"policy": "p19"}}
		if allocations := testing.AllocsPerRun(5, func() { machinedrain.TallyOf(&policies[19], policies, all, clusters) }); allocations > 2000 {
			t.Errorf("%g allocations for 100 Machines", allocations)
		}
		if tally := machinedrain.TallyOf(&policies[19], policies, all, clusters); tally.Machines != 100 {
			t.Errorf("got %+v", tally)
		}
	})
	t.Run("M34: bounds the message, whatever tenants write", rapid.MakeCheck(func(t *rapid.T) {
		reasons := rapid.SliceOfN(rapid.String(), 1, 400).Draw(t, "reasons")
		for i := range reasons {
			reasons[i] = strings.Repeat(reasons[i], rapid.IntRange(0, 400).Draw(t, "times"))
		}
		wait := machinedrain.WaitOf(waiting("m", 0, draining, rapid.String().Draw(t, "message")), machinedrain.Blockers(blocking(reasons...), nil))
		if wait == nil || wait.Message == "" || utf8.RuneCountInString(wait.Message) > 1024 {
			t.Fatalf("got %v", wait)
		}
	}))
}

func TestPoolsCondition(t *testing.T) { // M82
	g := NewWithT(t)
	policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Generation: 3}}
	policy.Spec.ClusterSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"drain": "yes"}}
	clusters := map[string]map[string]string{"a": {"drain": "yes"}, "b": nil}
	pool := func(cluster, name string, nodes int) clusterv1.MachinePool {
		p := clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{Name: name}}
		p.Spec.ClusterName, p.Status.NodeRefs = cluster, make([]corev1.ObjectReference, nodes)
		return p
	}
	long := strings.Repeat("long-", 20) + "name" // no valid label value: Cluster API labels the Machines with its hash
	machines := []clusterv1.Machine{
		{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{clusterv1.MachinePoolNameLabel: "with-machines"}}},
		{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{clusterv1.MachinePoolNameLabel: "hash_fVOsWg_z"}}},
	}
	pools := []clusterv1.MachinePool{
		pool("a", "with-machines", 1), pool("a", long, 1), pool("a", "empty", 0), pool("b", "not-selected", 1), pool("gone", "without-cluster", 1),
	}
	g.Expect(machinedrain.PoolsCondition(policy, pools, machines, clusters)).To(BeNil())

	condition := machinedrain.PoolsCondition(policy, append(pools, pool("a", "two", 2), pool("a", "one", 1)), machines, clusters)
	g.Expect(condition).NotTo(BeNil())
	g.Expect(condition.Status).To(Equal(metav1.ConditionFalse))
	g.Expect(condition.ObservedGeneration).To(BeEquivalentTo(3))
	g.Expect(condition.Message).To(ContainSubstring("no Machines for MachinePools: one, two."))
}

func TestPolicyFor(t *testing.T) {
	labelled := func(key string, value v1alpha1.LabelValue) *v1alpha1.LabelSelector {
		return &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{key: value}}
	}
	invalid := func(more ...v1alpha1.LabelSelectorRequirement) *v1alpha1.LabelSelector {
		return &v1alpha1.LabelSelector{
			MatchExpressions: append([]v1alpha1.LabelSelectorRequirement{{Key: "a", Operator: "in", Values: []v1alpha1.LabelValue{"b"}}}, more...),
		}
	}
	ofMachines := func(name string, selector *v1alpha1.LabelSelector) v1alpha1.MachineDrainPolicy {
		return policy(name, func(p *v1alpha1.MachineDrainPolicy) { p.Spec.MachineSelector = selector })
	}
	ofClusters := func(name string, selector *v1alpha1.LabelSelector) v1alpha1.MachineDrainPolicy {
		return policy(name, func(p *v1alpha1.MachineDrainPolicy) { p.Spec.ClusterSelector = selector })
	}
	for _, tc := range []struct {
		name     string
		policies []v1alpha1.MachineDrainPolicy
		// want is the policy that selects the Machine, undecided the one that may, and settings the one whose settings apply if the Machine has
		// the hook.
		want, undecided, settings string
		unread, wantUnread        string // unread are names that are separated by spaces
	}{
		{name: "selects no policy if there is none"},
		{name: "selects an empty policy for all Machines of its namespace", policies: []v1alpha1.MachineDrainPolicy{policy("all")}, want: "all"},
		{name: "selects the first match by name", policies: []v1alpha1.MachineDrainPolicy{policy("b"), policy("a"), policy("c")}, want: "a"},
		{
			name:     "ignores policies of other namespaces",
			policies: []v1alpha1.MachineDrainPolicy{policy("a", func(p *v1alpha1.MachineDrainPolicy) { p.Namespace = "other" })},
		},
		{name: "applies the machineSelector", policies: []v1alpha1.MachineDrainPolicy{
			policy("a", func(p *v1alpha1.MachineDrainPolicy) { p.Spec.MachineSelector = labelled("pool", "b") }),
			policy("b", func(p *v1alpha1.MachineDrainPolicy) { p.Spec.MachineSelector = labelled("pool", "a") }),
		}, want: "b"},
		{name: "applies the clusterSelector", policies: []v1alpha1.MachineDrainPolicy{
			policy("a", func(p *v1alpha1.MachineDrainPolicy) { p.Spec.ClusterSelector = labelled("env", "dev") }),
			policy("b", func(p *v1alpha1.MachineDrainPolicy) { p.Spec.ClusterSelector = labelled("env", "prod") }),
		}, want: "b"},
		{
			name: "M103: an invalid machineSelector may select the Machine", policies: []v1alpha1.MachineDrainPolicy{ofMachines("a", invalid())}, undecided: "a",
			settings: "a",
		},
		{
			name: "M103: an invalid clusterSelector may select the Machine", policies: []v1alpha1.MachineDrainPolicy{ofClusters("a", invalid())}, undecided: "a",
			settings: "a",
		},
		{
			name: "M103: In without values is invalid",
			policies: []v1alpha1.MachineDrainPolicy{
				ofMachines("a", &v1alpha1.LabelSelector{MatchExpressions: []v1alpha1.LabelSelectorRequirement{{Key: "a", Operator: "In"}}}),
			}, undecided: "a", settings: "a",
		},
		{
			name: "M103: an invalid label key may select the Machine", policies: []v1alpha1.MachineDrainPolicy{ofMachines("a", labelled("a key", ""))}, undecided: "a",
			settings: "a",
		},
		{
			name: "M103: an invalid label value may select the Machine", policies: []v1alpha1.MachineDrainPolicy{ofMachines("a", labelled("pool", "a b"))},
			undecided: "a", settings: "a",
		},
		{name: "M103: the valid requirements of an invalid selector exclude the Machine", policies: []v1alpha1.MachineDrainPolicy{
			ofMachines("a", invalid(v1alpha1.LabelSelectorRequirement{Key: "pool", Operator: "In", Values: []v1alpha1.LabelValue{"b"}})),
		}},
		{name: "M103: the valid requirements of an invalid selector select the Machine", policies: []v1alpha1.MachineDrainPolicy{
			ofMachines("a", invalid(v1alpha1.LabelSelectorRequirement{Key: "pool", Operator: "In", Values: []v1alpha1.LabelValue{"a"}})),
		}, undecided: "a", settings: "a"},
		{name: "M103: a valid clusterSelector excludes the Machine", policies: []v1alpha1.MachineDrainPolicy{
			policy("a", func(p *v1alpha1.MachineDrainPolicy) {
				p.Spec.ClusterSelector, p.Spec.MachineSelector = labelled("env", "dev"), invalid()
			}),
		}},
		{
			name: "M103: a valid policy precedes an invalid one", policies: []v1alpha1.MachineDrainPolicy{ofMachines("a", invalid()), policy("b")}, want: "b",
			settings: "b",
		},
		{
			name: "M103: the first of two invalid policies applies", policies: []v1alpha1.MachineDrainPolicy{ofMachines("b", invalid()), ofMachines("a", invalid())},
			undecided: "a", settings: "a",
		},
		{name: "M98: a policy that cannot be read may select the Machine", unread: "d c", wantUnread: "c"},
		{
			name: "M98: a policy that cannot be read precedes those that come later by name", policies: []v1alpha1.MachineDrainPolicy{policy("b")}, unread: "c a",
			wantUnread: "a",
		},
		{
			name: "M98: a policy that comes first by name precedes one that cannot be read", policies: []v1alpha1.MachineDrainPolicy{policy("b")}, unread: "c",
			want: "b",
		},
		{
			name: "M98: a policy that cannot be read precedes one with an invalid selector", policies: []v1alpha1.MachineDrainPolicy{ofMachines("a", invalid())},
			unread: "b", wantUnread: "b",
		},
		{name: "M98: a policy that has just been fixed is known", policies: []v1alpha1.MachineDrainPolicy{policy("a")}, unread: "a", want: "a"},
		{
			name:     "ignores a policy that is being deleted",
			policies: []v1alpha1.MachineDrainPolicy{policy("a", func(p *v1alpha1.MachineDrainPolicy) { p.DeletionTimestamp = ptr.To(metav1.Now()) })},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			nameOf := func(p *v1alpha1.MachineDrainPolicy) string {
				if p == nil {
					return ""
				}
				return p.Name
			}
			selection := machinedrain.PolicyFor(machine(), map[string]string{"env": "prod"}, tc.policies, strings.Fields(tc.unread)...)
			hooked := machine(func(m *clusterv1.Machine) { machinedrain.SetHook(m) })
			if selection.Unread != tc.wantUnread {
				t.Errorf("got unread policy %q, want %q", selection.Unread, tc.wantUnread)
			}
			if got := nameOf(selection.Policy); got != tc.want {
				t.Errorf("got policy %q, want %q", got, tc.want)
			}
			if got := nameOf(selection.Undecided); got != tc.undecided {
				t.Errorf("got undecided policy %q, want %q", got, tc.undecided)
			}
			if got := nameOf(selection.Settings(machine())); got != tc.want {
				t.Errorf("without the hook: got the settings of policy %q, want %q", got, tc.want)
			}
			if got, want := nameOf(selection.Settings(hooked)), cmp.Or(tc.settings, tc.want); got != want {
				t.Errorf("with the hook: got the settings of policy %q, want %q", got, want)
			}
		})
	}
}

func TestWantsNodeAgent(t *testing.T) {
	enabling := func(name string, changes ...func(*v1alpha1.MachineDrainPolicy)) v1alpha1.MachineDrainPolicy {
		return policy(name, append(changes, func(p *v1alpha1.MachineDrainPolicy) { p.Spec.NodeAgent = v1alpha1.NodeAgentEnabled })...)
	}
	selecting := func(key string, value v1alpha1.LabelValue) func(*v1alpha1.MachineDrainPolicy) {
		return func(p *v1alpha1.MachineDrainPolicy) {
			p.Spec.ClusterSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{key: value}}
		}
	}
	deleted := func(p *v1alpha1.MachineDrainPolicy) { p.DeletionTimestamp = ptr.To(metav1.Now()) }
	for name, tc := range map[string]struct {
		policies  []v1alpha1.MachineDrainPolicy
		unread    string
		want      bool
		undecided string
	}{
		"S71: no policy":                                      {},
		"S71: a policy that does not enable it":               {policies: []v1alpha1.MachineDrainPolicy{policy("a")}},
		"S71: one of two policies enables it":                 {policies: []v1alpha1.MachineDrainPolicy{policy("a"), enabling("b")}, want: true},
		"S71: the policy does not select the Cluster":         {policies: []v1alpha1.MachineDrainPolicy{enabling("a", selecting("env", "dev"))}},
		"S71: the policy is being deleted":                    {policies: []v1alpha1.MachineDrainPolicy{enabling("a", deleted)}},
		"S71: a policy that cannot be decoded may enable it":  {unread: "b a", undecided: "MachineDrainPolicy a cannot be decoded"},
		"S71: one that has just been fixed does not":          {policies: []v1alpha1.MachineDrainPolicy{policy("a")}, unread: "a"},
		"S71: an invalid policy that does not enable it":      {policies: []v1alpha1.MachineDrainPolicy{policy("a", selecting("a key", ""))}},
		"S71: a policy enables it, and another is unreadable": {policies: []v1alpha1.MachineDrainPolicy{enabling("b")}, unread: "a", want: true},
		"S71: a policy with an invalid selector may select the Cluster": {
			policies:  []v1alpha1.MachineDrainPolicy{enabling("b", selecting("a key", "")), enabling("a", selecting("a key", ""))},
			undecided: "the clusterSelector of MachineDrainPolicy a is invalid",
		},
	} {
		t.Run(name, func(t *testing.T) {
			wanted, undecided := machinedrain.WantsNodeAgent(tc.policies, map[string]string{"env": "prod"}, strings.Fields(tc.unread)...)
			if wanted != tc.want || undecided != tc.undecided {
				t.Errorf("got %t, undecided %q", wanted, undecided)
			}
		})
	}
}

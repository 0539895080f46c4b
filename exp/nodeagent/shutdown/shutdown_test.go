package shutdown_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

var begin = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func TestDecide(t *testing.T) {
	config := shutdown.Defaults()
	const second = time.Second
	// after returns an observation at some time after the start of a shutdown with a budget of a minute; the API server has just answered.
	after := func(elapsed time.Duration, changes ...func(*shutdown.Observed)) shutdown.Observed {
		o := shutdown.Observed{Since: begin, Now: begin.Add(elapsed), Budget: 60 * second, LastAnswer: begin.Add(elapsed)}
		for _, change := range changes {
			change(&o)
		}
		return o
	}
	created := func(o *shutdown.Observed) { o.Created = true }
	acting := func(o *shutdown.Observed) { o.Created, o.Acting = true, true }
	drained := func(o *shutdown.Observed) { o.Created, o.Acting, o.Drained = true, true, true }
	terminated := func(o *shutdown.Observed) { o.PodsTerminated = true }
	kubelet := func(o *shutdown.Observed) { o.KubeletTerminatesPods = true }
	neverAnswered := func(o *shutdown.Observed) { o.LastAnswer = time.Time{} }
	silentFor := func(d time.Duration) func(*shutdown.Observed) {
		return func(o *shutdown.Observed) { o.LastAnswer = o.Now.Add(-d) }
	}
	short := func(o *shutdown.Observed) { o.Budget = 8 * second }
	for name, test := range map[string]struct {
		o    shutdown.Observed
		want shutdown.Action
	}{
		"S3: creates a NodeMaintenance":                                              {after(0), shutdown.Request},
		"S3: waits until the Node is drained":                                        {after(4*second, acting), shutdown.Await},
		"S15: terminates the Pods that remain on the drained Node":                   {after(4*second, drained), shutdown.TerminatePods},
		"S15: releases the lock when they have terminated":                           {after(4*second, drained, terminated), shutdown.Release},
		"S15: continues when the API server stops answering":                         {after(20*second, drained, silentFor(15*second)), shutdown.TerminatePods},
		"S15: releases the lock at the deadline":                                     {after(60*second, drained), shutdown.Release},
		"S3: releases the lock at the deadline of an incomplete drain":               {after(60*second, acting), shutdown.Release},
		"S5: retries within apiServerPatience":                                       {after(4*second, neverAnswered), shutdown.Request},
		"S5: terminates Pods when the API server never answers":                      {after(5*second, neverAnswered), shutdown.TerminatePods},
		"S5: keeps waiting within apiServerPatience of the last answer":              {after(20*second, acting, silentFor(4*second)), shutdown.Await},
		"S5: terminates Pods when the API server stops answering during the drain":   {after(20*second, acting, silentFor(5*second)), shutdown.TerminatePods},
		"S5: waits for the drain again when the API server answers again":            {after(20*second, acting), shutdown.Await},
		"S5: creates the NodeMaintenance when the API server answers late":           {after(10 * second), shutdown.Request},
		"S5: terminates Pods when no management cluster acts":                        {after(15*second, created), shutdown.TerminatePods},
		"S5: terminates Pods when the API server refuses the NodeMaintenance":        {after(15 * second), shutdown.TerminatePods},
		"S5: waits for a management cluster within managementPatience":               {after(14*second, created), shutdown.Await},
		"S5: terminates the Pods that remain when half of the time is used up":       {after(30*second, acting), shutdown.TerminatePods},
		"S5: releases the lock when all Pods have terminated without the API server": {after(20*second, neverAnswered, terminated), shutdown.Release},
		"S6: limits apiServerPatience to a quarter of a short budget":                {after(2*second, short, neverAnswered), shutdown.TerminatePods},
		"S6: limits managementPatience to half of a short budget":                    {after(4*second, short, created), shutdown.TerminatePods},
		"S7: creates a NodeMaintenance where the kubelet terminates the Pods":        {after(0, kubelet), shutdown.Request},
		"S7: releases the lock for the kubelet once the NodeMaintenance exists":      {after(second, kubelet, created), shutdown.Release},
		"S7: leaves the Pods that remain on the drained Node to the kubelet":         {after(4*second, kubelet, drained), shutdown.Release},
		"S7: releases the lock for the kubelet when the API server does not answer":  {after(5*second, kubelet, neverAnswered), shutdown.Release},
		"S98: creates the NodeMaintenance for the kubelet within managementPatience": {after(14*second, kubelet), shutdown.Request},
		"S98: releases the lock for the kubelet when it is refused for longer":       {after(15*second, kubelet), shutdown.Release},
	} {
		t.Run(name, func(t *testing.T) {
			if got, why := shutdown.Decide(config, test.o); got != test.want {
				t.Errorf("%s: %s", got, why)
			}
		})
	}
}

func TestBudget(t *testing.T) {
	t.Run("S2: delays a shutdown for the configured time, but less than logind allows", func(t *testing.T) {
		config := shutdown.Defaults()
		if got := shutdown.Budget(config, time.Hour); got != 30*time.Second {
			t.Errorf("with an hour from logind: %s", got)
		}
		if got := shutdown.Budget(config, 5*time.Second); got != 4500*time.Millisecond {
			t.Errorf("with systemd's default: %s", got)
		}
	})
	t.Run("S2: does not release its lock at once because it could not read what logind allows", func(t *testing.T) {
		if got := shutdown.Budget(shutdown.Defaults(), 0); got != 4500*time.Millisecond {
			t.Errorf("the budget is %s", got)
		}
	})
}

func TestPhases(t *testing.T) {
	config := shutdown.Config{ShutdownGracePeriodByPodPriority: []shutdown.PriorityPeriod{
		{Priority: 100000, ShutdownGracePeriodSeconds: 10}, {Priority: 0, ShutdownGracePeriodSeconds: 60}, {Priority: 10000, ShutdownGracePeriodSeconds: 180},
	}}
	t.Run("S6: divides Pods into phases by priority, as KEP-2712 does", func(t *testing.T) {
		phases := config.Phases()
		for priority, want := range map[int32]int{-5: 0, 0: 0, 9999: 0, 10000: 1, 99999: 1, 100000: 2, 2000001000: 2} {
			if got := shutdown.PhaseOf(phases, priority); got != want {
				t.Errorf("priority %d is in phase %d", priority, got)
			}
		}
	})
	t.Run("S6: gives each Pod the shorter of its grace period and the period of its phase", func(t *testing.T) {
		pods := []shutdown.Pod{
			{Name: "a", GracePeriod: time.Hour}, {Name: "b", GracePeriod: time.Second},
			{Name: "c", GracePeriod: time.Hour, Known: shutdown.Known{Priority: 100000}},
		}
		got := shutdown.Terminations(config.Phases(), pods)
		if a, b, c := got[0][0], got[0][1], got[2][0]; a.GracePeriod != time.Minute || b.GracePeriod != time.Second || c.GracePeriod != 10*time.Second {
			t.Errorf("%v", got)
		}
	})
}

// S6: for every configuration and remaining time, the sum of the phases fits into the remaining time, and the agent releases the lock
// before logind's deadline.
func TestTimeIsDivided(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Int64Range(1, 3600).Draw(t, "total")
		config := shutdown.Defaults()
		config.ShutdownGracePeriod = metav1.Duration{Duration: time.Duration(total) * time.Second}
		config.ShutdownGracePeriodCriticalPods = metav1.Duration{Duration: time.Duration(rapid.Int64Range(0, total).Draw(t, "critical")) * time.Second}
		delayMax := time.Duration(rapid.Int64Range(1, 7200).Draw(t, "delayMax")) * time.Second
		budget := shutdown.Budget(config, delayMax)
		if budget >= delayMax || budget > config.ShutdownGracePeriod.Duration {
			t.Fatalf("the budget is %s, and logind allows %s", budget, delayMax)
		}
		remaining := time.Duration(rapid.Int64Range(-10, 7200).Draw(t, "remaining")) * time.Second
		phases := shutdown.Within(config.Phases(), remaining)
		if shutdown.Total(phases) > max(remaining, 0) {
			t.Fatalf("%v do not fit into %s", phases, remaining)
		}
		o := shutdown.Observed{
			Since: begin, Budget: budget, Now: begin.Add(budget + time.Duration(rapid.Int64Range(0, 1000).Draw(t, "late"))),
			Created: rapid.Bool().Draw(t, "created"), Acting: rapid.Bool().Draw(t, "acting"), KubeletTerminatesPods: rapid.Bool().Draw(t, "kubelet"),
		}
		if action, why := shutdown.Decide(config, o); action != shutdown.Release {
			t.Fatalf("%s after the deadline: %s", action, why)
		}
	})
}

func TestDividesTimeAmongOccupiedPhases(t *testing.T) {
	phases := shutdown.Defaults().Phases() // 20 s for regular Pods, 10 s for critical ones
	critical := shutdown.Pod{Name: "cni", Known: shutdown.Known{Priority: 2_000_001_000}}
	regular := shutdown.Pod{Name: "web"}
	for name, test := range map[string]struct {
		pods      []shutdown.Pod
		remaining time.Duration
		want      []time.Duration
	}{
		"S15: a phase without Pods takes no share of a short time": {[]shutdown.Pod{critical}, 6 * time.Second, []time.Duration{0, 6 * time.Second}},
		"S15: a phase never gets more than its configured period":  {[]shutdown.Pod{critical}, time.Minute, []time.Duration{0, 10 * time.Second}},
		"S6: phases with Pods share a short time in proportion": {
			[]shutdown.Pod{critical, regular}, 6 * time.Second, []time.Duration{4 * time.Second, 2 * time.Second},
		},
		"S15: without Pods no phase has a share": {nil, time.Minute, []time.Duration{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []time.Duration
			for _, phase := range shutdown.Within(shutdown.Occupied(phases, test.pods), test.remaining) {
				got = append(got, phase.Period)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestRemember(t *testing.T) {
	t.Run("S67: remembers running Pods that a restarted kubelet does not report", func(t *testing.T) {
		reported := map[string]shutdown.Known{"static": {Priority: 3}}
		before := map[string]shutdown.Known{"static": {Priority: 2}, "critical": {Priority: 9, Sidecars: []string{"logs"}}, "ended": {Priority: 1}}
		shutdown.Remember(reported, before, []shutdown.Pod{{UID: "static"}, {UID: "critical"}, {UID: "new"}})
		want := map[string]shutdown.Known{"static": {Priority: 3}, "critical": {Priority: 9, Sidecars: []string{"logs"}}}
		if !reflect.DeepEqual(reported, want) {
			t.Errorf("%+v", reported)
		}
	})
}

func TestMaintenance(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "1"}}
	node.Status.NodeInfo.BootID = "boot-1"
	t.Run("S16: excludes the Node from load balancers", func(t *testing.T) {
		if !shutdown.Maintenance(node, shutdown.Defaults()).Spec.ExcludeFromLoadBalancers {
			t.Error("the Node stays in load balancers while its Pods are evicted")
		}
	})
	t.Run("S3: evacuates regular Pods, then critical ones, then DaemonSet Pods and static Pods, and skips the agent", func(t *testing.T) {
		m := shutdown.Maintenance(node, shutdown.Defaults())
		if m.Name != "shutdown-n1" || m.Spec.Stage != v1alpha1.StageDrain || m.Spec.Reason != "node shutdown" || m.Spec.DrainRules[0].Name != "node-agent" {
			t.Errorf("%+v", m)
		}
		if m.Spec.DrainPlan[0].PodPriority != 1_999_999_999 || m.Spec.DrainPlan[1].PodPriority != 2147483647 {
			t.Errorf("%v", m.Spec.DrainPlan)
		}
		order := []v1alpha1.PodType{v1alpha1.PodTypeDefault, v1alpha1.PodTypeDaemonSet, v1alpha1.PodTypeStatic}
		if got := rules.InEffect(&m.Spec); len(got) != 3 || got[0].Name != rules.RuleDrainLabelSkip {
			t.Errorf("R45: the drain rules do not honor drain labels: %v", got)
		}
		if !slices.IsSortedFunc(plan.Complete(m.Spec.DrainPlan, m.Spec.DrainPlanDefaults), func(a, b v1alpha1.DrainPlanEntry) int {
			return slices.Index(order, a.PodType) - slices.Index(order, b.PodType)
		}) {
			t.Error("the drain plan has types of Pods in the wrong order")
		}
	})
	t.Run("S70: selects the Node with its UID, and knows the NodeMaintenance of an earlier Node with its name", func(t *testing.T) {
		m, another := shutdown.Maintenance(node, shutdown.Defaults()), node.DeepCopy()
		another.UID = "2"
		if !nodeselection.Selects(m, node) || nodeselection.Selects(m, another) {
			t.Error("it does not select exactly this Node")
		}
		if shutdown.IsOfAnother(m, node) || !shutdown.IsOfAnother(m, another) || shutdown.IsOfAnother(m, nil) {
			t.Error("the agent takes the NodeMaintenance of another Node for its own, or deletes its own one")
		}
	})
	t.Run("S4: completes the NodeMaintenance after a boot only with completeOnBoot", func(t *testing.T) {
		config := shutdown.Defaults()
		m := shutdown.Maintenance(node, config)
		if shutdown.Completes(m, "boot-2", config) {
			t.Error("the NodeMaintenance is completed by default")
		}
		config.CompleteOnBoot = true
		if !shutdown.Completes(m, "boot-2", config) || shutdown.Completes(m, "boot-1", config) {
			t.Error("the NodeMaintenance is not completed after a boot, or is completed before")
		}
	})
}

// priorities returns a period of a second for each of n priorities.
func priorities(n int32) (periods []shutdown.PriorityPeriod) {
	for i := range n {
		periods = append(periods, shutdown.PriorityPeriod{Priority: i, ShutdownGracePeriodSeconds: 1})
	}
	return periods
}

func TestConfig(t *testing.T) {
	for name, change := range map[string]func(*shutdown.Config){
		"a negative shutdownGracePeriod":           func(c *shutdown.Config) { c.ShutdownGracePeriod.Duration = -1 },
		"more time for critical Pods than for all": func(c *shutdown.Config) { c.ShutdownGracePeriodCriticalPods.Duration = time.Hour },
		"an apiServerPatience of 0":                func(c *shutdown.Config) { c.APIServerPatience.Duration = 0 },
		"a duplicate priority":                     func(c *shutdown.Config) { c.ShutdownGracePeriodByPodPriority = make([]shutdown.PriorityPeriod, 2) },
		"a negative period": func(c *shutdown.Config) {
			c.ShutdownGracePeriodByPodPriority = []shutdown.PriorityPeriod{{ShutdownGracePeriodSeconds: -1}}
		},
		"S77: a period that would become a negative one": func(c *shutdown.Config) {
			c.ShutdownGracePeriodByPodPriority = []shutdown.PriorityPeriod{{ShutdownGracePeriodSeconds: 9_999_999_999}}
		},
		"S77: more priorities than the drain plan of the NodeMaintenance may have": func(c *shutdown.Config) { c.ShutdownGracePeriodByPodPriority = priorities(22) },
	} {
		t.Run(name, func(t *testing.T) {
			config := shutdown.Defaults()
			change(&config)
			if config.Validate() == nil {
				t.Error("the configuration is accepted")
			}
		})
	}
	if err := shutdown.Defaults().Validate(); err != nil {
		t.Error(err)
	}
	t.Run("S77: as many priorities as the drain plan of the NodeMaintenance may have", func(t *testing.T) {
		config := shutdown.Defaults()
		config.ShutdownGracePeriodByPodPriority = priorities(21)
		if err := config.Validate(); err != nil || len(shutdown.Maintenance(&corev1.Node{}, config).Spec.DrainPlan) > 64 {
			t.Error(err)
		}
	})
	for name, change := range map[string]func(*shutdown.Config){
		"S63: a shutdownGracePeriod of 0 disables the delay": func(c *shutdown.Config) { c.ShutdownGracePeriod.Duration = 0 },
		"S63: priorities with periods of 0 disable the delay": func(c *shutdown.Config) {
			c.ShutdownGracePeriodByPodPriority = []shutdown.PriorityPeriod{{Priority: 0}, {Priority: 1000}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := shutdown.Defaults()
			if !config.Enabled() {
				t.Error("the default is disabled")
			}
			change(&config)
			if err := config.Validate(); err != nil || config.Enabled() {
				t.Errorf("enabled: %t, %v", config.Enabled(), err)
			}
		})
	}
}

package shutdown_test

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

var begin = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func TestDecide(t *testing.T) {
	config := shutdown.Defaults()
	const second = time.Second
	// after returns what is observed some time into a shutdown that may take a minute; the API server has just answered.
	after := func(gone time.Duration, changes ...func(*shutdown.Observed)) shutdown.Observed {
		o := shutdown.Observed{Since: begin, Now: begin.Add(gone), Budget: 60 * second, LastAnswer: begin.Add(gone)}
		for _, change := range changes {
			change(&o)
		}
		return o
	}
	created := func(o *shutdown.Observed) { o.Created = true }
	acting := func(o *shutdown.Observed) { o.Created, o.Acting = true, true }
	drained := func(o *shutdown.Observed) { o.Created, o.Acting, o.Drained = true, true, true }
	ended := func(o *shutdown.Observed) { o.Ended = true }
	kubelet := func(o *shutdown.Observed) { o.KubeletEndsPods = true }
	never := func(o *shutdown.Observed) { o.LastAnswer = time.Time{} }
	silentFor := func(d time.Duration) func(*shutdown.Observed) {
		return func(o *shutdown.Observed) { o.LastAnswer = o.Now.Add(-d) }
	}
	short := func(o *shutdown.Observed) { o.Budget = 8 * second }
	for name, test := range map[string]struct {
		o    shutdown.Observed
		want shutdown.Course
	}{
		"S3: asks for a NodeMaintenance":                                      {after(0), shutdown.Request},
		"S3: awaits that the Node is drained":                                 {after(4*second, acting), shutdown.Await},
		"S15: ends the Pods that remain on the drained Node":                  {after(4*second, drained), shutdown.EndPods},
		"S15: releases the lock when they have ended":                         {after(4*second, drained, ended), shutdown.Release},
		"S15: continues when the API server stops answering":                  {after(20*second, drained, silentFor(15*second)), shutdown.EndPods},
		"S15: releases the lock at the deadline":                              {after(60*second, drained), shutdown.Release},
		"S3: lets go when the time is up":                                     {after(60*second, acting), shutdown.Release},
		"S5: has a little patience with the API server":                       {after(4*second, never), shutdown.Request},
		"S5: no API server from the start":                                    {after(5*second, never), shutdown.EndPods},
		"S5: none since a moment":                                             {after(20*second, acting, silentFor(4*second)), shutdown.Await},
		"S5: lost in the middle":                                              {after(20*second, acting, silentFor(5*second)), shutdown.EndPods},
		"S5: back in the middle":                                              {after(20*second, acting), shutdown.Await},
		"S5: back, and the NodeMaintenance is yet to be made":                 {after(10 * second), shutdown.Request},
		"S5: no management cluster acts":                                      {after(15*second, created), shutdown.EndPods},
		"S5: it is refused":                                                   {after(15 * second), shutdown.EndPods},
		"S5: it may still begin to act":                                       {after(14*second, created), shutdown.Await},
		"S5: what waits at half time isn't left to the power switch":          {after(30*second, acting), shutdown.EndPods},
		"S5: all have ended":                                                  {after(20*second, never, ended), shutdown.Release},
		"S6: patience leaves most of a short time to the Pods":                {after(2*second, short, never), shutdown.EndPods},
		"S6: ... also when a management cluster doesn't act":                  {after(4*second, short, created), shutdown.EndPods},
		"S7: the kubelet ends the Pods, and there is to be a NodeMaintenance": {after(0, kubelet), shutdown.Request},
		"S7: once it is there, nothing is held up":                            {after(second, kubelet, created), shutdown.Release},
		"S7: leaves the Pods that remain on the drained Node to the kubelet":  {after(4*second, kubelet, drained), shutdown.Release},
		"S7: nor without the API server":                                      {after(5*second, kubelet, never), shutdown.Release},
	} {
		t.Run(name, func(t *testing.T) {
			if got, why := shutdown.Decide(config, test.o); got != test.want {
				t.Errorf("%s: %s", got, why)
			}
		})
	}
}

func TestBudget(t *testing.T) {
	t.Run("S2: the smaller of what is wanted and what logind allows", func(t *testing.T) {
		config := shutdown.Defaults()
		if got := shutdown.Budget(config, time.Hour); got != 30*time.Second {
			t.Errorf("with all the time: %s", got)
		}
		if got := shutdown.Budget(config, 5*time.Second); got != 4500*time.Millisecond {
			t.Errorf("with systemd's default: %s", got)
		}
	})
}

func TestPhases(t *testing.T) {
	config := shutdown.Config{ShutdownGracePeriodByPodPriority: []shutdown.PriorityPeriod{
		{Priority: 100000, ShutdownGracePeriodSeconds: 10}, {Priority: 0, ShutdownGracePeriodSeconds: 60}, {Priority: 10000, ShutdownGracePeriodSeconds: 180},
	}}
	t.Run("S6: by priority ranges, as with KEP-2712", func(t *testing.T) {
		phases := config.Phases()
		for priority, want := range map[int32]int{-5: 0, 0: 0, 9999: 0, 10000: 1, 99999: 1, 100000: 2, 2000001000: 2} {
			if got := shutdown.PhaseOf(phases, priority); got != want {
				t.Errorf("priority %d is in phase %d", priority, got)
			}
		}
	})
	t.Run("S6: each Pod gets the least of its own grace period and its phase's", func(t *testing.T) {
		pods := []shutdown.Pod{
			{Name: "a", Priority: 0, GracePeriod: time.Hour}, {Name: "b", Priority: 0, GracePeriod: time.Second}, {Name: "c", Priority: 100000, GracePeriod: time.Hour},
		}
		endings := shutdown.Endings(config.Phases(), pods)
		if a, b, c := endings[0][0], endings[0][1], endings[2][0]; a.GracePeriod != time.Minute || b.GracePeriod != time.Second || c.GracePeriod != 10*time.Second {
			t.Errorf("%v", endings)
		}
	})
}

// S6: whatever is configured, and whatever is left, the phases together fit, each gets its share, and the lock goes in time.
func TestTimeIsDivided(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Int64Range(1, 3600).Draw(t, "total")
		config := shutdown.Defaults()
		config.ShutdownGracePeriod = metav1.Duration{Duration: time.Duration(total) * time.Second}
		config.ShutdownGracePeriodCriticalPods = metav1.Duration{Duration: time.Duration(rapid.Int64Range(0, total).Draw(t, "critical")) * time.Second}
		delayMax := time.Duration(rapid.Int64Range(1, 7200).Draw(t, "delayMax")) * time.Second
		budget := shutdown.Budget(config, delayMax)
		if budget >= delayMax || budget > config.ShutdownGracePeriod.Duration {
			t.Fatalf("the budget is %s of %s", budget, delayMax)
		}
		left := time.Duration(rapid.Int64Range(-10, 7200).Draw(t, "left")) * time.Second
		phases := shutdown.Within(config.Phases(), left)
		if shutdown.Total(phases) > max(left, 0) {
			t.Fatalf("%v don't fit into %s", phases, left)
		}
		o := shutdown.Observed{
			Since: begin, Budget: budget, Now: begin.Add(budget + time.Duration(rapid.Int64Range(0, 1000).Draw(t, "late"))),
			Created: rapid.Bool().Draw(t, "created"), Acting: rapid.Bool().Draw(t, "acting"), KubeletEndsPods: rapid.Bool().Draw(t, "kubelet"),
		}
		if course, why := shutdown.Decide(config, o); course != shutdown.Release {
			t.Fatalf("%s after the time is up: %s", course, why)
		}
	})
}

func TestDividesTimeAmongOccupiedPhases(t *testing.T) {
	phases := shutdown.Defaults().Phases() // 20 s for regular Pods, 10 s for critical ones
	critical := shutdown.Pod{Name: "cni", Priority: 2_000_001_000}
	regular := shutdown.Pod{Name: "web"}
	for name, test := range map[string]struct {
		pods []shutdown.Pod
		left time.Duration
		want []time.Duration
	}{
		"S15: a phase without Pods takes no share of a short time": {[]shutdown.Pod{critical}, 6 * time.Second, []time.Duration{0, 6 * time.Second}},
		"S15: a phase never gets more than its configured period":  {[]shutdown.Pod{critical}, time.Minute, []time.Duration{0, 10 * time.Second}},
		"S6: phases with Pods share a short time in proportion":    {[]shutdown.Pod{critical, regular}, 6 * time.Second, []time.Duration{4 * time.Second, 2 * time.Second}},
		"S15: without Pods no phase has a share":                   {nil, time.Minute, []time.Duration{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []time.Duration
			for _, phase := range shutdown.Within(shutdown.Occupied(phases, test.pods), test.left) {
				got = append(got, phase.Period)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestMaintenance(t *testing.T) {
	t.Run("S16: excludes the Node from load balancers", func(t *testing.T) {
		if !shutdown.Maintenance("n1", "boot", shutdown.Defaults()).Spec.ExcludeFromLoadBalancers {
			t.Error("the Node stays in load balancers while its Pods are evicted")
		}
	})
	t.Run("S3: regular Pods first, critical ones last, DaemonSets and static Pods after; the agent stays", func(t *testing.T) {
		m := shutdown.Maintenance("n1", "boot", shutdown.Defaults())
		if m.Name != "shutdown-n1" || m.Spec.Stage != v1alpha1.StageDrain || m.Spec.Reason != "node shutdown" || m.Spec.DrainRules[0].Name != "node-agent" {
			t.Errorf("%+v", m)
		}
		if m.Spec.DrainPlan[0].PodPriority != 1_999_999_999 || m.Spec.DrainPlan[1].PodPriority != 2147483647 {
			t.Errorf("%v", m.Spec.DrainPlan)
		}
		order := []v1alpha1.PodType{v1alpha1.PodTypeDefault, v1alpha1.PodTypeDaemonSet, v1alpha1.PodTypeStatic}
		if got := rules.InEffect(&m.Spec); len(got) != 3 || got[0].Name != rules.RuleDrainLabelSkip {
			t.Errorf("R45: drain labels are not honored: %v", got)
		}
		if !slices.IsSortedFunc(plan.Complete(m.Spec.DrainPlan, m.Spec.DrainPlanDefaults), func(a, b v1alpha1.DrainPlanEntry) int {
			return slices.Index(order, a.PodType) - slices.Index(order, b.PodType)
		}) {
			t.Error("it is out of order")
		}
	})
	t.Run("S4: completed after a boot only where the configuration says so", func(t *testing.T) {
		config := shutdown.Defaults()
		m := shutdown.Maintenance("n1", "boot-1", config)
		if shutdown.Completes(m, "boot-2", config) {
			t.Error("by default nobody does")
		}
		config.CompleteOnBoot = true
		if !shutdown.Completes(m, "boot-2", config) || shutdown.Completes(m, "boot-1", config) {
			t.Error("after a boot, and not before")
		}
	})
}

func TestConfig(t *testing.T) {
	for name, change := range map[string]func(*shutdown.Config){
		"no time":                func(c *shutdown.Config) { c.ShutdownGracePeriod.Duration = 0 },
		"more for critical ones": func(c *shutdown.Config) { c.ShutdownGracePeriodCriticalPods.Duration = time.Hour },
		"no patience":            func(c *shutdown.Config) { c.APIServerPatience.Duration = 0 },
		"a priority twice":       func(c *shutdown.Config) { c.ShutdownGracePeriodByPodPriority = make([]shutdown.PriorityPeriod, 2) },
		"less than no time at all": func(c *shutdown.Config) {
			c.ShutdownGracePeriodByPodPriority = []shutdown.PriorityPeriod{{ShutdownGracePeriodSeconds: -1}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := shutdown.Defaults()
			change(&config)
			if config.Validate() == nil {
				t.Error("it is accepted")
			}
		})
	}
	if err := shutdown.Defaults().Validate(); err != nil {
		t.Error(err)
	}
}

package machine

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// TestPolicyThatTheWatchHasNotDelivered: the cache has no policy that selects the Machines. An API server decides, which may have another
// policy, or other labels of the Cluster.
func TestPolicyThatTheWatchHasNotDelivered(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	policy := func() *v1alpha1.MachineDrainPolicy {
		all := policyForAll()
		all.Spec.Surge = v1alpha1.SurgeAlways
		all.Spec.ClusterSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"env": "prod"}}
		return all
	}
	running := func(names ...string) []*clusterv1.Machine {
		machines := deletedWorkers(start, names...)
		for _, m := range machines {
			m.DeletionTimestamp, m.Finalizers = nil, nil
		}
		return machines
	}
	proxy := &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonNotFound, Code: 404}}
	for name, tc := range map[string]struct {
		stored, cached *v1alpha1.MachineDrainPolicy
		clusterLabels  map[string]string // as the API server has them
		failure        error             // of the list of this kind
		failing        string
		keepsHook      bool
	}{
		"keeps it if the API server has a policy that the cache has not": {stored: policy(), keepsHook: true},
		"keeps it if the labels of the Cluster differ": {
			stored: policy(), cached: policy(), clusterLabels: map[string]string{"env": "prod"}, keepsHook: true,
		},
		"keeps it if the API server does not answer":   {failure: errors.New("timeout"), failing: policyKind, keepsHook: true},
		"keeps it if the Clusters cannot be listed":    {failure: proxy, failing: "Cluster", keepsHook: true},
		"loses it if the policy does not select it":    {stored: policy(), cached: policy()},
		"loses it if there is no policy":               {},
		"M56: loses it if there is no CRD of policies": {failure: proxy, failing: policyKind},
	} {
		t.Run("M17: a Machine that no policy of the cache selects has a hook: "+name, func(t *testing.T) {
			g, m, cluster := NewWithT(t), running("a")[0], provisionedCluster()
			cluster.Labels = tc.clusterLabels
			builder := managementCluster(m)
			if tc.cached != nil {
				builder.WithObjects(tc.cached)
			}
			management := builder.Build()
			r := newReconciler(t, management, connectedTo(workloadCluster(m).Build(), start), clocktesting.NewFakePassiveClock(start))
			r.APIReader = apiServerOf(func(kind string) error {
				if kind == tc.failing {
					return tc.failure
				}
				return nil
			}, cluster, tc.stored)
			for _, after := range []time.Duration{0, 3 * time.Second, 4 * time.Second, time.Minute} {
				g.Expect(reconcileAt(t, r, m, start.Add(after))).To(Succeed())
			}
			stored := &clusterv1.Machine{}
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
			g.Expect(machinedrain.HasHook(stored)).To(Equal(tc.keepsHook))
		})
	}
	t.Run("M108: a drain keeps its settings until the API server confirms that no policy selects the Machine", func(t *testing.T) {
		g, m, cluster := NewWithT(t), deletedWorkers(start, "a")[0], provisionedCluster()
		all := policy()
		all.Spec.ClusterSelector = nil
		management, remote := managementCluster(m).WithObjects(all).Build(), workloadCluster(m).Build()
		r := newReconciler(t, management, connectedTo(remote, start), clocktesting.NewFakePassiveClock(start))
		infrastructureExists(r, m)
		t.Cleanup(func() { r.forget(client.ObjectKeyFromObject(m)) })
		surgeAt := func(after time.Duration) v1alpha1.SurgePolicy {
			g.Expect(reconcileAt(t, r, m, start.Add(after))).To(Succeed())
			drains, _ := drainingIn(t, remote)
			g.Expect(drains).To(HaveLen(1))
			return drains[0].Spec.Evacuation.Surge
		}
		g.Expect(surgeAt(0)).To(Equal(v1alpha1.SurgeAlways))
		stored := all.DeepCopy()
		stored.ResourceVersion = ""
		g.Expect(management.Delete(t.Context(), all)).To(Succeed())
		r.APIReader = apiServerOf(nil, cluster, stored)
		g.Expect(surgeAt(time.Second)).To(Equal(v1alpha1.SurgeAlways))
		g.Expect([]v1alpha1.SurgePolicy{surgeAt(40 * time.Second), surgeAt(time.Minute)}).To(HaveEach(v1alpha1.SurgeAlways))
		waits := &clusterv1.Machine{}
		g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), waits)).To(Succeed())
		g.Expect(conditions.GetMessage(waits, v1alpha1.MachineNodeMaintenance)).To(ContainSubstring("have not delivered the latest changes"))
		r.APIReader = apiServerOf(func(string) error { return errors.New("timeout") }, cluster, nil)
		g.Expect([]v1alpha1.SurgePolicy{surgeAt(61 * time.Second), surgeAt(100 * time.Second)}).To(HaveEach(v1alpha1.SurgeAlways))
		g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), waits)).To(Succeed())
		g.Expect(conditions.GetMessage(waits, v1alpha1.MachineNodeMaintenance)).To(ContainSubstring("timeout"))
		r.APIReader = apiServerOf(nil, cluster, nil)
		g.Expect(surgeAt(2 * time.Minute)).NotTo(Equal(v1alpha1.SurgeAlways))
		r.APIReader = apiServerOf(func(string) error { return errors.New("it is not asked again") }, cluster, nil)
		g.Expect(surgeAt(3 * time.Minute)).NotTo(Equal(v1alpha1.SurgeAlways))
	})
	t.Run("M17: 26 Machines that lose their policy within a second cause one list of each kind", func(t *testing.T) {
		g, names, lists := NewWithT(t), []string{}, map[string]int{}
		for c := 'a'; c <= 'z'; c++ {
			names = append(names, string(c))
		}
		machines := running(names...)
		management := managementCluster(machines...).Build()
		r := newReconciler(t, management, connectedTo(workloadCluster(machines...).Build(), start), clocktesting.NewFakePassiveClock(start))
		r.APIReader = apiServerOf(func(kind string) error { lists[kind]++; return nil }, provisionedCluster(), nil)
		for _, after := range []time.Duration{0, 3 * time.Second, 20 * time.Second} {
			for i, m := range machines {
				g.Expect(reconcileAt(t, r, m, start.Add(after+time.Duration(i)*30*time.Millisecond))).To(Succeed())
			}
		}
		g.Expect(lists).To(Equal(map[string]int{policyKind: 1, ruleKind: 1, "Cluster": 1}))
	})
}

func TestMachineWithoutHookOrPolicy(t *testing.T) {
	t.Run("M17: the state of a drain in place that was withdrawn is removed at once if no policy selects the Machine and it has no hook", func(t *testing.T) {
		g, start := NewWithT(t), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		m := deletedWorkers(start, "a")[0]
		m.DeletionTimestamp, m.Finalizers, m.Annotations = nil, nil, map[string]string{v1alpha1.MachineStageAnnotation: string(v1alpha1.StageComplete)}
		r := newReconciler(t, managementCluster(m).Build(), connectedTo(workloadCluster(m).Build(), start), clocktesting.NewFakePassiveClock(start))
		r.requested.Store(client.ObjectKeyFromObject(m), drainRequest{uid: m.UID, at: start})
		g.Expect(reconcileAt(t, r, m, start)).To(Succeed())
		_, remembers := r.requested.Load(client.ObjectKeyFromObject(m))
		g.Expect(remembers).To(BeFalse(), "no event may come for a long time")
	})
}

// TestDrainBeginsWithTheRulesOfTheAPIServer: a MachineDrainRule was created just before a Machine is deleted, or in an outage of the
// management cluster.
func TestDrainBeginsWithTheRulesOfTheAPIServer(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	rule := &clusterv1.MachineDrainRule{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "protects"}}
	rule.Spec.Drain.Behavior = clusterv1.MachineDrainRuleDrainBehaviorSkip
	t.Run("M161: no drain begins before the cache has the rules that the API server has, whatever the drain timeout", func(t *testing.T) {
		g, m, policy := NewWithT(t), deletedWorkers(start, "a")[0], policyWithLimit(intstr.FromInt32(1))
		m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](1)
		management, remote := managementCluster(m).WithObjects(policy).Build(), workloadCluster(m).Build()
		now := clocktesting.NewFakePassiveClock(start)
		r := newReconciler(t, management, answersProbes{clustercache.NewFakeClusterCache(remote, clusterKey), now}, now)
		infrastructureExists(r, m)
		t.Cleanup(func() { r.forget(client.ObjectKeyFromObject(m)) })
		stored := &clusterv1.Machine{}
		drainsAt := func(after time.Duration) int {
			g.Expect(reconcileAt(t, r, m, start.Add(after))).To(Succeed())
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
			g.Expect(machinedrain.HasHook(stored)).To(BeTrue(), "released undrained: %s after %s", conditions.Get(stored, v1alpha1.MachineNodeMaintenance), after)
			drains, _ := drainingIn(t, remote)
			return len(drains)
		}
		live := r.APIReader
		r.APIReader = apiServerOf(func(string) error { return errors.New("timeout") }, provisionedCluster(), nil)
		g.Expect([]int{drainsAt(0), drainsAt(time.Minute), drainsAt(2 * time.Minute)}).To(HaveEach(0))
		g.Expect(conditions.GetMessage(stored, v1alpha1.MachineNodeMaintenance)).To(ContainSubstring("timeout"))
		r.APIReader = live
		delivered, lagging := r.Client, withoutRules{r.Client}
		g.Expect(management.Create(t.Context(), rule)).To(Succeed())
		r.Client, r.Maintenances.Client = lagging, lagging
		g.Expect([]int{drainsAt(3 * time.Minute), drainsAt(4 * time.Minute)}).To(HaveEach(0))
		g.Expect(conditions.GetMessage(stored, v1alpha1.MachineNodeMaintenance)).To(ContainSubstring(machinedrain.WaitingForSettings))
		r.Client, r.Maintenances.Client = delivered, delivered
		g.Expect(drainsAt(5 * time.Minute)).To(Equal(1))
		r.Client, r.Maintenances.Client = lagging, lagging
		g.Expect(drainsAt(5*time.Minute+100*time.Millisecond)).To(Equal(1), "a drain that has begun continues")
	})
	underRule := func(t *testing.T) (r *Reconciler, m *clusterv1.Machine, management client.Client, remote client.WithWatch) {
		t.Helper()
		m = deletedWorkers(start, "a")[0]
		policy := policyForAll()
		management, remote = managementCluster(m).WithObjects(policy, rule.DeepCopy()).Build(), workloadCluster(m).Build()
		r = newReconciler(t, management, connectedTo(remote, start), clocktesting.NewFakePassiveClock(start))
		infrastructureExists(r, m)
		t.Cleanup(func() { r.forget(client.ObjectKeyFromObject(m)) })
		return r, m, management, remote
	}
	t.Run("M161: no drain begins without a rule that the watch delivers while the API server is asked", func(t *testing.T) {
		g := NewWithT(t)
		r, m, _, remote := underRule(t)
		delivered, lagging, live := r.Client, withoutRules{r.Client}, r.APIReader
		r.Client, r.Maintenances.Client = lagging, lagging
		r.APIReader = listsAfter{live, func() { r.Client, r.Maintenances.Client = delivered, delivered }}
		g.Expect(reconcileAt(t, r, m, start)).To(Succeed())
		drains, _ := drainingIn(t, remote)
		g.Expect(drains).To(BeEmpty(), "the rule was read before it was delivered")
		g.Expect(reconcileAt(t, r, m, start.Add(time.Second))).To(Succeed())
		drains, _ = drainingIn(t, remote)
		g.Expect(drains).To(HaveLen(1))
		g.Expect(drains[0].Spec.DrainRules).To(ContainElement(HaveField("Name", rules.MachineDrainRulePrefix+"protects")))
	})
	t.Run("M108: a rule that is gone applies to a drain in progress until the API server confirms that it is gone", func(t *testing.T) {
		g := NewWithT(t)
		r, m, management, remote := underRule(t)
		protects := func(after time.Duration) bool {
			g.Expect(reconcileAt(t, r, m, start.Add(after))).To(Succeed())
			drains, _ := drainingIn(t, remote)
			g.Expect(drains).To(HaveLen(1))
			isOfRule := func(of v1alpha1.DrainRule) bool { return of.Name == rules.MachineDrainRulePrefix+"protects" }
			return slices.ContainsFunc(drains[0].Spec.DrainRules, isOfRule)
		}
		g.Expect(protects(0)).To(BeTrue())
		live := r.APIReader
		r.Client, r.Maintenances.Client = withoutRules{r.Client}, withoutRules{r.Client}
		g.Expect([]bool{protects(time.Second), protects(5 * time.Second), protects(time.Minute)}).To(HaveEach(true), "the watch lags")
		r.APIReader = apiServerOf(func(string) error { return errors.New("timeout") }, provisionedCluster(), nil)
		g.Expect([]bool{protects(2 * time.Minute), protects(3 * time.Minute), protects(4 * time.Minute)}).To(HaveEach(true))
		stored := &clusterv1.Machine{}
		g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
		g.Expect(conditions.GetMessage(stored, v1alpha1.MachineNodeMaintenance)).To(ContainSubstring("A MachineDrainRule that is gone still applies"))
		r.APIReader = live
		g.Expect(management.Delete(t.Context(), rule.DeepCopy())).To(Succeed())
		g.Expect(protects(5 * time.Minute)).To(BeFalse())
	})
	t.Run("M158: a drain that hooks of other owners have held continues when the cache has the rules that the API server has", func(t *testing.T) {
		g := NewWithT(t)
		r, m, management, remote := underRule(t)
		g.Expect(reconcileAt(t, r, m, start)).To(Succeed())
		drains, _ := drainingIn(t, remote)
		g.Expect(drains).To(HaveLen(1))
		drains[0].Spec.DrainRules = nil // those of the time before the rule
		g.Expect(remote.Update(t.Context(), &drains[0])).To(Succeed())
		held := &clusterv1.Machine{}
		g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), held)).To(Succeed())
		held.Annotations[v1alpha1.DrainHeldAnnotation] = start.Format(time.RFC3339)
		g.Expect(management.Update(t.Context(), held)).To(Succeed())
		at := func(after time.Duration) (continues bool) {
			g.Expect(reconcileAt(t, r, m, start.Add(after))).To(Succeed())
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), held)).To(Succeed())
			drains, _ = drainingIn(t, remote)
			return !machinedrain.IsSuspended(&drains[0], held, nil, "here")
		}
		delivered := r.Client
		r.Client, r.Maintenances.Client = withoutRules{r.Client}, withoutRules{r.Client}
		for _, after := range []time.Duration{time.Minute, 2 * time.Minute, 3 * time.Minute} {
			g.Expect(at(after)).To(BeFalse(), "the watch lags")
		}
		g.Expect(held.Annotations).NotTo(HaveKey(v1alpha1.DrainStartedAnnotation), "no timeout counts")
		g.Expect(conditions.GetMessage(held, v1alpha1.MachineNodeMaintenance)).To(ContainSubstring(machinedrain.WaitingForSettings))
		r.Client, r.Maintenances.Client = delivered, delivered
		for after := 4 * time.Minute; !at(after); after += time.Second {
			g.Expect(after).To(BeNumerically("<", 5*time.Minute))
		}
		g.Expect(drains[0].Spec.DrainRules).To(ContainElement(HaveField("Name", rules.MachineDrainRulePrefix+"protects")))
	})
	t.Run("M17: a Machine keeps its hook if the watch delivers its policy while the API server is asked", func(t *testing.T) {
		g, m := NewWithT(t), deletedWorkers(start, "a")[0]
		m.DeletionTimestamp, m.Finalizers = nil, nil
		policy := policyForAll()
		management := managementCluster(m).Build()
		r := newReconciler(t, management, connectedTo(workloadCluster(m).Build(), start), clocktesting.NewFakePassiveClock(start))
		g.Expect(reconcileAt(t, r, m, start)).To(Succeed())
		r.APIReader = listsAfter{r.APIReader, func() { _ = management.Create(t.Context(), policy.DeepCopy()) }}
		g.Expect(reconcileAt(t, r, m, start.Add(3*time.Second))).To(Succeed())
		g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
		g.Expect(machinedrain.HasHook(m)).To(BeTrue())
	})
}

// listsAfter is a client of an API server that calls a function before each list.
type listsAfter struct {
	client.Reader
	before func()
}

func (c listsAfter) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	c.before()
	return c.Reader.List(ctx, list, options...) //nolint:wrapcheck // it adds nothing
}

// withoutRules is a client whose cache has no MachineDrainRules.
type withoutRules struct{ client.Client }

func (c withoutRules) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if _, is := list.(*clusterv1.MachineDrainRuleList); is {
		return nil
	}
	return c.Client.List(ctx, list, options...) //nolint:wrapcheck // it adds nothing
}

// apiServerOf returns a client of an API server with a Cluster, and with a policy unless it is nil. It calls a function with the kind of
// each list, which fails with its error.
func apiServerOf(onList func(kind string) error, cluster *clusterv1.Cluster, policy *v1alpha1.MachineDrainPolicy) client.Reader {
	builder := workloadCluster().WithObjects(cluster)
	if policy != nil {
		builder.WithObjects(policy)
	}
	return answering{builder.WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			gvk, err := c.GroupVersionKindFor(list)
			if err == nil && onList != nil {
				err = onList(strings.TrimSuffix(gvk.Kind, "List"))
			}
			if err != nil {
				return err //nolint:wrapcheck // it adds nothing
			}
			return c.List(ctx, list, options...)
		},
	}).Build()}
}

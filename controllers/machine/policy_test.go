package machine

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// TestPolicyThatTheWatchHasNotDelivered: the cache has no policy that selects the Machines. An API server decides, which may have another
// policy, or other labels of the Cluster.
func TestPolicyThatTheWatchHasNotDelivered(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	policy := func() *v1alpha1.MachineDrainPolicy {
		all := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "all"}}
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
	invalid := policy()
	invalid.Spec.ClusterSelector.MatchLabels["in valid"] = "x"
	notServed := &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonNotFound, Code: 404}}
	for name, tc := range map[string]struct {
		stored        *v1alpha1.MachineDrainPolicy
		clusterLabels map[string]string
		failure       error
		keepsHook     bool
	}{
		"keeps the hook of a Machine that a policy selects":                     {stored: policy(), clusterLabels: map[string]string{"env": "prod"}, keepsHook: true},
		"keeps the hook of a Machine that a policy with invalid selector might": {stored: invalid, clusterLabels: map[string]string{"env": "prod"}, keepsHook: true},
		"keeps the hook if it does not answer":                                  {failure: errors.New("timeout"), keepsHook: true},
		"removes the hook of a Machine whose Cluster no policy selects":         {stored: policy(), clusterLabels: map[string]string{"env": "test"}},
		"removes the hook of a Machine if there is no policy":                   {},
		"removes the hook of a Machine if there is no CRD":                      {failure: notServed},
	} {
		t.Run("M17: the API server "+name+", whatever the cache has", func(t *testing.T) {
			g, m := NewWithT(t), running("a")[0]
			management := managementCluster(m).Build()
			r := newReconciler(t, management, connectedTo(workloadCluster(m).Build(), start), clocktesting.NewFakePassiveClock(start))
			cluster := provisionedCluster()
			cluster.Labels = tc.clusterLabels
			r.APIReader = apiServerOf(tc.failure, nil, cluster, tc.stored)
			for _, after := range []time.Duration{0, 3 * time.Second, 4 * time.Second, time.Minute} {
				err := reconcileAt(t, r, m, start.Add(after))
				g.Expect(err != nil).To(Equal(tc.failure != nil && tc.keepsHook && after > 0))
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
		r.APIReader = apiServerOf(nil, nil, cluster, stored)
		g.Expect(surgeAt(time.Second)).To(Equal(v1alpha1.SurgeAlways))
		g.Expect(surgeAt(time.Minute)).To(Equal(v1alpha1.SurgeAlways))
		r.APIReader = apiServerOf(nil, nil, cluster, nil)
		g.Expect(surgeAt(2 * time.Minute)).NotTo(Equal(v1alpha1.SurgeAlways))
		r.APIReader = apiServerOf(errors.New("it is not asked again"), nil, cluster, nil)
		g.Expect(surgeAt(3 * time.Minute)).NotTo(Equal(v1alpha1.SurgeAlways))
	})
	t.Run("M17: 26 Machines that lose their policy within a second cause one list of the policies and one of the Clusters", func(t *testing.T) {
		g, names, lists := NewWithT(t), []string{}, map[string]int{}
		for c := 'a'; c <= 'z'; c++ {
			names = append(names, string(c))
		}
		machines := running(names...)
		management := managementCluster(machines...).Build()
		r := newReconciler(t, management, connectedTo(workloadCluster(machines...).Build(), start), clocktesting.NewFakePassiveClock(start))
		r.APIReader = apiServerOf(nil, func(list client.ObjectList) { lists[list.GetObjectKind().GroupVersionKind().Kind]++ }, provisionedCluster(), nil)
		for _, after := range []time.Duration{0, 3 * time.Second, 20 * time.Second} {
			for i, m := range machines {
				g.Expect(reconcileAt(t, r, m, start.Add(after+time.Duration(i)*30*time.Millisecond))).To(Succeed())
			}
		}
		g.Expect(lists).To(Equal(map[string]int{"": 1, "ClusterList": 1}))
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

// apiServerOf returns a client of an API server with a Cluster, and with a policy unless it is nil. It calls a function for each list, and
// fails with an error unless it is nil.
func apiServerOf(failure error, onList func(client.ObjectList), cluster *clusterv1.Cluster, policy *v1alpha1.MachineDrainPolicy) client.Reader {
	builder := workloadCluster().WithObjects(cluster)
	if policy != nil {
		builder.WithObjects(policy)
	}
	return builder.WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if onList != nil {
				onList(list)
			}
			if failure != nil {
				return failure
			}
			return c.List(ctx, list, options...)
		},
	}).Build()
}

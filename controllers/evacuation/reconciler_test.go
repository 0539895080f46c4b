package evacuation

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// withEvacuators returns an Evacuation whose first evacuator is active and reported progress this long ago.
func withEvacuators(progress time.Duration) *v1alpha1.Evacuation {
	return &v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "e", UID: "uid", Finalizers: []string{v1alpha1.NodeMaintenanceInstigatorFinalizer},
			CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
		},
		Spec: v1alpha1.EvacuationSpec{
			ProgressDeadlineSeconds: 600, Evacuators: []v1alpha1.Evacuator{{EvacuatorClass: "first", Priority: 2}, {EvacuatorClass: "second", Priority: 1}},
		},
		Status: v1alpha1.EvacuationStatus{ActiveEvacuatorClass: new("first"), EvacuationProgressTimestamp: new(metav1.NewTime(now.Add(-progress)))},
	}
}

// storeAfter stores the next action for the observed Evacuation, after another actor changed the Evacuation on the API server: the watch
// lags. It returns the action, and the Evacuation on the API server, which is empty if it does not exist any more.
func storeAfter(t *testing.T, change func(*v1alpha1.Evacuation), observed *v1alpha1.Evacuation, pod evacuation.Pod) (
	action evacuation.Action, left *v1alpha1.Evacuation, err error,
) {
	t.Helper()
	stored := observed.DeepCopy()
	change(stored)
	server := fakes.Builder().WithStatusSubresource(observed).WithObjects(stored).Build()
	observed.ResourceVersion = "1"
	action = evacuation.Next(evacuation.Input{Evacuation: observed, Pod: pod, Now: now})
	r := &Reconciler{Written: expectations.New[*v1alpha1.Evacuation](t.Context(), workload.Trim)}
	err = r.store(t.Context(), &scope{client: server, evacuation: observed}, action, now)
	left = &v1alpha1.Evacuation{}
	NewWithT(t).Expect(client.IgnoreNotFound(server.Get(t.Context(), client.ObjectKeyFromObject(observed), left))).To(Succeed())
	return action, left, err
}

func TestFinishedWhileTheWatchLags(t *testing.T) {
	const foreign = "example.com/keep"
	for name, tc := range map[string]struct {
		added []string // since the Evacuation was observed
		left  []string
		fails bool
	}{
		"E8: removes the finalizers of instigators": {},
		"E8: keeps a finalizer that another actor has added meanwhile": {
			added: []string{foreign}, left: []string{v1alpha1.NodeMaintenanceInstigatorFinalizer, foreign}, fails: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			observed := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "e", UID: "uid", Finalizers: []string{v1alpha1.NodeMaintenanceInstigatorFinalizer},
			}}
			action, left, err := storeAfter(t, func(e *v1alpha1.Evacuation) { e.Finalizers = append(e.Finalizers, tc.added...) },
				observed, evacuation.Pod{Known: true, Exists: true, Finished: true})
			g.Expect(action.Delete).To(BeTrue())
			g.Expect(err != nil).To(Equal(tc.fails), "%v", err)
			g.Expect(left.Finalizers).To(Equal(tc.left))
		})
	}
}

func TestEndWhileTheWatchLags(t *testing.T) {
	t.Run("E31: the Evacuation of a Pod that has finished ends, although its evacuator has written the status since it was observed", func(t *testing.T) {
		g := NewWithT(t)
		observed := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "e", UID: "uid"}}
		observed.Status.ActiveEvacuatorClass = new("mover.example.com")
		observed.Status.EvacuationCancellationPolicy = v1alpha1.CancellationForbid
		action, left, err := storeAfter(t, func(e *v1alpha1.Evacuation) { e.Status.Message = "moving" },
			observed, evacuation.Pod{Known: true, Exists: true, Finished: true})
		g.Expect(action.Kind).To(Equal(evacuation.Finish))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(left).To(Equal(&v1alpha1.Evacuation{}), "it does not exist any more")
	})
}

func TestStatusWhileTheWatchLags(t *testing.T) {
	pod := evacuation.Pod{Known: true, Exists: true, Type: v1alpha1.PodTypeDefault}
	evicting := metav1.Condition{
		Type: v1alpha1.EvacuationEvicting, Status: metav1.ConditionTrue, Reason: "EvacuatorUnresponsive", LastTransitionTime: metav1.NewTime(now),
	}
	moved := metav1.Condition{Type: "Moved", Status: metav1.ConditionFalse, Reason: "NoTarget", LastTransitionTime: metav1.NewTime(now)}
	for name, tc := range map[string]struct {
		progress   time.Duration // ago, as observed
		conditions []metav1.Condition
		kind       evacuation.Kind
		reported   func(*v1alpha1.EvacuationStatus) // by the first evacuator since the Evacuation was observed
		check      func(g Gomega, stored *v1alpha1.Evacuation)
	}{
		"E12: an evacuator has not completed because the one before it has, so the Pod is not evicted before it has acted": {
			progress: 10 * time.Minute, kind: evacuation.Activate,
			reported: func(s *v1alpha1.EvacuationStatus) { s.ActiveEvacuatorCompleted = true },
			check: func(g Gomega, stored *v1alpha1.Evacuation) {
				next := evacuation.Next(evacuation.Input{Evacuation: stored, Pod: pod, Now: now})
				g.Expect(next.Kind).NotTo(Equal(evacuation.Evict), "%s", next.Message)
			},
		},
		"E12: an evacuator that has reported progress within the deadline is not replaced": {
			progress: 10 * time.Minute, kind: evacuation.Activate,
			reported: func(s *v1alpha1.EvacuationStatus) {
				s.EvacuationProgressTimestamp = new(metav1.NewTime(now.Add(-time.Second)))
			},
			check: func(g Gomega, stored *v1alpha1.Evacuation) { g.Expect(stored.ActiveEvacuator()).To(Equal("first")) },
		},
		"E17: a condition that an evacuator has just reported is not removed with the condition Evicting": {
			progress: time.Second, conditions: []metav1.Condition{evicting}, kind: evacuation.AwaitEvacuator, // late progress stops the eviction
			reported: func(s *v1alpha1.EvacuationStatus) {
				s.Conditions, s.ActiveEvacuatorCompleted = append(s.Conditions, moved), true
			},
			check: func(g Gomega, stored *v1alpha1.Evacuation) {
				g.Expect(meta.FindStatusCondition(stored.Status.Conditions, moved.Type)).NotTo(BeNil())
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, observed := NewWithT(t), withEvacuators(tc.progress)
			observed.Status.Conditions = tc.conditions
			action, stored, err := storeAfter(t, func(e *v1alpha1.Evacuation) { tc.reported(&e.Status) }, observed, pod)
			g.Expect(action.Kind).To(Equal(tc.kind))
			if err != nil {
				g.Expect(apierrors.IsConflict(errors.Cause(err))).To(BeTrue(), "%v", err)
			}
			tc.check(g, stored)
		})
	}
}

func TestEvacuationsIn(t *testing.T) {
	for name, tc := range map[string]struct {
		labels map[string]string // of the Node
		listed []string          // by the status
		found  bool
	}{
		"E57: a NodeMaintenance that selects Nodes by label, and is deleted before its first reconciliation, wakes the Evacuations there": {
			labels: map[string]string{"pool": "db"}, found: true,
		},
		"E57: one that is deleted later wakes those on the Nodes that it has selected": {listed: []string{"a"}, found: true},
		"E57: it wakes each once":               {labels: map[string]string{"pool": "db"}, listed: []string{"a"}, found: true},
		"E57: it wakes none on Nodes of others": {labels: map[string]string{"pool": "web"}, listed: []string{"b"}},
	} {
		t.Run(name, func(t *testing.T) {
			g, e := NewWithT(t), evacuation.New(aPod("on-a", "a"), nil, 0)
			e.Annotations = map[string]string{v1alpha1.EvacuationNodeAnnotation: "a"}
			_, remote, request := locating(t, e)
			node := &corev1.Node{}
			g.Expect(remote.Get(t.Context(), client.ObjectKey{Name: "a"}, node)).To(Succeed())
			node.Labels = tc.labels
			g.Expect(remote.Update(t.Context(), node)).To(Succeed())
			m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
			m.Spec.NodeSelector = v1alpha1.NodeSelector{NodeSelectorTerms: []v1alpha1.NodeSelectorTerm{{
				MatchExpressions: []v1alpha1.NodeSelectorRequirement{{Key: "pool", Operator: "In", Values: []string{"db"}}},
			}}}
			for _, name := range tc.listed {
				m.Status.NodeStatuses = append(m.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{NodeRef: v1alpha1.NodeReference{Name: name}})
			}
			g.Expect(evacuation.TermsChanged(m, nil)).To(BeTrue())
			var want []types.NamespacedName
			if tc.found {
				want = append(want, request.Object)
			}
			keys, err := evacuationsIn(t.Context(), remote, m)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(keys).To(Equal(want))
		})
	}
}

func TestEnqueue(t *testing.T) {
	t.Run("M162: reconciles the Evacuations of a Node when its NodeMaintenance is no longer suspended", func(t *testing.T) {
		g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
		e := withEvacuators(0)
		remote := fakes.Builder(e).WithIndex(e, "node", func(client.Object) []string { return []string{"one"} }).Build()
		management := fakes.Client(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}})
		cache := clustercache.NewFakeClusterCache(remote, cluster)
		r := &Reconciler{Clusters: workload.NewClusters(management, cache, fakes.Scheme(), workload.Limits{}, clock.RealClock{})}
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[workload.Request]())
		r.enqueue(t.Context(), queue, workload.Change{Cluster: cluster, Type: workload.DrainContinued, Node: "two"})
		g.Expect(queue.Len()).To(BeZero())
		r.enqueue(t.Context(), queue, workload.Change{Cluster: cluster, Type: workload.DrainContinued, Node: "one"})
		g.Expect(queue.Len()).To(Equal(1))
		request, _ := queue.Get()
		g.Expect(request).To(Equal(workload.Request{Cluster: cluster, Object: client.ObjectKeyFromObject(e)}))
	})
}

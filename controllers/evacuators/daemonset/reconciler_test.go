package daemonset

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/evacuators/staticpod"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/setaside"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/daemonset"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

// onePod is an Observation with one Pod.
type onePod struct {
	workload.Observation
	pod *corev1.Pod
}

func (o onePod) PodByUID(uid types.UID) (*corev1.Pod, bool) { return o.pod, o.pod.UID == uid }

func TestPodThatABackupRestores(t *testing.T) {
	t.Run("R73: a deleted Pod of a DaemonSet that the API server has again waits for ten minutes at most", func(t *testing.T) {
		g := NewWithT(t)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "log", UID: "1", ResourceVersion: "1"}, Spec: corev1.PodSpec{NodeName: "n"}}
		r := &Reconciler{written: expectations.New[*corev1.Pod](t.Context(), workload.TrimPod)}
		s := &scope{node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}}
		r.written.RecordDeleted(s.cluster, pod)
		g.Expect(r.deletePods(t.Context(), s, onePod{pod: pod}, []v1alpha1.Evacuation{*evacuation.New(pod, nil, 0)})).To(Succeed())
		g.Expect(s.requeue).To(Equal(expectations.TTL))
	})
}

// podsOf is an Observation with some Pods of an existing DaemonSet.
type podsOf struct {
	workload.Observation
	pods map[types.UID]*corev1.Pod
}

func (o podsOf) PodByUID(uid types.UID) (*corev1.Pod, bool) {
	pod, found := o.pods[uid]
	return pod, found
}

func (o podsOf) DaemonSetExists(string, string, types.UID) (exists, known bool) { return true, true }

func (o podsOf) NamespaceLabels(string) (map[string]string, bool) { return nil, true }

// drainsNode returns a NodeMaintenance that has reached the Pods of DaemonSets.
func drainsNode(name string, behavior v1alpha1.DrainBehavior) *v1alpha1.NodeMaintenance {
	m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	m.Spec.Stage, m.Spec.NodeSelector = v1alpha1.StageDrain, v1alpha1.SelectNodes("n")
	m.Spec.DrainRules = []v1alpha1.DrainRule{{Name: "all", Behavior: behavior, Pods: []v1alpha1.DrainRulePodSelector{{}}}}
	m.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{
		NodeRef: v1alpha1.NodeReference{Name: "n"}, DrainTargets: []v1alpha1.DrainTarget{{PodType: v1alpha1.PodTypeDaemonSet, PodPriority: 1000}},
	}}
	return m
}

// ofDaemonSet returns a Pod of an existing DaemonSet, and its Evacuation, which this evacuator serves.
func ofDaemonSet(name string) (*corev1.Pod, *v1alpha1.Evacuation) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "log", UID: "log", Controller: new(true)},
	}}, Spec: corev1.PodSpec{NodeName: "n"}}
	e := evacuation.New(pod, nil, 0)
	e.Status.ActiveEvacuatorClass = new(v1alpha1.EvacuatorClassDaemonSet)
	return pod, e
}

// reconcilerOf returns a reconciler for one workload cluster.
func reconcilerOf(t *testing.T, management, remote client.Client, cluster types.NamespacedName) *Reconciler {
	t.Helper()
	return &Reconciler{
		Clusters:     workload.NewClusters(management, clustercache.NewFakeClusterCache(remote, cluster), fakes.Scheme(), workload.Limits{}, clock.RealClock{}),
		Maintenances: &machinemaintenance.Requester{Client: management},
		Clock:        clock.RealClock{},
		written:      expectations.New[*corev1.Pod](t.Context(), workload.TrimPod),
	}
}

// TestChangesDuringTheReport: a webhook hangs for the report about a Pod on its Evacuation, which the API server accepts then.
func TestChangesDuringTheReport(t *testing.T) {
	for name, tc := range map[string]struct {
		edited   func(*v1alpha1.NodeMaintenance)
		observed func(podsOf)
		unread   bool // the Evacuation
		paused   bool
		deleted  int
	}{
		"R95: no Pod of a DaemonSet is deleted if the NodeMaintenance was completed while the report took long": {edited: func(m *v1alpha1.NodeMaintenance) {
			m.Spec.Stage = v1alpha1.StageComplete
		}},
		"R95: nor if a label has protected the Pod meanwhile": {observed: func(o podsOf) {
			o.pods["a"] = o.pods["a"].DeepCopy()
			o.pods["a"].Labels = map[string]string{"protected": ""}
		}},
		"R95: nor if the Pod has terminated":        {observed: func(o podsOf) { delete(o.pods, "a") }},
		"R95: nor if the Cluster was paused":        {paused: true},
		"R95: nor if the Evacuation cannot be read": {unread: true},
		"R95: it is deleted if nothing has changed": {deleted: 1},
	} {
		t.Run(name, func(t *testing.T) {
			g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
			inManagement := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}}
			management, m := fakes.Client(inManagement), drainsNode("m", v1alpha1.DrainBehaviorDrain)
			m.Spec.DrainRules = append([]v1alpha1.DrainRule{{Name: "protected", Behavior: v1alpha1.DrainBehaviorSkip, Pods: []v1alpha1.DrainRulePodSelector{
				{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"protected": ""}}},
			}}}, m.Spec.DrainRules...)
			pod, e := ofDaemonSet("a")
			observed, deleted, unread := podsOf{pods: map[types.UID]*corev1.Pod{pod.UID: pod}}, 0, false
			remote := fakes.Builder(m, pod.DeepCopy(), e).WithStatusSubresource(e).WithIndex(m, "node", func(object client.Object) []string {
				return nodeselection.Keys(object.(*v1alpha1.NodeMaintenance))
			}).WithInterceptorFuncs(interceptor.Funcs{
				SubResourcePatch: func(ctx context.Context, c client.Client, sub string, e client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
					if tc.edited != nil {
						g.Expect(c.Get(ctx, client.ObjectKeyFromObject(m), m)).To(Succeed())
						tc.edited(m)
						g.Expect(c.Update(ctx, m)).To(Succeed())
					}
					if tc.observed != nil {
						tc.observed(observed)
					}
					unread, inManagement.Spec.Paused = tc.unread, new(tc.paused)
					g.Expect(management.Update(ctx, inManagement)).To(Succeed())
					return c.SubResource(sub).Patch(ctx, e, patch)
				},
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
					if _, is := object.(*v1alpha1.Evacuation); is && unread {
						return errors.New("not read")
					}
					return c.Get(ctx, key, object, options...)
				},
				Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
					deleted++
					return nil
				},
			}).Build()
			stored := &v1alpha1.EvacuationList{}
			g.Expect(remote.List(t.Context(), stored)).To(Succeed())
			s := &scope{cluster: cluster, node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}}
			r := reconcilerOf(t, management, remote, cluster)
			g.Expect(r.findDrains(t.Context(), s)).To(Succeed())
			err := r.deletePods(t.Context(), s, observed, stored.Items)
			g.Expect(deleted).To(Equal(tc.deleted))
			g.Expect(workload.IsPaused(err)).To(Equal(tc.paused))
			g.Expect(err != nil).To(Equal(tc.paused || tc.unread), "%v", err)
			unread = false
			g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(e), e)).To(Succeed())
			g.Expect(e.Status.ExpectedEvacuationFinishTime).NotTo(BeNil(), "the report was made")
		})
	}
}

// TestSlowReports: a webhook delays each report by five minutes.
func TestSlowReports(t *testing.T) {
	t.Run("R39: the expected finish time counts from the report about this Pod, not from those about other Pods before", func(t *testing.T) {
		g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
		management := fakes.Client(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}})
		now := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
		observed, objects := podsOf{pods: map[types.UID]*corev1.Pod{}}, []client.Object{drainsNode("m", v1alpha1.DrainBehaviorDrain)}
		for _, name := range []string{"a", "b"} {
			pod, e := ofDaemonSet(name)
			observed.pods[pod.UID] = pod
			objects = append(objects, pod.DeepCopy(), e)
		}
		remote := fakes.Builder(objects...).WithStatusSubresource(&v1alpha1.Evacuation{}).
			WithIndex(&v1alpha1.NodeMaintenance{}, "node", func(object client.Object) []string {
				return nodeselection.Keys(object.(*v1alpha1.NodeMaintenance))
			}).WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, e client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
				now.SetTime(now.Now().Add(5 * time.Minute))
				return c.SubResource(sub).Patch(ctx, e, patch)
			},
		}).Build()
		stored := &v1alpha1.EvacuationList{}
		g.Expect(remote.List(t.Context(), stored)).To(Succeed())
		s := &scope{cluster: cluster, node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}}
		r := reconcilerOf(t, management, remote, cluster)
		r.Clock = now
		g.Expect(r.findDrains(t.Context(), s)).To(Succeed())
		g.Expect(r.deletePods(t.Context(), s, observed, stored.Items)).To(Succeed())
		g.Expect(remote.List(t.Context(), stored)).To(Succeed())
		first, second := stored.Items[0].Status.ExpectedEvacuationFinishTime, stored.Items[1].Status.ExpectedEvacuationFinishTime
		g.Expect(second.Sub(first.Time)).To(Equal(5 * time.Minute))
	})
}

// TestChangesDuringDeletions: a webhook hangs for the deletion of a Pod, and meanwhile a user changes something.
func TestChangesDuringDeletions(t *testing.T) {
	withdrawn := func(e *v1alpha1.Evacuation) { e.Finalizers = []string{"another.example.com"} }
	for name, tc := range map[string]struct {
		edited     func(*v1alpha1.NodeMaintenance)
		evacuation func(*v1alpha1.Evacuation) // of the other Pod
		gone       bool                       // the Evacuation of the other Pod
		created    client.Object
		paused     bool
		all        bool
	}{
		"R95: no Pod of a DaemonSet is deleted after the NodeMaintenance was completed": {edited: func(m *v1alpha1.NodeMaintenance) {
			m.Spec.Stage = v1alpha1.StageComplete
		}},
		"R95: nor after its rules were changed, so that they skip the Pods": {edited: func(m *v1alpha1.NodeMaintenance) {
			m.Spec.DrainRules[0].Behavior = v1alpha1.DrainBehaviorSkip
		}},
		"R38, R95: nor after it has withdrawn from the Evacuation": {evacuation: withdrawn},
		"R38, R95: nor after another evacuator has become active": {evacuation: func(e *v1alpha1.Evacuation) {
			e.Status.ActiveEvacuatorClass = new("other.example.com")
		}},
		"R38, R95: nor after the Evacuation was deleted":                  {gone: true},
		"R95: nor after another NodeMaintenance waits until it completes": {created: drainsNode("another", v1alpha1.DrainBehaviorWaitCompleted)},
		"R95: nor after the Cluster was paused":                           {paused: true},
		"R95: otherwise, all are deleted":                                 {created: drainsNode("another", v1alpha1.DrainBehaviorDrain), all: true},
	} {
		t.Run(name, func(t *testing.T) {
			g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
			m := drainsNode("m", v1alpha1.DrainBehaviorDrain)
			inManagement := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}}
			management := fakes.Client(inManagement)
			observed, objects := podsOf{pods: map[types.UID]*corev1.Pod{}}, []client.Object{m}
			for _, name := range []string{"a", "b"} {
				pod, e := ofDaemonSet(name)
				e.Status.ExpectedEvacuationFinishTime = new(metav1.Now()) // one was refused
				observed.pods[pod.UID] = pod
				objects = append(objects, pod.DeepCopy(), e)
			}
			deleted := 0
			remote := fakes.Builder(objects...).WithStatusSubresource(&v1alpha1.Evacuation{}).
				WithIndex(&v1alpha1.NodeMaintenance{}, "node", func(object client.Object) []string {
					return nodeselection.Keys(object.(*v1alpha1.NodeMaintenance))
				}).
				WithInterceptorFuncs(interceptor.Funcs{
					Delete: func(ctx context.Context, c client.WithWatch, deleting client.Object, _ ...client.DeleteOption) error {
						if deleted++; deleted > 1 {
							return nil
						}
						if tc.edited != nil {
							edited := m.DeepCopy()
							g.Expect(c.Get(ctx, client.ObjectKeyFromObject(m), edited)).To(Succeed())
							tc.edited(edited)
							g.Expect(c.Update(ctx, edited)).To(Succeed())
						}
						changed := &v1alpha1.EvacuationList{}
						g.Expect(c.List(ctx, changed)).To(Succeed())
						for i := range changed.Items {
							switch e := &changed.Items[i]; {
							case e.Spec.PodRef.Name == deleting.GetName():
							case tc.gone:
								e.Finalizers = nil
								g.Expect(c.Update(ctx, e)).To(Succeed())
								g.Expect(client.IgnoreNotFound(c.Delete(ctx, e))).To(Succeed())
							case tc.evacuation != nil:
								tc.evacuation(e)
								g.Expect(c.Status().Update(ctx, e)).To(Succeed())
								tc.evacuation(e)
								g.Expect(c.Update(ctx, e)).To(Succeed())
							}
						}
						if tc.created != nil {
							g.Expect(c.Create(ctx, tc.created)).To(Succeed())
						}
						inManagement.Spec.Paused = new(tc.paused)
						g.Expect(management.Update(ctx, inManagement)).To(Succeed())
						return nil
					},
				}).Build()
			stored := &v1alpha1.EvacuationList{}
			g.Expect(remote.List(t.Context(), stored)).To(Succeed())
			r := reconcilerOf(t, management, remote, cluster)
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			s := &scope{cluster: cluster, node: node}
			g.Expect(r.findDrains(t.Context(), s)).To(Succeed())
			err := r.deletePods(t.Context(), s, observed, stored.Items)
			g.Expect(workload.IsPaused(err)).To(Equal(tc.paused), "%v", err)
			g.Expect(deleted).To(Equal(map[bool]int{false: 1, true: 2}[tc.all]))
			if !tc.paused {
				g.Expect(err).NotTo(HaveOccurred())
			}
		})
	}
}

func TestMachineThatCannotBeRead(t *testing.T) {
	t.Run("M16: a Node whose Machine cannot be read is reconciled again: no event follows when it can be", func(t *testing.T) {
		g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n"}}
		m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: map[string]string{
			v1alpha1.OwnerClusterAnnotation: cluster.String(), v1alpha1.OwnerMachineAnnotation: "fleet/m",
		}}}
		m.Spec.Stage, m.Spec.NodeSelector = v1alpha1.StageDrain, v1alpha1.SelectNodes("n")
		m.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "n"}}}
		remote := fakes.Builder(node, m).WithIndex(m, "node", func(object client.Object) []string {
			return nodeselection.Keys(object.(*v1alpha1.NodeMaintenance))
		}).Build()
		management := fakes.Builder(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}}).
			WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
					if _, is := object.(*clusterv1.Machine); is {
						return errors.New("not read")
					}
					return c.Get(ctx, key, object, options...)
				},
			}).Build()
		r := &Reconciler{
			Clusters:     workload.NewClusters(management, clustercache.NewFakeClusterCache(remote, cluster), fakes.Scheme(), workload.Limits{}, clock.RealClock{}),
			Maintenances: &machinemaintenance.Requester{Client: management}, Clock: clock.RealClock{},
		}
		_, err := r.Reconcile(t.Context(), workload.Request{Cluster: cluster, Object: types.NamespacedName{Name: "n"}})
		g.Expect(err).To(MatchError(ContainSubstring("not read")))
	})
}

// TestRefusedDeletion: each event of the Evacuation causes another deletion.
func TestRefusedDeletion(t *testing.T) {
	drains := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	for _, tc := range []struct {
		name   string
		change func(*v1alpha1.Evacuation)
		want   bool
	}{
		{"E89: an update that changes only the error of a refused deletion causes no reconciliation", func(e *v1alpha1.Evacuation) {
			daemonset.ReportResult(e, drains, "denied request 2")
		}, false},
		{"E89: another active evacuator causes a reconciliation", func(e *v1alpha1.Evacuation) {
			e.Status.Message, e.Status.ActiveEvacuatorClass = "", new("other.example.com")
		}, true},
		{"E89: a withdrawal causes a reconciliation", func(e *v1alpha1.Evacuation) { evacuation.Withdraw(e); e.Status.Message = "" }, true},
		{"E89: an update with the same message causes a reconciliation", func(*v1alpha1.Evacuation) {}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := evacuation.New(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "log", UID: "1"}}, nil, 0)
			before.ResourceVersion, before.Status.ActiveEvacuatorClass = "1", new(v1alpha1.EvacuatorClassDaemonSet)
			daemonset.ReportResult(before, drains, "denied request 1")
			after := before.DeepCopy()
			after.ResourceVersion = "2"
			tc.change(after)
			got := changesMoreThanMessage().Update(event.TypedUpdateEvent[*v1alpha1.Evacuation]{ObjectOld: before, ObjectNew: after})
			NewWithT(t).Expect(got).To(Equal(tc.want))
		})
	}
}

// connected is a ClusterCache with a connection to a server, whose Nodes are those of a client.
type connected struct {
	clustercache.ClusterCache
	config *rest.Config
	live   client.Client
}

func (c connected) GetRESTConfig(context.Context, client.ObjectKey) (*rest.Config, error) {
	return c.config, nil
}

func (c connected) GetUncachedClient(context.Context, client.ObjectKey) (client.Client, error) {
	return c.live, nil
}

func (c connected) Watch(_ context.Context, _ client.ObjectKey, w clustercache.Watcher) error {
	return w.Watch(nil)
}

// TestMaintenanceThatCannotBeDecoded: such a NodeMaintenance is in no cache, so no drain seems to have reached the Pods.
func TestMaintenanceThatCannotBeDecoded(t *testing.T) {
	for _, tc := range []struct {
		name   string
		exists bool
	}{
		{"R84: keeps Pods of DaemonSets and static Pods off a Node while a NodeMaintenance cannot be decoded", true},
		{"R84: lets Pods of DaemonSets and static Pods return when a NodeMaintenance that cannot be decoded has been deleted", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g, cluster, patches := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}, atomic.Int32{}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{v1alpha1.StaticPodTargetsAnnotation: "[]"}}}
			node.Spec.Taints = []corev1.Taint{{Key: v1alpha1.NoDaemonSetPodsTaint, Effect: corev1.TaintEffectNoSchedule}}
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				list := map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "EvacuationList", "metadata": map[string]any{"resourceVersion": "1"}}
				items := []any{}
				switch {
				case r.Method == http.MethodPatch:
					patches.Add(1)
					_ = json.NewEncoder(w).Encode(node)
					return
				case r.URL.Query().Has("watch"):
					<-r.Context().Done()
					return
				case strings.HasSuffix(r.URL.Path, "/nodemaintenances"):
					if list["kind"] = "NodeMaintenanceList"; tc.exists {
						items = append(items, map[string]any{
							"apiVersion": list["apiVersion"], "kind": "NodeMaintenance", "metadata": map[string]any{"name": "m", "resourceVersion": "1"},
							"spec": map[string]any{"stage": 1},
						})
					}
				}
				list["items"] = items
				_ = json.NewEncoder(w).Encode(list)
			}))
			t.Cleanup(api.Close)
			mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{v1alpha1.GroupVersion})
			mapper.Add(v1alpha1.GroupVersion.WithKind("NodeMaintenance"), meta.RESTScopeRoot)
			mapper.Add(v1alpha1.GroupVersion.WithKind("Evacuation"), meta.RESTScopeNamespace)
			mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
			live := fakes.Builder(node).WithRESTMapper(mapper).Build()
			management := fakes.Client(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}})
			remote := connected{clustercache.NewFakeEmptyClusterCache(), &rest.Config{Host: api.URL, Timeout: time.Minute}, live}
			clusters := workload.NewClusters(management, remote, fakes.Scheme(), workload.Limits{}, clock.RealClock{})
			clusters.UseCaches(workload.CacheOptions{})
			t.Cleanup(func() { clusters.Disconnect(cluster) })
			g.Expect(clusters.AddWatches(t.Context(), cluster, nil)).To(Succeed())

			request := workload.Request{Cluster: cluster, Object: types.NamespacedName{Name: node.Name}}
			for _, r := range []reconcile.TypedReconciler[workload.Request]{
				&Reconciler{Clusters: clusters, Maintenances: &machinemaintenance.Requester{}, Clock: clock.RealClock{}}, &staticpod.Reconciler{Clusters: clusters},
			} {
				_, err := r.Reconcile(t.Context(), request)
				g.Expect(setaside.Is(err)).To(Equal(tc.exists), "%v", err)
			}
			g.Expect(patches.Load()).To(BeEquivalentTo(map[bool]int{false: 2}[tc.exists]), "removes the taint and the drain targets of static Pods")
		})
	}
}

package workload

import (
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestRefusedClusters(t *testing.T) {
	scheme := fakes.Scheme()
	for _, tc := range []struct {
		name         string
		filter       machinedrain.WatchFilter
		change       func(*clusterv1.Cluster)
		deleted      bool
		disconnected bool
		paused       bool
	}{
		{name: "M104: reaches a Cluster that the watch filter selects", filter: "ours", change: func(*clusterv1.Cluster) {}},
		{
			name: "M104: does not reach a connected Cluster whose label was changed", filter: "ours",
			change: func(c *clusterv1.Cluster) { c.Labels[clusterv1.WatchLabel] = "theirs" }, disconnected: true,
		},
		{
			name: "M104: does not reach a connected Cluster whose label was removed", filter: "ours", change: func(c *clusterv1.Cluster) { c.Labels = nil },
			disconnected: true,
		},
		{
			name:   "M16: does not reach a connected Cluster that does not exist any more: clusterctl has moved it, and another manager continues",
			change: func(*clusterv1.Cluster) {}, deleted: true, disconnected: true,
		},
		{name: "M102: does not reach a paused Cluster", change: func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) }, paused: true},
		{
			name:   "M102: reaches a Cluster with the annotation of a pause",
			change: func(c *clusterv1.Cluster) { c.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", Labels: map[string]string{clusterv1.WatchLabel: "ours"}}}
			tc.change(cluster)
			key := client.ObjectKeyFromObject(cluster)
			management := fakes.Client(cluster)
			if tc.deleted {
				management = fakes.Client()
			}
			clusters := NewClusters(management, clustercache.NewFakeClusterCache(fake.NewClientBuilder().Build(), key), scheme, Limits{}, clock.RealClock{})
			clusters.Filter = tc.filter
			if _, err := clusters.UncachedClient(t.Context(), key); IsNotConnected(err) != tc.disconnected || IsPaused(err) != tc.paused {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestResumeWithoutRecordOfAHold(t *testing.T) {
	t.Run("M115: a change of a policy, or of labels of a Cluster, resumes a drain whose hold is not recorded: the hooks may be ignored now", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			const hook = clusterv1.PreDrainDeleteHookAnnotationPrefix + "/approval"
			machine := func(cluster string, annotations ...string) *clusterv1.Machine {
				m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
					Namespace: clusterA.Namespace, Name: cluster, Finalizers: []string{"deletes"}, DeletionTimestamp: &metav1.Time{Time: time.Now()},
				}}
				m.Labels = map[string]string{clusterv1.ClusterNameLabel: cluster}
				m.Spec.ClusterName, m.Annotations = cluster, map[string]string{v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner}
				for _, annotation := range annotations {
					m.Annotations[annotation] = ""
				}
				return m
			}
			management := fakes.Client(
				machine("held", hook), machine("recorded", hook, v1alpha1.DrainHeldAnnotation), machine("drains"),
			)
			clusters := NewClusters(management, nil, nil, Limits{}, clock.RealClock{})
			var resumed []string
			clusters.Subscribe(func(change Change) {
				if change.Type == Resumed {
					resumed = append(resumed, change.Cluster.Name)
				}
			})
			policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: clusterA.Namespace, Name: "p"}}
			clusters.ResumeAfterPolicyChange().Update(t.Context(), event.UpdateEvent{ObjectOld: policy, ObjectNew: policy}, nil)
			time.Sleep(time.Minute)
			synctest.Wait()
			g.Expect(resumed).To(ConsistOf("held"))
			for _, name := range []string{"held", "recorded", "drains"} {
				before := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: clusterA.Namespace, Name: name}}
				relabeled, annotated := before.DeepCopy(), before.DeepCopy()
				relabeled.Labels, annotated.Annotations = map[string]string{"env": "prod"}, map[string]string{"env": "prod"}
				clusters.ResumeAfterPause().Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: annotated}, nil)
				clusters.ResumeAfterPause().Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: relabeled}, nil)
				time.Sleep(time.Minute)
			}
			synctest.Wait()
			g.Expect(resumed).To(ConsistOf("held", "held"))
		})
	})
}

// A user removes the finalizers of a paused Machine. Its NodeMaintenance is not suspended any more, as that of any Machine which no longer
// exists. Events of its Node and Pods have not been processed since the pause began.
func TestPausedMachineThatIsGone(t *testing.T) {
	t.Run("M16, M18: the NodeMaintenance of a Machine that is deleted during its pause is reconciled, as after the end of the pause", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
				Namespace: clusterA.Namespace, Name: "m",
				Annotations: map[string]string{clusterv1.PausedAnnotation: "", v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner},
			}}
			machine.Spec.ClusterName = clusterA.Name
			m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: map[string]string{
				v1alpha1.OwnerMachineAnnotation: clusterA.Namespace + "/m", v1alpha1.OwnerManagementClusterAnnotation: "here",
			}}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
			g.Expect(machinedrain.IsSuspended(m, machine, nil, "here")).To(BeTrue())
			g.Expect(machinedrain.IsSuspended(m, nil, nil, "here")).To(BeFalse(), "without its Machine")

			clusters := NewClusters(fakes.Client(), nil, nil, Limits{}, clock.RealClock{})
			isResumed := false
			clusters.Subscribe(func(Change) { isResumed = true })
			clusters.ResumeAfterPause().Delete(t.Context(), event.DeleteEvent{Object: machine}, nil)
			time.Sleep(time.Minute)
			synctest.Wait()
			g.Expect(isResumed).To(BeTrue(), "no other event may come for a long time")
		})
	})
}

// A user removes the finalizer of a NodeMaintenance whose deletion hangs because its Cluster is paused. The watch of Nodes stops, because
// there is no other NodeMaintenance.
func TestNodeMaintenanceThatIsGoneAfterAPause(t *testing.T) {
	t.Run("R64: after a pause, what NodeMaintenances have left behind is looked for again", func(t *testing.T) {
		g := NewWithT(t)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", Annotations: map[string]string{v1alpha1.NodeOriginAnnotation: "schedulable"}}}
		remote := fakes.Builder(node).WithIndex(node, "spec.unschedulable", func(client.Object) []string { return []string{"true"} }).Build()
		management := fakes.Client(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: clusterA.Namespace, Name: clusterA.Name}})
		clusters := NewClusters(management, clustercache.NewFakeClusterCache(remote, clusterA), nil, Limits{}, clock.RealClock{})
		cache := clusters.informers.cacheOf(clusterA, newEmptyCache(t.Context(), append(installedKinds, &corev1.Node{})...))
		found, checked := make(chan any), false
		d := clusters.informers.setOnDemand(cache, func() *onDemand {
			return newOnDemand(clusterA, cache, []clustercache.Watcher{watcher{"sweeper", &corev1.Node{}, func(ctrlcache.Cache) error {
				close(found) // the Sweeper gets the first list
				return nil
			}}}, func() bool { return false })
		})
		d.search = search{urgentDone: true, allDone: true} // before the NodeMaintenance was created
		g.Expect(clusters.FindLeftovers(t.Context(), clusterA)).To(Succeed())
		g.Expect(d.nodes.everBegan.Load()).To(BeFalse())
		clusters.OnCheckRequested(func(types.NamespacedName) { checked = true })
		resumed := changesTo(clusters, Resumed)
		clusters.resume(clusterA)
		g.Expect(checked).To(BeTrue())
		g.Expect(resumed.Load()).To(BeEquivalentTo(1), "E37: subscribers are notified after a pause, and drop what they keep of NodeMaintenances that are gone")
		g.Expect(clusters.FindLeftovers(t.Context(), clusterA)).To(Succeed())
		g.Eventually(found).WithTimeout(time.Minute).Should(BeClosed(), "the Node stays cordoned until the next connection or NodeMaintenance")
	})
}

func TestBeginOfPause(t *testing.T) {
	t.Run("M16: subscribers are notified when a Cluster or draining Machine is paused: what they have reported does not hold any more", func(t *testing.T) {
		machine := func(annotations ...string) *clusterv1.Machine {
			m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
				Namespace: clusterA.Namespace, Name: "m", Annotations: map[string]string{}, DeletionTimestamp: &metav1.Time{Time: time.Now()},
			}}
			for _, annotation := range annotations {
				m.Annotations[annotation] = v1alpha1.HookOwner
			}
			m.Spec.ClusterName = clusterA.Name
			return m
		}
		cluster := func(paused bool) *clusterv1.Cluster {
			return &clusterv1.Cluster{
				ObjectMeta: metav1.ObjectMeta{Namespace: clusterA.Namespace, Name: clusterA.Name}, Spec: clusterv1.ClusterSpec{Paused: &paused},
			}
		}
		notified := BeNumerically(">", 0)
		for _, tc := range []struct {
			before, after client.Object
			notified      gomegatypes.GomegaMatcher
		}{
			{cluster(false), cluster(true), notified},
			{cluster(true), cluster(true), BeZero()},
			{machine(v1alpha1.PreDrainHookAnnotation), machine(v1alpha1.PreDrainHookAnnotation, clusterv1.PausedAnnotation), notified},
			{machine(), machine(clusterv1.PausedAnnotation), BeZero()}, // it does not drain
			{machine(v1alpha1.PreDrainHookAnnotation), machine(v1alpha1.PreDrainHookAnnotation), BeZero()},
		} {
			synctest.Test(t, func(t *testing.T) {
				clusters := NewClusters(fakes.Client(), nil, nil, Limits{}, clock.RealClock{})
				affected := changesTo(clusters, AllPodsAffected)
				clusters.ResumeAfterPause().Update(t.Context(), event.UpdateEvent{ObjectOld: tc.before, ObjectNew: tc.after}, nil)
				time.Sleep(time.Minute)
				NewWithT(t).Expect(affected.Load()).To(tc.notified, "%v, %v", tc.before, tc.after)
			})
		}
	})
}

package nodemaintenance

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestClusterIsForgotten(t *testing.T) {
	g := NewWithT(t)
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	request := func(cluster string) workload.Request {
		return workload.Request{Cluster: types.NamespacedName{Namespace: "fleet", Name: cluster}, Object: types.NamespacedName{Name: "m"}}
	}
	draining := &v1alpha1.NodeMaintenance{Status: v1alpha1.NodeMaintenanceStatus{StageStatuses: []v1alpha1.StageStatus{{
		Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(now),
	}}}}
	r := &Reconciler{Recorder: tracing.NewRecorder(t.Context(), nil)}
	for _, each := range []workload.Request{request("deleted"), request("other")} {
		r.statuses.Record(each, now)
		r.created.recordObserved(each, "pod", false)
		g.Expect(r.Recorder.RecordDrained(each, history.Trace{}, draining, now)).NotTo(BeNil())
	}
	r.forgetDeleted(workload.Change{Cluster: request("other").Cluster, Type: workload.WatchEnded})
	r.forgetDeleted(workload.Change{Cluster: request("deleted").Cluster, Type: workload.ClusterDeleted})
	g.Expect(r.statuses.FairInterval(now, nil)).To(Equal(time.Second/10), "that of one NodeMaintenance")
	g.Expect(r.created.wasObserved(request("deleted"), "pod")).To(BeFalse())
	g.Expect(r.created.wasObserved(request("other"), "pod")).To(BeTrue())
	g.Expect(r.Recorder.RecordDrained(request("deleted"), history.Trace{}, draining, now)).NotTo(BeNil(), "its drain is not known")
	g.Expect(r.Recorder.RecordDrained(request("other"), history.Trace{}, draining, now)).To(BeNil(), "it was recorded before")
}

func TestMaintenanceThatVanishedWithoutEvent(t *testing.T) {
	for name, after := range map[string]workload.ChangeType{
		"E37: what is kept of a NodeMaintenance that vanished before a new connection is removed": workload.WatchesAdded,
		"E37: what is kept of a NodeMaintenance that vanished in a pause is removed":              workload.Resumed,
	} {
		t.Run(name, func(t *testing.T) {
			g, now, cluster := NewWithT(t), time.Now(), types.NamespacedName{Namespace: "fleet", Name: t.Name()}
			completed := func(name string) *v1alpha1.NodeMaintenance {
				m := maintenanceOf(name, "gone")
				m.Spec.Stage, m.Finalizers = v1alpha1.StageComplete, []string{v1alpha1.MaintenanceCompletionFinalizer}
				m.Status.Outcome = &v1alpha1.DrainOutcome{
					EndTime: metav1.NewTime(now.Add(-time.Hour)), ReadTime: new(metav1.NewTime(now.Add(-time.Minute))), Pods: v1alpha1.EvictedPods{Evicted: 1, Pending: 1},
				}
				return m
			}
			writes, vanished := 0, completed("vanished")
			remote := withMaintenancesBuilder(vanished, completed("present")).WithStatusSubresource(vanished).
				WithInterceptorFuncs(beforeStatusPatch(func(client.Object) error {
					writes++
					return nil
				})).Build()
			request := func(name string) workload.Request {
				return workload.Request{Cluster: cluster, Object: types.NamespacedName{Name: name}}
			}
			reconcile := func(r *Reconciler, names ...string) {
				for _, name := range names {
					_, err := r.Reconcile(t.Context(), request(name))
					g.Expect(err).NotTo(HaveOccurred())
				}
			}
			reconcile(reconcilerOf(t, remote, cluster), "vanished", "present")
			restarted := reconcilerOf(t, remote, cluster)
			writes = 0
			reconcile(restarted, "vanished", "present")
			g.Expect(writes).To(BeZero(), "what has been written is remembered anyway")
			g.Expect(fakes.Gauge(t, "capnm_pods_without_place", cluster.Name)).To(BeEquivalentTo(2))

			g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(vanished), vanished)).To(Succeed())
			vanished.Finalizers = nil
			g.Expect(remote.Update(t.Context(), vanished)).To(Succeed())
			g.Expect(remote.Delete(t.Context(), vanished)).To(Succeed())
			queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[workload.Request]())
			restarted.enqueue(t.Context(), queue, workload.Change{Cluster: types.NamespacedName{Namespace: "fleet", Name: "other"}, Type: after})
			g.Expect(queue.Len()).To(BeZero())
			restarted.enqueue(t.Context(), queue, workload.Change{Cluster: cluster, Type: after})
			g.Expect(queue.Len()).To(Equal(2))
			for range 2 {
				next, _ := queue.Get()
				reconcile(restarted, next.Object.Name)
			}
			g.Expect(restarted.remembered(cluster)).To(ConsistOf(types.NamespacedName{Name: "present"}))
			g.Expect(fakes.Gauge(t, "capnm_pods_without_place", cluster.Name)).To(BeEquivalentTo(1))
			restarted.forgetDeleted(workload.Change{Cluster: cluster, Type: workload.ClusterDeleted})
			g.Expect(restarted.remembered(cluster)).To(BeEmpty())
		})
	}
}

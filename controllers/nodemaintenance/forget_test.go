package nodemaintenance

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/cluster-api/controllers/clustercache"

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
			g, now := NewWithT(t), time.Now()
			cluster, other := types.NamespacedName{Namespace: "fleet", Name: "c"}, types.NamespacedName{Namespace: "fleet", Name: "other"}
			remote := fakes.Client(maintenanceOf("present", "one"))
			r := &Reconciler{
				Clusters: clustersWith(clustercache.NewFakeClusterCache(remote, cluster), cluster), Recorder: tracing.NewRecorder(t.Context(), nil),
				Clock: clock.RealClock{},
			}
			of := func(cluster types.NamespacedName, name string) workload.Request {
				return workload.Request{Cluster: cluster, Object: types.NamespacedName{Name: name}}
			}
			for _, each := range []workload.Request{of(cluster, "reported"), of(cluster, "present"), of(other, "reported")} {
				r.statuses.Record(each, now)
			}
			for _, each := range []workload.Request{of(cluster, "created"), of(cluster, "reported"), of(other, "created")} {
				r.created.recordObserved(each, "pod", false)
			}
			queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[workload.Request]())
			r.enqueue(t.Context(), queue, workload.Change{Cluster: cluster, Type: after})
			g.Expect(queue.Len()).To(Equal(3))
			for range 3 {
				request, _ := queue.Get()
				if request != of(cluster, "present") {
					_, err := r.Reconcile(t.Context(), request)
					g.Expect(err).NotTo(HaveOccurred())
				}
			}
			g.Expect(r.remembered(cluster)).To(ConsistOf(types.NamespacedName{Name: "present"}))
			g.Expect(r.remembered(other)).To(HaveLen(2))
		})
	}
}

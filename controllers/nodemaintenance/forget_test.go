package nodemaintenance

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
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

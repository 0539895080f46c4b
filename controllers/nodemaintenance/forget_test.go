package nodemaintenance

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
)

func TestClusterIsForgotten(t *testing.T) {
	g := NewWithT(t)
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	request := func(cluster string) workload.Request {
		return workload.Request{Cluster: types.NamespacedName{Namespace: "fleet", Name: cluster}, Object: types.NamespacedName{Name: "m"}}
	}
	r := &Reconciler{Recorder: tracing.NewRecorder(t.Context(), nil)}
	for _, each := range []workload.Request{request("deleted"), request("other")} {
		r.statuses.Record(each, now)
		r.created.recordObserved(each, "pod")
	}
	r.forgetDeleted(workload.Change{Cluster: request("other").Cluster, Type: workload.WatchEnded})
	r.forgetDeleted(workload.Change{Cluster: request("deleted").Cluster, Type: workload.ClusterDeleted})
	g.Expect(r.statuses.FairInterval(now, nil)).To(Equal(time.Second/10), "that of one NodeMaintenance")
	g.Expect(r.created.wasObserved(request("deleted"), "pod")).To(BeFalse())
	g.Expect(r.created.wasObserved(request("other"), "pod")).To(BeTrue())
}

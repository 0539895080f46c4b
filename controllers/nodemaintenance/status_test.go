package nodemaintenance

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
)

func TestInterval(t *testing.T) {
	g := NewWithT(t)
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	request := func(cluster, name string) workload.Request {
		return workload.Request{Cluster: types.NamespacedName{Name: cluster}, Object: types.NamespacedName{Name: name}}
	}
	r := &Reconciler{}
	s := &scope{request: request("a", "one"), now: now, before: &v1alpha1.NodeMaintenance{}, maintenance: &v1alpha1.NodeMaintenance{}}
	for i := range 500 {
		r.statuses.Record(request("b", string(rune('a'+i))), now)
	}
	g.Expect(r.interval(s)).To(Equal(statusInterval), "writes to another workload cluster do not count")
	for i := range 500 {
		r.statuses.Record(request("a", string(rune('a'+i))), now)
	}
	g.Expect(r.interval(s)).To(Equal(50 * time.Second))
	s.maintenance.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "one"}, DrainTargets: []v1alpha1.DrainTarget{{PodType: v1alpha1.PodTypeDefault}}}}
	g.Expect(r.interval(s)).To(Equal(statusInterval), "other components act on drain targets")
}

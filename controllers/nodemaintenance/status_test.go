package nodemaintenance

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

func TestStartStages(t *testing.T) {
	created := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct{ now, want time.Time }{
		"M65: records the start of a stage": {created.Add(90 * time.Second), created.Add(90 * time.Second)},
		"M65: records no start before the creation of the NodeMaintenance, if the manager's clock is behind": {created.Add(-time.Hour), created},
	} {
		t.Run(name, func(t *testing.T) {
			m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
			startStages(m, tc.now)
			NewWithT(t).Expect(*m.StageStart(v1alpha1.StageDrain)).To(BeTemporally("==", tc.want))
		})
	}
}

package evacuation

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

func TestForget(t *testing.T) {
	cluster, now := types.NamespacedName{Namespace: "ns", Name: "c1"}, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	pod := budgets.Pod{UID: "web", Namespace: "ns", Name: "web", Node: "one"}
	t.Run("E38: the evictor remembers an eviction in flight while nothing is observed, and the Pod until its eviction is observed", func(t *testing.T) {
		g := NewWithT(t)
		v := &Evictor{records: map[types.NamespacedName]*record{}}
		r := v.recordOf(cluster)
		g.Expect(r.inFlight.start(pod, now)).To(BeTrue())
		g.Expect(v.disconnect(cluster, now).RequeueAfter).To(BeZero(), "the end of the eviction tells")
		g.Expect(v.recordOf(cluster)).To(BeIdenticalTo(r))
		r.inFlight.end(pod.UID)
		r.backOff(pod.UID, now.Add(watchLag))
		g.Expect(v.disconnect(cluster, now).RequeueAfter).To(Equal(watchLag))
		g.Expect(v.recordOf(cluster)).To(BeIdenticalTo(r))
		g.Expect(v.disconnect(cluster, now.Add(watchLag)).RequeueAfter).To(BeZero())
		g.Expect(v.records).To(BeEmpty())
		g.Expect(v.disconnect(cluster, now).RequeueAfter).To(BeZero())
	})
}

func TestHasCordoned(t *testing.T) {
	g := NewWithT(t)
	before, after := &v1alpha1.NodeMaintenance{}, &v1alpha1.NodeMaintenance{}
	after.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceCordoned, Status: metav1.ConditionTrue}}
	update := func(from, to *v1alpha1.NodeMaintenance) bool {
		return hasCordoned().Update(event.TypedUpdateEvent[*v1alpha1.NodeMaintenance]{ObjectOld: from, ObjectNew: to})
	}
	g.Expect(update(before, after)).To(BeTrue())
	g.Expect(update(before, before)).To(BeFalse())
	g.Expect(update(after, after)).To(BeFalse())
	g.Expect(update(after, before)).To(BeFalse())
	g.Expect(hasCordoned().Create(event.TypedCreateEvent[*v1alpha1.NodeMaintenance]{Object: after})).To(BeFalse(), "that is for termsChanged to pass")
	g.Expect(hasCordoned().Delete(event.TypedDeleteEvent[*v1alpha1.NodeMaintenance]{Object: after})).To(BeFalse())
	g.Expect(hasCordoned().Generic(event.TypedGenericEvent[*v1alpha1.NodeMaintenance]{Object: after})).To(BeFalse())
}

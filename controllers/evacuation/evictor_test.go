package evacuation

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

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

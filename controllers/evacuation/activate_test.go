package evacuation

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestActivationWhileTheWatchLags(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	pod := evacuation.Pod{Known: true, Exists: true, Type: v1alpha1.PodTypeDefault}
	for name, tc := range map[string]struct {
		reported func(*v1alpha1.EvacuationStatus) // by the first evacuator since the Evacuation was observed
		check    func(g Gomega, stored *v1alpha1.Evacuation)
	}{
		"E12: an evacuator has not completed because the one before it has, so the Pod is not evicted before it has acted": {
			func(s *v1alpha1.EvacuationStatus) { s.ActiveEvacuatorCompleted = true },
			func(g Gomega, stored *v1alpha1.Evacuation) {
				next := evacuation.Next(evacuation.Input{Evacuation: stored, Pod: pod, Now: now})
				g.Expect(next.Kind).NotTo(Equal(evacuation.Evict), "%s", next.Message)
			},
		},
		"E12: an evacuator that has reported progress within the deadline is not replaced": {
			func(s *v1alpha1.EvacuationStatus) {
				s.EvacuationProgressTimestamp = new(metav1.NewTime(now.Add(-time.Second)))
			},
			func(g Gomega, stored *v1alpha1.Evacuation) { g.Expect(stored.ActiveEvacuator()).To(Equal("first")) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			observed := &v1alpha1.Evacuation{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "ns", Name: "e", UID: "uid", Finalizers: []string{v1alpha1.NodeMaintenanceInstigatorFinalizer},
					CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
				},
				Spec: v1alpha1.EvacuationSpec{
					ProgressDeadlineSeconds: 600, Evacuators: []v1alpha1.Evacuator{{EvacuatorClass: "first", Priority: 2}, {EvacuatorClass: "second", Priority: 1}},
				},
			}
			observed.Status.ActiveEvacuatorClass = new("first")
			observed.Status.EvacuationProgressTimestamp = new(metav1.NewTime(now.Add(-10 * time.Minute)))
			stored := observed.DeepCopy()
			tc.reported(&stored.Status)
			server := fakes.Builder().WithStatusSubresource(observed).WithObjects(stored).Build()
			observed.ResourceVersion = "1"
			action := evacuation.Next(evacuation.Input{Evacuation: observed, Pod: pod, Now: now})
			g.Expect(action.Kind).To(Equal(evacuation.Activate))

			r := &Reconciler{Written: expectations.New[*v1alpha1.Evacuation](t.Context(), workload.Trim)}
			if err := r.store(t.Context(), &scope{client: server, evacuation: observed}, action, now); err != nil {
				g.Expect(apierrors.IsConflict(errors.Cause(err))).To(BeTrue(), "%v", err)
			}
			g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(observed), stored)).To(Succeed())
			tc.check(g, stored)
		})
	}
}

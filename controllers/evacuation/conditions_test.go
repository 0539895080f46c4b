package evacuation

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestConditionsWhileTheWatchLags(t *testing.T) {
	t.Run("E17: a condition that an evacuator has just reported is not removed with the condition Evicting", func(t *testing.T) {
		g, now := NewWithT(t), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		observed := &v1alpha1.Evacuation{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "e", UID: "uid", Finalizers: []string{v1alpha1.NodeMaintenanceInstigatorFinalizer},
				CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
			},
			Spec: v1alpha1.EvacuationSpec{ProgressDeadlineSeconds: 600, Evacuators: []v1alpha1.Evacuator{{EvacuatorClass: "mover.example.com", Priority: 1}}},
		}
		observed.Status.ActiveEvacuatorClass = new("mover.example.com")
		observed.Status.EvacuationProgressTimestamp = new(metav1.NewTime(now.Add(-time.Second))) // late progress stops the eviction
		observed.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.EvacuationEvicting, Status: metav1.ConditionTrue, Reason: "EvacuatorUnresponsive", LastTransitionTime: metav1.NewTime(now),
		}}
		stored := observed.DeepCopy()
		moved := metav1.Condition{Type: "Moved", Status: metav1.ConditionFalse, Reason: "NoTarget", LastTransitionTime: metav1.NewTime(now)}
		stored.Status.Conditions = append(stored.Status.Conditions, moved)
		stored.Status.ActiveEvacuatorCompleted = true
		server := fakes.Builder().WithStatusSubresource(observed).WithObjects(stored).Build()
		observed.ResourceVersion = "1"
		action := evacuation.Next(evacuation.Input{Evacuation: observed, Pod: evacuation.Pod{Known: true, Exists: true, Type: v1alpha1.PodTypeDefault}, Now: now})
		g.Expect(action.Kind).To(Equal(evacuation.AwaitEvacuator))
		r := &Reconciler{Written: expectations.New[*v1alpha1.Evacuation](t.Context(), workload.Trim)}
		if err := r.store(t.Context(), &scope{client: server, evacuation: observed}, action, now); err != nil {
			g.Expect(apierrors.IsConflict(errors.Cause(err))).To(BeTrue(), "%v", err)
		}
		g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(observed), stored)).To(Succeed())
		g.Expect(meta.FindStatusCondition(stored.Status.Conditions, moved.Type)).NotTo(BeNil())
	})
}

func TestEndWhileTheWatchLags(t *testing.T) {
	t.Run("E31: the Evacuation of a Pod that has finished ends, although its evacuator has written the status since it was observed", func(t *testing.T) {
		g, now := NewWithT(t), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		observed := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "e", UID: "uid"}}
		observed.Status.ActiveEvacuatorClass = new("mover.example.com")
		observed.Status.EvacuationCancellationPolicy = v1alpha1.CancellationForbid
		stored := observed.DeepCopy()
		stored.Status.Message = "moving"
		server := fakes.Builder().WithStatusSubresource(observed).WithObjects(stored).Build()
		observed.ResourceVersion = "1"
		action := evacuation.Next(evacuation.Input{Evacuation: observed, Pod: evacuation.Pod{Known: true, Exists: true, Finished: true}, Now: now})
		g.Expect(action.Kind).To(Equal(evacuation.Finish))
		r := &Reconciler{Written: expectations.New[*v1alpha1.Evacuation](t.Context(), workload.Trim)}
		g.Expect(r.store(t.Context(), &scope{client: server, evacuation: observed}, action, now)).To(Succeed())
		g.Expect(apierrors.IsNotFound(server.Get(t.Context(), client.ObjectKeyFromObject(observed), stored))).To(BeTrue())
	})
}

package machinedrainpolicy

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestLongestWaits(t *testing.T) {
	t.Run("M34: lists the five Machines that were deleted first", func(t *testing.T) {
		now := metav1.Now()
		var draining []*clusterv1.Machine
		for i := range 9 {
			m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m%d", i), DeletionTimestamp: &now}}
			m.Status.Conditions = []metav1.Condition{{
				Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonWaitingForTurn, Message: "waiting",
			}}
			draining = append(draining, m)
		}
		draining[1].Status.Conditions = nil
		waits, result := (&Reconciler{}).longestWaits(t.Context(), draining, nil)
		if !result.IsZero() {
			t.Fatalf("got %v", result)
		}
		var names []string
		for _, wait := range waits {
			names = append(names, wait.Machine)
		}
		if got := strings.Join(names, " "); got != "m0 m2 m3 m4 m5" {
			t.Errorf("got %s", got)
		}
	})
}

// delays records after how long objects are added to a queue.
type delays struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	all []time.Duration
}

func (d *delays) AddAfter(_ reconcile.Request, after time.Duration) { d.all = append(d.all, after) }

func TestEvents(t *testing.T) {
	t.Run("M34: a change of what drains wait for is written after ten seconds, also if the policy's status has just been written", func(t *testing.T) {
		queue := &delays{}
		policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "p"}}
		before := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "m", ResourceVersion: "1"}}
		after := before.DeepCopy()
		after.ResourceVersion = "2"
		after.Status.Conditions = []metav1.Condition{{Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonMachineDraining}}
		r := &Reconciler{Client: fakes.Builder(policy).Build()}
		r.policiesOfNamespace().Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, queue)
		statusChanged().Update(t.Context(), event.UpdateEvent{ObjectOld: policy, ObjectNew: policy}, queue)
		NewWithT(t).Expect(queue.all).To(Equal([]time.Duration{10 * time.Second, 10 * time.Second}))
	})
}

func TestStatusAlthoughAWorkloadClusterFails(t *testing.T) {
	t.Run("M103, M111: the policy is observed although what blocks a drain cannot be read, and the last known wait stays", func(t *testing.T) {
		g, now := NewWithT(t), metav1.Now()
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c"}}
		machine := &clusterv1.Machine{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "fleet", Name: "m", DeletionTimestamp: &now, Finalizers: []string{"cluster.x-k8s.io/machine"},
				Annotations: map[string]string{v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner},
			},
			Spec: clusterv1.MachineSpec{ClusterName: cluster.Name},
		}
		machine.Status.NodeRef.Name = "one"
		machine.Status.Conditions = []metav1.Condition{{Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonMachineDraining}}
		policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "p", Generation: 2}}
		policy.Status.LongestWaits = []v1alpha1.DrainWait{{Machine: "m", Cluster: "c", Reason: v1alpha1.ReasonMachineDraining, Message: "budget"}}
		remote := fakes.Builder().WithInterceptorFuncs(interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return errors.New("x509: certificate has expired")
			},
		}).Build()
		management := fakes.Builder(cluster, machine, policy).WithStatusSubresource(policy).Build()
		connected := clustercache.NewFakeClusterCache(remote, client.ObjectKeyFromObject(cluster))
		r := &Reconciler{Client: management, Clock: clock.RealClock{}}
		r.Clusters = workload.NewClusters(management, connected, fakes.Scheme(), workload.Limits{}, r.Clock)
		result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(policy)})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.RequeueAfter).To(Equal(settleWaits))
		g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(policy), policy)).To(Succeed())
		g.Expect(policy.Status.ObservedGeneration).To(Equal(int64(2)))
		g.Expect(policy.Status.ActiveDrains).To(Equal(int32(1)))
		g.Expect(policy.Status.LongestWaits).To(ConsistOf(HaveField("Message", "budget")))
	})
}

func TestStatusThatAProxyAnswers(t *testing.T) {
	t.Run("M109, M111: a write of the status that a proxy answers with 404 fails, so that it is repeated", func(t *testing.T) {
		policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "p", Generation: 2}}
		proxy := apierrors.NewGenericServerResponse(http.StatusNotFound, "patch", schema.GroupResource{}, policy.Name, "404 page not found", 0, true)
		management := fakes.Builder(policy).WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
				return proxy
			},
		}).Build()
		r := &Reconciler{Client: management, Clock: clock.RealClock{}}
		_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(policy)})
		NewWithT(t).Expect(err).To(MatchError(proxy))
	})
}

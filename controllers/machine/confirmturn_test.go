package machine

import (
	"context"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// The API server of the management cluster does not answer when the Machines are listed.
func TestTurnThatCannotBeConfirmed(t *testing.T) {
	for name, tc := range map[string]struct {
		waited bool  // the Machine has recorded that it waits for a turn
		answer error // nil: the list is cut off
		lost   bool  // the workload cluster does not answer, either
		paused bool  // between the first reconciliation and the last
	}{
		"M93: a Machine that has waited waits on, and its condition does not blame the workload cluster": {waited: true},
		"M93: a Machine that has not recorded yet that it waits is not released":                         {},
		"M93: neither is it if the API server answers with an error":                                     {answer: apierrors.NewInternalError(io.ErrUnexpectedEOF)},
		"M93: a Machine that has waited waits on in an outage, and its condition names both":             {waited: true, lost: true},
		"M93: the condition names no error that has just begun again after a pause":                      {waited: true, paused: true},
	} {
		t.Run(name, func(t *testing.T) {
			g, start := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
			machines := deletedWorkers(start, "a", "b")
			drains, waits := machines[0], machines[1]
			waits.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](60)
			if tc.waited {
				waits.Annotations[v1alpha1.WaitingForTurnAnnotation] = start.Add(-time.Hour).Format(time.RFC3339)
			}
			remote := workloadCluster(machines...).WithObjects(drainOf(drains, start.Add(-2*time.Minute))).Build()
			management := managementCluster(machines...).WithObjects(policyWithLimit(intstr.FromInt32(1))).Build()
			state := clustercache.HealthCheckingState{LastProbeTime: start, LastProbeSuccessTime: start}
			if tc.lost {
				state = clustercache.HealthCheckingState{LastProbeTime: start, LastProbeSuccessTime: start.Add(-time.Minute), ConsecutiveFailures: 5}
			}
			cache := disconnected{clustercache.NewFakeClusterCache(remote, clusterKey), state}
			r := newReconciler(t, management, cache, clocktesting.NewFakePassiveClock(start))
			r.APIReader = answering{interceptor.NewClient(management, interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					if _, is := list.(*clusterv1.MachineList); is && tc.answer != nil {
						return tc.answer
					} else if is {
						return &url.Error{Op: "Get", URL: "https://management.example/apis/cluster.x-k8s.io/v1beta2/machines", Err: io.ErrUnexpectedEOF}
					}
					return c.List(ctx, list, options...)
				},
			})}
			infrastructureExists(r, waits)
			for after := time.Duration(0); after <= 3*time.Minute; after += 5 * time.Second {
				if delete(waits.Annotations, clusterv1.PausedAnnotation); tc.paused && after > 0 && after < 3*time.Minute {
					waits.Annotations[clusterv1.PausedAnnotation] = ""
				}
				g.Expect(management.Update(t.Context(), waits)).To(Succeed())
				g.Expect(reconcileAt(t, r, waits, start.Add(after))).To(Succeed())
				g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(waits), waits)).To(Succeed())
				g.Expect(waits.Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation), "released undrained")
				if tc.waited && !tc.lost {
					g.Expect(conditions.GetReason(waits, v1alpha1.MachineNodeMaintenance)).To(Equal(v1alpha1.ReasonWaitingForTurn))
				}
			}
			message := conditions.GetMessage(waits, v1alpha1.MachineNodeMaintenance)
			isNamed := strings.Contains(message, "Waiting for the API server of the management cluster to confirm the turn of the Machine: ")
			g.Expect(isNamed).NotTo(Equal(tc.paused), message)
			g.Expect(strings.Contains(message, machinedrain.WaitingForConnection)).To(Equal(tc.lost))
		})
	}
}

// answersProbes is a ClusterCache whose last health probe has succeeded a second ago.
type answersProbes struct {
	clustercache.ClusterCache
	clock *clocktesting.FakePassiveClock
}

func (c answersProbes) GetHealthCheckingState(context.Context, client.ObjectKey) clustercache.HealthCheckingState {
	at := c.clock.Now().Add(-time.Second)
	return clustercache.HealthCheckingState{LastProbeTime: at, LastProbeSuccessTime: at}
}

// TestRequestThatIsCutOff: a proxy, or an API server whose handler panics, cuts off one kind of request at once, and answers all health
// probes, between the attempts.
func TestRequestThatIsCutOff(t *testing.T) {
	t.Run("M57: the condition names the request, and no lost connection", func(t *testing.T) {
		g, start := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
		machine := deletedWorkers(start, "m")[0]
		remote := workloadCluster(machine).
			WithInterceptorFuncs(interceptor.Funcs{
				Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
					return &url.Error{Op: "Post", URL: "https://workload.example/apis/maintenance.cluster.x-k8s.io/v1alpha1/nodemaintenances", Err: io.EOF}
				},
			}).Build()
		policy := policyForAll()
		management, now := managementCluster(machine).WithObjects(policy).Build(), clocktesting.NewFakePassiveClock(start)
		r := newReconciler(t, management, answersProbes{clustercache.NewFakeClusterCache(remote, clusterKey), now}, now)
		infrastructureExists(r, machine)
		for after := time.Duration(0); after <= 5*time.Minute; after += contactRetry {
			_ = reconcileAt(t, r, machine, start.Add(after))
		}
		g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
		g.Expect(conditions.GetReason(machine, v1alpha1.MachineNodeMaintenance)).To(Equal(v1alpha1.ReasonReconcileFailed))
		g.Expect(conditions.GetMessage(machine, v1alpha1.MachineNodeMaintenance)).To(ContainSubstring("EOF"))
	})
}

// TestMachineThatCannotBePatched: the API server of the management cluster refuses each change of a Machine but those of its status,
// because its stored spec is invalid for a newer validation, for example.
func TestMachineThatCannotBePatched(t *testing.T) {
	for name, waits := range map[string]bool{
		"M39: the condition names the error, although the clock of the drain cannot be recorded":                             false,
		"M93: it does not if only the condition says that the Machine waits for a turn: a drain timeout must not release it": true,
	} {
		t.Run(name, func(t *testing.T) {
			g, start := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
			machine := deletedWorkers(start, "m")[0]
			machine.DeletionTimestamp = ptr.To(metav1.NewTime(start.Add(-time.Minute)))
			machine.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](3600)
			if waits {
				conditions.Set(machine, metav1.Condition{
					Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonWaitingForTurn, LastTransitionTime: metav1.NewTime(start),
				})
			}
			remote := workloadCluster(machine).WithObjects(drainOf(machine, start)).Build()
			policy := policyForAll()
			management := managementCluster(machine).WithObjects(policy).
				WithInterceptorFuncs(interceptor.Funcs{
					Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
						return apierrors.NewInvalid(clusterv1.GroupVersion.WithKind("Machine").GroupKind(), "m", nil)
					},
				}).Build()
			now := clocktesting.NewFakePassiveClock(start)
			r := newReconciler(t, management, answersProbes{clustercache.NewFakeClusterCache(remote, clusterKey), now}, now)
			infrastructureExists(r, machine)
			for after := time.Duration(0); after <= time.Minute; after += contactRetry {
				_ = reconcileAt(t, r, machine, start.Add(after))
			}
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
			if waits {
				g.Expect(conditions.GetReason(machine, v1alpha1.MachineNodeMaintenance)).To(Equal(v1alpha1.ReasonWaitingForTurn))
				return
			}
			g.Expect(conditions.GetReason(machine, v1alpha1.MachineNodeMaintenance)).To(Equal(v1alpha1.ReasonReconcileFailed))
			g.Expect(conditions.GetMessage(machine, v1alpha1.MachineNodeMaintenance)).To(ContainSubstring("is invalid"))
		})
	}
}

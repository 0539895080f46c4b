package machine

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/setaside"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// disconnected is a ClusterCache without a connection.
type disconnected struct {
	clustercache.ClusterCache
	state clustercache.HealthCheckingState
}

func (d disconnected) GetHealthCheckingState(context.Context, client.ObjectKey) clustercache.HealthCheckingState {
	return d.state
}

func TestWithoutConnection(t *testing.T) {
	now := time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) string { return now.Add(-d).Format(time.RFC3339) }
	hasFailed := clustercache.HealthCheckingState{LastProbeTime: now, ConsecutiveFailures: 1}
	hadFailed := clustercache.HealthCheckingState{LastProbeTime: now.Add(-time.Second), ConsecutiveFailures: 1}
	wasLost := clustercache.HealthCheckingState{LastProbeTime: now, LastProbeSuccessTime: now.Add(-20 * time.Second), ConsecutiveFailures: 2}
	var notTried clustercache.HealthCheckingState
	waits := map[string]string{v1alpha1.WaitingForTurnAnnotation: ago(50 * time.Minute)}
	for _, tc := range []struct {
		name                  string
		state                 clustercache.HealthCheckingState
		records               map[string]string
		reason                string // of the Machine's condition
		fails                 bool   // the infrastructure machine cannot be read
		brief                 bool   // it fails for the first time
		inPlace               bool
		nodeUnknown           bool
		unconnected           bool // all the time while it is blind
		notCopied             bool // the provider ID of the infrastructure machine
		volumeTimeout         *int32
		withoutInfrastructure bool          // of the Cluster
		blindFor              time.Duration // for how long this process has not been able to observe the drain
		unread                bool          // a policy cannot be decoded
		held                  bool          // by a hook of another owner
		limited               bool          // the policy has maxParallelDrains
		released              bool
		excludes              []string // what Cluster API does not repeat then
		wants                 string   // the reason of the Machine's condition then
	}{
		{name: "M92: keeps a Machine that waits for a turn, after a restart", state: notTried, records: waits},
		{name: "M92: keeps a Machine that waits for a turn, after a restart from an earlier version", state: notTried, reason: v1alpha1.ReasonWaitingForTurn},
		{name: "M92: keeps a Machine that waits for a turn, after the first failed attempt to connect", state: hasFailed, records: waits},
		{name: "M92: keeps a Machine that waits for a turn, in an outage", state: wasLost, records: waits},
		{name: "M92: keeps a Machine that only its condition says to wait, in an outage", state: wasLost, reason: v1alpha1.ReasonWaitingForTurn},
		{name: "M92: keeps a Machine that waits for a turn, while admission fails", state: wasLost, records: waits, fails: true},
		{name: "M92: keeps a Machine that was deleted while no manager ran", state: notTried},
		{
			name: "M92: keeps a Machine whose drain has begun, while its Cluster has no status after a move", state: notTried, withoutInfrastructure: true,
			records: map[string]string{v1alpha1.DrainStartedAnnotation: ago(2 * time.Minute)},
		},
		{
			name: "M93: gets no turn in the first minute in which its Cluster has no status", state: notTried, withoutInfrastructure: true,
			records: map[string]string{v1alpha1.WaitingForTurnAnnotation: ago(50 * time.Minute), v1alpha1.DrainBlockedAnnotation: ago(50 * time.Minute)},
			reason:  v1alpha1.ReasonWaitingForTurn,
		},
		{name: "M92: keeps it after the first failed attempt to connect", state: hasFailed},
		{name: "M92: keeps a Machine whose Node is unknown, after a restart", state: notTried, nodeUnknown: true},
		{name: "M87: keeps a Machine whose Node is unknown, after the first failed attempt to connect", state: hasFailed, nodeUnknown: true},
		{name: "M128: keeps a Machine whose provider ID only its infrastructure machine has", state: hasFailed, nodeUnknown: true, notCopied: true},
		{
			name: "M87: releases it a minute after the first failed attempt", state: hasFailed, nodeUnknown: true, blindFor: time.Minute, unconnected: true,
			released: true,
		},
		{
			name: "M92: keeps a Machine beyond its recorded drain timeout, after the first failed attempt", state: hasFailed,
			records: map[string]string{v1alpha1.DrainBlockedAnnotation: ago(2 * time.Minute)},
		},
		{
			name: "M92: releases it a minute after the first failed attempt", state: hasFailed,
			records: map[string]string{v1alpha1.DrainBlockedAnnotation: ago(2 * time.Minute)}, blindFor: time.Minute,
			released: true,
		},
		{
			name: "M92: keeps the Machine until another attempt has failed: the workload cluster may have been reachable since the last one", state: hadFailed,
			records: map[string]string{v1alpha1.DrainBlockedAnnotation: ago(2 * time.Minute)}, blindFor: time.Minute,
			wants: v1alpha1.ReasonWaitingForWorkloadCluster,
		},
		{
			name: "M87: keeps the Machine until another attempt has failed", state: hadFailed, nodeUnknown: true, blindFor: time.Minute, unconnected: true,
			wants: v1alpha1.ReasonWaitingForWorkloadCluster,
		},
		{
			name: "M92: a step that fails in between does not start this minute again", state: wasLost, records: waits, fails: true, brief: true,
			blindFor: 50 * time.Second,
		},
		{
			name: "M92: keeps a Machine whose drain has begun, after a restart", state: notTried,
			records: map[string]string{v1alpha1.DrainStartedAnnotation: ago(2 * time.Minute)},
		},
		{
			name: "M92: keeps a Machine whose drain has begun as long as this process has not tried to connect", state: notTried, blindFor: 2 * time.Minute,
			records: map[string]string{v1alpha1.DrainStartedAnnotation: ago(2 * time.Minute)},
		},
		{
			name: "M93: a Machine that waits for a turn gets it after its drain timeout in an outage, and is kept", state: wasLost, records: waits,
			blindFor: 2 * time.Minute,
		},
		{
			name: "M92: keeps a Machine whose drain has begun beyond its drain timeout, after the first failed attempt", state: hasFailed,
			records: map[string]string{v1alpha1.DrainStartedAnnotation: ago(2 * time.Minute)},
		},
		{
			name: "M15: releases a Machine whose drain has begun, at its drain timeout", state: wasLost,
			records: map[string]string{v1alpha1.DrainStartedAnnotation: ago(time.Minute)}, blindFor: time.Minute,
			released: true,
		},
		{
			name: "M94: keeps a Machine whose drain has ended and that waits for volumes without a timeout", state: wasLost, blindFor: 2 * time.Minute,
			records: map[string]string{
				v1alpha1.DrainStartedAnnotation: ago(20 * time.Minute), v1alpha1.DrainEndedAnnotation: ago(20 * time.Minute),
				v1alpha1.VolumeWaitStartedAnnotation: ago(20 * time.Minute),
			},
		},
		{name: "M94: keeps a Machine that was drained in place before it was deleted", state: wasLost, records: map[string]string{
			v1alpha1.DrainStartedAnnotation: ago(20 * time.Minute), v1alpha1.DrainEndedAnnotation: ago(20 * time.Minute),
		}},
		{
			name: "M94: keeps a Machine whose drain has ended after its deletion, and that waits for no volumes", state: wasLost, blindFor: 2 * time.Minute,
			records: map[string]string{
				clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation: "an operator", v1alpha1.DrainStartedAnnotation: ago(20 * time.Minute),
				v1alpha1.DrainEndedAnnotation: ago(10 * time.Minute),
			},
		},
		{
			name: "M94: a drain in place that has ended does not time out in an outage", state: wasLost, inPlace: true, blindFor: 2 * time.Minute,
			records: map[string]string{
				v1alpha1.DrainStartedAnnotation: ago(20 * time.Minute), v1alpha1.DrainEndedAnnotation: ago(20 * time.Minute),
			}, wants: v1alpha1.ReasonWaitingForWorkloadCluster,
		},
		{
			name: "M93: a Machine that was drained in place without a drain timeout, and waits for a turn now, gets the turn and is kept", state: wasLost,
			blindFor: 2 * time.Minute,
			records:  map[string]string{v1alpha1.DrainEndedAnnotation: ago(20 * time.Minute)}, reason: v1alpha1.ReasonWaitingForTurn,
		},
		{
			name: "M106: keeps a Machine that waits for volumes and whose drain timeout was extended meanwhile", state: wasLost, blindFor: 2 * time.Minute,
			records: map[string]string{
				v1alpha1.DrainStartedAnnotation: ago(50 * time.Second), v1alpha1.VolumeWaitStartedAnnotation: ago(40 * time.Second),
			}, volumeTimeout: ptr.To[int32](30),
		},
		{
			name: "M119: leaves the drain to Cluster API if the wait for volumes times out in an outage, because no Pod was confirmed", state: wasLost,
			blindFor: 2 * time.Minute, records: map[string]string{
				v1alpha1.DrainEndedAnnotation: ago(20 * time.Minute), v1alpha1.VolumeWaitStartedAnnotation: ago(20 * time.Minute),
			}, volumeTimeout: ptr.To[int32](30), released: true, excludes: []string{clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation},
		},
		{
			name: "M119: leaves the drain to Cluster API if the wait for volumes times out while admission fails", state: wasLost, fails: true,
			blindFor: 2 * time.Minute, records: map[string]string{
				v1alpha1.DrainStartedAnnotation: ago(30 * time.Minute), v1alpha1.DrainEndedAnnotation: ago(20 * time.Minute),
				v1alpha1.VolumeWaitStartedAnnotation: ago(20 * time.Minute),
			}, volumeTimeout: ptr.To[int32](30), released: true, excludes: []string{clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation},
		},
		{
			name: "M21: releases a Machine whose drain has timed out at the end of the wait for volumes in an outage", state: wasLost, blindFor: 2 * time.Minute,
			records: map[string]string{
				v1alpha1.DrainStartedAnnotation: ago(30 * time.Minute), v1alpha1.VolumeWaitStartedAnnotation: ago(20 * time.Minute),
			}, volumeTimeout: ptr.To[int32](30), released: true,
			excludes: []string{clusterv1.ExcludeNodeDrainingAnnotation, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation},
		},
		{
			name: "M94: the wait for volumes of a drain in place does not count after the deletion, also not in an outage", state: wasLost, blindFor: 2 * time.Minute,
			records: map[string]string{
				v1alpha1.MachineStageAnnotation: string(v1alpha1.StageDrain), v1alpha1.DrainRequestedAnnotation: ago(48*time.Hour) + "/m",
				v1alpha1.DrainStartedAnnotation: ago(48 * time.Hour), v1alpha1.DrainEndedAnnotation: ago(47 * time.Hour),
				v1alpha1.VolumeWaitStartedAnnotation: ago(47 * time.Hour),
			}, volumeTimeout: ptr.To[int32](7200), wants: v1alpha1.ReasonWaitingForWorkloadCluster,
		},
		{
			name: "M98: keeps a Machine that has waited for the workload cluster longer than its drain timeout, while its policy cannot be decoded", state: wasLost,
			unread: true, blindFor: time.Minute,
			records: map[string]string{v1alpha1.DrainBlockedAnnotation: ago(2 * time.Minute)}, wants: v1alpha1.ReasonWaitingForWorkloadCluster,
		},
		{name: "M98: keeps a Machine whose drain has begun, while its policy cannot be decoded", state: wasLost, unread: true, blindFor: time.Minute,
			records: map[string]string{v1alpha1.DrainStartedAnnotation: ago(2 * time.Minute)}, wants: v1alpha1.ReasonWaitingForWorkloadCluster},
		{
			name: "M98: keeps the record that a Machine waits for a turn, while its policy cannot be decoded", state: wasLost, unread: true,
			reason: v1alpha1.ReasonWaitingForTurn,
		},
		{name: "M113: keeps a Machine that is held, beyond its drain timeout", state: wasLost, held: true, blindFor: time.Hour,
			records: map[string]string{v1alpha1.DrainStartedAnnotation: ago(2 * time.Minute)}, wants: v1alpha1.ReasonWaitingForPreDrainHook},
		{
			name: "M113: keeps it after a restart", state: notTried, held: true, records: map[string]string{v1alpha1.DrainHeldAnnotation: ago(time.Hour)},
			wants: v1alpha1.ReasonWaitingForPreDrainHook,
		},
		{name: "M113: keeps it while its policy cannot be decoded", state: wasLost, held: true, unread: true, wants: v1alpha1.ReasonWaitingForPreDrainHook},
		{name: "M113: keeps it while admission fails", state: wasLost, held: true, fails: true, blindFor: time.Hour,
			records: map[string]string{v1alpha1.DrainBlockedAnnotation: ago(2 * time.Minute)}, wants: v1alpha1.ReasonReconcileFailed},
		{
			name: "M113: keeps it while its Node is unknown", state: hasFailed, held: true, nodeUnknown: true, blindFor: time.Hour,
			wants: v1alpha1.ReasonWaitingForPreDrainHook,
		},
		{
			name: "M115: keeps a Machine whose hold has just ended, in an outage", state: wasLost,
			records: map[string]string{v1alpha1.DrainHeldAnnotation: ago(time.Hour)}, wants: v1alpha1.ReasonWaitingForWorkloadCluster,
		},
		{name: "M115: releases it at its drain timeout after the hold", state: wasLost, blindFor: time.Minute, released: true,
			records: map[string]string{v1alpha1.DrainHeldAnnotation: ago(time.Hour), v1alpha1.DrainBlockedAnnotation: ago(time.Minute)}},
		{
			name: "M117: after a hold, a worker whose policy limits drains waits for a turn in an outage, and is kept", state: wasLost, blindFor: 2 * time.Minute,
			limited: true,
			records: map[string]string{v1alpha1.DrainHeldAnnotation: ago(time.Hour), v1alpha1.DrainBlockedAnnotation: ago(2 * time.Minute)},
			wants:   v1alpha1.ReasonWaitingForWorkloadCluster,
		},
		{name: "M84: allows no update in place of a Machine that waits for a turn", state: wasLost, records: waits, inPlace: true, blindFor: 2 * time.Minute},
		{
			name: "M84: allows no update in place of a Machine whose drain cannot be observed", state: wasLost,
			records: map[string]string{v1alpha1.DrainStartedAnnotation: ago(2 * time.Minute)}, inPlace: true, blindFor: 2 * time.Minute,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			cluster := provisionedCluster()
			cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(!tc.withoutInfrastructure)
			policy := policyForAll()
			policy.Spec.InPlaceUpdates = v1alpha1.InPlaceUpdatesDrain
			if tc.limited {
				policy.Spec.MaxParallelDrains = ptr.To(intstr.FromInt32(1))
			}
			machine := &clusterv1.Machine{
				ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "m", UID: "m", Annotations: tc.records, Labels: map[string]string{clusterv1.ClusterNameLabel: "c"}},
				Spec:       clusterv1.MachineSpec{ClusterName: "c", Deletion: clusterv1.MachineDeletionSpec{NodeDrainTimeoutSeconds: ptr.To[int32](60)}},
				Status:     clusterv1.MachineStatus{NodeRef: clusterv1.MachineNodeReference{Name: "node"}},
			}
			machine.Spec.Deletion.NodeVolumeDetachTimeoutSeconds = tc.volumeTimeout
			metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.PreDrainHookAnnotation, v1alpha1.HookOwner)
			if tc.inPlace {
				metav1.SetMetaDataAnnotation(&machine.ObjectMeta, clusterv1.UpdateInProgressAnnotation, "")
				metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.DrainRequestedAnnotation, ago(time.Hour)+"/m")
			} else {
				machine.DeletionTimestamp, machine.Finalizers = ptr.To(metav1.NewTime(now.Add(-time.Hour))), []string{clusterv1.MachineFinalizer}
			}
			if tc.held {
				metav1.SetMetaDataAnnotation(&machine.ObjectMeta, clusterv1.PreDrainDeleteHookAnnotationPrefix+"/approval", "sre")
			}
			if tc.nodeUnknown {
				machine.Status.NodeRef, machine.Spec.ProviderID = clusterv1.MachineNodeReference{}, "cloud://m"
			}
			infraMachine := referenced{providerID: machine.Spec.ProviderID}
			if tc.notCopied {
				machine.Spec.ProviderID = ""
			}
			if tc.reason != "" {
				machine.Status.Conditions = []metav1.Condition{{
					Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: tc.reason, LastTransitionTime: metav1.NewTime(now),
				}}
			}
			management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(cluster, policy, machine, controlPlaneMachine()).
				WithStatusSubresource(machine).Build()
			r := newReconciler(t, management, disconnected{clustercache.NewFakeEmptyClusterCache(), tc.state}, clocktesting.NewFakePassiveClock(now))
			if tc.unread {
				r.Maintenances.Unread = unreadPolicy(t, "a-first")
			}
			r.references.Set(client.ObjectKeyFromObject(cluster), cluster.UID+"/kubeconfig", referenced{}, time.Hour)
			if tc.fails {
				r.APIReader = interceptor.NewClient(management, interceptor.Funcs{
					Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
						return errors.New("the conversion webhook does not answer")
					},
				})
				if !tc.brief {
					r.memoryOf(machine).failure = workload.Failure{Since: now.Add(-time.Minute), Err: errors.New("as before")}
				}
			} else {
				r.references.Set(types.NamespacedName{Namespace: machine.Namespace}, machine.UID, infraMachine, time.Hour)
			}
			if tc.blindFor > 0 {
				r.blocked.Store(client.ObjectKeyFromObject(machine), block{since: now.Add(-tc.blindFor)})
			}
			if tc.unconnected {
				r.memoryOf(machine).unconnected = now.Add(-tc.blindFor)
			}
			_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(machine)})
			if !tc.fails {
				g.Expect(err).NotTo(HaveOccurred())
			}
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
			if tc.released {
				g.Expect(machine.Annotations).NotTo(HaveKey(v1alpha1.PreDrainHookAnnotation))
				if tc.excludes != nil {
					g.Expect(slices.Sorted(maps.Keys(machine.Annotations))).To(Equal(tc.excludes))
					isDrained := slices.Contains(tc.excludes, clusterv1.ExcludeNodeDrainingAnnotation)
					g.Expect(strings.Contains(conditions.GetMessage(machine, v1alpha1.MachineNodeMaintenance), machinedrain.DrainedByClusterAPI)).NotTo(Equal(isDrained))
				}
				return
			}
			g.Expect(machine.Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation))
			if tc.held {
				g.Expect(r.blockOf(machine).since).To(BeZero(), "the time before the end of the hold does not count")
				g.Expect(machine.Annotations).To(And(HaveKey(v1alpha1.DrainHeldAnnotation), HaveLen(3)))
			} else if tc.blindFor > 0 {
				g.Expect(r.blockOf(machine).since).To(Equal(now.Add(-tc.blindFor)))
			}
			for annotation := range machine.Annotations {
				g.Expect(annotation == clusterv1.ExcludeNodeDrainingAnnotation || strings.HasSuffix(annotation, "/update-allowed")).To(BeFalse(), annotation)
			}
			if tc.unread {
				g.Expect(conditions.GetMessage(machine, v1alpha1.MachineNodeMaintenance)).NotTo(ContainSubstring(machinedrain.WithoutPolicy))
			}
			if tc.wants != "" {
				g.Expect(conditions.GetReason(machine, v1alpha1.MachineNodeMaintenance)).To(Equal(tc.wants))
			}
			if tc.reason != "" && tc.blindFor == 0 { // else it gets a turn
				g.Expect(machine.Annotations).To(HaveKey("maintenance.cluster.x-k8s.io/waiting-for-turn"))
			}
		})
	}
}

// TestReconnectedAfterDrainTimeout: the drain timeout of a Machine passes between two attempts to reach the workload cluster. The second
// one succeeds. Another actor has completed the NodeMaintenance meanwhile, which must be deleted before the Node can be drained.
func TestReconnectedAfterDrainTimeout(t *testing.T) {
	t.Run("M92: if an attempt after the drain timeout succeeds, the Machine waits until 45 s after the last one that failed", func(t *testing.T) {
		g, start := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
		machine, policy := deletedWorkers(start, "m")[0], policyWithLimit(intstr.FromInt32(1))
		machine.Spec.Deletion.NodeDrainTimeoutSeconds, policy.Spec.MaxParallelDrains = new(int32(60)), nil
		machine.Annotations[v1alpha1.DrainStartedAnnotation] = start.Format(time.RFC3339)
		completed := drainOf(machine, start)
		completed.Spec.Stage = v1alpha1.StageComplete
		management := managementCluster(machine).WithObjects(policy).Build()
		connection := &disconnected{ClusterCache: clustercache.NewFakeEmptyClusterCache()}
		r := newReconciler(t, management, connection, clocktesting.NewFakePassiveClock(start))
		r.references.Set(clusterKey, "c/kubeconfig", referenced{}, time.Hour)
		infrastructureExists(r, machine)
		isReleasedAt := func(after time.Duration) bool {
			g.Expect(reconcileAt(t, r, machine, start.Add(after))).To(Succeed())
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
			return !machinedrain.HasHook(machine)
		}
		for _, failed := range []time.Duration{0, 35 * time.Second} {
			connection.state = clustercache.HealthCheckingState{LastProbeTime: start.Add(failed), ConsecutiveFailures: 1}
			g.Expect(isReleasedAt(failed)).To(BeFalse())
		}
		connection.ClusterCache = clustercache.NewFakeClusterCache(workloadCluster(machine).WithObjects(completed).Build(), clusterKey)
		reached := start.Add(70 * time.Second)
		connection.state = clustercache.HealthCheckingState{LastProbeTime: reached, LastProbeSuccessTime: reached}
		g.Expect(isReleasedAt(70*time.Second)).To(BeFalse(), "undrained, with the first attempt that succeeds")
		g.Expect(isReleasedAt(80 * time.Second)).To(BeTrue())
	})
}

// unreadPolicy returns a MachineDrainPolicy that cannot be decoded.
func unreadPolicy(t *testing.T, name string) *setaside.Objects {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"apiVersion":"maintenance.cluster.x-k8s.io/v1alpha1","kind":"MachineDrainPolicyList","metadata":{"resourceVersion":"1"},"items":[`+
			`{"apiVersion":"maintenance.cluster.x-k8s.io/v1alpha1","kind":"MachineDrainPolicy","metadata":{"namespace":"fleet","name":%q},`+
			`"spec":{"maxParallelDrains":3000000000}}]}`, name)
	}))
	t.Cleanup(api.Close)
	unread := setaside.New(types.NamespacedName{}, func(*metav1.PartialObjectMetadata, *setaside.Error) {})
	policies, err := unread.ListerWatcher(setaside.Source{
		Config: &rest.Config{Host: api.URL}, HTTPClient: api.Client(), Scheme: newScheme(), Kinds: []client.Object{&v1alpha1.MachineDrainPolicy{}},
	}, &v1alpha1.MachineDrainPolicy{}, nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	_, err = toolscache.ToListerWatcherWithContext(policies).ListWithContext(t.Context(), metav1.ListOptions{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(unread.List("MachineDrainPolicy", "fleet")).To(HaveLen(1))
	return unread
}

// TestUnusedTurnOfADrainInPlace: a Machine got the turn of its drain in place two days ago, in an outage, or while something else prevented
// the drain. The drain has never begun. Then the Machine is deleted.
func TestUnusedTurnOfADrainInPlace(t *testing.T) {
	now := time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) string { return now.Add(-d).Format(time.RFC3339) }
	request := map[string]string{v1alpha1.MachineStageAnnotation: string(v1alpha1.StageDrain), v1alpha1.DrainRequestedAnnotation: ago(48*time.Hour) + "/m"}
	for name, records := range map[string]map[string]string{
		"that was blocked":           {v1alpha1.DrainBlockedAnnotation: ago(47 * time.Hour)},
		"that has the turn, unused":  {v1alpha1.DrainStartedAnnotation: ago(47 * time.Hour), v1alpha1.DrainBlockedAnnotation: ago(47 * time.Hour)},
		"that waits for a turn":      {v1alpha1.WaitingForTurnAnnotation: ago(47 * time.Hour), v1alpha1.DrainBlockedAnnotation: ago(47 * time.Hour)},
		"whose drain in place ended": {v1alpha1.DrainStartedAnnotation: ago(47 * time.Hour), v1alpha1.DrainEndedAnnotation: ago(46 * time.Hour)},
	} {
		t.Run("M92, M122: the drain timeout of a deleted Machine "+name+" does not count from before the deletion", func(t *testing.T) {
			g := NewWithT(t)
			policy := policyForAll()
			machine := deletedMachine()
			machine.DeletionTimestamp = new(metav1.NewTime(now.Add(-5 * time.Second)))
			machine.Labels = map[string]string{clusterv1.ClusterNameLabel: "c"}
			machine.Spec.Deletion.NodeDrainTimeoutSeconds = new(int32(3600))
			for _, all := range []map[string]string{request, records} {
				maps.Copy(machine.Annotations, all)
			}
			management := managementCluster(machine).WithObjects(policy).Build()
			lost := clustercache.HealthCheckingState{LastProbeTime: now.Add(-time.Second), LastProbeSuccessTime: now.Add(-47 * time.Hour), ConsecutiveFailures: 1000}
			r := newReconciler(t, management, disconnected{clustercache.NewFakeEmptyClusterCache(), lost}, clocktesting.NewFakePassiveClock(now))
			r.references.Set(clusterKey, "c/kubeconfig", referenced{}, time.Hour)
			infrastructureExists(r, machine)
			r.blocked.Store(client.ObjectKeyFromObject(machine), block{since: now.Add(-47 * time.Hour)})
			g.Expect(reconcileAt(t, r, machine, now)).To(Succeed())
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
			g.Expect(machine.Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation), "the Node was never drained, and the Machine is deleted since five seconds")
		})
	}
}

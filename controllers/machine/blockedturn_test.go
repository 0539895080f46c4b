package machine

import (
	"cmp"
	"context"
	"io"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestTurnOfMachineWhoseStepFails(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	answers := clustercache.HealthCheckingState{LastProbeTime: now.Add(-time.Second), LastProbeSuccessTime: now.Add(-time.Second)}
	for name, tc := range map[string]struct {
		limit   int
		timeout int32
		state   clustercache.HealthCheckingState
		policy  bool // can be read
		missing bool // it was deleted
		unasked bool // the step has failed since the Machine was deleted
		waited  bool // the Machine has recorded its limit
		another bool // another policy, without a limit, selects it
		lost    bool // its Node has been unreachable for an hour
		behind  bool // the watch has not delivered yet that the younger Machine has just got a turn
		refused bool // the API server refuses each change of the Machine
		unnamed bool // it has no nodeRef, but the provider ID of a Node
		noNode  bool // no Node has its provider ID
		held    bool // hooks have held its drain before
		unlist  bool // the Nodes cannot be listed
		granted bool
	}{
		"M39: a Machine that waits for a turn, and whose step before the turn fails, gets the turn that comes": {
			limit: 2, timeout: 60, state: answers, policy: true, granted: true,
		},
		"M39: gets one when its drain timeout has passed since the last drain began": {
			limit: 1, timeout: 20, state: answers, policy: true, granted: true,
		},
		"M37: gets none if the API server has another turn that began a moment ago": {
			limit: 1, timeout: 20, state: answers, policy: true, behind: true,
		},
		"M93: also while the workload cluster does not answer": {
			limit: 1, timeout: 14, state: clustercache.HealthCheckingState{LastProbeTime: now, ConsecutiveFailures: 1}, policy: true, behind: true,
		},
		"M93: gets one while it does not, when its drain timeout has passed": {
			limit: 1, timeout: 14, state: clustercache.HealthCheckingState{LastProbeTime: now, ConsecutiveFailures: 1}, policy: true, granted: true,
		},
		"M37: leaves the turn to others if the API server refuses to record it": {limit: 1, timeout: 20, state: answers, policy: true, refused: true},
		"M26: gets none while the limit is reached": {
			limit: 1, timeout: 60, state: answers, policy: true,
		},
		"M39: gets none without a drain timeout, because nothing would end it": {limit: 2, state: answers, policy: true},
		"M93: gets none while the workload cluster does not answer": {
			limit: 2, timeout: 60, state: clustercache.HealthCheckingState{LastProbeTime: now, ConsecutiveFailures: 1}, policy: true,
		},
		"M26: gets none because its policy is missing, maybe for a moment: the others would get theirs as well": {
			limit: 1, timeout: 60, state: answers, policy: true, missing: true,
		},
		"M126: gets one under the limit under which it has waited before": {
			limit: 2, timeout: 60, state: answers, policy: true, missing: true, waited: true, granted: true,
		},
		"M126: gets none while that limit is reached": {
			limit: 1, timeout: 60, state: answers, policy: true, missing: true, waited: true,
		},
		"M126: gets none while its policy may be replaced": {
			limit: 2, timeout: 60, state: answers, policy: true, missing: true, waited: true, another: true,
		},
		"M26: gets none while it is not known whether a policy limits drains": {limit: 2, timeout: 60, state: answers},
		"M39: a Machine whose step has failed since its deletion waits for a turn, beyond its drain timeout": {
			limit: 1, timeout: 60, state: answers, policy: true, unasked: true,
		},
		"M39, M128: so does one without a nodeRef, whose provider ID names its Node": {
			limit: 1, timeout: 60, state: answers, policy: true, unasked: true, unnamed: true,
		},
		"M39, M128: so does one without a nodeRef while the Nodes cannot be read": {
			limit: 1, timeout: 60, state: answers, policy: true, unasked: true, unnamed: true, unlist: true,
		},
		"M39, M128: one without a Node waits for none, so that its drain timeout counts": {
			limit: 1, timeout: 60, state: answers, policy: true, unasked: true, unnamed: true, noNode: true,
		},
		"M26: waits for none if its Node is lost, so that its drain timeout counts": {limit: 1, timeout: 60, state: answers, policy: true, unasked: true, lost: true},
		"M26, M117: one that was held by hooks waits for none, either, if its Node is lost": {
			limit: 1, timeout: 60, state: answers, policy: true, unasked: true, lost: true, held: true, granted: true,
		},
		"M26, M117, M128: one that was held by hooks and has no nodeRef waits for none if its Node is lost": {
			limit: 1, timeout: 60, state: answers, policy: true, unasked: true, lost: true, held: true, unnamed: true, granted: true,
		},
		"M39: gets the turn that comes, without having recorded that it waits": {
			limit: 2, timeout: 60, state: answers, policy: true, unasked: true, granted: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			policy := policyWithLimit(intstr.FromInt(tc.limit))
			if tc.missing {
				policy.Namespace = "other"
			}
			fallback := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "zz-default"}}
			if tc.another {
				fallback.Namespace = "fleet"
			}
			machines := deletedWorkers(now, "waits", "drains", "younger")
			remote := workloadCluster(machines[1:]...).WithObjects(drainOf(machines[1], now.Add(-30*time.Second)))
			if tc.unnamed {
				machines[0].Status.NodeRef.Name, machines[0].Spec.ProviderID = "", "cloud://waits"
			}
			node := nodeOf(machines[0])
			if tc.noNode {
				node.Spec.ProviderID = "cloud://another"
			}
			remote.WithInterceptorFuncs(interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					if _, is := list.(*corev1.NodeList); is && tc.unlist {
						return errors.New("the API server of the workload cluster is overloaded")
					}
					return c.List(ctx, list, options...)
				},
			})
			if tc.lost {
				since := metav1.NewTime(now.Add(-time.Hour))
				node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: since}}
			}
			if !tc.unasked {
				for _, m := range []*clusterv1.Machine{machines[0], machines[2]} {
					m.Annotations[v1alpha1.WaitingForTurnAnnotation] = now.Add(-time.Hour).Format(time.RFC3339)
				}
			}
			self := machines[0]
			if tc.held {
				self.Annotations[v1alpha1.DrainHeldAnnotation] = now.Add(-time.Hour).Format(time.RFC3339)
			}
			self.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To(tc.timeout)
			if tc.waited {
				machinedrain.Clock{Waiting: &now}.RecordLimit(self, policy)
			}
			management := managementCluster(machines...).WithObjects(policy, fallback).WithInterceptorFuncs(interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					if _, is := list.(*v1alpha1.MachineDrainPolicyList); is && !tc.policy {
						return errors.New("the API server is overloaded")
					}
					return c.List(ctx, list, options...)
				},
				Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
					if tc.refused {
						return apierrors.NewInvalid(clusterv1.GroupVersion.WithKind("Machine").GroupKind(), object.GetName(), nil)
					}
					return c.Patch(ctx, object, patch, options...)
				},
			}).Build()
			cache := disconnected{clustercache.NewFakeClusterCache(remote.WithObjects(node).Build(), clusterKey), tc.state}
			r := newReconciler(t, management, cache, clocktesting.NewFakePassiveClock(now))
			r.APIReader = interceptor.NewClient(management, interceptor.Funcs{
				Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
					return errors.New("the conversion webhook of the infrastructure provider does not answer")
				},
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					err := c.List(ctx, list, options...)
					stored, is := list.(*clusterv1.MachineList)
					for i := range cmp.Or(stored, &clusterv1.MachineList{}).Items {
						if m := &stored.Items[i]; is && tc.behind && m.Name == "younger" {
							m.Annotations[v1alpha1.DrainStartedAnnotation] = now.Format(time.RFC3339)
							m.Annotations[v1alpha1.DrainBlockedAnnotation] = now.Add(-time.Hour).Format(time.RFC3339)
							m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](60)
						}
					}
					return err
				},
			})
			r.memoryOf(self).failure = workload.Failure{Since: now.Add(-time.Minute), Err: errors.New("as before")}
			since := now.Add(-15 * time.Second)
			if tc.unasked {
				since = now.Add(-2 * time.Minute)
			}
			r.blocked.Store(client.ObjectKeyFromObject(self), block{since: since})
			err, isReleased := reconcileAt(t, r, self, now), tc.lost && !tc.held || tc.noNode
			// without contact, it waits for that, and it is released if its Node is lost
			g.Expect(err != nil).To(Equal(tc.state.ConsecutiveFailures == 0 && !isReleased), "%v", err)
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(self), self)).To(Succeed())
			if isReleased {
				g.Expect(conditions.GetReason(self, v1alpha1.MachineNodeMaintenance)).To(Equal(v1alpha1.ReasonTimedOut))
				return
			}
			g.Expect(self.Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation), "M93: the moment grants a turn and never a release")
			if tc.granted {
				g.Expect(self.Annotations).To(HaveKeyWithValue(v1alpha1.DrainStartedAnnotation, now.Format(time.RFC3339)))
				g.Expect(self.Annotations).To(HaveKey(v1alpha1.DrainBlockedAnnotation), "M122: the drain, if it begins, has the whole timeout")
			} else {
				g.Expect(self.Annotations).NotTo(HaveKey(v1alpha1.DrainStartedAnnotation))
				g.Expect(r.turns.last).To(BeEmpty(), "another Machine may take the turn")
			}
			if tc.unasked && !tc.granted {
				message := "1 draining (maxParallelDrains allows 1)"
				if tc.unnamed && !tc.unlist { // for two seconds
					message = "in the same second and that precede this one (maxParallelDrains)"
				}
				if !tc.unlist {
					g.Expect(conditions.GetMessage(self, v1alpha1.MachineNodeMaintenance)).To(ContainSubstring(message))
				}
			}
		})
	}
}

func TestTurnBehindMachineThatIsBlockedAlone(t *testing.T) {
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		after  []time.Duration // when the step of the older Machine fails
		outage time.Duration   // when the workload cluster does not answer
		ended  time.Duration   // how long ago the waiting Machine was blocked, too
		passes bool
	}{
		"M121: a Machine waits for an older one whose step fails": {after: []time.Duration{0, 4 * time.Minute}},
		"M121: it does not if that step has failed for five minutes, and neither has a drain timeout": {
			after: []time.Duration{0, 4 * time.Minute, 5 * time.Minute}, passes: true,
		},
		"M121: it does if it was blocked itself a moment ago: what has blocked both may be over": {
			after: []time.Duration{0, 5 * time.Minute}, ended: 29 * time.Second,
		},
		"M121: it does not thirty seconds later": {after: []time.Duration{0, 5 * time.Minute}, ended: 30 * time.Second, passes: true},
		"M121: the time during which the workload cluster does not answer, which blocks both, does not count": {
			after: []time.Duration{0, 4 * time.Minute, 5 * time.Minute}, outage: 4 * time.Minute,
		},
		"M121: neither does the time before that": {after: []time.Duration{0, 4 * time.Minute, 5 * time.Minute, 9 * time.Minute}, outage: 4 * time.Minute},
		"M121: the time after that does": {
			after: []time.Duration{0, 4 * time.Minute, 5 * time.Minute, 10 * time.Minute}, outage: 4 * time.Minute, passes: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, machines, policy := NewWithT(t), deletedWorkers(start, "a", "b"), policyWithLimit(intstr.FromInt32(1))
			older, self := machines[0], machines[1]
			management, remote := managementCluster(machines...).WithObjects(policy).Build(), workloadCluster(machines...).Build()
			r := &Reconciler{Client: management, Maintenances: &machinemaintenance.Requester{Client: management}}
			var now time.Time
			for _, after := range tc.after {
				now = start.Add(after)
				failures := 0
				if after == tc.outage && after > 0 {
					failures = 1
				}
				limitAt(t, r, remote, &scope{machine: older, cluster: provisionedCluster(), policy: policy, now: now}, now, failures)
			}
			if tc.ended > 0 {
				r.beginBlock(&scope{machine: self, now: start})
				r.endBlock(&scope{machine: self, now: now.Add(-tc.ended)})
			}
			turn, err := r.turn(t.Context(), &scope{machine: self, cluster: provisionedCluster(), policy: policy, node: nodeOf(self), client: remote, now: now})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(turn.Now()).To(Equal(tc.passes), "%+v", turn)
			isNamed := turn.Blocked != ""
			g.Expect(isNamed).NotTo(Equal(tc.passes), "M120: the Machine for which it waits is named")
		})
	}
}

// limitAt limits the wait of a Machine whose step has failed at a time, after so many failures of health probes of its workload cluster.
func limitAt(t *testing.T, r *Reconciler, remote client.Client, s *scope, at time.Time, failures int) {
	t.Helper()
	state := clustercache.HealthCheckingState{LastProbeTime: at, ConsecutiveFailures: failures}
	r.Clock = clocktesting.NewFakePassiveClock(at)
	r.Clusters = workload.NewClusters(r.Client, disconnected{clustercache.NewFakeClusterCache(remote, clusterKey), state}, newScheme(), workload.Limits{}, r.Clock)
	r.limit(t.Context(), s, outcome{action: wait, reason: v1alpha1.ReasonReconcileFailed})
}

// waitAndFail makes Machines wait for turns since they were deleted, and their steps fail since an hour ago. They were deleted one second
// after the other. The second one is overdue, the first one is not.
func waitAndFail(machines []*clusterv1.Machine, now time.Time) {
	for i, m := range machines {
		m.DeletionTimestamp = ptr.To(metav1.NewTime(now.Add(time.Duration(i-100) * time.Second)))
		m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To(int32(110 - 30*i))
		m.Annotations[v1alpha1.WaitingForTurnAnnotation] = m.DeletionTimestamp.Format(time.RFC3339)
		m.Annotations[v1alpha1.DrainBlockedAnnotation] = now.Add(-time.Hour).Format(time.RFC3339)
	}
}

// TestTurnsAtTheSameTime decides about two Machines before either has recorded a turn.
func TestTurnsAtTheSameTime(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		failures int           // of the connection to the workload cluster, since the first decision
		first    time.Duration // how long ago it was
		began    time.Duration // how long before the second decision its reconciliation began
		answer   error         // to the record of the first turn
		second   bool
	}{
		"M37, M39: a Machine that is overdue gets no turn while one that is blocked gets the turn that comes": {},
		"M37: it gets the turn five seconds after the record, if it has listed the Machines before that":      {first: machinedrain.TurnSpacing, second: true},
		"M37: it gets the turn if the API server has refused to record the other one": {
			answer: apierrors.NewInvalid(clusterv1.GroupVersion.WithKind("Machine").GroupKind(), "a", nil), second: true,
		},
		"M37: it gets none if the record of the other one got no answer":                              {answer: io.ErrUnexpectedEOF},
		"M93: neither does one that is cut off from the workload cluster":                             {failures: 1},
		"M93: nor if the clock of the first reconciliation is a moment ahead":                         {failures: 1, first: -time.Second},
		"M93: nor if its reconciliation began six seconds before, and has waited for a request since": {failures: 1, began: 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			g, machines, policy := NewWithT(t), deletedWorkers(now, "a", "b"), policyWithLimit(intstr.FromInt32(1))
			waitAndFail(machines, now)
			reached, stored := workloadCluster(machines...).Build(), managementCluster(machines...).WithObjects(policy).WithInterceptorFuncs(interceptor.Funcs{
				Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
					return tc.answer
				},
			}).Build()
			r := &Reconciler{Client: stored, APIReader: stored, Maintenances: &machinemaintenance.Requester{Client: stored}}
			granted := func(m *clusterv1.Machine, at time.Time, began time.Duration, failures int) bool {
				s := &scope{machine: m, cluster: provisionedCluster(), policy: policy, now: at.Add(-began)}
				r.blocked.Store(client.ObjectKeyFromObject(m), block{since: at.Add(-time.Hour), hasTurn: true})
				limitAt(t, r, reached, s, at, failures)
				g.Expect(errors.Cause(r.recordClock(t.Context(), s))).To(Or(BeNil(), Equal(tc.answer)))
				r.endTurn(s)
				return s.TurnGranted
			}
			g.Expect(granted(machines[0], now.Add(-tc.first), 0, 0)).To(BeTrue())
			g.Expect(granted(machines[1], now, tc.began, tc.failures)).To(Equal(tc.second))
		})
	}
}

func TestTurnThatIsUsedLater(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	began := now.Add(-50 * time.Second)
	for name, tc := range map[string]struct {
		present v1alpha1.NodeMaintenanceStage // empty: the NodeMaintenance does not exist
		refused bool
		granted bool // the Machine got the turn while something prevented the drain
		want    time.Time
	}{
		"M122: so has one whose NodeMaintenance did not exist, because something has prevented the drain since the deletion": {granted: true, want: now},
		"M122: the drain timeout counts from the turn while the NodeMaintenance cannot be created": {
			granted: true, refused: true, want: began,
		},
		"M122: a drain that begins later than the turn of its Machine has the whole drain timeout": {present: v1alpha1.StageCordon, want: now},
		"M39: the drain timeout counts from the turn while something prevents the drain":           {present: v1alpha1.StageCordon, refused: true, want: began},
		"M17: it counts from the recorded start if the NodeMaintenance is recreated":               {want: began},
		"M97: it does not count again if the drain has begun":                                      {present: v1alpha1.StageDrain, want: began},
	} {
		t.Run(name, func(t *testing.T) {
			g, key, node := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"}}
			machine := deletedMachine()
			machine.DeletionTimestamp = ptr.To(metav1.NewTime(now.Add(-time.Hour)))
			machine.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](60)
			machine.Annotations[v1alpha1.DrainStartedAnnotation] = began.Format(time.RFC3339)
			if tc.granted {
				machine.Annotations[v1alpha1.DrainBlockedAnnotation] = began.Format(time.RFC3339)
			}
			desired := machinedrain.Maintenance(machinedrain.Request{ManagementCluster: "here", Cluster: key, Machine: machine, Node: node})
			management, remote := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(machine).Build(), fake.NewClientBuilder().WithScheme(newScheme())
			if tc.present != "" {
				present := desired.DeepCopy()
				present.Spec.Stage, present.CreationTimestamp = tc.present, metav1.NewTime(now.Add(-time.Hour))
				remote.WithObjects(present)
			}
			refusal := apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("nodemaintenances").GroupResource(), desired.Name, errors.New("a policy forbids it"))
			remote.WithInterceptorFuncs(interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
					if tc.refused {
						return refusal
					}
					return c.Create(ctx, object, options...)
				},
				Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
					if tc.refused {
						return refusal
					}
					return c.Patch(ctx, object, patch, options...)
				},
			})
			s := &scope{machine: machine, cluster: provisionedCluster(), client: remote.Build(), node: node, now: now}
			r := newReconciler(t, management, clustercache.NewFakeClusterCache(s.client, key), clocktesting.NewFakePassiveClock(now))
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
			s.observe(nil)
			if present := (&v1alpha1.NodeMaintenance{}); tc.present != "" {
				g.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(desired), present)).To(Succeed())
				s.observe(present)
			}
			s.Turn = &machinedrain.Turn{}
			_, err := r.apply(t.Context(), s, desired)
			if g.Expect(err != nil).To(Equal(tc.refused)); err == nil {
				result, err := r.awaitDrained(t.Context(), s)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(result.action).To(Equal(wait))
			}
			g.Expect(r.recordClock(t.Context(), s)).To(Succeed())
			g.Expect(s.machine.Annotations).To(HaveKeyWithValue(v1alpha1.DrainStartedAnnotation, tc.want.Format(time.RFC3339)))
			if tc.want.Equal(now) {
				g.Expect(s.machine.Annotations).NotTo(HaveKey(v1alpha1.DrainBlockedAnnotation), "the turn is used once")
				g.Expect(s.maintenance.Annotations).NotTo(HaveKey(v1alpha1.DrainStartedAnnotation), "it counts from its own start")
			}
		})
	}
}

// TestTurnBehindMachineThatCannotBePatched: the API server of the management cluster refuses each change of one Machine, because its
// stored spec is invalid for a newer validation, for example. The drain that holds the turn never ends.
func TestTurnBehindMachineThatCannotBePatched(t *testing.T) {
	for _, tc := range []struct {
		name        string
		began       time.Duration // of the drain that uses the limit
		refusedFrom time.Duration
		later       time.Duration // how long after the other Machine the younger one is reconciled
	}{
		{"M37, M39: a younger Machine gets a turn all the same after its drain timeout", -2 * time.Minute, 0, 7 * time.Second},
		{
			"M37, M39: also if it is always reconciled just after one that waited for a turn before it was refused",
			0, time.Minute / 2, recordAfter - 2*time.Second,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g, start := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
			machines := deletedWorkers(start, "drains", "refused", "younger")
			for _, m := range machines[1:] {
				m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](60)
			}
			refuses, refusal := false, apierrors.NewInvalid(clusterv1.GroupVersion.WithKind("Machine").GroupKind(), "refused", nil)
			management := managementCluster(machines...).WithObjects(policyWithLimit(intstr.FromInt32(1))).
				WithInterceptorFuncs(interceptor.Funcs{
					Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
						if object.GetName() == "refused" && refuses {
							return refusal
						}
						return c.Patch(ctx, object, patch, options...)
					},
				}).Build()
			remote := workloadCluster(machines...).WithObjects(drainOf(machines[0], start.Add(tc.began))).Build()
			r := newReconciler(t, management, connectedTo(remote, start), clocktesting.NewFakePassiveClock(start))
			infrastructureExists(r, machines...)
			t.Cleanup(func() {
				for _, m := range machines {
					r.forget(client.ObjectKeyFromObject(m))
				}
			})
			hasTurn := func() bool {
				draining, _ := drainingIn(t, remote)
				return slices.ContainsFunc(draining, func(m v1alpha1.NodeMaintenance) bool {
					return m.Annotations[v1alpha1.OwnerMachineAnnotation] == "fleet/younger"
				})
			}
			for after := time.Duration(0); after <= time.Hour && !hasTurn(); after += pollInterval {
				refuses = after >= tc.refusedFrom
				for i, m := range machines[1:] {
					_ = reconcileAt(t, r, m, start.Add(after+time.Duration(i)*tc.later))
				}
			}
			g.Expect(hasTurn()).To(BeTrue(), "after an hour, with a drain timeout of a minute")
		})
	}
}

// TestTurnWhoseRecordTakesLong: the API server of the management cluster answers the record of a turn only after another Machine was
// reconciled, because an admission webhook of Machines is slow, or because this process stood still before it sent the request.
func TestTurnWhoseRecordTakesLong(t *testing.T) {
	t.Run("M37, M93: no other Machine of the Cluster gets a turn out of order until the turn is recorded", func(t *testing.T) {
		g, now := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
		machines, policy := deletedWorkers(now, "a", "b"), policyWithLimit(intstr.FromInt32(1))
		waitAndFail(machines, now)
		var between func()
		reached, stored := workloadCluster(machines...).Build(), managementCluster(machines...).WithObjects(policy).WithInterceptorFuncs(interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
				if run := between; run != nil {
					between = nil
					run()
				}
				return c.Patch(ctx, object, patch, options...)
			},
		}).Build()
		r := &Reconciler{Client: stored, APIReader: stored, Maintenances: &machinemaintenance.Requester{Client: stored}}
		decideAt := func(m *clusterv1.Machine, at time.Time) {
			s := &scope{machine: m, cluster: provisionedCluster(), policy: policy, now: at}
			r.blocked.Store(client.ObjectKeyFromObject(m), block{since: at.Add(-time.Hour), hasTurn: true})
			limitAt(t, r, reached, s, at, 0)
			g.Expect(r.recordClock(t.Context(), s)).To(Succeed())
		}
		between = func() { decideAt(machines[1], now.Add(machinedrain.TurnSpacing)) }
		decideAt(machines[0], now)
		g.Expect(between).To(BeNil(), "the turn is recorded")
		g.Expect(turnsIn(t, stored)).To(Equal(1))
	})
}

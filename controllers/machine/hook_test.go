package machine

import (
	"context"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestAnnotationsThatAreRestored(t *testing.T) {
	for name, template := range map[string]map[string]string{
		"a record of a drain":   {v1alpha1.DrainStartedAnnotation: "2020-01-01T00:00:00Z"},
		"an exclude annotation": {clusterv1.ExcludeNodeDrainingAnnotation: v1alpha1.HookOwner},
		"the request of another drain in place": {
			v1alpha1.DrainRequestedAnnotation: "2020-01-01T00:00:00Z/other", v1alpha1.MachineStageAnnotation: string(v1alpha1.StageDrain),
			v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner,
		},
	} {
		t.Run("M107: the manager does not remove "+name+" again and again that the template of a MachineSet has, and carries out what else the Machine requests",
			func(t *testing.T) {
				g, now := NewWithT(t), clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
				cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c", UID: "c"}}
				policy := policyForAll()
				machine := &clusterv1.Machine{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: "fleet", Name: "m", UID: "m", Annotations: maps.Clone(template), Labels: map[string]string{clusterv1.ClusterNameLabel: "c"},
					},
					Spec: clusterv1.MachineSpec{ClusterName: "c"},
				}
				patches := 0
				management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(cluster, policy, machine).
					WithStatusSubresource(machine).WithInterceptorFuncs(interceptor.Funcs{
					Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
						patches++
						if err := c.Patch(ctx, object, patch, options...); err != nil {
							return err
						}
						restored := object.DeepCopyObject().(client.Object)
						annotations := restored.GetAnnotations()
						maps.Copy(annotations, template)
						restored.SetAnnotations(annotations)
						return c.Patch(ctx, restored, client.MergeFrom(object))
					},
				}).Build()
				r := notConnected(t, management, now)
				for range 5 * patchBurst {
					_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(machine)})
					g.Expect(err).NotTo(HaveOccurred())
					now.Step(10 * time.Millisecond)
				}
				g.Expect(patches).To(BeNumerically("<=", patchBurst+1))
				g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
				g.Expect(machine.Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation))
				if template[v1alpha1.MachineStageAnnotation] != "" {
					g.Expect(conditions.GetReason(machine, v1alpha1.MachineNodeMaintenance)).To(Equal(v1alpha1.ReasonWaitingForWorkloadCluster))
				}
			})
	}
}

func TestCopiedExcludeAnnotation(t *testing.T) {
	for name, tc := range map[string]struct {
		value    string
		released bool
	}{
		"M107: does not release a deleted Machine to which the exclude annotation of a release was copied": {v1alpha1.HookOwner, false},
		"M10: releases one that a user has excluded":                                                       {"", true},
	} {
		t.Run(name, func(t *testing.T) {
			g, machine := NewWithT(t), deletedMachine()
			machine.Annotations[clusterv1.ExcludeNodeDrainingAnnotation] = tc.value // from the template of its MachineSet
			cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c", UID: "c"}}
			management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(machine, cluster, controlPlaneMachine()).WithStatusSubresource(machine).Build()
			r := notConnected(t, management, clock.RealClock{})
			infrastructureExists(r, machine)
			reconcileOnce(t, r, machine)
			_, hasHook := machine.Annotations[v1alpha1.PreDrainHookAnnotation]
			g.Expect(hasHook).NotTo(Equal(tc.released))
			_, isExcluded := machine.Annotations[clusterv1.ExcludeNodeDrainingAnnotation]
			g.Expect(isExcluded).To(Equal(tc.released), "M53: Cluster API drains the Node if another actor removes the hook")
		})
	}
}

// TestHookThatTheManagerHasRemoved deletes a Cluster while the Node of one of its Machines is maintained without deletion.
func TestHookThatTheManagerHasRemoved(t *testing.T) {
	for name, tc := range map[string]struct {
		deleting bool
		reason   string
		want     string
	}{
		"M148: if the Cluster is being deleted, the manager has removed the hook of its Machine, and no other actor": {
			true, v1alpha1.ReasonMachineDraining, v1alpha1.ReasonSkipped,
		},
		"M148: the condition still says that another actor had removed the hook before": {true, v1alpha1.ReasonHookRemoved, v1alpha1.ReasonHookRemoved},
		"M53: if the Cluster is not being deleted, another actor has removed the hook": {
			false, v1alpha1.ReasonMachineDraining, v1alpha1.ReasonHookRemoved,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, machine, cluster := NewWithT(t), deletedMachine(), provisionedCluster()
			if tc.deleting {
				cluster.DeletionTimestamp, cluster.Finalizers = new(metav1.Now()), []string{clusterv1.ClusterFinalizer}
			}
			machine.Annotations = map[string]string{
				v1alpha1.MachineStageAnnotation: "Drain", v1alpha1.DrainRequestedAnnotation: time.Now().Add(-time.Hour).UTC().Format(time.RFC3339) + "/m",
			}
			machine.Status.Conditions = []metav1.Condition{{
				Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: tc.reason, LastTransitionTime: metav1.Now(),
			}}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"}}
			drain := machinedrain.Maintenance(machinedrain.Request{
				ManagementCluster: "here", Cluster: clusterKey, Machine: machine, Node: node, For: v1alpha1.RequestedForStage,
			})
			management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(machine, cluster, policyWithLimit(intstr.FromInt32(1))).
				WithStatusSubresource(machine).Build()
			remote := workloadCluster().WithObjects(node, drain).Build()
			r := newReconciler(t, management, clustercache.NewFakeClusterCache(remote, clusterKey), clock.RealClock{})
			reconcileOnce(t, r, machine)
			g.Expect(conditions.GetReason(machine, v1alpha1.MachineNodeMaintenance)).To(Equal(tc.want))
			g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(drain), drain)).To(Succeed())
			g.Expect(drain.Spec.Stage).To(Equal(v1alpha1.StageComplete), "no further Pod is evicted")
		})
	}
}

func TestPausedMachineOutsideTheFilter(t *testing.T) {
	for name, change := range map[string]func(*clusterv1.Machine, *clusterv1.Cluster){
		"of a paused Cluster": func(_ *clusterv1.Machine, cluster *clusterv1.Cluster) { cluster.Spec.Paused = new(true) },
		"with the annotation": func(m *clusterv1.Machine, _ *clusterv1.Cluster) { m.Annotations[clusterv1.PausedAnnotation] = "" },
		"that is running": func(m *clusterv1.Machine, _ *clusterv1.Cluster) {
			m.DeletionTimestamp, m.Finalizers = nil, nil
			m.Annotations[clusterv1.PausedAnnotation] = ""
		},
		"that is running, without the hook": func(m *clusterv1.Machine, cluster *clusterv1.Cluster) {
			m.DeletionTimestamp, m.Finalizers = nil, nil
			m.Annotations = map[string]string{clusterv1.ExcludeNodeDrainingAnnotation: v1alpha1.HookOwner}
			cluster.Spec.Paused = new(true)
		},
	} {
		t.Run("M16: a manager whose filter does not select it does not change a paused Machine "+name, func(t *testing.T) {
			g, machine := NewWithT(t), deletedMachine()
			machine.Labels = map[string]string{clusterv1.WatchLabel: "b", clusterv1.ClusterNameLabel: "c"}
			machine.Annotations[v1alpha1.PreDrainHookAnnotation] = v1alpha1.HookOwner + "/a"
			cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c", UID: "c"}}
			change(machine, cluster)
			management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(machine, cluster).WithStatusSubresource(machine).Build()
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
			before := machine.ResourceVersion
			r := notConnected(t, management, clock.RealClock{})
			r.Filter = "a"
			reconcileOnce(t, r, machine)
			g.Expect(machine.ResourceVersion).To(Equal(before))
		})
	}
}

func TestHandOver(t *testing.T) {
	for reason, status := range map[string]metav1.ConditionStatus{
		"": "", v1alpha1.ReasonMachineDraining: metav1.ConditionFalse, v1alpha1.ReasonWaitingForTurn: metav1.ConditionFalse,
		v1alpha1.ReasonMachineDrained: metav1.ConditionTrue,
	} {
		t.Run("M104: reports once which manager must drain a deleted Machine whose label was changed, although its condition has the reason "+strconv.Quote(reason),
			func(t *testing.T) {
				g, machine := NewWithT(t), deletedMachine()
				machine.Labels = map[string]string{clusterv1.WatchLabel: "b", clusterv1.ClusterNameLabel: "c"}
				machine.Annotations[v1alpha1.PreDrainHookAnnotation] = v1alpha1.HookOwner + "/a"
				had := func(reason string, status metav1.ConditionStatus) {
					machine.Status.Conditions = []metav1.Condition{{Type: v1alpha1.MachineNodeMaintenance, Status: status, Reason: reason, LastTransitionTime: metav1.Now()}}
				}
				if reason != "" {
					had(reason, status)
				}
				management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(machine).WithStatusSubresource(machine).Build()
				r := notConnected(t, management, clock.RealClock{})
				r.Filter = "a"
				reconciled := func() (reason, message string) {
					reconcileOnce(t, r, machine)
					return conditions.GetReason(machine, v1alpha1.MachineNodeMaintenance), conditions.GetMessage(machine, v1alpha1.MachineNodeMaintenance)
				}
				t.Cleanup(func() { removeUnended(client.ObjectKeyFromObject(machine)) })
				waits := func() string { // the reason in the metric from which the alert follows
					unended.Lock()
					defer unended.Unlock()
					return unended.machines[client.ObjectKeyFromObject(machine)].reason
				}
				got, message := reconciled()
				g.Expect(got).To(Equal(v1alpha1.ReasonHandedOver))
				g.Expect(message).To(ContainSubstring("--watch-filter=b "))
				g.Expect(waits()).To(Equal(v1alpha1.ReasonHandedOver), "K70")
				_, _ = reconciled()
				g.Expect(waits()).To(Equal(v1alpha1.ReasonHandedOver), "K70: also after another event")

				handedOver := machine.DeepCopy()
				had(v1alpha1.ReasonMachineDraining, metav1.ConditionFalse) // the other manager drains it
				g.Expect(management.Status().Update(t.Context(), machine)).To(Succeed())
				g.Expect(machineChanged{}.Update(event.UpdateEvent{ObjectOld: handedOver, ObjectNew: machine})).To(BeTrue(), "K70: no other event may follow")
				g.Expect(machineChanged{}.Update(event.UpdateEvent{ObjectOld: machine, ObjectNew: handedOver})).To(BeTrue(), "M104: the manager that drains it")
				got, _ = reconciled()
				g.Expect(got).To(Equal(v1alpha1.ReasonMachineDraining))
				g.Expect(waits()).To(BeEmpty(), "K70: the other manager has the metric")

				machine.Labels[clusterv1.WatchLabel] = "c"
				g.Expect(management.Update(t.Context(), machine)).To(Succeed())
				got, message = reconciled()
				g.Expect(got).To(Equal(v1alpha1.ReasonHandedOver))
				g.Expect(message).To(ContainSubstring("--watch-filter=c "))
			})
	}
}

func TestExcludeAnnotationsAfterMove(t *testing.T) {
	invalid := &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"in valid": "x"}}
	for name, tc := range map[string]struct {
		selector *v1alpha1.LabelSelector
		unread   bool
		filter   machinedrain.WatchFilter
		hasHook  bool
	}{
		"no manager selects it": {filter: "a"},
		"a policy selects it":   {hasHook: true},
		"no policy selects it":  {selector: &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"other": "x"}}},
		"it is not known whether a policy with an invalid selector selects it": {selector: invalid},
		"its policy cannot be decoded":                                         {unread: true},
	} {
		t.Run("M12: a Machine that is no longer being deleted loses the exclude annotations if "+name, func(t *testing.T) {
			g := NewWithT(t)
			cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c", UID: "c"}}
			policy := &v1alpha1.MachineDrainPolicy{
				ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "b"}, Spec: v1alpha1.MachineDrainPolicySpec{MachineSelector: tc.selector},
			}
			machine := &clusterv1.Machine{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "fleet", Name: "m", UID: "m", Labels: map[string]string{clusterv1.ClusterNameLabel: "c"}, Annotations: map[string]string{
						clusterv1.ExcludeNodeDrainingAnnotation: v1alpha1.HookOwner, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation: v1alpha1.HookOwner,
					},
				},
				Spec: clusterv1.MachineSpec{ClusterName: "c"},
			}
			management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(cluster, policy, machine).WithStatusSubresource(machine).Build()
			r := notConnected(t, management, clock.RealClock{})
			if tc.unread {
				r.Maintenances.Unread = unreadPolicy(t, "a")
			}
			r.Filter = tc.filter
			reconcileOnce(t, r, machine)
			g.Expect(machine.Annotations).NotTo(HaveKey(clusterv1.ExcludeNodeDrainingAnnotation))
			g.Expect(machine.Annotations).NotTo(HaveKey(clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation))
			_, hasHook := machine.Annotations[v1alpha1.PreDrainHookAnnotation]
			g.Expect(hasHook).To(Equal(tc.hasHook))
		})
	}
}

func TestLeaderThatStoodStill(t *testing.T) {
	t.Run("M95: a leader that stands still during a release does not release a Machine that another leader drains again", func(t *testing.T) {
		f := newDatabaseFixture(t, deletedWithoutVolumes(), v1alpha1.MachineDrainPolicySpec{},
			machinedrain.Request{ManagementCluster: "here", Rules: rules.Compile(rules.Input{}).Rules}, interceptor.Funcs{})
		f.Client = standsStill{f.Client, func() {
			resumed := f.machine.DeepCopy()
			resumed.Annotations[v1alpha1.DrainStartedAnnotation] = time.Now().UTC().Format(time.RFC3339)
			f.g.Expect(f.management.Patch(t.Context(), resumed, client.MergeFrom(f.machine))).To(Succeed())
		}}
		f.confirm("db")
		stored, _ := f.pass()
		f.g.Expect(stored.Annotations).To(HaveKey(v1alpha1.DrainStartedAnnotation))
		f.g.Expect(machinedrain.HasHook(stored)).To(BeTrue())
	})
}

func TestReleaseWhileTheWatchLags(t *testing.T) {
	waits := func(m *clusterv1.Machine) {
		m.Status.Deletion = &clusterv1.MachineDeletionStatus{WaitForPreDrainHookStartTime: metav1.NewTime(time.Now().Truncate(time.Second))}
	}
	skip := func(m *clusterv1.Machine) { m.Labels = map[string]string{"tier": "database"} }
	for name, tc := range map[string]struct {
		before, meanwhile func(*clusterv1.Machine) // what has changed before the first write, and before the second one
		isReleased        bool
	}{
		"M142: releases a Machine although the watch lags behind the reports of Cluster API": {waits, nil, true},
		"M142: releases a Machine while Cluster API reports":                                 {nil, waits, true},
		"M142: releases no Machine whose labels have changed":                                {skip, nil, false},
		"M142: releases no Machine whose labels change meanwhile":                            {nil, skip, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newDatabaseFixture(t, deletedWithoutVolumes(), v1alpha1.MachineDrainPolicySpec{},
				machinedrain.Request{ManagementCluster: "here", Rules: rules.Compile(rules.Input{}).Rules}, interceptor.Funcs{})
			observed, key := &clusterv1.Machine{}, client.ObjectKeyFromObject(f.machine)
			f.g.Expect(f.management.Get(t.Context(), key, observed)).To(Succeed())
			apply := func(change func(*clusterv1.Machine)) {
				if change == nil {
					return
				}
				stored := &clusterv1.Machine{}
				f.g.Expect(f.management.Get(t.Context(), key, stored)).To(Succeed())
				before := stored.DeepCopy()
				change(stored)
				f.g.Expect(f.management.Patch(t.Context(), stored.DeepCopy(), client.MergeFrom(before))).To(Succeed())
				f.g.Expect(f.management.Status().Patch(t.Context(), stored, client.MergeFrom(before))).To(Succeed())
			}
			apply(tc.before)
			f.Client = lags{standsStill{f.Client, sync.OnceFunc(func() { apply(tc.meanwhile) })}, observed}
			f.confirm("db")
			began := time.Now().Add(-10 * time.Second)
			f.Clock = clocktesting.NewFakePassiveClock(began)
			stored, err := f.pass()
			f.g.Expect(apierrors.IsConflict(errors.Cause(err))).NotTo(Equal(tc.isReleased))
			f.g.Expect(machinedrain.HasHook(stored)).NotTo(Equal(tc.isReleased))
			if since := conditions.GetLastTransitionTime(stored, v1alpha1.MachineNodeMaintenance); tc.isReleased {
				f.g.Expect(since.Time).To(BeTemporally("==", began.Truncate(time.Second)), "a repeated report of the result changes nothing")
			}
		})
	}
}

// lags is a client whose cache has a former version of a Machine.
type lags struct {
	client.Client
	observed *clusterv1.Machine
}

func (c lags) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if machine, ok := object.(*clusterv1.Machine); ok {
		c.observed.DeepCopyInto(machine)
		return nil
	}
	return c.Client.Get(ctx, key, object, options...) //nolint:wrapcheck // it adds nothing
}

func TestWritesThatAProxyAnswers(t *testing.T) {
	proxy := apierrors.NewGenericServerResponse(http.StatusNotFound, "patch", schema.GroupResource{Resource: "machines"}, "m", "404 page not found", 0, true)
	management := interceptor.NewClient(managementCluster(deletedMachine()).Build(), interceptor.Funcs{
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return proxy
		},
	})
	r := &Reconciler{Client: management, Clock: clock.RealClock{}}
	for name, write := range map[string]func(*scope) error{
		"set the hook":      func(s *scope) error { return r.patchMachine(t.Context(), s, "setting the hook", r.Filter.SetHook) },
		"withdraw a drain":  func(s *scope) error { return r.withdraw(t.Context(), s) },
		"release a Machine": func(s *scope) error { _, err := r.release(t.Context(), s, s.result()); return err },
	} {
		t.Run("M109: a write that a proxy answers with 404 fails, so that it is repeated: to "+name, func(t *testing.T) {
			s := &scope{machine: deletedMachine(), maintenance: &v1alpha1.NodeMaintenance{}}
			if name == "set the hook" {
				s.machine.Annotations = nil
			}
			NewWithT(t).Expect(write(s)).To(MatchError(proxy))
		})
	}
}

func TestResultThatAWebhookDenies(t *testing.T) {
	modified := apierrors.NewConflict(schema.GroupResource{Resource: "machines"}, "m", errors.New("modified"))
	for name, tc := range map[string]struct {
		answer     error
		isReleased bool
	}{
		"E64: a webhook that denies the condition with the code of a conflict does not keep the Machine": {fakes.DeniedWithConflict(), true},
		"M95: a Machine that has changed is not released":                                                {modified, false},
	} {
		t.Run(name, func(t *testing.T) {
			g, key := NewWithT(t), client.ObjectKeyFromObject(deletedMachine())
			management := interceptor.NewClient(managementCluster(deletedMachine()).Build(), interceptor.Funcs{
				SubResourceApply: func(context.Context, client.Client, string, runtime.ApplyConfiguration, ...client.SubResourceApplyOption) error {
					return tc.answer
				},
			})
			r, s := &Reconciler{Client: management, Clock: clock.RealClock{}}, &scope{machine: &clusterv1.Machine{}, drainOver: true, volumesOver: true}
			g.Expect(management.Get(t.Context(), key, s.machine)).To(Succeed())
			err := r.removeHook(t.Context(), s, outcome{reason: v1alpha1.ReasonDrained, message: "Drained"})
			g.Expect(err == nil).To(Equal(tc.isReleased))
			g.Expect(management.Get(t.Context(), key, s.machine)).To(Succeed())
			g.Expect(machinedrain.HasHook(s.machine)).NotTo(Equal(tc.isReleased))
		})
	}
}

func TestConditionThatAWebhookDenies(t *testing.T) {
	for name, answer := range map[string]error{
		"E64: a condition does not count as written because a webhook denies it as if another Machine had the name": fakes.DeniedWithConflict(),
		"M16: the condition of a Machine that was created again with the name is not written": apierrors.NewConflict(
			schema.GroupResource{Resource: "machines"}, "m", errors.New("another UID")),
	} {
		t.Run(name, func(t *testing.T) {
			management := interceptor.NewClient(managementCluster(deletedMachine()).Build(), interceptor.Funcs{
				SubResourceApply: func(context.Context, client.Client, string, runtime.ApplyConfiguration, ...client.SubResourceApplyOption) error {
					return answer
				},
			})
			r := &Reconciler{Client: management, Clock: clock.RealClock{}}
			err := r.setCondition(t.Context(), &scope{machine: deletedMachine()}, waitingCondition(v1alpha1.ReasonMachineDraining, "Draining"))
			NewWithT(t).Expect(err != nil).To(Equal(answers.IsDeniedByWebhook(answer)), "%v", err)
		})
	}
}

// standsStill calls a function before it patches a Machine.
type standsStill struct {
	client.Client
	meanwhile func()
}

func (c standsStill) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption) error {
	c.meanwhile()
	return c.Client.Patch(ctx, object, patch, options...)
}

package machine

import (
	"context"
	"net/url"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// TestDrainAfterPause: a user pauses a Machine or its Cluster during a drain, changes what the drain depends on, and ends the pause. The
// NodeMaintenance still has the rules of the time before.
func TestDrainAfterPause(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	pauses := map[string]func(m *clusterv1.Machine, cluster *clusterv1.Cluster, paused bool){
		"Machine": func(m *clusterv1.Machine, _ *clusterv1.Cluster, paused bool) {
			if delete(m.Annotations, clusterv1.PausedAnnotation); paused {
				m.Annotations[clusterv1.PausedAnnotation] = ""
			}
		},
		"Cluster": func(_ *clusterv1.Machine, cluster *clusterv1.Cluster, paused bool) {
			cluster.Spec.Paused = ptr.To(paused)
		},
	}
	for paused, setPaused := range pauses {
		for name, tc := range map[string]struct {
			during    func(m *clusterv1.Machine)
			newRule   bool
			suspended bool // after the first reconciliation after the pause
		}{
			"M162: after a pause, a drain waits until its NodeMaintenance has a rule that was created during the pause": {newRule: true, suspended: true},
			"M162: after a pause, a drain continues at once if nothing has changed":                                     {},
			"M162: after a pause, a drain does not wait for its update if another actor has removed the hook": {
				newRule: true, during: func(m *clusterv1.Machine) { delete(m.Annotations, v1alpha1.PreDrainHookAnnotation) },
			},
		} {
			t.Run(name+", "+paused, func(t *testing.T) {
				g, m := NewWithT(t), deletedWorkers(start, "a")[0]
				policy := policyForAll()
				management, remote := managementCluster(m).WithObjects(policy).Build(), workloadCluster(m).Build()
				r := newReconciler(t, management, connectedTo(remote, start), clocktesting.NewFakePassiveClock(start))
				infrastructureExists(r, m)
				t.Cleanup(func() { r.forget(client.ObjectKeyFromObject(m)) })
				resumed := make(chan workload.Change, 100)
				r.Clusters.Subscribe(func(change workload.Change) { resumed <- change })
				isSuspended := func() bool {
					stored := &clusterv1.Machine{}
					g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
					all := &v1alpha1.NodeMaintenanceList{}
					g.Expect(remote.List(t.Context(), all)).To(Succeed())
					suspended, err := r.Maintenances.IsSuspended(t.Context(), &all.Items[0], stored)
					g.Expect(err).NotTo(HaveOccurred())
					return suspended
				}
				change := func(paused bool) {
					stored, cluster := &clusterv1.Machine{}, &clusterv1.Cluster{}
					g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
					g.Expect(management.Get(t.Context(), clusterKey, cluster)).To(Succeed())
					if setPaused(stored, cluster, paused); !paused && tc.during != nil {
						tc.during(stored)
					}
					g.Expect(management.Update(t.Context(), stored)).To(Succeed())
					g.Expect(management.Update(t.Context(), cluster)).To(Succeed())
				}
				g.Expect(reconcileAt(t, r, m, start)).To(Succeed())
				g.Expect(isSuspended()).To(BeFalse())
				change(true)
				g.Expect(reconcileAt(t, r, m, start.Add(time.Minute))).To(Succeed())
				if tc.newRule {
					rule := &clusterv1.MachineDrainRule{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "protects"}}
					rule.Spec.Drain.Behavior = clusterv1.MachineDrainRuleDrainBehaviorSkip
					g.Expect(management.Create(t.Context(), rule)).To(Succeed())
				}
				change(false)
				g.Expect(isSuspended()).To(BeTrue(), "until the Machine is reconciled")
				g.Expect(reconcileAt(t, r, m, start.Add(2*time.Minute))).To(Succeed())
				g.Expect(isSuspended()).To(Equal(tc.suspended))
				g.Expect(reconcileAt(t, r, m, start.Add(2*time.Minute+time.Second))).To(Succeed())
				g.Expect(isSuspended()).To(BeFalse())
				if tc.during == nil { // otherwise, the NodeMaintenance is completed
					g.Eventually(resumed).WithTimeout(time.Minute).Should(Receive(And(HaveField("Type", workload.DrainContinued), HaveField("Node", "a"))))
				}
				if drains, _ := drainingIn(t, remote); tc.suspended {
					g.Expect(drains[0].Spec.DrainRules).To(ContainElement(HaveField("Name", rules.MachineDrainRulePrefix+"protects")))
				}
			})
		}
	}
}

// TestDrainStaysSuspendedAfterPause: a rule was created during a pause, and what the Machine follows is not known yet after it.
func TestDrainStaysSuspendedAfterPause(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	named := func(name string) *v1alpha1.MachineDrainPolicy {
		return &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name}}
	}
	deletePolicy := func(g Gomega, r *Reconciler) { g.Expect(r.Client.Delete(t.Context(), named("own"))).To(Succeed()) }
	replacePolicy := func(g Gomega, r *Reconciler) {
		deletePolicy(g, r)
		g.Expect(r.Client.Create(t.Context(), named("other"))).To(Succeed())
	}
	for name, tc := range map[string]struct {
		inPlace bool
		during  func(g Gomega, r *Reconciler)
		ends    func(r *Reconciler, delivered client.Client) // what the drain waits for, nil if it takes three seconds
		patch   error
	}{
		"M162: after a pause, a drain waits until it is known that another policy selects the Machine":          {during: replacePolicy},
		"M162: after a pause, a drain in place waits until it is known that another policy selects the Machine": {during: replacePolicy, inPlace: true},
		"M162: after a pause, a drain in place waits until its policy can be decoded": {
			inPlace: true,
			during:  func(_ Gomega, r *Reconciler) { r.Maintenances.Unread = unreadPolicy(t, "a") },
			ends:    func(r *Reconciler, _ client.Client) { r.Maintenances.Unread = nil },
		},
		"M162: after a pause, a drain waits until it is known that no policy selects the Machine": {during: deletePolicy},
		"M163: after a pause, a drain waits until the watch has delivered the rules that the API server has": {
			during: func(_ Gomega, r *Reconciler) {
				r.Client, r.Maintenances.Client = withoutRules{r.Client}, withoutRules{r.Client}
			},
			ends: func(r *Reconciler, delivered client.Client) { r.Client, r.Maintenances.Client = delivered, delivered },
		},
		"M162: after a pause, a drain waits while the workload cluster does not answer the update of its NodeMaintenance": {
			patch: &url.Error{Op: "Patch", URL: "https://c", Err: context.DeadlineExceeded},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, m, patchError := NewWithT(t), deletedWorkers(start, "a")[0], error(nil)
			if tc.inPlace {
				m.DeletionTimestamp, m.Finalizers = nil, nil
				m.Annotations[v1alpha1.MachineStageAnnotation] = string(v1alpha1.StageDrain)
			}
			management := managementCluster(m).WithObjects(named("own")).Build()
			remote := workloadCluster(m).WithInterceptorFuncs(interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
					if patchError != nil {
						return patchError
					}
					return c.Patch(ctx, o, patch, options...)
				},
			}).Build()
			r := newReconciler(t, management, connectedTo(remote, start), clocktesting.NewFakePassiveClock(start))
			infrastructureExists(r, m)
			t.Cleanup(func() { r.forget(client.ObjectKeyFromObject(m)) })
			at := func(after time.Duration) (suspended bool) {
				g.Expect(reconcileAt(t, r, m, start.Add(after))).To(Succeed())
				stored := &clusterv1.Machine{}
				g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
				drains, _ := drainingIn(t, remote)
				g.Expect(drains).To(HaveLen(1))
				suspended, err := r.Maintenances.IsSuspended(t.Context(), &drains[0], stored)
				g.Expect(err).NotTo(HaveOccurred())
				hasRule := slices.ContainsFunc(drains[0].Spec.DrainRules, func(rule v1alpha1.DrainRule) bool {
					return rule.Name == rules.MachineDrainRulePrefix+"protects"
				})
				g.Expect(suspended || after == 0 || hasRule).To(BeTrue(), "it continues under the rules of the time before")
				return suspended
			}
			pause := func(paused bool) {
				cluster := &clusterv1.Cluster{}
				g.Expect(management.Get(t.Context(), clusterKey, cluster)).To(Succeed())
				cluster.Spec.Paused = ptr.To(paused)
				g.Expect(management.Update(t.Context(), cluster)).To(Succeed())
			}
			g.Expect(at(0)).To(BeFalse())
			pause(true)
			g.Expect(at(time.Minute)).To(BeTrue())
			rule, delivered := &clusterv1.MachineDrainRule{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "protects"}}, r.Client
			rule.Spec.Drain.Behavior = clusterv1.MachineDrainRuleDrainBehaviorSkip
			g.Expect(management.Create(t.Context(), rule)).To(Succeed())
			if patchError = tc.patch; tc.during != nil {
				tc.during(g, r)
			}
			pause(false)
			g.Expect(at(2 * time.Minute)).To(BeTrue())
			g.Expect(at(2*time.Minute + 2*time.Second)).To(BeTrue())
			if patchError = nil; tc.ends != nil {
				tc.ends(r, delivered)
			}
			g.Expect(at(2*time.Minute+4*time.Second)).To(BeTrue(), "until the cache has the update")
			g.Expect(at(2*time.Minute + 5*time.Second)).To(BeFalse())
		})
	}
	t.Run("M162: a drain in place whose request another actor has removed before the pause is suspended after it", func(t *testing.T) {
		g, m := NewWithT(t), deletedWorkers(start, "a")[0]
		m.DeletionTimestamp, m.Finalizers = nil, nil
		m.Annotations[v1alpha1.MachineStageAnnotation] = string(v1alpha1.StageDrain)
		management := managementCluster(m).WithObjects(named("own")).Build()
		r := newReconciler(t, management, connectedTo(workloadCluster(m).Build(), start), clocktesting.NewFakePassiveClock(start))
		t.Cleanup(func() { r.forget(client.ObjectKeyFromObject(m)) })
		g.Expect(reconcileAt(t, r, m, start)).To(Succeed())
		g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
		delete(m.Annotations, v1alpha1.DrainRequestedAnnotation)
		m.Annotations[clusterv1.PausedAnnotation] = ""
		g.Expect(management.Update(t.Context(), m)).To(Succeed())
		g.Expect(reconcileAt(t, r, m, start.Add(time.Second))).To(Succeed())
		g.Expect(r.Maintenances.Continues(m)).To(BeFalse())
	})
	t.Run("M162: a drain in place that has timed out, so that Pods are still evicted, waits after a pause, too", func(t *testing.T) {
		g, m := NewWithT(t), deletedWorkers(start, "a")[0]
		m.DeletionTimestamp, m.Finalizers = nil, nil
		m.Annotations[v1alpha1.MachineStageAnnotation] = string(v1alpha1.StageDrain)
		machinedrain.RequestDrain(start)(m)
		conditions.Set(m, machinedrain.ResultCondition(v1alpha1.ReasonTimedOut, "Pods remain"))
		m.Annotations[clusterv1.PausedAnnotation] = ""
		r := newReconciler(t, managementCluster(m).Build(), connectedTo(workloadCluster(m).Build(), start), clocktesting.NewFakePassiveClock(start))
		g.Expect(reconcileAt(t, r, m, start)).To(Succeed())
		suspended, err := r.Maintenances.IsSuspended(t.Context(), drainOf(m, start), &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
			Namespace: m.Namespace, Name: m.Name, UID: m.UID,
		}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(suspended).To(BeTrue())
	})
}

// TestUpdateContinuesAfterPause: after a pause, another policy selects a Machine, and requires nothing for its update in place, which has
// begun.
func TestUpdateContinuesAfterPause(t *testing.T) {
	t.Run("M162: after a pause, the drain before an update in place that has begun continues, also if another policy selects the Machine", func(t *testing.T) {
		d := beginDrain(t, true)
		d.change(func(m *clusterv1.Machine) {
			beginUpdate(m)
			m.Annotations[clusterv1.PausedAnnotation] = ""
		})
		d.reconcile(time.Minute)
		d.Expect(d.isSuspended()).To(BeTrue())
		policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "own"}}
		d.Expect(d.management.Delete(t.Context(), policy)).To(Succeed())
		policy.Name, policy.ResourceVersion = "other", ""
		d.Expect(d.management.Create(t.Context(), policy)).To(Succeed())
		d.change(func(m *clusterv1.Machine) { delete(m.Annotations, clusterv1.PausedAnnotation) })
		for now := 2 * time.Minute; d.isSuspended(); {
			d.Expect(now).To(BeNumerically("<", 3*time.Minute))
			d.r.Clock.(*clocktesting.FakePassiveClock).SetTime(d.start.Add(now))
			result, err := d.r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(d.machine)})
			d.Expect(err).NotTo(HaveOccurred())
			d.Expect(result.RequeueAfter > 0 || !d.isSuspended()).To(BeTrue(), "nothing else reconciles it")
			now += max(result.RequeueAfter, time.Second)
		}
		d.Eventually(d.resumed).WithTimeout(time.Minute).Should(Receive(And(HaveField("Type", workload.DrainContinued), HaveField("Node", "a"))))
	})
}

// TestPauseDuringReconciliation: a pause or a hold begins and ends while a reconciliation of the Machine takes long.
func TestPauseDuringReconciliation(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, pause := range map[string]func(g Gomega, r *Reconciler, m *clusterv1.Machine){
		"M162: a pause of the Machine that ends before the Machine is reconciled suspends its drain": func(g Gomega, r *Reconciler, m *clusterv1.Machine) {
			paused := m.DeepCopy()
			queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
			paused.Annotations[clusterv1.PausedAnnotation] = ""
			r.suspendDrain().Update(t.Context(), event.UpdateEvent{ObjectOld: m, ObjectNew: paused}, queue)
			g.Expect(queue.Len()).To(Equal(1), "it is reconciled again")
		},
		"M158: a hold that ends before the Machine is reconciled suspends its drain": func(g Gomega, r *Reconciler, m *clusterv1.Machine) {
			held := m.DeepCopy()
			queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
			held.Annotations[clusterv1.PreDrainDeleteHookAnnotationPrefix+"/other"] = "approval"
			r.suspendDrain().Update(t.Context(), event.UpdateEvent{ObjectOld: m, ObjectNew: held}, queue)
			g.Expect(queue.Len()).To(Equal(1), "it is reconciled again")
		},
		"M162: a pause of the Cluster that ends before the Machine is reconciled suspends its drain": func(g Gomega, r *Reconciler, m *clusterv1.Machine) {
			cluster := provisionedCluster()
			cluster.Spec.Paused = ptr.To(true)
			g.Expect(r.machinesOfCluster(t.Context(), cluster)).To(ContainElement(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := beginDrain(t, false)
			d.Expect(d.management.DeleteAllOf(t.Context(), &clusterv1.MachineDrainRule{}, client.InNamespace("fleet"))).To(Succeed())
			d.r.machinesOfCluster(t.Context(), provisionedCluster())
			d.Expect(d.isSuspended()).To(BeFalse(), "the Cluster is not paused")
			d.r.Client = afterRead{d.r.Client, func() {
				d.r.Clock.(*clocktesting.FakePassiveClock).SetTime(start.Add(time.Minute + time.Second))
				pause(d, d.r, d.stored())
			}}
			d.reconcile(time.Minute)
			d.Expect(d.isSuspended()).To(BeTrue(), "a user may have created a rule meanwhile")
			d.r.Client = d.delivered
			d.reconcile(time.Minute + 2*time.Second)
			d.Expect(d.isSuspended()).To(BeFalse())
			d.Eventually(d.resumed).WithTimeout(time.Minute).Should(Receive(HaveField("Type", workload.DrainContinued)))
		})
	}
}

// afterRead is a client that calls a function after each read of a Machine.
type afterRead struct {
	client.Client
	then func()
}

func (c afterRead) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if _, is := o.(*clusterv1.Machine); is {
		defer c.then()
	}
	return c.Client.Get(ctx, key, o, options...) //nolint:wrapcheck // it adds nothing
}

func TestMachineIsForgotten(t *testing.T) {
	t.Run("M162: nothing is kept of the suspension of a Machine that no longer exists", func(t *testing.T) {
		d := beginDrain(t, false)
		d.change(func(m *clusterv1.Machine) { m.Annotations[clusterv1.PausedAnnotation] = "" })
		d.reconcile(time.Minute)
		paused := d.stored()
		d.Expect(d.r.Maintenances.Continue(paused, d.start)).To(BeFalse(), "it was suspended since")
		gone := d.stored()
		gone.Finalizers = nil
		d.Expect(d.management.Update(t.Context(), gone)).To(Succeed())
		d.reconcile(2 * time.Minute)
		d.Expect(d.r.Maintenances.Continue(paused, d.start)).To(BeTrue())
	})
}

// TestWithdrawnDuringPause: a drain ends during a pause. Until the cache has its completed NodeMaintenance, Pods would be evicted.
func TestWithdrawnDuringPause(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		deleted, disconnected bool
		change                string // the annotation that is removed during the pause
	}{
		"M162: after a pause, no Pod is evicted for a drain in place whose stage annotation was removed during the pause": {
			change: v1alpha1.MachineStageAnnotation,
		},
		"M162: after a pause, no Pod is evicted for it either when the workload cluster is connected later": {
			change: v1alpha1.MachineStageAnnotation, disconnected: true,
		},
		"M162: after a pause, no Pod is evicted for a deleted Machine whose hook another actor has removed during the pause": {
			change: v1alpha1.PreDrainHookAnnotation, deleted: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, m := NewWithT(t), deletedWorkers(start, "a")[0]
			if !tc.deleted {
				m.DeletionTimestamp, m.Finalizers = nil, nil
				m.Annotations[v1alpha1.MachineStageAnnotation] = string(v1alpha1.StageDrain)
			}
			policy := policyForAll()
			management, remote := managementCluster(m).WithObjects(policy).Build(), workloadCluster(m).Build()
			connection := &breaking{ClusterCache: connectedTo(remote, start)}
			r := newReconciler(t, management, connection, clocktesting.NewFakePassiveClock(start))
			infrastructureExists(r, m)
			t.Cleanup(func() { r.forget(client.ObjectKeyFromObject(m)) })
			stored := &clusterv1.Machine{}
			change := func(change func()) {
				g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
				change()
				g.Expect(management.Update(t.Context(), stored)).To(Succeed())
			}
			g.Expect(reconcileAt(t, r, m, start)).To(Succeed())
			drains, _ := drainingIn(t, remote)
			g.Expect(drains).To(HaveLen(1))
			at := func(after time.Duration) (suspended bool) {
				g.Expect(reconcileAt(t, r, m, start.Add(after))).To(Succeed())
				suspended, err := r.Maintenances.IsSuspended(t.Context(), &drains[0], stored) // as the cache has it
				g.Expect(err).NotTo(HaveOccurred())
				return suspended
			}
			change(func() { stored.Annotations[clusterv1.PausedAnnotation] = "" })
			g.Expect(at(time.Minute)).To(BeTrue())
			change(func() {
				delete(stored.Annotations, clusterv1.PausedAnnotation)
				delete(stored.Annotations, tc.change)
			})
			if connection.broken = tc.disconnected; tc.disconnected {
				g.Expect(at(2*time.Minute)).To(BeTrue(), "the workload cluster is not connected")
				connection.broken = false
			}
			g.Expect(at(3*time.Minute)).To(BeTrue(), "until the cache has the NodeMaintenance in stage Complete")
			left, _ := drainingIn(t, remote)
			g.Expect(left).To(BeEmpty())
		})
	}
}

// TestResultAfterPause: the watch has not delivered yet a rule that was created during a pause.
func TestResultAfterPause(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for reason, status := range map[string]metav1.ConditionStatus{
		v1alpha1.ReasonMachineDrained: metav1.ConditionTrue, v1alpha1.ReasonTimedOut: metav1.ConditionFalse,
	} {
		t.Run("M163: after a pause, the result "+reason+" of a drain in place stays until the watch has delivered a new rule", func(t *testing.T) {
			g, m := NewWithT(t), deletedWorkers(start, "a")[0]
			m.DeletionTimestamp, m.Finalizers = nil, nil
			m.Annotations[v1alpha1.MachineStageAnnotation] = string(v1alpha1.StageDrain)
			policy := policyForAll()
			management, remote := managementCluster(m).WithObjects(policy).Build(), workloadCluster(m).Build()
			r := newReconciler(t, management, connectedTo(remote, start), clocktesting.NewFakePassiveClock(start))
			t.Cleanup(func() { r.forget(client.ObjectKeyFromObject(m)) })
			stored := &clusterv1.Machine{}
			reconciledAt := func(after time.Duration, change func()) {
				g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
				change()
				g.Expect(management.Update(t.Context(), stored)).To(Succeed())
				g.Expect(reconcileAt(t, r, m, start.Add(after))).To(Succeed())
				g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
			}
			reconciledAt(0, func() {})
			conditions.Set(stored, machinedrain.ResultCondition(reason, "the result"))
			g.Expect(management.Status().Update(t.Context(), stored)).To(Succeed())
			reconciledAt(time.Minute, func() { stored.Annotations[clusterv1.PausedAnnotation] = "" })
			r.forget(client.ObjectKeyFromObject(m)) // as after the result
			rule := &clusterv1.MachineDrainRule{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "protects"}}
			g.Expect(management.Create(t.Context(), rule)).To(Succeed())
			r.Client, r.Maintenances.Client = withoutRules{r.Client}, withoutRules{r.Client}
			reconciledAt(2*time.Minute, func() { delete(stored.Annotations, clusterv1.PausedAnnotation) })
			g.Expect(r.Maintenances.Continues(m)).To(BeFalse())
			g.Expect(conditions.Get(stored, v1alpha1.MachineNodeMaintenance)).To(HaveValue(And(HaveField("Reason", reason), HaveField("Status", status))))
			g.Expect(unended.machines).NotTo(HaveKey(client.ObjectKeyFromObject(m)), "it waits for nothing")
		})
	}
}

func TestRuleIsFixedDuringPause(t *testing.T) {
	t.Run("M163: after a pause, a drain waits until the watch has delivered that an invalid rule was fixed", func(t *testing.T) {
		start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		g, m := NewWithT(t), deletedWorkers(start, "a")[0]
		policy := policyForAll()
		management, remote := managementCluster(m).WithObjects(policy).Build(), workloadCluster(m).WithStatusSubresource(&v1alpha1.NodeMaintenance{}).Build()
		r := newReconciler(t, management, connectedTo(remote, start), clocktesting.NewFakePassiveClock(start))
		infrastructureExists(r, m)
		t.Cleanup(func() { r.forget(client.ObjectKeyFromObject(m)) })
		delivered, stored := r.Client, &clusterv1.Machine{}
		at := func(after time.Duration, pausedAtTheEnd bool) (suspended bool) {
			g.Expect(reconcileAt(t, r, m, start.Add(after))).To(Succeed())
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
			drains, _ := drainingIn(t, remote)
			g.Expect(drains).To(HaveLen(1))
			suspended, err := r.Maintenances.IsSuspended(t.Context(), &drains[0], stored)
			g.Expect(err).NotTo(HaveOccurred())
			if delete(stored.Annotations, clusterv1.PausedAnnotation); pausedAtTheEnd {
				stored.Annotations[clusterv1.PausedAnnotation] = ""
			}
			g.Expect(management.Update(t.Context(), stored)).To(Succeed())
			return suspended
		}
		g.Expect(at(0, false)).To(BeFalse())
		drains, _ := drainingIn(t, remote)
		drains[0].Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(start)}}
		g.Expect(remote.Status().Update(t.Context(), &drains[0])).To(Succeed())
		rule := &clusterv1.MachineDrainRule{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "protects", Generation: 1}}
		rule.Spec.Drain.Behavior = clusterv1.MachineDrainRuleDrainBehaviorSkip
		rule.Spec.Pods = []clusterv1.MachineDrainRulePodSelector{{Selector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "in"}},
		}}}
		g.Expect(management.Create(t.Context(), rule)).To(Succeed())
		g.Expect(at(time.Minute, true)).To(BeFalse(), "it continues under the last valid rules")
		g.Expect(at(2*time.Minute, false)).To(BeTrue())

		invalid := *rule.DeepCopy()
		rule.Spec.Pods, rule.Generation = nil, 2
		g.Expect(management.Update(t.Context(), rule)).To(Succeed())
		r.Client = withRule{delivered, invalid}
		r.Maintenances.Client = r.Client
		g.Expect(at(3*time.Minute, false)).To(BeTrue(), "the rule protects Pods")
		g.Expect(at(3*time.Minute+time.Second, false)).To(BeTrue())
		r.Client, r.Maintenances.Client = delivered, delivered
		g.Expect(at(4*time.Minute, false)).To(BeTrue(), "until the cache has the update")
		g.Expect(at(4*time.Minute+time.Second, false)).To(BeFalse())
	})
}

// withRule is a cache that has this MachineDrainRule only.
type withRule struct {
	client.Client
	rule clusterv1.MachineDrainRule
}

func (c withRule) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if all, is := list.(*clusterv1.MachineDrainRuleList); is {
		all.Items = []clusterv1.MachineDrainRule{*c.rule.DeepCopy()}
		return nil
	}
	return c.Client.List(ctx, list, options...) //nolint:wrapcheck // it adds nothing
}

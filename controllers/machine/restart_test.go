package machine

import (
	"context"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// restartedDrain is a drain in stage Drain whose manager restarts. A rule that protects Pods is created while no manager runs.
type restartedDrain struct {
	Gomega
	t       *testing.T
	r       *Reconciler // of the manager that runs now
	start   time.Time
	machine *clusterv1.Machine

	management, remote client.Client
	delivered          client.Client // the cache of the management cluster
	refused            error         // of updates of the NodeMaintenance
	lags               bool          // the cache of the workload cluster does not have the NodeMaintenance
	unread             error         // of reads of the Node
	resumed            chan workload.Change
}

// beginDrain reconciles a Machine that a policy selects, and creates the rule.
func beginDrain(t *testing.T, inPlace bool) *restartedDrain {
	t.Helper()
	d := &restartedDrain{Gomega: NewWithT(t), t: t, start: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), resumed: make(chan workload.Change, 100)}
	d.machine = deletedWorkers(d.start, "a")[0]
	if inPlace {
		d.machine.DeletionTimestamp, d.machine.Finalizers = nil, nil
		d.machine.Annotations[v1alpha1.MachineStageAnnotation] = string(v1alpha1.StageDrain)
	}
	d.management = managementCluster(d.machine).WithObjects(&v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "own"}}).Build()
	d.remote = workloadCluster(d.machine).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if _, is := o.(*v1alpha1.NodeMaintenance); is && d.lags {
				return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
			}
			if _, is := o.(*corev1.Node); is && d.unread != nil {
				return d.unread
			}
			return c.Get(ctx, key, o, options...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			if d.refused != nil {
				return d.refused
			}
			return c.Patch(ctx, o, patch, options...)
		},
	}).Build()
	d.restart()
	d.reconcile(0)
	d.Expect(d.isSuspended()).To(BeFalse(), "it has just begun")
	d.Consistently(d.resumed, 300*time.Millisecond).ShouldNot(Receive(), "a drain that begins resumes no other")
	rule := &clusterv1.MachineDrainRule{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "protects"}}
	rule.Spec.Drain.Behavior = clusterv1.MachineDrainRuleDrainBehaviorSkip
	d.Expect(d.management.Create(t.Context(), rule)).To(Succeed())
	return d
}

func (d *restartedDrain) restart() {
	d.t.Helper()
	d.r = newReconciler(d.t, d.management, connectedTo(d.remote, d.start), clocktesting.NewFakePassiveClock(d.start))
	d.delivered = d.r.Client
	infrastructureExists(d.r, d.machine)
	d.r.Clusters.Subscribe(func(change workload.Change) { d.resumed <- change })
	r := d.r
	d.t.Cleanup(func() { r.forget(client.ObjectKeyFromObject(d.machine)) })
}

func (d *restartedDrain) reconcile(after time.Duration) {
	d.t.Helper()
	_ = reconcileAt(d.t, d.r, d.machine, d.start.Add(after)) // the condition names an error
}

// expectRetry reconciles the Machine while its Node cannot be read. No event follows when it can.
func (d *restartedDrain) expectRetry(after time.Duration) {
	d.t.Helper()
	d.unread = errors.New("the API server is overloaded")
	d.r.Clock.(*clocktesting.FakePassiveClock).SetTime(d.start.Add(after))
	result, err := d.r.Reconcile(d.t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(d.machine)})
	d.Expect(err != nil || result.RequeueAfter > 0).To(BeTrue(), "it is reconciled again")
	d.Expect(d.isSuspended()).To(BeTrue())
	d.unread = nil
}

func (d *restartedDrain) stored() *clusterv1.Machine {
	d.t.Helper()
	stored := &clusterv1.Machine{}
	d.Expect(d.management.Get(d.t.Context(), client.ObjectKeyFromObject(d.machine), stored)).To(Succeed())
	return stored
}

func (d *restartedDrain) isSuspended() bool {
	d.t.Helper()
	drains, _ := drainingIn(d.t, d.remote)
	d.Expect(drains).To(HaveLen(1))
	suspended, err := d.r.Maintenances.IsSuspended(d.t.Context(), &drains[0], d.stored())
	d.Expect(err).NotTo(HaveOccurred())
	return suspended
}

func (d *restartedDrain) hasRule() bool {
	d.t.Helper()
	drains, _ := drainingIn(d.t, d.remote)
	return slices.ContainsFunc(drains[0].Spec.DrainRules, func(rule v1alpha1.DrainRule) bool { return rule.Name == rules.MachineDrainRulePrefix+"protects" })
}

// deleteAnotherRule adds a rule to the NodeMaintenance that the management cluster does not have.
func (d *restartedDrain) deleteAnotherRule() {
	d.t.Helper()
	drains, _ := drainingIn(d.t, d.remote)
	gone := v1alpha1.DrainRule{Name: rules.MachineDrainRulePrefix + "gone", Behavior: v1alpha1.DrainBehaviorSkip, Pods: []v1alpha1.DrainRulePodSelector{{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}},
	}}}
	drains[0].Spec.DrainRules = slices.Insert(drains[0].Spec.DrainRules, 0, gone)
	d.Expect(d.remote.Update(d.t.Context(), &drains[0])).To(Succeed())
}

// deleteCluster begins the deletion of the Cluster.
func (d *restartedDrain) deleteCluster() {
	d.t.Helper()
	cluster := &clusterv1.Cluster{}
	d.Expect(d.management.Get(d.t.Context(), clusterKey, cluster)).To(Succeed())
	cluster.Finalizers = []string{clusterv1.ClusterFinalizer}
	d.Expect(d.management.Update(d.t.Context(), cluster)).To(Succeed())
	d.Expect(d.management.Delete(d.t.Context(), cluster)).To(Succeed())
}

func (d *restartedDrain) change(change func(m *clusterv1.Machine)) {
	d.t.Helper()
	stored := d.stored()
	change(stored)
	reported := stored.Status
	d.Expect(d.management.Update(d.t.Context(), stored)).To(Succeed())
	stored.Status = reported
	d.Expect(d.management.Status().Update(d.t.Context(), stored)).To(Succeed())
}

// beginUpdate replaces the stage annotation by an update in place that the manager has allowed, because the drain has timed out.
func beginUpdate(m *clusterv1.Machine) {
	delete(m.Annotations, v1alpha1.MachineStageAnnotation)
	m.Annotations[clusterv1.UpdateInProgressAnnotation] = ""
	m.Annotations[v1alpha1.UpdateAllowedAnnotation] = v1alpha1.ReasonTimedOut + "/" + string(m.UID)
}

// TestDrainAfterRestart: what the caches have of the drain is from before the restart.
func TestDrainAfterRestart(t *testing.T) {
	hook := clusterv1.PreDrainDeleteHookAnnotationPrefix + "/other"
	lags := func(d *restartedDrain) {
		d.r.Client, d.r.Maintenances.Client = withoutRules{d.r.Client}, withoutRules{d.r.Client}
	}
	for name, tc := range map[string]struct {
		inPlace   bool
		meanwhile func(d *restartedDrain) // while no manager runs
		restarted func(d *restartedDrain)
		waits     string // the reason of the condition while the drain stays suspended; empty: it does not
		ends      func(d *restartedDrain)
		keeps     bool // the drain continues under the rules that its NodeMaintenance has
	}{
		"M162: after a restart, a drain is suspended until its NodeMaintenance has a rule that was created meanwhile": {},
		"M162: after a restart, a drain in place is suspended until then, too":                                        {inPlace: true},
		"M162: after a restart, a drain is suspended while the workload cluster refuses the update of its NodeMaintenance": {
			restarted: func(d *restartedDrain) { d.refused = errors.New("denied") }, waits: v1alpha1.ReasonReconcileFailed,
			ends: func(d *restartedDrain) { d.refused = nil },
		},
		"M163: after a restart, a drain is suspended until the watch has delivered the rules that the API server has": {
			restarted: lags, waits: v1alpha1.ReasonMachineDraining,
			ends: func(d *restartedDrain) { d.r.Client, d.r.Maintenances.Client = d.delivered, d.delivered },
		},
		"M162: after a restart, a drain is suspended until its policy can be decoded": {
			restarted: func(d *restartedDrain) { d.r.Maintenances.Unread = unreadPolicy(d.t, "a") }, waits: v1alpha1.ReasonPolicyNotDecodable,
			ends: func(d *restartedDrain) { d.r.Maintenances.Unread = nil },
		},
		"M98: after a restart, a drain in place whose stage annotation was removed says that its policy cannot be decoded": {
			inPlace: true, waits: v1alpha1.ReasonPolicyNotDecodable,
			meanwhile: func(d *restartedDrain) {
				d.change(func(m *clusterv1.Machine) { delete(m.Annotations, v1alpha1.MachineStageAnnotation) })
			},
			restarted: func(d *restartedDrain) { d.r.Maintenances.Unread = unreadPolicy(d.t, "a") },
			ends: func(d *restartedDrain) {
				d.r.Maintenances.Unread = nil
				d.change(func(m *clusterv1.Machine) {
					m.Annotations[v1alpha1.MachineStageAnnotation] = string(v1alpha1.StageDrain)
				})
			},
		},
		"M162: after a restart, a drain is suspended until it has a rule that was created meanwhile, also if another one was deleted meanwhile": {
			meanwhile: (*restartedDrain).deleteAnotherRule,
		},
		"M162: after a restart, a drain in place is suspended while its stage annotation is invalid": {
			inPlace: true, waits: v1alpha1.ReasonInvalidStage,
			meanwhile: func(d *restartedDrain) {
				d.change(func(m *clusterv1.Machine) { m.Annotations[v1alpha1.MachineStageAnnotation] = "drain" })
			},
			ends: func(d *restartedDrain) {
				d.change(func(m *clusterv1.Machine) {
					m.Annotations[v1alpha1.MachineStageAnnotation] = string(v1alpha1.StageDrain)
				})
			},
		},
		"M162: after a restart, a drain that hooks hold continues with the rule when they are removed": {
			meanwhile: func(d *restartedDrain) { d.change(func(m *clusterv1.Machine) { m.Annotations[hook] = "approval" }) },
			waits:     v1alpha1.ReasonWaitingForPreDrainHook,
			ends:      func(d *restartedDrain) { d.change(func(m *clusterv1.Machine) { delete(m.Annotations, hook) }) },
		},
		"M6: after a restart, a drain continues under the last valid rules while a rule is invalid": {
			keeps: true,
			meanwhile: func(d *restartedDrain) {
				drains, _ := drainingIn(d.t, d.remote)
				drains[0].Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(d.start)}}
				d.Expect(d.remote.Update(d.t.Context(), &drains[0])).To(Succeed())
				invalid := &clusterv1.MachineDrainRule{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "invalid"}}
				invalid.Spec.Pods = []clusterv1.MachineDrainRulePodSelector{{Selector: &metav1.LabelSelector{
					MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "in"}},
				}}}
				d.Expect(d.management.Create(d.t.Context(), invalid)).To(Succeed())
			},
		},
		"M145: after a restart, the drain in place of a Machine that no policy selects continues": {
			inPlace: true, keeps: true,
			meanwhile: func(d *restartedDrain) {
				d.Expect(d.management.Delete(d.t.Context(), &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "own"}})).To(Succeed())
			},
		},
		"M145: after a restart, the drain in place of a Machine that no policy selects continues while its Cluster is being deleted": {
			inPlace: true, keeps: true,
			meanwhile: func(d *restartedDrain) {
				d.Expect(d.management.Delete(d.t.Context(), &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "own"}})).To(Succeed())
				d.deleteCluster()
			},
		},
		"M162: after a restart, the drain before an update in place that has begun continues": {
			inPlace: true, keeps: true, meanwhile: func(d *restartedDrain) { d.change(beginUpdate) },
		},
		"M162: after a restart, what remains on the Node of a Machine that was released is evicted": {
			keeps: true,
			meanwhile: func(d *restartedDrain) {
				d.change(func(m *clusterv1.Machine) {
					machinedrain.Release(m, true, true)
					conditions.Set(m, machinedrain.ResultCondition(v1alpha1.ReasonTimedOut, "Pods remain"))
				})
			},
		},
		"M162: after a restart, what remains on the Node of a released Machine without a nodeRef is evicted": {
			keeps: true,
			meanwhile: func(d *restartedDrain) {
				d.change(func(m *clusterv1.Machine) {
					machinedrain.Release(m, true, true)
					conditions.Set(m, machinedrain.ResultCondition(v1alpha1.ReasonTimedOut, "Pods remain"))
					m.Status.NodeRef = clusterv1.MachineNodeReference{}
				})
			},
		},
		"M162: after a restart, the drain in place of a Machine whose Cluster is being deleted continues with a rule that was created meanwhile": {
			inPlace: true, meanwhile: (*restartedDrain).deleteCluster,
		},
		"M162: after a restart, it is suspended while the workload cluster refuses the update, and the condition says why, also if its Cluster is being deleted": {
			inPlace: true, meanwhile: (*restartedDrain).deleteCluster,
			restarted: func(d *restartedDrain) { d.refused = errors.New("denied") }, waits: v1alpha1.ReasonReconcileFailed,
			ends: func(d *restartedDrain) { d.refused = nil },
		},
		"M162: after a restart, it is suspended while its policy cannot be decoded, and the condition says so, also if its Cluster is being deleted": {
			inPlace: true, meanwhile: (*restartedDrain).deleteCluster,
			restarted: func(d *restartedDrain) { d.r.Maintenances.Unread = unreadPolicy(d.t, "a") }, waits: v1alpha1.ReasonPolicyNotDecodable,
			ends: func(d *restartedDrain) { d.r.Maintenances.Unread = nil },
		},
		"M162: after a restart, the drain before an update in place that has begun continues while the Cluster is being deleted": {
			inPlace: true, keeps: true,
			meanwhile: func(d *restartedDrain) {
				d.change(beginUpdate)
				d.deleteCluster()
			},
		},
		"M162: after a restart, a drain before an update in place continues while the Cluster is being deleted, also if only a cordon is required by then": {
			inPlace: true, meanwhile: func(d *restartedDrain) {
				d.change(func(m *clusterv1.Machine) {
					delete(m.Annotations, v1alpha1.MachineStageAnnotation)
					m.Annotations[clusterv1.UpdateInProgressAnnotation] = ""
				})
				policy := &v1alpha1.MachineDrainPolicy{}
				d.Expect(d.management.Get(d.t.Context(), client.ObjectKey{Namespace: "fleet", Name: "own"}, policy)).To(Succeed())
				policy.Spec.InPlaceUpdates = v1alpha1.InPlaceUpdatesCordon
				d.Expect(d.management.Update(d.t.Context(), policy)).To(Succeed())
				d.deleteCluster()
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := beginDrain(t, tc.inPlace)
			if tc.meanwhile != nil {
				tc.meanwhile(d)
			}
			d.restart()
			if tc.restarted != nil {
				tc.restarted(d)
			}
			d.Expect(d.isSuspended()).To(BeTrue(), "before the first reconciliation")
			now := time.Minute
			if tc.waits == "" {
				d.expectRetry(now)
			}
			for ; tc.waits != "" && now < time.Minute+20*time.Second; now += time.Second {
				d.reconcile(now)
				d.Expect(d.isSuspended()).To(BeTrue())
			}
			if tc.waits != "" {
				d.Expect(conditions.Get(d.stored(), v1alpha1.MachineNodeMaintenance)).To(HaveValue(HaveField("Reason", tc.waits)))
				tc.ends(d)
			}
			for ; d.isSuspended(); now += time.Second {
				d.Expect(now).To(BeNumerically("<", 2*time.Minute))
				d.reconcile(now)
				d.Expect(d.isSuspended() || d.hasRule() || tc.keeps).To(BeTrue())
			}
			d.Expect(d.hasRule()).NotTo(Equal(tc.keeps))
			if tc.waits != v1alpha1.ReasonMachineDraining {
				d.Expect(conditions.GetReason(d.stored(), v1alpha1.MachineNodeMaintenance)).NotTo(And(Equal(tc.waits), Not(BeEmpty())), "it does not wait any more")
				unended.Lock()
				reason := unended.machines[client.ObjectKeyFromObject(d.machine)].reason
				unended.Unlock()
				d.Expect(reason).NotTo(And(Equal(tc.waits), Not(BeEmpty())), "nor does the metric say so")
			}
			d.Eventually(d.resumed).WithTimeout(time.Minute).Should(Receive(And(HaveField("Type", workload.DrainContinued), HaveField("Node", "a"))))
		})
	}
	t.Run("M158: after a hold, a drain waits until it has a rule that was created during the hold, also if another one was deleted", func(t *testing.T) {
		d := beginDrain(t, false)
		d.change(func(m *clusterv1.Machine) { m.Annotations[hook] = "approval" })
		d.reconcile(time.Minute)
		d.deleteAnotherRule()
		d.change(func(m *clusterv1.Machine) { delete(m.Annotations, hook) })
		for now := 2 * time.Minute; d.isSuspended(); now += time.Second {
			d.Expect(now).To(BeNumerically("<", 3*time.Minute))
			d.reconcile(now)
			d.Expect(d.isSuspended() || d.hasRule()).To(BeTrue())
		}
	})
	t.Run("M158: a hold that cannot be recorded suspends the drain until the NodeMaintenance has a rule that was created during the hold", func(t *testing.T) {
		d := beginDrain(t, false)
		d.change(func(m *clusterv1.Machine) { m.Annotations[hook] = "approval" })
		d.r.Client = interceptor.NewClient(d.management.(client.WithWatch), interceptor.Funcs{
			Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
				return errors.New("denied")
			},
		})
		d.reconcile(time.Minute)
		d.r.Client = d.delivered
		d.Expect(d.stored().Annotations).NotTo(HaveKey(v1alpha1.DrainHeldAnnotation))
		d.change(func(m *clusterv1.Machine) { delete(m.Annotations, hook) })
		for now := 2 * time.Minute; d.isSuspended() || !d.hasRule(); now += time.Second {
			d.Expect(now).To(BeNumerically("<", 3*time.Minute))
			d.Expect(d.isSuspended() || d.hasRule()).To(BeTrue())
			d.reconcile(now)
		}
	})
	for name, withdraw := range map[string]func(m *clusterv1.Machine){
		"whose stage annotation was removed": func(m *clusterv1.Machine) { delete(m.Annotations, v1alpha1.MachineStageAnnotation) },
		"whose stage annotation is invalid":  func(m *clusterv1.Machine) { m.Annotations[v1alpha1.MachineStageAnnotation] = "drain" },
	} {
		t.Run("M162: after a restart, a drain in place "+name+" stays suspended while its Cluster is being deleted, without a reason", func(t *testing.T) {
			d := beginDrain(t, true)
			d.change(withdraw)
			d.deleteCluster()
			reported := conditions.Get(d.stored(), v1alpha1.MachineNodeMaintenance)
			d.restart()
			for now := time.Minute; now < time.Minute+20*time.Second; now += time.Second {
				d.reconcile(now)
				d.Expect(d.isSuspended()).To(BeTrue())
			}
			d.Expect(conditions.Get(d.stored(), v1alpha1.MachineNodeMaintenance)).To(Equal(reported))
		})
	}
	t.Run("M162: while its Cluster is being deleted, no drain in place begins after a restart", func(t *testing.T) {
		d := beginDrain(t, true)
		drains, _ := drainingIn(t, d.remote)
		drains[0].Spec.Stage = v1alpha1.StageCordon // it waits for a turn
		d.Expect(d.remote.Update(t.Context(), &drains[0])).To(Succeed())
		d.deleteCluster()
		d.restart()
		for now := time.Minute; now < time.Minute+10*time.Second; now += time.Second {
			d.reconcile(now)
			drains, _ := drainingIn(t, d.remote)
			d.Expect(drains).To(BeEmpty())
		}
	})
	t.Run("M162: while its Cluster is being deleted, the rules of a drain in place that continues do not change any more", func(t *testing.T) {
		d := beginDrain(t, true)
		d.deleteCluster()
		for now := time.Minute; now < time.Minute+10*time.Second; now += time.Second {
			d.reconcile(now)
			d.Expect(d.hasRule()).To(BeFalse())
		}
	})
	t.Run("M162: after a restart, a drain continues at once if nothing has changed", func(t *testing.T) {
		d := beginDrain(t, false)
		d.Expect(d.management.DeleteAllOf(t.Context(), &clusterv1.MachineDrainRule{}, client.InNamespace("fleet"))).To(Succeed())
		d.restart()
		d.Expect(d.isSuspended()).To(BeTrue(), "before the first reconciliation")
		d.reconcile(time.Minute)
		d.Expect(d.isSuspended()).To(BeFalse())
		d.Eventually(d.resumed).WithTimeout(time.Minute).Should(Receive(And(HaveField("Type", workload.DrainContinued), HaveField("Node", "a"))))
		for range 10 {
			d.reconcile(2 * time.Minute)
		}
		d.Consistently(d.resumed, 300*time.Millisecond).ShouldNot(Receive(), "it is resumed once")
	})
	t.Run("M162: after a restart, a drain is suspended while the watch has not delivered its NodeMaintenance", func(t *testing.T) {
		d := beginDrain(t, false)
		d.restart()
		d.lags = true
		d.reconcile(time.Minute)
		d.Expect(d.isSuspended()).To(BeTrue(), "it may be delivered before the next reconciliation")
	})
	t.Run("M162: a drain that has not begun does not continue: its Machine waits for a turn", func(t *testing.T) {
		g, start := NewWithT(t), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		machines := deletedWorkers(start, "a", "b")
		management, remote := managementCluster(machines...).WithObjects(policyWithLimit(intstr.FromInt32(1))).Build(), workloadCluster(machines...).Build()
		r := newReconciler(t, management, connectedTo(remote, start), clocktesting.NewFakePassiveClock(start))
		infrastructureExists(r, machines...)
		for after := range 10 {
			for _, m := range machines {
				g.Expect(reconcileAt(t, r, m, start.Add(time.Duration(after)*time.Second))).To(Succeed())
			}
		}
		for _, m := range machines {
			r.forget(client.ObjectKeyFromObject(m))
		}
		draining, all := drainingIn(t, remote)
		g.Expect(draining).To(HaveLen(1))
		g.Expect(all).To(Equal(2))
		g.Expect([]bool{r.Maintenances.Continues(machines[0]), r.Maintenances.Continues(machines[1])}).To(Equal([]bool{true, false}))
	})
	t.Run("M162: the drain of a Machine that is created again with the same name is suspended", func(t *testing.T) {
		d := beginDrain(t, false)
		drains, _ := drainingIn(t, d.remote)
		again := d.stored()
		again.UID = "again"
		suspended, err := d.r.Maintenances.IsSuspended(t.Context(), &drains[0], again)
		d.Expect(err).NotTo(HaveOccurred())
		d.Expect(suspended).To(BeTrue())
	})
}

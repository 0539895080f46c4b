package machine

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestContenders(t *testing.T) {
	machine := func(name, reason string) clusterv1.Machine {
		return clusterv1.Machine{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "fleet", Name: name, DeletionTimestamp: new(metav1.NewTime(time.Unix(1, 0))),
				Annotations: map[string]string{v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner + "/a"},
				Labels:      map[string]string{"name": name, clusterv1.WatchLabel: "a"},
			},
			Status: clusterv1.MachineStatus{
				NodeRef:    clusterv1.MachineNodeReference{Name: name},
				Conditions: []metav1.Condition{{Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: reason}},
			},
		}
	}
	rule := func(operator metav1.LabelSelectorOperator) *clusterv1.MachineDrainRule {
		return &clusterv1.MachineDrainRule{
			ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "rule"},
			Spec: clusterv1.MachineDrainRuleSpec{
				Drain:    clusterv1.MachineDrainRuleDrainConfig{Behavior: clusterv1.MachineDrainRuleDrainBehaviorSkip},
				Machines: []clusterv1.MachineDrainRuleMachineSelector{{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": "one"}}}},
				Pods: []clusterv1.MachineDrainRulePodSelector{{Selector: &metav1.LabelSelector{
					MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: operator}},
				}}},
			},
		}
	}
	for _, tc := range []struct {
		name  string
		rule  *clusterv1.MachineDrainRule
		count []string
		// unread means that a policy which may select Machine one cannot be decoded, and labels are those of this Machine.
		unread bool
		labels map[string]string
		// unnamed means that Machine two has no nodeRef, and stage is that of its NodeMaintenance, empty if it has none. change is done to it.
		unnamed bool
		stage   v1alpha1.NodeMaintenanceStage
		change  func(*clusterv1.Machine)
		// lost means that the Nodes of both have been unreachable for ten minutes. The Cluster has as many others that are reachable.
		lost      bool
		reachable int
	}{
		{name: "M26: an invalid rule does not delay the Machines that it does not select", rule: rule("Oops"), count: []string{"one awaits rules", "two"}},
		{name: "M26: counts a Machine as soon as the rule is fixed", rule: rule(metav1.LabelSelectorOpExists), count: []string{"one", "two"}},
		{name: "M37: passes over a Machine whose policy cannot be decoded", rule: rule(metav1.LabelSelectorOpExists), unread: true, count: []string{"two"}},
		{
			name: "M37: passes over a Machine that another manager must drain", rule: rule(metav1.LabelSelectorOpExists),
			labels: map[string]string{clusterv1.WatchLabel: "b"}, count: []string{"two"},
		},
		{name: "M128: counts one that drains, whose Node its provider ID names", unnamed: true, stage: v1alpha1.StageDrain, count: []string{"one", "two drains"}},
		{name: "M128: counts one that waits", unnamed: true, stage: v1alpha1.StageCordon, count: []string{"one", "two"}},
		{name: "M26: does not count a Machine without a Node", unnamed: true, count: []string{"one"}},
		{
			name: "M128: counts one without a NodeMaintenance, whose Node its provider ID names", unnamed: true, count: []string{"one", "two"},
			change: func(m *clusterv1.Machine) { m.Spec.ProviderID = "cloud://two" },
		},
		{
			name: "M26: does not count one whose provider ID names no Node", unnamed: true, count: []string{"one"},
			change: func(m *clusterv1.Machine) { m.Spec.ProviderID = "cloud://none" },
		},
		{
			name: "M26: does not count a running one, which has no Node yet", unnamed: true, count: []string{"one"},
			change: func(m *clusterv1.Machine) {
				m.Spec.ProviderID, m.DeletionTimestamp = "cloud://two", nil
				m.Annotations[v1alpha1.MachineStageAnnotation] = string(v1alpha1.StageDrain)
				machinedrain.RequestDrain(time.Unix(1, 0))(m)
			},
		},
		{name: "M26: does not count Machines whose Nodes are lost", lost: true, reachable: 2},
		{name: "M26: counts them while most Nodes are unreachable", lost: true, reachable: 1, count: []string{"one", "two"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			node := func(name string) *corev1.Node {
				return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.NodeSpec{ProviderID: "cloud://" + name}}
			}
			precedes := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "0"}}
			precedes.Spec.MachineSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"name": "two"}}
			management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(cmp.Or(tc.rule, rule(metav1.LabelSelectorOpExists)), precedes).Build()
			r := &Reconciler{Clusters: &workload.Clusters{}, Filter: "a", Maintenances: &machinemaintenance.Requester{Client: management, ManagementCluster: "here"}}
			if tc.unread {
				r.Maintenances.Unread = unreadPolicy(t, "1")
			}
			s := &scope{cluster: provisionedCluster(), client: workloadCluster().Build(), now: time.Now()}
			for i := range 2 + tc.reachable {
				n := node([]string{"one", "two", "3", "4"}[i])
				if tc.lost && i < 2 {
					since := metav1.NewTime(s.now.Add(-10 * time.Minute))
					n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: since}}
				}
				g.Expect(s.client.Create(t.Context(), n)).To(Succeed())
			}
			one, two := machine("one", v1alpha1.ReasonInvalidDrainRule), machine("two", v1alpha1.ReasonWaitingForTurn)
			maps.Copy(one.Labels, tc.labels)
			if tc.stage != "" {
				m := machinedrain.Maintenance(machinedrain.Request{ManagementCluster: "here", Cluster: s.clusterKey(), Machine: &two, Node: node("two"), Stage: tc.stage})
				g.Expect(s.client.Create(t.Context(), m)).To(Succeed())
			}
			if tc.unnamed {
				two.Status.NodeRef.Name = ""
			}
			if tc.change != nil {
				tc.change(&two)
			}
			contenders, workers, err := r.contenders(t.Context(), s, []clusterv1.Machine{one, two})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(workers).To(Equal(2))
			var names []string
			for _, contender := range contenders {
				if contender.Standing == machinedrain.AwaitsRules {
					contender.Name += " awaits rules"
				}
				if contender.Standing == machinedrain.HasTurn {
					contender.Name += " drains"
				}
				names = append(names, contender.Name)
			}
			g.Expect(names).To(Equal(tc.count))
		})
	}
}

func TestContenderWhoseNodeAProxyDenies(t *testing.T) {
	t.Run("M26, M109: the 404 of a proxy about its Node does not end the turn of a Machine", func(t *testing.T) {
		g, now := NewWithT(t), time.Now()
		drains := deletedWorkers(now, "drains")[0]
		r := &Reconciler{Clusters: &workload.Clusters{}, Maintenances: &machinemaintenance.Requester{Client: managementCluster(drains).Build()}}
		s := &scope{cluster: provisionedCluster(), now: now}
		s.client = workloadCluster(drains).WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
				if _, is := object.(*corev1.Node); is {
					return apierrors.NewGenericServerResponse(http.StatusNotFound, http.MethodGet, corev1.Resource("nodes"), key.Name, "page not found", 0, true)
				}
				return c.Get(ctx, key, object, options...)
			},
		}).Build()
		_, _, err := r.contenders(t.Context(), s, []clusterv1.Machine{*drains})
		g.Expect(err).To(HaveOccurred(), "another Machine drains beyond the limit")
	})
}

func TestOverdueTurnIsRecordedFirst(t *testing.T) {
	for name, overdue := range map[string]bool{
		"M37: records that an overdue Machine has the turn before its NodeMaintenance is written": true,
		"M37: records nothing before it for a Machine that is next in line":                       false,
	} {
		t.Run(name, func(t *testing.T) {
			g, machine := NewWithT(t), deletedMachine()
			machine.Spec.Deletion.NodeDrainTimeoutSeconds = new(int32(10))
			management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(machine).Build()
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
			var recorded bool
			remote := fake.NewClientBuilder().WithScheme(newScheme()).WithInterceptorFuncs(interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
					stored := &clusterv1.Machine{}
					g.Expect(management.Get(ctx, client.ObjectKeyFromObject(machine), stored)).To(Succeed())
					_, recorded = stored.Annotations[v1alpha1.DrainStartedAnnotation]
					return c.Create(ctx, object, options...)
				},
			}).Build()
			r := &Reconciler{Client: management, Clock: clocktesting.NewFakePassiveClock(time.Now()), events: record.NewFakeRecorder(10)}
			s := &scope{machine: machine, client: remote, node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, now: time.Now()}
			s.Turn = &machinedrain.Turn{Limit: 1, Overdue: overdue}

			_, err := r.apply(t.Context(), s, &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m"}})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(recorded).To(Equal(overdue))
		})
	}
}

func TestNodeOfWaitingMachine(t *testing.T) {
	waits, schedulable, refused := &v1alpha1.NodeMaintenance{}, &v1alpha1.NodeMaintenance{}, &v1alpha1.NodeMaintenance{}
	waits.Spec.Stage, schedulable.Spec.Stage, refused.Spec.Stage = v1alpha1.StageCordon, v1alpha1.StageCordon, v1alpha1.StageCordon
	schedulable.Annotations = map[string]string{v1alpha1.OwnerMachineAnnotation: "fleet/m", v1alpha1.WaitingNodeAnnotation: "Schedulable"}
	refused.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.NodeMaintenanceCordoned, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonCordonFailed, Message: "Node m cannot be cordoned: frozen",
	}}
	for name, tc := range map[string]struct {
		maintenance *v1alpha1.NodeMaintenance
		want        string
	}{
		"M26: a Machine that waits for a turn says that its Node is cordoned": {waits, "The Node is cordoned"},
		"M132: a Machine that waits for a turn says that its Node is schedulable": {
			schedulable, "The Node is schedulable until then, or until a drain makes progress (waitingNodes)",
		},
		"M146: a Machine that waits for a turn names why the API server refuses to cordon its Node": {refused, "Node m cannot be cordoned: frozen"},
	} {
		t.Run(name, func(t *testing.T) {
			turn := machinedrain.Turn{Limit: 1, Draining: 1}
			waiting, err := (&Reconciler{}).awaitTurn(t.Context(), &scope{
				cluster: provisionedCluster(), maintenance: tc.maintenance, now: time.Now(), Situation: machinedrain.Situation{Turn: &turn},
			})
			g := NewWithT(t)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(waiting.message).To(Equal(turn.Message("c") + ". " + tc.want))
		})
	}
}

func TestTurnBehindBlockedMachine(t *testing.T) {
	for name, hasTurn := range map[string]bool{
		"M37: a Machine that was blocked before the turn was observed is not overdue yet: what has blocked both may be over": false,
		"M37, M39: one whose step after the turn fails is overdue behind an older one that is blocked":                       true,
	} {
		t.Run(name, func(t *testing.T) {
			g, now := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
			machines, policy := deletedWorkers(now, "a", "b"), policyWithLimit(intstr.FromInt32(1))
			older, self := machines[0], machines[1]
			self.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](60)
			r := notConnected(t, managementCluster(machines...).WithObjects(policy).Build(), clocktesting.NewFakePassiveClock(now))
			s := &scope{machine: self, cluster: provisionedCluster(), policy: policy, node: nodeOf(self), client: workloadCluster(machines...).Build(), now: now}
			failed := &scope{machine: self, now: now.Add(-15 * time.Second)}
			if hasTurn {
				failed.Turn = &machinedrain.Turn{}
			}
			r.beginBlock(failed)
			r.beginBlock(&scope{machine: older, now: now.Add(-15 * time.Second)})
			turn, err := r.turn(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(turn.Overdue).To(Equal(hasTurn), "%+v", turn)
		})
	}
}

func TestTurnWithoutPolicy(t *testing.T) {
	t.Run("M126: a Machine that waits for a turn when its policy goes waits under the same limit, also if it is held by hooks meanwhile", func(t *testing.T) {
		g, now := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
		machines, policy := deletedWorkers(now, "a", "b"), policyWithLimit(intstr.FromString("50%"))
		drains, self := machines[0], machines[1]
		management := managementCluster(machines...).Build()
		r := notConnected(t, management, clocktesting.NewFakePassiveClock(now))
		drain := drainOf(drains, now)
		turn := func(self *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy, maintenances ...client.Object) *scope {
			remote := workloadCluster(machines...).WithObjects(maintenances...).Build()
			s := &scope{machine: self, cluster: provisionedCluster(), policy: policy, node: nodeOf(self), client: remote, now: now}
			s.findHooks()
			s.HeldByHooks = len(s.hooks) > 0
			turn, err := r.turn(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			s.Turn = &turn
			g.Expect(r.recordClock(t.Context(), s)).To(Succeed())
			return s
		}
		g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(self), self)).To(Succeed())
		waits := turn(self, policy, drain).machine
		g.Expect(turn(waits, nil, drain).Turn.Now()).To(BeFalse())
		g.Expect(machinedrain.WithoutPolicyMessage(waits, v1alpha1.ReasonWaitingForTurn)).To(ContainSubstring("maxParallelDrains of MachineDrainPolicy all"))

		hooked := waits.DeepCopy()
		hooked.Annotations[clusterv1.PreDrainDeleteHookAnnotationPrefix+"/other"] = "other"
		held := turn(hooked, nil, drain).machine
		g.Expect(machinedrain.IsHeldByHooks(held)).To(BeTrue())
		delete(held.Annotations, clusterv1.PreDrainDeleteHookAnnotationPrefix+"/other")
		g.Expect(turn(held, nil, drain).Turn.Now()).To(BeFalse())

		g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(drains), drains)).To(Succeed())
		machinedrain.Release(drains, true, true)
		g.Expect(management.Update(t.Context(), drains)).To(Succeed())
		g.Expect(turn(waits, nil, drain).Turn.Now()).To(BeTrue())
	})
}

func TestReplacedPolicy(t *testing.T) {
	t.Run("M126: a Machine that waits does not begin while its policy may be replaced, although another one without a limit selects it", func(t *testing.T) {
		g, start := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
		machines, workers := deletedWorkers(start, "a", "b"), policyWithLimit(intstr.FromInt32(1))
		drains, waits := machines[0], machines[1]
		workers.Name = "workers"
		fallback := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "zz-default"}}
		remote, management := workloadCluster(machines...).WithObjects(drainOf(drains, start)).Build(), managementCluster(machines...).WithObjects(fallback).Build()
		r := newReconciler(t, management, connectedTo(remote, start), clocktesting.NewFakePassiveClock(start))
		infrastructureExists(r, waits)
		for _, step := range []struct {
			after   time.Duration
			workers bool
			stage   v1alpha1.NodeMaintenanceStage
			message string
		}{
			{after: 0, workers: true, stage: v1alpha1.StageCordon, message: "1 draining (maxParallelDrains allows 1)"},
			{after: time.Minute, stage: v1alpha1.StageCordon, message: "MachineDrainPolicy workers, whose maxParallelDrains"},
			{after: time.Minute + 2*time.Second, stage: v1alpha1.StageCordon, message: "no longer selects the Machine"},
			{after: time.Minute + 2500*time.Millisecond, workers: true, stage: v1alpha1.StageCordon},
			{after: time.Hour, stage: v1alpha1.StageCordon, message: "no longer selects the Machine"},
			{after: time.Hour + 3*time.Second, stage: v1alpha1.StageDrain, message: ""},
		} {
			if workers.ResourceVersion = ""; step.workers {
				g.Expect(client.IgnoreAlreadyExists(management.Create(t.Context(), workers.DeepCopy()))).To(Succeed())
			} else {
				g.Expect(client.IgnoreNotFound(management.Delete(t.Context(), workers.DeepCopy()))).To(Succeed())
			}
			g.Expect(reconcileAt(t, r, waits, start.Add(step.after))).To(Succeed())
			stored := &v1alpha1.NodeMaintenance{}
			g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(drainOf(waits, start)), stored)).To(Succeed())
			g.Expect(stored.Spec.Stage).To(Equal(step.stage), "after %s", step.after)
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(waits), waits)).To(Succeed())
			g.Expect(conditions.GetMessage(waits, v1alpha1.MachineNodeMaintenance)).To(ContainSubstring(step.message), "after %s", step.after)
		}
	})
}

func TestNextInLineOfEachPolicy(t *testing.T) {
	t.Run("M127: the Machines that wait longest under each limit are reconciled when a drain ends", func(t *testing.T) {
		g, now, management := NewWithT(t), time.Now(), fake.NewClientBuilder().WithScheme(newScheme())
		for i := range 2 * wakeUps {
			m, policy := deletedMachine(), &v1alpha1.MachineDrainPolicy{}
			m.Name, m.Labels = string(rune('a'+i)), map[string]string{clusterv1.ClusterNameLabel: "c"}
			m.DeletionTimestamp = ptr.To(metav1.NewTime(now.Add(time.Duration(i) * time.Second)))
			policy.Name, policy.Spec.MaxParallelDrains = "web", ptr.To(intstr.FromInt32(1))
			if i == 2*wakeUps-1 {
				policy.Name = "storage"
			}
			machinedrain.Clock{Waiting: &now}.RecordLimit(m, policy)
			management.WithObjects(m)
		}
		r := &Reconciler{Client: management.Build()}
		ended := deletedMachine()
		ended.Labels = map[string]string{clusterv1.ClusterNameLabel: "c"}
		requests := r.nextInLine(t.Context(), ended)
		g.Expect(requests).To(HaveLen(wakeUps + 1))
		g.Expect(requests[wakeUps].Name).To(Equal(string(rune('a' + 2*wakeUps - 1))))
	})
}

func TestTurnsOfMachinesWithoutNodeRef(t *testing.T) {
	t.Run("M26, M128: Machines without a nodeRef do not begin together while the watch has not delivered their NodeMaintenances", func(t *testing.T) {
		g, now := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
		machines := deletedWorkers(now, "a", "b")
		for _, m := range machines {
			m.DeletionTimestamp = ptr.To(metav1.NewTime(now.Add(-10 * time.Second))) // the manager has just started, for example
			m.Status.NodeRef.Name, m.Spec.ProviderID = "", "cloud://"+m.Name
		}
		stored := workloadCluster(machines...).Build()
		lagging := interceptor.NewClient(stored, interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				if _, is := list.(*v1alpha1.NodeMaintenanceList); is {
					return nil
				}
				return c.List(ctx, list, options...)
			},
		})
		management := managementCluster(machines...).WithObjects(policyWithLimit(intstr.FromInt32(1))).Build()
		r := newReconciler(t, management, connectedTo(lagging, now), clocktesting.NewFakePassiveClock(now))
		infrastructureExists(r, machines...)
		for _, m := range machines {
			g.Expect(reconcileAt(t, r, m, now)).To(Succeed())
		}
		draining, all := drainingIn(t, stored)
		g.Expect(all).To(Equal(2))
		g.Expect(len(draining)).To(BeNumerically("<=", 1), "maxParallelDrains")
	})
	t.Run("M128: a Machine with a nodeRef waits for no other one", func(t *testing.T) {
		g, now := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
		machines := deletedWorkers(now, "a")
		remote := workloadCluster(machines...).Build()
		management := managementCluster(machines...).WithObjects(policyWithLimit(intstr.FromInt32(1))).Build()
		r := newReconciler(t, management, connectedTo(remote, now), clocktesting.NewFakePassiveClock(now))
		infrastructureExists(r, machines...)
		g.Expect(reconcileAt(t, r, machines[0], now)).To(Succeed())
		draining, _ := drainingIn(t, remote)
		g.Expect(draining).To(HaveLen(1))
	})
}

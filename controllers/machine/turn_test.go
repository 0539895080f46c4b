package machine

import (
	"context"
	"maps"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestContenders(t *testing.T) {
	machine := func(name, reason string) clusterv1.Machine {
		return clusterv1.Machine{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "fleet", Name: name, DeletionTimestamp: new(metav1.NewTime(time.Unix(1, 0))),
				Annotations: map[string]string{v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner + "/a"}, Labels: map[string]string{"name": name, clusterv1.WatchLabel: "a"},
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
				Pods:     []clusterv1.MachineDrainRulePodSelector{{Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: operator}}}}},
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
	}{
		{name: "M26: an invalid rule does not delay the Machines that it does not select", rule: rule("Oops"), count: []string{"one awaits rules", "two"}},
		{name: "M26: counts a Machine as soon as the rule is fixed", rule: rule(metav1.LabelSelectorOpExists), count: []string{"one", "two"}},
		{name: "M37: passes over a Machine whose policy cannot be decoded", rule: rule(metav1.LabelSelectorOpExists), unread: true, count: []string{"two"}},
		{name: "M37: passes over a Machine that another manager must drain", rule: rule(metav1.LabelSelectorOpExists), labels: map[string]string{clusterv1.WatchLabel: "b"}, count: []string{"two"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			scheme := runtime.NewScheme()
			_, _, _ = corev1.AddToScheme(scheme), clusterv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)
			node := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
			precedes := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "0"}}
			precedes.Spec.MachineSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"name": "two"}}
			r := &Reconciler{Filter: "a", Maintenances: &machinemaintenance.Requester{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(tc.rule, precedes).Build()}}
			if tc.unread {
				r.Maintenances.Unread = unreadPolicy(t, "1")
			}
			s := &scope{
				cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c"}},
				client:  fake.NewClientBuilder().WithScheme(scheme).WithObjects(node("one"), node("two")).Build(),
			}
			one := machine("one", v1alpha1.ReasonInvalidDrainRule)
			maps.Copy(one.Labels, tc.labels)
			contenders, workers, err := r.contenders(t.Context(), s, []clusterv1.Machine{one, machine("two", v1alpha1.ReasonWaitingForTurn)})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(workers).To(Equal(2))
			var names []string
			for _, contender := range contenders {
				if contender.AwaitsRules {
					contender.Name += " awaits rules"
				}
				names = append(names, contender.Name)
			}
			g.Expect(names).To(Equal(tc.count))
		})
	}
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
			r := &Reconciler{Client: management, events: record.NewFakeRecorder(10)}
			s := &scope{machine: machine, client: remote, node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, now: time.Now()}
			s.Turn = &machinedrain.Turn{Limit: 1, Overdue: overdue}

			_, err := r.apply(t.Context(), s, &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m"}})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(recorded).To(Equal(overdue))
		})
	}
}

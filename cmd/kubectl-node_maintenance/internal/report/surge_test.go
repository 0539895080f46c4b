package report_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

type surroundings struct{}

func (surroundings) NamespaceLabels(string) (map[string]string, bool) { return nil, true }

func (surroundings) DaemonSetExists(_, _ string, _ types.UID) (exists, known bool) { return true, true }

// surging is the drain of a Node with Pod shop/web-abc-0 of Deployment shop/web.
func surging(replicas int32) (*corev1.Node, report.Intent, forecast.Observation) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
	intent := report.ManualIntent(node, nil)
	intent.Maintenance.Spec.Evacuation.Surge = v1alpha1.SurgeIfSingleReplica
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-abc-0", UID: "pod", Labels: map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: "abc"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-abc", UID: "set", Controller: ptr.To(true)}},
		},
		Spec:   corev1.PodSpec{NodeName: "one"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "d"}, Spec: appsv1.DeploymentSpec{Replicas: &replicas}}
	d.Status = appsv1.DeploymentStatus{Replicas: replicas, UpdatedReplicas: replicas, AvailableReplicas: replicas}
	return node, intent, forecast.Observation{
		Maintenance: intent.Maintenance, Node: node, Surroundings: surroundings{}, Budgets: budgets.NewIndex(nil, nil), Pods: []corev1.Pod{pod},
		Surges: map[types.NamespacedName]surge.Observation{{Namespace: "shop", Name: "web"}: {Deployment: d}}, Now: time.Now(),
	}
}

func TestSurge(t *testing.T) {
	const refusal = "Surge policy IfSingleReplica does not apply: Deployment shop/web declares 2 replicas."
	t.Run("K30: plan notes why a Deployment does not surge", func(t *testing.T) {
		g := NewWithT(t)
		drain := report.NodeDrain(surging(2))
		g.Expect(drain.Delays).To(BeEmpty())
		g.Expect(drain.Notes).To(Equal([]string{"No surge for Pod shop/web-abc-0: " + refusal}))
		g.Expect(drain.Pods[0].Surge).To(Equal(&report.Surge{Refusal: "MoreThanOneReplica", Message: refusal}))
	})

	t.Run("K30: plan says to how many replicas a Deployment surges", func(t *testing.T) {
		g := NewWithT(t)
		drain := report.NodeDrain(surging(1))
		g.Expect(drain.Delays).To(HaveLen(1))
		g.Expect(drain.Delays[0].Message).To(HaveSuffix("Deployment shop/web is scaled from 1 to 2 replicas"))
		g.Expect(drain.Notes).To(BeEmpty())
	})

	for name, refused := range map[string]surge.Report{
		"E67: why names the quota that has ended a surge, and does not advise to set surge": {
			Refusal: surge.ReplicaFailure, Message: "A new Pod of Deployment shop/web cannot be created: exceeded quota: pods.",
		},
		"E69: why names the field manager that has ended a surge, and does not advise to set surge": {
			Refusal: surge.Edited, Message: `Field manager "gitops" changed the number of replicas of Deployment shop/web during the surge.`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			node, intent, observed := surging(1)
			pod := &observed.Pods[0]
			pod.Labels["app"] = "web"
			never := intstr.FromInt32(0)
			observed.Budgets = budgets.NewIndex([]*policyv1.PodDisruptionBudget{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
				Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &never, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
				Status:     policyv1.PodDisruptionBudgetStatus{ExpectedPods: 1, CurrentHealthy: 1, DesiredHealthy: 1},
			}}, nil)
			e := evacuation.New(pod, []v1alpha1.Evacuator{{EvacuatorClass: v1alpha1.EvacuatorClassDeployment}}, 600)
			e.Status.ActiveEvacuatorClass = ptr.To(v1alpha1.EvacuatorClassDeployment)
			refused.Apply(e, observed.Now)
			observed.Evacuations = []v1alpha1.Evacuation{*e}

			why, found := report.ExplainPod("shop", "web-abc-0", report.Seen{Intent: &intent, Observed: &observed})
			g.Expect(found).To(BeTrue())
			g.Expect(why.Pod.Surge).To(Equal(&report.Surge{Refusal: string(refused.Refusal), Message: refused.Message}))
			expected := And(HaveField("Message", HaveSuffix(strings.TrimSuffix(refused.Message, "."))),
				HaveField("Fix", And(ContainSubstring("For the next drain, "), Not(ContainSubstring("set surge")))))
			g.Expect(why.Problems).To(ConsistOf(expected))
			g.Expect(report.NodeDrain(node, intent, observed).Blockers).To(ConsistOf(expected))
		})
	}

	t.Run("K30: why says whether the Deployment of the Pod surges", func(t *testing.T) {
		g := NewWithT(t)
		_, intent, observed := surging(2)
		why, found := report.ExplainPod("shop", "web-abc-0", report.Seen{Intent: &intent, Observed: &observed})
		g.Expect(found).To(BeTrue())
		var out bytes.Buffer
		report.WriteWhy(&out, why, observed.Now, terminal.Style{})
		g.Expect(out.String()).To(ContainSubstring("EVACUATORS, in this order\n  -\n  No surge: " + refusal))
	})
}

func TestNoteGroups(t *testing.T) {
	const three = "3 Pods of Deployment shop/web may be evicted at the same time: no PodDisruptionBudget selects them."
	selecting := budgets.NewIndex([]*policyv1.PodDisruptionBudget{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{}},
		Status:     policyv1.PodDisruptionBudgetStatus{ExpectedPods: 3, CurrentHealthy: 3, DesiredHealthy: 1, DisruptionsAllowed: 2},
	}}, nil)
	one := func(o *forecast.Observation) { o.Maintenance.Spec.MaxParallelNodes = ptr.To(intstr.FromInt32(1)) }
	for name, test := range map[string]struct {
		replicas int32
		change   func(*forecast.Observation)
		want     []string
	}{
		"K43: all replicas are on Nodes that drain":     {3, nil, []string{three + " All 3 replicas are on Nodes that drain."}},
		"K43: a replica is elsewhere":                   {4, nil, []string{three}},
		"K43: the number of replicas is not known":      {0, nil, []string{three}},
		"K43: a budget selects the Pods":                {3, func(o *forecast.Observation) { o.Budgets = selecting }, nil},
		"K43: the budgets were not read":                {3, func(o *forecast.Observation) { o.Budgets = nil }, nil},
		"K43: the Pods are surged":                      {1, func(o *forecast.Observation) { o.Maintenance.Spec.Evacuation.Surge = v1alpha1.SurgeAlways }, nil},
		"K43: maxParallelNodes permits one Node of two": {3, one, []string{strings.Replace(three, "3", "2", 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			first, intent, observed := surging(test.replicas)
			observed.Nodes = []*corev1.Node{first, {ObjectMeta: metav1.ObjectMeta{Name: "two"}}}
			intent.Maintenance.Spec.NodeSelector, intent.Maintenance.Spec.Evacuation.Surge = v1alpha1.SelectNodes("one", "two"), v1alpha1.SurgeNever
			for _, node := range []string{"one", "two"} {
				pod := observed.Pods[0].DeepCopy()
				pod.Name, pod.UID, pod.Spec.NodeName = "web-abc-"+node, types.UID(node), node
				observed.Pods = append(observed.Pods, *pod)
			}
			if test.change != nil {
				test.change(&observed)
			}
			plan := &report.Plan{}
			for _, observed.Node = range observed.Nodes {
				plan.Drains = append(plan.Drains, report.NodeDrain(observed.Node, intent, observed))
			}
			plan.NoteGroups(func(report.Group) int32 { return test.replicas })
			NewWithT(t).Expect(plan.Notes).To(Equal(test.want))
		})
	}
}

func TestNoteOrder(t *testing.T) {
	db := types.NamespacedName{Namespace: "shop", Name: "db"}
	// drainOf is the drain of a Node with a Pod of StatefulSet shop/db, which is evicted in order.
	drainOf := func(name string) report.Drain {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		intent := report.ManualIntent(node, nil)
		intent.Maintenance.Spec.Evacuation.StatefulSetPods = v1alpha1.StatefulSetPodsOrdered
		pod := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: db.Namespace, Name: "db-" + name, UID: types.UID(name),
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: db.Name, UID: "db", Controller: ptr.To(true)}},
			},
			Spec: corev1.PodSpec{NodeName: name},
		}
		return report.NodeDrain(node, intent, forecast.Observation{
			Maintenance: intent.Maintenance, Node: node, Surroundings: surroundings{}, Budgets: budgets.NewIndex(nil, nil), Pods: []corev1.Pod{pod},
			Sets: map[types.NamespacedName]*appsv1.StatefulSet{db: {}}, Now: time.Now(),
		})
	}
	for name, test := range map[string]struct {
		nodes []string
		want  []string
	}{
		"says nothing about one Pod": {[]string{"a"}, nil},
		"says that the Pods on the Nodes of several drains are evicted one at a time": {[]string{"a", "b", "c"}, []string{
			"If these drains are concurrent, the Pods of StatefulSet shop/db are evicted one at a time, the highest ordinal first; 2 of 3 wait at most 3m0s each for " +
				"the replacement of the one before.",
		}},
	} {
		t.Run("K47: plan "+name, func(t *testing.T) {
			g := NewWithT(t)
			plan := &report.Plan{}
			for _, node := range test.nodes {
				plan.Drains = append(plan.Drains, drainOf(node))
				g.Expect(plan.Drains[0].Delays).To(BeEmpty())
			}
			plan.NoteGroups(func(report.Group) int32 { return 0 })
			g.Expect(plan.Notes).To(Equal(test.want))
		})
	}
}

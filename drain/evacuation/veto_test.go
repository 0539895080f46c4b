package evacuation_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// surroundings has all Namespaces and no DaemonSets.
type surroundings struct{}

func (surroundings) NamespaceLabels(string) (map[string]string, bool) { return nil, true }

func (surroundings) DaemonSetExists(string, string, types.UID) (exists, known bool) {
	return false, true
}

// undecided gives a NodeMaintenance a rule that may skip the Pod, and whose selector is invalid.
func undecided(m *v1alpha1.NodeMaintenance) {
	m.Spec.DrainRules = []v1alpha1.DrainRule{{Name: "invalid", Behavior: v1alpha1.DrainBehaviorSkip, Pods: []v1alpha1.DrainRulePodSelector{{
		Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like", Values: []string{"web"}}}},
	}}}}
}

func named(name string) func(*v1alpha1.NodeMaintenance) {
	return func(m *v1alpha1.NodeMaintenance) { m.Name = name }
}

// The plan does not target a Pod that another NodeMaintenance of its Node holds back. The evictor and the controller of Evacuations must
// decide the same: the moment of the withdrawal must not decide, and the API server may refuse the withdrawal.
func TestPodThatAnotherDrainHoldsBack(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "web"}, Spec: corev1.PodSpec{NodeName: "one"}}
	e := evacuation.New(pod, nil, 0)
	for name, other := range map[string]func(*v1alpha1.NodeMaintenance){
		"E57: a Pod that another drain waits for to complete is not evacuated":                 all(awaiting, named("other")),
		"E57: a Pod about which another drain cannot decide is not evacuated":                  all(undecided, named("other")),
		"E58: a Pod that a suspended drain of its Node waits for to complete is not evacuated": all(awaiting, ofPaused),
	} {
		t.Run(name, func(t *testing.T) {
			maintenances := []v1alpha1.NodeMaintenance{drain(all(unlimited, named("draining")), "one"), drain(other, "one")}
			var drains []planinput.Drain
			for i := range maintenances {
				drains = append(drains, planinput.Drain{
					Maintenance: &maintenances[i], Nodes: []*corev1.Node{node}, Suspended: isOfPaused(&maintenances[i]),
				})
			}
			c := planinput.ComponentOf("draining", drains, noon)
			decided := plan.Decide(plan.Observation{Maintenances: c.Maintenances, Pods: []plan.Pod{c.Pod(surroundings{}, pod, e, false, noon).Planned}})
			if decided.Targets.Has(pod.UID) || decided.Kept.Has(pod.UID) {
				t.Fatal("the plan does not withdraw from its Evacuation")
			}
			terms := evacuation.DrainersOf(maintenances, isOfPaused).On(node).For(rules.Pod{
				Namespace: "default", Name: "web", NamespaceKnown: true, Type: v1alpha1.PodTypeDefault, TypeKnown: true,
			})
			if !terms.DefersEvacuation(e) {
				t.Error("the Pod is evacuated")
			}
		})
	}
}

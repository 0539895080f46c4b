package main

import (
	"fmt"
	"time"

	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/test/storage"
)

// load describes the Pods in the arena, and how many Nodes are drained.
type load struct {
	nodes, podsPerNode int
	// idleNodes is the number of additional Nodes without Machines and Pods.
	idleNodes int
	// drained is the number of Nodes that are drained at once.
	drained int
	// apps is the number of Deployments. Each has the same number of Pods on every Node.
	apps int
	// maxUnavailable is that of each app's budget; 0: no budgets.
	maxUnavailable int
	// ordered gives each app a separate drain order.
	ordered bool
	// detachDelay is the time from the end of the last Pod on a Node that uses an app's volume until the volume is detached
	// from the Node; 0: no volumes.
	detachDelay time.Duration
	// rollout replaces all Nodes, which belong to a MachineDeployment.
	rollout bool
	// maxSurge is that of the MachineDeployment.
	maxSurge intstr.IntOrString
	// landings is the number of additional Nodes without Machines, for the Pods when all Nodes are drained.
	landings int
	// readyDelay is the time from a Pod's binding until it is ready, deletionDelay from its deletion until it is removed.
	readyDelay, deletionDelay time.Duration
}

func (l load) pods() int        { return l.nodes * l.podsPerNode }
func (l load) podsPerApp() int  { return l.pods() / l.apps }
func (l load) hasVolumes() bool { return l.detachDelay > 0 }

// scaled returns the load with the sizes of the command line.
func (l load) scaled(o options) (load, error) {
	for _, change := range []struct {
		to *int
		by int
	}{{&l.nodes, o.nodes}, {&l.idleNodes, o.idleNodes}, {&l.podsPerNode, o.podsPerNode}, {&l.drained, o.drained}, {&l.apps, o.apps}} {
		if change.by > 0 {
			*change.to = change.by
		}
	}
	if o.maxSurge != "" {
		l.maxSurge = intstr.Parse(o.maxSurge)
	}
	if l.rollout || l.landings > 0 {
		l.drained = l.nodes
	}
	switch {
	case l.podsPerNode%l.apps != 0:
		return l, errors.Errorf("%d pods a node can't be divided evenly among %d apps", l.podsPerNode, l.apps)
	case l.drained > l.nodes:
		return l, errors.Errorf("%d of %d nodes can't be drained", l.drained, l.nodes)
	}
	return l, nil
}

// String describes the load.
func (l load) String() string {
	text := fmt.Sprintf("%d of %d nodes, %d pods each, of %d Deployment(s)", l.drained, l.nodes, l.podsPerNode, l.apps)
	if l.maxUnavailable > 0 {
		text += fmt.Sprintf(" with maxUnavailable %d", l.maxUnavailable)
	} else {
		text += " without budgets"
	}
	if l.ordered {
		text += " in as many drain orders"
	}
	text += fmt.Sprintf(", ready after %s, gone after %s", l.readyDelay, l.deletionDelay)
	if l.idleNodes > 0 {
		text += fmt.Sprintf(", %d more nodes", l.idleNodes)
	}
	if l.rollout {
		text += ", maxSurge " + l.maxSurge.String()
	}
	if l.hasVolumes() {
		text += fmt.Sprintf(", a volume each, detached after %s", l.detachDelay)
	}
	return text
}

// appLabel is the label with the app of a Pod.
const (
	appLabel     = "bench.capnm.dev/app"
	appNamespace = metav1.NamespaceDefault
)

// appNames returns the names in drain order. No name is the prefix of another.
func (l load) appNames() []string {
	names := make([]string, l.apps)
	for i := range names {
		names[i] = fmt.Sprintf("web-%03d", i)
	}
	return names
}

func labelsOf(app string) map[string]string { return map[string]string{appLabel: app} }

// deployment prefers the emptiest Node for each Pod, which spreads the Pods exactly evenly over equal Nodes. A constraint that
// forbids an uneven spread would also delay the replacements of evicted Pods until a cordoned Node has its taint.
func (l load) deployment(app string) *appsv1.Deployment {
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: appNamespace, Name: app, Labels: labelsOf(app)},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(l.podsPerApp())),
			Selector: &metav1.LabelSelector{MatchLabels: labelsOf(app)},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labelsOf(app)},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Name: "web", Image: "example.test/web"}},
					TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
						MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
						LabelSelector: &metav1.LabelSelector{MatchLabels: labelsOf(app)},
					}},
				},
			},
		},
	}
	if l.hasVolumes() {
		storage.Mount(&deployment.Spec.Template.Spec, app)
	}
	return deployment
}

// budgetOf returns the budget of an app.
func budgetOf(namespace, app string, maxUnavailable int) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app, Labels: labelsOf(app)},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt(maxUnavailable)), Selector: &metav1.LabelSelector{MatchLabels: labelsOf(app)},
		},
	}
}

// drainRules returns the MachineDrainRules with the order of the apps.
func (l load) drainRules(namespace string) []*clusterv1.MachineDrainRule {
	if !l.ordered {
		return nil
	}
	var rules []*clusterv1.MachineDrainRule
	for order, app := range l.appNames() {
		rules = append(rules, &clusterv1.MachineDrainRule{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app},
			Spec: clusterv1.MachineDrainRuleSpec{
				Drain: clusterv1.MachineDrainRuleDrainConfig{Behavior: clusterv1.MachineDrainRuleDrainBehaviorDrain, Order: ptr.To(int32(order))},
				Pods:  []clusterv1.MachineDrainRulePodSelector{{Selector: &metav1.LabelSelector{MatchLabels: labelsOf(app)}}},
			},
		})
	}
	return rules
}

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

// load is what runs in the arena, and how much of it has to go.
type load struct {
	nodes, podsPerNode int
	// drained is how many of the nodes are drained at once.
	drained int
	// apps is among how many Deployments the pods are divided. Each has as many pods on every node.
	apps int
	// maxUnavailable of each app's budget; 0: there are no budgets.
	maxUnavailable int
	// ordered: the apps go one after the other, each has a drain order of its own.
	ordered bool
	// detachDelay is the time from the end of the last pod on a node that uses an app's volume until the volume is detached
	// from the node; 0: there are no volumes.
	detachDelay time.Duration
	// rollout: the nodes are those of a MachineDeployment, and all of them are replaced.
	rollout bool
	// maxSurge is how many new Machines a rollout is ahead.
	maxSurge intstr.IntOrString
	// landings are nodes beside, which aren't anybody's Machines, for the pods when all nodes are drained.
	landings int
	// readyDelay is the time from a pod's binding until it is ready, deletionDelay from its deletion until it is gone.
	readyDelay, deletionDelay time.Duration
}

func (l load) pods() int        { return l.nodes * l.podsPerNode }
func (l load) podsPerApp() int  { return l.pods() / l.apps }
func (l load) hasVolumes() bool { return l.detachDelay > 0 }

// scaled is the load at the size that the command line asks for.
func (l load) scaled(o options) (load, error) {
	for _, change := range []struct {
		to *int
		by int
	}{{&l.nodes, o.nodes}, {&l.podsPerNode, o.podsPerNode}, {&l.drained, o.drained}, {&l.apps, o.apps}} {
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

// String tells the load.
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
	if l.rollout {
		text += ", maxSurge " + l.maxSurge.String()
	}
	if l.hasVolumes() {
		text += fmt.Sprintf(", a volume each, detached after %s", l.detachDelay)
	}
	return text
}

// appLabel says of which app a pod is.
const (
	appLabel     = "bench.capnm.dev/app"
	appNamespace = metav1.NamespaceDefault
)

// appNames are in the order in which the apps go, if they have one. None is the beginning of another.
func (l load) appNames() []string {
	names := make([]string, l.apps)
	for i := range names {
		names[i] = fmt.Sprintf("web-%03d", i)
	}
	return names
}

func labelsOf(app string) map[string]string { return map[string]string{appLabel: app} }

// deployment prefers the emptiest node for each pod. With nodes that are alike, that spreads the pods exactly evenly. A
// constraint that forbids an uneven spread would also keep replacements of evicted pods waiting, for the moments until a
// cordoned node has its taint.
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

func (l load) budget(app string) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: appNamespace, Name: app, Labels: labelsOf(app)},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt(l.maxUnavailable)),
			Selector:       &metav1.LabelSelector{MatchLabels: labelsOf(app)},
		},
	}
}

// drainRules give the apps their order.
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

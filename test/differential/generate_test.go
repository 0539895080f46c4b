package differential

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// Generators draw from few keys, values and names, so that matches and collisions are common. Errors are rare, since a fixture full of
// errors tests nothing else.

func drawFixture(t *rapid.T) fixture {
	f := fixture{
		machine:     &clusterv1.Machine{ObjectMeta: metaOf(machineNamespace, "machine", drawLabels(t, "Machine"))},
		cluster:     &clusterv1.Cluster{ObjectMeta: metaOf(machineNamespace, "cluster", drawLabels(t, "Cluster"))},
		namespaces:  map[string]map[string]string{},
		daemonSets:  map[string]types.UID{},
		unreachable: oneIn(t, 8, "unreachable"),
		unreadable:  oneIn(t, 40, "DaemonSets are unreadable"),
	}
	for _, name := range namespaceNames {
		if name != "blue" || !oneIn(t, 40, "a Namespace isn't known") {
			f.namespaces[name] = drawLabels(t, "Namespace")
			f.namespaces[name][corev1.LabelMetadataName] = name
		}
		if rapid.Bool().Draw(t, "has a DaemonSet") {
			f.daemonSets[daemonSetKey(name, "logs")] = rapid.SampledFrom(daemonSetUIDs).Draw(t, "UID of the DaemonSet")
		}
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "rules") {
		f.rules = append(f.rules, drawRule(t, i))
	}
	if oneIn(t, 2000, "very many rules") {
		f.rules = append(f.rules, manyRules(300)...)
	}
	withPriorities := rapid.Bool().Draw(t, "priorities")
	for i := range rapid.IntRange(1, 8).Draw(t, "Pods") {
		f.pods = append(f.pods, drawPod(t, i, withPriorities))
	}
	return f.complete()
}

var (
	namespaceNames = []string{"default", "blue", agentNamespace}
	daemonSetUIDs  = []types.UID{"old", "new"}
)

func oneIn(t *rapid.T, n int, what string) bool {
	return rapid.IntRange(1, n).Draw(t, what) == n
}

func drawLabels(t *rapid.T, of string) map[string]string {
	labels := map[string]string{}
	for _, key := range []string{"a", "b"} {
		if value := rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, key+" of "+of); value != "" {
			labels[key] = value
		}
	}
	return labels
}

func drawRule(t *rapid.T, i int) rule {
	behavior := rapid.SampledFrom([]clusterv1.MachineDrainRuleDrainBehavior{"Drain", "Drain", "Skip", "WaitCompleted"}).Draw(t, "behavior")
	r := namedRule(fmt.Sprintf("%s%d", rapid.SampledFrom([]string{"a", "b", "B", "10-", "9-"}).Draw(t, "name"), i), behavior)
	if rapid.Bool().Draw(t, "has an order") {
		r.Spec.Drain.Order = ptr.To(rapid.SampledFrom([]int32{-2147483648, -1, 0, 1, 2, 2147483647}).Draw(t, "order"))
	}
	if oneIn(t, 10, "of another namespace") {
		r.Namespace = "elsewhere"
	}
	for range rapid.IntRange(0, 2).Draw(t, "machines") {
		r.Spec.Machines = append(r.Spec.Machines, clusterv1.MachineDrainRuleMachineSelector{
			Selector: drawSelector(t, "of Machines"), ClusterSelector: drawSelector(t, "of Clusters"),
		})
	}
	for range rapid.IntRange(0, 2).Draw(t, "pods") {
		r.Spec.Pods = append(r.Spec.Pods, clusterv1.MachineDrainRulePodSelector{
			Selector: drawSelector(t, "of Pods"), NamespaceSelector: drawSelector(t, "of Namespaces"),
		})
	}
	return r
}

func drawSelector(t *rapid.T, of string) *metav1.LabelSelector {
	key := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key "+of)
	values := []string{rapid.SampledFrom([]string{"x", "y"}).Draw(t, "value "+of)}
	expression := func(operator metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
	}
	switch kind := rapid.IntRange(0, 59).Draw(t, "selector "+of); {
	case kind == 59:
		return unparsable()
	case kind >= 50:
		return nil
	case kind >= 45:
		return &metav1.LabelSelector{}
	case kind >= 40:
		return expression(metav1.LabelSelectorOpNotIn, values...)
	case kind >= 35:
		return expression(metav1.LabelSelectorOpExists)
	case kind >= 30:
		return expression(metav1.LabelSelectorOpDoesNotExist)
	case kind >= 25:
		return expression(metav1.LabelSelectorOpIn, "x", "y")
	default:
		return selecting(key, values[0])
	}
}

func drawPod(t *rapid.T, i int, withPriority bool) *corev1.Pod {
	p := pod(fmt.Sprintf("p%d", i))
	p.Namespace = rapid.SampledFrom(namespaceNames).Draw(t, "namespace")
	p.Labels = drawLabels(t, "Pod")
	if oneIn(t, 4, "has a drain label") {
		p.Labels[clusterv1.PodDrainLabel] = rapid.SampledFrom(drainLabels).Draw(t, "drain label")
	}
	if oneIn(t, 20, "is named like the agent") {
		p.Labels[agentLabel] = agentName
	}
	p.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{"Running", "Running", "Running", "Pending", "Succeeded", "Failed", "Unknown"}).Draw(t, "phase")
	if oneIn(t, 8, "is static") {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	}
	switch rapid.IntRange(0, 9).Draw(t, "owner") {
	case 0, 1:
		ownedBy("apps/v1", rapid.SampledFrom([]string{"logs", "gone"}).Draw(t, "DaemonSet"), rapid.SampledFrom(daemonSetUIDs).Draw(t, "UID of the owner"))(p)
	case 2:
		ownedBy("apps.kruise.io/v1alpha1", "logs", "new")(p)
	case 3:
		ownedBy("apps/v1", "logs", "new")(p)
		p.OwnerReferences[0].Controller = nil
	case 4, 5, 6:
		ownedBy("apps/v1", "web", "web")(p)
		p.OwnerReferences[0].Kind = "ReplicaSet"
	}
	switch rapid.IntRange(0, 7).Draw(t, "terminating") {
	case 0:
		terminating(time.Hour)(p)
	case 1:
		terminating(-time.Hour)(p)
	}
	if withPriority {
		p.Spec.Priority = ptr.To(rapid.SampledFrom([]int32{-1, 0, 2000000000, 2000001000}).Draw(t, "priority"))
	}
	return p
}

var drainLabels = []string{
	"skip", "Skip", "SKIP", "wait-completed", "WaitCompleted", "waitcompleted", "Wait-completed", "wait--completed", "waitcomplet-ed", "drain", "", "yes",
}

package differential

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// Builders of fixtures, for examples and generators.

type rule = machineDrainRule

// machineDrainRule is a MachineDrainRule with a check of its selectors.
type machineDrainRule struct {
	clusterv1.MachineDrainRule
}

// invalid returns whether a selector of the rule cannot be parsed.
func (r machineDrainRule) invalid() bool {
	var all []*metav1.LabelSelector
	for _, machines := range r.Spec.Machines {
		all = append(all, machines.Selector, machines.ClusterSelector)
	}
	for _, pods := range r.Spec.Pods {
		all = append(all, pods.Selector, pods.NamespaceSelector)
	}
	for _, selector := range all {
		if _, err := metav1.LabelSelectorAsSelector(selector); err != nil {
			return true
		}
	}
	return false
}

func namedRule(name string, behavior clusterv1.MachineDrainRuleDrainBehavior, changes ...func(*rule)) rule {
	r := rule{clusterv1.MachineDrainRule{
		ObjectMeta: metaOf(machineNamespace, name, nil),
		Spec:       clusterv1.MachineDrainRuleSpec{Drain: clusterv1.MachineDrainRuleDrainConfig{Behavior: behavior}},
	}}
	for _, change := range changes {
		change(&r)
	}
	return r
}

func forMachines(selectors ...*metav1.LabelSelector) func(*rule) {
	return func(r *rule) {
		for _, selector := range selectors {
			r.Spec.Machines = append(r.Spec.Machines, clusterv1.MachineDrainRuleMachineSelector{Selector: selector})
		}
	}
}

func forPods(selectors ...*metav1.LabelSelector) func(*rule) {
	return func(r *rule) {
		for _, selector := range selectors {
			r.Spec.Pods = append(r.Spec.Pods, clusterv1.MachineDrainRulePodSelector{Selector: selector})
		}
	}
}

func manyRules(n int) []rule {
	all := make([]rule, 0, n)
	for i := range n {
		all = append(all, namedRule(fmt.Sprintf("r%03d", i), "Drain", forPods(selecting("app", "none"))))
	}
	return all
}

func selecting(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func unparsable() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Resembles"}}}
}

// pod returns a Pod in namespace default.
func pod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metaOf("default", name, nil), Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	p.Spec.NodeName = nodeName
	for _, change := range changes {
		change(p)
	}
	return p
}

func finished(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }

// labelled sets the drain label.
func labelled(value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{clusterv1.PodDrainLabel: value} }
}

func ownedBy(apiVersion, name string, uid types.UID) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: "DaemonSet", Name: name, UID: uid, Controller: ptr.To(true)}}
	}
}

// terminating sets a deletion timestamp so far in the past or future that the time of the test does not matter.
func terminating(after time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.DeletionTimestamp = ptr.To(metav1.NewTime(time.Now().Add(after)))
		p.Finalizers = []string{"test/hold"}
	}
}

func oneWith(pods ...*corev1.Pod) fixture { return fixture{pods: pods} }

// complete sets defaults.
func (f fixture) complete() fixture {
	if f.machine == nil {
		f.machine = &clusterv1.Machine{ObjectMeta: metaOf(machineNamespace, "machine", map[string]string{"os": "linux"})}
	}
	if f.cluster == nil {
		f.cluster = &clusterv1.Cluster{ObjectMeta: metaOf(machineNamespace, "cluster", nil)}
	}
	if f.namespaces == nil {
		f.namespaces = map[string]map[string]string{}
		for _, name := range []string{"default", agentNamespace} {
			f.namespaces[name] = map[string]string{corev1.LabelMetadataName: name}
		}
	}
	f.now = time.Now()
	return f
}

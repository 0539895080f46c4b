package rules

import (
	"fmt"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// selectsMachine returns whether a MachineDrainRule selects the Machine: both selectors of one of its entries must match, and a rule
// without entries selects all Machines (M3). An invalid selector makes the answer unknown, unless the other selectors determine it.
func selectsMachine(mdr *clusterv1.MachineDrainRule, machine MachineFacts, cluster ClusterFacts) answer {
	if len(mdr.Spec.Machines) == 0 {
		return answer{truth: yes}
	}
	selects := answer{truth: no}
	for i, entry := range mdr.Spec.Machines {
		selects = selects.or(
			matchesNamed(entry.Selector, machine.Labels, i, "selector").
				and(matchesNamed(entry.ClusterSelector, cluster.Labels, i, "clusterSelector")))
	}
	return selects
}

// matchesNamed adds the field of an invalid selector to the answer.
func matchesNamed(s *metav1.LabelSelector, labels map[string]string, i int, field string) answer {
	matches := parseSelector(s).matches(labels)
	if matches.truth == unknown {
		matches.missing = fmt.Sprintf("spec.machines[%d].%s: %s", i, field, matches.missing)
	}
	return matches
}

// compileMachineDrainRule converts the behavior and the Pod selectors of a MachineDrainRule. It returns an error for a rule that a Matcher
// could not parse, so that the drain does not start with it.
func compileMachineDrainRule(mdr *clusterv1.MachineDrainRule) (v1alpha1.DrainRule, error) {
	rule := v1alpha1.DrainRule{
		Name:     MachineDrainRulePrefix + mdr.Name,
		Behavior: v1alpha1.DrainBehavior(mdr.Spec.Drain.Behavior),
	}
	if len(rule.Name) > MaxRuleName {
		return rule, errors.Errorf("its name is longer than %d characters", MaxRuleName-len(MachineDrainRulePrefix))
	}
	if len(mdr.Spec.Pods) > MaxEntries {
		return rule, errors.Errorf("it has %d entries in spec.pods; at most %d are allowed", len(mdr.Spec.Pods), MaxEntries)
	}
	// Cluster API's webhook rejects an order with another behavior than Drain, and its drain ignores it. The webhook may have been missing
	// when the rule was written.
	if rule.Behavior == v1alpha1.DrainBehaviorDrain && mdr.Spec.Drain.Order != nil {
		order := *mdr.Spec.Drain.Order
		rule.Order = &order
	}
	for _, pods := range mdr.Spec.Pods {
		rule.Pods = append(rule.Pods, compilePodSelector(pods))
	}
	if err := parseRule(&rule).err(); err != nil {
		return rule, err
	}
	return rule, nil
}

// compilePodSelector copies an entry. An entry without selectors selects all Pods, for which our schema requires an empty selector.
func compilePodSelector(pods clusterv1.MachineDrainRulePodSelector) v1alpha1.DrainRulePodSelector {
	compiled := v1alpha1.DrainRulePodSelector{
		Selector:          pods.Selector.DeepCopy(),
		NamespaceSelector: pods.NamespaceSelector.DeepCopy(),
	}
	if compiled.Selector == nil && compiled.NamespaceSelector == nil {
		compiled.Selector = &metav1.LabelSelector{}
	}
	return compiled
}

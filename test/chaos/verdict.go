package chaos

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// verdict is what a drain must do with a Pod. It is derived from the Pod and the MachineDrainRules alone, by code that is independent of
// drain/rules, and covers what the generated load and the demo use.
type verdict struct {
	behavior v1alpha1.DrainBehavior
	order    int32
}

func (v verdict) protects() bool { return v.behavior != v1alpha1.DrainBehaviorDrain }

// verdictOf decides about a Pod by the MachineDrainRules, which are sorted by name. Without any, it is the verdict of a NodeMaintenance of
// a user.
func verdictOf(pod *corev1.Pod, rules []*clusterv1.MachineDrainRule, daemonSetPods bool) verdict {
	if isOfDaemonSet(pod) && !daemonSetPods {
		return verdict{behavior: v1alpha1.DrainBehaviorSkip}
	}
	switch strings.ToLower(pod.Labels[clusterv1.PodDrainLabel]) {
	case "skip":
		return verdict{behavior: v1alpha1.DrainBehaviorSkip}
	case "wait-completed", "waitcompleted":
		if !isOfDaemonSet(pod) { // such Pods never complete
			return verdict{behavior: v1alpha1.DrainBehaviorWaitCompleted}
		}
	}
	for _, rule := range rules {
		for _, selected := range rule.Spec.Pods {
			if !matches(selected.Selector, pod.Labels) || !matches(selected.NamespaceSelector, labels.Set{corev1.LabelMetadataName: pod.Namespace}) {
				continue
			}
			v := verdict{behavior: v1alpha1.DrainBehavior(rule.Spec.Drain.Behavior)}
			if rule.Spec.Drain.Order != nil {
				v.order = *rule.Spec.Drain.Order
			}
			return v
		}
	}
	return verdict{behavior: v1alpha1.DrainBehaviorDrain}
}

// matches returns whether a selector matches. One that is not set selects everything.
func matches(s *metav1.LabelSelector, set labels.Set) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return s == nil || err == nil && selector.Matches(set)
}

// verdicts evaluates Pods over time.
type verdicts struct {
	*History
	rules        map[string]timeline[*clusterv1.MachineDrainRule]
	maintenances map[string]timeline[*v1alpha1.NodeMaintenance]
}

func (h *History) verdicts() *verdicts {
	return &verdicts{
		History:      h,
		rules:        timelines[*clusterv1.MachineDrainRule](&h.Management, ruleKeys),
		maintenances: timelines[*v1alpha1.NodeMaintenance](&h.Workload, maintenanceKeys),
	}
}

// between returns all verdicts that may have been observed about a Pod in a period. The manager may have observed any combination of what
// both clusters stored in it. For a Pod that only NodeMaintenances of users concern, MachineDrainRules do not count, and Pods of DaemonSets
// are drained.
func (v *verdicts) between(pod *podLife, from, until time.Time) []verdict {
	node, _ := pod.boundSince()
	first, last := v.Workload.Clock.Before(from), v.Workload.Clock.After(until)
	ruleSets, daemonSetPods := [][]*clusterv1.MachineDrainRule{nil}, true
	if v.servesMachine(node, first, last) {
		daemonSetPods = v.DaemonSetPods
		ruleSets = v.ruleSets(v.Management.Clock.Before(from), v.Management.Clock.After(until))
	}
	seen := map[verdict]bool{}
	for _, version := range pod.versions.during(first, last) {
		for _, rules := range ruleSets {
			if version.exists {
				seen[verdictOf(version.object, rules, daemonSetPods)] = true
			}
		}
	}
	return slices.Collect(maps.Keys(seen))
}

// ruleSets returns each state of all MachineDrainRules in a period.
func (v *verdicts) ruleSets(from, until int64) [][]*clusterv1.MachineDrainRule {
	revisions := map[int64]bool{from: true}
	for _, rule := range v.rules {
		for _, version := range rule.during(from, until) {
			revisions[max(from, version.revision)] = true
		}
	}
	var sets [][]*clusterv1.MachineDrainRule
	for revision := range revisions {
		var set []*clusterv1.MachineDrainRule
		for _, name := range slices.Sorted(maps.Keys(v.rules)) {
			if rule, exists := v.rules[name].at(revision); exists {
				set = append(set, rule)
			}
		}
		sets = append(sets, set)
	}
	return sets
}

// servesMachine returns whether a NodeMaintenance of a Machine selected the Node in a period.
func (v *verdicts) servesMachine(node string, from, until int64) bool {
	return v.anyMaintenance(node, from, until, func(m *v1alpha1.NodeMaintenance) bool {
		return m.Annotations[v1alpha1.OwnerMachineAnnotation] != ""
	})
}

// inStageDrain returns whether a NodeMaintenance in stage Drain selected the Node in a period.
func (v *verdicts) inStageDrain(node string, from, until int64) bool {
	return v.anyMaintenance(node, from, until, func(m *v1alpha1.NodeMaintenance) bool { return m.Spec.Stage == v1alpha1.StageDrain })
}

func (v *verdicts) anyMaintenance(node string, from, until int64, is func(*v1alpha1.NodeMaintenance) bool) bool {
	for _, m := range v.maintenances {
		for _, version := range m.during(from, until) {
			if version.exists && selects(version.object, node) && is(version.object) {
				return true
			}
		}
	}
	return false
}

// drainStart returns the first revision at which a NodeMaintenance in stage Drain selected the Node.
func (v *verdicts) drainStart(node string) (revision int64, found bool) {
	for _, m := range v.maintenances {
		for _, version := range m {
			if version.exists && selects(version.object, node) && version.object.Spec.Stage == v1alpha1.StageDrain && (!found || version.revision < revision) {
				revision, found = version.revision, true
			}
		}
	}
	return revision, found
}

// selects returns whether a NodeMaintenance selects a Node by its name, as all NodeMaintenances of these tests do.
func selects(m *v1alpha1.NodeMaintenance, node string) bool {
	for _, term := range m.Spec.NodeSelector.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if slices.Contains(field.Values, node) {
				return true
			}
		}
	}
	return false
}

package planinput

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/daemonset"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuators"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/staticpod"
)

// Surroundings is the part of a workload cluster, other than Pods, that drain rules depend on.
type Surroundings interface {
	// NamespaceLabels returns a Namespace's labels.
	NamespaceLabels(namespace string) (labels map[string]string, known bool)

	// DaemonSetExists returns whether the DaemonSet exists.
	DaemonSetExists(namespace, name string, uid types.UID) (exists, known bool)
}

// RulePod returns the properties of a Pod that drain rules match.
func RulePod(s Surroundings, pod *corev1.Pod) rules.Pod {
	podType, typeKnown := rules.PodTypeOf(pod, s.DaemonSetExists)
	namespaceLabels, namespaceKnown := s.NamespaceLabels(pod.Namespace)
	return rules.Pod{
		Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels,
		NamespaceLabels: namespaceLabels, NamespaceKnown: namespaceKnown,
		Type: podType, TypeKnown: typeKnown, Finished: rules.Finished(pod),
	}
}

// Pod is a Pod on a Node of a Component.
type Pod struct {
	Planned plan.Pod
	// Type is empty if it is not known.
	Type v1alpha1.PodType
	// Verdicts are those of the NodeMaintenances that select the Node of the Pod, and of no others: a component may have hundreds.
	Verdicts []Verdict
	// OverdueAt is when the Pod no longer blocks the drain of its unreachable Node. It is zero if that is not to be expected.
	OverdueAt time.Time
}

// Verdict is the verdict of the drain rules of a NodeMaintenance on a Pod.
type Verdict struct {
	rules.Verdict

	by *member
}

// VerdictOf returns the verdict of a NodeMaintenance that selects the Node of the Pod, and those of the others.
func (p Pod) VerdictOf(maintenance string) (verdict rules.Verdict, others []rules.Verdict) {
	for _, each := range p.Verdicts {
		if each.by.name == maintenance {
			verdict = each.Verdict
		} else {
			others = append(others, each.Verdict)
		}
	}
	return verdict, others
}

// Pod describes a Pod. e is its Evacuation, nil if it has none. agentServes means that the node agent runs on its Node and terminates
// static Pods.
func (c *Component) Pod(s Surroundings, pod *corev1.Pod, e *v1alpha1.Evacuation, agentServes bool, now time.Time) Pod {
	subject := RulePod(s, pod)
	overdue, overdueAt := rules.Overdue(pod, c.Unreachable.Has(pod.Spec.NodeName), now)
	selecting := c.selecting[pod.Spec.NodeName]
	described := Pod{Verdicts: make([]Verdict, 0, len(selecting)), Planned: plan.Pod{
		UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName,
		Type: subject.Type, Priority: ptr.Deref(pod.Spec.Priority, 0), Labels: pod.Labels,
		Finished:    subject.Finished || overdue,
		Evacuating:  e != nil && evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer),
		IsRecreated: subject.TypeKnown && subject.Type == v1alpha1.PodTypeDaemonSet && daemonset.Tolerated(pod.Spec.Tolerations),
		Verdicts:    make(map[string]plan.Verdict, len(selecting)),
	}}
	if subject.TypeKnown {
		described.Type = subject.Type
	}
	if !overdue {
		described.OverdueAt = overdueAt
	}
	for _, by := range selecting {
		verdict := by.matcher.Decide(subject)
		described.Verdicts = append(described.Verdicts, Verdict{verdict, by})
		described.Planned.Verdicts[by.name] = plan.Verdict{
			Behavior: verdict.Behavior, Order: verdict.Order, Undecided: verdict.Undecided != "", Unread: verdict.Unread,
		}
	}
	described.Planned.HasEvacuator = described.agentTerminates(pod, e, agentServes)
	return described
}

// agentTerminates reports whether the agent on the Node terminates a static Pod. An existing Evacuation decides; otherwise the drain rules
// do.
func (p Pod) agentTerminates(pod *corev1.Pod, e *v1alpha1.Evacuation, agentServes bool) bool {
	if e != nil && len(e.Spec.Evacuators) > 0 {
		return staticpod.Evacuated(e)
	}
	if !agentServes {
		return false
	}
	return slices.ContainsFunc(p.Verdicts, func(v Verdict) bool {
		return v.Behavior == v1alpha1.DrainBehaviorDrain && staticpod.HasEvacuator(pod, p.Type, v.rule())
	})
}

// rule returns the rule that decides, nil if no rule matches.
func (v Verdict) rule() *v1alpha1.DrainRule {
	if i := slices.IndexFunc(v.by.rules, func(rule v1alpha1.DrainRule) bool { return rule.Name == v.Rule }); i >= 0 {
		return &v.by.rules[i]
	}
	return nil
}

// Evacuators returns the evacuators of an Evacuation that a NodeMaintenance with this policy creates for the Pod, and the annotations of
// the Pod that name invalid ones. There are none as long as the type of the Pod is not known. Another NodeMaintenance that drains the Pod
// may require an order of the Pods of StatefulSets.
func (p Pod) Evacuators(pod *corev1.Pod, policy v1alpha1.SharedEvacuationPolicy) ([]v1alpha1.Evacuator, []evacuation.Problem) {
	if p.Type == "" {
		return nil, nil
	}
	if slices.ContainsFunc(p.Verdicts, func(v Verdict) bool { return v.by.ordered && v.Behavior == v1alpha1.DrainBehaviorDrain }) {
		policy.StatefulSetPods = v1alpha1.StatefulSetPodsOrdered
	}
	subject := evacuators.SubjectFor(pod, p.Type, policy)
	if p.Planned.HasEvacuator {
		subject.BuiltIn = evacuators.Of(v1alpha1.EvacuatorClassKubelet).Evacuators()
	}
	return evacuation.Resolve(subject)
}

package differential

import (
	"slices"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// ours decides as the controllers do: the rules, compiled once for the Machine, decide about each Pod, and the plan of the Machine's
// policy defines the order.
type ours struct {
	policy *v1alpha1.MachineDrainPolicy // nil: the defaults
}

const maintenance = "m"

func (ours) compile(f fixture) rules.Compiled {
	all := make([]clusterv1.MachineDrainRule, 0, len(f.rules))
	for _, rule := range f.rules {
		all = append(all, rule.MachineDrainRule)
	}
	return rules.Compile(rules.Input{
		Cluster:           rules.ClusterFacts{Labels: f.cluster.Labels},
		Machine:           rules.MachineFacts{Namespace: f.machine.Namespace, Labels: f.machine.Labels},
		MachineDrainRules: all,
	})
}

func (o ours) observe(f fixture) plan.Observation {
	matcher := rules.NewMatcher(o.compile(f).Rules)
	spec := machinedrain.Maintenance(machinedrain.Request{
		Machine: f.machine, Node: &corev1.Node{ObjectMeta: metaOf("", nodeName, nil)}, Policy: o.policy,
	}).Spec
	observed := plan.Observation{Maintenances: []plan.Maintenance{{
		Name: maintenance, Nodes: []string{nodeName}, Plan: spec.DrainPlan, PlanDefaults: spec.DrainPlanDefaults,
	}}}
	for _, pod := range f.pods {
		labels, known := f.namespaces[pod.Namespace]
		podType, typeKnown := rules.PodTypeOf(pod, func(namespace, name string, uid types.UID) (exists, known bool) {
			present, found := f.daemonSets[daemonSetKey(namespace, name)]
			return found && present == uid, !f.unreadable
		})
		verdict := matcher.Decide(rules.Pod{
			Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels, NamespaceLabels: labels, NamespaceKnown: known,
			Type: podType, TypeKnown: typeKnown, Finished: rules.Finished(pod),
		})
		overdue, _ := rules.Overdue(pod, f.unreachable, f.now)
		observed.Pods = append(observed.Pods, plan.Pod{
			UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Node: nodeName, Type: podType, Labels: pod.Labels,
			Priority: priorityOf(pod), Finished: rules.Finished(pod) || overdue,
			Verdicts: map[string]plan.Verdict{maintenance: {Behavior: verdict.Behavior, Order: verdict.Order, Undecided: verdict.Undecided != ""}},
		})
	}
	return observed
}

func (o ours) ask(f fixture) (verdicts, error) {
	if problems := o.compile(f).Problems; len(problems) > 0 {
		return nil, errors.Errorf("waiting for an invalid rule to be fixed: %s", problems[0])
	}
	answers := verdicts{}
	for _, pod := range o.observe(f).Pods {
		verdict, answer := pod.Verdicts[maintenance], leaves
		switch {
		case pod.Finished:
		case verdict.Undecided:
			answer = undecided
		case verdict.Behavior == "Drain":
			answer = evicts
		case verdict.Behavior == "WaitCompleted":
			answer = waits
		}
		answers[pod.Namespace+"/"+pod.Name] = answer
	}
	return answers, nil
}

func (o ours) evictedNow(f fixture) []string {
	targets := plan.Decide(o.observe(f)).Targets
	var evicted []string
	for _, pod := range f.pods {
		if targets.Has(pod.UID) && pod.DeletionTimestamp == nil {
			evicted = append(evicted, key(pod))
		}
	}
	slices.Sort(evicted)
	return evicted
}

func (o ours) left(f fixture) bool {
	return !plan.Decide(o.observe(f)).Maintenances[maintenance].Drained
}

func priorityOf(pod *corev1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

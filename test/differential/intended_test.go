package differential

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// difference is an intended difference. Those about one Pod set about; those where one side stops the whole drain set fix.
type difference struct {
	name, why string
	// about returns whether this is the reason for different answers about a Pod.
	about func(f fixture, pod *corev1.Pod, theirs, ours answer) bool
	// fix removes the cause from the fixture, or returns false if there is none.
	fix func(f fixture) (fixture, bool)
	// example is a fixture with only this difference.
	example fixture
}

// intended lists the intended differences.
func intended() []difference { return append(ofOnePod(), ofTheWhole()...) }

func ofOnePod() []difference {
	return []difference{
		{
			name: "M8: does not evict finished Pods",
			why:  "they block nothing, and users may need the record of a Job's Pod; Cluster API evicts them",
			about: func(_ fixture, pod *corev1.Pod, theirs, ours answer) bool {
				return isFinished(pod) && theirs == evicts && ours == leaves
			},
			example: oneWith(pod("done", finished)),
		},
		{
			name: "M5: does not wait for a Pod that has completed",
			why:  "Cluster API waits until it is deleted (https://github.com/kubernetes-sigs/cluster-api/issues/12920)",
			about: func(_ fixture, pod *corev1.Pod, theirs, ours answer) bool {
				return isFinished(pod) && theirs == waits && ours == leaves
			},
			example: oneWith(pod("job", labelled("wait-completed"), finished)),
		},
		{
			name: "M8: identifies a DaemonSet by its UID",
			why:  "the Pod of a deleted DaemonSet is an orphan, also if another one of that name exists; Cluster API compares the name",
			about: func(f fixture, pod *corev1.Pod, theirs, _ answer) bool {
				owner := metav1.GetControllerOf(pod)
				uid, found := f.daemonSets[daemonSetKey(pod.Namespace, nameOf(owner))]
				return owner != nil && owner.Kind == "DaemonSet" && owner.APIVersion == "apps/v1" && found && uid != owner.UID && theirs == leaves
			},
			example: fixture{
				daemonSets: map[string]types.UID{daemonSetKey("default", "logs"): "new"},
				pods:       []*corev1.Pod{pod("logs", ownedBy("apps/v1", "logs", "old"))},
			},
		},
		{
			name: "M8: requires a DaemonSet to be in the API group apps",
			why:  "other projects have kinds of that name, whose Pods do not return to the Node; Cluster API compares only the kind",
			about: func(f fixture, pod *corev1.Pod, theirs, _ answer) bool {
				owner := metav1.GetControllerOf(pod)
				_, found := f.daemonSets[daemonSetKey(pod.Namespace, nameOf(owner))]
				return owner != nil && owner.Kind == "DaemonSet" && owner.APIVersion != "apps/v1" && found && theirs == leaves
			},
			example: fixture{
				daemonSets: map[string]types.UID{daemonSetKey("default", "logs"): "uid"},
				pods:       []*corev1.Pod{pod("logs", ownedBy("apps.kruise.io/v1alpha1", "logs", "uid"))},
			},
		},
		{
			name: "M6: an unreadable DaemonSet blocks only its own Pods, where it matters",
			why:  "Cluster API intends to stop, but its later filters overwrite the error: it evicts them, or evaluates the rules",
			about: func(f fixture, pod *corev1.Pod, _, ours answer) bool {
				owner := metav1.GetControllerOf(pod)
				return f.unreadable && owner != nil && owner.Kind == "DaemonSet" && owner.APIVersion == "apps/v1" && ours == undecided
			},
			example: fixture{
				unreadable: true, daemonSets: map[string]types.UID{daemonSetKey("default", "logs"): "uid"},
				pods: []*corev1.Pod{pod("logs", ownedBy("apps/v1", "logs", "uid")), pod("web")},
			},
		},
		{
			name: "M1: skips our node agent",
			why:  "it must outlive the drain that it serves",
			about: func(_ fixture, pod *corev1.Pod, theirs, ours answer) bool {
				return pod.Namespace == agentNamespace && pod.Labels[agentLabel] == agentName && theirs != leaves && ours == leaves
			},
			example: oneWith(pod("agent", func(pod *corev1.Pod) {
				pod.Namespace, pod.UID = agentNamespace, "agent"
				pod.Labels = map[string]string{agentLabel: agentName}
			})),
		},
	}
}

func ofTheWhole() []difference {
	return []difference{
		{
			name: "M6: an invalid rule does not affect Machines that it does not select",
			why:  "Cluster API stops every drain of the namespace",
			fix: func(f fixture) (fixture, bool) {
				if len((ours{}).compile(f).Problems) > 0 {
					return f, false
				}
				return f.withoutRules(func(rule rule) bool { return rule.invalid() })
			},
			example: fixture{
				rules: []rule{namedRule("invalid", "Skip", forMachines(selecting("os", "windows")), forPods(unparsable()))},
				pods:  []*corev1.Pod{pod("web")},
			},
		},
		{
			name: "M6: an unknown Namespace blocks only its own Pods, and only where rules depend on it",
			why:  "watch lag is no reason to stop; Cluster API stops the drain of the Node",
			about: func(f fixture, pod *corev1.Pod, _, ours answer) bool {
				_, known := f.namespaces[pod.Namespace]
				return !known && ours == undecided
			},
			fix: func(f fixture) (fixture, bool) {
				return f.withoutPods(func(pod *corev1.Pod) bool { _, known := f.namespaces[pod.Namespace]; return !known })
			},
			example: oneWith(pod("web", func(pod *corev1.Pod) { pod.Namespace = "unknown" })),
		},
		{
			name: "M6: more rules than a NodeMaintenance can have stop the drain",
			why:  "this is reported, until the timeout; Cluster API has no limit",
			fix: func(f fixture) (fixture, bool) {
				count := 0
				return f.withoutRules(func(rule) bool { count++; return count > rules.MaxRules/2 })
			},
			example: fixture{rules: manyRules(rules.MaxRules), pods: []*corev1.Pod{pod("web")}},
		},
	}
}

const (
	agentNamespace = "capnm-node-agent"
	agentLabel     = "app.kubernetes.io/name"
	agentName      = "capnm-node-agent"
)

func nameOf(owner *metav1.OwnerReference) string {
	if owner == nil {
		return ""
	}
	return owner.Name
}

// withoutRules returns the fixture without some rules, and whether there were any.
func (f fixture) withoutRules(gone func(rule) bool) (_ fixture, ok bool) {
	before := len(f.rules)
	f.rules = slices.DeleteFunc(slices.Clone(f.rules), gone)
	return f, len(f.rules) < before
}

// withoutPods returns the fixture without some Pods, and whether there were any.
func (f fixture) withoutPods(gone func(*corev1.Pod) bool) (_ fixture, ok bool) {
	before := len(f.pods)
	f = f.without(gone)
	return f, len(f.pods) < before
}

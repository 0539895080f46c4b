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
	about func(w world, pod *corev1.Pod, theirs, ours answer) bool
	// fix removes the cause from the world, or returns false if there is none.
	fix func(w world) (world, bool)
	// example is a world with only this difference.
	example world
}

// intended lists the intended differences.
func intended() []difference { return append(ofOnePod(), ofTheWhole()...) }

func ofOnePod() []difference {
	return []difference{
		{
			name: "M8: does not evict finished Pods",
			why:  "they block nothing, and users may need the record of a Job's Pod; Cluster API evicts them",
			about: func(_ world, pod *corev1.Pod, theirs, ours answer) bool {
				return isFinished(pod) && theirs == evicts && ours == leaves
			},
			example: oneWith(pod("done", finished)),
		},
		{
			name: "M5: does not wait for a Pod that has completed",
			why:  "Cluster API waits until it is deleted (https://github.com/kubernetes-sigs/cluster-api/issues/12920)",
			about: func(_ world, pod *corev1.Pod, theirs, ours answer) bool {
				return isFinished(pod) && theirs == waits && ours == leaves
			},
			example: oneWith(pod("job", labelled("wait-completed"), finished)),
		},
		{
			name: "M8: identifies a DaemonSet by its UID",
			why:  "the Pod of a deleted DaemonSet is an orphan, also if another one of that name exists; Cluster API compares the name",
			about: func(w world, pod *corev1.Pod, theirs, _ answer) bool {
				owner := metav1.GetControllerOf(pod)
				uid, found := w.daemonSets[daemonSetKey(pod.Namespace, nameOf(owner))]
				return owner != nil && owner.Kind == "DaemonSet" && owner.APIVersion == "apps/v1" && found && uid != owner.UID && theirs == leaves
			},
			example: world{
				daemonSets: map[string]types.UID{daemonSetKey("default", "logs"): "new"},
				pods:       []*corev1.Pod{pod("logs", ownedBy("apps/v1", "logs", "old"))},
			},
		},
		{
			name: "M8: requires a DaemonSet to be in the API group apps",
			why:  "other projects have kinds of that name, whose Pods do not return to the Node; Cluster API compares only the kind",
			about: func(w world, pod *corev1.Pod, theirs, _ answer) bool {
				owner := metav1.GetControllerOf(pod)
				_, found := w.daemonSets[daemonSetKey(pod.Namespace, nameOf(owner))]
				return owner != nil && owner.Kind == "DaemonSet" && owner.APIVersion != "apps/v1" && found && theirs == leaves
			},
			example: world{
				daemonSets: map[string]types.UID{daemonSetKey("default", "logs"): "uid"},
				pods:       []*corev1.Pod{pod("logs", ownedBy("apps.kruise.io/v1alpha1", "logs", "uid"))},
			},
		},
		{
			name: "M6: an unreadable DaemonSet blocks only its own Pods, where it matters",
			why:  "Cluster API intends to stop, but its later filters overwrite the error: it evicts them, or evaluates the rules",
			about: func(w world, pod *corev1.Pod, _, ours answer) bool {
				owner := metav1.GetControllerOf(pod)
				return w.unreadable && owner != nil && owner.Kind == "DaemonSet" && owner.APIVersion == "apps/v1" && ours == undecided
			},
			example: world{
				unreadable: true, daemonSets: map[string]types.UID{daemonSetKey("default", "logs"): "uid"},
				pods: []*corev1.Pod{pod("logs", ownedBy("apps/v1", "logs", "uid")), pod("web")},
			},
		},
		{
			name: "M1: skips our node agent",
			why:  "it must outlive the drain that it serves",
			about: func(_ world, pod *corev1.Pod, theirs, ours answer) bool {
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
			fix: func(w world) (world, bool) {
				if len((ours{}).compile(w).Problems) > 0 {
					return w, false
				}
				return w.withoutRules(func(rule rule) bool { return rule.invalid() })
			},
			example: world{
				rules: []rule{namedRule("invalid", "Skip", forMachines(selecting("os", "windows")), forPods(unparsable()))},
				pods:  []*corev1.Pod{pod("web")},
			},
		},
		{
			name: "M6: an unknown Namespace blocks only its own Pods, and only where rules depend on it",
			why:  "watch lag is no reason to stop; Cluster API stops the drain of the Node",
			about: func(w world, pod *corev1.Pod, _, ours answer) bool {
				_, known := w.namespaces[pod.Namespace]
				return !known && ours == undecided
			},
			fix: func(w world) (world, bool) {
				return w.withoutPods(func(pod *corev1.Pod) bool { _, known := w.namespaces[pod.Namespace]; return !known })
			},
			example: oneWith(pod("web", func(pod *corev1.Pod) { pod.Namespace = "unknown" })),
		},
		{
			name: "M6: more rules than a NodeMaintenance can have stop the drain",
			why:  "this is reported, until the timeout; Cluster API has no limit",
			fix: func(w world) (world, bool) {
				count := 0
				return w.withoutRules(func(rule) bool { count++; return count > rules.MaxRules/2 })
			},
			example: world{rules: manyRules(rules.MaxRules), pods: []*corev1.Pod{pod("web")}},
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

// withoutRules returns the world without some rules, and whether there were any.
func (w world) withoutRules(gone func(rule) bool) (_ world, ok bool) {
	before := len(w.rules)
	w.rules = slices.DeleteFunc(slices.Clone(w.rules), gone)
	return w, len(w.rules) < before
}

// withoutPods returns the world without some Pods, and whether there were any.
func (w world) withoutPods(gone func(*corev1.Pod) bool) (_ world, ok bool) {
	before := len(w.pods)
	w = w.without(gone)
	return w, len(w.pods) < before
}

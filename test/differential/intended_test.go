package differential

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// A difference that is meant. Those of one Pod have about; those in which one side stops the whole drain have mend.
type difference struct {
	name, why string
	// about says whether this is why the answers about a Pod differ.
	about func(w world, pod *corev1.Pod, theirs, ours answer) bool
	// mend takes the cause out of the world, or returns false where there is none.
	mend func(w world) (world, bool)
	// example is a world with this difference and no other.
	example world
}

// intended are the differences that are meant.
func intended() []difference { return append(ofOnePod(), ofTheWhole()...) }

func ofOnePod() []difference {
	return []difference{
		{
			name: "M8: finished Pods are left alone",
			why:  "they hold nothing back, and the record of a Job's Pod is somebody's; Cluster API evicts them",
			about: func(_ world, pod *corev1.Pod, theirs, ours answer) bool {
				return isFinished(pod) && theirs == evicts && ours == leaves
			},
			example: oneWith(pod("done", finished)),
		},
		{
			name: "M5: a Pod that has completed is not waited for",
			why:  "Cluster API waits until it is gone (https://github.com/kubernetes-sigs/cluster-api/issues/12920)",
			about: func(_ world, pod *corev1.Pod, theirs, ours answer) bool {
				return isFinished(pod) && theirs == waits && ours == leaves
			},
			example: oneWith(pod("job", labelled("wait-completed"), finished)),
		},
		{
			name: "M8: a DaemonSet is known by its UID",
			why:  "the Pod of one that was deleted is an orphan, also when another of that name is there; Cluster API looks at the name",
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
			name: "M8: a DaemonSet is one of API group apps",
			why:  "other projects have kinds of that name, whose Pods don't come back to the Node; Cluster API looks at the kind",
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
			name: "M6: a DaemonSet that can't be read holds its own Pods back, where it matters",
			why:  "Cluster API means to stop there, but its later filters overwrite the error: it evicts them, or asks the rules",
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
			name: "M1: our node agent stays",
			why:  "it has to outlive the drain that it serves",
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
			name: "M6: a broken rule is not the business of Machines that it doesn't select",
			why:  "Cluster API stops every drain of the namespace",
			mend: func(w world) (world, bool) {
				if len((ours{}).compile(w).Problems) > 0 {
					return w, false
				}
				return w.withoutRules(func(rule rule) bool { return rule.broken() })
			},
			example: world{
				rules: []rule{namedRule("broken", "Skip", forMachines(selecting("os", "windows")), forPods(unparsable()))},
				pods:  []*corev1.Pod{pod("web")},
			},
		},
		{
			name: "M6: a Namespace that isn't known holds its own Pods back, and only where rules ask for it",
			why:  "a cache that lags is no reason to stop; Cluster API stops the drain of the Node",
			about: func(w world, pod *corev1.Pod, _, ours answer) bool {
				_, known := w.namespaces[pod.Namespace]
				return !known && ours == undecided
			},
			mend: func(w world) (world, bool) {
				return w.withoutPods(func(pod *corev1.Pod) bool { _, known := w.namespaces[pod.Namespace]; return !known })
			},
			example: oneWith(pod("web", func(pod *corev1.Pod) { pod.Namespace = "unknown" })),
		},
		{
			name: "M6: more rules than a NodeMaintenance holds stop the drain",
			why:  "they are said to be too many, until the timeout; Cluster API has no limit",
			mend: func(w world) (world, bool) {
				count := 0
				return w.withoutRules(func(rule) bool { count++; return count > rules.MaxRules/2 })
			},
			example: world{rules: manyRules(rules.MaxRules), pods: []*corev1.Pod{pod("web")}},
		},
	}
}

const (
	agentNamespace = "capnm-system"
	agentLabel     = "app.kubernetes.io/name"
	agentName      = "capnm-node-agent"
)

func nameOf(owner *metav1.OwnerReference) string {
	if owner == nil {
		return ""
	}
	return owner.Name
}

// withoutRules is the world without some rules; ok says whether there were any.
func (w world) withoutRules(gone func(rule) bool) (_ world, ok bool) {
	before := len(w.rules)
	w.rules = slices.DeleteFunc(slices.Clone(w.rules), gone)
	return w, len(w.rules) < before
}

// withoutPods is the world without some Pods; ok says whether there were any.
func (w world) withoutPods(gone func(*corev1.Pod) bool) (_ world, ok bool) {
	before := len(w.pods)
	w = w.without(gone)
	return w, len(w.pods) < before
}

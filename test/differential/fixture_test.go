package differential

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// fixture is the input of a drain.
type fixture struct {
	machine    *clusterv1.Machine
	cluster    *clusterv1.Cluster
	rules      []rule
	namespaces map[string]map[string]string // labels, by name
	daemonSets map[string]types.UID         // by namespace/name
	// unreadable: the API server fails requests for DaemonSets.
	unreadable bool
	// unreachable: the Node's kubelet does not report.
	unreachable bool
	pods        []*corev1.Pod
	now         time.Time
}

const (
	machineNamespace = "fleet"
	nodeName         = "node"
)

// without returns the fixture without some Pods.
func (f fixture) without(gone func(*corev1.Pod) bool) fixture {
	f.pods = slices.DeleteFunc(slices.Clone(f.pods), gone)
	return f
}

func key(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

func isFinished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// answer is the decision about one Pod.
type answer string

const (
	evicts    answer = "evicts it" // or waits until it has terminated
	waits     answer = "waits for it to complete"
	leaves    answer = "leaves it"
	undecided answer = "can't decide about it"
)

// event is a step of a drain: the Pods that are evicted in one round, or a Pod that had to terminate before the drain continued.
type event struct {
	what string
	pods []string
}

// verdicts are the answers about all Pods, by key.
type verdicts map[string]answer

// drainer is one side of the comparison.
type drainer interface {
	// ask returns the answer about each Pod, or why the drain stops.
	ask(f fixture) (answers verdicts, stopped error)
	// evictedNow returns the sorted keys of the Pods that are evicted in this round. The fixture must not stop the drain.
	evictedNow(f fixture) []string
	// left returns whether the drain is not done.
	left(f fixture) bool
}

// trace runs a drain to its end. Evicted Pods are deleted in the next round. If no Pod is evicted, the first terminating or completing
// Pod by name is deleted. Each such deletion shows which Pods it has blocked.
func trace(d drainer, f fixture) []event {
	var events []event
	for d.left(f) {
		evicted := d.evictedNow(f)
		if len(evicted) > 0 {
			events = append(events, event{what: "evicts", pods: evicted})
			f = f.without(func(pod *corev1.Pod) bool { return slices.Contains(evicted, key(pod)) })
			continue
		}
		ends, ok := nextToEnd(d, f)
		if !ok {
			return append(events, event{what: "is stuck"})
		}
		events = append(events, event{what: "waits for the end of", pods: []string{ends}})
		f = f.without(func(pod *corev1.Pod) bool { return key(pod) == ends })
	}
	return events
}

func nextToEnd(d drainer, f fixture) (string, bool) {
	answers, stopped := d.ask(f)
	if stopped != nil {
		return "", false
	}
	var candidates []string
	for _, pod := range f.pods {
		if answer := answers[key(pod)]; answer == waits || answer == evicts && pod.DeletionTimestamp != nil {
			candidates = append(candidates, key(pod))
		}
	}
	if len(candidates) == 0 {
		return "", false
	}
	return slices.Min(candidates), true
}

func metaOf(namespace, name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name), Labels: labels}
}

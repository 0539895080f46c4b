package statefulsets

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Observation is all that Decide looks at. It is not changed.
type Observation struct {
	// Set is the StatefulSet, nil if it is gone.
	Set *appsv1.StatefulSet
	// Pods of the StatefulSet, read after it.
	Pods []corev1.Pod
	// Waiting are the Pods whose Evacuations are ours to carry out now.
	Waiting []Waiting
	// Going are the Pods whose turn has come, and that are still there.
	Going map[types.UID]bool
	Now   time.Time
}

// Waiting is a Pod that is to go.
type Waiting struct {
	Name string
	UID  types.UID
	// Progress is when something was last reported, Deadline when our turn is over, Message what was reported.
	Progress, Deadline time.Time
	Message            string
}

// Decision is whose turn it is.
type Decision struct {
	Reports []Report
	// LookAgain is when to decide again if nothing happens before. Zero: whenever something happens.
	LookAgain time.Time
}

// Report is what the Evacuation of a Pod is told.
type Report struct {
	Pod types.UID
	// Release ends our turn: the Pod is evicted. Else it waits, and that is progress.
	Release bool
	Message string
}

const (
	// pace is how often the StatefulSet is looked at while Pods wait for one to come back on a Node that isn't watched.
	pace = 2 * time.Second
	// gatherTime is how long the Pods of a Node have to be asked for: their Evacuations are made side by side, in any order.
	gatherTime = 3 * time.Second
	// renewShare of its progress deadline is how long a Pod that waits isn't told of the progress of others.
	renewShare = 0.25
)

// SetOf returns the name of the StatefulSet that controls a Pod, "" if none does.
func SetOf(pod *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || owner.Kind != "StatefulSet" || !strings.HasPrefix(owner.APIVersion, appsv1.GroupName+"/") {
		return ""
	}
	return owner.Name
}

// Ordered says whether the Pods of a StatefulSet leave in order. It takes its Pods to decide then.
func Ordered(set *appsv1.StatefulSet) bool {
	return set != nil && set.DeletionTimestamp == nil &&
		set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement && set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType
}

// Decide says which Pod goes now, and has the others wait.
func Decide(o Observation) Decision {
	if len(o.Waiting) == 0 {
		return Decision{}
	}
	if !Ordered(o.Set) {
		return Decision{Reports: releaseAll(o.Waiting, "The Pods of its StatefulSet leave in no order.")}
	}
	waiting := slices.SortedFunc(slices.Values(o.Waiting), func(a, b Waiting) int {
		return cmp.Or(-cmp.Compare(ordinal(a.Name), ordinal(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	if until := waiting[0].Progress.Add(gatherTime); o.Now.Before(until) && o.higherOnNode(waiting[0]) {
		return Decision{LookAgain: until}
	}
	absent := o.absent(waiting[0].UID)
	if absent == "" {
		return Decision{Reports: append(releaseAll(waiting[:1], "It is the Pod's turn: it has the highest ordinal."), o.renew(waiting[1:])...)}
	}
	d := Decision{LookAgain: o.Now.Add(pace)}
	message := fmt.Sprintf("Waiting for its turn: the Pods of StatefulSet %s/%s leave one at a time, the highest ordinal first.", o.Set.Namespace, o.Set.Name)
	for _, pod := range waiting {
		if pod.Message != message {
			d.Reports = append(d.Reports, Report{Pod: pod.UID, Message: message})
		}
	}
	return d
}

// higherOnNode says whether a Pod with a higher ordinal is on the same Node, and hasn't had its turn.
func (o Observation) higherOnNode(first Waiting) bool {
	at := slices.IndexFunc(o.Pods, func(pod corev1.Pod) bool { return pod.UID == first.UID })
	return at >= 0 && slices.ContainsFunc(o.Pods, func(pod corev1.Pod) bool {
		return pod.Spec.NodeName == o.Pods[at].Spec.NodeName && ordinal(pod.Name) > ordinal(first.Name) &&
			metav1.IsControlledBy(&pod, o.Set) && pod.DeletionTimestamp == nil && !o.Going[pod.UID]
	})
}

// absent names a Pod of the StatefulSet, other than the one to go, that isn't there or not ready, "" if all serve. Counting them
// would not do: a Pod that terminates is ready for a while.
func (o Observation) absent(leaving types.UID) string {
	serving := map[string]bool{}
	for i := range o.Pods {
		pod := &o.Pods[i]
		serves := pod.DeletionTimestamp == nil && rules.Ready(pod) && !o.Going[pod.UID]
		if metav1.IsControlledBy(pod, o.Set) && (serves || pod.UID == leaving) {
			serving[pod.Name] = true
		}
	}
	first := 0
	if o.Set.Spec.Ordinals != nil {
		first = int(o.Set.Spec.Ordinals.Start)
	}
	for n := first + int(ptr.Deref(o.Set.Spec.Replicas, 1)) - 1; n >= first; n-- {
		if name := o.Set.Name + "-" + strconv.Itoa(n); !serving[name] {
			return name
		}
	}
	return ""
}

func releaseAll(pods []Waiting, message string) []Report {
	reports := make([]Report, 0, len(pods))
	for _, pod := range pods {
		reports = append(reports, Report{Pod: pod.UID, Release: true, Message: message})
	}
	return reports
}

// renew tells the Pods that wait for a long time that there is progress, so that their turn doesn't end in silence.
func (o Observation) renew(pods []Waiting) []Report {
	var reports []Report
	for _, pod := range pods {
		if after := time.Duration(float64(pod.Deadline.Sub(pod.Progress)) * renewShare); !o.Now.Before(pod.Progress.Add(after)) {
			reports = append(reports, Report{Pod: pod.UID, Message: pod.Message})
		}
	}
	return reports
}

// ordinal of a Pod of a StatefulSet, -1 where its name has none.
func ordinal(name string) int {
	n, err := strconv.Atoi(name[strings.LastIndex(name, "-")+1:])
	if err != nil {
		return -1
	}
	return n
}

// Apply notes the report on the Evacuation.
func (r Report) Apply(e *v1alpha1.Evacuation, now time.Time) {
	e.Status.Message = r.Message
	if r.Release {
		e.Status.ActiveEvacuatorCompleted = true
		return
	}
	progress := metav1.NewTime(now.UTC().Truncate(time.Second)) // as the API server will give it back
	e.Status.EvacuationProgressTimestamp = &progress
}

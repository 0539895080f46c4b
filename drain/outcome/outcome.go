package outcome

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

const (
	// MaxApplications is the limit of v1alpha1.DrainOutcome.Applications.
	MaxApplications = 64
	// maxWhy is the limit of v1alpha1.EvictedApplication.Why.
	maxWhy = 256
)

// Evicted are Pods of one controller that a drain has evicted.
type Evicted struct {
	Controller Controller
	Pods       int32
	Since      time.Time // the start of the first evacuation, by the clock of the workload cluster
}

// Start returns the time since which the Pods that a drain has evicted count, nil if stage Drain has not started. If a drain in place had
// ended before its Machine was deleted, that is the deletion: the outcome of that drain is in the status. deleted is nil if the
// NodeMaintenance serves no deleted Machine.
func Start(m *v1alpha1.NodeMaintenance, deleted *metav1.Time) *time.Time {
	start, inPlace := m.StageStart(v1alpha1.StageDrain), m.Status.Outcome
	if start != nil && deleted != nil && inPlace != nil && inPlace.EndTime.Before(deleted) {
		return &deleted.Time
	}
	return start
}

// Begin returns the outcome of a drain before it is read. beyond is the number of evicted Pods of further controllers, and lost is the
// number of Pods that were evicted before the manager was restarted.
func Begin(evicted []Evicted, beyond, lost int32, end time.Time) v1alpha1.DrainOutcome {
	outcome := v1alpha1.DrainOutcome{EndTime: metav1.NewTime(end.Truncate(time.Second))}
	evicted = slices.SortedFunc(slices.Values(evicted), func(a, b Evicted) int {
		return cmp.Or(cmp.Compare(b.Pods, a.Pods), cmp.Compare(a.Controller.String(), b.Controller.String()))
	})
	for _, of := range evicted {
		if len(outcome.Applications) == MaxApplications {
			beyond += of.Pods
			continue
		}
		outcome.Pods.Evicted += of.Pods
		outcome.Applications = append(outcome.Applications, v1alpha1.EvictedApplication{
			Controller: of.Controller.String(), Since: inRange(of.Since),
			Pods: v1alpha1.EvictedPods{Evicted: of.Pods, Unknown: of.Pods},
		})
	}
	outcome.Pods.Evicted += beyond + lost
	outcome.Pods.Unknown = outcome.Pods.Evicted
	switch {
	case lost > 0:
		outcome.Message = "The manager was restarted after " + text.Count(lost, "Pod") + " of the drain had been evicted"
	case beyond > 0:
		outcome.Message = fmt.Sprintf("%s of more than %d controllers were evicted", text.Count(outcome.Pods.Evicted, "Pod"), MaxApplications)
	}
	return outcome
}

// inRange returns a time that the API accepts. The deletionTimestamp of a Pod with an enormous grace period may be in any year.
func inRange(t time.Time) metav1.Time {
	earliest, latest := time.Unix(0, 0), time.Date(9998, 1, 1, 0, 0, 0, 0, time.UTC)
	switch {
	case t.Before(earliest):
		t = earliest
	case t.After(latest):
		t = latest
	}
	return metav1.NewTime(t.Truncate(time.Second))
}

// World is what is known of a workload cluster.
type World struct {
	// Pods are the Pods of the namespaces of all applications that are not in Unread.
	Pods []*corev1.Pod
	// Wanted is how many Pods a controller wants. A controller that is not in the map is not understood.
	Wanted map[Controller]int32
	// Unread says of a namespace or a controller why it could not be read.
	Unread map[Controller]error
}

// unread returns why the Pods of a controller, or how many it wants, could not be read. The key of a namespace has no kind and no name.
func (w World) unread(controller Controller) error {
	return cmp.Or(w.Unread[Controller{Namespace: controller.Namespace}], w.Unread[controller])
}

// Controllers returns the controllers of applications that must be read, in order.
func Controllers(outcomes ...*v1alpha1.DrainOutcome) []Controller {
	var all []Controller
	for _, outcome := range outcomes {
		for _, application := range outcome.Applications {
			all = append(all, parse(application.Controller))
		}
	}
	slices.SortFunc(all, func(a, b Controller) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return slices.Compact(all)
}

// Read updates the outcomes of all drains of one workload cluster. What could not be read becomes unknown. Applications that were removed
// from the outcomes do not change any more.
func Read(world World, now time.Time, outcomes ...*v1alpha1.DrainOutcome) {
	r := newReading(world)
	order := slices.SortedStableFunc(slices.Values(outcomes), func(a, b *v1alpha1.DrainOutcome) int { return b.EndTime.Compare(a.EndTime.Time) })
	for _, outcome := range order { // what is missing is attributed to the last drain first
		for i := range outcome.Applications {
			application := &outcome.Applications[i]
			before := application.Pods
			r.read(application)
			outcome.Pods = add(outcome.Pods, application.Pods, before)
			r.unsettled[application.Controller] = r.unsettled[application.Controller] || !Settled(application.Pods)
		}
	}
	for _, outcome := range order {
		outcome.Applications = slices.DeleteFunc(outcome.Applications, func(application v1alpha1.EvictedApplication) bool {
			controller := parse(application.Controller)
			_, known := world.Wanted[controller]
			// If it is not known how many Pods are wanted, the Pods that replace those of this drain must not count for another one.
			return Settled(application.Pods) && (known || !r.unsettled[application.Controller])
		})
		outcome.ReadTime = ptr.To(metav1.NewTime(now.Truncate(time.Second)))
		slices.SortStableFunc(outcome.Applications, func(a, b v1alpha1.EvictedApplication) int {
			return cmp.Or(cmp.Compare(severity(b.Pods), severity(a.Pods)), cmp.Compare(a.Controller, b.Controller))
		})
	}
}

// reading is the state of Read.
type reading struct {
	world     World
	pods      map[Controller][]*corev1.Pod // that live, the worst first, and without those that count as replacements
	live      map[Controller]int32
	missing   map[Controller]int32
	unsettled map[string]bool // controllers with Pods that are not replaced by ready ones
}

func newReading(world World) *reading {
	r := &reading{world: world, pods: map[Controller][]*corev1.Pod{}, missing: map[Controller]int32{}, unsettled: map[string]bool{}}
	for _, pod := range world.Pods {
		if state := stateOf(pod); state != gone {
			controller := ControllerOf(pod)
			r.pods[controller] = append(r.pods[controller], pod)
		}
	}
	r.live = map[Controller]int32{}
	for controller, pods := range r.pods {
		r.live[controller] = int32(len(pods)) //nolint:gosec // bounded by the number of Pods
		slices.SortFunc(pods, func(a, b *corev1.Pod) int {
			return cmp.Or(cmp.Compare(stateOf(a), stateOf(b)), b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
		})
	}
	for controller, wanted := range world.Wanted {
		r.missing[controller] = max(0, wanted-r.live[controller])
	}
	return r
}

// read sets what became of the Pods of an application.
func (r *reading) read(application *v1alpha1.EvictedApplication) {
	controller, pods := parse(application.Controller), v1alpha1.EvictedPods{Evicted: application.Pods.Evicted}
	if err := r.world.unread(controller); err != nil {
		pods.Unknown = pods.Evicted
		application.Pods, application.Why = pods, text.Line("Cannot be read: "+err.Error(), maxWhy)
		return
	}
	rest := pods.Evicted
	pods.NotReplaced = min(rest, r.missing[controller])
	r.missing[controller] -= pods.NotReplaced
	rest -= pods.NotReplaced
	worst, others := (*corev1.Pod)(nil), r.pods[controller][:0:0]
	for _, pod := range r.pods[controller] {
		if rest == 0 || pod.CreationTimestamp.Time.Before(application.Since.Time) {
			others = append(others, pod)
			continue
		}
		if rest--; worst == nil {
			worst = pod
		}
		switch stateOf(pod) {
		case pending:
			pods.Pending++
		case notReady:
			pods.NotReady++
		default:
			pods.Ready++
		}
	}
	r.pods[controller] = others
	if _, known := r.world.Wanted[controller]; known {
		pods.NotNeeded = rest
	} else {
		pods.NotReplaced += rest
	}
	application.Pods, application.Why = pods, text.Line(r.why(controller, pods, worst), maxWhy)
}

// why says why Pods of a controller are not replaced by ready ones. worst is the worst replacement.
func (r *reading) why(controller Controller, pods v1alpha1.EvictedPods, worst *corev1.Pod) string {
	wanted, known := r.world.Wanted[controller]
	switch {
	case pods.Pending+pods.NotReady > 0:
		return why(worst)
	case pods.NotReplaced == 0:
		return ""
	case controller.Kind == kindPod:
		return "The Pod has no controller that recreates it"
	case known:
		return fmt.Sprintf("The controller has %d of %s", r.live[controller], text.Count(wanted, "Pod"))
	default:
		return "The controller has not created as many Pods as were evicted"
	}
}

// add returns total with the numbers of an application after a reading in place of those before.
func add(total, after, before v1alpha1.EvictedPods) v1alpha1.EvictedPods {
	total.Ready += after.Ready - before.Ready
	total.NotReady += after.NotReady - before.NotReady
	total.Pending += after.Pending - before.Pending
	total.NotReplaced += after.NotReplaced - before.NotReplaced
	total.NotNeeded += after.NotNeeded - before.NotNeeded
	total.Unknown += after.Unknown - before.Unknown
	return total
}

// Settled reports whether all evicted Pods are replaced by ready ones or not needed any more.
func Settled(pods v1alpha1.EvictedPods) bool { return pods.Ready+pods.NotNeeded == pods.Evicted }

// severity is higher the longer an application may take to recover.
func severity(pods v1alpha1.EvictedPods) int {
	switch {
	case pods.NotReplaced > 0:
		return 4
	case pods.Pending > 0:
		return 3
	case pods.NotReady > 0:
		return 2
	case pods.Unknown > 0:
		return 1
	default:
		return 0
	}
}

// IsComplete reports whether the controllers of all evicted Pods have replaced them by ready ones, or do not want that. Pods without a
// controller do not count: none recreates them. It is false while the outcome has not been read, or of a Pod is unknown. A drain that has
// evicted no Pod is complete at once.
func IsComplete(outcome *v1alpha1.DrainOutcome) bool {
	if outcome.Pods.Evicted == 0 {
		return true
	}
	return outcome.ReadTime != nil && outcome.Pods.Unknown == 0 && !slices.ContainsFunc(outcome.Applications, func(of v1alpha1.EvictedApplication) bool {
		pods := of.Pods
		if parse(of.Controller).Kind == kindPod {
			pods.NotNeeded += pods.NotReplaced
		}
		return !Settled(pods)
	})
}

package forecast

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuators"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/statefulset"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// Severity says whether the drain gets past an Obstacle without a change by a user.
type Severity string

const (
	// Blocks means that the drain does not finish in the observed state.
	Blocks Severity = "Blocks"
	// Delays means that the drain waits, and is expected to continue without a change by a user.
	Delays Severity = "Delays"
	// Unknown means that missing information prevents a prediction.
	Unknown Severity = "Unknown"
)

// Reasons of obstacles, beside those of package budgets.
const (
	ReasonNeverCompletes  = "NeverCompletes"
	ReasonWaitCompleted   = "WaitCompleted"
	ReasonUndecided       = "Undecided"
	ReasonDeletionOverdue = "DeletionOverdue"
	ReasonEvacuator       = "Evacuator"
	ReasonBackoff         = "Backoff"
	// ReasonWaitingForNodes means that the Node waits because of maxParallelNodes.
	ReasonWaitingForNodes = "WaitingForNodes"
)

// Obstacle is a cause for which the drain of some Pods waits.
type Obstacle struct {
	Severity Severity
	// Reason is one of the constants, or a budgets.Reason.
	Reason  string
	Message string
	// Budget is the "namespace/name" of the PodDisruptionBudget, if it is the cause. NeverAllows means that it cannot allow a disruption
	// with the present number of Pods.
	Budget      string
	NeverAllows bool
	// NoSurge is why a surge that was requested does not replace the Pods. It is empty if none was requested.
	NoSurge surge.Refusal
	// Settings are those of the budget and of the NodeMaintenances: advice should not be to set what is set.
	Settings Settings
	// Pods are the affected Pods, "namespace/name", sorted.
	Pods []string
}

// Settings are what is set already about a PodDisruptionBudget and the surge of its Pods.
type Settings struct {
	// OfDeployment means that a Deployment controls the Pods, and Surge is what the NodeMaintenances of the Node request for Deployments.
	OfDeployment bool
	Surge        v1alpha1.SurgePolicy
	// WithoutController means that the budget selects only Pods without a controller, and does not count them.
	WithoutController bool
	// AllowsWithMorePods means that the budget allows a disruption if there are more replicas.
	AllowsWithMorePods bool
	// AlwaysAllowsUnready means that the budget allows the eviction of Pods that are not ready.
	AlwaysAllowsUnready bool
}

// settings returns what is set for a Pod whose eviction its budget would refuse.
func (p *Pod) settings() Settings {
	settings := Settings{OfDeployment: rules.DeploymentOf(p.Pod) != "", Surge: p.surgePolicy}
	for _, b := range p.Budgets {
		if b.String() == p.Waiting.Budget {
			settings.WithoutController = b.CountsNoPod() && metav1.GetControllerOfNoCopy(p.Pod) == nil
			settings.AllowsWithMorePods, settings.AlwaysAllowsUnready = b.AllowsWithMorePods(), b.AlwaysAllowsUnready()
		}
	}
	return settings
}

// Obstacles returns what the drain will wait for: what blocks it first, then by the number of Pods.
func (f Forecast) Obstacles(now time.Time) []Obstacle {
	var found []Obstacle
	if f.Waiting != "" {
		found = append(found, Obstacle{Severity: Delays, Reason: ReasonWaitingForNodes, Message: f.Waiting})
	}
	for i := range f.Pods {
		for _, obstacle := range f.Pods[i].Obstacles(now) {
			obstacle.Pods = []string{f.Pods[i].Namespace + "/" + f.Pods[i].Name}
			found = merge(found, obstacle)
		}
	}
	rank := []Severity{Blocks, Unknown, Delays}
	slices.SortStableFunc(found, func(a, b Obstacle) int {
		if a.Severity != b.Severity {
			return slices.Index(rank, a.Severity) - slices.Index(rank, b.Severity)
		}
		return len(b.Pods) - len(a.Pods)
	})
	return found
}

// merge adds the Pods of an obstacle to those of the same cause.
func merge(found []Obstacle, obstacle Obstacle) []Obstacle {
	same := func(o Obstacle) bool {
		return o.Severity == obstacle.Severity && o.Reason == obstacle.Reason && o.Message == obstacle.Message && o.Budget == obstacle.Budget &&
			o.Settings == obstacle.Settings
	}
	if i := slices.IndexFunc(found, same); i >= 0 {
		found[i].Pods = append(found[i].Pods, obstacle.Pods...)
		slices.Sort(found[i].Pods)
		return found
	}
	return append(found, obstacle)
}

// Obstacles returns what the drain of the Pod waits for, without Pods of earlier steps.
func (p *Pod) Obstacles(now time.Time) []Obstacle {
	var found []Obstacle
	if p.Outcome == Finished || p.Outcome == Stays {
		return nil
	}
	if p.DeletionTimestamp != nil {
		if now.After(p.DeletionTimestamp.Time) {
			message := "Its deletion is overdue"
			if len(p.Finalizers) > 0 {
				message += "; it has the finalizers " + strings.Join(p.Finalizers, ", ")
			}
			found = append(found, Obstacle{Severity: Blocks, Reason: ReasonDeletionOverdue, Message: message})
		}
		return found
	}
	switch p.Outcome {
	case Undecided:
		return []Obstacle{{Severity: Unknown, Reason: ReasonUndecided, Message: p.Verdict.Undecided}}
	case Completes:
		return []Obstacle{p.completion()}
	default:
	}
	if evacuator := p.firstEvacuator(); evacuator != "" && !p.isAloneInOrder(evacuator) {
		found = append(found, Obstacle{
			Severity: Delays, Reason: ReasonEvacuator, Message: "Evacuator " + evacuator + " acts before the eviction" + p.detail(evacuator),
		})
	}
	if p.Next.Kind == evacuation.AwaitBackoff {
		found = append(found, Obstacle{Severity: Delays, Reason: ReasonBackoff, Message: p.Next.Message})
	}
	if p.Waiting != nil {
		found = append(found, p.budget())
	}
	return found
}

// completion returns the obstacle of a Pod that must complete.
func (p *Pod) completion() Obstacle {
	if p.Spec.RestartPolicy == corev1.RestartPolicyAlways {
		return Obstacle{Severity: Blocks, Reason: ReasonNeverCompletes, Message: fmt.Sprintf(
			"The drain waits for it to complete (%s), and with restartPolicy Always it never does", p.Verdict.Reason)}
	}
	return Obstacle{Severity: Delays, Reason: ReasonWaitCompleted, Message: "Waiting for it to complete (" + p.Verdict.Reason + ")"}
}

// budget returns the obstacle of a Pod whose eviction would be refused. If an evacuator may remove the Pod without an eviction, the
// obstacle only delays the drain.
func (p *Pod) budget() Obstacle {
	obstacle := Obstacle{
		Severity: Blocks, Reason: string(p.Waiting.Reason), Message: p.Waiting.Message, Budget: p.Waiting.Budget, NeverAllows: p.Waiting.NeverAllowsDisruption,
		Settings: p.settings(),
	}
	if p.Unscheduled != "" {
		obstacle.Message += ". " + p.Unscheduled
	}
	if class := p.firstEvacuator(); class != "" && !evacuators.Of(class).Orders {
		obstacle.Severity = Delays
	}
	if p.Surge != nil && p.Surge.Refusal != "" {
		obstacle.Message += ". " + strings.TrimSuffix(p.Surge.Message, ".")
		if p.Surge.Refusal != surge.NotRequested {
			obstacle.NoSurge = p.Surge.Refusal
		}
	}
	return obstacle
}

// isAloneInOrder reports whether a Pod waits for no other Pod of its StatefulSet on the Nodes that are drained together, and has not begun
// to wait.
func (p *Pod) isAloneInOrder(evacuator string) bool {
	return evacuator == v1alpha1.EvacuatorClassStatefulSet && p.InOrder == 1 && p.Next.Kind != evacuation.AwaitEvacuator
}

// detail returns what the evacuators for Deployments and StatefulSets do, and nothing for other evacuators.
func (p *Pod) detail(class string) string {
	switch {
	case class == v1alpha1.EvacuatorClassStatefulSet && p.SetUnread:
		return " if StatefulSet " + p.Set.String() + " requires an order: it was not read"
	case class == v1alpha1.EvacuatorClassStatefulSet && p.Set.Name != "":
		return ": " + OrderMessage(p.Set, p.InOrder)
	case class != v1alpha1.EvacuatorClassDeployment:
		return ""
	case p.Surge == nil:
		return " if the Deployment of the Pod surges: the Deployment was not read"
	case p.Surge.Message == "":
		return " when the controllers of the Deployment have observed its last change"
	default:
		return ": " + strings.TrimSuffix(p.Surge.Message, ".")
	}
}

// OrderMessage says how so many Pods of a StatefulSet are evicted in order.
func OrderMessage(set types.NamespacedName, pods int) string {
	message := fmt.Sprintf("the Pods of StatefulSet %s are evicted one at a time, the highest ordinal first", set)
	if pods > 1 {
		message += fmt.Sprintf("; %d of %d wait at most %s each for the replacement of the one before", pods-1, pods, statefulset.MaxWait)
	}
	return message
}

// firstEvacuator returns the class of the evacuator that is active, or becomes active first. It is empty if the Pod is evicted at once.
func (p *Pod) firstEvacuator() string {
	switch p.Next.Kind {
	case evacuation.Activate, evacuation.AwaitEvacuator:
		return p.Next.Class
	default:
		return ""
	}
}

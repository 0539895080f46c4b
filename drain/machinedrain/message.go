package machinedrain

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

const (
	// maxReasons is the maximum number of reasons that a message names, and maxPods the maximum number of Pods of each.
	maxReasons = 5
	maxPods    = 3

	// WaitingForConnection is the message of a wait for the workload cluster.
	WaitingForConnection = "Waiting for a connection to the workload cluster"
	// DrainedByClusterAPI is added to the message of a Machine that is released although it is not confirmed that no Pod is left on its Node.
	DrainedByClusterAPI = "\nCluster API drains the Node: this provider could not confirm that no Pod is left on it"
	// WithoutPolicy is the message of WithoutPolicyMessage for a drain that does not wait for a turn.
	WithoutPolicy = "No MachineDrainPolicy selects the Machine any more: the drain continues with the defaults"
)

// DrainProgress returns reason and message of a Machine's condition during its drain. failure is why the NodeMaintenance cannot be
// reconciled, nil if it can.
func DrainProgress(m *v1alpha1.NodeMaintenance, failure error) (reason, message string) {
	reason = v1alpha1.ReasonMachineDraining
	switch {
	case failure != nil:
		reason = v1alpha1.ReasonReconcileFailed
	case cordonFailure(m) != "":
		reason = v1alpha1.ReasonCordonFailed
	}
	return reason, drainMessage(m, Blockers(m, failure))
}

// Blockers returns what blocks the drain of a Machine's Node, as one line for each reason. It is empty if nothing does.
func Blockers(m *v1alpha1.NodeMaintenance, failure error) []string {
	blockers := blockedPods(m)
	if message := cordonFailure(m); message != "" {
		blockers = append(blockers, message)
	}
	if failure != nil {
		blockers = append(blockers, "NodeMaintenance "+m.Name+" cannot be reconciled: "+progress.Describe(failure))
	}
	return blockers
}

// blockedPods returns the reasons of blocked Pods, with the Pods: at most maxReasons with maxPods each.
func blockedPods(m *v1alpha1.NodeMaintenance) []string {
	var reasons []string
	pods := map[string][]string{}
	for _, node := range m.Status.NodeStatuses {
		for _, blocked := range node.Blocked {
			if len(pods[blocked.Why]) == 0 {
				reasons = append(reasons, blocked.Why)
			}
			pods[blocked.Why] = append(pods[blocked.Why], blocked.Pod)
		}
	}
	var lines []string
	for _, why := range reasons[:min(len(reasons), maxReasons)] {
		lines = append(lines, text.Named("Pod", pods[why], maxPods)+": "+why)
	}
	if more := len(reasons) - maxReasons; more > 0 {
		lines = append(lines, "and "+text.Count(more, "more reason"))
	}
	return lines
}

// WaitingNode says whether the Node of a Machine that waits for a turn is cordoned. m is the NodeMaintenance of the Machine.
func WaitingNode(m *v1alpha1.NodeMaintenance) string {
	if m.StaysSchedulable() {
		return "The Node is schedulable until then, or until a drain makes progress (waitingNodes)"
	}
	return cmp.Or(cordonFailure(m), "The Node is cordoned")
}

func cordonFailure(m *v1alpha1.NodeMaintenance) string {
	cordoned := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.NodeMaintenanceCordoned)
	if cordoned == nil || cordoned.Reason != v1alpha1.ReasonCordonFailed {
		return ""
	}
	return cordoned.Message
}

// ResultCondition returns the condition of a Machine whose drain has ended.
func ResultCondition(reason, message string) metav1.Condition {
	condition := metav1.Condition{Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionTrue, Reason: reason, Message: message}
	if reason == v1alpha1.ReasonTimedOut {
		condition.Status = metav1.ConditionFalse
	}
	return condition
}

// TransitionTime returns the lastTransitionTime of the condition that replaces the present one, nil if the Machine has none. The condition
// of a drain that has timed out has the same status as that of the drain, and another time: ReleasedBefore reads it.
func TransitionTime(present *metav1.Condition, wanted metav1.Condition, now time.Time) metav1.Time {
	timesOut := wanted.Reason == v1alpha1.ReasonTimedOut && present != nil && present.Reason != wanted.Reason
	if present == nil || present.Status != wanted.Status || timesOut {
		return metav1.NewTime(now.Truncate(time.Second))
	}
	return present.LastTransitionTime
}

// HookRemovedMessage returns the message of a Machine's condition after another actor has removed the hook.
func HookRemovedMessage() string {
	return "Another actor removed the annotation " + v1alpha1.PreDrainHookAnnotation +
		" during the drain: Cluster API drains the Node, and the NodeMaintenance of the Machine is completed"
}

// FailureMessage returns the message of a Machine's condition while a step of its deletion fails.
func FailureMessage(err error) string {
	return "The drain cannot continue: " + progress.Describe(err)
}

// WaitingForSettings is the message of a Machine's condition while the API server has other policies or rules than the cache.
const WaitingForSettings = "Waiting for the watches of MachineDrainPolicies, MachineDrainRules and Clusters in the management cluster: " +
	"the drain begins or continues when they have delivered the latest changes"

// UnconfirmedMessage is the message of the condition of a running Machine while it is not confirmed which policy and labels it has.
func UnconfirmedMessage(err error) string {
	return "The hook and the maintenance of the Node stay as they are until the API server of the management cluster confirms the policy of the Machine " +
		"and the labels of its Cluster: " + progress.Describe(err)
}

// GoneRuleMessage is added to the message of a drain while the API server of the management cluster cannot confirm that a rule is gone.
func GoneRuleMessage(err error) string {
	return "A MachineDrainRule that is gone still applies until the API server of the management cluster confirms that: " + progress.Describe(err)
}

// TurnProblem returns the message of a Machine's condition while the API server of the management cluster cannot be asked whether the
// Machine gets a turn.
func TurnProblem(err error) string {
	return "Waiting for the API server of the management cluster to confirm the turn of the Machine: " + progress.Describe(err)
}

// Unanswered is a request to the workload cluster that was not answered.
type Unanswered struct {
	// Began is when the reconciliation of the request began. FailedBefore means that the one before has failed, too.
	Began        time.Time
	FailedBefore bool
	// Reported is when this process last wrote the condition that names a lost connection, zero if the condition does not.
	Reported time.Time
	// ProbeAnswered is when a health probe was last answered. ProbesFail means that later ones were not.
	ProbeAnswered time.Time
	ProbesFail    bool
}

// HasFailed reports whether the condition names the request, and no lost connection: no health probe fails, and the reconciliation before
// has failed in the same way, or one was answered since this reconciliation began, or since the condition has named a lost connection.
func (u Unanswered) HasFailed() bool {
	since := u.Began
	if !u.Reported.IsZero() {
		since = u.Reported
	}
	return !u.ProbesFail && (u.FailedBefore || u.ProbeAnswered.After(since))
}

// InvalidRuleMessage returns the message of a Machine's condition while MachineDrainRules of its namespace are invalid or exceed a limit.
func InvalidRuleMessage(namespace string, problem rules.Problem) string {
	if problem.Rule == rules.RuleTooManyRules || problem.Rule == rules.RuleTooLarge {
		return fmt.Sprintf("Waiting for the MachineDrainRules of namespace %s to be reduced: %s", namespace, problem.Message)
	}
	name := strings.TrimPrefix(problem.Rule, rules.MachineDrainRulePrefix)
	return fmt.Sprintf("Waiting for invalid MachineDrainRule %s/%s to be fixed: %s", namespace, name, problem.Message)
}

// drainMessage describes the progress of the drain of a Machine's Node, and what blocks it, in the style of Cluster API's own drain.
func drainMessage(m *v1alpha1.NodeMaintenance, blockers []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Drain not completed yet%s (NodeMaintenance %s): ", startedAt(m), m.Name)
	if summary := m.Status.Summary; summary.Nodes == 0 {
		b.WriteString("waiting for its first status")
	} else {
		fmt.Fprintf(&b, "%d Pods evacuating, %d pending, %d skipped", summary.PodsEvacuating, summary.PodsPending, summary.PodsSkipped)
	}
	for _, blocker := range blockers {
		b.WriteString("\n* " + blocker)
	}
	return b.String()
}

func startedAt(m *v1alpha1.NodeMaintenance) string {
	if start := m.StageStart(v1alpha1.StageDrain); start != nil {
		return " (started at " + start.UTC().Format(time.RFC3339) + ")"
	}
	return ""
}

// DrainState is what is known about the end of a drain.
type DrainState int

const (
	// DrainInProgress means that Pods must still be drained.
	DrainInProgress DrainState = iota
	// DrainUnconfirmed means that the drain had ended under an earlier spec, or when an earlier process or connection observed it. Pods may
	// have to be drained again.
	DrainUnconfirmed
	// DrainComplete means that the drain has ended.
	DrainComplete
)

// DrainStateOf returns the state of the drain of a NodeMaintenance. hadEnded means that the Machine has recorded its end, and isConfirmed
// that this process has found it to be drained under the present spec, in the present connection. Until the Pods are listed after a
// restart, nothing is known. A Node that cannot be cordoned is not drained, although no Pod must be drained now: another one may start.
func DrainStateOf(m *v1alpha1.NodeMaintenance, hadEnded, isConfirmed bool) DrainState {
	drained := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.NodeMaintenanceDrained)
	switch {
	case m.Spec.Stage != v1alpha1.StageDrain || drained == nil || cordonFailure(m) != "":
		return DrainInProgress
	case drained.Status != metav1.ConditionTrue && (!hadEnded || drained.Reason != v1alpha1.ReasonPodsNotObserved):
		return DrainInProgress
	case !isConfirmed || !m.IsDrained():
		return DrainUnconfirmed
	default:
		return DrainComplete
	}
}

// UnobservedPodsMessage returns what the Machine of a drained Node waits for, empty if for nothing. listed are the Pods of the Node as the
// API server lists them; with the observed ones, the NodeMaintenance was found to be drained. A Pod that was not observed may have to be
// drained: it may have been scheduled just before the Node was cordoned, and the watch may lag.
func UnobservedPodsMessage(listed []metav1.PartialObjectMetadata, observed sets.Set[types.UID]) string {
	var unobserved []string
	for i := range listed {
		if pod := &listed[i]; !observed.Has(pod.UID) {
			unobserved = append(unobserved, pod.Namespace+"/"+pod.Name)
		}
	}
	if len(unobserved) == 0 {
		return ""
	}
	return "Waiting for the watch of the Node's Pods to deliver " + text.Named("Pod", unobserved, maxPods)
}

// isTrue reports whether a condition of the NodeMaintenance is True for the current spec.
func isTrue(m *v1alpha1.NodeMaintenance, condition string) bool {
	found := meta.FindStatusCondition(m.Status.Conditions, condition)
	return found != nil && found.Status == metav1.ConditionTrue && found.ObservedGeneration == m.Generation
}

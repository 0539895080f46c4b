package report

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/advice"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	words "github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Why is the result of the command why.
type Why struct {
	Context string `json:"context"`
	Subject string `json:"subject"`
	// Answer says in one sentence how the subject stands.
	Answer string `json:"answer"`
	// Condition is that of the Machine.
	Condition    *Condition    `json:"condition,omitempty"`
	Maintenances []Maintenance `json:"nodeMaintenances,omitempty"`
	// Problems are what the drain waits for.
	Problems []Problem `json:"problems,omitempty"`
	// Warnings are what the drain costs the Pod, or the Pods of the Node.
	Warnings []Warning `json:"warnings,omitempty"`
	Pod      *PodWhy   `json:"pod,omitempty"`
	Guide    []string  `json:"guide,omitempty"`
	Gaps     []string  `json:"gaps,omitempty"`
	// WarningGaps are what only warnings depend on, and could not be read.
	WarningGaps []string `json:"warningGaps,omitempty"`
}

// Condition is a condition of an object.
type Condition struct {
	Type    string                 `json:"type,omitempty"`
	Status  metav1.ConditionStatus `json:"status"`
	Reason  string                 `json:"reason"`
	Message string                 `json:"message,omitempty"`
	// Since is when the condition got its status. It may have had other reasons and messages since then.
	Since string `json:"since,omitempty"`
}

// Maintenance is a NodeMaintenance of a Node.
type Maintenance struct {
	Name       string       `json:"name"`
	Stage      string       `json:"stage"`
	Since      string       `json:"since,omitempty"`
	Reason     string       `json:"reason,omitempty"`
	Message    string       `json:"message,omitempty"`
	Pending    int32        `json:"podsPending"`
	Evacuating int32        `json:"podsEvacuating"`
	Skipped    int32        `json:"podsSkipped"`
	Drained    bool         `json:"drained"`
	Blocked    []BlockedPod `json:"blocked,omitempty"`
	Conditions []Condition  `json:"conditions,omitempty"`
}

// BlockedPod is a Pod that the status of a NodeMaintenance names.
type BlockedPod struct {
	Pod    string `json:"pod"`
	Reason string `json:"reason,omitempty"`
	Why    string `json:"why"`
	Since  string `json:"since,omitempty"`
	// Expected is when the active evacuator of the Pod expects to finish.
	Expected string `json:"expectedFinish,omitempty"`
	// HasEvacuation is set in MaintenanceStatus.Pods.
	HasEvacuation bool `json:"-"`
}

// PodWhy explains a Pod.
type PodWhy struct {
	Pod
	Node  string       `json:"node"`
	Rules []RuleResult `json:"rules"`
	Steps int          `json:"steps"`
	// Target means that the Pod is to be evacuated now.
	Target bool `json:"target"`
	// Earlier are the Pods of earlier steps.
	Earlier    []string        `json:"waitsForPods,omitempty"`
	Evacuation *EvacuationView `json:"evacuation,omitempty"`
	Deletion   string          `json:"deletion,omitempty"`
	Finalizers []string        `json:"finalizers,omitempty"`
	Problems   []string        `json:"invalidAnnotations,omitempty"`
}

// RuleResult is the result of a drain rule.
type RuleResult struct {
	Rule     string                 `json:"rule"`
	Behavior v1alpha1.DrainBehavior `json:"behavior"`
	Order    int32                  `json:"order,omitempty"`
	// Result is yes, no or unknown.
	Result  string `json:"matches"`
	Decides bool   `json:"decides,omitempty"`
	Why     string `json:"why"`
}

// EvacuationView is the Evacuation of a Pod.
type EvacuationView struct {
	Name            string      `json:"name"`
	Since           string      `json:"since"`
	ActiveEvacuator string      `json:"activeEvacuator,omitempty"`
	Instigators     []string    `json:"instigators,omitempty"`
	FailedEvictions int32       `json:"failedEvictions"`
	Message         string      `json:"message,omitempty"`
	Next            string      `json:"next,omitempty"`
	Conditions      []Condition `json:"conditions,omitempty"`
}

// Seen is what was read of a workload cluster about the Node of a Machine, or about a Node.
type Seen struct {
	// Node is nil if it does not exist or could not be read.
	Node         *corev1.Node
	Maintenances []v1alpha1.NodeMaintenance
	// Intent is nil if the Node is not drained, or if Unread is true.
	Intent *Intent
	// Observed is nil if the Node is not drained, or if what the drain depends on could not be read.
	Observed *forecast.Observation
	// Cluster is what warnings depend on. It is nil if it was not read.
	Cluster *forecast.Cluster
	// Skip is why the manager skips the drain of a Machine, or would if the Machine had the hook.
	Skip machinedrain.SkipReason
	// Unread means that the NodeMaintenances could not be read: whether one selects the Node is not known.
	Unread bool
}

// MachineWhy explains a Machine.
func MachineWhy(m *observe.Machine, seen Seen) *Why {
	w := &Why{Subject: "Machine " + m.Namespace + "/" + m.Name, Condition: conditionOfMachine(m)}
	if w.Condition != nil {
		w.link(w.Condition.Reason)
	}
	var requested bool
	if w.Answer, requested = machineAnswer(m, seen); requested {
		w.Problems = pauses(m)
		w.Problems = append(w.Problems, w.conditionProblem()...)
	}
	if w.Answer == notReported {
		w.Guide = append(w.Guide, advice.Guide+"#the-machine-has-the-hook-but-no-condition")
	}
	if seen.Node != nil {
		w.fill(seen)
	}
	return w
}

// conditionProblem returns what to do about the condition, if it says what the Machine waits for, there is something to do, and no other
// problem has the reason: the condition may have been written before the hooks that hold the drain changed.
func (w *Why) conditionProblem() []Problem {
	if w.Condition == nil || w.Condition.Status == metav1.ConditionTrue {
		return nil
	}
	isKnown := slices.ContainsFunc(w.Problems, func(known Problem) bool { return known.Reason == w.Condition.Reason })
	if problem := problemOf(w.Condition.Reason, w.Condition.Message); problem.Fix != "" && !isKnown {
		return []Problem{problem}
	}
	return nil
}

const notReported = "The manager has not reported on the Machine yet."

func conditionOfMachine(m *observe.Machine) *Condition {
	found := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.MachineNodeMaintenance)
	if found == nil {
		return nil
	}
	condition := conditionOf(*found)
	return &condition
}

// machineAnswer says why the Node of a Machine is not drained yet. requested is false if nothing requests a drain: the Machine is not being
// deleted, no NodeMaintenance of its Node exists, and its condition says that it waits for nothing.
func machineAnswer(m *observe.Machine, seen Seen) (answer string, requested bool) {
	deleted, condition := !m.DeletionTimestamp.IsZero(), conditionOfMachine(m)
	withoutHook := deleted && !machinedrain.HasHook(m.Machine)
	present := seen.Intent != nil && seen.Intent.Present != nil
	if !deleted && (!present || seen.Unread || condition == nil && !seen.Intent.Drains()) {
		return runningAnswer(condition, present, seen)
	}
	switch {
	case withoutHook && condition != nil:
		return "The hook is released: Cluster API completes the deletion. Its condition Deleting says what it waits for.", true
	case deleted && seen.Skip != machinedrain.NotSkipped: // the Node may have been drained before
		return "The manager skips the drain: " + string(seen.Skip) + ".", true
	case withoutHook:
		return "The Machine is being deleted without the hook of this provider: Cluster API drains the Node. Its condition Deleting says what it waits for.", true
	case condition == nil:
		return notReported, true
	default:
		return condition.Message, true
	}
}

// runningAnswer is machineAnswer for a Machine that is not being deleted and whose Node no NodeMaintenance drains, as far as they could be
// read.
func runningAnswer(condition *Condition, present bool, seen Seen) (answer string, requested bool) {
	switch {
	case !present && condition != nil && (condition.Status != metav1.ConditionTrue || seen.Unread):
		return condition.Message, true
	case present && condition == nil && !seen.Intent.Drains(): // for a rollout, which the condition does not report
		return "The Machine is not being deleted. " + notDraining(seen.Intent.Present), false
	case seen.Unread:
		return "The Machine is not being deleted. Whether a NodeMaintenance drains its Node is not known: the NodeMaintenances could not be read.", false
	default:
		return "The Machine is not being deleted, and nothing drains its Node. The command plan predicts what a deletion would do.", false
	}
}

// NodeWhy explains a Node.
func NodeWhy(seen Seen) *Why {
	w := &Why{Subject: "Node " + seen.Node.Name}
	w.fill(seen)
	switch {
	case len(w.Maintenances) > 0:
		w.Answer = w.Maintenances[0].Message
	case seen.Unread:
		w.Answer = "Whether a NodeMaintenance selects the Node is not known: the NodeMaintenances could not be read."
	case observe.IsUnread(seen.Node):
		w.Answer = "No NodeMaintenance selects the Node. The Node could not be read."
	case seen.Node.Spec.Unschedulable:
		w.Answer = "No NodeMaintenance selects the Node. Another actor has cordoned it."
	default:
		w.Answer = "No NodeMaintenance selects the Node. The command plan predicts what a drain would do."
	}
	return w
}

// fill adds the NodeMaintenances of a Node and, if one drains it, what the drain waits for.
func (w *Why) fill(seen Seen) {
	for i := range seen.Maintenances {
		if m := &seen.Maintenances[i]; observe.Selects(m, seen.Node) || nodeselection.HasNodeStatus(m, seen.Node.Name) {
			w.Maintenances = append(w.Maintenances, maintenanceOf(m, seen.Node.Name))
		}
	}
	if seen.Intent == nil || !seen.Intent.Drains() {
		return
	}
	for _, problem := range seen.Intent.Problems {
		w.Problems = append(w.Problems, problemOf(v1alpha1.ReasonInvalidDrainRule, problem.String()))
	}
	if seen.Observed == nil {
		return
	}
	predicted := forecast.Of(*seen.Observed)
	for _, obstacle := range predicted.Obstacles(seen.Observed.Now) {
		w.Problems = append(w.Problems, problemOfObstacle(obstacle))
	}
	w.Warnings = warningsOf(predicted, seen.Cluster, seen.Intent.Maintenance.Spec.DrainLabelPolicy)
}

// link adds the section of the guide about a reason.
func (w *Why) link(reason string) {
	if _, link := advice.Of(reason); link != "" && !slices.Contains(w.Guide, link) {
		w.Guide = append(w.Guide, link)
	}
}

func maintenanceOf(m *v1alpha1.NodeMaintenance, node string) Maintenance {
	view := Maintenance{Name: m.Name, Stage: string(m.Spec.Stage), Since: stageSince(m), Reason: m.Spec.Reason, Message: m.Status.Summary.Progress}
	for i := range m.Status.NodeStatuses {
		status := &m.Status.NodeStatuses[i]
		if status.NodeRef.Name != node {
			continue
		}
		view.Message, view.Drained = status.DrainMessage, status.Drained
		view.Pending, view.Evacuating, view.Skipped = status.PodsPendingEvacuation, status.PodsEvacuating, status.PodsSkipped
		view.Blocked = append(view.Blocked, blockedOn(status)...)
	}
	for _, condition := range m.Status.Conditions {
		view.Conditions = append(view.Conditions, conditionOf(condition))
	}
	return view
}

func conditionOf(c metav1.Condition) Condition {
	return Condition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message, Since: stamp(&c.LastTransitionTime)}
}

// stamp returns a time as the reports have it, empty for one that is not set.
func stamp(t *metav1.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// ExplainPod explains a Pod of the Node, whose Intent and Observed were read.
func ExplainPod(namespace, name string, seen Seen) (*Why, bool) {
	intent, observed := *seen.Intent, *seen.Observed
	predicted := forecast.Of(observed)
	at := slices.IndexFunc(predicted.Pods, func(p forecast.Pod) bool { return p.Namespace == namespace && p.Name == name })
	if at < 0 {
		return nil, false
	}
	p := &predicted.Pods[at]
	view := &PodWhy{Pod: podOf(p), Node: observed.Node.Name, Target: predicted.Targets.Has(p.UID), Deletion: stamp(p.DeletionTimestamp), Finalizers: p.Finalizers}
	for _, problem := range p.Problems {
		view.Problems = append(view.Problems, problem.Message)
	}
	view.Rules = ruleResults(intent, observed, p.Pod)
	for i := range predicted.Pods {
		other := &predicted.Pods[i]
		view.Steps = max(view.Steps, other.Step)
		if p.Step > 0 && other.Step > 0 && other.Step < p.Step {
			view.Earlier = append(view.Earlier, other.Namespace+"/"+other.Name)
		}
	}
	if p.Evacuation != nil {
		view.Evacuation = evacuationView(p)
	}
	w := &Why{Subject: "Pod " + namespace + "/" + name, Pod: view}
	if intent.Drains() {
		w.Problems = append(w.Problems, intent.Paused...)
	}
	if predicted.Waiting != "" {
		w.Problems = append(w.Problems, problemOf(forecast.ReasonWaitingForNodes, predicted.Waiting))
	}
	for _, obstacle := range p.Obstacles(observed.Now) {
		w.Problems = append(w.Problems, problemOfObstacle(obstacle))
	}
	w.Warnings = warningsOf(forecast.Forecast{Pods: []forecast.Pod{*p}}, seen.Cluster, intent.Maintenance.Spec.DrainLabelPolicy)
	w.Answer = w.podAnswer(p, intent, predicted.Waiting, seen.Unread)
	return w, true
}

func ruleResults(intent Intent, observed forecast.Observation, pod *corev1.Pod) []RuleResult {
	var results []RuleResult
	for _, match := range rules.NewMatcher(rules.InEffect(&intent.Maintenance.Spec)).Explain(planinput.RulePod(observed.Surroundings, pod)) {
		result := RuleResult{Rule: match.Rule, Behavior: match.Behavior, Order: match.Order, Result: "no", Decides: match.Decides, Why: match.Why}
		switch {
		case match.Unknown:
			result.Result = "unknown"
		case match.Matches:
			result.Result = "yes"
		}
		results = append(results, result)
	}
	return results
}

func evacuationView(p *forecast.Pod) *EvacuationView {
	e := p.Evacuation
	view := &EvacuationView{
		Name: e.Name, Since: stamp(&e.CreationTimestamp), Instigators: evacuation.Instigators(e), FailedEvictions: e.Status.FailedEvictionCounter,
		Message: e.Status.Message, Next: p.Next.Message,
	}
	if !e.Status.ActiveEvacuatorCompleted {
		view.ActiveEvacuator = e.ActiveEvacuator()
	}
	for _, condition := range e.Status.Conditions {
		view.Conditions = append(view.Conditions, conditionOf(condition))
	}
	return view
}

// undrainedAnswer is podAnswer for a Pod whose Node no NodeMaintenance drains, as far as they could be read.
func undrainedAnswer(p *forecast.Pod, intent Intent, unread bool) string {
	switch {
	case p.Evacuation != nil && p.Evacuation.Status.Message != "":
		return p.Evacuation.Status.Message
	case unread:
		return cmp.Or(intent.Waits, "Whether a NodeMaintenance drains the Node is not known: the NodeMaintenances could not be read. A drain with these rules "+
			"would handle the Pod as described below.")
	case intent.Waits != "":
		return "No NodeMaintenance drains the Node. " + intent.Waits
	default:
		return "No NodeMaintenance drains the Node. In a drain, the Pod would be handled as described below."
	}
}

// podAnswer says in one sentence how a Pod stands. The Evacuation's message is what the manager says.
// waiting is Forecast.Waiting, and unread means that the NodeMaintenances could not be read.
func (w *Why) podAnswer(p *forecast.Pod, intent Intent, waiting string, unread bool) string {
	switch {
	case p.Outcome == forecast.Finished:
		return "The Pod has finished and does not block a drain."
	case p.DeletionTimestamp != nil:
		return "The Pod is terminating."
	case p.Outcome == forecast.Stays:
		return "A drain leaves the Pod on its Node (" + w.Pod.Reason + ") and does not wait for it."
	case !intent.Drains():
		return undrainedAnswer(p, intent, unread)
	case len(intent.Paused) > 0:
		return "The drain is suspended: " + intent.Paused[0].Message + "."
	case waiting != "":
		return "The drain of the Node has not started. " + waiting + "."
	case p.Outcome == forecast.Undecided:
		return "The drain waits, because it " + p.Verdict.Undecided
	case p.Outcome == forecast.Completes:
		return "The drain waits until the Pod has completed (" + p.Verdict.Reason + ")."
	case p.Evacuation != nil && p.Evacuation.Status.Message != "":
		return p.Evacuation.Status.Message
	case w.Pod.Target:
		return "The Pod is to be evacuated now."
	case len(w.Pod.Earlier) == 0:
		return "The Pod waits for Pods of earlier steps on other Nodes to terminate."
	default:
		return fmt.Sprintf("The Pod waits for %s of earlier steps to terminate: %s", words.Count(len(w.Pod.Earlier), "Pod"), words.List(w.Pod.Earlier, maxPodNames))
	}
}

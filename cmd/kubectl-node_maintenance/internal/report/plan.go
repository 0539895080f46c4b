package report

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/advice"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/volumes"
)

// Exit codes of the commands.
const (
	ExitClear       = 0   // nothing blocks, or what was requested is done
	ExitBlocked     = 1   // something blocks, or what was requested is not done
	ExitUsage       = 2   // the command line is invalid
	ExitUnknown     = 3   // it cannot be predicted, or the state cannot be read
	ExitInterrupted = 130 // the user has interrupted the command, as shells report it
)

// Plan is the result of the command plan.
type Plan struct {
	// Context says which kind of cluster the command has used.
	Context string  `json:"context"`
	Drains  []Drain `json:"drains"`
	// Notes are about all drains together.
	Notes []string `json:"notes,omitempty"`
	// Warnings are about all drains in a Cluster together.
	Warnings []Warning `json:"warnings,omitempty"`
	// Gaps are what could not be read.
	Gaps []string `json:"gaps,omitempty"`
	// WarningGaps are what only warnings depend on, and could not be read. They do not change the exit code.
	WarningGaps []string `json:"warningGaps,omitempty"`
}

// Drain is the predicted drain of one Node.
type Drain struct {
	Machine string `json:"machine,omitempty"`
	Cluster string `json:"cluster,omitempty"`
	Node    string `json:"node,omitempty"`
	// Policy is the MachineDrainPolicy that the Machine follows. Without one, Cluster API drains the Node.
	Policy string `json:"policy,omitempty"`
	// NodeMaintenance is the present one.
	NodeMaintenance string `json:"nodeMaintenance,omitempty"`
	Stage           string `json:"stage,omitempty"`
	// Skipped is why the Node is not drained at all.
	Skipped string `json:"skipped,omitempty"`

	DrainTimeoutSeconds        int32                    `json:"drainTimeoutSeconds,omitempty"`
	VolumeDetachTimeoutSeconds int32                    `json:"volumeDetachTimeoutSeconds,omitempty"`
	OnTimeout                  v1alpha1.OnTimeoutPolicy `json:"onTimeout,omitempty"`

	Blockers []Problem `json:"blockers,omitempty"`
	Unknown  []Problem `json:"unknown,omitempty"`
	Delays   []Problem `json:"delays,omitempty"`
	// Warnings are what the drain costs applications. It does not wait for them, and they do not change the exit code.
	Warnings []Warning `json:"warnings,omitempty"`

	Steps int   `json:"steps"`
	Pods  []Pod `json:"pods,omitempty"`
	// Volumes must detach before the Machine is deleted. IgnoredVolumes are used only by Pods that stay.
	Volumes        []string `json:"volumes,omitempty"`
	IgnoredVolumes []string `json:"ignoredVolumes,omitempty"`

	DrainRules []v1alpha1.DrainRule `json:"drainRules,omitempty"`
	Notes      []string             `json:"notes,omitempty"`

	// predicted is the forecast, and labels whether the NodeMaintenance honors drain labels.
	predicted forecast.Forecast
	labels    v1alpha1.DrainLabelPolicy
	// inPlace means that the Machine is not deleted after the drain.
	inPlace bool
	// parallel is how many of the drains in progress with this one may be in progress at the same time, 0 for no limit.
	parallel int
}

// Problem is why a drain waits.
type Problem struct {
	Reason  string   `json:"reason"`
	Message string   `json:"message"`
	Budget  string   `json:"budget,omitempty"`
	Pods    []string `json:"pods,omitempty"`
	Fix     string   `json:"fix,omitempty"`
	Guide   string   `json:"guide,omitempty"`
}

// problemOfObstacle returns the problem that an obstacle is.
func problemOfObstacle(o forecast.Obstacle) Problem {
	p := Problem{Reason: o.Reason, Message: o.Message, Pods: o.Pods, Budget: o.Budget}
	p.Fix, p.Guide = advice.OfObstacle(o)
	return p
}

func problemOf(reason, message string) Problem {
	p := Problem{Reason: reason, Message: message}
	p.Fix, p.Guide = advice.Of(reason)
	return p
}

// Warning is what a drain costs the Pods of a controller.
type Warning struct {
	Kind forecast.WarningKind `json:"kind"`
	// Object is the controller. It is empty for Pods without a controller. For a warning about all drains, it is the Cluster.
	Object  string   `json:"object,omitempty"`
	Message string   `json:"message"`
	Pods    []string `json:"pods"`
	Fix     string   `json:"fix,omitempty"`
}

// warningsOf returns the warnings of a forecast of a drain that honors or ignores drain labels. cluster is nil if it was not read.
func warningsOf(predicted forecast.Forecast, cluster *forecast.Cluster, labels v1alpha1.DrainLabelPolicy) []Warning {
	var warnings []Warning
	for _, w := range predicted.Warnings(cluster) {
		warnings = append(warnings, Warning{w.Kind, w.Object, w.Message, w.Pods, advice.OfWarning(w.Kind, labels)})
	}
	return warnings
}

// Warn adds the warnings that need more of the workload clusters, and one for each Cluster in which the evicted Pods may not fit together.
// It calls read once for each Cluster, which is empty for the cluster of the context, with the Nodes of all drains there and the claims of
// Forecast.Claims. read returns nil if it could not be read.
func (p *Plan) Warn(read func(cluster string, nodes sets.Set[string], claims []types.NamespacedName) *forecast.Cluster) {
	nodes, claims, clusters := map[string]sets.Set[string]{}, map[string]sets.Set[types.NamespacedName]{}, map[string]*forecast.Cluster{}
	for i := range p.Drains {
		d := &p.Drains[i]
		if nodes[d.Cluster] == nil {
			nodes[d.Cluster], claims[d.Cluster] = sets.New[string](), sets.New[types.NamespacedName]()
		}
		nodes[d.Cluster].Insert(d.Node)
		claims[d.Cluster].Insert(d.predicted.Claims()...)
	}
	drains := map[string][]forecast.Forecast{}
	for i := range p.Drains {
		d := &p.Drains[i]
		if !d.predicted.NeedsCluster() {
			continue
		}
		if _, known := clusters[d.Cluster]; !known {
			clusters[d.Cluster] = read(d.Cluster, nodes[d.Cluster], claims[d.Cluster].UnsortedList())
		}
		d.Warnings = warningsOf(d.predicted, clusters[d.Cluster], d.labels)
		drains[d.Cluster] = append(drains[d.Cluster], d.predicted)
	}
	for _, name := range slices.Sorted(maps.Keys(drains)) {
		if clusters[name] == nil {
			continue
		}
		if w := clusters[name].Shortage(drains[name]); w != nil {
			p.Warnings = append(p.Warnings, Warning{Kind: w.Kind, Object: clusterText(name), Message: w.Message, Pods: w.Pods})
		}
	}
}

// clusterText names a Cluster, and not the cluster of the context.
func clusterText(name string) string {
	if name == "" {
		return ""
	}
	return "Cluster " + name
}

// Pod is the prediction for one Pod.
type Pod struct {
	Namespace string           `json:"namespace"`
	Name      string           `json:"name"`
	UID       string           `json:"uid"`
	Type      v1alpha1.PodType `json:"type,omitempty"`
	Outcome   forecast.Outcome `json:"outcome"`
	Rule      string           `json:"rule,omitempty"`
	Reason    string           `json:"reason,omitempty"`
	Order     int32            `json:"order"`
	Step      int              `json:"step,omitempty"`
	Budgets   []Budget         `json:"budgets,omitempty"`
	// WaitsFor is why an eviction would be refused now.
	WaitsFor   string   `json:"waitsFor,omitempty"`
	Evacuators []string `json:"evacuators,omitempty"`
	// Surge is set if a surge is requested for the Pod and its Deployment was read.
	Surge   *Surge   `json:"surge,omitempty"`
	Volumes []string `json:"volumes,omitempty"`

	group   Group                // of a Pod that is evicted when its step begins
	set     types.NamespacedName // that is evicted in order
	inOrder int                  // see forecast.Pod
}

// Surge is what the evacuator for Deployments is expected to do.
type Surge struct {
	// Refusal is why the Pod is evicted without a surge.
	Refusal string `json:"refusal,omitempty"`
	Message string `json:"message,omitempty"`
}

// Budget is a PodDisruptionBudget with its present numbers.
type Budget struct {
	Name               string `json:"name"`
	DisruptionsAllowed int32  `json:"disruptionsAllowed"`
	CurrentHealthy     int32  `json:"currentHealthy"`
	DesiredHealthy     int32  `json:"desiredHealthy"`
	ExpectedPods       int32  `json:"expectedPods"`
	NeverAllows        bool   `json:"neverAllows,omitempty"`
}

// Names returns the Pods that are evacuated, as kubectl names objects.
func (p *Plan) Names() []string {
	var names []string
	for i := range p.Drains {
		for j := range p.Drains[i].Pods {
			if pod := &p.Drains[i].Pods[j]; pod.Outcome == forecast.Evacuated {
				names = append(names, "pod/"+pod.Name)
			}
		}
	}
	return names
}

// ExitCode returns the exit code of the command.
func (p *Plan) ExitCode() int {
	code := ExitClear
	if len(p.Gaps) > 0 {
		code = ExitUnknown
	}
	for i := range p.Drains {
		switch {
		case len(p.Drains[i].Blockers) > 0:
			return ExitBlocked
		case len(p.Drains[i].Unknown) > 0:
			code = ExitUnknown
		}
	}
	return code
}

// ExitCodeOnWarnings is ExitCode for a user for whom warnings of some kinds are like a blocker.
func (p *Plan) ExitCodeOnWarnings(kinds ...forecast.WarningKind) int {
	isOne := func(w Warning) bool { return slices.Contains(kinds, w.Kind) }
	warns := func(d Drain) bool { return slices.ContainsFunc(d.Warnings, isOne) }
	switch code := p.ExitCode(); {
	case slices.ContainsFunc(p.Drains, warns), slices.ContainsFunc(p.Warnings, isOne):
		return ExitBlocked
	case code == ExitClear && len(p.WarningGaps) > 0 && slices.ContainsFunc(kinds, forecast.WarningKind.NeedsCluster):
		return ExitUnknown
	default:
		return code
	}
}

// SkippedDrain returns the report for a Machine whose Node is not drained.
func SkippedDrain(m *observe.Machine, why machinedrain.SkipReason) Drain {
	d := drainOf(m)
	d.Skipped = string(why)
	return d
}

func drainOf(m *observe.Machine) Drain {
	d := Drain{Machine: m.Namespace + "/" + m.Name, Cluster: m.ClusterKey().String(), Node: m.Status.NodeRef.Name}
	if timeout := m.Spec.Deletion.NodeDrainTimeoutSeconds; timeout != nil {
		d.DrainTimeoutSeconds = *timeout
	}
	if timeout := m.Spec.Deletion.NodeVolumeDetachTimeoutSeconds; timeout != nil {
		d.VolumeDetachTimeoutSeconds = *timeout
	}
	return d
}

// MachineDrain returns the report for a Machine.
func MachineDrain(m *observe.Machine, node *corev1.Node, intent Intent, observed forecast.Observation, attached *volumes.Decision) Drain {
	d := drainOf(m)
	d.Node = node.Name
	if intent.Policy != nil {
		d.Policy = intent.Policy.Namespace + "/" + intent.Policy.Name
		d.OnTimeout = intent.Maintenance.Spec.Evacuation.OnTimeout
	}
	for _, problem := range intent.Problems {
		d.Blockers = append(d.Blockers, problemOf(v1alpha1.ReasonInvalidDrainRule, problem.String()))
	}
	if intent.Taken != "" && intent.Maintenance.Name == "" {
		d.Blockers = append(d.Blockers, problemOf(v1alpha1.ReasonNodeMaintenanceNameTaken, intent.Taken))
	}
	if !intent.Turn.Now() {
		d.Delays = append(d.Delays, problemOf(v1alpha1.ReasonWaitingForTurn, intent.Turn.Message(m.Cluster.Name)))
	}
	d.notes(m, intent)
	d.fill(intent, observed)
	d.parallel, d.inPlace = intent.Turn.Limit, intent.InPlace
	if attached != nil && machinedrain.WaitsForVolumes(m.Machine, node) && !machinedrain.DaemonSetRuleLifted(intent.Present) {
		for _, names := range attached.Waiting {
			d.Volumes = append(d.Volumes, names...)
		}
		slices.Sort(d.Volumes)
		d.IgnoredVolumes = attached.Ignored
	}
	return d
}

func (d *Drain) notes(m *observe.Machine, intent Intent) {
	switch {
	case intent.Policy == nil && m.PoliciesUnread:
		d.Notes = append(d.Notes, "The MachineDrainPolicies could not be read: whether one selects the Machine, and what it sets, is not known.")
	case intent.InPlace && intent.Policy == nil:
		d.Notes = append(d.Notes, "No MachineDrainPolicy selects the Machine: its Node is not drained without one.")
	case intent.isOfClusterAPI(m):
		d.Notes = append(d.Notes, "No MachineDrainPolicy selects the Machine: Cluster API drains the Node.")
	case !machinedrain.HasHook(m.Machine) && m.DeletionTimestamp.IsZero():
		d.Notes = append(d.Notes, "The Machine does not have the hook yet: the manager sets it on Machines that follow a MachineDrainPolicy.")
	case !machinedrain.HasHook(m.Machine):
		d.Notes = append(d.Notes, "The Machine is being deleted and does not have the hook: Cluster API drains the Node, or the drain has ended.")
	}
	d.Blockers = append(d.Blockers, intent.Paused...)
	if hooks := machinedrain.OtherHooks(m.Machine, intent.Policy); len(hooks) > 0 && m.DeletionTimestamp.IsZero() && !intent.InPlace {
		d.Blockers = append(d.Blockers, problemOf(v1alpha1.ReasonWaitingForPreDrainHook,
			"The drain of the Machine, when it is deleted, waits for other pre-drain hooks to be removed: "+machinedrain.HooksText(hooks)))
	}
}

// pauses returns what keeps the manager from reconciling the Machine, or holds its drain.
func pauses(m *observe.Machine) []Problem {
	var problems []Problem
	if hooks := machinedrain.HoldingHooks(m.Machine, m.Policy()); len(hooks) > 0 {
		problems = append(problems, problemOf(v1alpha1.ReasonWaitingForPreDrainHook, machinedrain.HoldMessage(hooks)))
	}
	if machinedrain.HasPauseAnnotation(m.Machine) {
		problems = append(problems, problemOf(advice.ReasonPaused, "The Machine is paused"))
	}
	if machinedrain.IsClusterPaused(m.Cluster) {
		problems = append(problems, problemOf(advice.ReasonPaused, "The Cluster is paused"))
	}
	return problems
}

// NodeDrain returns the report for a Node without its Machine.
func NodeDrain(node *corev1.Node, intent Intent, observed forecast.Observation) Drain {
	d := Drain{Node: node.Name}
	if machine := node.Annotations["cluster.x-k8s.io/machine"]; machine != "" && intent.Present == nil {
		d.Notes = append(d.Notes, fmt.Sprintf("This is a manual drain with the built-in drain rules. The policy and the MachineDrainRules of Machine %s/%s are in "+
			"the management cluster; with its context, `plan machine` uses them.",
			node.Annotations["cluster.x-k8s.io/cluster-namespace"], machine))
	}
	d.fill(intent, observed)
	d.parallel = nodeselection.Limit(intent.Maintenance.Spec.MaxParallelNodes, len(observed.Nodes))
	return d
}

// fill adds what the forecast says.
func (d *Drain) fill(intent Intent, observed forecast.Observation) {
	if intent.Present != nil {
		d.NodeMaintenance, d.Stage = intent.Present.Name, string(intent.Present.Spec.Stage)
	}
	d.DrainRules = rules.InEffect(&intent.Maintenance.Spec)
	predicted := forecast.Of(observed)
	for _, obstacle := range predicted.Obstacles(observed.Now) {
		problem := problemOfObstacle(obstacle)
		switch obstacle.Severity {
		case forecast.Blocks:
			d.Blockers = append(d.Blockers, problem)
		case forecast.Unknown:
			d.Unknown = append(d.Unknown, problem)
		default:
			d.Delays = append(d.Delays, problem)
		}
	}
	d.predicted, d.labels = predicted, intent.Maintenance.Spec.DrainLabelPolicy
	d.Warnings = warningsOf(predicted, nil, d.labels)
	for i := range predicted.Pods {
		d.Pods = append(d.Pods, podOf(&predicted.Pods[i]))
		d.Steps = max(d.Steps, predicted.Pods[i].Step)
	}
	d.Notes = append(d.Notes, notesOf(predicted.Pods, refusedSurge)...)
	d.Notes = append(d.Notes, notesOf(predicted.Pods, shortage)...)
}

// notesOf returns a note for each message about Pods, with their names. The message of a Pod is empty if there is nothing to say.
func notesOf(all []forecast.Pod, about func(*forecast.Pod) (prefix, message string)) []string {
	type note struct{ prefix, message string }
	var found []note
	names := map[note][]string{}
	for i := range all {
		p := &all[i]
		prefix, message := about(p)
		if message == "" {
			continue
		}
		n := note{prefix, message}
		if names[n] == nil {
			found = append(found, n)
		}
		names[n] = append(names[n], p.Namespace+"/"+p.Name)
	}
	notes := make([]string, 0, len(found))
	for _, n := range found {
		notes = append(notes, n.prefix+PodNames(names[n])+": "+n.message)
	}
	return notes
}

// refusedSurge says why a Pod is evicted without the requested surge. What blocks the drain says it for a Pod whose eviction would be
// refused.
func refusedSurge(p *forecast.Pod) (prefix, message string) {
	if p.Surge == nil || p.Surge.Refusal == "" || p.Waiting != nil {
		return "", ""
	}
	return "No surge for ", p.Surge.Message
}

// shortage says that a Pod is deleted before the drain timeout, too late for its grace period.
func shortage(p *forecast.Pod) (prefix, message string) { return "", p.Shortage }

func podOf(p *forecast.Pod) Pod {
	pod := Pod{
		Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Type: p.Type, Outcome: p.Outcome,
		Rule: p.Verdict.Rule, Reason: p.Verdict.Reason, Order: p.Verdict.Order, Step: p.Step,
	}
	if p.Verdict.Undecided != "" {
		pod.Reason = p.Verdict.Undecided
	}
	if p.Outcome == forecast.Stays && p.Verdict.Behavior == v1alpha1.DrainBehaviorDrain {
		pod.Reason = staysReason(p.Type)
	}
	for _, b := range p.Budgets {
		pod.Budgets = append(pod.Budgets, budgetOf(b))
	}
	if p.Waiting != nil {
		pod.WaitsFor = p.Waiting.Message
	}
	for _, evacuator := range p.Evacuators {
		pod.Evacuators = append(pod.Evacuators, evacuator.EvacuatorClass)
	}
	if p.Surge != nil {
		pod.Surge = &Surge{string(p.Surge.Refusal), p.Surge.Message}
	}
	for _, claim := range volumes.ClaimsOf(p.Pod) {
		pod.Volumes = append(pod.Volumes, claim.Name)
	}
	if p.AtOnce {
		pod.group.Kind, pod.group.Name = p.Controller()
	}
	if !p.SetUnread {
		pod.set, pod.inOrder = p.Set, p.InOrder
	}
	return pod
}

// staysReason says why a Pod stays although the rules drain it.
func staysReason(podType v1alpha1.PodType) string {
	switch podType {
	case v1alpha1.PodTypeDaemonSet:
		return "its DaemonSet tolerates the taint " + v1alpha1.NoDaemonSetPodsTaint + " and would recreate it"
	case v1alpha1.PodTypeStatic:
		return "a static Pod stops with the kubelet"
	default:
		return ""
	}
}

func budgetOf(b *budgets.Budget) Budget {
	status := b.PodDisruptionBudget().Status
	return Budget{
		Name: b.String(), DisruptionsAllowed: status.DisruptionsAllowed, CurrentHealthy: status.CurrentHealthy,
		DesiredHealthy: status.DesiredHealthy, ExpectedPods: status.ExpectedPods, NeverAllows: b.NeverAllowsDisruption(),
	}
}

// timeoutText says how long a drain may take.
func (d *Drain) timeoutText() string {
	if d.DrainTimeoutSeconds == 0 {
		return "no time limit (nodeDrainTimeoutSeconds is not set)"
	}
	text := fmt.Sprintf("limited to %s (nodeDrainTimeoutSeconds)", time.Duration(d.DrainTimeoutSeconds)*time.Second)
	switch isDeletion := d.OnTimeout == v1alpha1.OnTimeoutDelete; {
	case d.inPlace && isDeletion:
		return text + ", then the remaining Pods are deleted"
	case d.inPlace:
		return text + ", then the drain continues, and the condition of the Machine has the reason TimedOut"
	case isDeletion:
		return text + ", then the remaining Pods are deleted before the Machine"
	}
	return text + ", then the Machine is deleted with the remaining Pods"
}

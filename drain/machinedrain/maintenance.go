package machinedrain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Request is the input of Maintenance.
type Request struct {
	ManagementCluster string
	Cluster           types.NamespacedName
	Machine           *clusterv1.Machine
	Node              *corev1.Node
	// Name defaults to the first of Identity.Names.
	Name string
	// Present is the present NodeMaintenance, nil if there is none.
	Present *v1alpha1.NodeMaintenance
	// Policy is the policy that the Machine follows. It is nil if the policy was deleted after the hook was set; the defaults then apply.
	Policy *v1alpha1.MachineDrainPolicy
	Rules  []v1alpha1.DrainRule
	// Stage defaults to Drain.
	Stage v1alpha1.NodeMaintenanceStage
	// For is the purpose of the NodeMaintenance. It defaults to RequestedForDeletion.
	For string
	// Schedulable means that the Node is not cordoned in stage Cordon, see Turn.KeepsSchedulable.
	Schedulable bool
}

// reasons are the values of spec.reason, by purpose; %s is the Machine.
var reasons = map[string]string{
	v1alpha1.RequestedForDeletion: "Machine %s is being deleted",
	v1alpha1.RequestedForRollout:  "A rollout will replace Machine %s",
	v1alpha1.RequestedForStage:    "Machine %s requests it with the annotation " + v1alpha1.MachineStageAnnotation,
}

// reasonUpdate is the value of spec.reason during an in-place update; %s is the Machine.
const reasonUpdate = "Cluster API updates Machine %s in place"

// Maintenance builds the NodeMaintenance of a Machine's Node. A Node has one for all purposes, so that the deletion of a Machine continues
// a maintenance that a rollout or the stage annotation has started.
func Maintenance(r Request) *v1alpha1.NodeMaintenance {
	r.Stage, r.For = cmp.Or(r.Stage, v1alpha1.StageDrain), cmp.Or(r.For, v1alpha1.RequestedForDeletion)
	machine := types.NamespacedName{Namespace: r.Machine.Namespace, Name: r.Machine.Name}
	m := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{
			Name: cmp.Or(r.Name, MaintenanceName(machine, r.Node.Name, r.Node.UID)),
			Annotations: map[string]string{
				v1alpha1.OwnerManagementClusterAnnotation: r.ManagementCluster,
				v1alpha1.OwnerClusterAnnotation:           r.Cluster.String(),
				v1alpha1.OwnerMachineAnnotation:           machine.String(),
				v1alpha1.NodeUIDAnnotation:                string(r.Node.UID),
				v1alpha1.RequestedForAnnotation:           r.For,
			},
			Finalizers: []string{v1alpha1.MaintenanceCompletionFinalizer},
		},
		Spec: v1alpha1.NodeMaintenanceSpec{
			NodeSelector: v1alpha1.SelectNodes(r.Node.Name),
			Stage:        r.Stage,
			DrainRules:   r.Rules,
			Evacuation:   evacuationPolicy(r),
			Reason:       reason(r.For, r.Machine),

			ExcludeFromLoadBalancers: r.Policy == nil || ptr.Deref(r.Policy.Spec.ExcludeFromLoadBalancers, true),
		},
	}
	m.Spec.DrainPlan, m.Spec.DrainPlanDefaults = drainPlan(r.Policy)
	if DrainsDaemonSets(r.Policy) && !slices.ContainsFunc(r.Rules, isDaemonSetRule) { // see DaemonSetPods
		m.Annotations[v1alpha1.VolumesDetachedAnnotation] = "true"
	}
	if r.Schedulable {
		m.Annotations[v1alpha1.WaitingNodeAnnotation] = string(v1alpha1.WaitingNodesSchedulable)
	}
	hasEnded := recorded(r.Machine, v1alpha1.DrainEndedAnnotation) != nil // if it continues, it has another start
	start := recorded(r.Machine, v1alpha1.DrainStartedAnnotation)
	if start == nil && r.Present != nil { // it may have begun for a former deletion of the Machine
		start = notBefore(r.Present.OwnDrainStart(), recordsFrom(r.Machine))
	}
	isUnused := recorded(r.Machine, v1alpha1.DrainBlockedAnnotation) != nil // a turn that was granted earlier, see Clock.IsGranted
	if start != nil && DrainTimeout(r.Machine) > 0 && !hasEnded && !isUnused {
		m.Annotations[v1alpha1.DrainStartedAnnotation] = start.UTC().Format(time.RFC3339)
	}
	return m
}

// reason returns the reason of a Machine's NodeMaintenance. It includes the explanation of the stage annotation.
func reason(purpose string, m *clusterv1.Machine) string {
	machine := types.NamespacedName{Namespace: m.Namespace, Name: m.Name}
	if purpose == v1alpha1.RequestedForStage && !isStaged(m) && IsUpdatedInPlace(m) {
		return fmt.Sprintf(reasonUpdate, machine)
	}
	reason := fmt.Sprintf(reasons[purpose], machine)
	if explanation := m.Annotations[v1alpha1.MachineStageReasonAnnotation]; purpose == v1alpha1.RequestedForStage && explanation != "" {
		reason += ": " + explanation
	}
	return text.Cut(reason, text.MaxMessage)
}

// drainPlan returns the drain plan of a Machine and its defaults. Unless the policy sets a plan, the plan does not order Pods with the same
// drain order, whatever their priority, as in Cluster API (M35). The entries are explicit, because the schema defaults an absent plan to
// the tiers of KEP-4212.
func drainPlan(policy *v1alpha1.MachineDrainPolicy) ([]v1alpha1.DrainPlanEntry, v1alpha1.DrainPlanDefaults) {
	var entries []v1alpha1.DrainPlanEntry
	var defaults v1alpha1.DrainPlanDefaults
	if policy != nil {
		entries, defaults = policy.Spec.DrainPlan, policy.Spec.DrainPlanDefaults
	}
	if defaults == "" {
		defaults = v1alpha1.DrainPlanDefaultsPriorityTiers
		if len(entries) == 0 {
			defaults = v1alpha1.DrainPlanDefaultsNone
		}
	}
	if len(entries) == 0 {
		entries = plan.Complete(nil, defaults)
	}
	return entries, defaults
}

// Update changes a present NodeMaintenance to the desired one: its stage only moves forward, and its rules and evacuation policy follow
// edits. The drain plan is immutable, see MustRecreate.
func Update(present, desired *v1alpha1.NodeMaintenance) (changed bool) {
	changed = adopt(present, desired.Annotations[v1alpha1.OwnerManagementClusterAnnotation])
	if StageBefore(present.Spec.Stage, desired.Spec.Stage) {
		present.Spec.Stage, changed = desired.Spec.Stage, true
	}
	purpose := desired.Annotations[v1alpha1.RequestedForAnnotation]
	if present.Annotations[v1alpha1.RequestedForAnnotation] != purpose || purpose == v1alpha1.RequestedForStage && present.Spec.Reason != desired.Spec.Reason {
		metav1.SetMetaDataAnnotation(&present.ObjectMeta, v1alpha1.RequestedForAnnotation, purpose)
		present.Spec.Reason, changed = desired.Spec.Reason, true
	}
	for _, annotation := range []string{v1alpha1.VolumesDetachedAnnotation, v1alpha1.WaitingNodeAnnotation} {
		value := desired.Annotations[annotation]
		if present.Annotations[annotation] == value {
			continue
		}
		changed = true
		if metav1.SetMetaDataAnnotation(&present.ObjectMeta, annotation, value); value == "" {
			delete(present.Annotations, annotation)
		}
	}
	if updateStart(present, desired) {
		changed = true
	}
	if present.Spec.ExcludeFromLoadBalancers != desired.Spec.ExcludeFromLoadBalancers {
		present.Spec.ExcludeFromLoadBalancers, changed = desired.Spec.ExcludeFromLoadBalancers, true
	}
	if !apiequality.Semantic.DeepEqual(present.Spec.DrainRules, desired.Spec.DrainRules) {
		present.Spec.DrainRules, changed = desired.Spec.DrainRules, true
	}
	if !apiequality.Semantic.DeepEqual(present.Spec.Evacuation, desired.Spec.Evacuation) {
		present.Spec.Evacuation, changed = desired.Spec.Evacuation, true
	}
	if present.Spec.MaxParallelNodes != nil || present.Spec.WaitingNodes != "" { // of a user; they have no meaning for one Node, and exclude a timeout
		present.Spec.MaxParallelNodes, present.Spec.WaitingNodes, changed = nil, "", true
	}
	return changed
}

// MustRecreate reports whether the present NodeMaintenance only announces the maintenance of a Node, with another drain plan than the
// desired one. The plan is immutable, and nothing has happened yet.
func MustRecreate(present, desired *v1alpha1.NodeMaintenance) bool {
	isAnnounced := present != nil && present.Spec.Stage == v1alpha1.StageIdle && StageBefore(v1alpha1.StageIdle, desired.Spec.Stage)
	inEffect := func(m *v1alpha1.NodeMaintenance) []v1alpha1.DrainPlanEntry {
		return plan.Complete(m.Spec.DrainPlan, m.Spec.DrainPlanDefaults)
	}
	return isAnnounced && !apiequality.Semantic.DeepEqual(inEffect(present), inEffect(desired))
}

// updateStart makes a present NodeMaintenance count the drain timeout from the same time as its Machine. It does not record a start that
// the NodeMaintenance has itself, or is about to record.
func updateStart(present, desired *v1alpha1.NodeMaintenance) (changed bool) {
	wanted := desired.Annotations[v1alpha1.DrainStartedAnnotation]
	recorded, err := time.Parse(time.RFC3339, wanted)
	switch own := present.OwnDrainStart(); {
	case err != nil, own != nil && recorded.Equal(*own), own == nil && !recorded.Before(present.CreationTimestamp.Time):
		wanted = ""
	}
	switch {
	case present.Annotations[v1alpha1.DrainStartedAnnotation] == wanted:
		return false
	case wanted == "":
		delete(present.Annotations, v1alpha1.DrainStartedAnnotation)
	default:
		metav1.SetMetaDataAnnotation(&present.ObjectMeta, v1alpha1.DrainStartedAnnotation, wanted)
	}
	return true
}

// adopt makes the NodeMaintenance one of this management cluster.
func adopt(m *v1alpha1.NodeMaintenance, managementCluster string) (changed bool) {
	if IsOfManagementCluster(m, managementCluster) {
		return false
	}
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.OwnerManagementClusterAnnotation, managementCluster)
	return true
}

// Complete moves the NodeMaintenance to stage Complete in the name of this management cluster.
func Complete(m *v1alpha1.NodeMaintenance, managementCluster string) {
	adopt(m, managementCluster)
	m.Spec.Stage = v1alpha1.StageComplete
}

// stages are in order.
var stages = []v1alpha1.NodeMaintenanceStage{v1alpha1.StageIdle, v1alpha1.StageCordon, v1alpha1.StageDrain, v1alpha1.StageComplete}

// StageBefore reports whether stage a precedes stage b.
func StageBefore(a, b v1alpha1.NodeMaintenanceStage) bool {
	return slices.Index(stages, a) < slices.Index(stages, b)
}

// evacuationPolicy sets every default explicitly, so that the result compares equal with what the API server has stored.
func evacuationPolicy(r Request) v1alpha1.EvacuationPolicy {
	var policy v1alpha1.EvacuationPolicy
	if r.Policy != nil {
		r.Policy.Spec.SharedEvacuationPolicy.DeepCopyInto(&policy.SharedEvacuationPolicy)
	}
	policy.ProgressDeadlineSeconds = cmp.Or(policy.ProgressDeadlineSeconds, v1alpha1.DefaultProgressDeadlineSeconds)
	policy.Surge = cmp.Or(policy.Surge, v1alpha1.SurgeNever)
	policy.SurgeMethod = cmp.Or(policy.SurgeMethod, v1alpha1.SurgeMethodScale)
	policy.StatefulSetPods = cmp.Or(policy.StatefulSetPods, v1alpha1.StatefulSetPodsUnordered)
	policy.Evacuators = cmp.Or(policy.Evacuators, v1alpha1.EvacuatorsAny)
	policy.UnhealthyBudget = cmp.Or(policy.UnhealthyBudget, v1alpha1.UnhealthyBudgetRespect)
	policy.OnTimeout = cmp.Or(policy.OnTimeout, v1alpha1.OnTimeoutRelease)
	if DrainTimeout(r.Machine) > 0 {
		policy.DrainTimeoutSeconds = r.Machine.Spec.Deletion.NodeDrainTimeoutSeconds
	}
	return policy
}

// CompileRules returns the drain rules of a Machine.
func CompileRules(cluster *clusterv1.Cluster, machine *clusterv1.Machine, daemonSetPods v1alpha1.DaemonSetPodsPolicy,
	all []clusterv1.MachineDrainRule,
) rules.Compiled {
	return rules.Compile(rules.Input{
		Cluster: rules.ClusterFacts{Labels: cluster.Labels}, Machine: rules.MachineFacts{Namespace: machine.Namespace, Labels: machine.Labels},
		DaemonSetPods: daemonSetPods, MachineDrainRules: all,
	})
}

// DaemonSetPods returns what the drain rules of a Machine say about the Pods of DaemonSets now. present is its NodeMaintenance, nil if it
// does not exist. If the policy drains these Pods, they are skipped until the volumes have detached, because the node plugin of a CSI
// driver is one of them. Then the rule that skips them is lifted and not restored.
func DaemonSetPods(policy *v1alpha1.MachineDrainPolicy, present *v1alpha1.NodeMaintenance) v1alpha1.DaemonSetPodsPolicy {
	if DrainsDaemonSets(policy) && DaemonSetRuleLifted(present) {
		return v1alpha1.DaemonSetPodsDrain
	}
	return v1alpha1.DaemonSetPodsSkip
}

// DrainsDaemonSets reports whether the policy drains the Pods of DaemonSets.
func DrainsDaemonSets(policy *v1alpha1.MachineDrainPolicy) bool {
	return policy != nil && policy.Spec.DaemonSetPods == v1alpha1.DaemonSetPodsDrain
}

// DaemonSetRuleLifted reports whether a manager has lifted the drain rule of a Machine's NodeMaintenance that skips the Pods of DaemonSets:
// it had waited for the volumes. That another actor has removed the rule says nothing about them.
func DaemonSetRuleLifted(m *v1alpha1.NodeMaintenance) bool {
	return m != nil && m.Annotations[v1alpha1.VolumesDetachedAnnotation] != "" && !slices.ContainsFunc(m.Spec.DrainRules, isDaemonSetRule)
}

// LiftDaemonSetRule returns drain rules without the one that skips the Pods of DaemonSets.
func LiftDaemonSetRule(present []v1alpha1.DrainRule) []v1alpha1.DrainRule {
	return slices.DeleteFunc(slices.Clone(present), isDaemonSetRule)
}

func isDaemonSetRule(rule v1alpha1.DrainRule) bool { return rule.Name == rules.RuleDaemonSetPods }

// Package cordon decides how a NodeMaintenance cordons a Node, and how it restores it.
//
// The first NodeMaintenance that cordons a Node records the state of the Node on it. The last one that ends restores this state and removes
// the record. So a Node that a user had cordoned stays cordoned, and a Node that only NodeMaintenances cordoned becomes schedulable. A Node
// that another actor makes schedulable meanwhile is cordoned again, and becomes schedulable in the end.
package cordon

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
)

// Recorded states of a Node: the values of v1alpha1.NodeOriginAnnotation.
const (
	Schedulable   = "schedulable"
	Unschedulable = "unschedulable"
)

// Apply makes the Node unschedulable, and records its state if that is not recorded yet, or if another actor has made the Node
// schedulable since. It returns whether it has changed the Node. The write must fail if the Node has changed in the meantime, so that the
// record is true.
func Apply(node *corev1.Node) (changed bool) {
	if _, recorded := node.Annotations[v1alpha1.NodeOriginAnnotation]; !recorded || !node.Spec.Unschedulable {
		if node.Annotations == nil {
			node.Annotations = map[string]string{}
		}
		node.Annotations[v1alpha1.NodeOriginAnnotation] = recordedOrigin(node)
		changed = true
	}
	if !node.Spec.Unschedulable {
		node.Spec.Unschedulable, changed = true, true
	}
	return changed
}

// Holds reports whether a NodeMaintenance keeps the Nodes that it selects cordoned. One whose Machine waits for a turn may leave its Node
// schedulable. One that is being deleted does not keep them, regardless of its stage: of two that are deleted together, one must uncordon.
// One that serves a Machine does until it has ended, since it is recreated.
func Holds(m *v1alpha1.NodeMaintenance) bool {
	_, serves := m.Annotations[v1alpha1.OwnerMachineAnnotation]
	cordons := m.Spec.Stage == v1alpha1.StageCordon && !m.StaysSchedulable() || m.Spec.Stage == v1alpha1.StageDrain
	return cordons && (m.DeletionTimestamp.IsZero() || serves && !m.HasEnded())
}

// RestoresUnconditionally reports whether a completing NodeMaintenance makes its Nodes schedulable, regardless of who cordoned
// them: one that a user moved from Idle to Complete, as KEP-4212 specifies ("Supported Stage Transitions"). A NodeMaintenance that serves a
// Machine never does. The manager completes it when a rollout no longer announces the Node, and a user may have cordoned the Node since.
func RestoresUnconditionally(m *v1alpha1.NodeMaintenance) bool {
	if _, serves := m.Annotations[v1alpha1.OwnerMachineAnnotation]; serves {
		return false
	}
	idle := false
	for _, stage := range m.Status.StageStatuses {
		idle = idle || stage.Name == v1alpha1.StageIdle
		if stage.Name != v1alpha1.StageIdle {
			return false
		}
	}
	return idle
}

// Restore restores the Node to its recorded state, and removes the record. A Node without a record is not changed.
func Restore(node *corev1.Node) (changed bool) {
	record, recorded := node.Annotations[v1alpha1.NodeOriginAnnotation]
	if !recorded {
		return false
	}
	delete(node.Annotations, v1alpha1.NodeOriginAnnotation)
	if record == Schedulable {
		node.Spec.Unschedulable = false
	}
	return true
}

// Uncordon makes a Node schedulable, see RestoresUnconditionally. A record takes precedence: the NodeMaintenance cordoned the Node,
// although its status does not show that yet.
func Uncordon(node *corev1.Node) (changed bool) {
	if restored := Restore(node); restored || !node.Spec.Unschedulable {
		return restored
	}
	node.Spec.Unschedulable = false
	return true
}

func recordedOrigin(node *corev1.Node) string {
	if node.Spec.Unschedulable {
		return Unschedulable
	}
	return Schedulable
}

// WasUncordoned reports whether another actor has made a cordoned Node schedulable: the Node has the record of its state.
func WasUncordoned(node *corev1.Node) bool {
	_, recorded := node.Annotations[v1alpha1.NodeOriginAnnotation]
	return recorded && !node.Spec.Unschedulable
}

// UncordonedBy returns the field manager, other than ours, that owns spec.unschedulable in the managedFields of a Node. It is empty if none
// does: a write that removes the field leaves no owner.
func UncordonedBy(managed []metav1.ManagedFieldsEntry, ours string) string {
	for _, entry := range managed {
		if entry.Manager != ours && entry.FieldsV1 != nil && strings.Contains(entry.FieldsV1.GetRawString(), `"f:unschedulable"`) {
			return entry.Manager
		}
	}
	return ""
}

// Excludes reports whether a NodeMaintenance excludes the Nodes that it selects from load balancers: in stage Drain, since the Pods of a
// Node that is only cordoned still serve.
func Excludes(m *v1alpha1.NodeMaintenance) bool {
	return m.Spec.ExcludeFromLoadBalancers && m.Spec.Stage == v1alpha1.StageDrain && Holds(m)
}

// Exclude labels the Node so that load balancers send it no traffic, and records that. It does not change a Node that another actor has
// labelled. It returns whether it has changed the Node. The write must fail if the Node has changed in the meantime.
func Exclude(node *corev1.Node) (changed bool) {
	if _, labelled := node.Labels[corev1.LabelNodeExcludeBalancers]; labelled {
		return false
	}
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Labels[corev1.LabelNodeExcludeBalancers] = ""
	node.Annotations[v1alpha1.ExcludedFromLoadBalancersAnnotation] = "true"
	return true
}

// Recorded reports whether the Node has a record of NodeMaintenances: its state, or that they excluded it from load balancers.
func Recorded(node *corev1.Node) bool {
	_, found := node.Annotations[v1alpha1.NodeOriginAnnotation]
	_, excluded := node.Annotations[v1alpha1.ExcludedFromLoadBalancersAnnotation]
	return found || excluded
}

// Include removes the label that Exclude has set, and the record.
func Include(node *corev1.Node) (changed bool) {
	if _, recorded := node.Annotations[v1alpha1.ExcludedFromLoadBalancersAnnotation]; !recorded {
		return false
	}
	delete(node.Annotations, v1alpha1.ExcludedFromLoadBalancersAnnotation)
	delete(node.Labels, corev1.LabelNodeExcludeBalancers)
	return true
}

const (
	// maxCordonWait is how long evictions wait for the cordon of one NodeMaintenance, from its creation. Most cordons take a tenth of a
	// second; where hundreds of Nodes are cordoned at the same time, seconds.
	maxCordonWait = 10 * time.Second
	// maxTotalWait is how long the eviction of one Pod waits for cordons in total, from the creation of its Evacuation. Without it,
	// a user who may create NodeMaintenances could recreate one every few seconds, and no Pod of the workload cluster would be evicted.
	maxTotalWait = 30 * time.Second
)

// Imminent returns the Nodes that a new NodeMaintenance is about to cordon, as far as it names them, and until when evictions wait
// for that: the replacement of an evicted Pod may be scheduled onto such a Node, and would be evicted again. It returns none for a
// NodeMaintenance that has cordoned its Nodes, does not cordon them now, or is being deleted, and none for one that appears to be created
// in the future: the clock of a workload cluster may be wrong, and must not block evictions. CanCordon decides about each Node.
func Imminent(m *v1alpha1.NodeMaintenance, now time.Time) (nodes []string, until time.Time) {
	if !Holds(m) || m.Spec.WaitingNodes == v1alpha1.WaitingNodesSchedulable || !m.DeletionTimestamp.IsZero() ||
		meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.NodeMaintenanceCordoned) ||
		!isWithin(maxCordonWait, m.CreationTimestamp.Time, now) {
		return nil, time.Time{}
	}
	nodes, _ = nodeselection.Names(m)
	return nodes, m.CreationTimestamp.Add(maxCordonWait)
}

// CanCordon reports whether a NodeMaintenance may still cordon a Node of a name that it selects: the Node is schedulable, is not
// being deleted, and is not another Node that has been created with the same name.
func CanCordon(m *v1alpha1.NodeMaintenance, node *corev1.Node) bool {
	return nodeselection.CouldSelect(m, node) && IsCordonable(node)
}

// IsCordonable reports whether a Node is schedulable and is not being deleted.
func IsCordonable(node *corev1.Node) bool {
	return !node.Spec.Unschedulable && node.DeletionTimestamp.IsZero()
}

// Waits reports whether the eviction of a Pod still waits for imminent cordons, and until when at most. requested is when its
// Evacuation was created.
func Waits(requested, now time.Time) (until time.Time, waits bool) {
	return requested.Add(maxTotalWait), isWithin(maxTotalWait, requested, now)
}

// isWithin reports whether a period that starts at a time of the workload cluster's clock has not ended. That clock may be ahead a little.
func isWithin(period time.Duration, start, now time.Time) bool {
	age := now.Sub(start)
	return age >= -maxCordonWait && age < period
}

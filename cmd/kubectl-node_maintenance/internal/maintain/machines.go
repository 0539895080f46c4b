package maintain

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines,verbs=get;list;watch;patch,roleName=capnm-plugin-management-drainer

// Machines maintains Machines of a management cluster by their stage annotation. Stage Complete removes it.
type Machines struct {
	Cluster client.WithWatch
}

var machineKind = clusterv1.GroupVersion.WithKind("Machine").GroupKind()

func (m Machines) get(ctx context.Context, target Target) (*clusterv1.Machine, error) {
	machine := &clusterv1.Machine{}
	return machine, errors.Wrapf(m.Cluster.Get(ctx, target.Key, machine), "getting Machine %s", target.Key)
}

// Stage implements Kind.
func (m Machines) Stage(ctx context.Context, target Target) (v1alpha1.NodeMaintenanceStage, error) {
	machine, err := m.get(ctx, target)
	return v1alpha1.NodeMaintenanceStage(machine.Annotations[v1alpha1.MachineStageAnnotation]), err
}

// Request implements Kind.
func (m Machines) Request(ctx context.Context, target Target, stage v1alpha1.NodeMaintenanceStage, reason string) (Written, error) {
	written := Written{Kind: machineKind, Name: target.Key.Name, Action: "unchanged"}
	machine, err := m.get(ctx, target)
	if err != nil {
		return written, err
	}
	if !machine.DeletionTimestamp.IsZero() {
		return written, errors.Errorf("Machine %s is being deleted: the manager drains its Node, and the stage annotation has no effect", target.Key)
	}
	present := v1alpha1.NodeMaintenanceStage(machine.Annotations[v1alpha1.MachineStageAnnotation])
	if stage != v1alpha1.StageComplete && isCompleting(machine) {
		return written, errors.Errorf("the maintenance of Machine %s is being completed; try again when it has no condition %s", target.Key,
			v1alpha1.MachineNodeMaintenance)
	}
	if stage == v1alpha1.StageCordon && present == v1alpha1.StageDrain {
		return written, errors.Errorf("the Node of Machine %s is being drained, and stages only move forward; complete the maintenance first", target.Key)
	}
	patch := client.MergeFrom(machine.DeepCopy())
	if !annotate(machine, stage, reason) {
		return written, nil
	}
	written.Action = "annotated"
	return written, errors.Wrapf(m.Cluster.Patch(ctx, machine, patch), "annotating Machine %s", target.Key)
}

// isCompleting reports whether the manager has not yet completed a maintenance that is no longer requested. Until then, the condition of
// the Machine may be that of the earlier request.
func isCompleting(machine *clusterv1.Machine) bool {
	if machinedrain.MayBeMaintained(machine) {
		return false
	}
	condition := meta.FindStatusCondition(machine.Status.Conditions, v1alpha1.MachineNodeMaintenance)
	return condition != nil && condition.Reason != v1alpha1.ReasonNotManaged
}

// annotate requests a stage. An empty reason leaves the present one, until the maintenance is complete.
func annotate(machine *clusterv1.Machine, stage v1alpha1.NodeMaintenanceStage, reason string) (changed bool) {
	before := fmt.Sprint(machine.Annotations)
	if stage == v1alpha1.StageComplete {
		delete(machine.Annotations, v1alpha1.MachineStageAnnotation)
		delete(machine.Annotations, v1alpha1.MachineStageReasonAnnotation)
	} else {
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.MachineStageAnnotation, string(stage))
		if reason != "" {
			metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.MachineStageReasonAnnotation, reason)
		}
	}
	return fmt.Sprint(machine.Annotations) != before
}

func (m Machines) newList() client.ObjectList { return &clusterv1.MachineList{} }

func (m Machines) cluster() client.WithWatch { return m.Cluster }

// reached are the reasons of a Machine's condition when a stage is carried out.
var reached = map[v1alpha1.NodeMaintenanceStage][]string{
	v1alpha1.StageCordon: {v1alpha1.ReasonMachineCordoned},
	v1alpha1.StageDrain:  {v1alpha1.ReasonMachineDrained},
}

func (m Machines) progress(_ Target, object client.Object, stage v1alpha1.NodeMaintenanceStage) Progress {
	machine, exists := object.(*clusterv1.Machine)
	if !exists {
		return Progress{Failed: "the Machine was deleted"}
	}
	condition := meta.FindStatusCondition(machine.Status.Conditions, v1alpha1.MachineNodeMaintenance)
	present, staged := machine.Annotations[v1alpha1.MachineStageAnnotation]
	switch {
	case !machine.DeletionTimestamp.IsZero():
		return Progress{Failed: "the Machine is being deleted, so its Node is drained and not restored"}
	case staged == (stage == v1alpha1.StageComplete), staged && isForeign(v1alpha1.NodeMaintenanceStage(present), stage):
		return Progress{Failed: "another actor has changed the annotation " + v1alpha1.MachineStageAnnotation}
	case condition == nil:
		return Progress{Reached: stage == v1alpha1.StageComplete}
	case stage == v1alpha1.StageComplete && machinedrain.IsUpdatedInPlace(machine):
		return Progress{
			Message: "Cluster API updates the Machine in place. If its MachineDrainPolicy requires a maintenance of the Node for that, it lasts " +
				"until the update has completed",
		}
	case stage != v1alpha1.StageComplete && condition.Reason == v1alpha1.ReasonNotManaged:
		return Progress{Failed: fmt.Sprintf("%s. It stays, and takes effect when a policy selects the Machine; to remove it: "+
			"kubectl node-maintenance complete machine %s -n %s", condition.Message, machine.Name, machine.Namespace)}
	case condition.Status == metav1.ConditionTrue && slices.Contains(reached[stage], condition.Reason):
		return Progress{Reached: true}
	case condition.Status == metav1.ConditionTrue: // of an earlier stage
		return Progress{}
	default:
		return Progress{Message: blockers(condition.Message)}
	}
}

// isForeign reports whether another actor has set the stage annotation. With MaxParallel, Cordon may be that of this command, before it
// requested Drain.
func isForeign(present, requested v1alpha1.NodeMaintenanceStage) bool {
	return present != requested && (present != v1alpha1.StageCordon || requested != v1alpha1.StageDrain)
}

// blockers returns the list in the message of a condition, or the message if it has no list.
func blockers(message string) string {
	if _, list, found := strings.Cut(message, "\n* "); found {
		return strings.ReplaceAll(list, "\n* ", "; ")
	}
	return message
}

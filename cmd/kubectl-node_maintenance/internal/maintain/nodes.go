package maintain

import (
	"cmp"
	"context"

	"github.com/pkg/errors"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// The admission policy of NodeMaintenances requires the permission to delete Nodes.
// +kubebuilder:rbac:groups=maintenance.cluster.x-k8s.io,resources=nodemaintenances,verbs=get;list;watch;create;patch;delete,roleName=capnm-plugin-workload-drainer
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;delete,roleName=capnm-plugin-workload-drainer

// Nodes maintains Nodes of a workload cluster by a NodeMaintenance for each target. Stage Complete deletes it: the manager then completes
// it before it is gone.
type Nodes struct {
	Cluster client.WithWatch
	// New returns the NodeMaintenance of a target. One that exists is not changed if it selects other Nodes, unless New selects none.
	New func(target Target) *v1alpha1.NodeMaintenance
	// Configure changes the settings of a NodeMaintenance, also of one that exists.
	Configure func(*v1alpha1.NodeMaintenance) error
}

// maxNames is how many Nodes an error names.
const maxNames = 5

var maintenanceKind = v1alpha1.GroupVersion.WithKind("NodeMaintenance").GroupKind()

// get returns the NodeMaintenance of a target, nil if it does not exist.
func (n Nodes) get(ctx context.Context, target Target) (*v1alpha1.NodeMaintenance, error) {
	m := &v1alpha1.NodeMaintenance{}
	err := n.Cluster.Get(ctx, target.Key, m)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	wanted, _ := nodeselection.Names(n.New(target))
	if names, byName := nodeselection.Names(m); err == nil && len(wanted) > 0 && (!byName || !sets.New(names...).Equal(sets.New(wanted...))) {
		return nil, errors.Errorf("NodeMaintenance %s does not select exactly %s, so it is not changed", m.Name, text.Named("Node", wanted, maxNames))
	}
	return m, errors.Wrapf(err, "getting NodeMaintenance %s", target.Key.Name)
}

// Stage implements Kind.
func (n Nodes) Stage(ctx context.Context, target Target) (v1alpha1.NodeMaintenanceStage, error) {
	m, err := n.get(ctx, target)
	if m == nil || err != nil {
		return "", err
	}
	return m.Spec.Stage, nil
}

// Request implements Kind.
func (n Nodes) Request(ctx context.Context, target Target, stage v1alpha1.NodeMaintenanceStage, reason string) (Written, error) {
	written := Written{Kind: maintenanceKind, Name: target.Key.Name, Action: "unchanged"}
	m, err := n.get(ctx, target)
	switch {
	case err != nil:
		return written, err
	case stage == v1alpha1.StageComplete && m == nil:
		return written, errors.Errorf("there is no NodeMaintenance %s, so this plugin does not maintain %s", target.Key.Name, target)
	case stage == v1alpha1.StageComplete:
		written.Action = "deleted"
		if err := n.Cluster.Delete(ctx, m, client.Preconditions{UID: &m.UID}); !answers.DoesNotExist(err) {
			return written, errors.Wrapf(err, "deleting NodeMaintenance %s", m.Name)
		}
		return written, nil
	case m == nil:
		m = n.New(target)
		if err := n.Configure(m); err != nil {
			return written, err
		}
		m.Spec.Stage, m.Spec.Reason = stage, reason
		written.Action = "created"
		return written, errors.Wrapf(n.Cluster.Create(ctx, m), "creating NodeMaintenance %s", m.Name)
	case !m.DeletionTimestamp.IsZero() || m.Spec.Stage == v1alpha1.StageComplete:
		return written, errors.Errorf("NodeMaintenance %s is being completed; try again when it is deleted", m.Name)
	case machinedrain.StageBefore(stage, m.Spec.Stage):
		return written, errors.Errorf("NodeMaintenance %s is in stage %s, and stages only move forward; complete it first", m.Name, m.Spec.Stage)
	}
	before := m.DeepCopy()
	if err := n.Configure(m); err != nil {
		return written, err
	}
	m.Spec.Stage, m.Spec.Reason = stage, cmp.Or(reason, m.Spec.Reason)
	if apiequality.Semantic.DeepEqual(before.Spec, m.Spec) {
		return written, nil
	}
	written.Action = "configured"
	return written, errors.Wrapf(n.Cluster.Patch(ctx, m, client.MergeFrom(before)), "changing NodeMaintenance %s", m.Name)
}

func (n Nodes) newList() client.ObjectList { return &v1alpha1.NodeMaintenanceList{} }

func (n Nodes) cluster() client.WithWatch { return n.Cluster }

// conditions are the conditions of a NodeMaintenance that are True when a stage is carried out.
var conditions = map[v1alpha1.NodeMaintenanceStage]string{
	v1alpha1.StageCordon: v1alpha1.NodeMaintenanceCordoned,
	v1alpha1.StageDrain:  v1alpha1.NodeMaintenanceDrained,
}

func (n Nodes) progress(_ Target, object client.Object, stage v1alpha1.NodeMaintenanceStage) Progress {
	m, exists := object.(*v1alpha1.NodeMaintenance)
	if !exists {
		return n.gone(stage)
	}
	if stage == v1alpha1.StageComplete {
		if m.DeletionTimestamp.IsZero() {
			return Progress{Failed: "another actor has created NodeMaintenance " + m.Name + " again"}
		}
		return Progress{Message: "Waiting for NodeMaintenance " + m.Name + " to complete"}
	}
	if !m.DeletionTimestamp.IsZero() || machinedrain.StageBefore(stage, m.Spec.Stage) {
		return Progress{Failed: "another actor has moved NodeMaintenance " + m.Name + " to a later stage or deleted it"}
	}
	condition := meta.FindStatusCondition(m.Status.Conditions, conditions[stage])
	if condition == nil || m.Status.ObservedGeneration < m.Generation {
		return Progress{}
	}
	if meta.IsStatusConditionTrue(m.Status.Conditions, condition.Type) {
		return Progress{Reached: true}
	}
	if blocking := m.Status.Summary.Blocking; blocking != "" {
		return Progress{Message: blocking}
	}
	return Progress{Message: condition.Message}
}

func (n Nodes) gone(stage v1alpha1.NodeMaintenanceStage) Progress {
	if stage == v1alpha1.StageComplete {
		return Progress{Reached: true}
	}
	return Progress{Failed: "another actor has deleted the NodeMaintenance"}
}

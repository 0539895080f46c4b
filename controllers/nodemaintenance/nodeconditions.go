package nodemaintenance

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodecondition"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
)

// updateNodeConditions updates the maintenance conditions of the Nodes. It runs after report and uses the stored status, so that all
// NodeMaintenances of a Node agree on its conditions.
func (r *Reconciler) updateNodeConditions(ctx context.Context, s *scope) (bool, error) {
	if _, byName := nodeselection.Names(s.maintenance); byName && s.maintenance.Spec.Stage != v1alpha1.StageIdle && !s.changesOthers {
		return true, r.patchNodeConditions(ctx, s, s.nodes, viewsOf(append(s.others, *s.before)))
	}
	// Nodes may no longer be selected: their labels change, and in stage Idle the nodeSelector may change.
	return true, r.setNodeConditions(ctx, s, *s.before)
}

// setNodeConditions updates the selected Nodes and all Nodes with maintenance conditions. The NodeMaintenances in latest replace those in
// the cache, which may be stale.
func (r *Reconciler) setNodeConditions(ctx context.Context, s *scope, latest ...v1alpha1.NodeMaintenance) error {
	maintenances := &v1alpha1.NodeMaintenanceList{}
	if err := s.client.List(ctx, maintenances, client.UnsafeDisableDeepCopy); err != nil {
		return errors.Wrap(err, "listing NodeMaintenances")
	}
	for i := range latest {
		isReplaced := func(m v1alpha1.NodeMaintenance) bool { return m.Name == latest[i].Name }
		maintenances.Items = append(slices.DeleteFunc(maintenances.Items, isReplaced), latest[i])
	}
	all := &corev1.NodeList{}
	if err := s.client.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		return errors.Wrap(err, "listing Nodes")
	}
	nodes := slices.Clone(s.nodes)
	selected := sets.New[types.UID]()
	for _, node := range nodes {
		selected.Insert(node.UID)
	}
	for i := range all.Items {
		if node := &all.Items[i]; !selected.Has(node.UID) && nodecondition.HasMaintenanceConditions(node.Status.Conditions) {
			nodes = append(nodes, r.latest(s, node))
		}
	}
	return r.patchNodeConditions(ctx, s, nodes, viewsOf(maintenances.Items))
}

// patchNodeConditions patches the maintenance conditions of Nodes where they must change. It does not modify the given objects. While a
// NodeMaintenance cannot be decoded, which may require them, it removes none.
func (r *Reconciler) patchNodeConditions(ctx context.Context, s *scope, nodes []*corev1.Node, views []*maintenanceView) error {
	var group errgroup.Group
	group.SetLimit(parallelWrites)
	for _, node := range nodes {
		set, remove := nodecondition.Changes(node.Status.Conditions, nodecondition.Wanted(selecting(node, views)), s.now)
		if len(remove) > 0 && r.holdsNodes(s) {
			remove = nil
		}
		if len(set)+len(remove) > 0 {
			group.Go(func() error {
				patched, err := patchConditions(ctx, s.client, node, set, remove)
				if patched != nil {
					r.recordWritten(s, patched)
				}
				if s.maintenance == nil { // it no longer exists, and no status can name the Node
					return err
				}
				return s.collect(ctx, "change the conditions of Node "+node.Name, err)
			})
		}
	}
	return group.Wait()
}

// patchConditions sets and removes single conditions and keeps all others. It uses no optimistic lock, since kubelet heartbeats would cause
// constant conflicts. It returns the patched Node, nil if the Node does not exist.
func patchConditions(ctx context.Context, c client.Client, node *corev1.Node, set []corev1.NodeCondition,
	remove []corev1.NodeConditionType,
) (*corev1.Node, error) {
	conditions := make([]any, 0, len(set)+len(remove))
	for _, condition := range set {
		conditions = append(conditions, condition)
	}
	for _, conditionType := range remove {
		conditions = append(conditions, map[string]any{"$patch": "delete", "type": conditionType})
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID}, // precondition: not another Node with the same name
		"status":   map[string]any{"conditions": conditions},
	})
	if err != nil {
		return nil, errors.Wrapf(err, "encoding the conditions of Node %s", node.Name)
	}
	patched := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	if err := c.Status().Patch(ctx, patched, client.RawPatch(types.StrategicMergePatchType, patch)); err != nil {
		return nil, errors.Wrapf(answers.IgnoreDoesNotExist(err), "patching the conditions of Node %s", node.Name)
	}
	return patched, nil
}

// maintenanceView is a NodeMaintenance with the values that the conditions of its Nodes depend on.
type maintenanceView struct {
	maintenance *v1alpha1.NodeMaintenance
	selects     func(*corev1.Node) bool
	drained     sets.Set[string] // built on first use
}

func viewsOf(maintenances []v1alpha1.NodeMaintenance) []*maintenanceView {
	views := make([]*maintenanceView, 0, len(maintenances))
	for i := range maintenances {
		if m := &maintenances[i]; m.Spec.Stage != v1alpha1.StageComplete {
			views = append(views, &maintenanceView{maintenance: m, selects: nodeselection.Of(m)})
		}
	}
	return views
}

func selecting(node *corev1.Node, views []*maintenanceView) []nodecondition.Maintenance {
	var maintenances []nodecondition.Maintenance
	for _, view := range views {
		if view.selects(node) {
			m := view.maintenance
			maintenances = append(maintenances, nodecondition.Maintenance{
				Name: m.Name, Stage: m.Spec.Stage, Ending: !m.DeletionTimestamp.IsZero() && !cordon.Holds(m), Waiting: view.waits(node.Name),
				Drained: view.hasDrained(node.Name),
			})
		}
	}
	return maintenances
}

func (v *maintenanceView) waits(node string) bool {
	return v.maintenance.Spec.MaxParallelNodes != nil && slices.ContainsFunc(v.maintenance.Status.NodeStatuses,
		func(status v1alpha1.NodeMaintenanceNodeStatus) bool {
			return status.Waiting && status.NodeRef.Name == node
		})
}

func (v *maintenanceView) hasDrained(node string) bool {
	if v.drained == nil {
		v.drained = sets.New[string]()
		for _, status := range v.maintenance.Status.NodeStatuses {
			if status.Drained {
				v.drained.Insert(status.NodeRef.Name)
			}
		}
	}
	return v.drained.Has(node) || meta.IsStatusConditionTrue(v.maintenance.Status.Conditions, v1alpha1.NodeMaintenanceDrained)
}

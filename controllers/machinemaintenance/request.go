package machinemaintenance

import (
	"context"
	"sync"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/setaside"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// Requester requests NodeMaintenances for Machines, and decides which of them are suspended.
type Requester struct {
	// Client reads the management cluster.
	Client client.Client
	// Unread are the MachineDrainPolicies and MachineDrainRules that cannot be decoded.
	Unread            *setaside.Objects
	ManagementCluster string

	continued sync.Map // of continuation, by the Machine's namespace and name
}

// Request is a request for the NodeMaintenance of a Machine.
type Request struct {
	Cluster *clusterv1.Cluster
	Machine *clusterv1.Machine
	Policy  *v1alpha1.MachineDrainPolicy
	Stage   v1alpha1.NodeMaintenanceStage
	For     string // v1alpha1.RequestedForDeletion, RequestedForRollout or RequestedForStage
	// Schedulable means that the Node is not cordoned in stage Cordon.
	Schedulable bool
	// DaemonSetPods is what the drain rules say about the Pods of DaemonSets.
	DaemonSetPods v1alpha1.DaemonSetPodsPolicy
}

// Problem says why a NodeMaintenance cannot be created or updated, with the reason and message of the Machine's condition.
type Problem struct {
	Reason, Message string
	// FirstInvalid is the first invalid drain rule by name, "" if it is not known or if no rule is invalid.
	FirstInvalid string
}

// Desired returns the NodeMaintenance that a request results in. problem is not nil if MachineDrainRules are invalid: the NodeMaintenance
// then has the valid ones only, and must not drain.
func (q *Requester) Desired(ctx context.Context, r Request, found machinedrain.Found,
	node *corev1.Node,
) (_ *v1alpha1.NodeMaintenance, problem *Problem, _ error) {
	all, err := q.listRules(ctx, r.Machine.Namespace)
	if err != nil {
		return nil, nil, err
	}
	compiled := machinedrain.CompileRules(r.Cluster, r.Machine, r.DaemonSetPods, all)
	if unread := q.Unread.List("MachineDrainRule", r.Machine.Namespace); len(unread) > 0 {
		problem = &Problem{
			Reason: v1alpha1.ReasonInvalidDrainRule, Message: "Waiting for a MachineDrainRule that may select the Machine to be fixed: " + unread[0].Error(),
		}
	} else if len(compiled.Problems) > 0 {
		first := compiled.Problems[0]
		problem = &Problem{Reason: v1alpha1.ReasonInvalidDrainRule, Message: machinedrain.InvalidRuleMessage(r.Machine.Namespace, first), FirstInvalid: first.Rule}
	}
	return machinedrain.Maintenance(machinedrain.Request{
		ManagementCluster: q.ManagementCluster, Cluster: client.ObjectKeyFromObject(r.Cluster), Machine: r.Machine, Node: node,
		Name: found.Name, Present: found.Maintenance,
		Policy: r.Policy, Rules: compiled.Rules, Stage: r.Stage, For: r.For, Schedulable: r.Schedulable,
	}), problem, nil
}

// HasInvalidRules returns a function that reports whether the drain of a Machine of the Cluster would wait for invalid MachineDrainRules to
// be fixed. The function lists the rules in its first call only.
func (q *Requester) HasInvalidRules(ctx context.Context, cluster *clusterv1.Cluster) func(*clusterv1.Machine) (bool, error) {
	list := sync.OnceValues(func() ([]clusterv1.MachineDrainRule, error) {
		return q.listRules(ctx, cluster.Namespace, client.UnsafeDisableDeepCopy)
	})
	return func(machine *clusterv1.Machine) (bool, error) {
		all, err := list()
		if len(q.Unread.List("MachineDrainRule", cluster.Namespace)) > 0 {
			return true, err
		}
		return err == nil && len(machinedrain.CompileRules(cluster, machine, v1alpha1.DaemonSetPodsSkip, all).Problems) > 0, err
	}
}

func (q *Requester) listRules(ctx context.Context, namespace string, options ...client.ListOption) ([]clusterv1.MachineDrainRule, error) {
	list := &clusterv1.MachineDrainRuleList{}
	err := q.Client.List(ctx, list, append(options, client.InNamespace(namespace))...)
	return list.Items, errors.Wrapf(err, "listing the MachineDrainRules of namespace %s", namespace)
}

// Apply creates the desired NodeMaintenance, or updates the one that is present. It returns the result.
func Apply(ctx context.Context, remote client.Client, present, desired *v1alpha1.NodeMaintenance) (*v1alpha1.NodeMaintenance, error) {
	if present == nil {
		return desired, errors.Wrapf(remote.Create(ctx, desired), "creating NodeMaintenance %s", desired.Name)
	}
	changed := present.DeepCopy()
	if !machinedrain.Update(changed, desired) {
		return present, nil
	}
	err := remote.Patch(ctx, changed, client.MergeFromWithOptions(present, client.MergeFromWithOptimisticLock{}))
	if err == nil && machinedrain.Update(changed.DeepCopy(), desired) {
		err = errors.New("the API server stores another NodeMaintenance than requested: an admission webhook or policy of the workload cluster changes it")
	}
	return changed, errors.Wrapf(err, "updating NodeMaintenance %s", desired.Name)
}

// Ensure creates or updates the NodeMaintenance of a Machine that is not being deleted; stages only move forward. It returns the resulting
// NodeMaintenance. problem is not nil if invalid MachineDrainRules block a drain, or if other authors have taken all its names.
func (q *Requester) Ensure(ctx context.Context, remote client.Client, r Request) (kept *v1alpha1.NodeMaintenance, problem *Problem, err error) {
	found, node, err := Find(ctx, remote, client.ObjectKeyFromObject(r.Cluster), r.Machine)
	if err != nil || node == nil {
		return nil, nil, err
	}
	present := found.Maintenance
	if present != nil && r.For == v1alpha1.RequestedForRollout && present.Annotations[v1alpha1.RequestedForAnnotation] != r.For {
		return present, nil, nil // requested for another purpose; its deletion triggers a reconciliation
	}
	if found.Name == "" {
		return nil, &Problem{Reason: v1alpha1.ReasonNodeMaintenanceNameTaken, Message: found.TakenMessage()}, nil
	}
	r.DaemonSetPods = machinedrain.DaemonSetPods(r.Policy, present)
	desired, problem, err := q.Desired(ctx, r, found, node)
	if err != nil {
		return nil, nil, err
	}
	if problem != nil && r.Stage == v1alpha1.StageDrain {
		return present, problem, nil
	}
	if present != nil && !present.DeletionTimestamp.IsZero() {
		return present, nil, nil
	}
	if machinedrain.MustRecreate(present, desired) {
		return present, nil, CompleteAndDelete(ctx, remote, present, q.ManagementCluster) // its deletion triggers a reconciliation
	}
	if present == nil {
		ctrl.LoggerFrom(ctx).Info("Creating NodeMaintenance", "NodeMaintenance", klog.KObj(desired), "Node", klog.KObj(node), "stage", r.Stage, "requestedFor", r.For,
			"namesTaken", found.Taken)
	}
	kept, err = Apply(ctx, remote, present, desired)
	if answers.AlreadyExists(err) { // its event triggers another reconciliation
		err = nil
	}
	return kept, nil, err
}

// CompleteAndDelete sets the NodeMaintenance of a Machine to stage Complete, so that the recorded state of the Node is restored, and
// deletes it. It sets the stage first, because a NodeMaintenance that is deleted in another stage is recreated for a deleted Machine. The
// patch fails with a conflict if the NodeMaintenance has changed in the meantime: it may have been requested for another purpose.
func CompleteAndDelete(ctx context.Context, remote client.Client, m *v1alpha1.NodeMaintenance, managementCluster string) error {
	if err := Complete(ctx, remote, m, managementCluster); err != nil || !m.DeletionTimestamp.IsZero() {
		return err
	}
	err := remote.Delete(ctx, m, client.Preconditions{UID: &m.UID})
	if answers.IsConflict(err) { // another NodeMaintenance has the name
		return nil
	}
	return errors.Wrapf(answers.IgnoreDoesNotExist(err), "deleting NodeMaintenance %s", m.Name)
}

// Complete sets the NodeMaintenance of a Machine to stage Complete.
func Complete(ctx context.Context, remote client.Client, m *v1alpha1.NodeMaintenance, managementCluster string) error {
	if m.Spec.Stage == v1alpha1.StageComplete {
		return nil
	}
	ctrl.LoggerFrom(ctx).Info("Completing NodeMaintenance", "NodeMaintenance", klog.KObj(m), "stage", m.Spec.Stage)
	completed := m.DeepCopy()
	machinedrain.Complete(completed, managementCluster)
	err := remote.Patch(ctx, completed, client.MergeFromWithOptions(m, client.MergeFromWithOptimisticLock{}))
	return errors.Wrapf(answers.IgnoreDoesNotExist(err), "completing NodeMaintenance %s", m.Name)
}

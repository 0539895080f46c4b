// Package inplace tells Runtime Extensions that update Machines in place, by serving Cluster API's hook UpdateMachine, whether an update
// may begin: whether the Node of the Machine has been drained or cordoned as inPlaceUpdates of the Machine's MachineDrainPolicy requires.
// An extension calls Await first in its handler of UpdateMachine:
//
//	func (u *Updater) UpdateMachine(ctx context.Context, request *runtimehooksv1.UpdateMachineRequest, response *runtimehooksv1.UpdateMachineResponse) {
//		if !inplace.Await(ctx, u.management, request, response) {
//			return // Cluster API calls again after inplace.RetryAfterSeconds
//		}
//		// The Node is drained. Update the Machine.
//	}
//
// # What is guaranteed
//
// An update is allowed if no MachineDrainPolicy requires a maintenance of the Node, or if the maintenance that the policy requires for this
// update has been carried out and the Node has been kept in this state since. The manager of Cluster API Node Maintenance says so with the
// annotation maintenance.cluster.x-k8s.io/update-allowed on the Machine. It writes the annotation only to a version of the Machine with an
// update in progress, and removes it, with a write that fails if the Machine has changed, before it restores the Node. The condition
// NodeMaintenance of the Machine is not sufficient: it may be that of an earlier maintenance.
//
// The permission holds until the update has completed, so an update that has begun is not interrupted if another Pod is started on the
// Node. An update that fails is repeated by Cluster API, and the Node stays as it is until an update succeeds. If the drain exceeds
// nodeDrainTimeoutSeconds of the Machine, the update is allowed, as the Machine would be deleted.
//
// Without the manager the outcome depends on the policy. If the CRD of MachineDrainPolicies does not exist or no policy selects the
// Machine, and the Machine has no hook, if inPlaceUpdates is Ignore, or if the Machine has the annotation
// machine.cluster.x-k8s.io/exclude-node-draining, the update is allowed at once. If a policy requires a maintenance, the update waits
// until a manager has carried it out. It also waits while the management cluster cannot be read, while the Cluster or Machine is paused,
// and while its Node does not exist.
//
// A Machine with the hook pre-drain.delete.hook.machine.cluster.x-k8s.io/node-maintenance was selected by a policy. If none selects it
// now, its policy may be replaced: the update waits until the manager has removed the hook, which takes three seconds.
//
// # Access
//
// The extension needs the verb get for Machines and Clusters (cluster.x-k8s.io), and list for MachineDrainPolicies
// (maintenance.cluster.x-k8s.io). The scheme of its client needs the kinds of both API groups.
//
// The package is experimental: it may change in any release.
package inplace

import (
	"context"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	runtimehooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// RetryAfterSeconds is the time in seconds after which Cluster API calls UpdateMachine again while an update waits.
const RetryAfterSeconds = 10

// Decision says whether an update may begin.
type Decision struct {
	// Allowed means that the update may begin, or continue if it has begun.
	Allowed bool
	// Message says what the update waits for, in at most 1,024 characters without control characters other than line feeds. It is empty if
	// the update is allowed. It contains names of objects in the workload cluster.
	Message string
}

// Check decides whether the update of a Machine may begin. Only the namespace and the name of the Machine are used, as the request of
// UpdateMachine has them: the Machine in the request comes from the cache of Cluster API, without its status. management reads the
// management cluster. It must read from the API server and not from a cache, such as the APIReader of a manager: a cache may have the
// permission of an earlier update. Check reads one object, and three while the update waits or if no policy requires a maintenance.
//
// Check returns an error if the management cluster cannot be read or if the Machine or its Cluster does not exist. The update must not
// begin then.
func Check(ctx context.Context, management client.Reader, machine client.ObjectKey) (Decision, error) {
	stored := &clusterv1.Machine{}
	if err := management.Get(ctx, machine, stored); err != nil {
		return Decision{}, errors.Wrapf(err, "getting Machine %s", machine)
	}
	var policy *v1alpha1.MachineDrainPolicy
	if !machinedrain.UpdateAllowed(stored) {
		var err error
		if policy, err = policyOf(ctx, management, stored); err != nil {
			return Decision{}, err
		}
	}
	allowed, message := machinedrain.MayUpdate(stored, policy)
	return Decision{Allowed: allowed, Message: message}, nil
}

// policyOf returns the policy that a Machine follows, nil if no policy selects it or if the CRD does not exist.
func policyOf(ctx context.Context, management client.Reader, machine *clusterv1.Machine) (*v1alpha1.MachineDrainPolicy, error) {
	policies := &v1alpha1.MachineDrainPolicyList{}
	err := management.List(ctx, policies, client.InNamespace(machine.Namespace))
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, errors.Wrapf(err, "listing the MachineDrainPolicies of namespace %s", machine.Namespace)
	}
	if len(policies.Items) == 0 {
		return nil, nil
	}
	cluster, key := &clusterv1.Cluster{}, client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.ClusterName}
	if err := management.Get(ctx, key, cluster); err != nil {
		return nil, errors.Wrapf(err, "getting Cluster %s", key)
	}
	return machinedrain.PolicyFor(machine, cluster.Labels, policies.Items).Settings(machine), nil
}

// Await is Check for a handler of UpdateMachine. If it returns true, the handler updates the Machine and sets the response. If it returns
// false, the response is complete and the handler must return: the update is in progress and waits, for what its message says or for the
// management cluster to be read. Cluster API shows the message in the condition Updating of the Machine, and calls the hook again
// after RetryAfterSeconds. For management see Check.
func Await(ctx context.Context, management client.Reader, request *runtimehooksv1.UpdateMachineRequest,
	response *runtimehooksv1.UpdateMachineResponse,
) (allowed bool) {
	decision, err := Check(ctx, management, client.ObjectKeyFromObject(&request.Desired.Machine))
	if err != nil {
		decision.Message = text.Cut(text.Plain("Cannot check whether the update may begin: "+err.Error()), machinedrain.MaxUpdateMessage)
	}
	if decision.Allowed {
		return true
	}
	response.SetStatus(runtimehooksv1.ResponseStatusSuccess)
	response.SetMessage(decision.Message)
	response.SetRetryAfterSeconds(RetryAfterSeconds)
	return false
}

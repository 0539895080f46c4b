package workloadcluster

import (
	"context"
	"slices"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	bundle "github.com/capnm/cluster-api-node-maintenance/config/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// ensureNodeAgent installs the node agent in the workload cluster if a MachineDrainPolicy that selects the Cluster enables it, and removes
// it otherwise. Without the feature gate there is no image, and it does nothing.
func (r *Reconciler) ensureNodeAgent(ctx context.Context, live client.Client, cluster *clusterv1.Cluster) error {
	if r.NodeAgentImage == "" {
		return nil
	}
	policies := &v1alpha1.MachineDrainPolicyList{}
	if err := r.Client.List(ctx, policies, client.InNamespace(cluster.Namespace)); err != nil {
		return errors.Wrapf(err, "listing the MachineDrainPolicies of namespace %s", cluster.Namespace)
	}
	wanted := slices.ContainsFunc(policies.Items, func(policy v1alpha1.MachineDrainPolicy) bool {
		return policy.Spec.NodeAgent == v1alpha1.NodeAgentEnabled && machinedrain.PolicySelectsCluster(&policy, cluster.Labels)
	})
	return applyNodeAgent(ctx, live, r.NodeAgentImage, wanted)
}

// applyNodeAgent installs or removes the node agent. Removal keeps its namespace and roles, which have no effect without the agents.
//
// If the workload cluster does not serve admission policies, the agent is not installed: only they restrict each agent to its own Node.
func applyNodeAgent(ctx context.Context, live client.Client, image string, wanted bool) error {
	objects, err := bundle.NodeAgent(image)
	if err != nil {
		return err
	}
	if !wanted {
		return removeNodeAgent(ctx, live, objects)
	}
	for _, each := range findAll(ctx, live, objects) {
		_, _, err := each.ensure(ctx, live)
		if meta.IsNoMatchError(err) {
			ctrl.LoggerFrom(ctx).Info("The workload cluster does not serve admission policies, so the node agent is not installed")
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removeNodeAgent removes the DaemonSet of the node agent. It keeps a DaemonSet that another actor has created with the agent's name.
func removeNodeAgent(ctx context.Context, live client.Client, objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		if object.GetKind() != "DaemonSet" {
			continue
		}
		present := object.DeepCopy()
		err := live.Get(ctx, client.ObjectKeyFromObject(object), present)
		if err == nil && present.GetAnnotations()[v1alpha1.BundleVersionAnnotation] != "" {
			err = live.Delete(ctx, present)
		}
		if client.IgnoreNotFound(err) != nil {
			return errors.Wrap(err, "removing the node agent")
		}
	}
	return nil
}

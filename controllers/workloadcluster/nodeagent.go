package workloadcluster

import (
	"context"
	"slices"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
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
// it otherwise. While that is not known, because a selector is invalid, it does neither. Without the feature gate there is no image, and it
// does nothing.
func (r *Reconciler) ensureNodeAgent(ctx context.Context, live client.Client, cluster *clusterv1.Cluster) error {
	if r.NodeAgentImage == "" || len(r.Unread.List("MachineDrainPolicy", cluster.Namespace)) > 0 { // a policy that cannot be decoded may enable it
		return nil
	}
	policies := &v1alpha1.MachineDrainPolicyList{}
	if err := r.Client.List(ctx, policies, client.InNamespace(cluster.Namespace)); err != nil {
		return errors.Wrapf(err, "listing the MachineDrainPolicies of namespace %s", cluster.Namespace)
	}
	enables := func(selects func(*v1alpha1.MachineDrainPolicy, map[string]string) bool) bool {
		return slices.ContainsFunc(policies.Items, func(policy v1alpha1.MachineDrainPolicy) bool {
			return policy.Spec.NodeAgent == v1alpha1.NodeAgentEnabled && selects(&policy, cluster.Labels)
		})
	}
	wanted := enables(machinedrain.PolicySelectsCluster)
	if !wanted && enables(machinedrain.PolicyMaySelectCluster) { // a selector is invalid
		return nil
	}
	objects, err := bundle.NodeAgent(r.NodeAgentImage)
	if err != nil {
		return err
	}
	if !wanted {
		return removeNodeAgent(ctx, live, objects)
	}
	err = installNodeAgent(ctx, live, objects)
	if !meta.IsNoMatchError(err) {
		return err
	}
	ctrl.LoggerFrom(ctx).Info("The workload cluster does not serve admission policies, so the node agent is not installed")
	r.recorder.Event(cluster, corev1.EventTypeWarning, eventNodeAgentNotInstalled,
		"The node agent is not installed: the workload cluster does not serve admission policies, which limit each agent to its own Node. Disable spec.nodeAgent "+
			"in the MachineDrainPolicy, or enable them")
	return nil
}

// installNodeAgent creates or updates the objects of the node agent. It returns a NoMatchError if the workload cluster does not serve
// admission policies, and does not install the agent then: only they restrict each agent to its own Node.
func installNodeAgent(ctx context.Context, live client.Client, objects []*unstructured.Unstructured) error {
	for _, each := range findAll(ctx, live, objects) {
		present, _, err := each.ensure(ctx, live)
		if err != nil {
			return err
		}
		if updated := withImages(each.wanted, present); updated != nil && bundleVersion(present) <= bundle.BundleVersion {
			if err := live.Update(ctx, updated, client.FieldOwner(fieldManager)); err != nil {
				return errors.Wrap(err, "updating the image of the node agent")
			}
		}
	}
	return nil
}

// withImages returns the present DaemonSet with the images of the wanted one, or nil if it has them. Other changes by users stay until the
// version of the bundle changes.
func withImages(wanted, present *unstructured.Unstructured) *unstructured.Unstructured {
	if wanted.GetKind() != "DaemonSet" {
		return nil
	}
	images := map[string]any{}
	for _, container := range containersOf(wanted) {
		images[nameOf(container)] = container["image"]
	}
	updated, changed := present.DeepCopy(), false
	containers := containersOf(updated)
	for _, container := range containers {
		if image, known := images[nameOf(container)]; known && container["image"] != image {
			container["image"], changed = image, true
		}
	}
	if !changed {
		return nil
	}
	return updated
}

// nameOf returns the name of a container. A workload cluster may answer with anything, also with a list.
func nameOf(container map[string]any) string {
	name, _ := container["name"].(string)
	return name
}

// containersOf returns the containers of a DaemonSet, which may be modified.
func containersOf(daemonSet *unstructured.Unstructured) []map[string]any {
	list, _, err := unstructured.NestedFieldNoCopy(daemonSet.Object, "spec", "template", "spec", "containers")
	all, ok := list.([]any)
	if err != nil || !ok {
		return nil
	}
	containers := make([]map[string]any, 0, len(all))
	for _, each := range all {
		if container, ok := each.(map[string]any); ok {
			containers = append(containers, container)
		}
	}
	return containers
}

// removeNodeAgent removes the DaemonSet of the node agent. It keeps the namespace and the roles, which have no effect without the agents,
// and a DaemonSet that another actor has created with the agent's name.
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

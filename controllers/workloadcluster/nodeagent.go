package workloadcluster

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	bundle "github.com/capnm/cluster-api-node-maintenance/config/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/staticpod"
)

// ensureNodeAgent installs the node agent in the workload cluster if a MachineDrainPolicy that selects the Cluster enables it, and removes
// it otherwise, also if no policy selects the Cluster or the feature gate is off. It does neither while it is not known whether a policy
// enables the agent. prepared means that the bundle is installed, without which no agent is. ensureNodeAgent returns when to check the
// agent again, 0 if the next check of the Cluster suffices.
func (r *Reconciler) ensureNodeAgent(ctx context.Context, live client.Client, cluster *clusterv1.Cluster, prepared bool) (after time.Duration, err error) {
	wanted, undecided, err := r.wantsNodeAgent(ctx, r.Client, cluster)
	if wanted || undecided != "" {
		r.unwanted.Delete(client.ObjectKeyFromObject(cluster))
	}
	switch {
	case err != nil:
		return 0, err
	case undecided != "":
		r.reportUnchanged(ctx, cluster, undecided)
		return 0, nil
	case !wanted:
		return r.removeNodeAgent(ctx, live, cluster)
	case !prepared:
		return 0, nil
	}
	objects, err := bundle.NodeAgent(r.NodeAgentImage)
	if err != nil {
		return 0, err
	}
	err = r.installNodeAgent(ctx, live, client.ObjectKeyFromObject(cluster), objects)
	if !meta.IsNoMatchError(err) {
		return 0, err
	}
	ctrl.LoggerFrom(ctx).Info("The workload cluster does not serve admission policies, so the node agent is not installed")
	r.recorder.Event(cluster, corev1.EventTypeWarning, eventNodeAgentNotInstalled,
		"The node agent is not installed: the workload cluster does not serve admission policies, which limit each agent to its own Node. Disable spec.nodeAgent "+
			"in the MachineDrainPolicy, or enable them")
	return 0, nil
}

// wantsNodeAgent reports whether a MachineDrainPolicy enables the node agent, see machinedrain.WantsNodeAgent.
func (r *Reconciler) wantsNodeAgent(ctx context.Context, reader client.Reader, cluster *clusterv1.Cluster) (wanted bool, undecided string, err error) {
	if r.NodeAgentImage == "" {
		return false, "", nil
	}
	policies, err := listPolicies(ctx, reader, cluster.Namespace)
	if err != nil {
		return false, "", err
	}
	var unread []string
	for _, each := range r.Unread.List("MachineDrainPolicy", cluster.Namespace) {
		unread = append(unread, each.Object.Name)
	}
	wanted, undecided = machinedrain.WantsNodeAgent(policies, cluster.Labels, unread...)
	return wanted, undecided, nil
}

func (r *Reconciler) reportUnchanged(ctx context.Context, cluster *clusterv1.Cluster, why string) {
	ctrl.LoggerFrom(ctx).Info("The node agent is neither installed nor removed", "reason", why)
	r.recorder.Eventf(cluster, corev1.EventTypeNormal, eventNodeAgentUnchanged, "The node agent is neither installed nor removed: %s", why)
}

// installNodeAgent creates or updates the objects of the node agent. It returns a NoMatchError if the workload cluster does not serve
// admission policies, and does not install the agent then: only they restrict each agent to its own Node.
func (r *Reconciler) installNodeAgent(ctx context.Context, live client.Client, cluster types.NamespacedName, objects []*unstructured.Unstructured) error {
	for _, each := range findAll(ctx, live, objects) {
		isDaemonSet := each.wanted.GetKind() == daemonSetKind
		manifest := each.wanted
		if isDaemonSet {
			var err error
			if each.wanted, err = withChanges(manifest, each.present); err != nil {
				return err
			}
			r.own(each.wanted)
		}
		present, _, err := each.ensure(ctx, live)
		if isDaemonSet && isInvalid(err) { // the changes of users do not fit the new version
			each.wanted.Object["spec"] = manifest.Object["spec"]
			present, _, err = each.ensure(ctx, live)
		}
		if err != nil {
			return err
		}
		if !isDaemonSet {
			continue
		}
		updated := withImages(manifest, present)
		if bundleVersion(present) > bundle.BundleVersion {
			updated = nil
		}
		if _, claimed := r.claimed.Load(cluster); !claimed && ownerOf(present) != r.ManagementCluster {
			updated = cmp.Or(updated, present.DeepCopy())
			r.own(updated)
		}
		if updated != nil {
			if err := live.Update(ctx, updated, client.FieldOwner(fieldManager)); err != nil {
				return errors.Wrap(err, "updating the node agent")
			}
		}
		r.claimed.Store(cluster, true)
	}
	return nil
}

const daemonSetKind = "DaemonSet"

// own records that this management cluster has installed the node agent. Two management clusters may share a workload cluster, and only
// the one that is recorded removes the agent. A manager that wants the agent claims it once in each connection, since the Cluster may have
// been moved here, or the other management cluster may be gone. If both want it, the last one to connect keeps it; if that one removes it,
// the other one installs it again.
func (r *Reconciler) own(daemonSet *unstructured.Unstructured) {
	daemonSet.SetAnnotations(labels.Merge(daemonSet.GetAnnotations(), labels.Set{v1alpha1.OwnerManagementClusterAnnotation: r.ManagementCluster}))
}

func ownerOf(daemonSet client.Object) string {
	return daemonSet.GetAnnotations()[v1alpha1.OwnerManagementClusterAnnotation]
}

// withChanges returns the DaemonSet of the manifest with what users have changed in the present one, except for fields that differ between
// the manifest and the one of an earlier version, which is recorded in the present one. It returns the manifest if nothing is recorded. A
// workload cluster may answer with anything: what cannot be decoded is replaced.
func withChanges(manifest, present *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	wanted, err := json.Marshal(manifest.Object["spec"])
	if err != nil {
		return nil, errors.Wrap(err, "writing the spec of the node agent")
	}
	result := manifest.DeepCopy()
	result.SetAnnotations(labels.Merge(result.GetAnnotations(), labels.Set{v1alpha1.BundleSpecAnnotation: string(wanted)}))
	before := []byte(present.GetAnnotations()[v1alpha1.BundleSpecAnnotation])
	if spec, err := merged(before, wanted, present.Object["spec"]); err == nil {
		result.Object["spec"] = spec
	}
	return result, nil
}

// merged returns the present spec of a DaemonSet with the difference between two others. strategicpatch panics because of null in a list.
func merged(before, after []byte, present any) (_ map[string]any, err error) {
	defer func() {
		if problem := recover(); problem != nil {
			err = errors.Errorf("merging the changes of users: %v", problem)
		}
	}()
	spec, err := json.Marshal(present)
	for _, each := range [][]byte{before, spec} {
		if err == nil {
			err = json.Unmarshal(each, &appsv1.DaemonSetSpec{})
		}
	}
	var patch []byte
	if err == nil {
		patch, err = strategicpatch.CreateTwoWayMergePatch(before, after, appsv1.DaemonSetSpec{})
	}
	if err == nil {
		spec, err = strategicpatch.StrategicMergePatch(spec, patch, appsv1.DaemonSetSpec{})
	}
	result := map[string]any{}
	if err == nil {
		err = json.Unmarshal(spec, &result)
	}
	return result, errors.Wrap(err, "merging the changes of users")
}

// withImages returns the present DaemonSet with the images of the wanted one, or nil if it has them. It keeps other changes by users.
func withImages(wanted, present *unstructured.Unstructured) *unstructured.Unstructured {
	if wanted.GetKind() != daemonSetKind {
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

// removeNodeAgent removes the DaemonSet of the node agent, if this management cluster has installed it. It keeps the namespace and the
// roles, which have no effect without the agents. Policies that are not in the cache may enable the agent: they were just created, or the
// deletion of their CRD has removed them. A tool may replace a policy: the DaemonSet is kept for rules.GoneCounts, since an agent that is
// removed delays no shutdown. While agents may hold static Pods, which nothing else restores, the DaemonSet is kept, too.
func (r *Reconciler) removeNodeAgent(ctx context.Context, live client.Client, cluster *clusterv1.Cluster) (after time.Duration, err error) {
	present, err := findNodeAgent(ctx, live)
	switch {
	case err != nil || present == nil:
		return 0, err
	case !slices.Contains([]string{"", r.ManagementCluster}, ownerOf(present)):
		r.reportUnchanged(ctx, cluster, "another management cluster, whose Namespace kube-system has the UID "+ownerOf(present)+", has installed it")
		return 0, nil
	}
	unwanted, undecided, err := r.confirmUnwanted(ctx, cluster)
	if undecided != "" {
		r.reportUnchanged(ctx, cluster, undecided)
	}
	key := client.ObjectKeyFromObject(cluster)
	if err != nil || !unwanted {
		r.unwanted.Delete(key)
		return drainingCheckInterval, err
	}
	since, _ := r.unwanted.LoadOrStore(key, r.Clock.Now())
	if holding, err := r.holdingNodes(ctx, live); err != nil || holding != "" {
		why := "it restores the static Pods of Node " + holding + " first, when no NodeMaintenance drains them any more"
		if err == nil {
			r.holding.Store(key, r.Clock.Now())
		} else {
			why = "it may hold static Pods: " + progress.Describe(err)
		}
		r.reportUnchanged(ctx, cluster, why)
		return drainingCheckInterval, err
	}
	if last, found := r.holding.Load(key); found { // the agents need time to restore them, and an event may have caused this check
		if wait := last.(time.Time).Add(drainingCheckInterval).Sub(r.Clock.Now()); wait > 0 { //nolint:forcetypeassert // nothing else is stored
			return wait, nil
		}
	}
	wait := since.(time.Time).Add(rules.GoneCounts).Sub(r.Clock.Now()) //nolint:forcetypeassert // nothing else is stored
	if wait > 0 && r.NodeAgentImage != "" {
		return wait, nil
	}
	uid, version := present.GetUID(), present.GetResourceVersion() // another management cluster may claim it
	if err := live.Delete(ctx, present, client.Preconditions{UID: &uid, ResourceVersion: &version}); answers.IgnoreDoesNotExist(err) != nil {
		return 0, errors.Wrap(err, "removing the node agent")
	}
	ctrl.LoggerFrom(ctx).Info("Removed the node agent")
	r.claimed.Delete(key)
	r.holding.Delete(key)
	r.unwanted.Delete(key)
	return 0, nil
}

// confirmUnwanted reports whether the API server confirms that no MachineDrainPolicy enables the node agent. undecided says why it does
// not. While the CRD is being deleted, its policies disappear one by one, although no user has deleted them.
func (r *Reconciler) confirmUnwanted(ctx context.Context, cluster *clusterv1.Cluster) (unwanted bool, undecided string, err error) {
	if r.NodeAgentImage == "" {
		return true, "", nil
	}
	wanted, undecided, err := r.wantsNodeAgent(ctx, r.APIReader, cluster)
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind(crdKind))
	if err == nil && !wanted && undecided == "" {
		err = r.APIReader.Get(ctx, types.NamespacedName{Name: "machinedrainpolicies." + v1alpha1.GroupVersion.Group}, crd)
	}
	switch {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err), crd.DeletionTimestamp != nil:
		return false, "the CustomResourceDefinition of MachineDrainPolicies is missing or being deleted", nil
	case err != nil:
		return false, "it cannot be confirmed that no MachineDrainPolicy enables it", errors.Wrap(err, "confirming that the node agent is not wanted")
	default:
		return !wanted && undecided == "", undecided, nil
	}
}

// findNodeAgent returns the metadata of the node agent's DaemonSet. It returns nil if there is none, or one of another actor, or one that
// is being deleted.
func findNodeAgent(ctx context.Context, live client.Client) (*metav1.PartialObjectMetadata, error) {
	objects, err := bundle.NodeAgent("")
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(objects, func(object *unstructured.Unstructured) bool { return object.GetKind() == daemonSetKind })
	present := &metav1.PartialObjectMetadata{}
	present.SetGroupVersionKind(objects[at].GroupVersionKind())
	err = live.Get(ctx, client.ObjectKeyFromObject(objects[at]), present)
	if err != nil || present.Annotations[v1alpha1.BundleVersionAnnotation] == "" || present.DeletionTimestamp != nil {
		return nil, errors.Wrap(answers.IgnoreDoesNotExist(err), "getting the DaemonSet of the node agent")
	}
	return present, nil
}

// holdingNodes returns the names of the Nodes on which an agent may hold static Pods. It removes the drain targets of static Pods that no
// NodeMaintenance publishes any more: the agents then restore the manifests. What is published is decided as in the controller that writes
// them, which may run in another management cluster, and not in this one: two managers would else undo each other's writes.
func (r *Reconciler) holdingNodes(ctx context.Context, live client.Client) (string, error) {
	nodes := &metav1.PartialObjectMetadataList{}
	nodes.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	if err := live.List(ctx, nodes); err != nil {
		return "", errors.Wrap(err, "listing Nodes")
	}
	nodes.Items = slices.DeleteFunc(nodes.Items, func(node metav1.PartialObjectMetadata) bool {
		return node.Annotations[v1alpha1.StaticPodTargetsAnnotation] == ""
	})
	if len(nodes.Items) == 0 {
		return "", nil
	}
	maintenances := &v1alpha1.NodeMaintenanceList{}
	if err := listMaintenances(ctx, live, maintenances); err != nil {
		return "", err
	}
	var names []string
	for i := range nodes.Items {
		node := &nodes.Items[i]
		names = append(names, node.Name)
		published, _, err := staticpod.Targets(&corev1.Node{ObjectMeta: node.ObjectMeta}, maintenances.Items)
		if err != nil {
			return "", err
		}
		if published != "" {
			continue
		}
		before := node.DeepCopy()
		delete(node.Annotations, v1alpha1.StaticPodTargetsAnnotation)
		delete(node.Annotations, v1alpha1.StaticPodCauseAnnotation)
		if err := live.Patch(ctx, node, client.MergeFrom(before)); answers.IgnoreDoesNotExist(err) != nil {
			return "", errors.Wrapf(err, "removing the drain targets of static Pods from Node %s", node.Name)
		}
	}
	return strings.Join(names, ", "), nil
}

package observe

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/recording"
)

// maxFollowedNodes is the maximum number of Nodes of a cluster whose Pods are followed. Each needs a watch.
const maxFollowedNodes = 100

// details is what only a recording needs of a workload cluster.
type details struct {
	*Cluster

	key types.NamespacedName
	// nil if the cluster does not serve them
	budgets, deployments, statefulSets *followed
	nodes                              map[string]*followed // the metadata of the Pods of a Node
}

// FollowDetails makes the Watch follow PodDisruptionBudgets, Deployments and StatefulSets, and the Pods of Nodes that Terminating is called
// for. It must be called before Drains.
func (w *Watch) FollowDetails() { w.details = map[types.NamespacedName]*details{} }

// followDetails watches the budgets and applications. If that cannot begin, the recording lacks them, and has the drains.
func (w *Watch) followDetails(ctx context.Context, cluster types.NamespacedName, c *Cluster) *details {
	follow := func(kind client.Object, transform toolscache.TransformFunc) *followed {
		f, err := w.follow(ctx, cluster, c, ctrlcache.Options{DefaultTransform: transform}, kind)
		if err != nil {
			c.gaps.Add(err.Error())
		}
		return f
	}
	return &details{
		c, cluster, follow(&policyv1.PodDisruptionBudget{}, nil), follow(&appsv1.Deployment{}, onlyReplicas), follow(&appsv1.StatefulSet{}, onlyReplicas),
		map[string]*followed{},
	}
}

// onlyReplicas keeps what a recording needs of a Deployment or StatefulSet: the cache has all of the cluster.
func onlyReplicas(object any) (any, error) {
	switch o := object.(type) {
	case *appsv1.Deployment:
		kept := &appsv1.Deployment{ObjectMeta: onlyName(o.ObjectMeta)}
		kept.Spec.Replicas, kept.Spec.Selector, kept.Spec.Template.Labels = o.Spec.Replicas, o.Spec.Selector, o.Spec.Template.Labels
		kept.Status.ReadyReplicas = o.Status.ReadyReplicas
		return kept, nil
	case *appsv1.StatefulSet:
		kept := &appsv1.StatefulSet{ObjectMeta: onlyName(o.ObjectMeta)}
		kept.Spec.Replicas, kept.Spec.Selector, kept.Spec.Template.Labels = o.Spec.Replicas, o.Spec.Selector, o.Spec.Template.Labels
		kept.Status.ReadyReplicas = o.Status.ReadyReplicas
		return kept, nil
	default:
		return object, nil
	}
}

func onlyName(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}
}

// Applications returns the Deployments and StatefulSets of Namespaces of a workload cluster that Drains was called for.
func (w *Watch) Applications(ctx context.Context, cluster types.NamespacedName, namespaces sets.Set[string]) ([]appsv1.Deployment, []appsv1.StatefulSet) {
	var deployments []appsv1.Deployment
	var statefulSets []appsv1.StatefulSet
	if d := w.detailsOf(cluster); d != nil {
		for namespace := range namespaces {
			some, others := &appsv1.DeploymentList{}, &appsv1.StatefulSetList{}
			w.read(ctx, d.deployments, some, client.InNamespace(namespace))
			w.read(ctx, d.statefulSets, others, client.InNamespace(namespace))
			deployments, statefulSets = append(deployments, some.Items...), append(statefulSets, others.Items...)
		}
	}
	return deployments, statefulSets
}

// Unread returns the kinds, of PodDisruptionBudgets, Deployments and StatefulSets, that were not read yet or cannot be read at present.
// What was read before is still listed.
func (w *Watch) Unread(cluster types.NamespacedName) sets.Set[string] {
	unread, d := sets.New[string](), w.detailsOf(cluster)
	if d == nil {
		return unread.Insert(recording.KindBudget, recording.KindDeployment, recording.KindStatefulSet)
	}
	for kind, f := range map[string]*followed{
		recording.KindBudget: d.budgets, recording.KindDeployment: d.deployments, recording.KindStatefulSet: d.statefulSets,
	} {
		if f == nil || !f.isSynced() || f.isLost.Load() {
			unread.Insert(kind)
		}
	}
	return unread
}

// Budgets returns the PodDisruptionBudgets of a workload cluster that Drains was called for.
func (w *Watch) Budgets(ctx context.Context, cluster types.NamespacedName) []policyv1.PodDisruptionBudget {
	list := &policyv1.PodDisruptionBudgetList{}
	if d := w.detailsOf(cluster); d != nil {
		w.read(ctx, d.budgets, list)
	}
	return list.Items
}

// Terminating returns the Pods of some Nodes of a workload cluster that are being deleted. It follows the Pods of these Nodes, at most 100,
// and no longer those of others. It must not be called concurrently.
func (w *Watch) Terminating(ctx context.Context, cluster types.NamespacedName, nodes sets.Set[string]) sets.Set[types.UID] {
	d, terminating := w.detailsOf(cluster), sets.New[types.UID]()
	if d == nil {
		return terminating
	}
	for node, followed := range d.nodes {
		if !nodes.Has(node) {
			followed.stop()
			delete(d.nodes, node)
		}
	}
	for _, node := range sets.List(nodes) {
		switch {
		case d.nodes[node] != nil:
		case len(d.nodes) < maxFollowedNodes:
			w.followPods(ctx, d, node)
		default:
			d.gaps.Add(fmt.Sprintf("Pods on more than %d draining Nodes of %s: their waits include the termination", maxFollowedNodes, d.Name))
		}
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
		w.read(ctx, d.nodes[node], list)
		for i := range list.Items {
			if list.Items[i].DeletionTimestamp != nil {
				terminating.Insert(list.Items[i].UID)
			}
		}
	}
	return terminating
}

// followPods follows the metadata of the Pods of a Node.
func (w *Watch) followPods(ctx context.Context, d *details, node string) {
	pods := &metav1.PartialObjectMetadata{}
	pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	onNode := ctrlcache.ByObject{Field: fields.OneTermEqualSelector("spec.nodeName", node)}
	ctx, stop := context.WithCancel(ctx)
	followed, err := w.follow(ctx, d.key, d.Cluster, ctrlcache.Options{ByObject: map[client.Object]ctrlcache.ByObject{pods: onNode}}, pods)
	if err != nil {
		stop()
		w.report(subject{d.key, "Pods of " + node}, err)
		return
	}
	followed.stop = stop
	d.nodes[node] = followed
}

func (w *Watch) detailsOf(cluster types.NamespacedName) *details {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.details[cluster]
}

package observe

import (
	"context"
	"slices"
	"strings"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
)

// running selects the Pods that use a Node.
var running = client.MatchingFieldsSelector{Selector: fields.ParseSelectorOrDie("spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed")}

// Placement is that of the workload cluster of a Cluster, or of the cluster of the context if the Cluster is empty.
func (c *Connections) Placement(ctx context.Context, cluster string, draining sets.Set[string], claims []types.NamespacedName, gaps *Gaps) *forecast.Cluster {
	w, err := c.named(ctx, cluster)
	if err != nil {
		return nil // no drain there is predicted
	}
	return w.Placement(ctx, draining, claims, gaps)
}

// Placement reads all Nodes and Pods, and the PersistentVolumes of claims. The Nodes that are draining offer no place. Nothing depends on
// it but warnings: it returns nil if Nodes or Pods cannot be read, and gaps says what could not be read.
func (w *Workload) Placement(ctx context.Context, draining sets.Set[string], claims []types.NamespacedName, gaps *Gaps) *forecast.Cluster {
	reader := *w.Cluster
	reader.gaps = gaps
	nodes, err := w.Nodes(ctx)
	if !reader.tolerateAll(err, "list", "nodes") {
		return nil
	}
	placement, pods := forecast.NewCluster(nodes, draining), &corev1.PodList{}
	err = reader.listAll(ctx, pods, func() {
		for i := range pods.Items {
			placement.Add(&pods.Items[i])
		}
	}, running)
	if !reader.tolerateAll(err, "list", "pods") {
		return nil
	}
	missing := slices.DeleteFunc(claims, func(claim types.NamespacedName) bool { return w.volumes[claim] != nil })
	if err := each(ctx, missing, func(ctx context.Context, claim types.NamespacedName) error {
		volume, err := reader.volumeOf(ctx, claim)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.volumes[claim] = volume
		return err
	}); err != nil {
		gaps.Add(err.Error())
	}
	placement.Volumes, placement.NamespaceLabels = w.volumes, w.NamespaceLabels
	return placement
}

// volumeOf returns the PersistentVolume of a claim. It is nil if there is none, or if the user may not read it, which is a gap.
func (c *Cluster) volumeOf(ctx context.Context, key types.NamespacedName) (*corev1.PersistentVolume, error) {
	claim, volume := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	if exists, _, err := c.readOne(ctx, key, claim, "persistentvolumeclaims"); !exists || claim.Spec.VolumeName == "" {
		return nil, err
	}
	exists, _, err := c.readOne(ctx, types.NamespacedName{Name: claim.Spec.VolumeName}, volume, "persistentvolumes")
	if !exists {
		return nil, err
	}
	return volume, nil
}

// tolerateAll is tolerate for what only warnings depend on: every error is a gap.
func (c *Cluster) tolerateAll(err error, verb, resource string) (read bool) {
	read, err = c.tolerate(err, verb, resource)
	if err != nil {
		c.gaps.Add(errors.Wrapf(err, "%s of %s cannot be read", resource, c.Name).Error())
	}
	return read
}

// named returns the workload cluster of a Cluster, or the cluster of the context if the name is empty.
func (c *Connections) named(ctx context.Context, cluster string) (*Workload, error) {
	if namespace, name, found := strings.Cut(cluster, "/"); found {
		return c.Workload(ctx, types.NamespacedName{Namespace: namespace, Name: name})
	}
	return c.CurrentWorkload(), nil
}

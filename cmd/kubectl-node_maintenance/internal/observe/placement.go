package observe

import (
	"context"
	"strings"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
)

// running selects the Pods that use a Node.
var running = client.MatchingFieldsSelector{Selector: fields.ParseSelectorOrDie("spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed")}

// Placement reads all Pods of a Cluster, or of the cluster of the context if the Cluster is empty. Nothing depends on it but warnings: it
// returns nil if they cannot be read, and gaps says why.
func (c *Connections) Placement(ctx context.Context, cluster string, gaps *Gaps) *forecast.Cluster {
	w, err := c.named(ctx, cluster)
	if err != nil {
		return nil // no drain there is predicted
	}
	reader := *w.Cluster
	reader.gaps = gaps
	placement, pods := forecast.NewCluster(), &corev1.PodList{}
	err = reader.listAll(ctx, pods, func() {
		for i := range pods.Items {
			placement.Add(&pods.Items[i])
		}
	}, running)
	if !reader.tolerateAll(err, "list", "pods") {
		return nil
	}
	return placement
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

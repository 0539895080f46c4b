package nodemaintenance

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/cluster-api/util/cache"

	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
)

// written caches Nodes as this manager has last written them, until the watch delivers that version. With hundreds of drains, the watch may
// lag by minutes. Without this cache, each reconciliation would patch the stale Node again and get a conflict.
type written struct {
	nodes cache.Cache[writtenNode]
}

// writtenFor is how long a written Node is cached. It is longer than the expected watch lag.
const writtenFor = 10 * time.Minute

type writtenNode struct {
	cluster types.NamespacedName
	node    *corev1.Node
}

// Key implements cache.Entry.
func (w writtenNode) Key() string { return w.cluster.String() + "/" + w.node.Name }

func newWritten(ctx context.Context) written {
	return written{nodes: cache.New[writtenNode](ctx, writtenFor)}
}

// record caches a written Node, unless a later version is cached.
func (w written) record(cluster types.NamespacedName, node *corev1.Node) {
	if w.latest(cluster, node) != node {
		return
	}
	if trimmed, err := workload.TrimNode(node.DeepCopy()); err == nil {
		if kept, ok := trimmed.(*corev1.Node); ok {
			w.nodes.Add(writtenNode{cluster, kept})
		}
	}
}

// latest returns the later version of a Node: the observed one or the written one.
func (w written) latest(cluster types.NamespacedName, seen *corev1.Node) *corev1.Node {
	wrote, known := w.nodes.Has(writtenNode{cluster, seen}.Key())
	if !known || wrote.node.UID != seen.UID {
		return seen
	}
	if order, err := resourceversion.CompareResourceVersion(seen.ResourceVersion, wrote.node.ResourceVersion); err != nil || order >= 0 {
		return seen
	}
	return wrote.node.DeepCopy()
}

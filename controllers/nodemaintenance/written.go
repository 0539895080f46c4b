package nodemaintenance

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/cluster-api/util/cache"

	"github.com/capnm/cluster-api-node-maintenance/controllers/remote"
)

// written are Nodes as this manager has last written them, until the watch shows that. An API server with hundreds of drains may take
// minutes for it, and meanwhile each look at such a Node would write it once more: in vain, since it has changed.
type written struct {
	nodes cache.Cache[writtenNode]
}

// writtenFor is longer than watches lag.
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

// note remembers the answer to a write, if no later one is known.
func (w written) note(cluster types.NamespacedName, node *corev1.Node) {
	if w.latest(cluster, node) != node {
		return
	}
	if trimmed, err := remote.TrimNode(node.DeepCopy()); err == nil {
		if kept, ok := trimmed.(*corev1.Node); ok {
			w.nodes.Add(writtenNode{cluster, kept})
		}
	}
}

// latest is the Node as the watch shows it, or as it was written if that is later.
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

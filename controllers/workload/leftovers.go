package workload

import (
	"context"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/orphan"
)

const (
	// fullSearchAfter is the minimum age of a connection before FindLeftovers reads all Nodes. The next check of the bundle, within ten
	// minutes, does that, so the searches of a fleet do not coincide.
	fullSearchAfter = 5 * time.Minute
	// searchPage is the number of Nodes that a search reads at once.
	searchPage = 100
)

// search is the progress of FindLeftovers in one connection.
type search struct {
	began      time.Time // when urgentDone was set, shortly after the connection began
	urgentDone bool      // the search for what disturbs users has ended
	allDone    bool      // the search of all Nodes has ended
}

// FindLeftovers starts the watches of what an earlier manager has left behind in a workload cluster; the objects in their first lists are
// reconciled and cleaned up. For a new connection it lists only what disturbs users: surges and cordoned Nodes, which the API server can
// select. Later it reads all Nodes once, page by page, unless they have been watched meanwhile. After a pause it does so again: what has
// vanished in the meantime causes no event.
func (c *Clusters) FindLeftovers(ctx context.Context, cluster types.NamespacedName) error {
	d := c.informers.onDemandOf(cluster)
	if d == nil {
		return nil
	}
	live, err := c.UncachedClient(ctx, cluster)
	if err != nil {
		return err
	}
	if d.searchAgain.Swap(false) {
		d.search = search{}
		d.nodes.everBegan.Store(false)
	}
	if !d.search.urgentDone {
		if err := d.findUrgent(ctx, live); err != nil {
			return err
		}
		d.search.urgentDone, d.search.began = true, c.clock.Now()
	}
	if !d.search.allDone && !d.nodes.everBegan.Load() && c.clock.Since(d.search.began) >= fullSearchAfter {
		if err := d.findNodes(ctx, live); err != nil {
			return err
		}
		d.search.allDone = true
	}
	return nil
}

func (d *onDemand) findUrgent(ctx context.Context, live client.Reader) error {
	for _, w := range d.surges.watchers {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(w.Object().GetObjectKind().GroupVersionKind())
		if err := live.List(ctx, list, client.HasLabels{v1alpha1.SurgingLabel}, client.Limit(1)); err != nil && !meta.IsNoMatchError(err) {
			return errors.Wrapf(err, "listing surging objects of kind %s", list.Kind)
		}
		if len(list.Items) > 0 {
			d.startInBackground(&d.surges)
		}
	}
	return d.findNodes(ctx, live, client.MatchingFields{"spec.unschedulable": "true"})
}

// findNodes starts the watch of Nodes if one of the selected Nodes has traces of a NodeMaintenance.
func (d *onDemand) findNodes(ctx context.Context, live client.Reader, which ...client.ListOption) error {
	nodes := &corev1.NodeList{}
	for {
		if err := live.List(ctx, nodes, append(which, client.Limit(searchPage), client.Continue(nodes.Continue))...); err != nil {
			return errors.Wrap(err, "listing Nodes")
		}
		for i := range nodes.Items {
			if orphan.Possible(&nodes.Items[i]) {
				d.startInBackground(&d.nodes)
				return nil
			}
		}
		if nodes.Continue == "" {
			return nil
		}
	}
}

package cordon

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/selection"
)

// imminence is how long a cordon is waited for. Most take a tenth of a second; where hundreds of Nodes are to go, seconds.
const imminence = 10 * time.Second

// Imminent names the Nodes that a new maintenance is about to cordon, as far as it names them, and until when that is worth waiting
// for: a Pod that is evicted from another Node meanwhile may land there, and would be evicted once more. None, if it has cordoned
// them or doesn't want to, or if it seems to be of the future: the workload cluster's clock isn't ours, and mustn't hold evictions.
func Imminent(m *v1alpha1.NodeMaintenance, now time.Time) (nodes []string, until time.Time) {
	age := now.Sub(m.CreationTimestamp.Time)
	if !Holds(m) || meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.NodeMaintenanceCordoned) || age >= imminence || age < -imminence {
		return nil, time.Time{}
	}
	nodes, _ = selection.Names(m)
	return nodes, m.CreationTimestamp.Add(imminence)
}

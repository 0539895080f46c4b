package cordon

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

const (
	// maxFlips is how often a Node may be made schedulable from outside within flipWindow before that is called a conflict.
	maxFlips   = 3
	flipWindow = 10 * time.Minute
	// tellInterval is the least time between two warnings of one maintenance.
	tellInterval = time.Minute
)

// WasUncordoned says whether a Node that is under maintenance has been made schedulable from outside: the record says that it was
// cordoned before.
func WasUncordoned(node *corev1.Node) bool {
	_, recorded := node.Annotations[v1alpha1.NodeOriginAnnotation]
	return recorded && !node.Spec.Unschedulable
}

// Conflicts counts how often Nodes are made schedulable from outside while they are maintained. It remembers at most four
// moments a Node, and forgets what is past; a restart forgets all, since it decides about warnings alone. The zero value is
// ready for use.
type Conflicts struct {
	flips map[string][]time.Time // by Node
	told  map[string]time.Time   // by maintenance
}

// Due says whether one more flip of the Node, now, is to be warned of by the maintenance.
func (c *Conflicts) Due(node, maintenance string, now time.Time) bool {
	told, known := c.told[maintenance]
	return len(within(c.flips[node], now)) >= maxFlips && (!known || now.Sub(told) >= tellInterval)
}

// Add notes that the maintenance has undone a flip of the Node, and says whether that is to be warned of. It is, where Due
// said so.
func (c *Conflicts) Add(node, maintenance string, now time.Time) (warn bool) {
	warn = c.Due(node, maintenance, now)
	c.forget(now)
	if c.flips == nil {
		c.flips, c.told = map[string][]time.Time{}, map[string]time.Time{}
	}
	c.flips[node] = append(c.flips[node], now)
	c.flips[node] = c.flips[node][max(0, len(c.flips[node])-maxFlips-1):]
	if warn {
		c.told[maintenance] = now
	}
	return warn
}

func (c *Conflicts) forget(now time.Time) {
	for node, flips := range c.flips {
		if recent := within(flips, now); len(recent) > 0 {
			c.flips[node] = recent
		} else {
			delete(c.flips, node)
		}
	}
	for maintenance, told := range c.told {
		if now.Sub(told) >= tellInterval {
			delete(c.told, maintenance)
		}
	}
}

func within(flips []time.Time, now time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(flips), func(flip time.Time) bool { return now.Sub(flip) > flipWindow })
}

// UncordonedBy names the field manager that holds spec.unschedulable of a Node as it was read from the API server, other than
// ours; empty where none is recorded: a write that takes the field away, as uncordoning by patch does, leaves no owner.
func UncordonedBy(managed []metav1.ManagedFieldsEntry, ours string) string {
	for _, entry := range managed {
		if entry.Manager != ours && entry.FieldsV1 != nil && strings.Contains(entry.FieldsV1.GetRawString(), `"f:unschedulable"`) {
			return entry.Manager
		}
	}
	return ""
}

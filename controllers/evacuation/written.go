package evacuation

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/cluster-api/util/cache"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Written caches Evacuations as the reconciler and the evictor have last written them, until the watch delivers that version. Without it, a
// reconciliation from a stale cache would repeat the write.
type Written struct {
	evacuations cache.Cache[writtenEvacuation]
}

// writtenFor is how long a written Evacuation is cached. It is longer than the expected watch lag.
const writtenFor = 10 * time.Minute

type writtenEvacuation struct {
	cluster    types.NamespacedName
	evacuation *v1alpha1.Evacuation
	removed    bool
}

// Key implements cache.Entry.
func (w writtenEvacuation) Key() string { return w.cluster.String() + "/" + string(w.evacuation.UID) }

// NewWritten returns an empty cache.
func NewWritten(ctx context.Context) *Written {
	return &Written{evacuations: cache.New[writtenEvacuation](ctx, writtenFor)}
}

// Record caches an Evacuation that was written, unless a later version is cached.
func (w *Written) Record(cluster types.NamespacedName, e *v1alpha1.Evacuation) {
	if latest, removed := w.Latest(cluster, e); latest == e && !removed {
		w.evacuations.Add(writtenEvacuation{cluster: cluster, evacuation: e})
	}
}

// recordRemoved records that the last write has removed an Evacuation.
func (w *Written) recordRemoved(cluster types.NamespacedName, e *v1alpha1.Evacuation) {
	w.evacuations.Add(writtenEvacuation{cluster: cluster, evacuation: e, removed: true})
}

// Latest returns the later version of an Evacuation, the observed one or the written one, and whether the Evacuation was removed. The result
// is read-only.
func (w *Written) Latest(cluster types.NamespacedName, observed *v1alpha1.Evacuation) (latest *v1alpha1.Evacuation, removed bool) {
	wrote, known := w.evacuations.Has(writtenEvacuation{cluster: cluster, evacuation: observed}.Key())
	switch {
	case !known:
		return observed, false
	case wrote.removed:
		return observed, true
	}
	if order, err := resourceversion.CompareResourceVersion(observed.ResourceVersion, wrote.evacuation.ResourceVersion); err != nil || order >= 0 {
		return observed, false
	}
	return wrote.evacuation, false
}

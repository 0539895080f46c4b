package chaos

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/test/simulation/memory"
)

const (
	// remembering is the interval of the seeds that check what the manager keeps in memory: the check takes minutes of virtual time.
	remembering = 10
	// forgetting is how long the manager may keep what concerns objects that no longer exist.
	forgetting = 15 * time.Minute
)

// searchedPackages have the types whose maps are checked. Of the dependencies, these are the controllers and the backoffs of their retries.
var searchedPackages = []string{
	"github.com/capnm/cluster-api-node-maintenance/controllers", "github.com/capnm/cluster-api-node-maintenance/drain",
	"sigs.k8s.io/controller-runtime/pkg/internal/controller", "k8s.io/client-go/util/workqueue",
}

// notChecked are the maps that may have keys of objects that do not exist.
var notChecked = []string{
	// Expired entries are removed when another one is added.
	"drainoutcome.Reconciler.complete", "machine.Reconciler.released.drains",
	"machine.Reconciler.settings.reads", "machine.Reconciler.clusterLabels.reads",
	"nodemaintenance.Reconciler.conflicts.uncordons", "nodemaintenance.Reconciler.conflicts.warned",
	// They are in the values of those above.
	"machine.Reconciler.settings.reads[].value", "machine.Reconciler.clusterLabels.reads[].value.labels",
}

// expectForgotten waits, and checks that the components of the manager keep nothing in memory of objects that no longer exist (E37).
func (s *simulated) expectForgotten(ctx context.Context, components []any) (violations []string) {
	_ = delay(ctx, forgetting)
	present := s.present()
	for _, m := range memory.Of(components, searchedPackages...) {
		obsolete := slices.DeleteFunc(m.Keys, func(key any) bool { return isPresent(present, key) })
		if len(obsolete) > 0 && !slices.Contains(notChecked, m.Path) {
			violations = append(violations, fmt.Sprintf("E37: after %s without drains, %s has %d keys of objects that do not exist: %v", forgetting, m.Path,
				len(obsolete), obsolete[:min(len(obsolete), 5)]))
		}
	}
	return violations
}

// present returns the UIDs and names of all objects.
func (s *simulated) present() sets.Set[string] {
	all := sets.New[string]()
	for _, cluster := range s.clusters() {
		for _, o := range cluster.Objects() {
			all.Insert(string(o.GetUID()), o.GetName(), o.GetNamespace()+"/"+o.GetName(), o.GetNamespace()+"/")
		}
	}
	return all
}

// isPresent returns whether the objects exist that a key of a map names. A pointer names none.
func isPresent(present sets.Set[string], key any) bool {
	switch key := key.(type) {
	case string:
		return present.Has(key)
	case types.UID:
		uid, _, _ := strings.Cut(string(key), "/") // of what belongs to the object
		return present.Has(uid)
	case types.NamespacedName:
		return present.Has(key.String())
	case workload.Request:
		return isPresent(present, key.Cluster) && isPresent(present, key.Object)
	default:
		return reflect.TypeOf(key).Kind() == reflect.Pointer
	}
}

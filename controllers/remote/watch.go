package remote

import (
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// Watches lists what a controller watches in a workload cluster. The ClusterCache drops watches when the connection ends; they
// are added again to the next one.
type Watches func(cluster types.NamespacedName) []clustercache.Watcher

// Watch is one of them: objects of a kind, what a controller enqueues for them, and which of their changes matter (all, if
// nothing is said). Names are unique in a connection: by its name a watch that is there already is known.
func Watch[T client.Object, R comparable](name string, controller clustercache.SourceWatcher[R], kind T, enqueue handler.TypedEventHandler[T, R], matters ...predicate.TypedPredicate[T]) clustercache.Watcher {
	return clustercache.NewWatcher(clustercache.TypedWatcherOptions[T, R]{Name: name, Watcher: controller, Kind: kind, EventHandler: enqueue, Predicates: matters})
}

package workload

import (
	"context"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// What a drain watch lists.
const (
	listedBudgets     = "PodDisruptionBudgets"
	listedNamespaces  = "Namespaces"
	listedDaemonSets  = "DaemonSets"
	listedAttachments = "VolumeAttachments"
)

func listedPods(node string) string { return "the Pods of Node " + node }

// WatchFailure returns the error of a list or watch that the drain of a Node depends on, if it has failed for some time, and nil otherwise.
func (c *Clusters) WatchFailure(cluster types.NamespacedName, node string) error {
	c.mu.RLock()
	watch := c.watches[cluster]
	c.mu.RUnlock()
	if watch == nil {
		return nil
	}
	for _, what := range []string{listedPods(node), listedBudgets, listedNamespaces, listedDaemonSets, listedAttachments} {
		for _, doing := range []string{listing + what, watching + what} {
			if failure := watch.failures.Get(doing); failure.Persists(c.clock.Now()) {
				return errors.Wrap(failure.Err, doing)
			}
		}
	}
	return nil
}

const listing, watching = "listing ", "watching "

// recordFailures returns a ListWatch that records whether requests fail. Informers retry, and only log errors.
func (w *drainWatch) recordFailures(what string, lw *cache.ListWatch) *cache.ListWatch {
	record := func(ctx context.Context, doing string, err error) {
		if ctx.Err() != nil || what == listedBudgets && NotServed(err) { // BudgetsServed reports the latter
			return
		}
		w.failures.Record(doing+what, err, w.clock.Now())
		if doing == watching && err == nil { // a watch may replace the list
			w.failures.Record(listing+what, nil, w.clock.Now())
		}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := lw.ListWithContext(ctx, options)
			record(ctx, listing, err)
			return list, err //nolint:wrapcheck // the informer inspects it
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			events, err := lw.WatchWithContext(ctx, options)
			record(ctx, watching, err)
			return events, err //nolint:wrapcheck // same
		},
		DisableChunking: lw.DisableChunking,
	}
}

// forgetFailures ends the failures of watches that are no longer needed.
func (w *drainWatch) forgetFailures(what string) {
	w.failures.Remove(func(doing string) bool { return doing == listing+what || doing == watching+what })
}

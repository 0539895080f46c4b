package workload

import (
	"context"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"
	"k8s.io/utils/clock"

	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
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
	if failure := c.listFailure(cluster); failure.Persists(c.clock.Now()) {
		return failure.Err
	}
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

// recordFailures returns a ListerWatcher that records whether requests fail. Informers retry, and only log errors.
func (w *drainWatch) recordFailures(what string, lw *cache.ListWatch) cache.ListerWatcher {
	return &recordingListerWatcher{
		ListerWatcherWithContext: lw, what: what, failures: &w.failures, clock: w.clock,
		ignores: func(err error) bool { return what == listedBudgets && answers.NotServed(err) }, // BudgetsServed reports it
	}
}

// recordingListerWatcher records failures of the requests of an informer.
type recordingListerWatcher struct {
	cache.ListerWatcherWithContext

	what     string
	failures *Failures[string]
	clock    clock.PassiveClock
	ignores  func(error) bool
	// failed is called at the first of several failures. It may be nil.
	failed func()
}

// ListWithContext implements cache.ListerWithContext.
func (r *recordingListerWatcher) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list, err := r.ListerWatcherWithContext.ListWithContext(ctx, options)
	r.record(ctx, listing, err)
	return list, err //nolint:wrapcheck // the informer inspects it
}

// WatchWithContext implements cache.WatcherWithContext.
func (r *recordingListerWatcher) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	events, err := r.ListerWatcherWithContext.WatchWithContext(ctx, options)
	r.record(ctx, watching, err)
	return events, err //nolint:wrapcheck // same
}

// List implements cache.Lister. Informers do not call it.
func (r *recordingListerWatcher) List(options metav1.ListOptions) (runtime.Object, error) {
	return r.ListWithContext(context.Background(), options)
}

// Watch implements cache.Watcher. Informers do not call it.
func (r *recordingListerWatcher) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return r.WatchWithContext(context.Background(), options)
}

// IsWatchListSemanticsUnSupported says whether an informer must list before it watches.
func (r *recordingListerWatcher) IsWatchListSemanticsUnSupported() bool {
	return watchlist.DoesClientNotSupportWatchListSemantics(r.ListerWatcherWithContext)
}

func (r *recordingListerWatcher) record(ctx context.Context, doing string, err error) {
	if ctx.Err() != nil || err != nil && r.ignores(err) {
		return
	}
	now := r.clock.Now()
	failure := r.failures.Record(doing+r.what, err, now)
	if doing == watching && err == nil { // a watch may replace the list
		r.failures.Record(listing+r.what, nil, now)
	}
	if err != nil && failure.Since.Equal(now) && r.failed != nil {
		r.failed()
	}
}

// forgetFailures ends the failures of watches that are no longer needed.
func (w *drainWatch) forgetFailures(what string) {
	w.failures.Remove(func(doing string) bool { return doing == listing+what || doing == watching+what })
}

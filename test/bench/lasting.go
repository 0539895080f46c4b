package main

import (
	"context"
	"slices"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// lastingWatch lists a kind and watches it from then on. It restarts watches that the API server closes because the client reads too
// slowly, as it may on a busy machine.
func lastingWatch(ctx context.Context, from client.WithWatch, kind client.ObjectList, of ...client.ListOption) (watch.Interface, error) {
	if err := from.List(ctx, kind, of...); err != nil {
		return nil, errors.Wrapf(err, "listing %T", kind)
	}
	watches := &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		return from.Watch(ctx, kind, append(slices.Clone(of), &client.ListOptions{Raw: &options})...)
	}}
	watcher, err := watchtools.NewRetryWatcherWithContext(ctx, kind.GetResourceVersion(), watches)
	return watcher, errors.Wrapf(err, "watching %T", kind)
}

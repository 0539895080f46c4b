package maintain

import (
	"context"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// reconnectAfter is the wait after a watch has failed.
const reconnectAfter = 2 * time.Second

// Wait waits by watch until each target has reached the stage or will not reach it. It returns the error of the context when the context
// ends before. An error of the first list is returned; later ones are reported, and the wait continues.
func (r *Run) Wait(ctx context.Context) error {
	options := r.watched()
	for first := true; len(r.active) > 0; first = false {
		if !first {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(reconnectAfter):
			}
		}
		version, err := r.list(ctx, options)
		if err == nil && len(r.active) > 0 {
			err = r.watch(ctx, options, version)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && first:
			return err
		case err != nil:
			r.Reporter.Reconnects(err)
		}
	}
	return nil
}

// watched selects the objects of the targets: a single one by name, so that the right to read this one suffices.
func (r *Run) watched() client.ListOptions {
	options := client.ListOptions{Namespace: r.Targets[0].Key.Namespace}
	for _, target := range r.Targets {
		if target.Key.Namespace != options.Namespace {
			options.Namespace = metav1.NamespaceAll
		}
	}
	if len(r.Targets) == 1 {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, r.Targets[0].Key.Name)
	}
	return options
}

// list observes all targets and returns the version of the list.
func (r *Run) list(ctx context.Context, options client.ListOptions) (version string, _ error) {
	list := r.Kind.newList()
	if err := r.Kind.cluster().List(ctx, list, &options); err != nil {
		return "", errors.Wrap(err, "waiting: listing the objects")
	}
	present := map[types.NamespacedName]client.Object{}
	if err := meta.EachListItem(list, func(item runtime.Object) error {
		if object, ok := item.(client.Object); ok {
			present[client.ObjectKeyFromObject(object)] = object
		}
		return nil
	}); err != nil {
		return "", errors.Wrap(err, "waiting: reading a list")
	}
	for _, target := range r.Active() {
		if err := r.observe(ctx, target.Key, present[target.Key]); err != nil {
			return "", err
		}
	}
	return list.GetResourceVersion(), nil
}

// watch observes the targets until all are done or the watch ends.
func (r *Run) watch(ctx context.Context, options client.ListOptions, version string) error {
	options.Raw = &metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true}
	watcher, err := r.Kind.cluster().Watch(ctx, r.Kind.newList(), &options)
	if err != nil {
		return errors.Wrap(err, "waiting: watching the objects")
	}
	defer watcher.Stop()
	for len(r.active) > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, open := <-watcher.ResultChan():
			if !open || event.Type == watch.Error {
				return nil // the server ends watches from time to time
			}
			object, ok := event.Object.(client.Object)
			if !ok || event.Type == watch.Bookmark {
				continue
			}
			key := client.ObjectKeyFromObject(object)
			if event.Type == watch.Deleted {
				object = nil
			}
			if err := r.observe(ctx, key, object); err != nil {
				return err
			}
		}
	}
	return nil
}

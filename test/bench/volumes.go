package main

import (
	"context"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
	"github.com/capnm/cluster-api-node-maintenance/test/storage"
)

// addVolumes creates a volume for each app that all its Pods use, and waits until they are bound: the attach/detach controller retries a
// Pod with an unbound claim only after a minute.
func (a *arena) addVolumes(ctx context.Context) error {
	if !a.load.hasVolumes() {
		return nil
	}
	// It runs as long as the arena, not only during the arena's start.
	if _, err := storage.StartAttacher(context.WithoutCancel(ctx), a.workload.Client, a.load.detachDelay); err != nil {
		return err
	}
	for _, app := range a.load.appNames() {
		volume, claim := storage.Volume(appNamespace, app)
		if err := kwok.Create(ctx, a.workload.Client, []client.Object{volume, claim}); err != nil {
			return err
		}
	}
	return poll(ctx, "for the volumes to be bound", func(ctx context.Context) (bool, error) {
		claims := &corev1.PersistentVolumeClaimList{}
		if err := a.workload.Client.List(ctx, claims); err != nil {
			return false, errors.Wrap(err, "listing the claims")
		}
		for i := range claims.Items {
			if claims.Items[i].Status.Phase != corev1.ClaimBound {
				return false, nil
			}
		}
		return len(claims.Items) == a.load.apps, nil
	})
}

// isAttached returns whether each volume is attached to each of the Nodes, and to no other.
func (a *arena) isAttached(ctx context.Context) (bool, error) {
	if !a.load.hasVolumes() {
		return true, nil
	}
	all := &storagev1.VolumeAttachmentList{}
	if err := a.workload.Client.List(ctx, all); err != nil {
		return false, errors.Wrap(err, "listing the VolumeAttachments")
	}
	for i := range all.Items {
		if !all.Items[i].Status.Attached || all.Items[i].DeletionTimestamp != nil {
			return false, nil
		}
	}
	return len(all.Items) == a.load.apps*a.load.nodes, nil
}

// awaitDetached waits until no volume is attached to any of the Nodes.
func (a *arena) awaitDetached(ctx context.Context, nodes []string) error {
	if !a.load.hasVolumes() {
		return nil
	}
	attachments := a.limit.StorageV1().VolumeAttachments()
	all, err := attachments.List(ctx, metav1.ListOptions{})
	if err != nil {
		return errors.Wrap(err, "listing the VolumeAttachments")
	}
	drained, left := sets.New(nodes...), sets.New[string]()
	for i := range all.Items {
		if drained.Has(all.Items[i].Spec.NodeName) {
			left.Insert(all.Items[i].Name)
		}
	}
	watcher, err := attachments.Watch(ctx, metav1.ListOptions{ResourceVersion: all.ResourceVersion})
	if err != nil {
		return errors.Wrap(err, "watching the VolumeAttachments")
	}
	defer watcher.Stop()
	for left.Len() > 0 {
		select {
		case event, open := <-watcher.ResultChan():
			if !open {
				return errors.New("the watch of VolumeAttachments was closed")
			}
			if attachment, ok := event.Object.(*storagev1.VolumeAttachment); ok && event.Type == watch.Deleted {
				left.Delete(attachment.Name)
			}
		case <-ctx.Done():
			return errors.Wrapf(ctx.Err(), "waiting for %d volumes to be detached", left.Len())
		}
	}
	return nil
}

// Package storage simulates a CSI driver without kubelet and driver. The real attach/detach controller attaches and detaches volumes;
// this package confirms that, as an external attacher does.
package storage

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// Driver is the name of the CSI driver.
	Driver = "csi.test"
	// attacherFinalizer is the finalizer of an external attacher on a VolumeAttachment until the volume is detached.
	attacherFinalizer = "external-attacher/csi-test"
)

// Attacher is the external attacher of the driver.
type Attacher struct {
	client client.WithWatch
	delay  time.Duration

	mu   sync.Mutex
	held map[string]bool // by PersistentVolume
}

// StartAttacher installs the driver in a cluster, and simulates its attacher until the context is done. Volumes are attached
// immediately, and detached after delay, counted from the request of the attach/detach controller.
func StartAttacher(ctx context.Context, c client.WithWatch, delay time.Duration) (*Attacher, error) {
	driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: Driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(true)}}
	if err := c.Create(ctx, driver); err != nil {
		return nil, errors.Wrap(err, "installing a CSI driver")
	}
	a := &Attacher{client: c, delay: delay, held: map[string]bool{}}
	go wait.UntilWithContext(ctx, a.watch, rewatch)
	return a, nil
}

// rewatch is the pause before the watch is started again, which ends when the API server stops.
const rewatch = 500 * time.Millisecond

// watch serves the VolumeAttachments, first those that exist, until the watch ends.
func (a *Attacher) watch(ctx context.Context) {
	watch, err := a.client.Watch(ctx, &storagev1.VolumeAttachmentList{})
	if err != nil {
		return
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		if attachment, ok := event.Object.(*storagev1.VolumeAttachment); ok && attachment.Spec.Attacher == Driver {
			a.serve(ctx, attachment) // a failure is retried with the next event, or when the watch is started again
		}
	}
}

func (a *Attacher) serve(ctx context.Context, attachment *storagev1.VolumeAttachment) {
	switch {
	case attachment.DeletionTimestamp == nil && !slices.Contains(attachment.Finalizers, attacherFinalizer):
		_ = a.setFinalizers(ctx, attachment, append(slices.Clone(attachment.Finalizers), attacherFinalizer))
	case attachment.DeletionTimestamp == nil && !attachment.Status.Attached:
		before := attachment.DeepCopy()
		attachment.Status.Attached = true
		_ = a.client.Status().Patch(ctx, attachment, client.MergeFrom(before))
	case attachment.DeletionTimestamp != nil && !a.holds(attachment):
		if a.delay == 0 {
			_ = a.setFinalizers(ctx, attachment, nil)
			return
		}
		time.AfterFunc(a.delay, func() {
			_ = wait.PollUntilContextCancel(ctx, rewatch, true, func(ctx context.Context) (bool, error) {
				return a.setFinalizers(ctx, attachment, nil) == nil, nil
			})
		})
	}
}

func (a *Attacher) setFinalizers(ctx context.Context, attachment *storagev1.VolumeAttachment, finalizers []string) error {
	changed := attachment.DeepCopy()
	changed.Finalizers = finalizers
	return errors.Wrapf(client.IgnoreNotFound(a.client.Patch(ctx, changed, client.MergeFrom(attachment))), "patching VolumeAttachment %s", attachment.Name)
}

func (a *Attacher) holds(attachment *storagev1.VolumeAttachment) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held[VolumeOf(attachment)]
}

// Hold keeps a PersistentVolume attached until Detach.
func (a *Attacher) Hold(volume string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held[volume] = true
}

// Detach releases a held PersistentVolume, and detaches it if that is due.
func (a *Attacher) Detach(ctx context.Context, volume string) error {
	a.mu.Lock()
	delete(a.held, volume)
	a.mu.Unlock()
	all := &storagev1.VolumeAttachmentList{}
	if err := a.client.List(ctx, all); err != nil {
		return errors.Wrap(err, "listing VolumeAttachments")
	}
	for i := range all.Items {
		if attachment := &all.Items[i]; VolumeOf(attachment) == volume && attachment.DeletionTimestamp != nil {
			if err := a.setFinalizers(ctx, attachment, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// VolumeOf returns the PersistentVolume of a VolumeAttachment, or "" for an inline volume.
func VolumeOf(attachment *storagev1.VolumeAttachment) string {
	return ptr.Deref(attachment.Spec.Source.PersistentVolumeName, "")
}

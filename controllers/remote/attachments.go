package remote

import (
	"context"

	"github.com/pkg/errors"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
)

// attachmentWatch observes the VolumeAttachments of a workload cluster while somebody waits for volumes to detach. There is no
// field selector for their Node, so it sees all of them, trimmed to what counts; one watch serves all who wait.
type attachmentWatch struct {
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
	nodes    map[string]string // by owner, the Node whose volumes it waits for
}

// attachmentsByNode is the index of VolumeAttachments by their Node.
const attachmentsByNode = "node"

// ObserveVolumes has the Pods of a Node, and the VolumeAttachments, watched for owner from now on, as Observe does for Pods.
func (c *Clusters) ObserveVolumes(ctx context.Context, cluster types.NamespacedName, owner, node string) (Observation, error) {
	if _, err := c.Observe(ctx, cluster, owner, node); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	watch := c.watches[cluster]
	if watch == nil { // it has ended in this moment, and who needs it says so again
		return nil, nil
	}
	return watch.drainWatch, watch.needAttachments(owner, node)
}

// needAttachments notes that owner waits for the volumes of a Node.
func (w *drainWatch) needAttachments(owner, node string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.attachments == nil {
		var err error
		if w.attachments, err = w.startAttachments(); err != nil {
			return err
		}
	}
	w.attachments.nodes[owner] = node
	return nil
}

// releaseAttachments is called with the lock held.
func (w *drainWatch) releaseAttachments(owner string) {
	if w.attachments == nil {
		return
	}
	if delete(w.attachments.nodes, owner); len(w.attachments.nodes) == 0 {
		w.attachments.stop()
		w.attachments = nil
	}
}

func (w *drainWatch) startAttachments() (*attachmentWatch, error) {
	informer := cache.NewSharedIndexInformer(
		cache.NewListWatchFromClient(w.client.StorageV1().RESTClient(), "volumeattachments", "", fields.Everything()),
		&storagev1.VolumeAttachment{}, 0, cache.Indexers{attachmentsByNode: nodeOfAttachment})
	if err := informer.SetTransform(trimAttachment); err != nil {
		return nil, errors.Wrapf(err, "preparing the watch of VolumeAttachments in Cluster %s", w.cluster)
	}
	changed := func(object any) {
		if attachment, ok := last(object).(*storagev1.VolumeAttachment); ok {
			w.volumesChanged(attachment.Spec.NodeName)
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    changed,
		UpdateFunc: func(_, object any) { changed(object) },
		DeleteFunc: changed,
	})
	if err != nil {
		return nil, errors.Wrapf(err, "preparing the watch of VolumeAttachments in Cluster %s", w.cluster)
	}
	ctx, stop := context.WithCancel(w.ctx)
	go informer.RunWithContext(ctx)
	go func() {
		if cache.WaitFor(ctx, "", registration.HasSyncedChecker()) {
			w.volumesChanged("")
		}
	}()
	return &attachmentWatch{informer: informer, stop: stop, nodes: map[string]string{}}, nil
}

// volumesChanged tells that what must detach from a Node may have changed, where somebody waits for its volumes. Without a
// Node it is for all of these.
func (w *drainWatch) volumesChanged(node string) {
	nodes := sets.New[string]()
	w.mu.RLock()
	if w.attachments != nil {
		for _, waited := range w.attachments.nodes {
			if node == "" || waited == node {
				nodes.Insert(waited)
			}
		}
	}
	w.mu.RUnlock()
	for waited := range nodes {
		w.notify(Change{Cluster: w.cluster, Volumes: &waited})
	}
}

// AttachmentsTo implements Observation.
func (w *drainWatch) AttachmentsTo(node string) ([]*storagev1.VolumeAttachment, bool) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.attachments == nil || !w.attachments.informer.HasSynced() {
		return nil, false
	}
	objects, err := w.attachments.informer.GetIndexer().ByIndex(attachmentsByNode, node)
	if err != nil {
		return nil, false
	}
	attachments := make([]*storagev1.VolumeAttachment, 0, len(objects))
	for _, object := range objects {
		if attachment, ok := object.(*storagev1.VolumeAttachment); ok {
			attachments = append(attachments, attachment)
		}
	}
	return attachments, true
}

func nodeOfAttachment(object any) ([]string, error) {
	attachment, ok := object.(*storagev1.VolumeAttachment)
	if !ok {
		return nil, nil
	}
	return []string{attachment.Spec.NodeName}, nil
}

// trimAttachment drops what no decision looks at. A cluster may have tens of thousands.
func trimAttachment(object any) (any, error) {
	attachment, ok := object.(*storagev1.VolumeAttachment)
	if !ok {
		return object, nil
	}
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attachment.Name, UID: attachment.UID, ResourceVersion: attachment.ResourceVersion, DeletionTimestamp: attachment.DeletionTimestamp},
		Spec: storagev1.VolumeAttachmentSpec{
			NodeName: attachment.Spec.NodeName,
			Source:   storagev1.VolumeAttachmentSource{PersistentVolumeName: attachment.Spec.Source.PersistentVolumeName},
		},
		Status: storagev1.VolumeAttachmentStatus{Attached: attachment.Status.Attached},
	}, nil
}

package workload

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

// attachmentWatch watches the VolumeAttachments of a workload cluster while an owner waits for volumes to detach. VolumeAttachments have no
// field selector for the Node, so all owners share one watch of all of them, trimmed to the fields that decisions need.
type attachmentWatch struct {
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
	nodes    map[string]string // by owner: the Node for whose volumes it waits
}

// attachmentsByNode is the index of VolumeAttachments by their Node.
const attachmentsByNode = "node"

// ObserveVolumes watches the Pods of a Node and the VolumeAttachments for owner, as Observe does for Pods.
func (c *Clusters) ObserveVolumes(ctx context.Context, cluster types.NamespacedName, owner, node string) (Observation, error) {
	if _, err := c.Observe(ctx, cluster, owner, node); err != nil {
		return nil, err
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	watch := c.watches[cluster]
	if watch == nil { // it has just ended; owners call Observe again
		return nil, nil
	}
	return watch.drainWatch, watch.ensureAttachments(owner, node)
}

// ensureAttachments starts the watch of VolumeAttachments if necessary, and records that owner waits for the volumes of a Node.
func (w *drainWatch) ensureAttachments(owner, node string) error {
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

// releaseAttachments stops the watch of VolumeAttachments if owner was the last to need it. The caller holds the lock.
func (w *drainWatch) releaseAttachments(owner string) {
	if w.attachments == nil {
		return
	}
	if delete(w.attachments.nodes, owner); len(w.attachments.nodes) == 0 {
		w.attachments.stop()
		w.forgetFailures(listedAttachments)
		w.attachments = nil
	}
}

func (w *drainWatch) startAttachments() (*attachmentWatch, error) {
	attachments := cache.NewListWatchFromClient(w.client.StorageV1().RESTClient(), "volumeattachments", "", fields.Everything())
	informer := cache.NewSharedIndexInformer(w.recordFailures(listedAttachments, attachments),
		&storagev1.VolumeAttachment{}, 0, cache.Indexers{attachmentsByNode: nodeOfAttachment})
	if err := informer.SetTransform(trimAttachment); err != nil {
		return nil, errors.Wrapf(err, "preparing the watch of VolumeAttachments in Cluster %s", w.cluster)
	}
	changed := func(object any) {
		if attachment, ok := finalState(object).(*storagev1.VolumeAttachment); ok {
			w.volumesChanged(attachment.Spec.NodeName)
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(object any, isInInitialList bool) {
			if !isInInitialList { // when the list has arrived, all Nodes are affected
				changed(object)
			}
		},
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

// volumesChanged notifies subscribers that the volumes that must detach from a Node may have changed, if an owner waits for them. An empty
// node means all such Nodes.
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
		w.notify(Change{Cluster: w.cluster, Type: VolumesChanged, Node: waited})
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

// trimAttachment drops the fields that no decision needs. A cluster may have tens of thousands of VolumeAttachments.
var trimAttachment = trimming(func(attachment *storagev1.VolumeAttachment) {
	attachment.ObjectMeta = metav1.ObjectMeta{Name: attachment.Name, UID: attachment.UID, ResourceVersion: attachment.ResourceVersion}
	attachment.Spec = storagev1.VolumeAttachmentSpec{
		NodeName: attachment.Spec.NodeName,
		Source:   storagev1.VolumeAttachmentSource{PersistentVolumeName: attachment.Spec.Source.PersistentVolumeName},
	}
	attachment.Status = storagev1.VolumeAttachmentStatus{Attached: attachment.Status.Attached}
})

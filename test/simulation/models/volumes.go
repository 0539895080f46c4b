package models

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	drainvolumes "github.com/capnm/cluster-api-node-maintenance/drain/volumes"
	"github.com/capnm/cluster-api-node-maintenance/test/storage"
)

const (
	// attacherFinalizer is on a VolumeAttachment until the volume is detached.
	attacherFinalizer = "external-attacher/csi-test"
	// heldPoll is how often the model checks whether a fault still holds a volume.
	heldPoll = time.Second
	// detachDelay is the longest time that the detachment of a volume takes.
	detachDelay = 2 * time.Second
)

// volumes is the attach/detach controller, and the external attacher of the CSI driver.
type volumes struct {
	options  WorkloadOptions
	random   *rand.Rand
	detached map[types.UID]time.Time // when a VolumeAttachment that was deleted will have been detached
}

// use is a volume on a Node.
type use struct{ node, volume string }

func (v *volumes) run(ctx context.Context, c client.Client) (again time.Duration, failed error) {
	pods, nodes, attachments := &corev1.PodList{}, &corev1.NodeList{}, &storagev1.VolumeAttachmentList{}
	if err := read(ctx, c, pods, nodes, attachments); err != nil {
		return 0, err
	}
	wanted, order, err := usedVolumes(ctx, c, pointers(pods.Items))
	if err != nil {
		return 0, err
	}
	present := map[use]bool{}
	attached := map[string][]corev1.AttachedVolume{}
	var unused []*storagev1.VolumeAttachment
	for _, attachment := range pointers(attachments.Items) {
		at := use{attachment.Spec.NodeName, storage.VolumeOf(attachment)}
		present[at] = true
		switch {
		case attachment.DeletionTimestamp != nil:
			rest, err := v.detach(ctx, c, attachment)
			again, failed = sooner(again, rest), cmp.Or(failed, err)
		case wanted[at] == nil:
			unused = append(unused, attachment)
		default:
			attached[at.node] = append(attached[at.node], corev1.AttachedVolume{
				Name: corev1.UniqueVolumeName("kubernetes.io/csi/" + attachment.Spec.Attacher + "^" + wanted[at].Spec.CSI.VolumeHandle),
			})
			failed = cmp.Or(failed, setStatus(ctx, c, attachment, func(a *storagev1.VolumeAttachment) { a.Status.Attached = true }))
		}
	}
	for _, at := range order {
		if !present[at] {
			failed = cmp.Or(failed, create(ctx, c, newAttachment(at, wanted[at].Spec.CSI.Driver)))
		}
	}
	for _, node := range pointers(nodes.Items) { // before the volumes are detached
		slices.SortFunc(attached[node.Name], func(a, b corev1.AttachedVolume) int { return strings.Compare(string(a.Name), string(b.Name)) })
		failed = cmp.Or(failed, setStatus(ctx, c, node, func(node *corev1.Node) { node.Status.VolumesAttached = attached[node.Name] }))
	}
	for _, attachment := range unused {
		failed = cmp.Or(failed, remove(ctx, c, attachment))
	}
	return again, failed
}

// usedVolumes returns the volumes that Pods use on their Nodes, and the uses in the order of the Pods.
func usedVolumes(ctx context.Context, c client.Client, pods []*corev1.Pod) (used map[use]*corev1.PersistentVolume, order []use, _ error) {
	used = map[use]*corev1.PersistentVolume{}
	for _, pod := range pods {
		if pod.Spec.NodeName == "" || rules.Finished(pod) {
			continue
		}
		for _, claim := range drainvolumes.ClaimsOf(pod) {
			volume, err := volumeOf(ctx, c, claim)
			if err != nil {
				return nil, nil, err
			}
			if volume == nil || volume.Spec.CSI == nil {
				continue
			}
			at := use{pod.Spec.NodeName, volume.Name}
			if used[at] == nil {
				used[at] = volume
				order = append(order, at)
			}
		}
	}
	return used, order, nil
}

// detach removes the finalizer of a VolumeAttachment that was deleted, after a delay.
func (v *volumes) detach(ctx context.Context, c client.Client, attachment *storagev1.VolumeAttachment) (time.Duration, error) {
	if _, known := v.detached[attachment.UID]; !known {
		v.detached[attachment.UID] = time.Now().Add(between(v.random, 0, detachDelay))
	}
	if rest := time.Until(v.detached[attachment.UID]); rest > 0 {
		return rest, nil
	}
	if v.options.Held != nil && v.options.Held(storage.VolumeOf(attachment)) {
		return heldPoll, nil
	}
	_, err := update(ctx, c, attachment, func(a *storagev1.VolumeAttachment) { a.Finalizers = nil })
	return 0, err
}

func newAttachment(at use, driver string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "csi-" + hashOf(at.node+"/"+at.volume), Finalizers: []string{attacherFinalizer}},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driver, NodeName: at.node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To(at.volume)},
		},
	}
}

// volumeOf returns the PersistentVolume of a claim, or nil.
func volumeOf(ctx context.Context, c client.Client, key client.ObjectKey) (*corev1.PersistentVolume, error) {
	claim, volume := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	if err := c.Get(ctx, key, claim); err != nil || claim.Spec.VolumeName == "" {
		return nil, errors.Wrapf(client.IgnoreNotFound(err), "getting PersistentVolumeClaim %s", key)
	}
	if err := c.Get(ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, volume); err != nil {
		return nil, errors.Wrapf(client.IgnoreNotFound(err), "getting PersistentVolume %s", claim.Spec.VolumeName)
	}
	return volume, nil
}

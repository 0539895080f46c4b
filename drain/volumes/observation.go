package volumes

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Observation is what is attached to a Node, which Pods are there, and what has been read of their volumes.
type Observation struct {
	// Attached are the names in node.status.volumesAttached.
	Attached []string
	// Attachments are the VolumeAttachments of the Node that are attached, or about to be detached.
	Attachments []Attachment
	// Pods are the live Pods of the Node.
	Pods []Pod
	Facts
}

// Attachment is what counts of a VolumeAttachment.
type Attachment struct {
	Name string
	// PersistentVolume is its name. Empty: the VolumeAttachment has an inline volume.
	PersistentVolume string
}

// Pod is a Pod on the Node.
type Pod struct {
	// Claims that it uses, see ClaimsOf.
	Claims []types.NamespacedName
	// Stays: the drain rules skip it.
	Stays bool
}

// Facts are the answers to Missing. What has been read and isn't there has a zero value.
type Facts struct {
	Claims  map[types.NamespacedName]Claim
	Volumes map[string]Volume
}

// Claim is what counts of a PersistentVolumeClaim.
type Claim struct {
	// Volume is the PersistentVolume that it is bound to, empty while it isn't.
	Volume string
}

// Volume is what counts of a PersistentVolume.
type Volume struct {
	Found bool
	// UniqueNames are the result of the function of that name.
	UniqueNames []string
	// Claim that it is bound to, nil if it isn't.
	Claim *types.NamespacedName
}

// VolumeOf returns what counts of a PersistentVolume.
func VolumeOf(volume *corev1.PersistentVolume) Volume {
	v := Volume{Found: true, UniqueNames: UniqueNames(volume)}
	if ref := volume.Spec.ClaimRef; ref != nil && (ref.Kind == "" || ref.Kind == "PersistentVolumeClaim") {
		v.Claim = &types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	}
	return v
}

// ClaimsOf returns the claims that a Pod uses, those of its generic ephemeral volumes included. Their name is the Pod's and
// the volume's: https://kubernetes.io/docs/concepts/storage/ephemeral-volumes/#persistentvolumeclaim-naming.
func ClaimsOf(pod *corev1.Pod) []types.NamespacedName {
	var claims []types.NamespacedName
	for _, volume := range pod.Spec.Volumes {
		switch {
		case volume.PersistentVolumeClaim != nil:
			claims = append(claims, types.NamespacedName{Namespace: pod.Namespace, Name: volume.PersistentVolumeClaim.ClaimName})
		case volume.Ephemeral != nil:
			claims = append(claims, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name + "-" + volume.Name})
		}
	}
	return claims
}

// NewAttachment returns what counts of a VolumeAttachment, whose source may have no PersistentVolume.
func NewAttachment(name string, persistentVolume *string) Attachment {
	if persistentVolume == nil {
		return Attachment{Name: name}
	}
	return Attachment{Name: name, PersistentVolume: *persistentVolume}
}

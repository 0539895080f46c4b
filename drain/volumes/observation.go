package volumes

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Observation is what is attached to a Node, the live Pods of the Node, and what has been read about their volumes.
type Observation struct {
	// Attached are the names in node.status.volumesAttached.
	Attached []string
	// Attachments are the VolumeAttachments of the Node that are attached, or about to be detached.
	Attachments []Attachment
	// Pods are the live Pods of the Node.
	Pods []Pod
	Facts
}

// Attachment is a VolumeAttachment, reduced to the fields that decide.
type Attachment struct {
	Name string
	// PersistentVolume is the name of the volume. It is empty if the VolumeAttachment has an inline volume.
	PersistentVolume string
}

// Pod is a Pod on the Node.
type Pod struct {
	// Claims are the PersistentVolumeClaims that the Pod uses, see ClaimsOf.
	Claims []types.NamespacedName
	// Skipped means that the drain rules skip the Pod, so that it stays on the Node.
	Skipped bool
}

// Facts are the answers to Missing. An object that does not exist has a zero value.
type Facts struct {
	Claims  map[types.NamespacedName]Claim
	Volumes map[string]Volume
}

// Claim is a PersistentVolumeClaim, reduced to the fields that decide.
type Claim struct {
	// Volume is the name of the PersistentVolume that the claim is bound to, empty while it is unbound.
	Volume string
}

// Volume is a PersistentVolume, reduced to the fields that decide.
type Volume struct {
	Found bool
	// UniqueNames are the result of the function UniqueNames.
	UniqueNames []string
	// Claim is the claim that the volume is bound to, nil while it is unbound.
	Claim *types.NamespacedName
}

// VolumeOf reduces a PersistentVolume to a Volume.
func VolumeOf(volume *corev1.PersistentVolume) Volume {
	v := Volume{Found: true, UniqueNames: UniqueNames(volume)}
	if ref := volume.Spec.ClaimRef; ref != nil && (ref.Kind == "" || ref.Kind == "PersistentVolumeClaim") {
		v.Claim = &types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	}
	return v
}

// ClaimsOf returns the claims that a Pod uses. Those of its generic ephemeral volumes are named after the Pod and the volume:
// https://kubernetes.io/docs/concepts/storage/ephemeral-volumes/#persistentvolumeclaim-naming.
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

// NewAttachment returns an Attachment. persistentVolume is nil for a VolumeAttachment with an inline volume.
func NewAttachment(name string, persistentVolume *string) Attachment {
	if persistentVolume == nil {
		return Attachment{Name: name}
	}
	return Attachment{Name: name, PersistentVolume: *persistentVolume}
}
